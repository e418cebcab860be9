//! What happened to a key or to the clock heals by itself, and locks nobody out.

use std::time::Duration;

use tollgate::{Limiter, OnError, Quota, Redis};

use super::{limiter, only_key, policies, pttl};
use crate::support::{assert_all_keys_expire, server::Server};

#[tokio::test]
async fn a_lost_expiry_comes_back_with_use() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    // A bucket that drains in ten seconds: ten units are half a period. That of a fixed window comes back with the next
    // window, as the test below tells.
    let [_, _, sliding, bucket] = policies("20/10s".parse().expect("a quota"));
    for policy in [sliding, bucket] {
        assert!(limiter.check(&policy, "user:42").await.is_allowed());
        let key = only_key(&mut admin);
        let _: () = redis::cmd("PERSIST").arg(&key).query(&mut admin).expect("PERSIST");
        assert_eq!(pttl(&mut admin, &key), -1);
        for _ in 0..11 {
            assert!(limiter.check(&policy, "user:42").await.is_allowed());
        }
        let left = pttl(&mut admin, &key);
        assert!(left > 0 && left <= 20_000, "{}: {left}", policy.name());
        assert_eq!(limiter.peek(&policy, "user:42").await.outcomes()[0].remaining(), 8, "what was used is still used");
        limiter.reset(&policy, "user:42").await.expect("reset");
    }
}

#[tokio::test]
async fn a_lost_expiry_comes_back_for_who_is_refused() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    for policy in policies("2/500ms".parse().expect("a quota")) {
        while limiter.check(&policy, "user:42").await.is_allowed() {}
        let key = only_key(&mut admin);
        let _: () = redis::cmd("PERSIST").arg(&key).query(&mut admin).expect("PERSIST");
        let refused = limiter.check(&policy, "user:42").await;
        // Real time, since the server's clock decides.
        tokio::time::sleep(refused.retry_after().unwrap_or(Duration::from_millis(1))).await;
        assert!(limiter.check(&policy, "user:42").await.is_allowed(), "{} locks out", policy.name());
        assert!(limiter.check(&policy, "user:42").await.outcomes()[0].remaining() <= 1);
        assert_all_keys_expire(&mut admin);
        limiter.reset(&policy, "user:42").await.expect("reset");
    }
}

#[tokio::test]
async fn what_no_limiter_wrote_is_replaced_by_the_charge() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    let foreign: &[&[&str]] = &[
        &["SET", "KEY", "garbage"],
        &["SET", "KEY", ""],
        &["SET", "KEY", "1.5"],
        &["SET", "KEY", "-7"],
        &["SET", "KEY", "9223372036854775807"],
        &["SET", "KEY", "99999999999999999999999"],
        &["RPUSH", "KEY", "a", "b"],
        &["HSET", "KEY", "a", "b"],
        &["SADD", "KEY", "a"],
        &["ZADD", "KEY", "5", "member"],
        &["ZADD", "KEY", "-5", "#", "1", "x"],
        &["ZADD", "KEY", "-inf", "#", "inf", "@"],
        &["ZADD", "KEY", "-inf", "#", "-inf", "@"],
        &["ZADD", "KEY", "inf", "#", "inf", "@", "inf", "x"],
        &["ZADD", "KEY", "-1", "#", "-1", "@", "1", "x:y:z"],
        &["SET", "KEY", "1e3"],
        &["SET", "KEY", "0x10"],
        &["XADD", "KEY", "*", "a", "b"],
    ];
    for policy in policies(Quota::per_hour(5)) {
        for command in foreign {
            assert!(limiter.check(&policy, "user:42").await.is_allowed());
            let key = only_key(&mut admin);
            let _: () = redis::cmd("DEL").arg(&key).query(&mut admin).expect("DEL");
            let mut write = redis::cmd(command[0]);
            command[1..].iter().for_each(|arg| {
                write.arg(if *arg == "KEY" { &key } else { *arg });
            });
            let _: redis::Value = write.query(&mut admin).expect("a foreign value");

            let peeked = limiter.peek(&policy, "user:42").await;
            assert!(!peeked.is_degraded(), "{} {command:?}", policy.name());
            let never = limiter.decide(&[tollgate::Demand::new(&policy, "user:42").cost(6)]).await.0;
            assert!(never.is_never() && !never.is_degraded(), "{} {command:?}", policy.name());
            let decision = limiter.check(&policy, "user:42").await;
            assert!(!decision.is_degraded(), "{} {command:?}", policy.name());
            assert!(decision.is_allowed(), "{} {command:?}: {decision:?}", policy.name());
            assert_eq!(decision.outcomes()[0].remaining(), 4, "{} {command:?}", policy.name());
            assert_all_keys_expire(&mut admin);
            limiter.reset(&policy, "user:42").await.expect("reset");
        }
    }
}

#[tokio::test]
async fn a_count_without_expiry_ends_after_one_window() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    for policy in policies("5/300ms".parse().expect("a quota")) {
        assert!(limiter.check(&policy, "user:42").await.is_allowed());
        let key = only_key(&mut admin);
        let _: () = redis::cmd("SET").arg(&key).arg(7).query(&mut admin).expect("SET");
        let _ = limiter.check(&policy, "user:42").await;
        assert!(pttl(&mut admin, &key) > 0, "{}", policy.name());
        // Real time, since the server's clock decides.
        tokio::time::sleep(Duration::from_millis(301)).await;
        assert!(limiter.check(&policy, "user:42").await.is_allowed(), "{}", policy.name());
        limiter.reset(&policy, "user:42").await.expect("reset");
    }
}

/// A server whose clock is really stepped. Without libfaketime, the same steps run in the agreement test only.
#[tokio::test]
async fn a_stepped_clock_refuses_for_one_window_at_most_and_grants_one_quota_at_most() {
    let Some((server, clock)) = Server::start_with_fake_clock() else {
        println!("skipped: needs libfaketime, and a server that starts under it (set TOLLGATE_CLOCK_SERVER)");
        return;
    };
    let limiter = limiter(&server);
    let mut admin = server.admin();
    let quota: Quota = "3/600ms".parse().expect("a quota");
    for policy in policies(quota) {
        let exhaust = async || while limiter.check(&policy, "user:42").await.is_allowed() {};
        exhaust().await;
        clock.shift(-1);
        let refused = limiter.check(&policy, "user:42").await;
        // Where the window is aligned, the step may have led into one that was not used yet.
        let wait = refused.retry_after().unwrap_or_default();
        let longest = if policy.name() == "bucket" { quota.window() * 2 } else { quota.window() };
        assert!(wait <= longest, "{}: {wait:?} after a step back", policy.name());
        // Real time, since the server's clock decides.
        tokio::time::sleep(wait).await;
        let after = limiter.check(&policy, "user:42").await;
        assert!(after.is_allowed(), "{} locks out after a step back: {refused:?} {after:?}", policy.name());
        assert_all_keys_expire(&mut admin);

        exhaust().await;
        clock.shift(1);
        let mut granted = 0;
        while granted < 10 && limiter.check(&policy, "user:42").await.is_allowed() {
            granted += 1;
        }
        assert!((1..=4).contains(&granted), "{}: {granted} after a step forward", policy.name());
        clock.shift(0);
        limiter.reset(&policy, "user:42").await.expect("reset");
    }
}

#[tokio::test]
async fn a_server_out_of_memory_is_an_error_and_changes_nothing() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    for policy in policies(Quota::per_hour(5)) {
        assert!(limiter.check(&policy, "user:42").await.is_allowed());
        let set = |admin: &mut redis::Connection, bytes: &str| {
            let _: () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).query(admin).expect("CONFIG SET");
        };
        set(&mut admin, "1");
        let decision = limiter.check(&policy.clone().on_error(OnError::Deny), "user:42").await;
        assert!(decision.is_unavailable(), "{}: {decision:?}", policy.name());
        assert!(limiter.check(&policy.clone().on_error(OnError::Allow), "user:42").await.is_allowed());
        set(&mut admin, "0");
        assert_eq!(limiter.peek(&policy, "user:42").await.outcomes()[0].remaining(), 4, "{}", policy.name());
        limiter.reset(&policy, "user:42").await.expect("reset");
    }
}

/// Whatever command a server refuses, and wherever in the script, nothing is left half done.
#[tokio::test]
async fn a_command_that_is_forbidden_leaves_no_charge_and_no_immortal_key() {
    let server = Server::start();
    let (free, mut admin) = (limiter(&server), server.admin());
    // What cannot be taken back stays: without DEL or DECRBY a script cannot undo.
    for forbidden in ["pexpire", "set", "pttl", "incrby", "zadd", "zmscore", "zrange", "get"] {
        let _: () = redis::cmd("ACL")
            .arg(&["SETUSER", "limited", "reset", "on", "nopass", "~*", "&*", "+@all", &format!("-{forbidden}")])
            .query(&mut admin)
            .expect("ACL SETUSER");
        let url = format!("redis://limited:x@127.0.0.1:{}", server.port());
        let limited = Limiter::new(Redis::open(&url).expect("an address")).deadline(Duration::from_secs(10));
        let policies = policies(Quota::per_hour(5));
        let demands = policies.each_ref().map(|policy| tollgate::Demand::new(policy, "user:42").cost(2));
        for asked in [&demands[..], &demands[..1], &demands[2..3], &demands[3..]] {
            let (decision, _) = limited.decide(asked).await;
            for demand in asked {
                let left = free.peek(demand.policy(), "user:42").await.remaining();
                let expected = if decision.is_degraded() { 5 } else { 3 };
                assert_eq!(left, Some(expected), "-{forbidden} {}", demand.policy().name());
            }
            assert_all_keys_expire(&mut admin);
            let _: () = redis::cmd("FLUSHALL").query(&mut admin).expect("FLUSHALL");
        }
    }
}

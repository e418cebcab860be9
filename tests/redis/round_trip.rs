//! One decision is one script call, and nothing of it is left behind that should not be.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

use tollgate::{Demand, Key, Limiter, Policy, Quota, Redis};

use super::{limiter, only_key, policies, pttl};
use crate::support::{all_calls, assert_all_keys_expire, calls, server::Server};

/// What a server has been sent since this was made, as MONITOR tells it.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn new(server: &Server) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        socket.write_all(b"MONITOR\r\n").expect("a request");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let mut reader = BufReader::new(socket);
        let mut ok = String::new();
        reader.read_line(&mut ok).expect("an answer");
        assert_eq!(ok.trim(), "+OK");
        Self(reader)
    }

    /// Returns the names of commands that came from outside a script, up to the marker.
    fn outside_scripts(&mut self, server: &Server) -> Vec<String> {
        let _: () = redis::cmd("ECHO").arg("that's all").query(&mut server.admin()).expect("ECHO");
        let mut commands = Vec::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a line");
            if line.contains("that's all") {
                return commands;
            }
            let (source, command) = line.split_once(']').expect("[db source] command");
            let ours = command.contains("CLIENT") && command.contains("SETINFO"); // the admin connection greets
            if !source.ends_with(" lua") && !ours {
                commands.push(command.split('"').nth(1).expect("a name").to_owned());
            }
        }
    }
}

#[tokio::test]
async fn one_decision_is_one_evalsha_however_many_rules() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    let all = policies(Quota::per_minute(3));
    let more = Policy::sliding_window("more", Quota::per_hour(1));
    let five: Vec<Demand<'_>> =
        all.iter().chain([&more]).map(|policy| Demand::new(policy, "user:42").cost(1)).collect();

    // The first call brings the script.
    let _ = limiter.check(&all[0], "somebody").await;
    for (demands, passes) in [(&five[..1], true), (&five, true), (&five, false), (&five[2..4], true)] {
        let before = calls(&mut admin, "evalsha");
        let mut monitor = Monitor::new(&server);
        let (decision, _) = limiter.decide(demands).await;
        assert_eq!(decision.is_allowed(), passes, "{decision:?}");
        assert_eq!(monitor.outside_scripts(&server), ["EVALSHA"]);
        assert_eq!(calls(&mut admin, "evalsha"), before + 1);
    }
    assert_all_keys_expire(&mut admin);
}

#[tokio::test]
async fn a_decision_costs_few_commands_alone_and_fewer_in_company() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    // For all that travel together: the call, its clock, and whom it finds blocked. Besides, what each needs at most;
    // the bucket is so slow that each charge renews its lifetime.
    let policies = policies(Quota::per_hour(1_000));
    for (policy, each) in policies.iter().zip([2, 2, 4, 2]) {
        let _ = limiter.check(policy, "user:0").await;
        let before = all_calls(&mut admin);
        assert!(limiter.check(policy, "user:0").await.is_allowed());
        let alone = all_calls(&mut admin) - before;
        assert!(alone <= 3 + each, "{}: {alone} commands", policy.name());

        let all = || {
            let one = |i| {
                let (limiter, policy) = (limiter.clone(), policy.clone());
                async move { limiter.check(&policy, format!("user:{i}")).await.is_allowed() }
            };
            (0..64).map(one).collect::<tokio::task::JoinSet<_>>().join_all()
        };
        // The first time makes the keys.
        assert!(all().await.into_iter().all(|allowed| allowed));
        let (before, sent) = (all_calls(&mut admin), calls(&mut admin, "evalsha"));
        assert!(all().await.into_iter().all(|allowed| allowed));
        let (together, sent) = (all_calls(&mut admin) - before, calls(&mut admin, "evalsha") - sent);
        assert!(sent <= 3, "{}: {sent} calls", policy.name());
        assert!(together <= 3 * sent + 64 * each, "{}: {together} commands for 64", policy.name());
    }
}

#[tokio::test]
async fn while_a_refusal_is_remembered_the_server_is_sent_nothing() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server).deny_max_age(Duration::from_secs(60)), server.admin());
    for policy in policies(Quota::per_hour(1)) {
        assert!(limiter.check(&policy, "user:42").await.is_allowed());
        assert!(!limiter.check(&policy, "user:42").await.is_allowed());
        let before = all_calls(&mut admin);
        for _ in 0..100 {
            assert!(!limiter.check(&policy, "user:42").await.is_allowed());
        }
        assert_eq!(all_calls(&mut admin), before, "{}", policy.name());
    }
}

#[tokio::test]
async fn a_lost_script_is_brought_again_by_the_same_call() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    for policy in policies(Quota::per_minute(4)) {
        for left in (0..4).rev() {
            let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut admin).expect("SCRIPT FLUSH");
            let decision = limiter.check(&policy, "user:42").await;
            assert_eq!(decision.outcomes()[0].remaining(), left, "{decision:?}");
        }
    }
    let (decision, charge) =
        limiter.decide(&[Demand::new(&policies(Quota::per_minute(9))[0], "user:43").cost(5)]).await;
    assert!(decision.is_allowed());
    let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut admin).expect("SCRIPT FLUSH");
    charge.settle(2).await.expect("settled");
    let left = limiter.peek(&policies(Quota::per_minute(9))[0], "user:43").await.outcomes()[0].remaining();
    assert_eq!(left, 7);
}

#[tokio::test]
async fn a_refusal_leaves_every_key_as_it_was() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    let [fixed, aligned, sliding, bucket] = policies(Quota::per_hour(5));
    let full = Policy::fixed_window("full", Quota::per_hour(1));
    assert!(limiter.check(&full, "user:42").await.is_allowed());

    // Nothing is there: nothing is made.
    for policy in [&fixed, &aligned, &sliding, &bucket] {
        let (decision, charge) = limiter.decide(&[Demand::new(policy, "user:42"), Demand::new(&full, "user:42")]).await;
        assert!(!decision.is_allowed() && charge.is_empty());
        assert_eq!(decision.outcomes()[0].remaining(), 5, "what would have passed is told uncharged");
    }
    assert!(only_key(&mut admin).contains(":full:"));

    // Something is there: it stays, with its expiry.
    let four = [&fixed, &aligned, &sliding, &bucket].map(|policy| Demand::new(policy, "user:42").cost(2));
    assert!(limiter.decide(&four).await.0.is_allowed());
    let before = dump(&mut admin);
    for cost in [1, 4, 6] {
        let mut demands: Vec<_> = four.iter().map(|demand| demand.clone().cost(cost)).collect();
        demands.push(Demand::new(&full, "user:42"));
        assert!(!limiter.decide(&demands).await.0.is_allowed());
        demands.reverse();
        assert!(!limiter.decide(&demands).await.0.is_allowed());
    }
    for ((key, value, expires), (key_after, value_after, expires_after)) in before.iter().zip(&dump(&mut admin)) {
        assert_eq!((key, value), (key_after, value_after));
        // Lifetimes run on by what the calls took.
        assert!(expires_after <= expires && expires - expires_after < 2_000, "{key}: {expires} {expires_after}");
    }
}

/// All keys with their contents and lifetimes, in order.
fn dump(admin: &mut redis::Connection) -> Vec<(String, Vec<String>, i64)> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(admin).expect("KEYS");
    keys.sort();
    keys.into_iter()
        .map(|key| {
            let kind: String = redis::cmd("TYPE").arg(&key).query(admin).expect("TYPE");
            let value = match kind.as_str() {
                "zset" => redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).arg("WITHSCORES").query(admin).expect("ZRANGE"),
                _ => vec![redis::cmd("GET").arg(&key).query::<String>(admin).expect("GET")],
            };
            let left = pttl(admin, &key);
            (key, value, left)
        })
        .collect()
}

#[tokio::test]
async fn a_peek_leaves_no_trace() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    for policy in policies(Quota::per_hour(2)) {
        let decision = limiter.peek(&policy, "user:42").await;
        assert!(decision.is_allowed());
        assert_eq!(decision.outcomes()[0].remaining(), 2);
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin).expect("KEYS");
        assert!(keys.is_empty(), "{keys:?}");

        assert!(limiter.check(&policy, "user:42").await.is_allowed());
        assert!(limiter.check(&policy, "user:42").await.is_allowed());
        let decision = limiter.peek(&policy, "user:42").await;
        assert!(decision.is_allowed(), "a peek is always allowed");
        assert_eq!(decision.outcomes()[0].remaining(), 0);
        limiter.reset(&policy, "user:42").await.expect("reset");
        assert_eq!(limiter.peek(&policy, "user:42").await.outcomes()[0].remaining(), 2);
    }
}

#[tokio::test]
async fn keys_are_named_as_documented_and_cannot_be_forged() {
    let server = Server::start();
    let mut admin = server.admin();
    let redis = Redis::open(&server.url()).expect("an address").prefix("shop").expect("a prefix");
    let limiter = Limiter::new(redis).deadline(Duration::from_secs(10));
    let policy = Policy::token_bucket("api", Quota::per_hour(10));
    for (subject, ends_with) in [
        ("user:42", "}:t:api:user:42"),
        ("{x}:evil", "}:t:api:%7Bx%7D:evil"),
        ("a|b", "}:t:api:a%7Cb"),
        ("new\r\nline", "}:t:api:new%0D%0Aline"),
    ] {
        assert!(limiter.check(&policy, subject).await.is_allowed());
        let key = only_key(&mut admin);
        assert!(key.starts_with("shop:1:{") && key.ends_with(ends_with), "{key}");
        assert_eq!(key.matches('{').count(), 1);
        limiter.reset(&policy, subject).await.expect("reset");
    }
    assert!(limiter.check(&policy, Key::from("long".repeat(100))).await.is_allowed());
    let key = only_key(&mut admin);
    assert!(key.len() < 80 && !key.contains("long"), "{key}");
    for prefix in ["", "a{b", "a b", "ä", &"x".repeat(65)] {
        let error = Redis::open(&server.url()).expect("an address").prefix(prefix).expect_err(prefix);
        assert!(error.is_invalid() && error.to_string().contains("braces"), "{error}");
    }
}

#[tokio::test]
async fn a_changed_quota_carries_used_units_over() {
    let server = Server::start();
    let limiter = limiter(&server);
    for (kind, left_of_ten) in [(0, 7), (1, 7), (2, 7), (3usize, 4)] {
        let [old, ten, two] = [5, 10, 2].map(|limit| policies(Quota::per_hour(limit))[kind].clone());
        for _ in 0..3 {
            assert!(limiter.check(&old, "user:42").await.is_allowed());
        }
        assert_eq!(limiter.peek(&ten, "user:42").await.outcomes()[0].remaining(), left_of_ten);
        assert_eq!(limiter.peek(&two, "user:42").await.outcomes()[0].remaining(), 0);
        assert!(!limiter.check(&two, "user:42").await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_that_wait_together_share_a_call_and_each_is_told_its_own() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    for policy in policies(Quota::per_hour(100)) {
        let before = calls(&mut admin, "evalsha");
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..600 {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            // One subject in two is the same, and asks at several costs.
            let subject = if i % 2 == 0 { "hot".to_owned() } else { format!("user:{i}") };
            let cost = if i % 10 == 0 { 3 } else { 1 };
            tasks.spawn(async move {
                let (decision, _) = limiter.decide(&[Demand::new(&policy, subject.as_str()).cost(cost)]).await;
                (subject, cost, decision)
            });
        }
        let (mut granted, mut left) = (0, Vec::new());
        for (subject, cost, decision) in tasks.join_all().await {
            assert!(!decision.is_degraded());
            match subject.as_str() {
                "hot" if decision.is_allowed() => {
                    granted += cost;
                    left.push(decision.outcomes()[0].remaining());
                }
                "hot" => assert!(decision.outcomes()[0].remaining() < cost, "{decision:?}"),
                _ => assert_eq!(decision.outcomes()[0].remaining(), 100 - cost),
            }
        }
        // What remained after each charge: every value once.
        left.sort_unstable();
        let told = left.len();
        left.dedup();
        assert_eq!((granted, left.len()), (100, told), "{}", policy.name());
        let sent = calls(&mut admin, "evalsha") - before;
        assert!(sent < 300, "{}: {sent} calls for 600 decisions", policy.name());
        limiter.reset(&policy, "hot").await.expect("reset");
    }
    assert_all_keys_expire(&mut admin);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_does_not_spoil_the_others_and_leaves_nothing_half_done() {
    let server = Server::start();
    let mut admin = server.admin();
    let _: () = redis::cmd("ACL")
        .arg(&["SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-zadd"])
        .query(&mut admin)
        .expect("ACL SETUSER");
    let url = format!("redis://limited:x@127.0.0.1:{}", server.port());
    let limiter = Limiter::new(Redis::open(&url).expect("an address")).deadline(Duration::from_secs(10));
    let [fixed, _, sliding, bucket] = policies(Quota::per_hour(1_000));
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..300 {
        let (limiter, policies) = (limiter.clone(), [fixed.clone(), sliding.clone(), bucket.clone()]);
        tasks.spawn(async move {
            let demands = policies.each_ref().map(|policy| Demand::new(policy, "user:42"));
            // The sliding window cannot be written; whatever is decided together with it fails as a whole.
            let asked = [&demands[..1], &demands[1..2], &demands[2..], &demands[..]][i % 4];
            (i % 4, limiter.decide(asked).await.0)
        });
    }
    for (kind, decision) in tasks.join_all().await {
        assert_eq!(decision.is_degraded(), kind == 1 || kind == 3, "{kind}: {decision:?}");
    }
    for policy in [&fixed, &bucket] {
        let mut looked = limiter.peek(policy, "user:42").await;
        // On a busy machine the last of them may have been nothing but failures for as long as it takes to be left alone.
        while looked.is_degraded() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            looked = limiter.peek(policy, "user:42").await;
        }
        assert_eq!(looked.outcomes()[0].remaining(), 925);
    }
    assert_all_keys_expire(&mut admin);
}

#[tokio::test]
async fn a_block_outlives_a_reset_and_is_read_in_the_same_call() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    let all = policies(Quota::per_hour(5));
    for policy in &all {
        limiter.block(policy, "user:42", Duration::from_secs(600)).await.expect("blocked");
        limiter.reset(policy, "user:42").await.expect("reset");
        let before = calls(&mut admin, "evalsha");
        let decision = limiter.check(policy, "user:42").await;
        assert_eq!(calls(&mut admin, "evalsha"), before + 1);
        assert!(!decision.is_allowed() && decision.outcomes()[0].is_blocked(), "{decision:?}");
        let wait = decision.retry_after().expect("a wait");
        assert!(wait > Duration::from_secs(590) && wait <= Duration::from_secs(600), "{wait:?}");
        assert!(
            !limiter.peek(policy, "user:42").await.is_allowed(),
            "whoever is blocked does not even pass for nothing"
        );
        assert!(limiter.check(policy, "user:43").await.is_allowed());
    }
    assert_all_keys_expire(&mut admin);
    // Another process learns that somebody is blocked by one call that did nothing.
    let other = Limiter::new(Redis::open(&server.url()).expect("an address"));
    for (subject, allowed, sent) in [("user:42", false, 2), ("user:44", true, 1)] {
        let before = calls(&mut admin, "evalsha");
        assert_eq!(other.check(&all[1], subject).await.is_allowed(), allowed);
        assert_eq!(calls(&mut admin, "evalsha"), before + sent);
    }
    // One of two demands is blocked: nothing is charged for the other, also not for another subject.
    let free = Policy::sliding_window("free", Quota::per_hour(5));
    for subject in ["user:42", "user:43"] {
        let (decision, _) = limiter.decide(&[Demand::new(&free, subject), Demand::new(&all[0], "user:42")]).await;
        let blocked: Vec<bool> = decision.outcomes().iter().map(|outcome| outcome.is_blocked()).collect();
        assert_eq!((decision.is_allowed(), blocked), (false, vec![false, true]));
        assert_eq!(limiter.peek(&free, subject).await.remaining(), Some(5));
    }
    for policy in &all {
        limiter.unblock(policy, "user:42").await.expect("unblocked");
        assert_eq!(limiter.check(policy, "user:42").await.remaining(), Some(4));
    }
    limiter.block(&all[0], "user:42", Duration::MAX).await.expect("blocked");
    assert!(!limiter.check(&all[0], "user:42").await.is_allowed());
    assert_all_keys_expire(&mut admin);
}

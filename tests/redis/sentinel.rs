//! Redis behind Sentinel: the master is found, followed, and never taken for granted.

use std::time::{Duration, Instant};

use tollgate::{Demand, Limiter, OnError, Policy, Quota, Redis, limit::Store};

use super::{access::acl_line, limiter_at};
use crate::support::{calls, sentinels::Sentinels, server::Server};

static POLICY: Policy = Policy::token_bucket("calls", Quota::per_day(100)).on_error(OnError::Deny);

fn run(server: &Server, words: &[&str]) {
    let _: redis::Value = redis::cmd(words[0])
        .arg(&words[1..])
        .query(&mut server.admin())
        .unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// Returns a server's role, or nothing if it cuts whoever asks, since that is about to change.
fn role(server: &Server) -> String {
    let info = redis::cmd("INFO").arg("replication").query(&mut server.admin()).unwrap_or_else(|_| String::new());
    info.lines().find_map(|line| line.strip_prefix("role:")).unwrap_or_default().to_owned()
}

/// How long an election may take: sentinels that vote for themselves begin again after twice the failover timeout.
const ELECTED: Duration = Duration::from_secs(40);

/// Waits until a replica has what its master has.
async fn caught_up(servers: &Sentinels) {
    let size = |server: &Server| -> u64 { redis::cmd("DBSIZE").query(&mut server.admin()).expect("DBSIZE") };
    let value = |server: &Server| -> Option<String> {
        let key = super::only_key(&mut server.admin());
        redis::cmd("GET").arg(key).query(&mut server.admin()).expect("GET")
    };
    for _ in 0..1_000 {
        if size(&servers.replica) == 1 && value(&servers.master) == value(&servers.replica) {
            return;
        }
        // Real time: replication is not waited for by anybody.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the replica does not follow");
}

#[allow(clippy::disallowed_methods)]
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_dies_under_load_is_followed_by_the_next_one_exactly() {
    let mut servers = Sentinels::start();
    for server in [&servers.master, &servers.replica] {
        let line = acl_line();
        run(server, &[&line[..], &["+role"]].concat());
    }
    let limiter = Limiter::new(Redis::open(&servers.url("tollgate:a-long-password@")).expect("an address"))
        .deny_max_age(Duration::ZERO);
    let patient = limiter_at(&servers.url("tollgate:a-long-password@"));
    let mut admitted = 0;
    while admitted < 40 {
        assert!(patient.check(&POLICY, "user:42").await.is_allowed());
        admitted += 1;
    }
    assert!(!limiter.peek(&POLICY, "user:42").await.is_degraded());
    caught_up(&servers).await;
    // A sentinel less must not matter.
    servers.kill_a_sentinel();
    servers.master.kill();
    let killed = Instant::now();
    let (mut refused, mut promoted) = (0, None);
    loop {
        if promoted.is_none() && role(&servers.replica) == "master" {
            promoted = Some(Instant::now());
        }
        let decision = limiter.check(&POLICY, "user:42").await;
        if decision.is_allowed() {
            admitted += 1;
            break;
        }
        assert!(decision.is_unavailable(), "refused for another reason: {decision:?}");
        refused += 1;
        assert!(killed.elapsed() < ELECTED, "no new master");
        // Real time, since real sentinels elect.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let followed = promoted.map_or(Duration::ZERO, |promoted| promoted.elapsed());
    println!(
        "decided again {:?} after the kill, {followed:?} after the promotion, {refused} decisions degraded, down-after 500 ms",
        killed.elapsed()
    );
    assert!(followed < Duration::from_secs(2), "{followed:?}");
    // The second limiter was idle meanwhile, and looks for itself, after a pause of its own.
    loop {
        let decision = patient.check(&POLICY, "user:42").await;
        if decision.is_unavailable() && killed.elapsed() < ELECTED {
            // Real time, as above.
            tokio::time::sleep(Duration::from_millis(10)).await;
        } else if decision.is_allowed() {
            admitted += 1;
        } else {
            break;
        }
    }
    assert_eq!(admitted, 100);
    assert_eq!(role(&servers.replica), "master");
}

#[allow(clippy::disallowed_methods)]
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_replaced_by_hand_is_left_while_it_still_takes_writes() {
    let servers = Sentinels::start();
    let limiter = limiter_at(&servers.url(""));
    assert!(limiter.check(&POLICY, "user:42").await.is_allowed());
    servers.fail_over();
    while role(&servers.replica) != "master" {
        // Real time, here and below, since real sentinels elect.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let promoted = Instant::now();
    let decided = |server: &Server| calls(&mut server.admin(), "evalsha") + calls(&mut server.admin(), "eval");
    while decided(&servers.replica) == 0 {
        assert!(promoted.elapsed() < Duration::from_secs(4), "it is not followed");
        let _ = limiter.check(&POLICY, "user:42").await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("followed after {:?}", promoted.elapsed());
    // The old one cuts its connections when it is made a replica, which may be now.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (old, new) = (decided(&servers.master), decided(&servers.replica));
    for _ in 0..20 {
        assert!(!limiter.check(&POLICY, "user:42").await.is_degraded());
    }
    assert_eq!((decided(&servers.master), decided(&servers.replica)), (old, new + 20));
    // The sentinels are asked on one connection, however long.
    let mut admin = servers.sentinel();
    let mut asking = || -> Vec<String> {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut admin).expect("CLIENT LIST");
        let ours = clients.lines().filter(|line| line.contains(" cmd=sentinel"));
        ours.map(|line| line.split(' ').next().expect("an id").to_owned()).collect()
    };
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let before = asking();
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!((asking(), before.len()), (before, 1));
}

#[tokio::test]
async fn a_server_that_is_no_master_any_more_is_left() {
    let servers = Sentinels::start();
    let limiter = limiter_at(&servers.url(""));
    assert!(limiter.check(&POLICY, "user:42").await.is_allowed());
    // Behind the sentinels' back, so that nobody cuts the connection.
    run(&servers.master, &["CONFIG", "SET", "replica-read-only", "yes"]);
    run(&servers.replica, &["REPLICAOF", "NO", "ONE"]);
    let port = servers.replica.port().to_string();
    run(&servers.master, &["REPLICAOF", "127.0.0.1", &port]);
    let redis = Redis::open(&servers.url("")).expect("an address");
    let error = redis.decide(&[Demand::new(&POLICY, "user:42")]).await.expect_err("no sentinel tells of a master");
    assert!(format!("{error:?}").contains("is no master"), "{error:?}");
    // The connection from before is not used on: what a replica answers is no decision.
    assert!(limiter.check(&POLICY, "user:42").await.is_unavailable());
    run(&servers.master, &["REPLICAOF", "NO", "ONE"]);
    let mut tries = 0;
    while limiter.check(&POLICY, "user:42").await.is_degraded() {
        tries += 1;
        assert!(tries < 200, "still no master");
        // Real time, since a real server is asked again after a pause.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_master_that_no_sentinel_knows_is_told_as_one() {
    let servers = Sentinels::start_with("watch");
    let url = servers.url("");
    let ask = async |url: &str| {
        let redis = Redis::open(url).expect("an address");
        redis.decide(&[Demand::new(&POLICY, "user:42")]).await.map_err(|error| format!("{error:?}"))
    };
    let said = ask(&url).await.expect_err("the sentinels want a password");
    assert!(said.contains("NOAUTH") || said.contains("Authentication"), "{said}");
    assert!(ask(&format!("{url}/4?sentinel_pass=watch")).await.is_ok());
    let said = ask(&format!("{url}?sentinel_pass=wrong-one")).await.expect_err("a wrong password");
    assert!(said.to_lowercase().contains("password") && !said.contains("wrong-one"), "{said}");
    let said =
        ask(&format!("{}?sentinel_pass=watch", url.replace("/main", "/other"))).await.expect_err("no such master");
    assert!(said.contains("`other`") && said.contains("knows no master of that name"), "{said}");
    let said = ask("redis+sentinel://127.0.0.1:1,127.0.0.1:2/main").await.expect_err("no sentinel");
    assert!(said.contains("127.0.0.1:1") && said.contains("127.0.0.1:2") && said.contains("refused"), "{said}");
}

#[test]
fn a_wrong_address_of_sentinels_says_what_to_write() {
    for (url, says) in [
        ("redis+sentinel://h1,h2", "name of the master"),
        ("redis+sentinel://h1,h2/", "name of the master"),
        ("redis+sentinel:///main", "cannot be read"),
        ("redis+sentinel://h1,,h2/main", "cannot be read"),
        ("redis+sentinel://h1:99999/main", "cannot be read"),
        ("redis+sentinel://h1/main/x", "cannot be read"),
        ("redis+sentinel://u:secret@h1:port/main", "cannot be read"),
        ("redis+sentinel://h1/main?sentinel_pass=secret/x", "percent-encoded"),
        ("redis+sentinel://h1/main?password=secret", "no more"),
    ] {
        let error = Redis::open(url).expect_err(url);
        assert!(error.is_invalid(), "{error}");
        assert!(error.to_string().contains(says) && error.to_string().contains("redis+sentinel://"), "{url}: {error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
    for url in [
        "redis+sentinel://h1/main",
        "redis+sentinel://u:p%40@h1:1,[::1],[::1]:5/main/3?sentinel_user=a&sentinel_pass=b%2F",
    ] {
        assert!(Redis::open(url).is_ok(), "{url}");
    }
}

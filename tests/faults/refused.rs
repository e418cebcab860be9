//! Servers that are well and say no.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::{Limiter, Policy, Quota, Redis};

use crate::{
    DENY, LOCAL, Load, PROBE, SLACK, ask, assert_flat, assert_memory_is_flat, assert_well, command, connections, open,
    recovers_within,
    support::{calls, server::Server},
    used,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_becomes_a_replica_and_a_primary_again() {
    let server = Server::start();
    let limiter = open(&server.url());
    assert_well(&limiter).await;
    let load = Load::start(&limiter);
    command(&server, "REPLICAOF 127.0.0.1 1");
    sleep(Duration::from_millis(600)).await;
    let (decision, took) = ask(&limiter, &LOCAL).await;
    assert!(decision.is_degraded(), "{took:?}");
    command(&server, "REPLICAOF NO ONE");
    recovers_within(&limiter, Duration::from_secs(1)).await;
    load.stop().await;
    assert_flat(&server, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_memory() {
    let server = Server::start();
    let limiter = open(&server.url());
    assert_well(&limiter).await;
    let before = used(&limiter, &DENY).await;
    command(&server, "CONFIG SET maxmemory-policy noeviction");
    command(&server, "CONFIG SET maxmemory 1");
    for _ in 0..100 {
        let (decision, took) = ask(&limiter, &DENY).await;
        assert!(decision.is_unavailable(), "{took:?}");
        sleep(Duration::from_millis(5)).await;
    }
    command(&server, "CONFIG SET maxmemory 0");
    recovers_within(&limiter, PROBE + SLACK).await;
    assert_eq!(used(&limiter, &DENY).await, before, "nothing was half done");
    assert_eq!(connections(&server, 3), 1, "an error of a script is none of its connection");
    assert_memory_is_flat();
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_are_flushed_under_load() {
    let server = Server::start();
    let limiter = open(&server.url());
    assert_well(&limiter).await;
    let load = Load::start(&limiter);
    for _ in 0..20 {
        sleep(Duration::from_millis(20)).await;
        command(&server, "SCRIPT FLUSH");
    }
    let loaded = load.stop().await;
    // A build for tests on a busy machine may be too slow for the deadline now and then.
    let late = if cfg!(debug_assertions) { loaded.asked / 20 } else { 0 };
    assert!(loaded.degraded <= late, "{loaded:?}");
    assert_eq!(connections(&server, 20), 1);
    assert_memory_is_flat();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_loading() {
    // Reading so many keys takes a while, slowed down by the server itself, which looks around each two megabytes.
    let mut server = Server::start_with(&["--key-load-delay", "500", "--rdbcompression", "no"]);
    let limiter = open(&server.url());
    assert_well(&limiter).await;
    let fill = "for i = 1, 1500 do redis.call('SET', 'key:' .. i, string.rep('x', 20000)) end";
    let _: () = redis::cmd("EVAL").arg(fill).arg(0).query(&mut server.admin()).expect("EVAL");
    command(&server, "SAVE");
    server.kill();
    server.restart();
    let (decision, took) = ask(&limiter, &LOCAL).await;
    assert!(decision.is_degraded(), "{took:?}");
    let took = recovers_within(&limiter, Duration::from_millis(2_500)).await;
    assert!(took > Duration::from_millis(300), "{took:?}");
    assert_flat(&server, 0);
}

/// Asks for one key as fast as it goes; returns how many commands that cost the server, the charged ones left out.
async fn commands_of_a_flood(limiter: &Limiter, server: &Server, policy: &Policy, long: Duration) -> u64 {
    let mut admin = server.admin();
    let before = calls(&mut admin, "evalsha");
    let started = Instant::now();
    let (mut admitted, mut refused) = (0, 0);
    while started.elapsed() < long {
        for _ in 0..1_000 {
            let decision = limiter.check(policy, "user:42").await;
            assert!(!decision.is_degraded(), "{decision:?}");
            *if decision.is_allowed() { &mut admitted } else { &mut refused } += 1;
        }
        tokio::task::yield_now().await;
    }
    assert!(refused >= 10_000, "{refused}");
    calls(&mut admin, "evalsha") - before - admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_refused_requests_costs_a_command_a_second() {
    let server = Server::start();
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address"));
    let policy = Policy::fixed_window("fixed", Quota::per_day(3));
    let sent = commands_of_a_flood(&limiter, &server, &policy, Duration::from_millis(1_500)).await;
    // One that was refused first, and one each time when that is about to be a second old.
    assert!(sent <= 3, "{sent} commands");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_refused_requests_costs_a_command_a_refusal_if_that_may_be_remembered_so_long() {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    let limiter = Limiter::new(redis).deny_max_age(Duration::from_secs(60));
    let quota = Quota::per_day(3);
    for policy in [
        Policy::fixed_window("fixed", quota),
        Policy::sliding_window("sliding", quota),
        Policy::token_bucket("bucket", quota),
    ] {
        // All the time is part of one refusal.
        let sent = commands_of_a_flood(&limiter, &server, &policy, Duration::from_millis(2_500)).await;
        assert!(sent <= 1, "{sent} commands of `{}`", policy.name());
    }
}

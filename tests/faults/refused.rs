//! Servers that are well and say no.

use std::time::Duration;

use tokio::time::sleep;
use tollgate::{Limiter, Policy, Quota, Redis};

use crate::{
    DEADLINE, DENY, LOCAL, Load, PROBE, SLACK, ask, assert_few_connections, assert_well, command, connections, open,
    recovery,
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
    assert!(decision.is_degraded() && took < DEADLINE + SLACK, "{took:?}");
    command(&server, "REPLICAOF NO ONE");
    let took = recovery(&limiter).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    load.stop().await;
    assert_few_connections(&server, 2);
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
        assert!(decision.is_unavailable() && took < DEADLINE + SLACK, "{took:?}");
        sleep(Duration::from_millis(5)).await;
    }
    command(&server, "CONFIG SET maxmemory 0");
    let took = recovery(&limiter).await;
    assert!(took < PROBE + SLACK, "{took:?}");
    assert_eq!(used(&limiter, &DENY).await, before, "nothing was half done");
    assert_eq!(connections(&server, 3), 1, "an error of a script is none of its connection");
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
    assert!(decision.is_degraded() && took < DEADLINE + SLACK, "{took:?}");
    let took = recovery(&limiter).await;
    assert!(took > Duration::from_millis(300) && took < Duration::from_millis(2_500), "{took:?}");
    assert_few_connections(&server, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_refused_requests_costs_less_than_a_command_a_second() {
    let server = Server::start();
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address"));
    let policy = Policy::fixed_window("fixed", Quota::per_day(3));
    for _ in 0..3 {
        assert!(limiter.check(&policy, "user:42").await.is_allowed());
    }
    let mut admin = server.admin();
    let before = calls(&mut admin, "evalsha");
    let started = tokio::time::Instant::now();
    let mut refused = 0;
    while started.elapsed() < Duration::from_millis(1_500) {
        for _ in 0..1_000 {
            assert!(!limiter.check(&policy, "user:42").await.is_allowed());
            refused += 1;
        }
        tokio::task::yield_now().await;
    }
    assert!(refused >= 10_000, "{refused}");
    let sent = calls(&mut admin, "evalsha") - before;
    assert!(sent <= 2, "{sent} commands for {refused} requests");
}

//! Servers that are there and do not answer.

use std::time::Duration;

use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};
use tollgate::{Limiter, Memory, Policy};

use crate::{
    ALLOW, DEADLINE, DENY, LOCAL, Load, PROBE, SECONDS, SLACK, ask, ask_at_once, assert_flat, assert_memory_is_flat,
    assert_well, command, connections,
    machine::is_in_time,
    open,
    proxy::{Mood, Proxy},
    recovers_within, signal,
    support::server::Server,
    used,
};

/// Asserts what is promised of callers from the moment on in which nothing comes back any more.
async fn assert_nobody_waits_longer_than_the_deadline(limiter: &Limiter, policy: &'static Policy) {
    let (decision, took) = ask(limiter, policy).await;
    assert!(decision.is_degraded() && took >= DEADLINE, "{took:?}");
    let degraded = ask_at_once(limiter, policy, 1_000).await;
    assert_eq!(degraded, 1_000);
    // Now that it is known, nobody waits but the one that finds out.
    let started = Instant::now();
    let (mut fast, mut all) = (0, 0);
    while started.elapsed() < Duration::from_millis(300) {
        for policy in [&LOCAL, &ALLOW, &DENY] {
            let asked = Instant::now();
            let (decision, _) = ask(limiter, policy).await;
            assert!(decision.is_degraded(), "{decision:?}");
            fast += usize::from(is_in_time(asked, Duration::from_millis(5)));
            all += 1;
        }
    }
    assert!(all > 1_000 && all - fast < all / 100 + 10, "{fast} of {all} were fast");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped() {
    for policy in [&LOCAL, &ALLOW, &DENY] {
        let server = Server::start();
        let limiter = open(&server.url());
        assert_well(&limiter).await;
        signal(&server, "STOP");
        assert_nobody_waits_longer_than_the_deadline(&limiter, policy).await;
        signal(&server, "CONT");
        // The connection is still the one from before, so the next request that finds out is answered.
        recovers_within(&limiter, PROBE + SLACK).await;
        assert_well(&limiter).await;
        assert_flat(&server, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_decided_while_a_server_is_stopped_is_decided_at_the_speed_of_memory() {
    let server = Server::start();
    let (limiter, memory) = (open(&server.url()), Limiter::new(Memory::new()));
    assert_well(&limiter).await;
    let here = fastest_hundred(&memory).await;
    signal(&server, "STOP");
    ask_at_once(&limiter, &LOCAL, 10).await;
    assert!(limiter.check(&LOCAL, "user:42").await.is_degraded());
    let degraded = fastest_hundred(&limiter).await;
    signal(&server, "CONT");
    println!("a hundred decisions: {here:?} in memory, {degraded:?} without the server");
    assert!(degraded < here * 4, "{degraded:?}, in memory {here:?}");
}

/// Returns how long a hundred decisions take when nothing comes in between.
async fn fastest_hundred(limiter: &Limiter) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..200 {
        let started = Instant::now();
        for _ in 0..100 {
            assert!(limiter.check(&LOCAL, "user:42").await.is_allowed());
        }
        fastest = fastest.min(started.elapsed());
    }
    fastest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_for_longer_than_its_connection_is_kept() {
    let server = Server::start();
    let limiter = open(&server.url());
    assert_well(&limiter).await;
    signal(&server, "STOP");
    let load = Load::start(&limiter);
    sleep(Duration::from_millis(2_500)).await;
    signal(&server, "CONT");
    // By the connection from before or one that was tried meanwhile, whichever the server answers first.
    recovers_within(&limiter, PROBE + SLACK).await;
    let loaded = load.stop().await;
    // Each of the 24 at the start, then hardly any: requests go on at their own pace.
    assert!(loaded.asked > 5_000 && loaded.degraded > 2_000, "{loaded:?}");
    assert_flat(&server, 2);
}

/// The connection from before is used again where no other can be made.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_server_that_is_stopped_is_kept() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let limiter = open(&proxy.url());
    assert_well(&limiter).await;
    signal(&server, "STOP");
    let nowhere = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    proxy.lead_to(nowhere.local_addr().expect("its address").port());
    drop(nowhere);
    let load = Load::start(&limiter);
    sleep(Duration::from_millis(2_500)).await;
    signal(&server, "CONT");
    recovers_within(&limiter, PROBE + SLACK).await;
    load.stop().await;
    assert_flat(&server, 0);
}

/// A server that stands still for long is not sent one connection after the other, all of which it would have to end.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_for_long_finds_few_connections_when_it_goes_on() {
    let server = Server::start();
    let limiter = open(&server.url());
    assert_well(&limiter).await;
    signal(&server, "STOP");
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(14) {
        let (decision, took) = ask(&limiter, &LOCAL).await;
        assert!(decision.is_degraded(), "{took:?}");
        sleep(Duration::from_millis(20)).await;
    }
    signal(&server, "CONT");
    recovers_within(&limiter, PROBE + SLACK).await;
    let connections = connections(&server, 0);
    assert!(connections <= 8, "{connections}");
    assert_memory_is_flat();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_swallows_everything() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let limiter = open(&proxy.url());
    assert_well(&limiter).await;
    proxy.be(Mood::Swallows);
    assert_nobody_waits_longer_than_the_deadline(&limiter, &LOCAL).await;
    sleep(Duration::from_millis(1_200)).await;
    proxy.be(Mood::Passes);
    // An attempt to connect whose first words were swallowed takes a second to be given up.
    recovers_within(&limiter, Duration::from_millis(1_750) + SLACK).await;
    assert_well(&limiter).await;
    assert_flat(&server, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_pauses_its_clients() {
    let server = Server::start();
    let limiter = open(&server.url());
    assert_well(&limiter).await;
    let load = Load::start(&limiter);
    command(&server, "CLIENT PAUSE 500 ALL");
    sleep(Duration::from_millis(300)).await;
    let (decision, took) = ask(&limiter, &LOCAL).await;
    assert!(decision.is_degraded(), "{took:?}");
    sleep(Duration::from_millis(200)).await;
    recovers_within(&limiter, PROBE + DEADLINE + SLACK).await;
    let loaded = load.stop().await;
    assert!(loaded.degraded > 0, "{loaded:?}");
    assert_flat(&server, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_is_none_that_fails() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let limiter = open(&proxy.url());
    assert_well(&limiter).await;
    proxy.delay(Duration::from_millis(20));
    for _ in 0..20 {
        let (decision, took) = ask(&limiter, &LOCAL).await;
        assert!(!decision.is_degraded() && took >= Duration::from_millis(20), "{took:?}");
    }
    // Slower than anybody is to wait for: no answer that comes too late is taken for that of another request.
    proxy.delay(DEADLINE + Duration::from_millis(60));
    for _ in 0..8 {
        let (decision, took) = ask(&limiter, &LOCAL).await;
        assert!(decision.is_degraded(), "{took:?}");
    }
    proxy.delay(Duration::ZERO);
    recovers_within(&limiter, SECONDS).await;
    let before = used(&limiter, &LOCAL).await;
    for more in 1..=10 {
        assert_well(&limiter).await;
        let (decision, _) = ask(&limiter, &LOCAL).await;
        assert!(!decision.is_degraded());
        assert_eq!(decision.outcomes()[0].remaining(), 1_000_000 - before - more);
    }
    assert_eq!(connections(&server, 0), 1);
    assert_memory_is_flat();
}

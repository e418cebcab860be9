//! Servers that are there and do not answer.

use std::time::Duration;

use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};
use tollgate::{Limiter, Memory, Policy};

use crate::{
    ALLOW, DEADLINE, DENY, LOCAL, Load, PROBE, SLACK, ask, ask_at_once, assert_few_connections, assert_well, command,
    connections, open,
    proxy::{Mood, Proxy},
    recovery, signal,
    support::server::Server,
    used,
};

/// Asserts what is promised of callers from the moment on in which nothing comes back any more.
async fn assert_nobody_waits_longer_than_the_deadline(limiter: &Limiter, policy: &'static Policy) {
    let (decision, took) = ask(limiter, policy).await;
    assert!(decision.is_degraded() && took >= DEADLINE && took < DEADLINE + SLACK, "{took:?}");
    let (degraded, longest) = ask_at_once(limiter, policy, 1_000).await;
    assert!(degraded == 1_000 && longest < DEADLINE + SLACK, "{degraded} {longest:?}");
    // Now that it is known, nobody waits but the one that finds out.
    let started = Instant::now();
    let (mut fast, mut all) = (0, 0);
    while started.elapsed() < Duration::from_millis(300) {
        for policy in [&LOCAL, &ALLOW, &DENY] {
            let (decision, took) = ask(limiter, policy).await;
            assert!(decision.is_degraded() && took < DEADLINE + SLACK, "{took:?}");
            fast += usize::from(took < Duration::from_millis(5));
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
        let took = recovery(&limiter).await;
        // The connection is still the one from before, so the next request that finds out is answered.
        assert!(took < PROBE + SLACK, "{took:?}");
        assert_well(&limiter).await;
        assert_few_connections(&server, 0);
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
    let took = recovery(&limiter).await;
    let loaded = load.stop().await;
    // By the connection from before or one that was tried meanwhile, whichever the server answers first.
    assert!(took < PROBE + SLACK, "{took:?}");
    // Each of the 24 at the start, then hardly any: requests go on at their own pace.
    assert!(loaded.asked > 5_000 && loaded.degraded > 2_000, "{loaded:?}");
    assert_few_connections(&server, 2);
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
    let took = recovery(&limiter).await;
    load.stop().await;
    assert!(took < PROBE + SLACK, "{took:?}");
    assert_few_connections(&server, 0);
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
        assert!(decision.is_degraded() && took < DEADLINE + SLACK, "{took:?}");
        sleep(Duration::from_millis(20)).await;
    }
    signal(&server, "CONT");
    let took = recovery(&limiter).await;
    assert!(took < PROBE + SLACK, "{took:?}");
    let connections = connections(&server, 0);
    assert!(connections <= 8, "{connections}");
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
    let took = recovery(&limiter).await;
    // An attempt to connect whose first words were swallowed takes a second to be given up.
    assert!(took < Duration::from_millis(1_750) + SLACK, "{took:?}");
    assert_well(&limiter).await;
    assert_few_connections(&server, 0);
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
    assert!(decision.is_degraded() && took < DEADLINE + SLACK, "{took:?}");
    sleep(Duration::from_millis(200)).await;
    let took = recovery(&limiter).await;
    assert!(took < PROBE + DEADLINE + SLACK, "{took:?}");
    let loaded = load.stop().await;
    assert!(loaded.degraded > 0, "{loaded:?}");
    assert_few_connections(&server, 1);
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
        assert!(decision.is_degraded() && took < DEADLINE + SLACK, "{took:?}");
    }
    proxy.delay(Duration::ZERO);
    recovery(&limiter).await;
    let before = used(&limiter, &LOCAL).await;
    for more in 1..=10 {
        assert_well(&limiter).await;
        let (decision, _) = ask(&limiter, &LOCAL).await;
        assert!(!decision.is_degraded());
        assert_eq!(decision.outcomes()[0].remaining(), 1_000_000 - before - more);
    }
    assert_eq!(connections(&server, 0), 1);
}

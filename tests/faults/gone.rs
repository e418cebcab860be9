//! Servers that go away and come back.

use std::time::Duration;

use tokio::time::sleep;
use tollgate::{Limiter, Policy, Quota};

use crate::{
    LOCAL, Load, ask, ask_at_once, assert_flat, assert_well, command, open, recovers_within, support::server::Server,
    used,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_under_load_and_comes_back_empty() {
    let mut server = Server::start();
    let limiter = open(&server.url());
    let load = Load::start(&limiter);
    sleep(Duration::from_millis(200)).await;
    server.kill();
    sleep(Duration::from_millis(1_500)).await;
    let degraded = ask_at_once(&limiter, &LOCAL, 1_000).await;
    assert_eq!(degraded, 1_000);
    server.restart();
    recovers_within(&limiter, Duration::from_secs(1)).await;
    let before = used(&limiter, &LOCAL).await;
    assert_well(&limiter).await;
    // All that was asked was answered as its policy says: the load looks at each.
    let loaded = load.stop().await;
    assert!(loaded.degraded > 0 && loaded.asked > loaded.degraded, "{loaded:?}");
    assert!(used(&limiter, &LOCAL).await >= before);
    assert_flat(&server, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_with_old_data() {
    let mut server = Server::start();
    let limiter = open(&server.url());
    for _ in 0..10 {
        assert!(!ask(&limiter, &LOCAL).await.0.is_degraded());
    }
    command(&server, "SAVE");
    for _ in 0..10 {
        assert!(!ask(&limiter, &LOCAL).await.0.is_degraded());
    }
    assert_eq!(used(&limiter, &LOCAL).await, 20);
    server.kill();
    // What was seen admitted is used here too.
    let (decision, _) = ask(&limiter, &LOCAL).await;
    assert_eq!(decision.outcomes()[0].remaining(), 1_000_000 - 21);
    server.restart();
    let started = tokio::time::Instant::now();
    while limiter.peek(&LOCAL, "user:42").await.is_degraded() {
        assert!(started.elapsed() < Duration::from_secs(1));
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(used(&limiter, &LOCAL).await, 10, "as it was saved");
    assert_flat(&server, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_at_first() {
    let mut server = Server::start();
    server.kill();
    let limiter = open(&server.url());
    let degraded = ask_at_once(&limiter, &LOCAL, 1_000).await;
    assert_eq!(degraded, 1_000);
    sleep(Duration::from_millis(500)).await;
    server.restart();
    recovers_within(&limiter, Duration::from_secs(1)).await;
    assert_flat(&server, 0);
}

/// Asks until it is refused, at most so often, and returns how often it was not.
async fn drain(limiter: &Limiter, policy: &Policy, most: u64) -> u64 {
    for admitted in 0..most {
        if !limiter.check(policy, "client").await.is_allowed() {
            return admitted;
        }
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_shares_a_quota_stays_within_its_bound() {
    let quota = Quota::per_day(80);
    for policy in [
        Policy::fixed_window("fixed", quota),
        Policy::sliding_window("sliding", quota),
        Policy::token_bucket("bucket", quota),
    ] {
        let mut server = Server::start();
        let fleet: Vec<Limiter> = (0..8).map(|_| open(&server.url()).replicas(8)).collect();
        // One client has used all, through one process, and another has used some, through two.
        for _ in 0..80 {
            assert!(fleet[0].check(&policy, "all").await.is_allowed());
        }
        for limiter in &fleet {
            assert!(!limiter.check(&policy, "all").await.is_allowed());
        }
        assert_eq!(drain(&fleet[0], &policy, 7).await + drain(&fleet[1], &policy, 3).await, 10);
        server.kill();
        let mut admitted = 0;
        for limiter in &fleet {
            let refused = limiter.check(&policy, "all").await;
            assert!(!refused.is_allowed() && refused.is_degraded() && !refused.is_unavailable(), "{refused:?}");
            assert!(refused.retry_after().is_some());
            admitted += drain(limiter, &policy, 1_000).await;
        }
        assert_eq!(admitted, 80 - 10, "{}: eight shares, less what was used of them", policy.name());
    }
}

//! Connections that break.

use std::time::Duration;

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tollgate::{OnError, Policy, Quota};

use crate::{
    DENY, LOCAL, Load, SECONDS, ask, ask_at_once, assert_flat, assert_memory_is_flat, assert_well, command,
    connections, connections_as, open,
    proxy::{Mood, Proxy},
    recovers_within,
    support::server::Server,
    used,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_lost_after_the_write_is_charged_once() {
    let quota = Quota::per_day(1_000);
    for policy in [
        Policy::fixed_window("fixed", quota),
        Policy::sliding_window("sliding", quota),
        Policy::token_bucket("bucket", quota),
    ] {
        let server = Server::start();
        let proxy = Proxy::start(server.port()).await;
        let limiter = open(&proxy.url());
        assert!(!ask(&limiter, &policy).await.0.is_degraded());
        proxy.be(Mood::DropsReplies);
        // Two are sent; a third would wait for one of them, and not be sent when nobody waits for it any more.
        for _ in 0..2 {
            let (decision, took) = ask(&limiter, &policy).await;
            assert!(decision.is_degraded(), "{took:?}");
        }
        proxy.cut();
        proxy.be(Mood::Passes);
        recovers_within(&limiter, SECONDS).await;
        assert_eq!(used(&limiter, &policy).await, 1 + 2, "{}", policy.name());
        assert_flat(&server, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_is_not_taken_for_that_to_an_earlier_call() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let policy = Policy::fixed_window("few", Quota::per_day(3)).on_error(OnError::Deny);
    for _ in 0..3 {
        assert!(open(&server.url()).check(&policy, "exhausted").await.is_allowed());
    }
    let limiter = open(&proxy.url());
    // One caller, who has to wait for each answer.
    for _ in 0..3 {
        assert_well(&limiter).await;
        proxy.lose_next_reply();
        assert!(ask(&limiter, &DENY).await.0.is_unavailable());
        recovers_within(&limiter, Duration::from_millis(500)).await;
    }
    // Several, whose calls are under way at the same time.
    let ends = Instant::now() + Duration::from_secs(2);
    let mut load = JoinSet::new();
    for task in 0..6 {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        load.spawn(async move {
            for i in 0.. {
                let refused = limiter.check(&policy, "exhausted").await;
                assert!(!refused.is_allowed(), "{refused:?}");
                let fresh = limiter.check(&policy, format!("{task}:{i}")).await;
                assert!(fresh.is_allowed() || fresh.is_unavailable(), "{fresh:?}");
                if Instant::now() > ends {
                    return;
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
    }
    for _ in 0..10 {
        sleep(Duration::from_millis(100)).await;
        proxy.lose_next_reply();
    }
    load.join_all().await;
    recovers_within(&limiter, SECONDS).await;
    // Three used all, one is that of before, and each reply that is lost costs another.
    let connections = connections(&server, 0);
    assert!(connections <= 3 + 1 + 3 + 10 + 3, "{connections}");
    assert_memory_is_flat();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_in_the_middle_of_a_reply() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let limiter = open(&proxy.url());
    assert_well(&limiter).await;
    for cuts in 1..=5 {
        let before = used(&limiter, &LOCAL).await;
        proxy.cut_next_reply();
        let (decision, took) = ask(&limiter, &LOCAL).await;
        assert!(decision.is_degraded(), "{took:?}");
        // It was charged, once, and the next one is the store's.
        recovery_by_peeking(&limiter).await;
        assert_eq!(used(&limiter, &LOCAL).await, before + 1);
        assert_eq!(connections(&server, cuts - 1), 1 + cuts);
    }
    assert_memory_is_flat();
}

/// Waits until the store answers, without charging anything.
async fn recovery_by_peeking(limiter: &tollgate::Limiter) {
    let started = Instant::now();
    while limiter.peek(&LOCAL, "user:42").await.is_degraded() {
        assert!(started.elapsed() < Duration::from_millis(500), "it does not recover");
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_half_closed() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let limiter = open(&proxy.url());
    assert_well(&limiter).await;
    proxy.be(Mood::HalfCloses);
    let _ = ask(&limiter, &LOCAL).await;
    proxy.be(Mood::Passes);
    recovers_within(&limiter, Duration::from_millis(500)).await;
    assert_flat(&server, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_killed_under_load() {
    let server = Server::start();
    let limiter = open(&server.url());
    assert_well(&limiter).await;
    let load = Load::start(&limiter);
    for _ in 0..4 {
        sleep(Duration::from_millis(100)).await;
        command(&server, "CLIENT KILL TYPE normal SKIPME yes");
    }
    sleep(Duration::from_millis(50)).await;
    recovers_within(&limiter, Duration::from_millis(500)).await;
    let loaded = load.stop().await;
    assert!(loaded.degraded < loaded.asked / 2, "{loaded:?}");
    assert_flat(&server, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_callers_that_find_it_cut_make_one_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let limiter = open(&proxy.url());
    assert_well(&limiter).await;
    proxy.cut();
    ask_at_once(&limiter, &DENY, 1_000).await;
    recovers_within(&limiter, SECONDS).await;
    let connections = connections(&server, 0);
    assert!(connections <= 3, "{connections}");
    assert_memory_is_flat();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_changed_under_load() {
    let server = Server::start_with(&["--requirepass", "old"]);
    let limiter = open(&format!("redis://:old@127.0.0.1:{}", server.port()));
    assert_well(&limiter).await;
    let load = Load::start(&limiter);
    let mut admin = server.admin_as(":old@");
    let mut run = |words: &[&str]| {
        let _: redis::Value = redis::cmd(words[0]).arg(&words[1..]).query(&mut admin).expect("a command of ours");
    };
    run(&["CONFIG", "SET", "requirepass", "new"]);
    sleep(Duration::from_millis(100)).await;
    // Who is connected stays so; who has to connect again is turned away.
    assert!(!ask(&limiter, &LOCAL).await.0.is_degraded());
    run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    sleep(Duration::from_millis(300)).await;
    assert!(ask(&limiter, &LOCAL).await.0.is_degraded());
    run(&["CONFIG", "SET", "requirepass", "old"]);
    recovers_within(&limiter, Duration::from_secs(1)).await;
    load.stop().await;
    let connections = connections_as(&server, ":old@", 1);
    assert!(connections < 10, "{connections}");
    assert_memory_is_flat();
}

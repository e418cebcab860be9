//! Scripted runs, on memory and on Redis, and what they must come to.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
    routing::{get, post},
};
use tollgate::{
    ConcurrencyLimitLayer, Demand, IdempotencyLayer, Limiter, Memory, OnError, Policy, Quota, RateLimitLayer, Redis,
    Rule,
    layer::header,
    lease::{Lock, Semaphore},
};

use super::{
    recorded::{Numbers, Recorded, assert_are},
    support::{
        http::{send, serve},
        server::Server,
    },
};

static API: Policy = Policy::fixed_window("api", Quota::per_day(10));
static LOGIN: Policy = Policy::sliding_window("login", Quota::per_day(2)).on_error(OnError::Deny);
static PLANNED: Policy = Policy::token_bucket("planned", Quota::per_day(3)).on_error(OnError::Allow);
static NEVER: Policy = Policy::fixed_window("never", Quota::per_day(5));

/// What every store comes to in the same way.
async fn run(limiter: &Limiter) {
    // Ten pass, of which the last two leave less than a fifth; three do not.
    for _ in 0..13 {
        let _ = limiter.check(&API, "a").await;
    }
    // Looking costs nothing, and is not counted.
    let _ = limiter.peek(&API, "a").await;
    let _ = limiter.peek(&API, "b").await;
    // Both pass twice; then one refuses, and the other would not have.
    for _ in 0..5 {
        let _ = limiter.decide(&[Demand::new(&API, "b"), Demand::new(&LOGIN, "b")]).await;
    }
    // In the shadow: three pass, and the fourth and fifth would not.
    for _ in 0..5 {
        let _ = limiter.decide(&[Demand::new(&NEVER, "c"), Demand::new(&PLANNED, "c").shadow()]).await;
    }
    // Who is blocked is refused.
    limiter.block(&NEVER, "d", Duration::from_secs(60)).await.expect("a block");
    let _ = limiter.check(&NEVER, "d").await;
    limiter.unblock(&NEVER, "d").await.expect("no block");
    // Cost is no number of decisions.
    let _ = limiter.decide(&[Demand::new(&NEVER, "e").cost(4)]).await;
}

const RUN: &[(&str, f64)] = &[
    (r#"tollgate_decisions_total{rule="api",outcome="allowed"}"#, 10.0 + 2.0),
    (r#"tollgate_decisions_total{rule="api",outcome="refused"}"#, 3.0),
    (r#"tollgate_decisions_total{rule="api",outcome="other_refused"}"#, 3.0),
    (r#"tollgate_near_limit_total{rule="api"}"#, 2.0),
    (r#"tollgate_decisions_total{rule="login",outcome="allowed"}"#, 2.0),
    (r#"tollgate_decisions_total{rule="login",outcome="refused"}"#, 3.0),
    (r#"tollgate_near_limit_total{rule="login"}"#, 1.0),
    (r#"tollgate_decisions_total{rule="never",outcome="allowed"}"#, 5.0 + 1.0),
    (r#"tollgate_decisions_total{rule="never",outcome="refused"}"#, 1.0),
    (r#"tollgate_near_limit_total{rule="never"}"#, 1.0),
    (r#"tollgate_decisions_total{rule="planned",outcome="shadow_allowed"}"#, 3.0),
    (r#"tollgate_decisions_total{rule="planned",outcome="shadow_refused"}"#, 2.0),
];

fn with(more: &[(&'static str, f64)]) -> Vec<(&'static str, f64)> {
    RUN.iter().chain(more).copied().collect()
}

#[tokio::test(start_paused = true)]
async fn a_run_in_memory_comes_to_known_numbers() {
    let recorded = Recorded::here();
    let memory = Memory::new();
    let limiter = Limiter::new(memory.clone());
    run(&limiter).await;
    assert_eq!(memory.len(), 6);
    // Counted at the first decision, and then as soon as a second has passed and one of sixteen decisions comes by.
    assert_are(&recorded.numbers(), &with(&[("tollgate_keys", 1.0)]));
    tokio::time::advance(Duration::from_secs(2)).await;
    for _ in 0..16 {
        let _ = limiter.peek(&API, "z").await;
    }
    assert_are(&recorded.numbers(), &with(&[("tollgate_keys", 6.0)]));
    drop(limiter);
    assert_are(&recorded.numbers(), RUN);
}

#[tokio::test]
async fn a_run_on_redis_comes_to_the_same() {
    let (recorded, server) = (Recorded::here(), Server::start());
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address")).deny_max_age(Duration::ZERO);
    run(&limiter).await;
    // Each call asked it once, and so did the two that only looked.
    let calls = 13.0 + 2.0 + 5.0 + 5.0 + 1.0 + 1.0;
    assert_are(&recorded.numbers(), &with(&[(r#"tollgate_store_seconds_count{result="answered"}"#, calls)]));
}

#[tokio::test]
async fn what_is_refused_from_memory_is_counted_all_the_same() {
    let (recorded, server) = (Recorded::here(), Server::start());
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address")).deny_max_age(Duration::from_secs(600));
    run(&limiter).await;
    // Of the refusals: two of `api`, two of both, and none of one that was blocked a moment ago.
    let calls = 13.0 + 2.0 + 5.0 + 5.0 + 1.0 + 1.0;
    let hits = 2.0 + 2.0;
    assert_are(
        &recorded.numbers(),
        &with(&[
            ("tollgate_deny_cache_hits_total", hits),
            (r#"tollgate_store_seconds_count{result="answered"}"#, calls - hits),
        ]),
    );
}

#[tokio::test]
async fn an_outage_is_counted_by_what_each_rule_does_in_it() {
    let recorded = Recorded::here();
    // Nobody is there.
    let redis = Redis::open(&format!("redis://127.0.0.1:{}", Server::free_port())).expect("an address");
    let limiter = Limiter::new(redis);
    for _ in 0..3 {
        let _ = limiter.check(&LOGIN, "a").await;
        let _ = limiter.check(&PLANNED, "a").await;
    }
    // Five units by this process's share, and then no more.
    for _ in 0..5 {
        let _ = limiter.check(&NEVER, "a").await;
    }
    // The breaker opens once there was nothing but errors for 20 ms, by the real clock, since the store is a real one.
    tokio::time::sleep(Duration::from_millis(25)).await;
    let _ = limiter.check(&NEVER, "a").await;
    let mut numbers = recorded.numbers();
    let failed: f64 = numbers
        .iter()
        .filter(|(series, _)| series.starts_with("tollgate_store_seconds_count"))
        .map(|(_, count)| count)
        .sum();
    // Each is refused at once, and finds out by itself until the breaker opens.
    assert!((1.0..=12.0).contains(&failed), "{numbers:#?}");
    assert!(!numbers.contains_key(r#"tollgate_store_seconds_count{result="answered"}"#));
    assert_eq!(numbers.remove("tollgate_store_breakers_open"), Some(1.0));
    numbers.retain(|series, _| !series.starts_with("tollgate_store_seconds_count"));
    assert_are(
        &numbers,
        &[
            (r#"tollgate_decisions_total{rule="login",outcome="unavailable"}"#, 3.0),
            (r#"tollgate_decisions_total{rule="planned",outcome="allowed"}"#, 3.0),
            (r#"tollgate_decisions_total{rule="never",outcome="allowed"}"#, 5.0),
            (r#"tollgate_decisions_total{rule="never",outcome="refused"}"#, 1.0),
            (r#"tollgate_degraded_total{rule="login"}"#, 3.0),
            (r#"tollgate_degraded_total{rule="planned"}"#, 3.0),
            (r#"tollgate_degraded_total{rule="never"}"#, 6.0),
        ],
    );
    // A limiter that is gone has no breaker that is open.
    drop(limiter);
    assert_eq!(recorded.numbers().get("tollgate_store_breakers_open"), None);
}

#[tokio::test]
async fn keys_without_room_and_units_drawn_ahead_are_counted() {
    let (recorded, server) = (Recorded::here(), Server::start());
    let small = Limiter::new(Memory::new().max_keys(0));
    for key in ["a", "b", "c"] {
        let _ = small.check(&NEVER, key).await;
    }
    static HOT: Policy = Policy::fixed_window("hot", Quota::per_day(1_000_000)).allotted(10);
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address"));
    let mut allotted = 0.0;
    for _ in 0..200 {
        if limiter.check(&HOT, "all").await.is_allotted() {
            allotted += 1.0;
        }
    }
    assert!(allotted > 0.0);
    let numbers = recorded.numbers();
    assert_eq!(numbers.get(r#"tollgate_overflow_total{rule="never"}"#), Some(&3.0));
    assert_eq!(numbers.get(r#"tollgate_decisions_total{rule="hot",outcome="allowed"}"#), Some(&200.0));
    assert_eq!(numbers.get(r#"tollgate_allotted_total{rule="hot"}"#), Some(&allotted));
}

#[tokio::test]
async fn rules_without_end_share_their_last_series() {
    let (recorded, limiter) = (Recorded::here(), Limiter::new(Memory::new()));
    for number in 0..1_000 {
        let policy = Policy::new(format!("made-{number}"), Quota::per_day(1), tollgate::limit::Algorithm::FixedWindow);
        let _ = limiter.check(&policy.expect("a policy"), "a").await;
    }
    let numbers = recorded.numbers();
    assert_eq!(numbers.get(r#"tollgate_decisions_total{rule="(others)",outcome="allowed"}"#), Some(&744.0));
    let rules = numbers.keys().filter(|series| series.contains("decisions_total"));
    assert_eq!(rules.count(), 257);
}

#[tokio::test(start_paused = true)]
async fn leases_are_counted_while_they_are_held() {
    let (recorded, memory) = (Recorded::here(), Memory::new());
    let lock = Lock::new(&memory, "order:7").wait(Duration::from_millis(50));
    let guard = lock.acquire().await.expect("it is free");
    let permit = Semaphore::new(&memory, "mails", 2).expect("permits").acquire().await.expect("one is free");
    assert!(lock.acquire().await.is_err(), "it is held");
    let held = recorded.numbers();
    guard.release().await.expect("released");
    drop(permit);
    assert_are(
        &held,
        &[
            (r#"tollgate_leases_held{kind="lock"}"#, 1.0),
            (r#"tollgate_leases_held{kind="permit"}"#, 1.0),
            (r#"tollgate_leases_acquired_total{kind="lock"}"#, 1.0),
            (r#"tollgate_leases_acquired_total{kind="permit"}"#, 1.0),
            (r#"tollgate_lease_wait_seconds_count{kind="lock",result="acquired"}"#, 1.0),
            (r#"tollgate_lease_wait_seconds_count{kind="lock",result="timed_out"}"#, 1.0),
            (r#"tollgate_lease_wait_seconds_count{kind="permit",result="acquired"}"#, 1.0),
        ],
    );
    // One is waited for, and is ended by force while it is held.
    let guard = lock.acquire().await.expect("it is free again");
    let mut waiter = Box::pin(lock.acquire());
    assert!(polled_once(&mut waiter).is_none());
    assert_eq!(recorded.numbers().get(r#"tollgate_leases_waiting{kind="lock"}"#), Some(&1.0));
    drop(waiter);
    lock.force_release().await.expect("ended");
    assert!(guard.ensure(Duration::from_secs(29)).await.is_ok(), "nobody has told it yet");
    guard.lost().await;
    let after = recorded.numbers();
    assert_eq!(after.get(r#"tollgate_leases_lost_total{kind="lock"}"#), Some(&1.0));
    assert_eq!(after.keys().find(|series| series.contains("leases_held") || series.contains("leases_waiting")), None);
}

/// Polls a future once.
fn polled_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn requests_over_a_socket_are_counted() {
    let (recorded, memory) = (Recorded::here(), Memory::new());
    let rules = RateLimitLayer::new(Limiter::new(memory.clone()))
        .rule(Rule::new("per-user", Quota::per_day(2)).fixed_window().by(header("x-user")));
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(rules)
        .route("/pay", post(|| async { "paid" }).layer(IdempotencyLayer::new(&memory, header("x-user"))))
        .route("/slow", get(|| async { "slow" }).layer(ConcurrencyLimitLayer::new(&memory, "slow", 1)));
    let server = serve(app).await;
    let ask = async |method: &str, path: &str, fields: &[(&str, &str)], body: &'static str| {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        status(server, request.body(Body::from(body)).expect("a request")).await
    };
    for expected in [200, 200, 429, 429] {
        assert_eq!(ask("GET", "/", &[("x-user", "ada")], "").await, expected);
    }
    let key = [("idempotency-key", "\"a-key-of-its-own\"")];
    assert_eq!(ask("POST", "/pay", &key, "5").await, 200);
    assert_eq!(ask("POST", "/pay", &key, "5").await, 200);
    assert_eq!(ask("POST", "/pay", &key, "500").await, 422);
    assert_eq!(ask("POST", "/pay", &[("idempotency-key", "\"\"")], "5").await, 400);
    assert_eq!(ask("GET", "/slow", &[], "").await, 200);
    let mut numbers: Numbers = recorded.numbers();
    numbers.retain(|series, _| !series.contains("lease") && series != "tollgate_keys");
    assert_are(
        &numbers,
        &[
            (r#"tollgate_decisions_total{rule="per-user",outcome="allowed"}"#, 2.0),
            (r#"tollgate_decisions_total{rule="per-user",outcome="refused"}"#, 2.0),
            (r#"tollgate_near_limit_total{rule="per-user"}"#, 1.0),
            (r#"tollgate_idempotency_total{outcome="executed"}"#, 1.0),
            (r#"tollgate_idempotency_total{outcome="replayed"}"#, 1.0),
            (r#"tollgate_idempotency_total{outcome="key-used"}"#, 1.0),
            (r#"tollgate_idempotency_total{outcome="key-wrong"}"#, 1.0),
            (r#"tollgate_concurrency_total{rule="slow",outcome="admitted"}"#, 1.0),
        ],
    );
}

async fn status(server: SocketAddr, request: Request<Body>) -> StatusCode {
    send(server, None, request).await.status
}

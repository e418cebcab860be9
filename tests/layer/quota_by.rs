//! Quotas that are looked up, as in a database.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body};
use tollgate::{
    Key, Limiter, Memory, OnError, Quota, RateLimitLayer, Rule,
    layer::{LookupError, QuotaBy, header, quota_by},
};

use crate::support::http::{Answer, send, serve};

async fn served(rule: Rule) -> SocketAddr {
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule);
    serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await
}

async fn ask(address: SocketAddr, tenant: &str) -> Answer {
    send(address, None, http::Request::get("/").header("x-tenant", tenant).body(Body::empty()).expect("a request"))
        .await
}

fn rule(quota_by: QuotaBy) -> Rule {
    Rule::new("plan", Quota::per_hour(2)).fixed_window().by(header("x-tenant")).quota_by(quota_by)
}

/// Plans in a database that counts how often it is asked.
fn plans() -> (QuotaBy, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let find = move |tenant: Key| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            match tenant.as_str() {
                "large" => Ok(Quota::per_hour(9)),
                "broken" => Err(LookupError::from("no such tenant")),
                "slow" => std::future::pending().await,
                _ => Ok(Quota::per_hour(3)),
            }
        }
    };
    (quota_by(find), asked)
}

#[tokio::test]
async fn each_key_has_the_quota_that_is_found() {
    let (plans, asked) = plans();
    let address = served(rule(plans)).await;
    for (tenant, field) in [("large", r#""plan";q=9;w=3600"#), ("small", r#""plan";q=3;w=3600"#)] {
        assert_eq!(ask(address, tenant).await.text("ratelimit-policy"), Some(field));
    }
    assert_eq!([ask(address, "small").await.status, ask(address, "small").await.status], [200, 200]);
    assert_eq!(ask(address, "small").await.status, 429);
    assert_eq!(asked.load(Ordering::Relaxed), 5, "one look-up a request");
}

#[tokio::test]
async fn what_is_cached_is_not_looked_up_again_until_it_is_old() {
    let (plans, asked) = plans();
    let address = served(rule(plans.cached(Duration::from_millis(300), 100))).await;
    for _ in 0..5 {
        ask(address, "large").await;
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // A cache in a running server goes by the real clock.
    tokio::time::sleep(Duration::from_millis(350)).await;
    ask(address, "large").await;
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_cache_keeps_no_more_than_it_may() {
    let (plans, asked) = plans();
    let address = served(rule(plans.cached(Duration::from_secs(60), 4))).await;
    for tenant in ["a", "b", "c", "d", "e", "f"] {
        ask(address, tenant).await;
    }
    ask(address, "f").await;
    assert_eq!(asked.load(Ordering::Relaxed), 6, "the newest is known");
    ask(address, "a").await;
    assert_eq!(asked.load(Ordering::Relaxed), 7, "and the oldest is not");
}

#[tokio::test]
async fn a_quota_that_cannot_be_found_leaves_it_to_the_rule() {
    for tenant in ["broken", "slow"] {
        let with = async |on_error| served(rule(plans().0).on_error(on_error)).await;
        let local = with(OnError::Local).await;
        assert_eq!([ask(local, tenant).await.status, ask(local, tenant).await.status], [200, 200], "its own quota");
        assert_eq!(ask(local, tenant).await.status, 429);
        let allow = with(OnError::Allow).await;
        for _ in 0..5 {
            let answer = ask(allow, tenant).await;
            assert_eq!((answer.status.as_u16(), answer.text("ratelimit")), (200, None));
        }
        assert_eq!(ask(with(OnError::Deny).await, tenant).await.status, 503);
    }
}

#[tokio::test]
async fn a_rule_is_given_its_look_up_by_name() {
    let base = Rule::new("plan", Quota::per_hour(2)).fixed_window().by(header("x-tenant"));
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(base).quota_by("plan", plans().0);
    let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await;
    assert_eq!(ask(address, "large").await.text("ratelimit-policy"), Some(r#""plan";q=9;w=3600"#));
}

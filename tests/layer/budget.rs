//! State lives in the limiter: whatever is cloned, however many connections there are, it is one budget.

use axum::{
    Router,
    http::StatusCode,
    routing::{MethodRouter, get},
};
use tokio::task::JoinSet;
use tollgate::{Limiter, Memory, Quota, RateLimitLayer, Rule, layer::global};

use crate::support::http::{get as fetch, serve};

fn layer(limit: u64) -> RateLimitLayer {
    RateLimitLayer::new(Limiter::new(Memory::new())).rule(Rule::new("r", Quota::per_hour(limit)).by(global()))
}

#[tokio::test]
async fn fifty_connections_share_one_budget() {
    let address = serve(Router::new().route("/", get(|| async { "hello" })).layer(layer(5))).await;
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        tasks.spawn(async move {
            let mut passed = 0;
            for _ in 0..10 {
                passed += usize::from(fetch(address, "/").await.status == StatusCode::OK);
            }
            passed
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 5);
}

#[tokio::test]
async fn a_layer_on_two_method_routers_and_two_apps_is_one_budget() {
    let layer = layer(5);
    let route = || -> MethodRouter { get(|| async { "hello" }).layer(layer.clone()) };
    let (one, two) = (
        serve(Router::new().route("/a", route()).route("/b", route())).await,
        serve(Router::new().route("/a", get(|| async { "hello" })).route_layer(layer.clone())).await,
    );
    let mut passed = 0;
    for _ in 0..4 {
        for (address, path) in [(one, "/a"), (one, "/b"), (two, "/a")] {
            passed += usize::from(fetch(address, path).await.status == StatusCode::OK);
        }
    }
    assert_eq!(passed, 5);
}

#[tokio::test]
async fn a_layer_called_twice_on_a_method_router_counts_twice_in_one_budget() {
    let limiter = Limiter::new(Memory::new());
    let rule = |name: &'static str| Rule::new(name, Quota::per_hour(5)).by(global());
    let one = RateLimitLayer::new(limiter).rule(rule("one"));
    let route: MethodRouter = get(|| async { "hello" }).layer(one.clone()).post(|| async { "posted" }).layer(one);
    let address = serve(Router::new().route("/", route)).await;
    // The GET handler lies inside both: two units each, and the fifth is too little for a third request.
    let mut passed = 0;
    for _ in 0..5 {
        passed += usize::from(fetch(address, "/").await.status == StatusCode::OK);
    }
    assert_eq!(passed, 2);
}

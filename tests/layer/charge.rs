//! Charging by outcome, and settling from handlers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::StatusCode,
    routing::{get, post},
};
use tokio::sync::Semaphore;
use tollgate::{
    Limiter, Memory, Policy, Quota, RateLimitLayer, Redis, Rule,
    layer::{Exposed, global},
};

use crate::support::{
    http::{Answer, send, serve},
    server::Server,
};

async fn log_in(address: SocketAddr, password: &str) -> Answer {
    send(address, None, http::Request::post("/login").body(Body::from(password.to_owned())).expect("a request")).await
}

async fn check(body: String) -> StatusCode {
    if body == "secret" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

fn logins() -> Rule {
    Rule::new("login", Quota::per_hour(3)).fixed_window().by(global()).path("/login").charge("status:401,403,5xx")
}

async fn assert_only_wrong_passwords_count(limiter: Limiter) {
    let layer = RateLimitLayer::new(limiter).rule(logins());
    let address = serve(Router::new().route("/login", post(check)).layer(layer)).await;
    for _ in 0..5 {
        let answer = log_in(address, "secret").await;
        assert_eq!((answer.status.as_u16(), answer.text("ratelimit")), (200, Some(r#""login";r=3;t=0"#)));
    }
    for left in [2, 1, 0] {
        let answer = log_in(address, "wrong").await;
        assert_eq!(answer.status, 401);
        assert!(answer.text("ratelimit").expect("the field").contains(&format!("r={left};")), "{answer:?}");
        if left > 0 {
            assert!(
                log_in(address, "secret").await.text("ratelimit").expect("the field").contains(&format!("r={left};"))
            );
        }
    }
    assert_eq!(log_in(address, "secret").await.status, 429, "who has none left is not asked for a password");
}

#[tokio::test]
async fn only_wrong_passwords_count() {
    assert_only_wrong_passwords_count(Limiter::new(Memory::new())).await;
    let server = Server::start();
    assert_only_wrong_passwords_count(Limiter::new(Redis::open(&server.url()).expect("an address"))).await;
}

#[tokio::test]
async fn no_number_of_wrong_passwords_at_once_gets_around_the_limit() {
    let server = Server::start();
    for limiter in [Limiter::new(Memory::new()), Limiter::new(Redis::open(&server.url()).expect("an address"))] {
        let layer = RateLimitLayer::new(limiter).rule(logins());
        let address = serve(Router::new().route("/login", post(check)).layer(layer)).await;
        let tries: Vec<_> = (0..50).map(|_| tokio::spawn(log_in(address, "wrong"))).collect();
        let mut wrong = 0;
        for attempt in tries {
            wrong += u32::from(attempt.await.expect("an answer").status == 401);
        }
        assert_eq!(wrong, 3);
    }
}

#[tokio::test]
async fn a_request_under_way_holds_its_unit_and_a_dropped_one_keeps_it() {
    let limiter = Limiter::new(Memory::new());
    let gate = Arc::new(Semaphore::new(0));
    let open = Arc::clone(&gate);
    let slow = move || {
        let gate = Arc::clone(&open);
        async move { gate.acquire().await.map(drop).expect("never closed") }
    };
    let rule = Rule::new("r", Quota::per_hour(2)).fixed_window().by(global()).charge("status:5xx");
    let layer = RateLimitLayer::new(limiter.clone()).rule(rule);
    let address = serve(Router::new().route("/", get(slow)).layer(layer)).await;
    let policy = Policy::fixed_window("r", Quota::per_hour(2));
    let ask = || tokio::spawn(async move { crate::support::http::get(address, "/").await.status.as_u16() });
    let (dropped, kept) = (ask(), ask());
    let left = async || limiter.peek(&policy, "all").await.remaining();
    while left().await != Some(0) {
        // Until both have arrived over their sockets.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(ask().await.expect("an answer"), 429);
    dropped.abort();
    // Until the server has seen that the connection is gone.
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.add_permits(10);
    assert_eq!(kept.await.expect("an answer"), 200);
    assert_eq!(left().await, Some(1), "one came back, and the dropped one stands");
}

#[tokio::test]
async fn what_a_handler_settles_goes_before_the_outcome() {
    let handler = |exposed: Exposed| async move {
        exposed.charge.settle(7).await.expect("memory settles");
        "done"
    };
    let limiter = Limiter::new(Memory::new());
    let rule = Rule::new("r", Quota::per_hour(20)).fixed_window().by(global()).cost(2).charge("status:5xx").settled();
    let layer = RateLimitLayer::new(limiter.clone()).rule(rule);
    let address = serve(Router::new().route("/", get(handler)).layer(layer)).await;
    assert_eq!(crate::support::http::get(address, "/").await.status, 200);
    let policy = Policy::fixed_window("r", Quota::per_hour(20));
    assert_eq!(limiter.peek(&policy, "all").await.remaining(), Some(13));
}

#[tokio::test]
async fn a_rule_that_is_settled_shows_its_charge_to_the_handler_alone() {
    let handler = |exposed: Option<Exposed>| async move { exposed.is_some().to_string() };
    let settled = Rule::new("settled", Quota::per_hour(20)).by(global()).path("/settled").settled();
    let plain = Rule::new("plain", Quota::per_hour(20)).by(global());
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(settled).rule(plain);
    let address = serve(Router::new().fallback(handler).layer(layer)).await;
    assert_eq!(crate::support::http::get(address, "/settled").await.body, "true");
    assert_eq!(crate::support::http::get(address, "/").await.body, "false");
}

#[tokio::test]
async fn a_grpc_status_in_the_trailers_tells_what_is_charged() {
    let limiter = Limiter::new(Memory::new());
    let policy = Policy::fixed_window("r", Quota::per_hour(5));
    let rule = Rule::new("r", Quota::per_hour(5)).fixed_window().by(global()).charge("grpc:16");
    let layer = RateLimitLayer::new(limiter.clone()).rule(rule);
    let handler = |uri: http::Uri| async move {
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", uri.path()[1..].parse().expect("a status"));
        let frames = [
            Ok::<_, std::convert::Infallible>(http_body::Frame::data(bytes::Bytes::from("x"))),
            Ok(http_body::Frame::trailers(trailers)),
        ];
        let body = Body::new(http_body_util::StreamBody::new(tokio_stream::iter(frames)));
        http::Response::builder().header("content-type", "application/grpc").body(body).expect("a response")
    };
    let app = Router::new().fallback(handler).layer(layer);
    for (path, left) in [("/16", 4), ("/0", 4), ("/5", 4), ("/16", 3)] {
        let request = http::Request::get(path).body(Body::empty()).expect("a request");
        let response = tower::ServiceExt::oneshot(app.clone(), request).await.expect("no error");
        assert!(!response.headers().contains_key("ratelimit"), "what is left is not known yet");
        let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a whole body");
        assert!(body.trailers().is_some());
        assert_eq!(limiter.peek(&policy, "all").await.remaining(), Some(left), "{path}");
    }
}

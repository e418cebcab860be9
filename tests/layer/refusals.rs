//! What clients are told when the limiter cannot tell: never a 429.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollgate::{Limiter, OnError, Quota, RateLimitLayer, Redis, Rule, layer::global};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::http::Answer;

async fn ask_without_a_store(on_error: OnError, content_type: &str) -> Answer {
    let limiter = Limiter::new(Redis::open("redis://127.0.0.1:1").expect("an address"));
    let layer = RateLimitLayer::new(limiter).rule(Rule::new("r", Quota::per_hour(1)).by(global()).on_error(on_error));
    let service = layer.layer(service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let request =
        Request::post("/a.B/C").header("content-type", content_type).body(Full::default()).expect("a request");
    Answer::of(service.oneshot(request).await.expect("an answer")).await
}

#[tokio::test]
async fn a_store_that_is_gone_is_503_or_status_14_or_nothing_at_all() {
    let denied = ask_without_a_store(OnError::Deny, "application/json").await;
    assert_eq!(denied.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(denied.text("content-type"), Some("application/problem+json"));
    assert_eq!(denied.json()["status"], 503);
    assert!(denied.text("ratelimit").is_none() && denied.text("retry-after").is_none());

    let grpc = ask_without_a_store(OnError::Deny, "application/grpc+proto").await;
    assert_eq!((grpc.status, grpc.text("grpc-status")), (StatusCode::OK, Some("14")));
    assert!(grpc.text("grpc-retry-pushback-ms").is_none());

    let allowed = ask_without_a_store(OnError::Allow, "application/json").await;
    assert_eq!(allowed.status, StatusCode::OK);
    assert!(allowed.text("ratelimit").is_none(), "nothing is known, so nothing is told");
}

#[tokio::test]
async fn by_default_a_process_decides_by_its_share_and_refuses_as_over_the_limit() {
    let limiter = Limiter::new(Redis::open("redis://127.0.0.1:1").expect("an address")).replicas(2);
    let layer = RateLimitLayer::new(limiter).rule(Rule::new("r", Quota::per_hour(4)).by(global()));
    let service = layer.layer(service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    for status in [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::TOO_MANY_REQUESTS] {
        let answer = Answer::of(service.clone().oneshot(Request::new(Full::default())).await.expect("an answer")).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.text("retry-after").is_some(), status != StatusCode::OK);
        assert!(answer.text("ratelimit").is_some_and(|told| told.starts_with("\"r\";r=")), "{answer:?}");
    }
}

#[tokio::test]
async fn in_one_call_a_denial_outweighs_a_permission() {
    let limiter = Limiter::new(Redis::open("redis://127.0.0.1:1").expect("an address"));
    let rule = |name: &'static str, on_error| Rule::new(name, Quota::per_hour(1)).by(global()).on_error(on_error);
    let layer = RateLimitLayer::new(limiter)
        .rule(rule("browse", OnError::Allow))
        .rule(rule("login", OnError::Deny).path("/login"));
    let service = layer.layer(service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    for (path, status) in [("/", StatusCode::OK), ("/login", StatusCode::SERVICE_UNAVAILABLE)] {
        let request = Request::get(path).body(Full::default()).expect("a request");
        assert_eq!(service.clone().oneshot(request).await.expect("an answer").status(), status, "{path}");
    }
}

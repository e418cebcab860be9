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

async fn refused(layer: &RateLimitLayer, request: Request<Full<Bytes>>) -> Answer {
    let inner = service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    });
    Answer::of(layer.clone().layer(inner).oneshot(request).await.expect("an answer")).await
}

/// A layer that refuses everything, after 9 s or for good.
fn refusing(rules: &[(&'static str, bool)]) -> RateLimitLayer {
    let (memory, _) = tollgate::Memory::manual();
    let layer = RateLimitLayer::new(Limiter::new(memory));
    rules.iter().fold(layer, |layer, (name, capacity)| {
        let rule = Rule::new(*name, "1/9s".parse().expect("a quota")).by(global()).cost(2);
        layer.rule(if *capacity { rule.reduced_capacity() } else { rule })
    })
}

fn accepting(accept: Option<&str>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    if let Some(accept) = accept {
        request.headers_mut().insert("accept", accept.parse().expect("a value"));
    }
    request
}

#[tokio::test]
async fn who_cannot_read_json_is_told_in_plain_text() {
    let (memory, _) = tollgate::Memory::manual();
    let rule = Rule::new("per-hour", Quota::per_hour(1)).fixed_window().by(global());
    let layer = RateLimitLayer::new(Limiter::new(memory)).rule(rule);
    assert_eq!(refused(&layer, accepting(None)).await.status, StatusCode::OK);
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
    for (accept, json) in [
        (None, true),
        (Some("*/*"), true),
        (Some("application/json, text/plain, */*"), true),
        (Some("application/problem+json"), true),
        (Some(browser), false),
        (Some("text/plain"), false),
        (Some("image/webp"), false),
    ] {
        let answer = refused(&layer, accepting(accept)).await;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!((answer.text("retry-after"), answer.text("cache-control")), (Some("3600"), Some("no-store")));
        if json {
            assert_eq!(answer.text("content-type"), Some("application/problem+json"), "{accept:?}");
            assert_eq!(answer.json()["detail"], "policy per-hour allows 1/hour; try again in 3600 s");
        } else {
            assert_eq!(answer.text("content-type"), Some("text/plain; charset=utf-8"), "{accept:?}");
            assert_eq!(answer.body, "policy per-hour allows 1/hour; try again in 3600 s\n");
        }
        let mut head = accepting(accept);
        *head.method_mut() = http::Method::HEAD;
        let head = refused(&layer, head).await;
        assert!(head.body.is_empty());
        assert_eq!(head.text("content-length"), Some(answer.body.len().to_string().as_str()));
        assert_eq!(head.text("content-type"), answer.text("content-type"));
    }
    let no_peer = RateLimitLayer::per_client(Quota::per_hour(1));
    let answer = refused(&no_peer, accepting(Some("text/plain"))).await;
    assert!(answer.body.starts_with(b"a rule counts by client address") && answer.body.ends_with(b"\n"));
}

#[tokio::test]
async fn what_the_server_can_do_is_no_quota_of_the_client() {
    let capacity = refused(&refusing(&[("all", true)]), accepting(None)).await;
    assert_eq!(capacity.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(capacity.text("cache-control"), Some("no-store"));
    let problem = capacity.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!((&problem["status"], &problem["violated-policies"]), (&503.into(), &serde_json::json!(["all"])));
    assert!(capacity.text("ratelimit").is_some_and(|states| states.starts_with(r#""all";r=1"#)));
    // Where the client has used its own as well, that is what it is told.
    let both = refused(&refusing(&[("all", true), ("own", false)]), accepting(None)).await;
    assert_eq!(both.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(both.json()["violated-policies"], serde_json::json!(["all", "own"]));

    let (memory, _) = tollgate::Memory::manual();
    let rule = Rule::new("all", Quota::per_hour(1)).fixed_window().by(global()).reduced_capacity();
    let layer = RateLimitLayer::new(Limiter::new(memory)).rule(rule);
    let grpc =
        || Request::post("/a.B/C").header("content-type", "application/grpc").body(Full::default()).expect("a request");
    assert_eq!(refused(&layer, grpc()).await.text("grpc-status"), None);
    let answer = refused(&layer, grpc()).await;
    assert_eq!((answer.status, answer.text("grpc-status")), (StatusCode::OK, Some("14")));
    assert_eq!(answer.text("grpc-retry-pushback-ms"), Some("3600000"));
    assert_eq!(refused(&layer, accepting(None)).await.text("retry-after"), Some("3600"));
}

#[tokio::test]
async fn an_unavailable_store_has_the_problem_type_of_reduced_capacity() {
    let denied = ask_without_a_store(OnError::Deny, "application/json").await;
    assert_eq!(denied.json()["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
}

#[tokio::test]
async fn an_answer_of_ones_own_may_begin_with_ours() {
    let layer = refusing(&[("r", false)]).refuse_with(|decision, request| {
        let mut response = tollgate::layer::respond(decision, request).expect("it was refused").map(Bytes::from);
        response.headers_mut().insert("x-support", "mail us".parse().expect("a value"));
        response
    });
    let answer = refused(&layer, accepting(None)).await;
    assert_eq!((answer.status, answer.text("x-support")), (StatusCode::TOO_MANY_REQUESTS, Some("mail us")));
    assert_eq!(answer.headers.get_all("ratelimit").iter().count(), 1);
    assert_eq!(answer.json()["violated-policies"], serde_json::json!(["r"]));
}

#[tokio::test]
async fn nothing_of_whose_request_it_was_is_in_a_refusal() {
    let (memory, _) = tollgate::Memory::manual();
    let layer = RateLimitLayer::new(Limiter::new(memory))
        .rule(Rule::new("r", Quota::per_hour(1)).by(tollgate::layer::header("x-user").plain()));
    let request = |content_type: &str| {
        let request = Request::post("/a.B/C").header("x-user", "secret-name").header("content-type", content_type);
        request.body(Full::<Bytes>::default()).expect("a request")
    };
    refused(&layer, request("x/y")).await;
    for content_type in ["x/y", "application/grpc"] {
        let answer = refused(&layer, request(content_type)).await;
        assert!(!format!("{answer:?}").contains("secret-name"), "{answer:?}");
    }
}

//! Through a real axum server, over sockets.

use std::time::Duration;

use axum::{
    Extension, Router,
    extract::Request,
    http::{Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use tollgate::{
    Decision, Limiter, ManualClock, Memory, Policy, Quota, RateLimitLayer, Rule,
    layer::{self, Dialect, Exposed, client_ip, global, header, matched_path},
};

use crate::support::http::{Answer, get as fetch, get_from, send, serve};

fn manual() -> (Limiter, ManualClock) {
    let (memory, clock) = Memory::manual();
    (Limiter::new(memory), clock)
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/post", post(|| async { "posted" }))
        .route("/old", get(|| async { Redirect::permanent("/") }))
        .route("/unchanged", get(|| async { StatusCode::NOT_MODIFIED }))
        .route("/fault", get(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
        .layer(layer)
}

#[tokio::test]
async fn one_line_limits_each_client() {
    let address = serve(app(RateLimitLayer::per_client(Quota::per_hour(2)))).await;
    for left in [1, 0] {
        let answer = fetch(address, "/").await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.text("ratelimit-policy"), Some(r#""per-client";q=2;w=3600"#));
        assert_eq!(answer.text("ratelimit"), Some(format!(r#""per-client";r={left};t=1800"#).as_str()));
        assert_eq!(answer.text("retry-after"), None);
    }
    let refused = fetch(address, "/").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.text("retry-after"), Some("1800"));
    assert_eq!(refused.text("ratelimit"), Some(r#""per-client";r=0;t=1800"#));
    assert_eq!(get_from("127.0.0.2", address, "/").await.status, StatusCode::OK, "another client is not refused");
}

#[tokio::test]
async fn a_refusal_is_problem_details_that_no_cache_keeps() {
    let (limiter, _) = manual();
    let layer = RateLimitLayer::new(limiter)
        .rule(Rule::new("wide", Quota::per_hour(9)).by(global()))
        .rule(Rule::new("narrow", Quota::per_hour(1)).by(global()).fixed_window())
        .rule(Rule::new("daily", Quota::per_day(1)).by(global()).sliding_window());
    let address = serve(app(layer)).await;
    assert_eq!(fetch(address, "/").await.status, StatusCode::OK);
    let refused = fetch(address, "/").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.text("content-type"), Some("application/problem+json"));
    assert_eq!(refused.text("cache-control"), Some("no-store"));
    assert_eq!(refused.text("retry-after"), Some("86400"), "the longest of the waits");
    assert_eq!(refused.headers.get_all("retry-after").iter().count(), 1);
    assert_eq!(refused.text("ratelimit"), Some(r#""wide";r=8;t=400, "narrow";r=0;t=3600, "daily";r=0;t=86400"#));
    let problem = refused.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["narrow", "daily"]));
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("1/day") && detail.contains("86400 s")));
}

#[tokio::test]
async fn waiting_as_long_as_told_gets_in() {
    for rule in [
        Rule::new("r", Quota::per_minute(7)).by(global()),
        Rule::new("r", Quota::per_minute(7)).by(global()).fixed_window(),
        Rule::new("r", Quota::per_minute(7)).by(global()).fixed_window().aligned(),
        Rule::new("r", Quota::per_minute(7)).by(global()).sliding_window(),
    ] {
        let (limiter, clock) = manual();
        let address = serve(app(RateLimitLayer::new(limiter).rule(rule))).await;
        for step in 0..20u64 {
            clock.advance(Duration::from_micros(step * 777_777));
            let answer = fetch(address, "/").await;
            if answer.status == StatusCode::TOO_MANY_REQUESTS {
                let wait: u64 = answer.text("retry-after").expect("a wait").parse().expect("whole seconds");
                assert!(wait >= 1);
                clock.advance(Duration::from_secs(wait));
                assert_eq!(fetch(address, "/").await.status, StatusCode::OK);
            }
        }
    }
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_refused_for_good() {
    let (limiter, _) = manual();
    let rule = Rule::new("bytes", Quota::per_hour(10)).by(global()).cost_by(|request| request.uri.path().len() as u64);
    let address = serve(app(RateLimitLayer::new(limiter).rule(rule))).await;
    let refused = fetch(address, "/a-path-that-is-too-long").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.text("retry-after"), None);
    assert!(refused.json()["detail"].as_str().is_some_and(|detail| detail.contains("never")));
    assert_eq!(fetch(address, "/").await.text("ratelimit"), Some(r#""bytes";r=9;t=360"#));
}

#[tokio::test]
async fn redirects_and_unchanged_answers_have_no_fields_and_errors_have() {
    let (limiter, _) = manual();
    let rule = Rule::new("r", Quota::per_hour(100)).by(global());
    let address = serve(app(RateLimitLayer::new(limiter).rule(rule))).await;
    for (path, status, has) in [
        ("/old", StatusCode::PERMANENT_REDIRECT, false),
        ("/unchanged", StatusCode::NOT_MODIFIED, false),
        ("/fault", StatusCode::INTERNAL_SERVER_ERROR, true),
        ("/nowhere", StatusCode::NOT_FOUND, true),
        ("/post", StatusCode::METHOD_NOT_ALLOWED, true),
    ] {
        let answer = fetch(address, path).await;
        assert_eq!((answer.status, answer.text("ratelimit").is_some()), (status, has), "{path}");
        assert_eq!(answer.text("ratelimit-policy").is_some(), has, "{path}");
    }
}

#[tokio::test]
async fn a_head_request_counts_and_its_refusal_has_no_body() {
    let (limiter, _) = manual();
    let address = serve(app(RateLimitLayer::new(limiter).rule(Rule::new("r", Quota::per_hour(1)).by(global())))).await;
    let head = || Request::head("/").body(axum::body::Body::empty()).expect("a request");
    assert_eq!(send(address, None, head()).await.status, StatusCode::OK);
    let refused = send(address, None, head()).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.body.is_empty());
    let get = fetch(address, "/").await;
    assert_eq!(refused.text("content-length"), Some(get.body.len().to_string().as_str()));
}

#[tokio::test]
async fn a_preflight_passes_uncounted() {
    let preflight = || {
        Request::options("/")
            .header(header::ORIGIN, "https://example.com")
            .header(header::ACCESS_CONTROL_REQUEST_METHOD, "PUT")
            .body(axum::body::Body::empty())
            .expect("a request")
    };
    for (counted, expected) in [(false, "r=1"), (true, "r=0")] {
        let (limiter, _) = manual();
        let mut layer = RateLimitLayer::new(limiter).rule(Rule::new("r", Quota::per_hour(2)).by(global()));
        if counted {
            layer = layer.limit_preflights();
        }
        let address = serve(app(layer)).await;
        assert_eq!(send(address, None, preflight()).await.text("ratelimit").is_some(), counted);
        let answer = fetch(address, "/").await;
        assert!(answer.text("ratelimit").is_some_and(|field| field.contains(expected)), "{answer:?}");
    }
    // Without an origin it is a request like any other.
    let (limiter, _) = manual();
    let address = serve(app(RateLimitLayer::new(limiter).rule(Rule::new("r", Quota::per_hour(2)).by(global())))).await;
    let options = Request::options("/").body(axum::body::Body::empty()).expect("a request");
    assert!(send(address, None, options).await.text("ratelimit").is_some());
}

#[tokio::test]
async fn an_unknown_peer_is_a_fault_that_names_its_mending() {
    let app = app(RateLimitLayer::per_client(Quota::per_hour(100)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    for _ in 0..2 {
        let answer = fetch(address, "/").await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        let detail = answer.json()["detail"].to_string();
        assert!(detail.contains("into_make_service_with_connect_info"), "{detail}");
    }
}

#[tokio::test]
async fn rules_apply_to_what_they_match() {
    let (limiter, _) = manual();
    let hour = |name: &'static str| Rule::new(name, Quota::per_hour(100)).by(global());
    let layer = RateLimitLayer::new(limiter)
        .rule(hour("api").path("/api/{*rest}").path("/v2/{id}"))
        .rule(hour("writes").method(Method::POST).method(Method::PUT))
        .rule(hour("flagged").when(|request| request.headers.contains_key("x-flag")))
        .rule(hour("not-health").unless(|request| request.uri.path() == "/health"));
    let app = Router::new().fallback(|| async { "anything" }).layer(layer);
    let address = serve(Router::new().nest("/nested", Router::new()).merge(app)).await;
    for (method, path, flag, names) in [
        ("GET", "/", false, "not-health"),
        ("GET", "/health", false, ""),
        ("GET", "/api/x/y?q=1", false, "api not-health"),
        ("GET", "//api/./x", false, "api not-health"),
        ("GET", "/%61pi/x", false, "api not-health"),
        ("GET", "/api", false, "not-health"),
        ("GET", "/v2/7", false, "api not-health"),
        ("POST", "/api/x", true, "api writes flagged not-health"),
        ("PUT", "/health", false, "writes"),
    ] {
        let mut request = Request::builder().method(method).uri(path);
        if flag {
            request = request.header("x-flag", "1");
        }
        let answer = send(address, None, request.body(axum::body::Body::empty()).expect("a request")).await;
        let policies = answer.text("ratelimit-policy").unwrap_or_default();
        let told: Vec<_> = policies.split(", ").filter_map(|item| item.split('"').nth(1)).collect();
        assert_eq!(told.join(" "), names, "{method} {path}");
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_is_a_way_around_its_rule() {
    let (limiter, _) = manual();
    let rule = |name: &'static str, path: &str| Rule::new(name, Quota::per_hour(3)).by(global()).path(path);
    let layer = RateLimitLayer::new(limiter)
        .rule(rule("api", "/api/{*rest}"))
        .rule(rule("item", "/item/{id}"))
        .rule(rule("user", "/%7Euser"));
    let well = || get(|| async { "handled" });
    let app = Router::new().route("/api/{*rest}", well()).route("/item/{id}", well()).route("/%7Euser", well());
    let address = serve(app.layer(layer)).await;
    for path in [
        "/api/x",
        "/api/../x",
        "/api/%2e%2e/x",
        "/api//",
        "/api/.",
        "//api/x",
        "/item/..",
        "/item/%2e",
        "/%7Euser",
        "/~user",
    ] {
        // A client of ours would resolve the path before it sends it.
        let mut socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        tokio::io::AsyncWriteExt::write_all(&mut socket, request.as_bytes()).await.expect("a request");
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut socket, &mut answer).await.expect("an answer");
        assert!(answer.contains("ratelimit: "), "{path}: {answer}");
    }
}

#[tokio::test]
async fn inside_a_nested_router_the_whole_path_counts() {
    let (limiter, _) = manual();
    let layer =
        RateLimitLayer::new(limiter).rule(Rule::new("r", Quota::per_hour(9)).by(matched_path()).path("/outer/inner"));
    let inner = Router::new().route("/inner", get(|| async { "in" })).layer(layer);
    let address = serve(Router::new().nest("/outer", inner)).await;
    assert!(fetch(address, "/outer/inner").await.text("ratelimit").is_some());
}

#[tokio::test]
async fn nested_layers_give_one_list_inner_first() {
    let (limiter, _) = manual();
    let rule = |name: &'static str, limit| Rule::new(name, Quota::per_hour(limit)).by(global());
    let inner = RateLimitLayer::new(limiter.clone()).rule(rule("inner", 1));
    let outer = RateLimitLayer::new(limiter).rule(rule("outer", 9));
    let address = serve(app(inner).layer(outer)).await;
    let all = |answer: &Answer, field: &str| {
        let values: Vec<_> =
            answer.headers.get_all(field).iter().map(|value| value.to_str().expect("text").to_owned()).collect();
        values.join(", ")
    };
    let passed = fetch(address, "/").await;
    assert_eq!(all(&passed, "ratelimit-policy"), r#""inner";q=1;w=3600, "outer";q=9;w=3600"#);
    assert_eq!(all(&passed, "ratelimit"), r#""inner";r=0;t=3600, "outer";r=8;t=400"#);
    let refused = fetch(address, "/").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(all(&refused, "ratelimit"), r#""inner";r=0;t=3600, "outer";r=7;t=400"#);
    assert_eq!(refused.headers.get_all("retry-after").iter().count(), 1);
}

#[tokio::test]
async fn fields_can_be_left_out_and_refusals_replaced() {
    let (limiter, _) = manual();
    let layer = RateLimitLayer::new(limiter)
        .rule(Rule::new("r", Quota::per_hour(1)).by(global()))
        .dialect(Dialect::None)
        .refuse_with(|decision, request| {
            let wait = decision.retry_after().expect("a wait").as_secs();
            let text = format!("{} must wait {wait}", request.uri.path());
            axum::http::Response::builder().status(420).body(text.into()).expect("a response")
        });
    let address = serve(app(layer)).await;
    let passed = fetch(address, "/").await;
    assert!(passed.text("ratelimit").is_none() && passed.text("ratelimit-policy").is_none());
    let refused = fetch(address, "/x").await;
    assert_eq!((refused.status.as_u16(), refused.body.as_ref()), (420, b"/x must wait 3600".as_slice()));
}

#[tokio::test]
async fn a_handler_sees_the_decision_and_settles_the_charge() {
    async fn handler(exposed: Exposed, Extension(decision): Extension<Decision>, request: Request) -> String {
        let used: u64 = request.uri().query().expect("a query").parse().expect("a number");
        exposed.charge.settle(used).await.expect("settled");
        exposed.charge.settle(0).await.expect("the second one does nothing");
        format!("{} {}", exposed.decision.outcomes()[0].remaining(), decision.is_allowed())
    }
    let (limiter, _) = manual();
    let rule = Rule::new("tokens", Quota::per_hour(100)).fixed_window().by(global()).cost(10);
    let layer = RateLimitLayer::new(limiter).rule(rule).expose_decision();
    let app = Router::new().route("/", get(handler)).layer(layer.clone());
    let app = app.route("/unlimited", get(|exposed: Option<Exposed>| async move { exposed.is_none().to_string() }));
    let app = app.layer(middleware::from_fn(async |request: Request, next: Next| {
        let response = next.run(request).await;
        let seen = response.extensions().get::<Decision>().is_some();
        ([("x-seen", seen.to_string())], response).into_response()
    }));
    let address = serve(app).await;
    for (used, body) in [(3, "90 true"), (50, "87 true"), (0, "37 true"), (10, "37 true")] {
        let answer = fetch(address, &format!("/?{used}")).await;
        assert_eq!(answer.body, body);
        assert_eq!(answer.text("x-seen"), Some("true"));
    }
    let answer = fetch(address, "/unlimited").await;
    assert_eq!((answer.body.as_ref(), answer.text("x-seen")), (b"true".as_slice(), Some("false")));
}

#[tokio::test]
async fn from_fn_limits_without_a_layer() {
    static PER_USER: Policy = Policy::fixed_window("per-user", Quota::per_hour(1));

    async fn limit(limiter: Limiter, request: Request, next: Next) -> Response {
        let (parts, body) = request.into_parts();
        let user = parts.headers.get("x-user").map_or(b"nobody".as_slice(), |user| user.as_bytes());
        let decision = limiter.check(&PER_USER, user).await;
        if let Some(refusal) = layer::respond(&decision, &parts) {
            return refusal.into_response();
        }
        let mut response = next.run(Request::from_parts(parts, body)).await;
        layer::write_fields(&decision, response.headers_mut());
        response
    }
    let (limiter, _) = manual();
    let app = Router::new().route("/", get(|| async { "hello" }));
    let address =
        serve(app.layer(middleware::from_fn(move |request, next| limit(limiter.clone(), request, next)))).await;
    assert_eq!(fetch(address, "/").await.text("ratelimit"), Some(r#""per-user";r=0;t=3600"#));
    let refused = fetch(address, "/").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.text("retry-after"), Some("3600"));
    assert_eq!(refused.text("ratelimit"), Some(r#""per-user";r=0;t=3600"#));
}

#[tokio::test]
async fn a_rule_of_a_name_that_is_taken_is_an_error() {
    let (limiter, _) = manual();
    let rule = || Rule::new("same", Quota::per_hour(1)).by((client_ip(), header("x-a")));
    let layer = RateLimitLayer::new(limiter.clone()).rule(rule());
    for error in [
        layer.clone().try_rule(rule()).expect_err("twice in a layer"),
        RateLimitLayer::new(limiter.clone()).try_rule(rule()).expect_err("twice in a limiter"),
    ] {
        assert!(error.is_invalid() && error.to_string().contains("`same`"), "{error}");
    }
    // A layer that is gone leaves its names free.
    drop(layer);
    assert!(RateLimitLayer::new(limiter.clone()).try_rule(rule()).is_ok());
    for wrong in [
        Rule::new("a name", Quota::per_hour(1)),
        Rule::new("fast", Quota::per_second(200_000)),
        Rule::new("burst", Quota::per_hour(1)).fixed_window().burst(3),
        Rule::new("aligned", Quota::per_hour(1)).aligned(),
        Rule::new("path", Quota::per_hour(1)).path("/{a}/{*b}/c"),
        Rule::new("path", Quota::per_hour(1)).path("login"),
        Rule::new("path", Quota::per_hour(1)).path(""),
        Rule::new("path", Quota::per_hour(1)).path("/users/:id"),
        Rule::new("path", Quota::per_hour(1)).path("/*"),
    ] {
        let error = RateLimitLayer::new(limiter.clone()).try_rule(wrong).expect_err("a wrong rule");
        assert!(error.is_invalid(), "{error}");
    }
    let twice = Rule::new("twice", Quota::per_hour(1)).path("/u/{id}").path("/u/{name}").path("/u/me");
    assert!(RateLimitLayer::new(limiter).try_rule(twice).is_ok());
}

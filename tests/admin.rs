//! The router for operators, over a real socket: who is let in, what it tells, what it changes, and what traces that
//! leaves.

mod support;

use std::{net::SocketAddr, time::Duration};

use axum::{Router, body::Body, http::Request, routing::get};
use serde_json::{Value, json};
use support::{
    http::{Answer, get as fetch, get_from, send, serve},
    log::Log,
    server::Server,
};
use tollgate::{
    Demand, Limiter, Memory, Policy, Quota, RateLimitLayer, Redis, Rule, admin,
    layer::{client_ip, header},
};
use tracing::Level;

const TOKEN: &str = "a-token-of-sixteen-bytes-and-more";

static USERS: Policy = Policy::fixed_window("per-user", Quota::per_day(3));

/// A limited service with its operators' router.
async fn service(limiter: Limiter) -> SocketAddr {
    let limits = RateLimitLayer::new(limiter)
        .rule(Rule::new("per-user", Quota::per_day(3)).fixed_window().by(header("x-user")))
        .rule(Rule::new("planned", Quota::per_day(1)).fixed_window().by(header("x-user")).shadow());
    let operators = admin::router(limits.limiter(), TOKEN).expect("a token");
    serve(Router::new().route("/", get(|| async { "hello" })).layer(limits).nest("/admin", operators)).await
}

async fn ask(server: SocketAddr, user: &str) -> u16 {
    let request = Request::get("/").header("x-user", user).body(Body::empty()).expect("a request");
    send(server, None, request).await.status.as_u16()
}

/// Asks with the token; with a body by POST.
async fn admin(server: SocketAddr, path: &str, body: Option<Value>) -> Answer {
    send(server, None, request(path, Some(&format!("Bearer {TOKEN}")), body)).await
}

fn request(path: &str, authorization: Option<&str>, body: Option<Value>) -> Request<Body> {
    let mut request = Request::builder().uri(path).method(if body.is_some() { "POST" } else { "GET" });
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    request.body(body.map_or_else(Body::empty, |body| Body::from(body.to_string()))).expect("a request")
}

async fn explained(server: SocketAddr, key: &str) -> Value {
    let answer = admin(server, "/admin/api/explain", Some(json!({ "key": key, "rule": "per-user" }))).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["rules"][0].clone()
}

#[tokio::test]
async fn only_the_shell_and_its_files_are_served_without_the_token() {
    let server = service(Limiter::new(Memory::new())).await;
    for (path, kind) in [("/admin", "text/html"), ("/admin/app.css", "text/css"), ("/admin/app.js", "text/javascript")]
    {
        let answer = fetch(server, path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.text("content-type").is_some_and(|value| value.starts_with(kind)), "{path}");
    }
    let [state, explain, reset, block, unblock] =
        ["state", "explain", "reset", "block", "unblock"].map(|name| format!("/admin/api/{name}"));
    for authorization in [None, Some("Bearer"), Some("Basic YTpi"), Some("Bearer not-the-token-but-as-long-as")] {
        let refused = send(server, None, request(&state, authorization, None)).await;
        assert_eq!((refused.status.as_u16(), refused.text("www-authenticate")), (401, Some("Bearer")));
    }
    for path in [explain, reset, block, unblock] {
        let refused = send(server, None, request(&path, None, Some(json!({ "key": "ada" })))).await;
        assert_eq!(refused.status, 401, "{path}");
        // Nor is it told without one which methods there are.
        assert_eq!(fetch(server, &path).await.status, 401, "{path}");
        assert_eq!(admin(server, &path, None).await.status, 405, "changes need POST: {path}");
    }
    assert_eq!(admin(server, "/admin/api/state", Some(json!({}))).await.status, 405);
    // Schemes know no case (RFC 9110, section 11.1).
    let answer = send(server, None, request("/admin/api/state", Some(&format!("bearer {TOKEN}")), None)).await;
    assert_eq!(answer.status, 200);
    assert!(admin::router(&Limiter::new(Memory::new()), "fifteen-bytes-x").is_err());
    assert!(admin::router(&Limiter::new(Memory::new()), "sixteen bytes :-(").is_err(), "it fits into no header");
    assert!(admin::router(&Limiter::new(Memory::new()), "sixteen-bytes-xx").is_ok());
}

#[tokio::test]
async fn every_response_keeps_itself_from_being_stored_framed_or_mixed() {
    let server = service(Limiter::new(Memory::new())).await;
    let refused = fetch(server, "/admin/api/state").await;
    let wrong = admin(server, "/admin/api/block", None).await;
    let state = admin(server, "/admin/api/state", None).await;
    for answer in [fetch(server, "/admin").await, fetch(server, "/admin/app.js").await, refused, wrong, state] {
        let policy = answer.text("content-security-policy").expect("a policy");
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.text("cache-control"), Some("no-store"));
        assert_eq!(answer.text("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.text("x-frame-options"), Some("DENY"));
        assert_eq!(answer.text("referrer-policy"), Some("no-referrer"));
    }
    let page = String::from_utf8(fetch(server, "/admin").await.body.to_vec()).expect("text");
    assert!(page.contains(r#"src="admin/app.js""#) && !page.contains("{base}"), "its files lie beside it");
    assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick="), "nothing is inline");
    assert_eq!(page.matches("<script").count(), page.matches("<script src=").count());
    assert!(!page.contains("per-user"), "the shell is empty");
}

#[tokio::test]
async fn the_page_finds_its_files_wherever_it_lies() {
    let limiter = Limiter::new(Memory::new());
    let router = || admin::router(&limiter, TOKEN).expect("a token");
    let server = serve(Router::new().nest("/ops/limits/", router()).nest("/a&b", router()).merge(router())).await;
    for (page, base, file) in
        [("/ops/limits/", "", "/ops/limits/app.js"), ("/a&b", "a&amp;b/", "/a&b/app.js"), ("/", "", "/app.js")]
    {
        let shell = String::from_utf8(fetch(server, page).await.body.to_vec()).expect("text");
        assert!(shell.contains(&format!(r#"src="{base}app.js""#)), "{page}");
        assert_eq!(fetch(server, file).await.status, 200, "{file}");
    }
}

#[tokio::test]
async fn ten_wrong_tokens_a_minute_are_looked_at_and_no_more() {
    let server = service(Limiter::new(Memory::new())).await;
    let guess = async |from: &str, token: &str| {
        let request = request("/admin/api/state", Some(&format!("Bearer {token}")), None);
        send(server, Some(from.parse().expect("an address")), request).await
    };
    for _ in 0..30 {
        assert_eq!(guess("127.0.0.1", TOKEN).await.status, 200, "right ones cost nothing");
    }
    for _ in 0..30 {
        assert_eq!(get_from("127.0.0.1", server, "/admin/api/state").await.status, 401, "none is no guess");
    }
    // All at once: as many as ten are told that they are wrong.
    let guesses: Vec<_> = (0..40).map(|i| tokio::spawn(guess_of(server, format!("wrong-token-number-{i}")))).collect();
    let mut wrong = 0;
    for guess in guesses {
        match guess.await.expect("no panic") {
            401 => wrong += 1,
            429 => {}
            status => panic!("{status}"),
        }
    }
    assert_eq!(wrong, 10);
    let right = guess("127.0.0.1", TOKEN).await;
    assert_eq!(right.status, 429, "or guessing would go on");
    let wait: u64 = right.text("retry-after").expect("a time").parse().expect("seconds");
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(guess("127.0.0.2", TOKEN).await.status, 200, "others are not held up");
}

async fn guess_of(server: SocketAddr, token: String) -> u16 {
    send(server, None, request("/admin/api/state", Some(&format!("Bearer {token}")), None)).await.status.as_u16()
}

/// What is told and changed, on either store.
async fn operate(limiter: Limiter) {
    let server = service(limiter.clone()).await;
    for expected in [200, 200, 200, 429, 429] {
        assert_eq!(ask(server, "mallory").await, expected);
    }
    assert_eq!(ask(server, "ada").await, 200);

    let state = admin(server, "/admin/api/state", None).await.json();
    assert_eq!(state["figures"], "of this process only");
    let [users, planned] = [0, 1].map(|place| state["rules"][place].clone());
    assert_eq!((users["name"].as_str(), users["quota"].as_str()), (Some("per-user"), Some("3/day")));
    assert_eq!((users["counts"]["allowed"].as_u64(), users["counts"]["refused"].as_u64()), (Some(4), Some(2)));
    assert_eq!((users["shadow"].as_bool(), planned["shadow"].as_bool()), (Some(false), Some(true)));
    assert_eq!(planned["counts"]["shadow_allowed"], 2);
    let refused = json!([{ "rule": "per-user", "key": "mallory", "count": 2, "over_by_at_most": 0 }]);
    assert_eq!(state["refused"], refused);
    assert_eq!(state["shadow_refused"][0]["key"], "mallory");

    // Asking changes nothing.
    for _ in 0..2 {
        let mallory = explained(server, "mallory").await;
        assert_eq!((mallory["passes"].as_bool(), mallory["remaining"].as_u64()), (Some(false), Some(0)));
        let wait = mallory["passes_in_ms"].as_u64().expect("a time");
        assert!((86_000_000..=86_400_000).contains(&wait), "{wait}");
        let ada = explained(server, "ada").await;
        assert_eq!((ada["passes"].as_bool(), ada["remaining"].as_u64()), (Some(true), Some(2)));
    }

    let reset = admin(server, "/admin/api/reset", Some(json!({ "key": "mallory", "rule": "per-user" }))).await;
    assert_eq!((reset.status.as_u16(), reset.json()["rules"].clone()), (200, json!(["per-user"])));
    assert_eq!(ask(server, "mallory").await, 200);
    let block = json!({ "key": "ada", "rule": "per-user", "seconds": 60 });
    assert_eq!(admin(server, "/admin/api/block", Some(block)).await.status, 200);
    assert_eq!(ask(server, "ada").await, 429);
    let ada = explained(server, "ada").await;
    assert_eq!((ada["blocked"].as_bool(), ada["passes"].as_bool()), (Some(true), Some(false)));
    assert!(ada["passes_in_ms"].as_u64().is_some_and(|wait| (58_000..=60_000).contains(&wait)), "{ada}");
    // Under all rules if none is named.
    let unblock = admin(server, "/admin/api/unblock", Some(json!({ "key": "ada" }))).await.json();
    assert_eq!(unblock["rules"], json!(["per-user", "planned"]));
    assert_eq!(ask(server, "ada").await, 200);
}

#[tokio::test]
async fn a_limiter_in_memory_is_seen_and_changed() {
    let limiter = Limiter::new(Memory::new());
    operate(limiter.clone()).await;
    let server = service_of(&limiter).await;
    let state = admin(server, "/admin/api/state", None).await.json();
    assert_eq!((state["store"]["shared"].as_bool(), state["store"]["connected"].as_bool()), (Some(false), None));
    assert_eq!(state["store"]["keys"], 4);
}

/// A router for a limiter whose rules are no longer there.
async fn service_of(limiter: &Limiter) -> SocketAddr {
    serve(Router::new().nest("/admin", admin::router(limiter, TOKEN).expect("a token"))).await
}

#[tokio::test]
async fn a_limiter_on_redis_is_seen_and_changed_and_so_is_its_store() {
    let mut redis = Server::start();
    let limiter = Limiter::new(Redis::open(&redis.url()).expect("an address"));
    let server = service_of(&limiter).await;
    let store = async || admin(server, "/admin/api/state", None).await.json()["store"].clone();
    assert_eq!(store().await["connected"], Value::Null, "nobody has asked it yet");
    operate(limiter.clone()).await;
    let well = store().await;
    assert_eq!((well["shared"].as_bool(), well["connected"].as_bool()), (Some(true), Some(true)));
    assert_eq!((well["breakers_open"].as_u64(), well["failures"].as_u64()), (Some(0), Some(0)));
    assert!(well["calls"].as_u64() > Some(5) && well["call_us"].as_u64() > Some(0), "{well}");
    redis.kill();
    // The breaker opens once there was nothing but errors for 20 ms, by the real clock, since the store is a real one.
    for _ in 0..20 {
        let _ = limiter.check(&USERS, "eve").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let down = store().await;
    assert_eq!((down["connected"].as_bool(), down["breakers_open"].as_u64()), (Some(false), Some(1)), "{down}");
    assert!(down["failures"].as_u64() > Some(0));
    let reset = admin(server, "/admin/api/reset", Some(json!({ "key": "eve" }))).await;
    assert_eq!(reset.status, 503);
    assert!(reset.json()["error"].as_str().is_some_and(|error| error.contains("per-user")), "{reset:?}");
}

#[tokio::test]
async fn secrets_are_found_by_their_text_and_shown_as_hashes_alone() {
    let limiter = Limiter::new(Memory::new()).key_secret("pepper");
    let limits = RateLimitLayer::new(limiter.clone())
        .rule(Rule::new("per-key", Quota::per_day(1)).fixed_window().by(header("x-api-key")))
        .rule(Rule::new("per-both", Quota::per_day(5)).fixed_window().by((client_ip(), header("x-tenant"))));
    let operators = admin::router(&limiter, TOKEN).expect("a token");
    let server = serve(Router::new().route("/", get(|| async { "" })).layer(limits).nest("/admin", operators)).await;
    for _ in 0..3 {
        let request = Request::get("/").header("x-api-key", "hunter2").header("x-tenant", "a|b c");
        send(server, None, request.body(Body::empty()).expect("a request")).await;
    }
    let state = admin(server, "/admin/api/state", None).await;
    assert!(!String::from_utf8_lossy(&state.body).contains("hunter2"));
    let shown = state.json()["refused"][0]["key"].as_str().expect("a key").to_owned();
    assert!(shown.starts_with('~'), "{shown}");
    let by_secret = admin(server, "/admin/api/explain", Some(json!({ "secret": "hunter2", "rule": "per-key" }))).await;
    assert_eq!(
        (by_secret.json()["key"].as_str(), &by_secret.json()["rules"][0]["remaining"]),
        (Some(&*shown), &json!(0))
    );
    let by_hash = admin(server, "/admin/api/explain", Some(json!({ "key": shown, "rule": "per-key" }))).await;
    assert_eq!((&by_hash.json()["key"], &by_hash.json()["rules"][0]["remaining"]), (&json!(shown), &json!(0)));
    let composite = json!({ "key": "127.0.0.1|a%7Cb%20c", "rule": "per-both" });
    let composite = admin(server, "/admin/api/explain", Some(composite)).await.json();
    assert_eq!(composite["rules"][0]["remaining"], 4);
}

#[tokio::test]
async fn what_is_wrong_is_told_with_what_to_write_instead() {
    let server = service(Limiter::new(Memory::new())).await;
    let long = "x".repeat(20_000);
    for (path, body, told) in [
        ("explain", json!({}), "write `key`"),
        ("explain", json!({ "key": "a", "secret": "b" }), "write `key`"),
        ("explain", json!({ "key": 7 }), "`key` must be a text"),
        ("reset", json!({ "key": "a", "rule": "per-usr" }), "there are: per-user, planned"),
        ("block", json!({ "key": "a" }), "`seconds`"),
        ("block", json!({ "key": "a", "seconds": 0 }), "`seconds`"),
        ("block", json!({ "key": "a", "seconds": -5 }), "`seconds`"),
        ("block", json!({ "key": "a", "seconds": u64::MAX }), "`seconds`"),
    ] {
        let answer = admin(server, &format!("/admin/api/{path}"), Some(body)).await;
        let error = answer.json()["error"].as_str().expect("an error").to_owned();
        assert!(answer.status == 400 && error.contains(told), "{path}: {} {error}", answer.status);
    }
    let request = request("/admin/api/explain", Some(&format!("Bearer {TOKEN}")), Some(json!({ "key": long })));
    assert_eq!(send(server, None, request).await.status, 413);
}

#[tokio::test]
async fn each_change_leaves_a_trace_without_the_key_and_reading_leaves_none() {
    let log = Log::listen(Level::INFO);
    let server = service(Limiter::new(Memory::new())).await;
    let explain = admin(server, "/admin/api/explain", Some(json!({ "key": "ada@example.com" }))).await.json();
    let hash = explain["key_hash"].as_str().expect("a hash").to_owned();
    for (path, body) in [
        ("reset", json!({ "key": "ada@example.com", "rule": "per-user" })),
        ("block", json!({ "key": "ada@example.com", "rule": "per-user", "seconds": 60 })),
        ("unblock", json!({ "key": "ada@example.com", "rule": "per-user" })),
    ] {
        assert_eq!(admin(server, &format!("/admin/api/{path}"), Some(body)).await.status, 200);
    }
    let text = log.text();
    assert!(!text.contains("ada@"), "{text}");
    // Other tests make changes too.
    let lines: Vec<_> = text.lines().filter(|line| line.contains(&hash)).collect();
    assert_eq!(lines.len(), 3, "{text}");
    for (line, what) in lines.iter().zip(["reset a key", "blocked a key", "unblocked a key"]) {
        assert!(line.contains("INFO tollgate::audit") && line.contains(what), "{line}");
        assert!(line.contains(&format!(r#"key_hash="{hash}""#)) && line.contains(r#"peer="127.0.0.1""#), "{line}");
    }
}

#[tokio::test]
async fn policies_without_a_layer_are_seen_as_well() {
    let limiter = Limiter::new(Memory::new());
    let server = service_of(&limiter).await;
    for _ in 0..4 {
        let _ = limiter.decide(&[Demand::new(&USERS, "ada")]).await;
    }
    let rules = admin(server, "/admin/api/state", None).await.json()["rules"].clone();
    assert_eq!((rules[0]["name"].as_str(), rules[0]["counts"]["refused"].as_u64()), (Some("per-user"), Some(1)));
    assert_eq!(explained(server, "ada").await["passes"], false);
}

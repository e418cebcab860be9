//! What is promised of requests that are executed once: through real axum servers over sockets, on memory and on a real
//! Redis.

mod bad_days;
mod crash;
mod grpc;
mod once;
mod order;
mod payments;
mod responses;
#[path = "../support/mod.rs"]
mod support;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
    routing::post,
};
use support::{
    http::{Answer, send, serve},
    server::Server,
};
use tollgate::{
    IdempotencyLayer, Memory, Redis,
    layer::{header, idempotency::IdempotentAttempt},
    lease::RecordStore,
};

/// A store, and the server behind it if there is one.
struct Stage {
    store: Arc<dyn RecordStore>,
    server: Option<Server>,
}

fn stages() -> Vec<Stage> {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    vec![Stage { store: Arc::new(Memory::new()), server: None }, Stage { store: Arc::new(redis), server: Some(server) }]
}

impl Stage {
    fn layer(&self) -> IdempotencyLayer {
        IdempotencyLayer::new(&self.store, header("authorization"))
    }
}

/// What a handler has counted.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn more(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Serves `/work`, which takes so long and answers 201 with the number of the execution and of the attempt.
async fn serve_work(layer: IdempotencyLayer, takes: Duration) -> (SocketAddr, Count) {
    let count = Count::default();
    let counted = count.clone();
    let work = move |attempt: Option<Extension<IdempotentAttempt>>| {
        let count = counted.clone();
        async move {
            let number = count.more();
            // Real time, since a real client waits for it on a socket.
            tokio::time::sleep(takes).await;
            let attempt = attempt.map_or(0, |Extension(attempt)| attempt.number());
            (StatusCode::CREATED, format!("execution {number}, attempt {attempt}"))
        }
    };
    let app = Router::new().route("/work", post(work.clone()).patch(work.clone()).put(work)).layer(layer);
    (serve(app).await, count)
}

fn request(path: &str, key: &str, body: &'static str) -> Request<Body> {
    Request::post(path).header("idempotency-key", format!("\"{key}\"")).body(Body::from(body)).expect("a request")
}

async fn work(address: SocketAddr, key: &str, body: &'static str) -> Answer {
    send(address, None, request("/work", key, body)).await
}

async fn work_with(address: SocketAddr, fields: &[(&'static str, &str)], body: &'static str) -> Answer {
    let mut request = Request::post("/work").body(Body::from(body)).expect("a request");
    for (name, value) in fields {
        request.headers_mut().append(*name, value.parse().expect("a value"));
    }
    send(address, None, request).await
}

fn replayed(answer: &Answer) -> bool {
    answer.text("idempotency-replayed") == Some("true")
}

/// Asserts that a problem is told, and returns its details.
fn assert_problem(answer: &Answer, status: u16, anchor: &str) -> serde_json::Value {
    assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    assert_eq!(answer.text("content-type"), Some("application/problem+json"));
    let problem = answer.json();
    assert_eq!(problem["status"], status);
    let kind = problem["type"].as_str().expect("a type");
    assert!(kind.ends_with(&format!("/idempotency/#{anchor}")), "{kind}");
    problem
}

/// Asserts that the documentation has a place for each type of problem.
#[test]
fn each_problem_has_its_place_in_the_documentation() {
    let page = include_str!("../../docs/idempotency.md");
    for anchor in [
        "key-missing",
        "key-wrong",
        "body-broken",
        "body-slow",
        "body-long",
        "key-used",
        "in-flight",
        "not-retained",
        "unknown",
        "unavailable",
        "failed",
    ] {
        assert!(page.contains(&format!("\n## {anchor}\n")), "{anchor}");
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn without_date(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    headers.remove("date");
    headers.remove("idempotency-replayed");
    headers
}

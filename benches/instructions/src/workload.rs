use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    hint::black_box,
    net::SocketAddr,
    pin::pin,
    task::{Context, Poll, Waker},
};

use http::{HeaderValue, Request, Response, StatusCode, header};
use tollgate::{Demand, Limiter, Memory, PeerAddr, Policy, Quota, RateLimitLayer, Redis, Rule, layer::client_ip};
use tower_layer::Layer;
use tower_service::Service;

/// Something that is done so many times.
pub struct Workload {
    pub name: &'static str,
    /// What it does besides, and is not to count.
    pub over: Option<&'static str>,
    pub run: fn(u64),
}

pub const WORKLOADS: &[Workload] = &[
    Workload { name: "memory, admitted", over: None, run: |times| memory(times, &ROOMY, true) },
    Workload { name: "memory, refused", over: None, run: |times| memory(times, &NARROW, false) },
    Workload { name: "a request by itself", over: None, run: requests },
    Workload {
        name: "layer, admitted with fields",
        over: Some("a request by itself"),
        run: |times| layer(times, &ROOMY, StatusCode::OK),
    },
    Workload {
        name: "layer, refused",
        over: Some("a request by itself"),
        run: |times| layer(times, &NARROW, StatusCode::TOO_MANY_REQUESTS),
    },
    Workload { name: "redis, encoded and read", over: None, run: redis },
];

pub const KEYS: u64 = 250;

// Neither ends while it is counted, however slow the machine is.
static ROOMY: Policy = Policy::token_bucket("per-client", Quota::per_day(1_000_000)).burst(1_000_000);
static NARROW: Policy = Policy::token_bucket("per-client", Quota::per_day(1)).burst(1);

fn memory(times: u64, policy: &Policy, admitted: bool) {
    let limiter = Limiter::new(Memory::seeded_for_tests(SEED));
    let keys: Vec<String> = (0..KEYS).map(|key| format!("user:{key:07}")).collect();
    for key in &keys {
        // So much that it is not given back meanwhile.
        let first = [Demand::new(policy, key).cost(policy.capacity().div_ceil(100))];
        assert!(at_once(limiter.decide(&first)).0.is_allowed());
    }
    for key in keys.iter().cycle().take(times as usize) {
        assert_eq!(at_once(limiter.check(policy, black_box(key))).is_allowed(), admitted);
    }
}

fn requests(times: u64) {
    (0..times).for_each(|i| drop(black_box(request(i))));
}

fn layer(times: u64, policy: &Policy, expected: StatusCode) {
    let rule = Rule::new("per-client", policy.quota()).burst(policy.capacity()).by(client_ip());
    let limiter = Limiter::new(Memory::seeded_for_tests(SEED));
    let mut service = RateLimitLayer::new(limiter).rule(rule).layer(Hello);
    for i in 0..KEYS {
        assert_eq!(at_once(service.call(request(i))).expect("no error").status(), StatusCode::OK);
    }
    for i in 0..times {
        let response = at_once(service.call(black_box(request(i)))).expect("no error");
        assert_eq!(response.status(), expected);
        black_box(response);
    }
}

/// Writes the command of a decision and reads a reply to it, as one that goes alone does.
fn redis(times: u64) {
    let redis = Redis::open("redis://127.0.0.1").expect("an address");
    let keys: Vec<String> = (0..KEYS).map(|key| format!("user:{key:07}")).collect();
    // The time, and what the bucket held.
    let told = [1_767_225_600_000_000, 0, 86_400];
    for key in keys.iter().cycle().take(times as usize) {
        let demands = [Demand::new(&ROOMY, black_box(key))];
        let (command, decision) = redis.without_server_for_tests(&demands, black_box(&told)).expect("a decision");
        assert!(decision.is_allowed());
        black_box(command);
    }
}

fn request(i: u64) -> Request<()> {
    let address = SocketAddr::from(([10, 0, 0, (i % KEYS) as u8], 4_711));
    let mut request = Request::new(());
    request.extensions_mut().insert(PeerAddr(address));
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    request
}

/// Answers at once, with one header, as nearly every response has one.
#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let mut response = Response::new(());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        ready(Ok(response))
    }
}

fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}

const SEED: u64 = 0x70_11_9a_7e;

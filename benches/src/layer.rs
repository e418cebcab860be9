use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use axum::{body::Body, extract::ConnectInfo};
use http::{HeaderValue, Request, Response, StatusCode, header};
use tollgate::{Limiter, Memory, Quota, RateLimitLayer, Rule, layer::Dialect};
use tower::{Layer, Service};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};

use crate::{Case, table};

const OPERATIONS: u64 = 200_000;

/// Answers at once, with one header.
#[derive(Clone)]
struct Hello;

impl Service<Request<Body>> for Hello {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        ready(Ok(response))
    }
}

fn request(i: u64) -> Request<Body> {
    let address = SocketAddr::new(IpAddr::from(0x0a00_0000_u32.wrapping_add((i % 10_000) as u32).to_be_bytes()), 4_711);
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(address));
    request
}

fn send<S, R>(service: &mut S, expected: StatusCode) -> u64
where
    S: Service<Request<Body>, Response = Response<R>>,
{
    let mut cx = Context::from_waker(Waker::noop());
    for i in 0..OPERATIONS {
        assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        let response = pin!(service.call(request(i)));
        match response.poll(&mut cx) {
            Poll::Ready(Ok(response)) => assert_eq!(response.status(), expected),
            _ => panic!("answers at once"),
        }
    }
    OPERATIONS
}

pub fn run() {
    let layer = |quota, burst, dialect| {
        let rule = Rule::new("per-client", quota).burst(burst);
        RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule).dialect(dialect)
    };
    let many = Quota::per_second(100_000);
    let mut bare = Hello;
    let mut plain = layer(many, 2_000_000_000, Dialect::None).layer(Hello);
    let mut fields = layer(many, 2_000_000_000, Dialect::Draft11).layer(Hello);
    let mut refusing = layer(Quota::per_day(1), 1, Dialect::Draft11).layer(Hello);
    let governor = || {
        let mut config = GovernorConfigBuilder::default();
        config.per_nanosecond(1).burst_size(1_000_000_000);
        config
    };
    let mut their_plain = GovernorLayer::new(Arc::new(governor().finish().expect("a config"))).layer(Hello);
    let mut their_fields =
        GovernorLayer::new(Arc::new(governor().use_headers().finish().expect("a config"))).layer(Hello);
    let mut slow = GovernorConfigBuilder::default();
    slow.per_second(86_400).burst_size(1);
    let mut their_refusing = GovernorLayer::new(Arc::new(slow.use_headers().finish().expect("a config"))).layer(Hello);

    let mut cases: Vec<Case<'_>> = vec![
        ("bare service", Box::new(|| send(&mut bare, StatusCode::OK))),
        ("tower_governor, no headers", Box::new(|| send(&mut their_plain, StatusCode::OK))),
        ("tollgate, no fields", Box::new(|| send(&mut plain, StatusCode::OK))),
        ("tower_governor, headers", Box::new(|| send(&mut their_fields, StatusCode::OK))),
        ("tollgate, fields", Box::new(|| send(&mut fields, StatusCode::OK))),
    ];
    let t = table("layer, admitted, 10,000 clients", &mut cases);
    drop(cases);
    println!("\nover the bare service: with fields {:.2} of tower_governor's addition", (t[4] - t[0]) / (t[3] - t[0]));

    // The first round lets each client in once.
    let _ = (0..10_000).for_each(|i| {
        let mut cx = Context::from_waker(Waker::noop());
        let _ = pin!(refusing.call(request(i))).poll(&mut cx);
        let _ = pin!(their_refusing.call(request(i))).poll(&mut cx);
    });
    let mut cases: Vec<Case<'_>> = vec![
        ("bare service", Box::new(|| send(&mut bare, StatusCode::OK))),
        ("tower_governor, refusing", Box::new(|| send(&mut their_refusing, StatusCode::TOO_MANY_REQUESTS))),
        ("tollgate, refusing", Box::new(|| send(&mut refusing, StatusCode::TOO_MANY_REQUESTS))),
    ];
    let t = table("layer, refused, 10,000 clients", &mut cases);
    println!("\na refusal costs 1/{:.0} of tower_governor's", t[1] / t[2]);
}

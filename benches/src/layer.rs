use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    net::{IpAddr, SocketAddr},
    num::NonZeroU64,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::body::Body;
use axum_gcra::{gcra, real_ip::RealIp};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use tollgate::{
    IdempotencyLayer, Limiter, Memory, Quota, RateLimitLayer, Rule,
    layer::{Dialect, Exception, global},
};
use tower::{Layer, Service, util::MapRequest};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};
use tower_rate_limiter::{FixedWindow, KeyExtractor, MemoryStore, RateLimitError};

use crate::run::{Case, Run, Wanted};

const OPERATIONS: u64 = 200_000;
const CLIENTS: u64 = 10_000;
const DAY: Duration = Duration::from_secs(86_400);

/// Answers at once, with one header.
#[derive(Clone)]
pub struct Hello;

impl<B: Default> Service<Request<B>> for Hello {
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Ready<Result<Response<B>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        let mut response = Response::new(B::default());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        ready(Ok(response))
    }
}

/// Reads the client's address for tower-rate-limiter as its own extractor does, of the axum that all others use.
#[derive(Clone)]
struct ByAddress;

impl KeyExtractor for ByAddress {
    type Key = IpAddr;

    fn extract<B>(&self, request: &Request<B>) -> Result<IpAddr, RateLimitError> {
        let info = request.extensions().get::<axum::extract::ConnectInfo<SocketAddr>>();
        info.map(|info| info.0.ip()).ok_or_else(|| RateLimitError::Key("no".to_owned(), "address".to_owned()))
    }
}

/// Makes a request of one of the clients; `info` is how its axum tells the address.
fn request<B: Default, I: Clone + Send + Sync + 'static>(i: u64, info: fn(SocketAddr) -> I) -> Request<B> {
    let address = IpAddr::from(0x0a00_0000_u32.wrapping_add((i % CLIENTS) as u32).to_be_bytes());
    let mut request = Request::new(B::default());
    request.extensions_mut().insert(info(SocketAddr::new(address, 4_711)));
    request
}

fn send<S, B, R, I>(service: &mut S, info: fn(SocketAddr) -> I, count: u64, expected: Option<StatusCode>) -> u64
where
    B: Default,
    I: Clone + Send + Sync + 'static,
    S: Service<Request<B>, Response = Response<R>>,
{
    let mut cx = Context::from_waker(Waker::noop());
    for i in 0..count {
        assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        let response = pin!(service.call(request(i, info)));
        match response.poll(&mut cx) {
            Poll::Ready(Ok(response)) => assert!(expected.is_none_or(|expected| response.status() == expected)),
            _ => panic!("answers at once"),
        }
    }
    count
}

/// Makes a case of a service whose requests all have the same status.
fn case<'a, S, R>(name: &'a str, mut service: S, expected: StatusCode) -> Case<'a>
where
    S: Service<Request<Body>, Response = Response<R>> + 'a,
{
    // The first request of each client passes, whatever comes after it.
    send(&mut service, axum::extract::ConnectInfo, CLIENTS, None);
    (name, Box::new(move || send(&mut service, axum::extract::ConnectInfo, OPERATIONS, Some(expected))))
}

/// The same with the axum before.
fn case07<'a, S, R>(name: &'a str, mut service: S, expected: StatusCode) -> Case<'a>
where
    S: Service<Request<axum07::body::Body>, Response = Response<R>> + 'a,
{
    send(&mut service, axum07::extract::ConnectInfo, CLIENTS, None);
    (name, Box::new(move || send(&mut service, axum07::extract::ConnectInfo, OPERATIONS, Some(expected))))
}

fn ours(quota: Quota, burst: u64, dialect: Dialect) -> RateLimitLayer {
    let rule = Rule::new("per-client", quota).burst(burst);
    RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule).dialect(dialect)
}

fn tower_rate_limiter(
    limit: u64,
) -> tower_rate_limiter::RateLimitLayer<ByAddress, FixedWindow<MemoryStore>, tower_rate_limiter::DefaultResponseFactory>
{
    let policy = FixedWindow::new(MemoryStore::new(), limit, DAY).expect("a policy");
    tower_rate_limiter::RateLimitLayer::builder(ByAddress).with_policy(policy).build().expect("a layer")
}

/// Wraps the bare service in axum_gcra's layer and what turns its errors into responses, as a router needs it.
macro_rules! axum_gcra {
    ($interval:expr, $burst:expr) => {{
        let quota = gcra::Quota::new($interval, NonZeroU64::new($burst).expect("some"));
        let builder = axum_gcra::RateLimitLayer::<RealIp>::builder().with_default_quota(quota);
        builder.default_handle_error().layer(Hello)
    }};
}

pub fn run(run: &mut Run) {
    let many = Quota::per_second(100_000);
    let governor = || {
        let mut config = GovernorConfigBuilder::default();
        config.per_nanosecond(1).burst_size(1_000_000_000);
        config
    };
    let their_plain = GovernorLayer::new(Arc::new(governor().finish().expect("a config"))).layer(Hello);
    let their_fields = GovernorLayer::new(Arc::new(governor().use_headers().finish().expect("a config"))).layer(Hello);
    let mut cases = vec![
        case("bare service", Hello, StatusCode::OK),
        case("tower_governor, no headers", their_plain, StatusCode::OK),
        case07("axum_gcra, no headers (axum 0.7)", axum_gcra!(Duration::from_millis(1), 1_000_000_000), StatusCode::OK),
        case("tollgate, no fields", ours(many, 2_000_000_000, Dialect::None).layer(Hello), StatusCode::OK),
        case("tower_governor, headers", their_fields, StatusCode::OK),
        case("tower-rate-limiter, headers", tower_rate_limiter(2_000_000_000).layer(Hello), StatusCode::OK),
        case("tollgate, fields", ours(many, 2_000_000_000, Dialect::Draft11).layer(Hello), StatusCode::OK),
    ];
    let medians = run.table("layer, admitted, 10,000 clients", &mut cases);
    let over = |name| medians.of(name) - medians.of("bare service");
    let fields = over("tollgate, fields") / over("tower_governor, headers");
    run.bar("layer, fields: of tower_governor's addition", Wanted::AtMost(0.65), fields);

    // None of them is of a client that asks, and then all of them are.
    let with = |from: &str| {
        let rule = Rule::new("per-client", many).burst(2_000_000_000);
        let overrides = (0..10_000u32).map(|i| format!("{from}.{}.{}", i / 256, i % 256));
        let other = Exception::Quota(Quota::per_second(90_000));
        let rule = overrides.fold(rule, |rule, address| rule.except([address], other));
        RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule).dialect(Dialect::None).layer(Hello)
    };
    let mut cases = vec![
        case("bare service", Hello, StatusCode::OK),
        case("no overrides", ours(many, 2_000_000_000, Dialect::None).layer(Hello), StatusCode::OK),
        case("10,000 overrides of others", with("192.168"), StatusCode::OK),
        case("10,000 overrides, one for each", with("10.0"), StatusCode::OK),
    ];
    let medians = run.table("layer, 10,000 overrides, no fields", &mut cases);
    for name in ["10,000 overrides of others", "10,000 overrides, one for each"] {
        let ratio = medians.of(name) / medians.of("no overrides");
        run.bar(format!("{name}: of a request without"), Wanted::AtMost(1.10), ratio);
    }

    let mut slow = GovernorConfigBuilder::default();
    slow.per_second(86_400).burst_size(1);
    let governor = GovernorLayer::new(Arc::new(slow.use_headers().finish().expect("a config"))).layer(Hello);
    let refused = StatusCode::TOO_MANY_REQUESTS;
    let mut cases = vec![
        case("bare service", Hello, StatusCode::OK),
        case("tower_governor", governor, refused),
        case07("axum_gcra (axum 0.7)", axum_gcra!(DAY, 1), refused),
        case("tower-rate-limiter", tower_rate_limiter(1).layer(Hello), refused),
        case("tollgate", ours(Quota::per_day(1), 1, Dialect::Draft11).layer(Hello), refused),
    ];
    let medians = run.table("layer, refused, 10,000 clients", &mut cases);
    let over = |name| medians.of(name) - medians.of("bare service");
    let governor = over("tollgate") / over("tower_governor");
    run.bar("layer, refused: of tower_governor's addition", Wanted::AtMost(1.0 / 15.0), governor);

    let post = |mut request: Request<Body>| {
        *request.method_mut() = Method::POST;
        request
    };
    let once = IdempotencyLayer::new(&Memory::new(), global()).layer(Hello);
    let mut cases = vec![
        case("bare service", MapRequest::new(Hello, post), StatusCode::OK),
        case("tollgate", MapRequest::new(once, post), StatusCode::OK),
    ];
    let medians = run.table("idempotency, POST without a key", &mut cases);
    let whole = medians.of("tollgate") / medians.of("bare service");
    run.bar("idempotency, without a key: of a bare service's time", Wanted::AtMost(1.5), whole);
}

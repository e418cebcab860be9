use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    process::{Child, Command, Stdio},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    response::Response,
    routing::get,
};
use redis::aio::MultiplexedConnection;
use tollgate::{Limiter, Memory, OnError, Quota, RateLimitLayer, Redis, Rule, layer::extension};
use tower::{Layer, Service};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};
use tower_rate_limiter::{FixedWindow, GcraQuota, KeyExtractor, RateLimitError, RedisGcra, RedisStore};

use crate::{
    cores,
    run::{Run, Wanted},
    server::{Server, free_port, runtime, wait_for},
};

const SECONDS_OF_A_ROUND: u32 = 2;
const DAY: Duration = Duration::from_secs(86_400);

/// What is served, and whether all of it is refused.
const SERVERS: [(&str, bool); 11] = [
    (BARE, false),
    (AS_LARGE, true),
    ("tollgate, fields", false),
    ("tower_governor, headers", false),
    ("tollgate, refusing", true),
    ("tower_governor, refusing", true),
    (INCR, false),
    ("tollgate on redis, fixed window", false),
    ("tollgate on redis, token bucket", false),
    ("tower-rate-limiter on redis, fixed window", false),
    ("tower-rate-limiter on redis, GCRA", false),
];
const BARE: &str = "bare axum";
/// What writing so much costs, whoever decides on it.
const AS_LARGE: &str = "bare axum, a fixed answer as large as a refusal";
const INCR: &str = "INCR as a middleware";

/// A server in a process of its own, on the core of servers.
struct Process {
    child: Child,
    port: u16,
}

impl Process {
    fn start(name: &str, redis: &Server) -> Self {
        let port = free_port();
        let program = std::env::current_exe().expect("the path of this program").display().to_string();
        let child = cores::on(cores::SERVER, &program)
            .args(["serve", name, &port.to_string(), &redis.url()])
            .spawn()
            .expect("this program starts once more");
        let process = Self { child, port };
        wait_for(port);
        process
    }

    /// Asks as fast as it answers, over 64 connections, and returns requests per second.
    fn measure(&self, refusing: bool) -> f64 {
        let output = cores::on(cores::CLIENT, "wrk")
            .args(["-t1", "-c64", &format!("-d{SECONDS_OF_A_ROUND}s"), &format!("http://127.0.0.1:{}/", self.port)])
            .output()
            .expect("wrk starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let number = |label: &str| -> Option<f64> {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(label))?;
            line.trim().parse().ok()
        };
        let rate = number("Requests/sec:").unwrap_or_else(|| panic!("wrk says no rate: {text}"));
        let failed = number("Non-2xx or 3xx responses:").unwrap_or_default();
        // A first request of each client passes everywhere.
        let all = rate * f64::from(SECONDS_OF_A_ROUND);
        assert!(if refusing { failed > all * 0.9 } else { failed == 0.0 }, "{failed} failed of {all}");
        rate
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn run(run: &mut Run) {
    if Command::new("wrk").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("\nhttp is left out: it needs wrk");
        return;
    }
    let redis = Server::start();
    let servers: Vec<Process> = SERVERS.iter().map(|(name, _)| Process::start(name, &redis)).collect();
    let names = SERVERS.map(|(name, _)| name);
    let title = format!("http, 64 connections, {}", redis.version());
    let rates = run.in_turn(&title, "requests per second", &names, |case| servers[case].measure(SERVERS[case].1));
    for (name, least) in [("tollgate, fields", 0.96), ("tollgate, refusing", 0.95)] {
        run.bar(format!("http, {name}: throughput of {BARE}"), Wanted::AtLeast(least), rates.ratio(name, BARE));
    }
    let name = "tollgate, refusing";
    run.bar(format!("http, {name}: throughput of {AS_LARGE}"), Wanted::AtLeast(0.95), rates.ratio(name, AS_LARGE));
    for name in ["tollgate on redis, fixed window", "tollgate on redis, token bucket"] {
        run.bar(format!("http, {name}: throughput of {INCR}"), Wanted::AtLeast(0.95), rates.ratio(name, INCR));
    }
}

/// Serves one of [`SERVERS`] until the process ends.
pub fn serve(arguments: &[String]) {
    let [name, port, redis] = arguments else { panic!("serve NAME PORT REDIS") };
    let address = SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")));
    runtime().block_on(async {
        let router = limited(Router::new().route("/", get(|| async { "hello" })), name, redis).await;
        let listener = tokio::net::TcpListener::bind(address).await.expect("a free port");
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener, service).await.expect("it is served");
    });
}

async fn limited(router: Router, name: &str, redis: &str) -> Router {
    let many = Quota::per_second(100_000);
    let memory = |rule| RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule);
    // On Redis each connection is a client of its own: one key alone would be gathered into few additions.
    let on_redis = |rule: Rule| {
        let limiter = Limiter::new(Redis::open(redis).expect("an address")).deadline(Duration::from_secs(10));
        let by_port = extension::<ConnectInfo<SocketAddr>>(|info| format!("user:{:07}", info.0.port()));
        RateLimitLayer::new(limiter).rule(rule.by(by_port).on_error(OnError::Deny))
    };
    let connection = async || {
        let client = redis::Client::open(redis).expect("an address");
        client.get_multiplexed_async_connection().await.expect("a connection")
    };
    match name {
        BARE => router,
        AS_LARGE => Router::new().route("/", get(as_large)),
        "tollgate, fields" => router.layer(memory(Rule::new("per-client", many).burst(2_000_000_000))),
        "tollgate, refusing" => router.layer(memory(Rule::new("per-client", Quota::per_day(1)))),
        "tower_governor, headers" => {
            let mut config = GovernorConfigBuilder::default();
            config.per_nanosecond(1).burst_size(1_000_000_000);
            router.layer(GovernorLayer::new(Arc::new(config.use_headers().finish().expect("a config"))))
        }
        "tower_governor, refusing" => {
            let mut config = GovernorConfigBuilder::default();
            config.per_second(86_400).burst_size(1);
            router.layer(GovernorLayer::new(Arc::new(config.use_headers().finish().expect("a config"))))
        }
        INCR => router.layer(IncrLayer(connection().await)),
        "tollgate on redis, fixed window" => {
            router.layer(on_redis(Rule::new("fixed", Quota::per_day(65_000)).fixed_window()))
        }
        "tollgate on redis, token bucket" => {
            router.layer(on_redis(Rule::new("bucket", Quota::per_minute(60)).burst(1_000_000)))
        }
        "tower-rate-limiter on redis, fixed window" => {
            let store = RedisStore::new(connection().await).with_namespace("f");
            let policy = FixedWindow::new(store, 2_000_000_000, DAY).expect("a policy");
            let layer = tower_rate_limiter::RateLimitLayer::builder(ByPort).with_policy(policy);
            router.layer(layer.build().expect("a layer"))
        }
        "tower-rate-limiter on redis, GCRA" => {
            let quota = GcraQuota::new(1_000_000, Duration::from_secs(1), 1_000_000_000).expect("a quota");
            let policy = RedisGcra::new(connection().await, quota).with_namespace("g");
            let layer = tower_rate_limiter::RateLimitLayer::builder(ByPort).with_policy(policy);
            router.layer(layer.build().expect("a layer"))
        }
        other => panic!("nothing is served under the name `{other}`"),
    }
}

/// Answers what a refusal is, byte for byte.
async fn as_large() -> impl axum::response::IntoResponse {
    let fields = [
        ("content-type", "application/problem+json"),
        ("cache-control", "no-store"),
        ("retry-after", "86400"),
        ("ratelimit-policy", "\"per-client\";q=1;w=86400"),
        ("ratelimit", "\"per-client\";r=0;t=86400"),
    ];
    let body = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","#,
        r#""status":429,"detail":"policy per-client allows 1/day; try again in 86400 s","#,
        r#""violated-policies":["per-client"]}"#
    );
    (axum::http::StatusCode::TOO_MANY_REQUESTS, fields, body)
}

/// Tells tower-rate-limiter's clients apart as ours are.
#[derive(Clone)]
struct ByPort;

impl KeyExtractor for ByPort {
    type Key = String;

    fn extract<B>(&self, request: &http::Request<B>) -> Result<String, RateLimitError> {
        let info = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let key = info.map(|info| format!("user:{:07}", info.0.port()));
        key.ok_or_else(|| RateLimitError::Key("no".to_owned(), "address".to_owned()))
    }
}

/// Counts each request by a bare `INCR`, and limits nothing: the least that a limit on Redis costs.
#[derive(Clone)]
struct IncrLayer(MultiplexedConnection);

#[derive(Clone)]
struct Incr<S> {
    inner: S,
    connection: MultiplexedConnection,
}

impl<S> Layer<S> for IncrLayer {
    type Service = Incr<S>;

    fn layer(&self, inner: S) -> Incr<S> {
        Incr { inner, connection: self.0.clone() }
    }
}

impl<S> Service<Request> for Incr<S>
where
    S: Service<Request, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let mut connection = self.connection.clone();
        Box::pin(async move {
            let info = request.extensions().get::<ConnectInfo<SocketAddr>>().expect("an address");
            let key = format!("user:{:07}", info.0.port());
            let _: i64 = redis::cmd("INCR").arg(key).query_async(&mut connection).await.expect("INCR");
            inner.call(request).await
        })
    }
}

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;
use tollgate::{Limiter, OnError, Policy, Quota, RateLimitLayer, Redis, Rule, layer::extension, limit::Algorithm};
use tower::{Layer, Service, ServiceExt};
use tower_rate_limiter::{FixedWindow, GcraQuota, KeyExtractor, RateLimitError, RedisGcra, RedisStore};
use trypema::{
    RateLimit, RateLimitDecision, RateLimiterBuilder,
    redis::{RedisKey, RedisRateLimiterProvider},
};

use crate::{
    cores,
    layer::Hello,
    run::{Case, Run, Wanted},
    server::{Server, closed_loop, runtime},
};

const KEYS: u64 = 10_000;
const DAY: Duration = Duration::from_secs(86_400);

/// Who asks; an extension of the request, as authentication leaves one.
#[derive(Clone, Copy)]
struct User(u64);

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user:{:07}", self.0)
    }
}

/// Reads the user for tower-rate-limiter.
#[derive(Clone)]
struct ByUser;

impl KeyExtractor for ByUser {
    type Key = User;

    fn extract<B>(&self, request: &Request<B>) -> Result<User, RateLimitError> {
        let user = request.extensions().get::<User>().copied();
        user.ok_or_else(|| RateLimitError::Key("no".to_owned(), "user".to_owned()))
    }
}

fn request(key: u64) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(User(key));
    request
}

/// Where requests come from, and how many of them.
#[derive(Clone, Copy)]
struct Load<'a> {
    runtime: &'a Runtime,
    in_flight: u64,
    total: u64,
}

impl<'a> Load<'a> {
    /// Makes a case of an operation on a key.
    fn each<F: Future<Output = ()> + 'static>(
        self,
        name: &'a str,
        operation: impl Fn(u64) -> F + Clone + 'static,
    ) -> Case<'a> {
        let run = move || closed_loop(self.runtime, self.in_flight, self.total, KEYS, operation.clone());
        (name, Box::new(run))
    }

    /// Makes a case of requests to a service, each to a clone of it, as servers do.
    fn through<S, R>(self, name: &'a str, service: S) -> Case<'a>
    where
        S: Service<Request<Body>, Response = Response<R>, Error = Infallible> + Clone + 'static,
    {
        self.each(name, move |key| {
            let service = service.clone();
            async move {
                let Ok(response) = service.oneshot(request(key)).await;
                assert_eq!(response.status(), StatusCode::OK);
            }
        })
    }
}

async fn incr(mut connection: MultiplexedConnection, key: u64) {
    let incr = redis::cmd("INCR").arg(User(key).to_string()).query_async(&mut connection).await;
    let _: i64 = incr.expect("INCR");
}

async fn return_1(mut connection: MultiplexedConnection, key: u64) {
    // The SHA-1 of `return 1`.
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    let command = redis::cmd("EVALSHA").arg(sha).arg(1).arg(User(key).to_string()).query_async(&mut connection).await;
    let _: i64 = command.expect("EVALSHA");
}

/// Admits everything, whatever the machine.
#[derive(Clone, Copy)]
enum Kind {
    Fixed,
    /// A window whose end is told by its key's lifetime, as where the limit is above 65,535.
    FixedLarge,
    /// A bucket that is not full when it is asked.
    Bucket,
    /// A bucket that is full again whenever it is asked.
    BucketAtRest,
    Sliding,
}

fn policy(kind: Kind) -> Policy {
    let many = 2_000_000_000;
    match kind {
        Kind::Fixed => Policy::fixed_window("fixed", Quota::per_day(65_000)),
        Kind::FixedLarge => Policy::fixed_window("large", Quota::new(many, DAY).expect("a quota")),
        Kind::Bucket => Policy::token_bucket("bucket", Quota::per_minute(60)).burst(1_000_000),
        Kind::BucketAtRest => Policy::token_bucket("at-rest", Quota::per_second(50_000)).burst(many),
        Kind::Sliding => Policy::sliding_window("sliding", Quota::new(many, Duration::from_secs(1)).expect("a quota")),
    }
    .on_error(OnError::Deny)
}

/// Puts a rule like the policy in front of the bare service.
fn layered(
    url: &str,
    kind: Kind,
) -> impl Service<Request<Body>, Response = Response<impl Sized>, Error = Infallible> + Clone + 'static {
    let policy = policy(kind);
    let rule = Rule::new(policy.name().to_owned(), policy.quota()).on_error(OnError::Deny);
    let rule = rule.algorithm(policy.algorithm());
    let rule = if policy.algorithm() == Algorithm::TokenBucket { rule.burst(policy.capacity()) } else { rule };
    let rule = rule.by(extension::<User>(User::to_string));
    RateLimitLayer::new(limiter(url)).rule(rule).layer(Hello)
}

fn limiter(url: &str) -> Limiter {
    Limiter::new(Redis::open(url).expect("an address")).deadline(Duration::from_secs(10))
}

/// Returns trypema's limiter if this server suits it: it asks for Redis 7.2.
fn trypema(url: &str, runtime: &Runtime) -> Option<Arc<RedisRateLimiterProvider>> {
    runtime.block_on(async {
        let client = redis::Client::open(url).expect("an address");
        let connection = client.get_connection_manager().await.expect("a connection");
        let builder = RedisRateLimiterProvider::builder(connection);
        let provider = builder.prefix(RedisKey::try_from("trypema".to_owned()).expect("a key")).disable_cleanup();
        let provider = provider.build().expect("a provider");
        let key = trypema_key(0);
        let suits = provider.absolute().inc(&key, &RateLimit::max(), 1).await.is_ok();
        suits.then_some(provider)
    })
}

/// It takes no colons.
fn trypema_key(key: u64) -> RedisKey {
    RedisKey::try_from(format!("user-{key:07}")).expect("a key")
}

pub fn run(run: &mut Run) {
    cores::pinned(cores::CLIENT, || measure(run));
}

fn measure(run: &mut Run) {
    let (server, runtime) = (Server::start(), runtime());
    let url = server.url();
    let connection = server.connect(&runtime);
    let _: String = redis::cmd("SCRIPT").arg("LOAD").arg("return 1").query(&mut server.admin()).expect("SCRIPT LOAD");
    let trypema = trypema(&url, &runtime);
    if trypema.is_none() {
        println!("\ntrypema is left out: it does not run on {}", server.version());
    }
    for in_flight in [1, 16, 64, 256, 1_024] {
        // Enough for some ten rounds of all that are in flight, and a tenth of a second.
        let total = match in_flight {
            1 => 5_000,
            16 | 64 => 20_000,
            _ => 40_000,
        };
        let load = Load { runtime: &runtime, in_flight, total };
        let mut cases: Vec<Case<'_>> = Vec::new();
        let own = || connection.clone();

        let shared = own();
        cases.push(load.each(FLOOR, move |key| {
            let connection = shared.clone();
            async move {
                incr(connection, key).await;
                let Ok(response) = Hello.oneshot(request(key)).await;
                assert_eq!(response.status(), StatusCode::OK);
            }
        }));
        let shared = own();
        cases.push(load.each(INCR, move |key| incr(shared.clone(), key)));
        let shared = own();
        cases.push(load.each(RETURN_1, move |key| return_1(shared.clone(), key)));

        let fixed = FixedWindow::new(RedisStore::new(own()).with_namespace("f"), 2_000_000_000, DAY).expect("a policy");
        let fixed = tower_rate_limiter::RateLimitLayer::builder(ByUser).with_policy(fixed).build().expect("a layer");
        cases.push(load.through(PEER_FIXED, fixed.layer(Hello)));
        let quota = GcraQuota::new(1_000_000, Duration::from_secs(1), 1_000_000_000).expect("a quota");
        let gcra = RedisGcra::new(own(), quota).with_namespace("g");
        let gcra = tower_rate_limiter::RateLimitLayer::builder(ByUser).with_policy(gcra).build().expect("a layer");
        cases.push(load.through(PEER_GCRA, gcra.layer(Hello)));
        if let Some(trypema) = &trypema {
            let trypema = trypema.clone();
            cases.push(load.each("trypema, absolute (a call, no layer)", move |key| {
                let trypema = trypema.clone();
                async move {
                    let decision = trypema.absolute().inc(&trypema_key(key), &RateLimit::max(), 1).await;
                    assert!(matches!(decision, Ok(RateLimitDecision::Allowed)));
                }
            }));
        }

        for (name, kind) in ALONE {
            let (limiter, policy) = (limiter(&url), policy(kind));
            cases.push(load.each(name, move |key| {
                let (limiter, policy) = (limiter.clone(), policy.clone());
                async move { assert!(limiter.check(&policy, User(key).to_string()).await.is_allowed()) }
            }));
        }
        for (name, kind) in LAYERED {
            cases.push(load.through(name, layered(&url, kind)));
        }

        let title = format!("redis, {in_flight} in flight, one connection, 10,000 keys, {}", server.version());
        let medians = run.table(&title, &mut cases);
        let layered = |name: &str| format!("redis, {in_flight} in flight, {name}");
        for name in ["layer, fixed window", "layer, token bucket"] {
            let title = layered(name);
            match in_flight {
                1 => run.bar(
                    format!("{title}: latency of {RETURN_1}"),
                    Wanted::AtMost(1.1),
                    medians.ratio(name, RETURN_1),
                ),
                16 => {}
                64 => {
                    run.bar(
                        format!("{title}: throughput of {FLOOR}"),
                        Wanted::AtLeast(0.9),
                        medians.ratio(FLOOR, name),
                    );
                    let peer = if name.ends_with("window") { PEER_FIXED } else { PEER_GCRA };
                    run.bar(format!("{title}: throughput of {peer}"), Wanted::AtLeast(2.0), medians.ratio(peer, name));
                }
                _ => run.bar(format!("{title}: throughput of {INCR}"), Wanted::AtLeast(1.1), medians.ratio(INCR, name)),
            }
        }
        if in_flight == 64 {
            let name = "layer, sliding window";
            let title = layered(name);
            run.bar(format!("{title}: throughput of {FLOOR}"), Wanted::AtLeast(0.5), medians.ratio(FLOOR, name));
        }
    }
}

const FLOOR: &str = "INCR + bare service";
const RETURN_1: &str = "an EVALSHA that returns 1";
const PEER_FIXED: &str = "tower-rate-limiter, fixed window";

const PEER_GCRA: &str = "tower-rate-limiter, GCRA";
const INCR: &str = "bare INCR";

const ALONE: [(&str, Kind); 3] = [
    ("limiter alone, fixed window", Kind::Fixed),
    ("limiter alone, token bucket", Kind::Bucket),
    ("limiter alone, sliding window", Kind::Sliding),
];

const LAYERED: [(&str, Kind); 5] = [
    ("layer, fixed window", Kind::Fixed),
    ("layer, fixed window of a large limit", Kind::FixedLarge),
    ("layer, token bucket", Kind::Bucket),
    ("layer, token bucket at rest", Kind::BucketAtRest),
    ("layer, sliding window", Kind::Sliding),
];

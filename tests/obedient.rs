//! A client that waits exactly as long as it is told gets in, and one that comes a unit earlier does not: for every
//! algorithm, engine and dialect, over HTTP (seconds) and gRPC (milliseconds).
//!
//! Time is injected: that of memory by its manual clock, that of Redis as an argument of its scripts.

#[path = "support/mod.rs"]
mod support;

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::{
    Limiter, ManualClock, Memory, RateLimitLayer, Redis, Rule,
    layer::{Dialect, header},
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{http::Answer, server::Server};

/// A store whose time is set.
enum Engine {
    Memory(Memory, ManualClock),
    Redis(Redis),
}

impl Engine {
    /// Returns a limiter for which it is `now`, in microseconds since 1970. Time never goes back.
    fn at(&self, now: u64) -> Limiter {
        match self {
            Self::Memory(memory, clock) => {
                let now = Duration::from_micros(now);
                clock.advance(now.checked_sub(clock.elapsed_since_epoch()).expect("time goes on"));
                Limiter::new(memory.clone())
            }
            // What was refused at another time is not remembered.
            Self::Redis(redis) => Limiter::new(redis.clone().at_time_for_tests(now)),
        }
    }

    fn is_redis(&self) -> bool {
        matches!(self, Self::Redis(_))
    }
}

fn rules() -> [(&'static str, Rule); 7] {
    let rule = |quota: &str| Rule::new("r", quota.parse().expect("a quota"));
    [
        ("bucket", rule("7/min")),
        ("bucket with a burst", rule("90/min").burst(4)),
        ("quick bucket", rule("12/s").burst(6)),
        ("fixed window", rule("5/9s").fixed_window()),
        ("aligned window", rule("5/9s").fixed_window().aligned()),
        ("sliding window", rule("5/9s").sliding_window()),
        ("sliding counter", rule("5/9s").sliding_counter()),
    ]
}

const DIALECTS: [Dialect; 6] = [
    Dialect::Draft11,
    Dialect::Draft07,
    Dialect::Draft06,
    Dialect::XRateLimit,
    Dialect::XRateLimitEpoch,
    Dialect::None,
];

/// One client's requests of some cost.
struct Client<'a> {
    engine: &'a Engine,
    rule: &'a Rule,
    dialect: Dialect,
    name: String,
    cost: u64,
    grpc: bool,
}

impl Client<'_> {
    async fn ask(&self, now: u64) -> Answer {
        let rule = self.rule.clone().by(header("x-client")).cost(self.cost);
        let layer = RateLimitLayer::new(self.engine.at(now)).rule(rule).dialect(self.dialect);
        let inner =
            service_fn(async |_: Request<Full<Bytes>>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
        let mut request = Request::post("/a.B/C").header("x-client", &self.name);
        if self.grpc {
            request = request.header("content-type", "application/grpc");
        }
        let request = request.body(Full::default()).expect("a request");
        Answer::of(layer.layer(inner).oneshot(request).await.expect("an answer")).await
    }

    /// Returns how long it is told to wait, in microseconds, and the unit in which that is told.
    fn told(&self, answer: &Answer) -> Option<(u64, u64)> {
        let (field, unit) = if self.grpc { ("grpc-retry-pushback-ms", 1_000) } else { ("retry-after", 1_000_000) };
        let wait: u64 = answer.text(field)?.parse().expect("a whole number");
        assert!(wait >= 1);
        if let Some(states) = answer.text("ratelimit").filter(|_| self.dialect == Dialect::Draft11) {
            let next: u64 = states.split(";t=").nth(1).expect("a time").parse().expect("whole seconds");
            assert!(wait * unit > next.saturating_sub(1) * 1_000_000, "{states} before {wait}");
        }
        Some((wait * unit, unit))
    }
}

/// Numbers that look random, and are the same each time (Knuth's linear congruence).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

async fn obey(engine: &Engine) {
    let (mut dice, mut now, mut clients) = (Dice(11), 1_800_000_000_000_000, 0);
    for (algorithm, rule) in rules() {
        for dialect in DIALECTS {
            for round in 0..200 {
                clients += 1;
                let name = format!("client-{clients}");
                let client =
                    Client { engine, rule: &rule, dialect, name, cost: 1 + dice.below(3), grpc: round % 2 == 1 };
                let (wait, unit) = loop {
                    now += dice.below(1_000_000) >> dice.below(20);
                    if let Some(told) = client.told(&client.ask(now).await) {
                        break told;
                    }
                };
                let at = format!("{algorithm}, {dialect}, redis: {}, {now} + {wait}", engine.is_redis());
                let early = client.ask(now + wait - unit).await;
                assert!(client.told(&early).is_some(), "let in a unit early: {at}");
                now += wait;
                assert!(client.told(&client.ask(now).await).is_none(), "refused after waiting: {at}");
            }
        }
    }
}

#[tokio::test]
async fn who_waits_as_long_as_told_gets_in_and_no_unit_earlier_in_memory() {
    let (memory, clock) = Memory::manual();
    obey(&Engine::Memory(memory, clock)).await;
}

#[tokio::test]
async fn who_waits_as_long_as_told_gets_in_and_no_unit_earlier_on_redis() {
    let server = Server::start();
    obey(&Engine::Redis(Redis::open(&server.url()).expect("an address"))).await;
}

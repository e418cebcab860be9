//! Rules in the shadow count and report, and change nothing else.

#[path = "support/mod.rs"]
mod support;

use std::{collections::BTreeSet, time::Duration};

use axum::{Router, body::Body};
use proptest::{prelude::*, test_runner::TestRunner};
use support::{http::serve, server::Server};
use tokio::runtime::Runtime;
use tollgate::{
    Decision, Demand, Limiter, Memory, OnError, Policy, Quota, RateLimitLayer, Redis, Rule,
    layer::{global, header},
    limit::{Outcome, Store},
};

/// What is enforced, and beside it what is not.
fn enforced() -> [Policy; 2] {
    [Policy::fixed_window("window", Quota::per_hour(5)), Policy::token_bucket("bucket", Quota::per_hour(4))]
}

fn shadows() -> [Policy; 3] {
    [
        Policy::fixed_window("narrow", Quota::per_hour(1)),
        Policy::sliding_window("log", Quota::per_hour(3)),
        Policy::token_bucket("tiny", Quota::per_hour(2)).on_error(OnError::Deny),
    ]
}

/// One request: which enforced policies it asks, for whom, at what cost, and after how many of those the shadows come.
type Request = (usize, bool, u64, usize);

fn requests() -> impl Strategy<Value = Vec<Request>> {
    proptest::collection::vec((1..4usize, any::<bool>(), 0..3u64, 0..3usize), 1..40)
}

fn decide(rt: &Runtime, limiter: &Limiter, request: Request, with_shadows: bool) -> Decision {
    let (which, one, cost, place) = request;
    let (enforced, shadows) = (enforced(), shadows());
    let subject = if one { "one" } else { "other" };
    let mut demands: Vec<Demand<'_>> = enforced
        .iter()
        .enumerate()
        .filter(|(i, _)| which & (1 << i) != 0)
        .map(|(_, policy)| Demand::new(policy, subject).cost(cost))
        .collect();
    if with_shadows {
        let place = place.min(demands.len());
        let shadows = shadows.iter().map(|policy| Demand::new(policy, subject).cost(cost).shadow());
        demands.splice(place..place, shadows);
    }
    rt.block_on(limiter.decide(&demands)).0
}

fn told(decision: &Decision) -> Vec<(String, bool, u64, bool)> {
    let told = |outcome: &Outcome| {
        (outcome.policy().to_owned(), outcome.is_allowed(), outcome.remaining(), outcome.passes_in().is_none())
    };
    decision.enforced().map(told).collect()
}

/// Runs the same requests with shadows and without, on two stores of a kind, and compares all that matters.
fn assert_inert(cases: u32, make: impl Fn() -> Limiter) {
    let rt = Runtime::new().expect("a runtime");
    let mut runner = TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&requests(), |requests| {
        let (with, without) = (make(), make());
        for request in requests {
            let (one, other) = (decide(&rt, &with, request, true), decide(&rt, &without, request, false));
            prop_assert_eq!(one.is_allowed(), other.is_allowed());
            prop_assert_eq!(one.remaining(), other.remaining());
            prop_assert_eq!(one.is_never(), other.is_never());
            let apart = match (one.retry_after(), other.retry_after()) {
                (Some(one), Some(other)) => one.abs_diff(other),
                (one, other) => {
                    prop_assert_eq!(one, other);
                    Duration::ZERO
                }
            };
            // Time goes on between the two.
            prop_assert!(apart < Duration::from_secs(2));
            prop_assert_eq!(told(&one), told(&other));
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn shadows_change_nothing_in_memory() {
    assert_inert(200, || Limiter::new(Memory::new()));
}

#[test]
fn shadows_change_nothing_on_redis_with_the_deny_cache_and_without() {
    let server = Server::start();
    let number = std::sync::atomic::AtomicU32::new(0);
    for max_age in [Duration::ZERO, Duration::from_secs(1)] {
        assert_inert(20, || {
            let prefix = format!("p{}", number.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            let redis = Redis::open(&server.url()).expect("an address").prefix(&prefix).expect("a prefix");
            Limiter::new(redis).deny_max_age(max_age)
        });
    }
}

#[test]
fn a_shadow_is_charged_only_with_the_others_and_where_it_has_room() {
    let server = Server::start();
    let rt = Runtime::new().expect("a runtime");
    let redis = || Limiter::new(Redis::open(&server.url()).expect("an address")).deny_max_age(Duration::ZERO);
    for (name, limiter) in [("memory", Limiter::new(Memory::new())), ("redis", redis())] {
        for (i, make) in [Policy::fixed_window, Policy::sliding_window, Policy::token_bucket].into_iter().enumerate() {
            let real = make(["a", "b", "c"][i], Quota::per_hour(2));
            let wide = make(["d", "e", "f"][i], Quota::per_hour(9));
            let narrow = make(["g", "h", "i"][i], Quota::per_hour(1));
            let demands =
                [Demand::new(&narrow, "u").shadow(), Demand::new(&real, "u"), Demand::new(&wide, "u").shadow()];
            let mut allowed = Vec::new();
            for _ in 0..4 {
                let decision = rt.block_on(limiter.decide(&demands)).0;
                let of = |index: usize| decision.outcomes()[index].is_allowed();
                allowed.push((decision.is_allowed(), of(0), of(1), of(2)));
            }
            // Refused requests find room in the wide one, and leave it there.
            let expected = [
                (true, true, true, true),
                (true, false, true, true),
                (false, false, false, true),
                (false, false, false, true),
            ];
            assert_eq!(allowed, expected, "{name} {i}");
            let left = |policy| rt.block_on(limiter.peek(policy, "u")).remaining();
            assert_eq!((left(&real), left(&wide), left(&narrow)), (Some(0), Some(7), Some(0)), "{name} {i}");
        }
    }
}

#[test]
fn what_a_shadow_was_charged_is_settled_too() {
    let rt = Runtime::new().expect("a runtime");
    let limiter = Limiter::new(Memory::new());
    let [real, _] = enforced();
    let [narrow, log, _] = shadows();
    rt.block_on(async {
        let demands = [
            Demand::new(&real, "u").cost(2),
            Demand::new(&narrow, "u").cost(2).shadow(),
            Demand::new(&log, "u").cost(2).shadow(),
        ];
        let (_, charge) = limiter.decide(&demands).await;
        charge.settle(1).await.expect("memory settles");
        let left = async |policy| limiter.peek(policy, "u").await.remaining();
        assert_eq!((left(&real).await, left(&log).await, left(&narrow).await), (Some(4), Some(2), Some(1)));
    });
}

#[tokio::test]
async fn a_shadow_of_one_beside_a_limit_of_five_lets_five_pass_whatever_the_order() {
    for shadow_first in [true, false] {
        let shadow = Rule::new("shadow", Quota::per_hour(1)).by(global()).shadow();
        let real = Rule::new("real", Quota::per_hour(5)).by(global());
        let rules = if shadow_first { [shadow, real] } else { [real, shadow] };
        let layer = rules.into_iter().fold(RateLimitLayer::new(Limiter::new(Memory::new())), RateLimitLayer::rule);
        let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await;
        for call in 1..=6 {
            let answer = support::http::get(address, "/").await;
            assert_eq!(answer.status.as_u16(), if call < 6 { 200 } else { 429 }, "call {call}");
            let fields = format!("{:?} {:?}", answer.headers, answer.body);
            assert!(fields.contains("real") && !fields.contains("shadow"), "{fields}");
            if call == 6 {
                assert_eq!(answer.json()["violated-policies"], serde_json::json!(["real"]));
            }
        }
    }
}

#[tokio::test]
async fn a_shadow_alone_tells_clients_nothing() {
    let rule = Rule::new("shadow", Quota::per_hour(1)).by(global()).shadow();
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule);
    let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await;
    for _ in 0..3 {
        let answer = support::http::get(address, "/").await;
        assert_eq!((answer.status.as_u16(), answer.text("ratelimit")), (200, None));
    }
}

#[tokio::test]
async fn a_share_of_the_keys_is_always_the_same_and_only_grows() {
    let refused = async |percent| {
        // Another service each time, as after a restart.
        let rule = Rule::new("r", Quota::per_hour(1)).by(header("x-user")).enforce_percent(percent);
        let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule);
        let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await;
        let mut refused = BTreeSet::new();
        for key in 0..100 {
            for _ in 0..2 {
                let request = http::Request::get("/").header("x-user", format!("user-{key}"));
                let request = request.body(Body::empty()).expect("a request");
                if support::http::send(address, None, request).await.status == 429 {
                    refused.insert(key);
                }
            }
        }
        refused
    };
    let (quarter, half) = (refused(25).await, refused(50).await);
    assert_eq!(refused(25).await, quarter);
    assert!(quarter.is_subset(&half) && half.len() > quarter.len());
    assert!((15..=35).contains(&quarter.len()) && (38..=62).contains(&half.len()), "{quarter:?} {half:?}");
    assert_eq!((refused(0).await.len(), refused(100).await.len()), (0, 100));
    let error = RateLimitLayer::new(Limiter::new(Memory::new()))
        .try_rule(Rule::new("r", Quota::per_hour(1)).enforce_percent(101))
        .expect_err("too much");
    assert!(error.to_string().contains("0 to 100 percent"), "{error}");
}

/// A store that is gone.
#[derive(Debug)]
struct Gone;

impl Store for Gone {
    fn decide(&self, _: &[Demand<'_>]) -> tollgate::limit::Answer {
        tollgate::limit::Answer::ready(Err(tollgate::Error::store("gone")))
    }

    fn settle(&self, _: &[tollgate::limit::Adjustment<'_>]) -> tollgate::limit::Answer<()> {
        tollgate::limit::Answer::ready(Ok(()))
    }

    fn reset(&self, _: &Policy, _: &tollgate::Key) -> tollgate::limit::Answer<()> {
        tollgate::limit::Answer::ready(Ok(()))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_shadow_that_would_deny_in_an_outage_denies_nothing() {
    let limiter = Limiter::new(Gone);
    let deny = Policy::fixed_window("deny", Quota::per_hour(1)).on_error(OnError::Deny);
    let allow = Policy::fixed_window("allow", Quota::per_hour(1)).on_error(OnError::Allow);
    let local = Policy::fixed_window("local", Quota::per_hour(1));
    for _ in 0..2 {
        let (decision, _) = limiter.decide(&[Demand::new(&deny, "u").shadow()]).await;
        assert!(decision.is_allowed());
        let (decision, _) = limiter.decide(&[Demand::new(&deny, "u").shadow(), Demand::new(&allow, "u")]).await;
        assert!(decision.is_allowed());
        let (decision, _) = limiter.decide(&[Demand::new(&local, "u").shadow(), Demand::new(&allow, "u")]).await;
        assert!(decision.is_allowed());
    }
}

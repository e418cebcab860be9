//! What clients are told in each dialect, by each algorithm.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollgate::{
    Limiter, ManualClock, Memory, Policy, Quota, RateLimitLayer, Rule,
    layer::{Dialect, EXPOSED_HEADERS, global, header},
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::http::Answer;

type Sent = Request<Full<Bytes>>;

fn manual() -> (Limiter, ManualClock) {
    let (memory, clock) = Memory::manual();
    (Limiter::new(memory), clock)
}

/// Sends a request to a service that answers with this status and these headers.
async fn send(layer: &RateLimitLayer, request: Sent, status: u16, headers: &'static [(&str, &str)]) -> Answer {
    let inner = service_fn(move |_: Sent| async move {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).expect("a response"))
    });
    Answer::of(layer.layer(inner).oneshot(request).await.expect("an answer")).await
}

/// Returns the lines of a response that tell of limits.
fn told(answer: &Answer) -> Vec<String> {
    let lines = answer.headers.iter().filter(|(name, _)| {
        let name = name.as_str();
        name.contains("ratelimit") || name == "retry-after"
    });
    let mut lines: Vec<_> = lines.map(|(name, value)| format!("{name}: {}", value.to_str().expect("text"))).collect();
    lines.sort_by(|a, b| a.split(':').next().cmp(&b.split(':').next()));
    lines
}

#[tokio::test]
async fn each_dialect_tells_each_algorithm() {
    let bucket = || Rule::new("r", Quota::per_minute(6)).burst(3).by(global());
    let fixed = || Rule::new("r", Quota::per_minute(3)).fixed_window().by(global());
    let sliding = || Rule::new("r", Quota::per_minute(3)).sliding_window().by(global());
    // Sent at 0 s, 1.5 s and 3 s; then refused at 3 s.
    let lists = |policy: &str, states: [&str; 4]| {
        states.map(|state| vec![format!("ratelimit: {state}"), format!("ratelimit-policy: {policy}")])
    };
    let draft06 = |limit: u64, policy: &str, states: [(u64, u64); 4]| {
        states.map(|(remaining, reset)| {
            vec![
                format!("ratelimit-limit: {limit}"),
                format!("ratelimit-policy: {policy}"),
                format!("ratelimit-remaining: {remaining}"),
                format!("ratelimit-reset: {reset}"),
            ]
        })
    };
    let cases: Vec<(Rule, Dialect, [Vec<String>; 4], u64)> = vec![
        (
            bucket(),
            Dialect::Draft11,
            lists(r#""r";q=6;w=60"#, [r#""r";r=2;t=10"#, r#""r";r=1;t=9"#, r#""r";r=0;t=7"#, r#""r";r=0;t=7"#]),
            7,
        ),
        (
            fixed(),
            Dialect::Draft11,
            lists(r#""r";q=3;w=60"#, [r#""r";r=2;t=60"#, r#""r";r=1;t=59"#, r#""r";r=0;t=57"#, r#""r";r=0;t=57"#]),
            57,
        ),
        (
            sliding(),
            Dialect::Draft11,
            lists(r#""r";q=3;w=60"#, [r#""r";r=2;t=60"#, r#""r";r=1;t=59"#, r#""r";r=0;t=57"#, r#""r";r=0;t=57"#]),
            57,
        ),
        (bucket(), Dialect::Draft06, draft06(6, "6;w=60", [(2, 10), (1, 9), (0, 7), (0, 7)]), 7),
        (fixed(), Dialect::Draft06, draft06(3, "3;w=60", [(2, 60), (1, 59), (0, 57), (0, 57)]), 57),
        (sliding(), Dialect::Draft06, draft06(3, "3;w=60", [(2, 60), (1, 59), (0, 57), (0, 57)]), 57),
        (
            fixed(),
            Dialect::Draft07,
            lists(
                "3;w=60",
                [
                    "limit=3, remaining=2, reset=60",
                    "limit=3, remaining=1, reset=59",
                    "limit=3, remaining=0, reset=57",
                    "limit=3, remaining=0, reset=57",
                ],
            ),
            57,
        ),
        (
            fixed(),
            Dialect::XRateLimit,
            [(2, 60), (1, 59), (0, 57), (0, 57)].map(|(remaining, reset)| {
                vec![
                    "x-ratelimit-limit: 3".to_owned(),
                    format!("x-ratelimit-remaining: {remaining}"),
                    format!("x-ratelimit-reset: {reset}"),
                ]
            }),
            57,
        ),
        (fixed(), Dialect::None, Default::default(), 57),
    ];
    for (rule, dialect, expected, retry_after) in cases {
        let (limiter, clock) = manual();
        let layer = RateLimitLayer::new(limiter).rule(rule).dialect(dialect);
        for (i, mut expected) in expected.into_iter().enumerate() {
            let answer = send(&layer, Sent::default(), 200, &[]).await;
            let refused = i == 3;
            assert_eq!(answer.status == StatusCode::TOO_MANY_REQUESTS, refused, "{dialect:?}");
            if refused {
                expected.push(format!("retry-after: {retry_after}"));
                expected.sort_by(|a, b| a.split(':').next().cmp(&b.split(':').next()));
            }
            assert_eq!(told(&answer), expected, "{dialect:?}");
            if i < 2 {
                clock.advance(Duration::from_millis(1_500));
            }
        }
    }
}

#[tokio::test]
#[allow(clippy::disallowed_methods)] // The field is one of the calendar, so it is compared with that.
async fn a_reset_as_a_time_is_one_of_the_calendar() {
    let (limiter, _) = manual();
    let rule = Rule::new("r", Quota::per_hour(1)).fixed_window().by(global());
    let layer = RateLimitLayer::new(limiter).rule(rule).dialect(Dialect::XRateLimitEpoch);
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let before = now();
    let answer = send(&layer, Sent::default(), 200, &[]).await;
    let reset: u64 = answer.text("x-ratelimit-reset").expect("a time").parse().expect("whole seconds");
    assert!((before + 3_600..=now() + 3_601).contains(&reset), "{reset}");
}

#[tokio::test]
async fn a_refused_cost_waits_for_all_of_it_and_the_field_tells_of_one_unit() {
    let (limiter, _) = manual();
    let rule = Rule::new("per-ip", Quota::per_minute(60))
        .burst(10)
        .by(global())
        .cost_by(|request| request.headers.get("cost").and_then(|cost| cost.to_str().ok()?.parse().ok()).unwrap_or(1));
    let layer = RateLimitLayer::new(limiter).rule(rule);
    let cost = |cost: u64| Request::builder().header("cost", cost).body(Full::default()).expect("a request");
    let passed = send(&layer, cost(10), 200, &[]).await;
    assert_eq!(told(&passed), [r#"ratelimit: "per-ip";r=0;t=1"#, r#"ratelimit-policy: "per-ip";q=60;w=60"#]);
    let refused = send(&layer, cost(7), 200, &[]).await;
    assert_eq!(refused.text("retry-after"), Some("7"));
    assert_eq!(refused.text("ratelimit"), Some(r#""per-ip";r=0;t=1"#));
}

#[tokio::test]
async fn dialects_that_go_together_are_told_together() {
    let (limiter, _) = manual();
    let layer = RateLimitLayer::new(limiter)
        .dialects([Dialect::XRateLimit, Dialect::Draft11])
        .rule(Rule::new("minute", Quota::per_minute(60)).by(global()))
        .rule(Rule::new("day", Quota::per_day(60)).fixed_window().by(global()));
    assert_eq!(
        told(&send(&layer, Sent::default(), 200, &[]).await),
        [
            r#"ratelimit: "minute";r=59;t=1, "day";r=59;t=86400"#,
            r#"ratelimit-policy: "minute";q=60;w=60, "day";q=60;w=86400"#,
            // As little is left of both, and the day is longer.
            "x-ratelimit-limit: 60",
            "x-ratelimit-remaining: 59",
            "x-ratelimit-reset: 86400",
        ]
    );
    let (limiter, _) = manual();
    let layer = RateLimitLayer::new(limiter)
        .rule(Rule::new("minute", Quota::per_minute(60)).by(global()))
        .dialects([Dialect::Draft06, Dialect::Draft07]);
    assert_eq!(
        told(&send(&layer, Sent::default(), 200, &[]).await),
        [
            "ratelimit: limit=60, remaining=59, reset=1",
            "ratelimit-limit: 60",
            "ratelimit-policy: 60;w=60",
            "ratelimit-remaining: 59",
            "ratelimit-reset: 1",
        ]
    );
    let (limiter, _) = manual();
    let error = RateLimitLayer::new(limiter).try_dialects([Dialect::Draft11, Dialect::Draft06]).expect_err("a clash");
    assert!(error.is_invalid() && error.to_string().contains("`draft-11` and `draft-06`"), "{error}");
}

#[tokio::test]
async fn nested_layers_of_a_single_valued_dialect_tell_of_the_tighter_one() {
    let (limiter, _) = manual();
    let rule = |name: &'static str, limit| Rule::new(name, Quota::per_hour(limit)).fixed_window().by(global());
    for dialect in [Dialect::Draft06, Dialect::Draft07, Dialect::XRateLimit] {
        for (inner, outer) in [(5, 9), (9, 5)] {
            let (inner_rule, outer_rule) = (rule("inner", inner), rule("outer", outer));
            let inner = RateLimitLayer::new(limiter.clone()).rule(inner_rule).dialect(dialect);
            let outer = RateLimitLayer::new(limiter.clone()).rule(outer_rule).dialect(dialect);
            let service =
                inner.layer(service_fn(async |_: Sent| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
            let answer = Answer::of(outer.layer(service).oneshot(Sent::default()).await.expect("an answer")).await;
            let lines = told(&answer).join("\n");
            assert!(lines.contains("remaining: 4") || lines.contains("limit=5, remaining=4"), "{lines}");
            assert_eq!(lines.matches("emaining").count(), 1, "{lines}");
            limiter.reset(&Policy::fixed_window("inner", Quota::per_hour(1)), "all").await.expect("reset");
            limiter.reset(&Policy::fixed_window("outer", Quota::per_hour(1)), "all").await.expect("reset");
        }
    }
}

#[tokio::test]
async fn what_a_shared_cache_may_keep_has_no_fields_if_asked_so() {
    for (value, skipped) in [
        ("public, max-age=60", true),
        ("max-age=60, Public", true),
        ("s-maxage=60", true),
        ("S-MaxAge = 60", true),
        ("private, max-age=60", false),
        ("no-store", false),
        ("max-age=60", false),
        ("x=\"public\"", false),
    ] {
        let headers: &'static [(&str, &str)] = Box::leak(Box::new([("cache-control", value)]));
        let (limiter, _) = manual();
        let layer = RateLimitLayer::new(limiter).rule(Rule::new("r", Quota::per_hour(9)).by(global()));
        assert_eq!(told(&send(&layer, Sent::default(), 200, headers).await).len(), 2, "{value}");
        let skipping = layer.skip_cacheable();
        assert_eq!(told(&send(&skipping, Sent::default(), 200, headers).await).is_empty(), skipped, "{value}");
    }
}

#[tokio::test]
async fn no_fields_on_what_is_no_answer_to_the_request() {
    let (limiter, _) = manual();
    for dialect in [Dialect::Draft11, Dialect::Draft06, Dialect::Draft07, Dialect::XRateLimit] {
        let layer = RateLimitLayer::new(limiter.clone())
            .rule(Rule::new("r", Quota::per_hour(999)).by(global()))
            .dialect(dialect);
        for status in [101, 301, 302, 303, 304, 307, 308] {
            assert_eq!(told(&send(&layer, Sent::default(), status, &[]).await), [""; 0], "{status}");
        }
        for status in [200, 204, 206, 400, 401, 404, 429, 500, 503] {
            assert!(!told(&send(&layer, Sent::default(), status, &[]).await).is_empty(), "{status}");
        }
        drop(layer);
    }
}

#[tokio::test]
async fn a_retry_after_of_the_inner_service_stays() {
    let (limiter, _) = manual();
    let layer = RateLimitLayer::new(limiter).rule(Rule::new("r", Quota::per_hour(9)).by(global()));
    let answer = send(&layer, Sent::default(), 503, &[("retry-after", "120")]).await;
    assert_eq!(told(&answer)[2..], ["retry-after: 120"]);
    assert_eq!(answer.headers.get_all("retry-after").iter().count(), 1);
}

#[tokio::test]
async fn a_partition_key_tells_budgets_apart_and_not_whose_they_are() {
    let error = RateLimitLayer::new(manual().0).try_partition_keys().expect_err("no secret");
    assert!(error.is_invalid() && error.to_string().contains("Limiter::key_secret"), "{error}");
    let layer = |secret: &str| {
        RateLimitLayer::new(manual().0.key_secret(secret))
            .rule(Rule::new("one", Quota::per_hour(9)).by(header("x-user")))
            .rule(Rule::new("two", Quota::per_hour(9)).by(header("x-user")))
            .partition_keys()
    };
    let of = async |layer: &RateLimitLayer, user: &str| {
        let request = Request::builder().header("x-user", user).body(Full::default()).expect("a request");
        let answer = send(layer, request, 200, &[]).await;
        assert!(!answer.text("ratelimit-policy").expect("policies").contains("pk"), "constant");
        let states = answer.text("ratelimit").expect("states").to_owned();
        states.split(", ").map(|item| item.split(";pk=").nth(1).expect("a key").to_owned()).collect::<Vec<_>>()
    };
    let pepper = layer("pepper");
    let (ann, again, bob) = (of(&pepper, "ann").await, of(&pepper, "ann").await, of(&pepper, "bob").await);
    assert_eq!(ann, again);
    for key in ann.iter().chain(&bob) {
        // A Byte Sequence of twelve bytes.
        assert!(key.len() == 18 && key.starts_with(':') && key.ends_with(':'), "{key}");
    }
    let salt = of(&layer("salt"), "ann").await;
    let all: std::collections::HashSet<_> = ann.iter().chain(&bob).chain(&salt).collect();
    assert_eq!(all.len(), 6);
}

#[test]
fn pages_of_other_origins_can_be_let_read_all_fields() {
    for name in ["retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-reset", "grpc-status", "grpc-message"] {
        assert!(EXPOSED_HEADERS.iter().any(|exposed| exposed == name), "{name}");
    }
}

use std::time::Duration;

use tollgate::{Demand, Limiter, OnError, Policy, Quota, Redis};

use crate::{
    cores,
    run::{Run, Wanted},
    server::{Server, closed_loop, runtime},
};

const KEYS: u64 = 10_000;

/// Measures what each further rule of a request costs the server.
pub fn run(run: &mut Run) {
    cores::pinned(cores::CLIENT, || {
        for (in_flight, total) in [(1, 5_000), (64, 100_000)] {
            for algorithm in ["token bucket", "fixed window"] {
                measure(run, in_flight, total, algorithm);
            }
        }
    });
}

fn measure(run: &mut Run, in_flight: u64, total: u64, algorithm: &str) {
    let (server, runtime) = (Server::start(), runtime());
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address")).deadline(Duration::from_secs(10));
    let names = ["1 rule", "3 rules", "5 rules"];
    let once = |case: usize| {
        let count = [1, 3, 5][case];
        let policies: Vec<Policy> = (0..count).map(|number| policy(algorithm, count, number)).collect();
        server.forget_stats();
        closed_loop(&runtime, in_flight, total, KEYS, {
            let limiter = limiter.clone();
            move |key| {
                let (limiter, policies) = (limiter.clone(), policies.clone());
                async move {
                    let subject = format!("user:{key:07}");
                    let demands: Vec<_> = policies.iter().map(|policy| Demand::new(policy, &subject)).collect();
                    assert!(limiter.decide(&demands).await.0.is_allowed());
                }
            }
        });
        let stats = server.stats();
        let (_, calls, micros) = stats.iter().find(|(name, ..)| name == "evalsha").expect("scripts were called");
        if in_flight == 1 {
            assert_eq!(*calls, total, "one call a request, however many rules");
        }
        *micros as f64 * 1_000.0 / total as f64
    };
    // The first time makes the keys.
    for case in 0..names.len() {
        let _ = once(case);
    }
    let title = format!("rules, {algorithm}, {in_flight} in flight, {}", server.version());
    let medians = run.in_turn(&title, "ns of the server's time a request, by INFO commandstats", &names, once);
    if in_flight == 1 {
        let of = |name| medians.ratio(name, "1 rule");
        run.bar(format!("3 rules, {algorithm}: server's time of 1 rule"), Wanted::AtMost(0.75 * 3.0), of("3 rules"));
        run.bar(format!("5 rules, {algorithm}: server's time of 1 rule"), Wanted::AtMost(0.75 * 5.0), of("5 rules"));
    }
}

/// Each case has policies of its own, so that all of them find what they left.
fn policy(algorithm: &str, count: u32, number: u32) -> Policy {
    let name = format!("{count}-{number}");
    let policy = if algorithm == "token bucket" {
        Policy::new(name, Quota::per_second(50_000), tollgate::limit::Algorithm::TokenBucket)
            .expect("a policy")
            .burst(2_000_000_000)
    } else {
        let quota = Quota::new(2_000_000_000, Duration::from_secs(86_400 + u64::from(number))).expect("a quota");
        Policy::new(name, quota, tollgate::limit::Algorithm::FixedWindow).expect("a policy")
    };
    policy.on_error(OnError::Deny)
}

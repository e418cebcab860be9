//! The same traffic for each algorithm, on simulated time.

use std::time::Duration;

use tollgate::{Error, Limiter, Memory, Policy, Quota};

/// Lets each algorithm decide on the same traffic.
pub(crate) async fn run_all(traffic: &Traffic) -> Result<Vec<Plot>, Error> {
    let mut plots = Vec::new();
    for contender in contenders()? {
        plots.push(run(traffic, contender).await);
    }
    Ok(plots)
}

/// One algorithm and what it promises.
struct Contender {
    label: &'static str,
    policy: Policy,
    /// The most units within any interval as long as the window.
    promised: u32,
}

fn contenders() -> Result<Vec<Contender>, Error> {
    let quota = Quota::new(LIMIT.into(), WINDOW)?;
    Ok(vec![
        Contender {
            label: "fixed window",
            policy: Policy::fixed_window("fixed-window", quota).aligned(),
            promised: 2 * LIMIT,
        },
        Contender { label: "sliding window", policy: Policy::sliding_window("sliding-window", quota), promised: LIMIT },
        Contender {
            label: "sliding counter",
            policy: Policy::sliding_counter("sliding-counter", quota),
            promised: 2 * LIMIT - 1,
        },
        Contender {
            label: "token bucket",
            policy: Policy::token_bucket("token-bucket", quota).burst(BURST.into()),
            promised: BURST + LIMIT,
        },
    ])
}

/// Requests over time.
pub(crate) struct Traffic {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// How many come in each step.
    at: fn(step: usize) -> u32,
}

pub(crate) const TRAFFIC: [Traffic; 3] = [
    Traffic {
        name: "edge",
        title: "a full quota before the end of a window, and another after it",
        at: |step| if (90..110).contains(&step) { LIMIT / 10 } else { 0 },
    },
    Traffic {
        name: "burst",
        title: "three quotas at once, and again a window and a half later",
        at: |step| if step == 20 || step == 170 { 3 * LIMIT } else { 0 },
    },
    Traffic { name: "overload", title: "steadily three times as much as the quota", at: |_| 3 * LIMIT / 100 },
];

/// What came of one algorithm under one kind of traffic, step by step.
pub(crate) struct Plot {
    pub(crate) label: &'static str,
    pub(crate) offered: Vec<u32>,
    pub(crate) passed: Vec<u32>,
    /// The most that passed within any interval as long as the window.
    pub(crate) most: u32,
    pub(crate) promised: u32,
}

async fn run(traffic: &Traffic, Contender { label, policy, promised }: Contender) -> Plot {
    let (memory, clock) = Memory::manual();
    let limiter = Limiter::new(memory);
    let (mut offered, mut passed) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let requests = (traffic.at)(step);
        let mut let_pass = 0;
        for _ in 0..requests {
            let_pass += u32::from(limiter.check(&policy, "user:42").await.is_allowed());
        }
        offered.push(requests);
        passed.push(let_pass);
        clock.advance(STEP);
    }
    let most = passed.windows(STEPS_OF_A_WINDOW).map(|within| within.iter().sum()).max().unwrap_or(0);
    Plot { label, offered, passed, most, promised }
}

pub(crate) const LIMIT: u32 = 100;
/// What a bucket may hold: less than the limit, as where bursts are to be small.
const BURST: u32 = 30;
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
pub(crate) const STEP: Duration = Duration::from_millis(100);
pub(crate) const STEPS: usize = 300;
const STEPS_OF_A_WINDOW: usize = 100;

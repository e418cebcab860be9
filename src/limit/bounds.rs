//! Holds each algorithm to its promise, by a plain log of what it granted.

use proptest::{collection::vec, prelude::*};

use super::{Algorithm, Micros, Policy, Quota, Standing, State, Told};

/// One key under one policy, and all that was granted to it.
struct Run {
    policy: Policy,
    state: State,
    now: Micros,
    grants: Vec<(Micros, u64)>,
}

impl Run {
    fn new(policy: Policy) -> Self {
        // In the middle of things, and not on a whole millisecond.
        Self { state: State::fresh(&policy), policy, now: 1_767_225_600_000_123, grants: Vec::new() }
    }

    fn standing(&self, now: Micros, cost: u32) -> Standing {
        let mut state = self.state.clone();
        state.tidy(&self.policy, now);
        state.standing(&self.policy, now, cost)
    }

    /// Asks for units; true if they were granted.
    fn ask(&mut self, cost: u32) -> bool {
        self.state.tidy(&self.policy, self.now);
        let admitted = self.state.standing(&self.policy, self.now, cost).wait == 0;
        if admitted {
            self.state.charge(&self.policy, self.now, cost);
            self.grants.push((self.now, cost.into()));
        }
        admitted
    }

    fn granted_since(&self, from: Micros) -> u64 {
        self.grants.iter().filter(|(at, _)| *at >= from).map(|(_, cost)| cost).sum()
    }

    /// What each algorithm's definition says of a request now, by the log alone.
    fn fits(&self, cost: u32) -> bool {
        let (limit, window) = (self.policy.quota().limit(), self.policy.window_micros());
        let cost = u64::from(cost);
        match self.policy.algorithm() {
            Algorithm::FixedWindow => self.granted_since(self.window_start()) + cost <= limit,
            Algorithm::SlidingWindow => self.granted_since(self.now - window + 1) + cost <= limit,
            Algorithm::SlidingCounter => unreachable!("its own tests hold it to what it promises"),
            Algorithm::TokenBucket => {
                // From each grant on, what was granted must fit a bucket that was full then.
                let (burst, interval) = (self.policy.capacity(), self.policy.interval());
                let starts = self.grants.iter().map(|(at, _)| *at).chain([self.now]);
                starts.into_iter().all(|from| {
                    (self.granted_since(from) + cost) * interval <= burst * interval + (self.now - from) * 10
                })
            }
        }
    }

    /// The start of the fixed window that is open, found by going through the log.
    fn window_start(&self) -> Micros {
        let window_ms = self.policy.quota().window_ms();
        if self.policy.is_aligned() {
            return self.now / 1_000 / window_ms * window_ms * 1_000;
        }
        let mut start: Option<Micros> = None;
        for (at, _) in self.grants.iter().chain([&(self.now, 0)]) {
            if start.is_none_or(|start| at / 1_000 >= start / 1_000 + window_ms) {
                start = Some(*at);
            }
        }
        start.expect("now is in it")
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    let quota = (1..20u64, prop_oneof![1..50u64, Just(1_000), 1..100_000u64]).prop_filter_map(
        "faster than a bucket counts",
        |(limit, ms)| {
            let quota = Quota::new(limit, std::time::Duration::from_millis(ms)).ok()?;
            (limit * 10 <= ms * 1_000).then_some(quota)
        },
    );
    (quota, 0..5u8, 1..30u64).prop_map(|(quota, kind, burst)| match kind {
        0 => Policy::fixed_window("p", quota),
        1 => Policy::fixed_window("p", quota).aligned(),
        2 => Policy::sliding_window("p", quota),
        3 => Policy::token_bucket("p", quota),
        _ => Policy::token_bucket("p", quota).burst(burst),
    })
}

/// Steps of time in hundredths of the window, and costs.
fn all_policies() -> impl Strategy<Value = Policy> {
    let counter = (1..20u64, prop_oneof![Just("7ms"), Just("1s"), Just("1h")]).prop_map(|(limit, window)| {
        Policy::sliding_counter("p", format!("{limit}/{window}").parse().expect("a quota"))
    });
    prop_oneof![3 => policies(), 1 => counter]
}

fn steps() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let percent = prop_oneof![3 => Just(0), 6 => 0..40u64, 2 => 40..150u64, 1 => Just(100), 1 => 1_000..1_001u64];
    vec((percent, prop_oneof![6 => Just(1u32), 3 => 1..6u32, 1 => 1..40u32]), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exactly_what_the_bound_admits_is_granted((policy, steps) in (policies(), steps())) {
        let mut run = Run::new(policy);
        for (percent, cost) in steps {
            run.now += run.policy.window_micros() * percent / 100;
            let fits = run.fits(cost);
            prop_assert_eq!(run.ask(cost), fits, "cost {} at {} after {:?}", cost, run.now, run.grants);
        }
        // The promise in its own words, for every interval between two grants.
        let (limit, window, burst) = (run.policy.quota().limit(), run.policy.window_micros(), run.policy.capacity());
        for (i, (from, _)) in run.grants.iter().enumerate() {
            let mut sum = 0;
            for (to, cost) in &run.grants[i..] {
                sum += cost;
                match run.policy.algorithm() {
                    Algorithm::SlidingWindow if to - from < window => prop_assert!(sum <= limit),
                    Algorithm::TokenBucket => prop_assert!((sum - burst.min(sum)) * window <= limit * (to - from)),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn what_a_decision_tells_comes_true((policy, steps) in (all_policies(), steps())) {
        let mut run = Run::new(policy);
        // Windows that follow each other count whole milliseconds, the others whole microseconds.
        let whole_ms = matches!(run.policy.algorithm(), Algorithm::FixedWindow | Algorithm::SlidingCounter);
        let instant = if whole_ms { 1_000 } else { 1 };
        for (percent, cost) in steps {
            run.now += run.policy.window_micros() * percent / 100;
            let _ = run.ask(cost);
            let (now, capacity) = (run.now, u32::try_from(run.policy.capacity()).expect("small"));
            let told = run.standing(now, cost);
            let remaining_at = |at: Micros| run.standing(at, 1).remaining;

            prop_assert_eq!(told.wait == Standing::NEVER, cost > capacity);
            if told.wait != Standing::NEVER {
                prop_assert_eq!(run.standing(now + told.wait, cost).wait, 0, "{:?}", told);
                prop_assert!(told.wait == 0 || run.standing(now + told.wait - instant, cost).wait > 0, "{:?}", told);
            }
            if told.remaining > 0 {
                prop_assert_eq!(run.standing(now, told.remaining).wait, 0);
            }
            prop_assert!(run.standing(now, told.remaining + 1).wait > 0);
            if told.next == 0 {
                prop_assert_eq!(told.remaining, capacity);
            } else {
                prop_assert!(remaining_at(now + told.next) > told.remaining, "{:?}", told);
                prop_assert_eq!(remaining_at(now + told.next - instant), told.remaining, "{:?}", told);
            }
            prop_assert_eq!(run.standing(now + told.full, 1).full, 0);
            prop_assert!(told.full == 0 || run.standing(now + told.full - instant, 1).full > 0);
        }
    }

    #[test]
    fn a_state_that_follows_says_the_same_and_a_part_of_it_refuses_as_long(
        (policy, steps, parts) in (policies(), steps(), 1..10u32)
    ) {
        let mut run = Run::new(policy);
        let share = run.policy.share(std::num::NonZeroU32::new(parts).expect("not zero"));
        let [mut whole, mut part] = [State::fresh(&run.policy), State::fresh(&share)];
        for (percent, cost) in steps {
            run.now += run.policy.window_micros() * percent / 100;
            let now = run.now;
            let charged = run.ask(cost).then_some(cost);
            let standing = run.standing(now, cost);
            if charged.is_none() && standing.wait == Standing::NEVER {
                continue;
            }
            let used = run.policy.capacity_u32() - standing.remaining.min(run.policy.capacity_u32());
            let told = Told { charged, cost, used, standing };
            whole.follow(&run.policy, now, &told);
            part.follow(&share, now, &told);

            let follows = |at: Micros| {
                let mut state = whole.clone();
                state.tidy(&run.policy, at);
                state.standing(&run.policy, at, cost)
            };
            // To the millisecond of a window's end, or the microsecond of a time that is told.
            prop_assert!(follows(now).remaining <= standing.remaining, "{:?} {:?}", follows(now), told);
            prop_assert!(follows(now + 1_000).remaining >= standing.remaining, "{:?} {:?}", follows(now + 1_000), told);
            prop_assert!(follows(now).full.abs_diff(standing.full) <= 1_000, "{:?} {:?}", follows(now), told);
            prop_assert!(follows(now).wait.abs_diff(standing.wait) <= 1_000, "{:?} {:?}", follows(now), told);

            if charged.is_none() {
                let last = now + standing.wait.saturating_sub(1_000);
                part.tidy(&share, last);
                prop_assert!(part.standing(&share, last, cost).wait > 0, "{:?}", told);
            } else {
                part.tidy(&share, now);
                prop_assert!(part.standing(&share, now, cost).remaining <= standing.remaining, "{:?}", told);
            }
        }
    }

    #[test]
    fn a_clock_set_back_locks_nobody_out((policy, steps, back) in (all_policies(), steps(), 0..1_000_000_000_000u64)) {
        let mut run = Run::new(policy);
        for (percent, cost) in steps {
            run.now += run.policy.window_micros() * percent / 100;
            let _ = run.ask(cost);
        }
        run.now -= back;
        // The first decision after the step heals, whatever it says.
        let _ = run.ask(1);
        let longest = match run.policy.algorithm() {
            Algorithm::TokenBucket => (2 * run.policy.capacity() * run.policy.interval()).div_ceil(10),
            Algorithm::FixedWindow | Algorithm::SlidingWindow => run.policy.window_micros(),
            // All that was there is over by then, but what was asked since fades in the next.
            Algorithm::SlidingCounter => 2 * run.policy.window_micros(),
        };
        let told = run.standing(run.now, 1);
        prop_assert!(told.wait <= longest && told.full <= longest, "{:?}", told);
        run.now += told.wait;
        prop_assert!(run.ask(1));
    }

    #[test]
    fn settling_is_as_if_the_true_cost_had_been_charged((policy, cost, truth, percent) in (all_policies(), 1..20u32, 0..60u32, 0..200u64)) {
        let mut run = Run::new(policy.clone());
        let cost = cost.min(u32::try_from(policy.capacity()).expect("small"));
        let receipt = run.state.charge(&policy, run.now, cost);
        let later = run.now + policy.window_micros() * percent / 100;
        let untouched = run.standing(later, 1);
        run.state.settle(&policy, later, receipt, cost, truth);
        let told = run.standing(later, 1);

        // What had ended before stays ended, but for a bucket that would not be full yet.
        let mut as_if = Run::new(policy.clone());
        let most = u32::try_from(2 * policy.capacity()).expect("small");
        as_if.state.charge(&policy, as_if.now, if policy.interval() > 0 { truth.min(most) } else { truth });
        let as_if = as_if.standing(later, 1);
        match policy.algorithm() {
            Algorithm::TokenBucket => {
                prop_assert!(told.full >= as_if.full, "{:?} {:?}", told, as_if);
                prop_assert!(truth < cost || u64::from(truth) > 2 * policy.capacity() || told == as_if, "{:?} {:?}", told, as_if);
                prop_assert!(truth > cost || told.full <= untouched.full);
            }
            _ if untouched.full == 0 => prop_assert_eq!(told, untouched),
            _ => prop_assert_eq!((told.remaining, told.wait), (as_if.remaining, as_if.wait)),
        }
    }

    #[test]
    fn a_changed_quota_holds_at_once_and_used_units_stay(used in 1..5u64) {
        let quota = |limit| Quota::per_minute(limit);
        let policy = |kind: u8, limit| match kind {
            0 => Policy::fixed_window("p", quota(limit)),
            1 => Policy::sliding_window("p", quota(limit)),
            _ => Policy::token_bucket("p", quota(limit)),
        };
        for kind in 0..3 {
            let mut run = Run::new(policy(kind, 5));
            for _ in 0..used {
                prop_assert!(run.ask(1));
            }
            let end = run.standing(run.now, 1).full;
            let remaining = |limit| {
                let told = run.state.standing(&policy(kind, limit), run.now, 1);
                (told.remaining, told.full)
            };
            let of_ten = if kind == 2 { 10 - 2 * used } else { 10 - used };
            prop_assert_eq!(remaining(10), (u32::try_from(of_ten).expect("small"), end));
            let of_two = if kind == 2 { 2 - (2 * used).div_ceil(5) } else { 2u64.saturating_sub(used) };
            prop_assert_eq!(remaining(2), (u32::try_from(of_two).expect("small"), end));
        }
    }
}

#[test]
fn a_long_log_is_trimmed_in_steps_and_never_refuses_one_unit_wrongly() {
    let policy = Policy::sliding_window("p", Quota::per_hour(5_000));
    let mut run = Run::new(policy);
    for _ in 0..4_999 {
        assert!(run.ask(1));
    }
    run.now += run.policy.window_micros() - 1;
    assert!(run.ask(1)); // keeps the log alive while the rest of it ends
    run.now += 1;
    for unit in 0..4_999 {
        assert!(run.ask(1), "unit {unit}");
    }
    assert!(!run.ask(1));
}

#[test]
fn a_log_that_follows_many_refusals_does_not_grow() {
    let policy = Policy::sliding_window("p", Quota::per_minute(5));
    let (mut run, mut state) = (Run::new(policy.clone()), State::fresh(&policy));
    assert!(run.ask(3));
    run.now += 1_000_000;
    for i in 0..1_000u64 {
        run.now += 1_000;
        // Answers that take a millisecond, or up to thirty.
        let late = run.now + 1_000 * (1 + i * 7 % 30);
        let standing = run.standing(run.now, 4);
        state.follow(&policy, late, &Told { charged: None, cost: 4, used: 3, standing });
        let told = state.standing(&policy, late, 4);
        assert!(told.wait >= standing.wait && told.wait <= standing.wait + 30_000, "{told:?} after {standing:?}");
        assert_eq!(told.remaining, 3, "as many units as keep a cost of four out, once");
    }
}

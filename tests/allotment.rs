//! Units that are drawn ahead: within the documented bound, without waiting, and given back.
//!
//! Time is paused, so that a sleep moves it and takes none, but for the test on a real Redis.

mod support;

#[allow(dead_code, reason = "the example uses all of it")]
#[path = "../examples/simulate/fleet.rs"]
mod fleet;

use std::{
    convert::Infallible,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use fleet::{Fleet, Random, Weather};
use http::{Request, Response};
use proptest::prelude::*;
use support::{assert_all_keys_expire, calls, server::Server};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::{Instant, advance, sleep},
};
use tollgate::{
    Decision, Demand, Key, Limiter, ManualClock, Memory, OnError, Policy, Quota, RateLimitLayer, Redis, Rule,
    layer::global,
    limit::{Adjustment, Algorithm, Answer, Store},
};
use tower::{Layer, Service, ServiceExt, service_fn};

/// A store that passes for a shared one. It follows tokio's paused time and counts how often it is asked.
#[derive(Clone, Debug)]
struct Remote {
    memory: Memory,
    clock: ManualClock,
    started: Instant,
    asked: Arc<AtomicUsize>,
}

impl Remote {
    fn new() -> Self {
        let (memory, clock) = Memory::manual();
        Self { memory, clock, started: Instant::now(), asked: Arc::default() }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// The store's time since 1970. It starts a second into a minute, so that nothing begins with a window.
    fn now(&self) -> Duration {
        let start = Duration::from_secs(1_767_225_601);
        self.clock.advance((start + self.started.elapsed()).saturating_sub(self.clock.elapsed_since_epoch()));
        self.clock.elapsed_since_epoch()
    }

    /// The store as of now.
    fn memory(&self) -> &Memory {
        self.now();
        &self.memory
    }

    /// What is left in the store itself.
    async fn left(&self, policy: &Policy) -> u64 {
        let demand = [Demand::new(policy, "all").cost(0)];
        let decision = self.memory().decide(&demand).await.expect("memory never fails");
        decision.outcomes()[0].remaining()
    }
}

impl Store for Remote {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.memory().decide(demands)
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.memory().settle(adjustments)
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        self.memory().reset(policy, subject)
    }

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        self.memory().block(policy, subject, long)
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

/// Ten thousand a minute, of which a process may hold a thousand.
fn policies() -> [Policy; 4] {
    let quota = Quota::per_minute(10_000);
    [
        Policy::fixed_window("fixed", quota),
        Policy::fixed_window("aligned", quota).aligned(),
        Policy::sliding_window("sliding", quota),
        Policy::token_bucket("bucket", quota),
    ]
    .map(|policy| policy.on_error(OnError::Deny).allotted(10))
}

/// Asks some times, once a millisecond; returns how many were let through, and how many of those by the process alone.
async fn ask(limiter: &Limiter, policy: &Policy, times: usize) -> (usize, usize) {
    let (mut passed, mut alone) = (0, 0);
    for _ in 0..times {
        let decision = limiter.check(policy, "all").await;
        passed += usize::from(decision.is_allowed());
        alone += usize::from(decision.is_allotted());
        assert!(!decision.is_degraded());
        sleep(Duration::from_millis(1)).await;
    }
    (passed, alone)
}

/// Polls once: what is there at once.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_asks_the_store_seldom_and_a_cold_one_each_time() {
    for policy in policies() {
        let remote = Remote::new();
        let limiter = Limiter::new(remote.clone());
        let (passed, alone) = ask(&limiter, &policy, 1_000).await;
        assert_eq!(passed, 1_000);
        assert!(alone > 980, "{alone} of 1000 under {}", policy.name());
        assert!(remote.asked() < 50, "{} calls under {}", remote.asked(), policy.name());

        let before = remote.asked();
        for _ in 0..20 {
            assert!(!limiter.check(&policy, "seldom").await.is_allotted());
            sleep(Duration::from_millis(50)).await;
        }
        assert!(remote.asked() - before >= 20);
    }
}

#[tokio::test(start_paused = true)]
async fn a_warm_decision_does_not_wait() {
    // So far away that each decision of its own would take a tenth of a batch's time.
    let weather = Weather { trip: Duration::from_millis(10), failing: 0, out: (0, 0) };
    for policy in policies() {
        let fleet = Fleet::new(weather, 1);
        let limiter = fleet.process().limiter;
        ask(&limiter, &policy, 300).await;
        let before = fleet.log().calls;
        for _ in 0..1_000 {
            let decision = at_once(limiter.check(&policy, "all")).expect("there at the first poll");
            assert!(decision.is_allowed() && decision.is_allotted());
            sleep(Duration::from_millis(1)).await;
        }
        assert!(fleet.log().calls - before <= 100, "{} calls", fleet.log().calls - before);
    }
}

#[test]
fn a_warm_decision_allocates_nothing() {
    for policy in policies() {
        let limiter = Limiter::new(paused().block_on(async { Remote::new() }));
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            for _ in 0..2_000 {
                assert!(limiter.check(&policy, "all").await.is_allowed());
                tokio::task::yield_now().await;
            }
        });
        // Without a runtime nothing is drawn: what is there is spent.
        let counted = allocation_counter::measure(|| {
            for _ in 0..10 {
                let decision = at_once(limiter.check(&policy, "all")).expect("there at once");
                assert!(decision.is_allotted());
            }
        });
        assert_eq!(counted.count_total, 0, "{}", policy.name());
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_says_that_it_is_allotted_and_what_is_left() {
    for policy in policies() {
        let remote = Remote::new();
        let limiter = Limiter::new(remote.clone());
        ask(&limiter, &policy, 500).await;
        let demand = [Demand::new(&policy, "all")];
        let (decision, charge) = limiter.decide(&demand).await;
        assert!(decision.is_allotted() && charge.is_empty());
        let outcome = &decision.outcomes()[0];
        assert_eq!((outcome.policy(), outcome.quota()), (policy.name(), policy.quota()));
        // A bucket has refilled a unit each six milliseconds, of which the process knows up to the last draw.
        let known = 10_000 - 501..=10_000 - 501 + 501 / 6;
        assert!(known.contains(&outcome.remaining()), "{outcome:?}");
        assert!(outcome.full_in() > Duration::ZERO && outcome.full_in() <= Duration::from_secs(60), "{outcome:?}");
        assert!(outcome.next_unit_in() > Duration::ZERO);
        // To peek, to ask more than what is held, and to ask for something else too, are the store's.
        assert!(!limiter.peek(&policy, "all").await.is_allotted());
        assert!(!limiter.decide(&[Demand::new(&policy, "all").cost(2_000)]).await.0.is_allotted());
        let other = Policy::fixed_window("other", Quota::per_minute(10_000));
        let both = [Demand::new(&policy, "all"), Demand::new(&other, "all")];
        assert!(!limiter.decide(&both).await.0.is_allotted());
    }
}

#[tokio::test(start_paused = true)]
async fn several_policies_are_spent_together_or_not_at_all() {
    let remote = Remote::new();
    let limiter = Limiter::new(remote.clone());
    let [fixed, _, sliding, _] = policies();
    let both = [Demand::new(&fixed, "all"), Demand::new(&sliding, "all")];
    let mut alone = 0;
    for _ in 0..1_000 {
        let (decision, _) = limiter.decide(&both).await;
        assert!(decision.is_allowed());
        assert_eq!(
            decision.outcomes().iter().map(|outcome| outcome.policy()).collect::<Vec<_>>(),
            ["fixed", "sliding"]
        );
        alone += usize::from(decision.is_allotted());
        sleep(Duration::from_millis(1)).await;
    }
    assert!(alone > 970, "{alone}");
    assert!(remote.asked() < 100, "{}", remote.asked());
    assert!(limiter.shutdown(Duration::from_secs(1)).await);
    for policy in [&fixed, &sliding] {
        assert_eq!(remote.left(policy).await, 9_000);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_drawn_for_what_the_store_decides_anyway() {
    let remote = Remote::new();
    let limiter = Limiter::new(remote.clone());
    let [fixed, ..] = policies();
    let exact = Policy::fixed_window("exact", Quota::per_minute(10_000));
    let both = [Demand::new(&fixed, "all"), Demand::new(&exact, "all")];
    for _ in 0..300 {
        assert!(limiter.decide(&both).await.0.is_allowed());
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(remote.asked(), 300);
}

#[tokio::test(start_paused = true)]
async fn a_local_store_is_asked_each_time() {
    let limiter = Limiter::new(Memory::new());
    let policy = Policy::fixed_window("p", Quota::per_day(100)).allotted(50);
    for left in (0..100).rev() {
        let decision = limiter.check(&policy, "all").await;
        assert!(!decision.is_allotted());
        assert_eq!(decision.remaining(), Some(left));
    }
}

#[tokio::test(start_paused = true)]
async fn idle_units_are_there_for_others_after_the_hold_time() {
    for policy in policies() {
        let remote = Remote::new();
        let (busy, other) = (Limiter::new(remote.clone()), Limiter::new(remote.clone()));
        let (passed, _) = ask(&busy, &policy, 400).await;
        assert_eq!(passed, 400);
        let held = 10_000 - 400 - remote.left(&policy).await.min(9_600);
        assert!(held >= 50 || policy.algorithm() == Algorithm::TokenBucket, "{held} under {}", policy.name());
        sleep(Duration::from_millis(1_300)).await;
        // All of the rest, or somebody holds a unit of it still.
        let rest = Demand::new(&policy, "all").cost(9_600);
        assert!(other.decide(&[rest]).await.0.is_allowed(), "{}", policy.name());
        // And nothing is left that runs.
        let before = remote.asked();
        sleep(Duration::from_secs(30)).await;
        assert_eq!(remote.asked(), before);
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_everything_back_and_draws_nothing_any_more() {
    for trip in [0, 20] {
        for policy in policies().into_iter().filter(|policy| policy.algorithm() != Algorithm::TokenBucket) {
            let weather = Weather { trip: Duration::from_millis(trip), failing: 0, out: (0, 0) };
            let fleet = Fleet::new(weather, 1);
            let (busy, other) = (fleet.process().limiter, fleet.process().limiter);
            let (passed, _) = ask(&busy, &policy, 400).await;
            assert_eq!(passed, 400);
            assert!(busy.shutdown(Duration::from_millis(200)).await);
            let (decision, _) = other.decide(&[Demand::new(&policy, "all").cost(9_601)]).await;
            assert!(!decision.is_allowed());
            assert_eq!(decision.remaining(), Some(9_600), "{}", policy.name());
            let (passed, alone) = ask(&busy, &policy, 50).await;
            assert_eq!((passed, alone), (50, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_says_when_something_has_not_arrived() {
    let [policy, ..] = policies();
    let weather = Weather { trip: Duration::from_millis(5), failing: 100, out: (400, 10_000) };
    let limiter = Fleet::new(weather, 1).process().limiter;
    ask(&limiter, &policy, 300).await;
    sleep(Duration::from_millis(100)).await;
    assert!(!limiter.shutdown(Duration::from_secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn a_reset_or_a_block_voids_what_is_held() {
    for policy in policies() {
        let remote = Remote::new();
        let limiter = Limiter::new(remote.clone());
        ask(&limiter, &policy, 300).await;
        assert!(at_once(limiter.check(&policy, "all")).expect("held").is_allotted());
        limiter.block(&policy, "all", Duration::from_secs(5)).await.expect("blocked");
        let decision = limiter.check(&policy, "all").await;
        assert!(!decision.is_allowed() && decision.outcomes()[0].is_blocked());
        limiter.unblock(&policy, "all").await.expect("unblocked");

        ask(&limiter, &policy, 300).await;
        limiter.reset(&policy, "all").await.expect("reset");
        let decision = limiter.check(&policy, "all").await;
        assert!(!decision.is_allotted());
        assert_eq!(decision.remaining(), Some(9_999), "{}", policy.name());
        // What was held then does not go back either: it would take from what is used since.
        sleep(Duration::from_secs(2)).await;
        assert!(limiter.shutdown(Duration::from_secs(1)).await);
        assert!(remote.left(&policy).await == 9_999 || policy.algorithm() == Algorithm::TokenBucket);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fixed_window_is_never_spent_over_its_end() {
    let quota: Quota = "1000/700ms".parse().expect("a quota");
    for policy in
        [Policy::fixed_window("p", quota).allotted(50), Policy::fixed_window("p", quota).aligned().allotted(50)]
    {
        let remote = Remote::new();
        let limiters = [(); 3].map(|()| Limiter::new(remote.clone()));
        // Three in 433 microseconds are almost five times the limit. By the store's clock:
        let mut passed = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..3_000 {
            for limiter in &limiters {
                let decision = limiter.check(&policy, "all").await;
                let at = remote.now().as_millis();
                if decision.is_allowed() {
                    passed.push(at);
                }
                if !decision.is_allotted() {
                    ends.push(at + decision.outcomes()[0].full_in().as_millis());
                }
            }
            // Not on whole milliseconds, as windows are.
            advance(Duration::from_micros(433)).await;
            tokio::task::yield_now().await;
        }
        ends.sort_unstable();
        ends.dedup();
        let used = |end: u128| passed.iter().filter(|at| (end - 700..end).contains(*at)).count();
        let windows: Vec<usize> = ends.iter().map(|end| used(*end)).collect();
        assert!(windows.len() >= 2 && windows.iter().all(|used| *used <= 1_000), "{windows:?}");
        assert!(windows.iter().filter(|used| **used > 700).count() >= 1, "{windows:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_spent_while_the_store_is_down_and_no_more() {
    for policy in policies() {
        // From then on nothing arrives, or is answered.
        let weather = Weather { trip: Duration::from_millis(2), failing: 100, out: (300, 100_000) };
        let fleet = Fleet::new(weather, 1);
        let process = fleet.process();
        for _ in 0..300 {
            assert!(process.ask(&policy, "all", 1).await.is_allowed());
            sleep(Duration::from_millis(1)).await;
        }
        let (mut alone, mut denied) = (0, 0);
        for _ in 0..1_500 {
            let decision = process.ask(&policy, "all", 1).await;
            assert_eq!(decision.is_allowed(), decision.is_allotted());
            alone += usize::from(decision.is_allotted());
            denied += usize::from(decision.is_unavailable());
        }
        assert!((1..=1_000).contains(&alone), "{alone}");
        assert_eq!(alone + denied, 1_500);
    }
}

#[test]
fn a_limiter_that_outlives_a_runtime_draws_on_the_next() {
    let [policy, ..] = policies();
    let remote = paused().block_on(async { Remote::new() });
    let limiter = Limiter::new(remote.clone());
    for _ in 0..3 {
        // Each ends with a draw, a sweeper and units that it knows of.
        let alone = paused().block_on(async { ask(&limiter, &policy, 300).await.1 });
        assert!(alone > 200, "{alone}");
    }
    // The last one takes care of what is left of all of them.
    let left = paused().block_on(async {
        ask(&limiter, &policy, 300).await;
        sleep(Duration::from_millis(1_300)).await;
        remote.left(&policy).await
    });
    assert_eq!(left, 10_000 - 4 * 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_threads_each_unit_is_spent_or_given_back() {
    let remote = Remote::new();
    let limiters = [(); 2].map(|()| Limiter::new(remote.clone()).deny_max_age(Duration::ZERO));
    let limit = 20_000;
    let policy = |name| Policy::fixed_window(name, Quota::per_day(limit)).aligned().on_error(OnError::Deny).allotted(5);
    let (one, two) = (policy("one"), policy("two"));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (limiter, one, two) = (limiters[task % 2].clone(), one.clone(), two.clone());
        tasks.spawn(async move {
            // In either order, so that a wait in a circle would show.
            let mut both = [Demand::new(&one, "all"), Demand::new(&two, "all")];
            let (mut passed, mut alone) = (0, 0);
            for _ in 0..4_000 {
                both.reverse();
                let (decision, _) = limiter.decide(&both).await;
                passed += u64::from(decision.is_allowed());
                alone += u64::from(decision.is_allotted());
                tokio::task::yield_now().await;
            }
            (passed, alone)
        });
    }
    let counts = tasks.join_all().await;
    let passed: u64 = counts.iter().map(|(passed, _)| passed).sum();
    let alone: u64 = counts.iter().map(|(_, alone)| alone).sum();
    for limiter in &limiters {
        assert!(limiter.shutdown(Duration::from_secs(10)).await);
    }
    assert!(alone > 1_000, "{alone} of {passed}");
    for policy in [&one, &two] {
        assert_eq!(passed + remote.left(policy).await, limit);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_can_be_allotted() {
    let limiter = Limiter::new(Remote::new());
    let rule = |percent| Rule::new("tenant", Quota::per_minute(10_000)).by(global()).allotted(percent);
    for percent in [0, 51] {
        let error = RateLimitLayer::new(limiter.clone()).try_rule(rule(percent)).expect_err("out of range");
        assert!(error.is_invalid() && error.to_string().contains("1 to 50"), "{error}");
    }
    let layer = RateLimitLayer::new(limiter).rule(rule(10)).expose_decision();
    let mut service = layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) }));
    let mut alone = 0;
    for _ in 0..500 {
        let response = service.ready().await.expect("ready").call(Request::new(())).await.expect("an answer");
        assert!(response.status().is_success() && response.headers().contains_key("ratelimit"));
        let decision = response.extensions().get::<Decision>().expect("exposed");
        alone += usize::from(decision.is_allotted());
        sleep(Duration::from_millis(1)).await;
    }
    assert!(alone > 480, "{alone}");
}

/// A policy, who asks how often, and how far the store is.
#[derive(Clone, Debug)]
struct History {
    policy: Policy,
    percent: u32,
    processes: usize,
    weather: Weather,
    /// Milliseconds between rounds, how many ask in each, and what a request costs at most.
    rounds: Vec<(u64, u64, u64)>,
    crash: bool,
    seed: u64,
}

fn history() -> impl Strategy<Value = History> {
    // A unit refills in whole microseconds, which makes the comparison exact.
    let quota =
        (prop_oneof![Just(100u64), Just(250), Just(1_000)], prop_oneof![Just(300u64), Just(1_000), Just(4_000)]);
    let policy = (quota, 0..4u8, 1..=50u32).prop_map(|((limit, ms), kind, percent)| {
        let quota = Quota::new(limit, Duration::from_millis(ms)).expect("a quota");
        let policy = match kind {
            0 => Policy::fixed_window("p", quota),
            1 => Policy::fixed_window("p", quota).aligned(),
            2 => Policy::sliding_window("p", quota),
            _ => Policy::token_bucket("p", quota),
        };
        (policy.on_error(OnError::Deny).allotted(percent), percent)
    });
    let weather = (prop_oneof![Just(0u64), 1..12_000u64, 1..140_000u64], 0..90u64, 0..1_500u64, 0..2_000u64).prop_map(
        |(trip, failing, from, long)| {
            let (trip, failing) = (Duration::from_micros(trip), if from % 2 == 0 { 0 } else { failing });
            Weather { trip, failing, out: (from, from + long) }
        },
    );
    let round = (
        prop_oneof![20 => 1..8u64, 4 => Just(0), 2 => 50..150u64, 1 => 900..1_600u64],
        prop_oneof![6 => 1..4u64, 1 => 10..60u64],
        prop_oneof![4 => Just(1u64), 1 => 1..6u64],
    );
    (policy, 1..6usize, weather, proptest::collection::vec(round, 50..400), any::<bool>(), any::<u64>()).prop_map(
        |((policy, percent), processes, weather, rounds, crash, seed)| History {
            policy,
            percent,
            processes,
            weather,
            rounds,
            crash,
            seed,
        },
    )
}

async fn play(history: &History) -> Fleet {
    let fleet = Fleet::new(history.weather, history.seed);
    let mut random = Random::new(history.seed);
    let mut processes: Vec<_> = (0..history.processes).map(|_| fleet.process()).collect();
    let mut requests = JoinSet::new();
    for (i, (wait, times, cost)) in history.rounds.iter().enumerate() {
        for _ in 0..*times {
            // The first is asked as often as all others.
            let one = random.below(2) * random.below(u64::try_from(processes.len()).expect("few"));
            let process = processes[usize::try_from(one).expect("few")].clone();
            let (policy, cost) = (history.policy.clone(), 1 + random.below(*cost));
            requests.spawn(async move {
                let _ = process.ask(&policy, "all", cost).await;
            });
        }
        if history.crash && i == history.rounds.len() / 2 {
            processes[0].crash();
            processes[0] = fleet.process();
        }
        sleep(Duration::from_millis(*wait)).await;
    }
    requests.join_all().await;
    // What nobody waits for any more is still to be written down: an answer that comes too late is a loss.
    sleep(2 * history.weather.trip + SOON).await;
    fleet
}

/// More than a wheel's tick.
const SOON: Duration = Duration::from_millis(10);

proptest! {
    #![proptest_config(ProptestConfig { cases: histories(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_documented_bound_holds(history in history()) {
        let fleet = paused().block_on(play(&history));
        let verdict = fleet.log().judge(&history.policy);
        let (capacity, processes) = (history.policy.capacity(), history.processes + usize::from(history.crash));
        let cap = (capacity * u64::from(history.percent) / 100).max(1);
        let held = u64::try_from(processes).expect("few") * cap;
        let over = match history.policy.algorithm() {
            Algorithm::FixedWindow => 0,
            Algorithm::SlidingWindow => held.min(capacity),
            _ => held,
        };
        prop_assert!(verdict.over <= over, "{verdict:?} over {over}");
        prop_assert!(verdict.under <= held, "{verdict:?} under {held}");
    }
}

fn histories() -> u32 {
    std::env::var("TOLLGATE_HISTORIES").map_or(100, |count| count.parse().expect("a number"))
}

#[tokio::test]
async fn a_hot_key_on_redis_is_spent_here_and_given_back_there() {
    let server = Server::start();
    let mut admin = server.admin();
    let open = || Limiter::new(Redis::open(&server.url()).expect("an address")).deadline(Duration::from_secs(10));
    let (limiter, other) = (open(), open());
    for policy in [
        Policy::fixed_window("fixed", Quota::per_hour(100_000)),
        Policy::sliding_window("sliding", Quota::per_hour(100_000)),
        Policy::token_bucket("bucket", Quota::per_hour(100_000)),
    ] {
        let policy = policy.on_error(OnError::Deny).allotted(2);
        let before = calls(&mut admin, "evalsha");
        let mut alone = 0;
        for _ in 0..5_000 {
            let decision = limiter.check(&policy, "all").await;
            assert!(decision.is_allowed() && !decision.is_degraded());
            alone += u64::from(decision.is_allotted());
            tokio::task::yield_now().await;
        }
        let asked = calls(&mut admin, "evalsha") - before;
        assert!(asked <= 500 && alone >= 4_500, "{asked} calls, {alone} alone under {}", policy.name());

        // Idle units go back to the server after a real second: its clock is real.
        let mut left = other.peek(&policy, "all").await.remaining();
        for _ in 0..60 {
            if left >= Some(95_000) {
                break;
            }
            sleep(Duration::from_millis(50)).await;
            left = other.peek(&policy, "all").await.remaining();
        }
        // A bucket has refilled some 28 a second meanwhile.
        let most = if policy.algorithm() == Algorithm::TokenBucket { 95_300 } else { 95_000 };
        assert!(left >= Some(95_000) && left <= Some(most), "{left:?} under {}", policy.name());
    }
    assert_all_keys_expire(&mut admin);
}

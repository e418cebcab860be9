//! Refusals that are remembered: the same answers as without, and nothing asked of the store meanwhile.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use proptest::{collection::vec, prelude::*};
use support::{calls, server::Server};
use tollgate::{
    Demand, Key, Limiter, ManualClock, Memory, OnError, Policy, Quota, Redis,
    limit::{Adjustment, Answer, Charge, Escalation, Outcome, Store},
};

/// A store that passes for a shared one, with a clock that a test moves. It counts how often it is asked.
#[derive(Debug)]
struct Remote(Memory, Arc<AtomicUsize>);

impl Store for Remote {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.decide(demands)
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        self.0.settle(adjustments)
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        self.0.reset(policy, subject)
    }

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        self.0.block(policy, subject, long)
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn remote(max_age: Duration) -> (Limiter, ManualClock, Arc<AtomicUsize>) {
    let ((memory, clock), asked) = (Memory::manual(), Arc::default());
    (Limiter::new(Remote(memory, Arc::clone(&asked))).deny_max_age(max_age), clock, asked)
}

fn policies() -> [Policy; 5] {
    let quota: Quota = "6/600ms".parse().expect("a quota");
    let escalation = |after, block| {
        Escalation::new(after, Duration::from_millis(600), Duration::from_millis(block)).up_to(Duration::from_secs(1))
    };
    [
        Policy::fixed_window("fixed", quota),
        Policy::fixed_window("aligned", quota).aligned(),
        Policy::sliding_window("sliding", quota).escalate(escalation(3, 300)),
        Policy::token_bucket("bucket", quota).escalate(escalation(2, 150)),
        Policy::token_bucket("fast", Quota::per_second(900)).burst(8),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Decide(Vec<(usize, u32, u64)>),
    Settle(usize, u64),
    Reset(usize, u32),
    Block(usize, u32, u64),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let demand = (0..5usize, 0..2u32, prop_oneof![4 => Just(1), 2 => 2..5u64, 1 => Just(0), 1 => Just(9)]);
    prop_oneof![
        20 => vec(demand, 1..3).prop_map(Op::Decide),
        2 => (0..9usize, 0..9u64).prop_map(|(charge, cost)| Op::Settle(charge, cost)),
        1 => (0..5usize, 0..2u32).prop_map(|(policy, subject)| Op::Reset(policy, subject)),
        1 => (0..5usize, 0..2u32, 0..300u64).prop_map(|(policy, subject, ms)| Op::Block(policy, subject, ms)),
        8 => prop_oneof![0..5_000u64, 0..200_000u64].prop_map(Op::Pass),
    ]
}

fn assert_alike(plain: &Outcome, cached: &Outcome) {
    assert_eq!(
        (plain.is_allowed(), plain.remaining()),
        (cached.is_allowed(), cached.remaining()),
        "{plain:?} {cached:?}"
    );
    assert_eq!((plain.is_never(), plain.is_blocked()), (cached.is_never(), cached.is_blocked()));
    let times =
        |outcome: &Outcome| [outcome.next_unit_in(), outcome.full_in(), outcome.passes_in().unwrap_or_default()];
    for (plain_time, cached_time) in times(plain).into_iter().zip(times(cached)) {
        // Times are told in whole microseconds, and fixed windows end at whole milliseconds.
        let grain = if plain.policy() == "fixed" || plain.policy() == "aligned" { 1_000 } else { 9 };
        assert!(plain_time.abs_diff(cached_time) <= Duration::from_micros(grain), "{plain:?} {cached:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_and_without_the_answers_are_the_same(history in vec(op(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let ((plain, plain_clock, _), (cached, cached_clock, _)) = (remote(Duration::ZERO), remote(Duration::MAX));
            let policies = policies();
            let mut charges: Vec<[Charge; 2]> = Vec::new();
            for op in history {
                match op {
                    Op::Decide(asked) => {
                        let demands: Vec<_> = asked.iter().map(|(i, subject, cost)| Demand::new(&policies[*i], *subject).cost(*cost)).collect();
                        let ((p, p_charge), (c, c_charge)) = (plain.decide(&demands).await, cached.decide(&demands).await);
                        p.outcomes().iter().zip(c.outcomes()).for_each(|(p, c)| assert_alike(p, c));
                        assert_eq!(p.is_allowed(), c.is_allowed());
                        charges.push([p_charge, c_charge]);
                    }
                    Op::Settle(charge, cost) if charge < charges.len() => {
                        for charge in charges.swap_remove(charge) {
                            charge.settle(cost).await.expect("settled");
                        }
                    }
                    Op::Settle(..) => {}
                    Op::Reset(i, subject) => {
                        plain.reset(&policies[i], subject).await.expect("reset");
                        cached.reset(&policies[i], subject).await.expect("reset");
                    }
                    Op::Block(i, subject, ms) => {
                        plain.block(&policies[i], subject, Duration::from_millis(ms)).await.expect("blocked");
                        cached.block(&policies[i], subject, Duration::from_millis(ms)).await.expect("blocked");
                    }
                    Op::Pass(micros) => {
                        // tokio's paused clock counts milliseconds.
                        let time = Duration::from_millis(micros / 1_000);
                        plain_clock.advance(time);
                        cached_clock.advance(time);
                        tokio::time::advance(time).await;
                    }
                }
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_process_gives_back_is_seen_after_the_age() {
    let ((memory, _), asked) = (Memory::manual(), Arc::default());
    let limiter = Limiter::new(Remote(memory.clone(), Arc::clone(&asked)));
    let policy = Policy::token_bucket("daily", Quota::per_day(1));
    assert!(limiter.check(&policy, "a").await.is_allowed());
    for _ in 0..100 {
        assert!(!limiter.check(&policy, "a").await.is_allowed());
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    memory.reset(&policy, &Key::from("a")).await.expect("reset by somebody else");
    assert!(!limiter.check(&policy, "a").await.is_allowed());
    tokio::time::advance(Limiter::DEFAULT_DENY_MAX_AGE).await;
    assert!(limiter.check(&policy, "a").await.is_allowed());
    // What this process does itself is seen at once.
    assert!(!limiter.check(&policy, "a").await.is_allowed());
    limiter.reset(&policy, "a").await.expect("reset");
    assert!(limiter.check(&policy, "a").await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn many_refused_clients_are_remembered_within_bounds() {
    let (limiter, _, asked) = remote(Duration::from_secs(1));
    let policy = Policy::token_bucket("daily", Quota::per_day(1));
    for client in 0..100_000u32 {
        let _ = limiter.check(&policy, client).await;
        let _ = limiter.check(&policy, client).await;
    }
    let before = asked.load(Ordering::Relaxed);
    // Those refused last are still known, and one that was pushed out is only asked about again.
    for client in 99_000..100_000u32 {
        assert!(!limiter.check(&policy, client).await.is_allowed());
    }
    assert!(asked.load(Ordering::Relaxed) - before < 50);
    assert!(!limiter.check(&policy, 0u32).await.is_allowed());
}

#[tokio::test]
async fn a_flood_of_refused_requests_costs_redis_nothing() {
    let server = Server::start();
    let mut admin = server.admin();
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address")).deadline(Duration::from_secs(10));
    for policy in [
        Policy::fixed_window("fixed", Quota::per_hour(3)),
        Policy::sliding_window("sliding", Quota::per_hour(3)),
        Policy::token_bucket("bucket", Quota::per_hour(3)),
    ] {
        let policy = policy.on_error(OnError::Deny);
        let mut admitted = 0;
        while limiter.check(&policy, "client").await.is_allowed() {
            admitted += 1;
        }
        let before = calls(&mut admin, "evalsha");
        for _ in 0..5_000 {
            let decision = limiter.check(&policy, "client").await;
            assert!(!decision.is_allowed() && !decision.is_degraded());
            assert!(decision.retry_after().is_some_and(|wait| wait > Duration::from_secs(1_000)));
        }
        assert_eq!(admitted, 3);
        // One a second, the age of what is remembered.
        assert!(calls(&mut admin, "evalsha") - before <= 2);
    }
}

/// A store some way off.
#[derive(Debug)]
struct Distant(Remote);

impl Store for Distant {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        let answer = self.0.decide(demands);
        Answer::pending(async {
            tokio::time::sleep(Duration::from_millis(5)).await; // paused time: how far off it is
            answer.await
        })
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        self.0.settle(adjustments)
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        self.0.reset(policy, subject)
    }

    fn is_shared(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn many_at_once_ask_the_store_one_by_one_as_what_is_remembered_gets_old() {
    static DAILY: Policy = Policy::token_bucket("daily", Quota::per_day(1)).on_error(OnError::Deny);
    let asked = Arc::new(AtomicUsize::new(0));
    let limiter = Limiter::new(Distant(Remote(Memory::manual().0, Arc::clone(&asked))));
    assert!(limiter.check(&DAILY, "user:42").await.is_allowed());
    assert!(!limiter.check(&DAILY, "user:42").await.is_allowed());
    asked.store(0, Ordering::Relaxed);
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let limiter = limiter.clone();
        flood.spawn(async move {
            for _ in 0..10_000 {
                assert!(!limiter.check(&DAILY, "user:42").await.is_allowed());
                tokio::time::sleep(Duration::from_millis(1)).await; // paused time: ten seconds in all
            }
        });
    }
    while let Some(done) = flood.join_next().await {
        done.expect("a flood");
    }
    // A second is how long a refusal is remembered; news is asked for a little before.
    let asked = asked.load(Ordering::Relaxed);
    assert!((10..=13).contains(&asked), "{asked}");
}

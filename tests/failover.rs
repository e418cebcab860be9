//! What is decided while a store does not answer, and how it is found out that it does again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tollgate::{
    Decision, Demand, Error, Key, Limiter, Memory, OnError, Policy, Quota,
    limit::{Adjustment, Answer, Store},
};

/// A store that others use too, and that fails when it is told to.
#[derive(Clone, Debug, Default)]
struct Remote {
    memory: Memory,
    mood: Arc<AtomicU8>,
    asked: Arc<AtomicUsize>,
}

const WELL: u8 = 0;
const FAILING: u8 = 1;
const SILENT: u8 = 2;
/// Answers late, but in time.
const SLOW: u8 = 3;

impl Remote {
    fn be(&self, mood: u8) {
        self.mood.store(mood, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::SeqCst)
    }

    /// A process that uses it, and asks it each time while it is well.
    fn process(&self) -> Limiter {
        Limiter::new(self.clone()).deny_max_age(Duration::ZERO)
    }

    fn answer<T: Send + Unpin + 'static>(&self, answer: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match self.mood.load(Ordering::SeqCst) {
            FAILING => Answer::pending(async { Err(Error::store("this is a bad day")) }),
            SILENT => Answer::pending(std::future::pending()),
            SLOW => {
                let answer = answer();
                Answer::pending(async {
                    tokio::time::sleep(Duration::from_millis(90)).await;
                    answer.await
                })
            }
            _ => answer(),
        }
    }
}

impl Store for Remote {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.answer(|| self.memory.decide(demands))
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        self.answer(|| self.memory.settle(adjustments))
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        self.answer(|| self.memory.reset(policy, subject))
    }

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        self.answer(|| self.memory.block(policy, subject, long))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn policies(limit: u64) -> [Policy; 4] {
    let quota = Quota::per_day(limit);
    [
        Policy::fixed_window("fixed", quota),
        Policy::fixed_window("aligned", quota).aligned(),
        Policy::sliding_window("sliding", quota),
        Policy::token_bucket("bucket", quota),
    ]
}

/// Asks until it is refused, and returns how often it was not.
async fn drain(limiter: &Limiter, policy: &Policy) -> (usize, Decision) {
    for admitted in 0.. {
        let decision = limiter.check(policy, "user:42").await;
        if !decision.is_allowed() {
            return (admitted, decision);
        }
        assert!(admitted < 10_000, "it is never refused");
    }
    unreachable!("the range has no end")
}

fn assert_over_the_limit(decision: &Decision, policy: &Policy) {
    let name = policy.name();
    assert!(decision.is_degraded() && !decision.is_allowed() && !decision.is_unavailable(), "{name}: {decision:?}");
    assert_eq!(decision.outcomes().len(), 1, "{name}");
    assert!(decision.retry_after().is_some_and(|wait| wait > Duration::ZERO), "{name}: {decision:?}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_hands_out_no_fresh_quota() {
    for mood in [FAILING, SILENT] {
        for policy in policies(20) {
            let remote = Remote::default();
            let limiter = remote.process();
            for _ in 0..5 {
                assert!(!limiter.check(&policy, "user:42").await.is_degraded());
            }
            let (_, charge) = limiter.decide(&[Demand::new(&policy, "user:42").cost(7)]).await;
            remote.be(mood);
            let (admitted, refused) = drain(&limiter, &policy).await;
            assert_eq!(admitted, 8, "{}", policy.name());
            assert_over_the_limit(&refused, &policy);
            // Nobody knows what has become of it there; here nothing is given back.
            let _ = charge.settle(0).await;
            assert!(!limiter.check(&policy, "user:42").await.is_allowed());
            // Who was not seen has this process's share.
            let other = limiter.check(&policy, "user:43").await;
            assert!(other.is_allowed() && other.is_degraded());
            assert_eq!(other.remaining(), Some(19), "{}", policy.name());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_was_refused_stays_refused_whoever_used_the_quota() {
    for replicas in [1, 8] {
        for policy in policies(20) {
            let remote = Remote::default();
            let (limiter, other) = (remote.process().replicas(replicas), remote.process());
            assert_eq!(drain(&other, &policy).await.0, 20);
            let refused = limiter.check(&policy, "user:42").await;
            assert!(!refused.is_allowed() && !refused.is_degraded());
            remote.be(FAILING);
            for _ in 0..10 {
                let still = limiter.check(&policy, "user:42").await;
                assert_over_the_limit(&still, &policy);
                // Not for longer than it was told, where nothing refills at a part of the rate.
                let longer = still.retry_after() > refused.retry_after().map(|wait| wait + Duration::from_millis(1));
                assert!(replicas > 1 || !longer, "{}: {still:?} after {refused:?}", policy.name());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_have_used_is_not_there_in_an_outage() {
    for policy in policies(20) {
        let remote = Remote::default();
        let (limiter, other) = (remote.process(), remote.process());
        for _ in 0..6 {
            assert!(other.check(&policy, "user:42").await.is_allowed());
            assert!(limiter.check(&policy, "user:42").await.is_allowed());
        }
        remote.be(FAILING);
        assert_eq!(drain(&limiter, &policy).await.0, 8, "{}", policy.name());
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_given_back_is_there_in_an_outage() {
    for policy in policies(20) {
        let remote = Remote::default();
        let limiter = remote.process();
        let (_, charge) = limiter.decide(&[Demand::new(&policy, "user:42").cost(15)]).await;
        charge.settle(3).await.expect("settled");
        assert!(limiter.check(&policy, "user:42").await.is_allowed());
        remote.be(FAILING);
        assert_eq!(drain(&limiter, &policy).await.0, 16, "{}", policy.name());
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_admits_no_more_in_an_outage_than_its_bound() {
    for policy in policies(80) {
        let remote = Remote::default();
        let fleet: Vec<Limiter> = (0..8).map(|_| remote.process().replicas(8)).collect();
        for limiter in &fleet[..4] {
            for _ in 0..5 {
                assert!(limiter.check(&policy, "user:42").await.is_allowed());
            }
        }
        remote.be(FAILING);
        let mut admitted = 0;
        for (i, limiter) in fleet.iter().enumerate() {
            let (more, refused) = drain(limiter, &policy).await;
            assert_over_the_limit(&refused, &policy);
            assert_eq!(more, if i < 4 { 5 } else { 10 }, "{} {i}", policy.name());
            admitted += more;
        }
        // Eight shares of ten, less what was used of them before.
        assert_eq!(admitted, 60, "{}", policy.name());
    }
}

#[tokio::test(start_paused = true)]
async fn a_share_is_at_least_one_unit_and_rounded_up() {
    for (replicas, share) in [(0, 10), (1, 10), (3, 4), (4, 3), (10, 1), (11, 1), (u32::MAX, 1)] {
        for policy in policies(10).into_iter().chain([Policy::token_bucket("burst", Quota::per_day(100)).burst(10)]) {
            let remote = Remote::default();
            remote.be(FAILING);
            let limiter = remote.process().replicas(replicas);
            assert_eq!(drain(&limiter, &policy).await.0, share, "{} {replicas}", policy.name());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_one_call_deny_outweighs_local_which_outweighs_allow() {
    let policy = |name, on_error| Policy::fixed_window(name, Quota::per_day(2)).on_error(on_error);
    let (allow, local) = (policy("allow", OnError::Allow), policy("local", OnError::Local));
    let deny = policy("deny", OnError::Deny);
    let remote = Remote::default();
    remote.be(FAILING);
    let limiter = remote.process();
    let ask = async |policies: &[&Policy]| {
        let demands: Vec<_> = policies.iter().map(|policy| Demand::new(policy, "user:42")).collect();
        let (decision, charge) = limiter.decide(&demands).await;
        assert!(decision.is_degraded() && charge.is_empty());
        decision
    };
    // Before and after the store is known to fail.
    for round in 0..10 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let denied = ask(&[&allow, &local, &deny]).await;
        assert!(denied.is_unavailable() && denied.outcomes().is_empty(), "{round}");
        assert!(ask(&[&deny, &allow]).await.is_unavailable() && ask(&[&local, &deny]).await.is_unavailable());
        let allowed = ask(&[&allow]).await;
        assert!(allowed.is_allowed() && allowed.outcomes().is_empty());
        // Two of them pass, in this order of outcomes; the one that allows counts nothing.
        let both = ask(&[&allow, &local]).await;
        assert_eq!(both.is_allowed(), round < 2, "{round}");
        assert!(!both.is_unavailable());
        let told: Vec<_> = both.outcomes().iter().map(|outcome| (outcome.policy(), outcome.is_allowed())).collect();
        assert_eq!(told, [("allow", true), ("local", round < 2)]);
        assert_eq!(both.outcomes()[0].remaining(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn once_it_is_known_to_be_silent_nobody_waits_but_one_at_a_time() {
    let [policy, ..] = policies(1_000_000);
    let remote = Remote::default();
    let limiter = remote.process();
    assert!(!limiter.check(&policy, "user:42").await.is_degraded());
    remote.be(SILENT);
    remote.asked();
    // A thousand at once wait for the deadline, and no longer.
    let started = tokio::time::Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        tasks.spawn(async move { limiter.check(&policy, "user:42").await });
    }
    assert!(tasks.join_all().await.iter().all(|decision| decision.is_allowed() && decision.is_degraded()));
    assert_eq!(started.elapsed(), Limiter::DEFAULT_DEADLINE);
    assert_eq!(remote.asked(), 1_000);

    // From then on each answers at once, for as long as nobody is due to find out.
    let started = tokio::time::Instant::now();
    for _ in 0..1_000 {
        assert!(limiter.check(&policy, "user:42").await.is_degraded());
    }
    assert_eq!((started.elapsed(), remote.asked()), (Duration::ZERO, 0));

    // In ten seconds with a request each millisecond, one waits at a time, and not often.
    let mut waited = 0;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10_000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let (limiter, policy) = (limiter.clone(), policy.clone());
        tasks.spawn(async move {
            let started = tokio::time::Instant::now();
            let decision = limiter.check(&policy, "user:42").await;
            (decision.is_degraded(), started.elapsed())
        });
    }
    for (degraded, took) in tasks.join_all().await {
        assert!(degraded && (took.is_zero() || took == Limiter::DEFAULT_DEADLINE), "{took:?}");
        waited += usize::from(!took.is_zero());
    }
    assert_eq!(remote.asked(), waited);
    assert!((25..=40).contains(&waited), "{waited} requests found out in ten seconds");

    // It answers again: that is seen within the longest pause and the probe that was under way.
    remote.be(WELL);
    let started = tokio::time::Instant::now();
    while limiter.check(&policy, "user:42").await.is_degraded() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(started.elapsed() <= Duration::from_millis(250 + 2), "{:?}", started.elapsed());
    for _ in 0..100 {
        assert!(!limiter.check(&policy, "user:42").await.is_degraded());
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_caller_goes_away_leaves_room_for_the_next() {
    let [policy, ..] = policies(100);
    let remote = Remote::default();
    let limiter = remote.process();
    remote.be(FAILING);
    for _ in 0..20 {
        assert!(limiter.check(&policy, "user:42").await.is_degraded());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    remote.be(SILENT);
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..3 {
        let given_up = tokio::time::timeout(Duration::from_millis(10), limiter.check(&policy, "user:42")).await;
        assert!(given_up.is_err(), "it was the probe");
    }
    remote.be(WELL);
    assert!(!limiter.check(&policy, "user:42").await.is_degraded());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_late_or_refuses_is_not_failing() {
    for policy in policies(3) {
        let remote = Remote::default();
        let limiter = remote.process();
        remote.be(SLOW);
        assert_eq!(drain(&limiter, &policy).await.0, 3);
        for _ in 0..20 {
            let refused = limiter.check(&policy, "user:42").await;
            assert!(!refused.is_allowed() && !refused.is_degraded());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn operators_are_heard_before_and_in_an_outage() {
    for policy in policies(5) {
        let remote = Remote::default();
        let limiter = remote.process();
        assert_eq!(drain(&limiter, &policy).await.0, 5);
        limiter.reset(&policy, "user:42").await.expect("reset");
        limiter.block(&policy, "user:13", Duration::from_secs(3_600)).await.expect("blocked");
        // Blocked by another process, and refused here for that.
        remote.process().block(&policy, "user:14", Duration::from_secs(3_600)).await.expect("blocked");
        assert!(limiter.check(&policy, "user:14").await.outcomes()[0].is_blocked());
        remote.be(FAILING);
        assert_eq!(drain(&limiter, &policy).await.0, 5, "{}", policy.name());
        for subject in ["user:13", "user:14"] {
            let refused = limiter.check(&policy, subject).await;
            assert!(refused.is_degraded() && refused.outcomes()[0].is_blocked(), "{} {subject}", policy.name());
        }
        // What is asked of the store fails, and holds in this process.
        assert!(limiter.reset(&policy, "user:42").await.expect_err("it fails").is_transient());
        assert!(limiter.check(&policy, "user:42").await.is_allowed());
        assert!(limiter.block(&policy, "user:15", Duration::from_secs(60)).await.is_err());
        assert!(!limiter.check(&policy, "user:15").await.is_allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_an_outage_is_not_remembered_after_it() {
    let [policy, ..] = policies(5);
    let remote = Remote::default();
    let limiter = Limiter::new(remote.clone()).deny_max_age(Duration::from_secs(60));
    remote.be(FAILING);
    assert_eq!(drain(&limiter, &policy).await.0, 5);
    remote.be(WELL);
    tokio::time::sleep(Duration::from_millis(250)).await;
    let decision = limiter.check(&policy, "user:42").await;
    assert!(decision.is_allowed() && !decision.is_degraded());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_turn_goes_on_in_an_outage() {
    let policy = Policy::token_bucket("bucket", Quota::per_day(5));
    let remote = Remote::default();
    remote.be(FAILING);
    let limiter = remote.process();
    for _ in 0..5 {
        limiter.until_allowed(&policy, "user:42", Duration::ZERO).await.expect("a unit");
    }
    let error = limiter.until_allowed(&policy, "user:42", Duration::from_secs(1)).await.expect_err("none is left");
    assert!(error.is_wait_too_long(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn units_drawn_ahead_are_used_and_none_are_drawn_from_a_share() {
    let [fixed, _, sliding, _] = policies(1_000);
    for policy in [fixed.allotted(10), sliding.allotted(10)] {
        let remote = Remote::default();
        let limiter = remote.process();
        let mut admitted = 0;
        for _ in 0..300 {
            admitted += usize::from(limiter.check(&policy, "user:42").await.is_allowed());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(remote.asked() < 100, "most were drawn ahead");
        remote.be(FAILING);
        let mut allotted = 0;
        loop {
            let decision = limiter.check(&policy, "user:42").await;
            // Whatever wants to draw has the time to.
            tokio::time::sleep(Duration::from_millis(1)).await;
            if !decision.is_allowed() {
                break;
            }
            assert!(decision.is_degraded() != decision.is_allotted());
            allotted += usize::from(decision.is_allotted());
            admitted += 1;
        }
        assert!(allotted > 0);
        assert_eq!(admitted, 1_000, "{}", policy.name());
    }
}

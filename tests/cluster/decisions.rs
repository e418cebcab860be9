//! Decisions on a cluster that is well.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;
use tollgate::{Demand, Limiter, Quota, Redis};

use crate::{
    open, patient, policies,
    support::{assert_all_keys_expire, calls, cluster::Cluster},
};

#[tokio::test(flavor = "multi_thread")]
async fn exactly_n_pass_and_all_a_limiter_does_works() {
    let cluster = Cluster::start(3);
    exactly_n_pass(&cluster).await;
    one_subject_is_decided_in_one_call(&cluster).await;
    subjects_in_several_slots_are_charged_together_or_not_at_all(&cluster).await;
    exactly_n_of_concurrent_pairs_pass(&cluster).await;
    blocks_and_resets_work_everywhere(&cluster).await;
    whoever_goes_away_in_the_middle_gives_back(&cluster).await;
    a_lost_script_is_brought_again(&cluster).await;
    refusals_are_remembered_and_units_drawn_ahead(&cluster).await;
    for server in &cluster.masters {
        assert_all_keys_expire(&mut server.admin());
    }
}

/// Of a thousand callers on two limiters.
async fn exactly_n_pass(cluster: &Cluster) {
    let limiters = [patient(&cluster.url()), patient(&cluster.url())];
    for policy in policies(Quota::per_hour(10)) {
        for subject in ["everybody", "user:42", "user:43"] {
            let mut tasks = JoinSet::new();
            for i in 0..1_000 {
                let (limiter, policy) = (limiters[i % 2].clone(), policy.clone());
                tasks.spawn(async move { limiter.check(&policy, subject).await });
            }
            let decisions = tasks.join_all().await;
            assert!(decisions.iter().all(|decision| !decision.is_degraded()));
            let passed = decisions.iter().filter(|decision| decision.is_allowed()).count();
            assert_eq!(passed, 10, "{} {subject}", policy.name());
        }
    }
    // Several bring the script to a node at once; from then on it is there.
    let many = limiters.map(|limiter| {
        let calls = (0..400).map(move |i| {
            let limiter = limiter.clone();
            async move { limiter.check(&policies(Quota::per_hour(10))[0], format!("one-of-many-{i}")).await }
        });
        calls.collect::<JoinSet<_>>()
    });
    for tasks in many {
        assert!(tasks.join_all().await.iter().all(|decision| !decision.is_degraded()));
    }
}

async fn one_subject_is_decided_in_one_call(cluster: &Cluster) {
    let limiter = patient(&cluster.url());
    let all = policies(Quota::per_hour(1_000));
    let demands = all.each_ref().map(|policy| Demand::new(policy, "one-call").cost(3));
    // Both scripts are known from then on.
    limiter.decide(&demands).await.1.settle(3 + 1).await.expect("settled");
    let mut admin = cluster.masters[cluster.master_of("one-call")].admin();
    let before = calls(&mut admin, "evalsha");
    let (decision, charge) = limiter.decide(&demands).await;
    assert!(decision.is_allowed() && !decision.is_degraded(), "{decision:?}");
    assert_eq!(calls(&mut admin, "evalsha"), before + 1);
    charge.settle(1).await.expect("settled");
    assert_eq!(calls(&mut admin, "evalsha"), before + 2);
    for policy in &all {
        assert_eq!(limiter.peek(policy, "one-call").await.remaining(), Some(1_000 - 4 - 1), "{}", policy.name());
    }

    // Those that wait at the same moment for keys of one slot share calls.
    let before = calls(&mut admin, "evalsha");
    let policy = Arc::new(all[0].clone());
    let one = |_| {
        let (limiter, policy) = (limiter.clone(), Arc::clone(&policy));
        async move { limiter.check(&policy, "one-call").await.is_allowed() }
    };
    assert!((0..400).map(one).collect::<JoinSet<_>>().join_all().await.into_iter().all(|allowed| allowed));
    let sent = calls(&mut admin, "evalsha") - before;
    assert!(sent < 200, "{sent} calls for 400 decisions");
}

async fn subjects_in_several_slots_are_charged_together_or_not_at_all(cluster: &Cluster) {
    let limiter = patient(&cluster.url());
    let subjects: Vec<String> = (0..3).map(|node| cluster.subject_of(node, 7)).collect();
    let few = Quota::per_hour(5);
    for policy in policies(few) {
        let left = async |subject: &String| limiter.peek(&policy, subject).await.remaining();
        let of = |costs: [u64; 3]| {
            let demand = |(subject, cost): (&String, u64)| Demand::new(&policy, subject).cost(cost);
            subjects.iter().zip(costs).map(demand).collect::<Vec<_>>()
        };
        let (decision, charge) = limiter.decide(&of([1, 2, 3])).await;
        assert!(decision.is_allowed(), "{decision:?}");
        assert_eq!(decision.outcomes().iter().map(|o| o.remaining()).collect::<Vec<_>>(), [4, 3, 2]);
        for refused in [[4, 3, 3], [5, 3, 2], [4, 4, 2], [5, 5, 5], [0, 0, 3], [3, 0, 0], [1, 1, 6]] {
            let (decision, charge) = limiter.decide(&of(refused)).await;
            let fits = refused.iter().zip([4, 3, 2]).all(|(cost, left)| *cost <= left);
            assert_eq!((decision.is_allowed(), charge.is_empty()), (fits, !fits), "{refused:?} {decision:?}");
            if fits {
                charge.settle(0).await.expect("settled");
                continue;
            }
            for ((outcome, cost), left) in decision.outcomes().iter().zip(refused).zip([4, 3, 2]) {
                // What would have passed is told uncharged.
                assert_eq!((outcome.remaining(), outcome.is_allowed()), (left, cost <= left), "{refused:?}");
                let waits = outcome.passes_in().is_none_or(|wait| !wait.is_zero());
                assert_eq!(waits, cost > left, "{outcome:?}");
            }
            assert_eq!(decision.is_never(), refused.iter().any(|cost| *cost > 5), "{decision:?}");
            for (subject, was) in subjects.iter().zip([4, 3, 2]) {
                assert_eq!(left(subject).await, Some(was), "{} {refused:?}", policy.name());
            }
        }
        charge.settle(1).await.expect("settled");
        for subject in &subjects {
            assert_eq!(left(subject).await, Some(4));
        }
        // What was never asked for is there as before.
        let (decision, _) = limiter.decide(&of([0, 0, 0])).await;
        assert!(decision.is_allowed() && decision.outcomes().iter().all(|outcome| outcome.remaining() == 4));
    }
}

/// Requests that want units of two subjects each, in either order: never more than n pass, and of those that come after
/// the storm all that fit.
async fn exactly_n_of_concurrent_pairs_pass(cluster: &Cluster) {
    let limiters = [patient(&cluster.url()), patient(&cluster.url())];
    let (one, other) = (cluster.subject_of(0, 11), cluster.subject_of(2, 11));
    for policy in policies(Quota::per_hour(20)) {
        let mut tasks = JoinSet::new();
        for i in 0..400 {
            let (limiter, policy, one, other) = (limiters[i % 2].clone(), policy.clone(), one.clone(), other.clone());
            tasks.spawn(async move {
                let mut demands = [Demand::new(&policy, &one), Demand::new(&policy, &other)];
                if i % 3 == 0 {
                    demands.reverse();
                }
                limiter.decide(&demands).await.0.is_allowed()
            });
        }
        let passed = tasks.join_all().await.into_iter().filter(|passed| *passed).count();
        assert!(passed <= 20, "{passed}");
        let mut after = passed;
        while limiters[0].decide(&[Demand::new(&policy, &one), Demand::new(&policy, &other)]).await.0.is_allowed() {
            after += 1;
        }
        println!("{}: {passed} of 20 pairs passed at once, {} after that", policy.name(), after - passed);
        assert_eq!(after, 20, "{}", policy.name());
    }
}

async fn blocks_and_resets_work_everywhere(cluster: &Cluster) {
    let limiter = patient(&cluster.url());
    let other = patient(&cluster.url());
    for (node, policy) in policies(Quota::per_hour(5)).iter().enumerate() {
        let (blocked, free) = (cluster.subject_of(node % 3, 20), cluster.subject_of((node + 1) % 3, 20));
        let _ = other.check(policy, &blocked).await;
        limiter.block(policy, &blocked, Duration::from_secs(600)).await.expect("blocked");
        limiter.reset(policy, &blocked).await.expect("reset");
        for limiter in [&limiter, &other] {
            let decision = limiter.check(policy, &blocked).await;
            assert!(!decision.is_allowed() && decision.outcomes()[0].is_blocked(), "{decision:?}");
            assert!(limiter.check(policy, &free).await.is_allowed());
            let (decision, _) = limiter.decide(&[Demand::new(policy, &free), Demand::new(policy, &blocked)]).await;
            let outcomes = decision.outcomes().iter().map(|outcome| outcome.is_blocked()).collect::<Vec<_>>();
            assert_eq!((decision.is_allowed(), outcomes), (false, vec![false, true]), "{decision:?}");
            let wait = decision.retry_after().expect("a wait");
            assert!(wait > Duration::from_secs(590) && wait <= Duration::from_secs(600), "{wait:?}");
        }
        assert_eq!(limiter.peek(policy, &free).await.remaining(), Some(3));
        limiter.unblock(policy, &blocked).await.expect("unblocked");
        assert_eq!(limiter.check(policy, &blocked).await.remaining(), Some(4));
        limiter.reset(policy, &free).await.expect("reset");
        assert_eq!(limiter.peek(policy, &free).await.remaining(), Some(5));
    }
}

/// At whatever moment.
async fn whoever_goes_away_in_the_middle_gives_back(cluster: &Cluster) {
    let limiter = patient(&cluster.url());
    let subjects: Vec<String> = (0..3).map(|node| cluster.subject_of(node, 30)).collect();
    for policy in policies(Quota::per_hour(100)) {
        let demands: Vec<_> = subjects.iter().map(|subject| Demand::new(&policy, subject)).collect();
        let (mut gone, mut passed) = (0, 0);
        for after in (0..60).chain(1_000_000..1_000_002) {
            // Real time: a round trip takes as long as it takes.
            match tokio::time::timeout(Duration::from_micros(after * 20), limiter.decide(&demands)).await {
                Ok((decision, _)) => passed += u64::from(decision.is_allowed()),
                Err(_) => gone += 1,
            }
        }
        println!("{}: {gone} went away, {passed} passed", policy.name());
        assert!(gone > 0 && passed > 0);
        let mut tries = 0;
        loop {
            let mut left = Vec::new();
            for subject in &subjects {
                left.push(limiter.peek(&policy, subject).await.remaining().expect("it is known"));
            }
            // The last answer may have been on its way to who had just gone, so that all was charged.
            if left.iter().all(|left| *left == left_of(&policy, passed)) {
                break;
            }
            tries += 1;
            assert!(tries < 200, "{}: {passed} passed, left {left:?}", policy.name());
            // Real time: what is given back has to arrive.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn left_of(policy: &tollgate::Policy, passed: u64) -> u64 {
    policy.capacity() - passed
}

async fn a_lost_script_is_brought_again(cluster: &Cluster) {
    let limiter = open(&cluster.url());
    let policy = &policies(Quota::per_hour(9))[3];
    let subject = cluster.subject_of(1, 40);
    for left in (0..9).rev() {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut cluster.masters[1].admin()).expect("SCRIPT FLUSH");
        assert_eq!(limiter.check(policy, &subject).await.remaining(), Some(left));
    }
}

async fn refusals_are_remembered_and_units_drawn_ahead(cluster: &Cluster) {
    let shielded = || Limiter::new(Redis::open(&cluster.url()).expect("an address")).deadline(Duration::from_secs(10));
    let sent = || cluster.masters.iter().map(|server| calls(&mut server.admin(), "evalsha")).sum::<u64>();
    let limiter = shielded().deny_max_age(Duration::from_secs(60));
    let policy = &policies(Quota::per_hour(1))[2];
    let subjects: Vec<String> = (0..3).map(|node| cluster.subject_of(node, 50)).collect();
    let demands: Vec<_> = subjects.iter().map(|subject| Demand::new(policy, subject)).collect();
    assert!(limiter.decide(&demands).await.0.is_allowed());
    assert!(!limiter.decide(&demands).await.0.is_allowed());
    let before = sent();
    for _ in 0..100 {
        assert!(!limiter.decide(&demands).await.0.is_allowed());
    }
    assert_eq!(sent(), before);

    let limiters = [shielded(), shielded()];
    let policy = policies(Quota::per_hour(2_000))[0].clone().allotted(50);
    let (mut passed, mut allotted) = (0, 0);
    for i in 0..1_500 {
        let decision = limiters[i % 2].check(&policy, &subjects[0]).await;
        (passed, allotted) = (passed + u64::from(decision.is_allowed()), allotted + u64::from(decision.is_allotted()));
    }
    for limiter in &limiters {
        assert!(limiter.shutdown(Duration::from_secs(10)).await);
    }
    assert!(passed == 1_500 && allotted > 500, "{passed} {allotted}");
    assert_eq!(patient(&cluster.url()).peek(&policy, &subjects[0]).await.remaining(), Some(500));
}

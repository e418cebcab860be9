//! Slots that move from one node to another, under load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};
use tollgate::{Demand, Limiter, Policy, Quota};

use crate::{
    open, policies,
    support::{
        assert_all_keys_expire,
        cluster::{Cluster, bucket_of, info, move_slot, run, slot_of},
    },
};

/// What a busy machine may need for some calls one after the other; nobody is to wait longer.
const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn exactly_n_pass_while_their_slot_moves_and_no_decision_is_degraded() {
    let cluster = Arc::new(Cluster::start(3));
    // By the user with the least rights.
    let line = acl_line();
    cluster.servers().for_each(|server| run::<()>(server, &line, &["+cluster|slots", "+asking"]));
    let limiter = open(&cluster.url_as("tollgate:a-long-password@")).deadline(PATIENCE);
    // All in one slot.
    let (first, bucket) = ("user:7", bucket_of("user:7"));
    let subjects: Vec<String> =
        (0..).map(|i| format!("user:{i}")).filter(|subject| bucket_of(subject) == bucket).take(6).collect();
    let elsewhere = cluster.subject_of((cluster.master_of(first) + 1) % 3, 0);
    let [old, new] = [cluster.master_of(first), (cluster.master_of(first) + 1) % 3];
    let policies = Arc::new(policies(Quota::per_day(400)));
    let one = Arc::new(Policy::sliding_window("blocked", Quota::per_day(400)));
    limiter.block(&one, &subjects[5], Duration::from_secs(600)).await.expect("blocked");

    let stop = Arc::new(AtomicBool::new(false));
    let passed: Arc<[[AtomicUsize; 4]; 6]> = Arc::default();
    let mut tasks = JoinSet::new();
    for worker in 0..12 {
        let (limiter, policies, blocked) = (limiter.clone(), Arc::clone(&policies), Arc::clone(&one));
        let (subjects, elsewhere, stop, passed) =
            (subjects.clone(), elsewhere.clone(), Arc::clone(&stop), Arc::clone(&passed));
        tasks.spawn(async move {
            let (mut asked, mut longest) = (0, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                asked += 1;
                let subject = (worker + asked) % 5;
                let demand = |policy| Demand::new(policy, &subjects[subject]);
                // One policy, all of them, and one whose other subject lies in another slot.
                let kind = asked % 4;
                let demands: Vec<_> = match worker % 3 {
                    0 => vec![demand(&policies[kind])],
                    1 => policies.iter().map(demand).collect(),
                    _ => vec![demand(&policies[kind]), Demand::new(&policies[0], &elsewhere).cost(0)],
                };
                let began = Instant::now();
                let (decision, charge) = limiter.decide(&demands).await;
                assert!(!decision.is_degraded(), "{demands:?}");
                longest = longest.max(began.elapsed());
                if decision.is_allowed() && asked % 5 == 0 {
                    charge.settle(0).await.expect("given back");
                } else if decision.is_allowed() {
                    for (policy, counted) in policies.iter().zip(&passed[subject]) {
                        let charged = demands.iter().any(|demand| demand.policy() == policy && demand.units() > 0);
                        counted.fetch_add(charged.into(), Ordering::Relaxed);
                    }
                }
                if asked % 16 == 0 {
                    let decision = limiter.check(&blocked, &subjects[5]).await;
                    assert!(!decision.is_degraded() && decision.outcomes()[0].is_blocked(), "{decision:?}");
                }
                // Real time: requests come one by one, so that all of it is not over before the slot moves.
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            (asked, longest)
        });
    }
    // Real time here and below: the load runs on real servers, and is to meet each state of the move.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (later, operator) = (format!("{first}0"), limiter.clone());
    let later = (0..).map(|i| format!("{later}{i}")).find(|subject| bucket_of(subject) == bucket).expect("one");
    let handle = tokio::runtime::Handle::current();
    let slot = slot_of(&cluster.masters[0], first);
    let servers = Arc::clone(&cluster);
    let began = Instant::now();
    let moving = tokio::task::spawn_blocking(move || {
        let all: Vec<_> = servers.masters.iter().collect();
        let (mut steps, policy) = (0, Policy::fixed_window("operated", Quota::per_day(9)));
        move_slot(slot, all[old], all[new], &all, || {
            steps += 1;
            thread::sleep(Duration::from_millis(25));
            // An operator at work meanwhile.
            handle.block_on(async {
                operator.block(&policy, &later, Duration::from_secs(60)).await.expect("blocked");
                assert!(operator.check(&policy, &later).await.outcomes()[0].is_blocked());
                operator.unblock(&policy, &later).await.expect("unblocked");
                assert_eq!(operator.check(&policy, &later).await.remaining(), Some(8));
                operator.reset(&policy, &later).await.expect("reset");
            });
        });
        handle.block_on(operator.block(&policy, &later, Duration::from_secs(60))).expect("blocked");
        assert!(!handle.block_on(operator.check(&policy, &later)).is_allowed());
        steps
    });
    let steps = moving.await.expect("it moves");
    let took = began.elapsed();
    tokio::time::sleep(Duration::from_millis(100)).await;
    stop.store(true, Ordering::Relaxed);
    let all = tasks.join_all().await;
    let asked: usize = all.iter().map(|(asked, _)| asked).sum();
    let longest = all.iter().map(|(_, longest)| *longest).max().expect("some");
    // Nobody waits for the move to be over.
    assert!(longest < took / 2, "{longest:?} of {took:?}");
    for (subject, passed) in subjects.iter().zip(&*passed) {
        for (policy, passed) in policies.iter().zip(passed) {
            let mut passed = passed.load(Ordering::Relaxed);
            let left = limiter.peek(policy, subject).await.remaining();
            assert_eq!(left, Some(400 - passed as u64), "{} {subject}", policy.name());
            while limiter.check(policy, subject).await.is_allowed() {
                passed += 1;
            }
            assert_eq!(passed, 400, "{} {subject}", policy.name());
        }
    }
    println!(
        "{asked} requests while a slot of {} keys moved for {took:?}; none degraded, the longest {longest:?}",
        steps - 1
    );
    let told = |node: usize, kind: &str| {
        let stats = info(&cluster.masters[node], "INFO errorstats");
        stats.contains(&format!("errorstat_{kind}:"))
    };
    // Redis before 6.2 does not count errors, and none of them is to be missing here.
    assert!(told(old, "ASK") && told(old, "MOVED"), "the load has met the move");
    assert!(told(old, "TRYAGAIN") || told(new, "TRYAGAIN"));
    for server in &cluster.masters {
        assert_all_keys_expire(&mut server.admin());
        // The limiter's, the one that asks, and one that brought the keys.
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.admin()).expect("CLIENT LIST");
        assert!(clients.lines().count() <= 3, "{clients}");
    }
    only_the_new_node_is_asked(&cluster, &limiter, first, old).await;
}

async fn only_the_new_node_is_asked(cluster: &Cluster, limiter: &Limiter, subject: &str, old: usize) {
    let moved = || {
        let stats = info(&cluster.masters[old], "INFO errorstats");
        stats.lines().find(|line| line.starts_with("errorstat_MOVED")).map(str::to_owned)
    };
    let before = moved();
    for policy in policies(Quota::per_day(10_000)) {
        assert!(!limiter.check(&policy, subject).await.is_degraded());
    }
    assert_eq!(moved(), before, "the map is an old one");
}

/// Returns the one line in the README that makes a user.
fn acl_line() -> String {
    let mut lines = include_str!("../../README.md").lines().filter(|line| line.starts_with("ACL SETUSER "));
    lines.next().expect("a line that makes a user").to_owned()
}

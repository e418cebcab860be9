//! Nodes that are lost, come back, and are replaced.

use std::{process::Command, time::Duration};

use tokio::time::{Instant, sleep};
use tollgate::{Decision, Demand, Limiter, OnError, Policy, Quota};

use crate::{
    open, patient,
    support::{
        cluster::{Cluster, id, info, run, slot_of, wait},
        server::Server,
    },
};

const DEADLINE: Duration = Limiter::DEFAULT_DEADLINE;

/// What an answer may come later than the deadline, in a build for tests on a machine that runs others too.
const SLACK: Duration = if cfg!(debug_assertions) { Duration::from_millis(150) } else { Duration::from_millis(20) };

static POLICY: Policy = Policy::fixed_window("calls", Quota::per_day(1_000_000)).on_error(OnError::Deny);

fn signal(server: &Server, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &server.pid().to_string()]).status();
    assert!(sent.expect("kill").success());
}

/// Asks once, and returns what was decided and how long it took.
async fn ask(limiter: &Limiter, subjects: &[&str]) -> (Decision, Duration) {
    let started = Instant::now();
    let demands: Vec<_> = subjects.iter().map(|subject| Demand::new(&POLICY, *subject)).collect();
    let (decision, _) = limiter.decide(&demands).await;
    (decision, started.elapsed())
}

/// Asks about subjects of all nodes for a while; only what needs the lost one may be degraded, and soon at memory
/// speed. Returns how many of those were asked and how long they took together.
async fn only_the_lost_one_is_degraded(limiter: &Limiter, [lost, well, also_well]: &[String; 3]) -> (u32, Duration) {
    // Who needs both says nothing against the one that is well, however often.
    for _ in 0..8 {
        assert!(ask(limiter, &[well, lost]).await.0.is_unavailable());
        // Real time, as below.
        sleep(Duration::from_millis(5)).await;
    }
    let (mut asked, mut took) = (0, Duration::ZERO);
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1_500) {
        for subjects in [&[well][..], &[also_well], &[well, also_well]] {
            let subjects: Vec<&str> = subjects.iter().map(|subject| subject.as_str()).collect();
            let (decision, took) = ask(limiter, &subjects).await;
            assert!(decision.is_allowed() && !decision.is_degraded(), "{subjects:?}: {decision:?}");
            assert!(took < DEADLINE, "{took:?}");
        }
        for subjects in [&[lost][..], &[well, lost], &[lost, also_well]] {
            let subjects: Vec<&str> = subjects.iter().map(|subject| subject.as_str()).collect();
            let (decision, waited) = ask(limiter, &subjects).await;
            assert!(decision.is_unavailable(), "{subjects:?}: {decision:?}");
            assert!(waited < DEADLINE + SLACK, "{waited:?}");
            (asked, took) = (asked + 1, took + waited);
        }
        // Real time: the servers are real, and the fault has to last.
        sleep(Duration::from_millis(5)).await;
    }
    (asked, took)
}

/// Asks until a subject's node has decided so often in a row; returns how long that took to begin.
async fn recovery(limiter: &Limiter, subject: &str) -> Duration {
    let started = Instant::now();
    let (mut first, mut row) = (Duration::ZERO, 0);
    while row < 20 {
        if ask(limiter, &[subject]).await.0.is_degraded() {
            row = 0;
        } else {
            row += 1;
            if row == 1 {
                first = started.elapsed();
            }
        }
        assert!(started.elapsed() < Duration::from_secs(15), "it never recovers");
        // Real time, as above.
        sleep(Duration::from_millis(2)).await;
    }
    first
}

async fn used(limiter: &Limiter, subject: &str) -> u64 {
    let decision = limiter.peek(&POLICY, subject).await;
    assert!(!decision.is_degraded(), "{decision:?}");
    POLICY.quota().limit() - decision.remaining().expect("it is known")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_lost_takes_only_its_slots_with_it() {
    let mut cluster = Cluster::start(3);
    let limiter = open(&cluster.url());
    let connections = |cluster: &Cluster| crate::support::connections(&mut cluster.masters[0].admin());
    let subjects = [1, 0, 2].map(|node| cluster.subject_of(node, 0));
    let connected = connections(&cluster);
    for subject in &subjects {
        assert!(!ask(&limiter, &[subject]).await.0.is_degraded());
    }

    // Frozen: the deadline is waited for until it is left alone, and then by one request each quarter of a second.
    signal(&cluster.masters[1], "STOP");
    let before = used(&limiter, &subjects[1]).await;
    let (asked, took) = only_the_lost_one_is_degraded(&limiter, &subjects).await;
    println!("frozen: {asked} decisions without the node took {took:?}");
    assert!(asked > 100 && took < DEADLINE * 16, "{asked} {took:?}");
    signal(&cluster.masters[1], "CONT");
    let took = recovery(&limiter, &subjects[0]).await;
    println!("thawed: decides again after {took:?}");
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    // What was charged for requests that needed the lost one as well was given back: each round asked for two of it.
    let rounds = u64::from(asked / 3);
    assert_eq!(used(&limiter, &subjects[1]).await, before + 2 * rounds);

    // Killed.
    cluster.masters[1].kill();
    let (asked, took) = only_the_lost_one_is_degraded(&limiter, &subjects).await;
    println!("killed: {asked} decisions without the node took {took:?}");
    assert!(asked > 200 && took < DEADLINE * 2, "{asked} {took:?}");
    cluster.masters[1].restart();
    let took = recovery(&limiter, &subjects[0]).await;
    // A node that is back takes some two seconds to serve again, by itself.
    println!("restarted: decides again after {took:?}");
    assert!(took < Duration::from_secs(6), "{took:?}");
    // One that asked for the map, one that is in use, and the two of this test that count.
    let connected = connections(&cluster) - connected;
    assert!(connected <= 6, "{connected} connections to a node that was well");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_lost_while_a_slot_moves_to_it_takes_only_that_slot_with_it() {
    for kill in [false, true] {
        let mut cluster = Cluster::start(2);
        let limiter = open(&cluster.url());
        let [moving, staying] = [0, 1].map(|number| cluster.subject_of(0, number));
        let [slot, other] = [&moving, &staying].map(|subject| slot_of(&cluster.masters[0], subject));
        assert_ne!(slot, other);
        let slot = slot.to_string();
        let [from, to] = [0, 1].map(|node| id(&cluster.masters[node]));
        run::<()>(&cluster.masters[1], "CLUSTER SETSLOT", &[&slot, "IMPORTING", &from]);
        run::<()>(&cluster.masters[0], "CLUSTER SETSLOT", &[&slot, "MIGRATING", &to]);
        for subject in [&moving, &staying] {
            assert!(!ask(&limiter, &[subject]).await.0.is_degraded());
        }
        if kill {
            cluster.masters[1].kill();
        } else {
            signal(&cluster.masters[1], "STOP");
        }
        let started = Instant::now();
        // Not so long that the lost node is known to be lost, which has the other one answer nothing.
        while started.elapsed() < Duration::from_millis(900) {
            let (decision, took) = ask(&limiter, &[&moving]).await;
            assert!(decision.is_unavailable() && took < DEADLINE + SLACK, "{took:?} {decision:?}");
            for _ in 0..3 {
                let (decision, _) = ask(&limiter, &[&staying]).await;
                assert!(!decision.is_degraded(), "it was taken for the one that is lost");
            }
        }
        if !kill {
            signal(&cluster.masters[1], "CONT");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_waits_for_what_is_given_back() {
    let cluster = Cluster::start(2);
    let limiter = open(&cluster.url());
    let subjects = [0, 1].map(|node| cluster.subject_of(node, 0));
    for subject in &subjects {
        assert!(!ask(&limiter, &[subject]).await.0.is_degraded());
    }
    assert!(limiter.shutdown(Duration::from_millis(50)).await, "there is nothing to wait for");
    signal(&cluster.masters[1], "STOP");
    let (decision, _) = ask(&limiter, &[&subjects[0], &subjects[1]]).await;
    assert!(decision.is_unavailable());
    assert!(!limiter.shutdown(Duration::from_millis(50)).await, "nobody knows yet what was charged there");
    signal(&cluster.masters[1], "CONT");
    assert!(limiter.shutdown(Duration::from_secs(5)).await);
    for subject in &subjects {
        recovery(&limiter, subject).await;
    }
    let asked = used(&limiter, &subjects[1]).await;
    // Each was asked about alone before, and while it was found out that all is well again.
    assert_eq!(used(&limiter, &subjects[0]).await, asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_under_load_is_replaced_by_its_replica_and_exactly_n_pass() {
    static LIMIT: Policy = Policy::token_bucket("calls", Quota::per_day(100)).on_error(OnError::Deny);
    let mut cluster = Cluster::start_with(3, 1, &[], |_| None);
    let limiter = open(&cluster.url());
    let subjects = [1, 0, 2].map(|node| cluster.subject_of(node, 0));
    let mut passed = [0; 3];
    for (subject, passed) in subjects.iter().zip(&mut passed) {
        while *passed < 40 {
            assert!(limiter.check(&LIMIT, subject).await.is_allowed());
            *passed += 1;
        }
    }
    let offset = |server: &Server| {
        let info = info(server, "INFO replication");
        let line = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:").map(str::to_owned));
        line.expect("an offset")
    };
    wait("copy what was charged", || offset(&cluster.masters[1]) == offset(&cluster.replicas[1]));
    cluster.masters[1].kill();
    let killed = Instant::now();
    let mut degraded = 0;
    loop {
        for (subject, passed) in subjects.iter().zip(&mut passed).skip(1) {
            let decision = limiter.check(&LIMIT, subject).await;
            assert!(!decision.is_degraded(), "another node is well: {decision:?}");
            *passed += u32::from(decision.is_allowed());
        }
        let decision = limiter.check(&LIMIT, &subjects[0]).await;
        if decision.is_allowed() {
            passed[0] += 1;
            break;
        }
        assert!(decision.is_unavailable(), "refused for another reason: {decision:?}");
        degraded += 1;
        assert!(killed.elapsed() < Duration::from_secs(20), "no replica takes over");
        // Real time, since real nodes elect.
        sleep(Duration::from_millis(10)).await;
    }
    let took = killed.elapsed();
    println!("decided again {took:?} after the kill, {degraded} decisions degraded; node timeout 1 s");
    assert!(took < Duration::from_secs(10), "{took:?}");
    let patient = patient(&cluster.url());
    for (subject, passed) in subjects.iter().zip(&mut passed) {
        loop {
            let decision = patient.check(&LIMIT, subject).await;
            assert!(!decision.is_degraded(), "{decision:?}");
            if !decision.is_allowed() {
                break;
            }
            *passed += 1;
        }
    }
    assert_eq!(passed, [100; 3]);
    assert!(info(&cluster.replicas[1], "INFO replication").contains("role:master"));
}

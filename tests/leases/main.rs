//! The history checker: processes hold a lock while processes, networks and servers fail, and what they saw is checked.
//!
//! Each worker is a process of its own and says with `CLOCK_MONOTONIC`, the same for all of a machine, what it does. The
//! checks are in `history.rs`; `broken.rs` has locks that are wrong in one way each, which the checks have to find out.
//! Faults last and leases end in real time, so each sleep here is one.
//!
//! `TOLLGATE_LEASES_SECONDS` says how long all runs last together.

mod broken;
mod fuzz;
mod history;
#[path = "../faults/proxy.rs"]
#[allow(dead_code)] // Its part of it is used.
mod proxy;
mod run;
mod scenes;
#[path = "../support/mod.rs"]
mod support;
mod worker;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use broken::Variant;
use run::{Faults, run};
use scenes::{Majority, Moving, One, Replicated, Scene};
use support::{sentinels::Sentinels, server::Server};
use tollgate::{Redis, lease::Lock};

/// This program as a worker; it does nothing where it is run as a test.
#[test]
fn worker() {
    worker::run_if_asked();
}

#[test]
fn processes_and_networks_may_fail() {
    let faults = &["kill", "pause", "cut", "drop", "freeze", "scripts", "delay", "clients"];
    assert_right("processes and network", One::start, faults);
}

#[test]
fn one_server_of_three_may_hang_start_anew_or_forget() {
    let faults =
        &["freeze one", "kill", "restart one", "pause", "flush one", "drop one", "flush one", "cut one", "delay one"];
    assert_right("one of three", Majority::start, faults);
}

#[test]
fn slots_may_move() {
    assert_right("slots", Moving::start, &["move", "kill", "move", "pause"]);
}

#[test]
fn a_server_may_forget_everything_while_its_clock_goes_on() {
    assert_right("state lost", One::start, &["flush", "kill", "restart", "pause"]);
}

#[test]
fn a_replica_may_take_over_without_what_was_granted_last() {
    assert_right("promotion", Replicated::start, &["failover", "kill", "failover", "pause"]);
}

#[test]
fn sentinels_may_replace_the_server() {
    assert_right("sentinels", Sentinels::start, &["failover"]);
}

#[test]
fn a_servers_clock_may_step_ahead() {
    with_clock(|start| assert_right("clock ahead", start, &["ahead", "kill", "ahead", "pause"]));
}

#[test]
fn a_server_may_forget_everything_while_its_clock_steps_ahead() {
    with_clock(|start| assert_right("state lost, clock ahead", start, &["flush and ahead", "kill", "pause"]));
}

#[test]
fn nothing_is_promised_if_all_is_forgotten_and_the_clock_behind() {
    with_clock(|start| {
        let _alone = alone();
        let history = run(&mut start(), Variant::Right, &["flush and behind"], share());
        let wrong = history.wrong();
        println!("state lost, clock behind: {} acquired, wrong: {}", history.count("acquired"), wrong.len());
        assert!(wrong.iter().any(|wrong| wrong.starts_with("C2")), "the checks see it: {wrong:?}");
    });
}

/// The only such case: the server may forget, or its clock step back, and fences grow all the same.
#[tokio::test]
async fn fences_grow_but_where_all_is_forgotten_and_the_clock_behind() {
    let Some((server, clock)) = Server::start_with_fake_clock() else { return skip() };
    let redis = Redis::open(&server.url()).expect("an address");
    let lock = Lock::new(&redis, "x").ttl(Duration::from_secs(20));
    for is_lost in [false, true] {
        for step in [-1, 0, 1] {
            clock.shift(0);
            let guard = lock.acquire().await.expect("free");
            let old = guard.fence();
            guard.release().await.expect("an answer");
            if is_lost {
                let _: () = redis::cmd("FLUSHALL").query(&mut server.admin()).expect("FLUSHALL");
            }
            clock.shift(step);
            let new = lock.acquire().await.expect("free");
            let grows = new.fence() > old;
            assert_eq!(grows, !(is_lost && step < 0), "state lost: {is_lost}, clock: {step} h");
            new.release().await.expect("an answer");
            let _: () = redis::cmd("FLUSHALL").query(&mut server.admin()).expect("FLUSHALL");
        }
    }
}

#[test]
fn a_lock_that_deletes_whatever_is_there_is_found_out() {
    assert_found_out(Variant::PlainDelete, "C1", &["pause"]);
}

#[test]
fn a_lock_whose_extension_makes_what_is_not_there_is_found_out() {
    assert_found_out(Variant::ExtendCreates, "C1", &["restart"]);
}

#[test]
fn a_lock_without_a_deadline_of_its_own_is_found_out() {
    assert_found_out(Variant::NoDeadline, "C1", &["pause"]);
}

#[test]
fn a_lock_that_counts_by_the_wall_clock_is_found_out() {
    assert_found_out(Variant::WallClock, "C1", &["step"]);
}

#[test]
fn a_lock_that_keeps_its_fences_for_ever_is_found_out() {
    assert_found_out(Variant::KeepsFences, "C7", &["kill"]);
}

/// Fails if something is not as promised under faults, or is left behind.
fn assert_right<S: Scene>(label: &str, start: impl FnOnce() -> S, faults: Faults) {
    let _alone = alone();
    let mut scene = start();
    let history = run(&mut scene, Variant::Right, faults, share());
    print!("{label}: ");
    history.assert_right();
}

/// Fails if a lock that is wrong is not found out by a check within a minute.
fn assert_found_out(variant: Variant, check: &str, faults: Faults) {
    let _alone = alone();
    for seconds in [6, 12, 40] {
        let history = run(&mut One::start(), variant, faults, Duration::from_secs(seconds));
        if let Some(wrong) = history.wrong().iter().find(|wrong| wrong.starts_with(check)) {
            println!("{variant:?} within {seconds} s: {wrong}");
            return;
        }
    }
    panic!("{variant:?} was not found out");
}

/// Does something with a server whose clock can be stepped, where there is one.
fn with_clock(test: impl FnOnce(fn() -> One)) {
    if Server::start_with_fake_clock().is_none() {
        return skip();
    }
    test(|| One::start_with_clock().expect("it was there a moment ago"));
}

fn skip() {
    println!("skipped: needs libfaketime (`apt-get install faketime`)");
}

/// Each run has the machine for itself.
fn alone() -> MutexGuard<'static, ()> {
    static RUNS: Mutex<()> = Mutex::new(());
    RUNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how long each run of the right lock lasts.
fn share() -> Duration {
    let told = std::env::var("TOLLGATE_LEASES_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(told.unwrap_or(60)) / LABELS
}

/// So many runs of the right lock there are.
const LABELS: u32 = 9;

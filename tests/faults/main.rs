//! What happens on bad days, fault by fault, by real servers and a proxy that does what networks do.
//!
//! Each case says what the caller saw, how long it waited, on how many connections, and how soon it was over. The proxy
//! and the servers run beside the tests, so all times here are real ones, and so is each sleep: a fault has to last.

mod calls;
mod choices;
mod connections;
mod frozen;
mod gone;
mod machine;
mod processes;
mod proxy;
mod refused;
#[path = "../support/mod.rs"]
mod support;

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use machine::is_in_time;
use support::server::Server;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tollgate::{Decision, Limiter, OnError, Policy, Quota, Redis};

/// The deadline of most tests.
const DEADLINE: Duration = Limiter::DEFAULT_DEADLINE;

/// What an answer may come later than the deadline. A build for speed on a free machine needs 20 ms; one for tests, on
/// two cores that run other tests too, now and then some more. What the machine takes for itself is not counted.
const SLACK: Duration = if cfg!(debug_assertions) { Duration::from_millis(150) } else { Duration::from_millis(20) };

/// How often it is found out whether the store is well again, at the latest.
const PROBE: Duration = Duration::from_millis(250);

/// Longer than anything lasts that is to end.
const SECONDS: Duration = Duration::from_secs(5);

// More than is asked for, so that all of it passes; in windows, so that what was used stays so.
static LOCAL: Policy = Policy::fixed_window("local", Quota::per_day(1_000_000));
static ALLOW: Policy = Policy::fixed_window("allow", Quota::per_day(1_000_000)).on_error(OnError::Allow);
static DENY: Policy = Policy::fixed_window("deny", Quota::per_day(1_000_000)).on_error(OnError::Deny);

fn open(url: &str) -> Limiter {
    machine::watch();
    Limiter::new(Redis::open(url).expect("an address")).deny_max_age(Duration::ZERO)
}

/// Asserts that a decision is what its policy asked for, if the store has not made it.
fn assert_as_asked(policy: &Policy, decision: &Decision) {
    if decision.is_degraded() {
        let denied = policy.on_error_choice() == OnError::Deny;
        assert_eq!(decision.is_unavailable(), denied, "{decision:?}");
        assert_eq!(decision.is_allowed(), !denied, "{decision:?}");
    } else {
        assert!(decision.is_allowed(), "{decision:?}");
    }
}

/// Asks once, asserts that the answer is as asked for and in time, and returns it and how long it took.
async fn ask(limiter: &Limiter, policy: &Policy) -> (Decision, Duration) {
    let started = Instant::now();
    let decision = limiter.check(policy, "user:42").await;
    let took = started.elapsed();
    assert!(is_in_time(started, DEADLINE + SLACK), "{took:?} until {decision:?}");
    assert_as_asked(policy, &decision);
    (decision, took)
}

/// Asks so often at once, and returns how many decisions were degraded.
async fn ask_at_once(limiter: &Limiter, policy: &'static Policy, times: usize) -> usize {
    let mut tasks = JoinSet::new();
    for _ in 0..times {
        let limiter = limiter.clone();
        tasks.spawn(async move { ask(&limiter, policy).await });
    }
    let answers = tasks.join_all().await;
    answers.iter().filter(|(decision, _)| decision.is_degraded()).count()
}

/// Asserts that the store decides.
async fn assert_well(limiter: &Limiter) {
    // A busy machine may be late with the first connection.
    for _ in 0..5 {
        if !ask(limiter, &DENY).await.0.is_degraded() {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("the store does not decide");
}

/// Asks until the store has answered so often in a row, asserts that the first of those came within a limit, and returns
/// when.
async fn recovers_within(limiter: &Limiter, limit: Duration) -> Duration {
    let started = Instant::now();
    let (mut first, mut row) = (Duration::ZERO, 0);
    while row < 20 {
        let (decision, _) = ask(limiter, &LOCAL).await;
        if decision.is_degraded() {
            row = 0;
        } else {
            if row == 0 {
                first = started.elapsed();
                assert!(is_in_time(started, limit), "{first:?}, not within {limit:?}");
            }
            row += 1;
        }
        assert!(started.elapsed() < SECONDS, "it never recovers");
        sleep(Duration::from_millis(2)).await;
    }
    first
}

/// Requests that keep coming, by all three choices, until they are told to stop.
struct Load {
    tasks: JoinSet<(u64, u64)>,
    stop: &'static AtomicBool,
}

/// What became of them.
#[derive(Debug)]
struct Loaded {
    asked: u64,
    degraded: u64,
}

impl Load {
    fn start(limiter: &Limiter) -> Self {
        // Lives as long as the tests: a flag that tasks of any length can look at.
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for i in 0..24 {
            let (limiter, policy) = (limiter.clone(), [&LOCAL, &ALLOW, &DENY][i % 3]);
            tasks.spawn(async move {
                let (mut asked, mut degraded) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let (decision, _) = ask(&limiter, policy).await;
                    asked += 1;
                    degraded += u64::from(decision.is_degraded());
                    sleep(Duration::from_millis(2)).await;
                }
                (asked, degraded)
            });
        }
        Self { tasks, stop }
    }

    /// Ends it.
    async fn stop(self) -> Loaded {
        self.stop.store(true, Ordering::Relaxed);
        let all = self.tasks.join_all().await;
        Loaded {
            asked: all.iter().map(|(asked, _)| asked).sum(),
            degraded: all.iter().map(|(_, degraded)| degraded).sum(),
        }
    }
}

/// Returns how many connections a server has accepted so far, less those that looked behind the scenes.
fn connections(server: &Server, looks: u32) -> u32 {
    connections_as(server, "", looks)
}

fn connections_as(server: &Server, user_info: &str, looks: u32) -> u32 {
    // One looked whether it is there, and this one.
    support::connections(&mut server.admin_as(user_info)) - 2 - looks
}

/// Asserts that a fault has cost few connections, beside so many that the test made, and no memory that stays.
fn assert_flat(server: &Server, looks: u32) {
    let connections = connections(server, looks);
    assert!(connections < 10, "{connections}");
    assert_memory_is_flat();
}

/// Asserts that all faults so far, of this case and of others beside it, have left little in memory.
fn assert_memory_is_flat() {
    let mib = resident_kib() / 1_024;
    assert!(mib < 64, "{mib} MiB");
}

/// Returns how much memory this program has; none where the system does not tell.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Returns the units that the subject has used, by the server's own word.
async fn used(limiter: &Limiter, policy: &Policy) -> u64 {
    let decision = limiter.peek(policy, "user:42").await;
    assert!(!decision.is_degraded(), "{decision:?}");
    decision.outcomes()[0].quota().limit() - decision.outcomes()[0].remaining()
}

fn signal(server: &Server, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &server.pid().to_string()]).status();
    assert!(sent.expect("kill").success());
}

fn command(server: &Server, words: &str) {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| _ = command.arg(word));
    let _: redis::Value = command.query(&mut server.admin()).expect("a command of ours");
}

//! What happens on bad days, fault by fault, by real servers and a proxy that does what networks do.
//!
//! Each case says what the caller saw, how long it waited, on how many connections, and how soon it was over. The proxy
//! and the servers run beside the tests, so all times here are real ones, and so is each sleep: a fault has to last.

mod choices;
mod connections;
mod frozen;
mod gone;
mod processes;
mod proxy;
mod refused;
#[path = "../support/mod.rs"]
mod support;

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use support::server::Server;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tollgate::{Decision, Limiter, OnError, Policy, Quota, Redis};

/// The deadline of most tests.
const DEADLINE: Duration = Limiter::DEFAULT_DEADLINE;

/// What an answer may come later than the deadline. A build for speed on a free machine needs 20 ms; one for tests, on
/// two cores that run other tests too, now and then some more.
const SLACK: Duration = if cfg!(debug_assertions) { Duration::from_millis(150) } else { Duration::from_millis(20) };

/// How often it is found out whether the store is well again, at the latest.
const PROBE: Duration = Duration::from_millis(250);

// More than is asked for, so that all of it passes; in windows, so that what was used stays so.
static LOCAL: Policy = Policy::fixed_window("local", Quota::per_day(1_000_000));
static ALLOW: Policy = Policy::fixed_window("allow", Quota::per_day(1_000_000)).on_error(OnError::Allow);
static DENY: Policy = Policy::fixed_window("deny", Quota::per_day(1_000_000)).on_error(OnError::Deny);

fn open(url: &str) -> Limiter {
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

/// Asks once, and returns what was decided and how long it took.
async fn ask(limiter: &Limiter, policy: &Policy) -> (Decision, Duration) {
    let started = Instant::now();
    let decision = limiter.check(policy, "user:42").await;
    assert_as_asked(policy, &decision);
    (decision, started.elapsed())
}

/// Asks so often at once, and returns how many decisions were degraded and how long the longest took.
async fn ask_at_once(limiter: &Limiter, policy: &'static Policy, times: usize) -> (usize, Duration) {
    let mut tasks = JoinSet::new();
    for _ in 0..times {
        let limiter = limiter.clone();
        tasks.spawn(async move { ask(&limiter, policy).await });
    }
    let answers = tasks.join_all().await;
    let longest = answers.iter().map(|(_, took)| *took).max().expect("some");
    (answers.iter().filter(|(decision, _)| decision.is_degraded()).count(), longest)
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

/// Asks until the store has answered so often in a row, and returns how long it took until the first of those.
async fn recovery(limiter: &Limiter) -> Duration {
    let started = Instant::now();
    let (mut first, mut row) = (Duration::ZERO, 0);
    while row < 20 {
        let (decision, _) = ask(limiter, &LOCAL).await;
        if decision.is_degraded() {
            row = 0;
        } else {
            if row == 0 {
                first = started.elapsed();
            }
            row += 1;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "it never recovers");
        sleep(Duration::from_millis(2)).await;
    }
    first
}

/// Requests that keep coming, by all three choices, until they are told to stop.
struct Load {
    tasks: JoinSet<(u64, u64, Duration)>,
    stop: &'static AtomicBool,
}

/// What became of them.
#[derive(Debug)]
struct Loaded {
    asked: u64,
    degraded: u64,
    longest: Duration,
}

impl Load {
    fn start(limiter: &Limiter) -> Self {
        // Lives as long as the tests: a flag that tasks of any length can look at.
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for i in 0..24 {
            let (limiter, policy) = (limiter.clone(), [&LOCAL, &ALLOW, &DENY][i % 3]);
            tasks.spawn(async move {
                let (mut asked, mut degraded, mut longest) = (0, 0, Duration::ZERO);
                while !stop.load(Ordering::Relaxed) {
                    let (decision, took) = ask(&limiter, policy).await;
                    asked += 1;
                    degraded += u64::from(decision.is_degraded());
                    longest = longest.max(took);
                    sleep(Duration::from_millis(2)).await;
                }
                (asked, degraded, longest)
            });
        }
        Self { tasks, stop }
    }

    /// Ends it, and asserts that nobody has waited longer than the deadline.
    async fn stop(self) -> Loaded {
        self.stop.store(true, Ordering::Relaxed);
        let all = self.tasks.join_all().await;
        let loaded = Loaded {
            asked: all.iter().map(|(asked, ..)| asked).sum(),
            degraded: all.iter().map(|(_, degraded, _)| degraded).sum(),
            longest: all.iter().map(|(.., longest)| *longest).max().expect("some"),
        };
        assert!(loaded.longest < DEADLINE + SLACK, "{loaded:?}");
        loaded
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

/// Asserts that a fault has cost few connections, beside so many that the test made.
fn assert_few_connections(server: &Server, looks: u32) {
    let connections = connections(server, looks);
    assert!(connections < 10, "{connections}");
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

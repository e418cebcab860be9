//! Exactly n of any number of concurrent callers pass: in one process, and in several on one Redis.

mod support;

use std::{env, time::Duration};

use support::{assert_all_keys_expire, other_process, printed, server::Server};
use tokio::task::JoinSet;
use tollgate::{Limiter, Memory, OnError, Policy, Quota, Redis, limit::Store};

const TEN_AN_HOUR: Quota = Quota::per_hour(10);

/// A refill would fall into a token bucket's test only after six minutes.
fn policies() -> [Policy; 4] {
    [
        Policy::fixed_window("fixed", TEN_AN_HOUR),
        Policy::fixed_window("aligned", TEN_AN_HOUR).aligned(),
        Policy::sliding_window("sliding", TEN_AN_HOUR),
        Policy::token_bucket("bucket", TEN_AN_HOUR),
    ]
    .map(|policy| policy.on_error(OnError::Deny))
}

fn limiter(store: impl Store) -> Limiter {
    // What is tested is the count, on however slow a machine.
    Limiter::new(store).deadline(Duration::from_secs(30))
}

/// Asks a thousand times at once and returns how many passed.
async fn passed(limiter: &Limiter, policy: &Policy, subject: &'static str) -> usize {
    let mut tasks = JoinSet::new();
    for _ in 0..1_000 {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        tasks.spawn(async move { limiter.check(&policy, subject).await.is_allowed() });
    }
    tasks.join_all().await.into_iter().filter(|allowed| *allowed).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_of_a_thousand_pass_in_memory() {
    let limiter = limiter(Memory::new());
    for policy in policies() {
        assert_eq!(passed(&limiter, &policy, "everybody").await, 10, "{}", policy.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_of_a_thousand_pass_on_redis() {
    let server = Server::start();
    let limiter = limiter(Redis::open(&server.url()).expect("an address"));
    for policy in policies() {
        assert_eq!(passed(&limiter, &policy, "everybody").await, 10, "{}", policy.name());
    }
    assert_all_keys_expire(&mut server.admin());
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_of_two_thousand_pass_over_two_processes() {
    let server = Server::start();
    let mut processes = [0, 1].map(|_| other_process("another_process_asks_too", OTHER_PROCESS, &server.url()));
    let mut sums = [0; 4];
    for process in &mut processes {
        let counts = printed(process, "passed:");
        for (sum, count) in sums.iter_mut().zip(counts.split(',')) {
            *sum += count.parse::<usize>().expect("a count");
        }
    }
    assert_eq!(sums, [10; 4]);
    assert_all_keys_expire(&mut server.admin());
}

/// Does its work only as the other process of the test above.
#[tokio::test(flavor = "multi_thread")]
async fn another_process_asks_too() {
    let Ok(url) = env::var(OTHER_PROCESS) else { return };
    let limiter = limiter(Redis::open(&url).expect("an address"));
    let mut counts = Vec::new();
    for policy in policies() {
        counts.push(passed(&limiter, &policy, "everybody").await.to_string());
    }
    println!("passed: {}", counts.join(","));
}

const OTHER_PROCESS: &str = "TOLLGATE_TEST_URL";

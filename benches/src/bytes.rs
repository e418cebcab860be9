use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate::{Limiter, OnError, Policy, Quota, Redis};

use crate::{
    cores,
    run::{Run, Wanted},
    server::{Server, closed_loop, runtime},
};

/// Enough that what a server keeps besides does not count.
const KEYS: u64 = 100_000;

/// Measures what the server keeps for a limit, all in, by its own count of memory.
pub fn run(run: &mut Run) {
    cores::pinned(cores::CLIENT, || measure(run));
}

fn measure(run: &mut Run) {
    let (server, runtime) = (Server::start(), runtime());
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address")).deadline(Duration::from_secs(10));
    let hour = Quota::per_hour(2_000_000_000);
    println!("\nbytes, {}\n\n| what | bytes |\n|---|---|", server.version());

    // An integer that ends, which every counter is at least, under a name as long as ours.
    let prefix = "tollgate:1:{123}:f:a-policy:user:";
    let floor = used(&server, || {
        let mut admin = server.admin();
        for key in 0..KEYS {
            let mut set = redis::cmd("SET");
            set.arg(format!("{prefix}{key:07}")).arg(key + 1_000_000).arg("EX").arg(3_600);
            let _: () = set.query(&mut admin).expect("SET");
        }
    }) / KEYS as f64;
    println!("| an integer of a name as long, with a lifetime | {floor:.1} |");
    let bucket = Policy::token_bucket("a-policy", Quota::per_hour(1_000));
    for (name, policy) in [("fixed window", Policy::fixed_window("a-policy", hour)), ("token bucket", bucket)] {
        let bytes = used(&server, || charge(&runtime, &limiter, &policy, KEYS, KEYS)) / KEYS as f64;
        println!("| a key, {name} | {bytes:.1} |");
        run.bar(format!("bytes of a key, {name}: of an integer with a lifetime"), Wanted::AtMost(1.1), bytes / floor);
    }
    for (entries, keys) in [(100, 2_000), (1_000, 200)] {
        let policy = Policy::sliding_window("a-policy", hour);
        let total = entries * keys;
        let bytes = used(&server, || charge(&runtime, &limiter, &policy, keys, total)) / total as f64;
        println!("| a charge of 1, sliding window that holds {entries} | {bytes:.1} |");
        run.bar(
            format!("bytes of a charge, sliding window that holds {entries}"),
            Wanted::AtMost(if server.version().contains(" 7.") { 140.0 } else { 110.0 }),
            bytes,
        );
    }
}

/// Charges each key as often as the others; those that travel together are of different keys.
fn charge(runtime: &Runtime, limiter: &Limiter, policy: &Policy, keys: u64, total: u64) {
    let (limiter, policy) = (limiter.clone(), policy.clone().on_error(OnError::Deny));
    closed_loop(runtime, 64, total, keys, move |key| {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        async move { assert!(limiter.check(&policy, format!("user:{key:07}")).await.is_allowed()) }
    });
}

/// Returns how many bytes more the server uses after some work than when it was empty.
fn used(server: &Server, work: impl FnOnce()) -> f64 {
    server.flush();
    let before = server.memory();
    work();
    server.memory().saturating_sub(before) as f64
}

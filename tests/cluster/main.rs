//! What is promised of limits on a Cluster, by clusters of real servers.

#[path = "../support/coordination.rs"]
mod coordination;
mod decisions;
mod leases;
mod lost;
mod moving;
mod nodes;
#[allow(dead_code)] // These tests use a part of it.
#[path = "../faults/proxy.rs"]
mod proxy;
mod start;
#[path = "../support/mod.rs"]
mod support;
mod tls;

use std::time::Duration;

use tollgate::{Limiter, OnError, Policy, Quota, Redis};

/// A limiter that waits long enough for a busy machine, and asks the servers each time.
fn patient(url: &str) -> Limiter {
    open(url).deadline(Duration::from_secs(10))
}

/// A limiter that asks the servers each time.
fn open(url: &str) -> Limiter {
    Limiter::new(Redis::open(url).expect("an address")).deny_max_age(Duration::ZERO)
}

/// One policy of each algorithm.
fn policies(quota: Quota) -> [Policy; 4] {
    [
        Policy::fixed_window("fixed", quota),
        Policy::fixed_window("aligned", quota).aligned(),
        Policy::sliding_window("sliding", quota),
        Policy::token_bucket("bucket", quota),
    ]
    .map(|policy| policy.on_error(OnError::Deny))
}

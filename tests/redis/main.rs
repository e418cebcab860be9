//! What is promised of the engine on Redis, by a real server.

#[path = "../support/mod.rs"]
mod support;

mod access;
mod connection;
mod healing;
mod owned;
mod round_trip;
mod sentinel;
mod tls;

use std::time::Duration;

use support::server::Server;
use tollgate::{Limiter, OnError, Policy, Quota, Redis};

/// A limiter that waits long enough for a busy machine, and asks the server each time.
fn limiter(server: &Server) -> Limiter {
    limiter_at(&server.url())
}

fn limiter_at(url: &str) -> Limiter {
    patient(Redis::open(url).expect("an address"))
}

fn patient(redis: Redis) -> Limiter {
    Limiter::new(redis).deadline(Duration::from_secs(10)).deny_max_age(Duration::ZERO)
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

/// Returns the one key that a server has.
fn only_key(admin: &mut redis::Connection) -> String {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(admin).expect("KEYS");
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys.into_iter().next().expect("one key")
}

fn pttl(admin: &mut redis::Connection, key: &str) -> i64 {
    redis::cmd("PTTL").arg(key).query(admin).expect("PTTL")
}

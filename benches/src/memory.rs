use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr},
    num::{NonZeroU32, NonZeroU64},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use axum_gcra::gcra;
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tollgate::{Limiter, Memory, Policy, Quota};
use tower_rate_limiter::{FixedWindowStore, MemoryStore};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize, local::LocalRateLimiterProvider};

use crate::run::{Case, Run, Wanted};

// Everything is admitted: what is measured is the counting.
static POLICY: Policy = Policy::token_bucket("per-client", Quota::per_second(100_000)).burst(2_000_000_000);

/// Decisions of a round.
const OPERATIONS: u64 = 1 << 20;

const GOVERNOR: &str = "governor, keyed String";
const OURS: &str = "tollgate";

/// Decides on keys one after the other: on the text or, for those that take no text, on the address.
type Decide = Box<dyn Fn(&[(String, IpAddr)]) + Sync>;

/// Each has a state of its own.
fn limiters() -> Vec<(&'static str, Decide)> {
    let (governor, limiter) = (governor(), Limiter::new(Memory::new().max_keys(4_000_000)));
    let (trypema, rate) = (trypema(), RateLimit::max());
    let store = MemoryStore::new();
    let core: gcra::RateLimiter<IpAddr, ahash::RandomState> = gcra::RateLimiter::default();
    let quota = gcra::Quota::new(Duration::from_millis(1), NonZeroU64::new(1_000_000_000).expect("many"));
    vec![
        (GOVERNOR, all(move |key, _| governor.check_key(key).is_ok())),
        (
            "trypema, local",
            all(move |key, _| matches!(trypema.absolute().inc(key, &rate, 1), RateLimitDecision::Allowed)),
        ),
        (
            "tower-rate-limiter, MemoryStore",
            all(move |key, _| at_once(store.increment(key, Duration::from_secs(86_400))).is_ok()),
        ),
        (
            "axum_gcra's core, keyed IpAddr",
            all(move |_, address| core.req_sync(address, quota, Instant::now()).is_ok()),
        ),
        (OURS, all(move |key, _| ours(&limiter, key))),
    ]
}

fn all(decide: impl Fn(&String, IpAddr) -> bool + Sync + 'static) -> Decide {
    Box::new(move |keys| keys.iter().for_each(|(key, address)| assert!(decide(key, *address))))
}

fn governor() -> DefaultKeyedRateLimiter<String> {
    let many = NonZeroU32::new(1_000_000_000).expect("many");
    RateLimiter::keyed(governor::Quota::per_second(many).allow_burst(many))
}

fn trypema() -> Arc<LocalRateLimiterProvider> {
    let builder = LocalRateLimiterProvider::builder().window_size(WindowSize::seconds_or_panic(60));
    builder.disable_cleanup().build().expect("a provider")
}

fn ours(limiter: &Limiter, key: &str) -> bool {
    at_once(limiter.check(&POLICY, key)).is_allowed()
}

fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}

/// Keys as they are asked for, in an order that no cache guesses; each of `count` as often as the others.
fn keys(count: u64) -> Vec<(String, IpAddr)> {
    let key = |i: u64| {
        let number = i * 618_033 % count;
        (format!("user:{number:07}"), IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 | number as u32)))
    };
    (0..OPERATIONS).map(key).collect()
}

fn one_thread(decide: &Decide, keys: &[(String, IpAddr)]) -> u64 {
    decide(keys);
    OPERATIONS
}

fn two_threads(decide: &Decide, keys: &[(String, IpAddr)]) -> u64 {
    let (a, b) = keys.split_at(keys.len() / 2);
    thread::scope(|scope| {
        scope.spawn(|| decide(a));
        decide(b);
    });
    OPERATIONS
}

pub fn run(run: &mut Run) {
    type Threads = fn(&Decide, &[(String, IpAddr)]) -> u64;
    let threads: [(&str, Threads); 2] = [("one thread", one_thread), ("two threads", two_threads)];
    for (threads, decide_all) in threads {
        for count in [1, 10_000, 1_000_000] {
            let (keys, limiters) = (keys(count), limiters());
            let mut cases: Vec<Case<'_>> = Vec::new();
            for (name, decide) in &limiters {
                cases.push((name, Box::new(|| decide_all(decide, &keys))));
            }
            let medians = run.table(&format!("memory, {threads}, {count} keys"), &mut cases);
            let wanted = match (threads, count) {
                (_, 10_000) => Wanted::AtMost(1.0 / 1.5),
                ("one thread", 1_000_000) => Wanted::AtMost(0.8),
                _ => continue,
            };
            run.bar(
                format!("memory, {threads}, {count} keys: of governor's time"),
                wanted,
                medians.ratio(OURS, GOVERNOR),
            );
        }
    }
}

use std::{
    future::Future,
    num::NonZeroU32,
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
};

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tollgate::{Demand, Memory, Policy, Quota, limit::Store};

use crate::{Case, table};

// Everything is admitted: what is measured is the counting.
static POLICY: Policy = Policy::token_bucket("per-client", Quota::per_second(100_000)).burst(2_000_000_000);

const OPERATIONS: u64 = 1 << 19;

fn keys(count: u64) -> Vec<String> {
    // An order that no cache guesses.
    (0..1u64 << 20).map(|i| format!("user:{:07}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count)).collect()
}

fn governor() -> DefaultKeyedRateLimiter<String> {
    let many = NonZeroU32::new(1_000_000_000).expect("many");
    RateLimiter::keyed(governor::Quota::per_second(many).allow_burst(many))
}

fn ours(memory: &Memory, key: &str) -> bool {
    let answer = pin!(memory.decide(&[Demand::new(&POLICY, key)]));
    match answer.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(decision)) => decision.is_allowed(),
        _ => false,
    }
}

pub fn run() {
    for count in [1, 10_000, 1_000_000] {
        let keys = keys(count);
        let (governor, memory) = (governor(), Memory::new().max_keys(4_000_000));
        let mut cases: Vec<Case<'_>> = vec![
            (
                "governor, keyed String",
                Box::new(|| {
                    keys.iter().take(OPERATIONS as usize).for_each(|key| assert!(governor.check_key(key).is_ok()));
                    OPERATIONS
                }),
            ),
            (
                "tollgate",
                Box::new(|| {
                    keys.iter().take(OPERATIONS as usize).for_each(|key| assert!(ours(&memory, key)));
                    OPERATIONS
                }),
            ),
        ];
        table(&format!("memory, one thread, {count} keys"), &mut cases);
    }
    for count in [1, 10_000] {
        let keys = keys(count);
        let (governor, memory) = (governor(), Memory::new());
        let two = |work: &(dyn Fn(&[String]) + Sync)| {
            let (a, b) = keys.split_at(keys.len() / 2);
            thread::scope(|scope| {
                scope.spawn(|| work(a));
                work(b);
            });
            keys.len() as u64
        };
        let mut cases: Vec<Case<'_>> = vec![
            (
                "governor, keyed String",
                Box::new(|| two(&|keys| keys.iter().for_each(|key| assert!(governor.check_key(key).is_ok())))),
            ),
            ("tollgate", Box::new(|| two(&|keys| keys.iter().for_each(|key| assert!(ours(&memory, key)))))),
        ];
        table(&format!("memory, two threads, {count} keys"), &mut cases);
    }
}

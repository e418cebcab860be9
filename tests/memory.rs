//! The store in memory: a hard bound on keys, that no flood of new ones can turn against old ones.

use std::time::Duration;

use tollgate::{Demand, Limiter, Memory, Policy, Quota, WhenFull};

static HOURLY: Policy = Policy::token_bucket("hourly", Quota::per_hour(2));
static WINDOW: Policy = Policy::sliding_window("window", Quota::per_hour(2));

#[tokio::test]
async fn a_million_spoofed_keys_stay_within_the_bound_and_free_nobody() {
    let (memory, _) = Memory::manual();
    let memory = memory.max_keys(10_000);
    let limiter = Limiter::new(memory.clone());
    for policy in [&HOURLY, &WINDOW] {
        while limiter.check(policy, "exhausted").await.is_allowed() {}
    }
    let (mut overflow, mut allowed_in_overflow) = (0, 0);
    for i in 0..1_000_000u64 {
        let decision = limiter.check(&HOURLY, i).await;
        if decision.is_overflow() {
            overflow += 1;
            allowed_in_overflow += usize::from(decision.is_allowed());
        } else {
            assert!(decision.is_allowed());
        }
    }
    assert!(overflow > 985_000, "{overflow}");
    assert_eq!(allowed_in_overflow, 2, "those without room share one quota");
    assert!(memory.len() <= 10_000 + 64 + 1, "{}", memory.len());
    for policy in [&HOURLY, &WINDOW] {
        let decision = limiter.check(policy, "exhausted").await;
        assert!(!decision.is_allowed() && !decision.is_overflow(), "the flood freed a refused client");
    }
    // A peek needs no room, and what is kept is still known.
    assert_eq!(limiter.peek(&HOURLY, 0u64).await.remaining(), Some(1));
    assert_eq!(limiter.peek(&HOURLY, "unknown").await.remaining(), Some(2));
}

#[tokio::test]
async fn what_has_ended_makes_room_and_gives_its_memory_back() {
    let (memory, clock) = Memory::manual();
    let memory = memory.max_keys(50_000);
    let limiter = Limiter::new(memory.clone());
    for i in 0..60_000u64 {
        let _ = limiter.check(&WINDOW, i).await;
    }
    let full = memory.len();
    assert!(full > 45_000, "{full}");
    clock.advance(Duration::from_secs(3_600));
    for i in 0..40_000u64 {
        assert!(!limiter.check(&HOURLY, i).await.is_overflow(), "there is room again");
    }
    clock.advance(Duration::from_secs(3_600));
    // A few clients that stay are enough to have everything swept.
    let mut clients = 0u64;
    while memory.len() > 640 {
        let _ = limiter.check(&HOURLY, clients % 640).await;
        clients += 1;
        clock.advance(Duration::from_secs(10));
        assert!(clients < 1_000_000, "{} keys are never swept", memory.len());
    }
}

#[tokio::test]
async fn without_room_new_keys_can_be_refused_instead() {
    let (memory, _) = Memory::manual();
    let limiter = Limiter::new(memory.max_keys(64).when_full(WhenFull::Refuse));
    let mut refused = 0;
    for i in 0..1_000u64 {
        let both = [Demand::new(&HOURLY, i), Demand::new(&WINDOW, i)];
        let (decision, charge) = limiter.decide(&both).await;
        assert_eq!(decision.is_allowed(), !charge.is_empty());
        if !decision.is_allowed() {
            refused += 1;
            assert!(decision.is_overflow() && decision.retry_after().is_some() && !decision.is_never());
        }
    }
    assert!(refused > 900, "{refused}");
}

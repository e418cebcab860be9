//! Who is refused again and again is blocked, longer each time.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::Router;
use support::{
    all_calls, assert_all_keys_expire, calls,
    http::{get, serve},
    server::Server,
};
use tokio::time::sleep;
use tollgate::{
    Config, Decision, Demand, Limiter, ManualClock, Memory, OnError, Policy, Quota, RateLimitLayer, Redis, Rule,
    config::Format, layer::global, limit::Escalation,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Three refusals in a minute block for ten, and up to an hour.
const ESCALATION: Escalation = Escalation::new(3, MINUTE, Duration::from_secs(600)).up_to(Duration::from_secs(3_600));

static LOGIN: Policy = Policy::fixed_window("login", Quota::per_second(1)).escalate(ESCALATION);
/// Refuses and counts nothing.
static CALM: Policy = Policy::fixed_window("calm", Quota::per_day(1));

fn in_memory() -> (Limiter, ManualClock) {
    let (memory, clock) = Memory::manual();
    (Limiter::new(memory), clock)
}

/// Asks so often and returns the last decision.
async fn ask(limiter: &Limiter, policy: &Policy, times: u32) -> Decision {
    for _ in 1..times {
        let _ = limiter.check(policy, "mallory").await;
    }
    limiter.check(policy, "mallory").await
}

fn minutes(decision: &Decision) -> u64 {
    assert!(!decision.is_allowed());
    (decision.retry_after().expect("a time") + Duration::from_millis(500)).as_secs() / 60
}

#[tokio::test]
async fn each_block_is_twice_as_long_as_the_last_up_to_the_longest() {
    let (limiter, clock) = in_memory();
    for long in [10, 20, 40, 60, 60] {
        assert_eq!(minutes(&ask(&limiter, &LOGIN, 3).await), 0);
        let blocked = ask(&limiter, &LOGIN, 1).await;
        assert_eq!(minutes(&blocked), long);
        assert!(blocked.binding().is_some_and(|outcome| outcome.is_blocked() && outcome.remaining() == 0));
        // Who goes on asking changes nothing, and nobody else is blocked.
        clock.advance(5 * MINUTE);
        assert_eq!(minutes(&ask(&limiter, &LOGIN, 50).await), long - 5);
        assert!(limiter.check(&LOGIN, long).await.is_allowed());
        clock.advance(Duration::from_secs(60 * (long - 5)));
    }
    // An hour without a block, and it is the first again.
    clock.advance(60 * MINUTE);
    assert_eq!(minutes(&ask(&limiter, &LOGIN, 4).await), 10);
}

#[tokio::test]
async fn refusals_far_apart_lead_to_no_block() {
    let (limiter, clock) = in_memory();
    for _ in 0..20 {
        assert!(limiter.check(&LOGIN, "mallory").await.is_allowed());
        assert_eq!(minutes(&ask(&limiter, &LOGIN, 2).await), 0);
        clock.advance(MINUTE);
    }
}

/// What is asked of a store in these tests: the same in memory and on Redis.
async fn assert_operators_see_and_lift(limiter: &Limiter) {
    let policy = Policy::sliding_window("operated", Quota::per_day(1)).escalate(ESCALATION);
    assert_eq!(minutes(&ask(limiter, &policy, 4).await), 10);
    // A look sees it and counts for nothing; a reset does not lift it.
    assert!(!limiter.peek(&policy, "mallory").await.is_allowed());
    limiter.reset(&policy, "mallory").await.expect("reset");
    assert_eq!(minutes(&ask(limiter, &policy, 1).await), 10);
    limiter.unblock(&policy, "mallory").await.expect("unblocked");
    // What led to it is forgotten: the next block is the first again, after as many refusals.
    assert!(ask(limiter, &policy, 1).await.is_allowed());
    assert!(ask(limiter, &policy, 2).await.retry_after() > Some(60 * MINUTE));
    for _ in 0..9 {
        assert!(limiter.peek(&policy, "mallory").await.is_allowed());
    }
    assert_eq!(minutes(&ask(limiter, &policy, 1).await), 10);
}

/// Only a rule that refuses counts, and none in the shadow.
async fn assert_others_do_not_count(limiter: &Limiter) {
    let escalating = |name, burst| Policy::token_bucket(name, Quota::per_day(9)).burst(burst).escalate(ESCALATION);
    let (admits, shadow, refuses) = (escalating("admits", 50), escalating("shadow", 1), escalating("refuses", 1));
    let demands = [Demand::new(&admits, "eve"), Demand::new(&shadow, "eve").shadow(), Demand::new(&refuses, "eve")];
    assert!(limiter.decide(&demands).await.0.is_allowed());
    for _ in 0..3 {
        assert!(!limiter.decide(&demands).await.0.is_allowed());
    }
    let blocked = limiter.decide(&demands).await.0;
    let told: Vec<_> = blocked.outcomes().iter().map(|outcome| (outcome.is_blocked(), outcome.remaining())).collect();
    assert_eq!(told, [(false, 49), (false, 0), (true, 0)]);
    for _ in 0..9 {
        let decision = limiter.decide(&demands[..2]).await.0;
        assert!(decision.is_allowed() && !decision.outcomes()[1].is_allowed());
    }
    assert!(limiter.peek(&admits, "eve").await.is_allowed() && limiter.peek(&shadow, "eve").await.is_allowed());
}

#[tokio::test]
async fn memory_holds_what_redis_does() {
    let limiter = in_memory().0;
    assert_operators_see_and_lift(&limiter).await;
    assert_others_do_not_count(&limiter).await;
}

#[tokio::test]
async fn a_fleet_counts_together_in_one_round_trip_and_a_flood_of_who_is_blocked_costs_nothing() {
    let server = Server::start();
    let mut admin = server.admin();
    let process = || Limiter::new(Redis::open(&server.url()).expect("an address"));
    let (one, other) = (process(), process());
    let policy = Policy::token_bucket("fleet", Quota::per_day(1)).escalate(ESCALATION);
    assert!(ask(&one, &policy, 1).await.is_allowed());
    let before = calls(&mut admin, "evalsha") + calls(&mut admin, "eval");
    // No refusal is answered from memory until the block: three of them, each its own call.
    assert!(ask(&one, &policy, 1).await.retry_after() > Some(60 * MINUTE));
    assert!(ask(&one, &policy, 1).await.retry_after() > Some(60 * MINUTE));
    assert_eq!(minutes(&ask(&other, &policy, 1).await), 10);
    let asked = calls(&mut admin, "evalsha") + calls(&mut admin, "eval") - before;
    assert!((3..=4).contains(&asked), "{asked}"); // the other process tells the script's text first
    // From here on it is remembered, in both.
    assert_eq!((minutes(&ask(&one, &policy, 1).await), minutes(&ask(&other, &policy, 1).await)), (10, 10));
    let before = all_calls(&mut admin);
    for _ in 0..1_000 {
        assert_eq!(minutes(&ask(&one, &policy, 1).await), 10);
    }
    assert!(all_calls(&mut admin) - before < 100);
    assert_all_keys_expire(&mut admin);
    assert_operators_see_and_lift(&one).await;
    assert_others_do_not_count(&one).await;
    assert_all_keys_expire(&mut admin);
}

#[tokio::test]
async fn many_refused_at_once_are_blocked_at_the_right_one() {
    let server = Server::start();
    let limiters = [Limiter::new(Redis::open(&server.url()).expect("an address")), in_memory().0];
    let policy = Policy::fixed_window("crowd", Quota::per_day(5)).escalate(Escalation::new(20, MINUTE, 10 * MINUTE));
    for limiter in limiters {
        let (allowed, refused, blocked) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let counts = Arc::new([allowed, refused, blocked]);
        let tasks = (0..100).map(|_| {
            let (limiter, policy, counts) = (limiter.clone(), policy.clone(), Arc::clone(&counts));
            tokio::spawn(async move {
                let decision = limiter.check(&policy, "crowd").await;
                let blocked = decision.binding().is_some_and(|outcome| outcome.is_blocked());
                let place = if decision.is_allowed() { 0 } else { 1 + usize::from(blocked) };
                counts[place].fetch_add(1, Ordering::Relaxed);
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("it ends");
        }
        let counted = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        // The twentieth refusal is told the block.
        assert_eq!(counted, [5, 19, 76]);
    }
}

#[tokio::test]
async fn an_outage_escalates_by_this_process_alone() {
    let server = Server::start();
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address"));
    let policy = Policy::fixed_window("outage", Quota::per_day(1)).escalate(ESCALATION).on_error(OnError::Local);
    assert_eq!(minutes(&ask(&limiter, &policy, 4).await), 10);
    drop(server);
    // It was blocked before, and another is by what this process sees.
    let blocked = ask(&limiter, &policy, 2).await;
    assert!(minutes(&blocked) >= 9);
    for _ in 0..3 {
        assert!(limiter.check(&policy, "trudy").await.is_degraded());
    }
    let blocked = limiter.check(&policy, "trudy").await;
    assert!(blocked.is_degraded() && minutes(&blocked) == 10);
}

#[tokio::test]
async fn who_is_counted_with_others_for_want_of_room_is_not_blocked() {
    let (memory, _clock) = Memory::manual();
    let limiter = Limiter::new(memory.max_keys(0));
    let policy = Policy::fixed_window("crowded", Quota::per_day(1)).escalate(ESCALATION);
    for _ in 0..9 {
        let decision = limiter.check(&policy, "mallory").await;
        assert!(decision.is_overflow() && decision.outcomes().iter().all(|outcome| !outcome.is_blocked()));
    }
}

#[tokio::test]
async fn a_client_is_told_when_the_block_ends() {
    let text = r#"
        [[rule]]
        name = "login"
        key = "global"
        quota = "1/s"
        algorithm = "fixed-window"
        escalate = { after = 2, within = "1m", block = "10m", up_to = "15m" }
    "#;
    let config = Config::parse(text, Format::Toml).expect("right");
    let layer = RateLimitLayer::from_config(&config).expect("known keys");
    let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await;
    assert_eq!(get(address, "/").await.status, 200);
    let told = |answer: &support::http::Answer| (answer.status.as_u16(), answer.text("retry-after").map(str::to_owned));
    let refused = get(address, "/").await;
    assert_eq!(told(&refused), (429, Some("1".to_owned())));
    assert_eq!(told(&get(address, "/").await), (429, Some("600".to_owned())));
    // After the quota's own window too, by the real clock.
    sleep(Duration::from_millis(1_100)).await;
    let blocked = get(address, "/").await;
    assert_eq!(told(&blocked), (429, Some("599".to_owned())));
    assert!(blocked.text("ratelimit").is_some_and(|field| field.contains("r=0;t=599")), "{blocked:?}");
}

#[tokio::test]
async fn a_rule_for_a_part_of_its_keys_blocks_none_of_the_others() {
    let rule = |percent| {
        let rule = Rule::new("part", Quota::per_day(1)).by(global()).enforce_percent(percent);
        rule.fixed_window().escalate(Escalation::new(1, MINUTE, MINUTE))
    };
    for (percent, statuses) in [(0, [200, 200, 200]), (100, [200, 429, 429])] {
        let layer = RateLimitLayer::new(in_memory().0).rule(rule(percent));
        let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer.clone())).await;
        for status in statuses {
            assert_eq!(get(address, "/").await.status, status);
        }
        let policy = Policy::fixed_window("part", Quota::per_day(1));
        assert_eq!(layer.limiter().peek(&policy, "all").await.is_allowed(), percent == 0);
    }
}

#[tokio::test]
async fn calm_rules_beside_it_are_as_ever() {
    let (limiter, _clock) = in_memory();
    let both = [Demand::new(&CALM, "mallory"), Demand::new(&LOGIN, "mallory")];
    assert!(limiter.decide(&both).await.0.is_allowed());
    for _ in 0..9 {
        assert!(!limiter.decide(&both).await.0.is_allowed());
    }
    let told = limiter.decide(&both).await.0;
    let blocked: Vec<_> = told.outcomes().iter().map(|outcome| outcome.is_blocked()).collect();
    assert_eq!(blocked, [false, true]);
}

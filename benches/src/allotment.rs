use std::{sync::Arc, time::Duration};

use redis::AsyncCommands;
use tollgate::{Limiter, OnError, Policy, Quota, Redis};
use trypema::{
    RateLimit, RateLimitDecision, RateLimiterBuilder,
    hybrid::{HybridRateLimiterProvider, SyncInterval},
    redis::RedisKey,
};

use crate::{
    cores,
    run::{Case, Run, Wanted},
    server::{Server, closed_loop, runtime},
};

const KEYS: u64 = 1_000;
const IN_FLIGHT: u64 = 64;
const TOTAL: u64 = 1_000_000;

/// Measures decisions on units that a process has drawn ahead.
pub fn run(run: &mut Run) {
    cores::pinned(cores::CLIENT, || measure(run));
}

fn measure(run: &mut Run) {
    let (server, runtime) = (Server::start(), runtime());
    let connection = server.connect(&runtime);
    // No task may hold on to the thread for longer than draws take: what is drawn has to be read.
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address")).deadline(Duration::from_secs(10));
    let exact = Policy::fixed_window("exact", Quota::per_day(2_000_000_000)).on_error(OnError::Deny);
    let allotted = Policy::fixed_window("allotted", Quota::per_day(2_000_000_000)).on_error(OnError::Deny).allotted(1);
    let hybrid = hybrid(&server, &runtime);

    let mut cases: Vec<Case<'_>> = Vec::new();
    let runtime = &runtime;
    cases.push((
        INCR,
        Box::new(move || {
            let connection = connection.clone();
            closed_loop(runtime, IN_FLIGHT, TOTAL / 20, KEYS, move |key| {
                let mut connection = connection.clone();
                async move {
                    let _: i64 = connection.incr(format!("user:{key:07}"), 1).await.expect("INCR");
                }
            })
        }),
    ));
    for (name, policy, total) in [(EXACT, exact, TOTAL / 20), (ALLOTTED, allotted, TOTAL)] {
        let limiter = limiter.clone();
        cases.push((
            name,
            Box::new(move || {
                let (limiter, policy) = (limiter.clone(), policy.clone());
                closed_loop(runtime, IN_FLIGHT, total, KEYS, move |key| {
                    let (limiter, policy) = (limiter.clone(), policy.clone());
                    async move {
                        assert!(limiter.check(&policy, format!("user:{key:07}")).await.is_allowed());
                        // Decisions that are ready at once would keep all else on this thread from running.
                        if key % 64 == 0 {
                            tokio::task::yield_now().await;
                        }
                    }
                })
            }),
        ));
    }
    if let Some(provider) = hybrid {
        cases.push((
            HYBRID,
            Box::new(move || {
                let provider = Arc::clone(&provider);
                closed_loop(runtime, IN_FLIGHT, TOTAL, KEYS, move |key| {
                    let provider = Arc::clone(&provider);
                    async move {
                        let key_text = RedisKey::try_from(format!("user-{key:07}")).expect("a key");
                        let decision = provider.absolute().inc(&key_text, &RateLimit::max(), 1).await;
                        assert!(matches!(decision, Ok(RateLimitDecision::Allowed)));
                        if key % 64 == 0 {
                            tokio::task::yield_now().await;
                        }
                    }
                })
            }),
        ));
    }
    let with_peer = cases.len() == 4;
    let title = format!("allotment, {IN_FLIGHT} in flight, {KEYS} keys, {}", server.version());
    let medians = run.table(&title, &mut cases);
    if with_peer {
        let ratio = medians.ratio(HYBRID, ALLOTTED);
        run.bar(format!("{title}: throughput of {HYBRID}"), Wanted::AtLeast(0.6), ratio);
    }
    run.bar(format!("{title}: throughput of {INCR}"), Wanted::AtLeast(6.0), medians.ratio(INCR, ALLOTTED));
}

/// Returns trypema's limiter if this server suits it.
fn hybrid(server: &Server, runtime: &tokio::runtime::Runtime) -> Option<Arc<HybridRateLimiterProvider>> {
    runtime.block_on(async {
        let client = redis::Client::open(server.url()).expect("an address");
        let connection = client.get_connection_manager().await.expect("a connection");
        let interval = SyncInterval::milliseconds_or_panic(10);
        let builder = HybridRateLimiterProvider::builder(connection).sync_interval(interval);
        let provider = builder.prefix(RedisKey::try_from("hybrid".to_owned()).expect("a key")).disable_cleanup();
        let provider = provider.build().expect("a provider");
        let key = RedisKey::try_from("nobody".to_owned()).expect("a key");
        let suits = provider.absolute().inc(&key, &RateLimit::max(), 1).await.is_ok();
        suits.then_some(provider)
    })
}

const INCR: &str = "bare INCR";
const EXACT: &str = "tollgate, each decision by the store";
const ALLOTTED: &str = "tollgate, allotted";
const HYBRID: &str = "trypema, hybrid";

//! What callers of all else see, beside decisions: corrections, an operator's calls, leases, records.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};
use tollgate::{
    Demand, Error, Limiter, Policy, Quota, Redis,
    lease::{Lock, Once, Tickets},
};

use crate::{
    ALLOW, DEADLINE, DENY, LOCAL, SLACK, assert_as_asked, assert_flat, assert_well, machine::is_in_time, open,
    recovers_within, signal, support::server::Server, used,
};

static FEW: Policy = Policy::fixed_window("few", Quota::per_day(3));

/// How a server goes away, and comes back.
#[derive(Clone, Copy, Debug)]
enum Outage {
    Frozen,
    Killed,
}

impl Outage {
    fn begin(self, server: &mut Server) {
        match self {
            Self::Frozen => signal(server, "STOP"),
            Self::Killed => server.kill(),
        }
    }

    fn end(self, server: &mut Server) {
        match self {
            Self::Frozen => signal(server, "CONT"),
            Self::Killed => server.restart(),
        }
    }
}

/// Asserts that a call says in time that the store has not answered.
async fn fails_within<T>(limit: Duration, call: impl Future<Output = Result<T, Error>>) {
    let began = Instant::now();
    let Err(error) = call.await else { panic!("there is nobody who could have answered") };
    assert!(error.is_transient() && !error.is_invalid(), "{error}");
    assert!(is_in_time(began, limit + SLACK), "{:?}: {error}", began.elapsed());
}

async fn charged(limiter: &Limiter, cost: u64) -> tollgate::limit::Charge {
    let (decision, charge) = limiter.decide(&[Demand::new(&LOCAL, "user:42").cost(cost)]).await;
    assert!(decision.is_allowed() && !decision.is_degraded(), "{decision:?}");
    charge
}

#[tokio::test(flavor = "multi_thread")]
async fn corrections_and_an_operators_calls_say_that_nobody_has_answered() {
    for outage in [Outage::Frozen, Outage::Killed] {
        let mut server = Server::start();
        let limiter = open(&server.url());
        assert_well(&limiter).await;
        let charge = charged(&limiter, 10).await;
        for _ in 0..3 {
            assert!(limiter.check(&FEW, "exhausted").await.is_allowed());
        }
        outage.begin(&mut server);
        // First, so that there is nothing known of the outage yet; then when there is.
        for _ in 0..3 {
            fails_within(DEADLINE, limiter.reset(&LOCAL, "another")).await;
            fails_within(DEADLINE, limiter.block(&LOCAL, "blocked", Duration::from_secs(60))).await;
            fails_within(DEADLINE, limiter.block(&DENY, "blocked", Duration::from_secs(60))).await;
            for policy in [&LOCAL, &ALLOW, &DENY] {
                let began = Instant::now();
                let peeked = limiter.peek(policy, "user:42").await;
                assert!(peeked.is_degraded() && is_in_time(began, DEADLINE + SLACK), "{peeked:?}");
                assert_as_asked(policy, &peeked);
            }
        }
        fails_within(DEADLINE, charge.settle(4)).await;
        assert!(charge.settle(4).await.is_ok(), "the first call is the one that counts");
        // This process goes by what its operator wants, though the server has not heard of it.
        assert!(!limiter.check(&LOCAL, "blocked").await.is_allowed());
        assert!(!limiter.check(&FEW, "exhausted").await.is_allowed());
        fails_within(DEADLINE, limiter.reset(&FEW, "exhausted")).await;
        assert!(limiter.check(&FEW, "exhausted").await.is_allowed());
        fails_within(DEADLINE, limiter.unblock(&LOCAL, "blocked")).await;
        assert!(limiter.check(&LOCAL, "blocked").await.is_allowed());
        // What was decided in the outage has no charge at the server that could be corrected.
        let (decision, charge) = limiter.decide(&[Demand::new(&LOCAL, "user:42").cost(5)]).await;
        assert!(decision.is_degraded() && charge.is_empty(), "{decision:?}");
        charge.settle(1).await.expect("nothing to do");

        outage.end(&mut server);
        recovers_within(&limiter, Duration::from_secs(1)).await;
        // What was sent to a server that stands still may be done when it goes on, and no more than once.
        let before = used(&limiter, &LOCAL).await;
        charged(&limiter, 10).await.settle(4).await.expect("an answer");
        assert_eq!(used(&limiter, &LOCAL).await, before + 4);
        limiter.reset(&FEW, "exhausted").await.expect("an answer");
        assert!(limiter.check(&FEW, "exhausted").await.is_allowed());
        assert_flat(&server, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_records_say_that_nobody_has_answered() {
    for outage in [Outage::Frozen, Outage::Killed] {
        let mut server = Server::start();
        let redis = Redis::open(&server.url()).expect("an address");
        let lock = Lock::new(&redis, "x").ttl(Duration::from_secs(1)).wait(Duration::from_millis(300));
        let once = Once::new(&redis, "orders", Duration::from_secs(60));
        let tickets = Tickets::new(&redis, "login", Duration::from_secs(60));
        let ticket = tickets.issue(b"user:42").await.expect("issued");
        lock.acquire().await.expect("free").release().await.expect("an answer");
        outage.begin(&mut server);
        // First, so that there is nothing known of the outage yet; then when there is.
        for _ in 0..2 {
            fails_within(LONGEST, lock.try_acquire()).await;
            fails_within(LONGEST, lock.holder()).await;
            fails_within(LONGEST, once.claim("7")).await;
            fails_within(LONGEST, tickets.issue(b"another")).await;
            fails_within(LONGEST, tickets.redeem(&ticket)).await;
            let began = Instant::now();
            let error = lock.acquire().await.expect_err("nobody could have given it");
            assert!(
                error.is_wait_too_long() && is_in_time(began, Duration::from_millis(300) + SLACK),
                "{:?}: {error}",
                began.elapsed()
            );
        }
        outage.end(&mut server);
        let ended = Instant::now();
        while lock.holder().await.is_err() {
            assert!(is_in_time(ended, Duration::from_secs(1)), "it does not recover");
            sleep(Duration::from_millis(5)).await;
        }
        // What was asked of a server that stood still may have been done since: nobody holds it for its time then.
        let guard = lock.wait(Duration::from_secs(2)).acquire().await.expect("free again");
        guard.release().await.expect("an answer");
        assert!(once.claim("8").await.expect("an answer"));
        let kept = matches!(outage, Outage::Frozen).then(|| b"user:42".to_vec());
        assert_eq!(tickets.redeem(&ticket).await.expect("an answer"), kept);
        assert_flat(&server, 0);
    }
}

/// How long leases and records wait for an answer.
const LONGEST: Duration = Duration::from_secs(1);

//! When leases are renewed, and the one loop that does it for all guards of a store.
//!
//! A lease is renewed each third of its time. When that fails it is tried again after short pauses until the lease is
//! lost. Renewals that are due at about the same time travel together.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::mpsc, time};

use super::{
    Clock, LeaseStore, Token,
    hold::{Hold, Lost, margin},
    lease::Held,
    race::{First, race},
};
use crate::error::Error;

/// When to renew a lease of some length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rhythm {
    ttl: Duration,
    interval: Duration,
    failures: u32,
}

impl Rhythm {
    pub(super) fn new(ttl: Duration, token: &Token) -> Self {
        // Ten percent more or less, so that what was taken at the same time is not renewed at the same time for ever.
        let third = ttl.saturating_sub(margin(ttl)) / 3;
        let interval = third * 9 / 10 + third * token.jitter() / (5 << 16);
        Self { ttl, interval, failures: 0 }
    }

    /// Returns when to renew next, after a call that was sent at `sent` and answered at `now`.
    fn next(&mut self, renewed: bool, sent: Duration, now: Duration) -> Duration {
        if renewed {
            self.failures = 0;
            return sent + self.interval;
        }
        let pause = (self.ttl / 100).max(SHORTEST_PAUSE).saturating_mul(1 << self.failures.min(6));
        self.failures += 1;
        now + pause.min(self.interval)
    }

    /// Returns how much earlier than due it may be renewed, to travel with others.
    fn slack(&self) -> Duration {
        self.interval / 10
    }
}

/// Returns how long to wait for one call about a lease: never so long that no second one fits.
pub(crate) fn call_deadline(ttl: Duration) -> Duration {
    (ttl / 5).clamp(Duration::from_millis(5), LONGEST_CALL)
}

/// Gives a call its deadline.
pub(crate) async fn in_time<T>(deadline: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    time::timeout(deadline, call).await.unwrap_or_else(|_| Err(Error::deadline(deadline)))
}

/// Renews one lease for as long as it is polled, and returns when it is lost.
pub(crate) async fn renew<F>(hold: &Hold, ttl: Duration, token: Token, extend: impl Fn() -> F) -> Lost
where
    F: Future<Output = Result<bool, Error>>,
{
    let mut rhythm = Rhythm::new(ttl, &token);
    let mut due = hold.clock().now() + rhythm.interval;
    loop {
        if let First::One(lost) = race(hold.lost(), hold.clock().reaches(due)).await {
            return lost;
        }
        let sent = hold.clock().now();
        let renewed = note(hold, ttl, sent, in_time(call_deadline(ttl), extend()).await);
        due = rhythm.next(renewed, sent, hold.clock().now());
    }
}

/// Notes what a renewal came to, and returns whether the lease was extended.
fn note(hold: &Hold, ttl: Duration, sent: Duration, answer: Result<bool, Error>) -> bool {
    match answer {
        Ok(true) => hold.renewed(sent, ttl),
        Ok(false) => hold.is_over(Lost::Taken),
        Err(error) => {
            tracing::debug!(%error, "a lease was not renewed, and is tried again");
            return false;
        }
    }
    true
}

/// What the loop has to do: a lease, and when to renew it.
pub(super) struct Job {
    held: Weak<Held>,
    rhythm: Rhythm,
    due: Duration,
}

impl Job {
    pub(super) fn new(held: &Arc<Held>) -> Self {
        let rhythm = Rhythm::new(held.terms.ttl, &held.id.token());
        Self { due: held.hold.clock().now() + rhythm.interval, rhythm, held: Arc::downgrade(held) }
    }
}

/// Renews leases until nobody can bring new ones and all are gone.
pub(super) async fn work(clock: Clock, mut jobs: mpsc::UnboundedReceiver<Job>, again: mpsc::WeakUnboundedSender<Job>) {
    let mut waiting: HashMap<u64, Job> = HashMap::new();
    let mut order: BinaryHeap<Reverse<(Duration, u64)>> = BinaryHeap::new();
    let mut number = 0;
    loop {
        let next = order.peek().map(|Reverse((due, _))| *due);
        let timer = async {
            match next {
                Some(next) => clock.reaches(next).await,
                None => std::future::pending().await,
            }
        };
        match race(jobs.recv(), timer).await {
            First::One(None) => return,
            First::One(Some(job)) => {
                number += 1;
                order.push(Reverse((job.due, number)));
                waiting.insert(number, job);
            }
            First::Other(()) => send(take_due(&clock, &mut waiting, &mut order), &again),
        }
    }
}

/// Takes what is due, and what follows so closely that it may travel along.
fn take_due(
    clock: &Clock,
    waiting: &mut HashMap<u64, Job>,
    order: &mut BinaryHeap<Reverse<(Duration, u64)>>,
) -> Vec<(Arc<Held>, Rhythm)> {
    let now = clock.now();
    let mut due = Vec::new();
    while let Some(Reverse((at, number))) = order.peek().copied() {
        let early = waiting.get(&number).map_or(Duration::ZERO, |job| job.rhythm.slack());
        if at.saturating_sub(early) > now {
            break;
        }
        order.pop();
        // Who has been released in the meantime is gone.
        if let Some(job) = waiting.remove(&number)
            && let Some(held) = job.held.upgrade()
            && held.hold.left().is_ok()
        {
            due.push((held, job.rhythm));
        }
    }
    due
}

/// Sends renewals, as many in a call as fit, and brings the leases back to the loop.
fn send(due: Vec<(Arc<Held>, Rhythm)>, again: &mpsc::WeakUnboundedSender<Job>) {
    let mut due = due.into_iter().peekable();
    while due.peek().is_some() {
        let batch: Vec<_> = due.by_ref().take(MOST_IN_A_CALL).collect();
        tokio::spawn(renew_all(batch, again.clone()));
    }
}

async fn renew_all(batch: Vec<(Arc<Held>, Rhythm)>, again: mpsc::WeakUnboundedSender<Job>) {
    let leases: Vec<_> = batch.iter().map(|(held, _)| (held.id.clone(), held.terms.ttl)).collect();
    let Some((first, _)) = batch.first() else { return };
    let (store, clock) = (Arc::clone(&first.store), first.hold.clock().clone());
    let shortest = leases.iter().map(|(_, ttl)| *ttl).min().unwrap_or_default();
    let sent = clock.now();
    let answers = in_time(call_deadline(shortest), store.extend(&leases)).await;
    let now = clock.now();
    for (i, (held, mut rhythm)) in batch.into_iter().enumerate() {
        let answer = match &answers {
            Ok(answers) => Ok(answers.get(i).copied().unwrap_or_default()),
            Err(error) => Err(error.clone()),
        };
        let renewed = note(&held.hold, held.terms.ttl, sent, answer);
        let due = rhythm.next(renewed, sent, now);
        if held.hold.left().is_ok()
            && let Some(again) = again.upgrade()
        {
            // Fails when the store is gone, and with it whoever could hold.
            let _ = again.send(Job { held: Arc::downgrade(&held), rhythm, due });
        }
    }
}

/// Some hundred microseconds of the server's time.
const MOST_IN_A_CALL: usize = 256;

const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// What a healthy store never needs.
const LONGEST_CALL: Duration = Duration::from_secs(1);

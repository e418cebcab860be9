//! How a lease is waited for.
//!
//! The first waiter of a process asks the store; the others stand behind it. Who finds the lease taken is told how
//! long that lasts, and sleeps that long and a millisecond; a notice from the store, or a holder in this process who
//! hands over, only makes that earlier. After each new subscription it asks again, since a notice may have passed.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use tokio::time;

use super::{
    Acquired, LeaseId, LeaseStore, Lock, Share, Terms, Token, Watch,
    guard::DEFAULT_TTL,
    hold::Hold,
    keeper::{Granted, Place},
    lease::{Cleanup, Held, Lease},
    race::{First, race},
    renew::{call_deadline, in_time},
};
use crate::{
    error::Error,
    key::Key,
    metrics::{self, WaitMeter},
};

/// What is asked for, each time anew.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) names: Arc<[Key]>,
    pub(super) share: Share,
    pub(super) terms: Terms,
    pub(super) max_hold: Option<Duration>,
    /// How long it is waited for at most, if there is a most.
    pub(super) longest_wait: Option<Duration>,
}

/// One attempt to hold, with a token of its own.
struct Attempt<'a> {
    request: &'a Request,
    id: LeaseId,
    cleanup: Cleanup,
}

impl Request {
    /// Asks for a share of names as long as nothing else is said.
    pub(super) fn new<S: LeaseStore + Clone>(store: &S, names: impl Into<Arc<[Key]>>, share: Share) -> Self {
        Self {
            store: Arc::new(store.clone()),
            names: names.into(),
            share,
            // Says which process holds.
            terms: Terms::new(DEFAULT_TTL, format!("process {}", std::process::id())),
            max_hold: None,
            longest_wait: Some(Lock::DEFAULT_WAIT),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let Terms { ttl, label } = &self.terms;
        if !(SHORTEST_TTL..=LONGEST_TTL).contains(ttl) || ttl.subsec_nanos() % 1_000_000 != 0 {
            return Err(Error::invalid(format!(
                "a lease of {ttl:?}: must be whole milliseconds, from {SHORTEST_TTL:?} to {LONGEST_TTL:?}"
            )));
        }
        if label.len() > LONGEST_LABEL {
            return Err(Error::invalid(format!("a label of {} bytes: must be {LONGEST_LABEL} at most", label.len())));
        }
        self.store.supports(self.share)?;
        self.store.supports_ttl(*ttl)
    }

    /// Asks once; returns nothing if somebody else holds.
    pub(super) async fn attempt(&self) -> Result<Option<Lease>, Error> {
        self.check()?;
        let mut attempt = Attempt::new(self)?;
        let answer = attempt.ask_until(self.store.clock().now() + call_deadline(self.terms.ttl)).await?;
        match answer {
            Ok(lease) => Ok(Some(lease)),
            // A place in the queue is given up.
            Err(_) => Ok(None),
        }
    }

    /// Waits until the lease is held.
    pub(super) async fn wait(&self) -> Result<Lease, Error> {
        self.check()?;
        let (kind, began, _waiting) = (self.share.kind(), self.store.clock().now(), WaitMeter::new(self.share.kind()));
        let waited = self.wait_uncounted().await;
        let result = match &waited {
            Ok(_) => "acquired",
            Err(error) if error.is_wait_too_long() => "timed_out",
            Err(_) => "failed",
        };
        metrics::lease_waited(kind, result, self.store.clock().now().saturating_sub(began));
        waited
    }

    async fn wait_uncounted(&self) -> Result<Lease, Error> {
        let mut attempt = Attempt::new(self)?;
        let mut place =
            (!matches!(self.share, Share::InTurn(_))).then(|| self.store.keeper().join(&attempt.id, &self.terms));
        let mut last = None;
        let waiting = async {
            if let Some(place) = &mut place {
                place.is_first().await;
            }
            attempt.wait(place.as_mut(), &mut last).await
        };
        match self.longest_wait {
            None => waiting.await,
            Some(longest) => match time::timeout(longest, waiting).await {
                Ok(answer) => answer,
                Err(_) => Err(self.not_in_time(longest, last)),
            },
        }
    }

    fn not_in_time(&self, longest: Duration, last: Option<Error>) -> Error {
        // No key text: it may tell of customers.
        let error = Error::taken(format!("a lease was not to be had within {longest:?}"));
        match last {
            Some(last) => error.with_source(last),
            None => error,
        }
    }
}

impl<'a> Attempt<'a> {
    fn new(request: &'a Request) -> Result<Self, Error> {
        let id = LeaseId::new(Arc::clone(&request.names), request.share, Token::random()?);
        let cleanup = Cleanup::new(Arc::clone(&request.store), id.clone(), request.terms.ttl);
        Ok(Self { request, id, cleanup })
    }

    /// Asks once, and again while the store fails, until a time; returns what is left to the holder if it is taken.
    async fn ask_until(&mut self, end: Duration) -> Result<Result<Lease, (Duration, usize)>, Error> {
        let clock = self.request.store.clock();
        let mut pause = SHORTEST_PAUSE;
        loop {
            let left = end.saturating_sub(clock.now());
            match self.ask(call_deadline(self.request.terms.ttl).min(left.max(SHORTEST_PAUSE))).await {
                Err(error) if error.is_transient() && clock.now() + pause < end => {
                    time::sleep(pause).await;
                    pause *= 2;
                }
                answer => return answer,
            }
        }
    }

    async fn ask(&mut self, deadline: Duration) -> Result<Result<Lease, (Duration, usize)>, Error> {
        let Request { store, terms, .. } = self.request;
        let sent = store.clock().now();
        // Dropped from here on, it may be held, and is given back.
        self.cleanup.set_needed(true);
        let answer = in_time(deadline, store.acquire(&self.id, terms)).await?;
        self.take(answer, sent)
    }

    /// Takes what the store answered to a call that was sent at `sent`.
    fn take(&mut self, answer: Acquired, sent: Duration) -> Result<Result<Lease, (Duration, usize)>, Error> {
        let Request { store, terms, max_hold, share, .. } = self.request;
        let (fences, free) = match answer {
            Acquired::Held { fences } => (fences, 0),
            Acquired::Permit { free } => (Vec::new(), free),
            Acquired::Taken { left, name } => {
                self.cleanup.set_needed(matches!(share, Share::InTurn(_)));
                return Ok(Err((left, name)));
            }
        };
        let hold = Hold::new(store.clock(), sent, terms.ttl, *max_hold);
        if hold.left().is_err() {
            return Err(Error::store("the answer came when the lease had ended"));
        }
        self.cleanup.set_needed(false);
        let hold = hold.counted_as(share.kind());
        let (store, id, terms) = (Arc::clone(store), self.id.clone(), terms.clone());
        Ok(Ok(Lease(Arc::new(Held { store, id, terms, fences, free, hold }))))
    }

    /// Asks, and waits as long as it is told, until it holds.
    async fn wait(&mut self, mut place: Option<&mut Place>, last: &mut Option<Error>) -> Result<Lease, Error> {
        let waiter = self.id.token().to_string().into_bytes();
        let ttl = self.request.terms.ttl;
        let mut pause = SHORTEST_PAUSE;
        let mut watch: Option<(usize, Watch)> = None;
        loop {
            if let Some(place) = &place {
                place.stands_back().await;
            }
            if let Some((_, watch)) = &mut watch {
                watch.forget();
            }
            let (left, name) = match self.ask(call_deadline(ttl)).await {
                Ok(Ok(lease)) => return Ok(lease),
                Ok(Err(taken)) => taken,
                Err(error) if error.is_transient() => {
                    *last = Some(error);
                    watch = None;
                    time::sleep(pause).await;
                    pause = self.longer(pause);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut watched = match watch.take() {
                Some((of, watch)) if of == name => watch,
                _ => self.watch(name).await,
            };
            if watched.begins() {
                watch = Some((name, watched));
                continue;
            }
            let is_by_asking = watched.is_by_asking();
            let mut sleep = (left + Duration::from_millis(1)).min(LONGEST_SLEEP);
            if is_by_asking {
                sleep = sleep.min(pause);
                pause = self.longer(pause);
            } else {
                pause = SHORTEST_PAUSE;
            }
            if let Share::InTurn(keep) = self.request.share {
                // The place in the queue is kept by asking.
                sleep = sleep.min(keep / 3);
            }
            let told = race(granted(&mut place), race(watched.told(&waiter), time::sleep(sleep))).await;
            // One that tells nothing is made anew, for it may be possible by then.
            if !is_by_asking && !matches!(told, First::Other(First::One(false))) {
                watch = Some((name, watched));
            }
            if let First::One((Ok(answer @ Acquired::Held { .. }), sent)) = told
                && let Ok(Ok(lease)) = self.take(answer, sent)
            {
                return Ok(lease);
            }
        }
    }

    async fn watch(&self, name: usize) -> Watch {
        let Request { store, names, terms, .. } = self.request;
        let Some(name) = names.get(name) else { return Watch::by_asking() };
        in_time(call_deadline(terms.ttl), store.watch(name)).await.unwrap_or_else(|_| Watch::by_asking())
    }

    /// Returns a pause that is longer than the last, by chance, up to [`LONGEST_PAUSE`].
    fn longer(&self, pause: Duration) -> Duration {
        let grown = pause + pause * self.id.token().jitter() / (1 << 16);
        (grown + SHORTEST_PAUSE).min(LONGEST_PAUSE)
    }
}

async fn granted(place: &mut Option<&mut Place>) -> Granted {
    match place {
        Some(place) => place.granted().await,
        None => std::future::pending().await,
    }
}

/// Returns a number of permits.
pub(super) fn permits(permits: u32) -> Result<Share, Error> {
    match NonZeroU32::new(permits).filter(|permits| permits.get() <= MOST_PERMITS) {
        Some(permits) => Ok(Share::OneOf(permits)),
        None => Err(Error::invalid(format!("{permits} permits: must be 1 to {MOST_PERMITS}"))),
    }
}

/// Shorter than that, a busy machine loses leases by being busy.
const SHORTEST_TTL: Duration = Duration::from_millis(20);

/// Fences are kept for a day after they were last needed.
const LONGEST_TTL: Duration = Duration::from_secs(86_400);

const LONGEST_LABEL: usize = 256;

/// Each permit costs the store some hundred bytes, and each acquire looks at all that have ended.
const MOST_PERMITS: u32 = 100_000;

/// Where nothing is told, the first question after this, and the later ones less and less often.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Asks in between even if it should be told, whatever goes wrong.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

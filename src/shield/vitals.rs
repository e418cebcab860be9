use std::sync::{
    OnceLock,
    atomic::{AtomicI32, AtomicU64, Ordering},
};

use tokio::time::Instant;

use crate::{
    error::Error,
    metrics::{CallResult, StoreMeter},
};

/// What the shields have seen of their store: for operators.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
    /// Below zero for a moment, if one closes before it is noted that it has opened.
    breakers_open: AtomicI32,
    deny_cache_hits: AtomicU64,
    calls: AtomicU64,
    failures: AtomicU64,
    micros: AtomicU64,
    meter: OnceLock<StoreMeter>,
}

/// What was seen until a moment.
#[cfg(feature = "admin")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The parts of the store that are left alone.
    pub(crate) breakers_open: u32,
    pub(crate) deny_cache_hits: u64,
    pub(crate) calls: u64,
    /// Those of them that brought no decision.
    pub(crate) failures: u64,
    /// The time that all calls took together, in microseconds.
    pub(crate) micros: u64,
}

impl Vitals {
    pub(super) fn deny_cache_hit(&self) {
        if !COUNTS {
            return;
        }
        self.deny_cache_hits.fetch_add(1, Ordering::Relaxed);
        self.meter().deny_cache_hit();
    }

    /// Returns when a call begins, if anybody wants to know.
    pub(super) fn begin() -> Option<Instant> {
        COUNTS.then(Instant::now)
    }

    /// Takes note of a call that began at a time and has ended now.
    pub(super) fn called(&self, began: Option<Instant>, failed: Option<&Error>) {
        let Some(began) = began else { return };
        let result = match failed {
            None => CallResult::Answered,
            Some(error) if error.is_timeout() => CallResult::TimedOut,
            Some(_) => CallResult::Failed,
        };
        let long = began.elapsed();
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(failed.is_some().into(), Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(long.as_micros()).unwrap_or(0), Ordering::Relaxed);
        self.meter().called(result, long);
    }

    pub(super) fn breaker_opened(&self) {
        self.breakers_open.fetch_add(1, Ordering::Relaxed);
        self.meter().breakers_opened(1);
        tracing::debug!(name: "breaker_opened", target: "tollgate::store", "a breaker has opened: the store is left alone");
    }

    pub(super) fn breaker_closed(&self) {
        self.breakers_open.fetch_sub(1, Ordering::Relaxed);
        self.meter().breakers_closed(1);
        tracing::debug!(name: "breaker_closed", target: "tollgate::store", "a breaker has closed: the store is asked again");
    }

    #[cfg(feature = "admin")]
    pub(crate) fn seen(&self) -> Seen {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Seen {
            breakers_open: u32::try_from(self.breakers_open.load(Ordering::Relaxed)).unwrap_or(0),
            deny_cache_hits: read(&self.deny_cache_hits),
            calls: read(&self.calls),
            failures: read(&self.failures),
            micros: read(&self.micros),
        }
    }

    fn meter(&self) -> &StoreMeter {
        self.meter.get_or_init(StoreMeter::new)
    }
}

impl Drop for Vitals {
    fn drop(&mut self) {
        if let Some(meter) = self.meter.get() {
            meter.breakers_closed(u32::try_from(*self.breakers_open.get_mut()).unwrap_or(0));
        }
    }
}

/// Whether anybody can look: else nothing is counted.
const COUNTS: bool = cfg!(any(feature = "metrics", feature = "admin"));

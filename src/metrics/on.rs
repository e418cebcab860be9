//! What is recorded with the `metrics` facade.
//!
//! A handle belongs to the recorder that is there when it is made, so handles are made as late as can be: by the first
//! decision of a rule, and by the first call of a store. What is about leases and idempotency keys, where each costs
//! calls to a store, asks the recorder each time.

use std::{
    cell::Cell,
    fmt,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Unit};
use tokio::time::Instant;

use super::{
    CallResult, Tally,
    names::{
        ALL, ALLOTTED, BREAKERS_OPEN, CONCURRENCY, DECISIONS, DEGRADED, DENY_CACHE_HITS, IDEMPOTENCY, KEYS, Kind,
        LEASE_WAIT_SECONDS, LEASES_ACQUIRED, LEASES_HELD, LEASES_LOST, LEASES_WAITING, NEAR_LIMIT, OVERFLOW,
        STORE_SECONDS,
    },
};

/// Tells the present recorder what the metrics of this crate mean, for exporters that show it.
///
/// To be called once, after the recorder is installed.
///
/// ```
/// tollgate::metrics::describe();
/// ```
pub fn describe() {
    for metric in ALL {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Kind::Histogram => metrics::describe_histogram!(metric.name, Unit::Seconds, metric.help),
        }
    }
}

/// The counters of one rule.
pub(crate) struct RuleMeter([Counter; Tally::ALL.len()]);

impl RuleMeter {
    pub(crate) fn new(rule: &str) -> Self {
        let rule = rule.to_owned();
        Self(Tally::ALL.map(|tally| match tally {
            Tally::NearLimit => metrics::counter!(NEAR_LIMIT, "rule" => rule.clone()),
            Tally::Degraded => metrics::counter!(DEGRADED, "rule" => rule.clone()),
            Tally::Overflow => metrics::counter!(OVERFLOW, "rule" => rule.clone()),
            Tally::Allotted => metrics::counter!(ALLOTTED, "rule" => rule.clone()),
            outcome => metrics::counter!(DECISIONS, "rule" => rule.clone(), "outcome" => outcome.name()),
        }))
    }

    pub(crate) fn count(&self, tally: Tally) {
        self.0[tally.place()].increment(1);
    }
}

/// What is recorded of a store and the shields around it.
pub(crate) struct StoreMeter {
    hits: Counter,
    answered: Histogram,
    failed: Histogram,
    timed_out: Histogram,
    breakers: Gauge,
}

impl StoreMeter {
    pub(crate) fn new() -> Self {
        let seconds = |result: &'static str| metrics::histogram!(STORE_SECONDS, "result" => result);
        Self {
            hits: metrics::counter!(DENY_CACHE_HITS),
            answered: seconds("answered"),
            failed: seconds("failed"),
            timed_out: seconds("timed_out"),
            breakers: metrics::gauge!(BREAKERS_OPEN),
        }
    }

    pub(crate) fn deny_cache_hit(&self) {
        self.hits.increment(1);
    }

    pub(crate) fn called(&self, result: CallResult, long: Duration) {
        let histogram = match result {
            CallResult::Answered => &self.answered,
            CallResult::Failed => &self.failed,
            CallResult::TimedOut => &self.timed_out,
        };
        histogram.record(long);
    }

    pub(crate) fn breakers_opened(&self, count: u32) {
        self.breakers.increment(count);
    }

    pub(crate) fn breakers_closed(&self, count: u32) {
        self.breakers.decrement(count);
    }
}

/// Tells how many keys a store keeps, now and then while decisions are made: to count them, all have to be locked.
pub(crate) struct KeysMeter {
    gauge: Gauge,
    began: Instant,
    /// When they were counted last, in milliseconds, and one more.
    counted_at: AtomicU64,
    /// What the gauge was told of this store: there may be others, and all of them add up.
    told: AtomicU32,
}

impl KeysMeter {
    pub(crate) fn new() -> Self {
        let gauge = metrics::gauge!(KEYS);
        Self { gauge, began: Instant::now(), counted_at: AtomicU64::new(0), told: AtomicU32::new(0) }
    }

    /// Takes note of a decision; `count` is asked once a second at most.
    pub(crate) fn decided(&self, count: impl FnOnce() -> Option<usize>) {
        thread_local!(static DECISIONS: Cell<u32> = const { Cell::new(0) });
        // The clock is asked at the first, and then at one in so many.
        let before = self.counted_at.load(Ordering::Relaxed);
        if before > 0 && !DECISIONS.replace(DECISIONS.get().wrapping_add(1)).is_multiple_of(DECISIONS_A_LOOK) {
            return;
        }
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1;
        if before > 0 && now < before + COUNT_EVERY_MS {
            return;
        }
        if self.counted_at.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && let Some(count) = count()
        {
            self.tell(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    fn tell(&self, count: u32) {
        let told = self.told.swap(count, Ordering::Relaxed);
        if count >= told {
            self.gauge.increment(count - told);
        } else {
            self.gauge.decrement(told - count);
        }
    }
}

impl Drop for KeysMeter {
    fn drop(&mut self) {
        self.tell(0);
    }
}

/// A lease that is held, until it is over.
pub(crate) struct LeaseMeter {
    kind: &'static str,
    held: Gauge,
}

impl LeaseMeter {
    pub(crate) fn new(kind: &'static str) -> Self {
        metrics::counter!(LEASES_ACQUIRED, "kind" => kind).increment(1);
        let held = metrics::gauge!(LEASES_HELD, "kind" => kind);
        held.increment(1);
        Self { kind, held }
    }

    /// Takes note that it ended before it was given up.
    pub(crate) fn lost(self) {
        metrics::counter!(LEASES_LOST, "kind" => self.kind).increment(1);
    }
}

impl Drop for LeaseMeter {
    fn drop(&mut self) {
        self.held.decrement(1);
    }
}

/// Somebody who waits for a lease, until this is dropped.
pub(crate) struct WaitMeter(Gauge);

impl WaitMeter {
    pub(crate) fn new(kind: &'static str) -> Self {
        let waiting = metrics::gauge!(LEASES_WAITING, "kind" => kind);
        waiting.increment(1);
        Self(waiting)
    }
}

impl Drop for WaitMeter {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

pub(crate) fn lease_waited(kind: &'static str, result: &'static str, long: Duration) {
    metrics::histogram!(LEASE_WAIT_SECONDS, "kind" => kind, "result" => result).record(long);
}

pub(crate) fn concurrency(rule: &str, outcome: &'static str) {
    metrics::counter!(CONCURRENCY, "rule" => rule.to_owned(), "outcome" => outcome).increment(1);
}

pub(crate) fn idempotency(outcome: &'static str) {
    metrics::counter!(IDEMPOTENCY, "outcome" => outcome).increment(1);
}

#[cfg(feature = "config")]
pub(crate) fn reload(is_good: bool) {
    let result = if is_good { "good" } else { "bad" };
    metrics::counter!(super::names::CONFIG_RELOADS, "result" => result).increment(1);
}

/// What is recorded of handles is nothing to print.
macro_rules! debug_by_name {
    ($($name:ident),+) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )+};
}

debug_by_name!(RuleMeter, StoreMeter, KeysMeter, LeaseMeter, WaitMeter);

/// Reading the clock costs as much as the rest.
const DECISIONS_A_LOOK: u32 = 16;

/// More often than anybody looks at it.
const COUNT_EVERY_MS: u64 = 1_000;

use std::sync::{
    OnceLock,
    atomic::{AtomicI32, Ordering},
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
    meter: OnceLock<StoreMeter>,
}

impl Vitals {
    pub(super) fn deny_cache_hit(&self) {
        if !COUNTS {
            return;
        }
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
        self.meter().called(result, began.elapsed());
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
const COUNTS: bool = cfg!(feature = "metrics");

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::limit::Micros;

/// Where a store in memory has its time from.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    /// The wall clock at the start, carried on by the monotonic clock: it never steps.
    System {
        started: Instant,
        epoch: Micros,
    },
    Manual(ManualClock),
}

impl Clock {
    #[allow(clippy::disallowed_methods)] // Here is where time comes from.
    pub(super) fn system() -> Self {
        // A machine that believes to be before 1970 counts from there.
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
        Self::System { started: Instant::now(), epoch }
    }

    #[allow(clippy::disallowed_methods)] // Here is where time comes from.
    pub(super) fn now(&self) -> Micros {
        match self {
            Self::System { started, epoch } => epoch + micros(started.elapsed()),
            Self::Manual(clock) => clock.now(),
        }
    }
}

/// Moves the time of a [`Memory`](super::Memory) in tests.
///
/// It starts at 2026-01-01 00:00:00 UTC and stands still. Clones move the same time.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START)))
    }

    /// Moves the time forward. A duration counts to the microsecond.
    pub fn advance(&self, by: Duration) {
        self.change(|now| now.saturating_add(micros(by)).min(END));
    }

    /// Steps the time back, as a clock does that is corrected; not below 1970.
    pub fn step_back(&self, by: Duration) {
        self.change(|now| now.saturating_sub(micros(by)));
    }

    /// Returns the time since 1970.
    pub fn elapsed_since_epoch(&self) -> Duration {
        Duration::from_micros(self.now())
    }

    fn now(&self) -> Micros {
        self.0.load(Ordering::Acquire)
    }

    fn change(&self, to: impl Fn(Micros) -> Micros) {
        // `update` would read better and is newer than the oldest compiler that we support.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(to(now)));
    }
}

/// Returns whole microseconds, without the detour by 128 bits.
pub(super) fn micros(time: Duration) -> Micros {
    time.as_secs().saturating_mul(1_000_000).saturating_add(time.subsec_micros().into()).min(END)
}

/// 2026-01-01 00:00:00 UTC.
const START: Micros = 1_767_225_600_000_000;

/// The year 2255, up to which microseconds since 1970 are below 2⁵³.
const END: Micros = 1 << 53;

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

/// Options of the shields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) deadline: Duration,
    /// For how long refusals are remembered; zero if they are not.
    pub(crate) deny_max_age: Duration,
    pub(crate) replicas: NonZeroU32,
}

/// Options that can change while they are gone by.
#[derive(Debug)]
pub(crate) struct Tuning {
    deadline_micros: AtomicU64,
    deny_max_age_micros: AtomicU64,
    replicas: AtomicU32,
    /// How often something has changed by which decisions are made.
    changes: AtomicU64,
}

impl Tuning {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            deadline_micros: AtomicU64::new(micros(options.deadline)),
            deny_max_age_micros: AtomicU64::new(micros(options.deny_max_age)),
            replicas: AtomicU32::new(options.replicas.get()),
            changes: AtomicU64::new(0),
        }
    }

    pub(crate) fn options(&self) -> Options {
        Options { deadline: self.deadline(), deny_max_age: self.deny_max_age(), replicas: self.replicas() }
    }

    /// Goes by other options from now on.
    #[cfg(feature = "config")]
    pub(crate) fn set(&self, options: Options) {
        // Each is gone by for itself, so that no order matters.
        self.deadline_micros.store(micros(options.deadline), Ordering::Relaxed);
        self.deny_max_age_micros.store(micros(options.deny_max_age), Ordering::Relaxed);
        self.replicas.store(options.replicas.get(), Ordering::Relaxed);
    }

    /// Takes note that policies have changed: what was said by the old ones holds no longer.
    #[cfg(feature = "config")]
    pub(crate) fn policies_changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_micros(self.deadline_micros.load(Ordering::Relaxed))
    }

    pub(super) fn deny_max_age(&self) -> Duration {
        Duration::from_micros(self.deny_max_age_micros.load(Ordering::Relaxed))
    }

    pub(super) fn replicas(&self) -> NonZeroU32 {
        NonZeroU32::new(self.replicas.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }
}

/// A time of centuries is as good as one without an end.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

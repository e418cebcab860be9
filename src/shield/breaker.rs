use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// Whether to ask the store at all: not while it fails, but for one request at a time that finds out.
///
/// Without locks: it is looked at by every request, and waited for by none.
#[derive(Debug)]
pub(super) struct Breaker {
    /// Times are counted from then.
    made: Instant,
    /// [`CLOSED`], [`PROBING`], or the microsecond from which on a request may find out.
    gate: AtomicU64,
    /// The failures in a row, while it is closed, and the microsecond of the first.
    failures: AtomicU32,
    row_began: AtomicU64,
    /// How often it has opened, or been found to stay so, since the store was well.
    openings: AtomicU32,
}

/// How a request goes to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Open,
    /// As the only one, to find out.
    Probe,
}

impl Breaker {
    pub(super) fn new() -> Self {
        // The zeroth microsecond stands for closed, and is over.
        Self {
            made: Instant::now(),
            gate: AtomicU64::new(CLOSED),
            failures: AtomicU32::new(0),
            row_began: AtomicU64::new(0),
            openings: AtomicU32::new(0),
        }
    }

    /// Returns true if no request may go to the store now.
    pub(super) fn is_open(&self) -> bool {
        match self.gate.load(Ordering::Acquire) {
            CLOSED => false,
            PROBING => true,
            at => self.now() < at,
        }
    }

    /// Lets a request go to the store, or does not.
    pub(super) fn enter(&self) -> Option<Way> {
        match self.gate.load(Ordering::Acquire) {
            CLOSED => Some(Way::Open),
            PROBING => None,
            at if self.now() < at => None,
            at => {
                let mine = self.gate.compare_exchange(at, PROBING, Ordering::AcqRel, Ordering::Acquire).is_ok();
                mine.then_some(Way::Probe)
            }
        }
    }

    /// Takes note of an answer. Whoever got it, the store gives some. Returns true if that has closed it.
    pub(super) fn succeeded(&self) -> bool {
        // Loads are cheap where stores are not: every request comes here.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        self.gate.load(Ordering::Acquire) != CLOSED && self.gate.swap(CLOSED, Ordering::AcqRel) != CLOSED
    }

    /// Takes note that the store was well for a while.
    pub(super) fn recovered(&self) {
        self.openings.store(0, Ordering::Relaxed);
    }

    /// Takes note of a failure, in which the store was `silent` until the deadline or answered an error. Returns true if
    /// that has opened it.
    pub(super) fn failed(&self, way: Way, silent: bool) -> bool {
        let from = match way {
            Way::Probe => PROBING,
            Way::Open => CLOSED,
        };
        let (now, openings) = (self.now(), self.openings.load(Ordering::Relaxed));
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures == 1 {
            self.row_began.store(now, Ordering::Relaxed);
        }
        // Errors that came together say little: one call may have carried them all, and others be well.
        let long = silent || now.saturating_sub(self.row_began.load(Ordering::Relaxed)) >= micros(ROW);
        // Just after it was open, one is enough.
        if way == Way::Open && openings == 0 && (failures < FAILURES || !long) {
            return false;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << openings.min(16)).min(LONGEST_PAUSE);
        let at = now.saturating_add(micros(pause));
        // Else it has been opened or closed by another one.
        let changed = self.gate.compare_exchange(from, at, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if changed {
            self.failures.store(0, Ordering::Relaxed);
            self.openings.store(openings.saturating_add(1), Ordering::Relaxed);
        }
        changed && from == CLOSED
    }

    /// Takes note that a request has gone away without an answer: the next one may find out.
    pub(super) fn abandoned(&self, way: Way) {
        if way == Way::Probe {
            let _ = self.gate.compare_exchange(PROBING, self.now(), Ordering::AcqRel, Ordering::Acquire);
        }
    }

    fn now(&self) -> u64 {
        micros(Instant::now().saturating_duration_since(self.made)).saturating_add(1)
    }
}

fn micros(time: Duration) -> u64 {
    // So far away is no time that either of the marks could be taken for.
    u64::try_from(time.as_micros()).unwrap_or(PROBING - 2).min(PROBING - 2)
}

const CLOSED: u64 = 0;
const PROBING: u64 = u64::MAX;

/// The failures in a row that open it: more than a key or two that a store chokes on, asked for in between others.
const FAILURES: u32 = 5;

/// How long errors must have been the only answers for that; many more than a call takes that carries some of them.
const ROW: Duration = Duration::from_millis(20);

/// The pause before the first request that finds out.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// The longest pause: how late it is seen that a store is well again, and how often one request waits in vain.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    async fn wait(time: Duration) {
        tokio::time::advance(time).await;
    }

    fn opened() -> Breaker {
        let breaker = Breaker::new();
        (0..FAILURES).for_each(|failure| assert_eq!(breaker.failed(Way::Open, true), failure == FAILURES - 1));
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn only_failures_in_a_row_open_it() {
        let breaker = Breaker::new();
        for _ in 0..10 {
            (1..FAILURES).for_each(|_| _ = breaker.failed(Way::Open, true));
            breaker.succeeded();
        }
        assert_eq!(breaker.enter(), Some(Way::Open));
        let breaker = opened();
        assert!(breaker.is_open() && breaker.enter().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn errors_that_come_together_do_not() {
        let breaker = Breaker::new();
        (0..1_000).for_each(|_| _ = breaker.failed(Way::Open, false));
        assert!(!breaker.is_open());
        wait(ROW).await;
        breaker.failed(Way::Open, false);
        assert!(breaker.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_at_a_time_finds_out_after_a_growing_pause() {
        let breaker = opened();
        for pause in [25, 50, 100, 200, 250, 250] {
            wait(Duration::from_millis(pause - 1)).await;
            assert!(breaker.is_open() && breaker.enter().is_none(), "{pause}");
            wait(Duration::from_millis(1)).await;
            assert!(!breaker.is_open());
            assert_eq!(breaker.enter(), Some(Way::Probe), "{pause}");
            assert!(breaker.is_open() && breaker.enter().is_none(), "there is one on its way");
            // Those that were sent before it opened say nothing new.
            breaker.failed(Way::Open, true);
            assert!(breaker.enter().is_none());
            breaker.failed(Way::Probe, false);
        }
        wait(LONGEST_PAUSE).await;
        assert_eq!(breaker.enter(), Some(Way::Probe));
        breaker.succeeded();
        assert_eq!((breaker.enter(), breaker.enter()), (Some(Way::Open), Some(Way::Open)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_gives_up_makes_room_for_the_next() {
        let breaker = opened();
        wait(FIRST_PAUSE).await;
        assert_eq!(breaker.enter(), Some(Way::Probe));
        breaker.abandoned(Way::Open);
        assert!(breaker.enter().is_none());
        breaker.abandoned(Way::Probe);
        assert_eq!(breaker.enter(), Some(Way::Probe));
    }

    #[tokio::test(start_paused = true)]
    async fn until_it_was_well_for_a_while_one_failure_opens_it_again() {
        let breaker = opened();
        breaker.succeeded();
        breaker.failed(Way::Open, false);
        assert!(breaker.is_open());
        breaker.succeeded();
        breaker.recovered();
        breaker.failed(Way::Open, true);
        assert!(!breaker.is_open());
    }
}

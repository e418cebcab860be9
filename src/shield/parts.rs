use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    breaker::{Breaker, Way},
    vitals::Vitals,
};
use crate::error::Error;

/// The parts of a store, each of which fails and is left alone by itself. A set of them is a bit each.
#[derive(Debug)]
pub(super) struct Parts {
    first: Part,
    /// Made when one of them is first needed: most stores are one part.
    others: OnceLock<Box<[Part]>>,
    vitals: Arc<Vitals>,
}

#[derive(Debug)]
struct Part {
    breaker: Breaker,
    health: Health,
}

/// How a request goes to the parts that have to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visitors {
    parts: u64,
    /// Those to which it goes as the only one, to find out.
    probed: u64,
}

/// Whether a part is well, so that a change is logged once.
///
/// One failure makes it unwell; only a while without any makes it well again, so that a store that answers now and
/// then fills no log.
#[derive(Debug, Default)]
struct Health {
    failing: AtomicBool,
    failed: Mutex<Option<Instant>>,
}

impl Parts {
    pub(super) fn new(vitals: Arc<Vitals>) -> Self {
        Self { first: Part::new(), others: OnceLock::new(), vitals }
    }

    /// Returns true if no request may go to all of these parts now.
    pub(super) fn are_open(&self, parts: u64) -> bool {
        each(parts).any(|part| self.at(part).breaker.is_open())
    }

    /// Lets a request go to all of these parts, or does not.
    pub(super) fn enter(&self, parts: u64) -> Option<Visitors> {
        let mut entered = Visitors { parts, probed: 0 };
        for part in each(parts) {
            match self.at(part).breaker.enter() {
                Some(Way::Open) => {}
                Some(Way::Probe) => entered.probed |= part,
                None => {
                    self.abandoned(entered);
                    return None;
                }
            }
        }
        Some(entered)
    }

    /// Takes note that all parts have answered.
    pub(super) fn succeeded(&self, visitors: Visitors) {
        for part in each(visitors.parts) {
            let part = self.at(part);
            if part.breaker.succeeded() {
                self.vitals.breaker_closed();
            }
            if part.health.answered() {
                part.breaker.recovered();
            }
        }
    }

    /// Takes note of a failure of some parts: of all that were asked, if nobody knows of which. A part to which the
    /// request was sent on by another is to blame alone.
    pub(super) fn failed(&self, visitors: Visitors, guilty: u64, error: &Error) {
        let guilty = if guilty == 0 { visitors.parts } else { guilty };
        for part in each(guilty) {
            let way = if visitors.probed & part == 0 { Way::Open } else { Way::Probe };
            let part = self.at(part);
            if part.breaker.failed(way, error.is_timeout()) {
                self.vitals.breaker_opened();
            }
            part.health.failed(error);
        }
        self.abandoned(Visitors { probed: visitors.probed & !guilty, ..visitors });
    }

    /// Takes note that a request has gone away without an answer.
    pub(super) fn abandoned(&self, visitors: Visitors) {
        each(visitors.probed).for_each(|part| self.at(part).breaker.abandoned(Way::Probe));
    }

    fn at(&self, part: u64) -> &Part {
        match part.trailing_zeros() {
            0 => &self.first,
            place => {
                let others = self.others.get_or_init(|| (1..u64::BITS).map(|_| Part::new()).collect());
                &others[usize::try_from(place).expect("there are few bits") - 1]
            }
        }
    }
}

/// Takes a set apart; what has no part at all is the store's as a whole.
fn each(parts: u64) -> impl Iterator<Item = u64> {
    let mut rest = parts.max(1);
    std::iter::from_fn(move || {
        let lowest = rest & rest.wrapping_neg();
        rest &= !lowest;
        (lowest != 0).then_some(lowest)
    })
}

impl Part {
    fn new() -> Self {
        Self { breaker: Breaker::new(), health: Health::default() }
    }
}

impl Health {
    /// Takes note of an answer. Returns true if the store has become well by that.
    fn answered(&self) -> bool {
        if !self.failing.load(Ordering::Relaxed) {
            return false;
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let long_ago = failed.is_some_and(|failed| failed.elapsed() >= WELL_AFTER);
        let well = long_ago && self.failing.swap(false, Ordering::Relaxed);
        if well {
            tracing::info!(name: "answering", target: "tollgate::store", "the rate limit store answers again");
        }
        well
    }

    fn failed(&self, error: &Error) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.failing.swap(true, Ordering::Relaxed) {
            let source = std::error::Error::source(error).map(tracing::field::display);
            tracing::warn!(name: "failing", target: "tollgate::store", %error, source, "the rate limit store cannot answer; policies decide by their on_error");
        }
        *failed = Some(Instant::now());
    }
}

/// How long a store must answer without a failure to be well again.
const WELL_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn silence() -> Error {
        Error::deadline(Duration::from_millis(100))
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_fails_takes_nothing_from_the_others() {
        let parts = Parts::new(Arc::default());
        for _ in 0..5 {
            // The second is to blame each time.
            let visitors = parts.enter(0b110).expect("it is well");
            parts.failed(visitors, 0b100, &silence());
        }
        assert!(parts.enter(0b100).is_none() && parts.enter(0b110).is_none());
        assert!(parts.enter(0b010).is_some() && parts.enter(0b001).is_some());
        tokio::time::advance(Duration::from_millis(25)).await;
        // Both find out, the one that is well too, and it makes room for the next when it could not.
        let probe = parts.enter(0b110).expect("it may find out");
        assert!(parts.are_open(0b100) && !parts.are_open(0b010));
        parts.failed(probe, 0b100, &silence());
        assert!(parts.enter(0b010).is_some() && parts.enter(0b100).is_none());
        tokio::time::advance(Duration::from_millis(50)).await;
        let probe = parts.enter(0b110).expect("it may find out");
        parts.succeeded(probe);
        assert!(parts.enter(0b110).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_sent_a_request_on_is_not_to_blame_for_where_it_went() {
        let parts = Parts::new(Arc::default());
        for _ in 0..5 {
            let visitors = parts.enter(0b010).expect("it is well");
            parts.failed(visitors, 0b100, &silence());
        }
        assert!(!parts.are_open(0b010) && parts.are_open(0b100));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_is_to_blame_for_is_the_fault_of_all() {
        let parts = Parts::new(Arc::default());
        for _ in 0..5 {
            let visitors = parts.enter(0b11).expect("it is well");
            parts.failed(visitors, 0, &silence());
        }
        assert!(parts.are_open(0b01) && parts.are_open(0b10) && !parts.are_open(0b100));
        tokio::time::advance(Duration::from_millis(25)).await;
        let probe = parts.enter(0b10).expect("it may find out");
        // Who needs both waits for that, and keeps nobody from finding out about the other.
        assert!(parts.enter(0b11).is_none());
        assert!(parts.enter(0b01).is_some());
        parts.abandoned(probe);
        assert!(parts.enter(0b10).is_some());
    }
}

//! What a holder knows by itself: until when it holds.
//!
//! 1. The deadline is counted from the moment before the call was sent that granted or extended the lease, less a
//!    margin, so it is over here before it is over at the store.
//! 2. It depends on the local clock alone: no call has to come back for a lease to be lost.
//! 3. Lost is final. No later reply makes it held again.
//! 4. The deadline only ever moves forward.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use super::{Clock, race::race};
use crate::{error::Error, metrics::LeaseMeter};

/// Why a lease is held no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// Its time was up before it could be extended.
    Expired,
    /// The store said that it is not, or no longer, this holder's.
    Taken,
    /// It was held for as long as it may be.
    MaxHold,
    /// It was given up here.
    Released,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ended before it could be extended",
            Self::Taken => "the store no longer knows the lease as ours",
            Self::MaxHold => "the lease was held for as long as it may be",
            Self::Released => "the lease was given up",
        })
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::lost(lost.to_string())
    }
}

/// What a holder knows by itself.
pub(crate) struct Hold {
    clock: Clock,
    /// When it ends for good, if ever.
    end: Option<Duration>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    deadline: Duration,
    lost: Option<Lost>,
    /// Counts it while it is held, if it is counted.
    meter: Option<LeaseMeter>,
}

impl Hold {
    /// Begins with a lease that was asked for at `sent`; it is lost at once if its time is up.
    pub(crate) fn new(clock: Clock, sent: Duration, ttl: Duration, max_hold: Option<Duration>) -> Self {
        let end = max_hold.map(|long| sent.saturating_add(long));
        let deadline = deadline(sent, ttl).min(end.unwrap_or(Duration::MAX));
        Self { clock, end, state: Mutex::new(State { deadline, lost: None, meter: None }), changed: Notify::new() }
    }

    /// Counts it among the leases of its kind for as long as it is held.
    pub(super) fn counted_as(self, kind: &'static str) -> Self {
        self.lock().meter = Some(LeaseMeter::new(kind));
        self
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the time that is left, or why none is.
    pub(crate) fn left(&self) -> Result<Duration, Lost> {
        let now = self.clock.now();
        let mut state = self.lock();
        if let Some(lost) = state.lost {
            return Err(lost);
        }
        if now < state.deadline {
            return Ok(state.deadline - now);
        }
        let lost = if self.end.is_some_and(|end| end <= now) { Lost::MaxHold } else { Lost::Expired };
        self.lose(&mut state, lost);
        Err(lost)
    }

    /// Notes that an extension was granted that was asked for at `sent`.
    pub(crate) fn renewed(&self, sent: Duration, ttl: Duration) {
        // Too late is lost, whatever the store says.
        if self.left().is_err() {
            return;
        }
        let mut state = self.lock();
        let new = deadline(sent, ttl).min(self.end.unwrap_or(Duration::MAX));
        state.deadline = state.deadline.max(new);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Notes that the lease is no more; the first reason stays.
    pub(crate) fn is_over(&self, why: Lost) {
        let mut state = self.lock();
        if state.lost.is_none() {
            self.lose(&mut state, why);
        }
    }

    /// Waits until the lease is lost.
    pub(crate) async fn lost(&self) -> Lost {
        self.left_falls_to(Duration::ZERO).await;
        match self.left() {
            Err(lost) => lost,
            Ok(_) => unreachable!("what has no time left is lost"),
        }
    }

    /// Waits until no more than so much is left.
    pub(crate) async fn left_falls_to(&self, least: Duration) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let Ok(left) = self.left() else { return };
            if left <= least && !least.is_zero() {
                return;
            }
            let at = self.clock.now().saturating_add(left.saturating_sub(least));
            race(self.clock.reaches(at), changed).await;
        }
    }

    fn lose(&self, state: &mut State, lost: Lost) {
        state.lost = Some(lost);
        if let Some(meter) = state.meter.take()
            && lost != Lost::Released
        {
            meter.lost();
            tracing::debug!(name: "lost", target: "tollgate::lease", %lost, "a lease is lost");
        }
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("left", &self.left()).finish_non_exhaustive()
    }
}

fn deadline(sent: Duration, ttl: Duration) -> Duration {
    sent.saturating_add(ttl.saturating_sub(margin(ttl)))
}

/// What clocks of two machines may differ by over the length of a lease: one percent, and two milliseconds since
/// servers count in whole ones.
pub(crate) fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn moved() -> (Arc<AtomicU64>, Clock) {
        let ms = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&ms);
        (ms, Clock::by(move || Duration::from_millis(read.load(Ordering::SeqCst))))
    }

    #[test]
    fn a_lease_ends_here_before_it_ends_at_the_store() {
        let (ms, clock) = moved();
        let hold = Hold::new(clock, Duration::ZERO, TTL, None);
        ms.store(9_897, Ordering::SeqCst);
        assert_eq!(hold.left(), Ok(Duration::from_millis(1)));
        ms.store(9_898, Ordering::SeqCst);
        assert_eq!(hold.left(), Err(Lost::Expired));
    }

    #[test]
    fn a_lease_counts_from_the_sending_of_what_extended_it() {
        let (ms, clock) = moved();
        let hold = Hold::new(clock, Duration::ZERO, TTL, None);
        ms.store(9_000, Ordering::SeqCst);
        hold.renewed(Duration::from_millis(3_000), TTL);
        assert_eq!(hold.left(), Ok(Duration::from_millis(3_898)));
        // A reply that comes out of order moves nothing back.
        hold.renewed(Duration::from_millis(2_000), TTL);
        assert_eq!(hold.left(), Ok(Duration::from_millis(3_898)));
    }

    #[test]
    fn lost_is_final() {
        let (ms, clock) = moved();
        let hold = Hold::new(clock, Duration::ZERO, TTL, None);
        ms.store(9_900, Ordering::SeqCst);
        hold.renewed(Duration::from_millis(9_800), TTL);
        assert_eq!(hold.left(), Err(Lost::Expired));
        hold.is_over(Lost::Taken);
        assert_eq!(hold.left(), Err(Lost::Expired));
        // Not even by a clock that steps back.
        ms.store(0, Ordering::SeqCst);
        assert_eq!(hold.left(), Err(Lost::Expired));
    }

    #[test]
    fn no_renewal_goes_beyond_the_longest_hold() {
        let (ms, clock) = moved();
        let hold = Hold::new(clock, Duration::ZERO, TTL, Some(Duration::from_secs(12)));
        ms.store(8_000, Ordering::SeqCst);
        hold.renewed(Duration::from_millis(8_000), TTL);
        assert_eq!(hold.left(), Ok(Duration::from_secs(4)));
        ms.store(12_000, Ordering::SeqCst);
        assert_eq!(hold.left(), Err(Lost::MaxHold));
    }

    #[tokio::test]
    async fn a_lease_is_lost_by_the_local_clock_alone() {
        let (ms, clock) = moved();
        let hold = Arc::new(Hold::new(clock, Duration::ZERO, TTL, None));
        let lost = tokio::spawn({
            let hold = Arc::clone(&hold);
            async move { hold.lost().await }
        });
        tokio::task::yield_now().await;
        assert!(!lost.is_finished());
        ms.store(9_898, Ordering::SeqCst);
        assert_eq!(lost.await.expect("no panic"), Lost::Expired);
    }
}

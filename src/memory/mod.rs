//! The engine inside one process: no set-up, no background task, no network.

mod clock;
mod limit;

use std::sync::Arc;

pub use self::clock::ManualClock;
use self::{clock::Clock, limit::Table};
use crate::{
    error::Error,
    key::Key,
    limit::{Adjustment, Answer, Demand, Policy, Store},
};

/// Keeps limits in this process's memory.
///
/// Clones share one state. Decisions never wait and never fail. What has ended is swept away by later
/// decisions: nothing has to be called to free memory, and no task runs.
///
/// Time is the system's monotonic clock, set to the wall clock once when the store is made. It does not follow
/// tokio's paused time; tests take [`Memory::manual`].
///
/// ```
/// # async fn doc() {
/// use std::time::Duration;
/// use tollgate::{Limiter, Memory, Policy, Quota};
///
/// static POLICY: Policy = Policy::token_bucket("api", Quota::per_minute(60)).burst(1);
/// let (memory, clock) = Memory::manual();
/// let limiter = Limiter::new(memory);
///
/// assert!(limiter.check(&POLICY, "user:42").await.is_allowed());
/// assert!(!limiter.check(&POLICY, "user:42").await.is_allowed());
/// clock.advance(Duration::from_secs(1));
/// assert!(limiter.check(&POLICY, "user:42").await.is_allowed());
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(doc());
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    clock: Clock,
    table: Arc<Table>,
}

impl Memory {
    /// Makes an empty store.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// Makes an empty store whose time stands still until the clock is moved.
    pub fn manual() -> (Self, ManualClock) {
        let clock = ManualClock::new();
        (Self::with_clock(Clock::Manual(clock.clone())), clock)
    }

    /// Returns the number of keys that are kept: the live ones, and those not yet swept away.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns true if no key is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn with_clock(clock: Clock) -> Self {
        Self { clock, table: Arc::default() }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for Memory {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        Answer::ready(Ok(self.table.decide(demands, self.clock.now())))
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        let now = self.clock.now();
        adjustments.iter().for_each(|adjustment| self.table.settle(adjustment, now));
        Answer::ready(Ok(()))
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        self.table.reset(policy, subject);
        Answer::ready(Ok::<_, Error>(()))
    }
}

//! The engine inside one process: no set-up, no background task, no network.

mod clock;
mod lease;
mod limit;
mod penalty;
mod queue;
mod record;

use std::{sync::Arc, time::Duration};

pub use self::clock::ManualClock;
use self::{clock::Clock, lease::Leases, limit::Table, queue::Queues, record::Records};
use crate::{
    error::Error,
    key::Key,
    limit::{Adjustment, Answer, Decision, Demand, Outcome, Policy, Store},
};

/// Keeps limits and leases in this process's memory.
///
/// Clones share one state. Decisions never wait and never fail. What has ended is swept away by later
/// decisions: nothing has to be called to free memory, and no task runs.
///
/// It holds a million keys at most ([`Memory::max_keys`]), some 70 bytes each. What has not ended is never dropped
/// for a new key: when there is no room, [`WhenFull`] says what becomes of new ones. As many again are remembered where
/// policies [escalate](Policy::escalate), for those that were refused; who is refused beyond that is not counted for it.
///
/// Time is the system's monotonic clock, set to the wall clock once when the store is made, and read from the processor's
/// counter between one second and the next. It does not follow tokio's paused time; tests take [`Memory::manual`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
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
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    clock: Clock,
    table: Arc<Table>,
    leases: Arc<Leases>,
    records: Arc<Records>,
    queues: Arc<Queues>,
    max_keys: usize,
    when_full: WhenFull,
}

/// What becomes of a key for which there is no room, since all that are kept are in use.
///
/// ```
/// use tollgate::{Memory, WhenFull};
///
/// let strict = Memory::new().max_keys(100_000).when_full(WhenFull::Refuse);
/// # let _ = strict;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// All such keys are counted together, for each policy: who floods the store with new keys limits itself, and
    /// nobody whose key is kept. The decision is marked as [overflow](crate::Decision::is_overflow).
    #[default]
    Share,
    /// Such keys are refused.
    Refuse,
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

    /// Makes an empty store that spreads its keys in the same way in every process.
    ///
    /// Not part of the public face: it lets this crate's tests count instructions.
    #[doc(hidden)]
    pub fn seeded_for_tests(seed: u64) -> Self {
        let memory = Self::new();
        let table = Table::new(memory.max_keys, memory.when_full).seeded(seed);
        Self { table: Arc::new(table), ..memory }
    }

    /// Returns the number of keys that are kept: the live ones, and those not yet swept away.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns true if no key is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets how many keys to hold at most; the default is [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS).
    ///
    /// The bound is kept by parts of the table, so some keys may find no room a little before that many are kept; one
    /// more for each policy is shared by those. Starts from an empty table.
    #[must_use]
    pub fn max_keys(self, keys: usize) -> Self {
        Self::of(self.clock, keys, self.when_full)
    }

    /// Sets what becomes of new keys when there is no room. Starts from an empty table.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self::of(self.clock, self.max_keys, when_full)
    }

    /// Sets how many bytes of records to hold at most ([`Once`](crate::lease::Once) and
    /// [`Tickets`](crate::lease::Tickets)); the default is
    /// [`DEFAULT_MAX_RECORD_BYTES`](Self::DEFAULT_MAX_RECORD_BYTES). Starts without records.
    ///
    /// Records and leases are never dropped for new ones: what finds no room is an error.
    #[must_use]
    pub fn max_record_bytes(self, bytes: usize) -> Self {
        Self { records: Arc::new(Records::new(self.max_keys, bytes)), ..self }
    }

    /// 64 MB: some ten thousand responses of usual size.
    pub const DEFAULT_MAX_RECORD_BYTES: usize = 64 << 20;

    /// One million: some 70 MB when all of them are in use, and more clients than one process serves in a window.
    pub const DEFAULT_MAX_KEYS: usize = 1_000_000;

    /// Takes over what another store has answered to a demand, so that this one could go on from there: for
    /// `policy`, which may be a part of the demand's own.
    pub(crate) fn follow(&self, policy: &Policy, demand: &Demand<'_>, outcome: &Outcome, admitted: bool) {
        let now = self.clock.now();
        if outcome.is_blocked() {
            let ends = now.saturating_add(outcome.passes_in().map_or(0, clock::micros));
            self.table.block(policy, demand.subject(), ends, now);
        } else if let Some(told) = outcome.told(demand.policy(), demand.cost_u32(), admitted) {
            self.table.follow(policy, demand, &told, now);
        }
    }

    /// Decides on one demand, into a decision that is empty; returns false, and has done nothing, where
    /// [`decide_now`](Store::decide_now) is to.
    #[inline]
    pub(crate) fn decide_one(&self, policy: &Policy, subject: &Key, cost: u32, decision: &mut Decision) -> bool {
        self.table.decide_one(policy, subject, cost, self.clock.now(), decision)
    }

    fn with_clock(clock: Clock) -> Self {
        Self::of(clock, Self::DEFAULT_MAX_KEYS, WhenFull::default())
    }

    fn of(clock: Clock, max_keys: usize, when_full: WhenFull) -> Self {
        let table = Arc::new(Table::new(max_keys, when_full));
        let records = Arc::new(Records::new(max_keys, Self::DEFAULT_MAX_RECORD_BYTES));
        let (leases, queues) = (Arc::new(Leases::new(max_keys)), Arc::new(Queues::new(max_keys)));
        Self { clock, table, leases, records, queues, max_keys, when_full }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for Memory {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        let mut answer = Answer::ready(Ok(Decision::empty()));
        // Where it is to be, so that it is not moved.
        if let Some(decision) = answer.ready_mut() {
            self.table.decide(demands, self.clock.now(), decision);
        }
        answer
    }

    #[inline]
    fn decide_now(&self, demands: &[Demand<'_>], decision: &mut Decision) -> bool {
        self.table.decide(demands, self.clock.now(), decision);
        true
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

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        let now = self.clock.now();
        let ends = now.saturating_add(u64::try_from(long.as_micros()).unwrap_or(u64::MAX));
        self.table.block(policy, subject, ends, now);
        Answer::ready(Ok(()))
    }

    fn keys(&self) -> Option<usize> {
        Some(self.len())
    }
}

use std::{collections::VecDeque, mem};

use super::{Micros, Policy, Receipt, Standing, algorithm::Told};

/// The charges of the last window, oldest first, with their sum.
///
/// A charge counts from its instant until one window later, that instant excluded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlidingWindow {
    entries: VecDeque<Entry>,
    /// The sum of all entries, those included that are over but not yet trimmed.
    used: u32,
    /// The instant of the newest charge.
    last: Micros,
    /// When the newest charge is over, by the quota that it was made under.
    ends: Micros,
    /// Counts the entries that share their instant with an older one, to tell them apart.
    ties: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Micros,
    tie: u32,
    units: u32,
}

/// The charges at the front that no longer count.
#[derive(Default)]
struct Over {
    count: usize,
    units: u32,
}

impl SlidingWindow {
    /// Moves charges from the future to now, and drops those that are over: at most [`TRIM`] at a time.
    ///
    /// What is left over counts until a later call drops it: never to the caller's gain.
    pub(super) fn tidy(&mut self, policy: &Policy, now: Micros) {
        let window = policy.window_micros();
        if self.last > now {
            self.move_future_to(now);
            self.ends = now + window;
        }
        if self.last + window <= now {
            self.forget();
            return;
        }
        let over = self.over(policy, now);
        self.entries.drain(..over.count);
        self.used = self.used.saturating_sub(over.units);
    }

    /// Drops all charges, and keeps room for a few: a log that was long once gives its memory back.
    pub(super) fn forget(&mut self) {
        *self = Self { entries: mem::take(&mut self.entries), ..Self::default() };
        self.entries.clear();
        self.entries.shrink_to(SMALL);
    }

    /// Counts the oldest charges that are over, at most [`TRIM`].
    fn over(&self, policy: &Policy, now: Micros) -> Over {
        let window = policy.window_micros();
        let mut over = Over { count: 0, units: 0 };
        for entry in self.entries.iter().take(TRIM).take_while(|entry| entry.at + window <= now) {
            over.count += 1;
            over.units = entry.units.saturating_add(over.units);
        }
        over
    }

    /// Returns true if the cost, which is not zero, would pass now; of a log that is tidy.
    pub(super) fn fits(&self, policy: &Policy, now: Micros, cost: u32) -> bool {
        let used = if self.last + policy.window_micros() <= now { 0 } else { self.used };
        used.saturating_add(cost) <= policy.quota().limit_u32()
    }

    /// Tells of a log that is tidy, or, at a cost of zero, what it would be then.
    pub(super) fn standing(&self, policy: &Policy, now: Micros, cost: u32) -> Standing {
        let (window, limit) = (policy.window_micros(), policy.quota().limit_u32());
        // What lies in the future, after the clock was set back, counts from now.
        let last = self.last.min(now);
        let over = if cost == 0 { self.over(policy, now) } else { Over::default() };
        let used = self.used.saturating_sub(over.units);
        if used == 0 || last + window <= now {
            let wait = if cost > limit { Standing::NEVER } else { 0 };
            return Standing { remaining: limit, next: 0, full: 0, wait };
        }
        let until = |at: Micros| (at + window).saturating_sub(now).max(1);
        let left_by = |units: u32| self.left_by(over.count, units).min(now);
        let wait = match excess(used, cost, limit) {
            _ if cost == 0 => 0,
            _ if cost > limit => Standing::NEVER,
            0 => 0,
            excess => until(left_by(excess)),
        };
        Standing {
            remaining: limit.saturating_sub(used),
            next: until(left_by(excess(used, 1, limit).max(1))),
            full: until(last),
            wait,
        }
    }

    pub(super) fn charge(&mut self, policy: &Policy, now: Micros, cost: u32) -> Receipt {
        let tie = if now > self.last { 0 } else { self.next_tie() };
        self.entries.push_back(Entry { at: now, tie, units: cost });
        self.used = self.used.saturating_add(cost);
        self.last = now;
        self.ends = now + policy.window_micros();
        Receipt::entry(now, tie)
    }

    /// Takes over what a store has charged, or for how long it refuses.
    pub(super) fn follow(&mut self, policy: &Policy, now: Micros, told: &Told) {
        self.tidy(policy, now);
        if told.charged.is_some() {
            let used = told.used(policy, self.used);
            match used.checked_sub(self.used) {
                Some(0) => {}
                Some(more) => _ = self.charge(policy, now, more),
                None => self.take_back(self.used - used),
            }
            return;
        }
        // An entry that is over when the wait is, of as many units as keep the cost out until then.
        let window = policy.window_micros();
        let at = (now + told.standing.wait.min(window)).saturating_sub(window);
        let enough = policy.quota().limit_u32().saturating_sub(told.cost) + 1;
        let mut from = self.entries.partition_point(|entry| entry.at < at);
        if self.units_from(from) < enough {
            // Answers do not take equally long: what is over a little earlier is the same that the store has in mind.
            let near = at.saturating_sub(NEAR.min(window / 10));
            let first = self.entries.partition_point(|entry| entry.at < near);
            self.entries.range_mut(first..from).for_each(|entry| entry.at = at);
            from = first;
        }
        let units = enough.saturating_sub(self.units_from(from));
        if units > 0 {
            let tie = self.next_tie();
            self.entries.insert(from, Entry { at, tie, units });
            self.used = self.used.saturating_add(units);
        }
        self.last = self.last.max(at);
        self.ends = self.ends.max(at + window);
    }

    /// Returns the units of a charge and all newer ones.
    fn units_from(&self, index: usize) -> u32 {
        self.entries.iter().skip(index).fold(0, |sum, entry| sum.saturating_add(entry.units))
    }

    /// Takes units out of the newest charges.
    fn take_back(&mut self, units: u32) {
        self.used = self.used.saturating_sub(units);
        let mut left = units;
        while let Some(newest) = self.entries.back_mut() {
            if newest.units > left {
                newest.units -= left;
                return;
            }
            left -= newest.units;
            self.entries.pop_back();
        }
    }

    /// Corrects a charge that still counts; what goes beyond the limit is debt until it is over.
    pub(super) fn settle(&mut self, policy: &Policy, now: Micros, charge: (Micros, u32, u32), cost: u32) {
        let (at, tie, units) = charge;
        if at + policy.window_micros() <= now {
            return;
        }
        let from = self.entries.partition_point(|entry| entry.at < at);
        let mut same = self.entries.iter().skip(from).take_while(|entry| entry.at == at);
        // The units tell it from one that was made after a reset in the same instant.
        let Some(offset) = same.position(|entry| entry.tie == tie && entry.units == units) else { return };
        let entry = &mut self.entries[from + offset];
        let others = self.used.saturating_sub(entry.units);
        entry.units = cost.min(u32::MAX - others);
        self.used = others + entry.units;
        if cost == 0 {
            self.entries.remove(from + offset);
        }
    }

    pub(super) fn ends(&self) -> Micros {
        self.ends
    }

    /// Counts the charges that a clock since set back has left in the future as one that is made now, so that
    /// they are over one window from now.
    fn move_future_to(&mut self, now: Micros) {
        let first = self.entries.partition_point(|entry| entry.at <= now);
        let units = if self.entries.len() - first <= MOVE {
            self.entries.drain(first..).map(|entry| entry.units).fold(0, u32::saturating_add)
        } else {
            self.entries.clear();
            self.used
        };
        if units > 0 {
            let tie = self.next_tie();
            self.entries.push_back(Entry { at: now, tie, units });
        }
        self.last = now;
    }

    /// Returns the instant of the charge with which `units` have left, at the latest, not counting the oldest
    /// `skip` charges.
    ///
    /// Looks at [`WALK`] charges; past those it counts each as one unit, which can only make the answer later.
    fn left_by(&self, skip: usize, units: u32) -> Micros {
        let mut missing = units;
        for entry in self.entries.iter().skip(skip).take(WALK) {
            if missing <= entry.units {
                return entry.at;
            }
            missing -= entry.units;
        }
        let index = usize::try_from(missing).unwrap_or(usize::MAX).saturating_add(skip + WALK - 1);
        self.entries.get(index).or(self.entries.back()).map_or(self.last, |entry| entry.at)
    }

    fn next_tie(&mut self) -> u32 {
        self.ties = self.ties % MOST_TIES + 1;
        self.ties
    }
}

/// Returns how many units must leave before `cost` fits.
fn excess(used: u32, cost: u32, limit: u32) -> u32 {
    used.saturating_add(cost).saturating_sub(limit)
}

/// The charges that one decision drops at most, so that no decision takes long.
const TRIM: usize = 1_000;

/// The charges that one decision looks through at most to tell when enough units have left.
const WALK: usize = 64;

/// The future charges that are moved one by one; with more of them all charges become one.
const MOVE: usize = 128;

/// How much longer one answer may take than another, in microseconds: the deadline of a decision, if none is set.
const NEAR: Micros = 100_000;

/// Ties are told apart by 21 bits, which with a 32-bit sum fit a number below 2⁵³.
const MOST_TIES: u32 = (1 << 21) - 1;

/// The entries for which an idle log keeps room.
const SMALL: usize = 8;

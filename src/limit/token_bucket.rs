use super::{
    Micros, Policy, Receipt, Standing,
    algorithm::Told,
    policy::{TICKS_PER_MICRO, WHOLE_MICROS_FROM},
};

/// The instant at which the bucket is full again, in ticks since the Unix epoch.
///
/// This is the arrival time of the generic cell rate algorithm (ITU-T I.371): a charge moves it by one interval
/// a unit, and passes if it stays within a full bucket of now. Kept as a time, it needs no refilling, and a
/// changed quota finds the same share of the bucket used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    arrival: u64,
}

impl TokenBucket {
    /// Takes what a store keeps: the ticks until the bucket is full.
    #[cfg(feature = "redis")]
    pub(crate) fn from_level(level: u64, now: Micros) -> Self {
        Self { arrival: now * TICKS_PER_MICRO + level }
    }

    /// Returns the ticks that `cost` units take to refill, which a bucket can't hold if they are too many.
    #[cfg(feature = "redis")]
    pub(crate) fn ticks(policy: &Policy, cost: u32) -> u64 {
        u64::from(cost.min(policy.capacity_u32().saturating_add(1))) * policy.interval()
    }

    /// Returns the ticks that a state of this policy is a multiple of.
    pub(crate) fn grain(policy: &Policy) -> u64 {
        if policy.interval() >= WHOLE_MICROS_FROM * TICKS_PER_MICRO { TICKS_PER_MICRO } else { 1 }
    }

    /// Lowers a debt that the present quota could not have made to the largest that it could.
    #[inline]
    pub(super) fn tidy(&mut self, policy: &Policy, now: Micros) {
        let level = self.level(policy, now);
        if now * TICKS_PER_MICRO + level < self.arrival {
            self.set_level(now, level);
        }
    }

    /// Returns true if the cost, which is not zero, would pass now.
    #[inline]
    pub(super) fn fits(&self, policy: &Policy, now: Micros, cost: u32) -> bool {
        cost <= policy.capacity_u32()
            && self.level(policy, now) + u64::from(cost) * policy.interval() <= capacity(policy)
    }

    /// Charges a cost, which is not zero, if it would pass now: [`tidy`](Self::tidy), [`fits`](Self::fits),
    /// [`charge`](Self::charge) and [`stand`](Self::stand) in one.
    #[inline]
    pub(super) fn take(&mut self, policy: &Policy, now: Micros, cost: u32) -> (Level, Option<Receipt>) {
        let before = self.level(policy, now);
        let possible = cost <= policy.capacity_u32();
        let after = if possible { before + u64::from(cost) * policy.interval() } else { u64::MAX };
        let fits = after <= capacity(policy);
        let level = if fits { after } else { before };
        if fits || now * TICKS_PER_MICRO + level < self.arrival {
            self.set_level(now, level);
        }
        (Level::of(policy, level, cost), fits.then(|| Receipt::arrival(self.arrival)))
    }

    #[inline]
    pub(super) fn stand(&self, policy: &Policy, now: Micros, cost: u32) -> Level {
        Level::of(policy, self.level(policy, now), cost)
    }

    #[inline]
    pub(super) fn charge(&mut self, policy: &Policy, now: Micros, cost: u32) -> Receipt {
        self.set_level(now, self.level(policy, now) + u64::from(cost) * policy.interval());
        Receipt::arrival(self.arrival)
    }

    /// Takes over the level of a store. A part of it refills slower than the whole, so it is counted in units.
    pub(super) fn follow(&mut self, policy: &Policy, now: Micros, told: &Told) {
        let (standing, interval) = (told.standing, policy.interval());
        let own = self.level(policy, now);
        let level = if let Some(charged) = told.charged {
            // The unit that refills next is a part of one.
            let part = (standing.next * TICKS_PER_MICRO).min(interval);
            let ticks = |units: u32| match units.checked_sub(1) {
                Some(whole) if part > 0 => u64::from(whole) * interval + part,
                _ => u64::from(units) * interval,
            };
            let least = ticks(policy.capacity_u32().saturating_sub(standing.remaining));
            // More than empty it is not made: others have used that.
            let most = ticks(told.used).min(capacity(policy));
            (own + u64::from(charged) * interval).min(most).max(least)
        } else {
            let passes_at = u64::from(told.cost.min(policy.capacity_u32())) * interval;
            own.max((capacity(policy) + standing.wait.saturating_mul(TICKS_PER_MICRO)).saturating_sub(passes_at))
        };
        self.set_level(now, level.min(2 * capacity(policy)));
    }

    /// Corrects a charge: gives back at most what has not refilled since, adds at most one more burst of debt.
    pub(super) fn settle(&mut self, policy: &Policy, now: Micros, arrival: u64, charged: u32, cost: u32) {
        let level = self.level(policy, now);
        let arrival = arrival.next_multiple_of(Self::grain(policy));
        let unfilled = arrival.saturating_sub(now * TICKS_PER_MICRO);
        let settled = if cost < charged {
            let back = u64::from(charged - cost).saturating_mul(policy.interval());
            level.saturating_sub(back.min(unfilled))
        } else {
            let more = u64::from(cost - charged).saturating_mul(policy.interval());
            // Had the charge been this high from the start, the bucket would be full again then.
            let full_at = arrival.saturating_add(more);
            match full_at.saturating_sub(now * TICKS_PER_MICRO) {
                0 => level,
                still if level == 0 => still,
                _ => level.saturating_add(more),
            }
            .min(level.max(2 * capacity(policy)))
        };
        if settled != level {
            self.set_level(now, settled);
        }
    }

    #[inline]
    pub(super) fn ends(&self) -> Micros {
        micros_up(self.arrival)
    }

    /// Returns the ticks until the bucket is full, at most what a burst and as much debt take.
    ///
    /// More than that is not to be had, unless the clock stepped back or the quota changed; nobody is locked
    /// out for longer.
    #[inline]
    fn level(&self, policy: &Policy, now: Micros) -> u64 {
        let level = self.arrival.saturating_sub(now * TICKS_PER_MICRO);
        // A grain of one needs no rounding, and dividing by a constant is cheap.
        let level = if Self::grain(policy) == 1 { level } else { level.next_multiple_of(TICKS_PER_MICRO) };
        level.min(2 * capacity(policy))
    }

    fn set_level(&mut self, now: Micros, level: u64) {
        self.arrival = now * TICKS_PER_MICRO + level;
    }
}

/// What a bucket holds, seen by somebody who asks for `cost` units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    /// Ticks until it is full.
    ticks: u64,
    interval: u64,
    capacity: u32,
    cost: u32,
}

impl Level {
    #[inline]
    fn of(policy: &Policy, ticks: u64, cost: u32) -> Self {
        Self { ticks, interval: policy.interval(), capacity: policy.capacity_u32(), cost }
    }

    #[inline]
    pub(super) fn standing(self) -> Standing {
        let Self { ticks, interval, .. } = self;
        let free = self.full().saturating_sub(ticks);
        let next = if ticks == 0 { 0 } else { ticks.saturating_sub(self.full()) + interval - free % interval };
        let remaining = u32::try_from(free / interval).unwrap_or(u32::MAX);
        Standing { remaining, next: micros_up(next), full: micros_up(ticks), wait: self.wait() }
    }

    #[inline]
    pub(super) fn wait(self) -> Micros {
        let Self { ticks, interval, capacity, cost } = self;
        if cost > capacity {
            Standing::NEVER
        } else if cost == 0 {
            0
        } else {
            micros_up((ticks + u64::from(cost) * interval).saturating_sub(self.full()))
        }
    }

    /// Returns the ticks in which an empty bucket fills.
    fn full(self) -> u64 {
        u64::from(self.capacity) * self.interval
    }
}

/// Returns the ticks in which an empty bucket fills.
fn capacity(policy: &Policy) -> u64 {
    policy.capacity() * policy.interval()
}

fn micros_up(ticks: u64) -> Micros {
    ticks.div_ceil(TICKS_PER_MICRO)
}

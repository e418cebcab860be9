use super::{Micros, Policy, Receipt, Standing, algorithm::Told};

/// The units charged in the window that is open, and the window's end.
///
/// A window lasts to the millisecond: it opens at the millisecond of its first charge, and at the millisecond of
/// its end the next one may open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    used: u32,
    /// Milliseconds since the Unix epoch, high and low half: so that this and a tag fit into 16 bytes.
    ends: [u32; 2],
}

impl FixedWindow {
    fn new(used: u32, ends_ms: u64) -> Self {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).expect("half of 64 bits");
        Self { used, ends: [half(ends_ms >> 32), half(ends_ms)] }
    }

    fn ends_ms(&self) -> u64 {
        u64::from(self.ends[0]) << 32 | u64::from(self.ends[1])
    }

    /// Takes what a store keeps: the units used and the milliseconds left, zero if no window is open.
    #[cfg(feature = "redis")]
    pub(crate) fn from_parts(used: u32, left_ms: u64, now: Micros) -> Self {
        match left_ms {
            0 => Self::default(),
            left_ms => Self::new(used, now / 1_000 + left_ms),
        }
    }

    /// Ends a window that the present quota and clock could not have opened yet, one whole window from now.
    pub(super) fn tidy(&mut self, policy: &Policy, now: Micros) {
        let ends_ms = now / 1_000 + self.left_ms(policy, now);
        if ends_ms < self.ends_ms() {
            *self = Self::new(self.used, ends_ms);
        }
    }

    /// Returns true if the cost, which is not zero, would pass now.
    pub(super) fn fits(&self, policy: &Policy, now: Micros, cost: u32) -> bool {
        let used = if self.left_ms(policy, now) == 0 { 0 } else { self.used };
        used.saturating_add(cost) <= policy.quota().limit_u32()
    }

    pub(super) fn standing(&self, policy: &Policy, now: Micros, cost: u32) -> Standing {
        let limit = policy.quota().limit_u32();
        let left = self.left_ms(policy, now) * 1_000;
        let used = if left == 0 { 0 } else { self.used };
        let left_if_used = if used == 0 { 0 } else { left };
        let wait = match used.checked_add(cost) {
            _ if cost == 0 => 0,
            _ if cost > limit => Standing::NEVER,
            Some(sum) if sum <= limit => 0,
            _ => left,
        };
        Standing { remaining: limit.saturating_sub(used), next: left_if_used, full: left_if_used, wait }
    }

    pub(super) fn charge(&mut self, policy: &Policy, now: Micros, cost: u32) -> Receipt {
        let (used, left_ms) = match self.left_ms(policy, now) {
            0 => (0, length_ms(policy, now)),
            left_ms => (self.used, left_ms),
        };
        *self = Self::new(used.saturating_add(cost), now / 1_000 + left_ms);
        Receipt::window(self.ends_ms())
    }

    /// Takes over the window of a store, as late as the answer came.
    pub(super) fn follow(&mut self, policy: &Policy, now: Micros, told: &Told) {
        let standing = told.standing;
        let left_ms = match told.charged {
            // A store of somebody's own that tells no times.
            Some(_) if standing.full == 0 => length_ms(policy, now),
            Some(_) => standing.full.div_ceil(1_000),
            None => standing.full.max(standing.wait).div_ceil(1_000),
        };
        let ends_ms = now / 1_000 + left_ms.min(length_ms(policy, now));
        // One and the same window ends at the same time, but for how long answers take.
        let same = self.left_ms(policy, now) > 0 && ends_ms < self.ends_ms() + length_ms(policy, now) / 2;
        let own = if same { self.used } else { 0 };
        *self = Self::new(told.used(policy, own), ends_ms);
    }

    /// Corrects a charge whose window is still open; what goes beyond the limit is debt until it ends.
    pub(super) fn settle(&mut self, policy: &Policy, now: Micros, ends_ms: u64, charged: u32, cost: u32) {
        if self.left_ms(policy, now) != 0 && self.ends_ms().abs_diff(ends_ms) <= Self::end_off_by_ms(policy) {
            self.used =
                self.used.saturating_sub(charged.saturating_sub(cost)).saturating_add(cost.saturating_sub(charged));
        }
    }

    /// Returns how far the ends of one and the same window may lie apart.
    ///
    /// Where a limit is so large that a store keeps the end as a key's lifetime, it reads its clock and the lifetime one
    /// after the other; and a limit may have been as large before.
    pub(crate) fn end_off_by_ms(policy: &Policy) -> u64 {
        (policy.quota().window_ms() / 2).min(5)
    }

    pub(super) fn ends(&self) -> Micros {
        self.ends_ms() * 1_000
    }

    /// Returns what is left of the open window, or zero.
    ///
    /// More than one whole window can't be left, unless the clock stepped back or the quota's window shrank:
    /// then it ends one whole window from now, so that nobody is locked out for longer.
    fn left_ms(&self, policy: &Policy, now: Micros) -> u64 {
        self.ends_ms().saturating_sub(now / 1_000).min(length_ms(policy, now))
    }
}

/// Returns how long a window lasts that opens now.
fn length_ms(policy: &Policy, now: Micros) -> u64 {
    let window_ms = policy.quota().window_ms();
    if policy.is_aligned() { window_ms - now / 1_000 % window_ms } else { window_ms }
}

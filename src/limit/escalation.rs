use std::time::Duration;

use super::Micros;
use crate::error::Error;

/// Blocks who goes on asking after refusals, longer each time.
///
/// A subject that a policy has refused `after` times within `within` is blocked under that policy for `block`: it is
/// refused whatever it has used. The next time it is blocked for twice as long as the last, up to `up_to`. The window in
/// which refusals are counted opens with the first of them. A block is made by the refusal that completes the count, and
/// told by it: the time to wait is the time to the block's end; then the quota decides again.
///
/// Who was blocked is remembered until `up_to` has passed after the block's end; then it begins with `block` again.
/// Refusals while blocked count for nothing, nor do those of other policies in the same call, of demands [in the
/// shadow](super::Demand::shadow), for units drawn [ahead](super::Policy::allotted), and of who is counted with others
/// for want of room. While the store fails, a process counts and blocks by itself, until the store is back. Operators see
/// such a block and [lift](crate::Limiter::unblock) it, which forgets what led to it; a reset changes nothing of it.
///
/// Before the block each refusal is the store's, so none is answered from what is remembered of others.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// use tollgate::{Limiter, Memory, Policy, Quota, limit::Escalation};
///
/// const MINUTE: Duration = Duration::from_secs(60);
/// static LOGIN: Policy = Policy::fixed_window("login", Quota::per_minute(1)).escalate(
///     Escalation::new(3, MINUTE, Duration::from_secs(600)), // and up to a day
/// );
/// let limiter = Limiter::new(Memory::new());
///
/// assert!(limiter.check(&LOGIN, "user:42").await.is_allowed());
/// for _ in 0..2 {
///     let refused = limiter.check(&LOGIN, "user:42").await;
///     assert!(refused.retry_after().is_some_and(|wait| wait <= MINUTE));
/// }
/// let blocked = limiter.check(&LOGIN, "user:42").await;
/// assert!(blocked.retry_after().is_some_and(|wait| wait > 9 * MINUTE));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Escalation {
    after: u32,
    within_ms: u64,
    block_ms: u64,
    up_to_ms: u64,
}

impl Escalation {
    /// Blocks for `block` who was refused `after` times within `within`; up to a day, or for `block` if that is longer.
    ///
    /// Times are counted in whole milliseconds.
    ///
    /// # Panics
    ///
    /// If `after` is zero, or a time is not 1 ms to 366 days.
    pub const fn new(after: u32, within: Duration, block: Duration) -> Self {
        match Self::checked(after, within, block) {
            Ok(escalation) => escalation,
            Err(Wrong::After) => panic!("a block comes after one refusal or more"),
            Err(Wrong::Within | Wrong::Block) => panic!("refusals are counted, and blocks last, for 1 ms to 366 days"),
        }
    }

    /// Makes one of values that may be wrong.
    ///
    /// # Errors
    ///
    /// If `after` is zero, or a time is not 1 ms to 366 days.
    pub fn try_new(after: u32, within: Duration, block: Duration) -> Result<Self, Error> {
        Self::checked(after, within, block).map_err(|wrong| {
            Error::invalid(match wrong {
                Wrong::After => "a block after 0 refusals: must be after 1 or more".to_owned(),
                Wrong::Within => format!("refusals counted within {within:?}: {TIMES}"),
                Wrong::Block => format!("a block of {block:?}: {TIMES}"),
            })
        })
    }

    /// Sets how long a block can become at most.
    ///
    /// # Panics
    ///
    /// If it is shorter than the first block, or longer than 366 days.
    pub const fn up_to(mut self, longest: Duration) -> Self {
        match millis(longest) {
            Some(ms) if ms >= self.block_ms => self.up_to_ms = ms,
            _ => panic!("the longest block is no shorter than the first, and at most 366 days"),
        }
        self
    }

    /// Sets how long a block can become at most.
    ///
    /// # Errors
    ///
    /// If it is shorter than the first block, or longer than 366 days.
    pub fn try_up_to(self, longest: Duration) -> Result<Self, Error> {
        match millis(longest) {
            Some(ms) if ms >= self.block_ms => Ok(Self { up_to_ms: ms, ..self }),
            Some(_) => {
                let block = Duration::from_millis(self.block_ms);
                Err(Error::invalid(format!("blocks up to {longest:?}: shorter than the first, of {block:?}")))
            }
            None => Err(Error::invalid(format!("blocks up to {longest:?}: {TIMES}"))),
        }
    }

    /// Returns how many refusals lead to a block.
    pub const fn after(&self) -> u32 {
        self.after
    }

    /// Returns for how long refusals are counted together.
    pub const fn within(&self) -> Duration {
        Duration::from_millis(self.within_ms)
    }

    /// Returns how long the first block is.
    pub const fn block(&self) -> Duration {
        Duration::from_millis(self.block_ms)
    }

    /// Returns how long a block can become.
    pub const fn longest(&self) -> Duration {
        Duration::from_millis(self.up_to_ms)
    }

    /// Returns, for the script, what [`Strikes::count`] goes by: how many, within what, and the blocks, in microseconds.
    #[cfg(feature = "redis")]
    pub(crate) const fn numbers(&self) -> [u64; 4] {
        [self.after as u64, self.within_ms * 1_000, self.block_ms * 1_000, self.up_to_ms * 1_000]
    }

    const fn checked(after: u32, within: Duration, block: Duration) -> Result<Self, Wrong> {
        if after == 0 {
            return Err(Wrong::After);
        }
        let Some(within_ms) = millis(within) else { return Err(Wrong::Within) };
        let Some(block_ms) = millis(block) else { return Err(Wrong::Block) };
        let up_to_ms = if block_ms > DAY_MS { block_ms } else { DAY_MS };
        Ok(Self { after, within_ms, block_ms, up_to_ms })
    }
}

/// Which value is wrong.
enum Wrong {
    After,
    Within,
    Block,
}

const fn millis(time: Duration) -> Option<u64> {
    let ms = time.as_millis();
    if ms == 0 || ms > LONGEST_MS as u128 {
        return None;
    }
    // The bound above makes this exact.
    #[allow(clippy::cast_possible_truncation)]
    Some(ms as u64)
}

const TIMES: &str = "must be 1 ms to 366 days";
const DAY_MS: u64 = 86_400_000;
const LONGEST_MS: u64 = 366 * DAY_MS;

/// How often a subject was refused, and how long it was blocked for that the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Strikes {
    /// The refusals in the window that is open.
    count: u32,
    /// When that ends.
    ends: Micros,
    /// How long the last block is or was; zero if none is remembered.
    last: Micros,
    /// Until when that is remembered.
    until: Micros,
}

impl Strikes {
    /// Counts a refusal; returns for how long the subject is blocked by it, zero if it is not.
    pub(crate) fn count(&mut self, escalation: &Escalation, now: Micros) -> Micros {
        let [within, block, up_to] =
            [escalation.within_ms, escalation.block_ms, escalation.up_to_ms].map(|ms| ms * 1_000);
        // What lies further ahead than it can was left there by a clock that was set back, or by other numbers.
        if self.ends <= now || self.ends > now.saturating_add(within) {
            (self.count, self.ends) = (0, now.saturating_add(within));
        }
        self.until = self.until.min(now.saturating_add(self.last).saturating_add(up_to));
        if self.until <= now {
            (self.last, self.until) = (0, 0);
        }
        self.count = self.count.saturating_add(1);
        if self.count < escalation.after {
            return 0;
        }
        let long = if self.last == 0 { block } else { self.last.saturating_mul(2).clamp(block, up_to) };
        let until = now.saturating_add(long).saturating_add(up_to);
        *self = Self { count: 0, ends: 0, last: long, until };
        long
    }

    /// Returns when this means no more than nothing.
    pub(crate) fn ends(&self) -> Micros {
        self.ends.max(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;
    const ESCALATION: Escalation =
        Escalation::new(3, Duration::from_secs(10), Duration::from_secs(60)).up_to(Duration::from_secs(200));

    /// Counts refusals at some seconds; returns the blocks in seconds.
    fn blocks(strikes: &mut Strikes, at: &[u64]) -> Vec<u64> {
        at.iter().map(|second| strikes.count(&ESCALATION, second * SECOND) / SECOND).collect()
    }

    #[test]
    fn blocks_double_up_to_the_longest_and_are_forgotten_after_it() {
        let mut strikes = Strikes::default();
        assert_eq!(blocks(&mut strikes, &[100, 105, 109]), [0, 0, 60]);
        assert_eq!(blocks(&mut strikes, &[169, 170, 171]), [0, 0, 120]);
        assert_eq!(blocks(&mut strikes, &[291, 291, 291, 491, 491, 491]), [0, 0, 200, 0, 0, 200]);
        // The last block ended at 691.
        assert_eq!(strikes.ends(), 891 * SECOND);
        let mut others = strikes;
        assert_eq!(blocks(&mut others, &[888, 889, 890]), [0, 0, 200]);
        assert_eq!(blocks(&mut strikes, &[889, 890, 891]), [0, 0, 60]);
    }

    #[test]
    fn refusals_count_in_the_window_that_the_first_opened() {
        let mut strikes = Strikes::default();
        assert_eq!(blocks(&mut strikes, &[100, 109, 110, 111, 112]), [0, 0, 0, 0, 60]);
    }

    #[test]
    fn a_clock_that_was_set_back_counts_anew_and_remembers_no_longer() {
        let mut strikes = Strikes::default();
        blocks(&mut strikes, &[1_000, 1_000, 1_000, 1_060, 1_060]);
        let mut others = strikes;
        assert_eq!(blocks(&mut strikes, &[500, 501, 502]), [0, 0, 120]);
        assert_eq!(blocks(&mut others, &[500, 760, 761, 762]), [0, 0, 0, 60]);
    }

    #[test]
    fn other_numbers_hold_from_the_next_refusal() {
        let mut strikes = Strikes::default();
        blocks(&mut strikes, &[100, 100, 100, 160, 160, 160, 280]);
        let milder = Escalation::new(2, Duration::from_secs(10), Duration::from_secs(5)).up_to(Duration::from_secs(30));
        assert_eq!(strikes.count(&milder, 281 * SECOND), 30 * SECOND);
    }

    #[test]
    fn the_extremes_are_told() {
        let year = Duration::from_secs(366 * 86_400);
        assert_eq!(Escalation::new(1, year, year).longest(), year);
        assert_eq!(Escalation::new(1, year, Duration::from_millis(1)).longest(), Duration::from_secs(86_400));
        let over = year + Duration::from_millis(1);
        let wrong = [
            (Escalation::try_new(0, year, year), "a block after 0 refusals: must be after 1 or more"),
            (Escalation::try_new(1, over, year), "refusals counted within 31622400.001s: must be 1 ms to 366 days"),
            (Escalation::try_new(1, year, Duration::ZERO), "a block of 0ns: must be 1 ms to 366 days"),
            (
                Escalation::new(1, year, year).try_up_to(Duration::from_secs(1)),
                "blocks up to 1s: shorter than the first, of 31622400s",
            ),
            (Escalation::new(1, year, year).try_up_to(over), "blocks up to 31622400.001s: must be 1 ms to 366 days"),
        ];
        for (result, told) in wrong {
            assert_eq!(result.map_err(|error| error.to_string()), Err(told.to_owned()));
        }
    }
}

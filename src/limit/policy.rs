use std::{borrow::Cow, fmt, num::NonZeroU32, sync::Arc};

use super::{Algorithm, Escalation, MAX_UNITS, Quota};
use crate::{error::Error, key::fnv1a};

/// A named quota and the algorithm that counts it.
///
/// The name is what clients see in the `RateLimit` fields and what operators see in a key: 1 to 64 of
/// `A-Z a-z 0-9 . _ -`. Two policies of one limiter never share a name.
///
/// A policy can be a `static`; a wrong one then fails to compile. Values from outside go through
/// [`Policy::new`] and the `try_` setters.
///
/// ```
/// use tollgate::{Policy, Quota, limit::Algorithm};
///
/// static OUTBOUND: Policy = Policy::token_bucket("outbound", Quota::per_second(50)).burst(10);
///
/// let policy = Policy::new("daily".to_owned(), "5000/day".parse()?, Algorithm::SlidingWindow)?;
/// assert_eq!((OUTBOUND.capacity(), policy.capacity()), (10, 5000));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Policy {
    name: Name,
    quota: Quota,
    algorithm: Algorithm,
    aligned: bool,
    on_error: OnError,
    capacity: u32,
    /// The share of the capacity that each process may hold drawn ahead; zero if none.
    allotted_percent: u8,
    escalation: Option<Escalation>,
    /// Ticks that one unit takes to refill; zero where nothing refills.
    interval: u64,
    /// Stands for the name.
    tag: u64,
}

/// What a policy decides when its store cannot answer.
///
/// Where the policies of one call differ, `Deny` outweighs `Local`, which outweighs `Allow`: beside a `Deny` the call
/// is unavailable, and beside a `Local` an `Allow` counts nothing and lets `Local` decide.
///
/// ```
/// use tollgate::{OnError, Policy, Quota};
///
/// static LOGINS: Policy = Policy::sliding_window("logins", Quota::per_minute(5)).on_error(OnError::Deny);
/// assert_eq!(LOGINS.on_error_choice(), OnError::Deny);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// Decides in this process's memory, by its share of the quota
    /// ([`Limiter::replicas`](crate::Limiter::replicas)): available, and still limited.
    ///
    /// The memory is kept warm by what the store answers while it is well. So an outage hands out no fresh quota, and
    /// a client that this process has seen refused stays refused for as long as it was told. With `P` processes that
    /// each have a share of `S = max(1, limit / P)`, rounded up, at most `P · S` units are admitted in a window of an
    /// outage, beside what the store admitted before. A cost above the share is refused.
    #[default]
    Local,
    /// Lets the request through, uncounted: availability before the limit.
    Allow,
    /// Refuses it as unavailable (HTTP 503, gRPC status 14), never as over the limit.
    Deny,
}

impl Policy {
    /// Makes a policy of values that may be wrong.
    ///
    /// # Errors
    ///
    /// If the name is not 1 to 64 of `A-Z a-z 0-9 . _ -`, or the quota is faster than a token bucket can count
    /// (100,000 units per second).
    pub fn new(name: impl Into<Cow<'static, str>>, quota: Quota, algorithm: Algorithm) -> Result<Self, Error> {
        let name = name.into();
        match interval_checked(name.as_bytes(), quota, algorithm) {
            Ok(interval) => {
                let tag = fnv1a(name.as_bytes());
                Ok(Self::of(name.into(), quota, algorithm, interval, tag))
            }
            Err(Wrong::Name) => Err(Error::invalid(format!("policy name `{}`: {NAMES}", name.escape_debug()))),
            Err(_) => Err(Error::invalid(format!("policy `{name}`: {quota} as a token bucket: {TOO_FAST}"))),
        }
    }

    /// Counts `quota` in a [fixed window](Algorithm::FixedWindow).
    ///
    /// # Panics
    ///
    /// If the name is not 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub const fn fixed_window(name: &'static str, quota: Quota) -> Self {
        Self::expect(name, quota, Algorithm::FixedWindow)
    }

    /// Counts `quota` in a [sliding window](Algorithm::SlidingWindow).
    ///
    /// # Panics
    ///
    /// If the name is not 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub const fn sliding_window(name: &'static str, quota: Quota) -> Self {
        Self::expect(name, quota, Algorithm::SlidingWindow)
    }

    /// Counts `quota` in a [sliding counter](Algorithm::SlidingCounter).
    ///
    /// # Panics
    ///
    /// If the name is not 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub const fn sliding_counter(name: &'static str, quota: Quota) -> Self {
        Self::expect(name, quota, Algorithm::SlidingCounter)
    }

    /// Counts `quota` in a [token bucket](Algorithm::TokenBucket) that holds `quota.limit()` units.
    ///
    /// # Panics
    ///
    /// If the name is not 1 to 64 of `A-Z a-z 0-9 . _ -`, or the quota is above 100,000 units per second.
    pub const fn token_bucket(name: &'static str, quota: Quota) -> Self {
        Self::expect(name, quota, Algorithm::TokenBucket)
    }

    /// Sets how many units a token bucket holds; the default is the quota's limit.
    ///
    /// # Panics
    ///
    /// If this is no token bucket, `units` is zero or above 2³¹, or the bucket would take more than ten years
    /// to fill.
    pub const fn burst(mut self, units: u64) -> Self {
        match self.burst_checked(units) {
            Ok(capacity) => self.capacity = capacity,
            Err(Wrong::NotABucket) => panic!("a burst belongs to a token bucket"),
            Err(Wrong::Drain) => panic!("a bucket must fill within ten years: lower the burst"),
            Err(_) => panic!("a burst must be 1 to 2147483648 units"),
        }
        self
    }

    /// Sets how many units a token bucket holds.
    ///
    /// # Errors
    ///
    /// If this is no token bucket, `units` is zero or above 2³¹, or the bucket would take more than ten years
    /// to fill.
    pub fn try_burst(mut self, units: u64) -> Result<Self, Error> {
        let what = match self.burst_checked(units) {
            Ok(capacity) => {
                self.capacity = capacity;
                return Ok(self);
            }
            Err(Wrong::NotABucket) => "only a token bucket has one",
            Err(Wrong::Drain) => "the bucket would take more than ten years to fill; lower it",
            Err(_) => "must be 1 to 2147483648 units",
        };
        Err(Error::invalid(format!("policy `{}`: burst of {units}: {what}", self.name)))
    }

    /// Opens fixed windows at multiples of their length since the Unix epoch, in UTC, for all keys at once.
    ///
    /// Without it a window opens with its first unit, so that keys do not all start anew in the same instant.
    ///
    /// # Panics
    ///
    /// If this is no fixed window.
    pub const fn aligned(mut self) -> Self {
        assert!(matches!(self.algorithm, Algorithm::FixedWindow), "only a fixed window can be aligned");
        self.aligned = true;
        self
    }

    /// Opens fixed windows at multiples of their length since the Unix epoch.
    ///
    /// # Errors
    ///
    /// If this is no fixed window.
    pub fn try_aligned(self) -> Result<Self, Error> {
        match self.algorithm {
            Algorithm::FixedWindow => Ok(self.aligned()),
            _ => Err(Error::invalid(format!("policy `{}`: only a fixed window can be aligned", self.name))),
        }
    }

    /// Sets what to decide when the store cannot answer; the default is [`OnError::Local`].
    pub const fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Lets each process draw units ahead, up to `percent` of the capacity for each subject, and spend them at memory
    /// speed; without it every decision is the store's.
    ///
    /// For subjects that are asked for many times a second through a shared store: a global limit, a large tenant.
    /// Once a subject is hot in a process (four requests within 100 ms), a batch that lasts about 100 ms is drawn, and
    /// the next when half of it is spent, so requests do not wait for the store. Near the limit decisions go one by one
    /// again. Units unspent for a second go back. A request is decided so only if all the policies that it is asked of
    /// are allotted. A store in this process needs none of that, and this changes nothing there; a [shared
    /// one](super::Store::is_shared) of your own has to tell [times](super::Outcome::with_times) and
    /// [receipts](super::Outcome::with_receipt).
    ///
    /// What is given up, with `P` processes that may hold `B = capacity · percent / 100` units each, at least one:
    ///
    /// | | at most this much is admitted |
    /// |---|---|
    /// | fixed window | `limit` in each window: nothing is given up |
    /// | sliding window | `limit + P · B` in any interval of length `window` |
    /// | sliding counter | what it admits alone, and `P · B` |
    /// | token bucket | `burst + limit · t / window + P · B` in any interval `t` |
    ///
    /// And requests may be refused while up to `P · B` units lie unused in other processes, for a second or so; those
    /// of a process that crashed until the window ends or they have refilled. A decision made so [says
    /// so](super::Decision::is_allotted), tells what the store said at the last draw, and cannot be settled. A block
    /// or reset is seen at once in the process that makes it, in others after a second at most.
    ///
    /// ```
    /// use tollgate::{Policy, Quota};
    ///
    /// // Of 10,000 a second, each process holds 200 at most.
    /// static ALL: Policy = Policy::token_bucket("all", Quota::per_second(10_000)).allotted(2);
    /// # let _ = &ALL;
    /// ```
    ///
    /// # Panics
    ///
    /// If `percent` is not 1 to 50.
    pub const fn allotted(mut self, percent: u32) -> Self {
        match share_checked(percent) {
            Some(share) => self.allotted_percent = share,
            None => panic!("a process can be allotted 1 to 50 percent"),
        }
        self
    }

    /// Lets each process draw units ahead, as [`allotted`](Self::allotted) does.
    ///
    /// # Errors
    ///
    /// If `percent` is not 1 to 50.
    pub fn try_allotted(mut self, percent: u32) -> Result<Self, Error> {
        match share_checked(percent) {
            Some(share) => self.allotted_percent = share,
            None => {
                let name = &self.name;
                return Err(Error::invalid(format!("policy `{name}`: allotted {percent} percent: must be 1 to 50")));
            }
        }
        Ok(self)
    }

    /// Blocks a subject that is refused again and again, longer each time.
    ///
    /// Kept by [`Memory`](crate::Memory) and `Redis`; a store of your own has to go by [`Demand::escalation`].
    ///
    /// [`Demand::escalation`]: super::Demand::escalation
    pub const fn escalate(mut self, escalation: Escalation) -> Self {
        self.escalation = Some(escalation);
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the quota.
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the most units that one decision can be granted: a bucket's burst, else the quota's limit.
    pub const fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    /// Returns true if windows open at multiples of their length.
    pub const fn is_aligned(&self) -> bool {
        self.aligned
    }

    /// Returns what is decided when the store cannot answer.
    pub const fn on_error_choice(&self) -> OnError {
        self.on_error
    }

    pub(crate) const fn escalation(&self) -> Option<&Escalation> {
        self.escalation.as_ref()
    }

    pub(crate) const fn shared_name(&self) -> &Name {
        &self.name
    }

    pub(crate) const fn interval(&self) -> u64 {
        self.interval
    }

    /// Returns a number that stands for the name, the same in all processes.
    pub(crate) const fn tag(&self) -> u64 {
        self.tag
    }

    pub(crate) const fn capacity_u32(&self) -> u32 {
        self.capacity
    }

    /// Returns how many units one process may hold drawn ahead for a subject; zero if it may not.
    pub(crate) fn allotment(&self) -> u32 {
        if self.allotted_percent == 0 {
            return 0;
        }
        let share = u64::from(self.capacity) * u64::from(self.allotted_percent) / 100;
        u32::try_from(share).expect("no more than the capacity").max(1)
    }

    /// Returns what one of so many processes may admit by itself; each at least one unit.
    pub(crate) fn share(&self, replicas: NonZeroU32) -> Self {
        let quota = self.quota.share(replicas);
        let interval = match self.algorithm {
            Algorithm::TokenBucket => {
                interval(quota.limit(), quota.window_ms() * 1_000).expect("a share is no faster than the whole")
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingCounter => 0,
        };
        Self { quota, interval, capacity: self.capacity.div_ceil(replicas.get()), ..self.clone() }
    }

    pub(crate) const fn window_micros(&self) -> u64 {
        self.quota.window_ms() * 1_000
    }

    const fn expect(name: &'static str, quota: Quota, algorithm: Algorithm) -> Self {
        match interval_checked(name.as_bytes(), quota, algorithm) {
            Ok(interval) => Self::of(Name::Static(name), quota, algorithm, interval, fnv1a(name.as_bytes())),
            Err(Wrong::Name) => panic!("a policy's name must be 1 to 64 of A-Z a-z 0-9 . _ -"),
            Err(_) => panic!("a token bucket counts at most 100000 units per second: use the fixed window"),
        }
    }

    const fn of(name: Name, quota: Quota, algorithm: Algorithm, interval: u64, tag: u64) -> Self {
        let capacity = quota.limit_u32();
        Self {
            name,
            quota,
            algorithm,
            aligned: false,
            on_error: OnError::Local,
            capacity,
            allotted_percent: 0,
            escalation: None,
            interval,
            tag,
        }
    }

    const fn burst_checked(&self, units: u64) -> Result<u32, Wrong> {
        if !matches!(self.algorithm, Algorithm::TokenBucket) {
            return Err(Wrong::NotABucket);
        }
        if units == 0 || units > MAX_UNITS as u64 {
            return Err(Wrong::Burst);
        }
        match self.interval.checked_mul(units) {
            Some(ticks) if ticks <= MAX_DRAIN => {}
            _ => return Err(Wrong::Drain),
        }
        // The bound above makes this exact.
        #[allow(clippy::cast_possible_truncation)]
        Ok(units as u32)
    }
}

/// Half is the most: with more, two processes could hold all there is.
const fn share_checked(percent: u32) -> Option<u8> {
    if percent == 0 || percent > 50 {
        return None;
    }
    // The bound above makes this exact.
    #[allow(clippy::cast_possible_truncation)]
    Some(percent as u8)
}

enum Wrong {
    Name,
    TooFast,
    NotABucket,
    Burst,
    Drain,
}

/// Checks what a policy is made of and returns its interval: the ticks that one unit takes to refill.
const fn interval_checked(name: &[u8], quota: Quota, algorithm: Algorithm) -> Result<u64, Wrong> {
    if !is_name(name) {
        return Err(Wrong::Name);
    }
    match algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingCounter => Ok(0),
        Algorithm::TokenBucket => match interval(quota.limit(), quota.window_ms() * 1_000) {
            Some(interval) => Ok(interval),
            None => Err(Wrong::TooFast),
        },
    }
}

/// Returns the ticks that one unit takes to refill, rounded up, or nothing if that is below ten microseconds.
///
/// Rounding up keeps the promise of the algorithm and costs rate: at most 0.01 % up to 1,000 units per second,
/// 1 % up to 100,000. At 100 units per second and below a whole microsecond is fine enough for that.
const fn interval(limit: u64, window_micros: u64) -> Option<u64> {
    if limit * MIN_INTERVAL_MICROS > window_micros {
        return None;
    }
    if window_micros >= limit * WHOLE_MICROS_FROM {
        Some(window_micros.div_ceil(limit) * TICKS_PER_MICRO)
    } else {
        Some((window_micros * TICKS_PER_MICRO).div_ceil(limit))
    }
}

const fn is_name(bytes: &[u8]) -> bool {
    if bytes.is_empty() || bytes.len() > 64 {
        return false;
    }
    let mut i = 0;
    while i < bytes.len() {
        if !(bytes[i].is_ascii_alphanumeric() || matches!(bytes[i], b'.' | b'_' | b'-')) {
            return false;
        }
        i += 1;
    }
    true
}

/// A policy's name, cheap to copy into each decision.
#[derive(Clone)]
pub(crate) enum Name {
    /// Written in the code: copying it touches no shared counter.
    Static(&'static str),
    /// By a thin pointer, so that a name is two words.
    Shared(Arc<Box<str>>),
}

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Static(name) => name,
            Self::Shared(name) => name,
        }
    }
}

impl From<Cow<'static, str>> for Name {
    fn from(name: Cow<'static, str>) -> Self {
        match name {
            Cow::Borrowed(name) => Self::Static(name),
            Cow::Owned(name) => Self::Shared(Arc::new(name.into())),
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Name {}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A tick is a tenth of a microsecond: the grain of a token bucket.
pub(crate) const TICKS_PER_MICRO: u64 = 10;

/// From this interval on (100 units per second and slower) an interval is a whole number of microseconds.
pub(crate) const WHOLE_MICROS_FROM: u64 = 10_000;

/// 100,000 units per second, the fastest that a tick can count to within 1 %.
const MIN_INTERVAL_MICROS: u64 = 10;

/// Ten years in ticks. Twice that (a burst and as much debt) added to the present time stays below 2⁵³.
const MAX_DRAIN: u64 = 3_653 * 86_400 * 1_000_000 * TICKS_PER_MICRO;

const NAMES: &str = "must be 1 to 64 of A-Z a-z 0-9 . _ -";
const TOO_FAST: &str = "it counts at most 100000 units per second; use the fixed window";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_rounded_down_by_no_more_than_promised() {
        for (rate, parts_lost_at_most) in
            [(1, 10_000), (97, 10_000), (999, 10_000), (1_000, 10_000), (99_991, 100), (100_000, 100)]
        {
            for window_s in [1, 60, 86_400] {
                let (limit, micros) = (rate * window_s, window_s * 1_000_000);
                let interval = interval(limit, micros).expect("in range");
                let (asked, given) = (micros * TICKS_PER_MICRO, interval * limit);
                assert!(given >= asked, "{rate}/s would be faster than asked");
                assert!((given - asked) * parts_lost_at_most <= asked, "{rate}/s loses too much");
            }
        }
    }

    #[test]
    fn a_wrong_policy_says_what_to_write_instead() {
        let quick = Quota::per_second(100_001);
        let error = Policy::new("quick", quick, Algorithm::TokenBucket).expect_err("too fast");
        assert!(error.to_string().contains("fixed window"), "{error}");
        assert!(Policy::new("quick", quick, Algorithm::FixedWindow).is_ok());
        for name in ["", "a b", "a\"b", "a:b", "naïve", &"x".repeat(65)] {
            let error = Policy::new(name.to_owned(), Quota::per_second(1), Algorithm::FixedWindow).expect_err(name);
            assert!(error.to_string().contains("1 to 64"), "{error}");
        }
        let slow = Policy::new("slow", "1/366d".parse().expect("quota"), Algorithm::TokenBucket).expect("valid");
        assert!(slow.clone().try_burst(9).is_ok());
        assert!(slow.clone().try_burst(11).expect_err("too long").to_string().contains("ten years"));
        assert!(slow.clone().try_burst(0).is_err());
        assert!(slow.try_burst(u64::MAX).is_err());
        let window = Policy::sliding_window("w", Quota::per_second(1));
        assert!(window.clone().try_burst(2).is_err());
        assert!(window.clone().try_aligned().is_err());
        for percent in [0, 51, 256 + 1, u32::MAX] {
            let error = window.clone().try_allotted(percent).expect_err("out of range");
            assert!(error.is_invalid() && error.to_string().contains("1 to 50"), "{error}");
        }
    }

    #[test]
    fn a_process_is_allotted_its_share_and_at_least_one_unit() {
        let policy = |limit| Policy::fixed_window("p", Quota::per_second(limit));
        assert_eq!(policy(1_000).allotment(), 0);
        assert_eq!(policy(1_000).allotted(3).allotment(), 30);
        assert_eq!(policy(9).allotted(10).allotment(), 1);
        assert_eq!(policy(1 << 31).allotted(50).allotment(), 1 << 30);
        assert_eq!(policy(1_000).try_allotted(50).expect("valid").allotment(), 500);
        let bucket = Policy::token_bucket("p", Quota::per_second(1_000)).burst(200);
        assert_eq!(bucket.allotted(10).allotment(), 20, "of what can be granted at once");
    }
}

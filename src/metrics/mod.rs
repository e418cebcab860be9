#![doc = include_str!("../../docs/metrics.md")]

#[cfg(feature = "metrics")]
mod names;
#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;

#[cfg(not(feature = "metrics"))]
use self::off as recorded;
#[cfg(feature = "metrics")]
use self::on as recorded;
#[cfg(feature = "config")]
pub(crate) use self::recorded::reload;
pub(crate) use self::recorded::{
    KeysMeter, LeaseMeter, RuleMeter, StoreMeter, WaitMeter, concurrency, idempotency, lease_waited,
};
#[cfg(feature = "metrics")]
pub use self::{
    names::{ALL, Kind, Metric},
    on::describe,
};

/// What is counted of a decision for one rule: what the rule said, once, and how that came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tally {
    Allowed,
    Refused,
    /// The store could not answer, and the rule denies then.
    Unavailable,
    /// It would have let the request pass, and another one refused it.
    OtherRefused,
    ShadowAllowed,
    ShadowRefused,
    NearLimit,
    Degraded,
    Overflow,
    Allotted,
}

#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "nothing is counted then, only told of"))]
impl Tally {
    pub(crate) const ALL: [Self; 10] = [
        Self::Allowed,
        Self::Refused,
        Self::Unavailable,
        Self::OtherRefused,
        Self::ShadowAllowed,
        Self::ShadowRefused,
        Self::NearLimit,
        Self::Degraded,
        Self::Overflow,
        Self::Allotted,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::OtherRefused => "other_refused",
            Self::ShadowAllowed => "shadow_allowed",
            Self::ShadowRefused => "shadow_refused",
            Self::NearLimit => "near_limit",
            Self::Degraded => "degraded",
            Self::Overflow => "overflow",
            Self::Allotted => "allotted",
        }
    }

    pub(crate) const fn place(self) -> usize {
        self as usize
    }
}

/// How a call to the store ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResult {
    Answered,
    Failed,
    TimedOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tally_has_its_own_place() {
        for (place, tally) in Tally::ALL.into_iter().enumerate() {
            assert_eq!(tally.place(), place, "{tally:?}");
        }
    }
}

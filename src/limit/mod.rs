//! What is allowed: quotas, policies, algorithms and decisions.
//!
//! Everything here is arithmetic on integers. Nothing reads a clock, waits, locks or fails; the time is an
//! argument, in microseconds since the Unix epoch on the clock of whoever keeps the state.
//!
//! | algorithm | what it promises | state of one key |
//! |---|---|---|
//! | [fixed window](Algorithm::FixedWindow) | at most `limit` units from the first one until `window` later; up to twice that across a window's edge | two integers |
//! | [sliding window](Algorithm::SlidingWindow) | at most `limit` units in every interval of length `window`, exactly | one entry a charge |
//! | [sliding counter](Algorithm::SlidingCounter) | at most `limit` units in each of its own windows; in any interval of length `window` less than twice that, and no more than `limit` if requests come evenly, rounding apart | three integers |
//! | [token bucket](Algorithm::TokenBucket) | at most `burst + limit · t / window` units in every interval `t` | one integer |

mod algorithm;
mod answer;
#[cfg(test)]
mod bounds;
mod charge;
mod decision;
mod escalation;
mod fixed_window;
mod outcomes;
mod policy;
mod quota;
mod sliding_counter;
mod sliding_window;
mod store;
mod token_bucket;

#[cfg(feature = "config")]
pub(crate) use self::quota::window_ms;
pub use self::{
    algorithm::Algorithm,
    answer::{Answer, Promise},
    charge::{Adjustment, Charge, Receipt},
    decision::{Decision, Outcome},
    escalation::Escalation,
    policy::{OnError, Policy},
    quota::Quota,
    store::{Demand, Store},
};
pub(crate) use self::{
    algorithm::{Stand, Standing, State, Told},
    answer::Pending,
    charge::Settler,
    escalation::Strikes,
    policy::Name,
    quota::MAX_UNITS,
};
#[cfg(feature = "redis")]
pub(crate) use self::{
    decision::Proof, fixed_window::FixedWindow, outcomes::Outcomes, sliding_counter::SlidingCounter,
    token_bucket::TokenBucket,
};

/// Microseconds since the Unix epoch, on the clock of whoever keeps the state.
pub(crate) type Micros = u64;

//! Stores around a store: each wraps a [`Store`](crate::limit::Store) and is one.

mod allotment;
mod breaker;
mod deny_cache;
mod failover;
mod parts;
mod tuning;
mod vitals;

#[cfg(feature = "admin")]
pub(crate) use self::vitals::Seen;
pub(crate) use self::{
    allotment::Allotment,
    deny_cache::DenyCache,
    failover::Failover,
    tuning::{Options, Tuning},
    vitals::Vitals,
};

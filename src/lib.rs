//! Rate limiting for tower services: in memory with no set-up, exact across a fleet through Redis or Valkey.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(test, feature = "redis"))]
mod agreement;
mod error;
mod key;
pub mod layer;
pub mod limit;
mod limiter;
mod memory;
#[cfg(feature = "redis")]
mod redis;
mod shield;

pub use self::{
    error::Error,
    key::{Key, KeyWriter},
    layer::{PeerAddr, RateLimitLayer, Rule},
    limit::{Decision, Demand, OnError, Policy, Quota},
    limiter::Limiter,
    memory::{ManualClock, Memory},
};

#[cfg(feature = "redis")]
pub use self::redis::Redis;

//! Rate limiting for tower services: in memory with no set-up, exact across a fleet through Redis or Valkey.
//!
//! One line limits every client of an axum router, a tonic server or any other tower service:
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::{Quota, RateLimitLayer};
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_client(Quota::per_minute(100)));
//! # let _ = app;
//! ```
//!
//! # The way of a request
//!
//! A [`Rule`] tells which requests it counts, for whom, at what cost. What a request asks of all rules that match
//! goes to a [`Limiter`] in one call, and the limiter's store decides on all of it or nothing: [`Memory`] at once,
//! `Redis` in one round trip, however many rules there are. A request that passes goes on, and its response tells
//! the client where it stands; one that does not is answered with HTTP 429 or gRPC status 8, and the time after
//! which it will pass. When the store cannot answer in time, each rule's [`OnError`] decides: by default this process,
//! by its share of the quota. Nobody is told that a client was at fault for the outage; [`guide::failure`] has it fault
//! by fault.
//!
//! # Where to look
//!
//! | for | see |
//! |---|---|
//! | the manual, page by page | [`guide`] |
//! | a limited service in five minutes | [`guide::start`] |
//! | axum, tonic, hyper: layers, rules, keys, fields | [`layer`] |
//! | limits without HTTP | [`Limiter`] |
//! | rules from a file that may change, feature `config` | [`guide::configuration`] |
//! | what happens on a bad day, and what to set | [`guide::failure`] |
//! | which client obeys what, and how to set up proxies | [`guide::clients`], [`guide::proxies`] |
//! | what a warning in the log means | [`guide::warnings`] |
//! | a page for operators: rates, who is refused, one key explained, blocks; feature `admin` | `admin` |
//! | numbers and events for operators, feature `metrics` | `metrics` |
//! | hot keys at memory speed, within a bound | [`Policy::allotted`] |
//! | what a limit means: quotas, algorithms, decisions; stores of your own | [`limit`] |
//! | so many requests at a time, in all processes together | [`layer::concurrency`], [`guide::concurrency`] |
//! | requests that are executed once, by `Idempotency-Key` | [`layer::idempotency`], [`guide::idempotency`] |
//! | locks, semaphores and what else decides who acts | [`lease`], [`guide::leases`] |
//! | tests of your own, with a clock that you move | [`Memory::manual`], [`guide::testing`] |
//!
//! # Features
//!
//! | feature | brings | default |
//! |---|---|---|
//! | `axum` | client addresses, routes and original paths from axum; the extractor [`layer::Exposed`] | yes |
//! | `tonic` | client addresses from tonic's server | no |
//! | `redis` | the store on Redis 6.2 and newer, and Valkey | no |
//! | `tls` | TLS to Redis: `rediss://`, own authorities, client certificates | no |
//! | `sentinel` | Redis behind Sentinel: `redis+sentinel://` | no |
//! | `cluster` | Redis Cluster: `redis+cluster://` | no |
//! | `admin` | an axum router for operators, with a page: `admin` | no |
//! | `metrics` | numbers for dashboards and alerts, by the `metrics` facade: `metrics` | no |
//! | `config` | rules from a TOML, JSON or YAML file: `Config` | no |
//! | `redis-connection` | `Redis::from_connection`, for a connection of yours by the `redis` crate 1 | no |
//!
//! Memory is always there, and gRPC requests are answered as such without any feature. A feature makes something
//! available; it changes no decision.
//!
//! The runtime is tokio. Memory needs no task of its own.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "admin")]
pub mod admin;
#[cfg(all(test, feature = "redis"))]
mod agreement;
#[cfg(feature = "config")]
pub mod config;
mod error;
#[cfg(doc)]
pub mod guide;
mod key;
pub mod layer;
pub mod lease;
pub mod limit;
mod limiter;
mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
mod metrics;
#[cfg(feature = "redis")]
mod redis;
mod shield;

#[cfg(feature = "config")]
pub use self::config::Config;
#[cfg(feature = "redis")]
pub use self::redis::Redis;
#[cfg(feature = "tls")]
pub use self::redis::Tls;
pub use self::{
    error::Error,
    key::{Key, KeyWriter},
    layer::{PeerAddr, RateLimitLayer, Rule, concurrency::ConcurrencyLimitLayer, idempotency::IdempotencyLayer},
    limit::{Decision, Demand, OnError, Policy, Quota},
    limiter::Limiter,
    memory::{ManualClock, Memory, WhenFull},
};

/// Runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Rate limiting as tower middleware, for axum, tonic and plain hyper services.
//!
//! A [`RateLimitLayer`] asks its [`Rule`]s of each request: does it match, whose request is it, what does it cost?
//! All rules that match are decided together, in one call to the store. What passes goes on to the inner service
//! and its response gets the `RateLimit` fields; what does not is answered at once, with HTTP 429 or, if it is a
//! gRPC request, with status 8.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::{Quota, layer::RateLimitLayer};
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_client(Quota::per_minute(100)));
//! # let _ = app;
//! ```
//!
//! Several rules, on a limiter that may live in Redis:
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::{Limiter, Memory, Quota, layer::{RateLimitLayer, Rule, client_ip, header}};
//!
//! let limiter = Limiter::new(Memory::new());
//! let layer = RateLimitLayer::new(limiter)
//!     .rule(Rule::new("burst", Quota::per_second(20)).token_bucket().by(client_ip()))
//!     .rule(Rule::new("daily", Quota::per_day(5_000)).sliding_window().by(header("x-api-key")));
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! # let _ = app;
//! ```
//!
//! State lives in the [`Limiter`](crate::Limiter), never in a service: connections, clones of the layer and
//! methods of a route share one budget.

mod body;
mod client_ip;
pub mod concurrency;
mod cookie;
mod grpc;
mod headers;
pub mod idempotency;
mod key;
mod message_limit;
mod path;
mod rate_limit;
mod refuse;
mod text;
mod warn;

use std::mem;

pub use self::{
    body::{RefusalBody, ResponseBody},
    client_ip::{ClientIp, PeerAddr, client_ip},
    cookie::{Cookie, cookie},
    headers::{Dialect, EXPOSED_HEADERS, write_fields},
    key::{
        Extension, Global, GrpcMethod, GrpcService, Header, KeyExtractor, KeyFn, Method, NoKey, Path, extension,
        global, grpc_method, grpc_service, header, key_fn, method, path,
    },
    message_limit::{MessageBody, MessageLimit, MessageLimitFuture, MessageLimitLayer, StreamedBody},
    rate_limit::{Exception, LookupError, QuotaBy, RateLimit, RateLimitLayer, ResponseFuture, Rule, quota_by},
    refuse::respond,
};
#[cfg(feature = "axum")]
pub use self::{
    key::{MatchedPath, matched_path},
    rate_limit::Exposed,
};
#[cfg(feature = "config")]
pub(crate) use self::{path::PathPattern, rate_limit::Options};

/// Takes the service that was polled ready, and leaves a clone of it, which may not be.
fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}

//! Requests that are executed once, however often they are sent: the `Idempotency-Key` of
//! draft-ietf-httpapi-idempotency-key-header-07.
//!
//! The first request with a key is executed, and what it came to is kept; all others with it are given that. While it is
//! executed, others are told to come again (409) or wait. What each case is answered with stands in
//! [the manual](crate::guide::idempotency).
//!
//! ```
//! use axum::{Router, routing::post};
//! use tollgate::{IdempotencyLayer, Memory, layer::header};
//!
//! let store = Memory::new(); // Redis::open("redis://127.0.0.1:6379")? where processes share it
//! let layer = IdempotencyLayer::new(&store, header("authorization")).required();
//! let app: Router = Router::new().route("/payments", post(|| async { "paid" })).layer(layer);
//! # let _ = app;
//! ```
//!
//! A handler sees which attempt it is, and may say what becomes of its response:
//!
//! ```
//! use axum::{Extension, Router, http::StatusCode, response::{IntoResponse, Response}, routing::post};
//! use tollgate::{IdempotencyLayer, Memory, layer::{global, idempotency::{IdempotencyOutcome, IdempotentAttempt}}};
//!
//! async fn pay(attempt: Option<Extension<IdempotentAttempt>>) -> Response {
//!     // The fence goes with each write, so that the database refuses those of an attempt that was taken over.
//!     let Some(Extension(attempt)) = attempt else { return StatusCode::NO_CONTENT.into_response() };
//!     let declined = u64::from(attempt.fence()) == 0;
//!     if declined {
//!         // Nothing was done, so the same key may be tried again.
//!         return (StatusCode::PAYMENT_REQUIRED, Extension(IdempotencyOutcome::Release)).into_response();
//!     }
//!     StatusCode::CREATED.into_response()
//! }
//! let layer = IdempotencyLayer::new(&Memory::new(), global()).takeover();
//! let app: Router = Router::new().route("/payments", post(pay)).layer(layer);
//! # let _ = app;
//! ```

mod answer;
mod body;
mod claim;
mod future;
mod key;
mod layer;
mod print;
mod record;
mod service;
mod tee;
mod unary;
mod work;

use std::time::Duration;

pub use self::{
    body::{RequestBody, TeedBody},
    future::ResponseFuture,
    layer::IdempotencyLayer,
    service::Idempotency,
};
use crate::lease::Fence;

/// Tells a handler which attempt at its request it is; in the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct IdempotentAttempt {
    number: u32,
    fence: Fence,
}

impl IdempotentAttempt {
    /// Returns which attempt it is, counted from one; more than one if others broke off and were
    /// [taken over](IdempotencyLayer::takeover).
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the fence, greater than those of all attempts before.
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

/// Says what becomes of a response, in the place of its status; in the response's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdempotencyOutcome {
    /// It is kept, and given to all who come with the key.
    Store,
    /// It is kept for so long, at least a millisecond.
    StoreFor(Duration),
    /// It is not kept: nothing was done, and the key is new again.
    Release,
}

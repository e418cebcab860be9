//! So many requests at a time for each key, in all processes that share a store.
//!
//! A permit is held until the response's body has ended or was dropped, and renewed all the while. One that dies with its
//! process comes back when its lease is over. [The manual](crate::guide::concurrency) has the details.
//!
//! ```
//! use std::time::Duration;
//! use axum::{Router, routing::post};
//! use tollgate::{ConcurrencyLimitLayer, Memory, layer::client_ip};
//!
//! let store = Memory::new(); // Redis::open("redis://127.0.0.1:6379")? where processes share it
//! let layer = ConcurrencyLimitLayer::new(&store, "uploads", 2)
//!     .by(client_ip())
//!     .wait(Duration::from_secs(2), 100);
//! let app: Router = Router::new().route("/upload", post(|| async { "stored" })).layer(layer);
//! # let _ = app;
//! ```

mod body;
mod future;
mod layer;
mod permit;
mod service;

pub use self::{
    body::PermitBody, future::ResponseFuture, layer::ConcurrencyLimitLayer, permit::RequestPermit,
    service::ConcurrencyLimit,
};

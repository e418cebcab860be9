#[cfg(feature = "axum")]
mod exposed;
mod future;
mod layer;
mod rule;
mod service;

#[cfg(feature = "axum")]
pub use self::exposed::Exposed;
pub use self::{future::ResponseFuture, layer::RateLimitLayer, rule::Rule, service::RateLimit};

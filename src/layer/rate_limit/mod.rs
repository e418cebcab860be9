#[cfg(feature = "axum")]
mod exposed;
mod future;
mod layer;
mod rule;
mod service;

#[cfg(feature = "axum")]
pub use self::exposed::Exposed;
#[cfg(feature = "config")]
pub(crate) use self::layer::Options;
pub(super) use self::rule::BuiltRule;
pub use self::{future::ResponseFuture, layer::RateLimitLayer, rule::Rule, service::RateLimit};

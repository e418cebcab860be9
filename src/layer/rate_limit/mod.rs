mod charging;
mod exceptions;
#[cfg(feature = "axum")]
mod exposed;
mod future;
mod layer;
mod quota_by;
mod rule;
mod service;

#[cfg(feature = "axum")]
pub use self::exposed::Exposed;
#[cfg(feature = "config")]
pub(crate) use self::layer::Options;
pub(super) use self::rule::BuiltRule;
pub use self::{
    exceptions::Exception,
    future::ResponseFuture,
    layer::RateLimitLayer,
    quota_by::{LookupError, QuotaBy, quota_by},
    rule::Rule,
    service::RateLimit,
};

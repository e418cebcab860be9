use std::convert::Infallible;

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use http::{StatusCode, request::Parts};

use crate::limit::{Charge, Decision};

/// Extracts what a layer decided on the request, for axum handlers.
///
/// Needs [`expose_decision`](crate::layer::RateLimitLayer::expose_decision). `Option<Exposed>` is `None` where no
/// rule applied.
///
/// ```
/// use axum::{Router, routing::post};
/// use tollgate::{Limiter, Memory, Quota, layer::{Exposed, RateLimitLayer, Rule, global}};
///
/// let rule = Rule::new("tokens", Quota::per_minute(10_000)).by(global()).cost(500);
/// let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule).expose_decision();
///
/// async fn complete(exposed: Exposed) -> String {
///     let answer = "forty-two".to_owned();
///     // What is counted is what it truly cost.
///     let _ = exposed.charge.settle(answer.len() as u64).await;
///     answer
/// }
/// let app: Router = Router::new().route("/complete", post(complete)).layer(layer);
/// # let _ = app;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Exposed {
    /// What was decided.
    pub decision: Decision,
    /// What was charged.
    pub charge: Charge,
}

fn find(request: &Parts) -> Option<Exposed> {
    let (decision, charge) = (request.extensions.get()?, request.extensions.get()?);
    Some(Exposed { decision: Decision::clone(decision), charge: Charge::clone(charge) })
}

impl<S: Sync> FromRequestParts<S> for Exposed {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        find(request).ok_or((
            StatusCode::INTERNAL_SERVER_ERROR,
            "no rate limit layer with expose_decision() applied to this request",
        ))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Exposed {
    type Rejection = Infallible;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(find(request))
    }
}

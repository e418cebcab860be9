use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::layer::Shared;
use crate::{
    key::Key,
    layer::{RefusalBody, ResponseBody},
    limit::{Charge, Decision, Demand, Policy},
    limiter::Ask,
};

pin_project! {
    /// The response of a [`RateLimit`](super::RateLimit) service.
    ///
    /// Dropped while it waits for the decision, it leaves nothing behind but the charge.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
        shared: Option<Arc<Shared>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F> {
        Deciding { ask: Ask, exposed: Option<Vec<Kept>>, ready: Option<(S, Request<B>)> },
        Calling { #[pin] future: F, decision: Option<Decision> },
        Refused { response: Option<Response<RefusalBody>> },
    }
}

/// A demand of a request, kept to make a charge of it.
type Kept = (Policy, Key, u64);

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn waiting(
        ask: Ask,
        exposed: Option<Vec<Kept>>,
        inner: S,
        request: Request<B>,
        shared: &Arc<Shared>,
    ) -> Self {
        let state = State::Deciding { ask, exposed, ready: Some((inner, request)) };
        Self { state, shared: Some(Arc::clone(shared)) }
    }

    pub(super) fn decided(
        decision: Decision,
        exposed: Option<Vec<Kept>>,
        inner: S,
        request: Request<B>,
        shared: &Arc<Shared>,
    ) -> Self {
        let state = next(shared, decision, exposed.as_deref(), inner, request);
        Self { state, shared: Some(Arc::clone(shared)) }
    }

    pub(super) fn unlimited(future: S::Future) -> Self {
        Self { state: State::Calling { future, decision: None }, shared: None }
    }

    pub(super) fn refused(response: Response<RefusalBody>) -> Self {
        Self { state: State::Refused { response: Some(response) }, shared: None }
    }

    pub(super) fn keep(demands: &[Demand<'_>]) -> Vec<Kept> {
        demands.iter().map(|demand| (demand.policy().clone(), *demand.subject(), demand.units())).collect()
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Deciding { ask, exposed, ready } => {
                    let decision = ready!(Pin::new(ask).poll(cx));
                    let shared = this.shared.as_ref().expect("who asked has rules");
                    let (inner, request) = ready.take().expect("a decision comes once");
                    next(shared, decision, exposed.as_deref(), inner, request)
                }
                StateProj::Calling { future, decision } => {
                    let mut response = ready!(future.poll(cx))?;
                    if let (Some(shared), Some(decision)) = (&this.shared, decision) {
                        shared.write_fields(decision, &mut response);
                        if shared.expose {
                            let extensions = response.extensions_mut();
                            let joined = extensions.get::<Decision>().map(|inner| decision.and(inner));
                            extensions.insert(joined.unwrap_or_else(|| decision.clone()));
                        }
                    }
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProj::Refused { response } => {
                    let response = response.take().expect("a future is polled until it is ready");
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
            };
            this.state.set(next);
        }
    }
}

/// Goes on when it has been decided: calls the inner service, or refuses.
fn next<S: Service<Request<B>>, B>(
    shared: &Shared,
    decision: Decision,
    exposed: Option<&[Kept]>,
    mut inner: S,
    mut request: Request<B>,
) -> State<S, B, S::Future> {
    if !decision.is_allowed() {
        let (parts, _) = request.into_parts();
        return State::Refused { response: Some(shared.refuse(&decision, &parts)) };
    }
    if let Some(kept) = exposed {
        expose(shared, kept, &decision, &mut request);
    }
    State::Calling { future: inner.call(request), decision: Some(decision) }
}

/// Lets the handler see the decision and settle its charge, together with those of layers further out.
fn expose<B>(shared: &Shared, kept: &[Kept], decision: &Decision, request: &mut Request<B>) {
    let demands: Vec<Demand<'_>> = kept.iter().map(|(policy, key, cost)| Demand::of(policy, *key, *cost)).collect();
    let charge = shared.limiter.charge(&demands, decision);
    let extensions = request.extensions_mut();
    let charge = extensions.get::<Charge>().map_or_else(|| charge.clone(), |outer| outer.and(&charge));
    let decision = extensions.get::<Decision>().map_or_else(|| decision.clone(), |outer| outer.and(decision));
    extensions.insert(charge);
    extensions.insert(decision);
}

impl<S, B> fmt::Debug for ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Deciding { .. } => "ResponseFuture(deciding)",
            State::Calling { .. } => "ResponseFuture(calling)",
            State::Refused { .. } => "ResponseFuture(refused)",
        })
    }
}

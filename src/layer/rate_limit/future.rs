use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, header};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::layer::Shared;
use crate::{
    key::Key,
    layer::{
        RefusalBody, ResponseBody,
        headers::{Fields, PartitionKey},
        warn,
    },
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
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F> {
        Deciding { waiting: Option<Box<Waiting<S, B>>> },
        Calling { #[pin] future: F, fields: Option<Fields>, exposed: Option<Box<Decision>> },
        Preflight { #[pin] future: F },
        Refused { response: Option<Response<RefusalBody>> },
    }
}

/// A request that waits for its decision. Boxed, since it is large and most need not wait, or wait for long.
pub(super) struct Waiting<S, B> {
    pub(super) ask: Ask,
    pub(super) noted: Noted,
    pub(super) inner: S,
    pub(super) request: Request<B>,
    pub(super) shared: Arc<Shared>,
}

/// What is kept of a request's demands, for those who want to know more than where it stands.
#[derive(Default)]
pub(super) struct Noted {
    exposed: Option<Vec<Kept>>,
    partitions: Option<Vec<PartitionKey>>,
}

/// A demand of a request, kept to make a charge of it.
type Kept = (Policy, Key, u64);

impl Noted {
    pub(super) fn of(demands: &[Demand<'_>], shared: &Shared) -> Self {
        let keep = |demand: &Demand<'_>| (demand.policy().clone(), *demand.subject(), demand.units());
        Self {
            exposed: shared.expose.then(|| demands.iter().map(keep).collect()),
            partitions: shared.partitions(demands),
        }
    }
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn waiting(waiting: Waiting<S, B>) -> Self {
        Self { state: State::Deciding { waiting: Some(Box::new(waiting)) } }
    }

    /// Goes on with a decision: calls the inner service, or refuses.
    pub(super) fn decided(
        decision: &Decision,
        noted: &Noted,
        inner: &mut S,
        mut request: Request<B>,
        shared: &Shared,
    ) -> Self {
        let partitions = noted.partitions.as_deref();
        if !decision.is_allowed() {
            let (parts, _) = request.into_parts();
            return Self::refused(shared.refuse(decision, partitions, &parts));
        }
        let exposed = noted.exposed.as_deref().map(|kept| {
            expose(shared, kept, decision, &mut request);
            Box::new(decision.clone())
        });
        let fields = shared.fields(decision, partitions);
        Self { state: State::Calling { fields, future: inner.call(request), exposed } }
    }

    pub(super) fn unlimited(future: S::Future) -> Self {
        Self { state: State::Calling { future, fields: None, exposed: None } }
    }

    /// Lets a CORS preflight through.
    pub(super) fn preflight(future: S::Future) -> Self {
        Self { state: State::Preflight { future } }
    }

    pub(super) fn refused(response: Response<RefusalBody>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
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
                StateProj::Deciding { waiting } => {
                    let asked = &mut waiting.as_mut().expect("a decision comes once").ask;
                    let decision = ready!(Pin::new(asked).poll(cx));
                    let Waiting { noted, mut inner, request, shared, .. } =
                        *waiting.take().expect("a decision comes once");
                    Self::decided(&decision, &noted, &mut inner, request, &shared).state
                }
                StateProj::Calling { future, fields, exposed } => {
                    let mut response = ready!(future.poll(cx))?;
                    if let Some(fields) = fields.take() {
                        fields.write_to(&mut response);
                    }
                    if let Some(decision) = exposed.take() {
                        let extensions = response.extensions_mut();
                        let joined = extensions.get::<Decision>().map(|inner| decision.and(inner));
                        extensions.insert(joined.unwrap_or(*decision));
                    }
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProj::Preflight { future } => {
                    let response = ready!(future.poll(cx))?;
                    if response.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
                        warn::CORS_INSIDE.tell(
                            "a preflight has passed the limit and was answered further in, so refusals have no CORS \
                             fields and browsers hide them from their pages; put CORS outside of the limit: add its \
                             layer after this one (a layer added later runs earlier)",
                        );
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
            State::Calling { .. } | State::Preflight { .. } => "ResponseFuture(calling)",
            State::Refused { .. } => "ResponseFuture(refused)",
        })
    }
}

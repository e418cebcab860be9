use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, header};
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use tower_service::Service;

use super::{
    charging::Charging,
    layer::{Looking, Shared},
};
use crate::{
    key::Key,
    layer::{
        RefusalBody, ResponseBody,
        body::OnTrailers,
        headers::{Fields, PartitionKey},
        warn,
    },
    limit::{Answer, Charge, Decision, Demand, Policy},
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
        state: State<S, B, S::Future, S::Response>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F, P> {
        Deciding { waiting: Option<Box<Waiting<S, B>>> },
        Calling { #[pin] future: F, fields: Option<Fields>, after: Option<Box<After>> },
        GivingBack { answers: Vec<Answer<()>>, answered: Option<Box<(P, After)>> },
        Preflight { #[pin] future: F },
        Refused { response: Option<Response<RefusalBody>> },
    }
}

/// A request that waits for its decision. Boxed, since it is large and most need not wait, or wait for long.
pub(super) struct Waiting<S, B> {
    pub(super) ask: Asking,
    pub(super) noted: Noted,
    pub(super) inner: S,
    pub(super) request: Request<B>,
    pub(super) shared: Arc<Shared>,
}

/// What a request waits for.
pub(super) enum Asking {
    Store(Ask),
    /// Quotas first, and then the store.
    Quotas(Looking),
}

/// What is kept of a request's demands, for those who want to know more than where it stands.
#[derive(Default)]
pub(super) struct Noted {
    kept: Option<Vec<Kept>>,
    partitions: Option<Vec<PartitionKey>>,
}

/// What is to be done when the response comes.
struct After {
    decision: Decision,
    partitions: Option<Vec<PartitionKey>>,
    charge: Charge,
    /// The rules that charge by outcome.
    returns: SmallVec<[Return; 1]>,
    shared: Arc<Shared>,
}

/// A rule that charges by outcome: the policy by which it decided, and what it has charged.
struct Return {
    policy: Policy,
    units: u64,
    charging: Arc<Charging>,
}

/// A demand of a request, kept to make a charge of it.
type Kept = (Policy, Key, u64);

impl Noted {
    pub(super) fn of(demands: &[Demand<'_>], shared: &Shared) -> Self {
        let keep = |demand: &Demand<'_>| (demand.policy().clone(), *demand.subject(), demand.units());
        Self {
            kept: shared.keeps_charges().then(|| demands.iter().map(keep).collect()),
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
        shared: &Arc<Shared>,
    ) -> Self {
        let partitions = noted.partitions.as_deref();
        if !decision.is_allowed() {
            let (parts, _) = request.into_parts();
            return Self::refused(shared.refuse(decision, partitions, &parts));
        }
        let after = noted.kept.as_deref().map(|kept| After::new(kept, decision, noted, &mut request, shared));
        let fields = match &after {
            // They are told when it is known what was charged.
            Some(after) if !after.returns.is_empty() => None,
            _ => shared.fields(decision, partitions),
        };
        Self { state: State::Calling { fields, future: inner.call(request), after: after.map(Box::new) } }
    }

    pub(super) fn unlimited(future: S::Future) -> Self {
        Self { state: State::Calling { future, fields: None, after: None } }
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
                    let (decision, found) = match asked {
                        Asking::Store(ask) => (ready!(Pin::new(ask).poll(cx)), None),
                        Asking::Quotas(looking) => {
                            let (decision, noted) = ready!(looking.as_mut().poll(cx));
                            (decision, Some(noted))
                        }
                    };
                    let Waiting { noted, mut inner, request, shared, .. } =
                        *waiting.take().expect("a decision comes once");
                    Self::decided(&decision, found.as_ref().unwrap_or(&noted), &mut inner, request, &shared).state
                }
                StateProj::Calling { future, fields, after } => {
                    let mut response = ready!(future.poll(cx))?;
                    if let Some(fields) = fields.take() {
                        fields.write_to(&mut response);
                    }
                    let Some(after) = after.take() else {
                        return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                    };
                    if after.returns.is_empty() {
                        after.tell(&mut response);
                        return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                    }
                    let (answers, after) = after.judge(&response);
                    State::GivingBack { answers, answered: Some(Box::new((response, after))) }
                }
                StateProj::GivingBack { answers, answered } => {
                    // One after the other; what cannot be given back is the client's loss and no failure of the request.
                    while let Some(answer) = answers.last_mut() {
                        let _ = ready!(Pin::new(answer).poll(cx));
                        answers.pop();
                    }
                    let (mut response, after) = *answered.take().expect("a future is polled until it is ready");
                    after.tell(&mut response);
                    let Some(trailers) = after.until_trailers() else {
                        if let Some(fields) = after.shared.fields(&after.decision, after.partitions.as_deref()) {
                            fields.write_to(&mut response);
                        }
                        return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                    };
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::until_trailers(body, trailers))));
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

impl After {
    /// Makes a charge of what was kept, and shows it to the handler if it is to see it.
    fn new<B>(
        kept: &[Kept],
        decision: &Decision,
        noted: &Noted,
        request: &mut Request<B>,
        shared: &Arc<Shared>,
    ) -> Self {
        let demands: Vec<Demand<'_>> = kept.iter().map(|(policy, key, cost)| Demand::of(policy, *key, *cost)).collect();
        let charge = shared.limiter.charge(&demands, decision);
        let rules = kept.iter().map(|(policy, ..)| shared.rule(policy.name()));
        if shared.expose || rules.clone().flatten().any(|rule| rule.settles) {
            expose(&charge, decision, request);
        }
        let returns = kept.iter().zip(rules).filter_map(|((policy, _, units), rule)| {
            let charging = Arc::clone(rule?.charging.as_ref()?);
            Some(Return { policy: policy.clone(), units: *units, charging })
        });
        Self {
            decision: decision.clone(),
            partitions: noted.partitions.clone(),
            charge,
            returns: returns.collect(),
            shared: Arc::clone(shared),
        }
    }

    /// Gives back what a response with this head does not leave charged; keeps what only trailers can tell.
    fn judge<R>(mut self, response: &Response<R>) -> (Vec<Answer<()>>, Self) {
        let mut answers = Vec::new();
        let (charge, decision) = (&self.charge, &mut self.decision);
        self.returns.retain(|rule| match rule.charging.stands_after(response.status(), response.headers()) {
            Some(false) => {
                if let Some(answer) = charge.give_back(rule.policy.name()) {
                    decision.give_back(&rule.policy, rule.units);
                    answers.push(answer);
                }
                false
            }
            Some(true) => false,
            None => true,
        });
        (answers, self)
    }

    /// Puts the decision into the response's extensions, if it is to be seen there.
    fn tell<R>(&self, response: &mut Response<R>) {
        if self.shared.expose {
            let extensions = response.extensions_mut();
            let joined = extensions.get::<Decision>().map(|inner| self.decision.and(inner));
            extensions.insert(joined.unwrap_or_else(|| self.decision.clone()));
        }
    }

    /// Returns what is to be done when trailers come, if they tell something.
    fn until_trailers(&self) -> Option<OnTrailers> {
        if self.returns.is_empty() {
            return None;
        }
        let charge = self.charge.clone();
        let rules: Vec<_> =
            self.returns.iter().map(|rule| (rule.policy.name().to_owned(), Arc::clone(&rule.charging))).collect();
        Some(Box::new(move |trailers| {
            for (policy, charging) in &rules {
                if charging.stands_after_trailers(trailers) == Some(false) {
                    // On its way whether it is waited for or not.
                    drop(charge.give_back(policy));
                }
            }
        }))
    }
}

/// Lets the handler see the decision and settle its charge, together with those of layers further out.
fn expose<B>(charge: &Charge, decision: &Decision, request: &mut Request<B>) {
    let extensions = request.extensions_mut();
    let charge = extensions.get::<Charge>().map_or_else(|| charge.clone(), |outer| outer.and(charge));
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
            State::Calling { .. } | State::GivingBack { .. } | State::Preflight { .. } => "ResponseFuture(calling)",
            State::Refused { .. } => "ResponseFuture(refused)",
        })
    }
}

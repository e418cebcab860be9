//! What is done with a request in a task of its own, whether its client is still there or not.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, request::Parts};
use http_body::Body;
use tokio::sync::oneshot;
use tower_service::Service;

use super::{
    IdempotentAttempt, RequestBody, TeedBody,
    answer::Refused,
    body::BoxError,
    claim::{Claim, End, Panicked, caught, whole},
    layer::Shared,
    record::{Kept, Record},
};
use crate::{
    error::Error,
    key::Key,
    layer::ResponseBody,
    lease::{Begin, Begun, Fence, Hold, Lost, OnUnknown, Token, renew},
    limit::Charge,
    metrics,
};

/// A request that has been read, and how it is known.
pub(super) struct Work {
    pub(super) name: Key,
    pub(super) print: Vec<u8>,
    pub(super) is_grpc: bool,
    /// As much of the request as answers go by.
    pub(super) asked: Arc<Parts>,
    pub(super) shared: Arc<Shared>,
}

/// Where the response goes.
pub(super) type Reply<R, E> = oneshot::Sender<Result<Response<ResponseBody<TeedBody<R>>>, E>>;

impl Work {
    /// Has a request executed unless it has been, and replies; then sees to it that what it came to is stored.
    pub(super) async fn run<S, B, R>(self, inner: S, request: Request<RequestBody<B>>, reply: Reply<R, S::Error>)
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>>,
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let token = Token::random();
        let begun = match &token {
            Ok(token) => self.begin(*token).await,
            Err(error) => Err(error.clone()),
        };
        let refused = match begun {
            Ok((Begun::Started { attempt, fence }, sent)) => {
                metrics::idempotency("executed");
                let token = token.expect("who has begun has a token");
                return self.attempt(inner, request, reply, token, (attempt, fence), sent).await;
            }
            Ok((Begun::Running { print, .. } | Begun::Done { print, .. } | Begun::Unknown { print, .. }, _))
                if print != self.print =>
            {
                Refused::Mismatch
            }
            Ok((Begun::Running { left, .. }, _)) => Refused::InFlight(left),
            Ok((Begun::Done { outcome, .. }, _)) => match Record::from_bytes(outcome) {
                Some(Record::Kept(kept)) => {
                    metrics::idempotency("replayed");
                    if self.shared.give_back
                        && let Some(charge) = request.extensions().get::<Charge>()
                    {
                        // It goes on by itself.
                        drop(charge.settle(0));
                    }
                    let _ = reply.send(Ok(self.replay(*kept)));
                    return;
                }
                Some(Record::NotRetained) => Refused::NotRetained,
                None => {
                    tracing::warn!("a stored response cannot be read; its request is not executed again");
                    Refused::NotRetained
                }
            },
            Ok((Begun::Unknown { .. }, _)) => Refused::Unknown,
            Err(error) => return self.without_store(inner, request, reply, token.ok(), &error).await,
        };
        let _ = reply.send(Ok(self.answer(refused)));
    }

    /// Begins an attempt, or tells how things stand, and when that was asked.
    async fn begin(&self, token: Token) -> Result<(Begun, Duration), Error> {
        let once = self.shared.once();
        let begin = Begin::new(token, self.shared.lease, self.shared.retain).print(self.print.clone());
        let begun = once.begin(&self.name, &begin).await?;
        match &begun.0 {
            // Not before it is known to be the same request.
            Begun::Unknown { print, .. } if self.shared.on_unknown == OnUnknown::TakeOver && *print == self.print => {
                once.begin(&self.name, &begin.on_unknown(OnUnknown::TakeOver)).await
            }
            _ => Ok(begun),
        }
    }

    /// Executes a request under its claim, which is renewed all the while.
    async fn attempt<S, B, R>(
        &self,
        inner: S,
        mut request: Request<RequestBody<B>>,
        reply: Reply<R, S::Error>,
        token: Token,
        (number, fence): (u32, Fence),
        sent: Duration,
    ) where
        S: Service<Request<RequestBody<B>>, Response = Response<R>>,
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let Shared { store, lease, .. } = &*self.shared;
        request.extensions_mut().insert(IdempotentAttempt { number, fence });
        let hold = Hold::new(store.clock(), sent, *lease, None);
        let renewal = renew(&hold, *lease, token, || store.extend(&self.name, token, *lease));
        let claim = Claim { work: self, token };
        along(renewal, async {
            match caught(call(inner, request)).await {
                Ok(Ok(response)) => claim.pass_on(response, reply).await,
                Ok(Err(error)) => {
                    tracing::warn!("a service failed on a request with an idempotency key");
                    claim.failed::<R>(|_| _ = reply.send(Err(error))).await;
                }
                Err(Panicked) => {
                    tracing::error!("a handler panicked on a request with an idempotency key");
                    claim.failed(|answer| _ = reply.send(Ok(answer))).await;
                }
            }
        })
        .await;
    }

    /// Goes by what was chosen for when the store does not answer.
    async fn without_store<S, B, R>(
        &self,
        inner: S,
        request: Request<RequestBody<B>>,
        reply: Reply<R, S::Error>,
        token: Option<Token>,
        error: &Error,
    ) where
        S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    {
        tracing::warn!(%error, "an idempotency key cannot be checked");
        if self.shared.fail_open {
            metrics::idempotency("unchecked");
            // A panic ends this task, and the client is told that.
            let called = call(inner, request).await;
            let _ = reply.send(called.map(|response| response.map(|body| ResponseBody::inner(TeedBody::inner(body)))));
            return;
        }
        let _ = reply.send(Ok(self.answer(Refused::Unavailable)));
        // It may have begun, if only the answer was lost: nothing was executed, so it is new for the next one.
        if let Some(token) = token.filter(|_| error.is_transient()) {
            Claim { work: self, token }.finish(End::Release, || {}).await;
        }
    }

    fn answer<R>(&self, refused: Refused) -> Response<ResponseBody<TeedBody<R>>> {
        refused.answer(&self.asked, self.shared.described_by.as_deref()).map(ResponseBody::refusal)
    }

    fn replay<R>(&self, kept: Kept) -> Response<ResponseBody<TeedBody<R>>> {
        let mut response = whole(kept);
        response.headers_mut().insert(self.shared.replayed.clone(), HeaderValue::from_static("true"));
        response
    }
}

/// Calls a service that is ready.
async fn call<S: Service<Q>, Q>(mut service: S, request: Q) -> Result<S::Response, S::Error> {
    service.call(request).await
}

/// Polls a body to its end, and beside it the renewal of what it runs under. A body goes on without: what it has begun can't
/// be taken back, and what it comes to is still worth telling.
async fn along<T>(renewal: impl Future<Output = Lost>, body: impl Future<Output = T>) -> T {
    let (mut renewal, mut body) = (pin!(renewal), pin!(body));
    let mut renews = true;
    poll_fn(|cx| {
        if renews && let Poll::Ready(lost) = renewal.as_mut().poll(cx) {
            tracing::warn!(%lost, "a request with an idempotency key goes on without its claim");
            renews = false;
        }
        body.as_mut().poll(cx)
    })
    .await
}

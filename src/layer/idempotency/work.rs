//! What is done with a request in a task of its own, whether its client is still there or not.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body::Body;
use tokio::{sync::oneshot, time};
use tower_service::Service;

use super::{
    IdempotencyOutcome, IdempotentAttempt, RequestBody, TeedBody,
    answer::Refused,
    body::{BoxError, Whole},
    layer::Shared,
    record::{Kept, Record, kept_fields},
    tee::{Ended, Tee, read},
};
use crate::{
    error::Error,
    key::Key,
    layer::ResponseBody,
    lease::{Begin, Begun, Fence, Hold, Lost, OnUnknown, Token, call_deadline, in_time, renew},
    limit::Charge,
};

/// A request that has been read, and how it is known.
pub(super) struct Work {
    pub(super) name: Key,
    pub(super) print: Vec<u8>,
    pub(super) is_grpc: bool,
    /// As much of the request as answers go by.
    pub(super) asked: Parts,
    pub(super) shared: std::sync::Arc<Shared>,
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

/// The claim of an attempt that goes on.
struct Claim<'a> {
    work: &'a Work,
    token: Token,
}

/// What becomes of a key.
enum End {
    Keep(Vec<u8>, Duration),
    Release,
}

impl Claim<'_> {
    /// Passes a response on while it is collected, and stores it before the client has all of it.
    async fn pass_on<R, E>(&self, response: Response<R>, reply: Reply<R, E>)
    where
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let shared = &self.work.shared;
        let (parts, body) = response.into_parts();
        let chosen = parts.extensions.get::<IdempotencyOutcome>().copied();
        let (status, headers) = (parts.status, kept_fields(&parts.headers, shared.cookies));
        let in_fields = self.work.is_grpc.then(|| grpc_status(&parts.headers)).flatten();
        let at_once = match in_fields {
            Some(status) => Some(shared.grpc_outcome(status)),
            None if self.work.is_grpc && status == StatusCode::OK => None,
            None => Some(shared.outcome(status)),
        };
        let length = body.size_hint().exact();
        let mut tee = Tee::new(parts, body, reply);
        if chosen.or(at_once) == Some(IdempotencyOutcome::Release) {
            return self.finish(End::Release, || tee.rest()).await;
        }
        if tee.is_streamed() || length.is_some_and(|length| length > shared.most_response as u64) {
            return self.finish(self.not_retained(), || tee.rest()).await;
        }
        match caught(read(&mut tee, shared.most_response, self.work.is_grpc)).await {
            Ok(Ended::Whole { data, trailers }) => {
                let in_trailers = || trailers.as_ref().and_then(grpc_status).or_else(|| web_status(&data));
                let outcome = chosen.or(at_once).unwrap_or_else(|| match in_trailers() {
                    Some(status) => shared.grpc_outcome(status),
                    // A call without a status is one that broke off: nobody knows.
                    None => IdempotencyOutcome::Store,
                });
                let kept = Kept { status, headers, body: data.clone(), trailers: trailers.clone() };
                let keep = |retain| End::Keep(Record::Kept(Box::new(kept)).to_bytes(), retain);
                let end = match outcome {
                    IdempotencyOutcome::Release => End::Release,
                    IdempotencyOutcome::Store => keep(shared.retain),
                    IdempotencyOutcome::StoreFor(retain) => keep(retain),
                };
                self.finish(end, || tee.end(Whole { data, trailers })).await;
            }
            Ok(Ended::TooLong) => self.finish(self.not_retained(), || tee.rest()).await,
            Ok(Ended::Broken(error)) => self.finish(self.not_retained(), || tee.broken(error)).await,
            Err(Panicked) => {
                tracing::error!("a response's body panicked on a request with an idempotency key");
                self.finish(self.not_retained(), || tee.broken("the handler panicked".into())).await;
            }
        }
    }

    /// Keeps that the request was executed and failed; leaves the claim to lapse where the next one is to take over.
    async fn failed<R>(&self, then: impl FnOnce(Response<ResponseBody<TeedBody<R>>>)) {
        let kept = Refused::Failed.kept(&self.work.asked, self.work.shared.described_by.as_deref());
        if self.work.shared.on_unknown == OnUnknown::TakeOver {
            return then(whole(kept));
        }
        let end = End::Keep(Record::Kept(Box::new(kept.clone())).to_bytes(), self.work.shared.retain);
        self.finish(end, || then(whole(kept))).await;
    }

    fn not_retained(&self) -> End {
        End::Keep(Record::NotRetained.to_bytes(), self.work.shared.retain)
    }

    /// Tells the store, then the client whatever the store said; then the store again and again, until the claim would lapse.
    async fn finish(&self, end: End, then: impl FnOnce()) {
        let (clock, lease) = (self.work.shared.store.clock(), self.work.shared.lease);
        let until = clock.now() + lease;
        let mut told = self.tell(&end).await;
        then();
        let mut pause = FIRST_PAUSE;
        while let Err(error) = told {
            if clock.now() >= until {
                tracing::warn!(%error, "the response of an idempotent request could not be stored; its key is parked");
                // It may be the response that does not fit.
                if matches!(end, End::Keep(..)) {
                    let _ = self.tell(&self.not_retained()).await;
                }
                return;
            }
            time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
            told = self.tell(&end).await;
        }
    }

    /// Tells the store once.
    async fn tell(&self, end: &End) -> Result<(), Error> {
        let Work { name, print, shared, .. } = self.work;
        let deadline = call_deadline(shared.lease);
        let End::Keep(record, retain) = end else {
            return in_time(deadline, shared.store.abandon(name, self.token)).await.map(drop);
        };
        if in_time(deadline, shared.store.complete(name, self.token, record, *retain)).await? {
            return Ok(());
        }
        // Either somebody has taken over, or the store has lost its memory, and must not forget what was done.
        let done = Begin::done(self.token, record.clone(), *retain).print(print.clone());
        match in_time(deadline, shared.store.begin(name, &done)).await? {
            Begun::Started { .. } => tracing::warn!("a store had lost an idempotency key, and was told again"),
            _ => tracing::warn!("an attempt was taken over while it went on, so its response is not stored"),
        }
        Ok(())
    }
}

/// Calls a service that is ready.
async fn call<S: Service<Q>, Q>(mut service: S, request: Q) -> Result<S::Response, S::Error> {
    service.call(request).await
}

fn whole<R>(kept: Kept) -> Response<ResponseBody<TeedBody<R>>> {
    let mut response =
        Response::new(ResponseBody::inner(TeedBody::whole(Whole { data: kept.body, trailers: kept.trailers })));
    (*response.status_mut(), *response.headers_mut()) = (kept.status, kept.headers);
    response
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

/// The code of a handler panicked.
struct Panicked;

/// Runs code of a handler, and survives its panic.
async fn caught<T>(code: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut code = pin!(code);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(_) => Poll::Ready(Err(Panicked)),
    })
    .await
}

/// Returns where the first message of a gRPC body ends, if its head is there: a byte of flags and four of length.
pub(super) fn message_end(data: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(data.get(1..5)?.try_into().ok()?);
    usize::try_from(length).ok()?.checked_add(5)
}

fn grpc_status(fields: &HeaderMap) -> Option<u16> {
    fields.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// Reads the status of gRPC-Web, which has its trailers in the body: after the message, marked by the highest bit.
fn web_status(data: &[u8]) -> Option<u16> {
    let is_trailers = |data: &&[u8]| data.first().is_some_and(|flags| flags & 0x80 != 0);
    let trailers = Some(data).filter(is_trailers).or_else(|| data.get(message_end(data)?..).filter(is_trailers))?;
    let text = std::str::from_utf8(trailers.get(5..)?).ok()?;
    let mut fields = text.split("\r\n").filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.trim().eq_ignore_ascii_case("grpc-status"))?.1.trim().parse().ok()
}

/// Returns true for responses that go on until one side has had enough.
pub(super) fn is_streamed(status: StatusCode, headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes()).to_ascii_lowercase();
    status.is_informational()
        || kind.starts_with(b"text/event-stream")
        || kind.starts_with(b"multipart/x-mixed-replace")
}

/// When to ask again if the store does not answer; then after twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

//! How an attempt ends: its response goes to the client and to the store.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use tokio::time;

use super::{
    IdempotencyOutcome, TeedBody,
    answer::Refused,
    body::{BoxError, Whole},
    record::{Kept, Record, kept_fields},
    tee::{Ended, Tee, read},
    unary,
    work::{Reply, Work},
};
use crate::{
    error::Error,
    layer::ResponseBody,
    lease::{Begin, Begun, OnUnknown, Token, call_deadline, in_time},
};

/// The claim of an attempt that goes on.
pub(super) struct Claim<'a> {
    pub(super) work: &'a Work,
    pub(super) token: Token,
}

/// What becomes of a key.
pub(super) enum End {
    Keep(Vec<u8>, Duration),
    Release,
}

impl Claim<'_> {
    /// Passes a response on while it is collected, and stores it before the client has all of it.
    pub(super) async fn pass_on<R, E>(&self, response: Response<R>, reply: Reply<R, E>)
    where
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let shared = &self.work.shared;
        let (parts, body) = response.into_parts();
        let chosen = parts.extensions.get::<IdempotencyOutcome>().copied();
        let (status, headers) = (parts.status, kept_fields(&parts.headers, shared.cookies));
        let in_fields = self.work.is_grpc.then(|| unary::status(&parts.headers)).flatten();
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
                let frames = if self.work.is_grpc { unary::frames(&headers, &data) } else { None };
                if frames.as_deref().is_some_and(unary::has_second_message) {
                    return self.finish(self.not_retained(), || tee.end(Whole { data, trailers })).await;
                }
                let in_trailers =
                    || trailers.as_ref().and_then(unary::status).or_else(|| unary::web_status(frames.as_deref()?));
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
    pub(super) async fn failed<R>(&self, then: impl FnOnce(Response<ResponseBody<TeedBody<R>>>)) {
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
    pub(super) async fn finish(&self, end: End, then: impl FnOnce()) {
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

/// Makes a response of what was kept.
pub(super) fn whole<R>(kept: Kept) -> Response<ResponseBody<TeedBody<R>>> {
    let mut response =
        Response::new(ResponseBody::inner(TeedBody::whole(Whole { data: kept.body, trailers: kept.trailers })));
    (*response.status_mut(), *response.headers_mut()) = (kept.status, kept.headers);
    response
}

/// The code of a handler panicked.
pub(super) struct Panicked;

/// Runs code of a handler, and survives its panic.
pub(super) async fn caught<T>(code: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut code = pin!(code);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(_) => Poll::Ready(Err(Panicked)),
    })
    .await
}

/// When to ask again if the store does not answer; then after twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

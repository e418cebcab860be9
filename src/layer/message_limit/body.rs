use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use super::{frames::Frames, link::Link};
use crate::{
    key::Key,
    layer::{
        RefusalBody, grpc,
        refuse::{self, Blame},
    },
    limit::{Decision, Demand, Policy},
    limiter::{Ask, Limiter},
};

pin_project! {
    /// The body of a request whose messages a [`MessageLimit`](super::MessageLimit) counts.
    pub struct MessageBody<B> {
        #[pin]
        inner: B,
        meter: Option<Box<Meter>>,
    }
}

/// Counts the messages of one call.
struct Meter {
    metered: Metered,
    link: Link,
    content_type: HeaderValue,
    frames: Frames,
    /// What has been read and not been passed on.
    held: Bytes,
    /// Whether the message that comes next, or is under way, has been granted.
    granted: bool,
    refused: bool,
}

impl<B> MessageBody<B> {
    pub(super) fn free(inner: B) -> Self {
        Self { inner, meter: None }
    }

    pub(super) fn metered(inner: B, metered: Metered, content_type: HeaderValue, link: Link) -> Self {
        let meter = Meter {
            metered,
            link,
            content_type,
            frames: Frames::default(),
            held: Bytes::new(),
            granted: false,
            refused: false,
        };
        Self { inner, meter: Some(Box::new(meter)) }
    }
}

impl<B> Body for MessageBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let Some(meter) = this.meter else {
            return this.inner.poll_frame(cx).map_err(Into::into);
        };
        loop {
            if meter.refused {
                return Poll::Ready(None);
            }
            if !meter.held.is_empty() {
                return Poll::Ready(Some(match ready!(meter.poll_piece(cx)) {
                    Some(piece) => Ok(Frame::data(piece)),
                    None => Err(Refused.into()),
                }));
            }
            match ready!(this.inner.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => meter.held = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.meter {
            Some(meter) => meter.refused || (meter.held.is_empty() && self.inner.is_end_stream()),
            None => self.inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.meter.is_some() { SizeHint::default() } else { self.inner.size_hint() }
    }
}

impl<B> fmt::Debug for MessageBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.meter.is_some() { "MessageBody(metered)" } else { "MessageBody(free)" })
    }
}

impl Meter {
    /// Passes on what is held, no further than to the end of a message; `None` if that is refused.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !self.granted {
            let decision = ready!(self.metered.poll(cx));
            if !decision.is_allowed() {
                self.refused = true;
                self.held = Bytes::new();
                let blame = self.metered.blame(&decision);
                self.link.refuse(refuse::grpc_refusal(self.content_type.clone(), &decision, blame));
                return Poll::Ready(None);
            }
            self.granted = true;
        }
        // A message in base64 cannot be followed. Browsers send one, so all there is counts as that.
        if grpc::is_text(&self.content_type) {
            return Poll::Ready(Some(std::mem::take(&mut self.held)));
        }
        let piece = self.held.split_to(self.frames.follow(&self.held));
        self.granted = !self.frames.is_between();
        Poll::Ready(Some(piece))
    }
}

/// What each message of a call is asked for.
pub(super) struct Metered {
    limiter: Limiter,
    max_wait: Duration,
    asked: Vec<Asked>,
    ask: Option<Ask>,
    turn: Option<Pin<Box<Sleep>>>,
    /// How long the message has waited.
    waited: Duration,
}

impl Metered {
    pub(super) fn new(limiter: Limiter, max_wait: Duration) -> Self {
        Self { limiter, max_wait, asked: Vec::new(), ask: None, turn: None, waited: Duration::ZERO }
    }

    pub(super) fn push(&mut self, demand: &Demand<'_>, blame: Blame) {
        self.asked.push(Asked {
            policy: demand.policy().clone(),
            key: *demand.subject(),
            cost: demand.units(),
            shadow: demand.is_shadow(),
            blame,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Decides on one message, after it has waited for its turn if it may.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Decision> {
        loop {
            if let Some(turn) = &mut self.turn {
                ready!(turn.as_mut().poll(cx));
                self.turn = None;
            }
            let decision = ready!(self.poll_once(cx));
            match decision.retry_after() {
                Some(wait) if self.waited + wait <= self.max_wait => {
                    self.waited += wait;
                    self.turn = Some(Box::pin(sleep(wait)));
                }
                _ => {
                    self.waited = Duration::ZERO;
                    return Poll::Ready(decision);
                }
            }
        }
    }

    fn poll_once(&mut self, cx: &mut Context<'_>) -> Poll<Decision> {
        if self.ask.is_none() {
            let demands: Vec<Demand<'_>> = self.asked.iter().map(Asked::demand).collect();
            let mut decision = Decision::empty();
            match self.limiter.ask(&demands, &mut decision) {
                Some(ask) => self.ask = Some(ask),
                None => return Poll::Ready(decision),
            }
        }
        let ask = self.ask.as_mut().expect("it was just asked");
        let decision = ready!(Pin::new(ask).poll(cx));
        self.ask = None;
        Poll::Ready(decision)
    }

    /// Returns whose affair a refusal is; the outcomes are in the order of what was asked.
    fn blame(&self, decision: &Decision) -> Blame {
        let outcomes = self.asked.iter().zip(decision.outcomes());
        let mut refused = outcomes.filter(|(_, outcome)| !outcome.is_allowed() && !outcome.is_shadow());
        if refused.all(|(asked, _)| asked.blame == Blame::Server) { Blame::Server } else { Blame::Client }
    }
}

/// What a message is asked for under one rule.
struct Asked {
    policy: Policy,
    key: Key,
    cost: u64,
    shadow: bool,
    blame: Blame,
}

impl Asked {
    fn demand(&self) -> Demand<'_> {
        Demand::of(&self.policy, self.key, self.cost).in_shadow(self.shadow)
    }
}

/// What a service reads in the place of a message that was refused.
#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message was over the limit")
    }
}

impl StdError for Refused {}

/// Any error; what a request's body may end with.
type BoxError = Box<dyn StdError + Send + Sync>;

pin_project! {
    /// The body of a response that ends when a message of its request is refused.
    #[derive(Debug)]
    pub struct StreamedBody<R> {
        #[pin]
        kind: Kind<R>,
    }
}

pin_project! {
    #[project = KindProj]
    #[derive(Debug)]
    enum Kind<R> {
        Inner { #[pin] body: R, watch: Option<Watch> },
        Refusal { #[pin] body: RefusalBody },
    }
}

/// Watches whether a message of the request is refused, and where that can be told.
#[derive(Debug)]
struct Watch {
    link: Link,
    content_type: HeaderValue,
    frames: Frames,
    refusal: Option<Response<RefusalBody>>,
    ended: bool,
}

impl Watch {
    fn is_refused(&mut self, cx: &Context<'_>) -> bool {
        if self.refusal.is_none()
            && let Poll::Ready(refusal) = self.link.poll_refusal(cx)
        {
            self.refusal = Some(refusal);
        }
        self.refusal.is_some()
    }

    fn follow(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            data = &data[self.frames.follow(data)..];
        }
    }

    /// Ends the stream with what the refusal has to tell.
    fn end<E>(&mut self) -> Option<Result<Frame<Bytes>, E>> {
        self.ended = true;
        Some(Ok(grpc::ending(self.refusal.take()?.headers(), &self.content_type)))
    }
}

impl<R> StreamedBody<R> {
    /// Watches a response, if it is one of gRPC: only that has a place to tell it.
    pub(super) fn of(response: Response<R>, link: Option<Link>) -> Response<Self> {
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.filter(|value| grpc::is_grpc(value) && !grpc::is_text(value));
        let watch = link.zip(content_type.cloned()).map(|(link, content_type)| Watch {
            link,
            content_type,
            frames: Frames::default(),
            refusal: None,
            ended: false,
        });
        response.map(|body| Self { kind: Kind::Inner { body, watch } })
    }

    pub(super) fn refusal(body: RefusalBody) -> Self {
        Self { kind: Kind::Refusal { body } }
    }
}

impl<R: Body<Data = Bytes>> Body for StreamedBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        match self.project().kind.project() {
            KindProj::Inner { body, watch: None } => body.poll_frame(cx),
            KindProj::Inner { body, watch: Some(watch) } => {
                if watch.ended {
                    return Poll::Ready(None);
                }
                if watch.is_refused(cx) && watch.frames.is_between() {
                    return Poll::Ready(watch.end());
                }
                let polled = body.poll_frame(cx);
                // The service may have read just now what was refused, and be ending in its own way.
                let over = watch.is_refused(cx) && watch.frames.is_between();
                match polled {
                    Poll::Ready(Some(Ok(frame))) if frame.is_data() => {
                        frame.data_ref().into_iter().for_each(|data| watch.follow(data));
                        Poll::Ready(Some(Ok(frame)))
                    }
                    _ if over => Poll::Ready(watch.end()),
                    other => other,
                }
            }
            KindProj::Refusal { body } => body.poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, watch } => watch.as_ref().is_some_and(|watch| watch.ended) || body.is_end_stream(),
            Kind::Refusal { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, watch: None } => body.size_hint(),
            Kind::Inner { .. } => SizeHint::default(),
            Kind::Refusal { body } => body.size_hint(),
        }
    }
}

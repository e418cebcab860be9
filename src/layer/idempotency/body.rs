use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::sync::mpsc;

/// What goes wrong in a body.
pub(super) type BoxError = Box<dyn StdError + Send + Sync>;

/// A message that is there as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Whole {
    pub(super) data: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

impl Whole {
    fn next(&mut self) -> Option<Frame<Bytes>> {
        let data = std::mem::take(&mut self.data);
        if data.is_empty() { self.trailers.take().map(Frame::trailers) } else { Some(Frame::data(data)) }
    }

    fn is_end(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }
}

pin_project! {
    /// The body of a request as the inner service gets it: as it came, or read before.
    #[derive(Debug)]
    pub struct RequestBody<B> {
        #[pin]
        kind: Request<B>,
    }
}

pin_project! {
    #[project = RequestProj]
    #[derive(Debug)]
    enum Request<B> {
        AsItCame { #[pin] body: B },
        Read { whole: Whole },
    }
}

impl<B> RequestBody<B> {
    pub(super) fn as_it_came(body: B) -> Self {
        Self { kind: Request::AsItCame { body } }
    }

    pub(super) fn read(whole: Whole) -> Self {
        Self { kind: Request::Read { whole } }
    }
}

impl<B: Default> Default for RequestBody<B> {
    fn default() -> Self {
        Self::as_it_came(B::default())
    }
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            RequestProj::AsItCame { body } => body.poll_frame(cx),
            RequestProj::Read { whole } => Poll::Ready(whole.next().map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Request::AsItCame { body } => body.is_end_stream(),
            Request::Read { whole } => whole.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Request::AsItCame { body } => body.size_hint(),
            Request::Read { whole } => SizeHint::with_exact(whole.data.len() as u64),
        }
    }
}

pin_project! {
    /// The body of a response: the inner service's, or what is passed on of it while it is kept, or what was kept.
    pub struct TeedBody<B> {
        #[pin]
        kind: Teed<B>,
    }
}

pin_project! {
    #[project = TeedProj]
    enum Teed<B> {
        Inner { #[pin] body: B },
        Whole { whole: Whole },
        Live { pieces: mpsc::UnboundedReceiver<Piece<B>>, left: Option<u64> },
        Rest { body: Pin<Box<B>> },
    }
}

/// A piece of a response on its way from where it is kept to the client.
pub(super) enum Piece<B> {
    Frame(Frame<Bytes>),
    /// It is not kept any more, so the client reads on by itself.
    Rest(Pin<Box<B>>),
    Error(BoxError),
    End,
}

impl<B> TeedBody<B> {
    pub(super) fn inner(body: B) -> Self {
        Self { kind: Teed::Inner { body } }
    }

    pub(super) fn whole(whole: Whole) -> Self {
        Self { kind: Teed::Whole { whole } }
    }

    /// Passes pieces on; `length` is how many bytes they will have in all, if that is known.
    pub(super) fn live(pieces: mpsc::UnboundedReceiver<Piece<B>>, length: Option<u64>) -> Self {
        Self { kind: Teed::Live { pieces, left: length } }
    }

    pub(super) fn rest(body: Pin<Box<B>>) -> Self {
        Self { kind: Teed::Rest { body } }
    }
}

impl<B> Body for TeedBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let rest = match self.as_mut().project().kind.project() {
            TeedProj::Inner { body } => return body.poll_frame(cx).map_err(Into::into),
            TeedProj::Rest { body } => return body.as_mut().poll_frame(cx).map_err(Into::into),
            TeedProj::Whole { whole } => return Poll::Ready(whole.next().map(Ok)),
            TeedProj::Live { pieces, left } => match ready!(pieces.poll_recv(cx)) {
                Some(Piece::Frame(frame)) => {
                    let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                    *left = left.map(|left| left.saturating_sub(length));
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(Piece::Error(error)) => return Poll::Ready(Some(Err(error))),
                Some(Piece::End) => return Poll::Ready(None),
                Some(Piece::Rest(body)) => body,
                // Nobody is there any more to say how it ends: it must not look whole.
                None => return Poll::Ready(Some(Err("the response broke off".into()))),
            },
        };
        self.as_mut().project().kind.set(Teed::Rest { body: rest });
        self.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Teed::Inner { body } => body.is_end_stream(),
            Teed::Rest { body } => body.is_end_stream(),
            Teed::Whole { whole } => whole.is_end(),
            Teed::Live { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Teed::Inner { body } => body.size_hint(),
            Teed::Rest { body } => body.size_hint(),
            Teed::Whole { whole } => SizeHint::with_exact(whole.data.len() as u64),
            Teed::Live { left, .. } => left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl<B: Default> Default for TeedBody<B> {
    fn default() -> Self {
        Self::inner(B::default())
    }
}

impl<B> fmt::Debug for TeedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Teed::Inner { .. } | Teed::Rest { .. } => "TeedBody(inner)",
            Teed::Whole { .. } => "TeedBody(whole)",
            Teed::Live { .. } => "TeedBody(live)",
        })
    }
}

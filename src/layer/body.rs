use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a response: the inner service's, or the limiter's when it refused.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProj]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Watched { #[pin] body: B, on_trailers: Hook },
        Refusal { #[pin] body: RefusalBody },
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body } }
    }

    /// Passes the inner service's body on, and looks at its trailers.
    pub(super) fn until_trailers(body: B, on_trailers: OnTrailers) -> Self {
        Self { kind: Kind::Watched { body, on_trailers: Hook(Some(on_trailers)) } }
    }

    pub(super) fn refusal(body: RefusalBody) -> Self {
        Self { kind: Kind::Refusal { body } }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProj::Inner { body } => body.poll_frame(cx),
            KindProj::Watched { body, on_trailers } => {
                let frame = ready!(body.poll_frame(cx));
                if let Some(Ok(frame)) = &frame
                    && let Some(trailers) = frame.trailers_ref()
                    && let Some(act) = on_trailers.0.take()
                {
                    act(trailers);
                }
                Poll::Ready(frame)
            }
            KindProj::Refusal { body } => body.poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } | Kind::Watched { body, .. } => body.is_end_stream(),
            Kind::Refusal { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } | Kind::Watched { body, .. } => body.size_hint(),
            Kind::Refusal { body } => body.size_hint(),
        }
    }
}

/// What is done once with the trailers of a response.
pub(super) type OnTrailers = Box<dyn FnOnce(&HeaderMap) + Send + Sync>;

struct Hook(Option<OnTrailers>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::inner(B::default())
    }
}

/// The body of a refusal: one piece, or none.
///
/// Without a piece it is at its end from the start, so that an HTTP/2 server closes the stream with the header
/// frame, as gRPC demands of a response without messages.
#[derive(Clone, Debug, Default)]
pub struct RefusalBody(Bytes);

impl From<Bytes> for RefusalBody {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<RefusalBody> for Bytes {
    fn from(body: RefusalBody) -> Self {
        body.0
    }
}

impl Body for RefusalBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = std::mem::take(&mut self.0);
        Poll::Ready(if bytes.is_empty() { None } else { Some(Ok(Frame::data(bytes))) })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

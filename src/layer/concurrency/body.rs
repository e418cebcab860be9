use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::permit::RequestPermit;

pin_project! {
    /// The body of a response, which holds a permit until it has ended or is dropped.
    pub struct PermitBody<B> {
        #[pin]
        inner: B,
        permit: Held,
    }
}

/// A permit that is given back with this, unless a handler has taken it.
///
/// Clones of it in the request's extensions may live longer.
pub(super) struct Held(pub(super) Option<RequestPermit>);

impl Held {
    pub(super) fn give_back(&mut self) {
        if let Some(permit) = self.0.take() {
            drop(permit.take());
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl<B> PermitBody<B> {
    pub(super) fn new(inner: B, permit: Held) -> Self {
        Self { inner, permit }
    }
}

impl<B: Body<Data = Bytes>> Body for PermitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        // A server need not ask again for the end of a body that is known to be at it.
        if !matches!(frame, Some(Ok(_))) || this.inner.is_end_stream() {
            this.permit.give_back();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B: Default> Default for PermitBody<B> {
    fn default() -> Self {
        Self::new(B::default(), Held(None))
    }
}

impl<B> fmt::Debug for PermitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitBody")
    }
}

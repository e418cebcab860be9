use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::error::Error;

/// The reply of a store of leases, records or jobs: there already, or on its way.
#[must_use = "a reply does nothing until it is awaited"]
pub struct Reply<T>(Inner<T>);

enum Inner<T> {
    Ready(Option<Result<T, Error>>),
    Pending(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
}

impl<T> Reply<T> {
    /// Replies at once.
    pub fn ready(reply: Result<T, Error>) -> Self {
        Self(Inner::Ready(Some(reply)))
    }

    /// Replies when `future` does.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(Inner::Pending(Box::pin(future)))
    }
}

impl<T: Unpin> Future for Reply<T> {
    type Output = Result<T, Error>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(reply) => Poll::Ready(reply.take().expect("a reply is polled until it is ready")),
            Inner::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Inner::Ready(_) => "Reply(ready)",
            Inner::Pending(_) => "Reply(pending)",
        })
    }
}

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use super::Decision;
use crate::error::Error;

/// The answer of a [`Store`](super::Store): there already, or on its way.
#[must_use = "an answer does nothing until it is awaited"]
pub struct Answer<T = Decision>(Inner<T>);

enum Inner<T> {
    Ready(Option<Result<T, Error>>),
    Pending(Pending<T>),
}

/// An answer that is on its way; small, whatever it will be, and small when it comes, since each that waits for it hands
/// it on.
pub(crate) enum Pending<T> {
    Boxed(Work<T>),
    /// One that tells which parts of the store it waits for at present.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "other stores are one part"))]
    Parted(Work<T>, Arc<AtomicU64>),
    Promised(oneshot::Receiver<Result<Box<T>, Error>>),
}

type Work<T> = Pin<Box<dyn Future<Output = Result<Box<T>, Error>> + Send>>;

/// Gives the answer that [`Answer::promised`] is waiting for.
///
/// Dropped without that, it answers that the connection to the store was lost.
#[derive(Debug)]
pub struct Promise<T = Decision>(oneshot::Sender<Result<Box<T>, Error>>);

impl<T> Promise<T> {
    /// Answers.
    pub fn keep(self, answer: Result<T, Error>) {
        // Who has gone away needs no answer.
        let _ = self.0.send(answer.map(Box::new));
    }

    /// Returns true if nobody waits any more.
    pub fn is_pointless(&self) -> bool {
        self.0.is_closed()
    }
}

impl<T> Answer<T> {
    /// Answers at once.
    pub fn ready(answer: Result<T, Error>) -> Self {
        Self(Inner::Ready(Some(answer)))
    }

    /// Answers when `future` does.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self::handed_on(async { future.await.map(Box::new) })
    }

    /// Answers when `future` does, with what another answer was.
    pub(crate) fn handed_on(future: impl Future<Output = Result<Box<T>, Error>> + Send + 'static) -> Self {
        Self(Inner::Pending(Pending::Boxed(Box::pin(future))))
    }

    /// Answers when `future` does, which keeps `waiting` at the [parts](super::Store::parts) that it waits for.
    #[cfg(feature = "cluster")]
    pub(crate) fn parted(
        future: impl Future<Output = Result<T, Error>> + Send + 'static,
        waiting: Arc<AtomicU64>,
    ) -> Self {
        Self(Inner::Pending(Pending::Parted(Box::pin(async { future.await.map(Box::new) }), waiting)))
    }

    /// Answers when the promise is kept.
    pub fn promised() -> (Promise<T>, Self) {
        let (promise, answer) = oneshot::channel();
        (Promise(promise), Self(Inner::Pending(Pending::Promised(answer))))
    }

    /// Returns the answer that is there already, to be changed in place.
    pub(crate) fn ready_mut(&mut self) -> Option<&mut T> {
        match &mut self.0 {
            Inner::Ready(Some(Ok(answer))) => Some(answer),
            _ => None,
        }
    }

    /// Takes an answer that is there already.
    pub(crate) fn now(self) -> Result<Result<T, Error>, Pending<T>> {
        match self.0 {
            Inner::Ready(answer) => Ok(answer.expect("an answer is taken once")),
            Inner::Pending(pending) => Err(pending),
        }
    }
}

impl<T> Pending<T> {
    /// Returns what tells which parts of the store are waited for, if anything does.
    pub(crate) fn waiting(&self) -> Option<Arc<AtomicU64>> {
        match self {
            Self::Parted(_, waiting) => Some(Arc::clone(waiting)),
            Self::Boxed(_) | Self::Promised(_) => None,
        }
    }
}

impl<T> From<Pending<T>> for Answer<T> {
    fn from(pending: Pending<T>) -> Self {
        Self(Inner::Pending(pending))
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<Box<T>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Boxed(future) | Self::Parted(future, _) => future.as_mut().poll(cx),
            Self::Promised(answer) => Pin::new(answer)
                .poll(cx)
                .map(|kept| kept.unwrap_or_else(|_| Err(Error::store("the connection to the store was lost")))),
        }
    }
}

impl<T: Unpin> Future for Answer<T> {
    type Output = Result<T, Error>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(answer) => Poll::Ready(answer.take().expect("an answer is polled until it is ready")),
            Inner::Pending(pending) => Pin::new(pending).poll(cx).map_ok(|answer| *answer),
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Inner::Ready(_) => "Answer(ready)",
            Inner::Pending(_) => "Answer(pending)",
        })
    }
}

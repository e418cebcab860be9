use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;
use pin_project_lite::pin_project;

use super::TeedBody;
use crate::layer::ResponseBody;

/// What a request comes to.
type Outcome<R, E> = Result<Response<ResponseBody<TeedBody<R>>>, E>;

pin_project! {
    /// The response of an [`Idempotency`](super::Idempotency) service.
    ///
    /// Dropped after the request was read, it leaves the execution to go on.
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R, E> {
        Passing { #[pin] future: F },
        // One box for a request that also takes a trip to the store, and a task.
        Keyed { future: Pin<Box<dyn Future<Output = Outcome<R, E>> + Send>> },
        Refused { response: Option<Response<ResponseBody<TeedBody<R>>>> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    pub(super) fn passing(future: F) -> Self {
        Self { state: State::Passing { future } }
    }

    pub(super) fn keyed(future: impl Future<Output = Outcome<R, E>> + Send + 'static) -> Self {
        Self { state: State::Keyed { future: Box::pin(future) } }
    }

    pub(super) fn refused(response: Response<ResponseBody<TeedBody<R>>>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Outcome<R, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Passing { future } => {
                let passed = |response: Response<R>| response.map(|body| ResponseBody::inner(TeedBody::inner(body)));
                future.poll(cx).map_ok(passed)
            }
            StateProj::Keyed { future } => future.as_mut().poll(cx),
            StateProj::Refused { response } => {
                Poll::Ready(Ok(response.take().expect("a future is polled until it is ready")))
            }
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Passing { .. } => "ResponseFuture(passing)",
            State::Keyed { .. } => "ResponseFuture(keyed)",
            State::Refused { .. } => "ResponseFuture(refused)",
        })
    }
}

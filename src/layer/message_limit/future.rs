use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use pin_project_lite::pin_project;

use super::{body::StreamedBody, link::Link};
use crate::layer::RefusalBody;

pin_project! {
    /// The response of a [`MessageLimit`](super::MessageLimit) service.
    pub struct MessageLimitFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        Calling { #[pin] future: F, link: Option<Link> },
        Refused { response: Option<Response<RefusalBody>> },
    }
}

impl<F> MessageLimitFuture<F> {
    pub(super) fn free(future: F) -> Self {
        Self { state: State::Calling { future, link: None } }
    }

    pub(super) fn metered(future: F, link: Link) -> Self {
        Self { state: State::Calling { future, link: Some(link) } }
    }

    pub(super) fn refused(response: Response<RefusalBody>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<F, R, E> Future for MessageLimitFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<StreamedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Calling { future, link } => {
                let answered = future.poll(cx);
                // Whatever the service makes of a message that was refused: the client is told that it was.
                if let Some(link) = link
                    && let Poll::Ready(refusal) = link.poll_refusal(cx)
                {
                    return Poll::Ready(Ok(refusal.map(StreamedBody::refusal)));
                }
                let response = ready!(answered)?;
                let link = link.take();
                Poll::Ready(Ok(StreamedBody::of(response, link)))
            }
            StateProj::Refused { response } => {
                let response = response.take().expect("a future is polled until it is ready");
                Poll::Ready(Ok(response.map(StreamedBody::refusal)))
            }
        }
    }
}

impl<F> fmt::Debug for MessageLimitFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MessageLimitFuture")
    }
}

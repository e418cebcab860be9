use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    PermitBody, RequestPermit,
    body::Held,
    layer::{Refused, Shared},
};
use crate::{
    layer::{RefusalBody, ResponseBody, warn},
    lease::Permit,
};

pin_project! {
    /// The response of a [`ConcurrencyLimit`](super::ConcurrencyLimit) service.
    ///
    /// Dropped at any time, it gives its permit back.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F> {
        Acquiring { acquiring: Option<Box<Acquiring<S, B>>> },
        Calling { #[pin] future: F, permit: Option<Held>, free: Option<u32>, shared: Option<Arc<Shared>> },
        Refused { response: Option<Response<RefusalBody>> },
    }
}

/// A request that waits for its permit. Boxed, since it is large and most need not wait for long.
pub(super) struct Acquiring<S, B> {
    pub(super) permit: Pin<Box<dyn Future<Output = Result<Option<Permit>, Refused>> + Send>>,
    pub(super) inner: S,
    pub(super) request: Request<B>,
    pub(super) shared: Arc<Shared>,
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn acquiring(acquiring: Acquiring<S, B>) -> Self {
        Self { state: State::Acquiring { acquiring: Some(Box::new(acquiring)) } }
    }

    pub(super) fn unlimited(future: S::Future) -> Self {
        Self { state: State::Calling { future, permit: None, free: None, shared: None } }
    }

    pub(super) fn refused(response: Response<RefusalBody>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<PermitBody<R>>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Acquiring { acquiring } => {
                    let asked = &mut acquiring.as_mut().expect("a permit comes once").permit;
                    let permit = ready!(asked.as_mut().poll(cx));
                    let Acquiring { mut inner, mut request, shared, .. } =
                        *acquiring.take().expect("a permit comes once");
                    shared.count(&permit);
                    match permit {
                        Ok(permit) => {
                            let free = permit.as_ref().map(Permit::free);
                            let permit = permit.map(RequestPermit::new);
                            if let Some(permit) = &permit {
                                request.extensions_mut().insert(permit.clone());
                            }
                            State::Calling {
                                future: inner.call(request),
                                permit: Some(Held(permit)),
                                free,
                                shared: Some(shared),
                            }
                        }
                        Err(refused) => {
                            let (parts, _) = request.into_parts();
                            State::Refused { response: Some(shared.refuse(&refused, &parts)) }
                        }
                    }
                }
                StateProj::Calling { future, permit, free, shared } => {
                    let mut response = ready!(future.poll(cx))?;
                    let mut permit = permit.take().unwrap_or(Held(None));
                    if let Some(shared) = shared.take() {
                        let status = response.status();
                        if status == StatusCode::SWITCHING_PROTOCOLS {
                            warn_if_untaken(&permit);
                            permit.give_back();
                        } else if !status.is_redirection() {
                            shared.write_fields(response.headers_mut(), *free);
                        }
                    }
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::inner(PermitBody::new(body, permit)))));
                }
                StateProj::Refused { response } => {
                    let response = response.take().expect("a future is polled until it is ready");
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
            };
            this.state.set(next);
        }
    }
}

fn warn_if_untaken(permit: &Held) {
    if permit.0.as_ref().is_some_and(RequestPermit::is_there) {
        warn::UPGRADE_WITHOUT_PERMIT.tell(
            "a connection was upgraded under a concurrency limit, and its handler has not taken the permit, which was given \
             back; take it from `RequestPermit` in the request's extensions and hold it for as long as it works",
        );
    }
}

impl<S, B> fmt::Debug for ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Acquiring { .. } => "ResponseFuture(acquiring)",
            State::Calling { .. } => "ResponseFuture(calling)",
            State::Refused { .. } => "ResponseFuture(refused)",
        })
    }
}

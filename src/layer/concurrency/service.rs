use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{PermitBody, ResponseFuture, future::Acquiring, layer::Shared};
use crate::layer::{ResponseBody, key::NoKey, refuse, take_ready, warn};

/// Serves so many requests at a time by the inner service; see the [module](super).
#[derive(Clone, Debug)]
pub struct ConcurrencyLimit<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> ConcurrencyLimit<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }

    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service, without the limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for ConcurrencyLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<ResponseBody<PermitBody<R>>>;
    type Error = S::Error; // a refusal is a response; we add no error of our own
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx) // back-pressure is the inner service's to give
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        match self.shared.key(&parts) {
            Ok(key) => {
                let inner = take_ready(&mut self.inner);
                let shared = Arc::clone(&self.shared);
                let permit = Box::pin(async move { shared.acquire(key).await });
                let request = Request::from_parts(parts, body);
                let acquiring = Acquiring { permit, inner, request, shared: Arc::clone(&self.shared) };
                ResponseFuture::acquiring(acquiring)
            }
            Err(NoKey::Skip) => ResponseFuture::unlimited(self.inner.call(Request::from_parts(parts, body))),
            Err(no_key) => {
                if no_key == NoKey::PeerUnknown {
                    warn::PEER_UNKNOWN.tell_error(refuse::PEER_UNKNOWN);
                }
                ResponseFuture::refused(refuse::without_key(&no_key, &parts))
            }
        }
    }
}

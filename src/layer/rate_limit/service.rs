use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{
    ResponseFuture,
    future::{Asking, Noted, Waiting},
    layer::{Demands, Live, Shared, is_preflight},
};
use crate::{
    layer::{ResponseBody, key::NoKey, refuse, take_ready, warn},
    limit::Decision,
};

/// Asks the rules of a [`RateLimitLayer`](super::RateLimitLayer) of each request before the inner service.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    live: Arc<Live>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, live: Arc<Live>) -> Self {
        Self { inner, live }
    }

    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service, without the limits.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error; // a refusal is a response; we add no error of our own
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx) // back-pressure is the inner service's to give
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let shared = self.live.load();
        let mut demands = Demands::new();
        match shared.demand(&parts, &mut demands) {
            Ok(()) if demands.is_empty() => {
                let preflight = is_preflight(&parts);
                let future = self.inner.call(Request::from_parts(parts, body));
                if preflight { ResponseFuture::preflight(future) } else { ResponseFuture::unlimited(future) }
            }
            Ok(()) => {
                if let Some(looking) = Shared::look_up(&shared, &demands) {
                    let request = Request::from_parts(parts, body);
                    let inner = take_ready(&mut self.inner);
                    let shared = Arc::clone(&shared);
                    let ask = Asking::Quotas(looking);
                    return ResponseFuture::waiting(Waiting { ask, noted: Noted::default(), inner, request, shared });
                }
                let mut decision = Decision::empty();
                let ask = shared.limiter.ask(&demands, &mut decision);
                let noted = Noted::of(&demands, &shared);
                let request = Request::from_parts(parts, body);
                let Some(ask) = ask else {
                    return ResponseFuture::decided(&decision, &noted, &mut self.inner, request, &shared);
                };
                let inner = take_ready(&mut self.inner);
                let shared = Arc::clone(&shared);
                ResponseFuture::waiting(Waiting { ask: Asking::Store(ask), noted, inner, request, shared })
            }
            Err(no_key) => {
                if no_key == NoKey::PeerUnknown {
                    warn::PEER_UNKNOWN.tell_error(refuse::PEER_UNKNOWN);
                }
                ResponseFuture::refused(refuse::without_key(&no_key, &parts))
            }
        }
    }
}

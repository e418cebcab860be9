use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{
    body::{MessageBody, StreamedBody},
    future::MessageLimitFuture,
    layer::Shared,
    link::Link,
};
use crate::layer::{grpc, key::NoKey, refuse, warn};

/// Asks the rules of a [`MessageLimitLayer`](super::MessageLimitLayer) of each message that comes in.
#[derive(Clone, Debug)]
pub struct MessageLimit<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> MessageLimit<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }
}

impl<S, B, R> Service<Request<B>> for MessageLimit<S>
where
    S: Service<Request<MessageBody<B>>, Response = Response<R>>,
{
    type Response = Response<StreamedBody<R>>;
    type Error = S::Error; // a refusal is a response; we add no error of our own
    type Future = MessageLimitFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx) // back-pressure is the inner service's to give
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let Some(content_type) = grpc::content_type(&parts) else {
            let request = Request::from_parts(parts, MessageBody::free(body));
            return MessageLimitFuture::free(self.inner.call(request));
        };
        match self.shared.metered(&parts) {
            Ok(None) => {
                let request = Request::from_parts(parts, MessageBody::free(body));
                MessageLimitFuture::free(self.inner.call(request))
            }
            Ok(Some(metered)) => {
                let link = Link::default();
                let body = MessageBody::metered(body, metered, content_type, link.clone());
                MessageLimitFuture::metered(self.inner.call(Request::from_parts(parts, body)), link)
            }
            Err(no_key) => {
                if no_key == NoKey::PeerUnknown {
                    warn::PEER_UNKNOWN.tell_error(refuse::PEER_UNKNOWN);
                }
                MessageLimitFuture::refused(refuse::without_key(&no_key, &parts))
            }
        }
    }
}

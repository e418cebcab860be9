use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response, request::Parts};
use http_body::Body;
use tokio::{sync::oneshot, time};
use tower_service::Service;
use tracing::Instrument;

use super::{
    RequestBody, ResponseFuture, TeedBody,
    answer::{self, Refused},
    body::{BoxError, Whole},
    key,
    layer::Shared,
    print,
    unary::is_one_message,
    work::Work,
};
use crate::{
    key::{Key, KeyWriter, Secrets},
    layer::{RefusalBody, ResponseBody, grpc, key::NoKey, refuse, take_ready, warn},
};

/// Has requests with an `Idempotency-Key` executed once by the inner service; see the [module](super).
#[derive(Clone, Debug)]
pub struct Idempotency<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> Idempotency<S> {
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

    /// Returns the inner service alone.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<TeedBody<R>>>;
    type Error = S::Error; // a refusal is a response; we add no error of our own
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx) // back-pressure is the inner service's to give
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let name = match self.shared.name(&parts) {
            Ok(Some(name)) => name,
            Ok(None) => {
                let request = Request::from_parts(parts, RequestBody::as_it_came(body));
                return ResponseFuture::passing(self.inner.call(request));
            }
            Err(refusal) => return ResponseFuture::refused((*refusal).map(ResponseBody::refusal)),
        };
        let inner = take_ready(&mut self.inner);
        ResponseFuture::keyed(once(inner, parts, body, name, Arc::clone(&self.shared)))
    }
}

/// Reads a request, has it executed once in a task of its own, and waits for the response.
///
/// Dropped while it reads, nothing has happened; dropped later, the execution goes on.
async fn once<S, B, R>(
    inner: S,
    parts: Parts,
    body: B,
    name: Key,
    shared: Arc<Shared>,
) -> Result<Response<ResponseBody<TeedBody<R>>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let described_by = shared.described_by.clone();
    let refuse =
        |refused: Refused, parts: &Parts| refused.answer(parts, described_by.as_deref()).map(ResponseBody::refusal);
    let whole = match read(body, shared.most_request, shared.read_timeout).await {
        Ok(whole) => whole,
        Err(refused) => return Ok(refuse(refused, &parts)),
    };
    let is_grpc = grpc::content_type(&parts).is_some();
    if is_grpc && !is_one_message(&parts.headers, &whole.data) {
        return Ok(refuse(Refused::NotUnary, &parts));
    }
    let asked = Arc::new(answer::asked(&parts));
    let print = shared.print(&parts, &whole.data);
    let at_work = shared.working.begin();
    let (reply, replied) = oneshot::channel();
    let request = Request::from_parts(parts, RequestBody::read(whole));
    let work = Work { name, print, is_grpc, asked: Arc::clone(&asked), shared };
    tokio::spawn(
        async move {
            work.run(inner, request, reply).await;
            drop(at_work);
        }
        .in_current_span(),
    );
    // Without a reply the task was broken off, as when the runtime ends.
    replied.await.unwrap_or_else(|_| Ok(refuse(Refused::Failed, &asked)))
}

impl Shared {
    /// Names what is to be executed once, or nothing if the request is to pass.
    fn name(&self, request: &Parts) -> Result<Option<Key>, Box<Response<RefusalBody>>> {
        if !self.applies(request) {
            return Ok(None);
        }
        let refuse = |refused: Refused| Box::new(refused.answer(request, self.described_by.as_deref()));
        let key = match key::read(&request.headers, self.lenient) {
            Ok(Some(key)) => key,
            Ok(None) if self.required => return Err(refuse(Refused::Missing)),
            Ok(None) => return Ok(None),
            Err(what) => return Err(refuse(Refused::Wrong(what))),
        };
        let mut scope = Key::EMPTY;
        let mut writer = KeyWriter::new(&self.secrets, &mut scope);
        match self.scope.extract(request, &mut writer) {
            Ok(()) => writer.finish(),
            Err(NoKey::Skip) => return Ok(None),
            Err(no_key) => {
                if no_key == NoKey::PeerUnknown {
                    warn::PEER_UNKNOWN.tell_error(refuse::PEER_UNKNOWN);
                }
                return Err(Box::new(refuse::without_key(&no_key, request)));
            }
        }
        let route = if self.key_per_route { print::target(request) } else { "" };
        let method = if self.key_per_route { request.method.as_str() } else { "" };
        // Nobody is to read the key in the store: who knows it can ask for the response.
        let mut secret = Vec::with_capacity(scope.as_bytes().len() + key.len() + route.len() + 32);
        for part in [scope.as_bytes(), key.as_bytes(), method.as_bytes(), route.as_bytes()] {
            secret.extend((part.len() as u64).to_be_bytes());
            secret.extend_from_slice(part);
        }
        // If that the hash is unkeyed matters, the scope has said so.
        let secrets = if self.secrets.is_keyed() { &self.secrets } else { &Secrets::UNKEYED };
        let mut name = Key::EMPTY;
        let mut writer = KeyWriter::new(secrets, &mut name);
        writer.text("idempotency");
        writer.secret(secret);
        writer.finish();
        Ok(Some(name))
    }
}

/// Reads a body that has `most` bytes at most.
async fn read<B: Body<Data = Bytes>>(body: B, most: usize, longest: Duration) -> Result<Whole, Refused> {
    if body.size_hint().lower() > most as u64 {
        return Err(Refused::TooLong(most));
    }
    let all = async {
        let mut body = pin!(body);
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        let mut trailers: Option<HeaderMap> = None;
        while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            match frame.map_err(|_| Refused::Broken)?.into_data() {
                Ok(data) if first.len() + rest.len() + data.len() > most => return Err(Refused::TooLong(most)),
                Ok(data) if first.is_empty() => first = data,
                Ok(data) => rest.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        let data = if rest.is_empty() { first } else { [&first[..], &rest].concat().into() };
        Ok(Whole { data, trailers })
    };
    time::timeout(longest, all).await.unwrap_or(Err(Refused::TooSlow))
}

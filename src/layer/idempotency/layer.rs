use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Method, StatusCode, request::Parts};
use tokio::{sync::watch, time};
use tower_layer::Layer;

use super::{Idempotency, IdempotencyOutcome, print};
use crate::{
    error::Error,
    key::Secrets,
    layer::{KeyExtractor, grpc},
    lease::{OnUnknown, Once, RecordStore},
};

/// Has requests with an `Idempotency-Key` executed once; see the [module](super) for examples.
///
/// Clones, and all services made by them, share what they keep.
#[derive(Clone, Debug)]
#[must_use]
pub struct IdempotencyLayer {
    shared: Arc<Shared>,
}

/// What all services of a layer go by.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) store: Arc<dyn RecordStore>,
    pub(super) scope: Arc<dyn KeyExtractor>,
    pub(super) secrets: Secrets,
    methods: Vec<Method>,
    grpc_methods: Vec<String>,
    pub(super) required: bool,
    pub(super) lenient: bool,
    pub(super) key_per_route: bool,
    pub(super) most_request: usize,
    pub(super) most_response: usize,
    pub(super) read_timeout: Duration,
    pub(super) lease: Duration,
    pub(super) retain: Duration,
    wait: Duration,
    pub(super) on_unknown: OnUnknown,
    pub(super) fail_open: bool,
    pub(super) give_back: bool,
    pub(super) cookies: bool,
    stores: Stores,
    pub(super) replayed: HeaderName,
    pub(super) described_by: Option<Arc<str>>,
    pub(super) print: Option<Print>,
    pub(super) working: Arc<Working>,
}

/// Which responses are kept.
#[derive(Clone, Copy, Debug)]
enum Stores {
    /// All but those of statuses by which services say that they did nothing.
    Executed,
    /// All but those, and but all server errors.
    NoServerErrors,
    All,
}

/// A fingerprint of a request, by a function of the user's own.
#[derive(Clone)]
pub(super) struct Print(pub(super) Arc<PrintFn>);

type PrintFn = dyn Fn(&Parts, &Bytes) -> Vec<u8> + Send + Sync;

impl IdempotencyLayer {
    /// Keeps requests and what they came to in a store, for POST and PATCH.
    ///
    /// `scope` tells whose keys they are: two clients that choose the same key are strangers, and neither is given the other's
    /// response. [`header("authorization")`](crate::layer::header()) is a good one, or what authentication left in the
    /// [extensions](crate::layer::extension); [`global()`](crate::layer::global) is for services with one client. Requests
    /// without a value share a scope, unless the extractor says otherwise; one that it skips passes as if it had no key.
    ///
    /// # Panics
    ///
    /// If the scope is set up wrongly.
    pub fn new<S: RecordStore + Clone>(store: &S, scope: impl KeyExtractor) -> Self {
        if let Err(error) = scope.check() {
            panic!("{error}");
        }
        let shared = Shared {
            store: Arc::new(store.clone()),
            scope: Arc::new(scope),
            secrets: Secrets::unkeyed_for(store.is_shared()),
            methods: vec![Method::POST, Method::PATCH],
            grpc_methods: Vec::new(),
            required: false,
            lenient: false,
            key_per_route: false,
            most_request: MOST_BYTES,
            most_response: MOST_BYTES,
            read_timeout: READ_TIMEOUT,
            lease: LEASE,
            retain: RETAIN,
            wait: Duration::ZERO,
            on_unknown: OnUnknown::Park,
            fail_open: false,
            give_back: false,
            cookies: false,
            stores: Stores::Executed,
            replayed: HeaderName::from_static("idempotency-replayed"),
            described_by: None,
            print: None,
            working: Arc::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Does as the draft's recommendations say: a key is required, and is a string in quotes; who repeats a request too early is
    /// told so (409).
    pub fn draft(self) -> Self {
        self.with(|shared| (shared.required, shared.lenient, shared.wait) = (true, false, Duration::ZERO))
    }

    /// Does as Stripe's interface does: a key is optional, and may be a bare token; each response is kept once the request was
    /// executed, server errors too; a replay is marked by `Idempotent-Replayed`.
    pub fn stripe(self) -> Self {
        self.with(|shared| {
            (shared.required, shared.lenient) = (false, true);
            shared.stores = Stores::All;
            shared.replayed = HeaderName::from_static("idempotent-replayed");
        })
    }

    /// Keeps no server error (5xx): a request that came to one may be tried again with its key, and is executed again.
    ///
    /// That is right only for handlers that have done nothing when they fail.
    pub fn retry_server_errors(self) -> Self {
        self.with(|shared| shared.stores = Stores::NoServerErrors)
    }

    /// Refuses requests without a key (400); by default they pass.
    pub fn required(self) -> Self {
        self.with(|shared| shared.required = true)
    }

    /// Takes a bare token for a key too: `Idempotency-Key: 8e03978e`, as many clients send it.
    pub fn lenient(self) -> Self {
        self.with(|shared| shared.lenient = true)
    }

    /// Sets to which methods it applies; POST and PATCH by default. Others pass.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|shared| shared.methods = methods.into_iter().collect())
    }

    /// Applies to gRPC methods too, by path, such as `/shop.Payments/Pay`: unary ones, with the key in the metadata as
    /// `idempotency-key`. Other gRPC requests pass.
    pub fn grpc_methods<P: Into<String>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        self.with(|shared| shared.grpc_methods = paths.into_iter().map(Into::into).collect())
    }

    /// Keeps the keys of each method and path apart; by default a key that comes back on another route is refused (422).
    pub fn key_per_route(self) -> Self {
        self.with(|shared| shared.key_per_route = true)
    }

    /// Tells requests apart by a function of your own, which may put JSON in one form or leave fields out.
    ///
    /// By default it is the SHA-256 of method, path and query, content type and encoding, and body.
    pub fn fingerprint(self, print: impl Fn(&Parts, &Bytes) -> Vec<u8> + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.print = Some(Print(Arc::new(print))))
    }

    /// Sets how many bytes a request's body may have, of one with a key (413 beyond); 1 MiB by default.
    pub fn max_request_body(self, bytes: usize) -> Self {
        self.with(|shared| shared.most_request = bytes)
    }

    /// Sets how many bytes of a response's body are kept; 1 MiB by default. A longer one is passed on whole and not kept.
    pub fn max_response_body(self, bytes: usize) -> Self {
        self.with(|shared| shared.most_response = bytes)
    }

    /// Sets how long a request's body may take to arrive (408 beyond); 30 seconds by default.
    pub fn read_timeout(self, longest: Duration) -> Self {
        self.with(|shared| shared.read_timeout = longest)
    }

    /// Sets how long an execution's claim lasts unless it is renewed, as it is while the handler runs; 30 seconds by default.
    ///
    /// So long after a crash its key is told to be in flight.
    ///
    /// # Panics
    ///
    /// If it is not from 20 ms to a hundred years.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|shared| shared.lease = lease).checked()
    }

    /// Sets how long a response is kept, and that an outcome is unknown; 24 hours by default. After that a key is new again.
    ///
    /// # Panics
    ///
    /// If it is not from 20 ms to a hundred years.
    pub fn retain(self, retain: Duration) -> Self {
        self.with(|shared| shared.retain = retain).checked()
    }

    /// Has a request whose key is in flight wait for the response, for so long (409 beyond); by default not at all.
    pub fn wait(self, longest: Duration) -> Self {
        self.with(|shared| shared.wait = longest)
    }

    /// Executes a request again when an attempt at it broke off, under a greater fence: at least once in the place of at most
    /// once. By default such a key is parked (409).
    ///
    /// The handler finds the fence in [`IdempotentAttempt`](super::IdempotentAttempt).
    pub fn takeover(self) -> Self {
        self.with(|shared| shared.on_unknown = OnUnknown::TakeOver)
    }

    /// Executes requests without any protection while the store does not answer; by default they are refused (503).
    pub fn fail_open(self) -> Self {
        self.with(|shared| shared.fail_open = true)
    }

    /// Gives back what a rate limit further out has charged for a request that is answered from the store. That limit has to
    /// [expose its decision](crate::RateLimitLayer::expose_decision).
    pub fn uncharge_replays(self) -> Self {
        self.with(|shared| shared.give_back = true)
    }

    /// Keeps `Set-Cookie` too. By default cookies are given once: a copy of a session is in the store else.
    pub fn store_cookies(self) -> Self {
        self.with(|shared| shared.cookies = true)
    }

    /// Names the field by which a response from the store is known; `Idempotency-Replayed` by default.
    pub fn replay_header(self, name: HeaderName) -> Self {
        self.with(|shared| shared.replayed = name)
    }

    /// Names the page where clients read how keys are to be used, as type of problems and in `Link`.
    pub fn described_by(self, url: impl Into<Arc<str>>) -> Self {
        self.with(|shared| shared.described_by = Some(url.into()))
    }

    /// Hashes keys and scopes with a secret, the same in all processes, so that nobody who reads the store can try out guesses.
    pub fn key_secret(self, secret: impl AsRef<[u8]>) -> Self {
        self.with(|shared| shared.secrets.key_by(secret.as_ref()))
    }

    /// Waits until all requests have been executed and stored whose clients may be gone, until `deadline` has passed at most.
    ///
    /// Call it after the server has stopped. Returns false if something was still under way; its keys are parked when the
    /// process ends.
    ///
    /// # Cancel safety
    ///
    /// It only waits.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        let mut count = self.shared.working.0.subscribe();
        let done = time::timeout(deadline, count.wait_for(|count| *count == 0)).await;
        matches!(done, Ok(Ok(_)))
    }

    fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.shared);
        change(&mut shared);
        Self { shared: Arc::new(shared) }
    }

    fn checked(self) -> Self {
        let Shared { lease, retain, .. } = *self.shared;
        let bounds = SHORTEST..=LONGEST;
        assert!(
            bounds.contains(&lease) && bounds.contains(&retain),
            "{}",
            Error::invalid(format!(
                "idempotency with a lease of {lease:?}, kept for {retain:?}: both must be from {SHORTEST:?} to {LONGEST:?}"
            ))
        );
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency::new(inner, Arc::clone(&self.shared))
    }
}

impl Shared {
    /// Returns true if a request is one to which this applies.
    pub(super) fn applies(&self, request: &Parts) -> bool {
        if !self.methods.contains(&request.method) {
            return false;
        }
        if grpc::content_type(request).is_some() {
            return self.grpc_methods.iter().any(|path| path == request.uri.path());
        }
        true
    }

    /// Has things done once, as this layer is set.
    pub(super) fn once(&self) -> Once {
        Once::new(&self.store, "idempotency", self.retain).lease(self.lease).wait(self.wait)
    }

    /// Returns the fingerprint of a request: what all that come with its key must have in common.
    pub(super) fn print(&self, request: &Parts, body: &Bytes) -> Vec<u8> {
        match &self.print {
            Some(print) => print.0(request, body),
            None => print::of(request, body),
        }
    }

    /// Says what becomes of an executed request's response, by its status.
    pub(super) fn outcome(&self, status: StatusCode) -> IdempotencyOutcome {
        // By these a service says that it did nothing: who it does not know, what it had no time for.
        let did_nothing = matches!(status.as_u16(), 401 | 403 | 408 | 425 | 429 | 502 | 503 | 504);
        let releases = match self.stores {
            Stores::All => false,
            Stores::Executed => did_nothing,
            Stores::NoServerErrors => did_nothing || status.is_server_error(),
        };
        if releases { IdempotencyOutcome::Release } else { IdempotencyOutcome::Store }
    }

    /// Says what becomes of an executed call's response, by its status of gRPC.
    ///
    /// 4 deadline exceeded, 7 permission denied, 8 resource exhausted, 14 unavailable, 16 unauthenticated: it did nothing.
    /// Where server errors are not kept, neither are 2 unknown, 13 internal and 15 data loss.
    pub(super) fn grpc_outcome(&self, status: u16) -> IdempotencyOutcome {
        let releases = match self.stores {
            Stores::All => false,
            Stores::Executed => matches!(status, 4 | 7 | 8 | 14 | 16),
            Stores::NoServerErrors => matches!(status, 2 | 4 | 7 | 8 | 13..=16),
        };
        if releases { IdempotencyOutcome::Release } else { IdempotencyOutcome::Store }
    }
}

/// How many requests are being executed.
#[derive(Debug)]
pub(super) struct Working(watch::Sender<usize>);

impl Default for Working {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Working {
    /// Counts one more until what is returned is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> AtWork {
        self.0.send_modify(|count| *count += 1);
        AtWork(Arc::clone(self))
    }
}

/// A request that is being executed.
#[derive(Debug)]
pub(super) struct AtWork(Arc<Working>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

impl fmt::Debug for Print {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Print")
    }
}

/// More than forms and JSON mostly have, and little enough to be held for each request in flight.
const MOST_BYTES: usize = 1 << 20;
/// As long as proxies in front mostly wait.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Long enough for a pause of some seconds, short enough to wait for after a crash.
const LEASE: Duration = Duration::from_secs(30);
/// As long as payment services keep their keys.
const RETAIN: Duration = Duration::from_secs(86_400);

const SHORTEST: Duration = Duration::from_millis(20);
/// A hundred years.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

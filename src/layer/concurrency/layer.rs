use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header, request::Parts};
use tower_layer::Layer;

use super::ConcurrencyLimit;
use crate::{
    error::Error,
    key::{Key, KeyWriter, Secrets},
    layer::{
        KeyExtractor, RefusalBody, grpc,
        headers::write_concurrency,
        key::{NoKey, global},
        refuse::{Problem, problem},
        text::seconds_up,
    },
    lease::{LeaseStore, Permit, Semaphore},
    metrics,
};

/// Lets so many requests at a time be served for each key; see the [module](super) for an example.
///
/// Clones, all services made by them, and all processes that use the same store and name share the permits.
#[derive(Clone, Debug)]
#[must_use]
pub struct ConcurrencyLimitLayer {
    shared: Arc<Shared>,
}

/// What all services of a layer go by.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    store: Arc<dyn LeaseStore>,
    name: Arc<str>,
    most: u32,
    key: Arc<dyn KeyExtractor>,
    secrets: Secrets,
    ttl: Duration,
    wait: Duration,
    most_waiting: usize,
    waiting: Arc<AtomicUsize>,
    status: StatusCode,
    retry_after: Duration,
    fail_open: bool,
}

/// Why a request is not served.
pub(super) enum Refused {
    /// All permits are held.
    Full,
    /// Nobody knows.
    Unavailable(Error),
}

impl ConcurrencyLimitLayer {
    /// Lets `most` requests at a time be served, 1 to 100,000. The name tells limits apart, and is told to clients.
    ///
    /// # Panics
    ///
    /// If the number is out of bounds, the name is not 1 to 64 of `A-Z a-z 0-9 . _ -`, or the store cannot count permits.
    /// [`try_new`](Self::try_new) tells the same as an error.
    pub fn new<S: LeaseStore + Clone>(store: &S, name: &str, most: u32) -> Self {
        match Self::try_new(store, name, most) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Lets `most` requests at a time be served.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) panics.
    pub fn try_new<S: LeaseStore + Clone>(store: &S, name: &str, most: u32) -> Result<Self, Error> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(is_plain) {
            let name = name.escape_debug();
            return Err(Error::invalid(format!("concurrency limit `{name}`: write 1 to 64 of A-Z a-z 0-9 . _ -")));
        }
        drop(Semaphore::new(store, name, most)?);
        let shared = Shared {
            store: Arc::new(store.clone()),
            name: name.into(),
            most,
            key: Arc::new(global()),
            secrets: Secrets::unkeyed_for(store.is_shared()),
            ttl: TTL,
            wait: Duration::ZERO,
            most_waiting: 0,
            waiting: Arc::default(),
            status: StatusCode::SERVICE_UNAVAILABLE,
            retry_after: RETRY_AFTER,
            fail_open: false,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Counts for each key; by default all requests count together.
    ///
    /// # Panics
    ///
    /// If the extractor is set up wrongly.
    pub fn by(self, key: impl KeyExtractor) -> Self {
        if let Err(error) = key.check() {
            panic!("{error}");
        }
        self.with(|shared| shared.key = Arc::new(key))
    }

    /// Has requests wait for a permit, for so long and so many of them at a time in this process; others are refused at once.
    /// By default all are.
    pub fn wait(self, longest: Duration, most_waiting: usize) -> Self {
        self.with(|shared| (shared.wait, shared.most_waiting) = (longest, most_waiting))
    }

    /// Sets how long a permit lasts unless it is renewed, as it is while its request is served; 30 seconds by default.
    ///
    /// So long after a crash its permits come back.
    ///
    /// # Panics
    ///
    /// If it is not from 20 ms to a day in whole milliseconds.
    pub fn lease(self, ttl: Duration) -> Self {
        let bounds = Duration::from_millis(20)..=Duration::from_secs(86_400);
        let is_whole = ttl.subsec_nanos().is_multiple_of(1_000_000);
        assert!(bounds.contains(&ttl) && is_whole, "a lease of {ttl:?}: write 20 ms to a day in whole milliseconds");
        self.with(|shared| shared.ttl = ttl)
    }

    /// Refuses with 429: it is the client that has too many in flight. By default it is 503: the limit is what the server
    /// can do. gRPC requests get status 8 in both cases.
    pub fn too_many_requests(self) -> Self {
        self.with(|shared| shared.status = StatusCode::TOO_MANY_REQUESTS)
    }

    /// Sets what `Retry-After` says to who is refused, in whole seconds; 1 by default. Nobody knows when a permit is free.
    pub fn retry_after(self, wait: Duration) -> Self {
        self.with(|shared| shared.retry_after = wait)
    }

    /// Serves requests without a limit while the store does not answer; by default they are refused (503, gRPC status 14).
    pub fn fail_open(self) -> Self {
        self.with(|shared| shared.fail_open = true)
    }

    /// Hashes keys that may be secrets with a secret, the same in all processes; see
    /// [`Limiter::key_secret`](crate::Limiter::key_secret).
    pub fn key_secret(self, secret: impl AsRef<[u8]>) -> Self {
        self.with(|shared| shared.secrets.key_by(secret.as_ref()))
    }

    fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.shared);
        change(&mut shared);
        Self { shared: Arc::new(shared) }
    }
}

impl<S> Layer<S> for ConcurrencyLimitLayer {
    type Service = ConcurrencyLimit<S>;

    fn layer(&self, inner: S) -> ConcurrencyLimit<S> {
        ConcurrencyLimit::new(inner, Arc::clone(&self.shared))
    }
}

impl Shared {
    /// Names whose permits a request needs.
    pub(super) fn key(&self, request: &Parts) -> Result<Key, NoKey> {
        let mut key = Key::EMPTY;
        let mut writer = KeyWriter::new(&self.secrets, &mut key);
        writer.text("concurrency");
        writer.text(&*self.name);
        self.key.extract(request, &mut writer)?;
        writer.finish();
        Ok(key)
    }

    /// Acquires a permit, at once or in time; nothing if the store does not answer and that is to be no obstacle.
    pub(super) async fn acquire(&self, key: Key) -> Result<Option<Permit>, Refused> {
        let semaphore = Semaphore::new(&self.store, key, self.most).map_err(Refused::Unavailable)?;
        let semaphore = semaphore.ttl(self.ttl).wait(self.wait);
        let mut acquired = semaphore.try_acquire().await;
        if matches!(acquired, Ok(None)) {
            let _place = self.place().ok_or(Refused::Full)?;
            acquired = match semaphore.acquire().await {
                Err(error) if error.is_wait_too_long() => Ok(None),
                other => other.map(Some),
            };
        }
        match acquired {
            Ok(Some(permit)) => Ok(Some(permit)),
            Ok(None) => Err(Refused::Full),
            Err(error) if self.fail_open => {
                tracing::warn!(%error, "a request is served without a permit");
                Ok(None)
            }
            Err(error) => Err(Refused::Unavailable(error)),
        }
    }

    /// Counts what became of a request, for operators.
    pub(super) fn count(&self, permit: &Result<Option<Permit>, Refused>) {
        let outcome = match permit {
            Ok(Some(_)) => "admitted",
            Ok(None) => "unchecked",
            Err(Refused::Full) => "refused",
            Err(Refused::Unavailable(_)) => "unavailable",
        };
        metrics::concurrency(&self.name, outcome);
    }

    /// Takes a place among those who wait, if there is one.
    fn place(&self) -> Option<Place> {
        let more = |waiting| (waiting < self.most_waiting).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place(Arc::clone(&self.waiting)))
    }

    /// Answers a request that is not served.
    pub(super) fn refuse(&self, refused: &Refused, request: &Parts) -> Response<RefusalBody> {
        let Self { name, most, .. } = self;
        let full;
        let answer = match refused {
            Refused::Full => {
                full = format!("policy {name} allows {most} requests at a time; try again later");
                let (kind, title) = if self.status == StatusCode::TOO_MANY_REQUESTS {
                    ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Quota exceeded")
                } else {
                    (
                        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                        "Temporarily reduced capacity",
                    )
                };
                Problem { status: self.status, code: RESOURCE_EXHAUSTED, kind, title, detail: &full }
            }
            Refused::Unavailable(error) => {
                tracing::warn!(%error, "a concurrency limit cannot be checked");
                Problem {
                    status: StatusCode::SERVICE_UNAVAILABLE,
                    code: grpc::UNAVAILABLE,
                    kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                    title: "Temporarily reduced capacity",
                    detail: "the limit of requests at a time cannot be checked at present",
                }
            }
        };
        let mut response = problem(request, &answer);
        let headers = response.headers_mut();
        if grpc::content_type(request).is_none() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds_up(self.retry_after).max(1)));
        } else {
            let ms = i32::try_from(self.retry_after.as_millis()).unwrap_or(i32::MAX).max(1);
            headers.insert("grpc-retry-pushback-ms", HeaderValue::from(ms));
        }
        if matches!(refused, Refused::Full) {
            self.write_fields(headers, Some(0));
        }
        response
    }

    /// Tells the limit, and how much of it was left, if that is known.
    pub(super) fn write_fields(&self, headers: &mut HeaderMap, free: Option<u32>) {
        write_concurrency(headers, &self.name, self.most, free);
    }
}

/// A place among those who wait.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

const RESOURCE_EXHAUSTED: u8 = 8;
/// Long enough for a pause of some seconds, short enough to wait for after a crash.
const TTL: Duration = Duration::from_secs(30);
const RETRY_AFTER: Duration = Duration::from_secs(1);

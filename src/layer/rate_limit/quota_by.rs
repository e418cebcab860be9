use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use foldhash::fast::RandomState;
use tokio::time::Instant;

use crate::{key::Key, limit::Quota};

/// What goes wrong when a quota is looked up; only the log sees it.
pub type LookupError = Box<dyn std::error::Error + Send + Sync>;

/// Looks a key's quota up, such as a plan in a database; made by [`quota_by`].
#[derive(Clone)]
#[must_use]
pub struct QuotaBy {
    find: Arc<Find>,
    cache: Option<Arc<Cache>>,
}

type Finding = Pin<Box<dyn Future<Output = Result<Quota, LookupError>> + Send>>;
type Find = dyn Fn(Key) -> Finding + Send + Sync;

/// Looks the quota of each key up by an asynchronous function.
///
/// A request waits for it, at most as long as the limiter's [deadline](crate::Limiter::deadline). If it fails or takes
/// longer, the rule's [`OnError`](crate::OnError) decides: `Local` goes by the quota that the rule was made with, `Allow`
/// leaves the rule out, `Deny` refuses with 503. Only rules that have this allocate for it.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, Quota, layer::{Rule, header, quota_by}};
///
/// async fn plan(tenant: Key) -> Result<Quota, tollgate::layer::LookupError> {
///     // Ask the database.
///     Ok(if tenant.as_str() == "large" { Quota::per_minute(10_000) } else { Quota::per_minute(100) })
/// }
///
/// let rule = Rule::new("tenant", Quota::per_minute(100))
///     .by(header("x-tenant"))
///     .quota_by(quota_by(plan).cached(Duration::from_secs(60), 10_000));
/// # let _ = rule;
/// ```
pub fn quota_by<F>(find: impl Fn(Key) -> F + Send + Sync + 'static) -> QuotaBy
where
    F: Future<Output = Result<Quota, LookupError>> + Send + 'static,
{
    QuotaBy { find: Arc::new(move |key| Box::pin(find(key))), cache: None }
}

impl QuotaBy {
    /// Remembers each key's quota for `ttl`, and `capacity` keys at most; what failed is not remembered.
    pub fn cached(mut self, ttl: Duration, capacity: usize) -> Self {
        self.cache = Some(Arc::new(Cache { ttl, capacity, generations: Mutex::default() }));
        self
    }

    /// Finds a quota, within a time; nothing if that fails.
    pub(super) async fn find(&self, key: Key, deadline: Duration) -> Option<Quota> {
        if let Some(quota) = self.cache.as_ref().and_then(|cache| cache.recall(&key)) {
            return Some(quota);
        }
        let found = match tokio::time::timeout(deadline, (self.find)(key)).await {
            Ok(Ok(quota)) => quota,
            Ok(Err(error)) => {
                tracing::warn!(%error, "a quota cannot be looked up");
                return None;
            }
            Err(_) => {
                tracing::warn!(?deadline, "a quota is not looked up in time");
                return None;
            }
        };
        if let Some(cache) = &self.cache {
            cache.remember(key, found);
        }
        Some(found)
    }
}

/// Two generations of what was found; when the younger is half of what is allowed, the older goes.
#[derive(Debug)]
struct Cache {
    ttl: Duration,
    capacity: usize,
    generations: Mutex<[Generation; 2]>,
}

type Generation = HashMap<Key, (Quota, Instant), RandomState>;

impl Cache {
    fn recall(&self, key: &Key) -> Option<Quota> {
        let generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let (quota, at) = generations.iter().find_map(|generation| generation.get(key))?;
        (at.elapsed() < self.ttl).then_some(*quota)
    }

    fn remember(&self, key: Key, quota: Quota) {
        let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let [young, old] = &mut *generations;
        if young.len() >= self.capacity / 2 {
            *old = std::mem::take(young);
        }
        if self.capacity > 1 {
            young.insert(key, (quota, Instant::now()));
        }
    }
}

impl fmt::Debug for QuotaBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaBy").field("cached", &self.cache.is_some()).finish_non_exhaustive()
    }
}

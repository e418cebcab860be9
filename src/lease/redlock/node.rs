//! Which servers count: those that have been the same for so long that no lease can have been forgotten.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::Inner;
use crate::{
    error::Error,
    lease::{Fence, LeaseId, LeaseStore, Reply},
};

/// One of the servers of a [`Redlock`](super::Redlock).
///
/// `Redis` is one; to bring your own, implement this beside [`LeaseStore`].
pub trait Node: LeaseStore {
    /// Raises the fences of a lease that the token still holds here; returns false, and does nothing, if it does not.
    fn raise(&self, id: &LeaseId, fences: &[Fence]) -> Reply<bool>;

    /// Tells which run of the server is being spoken to.
    ///
    /// # Errors
    ///
    /// If the server cannot be asked; [`Error::is_invalid`] if it may not.
    fn incarnation(&self) -> Reply<Incarnation>;
}

/// A run of a server: it begins with nothing that the one before had kept in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incarnation {
    /// Another one for each start.
    pub run: String,
    /// For how long it has run.
    pub up_for: Duration,
    /// Whether it takes writes by itself, rather than following another one.
    pub is_master: bool,
}

impl Incarnation {
    /// Describes a run of a server.
    pub fn new(run: impl Into<String>, up_for: Duration, is_master: bool) -> Self {
        Self { run: run.into(), up_for, is_master }
    }
}

/// A node, and what is known of it.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) node: Arc<dyn Node>,
    seen: Arc<Mutex<Option<Seen>>>,
}

#[derive(Clone, Debug)]
struct Seen {
    run: String,
    was_master: bool,
    /// Since when it has been the same, by our clock.
    since: Option<Duration>,
}

impl Watched {
    /// Knows nothing of a node as yet.
    pub(super) fn new(node: Arc<dyn Node>) -> Self {
        Self { node, seen: Arc::default() }
    }

    /// Asks for something that counts only if it was the same run before and after, and one that counts.
    pub(super) async fn counted<T>(
        &self,
        inner: &Inner,
        what: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let before = self.counts(inner).await?;
        let answer = what.await?;
        let after = self.counts(inner).await?;
        if before == after {
            Ok(answer)
        } else {
            Err(Error::store("a server of the redlock has started anew meanwhile"))
        }
    }

    /// Fails if the run of the server that is being spoken to does not count; returns which it is.
    async fn counts(&self, inner: &Inner) -> Result<String, Error> {
        let Incarnation { run, up_for, is_master } = self.node.incarnation().await?;
        if !is_master {
            self.note(&run, false);
            return Err(Error::store("a server of the redlock follows another one"));
        }
        let since = self.note(&run, true);
        if inner.trusts_fresh {
            return Ok(run);
        }
        let least = inner.max_lease + Duration::from_secs(1);
        let known_for = since.map_or(Duration::MAX, |since| self.node.clock().now().saturating_sub(since));
        if up_for < least || known_for < least {
            return Err(Error::store(format!(
                "a server of the redlock is not counted until it has been the same for {least:?}"
            )));
        }
        Ok(run)
    }

    /// Notes which run it is, and returns since when it is not another one, if it was one.
    fn note(&self, run: &str, is_master: bool) -> Option<Duration> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match &*seen {
            None => None,
            Some(seen) if seen.run == run && seen.was_master == is_master => seen.since,
            Some(_) => Some(self.node.clock().now()),
        };
        *seen = Some(Seen { run: run.to_owned(), was_master: is_master, since });
        since
    }
}

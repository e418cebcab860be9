use std::{fmt, sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{
    Fence, LeaseId, LeaseStore, Terms,
    hold::{Hold, Lost},
    renew::{call_deadline, in_time},
};
use crate::{error::Error, key::Key};

/// A lease as its holder sees it: a cheap clone to ask, and to hand to what works under it.
///
/// It says nothing but what this process knows by itself. It does not keep the lease: that is what the guard, term or
/// permit does that it comes from.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Memory, lease::Lock};
///
/// let guard = Lock::new(&Memory::new(), "order:7").ttl(Duration::from_secs(10)).acquire().await?;
/// let lease = guard.lease();
/// assert!(lease.is_held() && lease.remaining() > Duration::from_secs(9));
/// guard.release().await?;
/// assert!(lease.check().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lease(pub(super) Arc<Held>);

/// What holds a lease.
pub(super) struct Held {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) id: LeaseId,
    pub(super) terms: Terms,
    pub(super) fences: Vec<Fence>,
    /// How many permits were left beside this one, if it is one.
    pub(super) free: u32,
    pub(super) hold: Hold,
}

impl Lease {
    /// Returns the fence of the name, or of the first of several; a permit of a semaphore has none.
    pub fn fence(&self) -> Option<Fence> {
        self.0.fences.first().copied()
    }

    /// Returns the names that are held, each with its fence.
    pub fn fences(&self) -> impl Iterator<Item = (&Key, Fence)> {
        self.0.id.names().iter().zip(self.0.fences.iter().copied())
    }

    /// Returns the time that is left if nothing extends it; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        self.0.hold.left().unwrap_or_default()
    }

    /// Returns true if the lease is held, by the local clock.
    pub fn is_held(&self) -> bool {
        self.0.hold.left().is_ok()
    }

    /// Fails if the lease is lost: to ask right before something that cannot be taken back.
    ///
    /// Between this and what follows it the process may still be stopped for any time. What must never happen twice
    /// needs the fence as well.
    ///
    /// # Errors
    ///
    /// If it is lost ([`Error::is_lost`]).
    pub fn check(&self) -> Result<(), Error> {
        self.0.hold.left().map(drop).map_err(Error::from)
    }

    /// Makes sure that at least so much time is left, and renews the lease if it is not.
    ///
    /// # Errors
    ///
    /// If the lease is lost, if it is never that long, or if the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the lease is as it was, or extended.
    pub async fn ensure(&self, least: Duration) -> Result<(), Error> {
        let Held { store, id, terms, hold, .. } = &*self.0;
        if hold.left()? >= least {
            return Ok(());
        }
        let sent = hold.clock().now();
        let answer = in_time(call_deadline(terms.ttl), store.extend(&[(id.clone(), terms.ttl)])).await?;
        match answer.first() {
            Some(true) => hold.renewed(sent, terms.ttl),
            _ => hold.is_over(Lost::Taken),
        }
        if hold.left()? >= least {
            return Ok(());
        }
        Err(Error::invalid(format!("a lease of {:?} never has {least:?} left", terms.ttl)))
    }

    /// Waits until the lease is lost, and returns why. It needs no answer of the store: at the deadline it is lost.
    ///
    /// # Cancel safety
    ///
    /// It only waits.
    pub async fn lost(&self) -> Lost {
        self.0.hold.lost().await
    }

    /// Waits until a third of the lease's time is left, which is when two renewals have failed; returns at once if it is lost.
    ///
    /// # Cancel safety
    ///
    /// It only waits.
    pub async fn expiring_soon(&self) {
        self.0.hold.left_falls_to(self.0.terms.ttl / 3).await;
    }

    pub(super) fn held(&self) -> &Arc<Held> {
        &self.0
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.id.names();
        f.debug_struct("Lease").field("names", &names).field("fence", &self.fence()).finish_non_exhaustive()
    }
}

/// Releases what may be held when it is dropped, in the background.
///
/// It belongs to whoever waits for an acquire or a release: dropped half-way, nothing is left behind that the store
/// could be told of. It also asks again when the answer is lost, until the lease has ended by itself.
pub(super) struct Cleanup {
    store: Arc<dyn LeaseStore>,
    id: LeaseId,
    ttl: Duration,
    runtime: Option<Handle>,
    is_needed: bool,
}

impl Cleanup {
    pub(super) fn new(store: Arc<dyn LeaseStore>, id: LeaseId, ttl: Duration) -> Self {
        Self { store, id, ttl, runtime: Handle::try_current().ok(), is_needed: false }
    }

    pub(super) fn set_needed(&mut self, is_needed: bool) {
        self.is_needed = is_needed;
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        // Without a runtime nothing can be sent, and the lease ends by itself.
        if self.is_needed
            && let Some(runtime) = &self.runtime
        {
            runtime.spawn(give_back(Arc::clone(&self.store), self.id.clone(), self.ttl));
        }
    }
}

/// Releases, again and again until the store has answered or the lease has ended by itself.
pub(super) async fn give_back(store: Arc<dyn LeaseStore>, id: LeaseId, ttl: Duration) -> Result<bool, Error> {
    let end = store.clock().now() + ttl;
    let mut pause = call_deadline(ttl) / 20;
    loop {
        let answer = in_time(call_deadline(ttl), store.release(&id)).await;
        match answer {
            Err(error) if error.is_transient() && store.clock().now() < end => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(call_deadline(ttl));
            }
            answer => return answer,
        }
    }
}

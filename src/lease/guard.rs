use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use tokio::runtime::Handle;

use super::{
    Acquired, Lease, Share,
    hold::Lost,
    keeper::Heir,
    lease::{Cleanup, Held, give_back},
    renew::{call_deadline, in_time},
};
use crate::error::Error;

/// Holds a lease, and renews it, until it is dropped or released.
///
/// It may be moved to other tasks and threads. Dropping it releases in the background and never blocks; where no runtime
/// is left to do it, the lease ends by itself. The renewal runs on the runtime that was current at the acquire: when
/// that ends, the lease is lost at its deadline.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Memory, lease::{Lock, Released}};
///
/// let lock = Lock::new(&Memory::new(), "order:7");
/// let guard = lock.acquire().await?;
/// assert!(guard.is_held() && lock.try_acquire().await?.is_none());
/// assert_eq!(guard.release().await?, Released::Released);
/// # Ok(())
/// # }
/// ```
#[must_use = "a guard that is dropped gives the lease up at once"]
pub struct Guard {
    lease: Lease,
    runtime: Option<Handle>,
    is_done: bool,
}

/// What a release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It was held to the end.
    Released,
    /// It had been lost before.
    NotHeld,
}

impl Guard {
    /// Holds a lease; renews it if that is not done by whoever asks.
    pub(super) fn new(lease: Lease, renewed_here: bool) -> Self {
        if renewed_here {
            lease.held().store.keeper().renew(lease.held());
        }
        Self { lease, runtime: Handle::try_current().ok(), is_done: false }
    }

    /// Returns what can be asked about the lease, to be handed to what works under it.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Gives the lease up, and waits until the store knows it.
    ///
    /// # Errors
    ///
    /// If the store does not answer, so that nobody knows; at the latest the lease ends by itself.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the release goes on in the background.
    pub async fn release(mut self) -> Result<Released, Error> {
        let was_held = self.lease.is_held();
        let work = self.begin_release();
        let Some(runtime) = &self.runtime else {
            return Err(Error::store("a lease is released on a tokio runtime, and this is none"));
        };
        let released = match work {
            // In a task of its own, since others wait for what it does.
            Release::ToHeir(held, heir) => runtime.spawn(hand_over(held, heir)).await,
            Release::ToAll(held) => {
                let mut cleanup = Cleanup::new(Arc::clone(&held.store), held.id.clone(), held.terms.ttl);
                cleanup.set_needed(true);
                let answer = in_time(call_deadline(held.terms.ttl), held.store.release(&held.id)).await;
                // Without an answer it is asked again, in the background.
                cleanup.set_needed(answer.is_err());
                Ok(answer)
            }
        };
        match released {
            Ok(Ok(true)) if was_held => Ok(Released::Released),
            Ok(Ok(_)) => Ok(Released::NotHeld),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::store("the runtime ended before the release")),
        }
    }

    fn begin_release(&mut self) -> Release {
        self.is_done = true;
        let held = Arc::clone(self.lease.held());
        let is_held = held.hold.left().is_ok();
        held.hold.is_over(Lost::Released);
        // A permit has no fence to be minted; others are there anyway.
        if is_held
            && held.id.share() == Share::Whole
            && let Some(heir) = held.store.keeper().heir(&held.id)
        {
            return Release::ToHeir(held, heir);
        }
        Release::ToAll(held)
    }
}

enum Release {
    ToHeir(Arc<Held>, Heir),
    ToAll(Arc<Held>),
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let work = self.begin_release();
        if let Some(runtime) = &self.runtime {
            match work {
                Release::ToHeir(held, heir) => _ = runtime.spawn(hand_over(held, heir)),
                Release::ToAll(held) => {
                    runtime.spawn(give_back(Arc::clone(&held.store), held.id.clone(), held.terms.ttl));
                }
            }
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.lease).finish()
    }
}

/// Gives a lease to another waiter of this process in one step; to whoever comes first if that fails.
async fn hand_over(held: Arc<Held>, heir: Heir) -> Result<bool, Error> {
    let Held { store, id, terms, .. } = &*held;
    let sent = store.clock().now();
    let answer = in_time(call_deadline(heir.terms.ttl), store.hand_over(id, &heir.id, &heir.terms)).await;
    let is_handed_over = matches!(answer, Ok(Acquired::Held { .. }));
    let released = if is_handed_over { Ok(true) } else { give_back(Arc::clone(store), id.clone(), terms.ttl).await };
    if heir.grant.send((answer, sent)).is_err() {
        // Nobody is there any more to take it, though it may be his.
        give_back(Arc::clone(store), heir.id, heir.terms.ttl).await?;
    }
    released
}

/// How long a lease lasts unless another time is set: long enough for a pause of some seconds, short enough to wait
/// for after a crash.
pub(super) const DEFAULT_TTL: Duration = Duration::from_secs(30);

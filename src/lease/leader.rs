use std::{
    future::Future,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, broadcast};

use super::{
    Fence, Guard, Holder, Lease, LeaseStore, Lock, Lost, Released,
    race::{First, race},
    run,
};
use crate::{error::Error, key::Key};

/// Has one of several processes lead, for a term at a time.
///
/// A term is a lease that is renewed. A leader that is stopped or cut off knows by its own clock when its term is over,
/// before another one can begin; what it did under its term carries the [fence](Lease::fence) that a resource can refuse
/// when the next leader has come.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Memory, lease::Leader};
///
/// let leader = Leader::new(&Memory::new(), "scheduler");
/// let fence = leader.run(async |term| {
///     // ... what only the leader does; dropped when the term is lost, and begun anew with the next one ...
///     term.fence()
/// }).await?;
/// assert!(fence.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nobody leads until it campaigns"]
pub struct Leader {
    lock: Lock,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    events: broadcast::Sender<Election>,
    now: Mutex<Now>,
    resigned: Arc<Notify>,
}

/// What this process knows of itself.
#[derive(Debug, Default)]
struct Now {
    term: Option<Lease>,
    /// Whether a body of that term still works.
    works: bool,
    /// Since when a body works whose term is over, by the clock of leases.
    over_since: Option<Duration>,
}

/// What happens to one who campaigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Election {
    /// This process leads, under this fence.
    Elected(Fence),
    /// The term is over, for this reason. It comes only after [`Elected`](Self::Elected).
    Lost(Lost),
}

/// Hears what happens to one who campaigns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Memory, lease::{Election, Leader}};
///
/// let leader = Leader::new(&Memory::new(), "scheduler");
/// let mut events = leader.events();
/// let term = leader.campaign().await?;
/// assert!(matches!(events.next().await, Some(Election::Elected(fence)) if Some(fence) == term.fence()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Elections(broadcast::Receiver<Election>);

impl Elections {
    /// Waits for what happens next; `None` when the last [`Leader`] of its kind is gone.
    ///
    /// Who listens so slowly that 64 are missed goes on with the oldest that is left.
    ///
    /// # Cancel safety
    ///
    /// Nothing is missed.
    pub async fn next(&mut self) -> Option<Election> {
        loop {
            match self.0.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

impl Leader {
    /// Lets those who campaign under one name have one leader.
    pub fn new<S: LeaseStore + Clone>(store: &S, name: impl Into<Key>) -> Self {
        let name = Key::from_parts(["leader".as_bytes(), name.into().as_bytes()]);
        let lock = Lock::new(store, name).ttl(DEFAULT_TERM).wait_forever();
        let (events, _) = broadcast::channel(64);
        Self { lock, shared: Arc::new(Shared { events, now: Mutex::default(), resigned: Arc::default() }) }
    }

    /// Sets how long a term lasts unless it is renewed, as it is each third of that; 15 seconds by default.
    ///
    /// It is how long nobody leads after a crash.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// Sets what others see of the leader, 256 bytes at most; by default the number of its process.
    pub fn label(mut self, label: &str) -> Self {
        self.lock = self.lock.label(label);
        self
    }

    /// Waits until this process leads.
    ///
    /// # Errors
    ///
    /// If an option is wrong. While the store fails it waits.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it does not lead; a term that may have been granted is given back in the background.
    pub async fn campaign(&self) -> Result<Term, Error> {
        let guard = self.lock.acquire().await?;
        Ok(self.begin(guard))
    }

    /// Leads whenever it can, and runs a body in each term; returns what a body returns.
    ///
    /// The body is polled in this task, and no poll of it starts after its term. When the term is lost, the body is dropped,
    /// and another one begins with the next term. The term is given up after the body has finished, not before.
    ///
    /// # Errors
    ///
    /// If an option is wrong, or [`resign`](Self::resign) was called ([`Error::is_lost`]).
    ///
    /// # Cancel safety
    ///
    /// Dropped, the body is dropped where it stands, and then the term is given up in the background.
    pub async fn run<F: Future>(&self, mut body: impl FnMut(Lease) -> F) -> Result<F::Output, Error> {
        loop {
            let guard = self.lock.acquire_unkept().await?;
            let term = self.begin(guard);
            let lease = Lease::clone(&term);
            let works = Works::begin(Arc::clone(&self.shared));
            let ran = {
                let renewal = run::renewal(&lease);
                let resigned = Arc::clone(&self.shared.resigned).notified_owned();
                race(resigned, run::under(&lease.held().hold, renewal, body(lease.clone()))).await
            };
            drop(works);
            match ran {
                First::One(()) => {
                    term.resign().await?;
                    return Err(Lost::Released.into());
                }
                First::Other(Ok(output)) => {
                    // It has finished in time: a release that fails takes nothing away from that.
                    let _ = term.resign().await;
                    return Ok(output);
                }
                First::Other(Err((lost, _))) => {
                    tracing::warn!(%lost, "a leader's term is over");
                    term.over(lost);
                }
            }
        }
    }

    /// Hears from now on what happens to this handle and its clones.
    pub fn events(&self) -> Elections {
        Elections(self.shared.events.subscribe())
    }

    /// Returns true if this process leads, by its own clock.
    pub fn is_leader(&self) -> bool {
        self.lock_now().term.as_ref().is_some_and(Lease::is_held)
    }

    /// Tells who leads, this process or another one.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// It only asks.
    pub async fn leader(&self) -> Result<Option<Holder>, Error> {
        self.lock.holder().await
    }

    /// Ends the term of a [`run`](Self::run) of this handle or a clone: its body is dropped, and the term given up.
    ///
    /// It does nothing if nobody runs.
    pub fn resign(&self) {
        self.shared.resigned.notify_waiters();
    }

    /// Returns false if a body of this process has gone on for longer than so much after its term: it blocks, and the
    /// process had better be restarted. For health checks.
    pub fn is_healthy(&self, most_overrun: Duration) -> bool {
        let mut now = self.lock_now();
        let Some(term) = now.term.clone().filter(|_| now.works) else { return true };
        if term.is_held() {
            return true;
        }
        let clock = term.held().hold.clock().now();
        let since = *now.over_since.get_or_insert(clock);
        clock.saturating_sub(since) <= most_overrun
    }

    fn begin(&self, guard: Guard) -> Term {
        *self.lock_now() = Now { term: Some(guard.lease()), works: false, over_since: None };
        if let Some(fence) = guard.fence() {
            // Nobody need listen.
            let _ = self.shared.events.send(Election::Elected(fence));
        }
        Term { guard: Some(guard), shared: Arc::clone(&self.shared) }
    }

    fn lock_now(&self) -> MutexGuard<'_, Now> {
        self.shared.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks that a body works, until it is dropped with the body.
struct Works(Arc<Shared>);

impl Works {
    fn begin(shared: Arc<Shared>) -> Self {
        shared.now.lock().unwrap_or_else(PoisonError::into_inner).works = true;
        Self(shared)
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner).works = false;
    }
}

/// The time for which a process leads. Dropping it gives it up.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Memory, lease::Leader};
///
/// let leader = Leader::new(&Memory::new(), "scheduler");
/// let term = leader.campaign().await?;
/// assert!(leader.is_leader() && term.fence().is_some());
/// term.resign().await?;
/// assert!(!leader.is_leader());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a term that is dropped is given up at once"]
pub struct Term {
    /// There until it is over.
    guard: Option<Guard>,
    shared: Arc<Shared>,
}

impl Term {
    /// Gives the term up, and waits until the store knows it. To be called when all work of the term has ended.
    ///
    /// # Errors
    ///
    /// If the store does not answer, so that nobody knows; at the latest the term ends by itself.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it goes on in the background.
    pub async fn resign(mut self) -> Result<Released, Error> {
        match self.guard.take() {
            Some(guard) => {
                self.tell(guard.lease().held().hold.left().err().unwrap_or(Lost::Released));
                guard.release().await
            }
            None => Ok(Released::NotHeld),
        }
    }

    fn over(mut self, lost: Lost) {
        self.guard = None;
        self.tell(lost);
    }

    fn tell(&self, lost: Lost) {
        self.shared.now.lock().unwrap_or_else(PoisonError::into_inner).term = None;
        let _ = self.shared.events.send(Election::Lost(lost));
    }
}

impl Deref for Term {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        self.guard.as_deref().expect("a term has its guard until it is consumed")
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.tell(guard.lease().held().hold.left().err().unwrap_or(Lost::Released));
        }
    }
}

/// Long enough for a pause of some seconds; the time without a leader after a crash.
const DEFAULT_TERM: Duration = Duration::from_secs(15);

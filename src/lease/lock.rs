use std::time::Duration;

use super::{
    Guard, Holder, LeaseStore, Share,
    run::{self, RanAnyway, RunError},
    wait::Request,
};
use crate::{error::Error, key::Key};

/// Lets one holder at a time have a name, or several names at once.
///
/// A cheap handle that does no I/O. Each lease ends by itself after its [`ttl`](Self::ttl) unless it is renewed, which the
/// guard does; so a holder that dies blocks nobody for longer than that. See the [module](super) for what it promises.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Memory, lease::Lock};
///
/// let store = Memory::new(); // or Redis::open("redis://127.0.0.1:6379")?
/// let lock = Lock::new(&store, "order:7").ttl(Duration::from_secs(10)).wait(Duration::from_secs(5));
///
/// let total = lock.run(async |lease| {
///     // ... work; nothing of it starts once the lease is lost ...
///     assert!(lease.is_held());
///     42
/// }).await?;
/// assert_eq!(total, 42);
///
/// let guard = lock.acquire().await?;
/// assert!(lock.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    request: Request,
}

impl Lock {
    /// Makes a lock on one name.
    pub fn new<S: LeaseStore + Clone>(store: &S, name: impl Into<Key>) -> Self {
        Self::all(store, [name])
    }

    /// Makes a lock on several names, which are held together or not at all.
    ///
    /// On a Cluster they are taken one by one in a fixed order, and given back when one is taken.
    pub fn all<S: LeaseStore + Clone, N: Into<Key>>(store: &S, names: impl IntoIterator<Item = N>) -> Self {
        let mut names: Vec<Key> = names.into_iter().map(Into::into).collect();
        // The same order for everybody, so that two who want the same names do not wait for each other.
        names.sort_unstable_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
        names.dedup();
        Self { request: Request::new(store, names, Share::Whole) }
    }

    /// Sets how long the lease lasts unless it is renewed; 30 seconds by default.
    ///
    /// From 20 ms to a day, in whole milliseconds. It bounds how long others wait after a crash, and it has to be longer
    /// than any pause of this process that is to be survived. The work may take longer, since the lease is renewed.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request.terms.ttl = ttl;
        self
    }

    /// Sets how long [`acquire`](Self::acquire) waits; ten seconds by default.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.request.longest_wait = Some(longest);
        self
    }

    /// Waits as long as it takes.
    pub fn wait_forever(mut self) -> Self {
        self.request.longest_wait = None;
        self
    }

    /// Ends renewal so long after the acquire, so that work that is stuck does not hold for ever.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.request.max_hold = Some(longest);
        self
    }

    /// Serves waiters of all processes in the order in which they came, if all of them say so.
    ///
    /// It costs some throughput: each hand-over goes to the one who is next, and waits until that one asks or its place,
    /// kept for two seconds, has lapsed. For one name only, and not over Redlock.
    pub fn fair(mut self) -> Self {
        self.request.share = Share::InTurn(PLACE_IS_KEPT);
        self
    }

    /// Sets what operators see of the holder, 256 bytes at most; by default the number of its process.
    pub fn label(mut self, label: &str) -> Self {
        self.request.terms.label = label.into();
        self
    }

    /// Waits until the lease is held, for as long as [`wait`](Self::wait) says.
    ///
    /// # Errors
    ///
    /// If it was not to be had in time ([`Error::is_wait_too_long`]; the last error of the store, if there was one, is
    /// its source), or an option is wrong ([`Error::is_invalid`]).
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the place in line is given up, and a lease that may have been granted is given back in the
    /// background.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.check()?;
        self.request.wait().await.map(|lease| Guard::new(lease, true))
    }

    /// Asks once, without waiting; returns nothing if somebody else holds.
    ///
    /// # Errors
    ///
    /// If the store does not answer, or an option is wrong.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, a lease that may have been granted is given back in the background.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.check()?;
        Ok(self.request.attempt().await?.map(|lease| Guard::new(lease, true)))
    }

    /// Acquires, runs a body under the lease, and releases.
    ///
    /// The body is polled in this task, and so is the renewal: neither needs `Send` or `'static`. No poll of it starts
    /// after the lease's deadline. A poll that is under way then runs to its next await, and what the body has spawned is
    /// the body's affair: only the [fence](super::Lease::fence) protects against those.
    ///
    /// # Errors
    ///
    /// If the lease could not be had, or was lost before the body had finished ([`RunError::is_lost`]). A body that
    /// finished in a poll that ended too late is lost too; its output is in the error.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the body is dropped where it stands, and the lease is given back in the background.
    pub async fn run<T>(&self, body: impl AsyncFnOnce(super::Lease) -> T) -> Result<T, RunError<T>> {
        run::run(self.acquire_unkept().await?, body).await
    }

    /// Acquires, runs a body to its end even if the lease is lost meanwhile, and releases.
    ///
    /// For work that is worse to break off than to do twice. The body can look at the lease, and the answer tells
    /// whether it was held to the end.
    ///
    /// # Errors
    ///
    /// If the lease could not be had.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the body is dropped where it stands, and the lease is given back in the background.
    pub async fn run_or_warn<T>(&self, body: impl AsyncFnOnce(super::Lease) -> T) -> Result<RanAnyway<T>, Error> {
        Ok(run::run_or_warn(self.acquire_unkept().await?, body).await)
    }

    /// Tells who holds the first name, for operators.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// It only asks.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        self.check()?;
        let mut holders = self.request.store.holders(&self.request.names[0], self.request.share).await?;
        Ok(holders.pop())
    }

    /// Ends whatever lease there is on the names, for operators; returns whether there was any.
    ///
    /// Its holder learns it at its next renewal, a third of its time later at most. The fence is raised at once, so that
    /// a resource that has seen the next holder refuses the old one.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may have happened.
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.check()?;
        let mut ended = 0;
        for name in self.request.names.iter() {
            ended += self.request.store.force(name, self.request.share).await?;
        }
        tracing::warn!(name: "leases_ended", target: "tollgate::audit", ended, "leases were ended by force");
        Ok(ended > 0)
    }

    /// Acquires without a guard that renews: whoever runs does.
    pub(super) async fn acquire_unkept(&self) -> Result<Guard, Error> {
        self.check()?;
        self.request.wait().await.map(|lease| Guard::new(lease, false))
    }

    fn check(&self) -> Result<(), Error> {
        let names = self.request.names.len();
        if names == 0 || names > MOST_NAMES {
            return Err(Error::invalid(format!("a lock on {names} names: must be 1 to {MOST_NAMES}")));
        }
        if names > 1 && self.request.share != Share::Whole {
            return Err(Error::invalid("a fair lock has one name, since a waiter stands in one queue"));
        }
        Ok(())
    }

    /// The time for which [`acquire`](Self::acquire) waits by default.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);
}

/// A store's work per call is bounded.
const MOST_NAMES: usize = 64;

/// How long a waiter's place is kept after it has asked. It asks three times as often.
const PLACE_IS_KEPT: Duration = Duration::from_secs(2);

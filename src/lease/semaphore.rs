use std::{ops::Deref, time::Duration};

use super::{
    Guard, Holder, Lease, LeaseStore, Released,
    wait::{Request, permits},
};
use crate::{error::Error, key::Key};

/// Lets so many holders at a time have a name.
///
/// Each permit is a lease of its own that is renewed while it is held, so one that died with its holder comes back by
/// itself. It is kept by one server (or one slot of a Cluster): a majority of servers cannot count to more than one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Memory, lease::Semaphore};
///
/// let exports = Semaphore::new(&Memory::new(), "exports", 2)?;
/// let (one, two) = (exports.acquire().await?, exports.acquire().await?);
/// assert!(exports.try_acquire().await?.is_none());
/// one.release().await?;
/// assert!(exports.try_acquire().await?.is_some());
/// # drop(two);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore {
    request: Request,
}

impl Semaphore {
    /// Makes a semaphore of so many permits, 1 to 100,000.
    ///
    /// All who use a name should say the same number; where they do not, each goes by its own.
    ///
    /// # Errors
    ///
    /// If the number is out of bounds, or the store cannot count permits: [`Redlock`](super::Redlock) cannot.
    pub fn new<S: LeaseStore + Clone>(store: &S, name: impl Into<Key>, most: u32) -> Result<Self, Error> {
        let share = permits(most)?;
        store.supports(share)?;
        Ok(Self { request: Request::new(store, [name.into()], share) })
    }

    /// Sets how long a permit lasts unless it is renewed; 30 seconds by default, 20 ms to a day in whole milliseconds.
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

    /// Ends renewal so long after the acquire.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.request.max_hold = Some(longest);
        self
    }

    /// Waits for a permit, for as long as [`wait`](Self::wait) says.
    ///
    /// # Errors
    ///
    /// If there was none in time ([`Error::is_wait_too_long`]), or an option is wrong.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the place in line is given up, and a permit that may have been granted is given back in the
    /// background.
    pub async fn acquire(&self) -> Result<Permit, Error> {
        self.request.wait().await.map(|lease| Permit(Guard::new(lease, true)))
    }

    /// Asks once, without waiting; returns nothing if all permits are held.
    ///
    /// # Errors
    ///
    /// If the store does not answer, or an option is wrong.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, a permit that may have been granted is given back in the background.
    pub async fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        Ok(self.request.attempt().await?.map(|lease| Permit(Guard::new(lease, true))))
    }

    /// Tells who holds permits, a thousand at most; for operators.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// It only asks.
    pub async fn holders(&self) -> Result<Vec<Holder>, Error> {
        self.request.store.holders(&self.request.names[0], self.request.share).await
    }
}

/// Holds one permit of a [`Semaphore`], and renews it, until it is dropped or released.
///
/// A permit has no fence: those who hold at the same time have no order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Memory, lease::Semaphore};
///
/// let exports = Semaphore::new(&Memory::new(), "exports", 3)?;
/// let (one, two) = (exports.acquire().await?, exports.acquire().await?);
/// assert_eq!((one.free(), two.free()), (2, 1));
/// one.release().await?;
/// # drop(two);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a permit that is dropped is given back at once"]
pub struct Permit(Guard);

impl Permit {
    /// Returns how many more permits there were when this one was acquired.
    pub fn free(&self) -> u32 {
        self.0.held().free
    }

    /// Gives the permit back, and waits until the store knows it.
    ///
    /// # Errors
    ///
    /// If the store does not answer, so that nobody knows; at the latest the permit ends by itself.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the release goes on in the background.
    pub async fn release(self) -> Result<Released, Error> {
        self.0.release().await
    }
}

impl Deref for Permit {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.0
    }
}

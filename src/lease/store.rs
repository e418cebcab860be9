use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use super::{Clock, Fence, Keeper, Reply, Token, Watch};
use crate::{error::Error, key::Key};

/// Keeps leases: who holds which name, until when.
///
/// The crate brings [`Memory`](crate::Memory), with the feature `redis` `Redis`, and [`Redlock`](super::Redlock) over
/// several of them. All that is asked carries the holder's token, so it may be asked again: an acquire that finds its own
/// token returns the first fence, and a release only ever deletes its own.
///
/// A reply does not borrow: a store takes what it needs before it returns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Key, Memory, lease::{Acquired, LeaseId, LeaseStore, Share, Terms, Token}};
///
/// // Whoever writes a lock of his own asks it like this.
/// let store = Memory::new();
/// let (ours, theirs) = (Token::random()?, Token::random()?);
/// let id = |token| LeaseId::new([Key::from("order:7")], Share::Whole, token);
/// let terms = Terms::new(Duration::from_secs(10), "host 1");
/// assert!(matches!(store.acquire(&id(ours), &terms).await?, Acquired::Held { .. }));
/// assert!(matches!(store.acquire(&id(theirs), &terms).await?, Acquired::Taken { .. }));
/// assert!(store.release(&id(ours)).await?);
/// # Ok(())
/// # }
/// ```
pub trait LeaseStore: fmt::Debug + Send + Sync + 'static {
    /// Takes all names of a lease, or none, for `terms.ttl`.
    ///
    /// A token that holds already gets the same fences again and the whole time anew.
    fn acquire(&self, id: &LeaseId, terms: &Terms) -> Reply<Acquired>;

    /// Lets leases last so long from now; says of each whether it was still held. Nothing that is not held is made.
    fn extend(&self, leases: &[(LeaseId, Duration)]) -> Reply<Vec<bool>>;

    /// Gives a lease up, and the place in the queue; returns whether it was still held.
    fn release(&self, id: &LeaseId) -> Reply<bool>;

    /// Gives a lease that is held to another waiter of this process in one step, under a new fence.
    ///
    /// Where that is no one step, it is [taken](Acquired::Taken), and nothing has been done.
    fn hand_over(&self, from: &LeaseId, to: &LeaseId, terms: &Terms) -> Reply<Acquired> {
        let _ = (from, to, terms);
        Reply::ready(Ok(Acquired::Taken { left: Duration::ZERO, name: 0 }))
    }

    /// Tells who holds a name.
    fn holders(&self, name: &Key, share: Share) -> Reply<Vec<Holder>>;

    /// Ends all leases of a name, whoever holds them, and raises its fence; returns how many there were.
    fn force(&self, name: &Key, share: Share) -> Reply<u64>;

    /// Begins to watch for the moment when a name may be free.
    fn watch(&self, name: &Key) -> Reply<Watch> {
        let _ = name;
        Reply::ready(Ok(Watch::by_asking()))
    }

    /// Says why this store cannot grant a share, if it cannot.
    ///
    /// # Errors
    ///
    /// If it cannot: with the reason.
    fn supports(&self, share: Share) -> Result<(), Error> {
        let _ = share;
        Ok(())
    }

    /// Says why this store cannot grant a lease of that length, if it cannot.
    ///
    /// # Errors
    ///
    /// If it cannot: with the reason.
    fn supports_ttl(&self, ttl: Duration) -> Result<(), Error> {
        let _ = ttl;
        Ok(())
    }

    /// Returns true if more than this process can read what is kept.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns what holders and waiters of this process share; the same for all clones of a store.
    fn keeper(&self) -> &Keeper;

    /// Returns the clock by which holders count their time.
    fn clock(&self) -> Clock {
        Clock::default()
    }
}

/// Names a lease: what is held, how much of it, and by whom.
#[derive(Clone, Debug)]
pub struct LeaseId {
    names: Arc<[Key]>,
    share: Share,
    token: Token,
}

impl LeaseId {
    /// Names what `token` holds, or wants to hold.
    pub fn new(names: impl Into<Arc<[Key]>>, share: Share, token: Token) -> Self {
        Self { names: names.into(), share, token }
    }

    /// Returns the names, sorted and each once.
    pub fn names(&self) -> &[Key] {
        &self.names
    }

    /// Returns how much of the names is held.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns who holds them.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Names the same under another token.
    pub(super) fn under(&self, token: Token) -> Self {
        Self { token, ..self.clone() }
    }
}

/// How much of a name a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Share {
    /// All of it: one holder at a time.
    Whole,
    /// All of it, to waiters in the order in which they came. A waiter keeps its place for so long after it has asked.
    InTurn(Duration),
    /// One of so many permits. A permit has no fence.
    OneOf(NonZeroU32),
}

impl Share {
    /// Returns what operators call it.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Whole | Self::InTurn(_) => "lock",
            Self::OneOf(_) => "permit",
        }
    }
}

/// On what terms a lease is asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Terms {
    /// How long it lasts unless it is extended, in whole milliseconds.
    pub ttl: Duration,
    /// What operators are told about the holder.
    pub label: Arc<str>,
}

impl Terms {
    /// Asks for a lease of that length.
    pub fn new(ttl: Duration, label: impl Into<Arc<str>>) -> Self {
        Self { ttl, label: label.into() }
    }
}

/// What became of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The lease is held, under a fence for each name.
    Held {
        /// In the order of the names.
        fences: Vec<Fence>,
    },
    /// A permit is held.
    Permit {
        /// How many more there are.
        free: u32,
    },
    /// Somebody else holds a name, or comes first.
    Taken {
        /// How long that lease lasts if it is not extended.
        left: Duration,
        /// Which of the names it is.
        name: usize,
    },
}

/// Who holds a name; for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The holder's token.
    pub token: Token,
    /// Its fence; a permit has none.
    pub fence: Option<Fence>,
    /// For how long it has held.
    pub held_for: Duration,
    /// How long its lease lasts if it is not extended.
    pub left: Duration,
    /// What it says of itself.
    pub label: String,
}

impl Holder {
    /// Describes a holder; for those who write a store of their own.
    pub fn new(token: Token, fence: Option<Fence>, held_for: Duration, left: Duration, label: String) -> Self {
        Self { token, fence, held_for, left, label }
    }
}

/// Makes a pointer to a store one, so that which it is can be chosen at run time.
macro_rules! store_behind {
    ($pointer:ident) => {
        impl<T: LeaseStore + ?Sized> LeaseStore for $pointer<T> {
            fn acquire(&self, id: &LeaseId, terms: &Terms) -> Reply<Acquired> {
                (**self).acquire(id, terms)
            }

            fn extend(&self, leases: &[(LeaseId, Duration)]) -> Reply<Vec<bool>> {
                (**self).extend(leases)
            }

            fn release(&self, id: &LeaseId) -> Reply<bool> {
                (**self).release(id)
            }

            fn hand_over(&self, from: &LeaseId, to: &LeaseId, terms: &Terms) -> Reply<Acquired> {
                (**self).hand_over(from, to, terms)
            }

            fn holders(&self, name: &Key, share: Share) -> Reply<Vec<Holder>> {
                (**self).holders(name, share)
            }

            fn force(&self, name: &Key, share: Share) -> Reply<u64> {
                (**self).force(name, share)
            }

            fn watch(&self, name: &Key) -> Reply<Watch> {
                (**self).watch(name)
            }

            fn supports(&self, share: Share) -> Result<(), Error> {
                (**self).supports(share)
            }

            fn supports_ttl(&self, ttl: Duration) -> Result<(), Error> {
                (**self).supports_ttl(ttl)
            }

            fn is_shared(&self) -> bool {
                (**self).is_shared()
            }

            fn keeper(&self) -> &Keeper {
                (**self).keeper()
            }

            fn clock(&self) -> Clock {
                (**self).clock()
            }
        }
    };
}

store_behind!(Box);
store_behind!(Arc);

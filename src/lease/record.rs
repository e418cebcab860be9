use std::{fmt, sync::Arc, time::Duration};

use super::{Clock, Fence, Reply, Token, Watch};
use crate::key::Key;

/// Keeps records of what is done once: who is at it, what it came to, or that nobody knows.
///
/// The crate brings [`Memory`](crate::Memory) and, with the feature `redis`, `Redis`. All but [`take`](Self::take)
/// carries the token of an attempt, so it may be asked again.
///
/// A reply does not borrow: a store takes what it needs before it returns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Key, Memory, lease::{Begin, Begun, RecordStore, Token}};
///
/// let (store, name) = (Memory::new(), Key::from("welcome:42"));
/// let (lease, retain) = (Duration::from_secs(10), Duration::from_secs(3_600));
/// let ours = Begin::new(Token::random()?, lease, retain);
/// assert!(matches!(store.begin(&name, &ours).await?, Begun::Started { attempt: 1, .. }));
/// assert!(store.complete(&name, ours.token, b"sent", retain).await?);
/// let theirs = Begin::new(Token::random()?, lease, retain);
/// assert!(matches!(store.begin(&name, &theirs).await?, Begun::Done { .. }));
/// # Ok(())
/// # }
/// ```
pub trait RecordStore: fmt::Debug + Send + Sync + 'static {
    /// Begins an attempt, or tells how things stand.
    ///
    /// The same token gets the same answer again, and its lease anew.
    fn begin(&self, name: &Key, attempt: &Begin) -> Reply<Begun>;

    /// Lets an attempt last so long from now; returns false if it is over, or lapsed.
    fn extend(&self, name: &Key, token: Token, lease: Duration) -> Reply<bool>;

    /// Stores what an attempt came to, for so long; returns false if the attempt is not the last one any more.
    ///
    /// An attempt that has lapsed can still tell what it came to, as long as nobody has taken over.
    fn complete(&self, name: &Key, token: Token, outcome: &[u8], retain: Duration) -> Reply<bool>;

    /// Forgets an attempt that did nothing, as if it had never begun; returns false if it is not the last one any more.
    fn abandon(&self, name: &Key, token: Token) -> Reply<bool>;

    /// Returns what an attempt came to and forgets it, in one step: of all who ask, one gets it.
    fn take(&self, name: &Key) -> Reply<Option<Vec<u8>>>;

    /// Begins to watch for the moment when an attempt may be over.
    fn watch(&self, name: &Key) -> Reply<Watch> {
        let _ = name;
        Reply::ready(Ok(Watch::by_asking()))
    }

    /// Returns true if more than this process can read what is kept.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the clock by which attempts count their time.
    fn clock(&self) -> Clock {
        Clock::default()
    }
}

/// What is asked for when an attempt begins.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Begin {
    /// Whose attempt it is.
    pub token: Token,
    /// How long it lasts unless it is extended, in whole milliseconds.
    pub lease: Duration,
    /// For how long the record is kept when the attempt has lapsed, or what `outcome` says.
    pub retain: Duration,
    /// What all attempts should have in common: a hash of what is to be done. It is told to later ones.
    pub print: Vec<u8>,
    /// Whether an attempt may begin when the one before has lapsed.
    pub on_unknown: OnUnknown,
    /// What it comes to, if that is known at once: then it is done by having begun.
    pub outcome: Option<Vec<u8>>,
}

impl Begin {
    /// Begins an attempt that ends by itself after `lease`, of which something is kept for `retain`.
    pub fn new(token: Token, lease: Duration, retain: Duration) -> Self {
        Self { token, lease, retain, print: Vec::new(), on_unknown: OnUnknown::Park, outcome: None }
    }

    /// Records that something is done by having begun, and what it came to, for `retain`.
    pub fn done(token: Token, outcome: Vec<u8>, retain: Duration) -> Self {
        Self { outcome: Some(outcome), ..Self::new(token, retain, retain) }
    }

    /// Sets what all attempts should have in common.
    #[must_use]
    pub fn print(mut self, print: Vec<u8>) -> Self {
        self.print = print;
        self
    }

    /// Sets what becomes of an attempt when the one before has lapsed.
    #[must_use]
    pub fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.on_unknown = on_unknown;
        self
    }
}

/// What to do when an attempt has lapsed, so that nobody knows what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// Nothing: it is not done again. At most once.
    #[default]
    Park,
    /// Do it again, under a greater fence. At least once.
    TakeOver,
}

/// How things stand when an attempt is to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Begun {
    /// It has begun.
    Started {
        /// Counted from one; more than one if others have lapsed.
        attempt: u32,
        /// Greater than that of all attempts before.
        fence: Fence,
    },
    /// Another one is at it.
    Running {
        /// How long its lease lasts if it is not extended.
        left: Duration,
        /// What it said that all attempts should have in common.
        print: Vec<u8>,
    },
    /// It is done.
    Done {
        /// What it came to.
        outcome: Vec<u8>,
        /// What the attempt said that all should have in common.
        print: Vec<u8>,
    },
    /// The last attempt has lapsed, and nobody knows what it did.
    Unknown {
        /// Which attempt it was.
        attempt: u32,
        /// What it said that all attempts should have in common.
        print: Vec<u8>,
    },
}

/// Makes a pointer to a store one, so that which it is can be chosen at run time.
macro_rules! store_behind {
    ($pointer:ident) => {
        impl<T: RecordStore + ?Sized> RecordStore for $pointer<T> {
            fn begin(&self, name: &Key, attempt: &Begin) -> Reply<Begun> {
                (**self).begin(name, attempt)
            }

            fn extend(&self, name: &Key, token: Token, lease: Duration) -> Reply<bool> {
                (**self).extend(name, token, lease)
            }

            fn complete(&self, name: &Key, token: Token, outcome: &[u8], retain: Duration) -> Reply<bool> {
                (**self).complete(name, token, outcome, retain)
            }

            fn abandon(&self, name: &Key, token: Token) -> Reply<bool> {
                (**self).abandon(name, token)
            }

            fn take(&self, name: &Key) -> Reply<Option<Vec<u8>>> {
                (**self).take(name)
            }

            fn watch(&self, name: &Key) -> Reply<Watch> {
                (**self).watch(name)
            }

            fn is_shared(&self) -> bool {
                (**self).is_shared()
            }

            fn clock(&self) -> Clock {
                (**self).clock()
            }
        }
    };
}

store_behind!(Box);
store_behind!(Arc);

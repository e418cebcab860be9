use std::{fmt, sync::Arc, time::Duration};

use tokio::{runtime::Handle, time};

use super::{
    Begin, Begun, Fence, OnUnknown, RecordStore, Token, Watch,
    hold::{Hold, Lost},
    race::race,
    renew::{call_deadline, in_time, renew},
    run::under,
};
use crate::{error::Error, key::Key};

/// Has things done once, for all processes that share a store, and keeps what they came to.
///
/// Of all who come with the same id, one does it; the others are given what it came to. When an attempt breaks off, so that
/// nobody knows what it did, the id is parked: it is not done again ([`OnUnknown::Park`]). With
/// [`takeover`](Self::takeover) the next one does it again, under a greater fence. That is a choice between at most once
/// and at least once; exactly once there is only where what is done takes the fence, or doing it twice changes nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Memory, lease::{Once, Ran}};
///
/// let welcome = Once::new(&Memory::new(), "welcome-mail", Duration::from_secs(86_400));
/// let first = welcome.run("user:42", async |_| Ok(b"sent".to_vec())).await?;
/// assert_eq!(first, Ran::Here(b"sent".to_vec()));
/// let second = welcome.run("user:42", async |_| unreachable!("it is done")).await?;
/// assert_eq!(second, Ran::Before(b"sent".to_vec()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is done until it is run"]
pub struct Once {
    store: Arc<dyn RecordStore>,
    scope: Key,
    retain: Duration,
    lease: Duration,
    wait: Duration,
    on_unknown: OnUnknown,
}

/// What became of something that is done once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ran {
    /// It was done here and now, and came to this.
    Here(Vec<u8>),
    /// It had been done before, and came to this.
    Before(Vec<u8>),
    /// Somebody else is at it.
    Running {
        /// When to ask again: at the latest then it is done, or its attempt has been renewed or has lapsed.
        retry_after: Duration,
    },
    /// An attempt broke off, and nobody knows what it did. It is not done again.
    Unknown {
        /// Which attempt it was, counted from one.
        attempt: u32,
    },
    /// The body said that it had not started, so that others may.
    NotStarted,
}

impl Ran {
    /// Returns what it came to, here or before.
    pub fn outcome(&self) -> Option<&[u8]> {
        match self {
            Self::Here(outcome) | Self::Before(outcome) => Some(outcome),
            _ => None,
        }
    }
}

/// What a body returns that did nothing at all, so that another attempt can do no harm.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Memory, lease::{NotStarted, Once, Ran}};
///
/// let mails = Once::new(&Memory::new(), "welcome", Duration::from_secs(3_600));
/// // The address book was not to be had, so nothing was sent, and the next one may try.
/// let first = mails.run("user:42", async |_| Err(NotStarted)).await?;
/// assert_eq!(first, Ran::NotStarted);
/// let second = mails.run("user:42", async |_| Ok(b"sent".to_vec())).await?;
/// assert_eq!(second.outcome(), Some(&b"sent"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotStarted;

/// An attempt, as its body sees it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Memory, lease::Once};
///
/// let mails = Once::new(&Memory::new(), "welcome", Duration::from_secs(3_600));
/// let ran = mails.run("user:42", async |attempt| {
///     assert_eq!(attempt.number(), 1);
///     Ok(attempt.fence().to_string().into_bytes())
/// }).await?;
/// assert!(ran.outcome().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Attempt {
    number: u32,
    fence: Fence,
    hold: Arc<Hold>,
}

impl Attempt {
    /// Returns which attempt it is, counted from one.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the fence, greater than those of all attempts before.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Fails if the attempt has lapsed: to ask right before something that cannot be taken back.
    ///
    /// # Errors
    ///
    /// If it has ([`Error::is_lost`]).
    pub fn check(&self) -> Result<(), Error> {
        self.hold.left().map(drop).map_err(Error::from)
    }
}

impl Once {
    /// Has things of one kind done once; what they came to is kept for `retain`, and so is that nobody knows.
    ///
    /// After that an id is new again.
    pub fn new<S: RecordStore + Clone>(store: &S, name: &str, retain: Duration) -> Self {
        Self {
            store: Arc::new(store.clone()),
            scope: Key::from_parts(["once", name]),
            retain,
            lease: DEFAULT_LEASE,
            wait: Duration::ZERO,
            on_unknown: OnUnknown::Park,
        }
    }

    /// Sets how long an attempt lasts unless it is renewed, as it is while its body runs; 30 seconds by default.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long to wait for another one who is at it; by default not at all.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = longest;
        self
    }

    /// Does it again when an attempt has broken off: at least once in the place of at most once.
    pub fn takeover(mut self) -> Self {
        self.on_unknown = OnUnknown::TakeOver;
        self
    }

    /// Runs a body unless it has been run before, and keeps what it returns.
    ///
    /// The attempt is renewed in this task while the body runs; once it has lapsed, no poll of the body starts any more. A
    /// body that did nothing may return [`NotStarted`]. What a body returns is kept as it is: let it tell of failures too,
    /// if they are not to be tried again.
    ///
    /// # Errors
    ///
    /// If the store does not answer, or the attempt has lapsed while the body ran ([`Error::is_lost`]).
    ///
    /// # Cancel safety
    ///
    /// Dropped before the body has begun, nothing has happened. Dropped later, nobody knows what it did, as after a
    /// crash.
    pub async fn run(
        &self,
        id: impl Into<Key>,
        body: impl AsyncFnOnce(Attempt) -> Result<Vec<u8>, NotStarted>,
    ) -> Result<Ran, Error> {
        self.check()?;
        let name = self.name(id);
        let begin = Begin::new(Token::random()?, self.lease, self.retain).on_unknown(self.on_unknown);
        let token = begin.token;
        let mut cleanup = Cleanup { store: &self.store, name, token, lease: self.lease, is_needed: true };
        let (begun, sent) = self.begin(&name, &begin).await?;
        cleanup.is_needed = false;
        let (number, fence) = match begun {
            Begun::Started { attempt, fence } => (attempt, fence),
            Begun::Running { left, .. } => return Ok(Ran::Running { retry_after: left }),
            Begun::Done { outcome, .. } => return Ok(Ran::Before(outcome)),
            Begun::Unknown { attempt, .. } => return Ok(Ran::Unknown { attempt }),
        };
        let attempt = Attempt { number, fence, hold: Arc::new(Hold::new(self.store.clock(), sent, self.lease, None)) };
        let renewal = renew(&attempt.hold, self.lease, token, || self.store.extend(&name, token, self.lease));
        match under(&attempt.hold, renewal, body(attempt.clone())).await {
            // It has an outcome, and the attempt may still be the last one.
            Ok(Ok(outcome)) | Err((_, Some(Ok(outcome)))) => self.complete(&name, &attempt, token, outcome).await,
            Ok(Err(NotStarted)) | Err((_, Some(Err(NotStarted)))) => {
                self.store.abandon(&name, token).await?;
                Ok(Ran::NotStarted)
            }
            Err((lost, None)) => Err(lost.into()),
        }
    }

    /// Takes an id for good; returns true to one caller, and false to all others for as long as it is kept.
    ///
    /// For what is done right after: at most once, since a crash in between loses it. [`run`](Self::run) is for what can
    /// be told from that.
    ///
    /// # Errors
    ///
    /// If the store does not answer; the id may be taken then.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the id may be taken.
    pub async fn claim(&self, id: impl Into<Key>) -> Result<bool, Error> {
        self.check()?;
        let begin = Begin::done(Token::random()?, Vec::new(), self.retain);
        let (begun, _) = self.ask(&self.name(id), &begin).await?;
        Ok(matches!(begun, Begun::Started { .. }))
    }

    /// Asks, and again while somebody else is at it and there is time to wait.
    pub(crate) async fn begin(&self, name: &Key, begin: &Begin) -> Result<(Begun, Duration), Error> {
        let end = time::Instant::now() + self.wait;
        let mut watch = None;
        loop {
            let (begun, sent) = self.ask(name, begin).await?;
            let left_to_wait = end.saturating_duration_since(time::Instant::now());
            let Begun::Running { left, .. } = &begun else { return Ok((begun, sent)) };
            if left_to_wait.is_zero() {
                return Ok((begun, sent));
            }
            let watching = match &mut watch {
                Some(watch) => watch,
                None => watch.insert(self.store.watch(name).await.unwrap_or_else(|_| Watch::by_asking())),
            };
            // Something may have been told before the watch began.
            if !watching.begins() {
                let longest = if watching.is_by_asking() { ASK_AGAIN } else { *left + Duration::from_millis(1) };
                race(watching.told(b""), time::sleep(longest.min(left_to_wait))).await;
            }
        }
    }

    /// Asks, again if the answer is lost: it is the same attempt.
    async fn ask(&self, name: &Key, begin: &Begin) -> Result<(Begun, Duration), Error> {
        let deadline = call_deadline(self.lease);
        let end = time::Instant::now() + deadline;
        loop {
            let sent = self.store.clock().now();
            match in_time(deadline, self.store.begin(name, begin)).await {
                Err(error) if error.is_transient() && time::Instant::now() + ASK_AGAIN < end => {
                    time::sleep(ASK_AGAIN).await;
                }
                answer => return answer.map(|begun| (begun, sent)),
            }
        }
    }

    /// Stores an outcome, again and again until the attempt would lapse. The caller has it in any case.
    async fn complete(&self, name: &Key, attempt: &Attempt, token: Token, outcome: Vec<u8>) -> Result<Ran, Error> {
        loop {
            let answer = self.store.complete(name, token, &outcome, self.retain);
            match in_time(call_deadline(self.lease), answer).await {
                Ok(true) => return Ok(Ran::Here(outcome)),
                Ok(false) => return Err(Lost::Taken.into()),
                Err(error) if attempt.hold.left().is_err() => {
                    tracing::warn!(%error, "what was done once was not stored, and is parked");
                    return Ok(Ran::Here(outcome));
                }
                Err(_) => time::sleep(ASK_AGAIN).await,
            }
        }
    }

    fn name(&self, id: impl Into<Key>) -> Key {
        Key::from_parts([self.scope.as_bytes(), id.into().as_bytes()])
    }

    fn check(&self) -> Result<(), Error> {
        if self.lease < SHORTEST || self.lease > LONGEST || self.retain < SHORTEST || self.retain > LONGEST {
            let Self { lease, retain, .. } = self;
            return Err(Error::invalid(format!(
                "once with a lease of {lease:?}, kept for {retain:?}: both must be from {SHORTEST:?} to {LONGEST:?}"
            )));
        }
        Ok(())
    }
}

/// Forgets an attempt when it is dropped before its body has begun.
struct Cleanup<'a> {
    store: &'a Arc<dyn RecordStore>,
    name: Key,
    token: Token,
    lease: Duration,
    is_needed: bool,
}

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        if self.is_needed
            && let Ok(runtime) = Handle::try_current()
        {
            let (store, name, token, lease) = (Arc::clone(self.store), self.name, self.token, self.lease);
            runtime.spawn(async move {
                let end = store.clock().now() + lease;
                while in_time(call_deadline(lease), store.abandon(&name, token)).await.is_err()
                    && store.clock().now() < end
                {
                    time::sleep(ASK_AGAIN).await;
                }
            });
        }
    }
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was started")
    }
}

impl std::error::Error for NotStarted {}

/// Long enough for a pause of some seconds, short enough to wait for after a crash.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

const SHORTEST: Duration = Duration::from_millis(20);

/// A hundred years.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

/// When to ask again if nothing is told.
const ASK_AGAIN: Duration = Duration::from_millis(25);

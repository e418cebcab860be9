use std::{fmt, sync::Arc, time::Duration};

use super::{Clock, Fence, Reply, Token, Watch};
use crate::key::Key;

/// Keeps queues of jobs, each of which is claimed by one worker at a time.
///
/// The crate brings [`Memory`](crate::Memory) and, with the feature `redis`, `Redis`. A job is waiting, claimed until a time,
/// or dead. A claim that has ended puts its job back by itself: the next claim finds it.
///
/// A reply does not borrow: a store takes what it needs before it returns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Key, Memory, lease::{ClaimAsk, NewJob, QueueStore, Token}};
///
/// let (store, queue) = (Memory::new(), Key::from("mails"));
/// assert!(store.push(&queue, &NewJob::new("7", "to: user 42")).await?);
/// let ask = ClaimAsk::new(Token::random()?, 1, Duration::from_secs(30), 5);
/// let claimed = store.claim(&queue, &ask).await?;
/// assert_eq!(claimed.jobs[0].payload, b"to: user 42");
/// assert!(store.ack(&queue, &claimed.jobs[0].id, ask.token).await?);
/// # Ok(())
/// # }
/// ```
pub trait QueueStore: fmt::Debug + Send + Sync + 'static {
    /// Adds a job; returns false, and does nothing, if one of that id is there.
    fn push(&self, queue: &Key, job: &NewJob) -> Reply<bool>;

    /// Claims jobs: the highest priority first, then the oldest.
    ///
    /// First it takes back claims that have ended, and buries jobs that were claimed `most_attempts` times.
    fn claim(&self, queue: &Key, ask: &ClaimAsk) -> Reply<Claimed>;

    /// Lets a claim last so long from now; returns false if it is over.
    fn extend(&self, queue: &Key, id: &str, token: Token, visibility: Duration) -> Reply<bool>;

    /// Removes a job that is done; returns false, and does nothing, if the claim is over.
    fn ack(&self, queue: &Key, id: &str, token: Token) -> Reply<bool>;

    /// Puts a job back, to be claimed again after a time; returns false if the claim is over.
    fn nack(&self, queue: &Key, id: &str, token: Token, after: Duration) -> Reply<bool>;

    /// Puts a job with the dead; returns false if the claim is over.
    fn bury(&self, queue: &Key, id: &str, token: Token, reason: &str) -> Reply<bool>;

    /// Lists dead jobs, those first that died last.
    fn list(&self, queue: &Key, most: u32) -> Reply<Vec<DeadJob>>;

    /// Lets a dead job be claimed again, as if it never had been; returns false if there is none of that id.
    fn requeue(&self, queue: &Key, id: &str) -> Reply<bool>;

    /// Begins to watch for the moment when there may be a job.
    fn watch(&self, queue: &Key) -> Reply<Watch> {
        let _ = queue;
        Reply::ready(Ok(Watch::by_asking()))
    }

    /// Returns the clock by which workers count their time.
    fn clock(&self) -> Clock {
        Clock::default()
    }
}

/// A job to be added.
///
/// ```
/// use std::time::Duration;
/// use tollgate::lease::NewJob;
///
/// let job = NewJob::new("invoice:7", "the text").priority(9).delay(Duration::from_secs(60));
/// assert_eq!(job.id, "invoice:7");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewJob {
    /// What tells it from others in its queue.
    pub id: String,
    /// What it carries.
    pub payload: Vec<u8>,
    /// Greater ones come first.
    pub priority: u8,
    /// For how long nobody may claim it.
    pub delay: Duration,
}

impl NewJob {
    /// Describes a job that anybody may claim at once.
    pub fn new(id: impl Into<String>, payload: impl Into<Vec<u8>>) -> Self {
        Self { id: id.into(), payload: payload.into(), priority: 0, delay: Duration::ZERO }
    }

    /// Sets the priority; greater ones come first, and it is 0 by default.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Lets nobody claim it for so long.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

/// What is asked for by a claim.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ClaimAsk {
    /// Whose claim it is.
    pub token: Token,
    /// How many jobs at most.
    pub most: u32,
    /// How long the claim lasts unless it is extended, in whole milliseconds.
    pub visibility: Duration,
    /// How often a job is claimed before it is buried.
    pub most_attempts: u32,
}

impl ClaimAsk {
    /// Asks for so many jobs.
    pub fn new(token: Token, most: u32, visibility: Duration, most_attempts: u32) -> Self {
        Self { token, most, visibility, most_attempts }
    }
}

/// What a claim came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claimed {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// When there may be one, if there is none now: a delay or another claim ends then.
    pub next_in: Option<Duration>,
}

impl Claimed {
    /// Tells of jobs, or when there may be one.
    pub fn new(jobs: Vec<Job>, next_in: Option<Duration>) -> Self {
        Self { jobs, next_in }
    }
}

/// A job that was claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job {
    /// What tells it from others in its queue.
    pub id: String,
    /// What it carries.
    pub payload: Vec<u8>,
    /// Counted from one; more than one if others have claimed it before.
    pub attempt: u32,
    /// Greater than those of all claims of this job before.
    pub fence: Fence,
}

impl Job {
    /// Describes a job; for those who write a store of their own.
    pub fn new(id: String, payload: Vec<u8>, attempt: u32, fence: Fence) -> Self {
        Self { id, payload, attempt, fence }
    }
}

/// A job that nobody claims any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadJob {
    /// What tells it from others in its queue.
    pub id: String,
    /// What it carries.
    pub payload: Vec<u8>,
    /// How often it was claimed.
    pub attempts: u32,
    /// Why it died.
    pub reason: String,
}

impl DeadJob {
    /// Describes a dead job; for those who write a store of their own.
    pub fn new(id: String, payload: Vec<u8>, attempts: u32, reason: String) -> Self {
        Self { id, payload, attempts, reason }
    }
}

/// Makes a pointer to a store one, so that which it is can be chosen at run time.
macro_rules! store_behind {
    ($pointer:ident) => {
        impl<T: QueueStore + ?Sized> QueueStore for $pointer<T> {
            fn push(&self, queue: &Key, job: &NewJob) -> Reply<bool> {
                (**self).push(queue, job)
            }

            fn claim(&self, queue: &Key, ask: &ClaimAsk) -> Reply<Claimed> {
                (**self).claim(queue, ask)
            }

            fn extend(&self, queue: &Key, id: &str, token: Token, visibility: Duration) -> Reply<bool> {
                (**self).extend(queue, id, token, visibility)
            }

            fn ack(&self, queue: &Key, id: &str, token: Token) -> Reply<bool> {
                (**self).ack(queue, id, token)
            }

            fn nack(&self, queue: &Key, id: &str, token: Token, after: Duration) -> Reply<bool> {
                (**self).nack(queue, id, token, after)
            }

            fn bury(&self, queue: &Key, id: &str, token: Token, reason: &str) -> Reply<bool> {
                (**self).bury(queue, id, token, reason)
            }

            fn list(&self, queue: &Key, most: u32) -> Reply<Vec<DeadJob>> {
                (**self).list(queue, most)
            }

            fn requeue(&self, queue: &Key, id: &str) -> Reply<bool> {
                (**self).requeue(queue, id)
            }

            fn watch(&self, queue: &Key) -> Reply<Watch> {
                (**self).watch(queue)
            }

            fn clock(&self) -> Clock {
                (**self).clock()
            }
        }
    };
}

store_behind!(Box);
store_behind!(Arc);

use std::{fmt, sync::Arc, time::Duration};

use tokio::{task::AbortHandle, time};

use super::{
    ClaimAsk, Claimed, DeadJob, Fence, Job, Lost, NewJob, QueueStore, Token, Watch,
    hold::Hold,
    race::race,
    renew::{call_deadline, in_time, renew},
};
use crate::{error::Error, key::Key};

/// Has each job of a queue worked on by one worker at a time.
///
/// A claim is a lease: it is renewed while the [`Claim`] lives, and when its worker dies the job comes back by itself after
/// the [`visibility`](Self::visibility). So a job is done at least once; what must not be done twice takes the claim's
/// [fence](Claim::fence). A job that was claimed [`max_attempts`](Self::max_attempts) times and never acknowledged is
/// buried, and can be looked at and requeued.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Memory, lease::Claims};
///
/// let mails = Claims::new(&Memory::new(), "mails");
/// mails.push(b"to user:42").await?;
/// if let Some(job) = mails.try_claim().await? {
///     assert_eq!(job.payload(), b"to user:42");
///     job.ack().await?;
/// }
/// assert!(mails.try_claim().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is claimed by itself"]
pub struct Claims {
    store: Arc<dyn QueueStore>,
    queue: Key,
    visibility: Duration,
    max_attempts: u32,
}

impl Claims {
    /// Works on one queue.
    pub fn new<S: QueueStore + Clone>(store: &S, queue: impl Into<Key>) -> Self {
        Self {
            store: Arc::new(store.clone()),
            queue: queue.into(),
            visibility: DEFAULT_VISIBILITY,
            max_attempts: DEFAULT_ATTEMPTS,
        }
    }

    /// Sets how long a claim lasts unless it is renewed, as it is while it lives; 30 seconds by default.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = visibility;
        self
    }

    /// Sets how often a job is claimed before it is buried, one at least; 5 by default.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Adds a job, and returns its id.
    ///
    /// # Errors
    ///
    /// If the store does not answer; the job may be there then.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the job may be there.
    pub async fn push(&self, payload: &[u8]) -> Result<String, Error> {
        let id = Token::random()?.to_string();
        self.push_job(&NewJob::new(id.clone(), payload)).await?;
        Ok(id)
    }

    /// Adds a job with an id, a priority and a delay of its own; returns false if one of that id is there.
    ///
    /// # Errors
    ///
    /// If the store does not answer. It may be called again: an id is there once.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the job may be there.
    pub async fn push_job(&self, job: &NewJob) -> Result<bool, Error> {
        if job.id.is_empty() || job.id.len() > LONGEST_ID {
            return Err(Error::invalid(format!("a job's id of {} bytes: must be 1 to {LONGEST_ID}", job.id.len())));
        }
        in_time(LONGEST_CALL, self.store.push(&self.queue, job)).await
    }

    /// Claims a job if there is one.
    ///
    /// # Errors
    ///
    /// If the store does not answer. A job that may be claimed then comes back after the visibility.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, a job that may be claimed comes back after the visibility.
    pub async fn try_claim(&self) -> Result<Option<Claim>, Error> {
        Ok(self.claim_up_to(1).await?.pop())
    }

    /// Claims so many jobs at most, without waiting.
    ///
    /// # Errors
    ///
    /// As [`try_claim`](Self::try_claim).
    ///
    /// # Cancel safety
    ///
    /// As [`try_claim`](Self::try_claim).
    pub async fn claim_up_to(&self, most: u32) -> Result<Vec<Claim>, Error> {
        self.ask(most).await.map(|(claims, _)| claims)
    }

    /// Waits for a job, and claims it.
    ///
    /// # Errors
    ///
    /// As [`try_claim`](Self::try_claim).
    ///
    /// # Cancel safety
    ///
    /// As [`try_claim`](Self::try_claim).
    pub async fn claim(&self) -> Result<Claim, Error> {
        let mut watch: Option<Watch> = None;
        loop {
            if let Some(watch) = &mut watch {
                watch.forget();
            }
            let (mut claims, next_in) = self.ask(1).await?;
            if let Some(claim) = claims.pop() {
                return Ok(claim);
            }
            let mut watching = match watch.take() {
                Some(watching) => watching,
                None => {
                    in_time(LONGEST_CALL, self.store.watch(&self.queue)).await.unwrap_or_else(|_| Watch::by_asking())
                }
            };
            // Something may have been told before the watch began.
            if !watching.begins() {
                let longest = if watching.is_by_asking() { ASK_AGAIN } else { LONGEST_SLEEP };
                let sleep = next_in.map_or(longest, |next| (next + Duration::from_millis(1)).min(longest));
                race(watching.told(b""), time::sleep(sleep)).await;
            }
            watch = Some(watching).filter(|watching| !watching.is_by_asking());
        }
    }

    /// Lists jobs that were buried, those first that were last.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// It only asks.
    pub async fn dead(&self, most: u32) -> Result<Vec<DeadJob>, Error> {
        in_time(LONGEST_CALL, self.store.list(&self.queue, most)).await
    }

    /// Lets a buried job be claimed again, as if it never had been; returns false if there is none of that id.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, it may have happened.
    pub async fn requeue(&self, id: &str) -> Result<bool, Error> {
        in_time(LONGEST_CALL, self.store.requeue(&self.queue, id)).await
    }

    async fn ask(&self, most: u32) -> Result<(Vec<Claim>, Option<Duration>), Error> {
        let visibility = self.visibility;
        if !(SHORTEST_VISIBILITY..=LONGEST_VISIBILITY).contains(&visibility) || !(1..=MOST_JOBS).contains(&most) {
            return Err(Error::invalid(format!(
                "a claim of {most} jobs for {visibility:?}: must be 1 to {MOST_JOBS}, from {SHORTEST_VISIBILITY:?} to \
                 {LONGEST_VISIBILITY:?}"
            )));
        }
        let token = Token::random()?;
        let sent = self.store.clock().now();
        let ask = ClaimAsk::new(token, most, visibility, self.max_attempts);
        let Claimed { jobs, next_in } = in_time(call_deadline(visibility), self.store.claim(&self.queue, &ask)).await?;
        let claims = jobs.into_iter().map(|job| Claim::new(self, job, token, sent)).collect();
        Ok((claims, next_in))
    }
}

/// A job that this worker works on. It is renewed for as long as this lives.
///
/// Dropped without an answer, as by a worker that dies, the job comes back when its claim has ended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Memory, lease::Claims};
///
/// let jobs = Claims::new(&Memory::new(), "mails");
/// jobs.push(b"to: user 42").await?;
/// let claim = jobs.claim().await?;
/// assert_eq!((claim.payload(), claim.attempt()), (&b"to: user 42"[..], 1));
/// claim.ack().await?;
/// assert!(jobs.try_claim().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[must_use = "a claim that is dropped comes back later, and counts as an attempt"]
pub struct Claim {
    store: Arc<dyn QueueStore>,
    queue: Key,
    job: Job,
    token: Token,
    visibility: Duration,
    hold: Arc<Hold>,
    heartbeat: AbortHandle,
}

impl Claim {
    fn new(claims: &Claims, job: Job, token: Token, sent: Duration) -> Self {
        let Claims { store, queue, visibility, .. } = claims.clone();
        let hold = Arc::new(Hold::new(store.clock(), sent, visibility, None));
        let heartbeat = tokio::spawn({
            let (store, hold, id) = (Arc::clone(&store), Arc::clone(&hold), job.id.clone());
            async move { renew(&hold, visibility, token, || store.extend(&queue, &id, token, visibility)).await }
        });
        Self { store, queue, job, token, visibility, hold, heartbeat: heartbeat.abort_handle() }
    }

    /// Returns what tells the job from others in its queue.
    pub fn id(&self) -> &str {
        &self.job.id
    }

    /// Returns what the job carries.
    pub fn payload(&self) -> &[u8] {
        &self.job.payload
    }

    /// Returns which attempt this is, counted from one.
    pub fn attempt(&self) -> u32 {
        self.job.attempt
    }

    /// Returns the fence, greater than those of all claims of this job before.
    pub fn fence(&self) -> Fence {
        self.job.fence
    }

    /// Fails if the claim has ended: to ask right before something that cannot be taken back.
    ///
    /// # Errors
    ///
    /// If it has ([`Error::is_lost`]).
    pub fn check(&self) -> Result<(), Error> {
        self.hold.left().map(drop).map_err(Error::from)
    }

    /// Waits until the claim is lost, and returns why.
    ///
    /// # Cancel safety
    ///
    /// It only waits.
    pub async fn lost(&self) -> Lost {
        self.hold.lost().await
    }

    /// Removes the job, which is done.
    ///
    /// # Errors
    ///
    /// If the claim was lost, so that somebody else may work on the job ([`Error::is_lost`]), or the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the job may be removed; if it is not, it comes back.
    pub async fn ack(self) -> Result<(), Error> {
        self.settle(self.store.ack(&self.queue, &self.job.id, self.token)).await
    }

    /// Puts the job back, to be claimed again after a time.
    ///
    /// # Errors
    ///
    /// As [`ack`](Self::ack).
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the job comes back at the latest when the claim has ended.
    pub async fn nack(self, after: Duration) -> Result<(), Error> {
        self.settle(self.store.nack(&self.queue, &self.job.id, self.token, after)).await
    }

    /// Puts the job with the dead, since it can never be done.
    ///
    /// # Errors
    ///
    /// As [`ack`](Self::ack).
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the job may be buried; if it is not, it comes back.
    pub async fn bury(self, reason: &str) -> Result<(), Error> {
        self.settle(self.store.bury(&self.queue, &self.job.id, self.token, reason)).await
    }

    async fn settle(&self, answer: super::Reply<bool>) -> Result<(), Error> {
        match in_time(call_deadline(self.visibility), answer).await? {
            true => Ok(()),
            false => Err(Lost::Taken.into()),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, attempt) = (&self.job.id, self.job.attempt);
        f.debug_struct("Claim").field("id", id).field("attempt", &attempt).finish_non_exhaustive()
    }
}

/// Long enough for a pause of some seconds, short enough to wait for after a crash.
const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);
const SHORTEST_VISIBILITY: Duration = Duration::from_millis(20);
const LONGEST_VISIBILITY: Duration = Duration::from_secs(86_400);

/// What fails five times fails for a reason.
const DEFAULT_ATTEMPTS: u32 = 5;

/// A call's work is bounded.
const MOST_JOBS: u32 = 1_000;
const LONGEST_ID: usize = 256;

const LONGEST_CALL: Duration = Duration::from_secs(1);

/// When to ask again if nothing is told.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Asks in between even if it should be told, whatever goes wrong.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

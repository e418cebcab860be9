//! Decisions that wait at the same moment travel in one script call.
//!
//! Each runtime has a queue and a task that empties it. A decision that finds no call under way goes at once; while
//! [`CALLS`] are under way, those that come are gathered for the next. So nobody waits for company, and the busier
//! it gets the more of them share a call.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{
    connect::Connection,
    limit::{Asked, Names, fits, merge_hash},
};
use crate::{error::Error, limit::Decision};

/// A decision that waits for its turn.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) asked: Asked,
    pub(super) answer: oneshot::Sender<Result<Decision, Error>>,
}

/// The decisions that wait, first come first served.
#[derive(Default)]
pub(super) struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// The task that empties the queue, while it has nothing to do.
    idle: Option<Waker>,
}

impl Queue {
    pub(super) fn push(&self, job: Job) {
        let mut waiting = self.lock();
        waiting.jobs.push_back(job);
        let idle = waiting.idle.take();
        drop(waiting);
        if let Some(idle) = idle {
            idle.wake();
        }
    }

    /// Answers everybody who waits that nothing can be found out.
    pub(super) fn fail(&self, error: &Error) {
        let jobs = mem::take(&mut self.lock().jobs);
        for job in jobs {
            let _ = job.answer.send(Err(error.clone()));
        }
    }

    /// Takes the next jobs, leaving out those that nobody waits for any more.
    fn take(&self, cx: &Context<'_>) -> Vec<Job> {
        let mut waiting = self.lock();
        let mut jobs = Vec::with_capacity(waiting.jobs.len().min(MOST_KEYS));
        let mut keys = 0;
        while keys < MOST_KEYS {
            let Some(job) = waiting.jobs.pop_front() else { break };
            if !job.answer.is_closed() {
                keys += job.asked.len();
                jobs.push(job);
            }
        }
        if jobs.is_empty() {
            waiting.idle = Some(cx.waker().clone());
        }
        jobs
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Empties a queue over one connection, for as long as it is polled.
pub(super) struct Batches<'a> {
    queue: &'a Queue,
    names: &'a Names,
    connection: Connection,
    calls: [Option<Pin<Box<dyn Future<Output = ()> + Send>>>; CALLS],
}

impl<'a> Batches<'a> {
    pub(super) fn new(queue: &'a Queue, names: &'a Names, connection: Connection) -> Self {
        Self { queue, names, connection, calls: [const { None }; CALLS] }
    }
}

impl Future for Batches<'_> {
    type Output = ();

    /// Never ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        for slot in &mut this.calls {
            loop {
                if let Some(call) = slot {
                    if call.as_mut().poll(cx).is_pending() {
                        break;
                    }
                    *slot = None;
                }
                let jobs = this.queue.take(cx);
                if jobs.is_empty() {
                    break;
                }
                *slot = Some(Box::pin(decide(this.connection.clone(), this.names.clone(), jobs)));
            }
        }
        Poll::Pending
    }
}

/// Decides on all jobs in one call, and answers each.
async fn decide(connection: Connection, names: Names, jobs: Vec<Job>) {
    let groups = gather(jobs);
    let requests = groups.iter().map(|group| (&group[0].asked, group.len()));
    let answer = connection.decide(&names, None, requests).await;
    let mut reply = answer.as_ref().map_err(Clone::clone).and_then(|reply| connection.read(reply));
    for group in groups {
        let mut finding = match &mut reply {
            Ok(reply) => reply.next(&group[0].asked),
            Err(error) => Err(error.clone()),
        };
        let mut more = group.len();
        for job in group {
            more -= 1;
            let answer = finding.as_mut().map_err(|error| error.clone()).map(|finding| finding.decide(&job.asked));
            // Charges that are entries are told one by one, up to the first that was refused.
            let admitted = answer.as_ref().is_ok_and(Decision::is_allowed);
            if let (Ok(found), Ok(reply)) = (&finding, &mut reply)
                && found.is_followed_by_another()
                && admitted
                && more > 0
            {
                finding = reply.next(&job.asked);
            }
            // Who is not there any more needs no answer.
            let _ = job.answer.send(answer);
        }
    }
}

/// Requests that are one in the script: they ask the same, for the same subject.
type Group = SmallVec<[Job; 1]>;

/// Gathers jobs that can be decided by one addition, in the order of their first.
fn gather(jobs: Vec<Job>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::with_capacity(jobs.len());
    // Where a group of this hash is; a later one of the same hash takes its place, and the earlier grows no more.
    let mut places = [usize::MAX; PLACES];
    for job in jobs {
        let Some(hash) = merge_hash(&job.asked) else {
            groups.push(SmallVec::from_buf([job]));
            continue;
        };
        let place = &mut places[usize::try_from(hash % PLACES as u64).expect("a small remainder")];
        match groups.get_mut(*place) {
            Some(group) if group[0].asked == job.asked && fits(&job.asked, group.len() + 1) => group.push(job),
            _ => {
                *place = groups.len();
                groups.push(SmallVec::from_buf([job]));
            }
        }
    }
    groups
}

/// The calls that are under way at most. One more than one keeps the server busy while an answer is on its way.
const CALLS: usize = 2;

/// The keys of one call at most: some hundred microseconds of the server's time.
const MOST_KEYS: usize = 256;

/// Places to look for a request that asks the same: enough that a call's requests seldom push each other out.
const PLACES: usize = 512;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Memory, clock::micros};
use crate::{
    error::Error,
    key::Key,
    lease::{self, ClaimAsk, Claimed, DeadJob, Job, LeaseStore, NewJob, Notices, QueueStore, Reply, Token, Watch},
    limit::Micros,
};

/// All queues of a store in memory.
pub(super) struct Queues {
    notices: Notices,
    most: usize,
    table: Mutex<HashMap<Key, Queue>>,
}

#[derive(Default)]
struct Queue {
    jobs: HashMap<String, Kept>,
    /// By priority, the greatest first, and the order in which they came.
    ready: BTreeSet<(u8, u64, String)>,
    /// By the time at which they are ready.
    delayed: BTreeSet<(Micros, String)>,
    /// By the time at which their claims end.
    claimed: BTreeSet<(Micros, String)>,
    dead: BTreeSet<(u64, String)>,
    number: u64,
}

struct Kept {
    payload: Vec<u8>,
    priority: u8,
    attempts: u32,
    fence: u64,
    claim: Option<(Token, Micros)>,
    /// When it died, in the order of all, and why.
    death: Option<(u64, String)>,
}

impl Queues {
    pub(super) fn new(most: usize) -> Self {
        Self { notices: Notices::default(), most, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Queue>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, name: &Key, job: &NewJob, now: Micros) -> Result<bool, Error> {
        let mut table = self.lock();
        let count: usize = table.values().map(|queue| queue.jobs.len()).sum();
        let queue = table.entry(*name).or_default();
        if queue.jobs.contains_key(&job.id) {
            return Ok(false);
        }
        if count >= self.most {
            return Err(Error::store("memory is full of jobs; set Memory::max_keys"));
        }
        let kept = Kept {
            payload: job.payload.clone(),
            priority: job.priority,
            attempts: 0,
            fence: 0,
            claim: None,
            death: None,
        };
        queue.jobs.insert(job.id.clone(), kept);
        if job.delay.is_zero() {
            queue.make_ready(job.id.clone());
        } else {
            queue.delayed.insert((now.saturating_add(micros(job.delay)), job.id.clone()));
        }
        drop(table);
        self.notices.tell(name.as_bytes(), None);
        Ok(true)
    }

    fn claim(&self, name: &Key, ask: &ClaimAsk, now: Micros) -> Claimed {
        let mut table = self.lock();
        let Some(queue) = table.get_mut(name) else { return Claimed::default() };
        queue.put_back(ask.most_attempts, now);
        let until = now.saturating_add(micros(ask.visibility));
        let mut jobs = Vec::new();
        for _ in 0..ask.most {
            let Some((_, _, id)) = queue.ready.pop_first() else { break };
            let Some(kept) = queue.jobs.get_mut(&id) else { continue };
            kept.attempts = kept.attempts.saturating_add(1);
            kept.fence = (kept.fence + 1).max(now);
            kept.claim = Some((ask.token, until));
            jobs.push(Job::new(id.clone(), kept.payload.clone(), kept.attempts, kept.fence.into()));
            queue.claimed.insert((until, id));
        }
        let firsts = [queue.delayed.first(), queue.claimed.first()];
        let next = firsts.into_iter().flatten().map(|(at, _)| Duration::from_micros(at.saturating_sub(now))).min();
        let next = next.filter(|_| jobs.is_empty());
        Claimed::new(jobs, next)
    }

    /// Does something with a job whose claim is still on, which ends it.
    fn settle(&self, name: &Key, id: &str, token: Token, now: Micros, act: impl FnOnce(&mut Queue, String)) -> bool {
        let mut table = self.lock();
        let Some(queue) = table.get_mut(name) else { return false };
        let Some(kept) = queue.jobs.get_mut(id) else { return false };
        let Some((_, until)) = kept.claim.filter(|(holder, until)| *holder == token && *until > now) else {
            return false;
        };
        kept.claim = None;
        queue.claimed.remove(&(until, id.to_owned()));
        act(queue, id.to_owned());
        if queue.jobs.is_empty() {
            table.remove(name);
        }
        true
    }
}

impl Queue {
    fn make_ready(&mut self, id: String) {
        let Some(kept) = self.jobs.get(&id) else { return };
        self.number += 1;
        self.ready.insert((u8::MAX - kept.priority, self.number, id));
    }

    fn put_back(&mut self, most_attempts: u32, now: Micros) {
        while let Some((_, id)) = take_due(&mut self.delayed, now) {
            self.make_ready(id);
        }
        while let Some((_, id)) = take_due(&mut self.claimed, now) {
            let Some(kept) = self.jobs.get_mut(&id) else { continue };
            kept.claim = None;
            if kept.attempts >= most_attempts {
                self.bury(id, "its claims ended unanswered");
            } else {
                self.make_ready(id);
            }
        }
    }

    fn bury(&mut self, id: String, reason: &str) {
        let Some(kept) = self.jobs.get_mut(&id) else { return };
        self.number += 1;
        kept.death = Some((self.number, reason.to_owned()));
        self.dead.insert((self.number, id));
    }
}

fn take_due(set: &mut BTreeSet<(Micros, String)>, now: Micros) -> Option<(Micros, String)> {
    set.first().filter(|(at, _)| *at <= now)?;
    set.pop_first()
}

impl QueueStore for Memory {
    fn push(&self, queue: &Key, job: &NewJob) -> Reply<bool> {
        Reply::ready(self.queues.push(queue, job, self.clock.now()))
    }

    fn claim(&self, queue: &Key, ask: &ClaimAsk) -> Reply<Claimed> {
        Reply::ready(Ok(self.queues.claim(queue, ask, self.clock.now())))
    }

    fn extend(&self, queue: &Key, id: &str, token: Token, visibility: Duration) -> Reply<bool> {
        let now = self.clock.now();
        let until = now.saturating_add(micros(visibility));
        Reply::ready(Ok(self.queues.settle(queue, id, token, now, |queue, id| {
            if let Some(kept) = queue.jobs.get_mut(&id) {
                kept.claim = Some((token, until));
            }
            queue.claimed.insert((until, id));
        })))
    }

    fn ack(&self, queue: &Key, id: &str, token: Token) -> Reply<bool> {
        let remove = |queue: &mut Queue, id: String| _ = queue.jobs.remove(&id);
        Reply::ready(Ok(self.queues.settle(queue, id, token, self.clock.now(), remove)))
    }

    fn nack(&self, queue: &Key, id: &str, token: Token, after: Duration) -> Reply<bool> {
        let now = self.clock.now();
        let due = now.saturating_add(micros(after));
        let done = self.queues.settle(queue, id, token, now, |queue, id| _ = queue.delayed.insert((due, id)));
        if done {
            self.queues.notices.tell(queue.as_bytes(), None);
        }
        Reply::ready(Ok(done))
    }

    fn bury(&self, queue: &Key, id: &str, token: Token, reason: &str) -> Reply<bool> {
        let bury = |queue: &mut Queue, id: String| queue.bury(id, reason);
        Reply::ready(Ok(self.queues.settle(queue, id, token, self.clock.now(), bury)))
    }

    fn list(&self, queue: &Key, most: u32) -> Reply<Vec<DeadJob>> {
        let table = self.queues.lock();
        let Some(queue) = table.get(queue) else { return Reply::ready(Ok(Vec::new())) };
        let jobs = queue.dead.iter().rev().take(usize::try_from(most).unwrap_or(usize::MAX)).filter_map(|(_, id)| {
            let kept = queue.jobs.get(id)?;
            let reason = kept.death.as_ref().map_or(String::new(), |(_, reason)| reason.clone());
            Some(DeadJob::new(id.clone(), kept.payload.clone(), kept.attempts, reason))
        });
        Reply::ready(Ok(jobs.collect()))
    }

    fn requeue(&self, name: &Key, id: &str) -> Reply<bool> {
        let mut table = self.queues.lock();
        let found = table.get_mut(name).and_then(|queue| {
            let kept = queue.jobs.get_mut(id)?;
            let (number, _) = kept.death.take()?;
            kept.attempts = 0;
            queue.dead.remove(&(number, id.to_owned()));
            queue.make_ready(id.to_owned());
            Some(())
        });
        drop(table);
        if found.is_some() {
            self.queues.notices.tell(name.as_bytes(), None);
        }
        Reply::ready(Ok(found.is_some()))
    }

    fn watch(&self, queue: &Key) -> Reply<Watch> {
        Reply::ready(Ok(Watch::of(self.queues.notices.listen(queue))))
    }

    fn clock(&self) -> lease::Clock {
        LeaseStore::clock(self)
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").field("count", &self.lock().len()).finish_non_exhaustive()
    }
}

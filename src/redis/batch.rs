//! Decisions that wait at the same moment travel in one script call.
//!
//! Each runtime has a queue and a task that empties it. A decision that finds no call under way goes at once; while
//! [`CALLS`] are under way, those that come are gathered for the next. So nobody waits for company, and the busier
//! it gets the more of them share a call.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::{Pin, pin},
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use redis::Value;
use tokio::{
    task,
    time::{self, Instant, Sleep},
};

use super::{
    connect::CALL_TIMEOUT,
    limit::{Asked, Names, Part, Reply, Request, fits, merge_hash},
};
use crate::{
    error::Error,
    limit::{Answer, Outcome, Promise},
};

/// A decision that waits for its turn.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) asked: Asked,
    pub(super) promise: Promised,
}

/// What was promised to who waits.
#[derive(Debug)]
pub(super) enum Promised {
    Decision(Promise),
    /// A part of a decision; nothing, if that has to be cut further.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "one server decides on all"))]
    Part(Promise<Option<Part>>),
}

impl Promised {
    pub(super) fn fail(self, error: Error) {
        match self {
            Self::Decision(promise) => promise.keep(Err(error)),
            Self::Part(promise) => promise.keep(Err(error)),
        }
    }

    pub(super) fn is_pointless(&self) -> bool {
        match self {
            Self::Decision(promise) => promise.is_pointless(),
            Self::Part(promise) => promise.is_pointless(),
        }
    }
}

/// Carries batches to the server that decides on them.
pub(super) trait Carrier: Clone + Send + Sync {
    /// Has requests decided by one script call, which is sent again only while it is wanted.
    fn decide<'r>(
        &self,
        names: &Names,
        requests: impl Iterator<Item = Request<'r>> + Clone + Send,
        is_wanted: impl Fn() -> bool + Send + Sync,
    ) -> impl Future<Output = Result<Value, Undone>> + Send;

    /// Begins to read what was answered.
    fn read<'v>(&self, reply: &'v Value) -> Result<Reply<'v>, Error>;

    /// Has jobs decided whose keys are [scattered](Undone::Scattered). On one server they never are.
    fn decide_scattered(&self, jobs: Vec<Job>) -> impl Future<Output = ()> + Send {
        async {
            jobs.into_iter().for_each(|job| job.promise.fail(Error::store("the keys of a decision are scattered")));
        }
    }
}

/// Why something was not done, or may not have been.
pub(super) enum Undone {
    Failed(Error),
    /// It was not: some of the keys have moved to another server, and others not yet.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "one server has all keys"))]
    Scattered,
}

impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The decisions that wait, first come first served.
#[derive(Default)]
pub(super) struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// The task that empties the queue, while it has nothing to do.
    idle: Option<Waker>,
    /// Why nobody need wait at present.
    down: Option<Error>,
}

impl Queue {
    /// Puts a request in line; fails at once while there is no connection to be had.
    pub(super) fn push(&self, asked: Asked) -> Answer {
        self.push_promised(asked, Promised::Decision)
    }

    /// Puts a request in line to which something is promised.
    pub(super) fn push_promised<T>(&self, asked: Asked, promised: impl FnOnce(Promise<T>) -> Promised) -> Answer<T> {
        let mut waiting = self.lock();
        if let Some(error) = &waiting.down {
            return Answer::ready(Err(error.clone()));
        }
        let (promise, answer) = Answer::promised();
        waiting.jobs.push_back(Job { asked, promise: promised(promise) });
        let idle = waiting.idle.take();
        drop(waiting);
        if let Some(idle) = idle {
            idle.wake();
        }
        answer
    }

    /// Answers everybody who waits, and who comes from now on, that nothing can be found out.
    pub(super) fn close(&self, error: &Error) {
        let mut waiting = self.lock();
        waiting.down = Some(error.clone());
        let jobs = mem::take(&mut waiting.jobs);
        drop(waiting);
        for job in jobs {
            job.promise.fail(error.clone());
        }
    }

    /// Lets requests wait again.
    pub(super) fn open(&self) {
        self.lock().down = None;
    }

    /// Takes the next jobs, leaving out those that nobody waits for any more.
    ///
    /// With those that are under way they are shared out among the calls, so that the server works on one part
    /// while the answers to the other are read.
    fn take(&self, under_way: usize, cx: &Context<'_>) -> Batch {
        let mut waiting = self.lock();
        loop {
            let share = (under_way + waiting.jobs.len()).div_ceil(CALLS);
            let mut keys = 0;
            let fitting = waiting.jobs.iter().take(share).take_while(|job| {
                let fits = keys < MOST_KEYS;
                keys += job.asked.len();
                fits
            });
            let count = fitting.count();
            let mut batch = Batch { asked: Vec::with_capacity(count), promises: Vec::with_capacity(count) };
            for job in waiting.jobs.drain(..count).filter(|job| !job.promise.is_pointless()) {
                batch.asked.push(job.asked);
                batch.promises.push(Some(job.promise));
            }
            if !batch.asked.is_empty() {
                return batch;
            }
            if waiting.jobs.is_empty() {
                waiting.idle = Some(cx.waker().clone());
                return batch;
            }
        }
    }

    /// Returns how many wait.
    fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Jobs that travel together. A promise is there until it is kept.
struct Batch {
    asked: Vec<Asked>,
    promises: Vec<Option<Promised>>,
}

/// Empties a queue by one carrier, for as long as it is polled.
pub(super) struct Batches<'a, C> {
    queue: &'a Queue,
    names: &'a Names,
    carrier: C,
    /// The oldest first, which is answered first.
    calls: Vec<UnderWay>,
    /// Whether others were let run before the next call goes, so that they may join it.
    has_yielded: bool,
    /// Polls calls whose time is up. It is set at most once in that time, since a timer costs as much as a call.
    alarm: Pin<Box<Sleep>>,
}

/// A call that waits for its answer.
struct UnderWay {
    call: Pin<Box<dyn Future<Output = ()> + Send>>,
    jobs: usize,
    sent: Instant,
}

impl<'a, C: Carrier + 'static> Batches<'a, C> {
    pub(super) fn new(queue: &'a Queue, names: &'a Names, carrier: C) -> Self {
        let alarm = Box::pin(time::sleep(CALL_TIMEOUT));
        Self { queue, names, carrier, calls: Vec::with_capacity(CALLS), has_yielded: false, alarm }
    }

    /// Sends what waits; returns true if it is to go on when others have run.
    fn send(&mut self, cx: &mut Context<'_>) -> bool {
        while self.calls.len() < CALLS {
            let under_way = self.calls.iter().map(|under_way| under_way.jobs).sum();
            // While the server is at work, a call much smaller than the one before it is held back for a turn.
            if !mem::replace(&mut self.has_yielded, true) && (1..under_way).contains(&self.queue.len()) {
                return true;
            }
            self.has_yielded = false;
            let batch = self.queue.take(under_way, cx);
            let jobs = batch.asked.len();
            if jobs == 0 {
                return false;
            }
            let call = Box::pin(decide(self.carrier.clone(), self.names.clone(), batch));
            let mut under_way = UnderWay { call, jobs, sent: Instant::now() };
            if under_way.call.as_mut().poll(cx).is_pending() {
                self.calls.push(under_way);
            }
        }
        false
    }

    /// Has the oldest call polled when its time is up.
    fn set_alarm(&mut self, cx: &mut Context<'_>) {
        while let Some(oldest) = self.calls.first()
            && self.alarm.as_mut().poll(cx).is_ready()
        {
            let up = oldest.sent + CALL_TIMEOUT;
            self.alarm.as_mut().reset(up.max(Instant::now() + Duration::from_millis(1)));
        }
    }
}

impl<C: Carrier + Unpin + 'static> Future for Batches<'_, C> {
    type Output = ();

    /// Never ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut goes_on = self.send(cx);
        // One at a time: who had its answer asks again, and is on the way to the server before the next answer is
        // read. Else both calls would go together and come back together, and the server and its clients would wait
        // for each other in turn.
        let ended = self.calls.iter_mut().position(|under_way| under_way.call.as_mut().poll(cx).is_ready());
        if let Some(ended) = ended {
            drop(self.calls.remove(ended));
            // The only one needs not go on: it is woken by who comes next.
            goes_on |= !self.calls.is_empty() || self.queue.len() > 0;
        }
        self.set_alarm(cx);
        if goes_on {
            // Behind all that can run, also what does not run in a task of its own.
            let _ = pin!(task::yield_now()).poll(cx);
        }
        Poll::Pending
    }
}

/// Decides on all jobs in one call, and answers each.
async fn decide<C: Carrier>(carrier: C, names: Names, Batch { asked, mut promises }: Batch) {
    let groups = gather(&asked);
    let requests = groups.firsts.iter().map(|(first, times)| (&asked[*first], *times));
    let is_wanted = || promises.iter().flatten().any(|promise| !promise.is_pointless());
    let answer = match carrier.decide(&names, requests, is_wanted).await {
        Ok(answer) => Ok(answer),
        Err(Undone::Failed(error)) => Err(error),
        Err(Undone::Scattered) => {
            let jobs = asked.into_iter().zip(promises.into_iter().flatten());
            return carrier.decide_scattered(jobs.map(|(asked, promise)| Job { asked, promise }).collect()).await;
        }
    };
    let mut reply = answer.as_ref().map_err(Clone::clone).and_then(|reply| carrier.read(reply));
    for (first, times) in groups.firsts {
        let mut finding = match &mut reply {
            Ok(reply) => reply.next(&asked[first]),
            Err(error) => Err(error.clone()),
        };
        let mut place = first;
        for more in (0..times).rev() {
            let promise = promises[place].take().expect("each is in one group");
            let asked = &asked[place];
            let before = match (&finding, &promise) {
                (Ok(finding), Promised::Part(_)) => Some(finding.clone()),
                _ => None,
            };
            let answer = finding.as_mut().map_err(|error| error.clone()).map(|finding| finding.decide(asked));
            // Charges that are entries are told one by one, up to the first that was refused.
            if let (Ok(found), Ok(reply)) = (&finding, &mut reply)
                && found.is_followed_by_another()
                && answer.as_ref().is_ok_and(|decision| decision.outcomes().iter().all(Outcome::is_allowed))
                && more > 0
            {
                finding = reply.next(asked);
            }
            match promise {
                Promised::Decision(promise) => promise.keep(answer),
                Promised::Part(promise) => promise.keep(answer.map(|decision| Part::new(before, decision))),
            }
            place = groups.nexts.get(place).copied().unwrap_or(place);
        }
    }
}

/// Jobs whose requests are one in the script: they ask the same, for the same subject.
struct Groups {
    /// Of each group its first job, and how many there are.
    firsts: Vec<(usize, usize)>,
    /// Of each job the next of its group, if there is one.
    nexts: Vec<usize>,
}

/// Gathers jobs that can be decided by one addition, in the order of their first.
fn gather(all: &[Asked]) -> Groups {
    let mut groups = Groups { firsts: Vec::with_capacity(all.len()), nexts: (0..all.len()).collect() };
    // The latest group of each hash and its last job, found by open addressing in twice as many places.
    let mut places = vec![None::<(usize, usize)>; (2 * all.len()).next_power_of_two()];
    for (i, asked) in all.iter().enumerate() {
        let mut group = None;
        if let Some(hash) = merge_hash(asked) {
            let mut at = usize::try_from(hash % places.len() as u64).expect("a small remainder");
            while let Some((place, _)) = places[at]
                && all[groups.firsts[place].0] != *asked
            {
                at = (at + 1) % places.len();
            }
            group = Some(at);
        }
        let known = group.and_then(|at| places[at]);
        match known {
            Some((place, last)) if fits(asked, groups.firsts[place].1 + 1) => {
                groups.firsts[place].1 += 1;
                groups.nexts[last] = i;
                places[group.expect("it was found there")] = Some((place, i));
            }
            _ => {
                if let Some(at) = group {
                    places[at] = Some((groups.firsts.len(), i));
                }
                groups.firsts.push((i, 1));
            }
        }
    }
    groups
}

/// The calls that are under way at most. One more than one keeps the server busy while an answer is on its way.
const CALLS: usize = 2;

/// The keys of one call at most: some hundred microseconds of the server's time.
const MOST_KEYS: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::{sync::oneshot, task::LocalSet};

    use super::*;
    use crate::limit::{Demand, Policy, Quota};

    /// Holds calls back until they are let go, and writes down what happens.
    #[derive(Clone, Default)]
    struct Held {
        calls: Arc<Mutex<Vec<oneshot::Sender<()>>>>,
        log: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Held {
        fn note(&self, what: &'static str) {
            self.log.lock().unwrap().push(what);
        }

        async fn has_sent(&self, calls: usize) {
            while self.calls.lock().unwrap().len() < calls {
                task::yield_now().await;
            }
        }
    }

    impl Carrier for Held {
        async fn decide<'r>(
            &self,
            _: &Names,
            _: impl Iterator<Item = Request<'r>> + Clone + Send,
            _: impl Fn() -> bool + Send + Sync,
        ) -> Result<Value, Undone> {
            let (let_go, held) = oneshot::channel();
            self.note("sent");
            self.calls.lock().unwrap().push(let_go);
            held.await.expect("it is let go");
            Err(Error::store("an answer").into())
        }

        fn read<'v>(&self, _: &'v Value) -> Result<Reply<'v>, Error> {
            unreachable!("it is an error")
        }
    }

    static POLICY: Policy = Policy::token_bucket("bucket", Quota::per_second(10));

    /// Two calls whose answers come together would go together again, and server and client wait for each other.
    #[tokio::test]
    async fn who_was_answered_asks_again_before_the_next_answer_is_read() {
        let (held, queue) = (Held::default(), Arc::new(Queue::default()));
        // In a task of its own, as in earnest; who asks runs in another that is not the runtime's.
        let batches = tokio::spawn({
            let (held, queue) = (held.clone(), Arc::clone(&queue));
            let names = Names { prefix: "test".into(), buckets: 1, apart: false, by_key: false };
            async move { Batches::new(&queue, &names, held).await }
        });
        let askers = LocalSet::new();
        for asker in 0..4u32 {
            let (held, queue) = (held.clone(), Arc::clone(&queue));
            askers.spawn_local(async move {
                for _ in 0..2 {
                    let demand = Demand::new(&POLICY, asker);
                    let _ = queue.push([&demand].into_iter().map(Into::into).collect()).await;
                    held.note("answered");
                }
            });
        }
        let script = async {
            held.has_sent(2).await;
            held.log.lock().unwrap().clear();
            for call in held.calls.lock().unwrap().drain(..) {
                call.send(()).expect("it waits");
            }
            held.has_sent(2).await;
            held.log.lock().unwrap().clone()
        };
        let log = tokio::select! {
            log = script => log,
            _ = batches => unreachable!("it is never ready"),
            () = askers => unreachable!("they wait"),
            () = time::sleep(Duration::from_secs(5)) => panic!("nothing goes on"),
        };
        assert_eq!(log, ["answered", "answered", "sent", "answered", "answered", "sent"]);
    }
}

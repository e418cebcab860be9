//! Processes that share one store, on virtual time: calls take time, fail and get lost, and all is written down.

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tollgate::{
    Decision, Demand, Error, Key, Limiter, ManualClock, Memory, Policy,
    limit::{Adjustment, Algorithm, Answer, Charge, Receipt, Store},
};

/// A store that is reached over a network, by any number of processes.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    net: Arc<Net>,
}

/// How the network is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// The time to the store and back is each up to this much, and at least half of it.
    pub(crate) trip: Duration,
    /// Of a hundred calls, so many fail while the store is out of order: some before, some after they took effect.
    pub(crate) failing: u64,
    /// From when to when, in milliseconds since the start, it is out of order.
    pub(crate) out: (u64, u64),
}

#[derive(Debug)]
struct Net {
    /// What the store decides by.
    store: Limiter,
    clock: ManualClock,
    started: Instant,
    weather: Weather,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    random: Random,
    /// How far the store's clock has been moved.
    moved: Duration,
    charges: HashMap<u64, Charge>,
    log: Log,
}

/// What has happened, in the order in which it was decided.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    next: u64,
    events: Vec<(u64, u64, Event)>,
    /// When the store's fixed windows end, in milliseconds.
    ends: Vec<u64>,
    /// How often the store was asked.
    pub(crate) calls: u64,
}

/// When something was decided: its place in the order, and the store's time in microseconds.
type Stamp = (u64, u64);

#[derive(Clone, Copy, Debug)]
enum Event {
    Admitted(u64),
    Refused(u64),
    /// Charged, and neither spent nor given back for good.
    Lost(u64),
}

tokio::task_local! {
    /// When the store decided on the request of this task.
    static DECIDED: Cell<Option<Stamp>>;
}

impl Fleet {
    pub(crate) fn new(weather: Weather, seed: u64) -> Self {
        let (memory, clock) = Memory::manual();
        let inner =
            Inner { random: Random::new(seed), moved: Duration::ZERO, charges: HashMap::new(), log: Log::default() };
        let store = Limiter::new(memory);
        let net = Net { store, clock, started: Instant::now(), weather, inner: Mutex::new(inner) };
        Self { net: Arc::new(net) }
    }

    /// Starts a process.
    pub(crate) fn process(&self) -> Process {
        let alive = Arc::new(AtomicBool::new(true));
        let limiter = Limiter::new(Wire { net: Arc::clone(&self.net), alive: Arc::clone(&alive) });
        Process { limiter, alive, net: Arc::clone(&self.net) }
    }

    pub(crate) fn log(&self) -> Log {
        self.net.lock().log.clone()
    }
}

/// One of the fleet.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) limiter: Limiter,
    alive: Arc<AtomicBool>,
    net: Arc<Net>,
}

impl Process {
    /// Asks for units, and writes down what came of it.
    pub(crate) async fn ask(&self, policy: &Policy, subject: &'static str, cost: u64) -> Decision {
        let demand = [Demand::new(policy, subject).cost(cost)];
        DECIDED
            .scope(Cell::new(None), async {
                let (decision, _) = self.limiter.decide(&demand).await;
                let by_store = DECIDED.with(Cell::get);
                let mut inner = self.net.lock();
                match by_store {
                    Some(stamp) if decision.is_allowed() => inner.log.add(stamp, Event::Admitted(cost)),
                    Some(stamp) if !decision.is_degraded() => inner.log.add(stamp, Event::Refused(cost)),
                    None if decision.is_allotted() => {
                        let stamp = inner.stamp(&self.net);
                        inner.log.add(stamp, Event::Admitted(cost));
                    }
                    // Not admitted, and not for want of units: the store did not answer, or its last refusal holds.
                    _ => {}
                }
                decision
            })
            .await
    }

    /// Ends the process: nothing that it does reaches the store any more.
    pub(crate) fn crash(&self) {
        self.alive.store(false, Ordering::Relaxed);
    }
}

impl Net {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it is locked")
    }

    /// Returns the times to the store and back, and what goes wrong.
    fn trip(&self) -> (Duration, Duration, Fate) {
        let mut inner = self.lock();
        inner.log.calls += 1;
        let micros = u64::try_from(self.weather.trip.as_micros()).expect("a short time");
        let mut way = || Duration::from_micros(micros / 2 + inner.random.below(micros / 2 + 1));
        let (there, back) = (way(), way());
        let since = u64::try_from(self.started.elapsed().as_millis()).expect("a short time");
        let out = self.weather.out.0 <= since && since < self.weather.out.1;
        let fate = match inner.random.below(100) < self.weather.failing {
            true if out && inner.random.below(2) == 0 => Fate::Lost,
            true if out => Fate::Unheard,
            _ => Fate::Good,
        };
        (there, back, fate)
    }

    fn decide(&self, policy: &Policy, subject: Key, cost: u64) -> (Decision, Stamp) {
        let mut inner = self.lock();
        let stamp = inner.stamp(self);
        let (decision, charge) = at_once(self.store.decide(&[Demand::new(policy, subject).cost(cost)]));
        if !decision.is_allowed() {
            return (decision, stamp);
        }
        inner.charges.insert(stamp.0, charge);
        let outcome = decision.outcomes()[0].clone().with_receipt(Receipt::new(stamp.0));
        if policy.algorithm() == Algorithm::FixedWindow {
            let left = outcome.full_in().as_millis();
            inner.log.ends.push(stamp.1 / 1_000 + u64::try_from(left).expect("a short time"));
        }
        (Decision::new([outcome]), stamp)
    }

    fn settle(&self, settle: &Settle, fate: Fate) {
        let mut inner = self.lock();
        let stamp = inner.stamp(self);
        let before = self.level(settle);
        if fate != Fate::Lost {
            let charge = inner.charges.remove(&settle.charge).expect("it is settled once");
            at_once(charge.settle(settle.units)).expect("memory never fails");
        }
        let lost = match settle.policy.algorithm() {
            // A bucket takes back no more than has not refilled since.
            Algorithm::TokenBucket => {
                let given_back = (before - self.level(settle)) / interval(&settle.policy);
                settle.back - given_back
            }
            _ if fate == Fate::Lost => settle.back,
            _ => 0,
        };
        inner.log.add(stamp, Event::Lost(lost));
    }

    /// Returns the microseconds until nothing is used any more.
    fn level(&self, settle: &Settle) -> u64 {
        let full_in = at_once(self.store.peek(&settle.policy, settle.subject)).outcomes()[0].full_in();
        u64::try_from(full_in.as_micros()).expect("a short time")
    }
}

/// Returns the microseconds in which a unit refills: a whole number, by the choice of quotas.
fn interval(policy: &Policy) -> u64 {
    u64::try_from(policy.quota().window().as_micros()).expect("a short time") / policy.quota().limit()
}

/// Takes what is there at once, as all is from memory.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("memory does not wait"),
    }
}

/// Units that a process gives back.
struct Settle {
    policy: Policy,
    subject: Key,
    charge: u64,
    units: u64,
    back: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Good,
    /// The call does not arrive.
    Lost,
    /// The answer does not.
    Unheard,
}

impl Inner {
    /// Moves the store's clock to the present, and returns a stamp.
    fn stamp(&mut self, net: &Net) -> Stamp {
        let elapsed = net.started.elapsed();
        net.clock.advance(elapsed - self.moved);
        self.moved = elapsed;
        self.log.next += 1;
        let now = net.clock.elapsed_since_epoch().as_micros();
        (self.log.next, u64::try_from(now).expect("a time"))
    }
}

/// How a history compares with an exact limiter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    /// Units that were lost on their way.
    pub(crate) lost: u64,
    /// The most units that were admitted beyond the limit, in whatever interval the algorithm limits.
    pub(crate) over: u64,
    /// The most units that an exact limiter would have had more than asked for when a request was refused, lost units
    /// being used.
    pub(crate) under: u64,
}

impl Log {
    fn add(&mut self, (order, at): Stamp, event: Event) {
        self.events.push((order, at, event));
    }

    /// Compares what was decided on one subject with what an exact limiter would have said.
    pub(crate) fn judge(mut self, policy: &Policy) -> Verdict {
        self.events.sort_by_key(|(order, ..)| *order);
        let mut verdict = Verdict::default();
        let mut truth = Truth::new(policy, self.ends);
        // Nothing lost counts for what was let through too much.
        let mut admitted = truth.clone();
        for (_, at, event) in self.events {
            match event {
                Event::Admitted(units) => {
                    verdict.admitted += units;
                    truth.charge(at, units);
                    admitted.charge(at, units);
                    verdict.over = verdict.over.max(admitted.beyond(at));
                }
                Event::Refused(cost) => {
                    verdict.refused += 1;
                    let free = truth.free(at);
                    verdict.under = verdict.under.max((free + 1).saturating_sub(cost));
                }
                Event::Lost(units) => {
                    verdict.lost += units;
                    truth.charge(at, units);
                }
            }
        }
        verdict
    }
}

/// An exact limiter that refuses nobody.
#[derive(Clone, Debug)]
struct Truth {
    algorithm: Algorithm,
    capacity: u64,
    /// In microseconds, like all times here.
    window: u64,
    interval: u64,
    ends: Vec<u64>,
    charges: VecDeque<(u64, u64)>,
    used: u64,
    /// Of a bucket: the time until it is full, and when that was so.
    level: u64,
    at: u64,
}

impl Truth {
    fn new(policy: &Policy, mut ends: Vec<u64>) -> Self {
        ends.sort_unstable();
        ends.dedup();
        Self {
            algorithm: policy.algorithm(),
            capacity: policy.capacity(),
            window: u64::try_from(policy.quota().window().as_micros()).expect("a short time"),
            interval: interval(policy),
            ends,
            charges: VecDeque::new(),
            used: 0,
            level: 0,
            at: 0,
        }
    }

    fn charge(&mut self, at: u64, units: u64) {
        self.pass(at);
        self.charges.push_back((at, units));
        self.used += units;
        self.level += units * self.interval;
    }

    fn beyond(&mut self, at: u64) -> u64 {
        self.pass(at);
        match self.algorithm {
            Algorithm::TokenBucket => self.level.div_ceil(self.interval).saturating_sub(self.capacity),
            _ => self.used.saturating_sub(self.capacity),
        }
    }

    fn free(&mut self, at: u64) -> u64 {
        self.pass(at);
        match self.algorithm {
            Algorithm::TokenBucket => (self.capacity * self.interval).saturating_sub(self.level) / self.interval,
            _ => self.capacity.saturating_sub(self.used),
        }
    }

    fn pass(&mut self, now: u64) {
        self.level = self.level.saturating_sub(now - self.at);
        self.at = now;
        // What was charged up to then counts no more.
        let over = match self.algorithm {
            // The window that is open ends first of all that end later.
            Algorithm::FixedWindow => {
                let window_ms = self.window / 1_000;
                let next = self.ends.partition_point(|end| *end <= now / 1_000);
                let start = self.ends.get(next).map_or(now / 1_000, |end| end - window_ms);
                (start * 1_000).saturating_sub(1)
            }
            _ => now.saturating_sub(self.window),
        };
        while let Some((_, units)) = self.charges.front().copied().filter(|(at, _)| *at <= over) {
            self.charges.pop_front();
            self.used -= units;
        }
    }
}

/// A small generator of random numbers, the same for the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }
}

/// The way of one process to the store.
struct Wire {
    net: Arc<Net>,
    alive: Arc<AtomicBool>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl Store for Wire {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        if !self.alive.load(Ordering::Relaxed) {
            return Answer::ready(Err(Error::store("the process has ended")));
        }
        let net = Arc::clone(&self.net);
        let demand = &demands[0];
        let (policy, subject, cost) = (demand.policy().clone(), *demand.subject(), demand.units());
        let (there, back, fate) = net.trip();
        let (tell, told) = oneshot::channel();
        // The store goes on even if nobody waits for it.
        tokio::spawn(async move {
            sleep(there).await;
            if fate == Fate::Lost {
                return;
            }
            let (decision, stamp) = net.decide(&policy, subject, cost);
            sleep(back).await;
            let charged = decision.is_allowed();
            if (fate == Fate::Unheard || tell.send((decision, stamp)).is_err()) && charged {
                net.lock().log.add(stamp, Event::Lost(cost));
            }
        });
        Answer::pending(async move {
            let (decision, stamp) = told.await.map_err(|_| Error::store("the call was lost"))?;
            // A draw has no task of a request around it.
            let _ = DECIDED.try_with(|decided| decided.set(Some(stamp)));
            Ok(decision)
        })
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        if !self.alive.load(Ordering::Relaxed) {
            return Answer::ready(Err(Error::store("the process has ended")));
        }
        let net = Arc::clone(&self.net);
        let owned = |adjustment: &Adjustment<'_>| Settle {
            policy: adjustment.policy().clone(),
            subject: *adjustment.subject(),
            charge: adjustment.receipt().id().expect("a receipt of ours"),
            back: adjustment.charged() - adjustment.units(),
            units: adjustment.units(),
        };
        let settles: Vec<Settle> = adjustments.iter().map(owned).collect();
        let (there, back, fate) = net.trip();
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            sleep(there).await;
            settles.iter().for_each(|settle| net.settle(settle, fate));
            sleep(back).await;
            if fate == Fate::Good {
                let _ = tell.send(());
            }
        });
        Answer::pending(async move { told.await.map_err(|_| Error::store("the call was lost")) })
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        Answer::ready(at_once(self.net.store.reset(policy, *subject)))
    }

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        Answer::ready(at_once(self.net.store.block(policy, *subject, long)))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

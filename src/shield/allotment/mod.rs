//! Units drawn from the store in batches and spent at memory speed.
//!
//! A policy that is [`allotted`](Policy::allotted) lets each process hold up to a share of its capacity, the cap
//! `B`, drawn ahead for each subject. A draw is an ordinary decision of the store at the cost of the batch, so what a
//! process holds has been charged: nothing here creates a unit.
//!
//! # The bound
//!
//! `P` processes share a store. At any instant, the units that are charged and neither spent nor given back are at
//! most `H = P · B`, counting those on their way out (a draw under way), on their way back (a settle under way, or
//! one that nobody knows the end of, for a second). An admission counts when it is decided, by the store or here.
//!
//! - **Fixed window**: at most `limit` units in each window of the store. Units are charged in it and not spent
//!   after its end: the time to it is counted from when the draw was sent, so it ends here no later than there.
//! - **Sliding window**: at most `limit + H` in any interval of length `window`. Those drawn in the interval lie in
//!   one window of the store together; the others were held at its beginning. Since a hold is no longer than a window,
//!   these were drawn within one window too, so that `2 · limit` is a bound as well.
//! - **Token bucket**: at most `burst + limit · t / window + H` in any interval `t`. What the store charges in it,
//!   less what it gives back, fits the bucket; giving back what was drawn before lets as much more pass, so held
//!   units count once, whether they are spent or go back.
//! - **Under-admission**: a request is refused only if an exact limiter with `H` units less would refuse it, and a
//!   unit is held unspent for at most [`HOLD`], one [`SWEEP_EVERY`] and the call that gives it back. Units whose way
//!   was cut (a process that crashed, an answer that did not come in time) are lost like those of any request that
//!   was cut: they count as used until their window ends or they have refilled.
//!
//! Not so where an operator resets a subject (what other processes hold of it comes on top), or where the store's
//! clock steps forward (what is held was drawn from the window before).

mod account;
mod table;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{self, Instant},
};

use self::{
    account::{Begun, Draw, HOLD, Told, lifetime},
    table::{Print, Table},
};
use crate::{
    key::Key,
    limit::{Adjustment, Answer, Decision, Demand, Micros, Outcome, Outcomes, Policy, Receipt, Store},
};

/// Answers from units that were drawn ahead, where all policies of a call are allotted; all else is the store's.
#[derive(Debug)]
pub(crate) struct Allotment<S> {
    desk: Arc<Desk<S>>,
}

/// What the store's users, draws and the sweeper share.
struct Desk<S> {
    store: S,
    table: Table<Slip>,
    /// Times are counted from then.
    opened: Instant,
    /// Set for good when everything was to be given back.
    closed: AtomicBool,
    sweeping: AtomicBool,
    /// Draws, and calls that give back.
    under_way: AtomicUsize,
    done: Notify,
}

/// What units are given back by.
#[derive(Debug)]
struct Slip {
    owner: Arc<Owner>,
    receipt: Receipt,
}

#[derive(Debug)]
struct Owner {
    policy: Policy,
    subject: Key,
}

type Prints = SmallVec<[Print; 4]>;

impl<S: Store> Allotment<S> {
    pub(crate) fn new(store: S) -> Self {
        let desk = Desk {
            store,
            table: Table::new(),
            opened: Instant::now(),
            closed: AtomicBool::new(false),
            sweeping: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            done: Notify::new(),
        };
        Self { desk: Arc::new(desk) }
    }

    /// Gives back all that is held, and draws nothing any more. Returns false if something may not have arrived.
    pub(crate) async fn close(&self) -> bool {
        let desk = &self.desk;
        desk.closed.store(true, Ordering::SeqCst);
        let mut arrived = true;
        loop {
            let done = desk.done.notified();
            // Asked first: what arrives after it is taken in the next round.
            let still = desk.under_way.load(Ordering::SeqCst) == 0;
            let taken = desk.table.take(|account| account.take_all());
            if !taken.is_empty() {
                arrived &= desk.give_back(taken).await;
            } else if still {
                return arrived;
            } else {
                done.await;
            }
        }
    }
}

impl<S: Store> Store for Allotment<S> {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        let desk = &self.desk;
        // A call that the store has to decide anyway is its own as a whole.
        let allotted = |demand: &Demand<'_>| demand.policy().allotment() > 0 && demand.cost_u32() > 0;
        if demands.is_empty() || !demands.iter().all(allotted) {
            return desk.store.decide(demands);
        }
        let now = desk.now();
        let prints: Prints = demands.iter().map(|demand| desk.table.print(demand)).collect();
        if let Some(decision) = desk.spend(demands, &prints, now) {
            return Answer::ready(Ok(decision));
        }
        let heard = Heard::new(desk, demands, &prints, now);
        match desk.store.decide(demands).now() {
            Ok(answer) => {
                if let Ok(decision) = &answer {
                    heard.by(decision);
                }
                Answer::ready(answer)
            }
            Err(pending) => Answer::pending(async move {
                let decision = pending.await?;
                heard.by(&decision);
                Ok(decision)
            }),
        }
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        self.desk.store.settle(adjustments)
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        self.forgetting(policy, subject, self.desk.store.reset(policy, subject))
    }

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        self.forgetting(policy, subject, self.desk.store.block(policy, subject, long))
    }

    fn is_shared(&self) -> bool {
        self.desk.store.is_shared()
    }
}

impl<S: Store> Allotment<S> {
    /// Drops the units of a subject, now and again when the store has done what makes them void.
    ///
    /// They do not go back: after a reset that would take from what was used since.
    fn forgetting(&self, policy: &Policy, subject: &Key, answer: Answer<()>) -> Answer<()> {
        let desk = Arc::clone(&self.desk);
        let print = desk.table.print(&Demand::of(policy, *subject, 0));
        let forget = move || desk.table.at(print, |account| account.forget());
        forget();
        match answer.now() {
            Ok(answer) => Answer::ready(answer),
            Err(pending) => Answer::pending(async move {
                let answer = pending.await;
                forget();
                answer
            }),
        }
    }
}

impl<S: Store> Desk<S> {
    fn now(&self) -> Micros {
        let open = Instant::now().saturating_duration_since(self.opened);
        Micros::try_from(open.as_micros()).unwrap_or(Micros::MAX)
    }

    /// Answers from what is held, if it suffices for all demands, and draws where that runs low.
    fn spend(self: &Arc<Self>, demands: &[Demand<'_>], prints: &[Print], now: Micros) -> Option<Decision> {
        let mut locked = self.table.lock(prints);
        let (mut enough, mut hot) = (true, true);
        for (demand, print) in demands.iter().zip(prints) {
            let (cost, account) = (demand.cost_u32(), locked.account(*print, demand.policy(), now));
            enough &= account.is_some_and(|account| {
                account.note(now, cost);
                hot &= account.is_hot(now);
                account.has(now, cost)
            });
        }
        let mut outcomes = Outcomes::new();
        let mut low: SmallVec<[bool; 4]> = SmallVec::new();
        for (demand, print) in demands.iter().zip(prints) {
            let (policy, cost) = (demand.policy(), demand.cost_u32());
            let account = locked.account(*print, policy, now)?;
            if enough {
                outcomes.push(outcome(policy, account.spend(now, cost)));
            }
            // Where one subject of a call is not hot, the store is asked anyway, and nothing is spent here.
            low.push(hot && account.due(now, policy.allotment(), cost).is_some());
        }
        drop(locked);
        for ((demand, print), _) in demands.iter().zip(prints).zip(low).filter(|(_, low)| *low) {
            self.draw(demand, *print, now);
        }
        enough.then(|| Decision::by(outcomes).in_allotment())
    }

    /// Draws ahead for a subject, if that is still due and there is a runtime to do it on.
    fn draw(self: &Arc<Self>, demand: &Demand<'_>, print: Print, now: Micros) {
        let way = UnderWay::new(self);
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(runtime), policy) = (Handle::try_current(), demand.policy()) else { return };
        let begin = |account: &mut account::Account<Slip>| account.begin(now, policy.allotment(), demand.cost_u32());
        let Some(Some(begun)) = self.table.at(print, begin) else { return };
        let owner = Owner { policy: policy.clone(), subject: *demand.subject() };
        let drawing = Drawing { way, print, begun, owner: Arc::new(owner) };
        runtime.spawn(drawing.run());
        if !self.sweeping.swap(true, Ordering::SeqCst) {
            runtime.spawn(Sweeper { desk: Arc::clone(self), sweeps: true }.run());
        }
    }

    /// Gives units back; returns false if some may not have arrived.
    async fn give_back(self: &Arc<Self>, taken: Vec<(Print, Draw<Slip>)>) -> bool {
        let mut all = true;
        let mut returning = Returning { way: UnderWay::new(self), left: taken };
        while !returning.left.is_empty() {
            let part = returning.left.len().min(AT_A_TIME);
            let adjustments: Vec<_> = returning.left[..part].iter().map(|(_, draw)| given_back(draw)).collect();
            let answer = self.store.settle(&adjustments);
            let arrived = answer.await.is_ok();
            let now = self.now();
            for (print, draw) in returning.left.drain(..part) {
                self.table.at(print, |account| account.returned(draw.left, arrived, now));
            }
            all &= arrived;
        }
        all
    }
}

fn given_back(draw: &Draw<Slip>) -> Adjustment<'_> {
    let Slip { owner, receipt } = &draw.slip;
    Adjustment::new(&owner.policy, &owner.subject, *receipt, draw.units, draw.units - draw.left)
}

fn outcome(policy: &Policy, told: Told) -> Outcome {
    let remaining = told.remaining.min(policy.capacity_u32());
    let times = [told.next, told.full].map(Duration::from_micros);
    Outcome::pass(policy, remaining.into()).with_times(times[0], times[1])
}

fn told(outcome: &Outcome, at: Micros) -> Told {
    let micros = |time: Duration| Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX);
    Told {
        at,
        remaining: u32::try_from(outcome.remaining()).unwrap_or(u32::MAX),
        next: micros(outcome.next_unit_in()),
        full: micros(outcome.full_in()),
    }
}

/// Learns from what the store decides on a request of its own.
struct Heard<S> {
    desk: Arc<Desk<S>>,
    asked: SmallVec<[(Print, Owner, u32); 1]>,
    at: Micros,
}

impl<S: Store> Heard<S> {
    fn new(desk: &Arc<Desk<S>>, demands: &[Demand<'_>], prints: &Prints, at: Micros) -> Self {
        let asked = |(demand, print): (&Demand<'_>, &Print)| {
            (*print, Owner { policy: demand.policy().clone(), subject: *demand.subject() }, demand.cost_u32())
        };
        Self { desk: Arc::clone(desk), asked: demands.iter().zip(prints).map(asked).collect(), at }
    }

    fn by(&self, decision: &Decision) {
        if decision.is_overflow() {
            return;
        }
        let now = self.desk.now();
        let mut hot = true;
        for ((print, ..), outcome) in self.asked.iter().zip(decision.outcomes()) {
            let learnt = self.desk.table.at(*print, |account| {
                account.learn(told(outcome, self.at));
                account.is_hot(now)
            });
            hot &= learnt == Some(true);
        }
        for (print, owner, cost) in self.asked.iter().filter(|_| hot) {
            self.desk.draw(&Demand::of(&owner.policy, owner.subject, (*cost).into()), *print, now);
        }
    }
}

/// A draw under way. However it ends, the next one may begin.
struct Drawing<S: Store> {
    way: UnderWay<S>,
    print: Print,
    begun: Begun,
    owner: Arc<Owner>,
}

impl<S: Store> Drawing<S> {
    async fn run(self) {
        let (desk, units) = (&self.way.0, self.begun.units);
        let sent = desk.now();
        let answer = desk.store.decide(&[Demand::of(&self.owner.policy, self.owner.subject, units.into())]).await;
        let now = desk.now();
        // Whoever answers instead of the store, or charges somebody else, has drawn nothing.
        let decision = answer.ok().filter(|decision| !decision.is_degraded() && !decision.is_overflow());
        let outcome = decision.as_ref().and_then(|decision| decision.outcomes().first());
        desk.table.at(self.print, |account| match outcome {
            Some(outcome) if outcome.is_allowed() => {
                let told = told(outcome, sent);
                let expires = sent.saturating_add(lifetime(&self.owner.policy, told.full));
                let slip = Slip { owner: Arc::clone(&self.owner), receipt: outcome.receipt() };
                account.arrive(self.begun, Draw { units, left: units, expires, slip }, told, now);
            }
            Some(outcome) => {
                account.learn(told(outcome, sent));
                let wait = outcome.passes_in().map_or(HOLD, |wait| Micros::try_from(wait.as_micros()).unwrap_or(HOLD));
                account.pause(now, wait);
            }
            None => account.pause(now, HOLD),
        });
    }
}

impl<S: Store> Drop for Drawing<S> {
    fn drop(&mut self) {
        self.way.0.table.at(self.print, |account| account.end());
    }
}

/// Units on their way back. Of those that are left when this is dropped nobody knows.
struct Returning<S: Store> {
    way: UnderWay<S>,
    left: Vec<(Print, Draw<Slip>)>,
}

impl<S: Store> Drop for Returning<S> {
    fn drop(&mut self) {
        let desk = &self.way.0;
        let now = desk.now();
        for (print, draw) in &self.left {
            desk.table.at(*print, |account| account.returned(draw.left, false, now));
        }
    }
}

/// Counts a call that `close` waits for.
struct UnderWay<S>(Arc<Desk<S>>);

impl<S> UnderWay<S> {
    fn new(desk: &Arc<Desk<S>>) -> Self {
        desk.under_way.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(desk))
    }
}

impl<S> Drop for UnderWay<S> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.done.notify_waiters();
    }
}

/// Gives back what has expired, for as long as there is anything. One runs at a time; it ends with its runtime.
struct Sweeper<S> {
    desk: Arc<Desk<S>>,
    sweeps: bool,
}

impl<S: Store> Sweeper<S> {
    async fn run(mut self) {
        while self.sweeps {
            time::sleep(SWEEP_EVERY).await;
            let now = self.desk.now();
            let taken = self.desk.table.take(|account| account.take_expired(now));
            if !taken.is_empty() {
                self.desk.give_back(taken).await;
            }
            if !self.desk.table.is_live() {
                self.stop();
                // What began before it had stopped relies on it.
                self.sweeps = self.desk.table.is_live() && !self.desk.sweeping.swap(true, Ordering::SeqCst);
            }
        }
    }
}

impl<S> Sweeper<S> {
    fn stop(&mut self) {
        if self.sweeps {
            self.sweeps = false;
            self.desk.sweeping.store(false, Ordering::SeqCst);
        }
    }
}

impl<S> Drop for Sweeper<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<S: fmt::Debug> fmt::Debug for Desk<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("store", &self.store).finish_non_exhaustive()
    }
}

/// How often it is looked for what has expired: it adds that much to the hold time.
const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// The draws that go back in one call.
const AT_A_TIME: usize = 64;

//! Units drawn from the store in batches and spent at memory speed.
//!
//! A policy that is [`allotted`](Policy::allotted) lets each process hold up to a share of its capacity, the cap
//! `B`, drawn ahead for each subject. A draw is an ordinary decision of the store at the cost of the batch, so what a
//! process holds has been charged: nothing here creates a unit.
//!
//! # The bound
//!
//! `P` processes share a store. A unit is *held* while it is charged there and neither spent nor given back: also on
//! its way here (a draw under way), and on its way back (a settle under way, or one that nobody knows the end of, for a
//! second). A process holds at most `B` of a subject, so at any instant at most `H = P · B` are held. Nor are there
//! more than the store charges while a unit is held: `limit` in a window, and in a bucket `burst + limit · h / window`,
//! `h` being [`HOLD`], [`SWEEP_EVERY`] and the call that gives back, with the second of doubt.
//!
//! An admission counts when it is decided, by the store or here. Over-admission is then bounded so:
//!
//! - **Fixed window**: at most `limit` units in each window of the store. They are charged in it and not spent after its
//!   end: the time to it is counted from when the draw was sent, so it comes here no later than there.
//! - **Sliding window**: at most `limit + H` in any interval of length `window`. Of what is spent in it, one part was
//!   charged in it too; when the last of that was charged, all of it lay in one window of the store. The other part
//!   was held when it began.
//! - **Token bucket**: at most `burst + limit · t / window + H` in any interval `t`. What the store charges in it is at
//!   most `burst + limit · t / window` and what it was given back meanwhile. What is given back of charges made in the
//!   interval was not spent; of those made before, spent and given back together are what was held when it began.
//!
//! Under-admission: a request is refused by the store only if an exact limiter with `H` units less would refuse it, one that has been
//! charged with all that was admitted, when it was, and all that was lost. For what a store has charged is that, and
//! what is held. No unit is held for longer than `h`. *Lost* are units whose way was cut (a process crashed or its
//! runtime ended, an answer did not come in time), like those of any request of which that is true, and units that a
//! bucket does not take back, since as many have refilled since their draw. They count as used until their window
//! ends or they have refilled.
//!
//! Not so where an operator resets a subject (what other processes hold of it comes on top), where the store's clock
//! steps forward, or where a machine is suspended with its clock (what is held may be of a window that is over).

mod account;
mod desk;
mod table;
mod under_way;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use self::desk::{Desk, Heard, Prints};
#[cfg(doc)]
use self::{account::HOLD, under_way::SWEEP_EVERY};
use crate::{
    key::Key,
    limit::{Adjustment, Answer, Decision, Demand, Policy, Store},
};

/// Answers from units that were drawn ahead, where all policies of a call are allotted; all else is the store's.
#[derive(Debug)]
pub(crate) struct Allotment<S> {
    desk: Arc<Desk<S>>,
}

impl<S: Store> Allotment<S> {
    pub(crate) fn new(store: S) -> Self {
        Self { desk: Arc::new(Desk::new(store)) }
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
    fn decide_now(&self, demands: &[Demand<'_>], decision: &mut Decision) -> bool {
        let desk = &self.desk;
        if is_allotted(demands) {
            let prints: Prints = demands.iter().map(|demand| desk.table.print(demand)).collect();
            if desk.spend(demands, &prints, desk.now(), decision) {
                return true;
            }
        }
        desk.store.decide_now(demands, decision)
    }

    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        let desk = &self.desk;
        if !is_allotted(demands) {
            return desk.store.decide(demands);
        }
        let now = desk.now();
        let prints: Prints = demands.iter().map(|demand| desk.table.print(demand)).collect();
        let heard = Heard::new(desk, demands, &prints, now);
        match desk.store.decide(demands).now() {
            Ok(answer) => {
                if let Ok(decision) = &answer {
                    heard.by(decision);
                }
                Answer::ready(answer)
            }
            Err(pending) => Answer::handed_on(async move {
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

/// Returns true if a call may be answered here: one that the store has to decide anyway is its own as a whole.
fn is_allotted(demands: &[Demand<'_>]) -> bool {
    let allotted =
        |demand: &Demand<'_>| demand.policy().allotment() > 0 && demand.cost_u32() > 0 && !demand.is_shadow();
    !demands.is_empty() && demands.iter().all(allotted)
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
            Err(pending) => Answer::handed_on(async move {
                let answer = pending.await;
                forget();
                answer
            }),
        }
    }
}

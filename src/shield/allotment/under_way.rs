//! What goes to the store and back beside requests: draws, returns, and the sweeper that sees to those.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{runtime::Handle, time};

use super::{
    account::{Account, Begun, Draw, HOLD, lifetime},
    desk::{Desk, Owner, Slip, told},
};
use crate::{
    key::Print,
    limit::{Adjustment, Decision, Demand, Micros, Store},
};

impl<S: Store> Desk<S> {
    /// Draws ahead for a subject, if that is still due and there is a runtime to do it on.
    pub(super) fn draw(self: &Arc<Self>, demand: &Demand<'_>, print: Print, now: Micros) {
        let way = UnderWay::new(self);
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(runtime), policy) = (Handle::try_current(), demand.policy()) else { return };
        let begin = |account: &mut Account<Slip>| account.begin(now, policy.allotment(), demand.cost_u32());
        let Some(Some(begun)) = self.table.at(print, begin) else { return };
        let owner = Owner { policy: policy.clone(), subject: *demand.subject() };
        let drawing = Drawing { way, print, begun, owner: Arc::new(owner) };
        runtime.spawn(drawing.run());
        if !self.sweeping.swap(true, Ordering::SeqCst) {
            runtime.spawn(Sweeper { desk: Arc::clone(self), sweeps: true }.run());
        }
    }

    /// Gives units back; returns false if some may not have arrived.
    pub(super) async fn give_back(self: &Arc<Self>, taken: Vec<(Print, Draw<Slip>)>) -> bool {
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
        let demands = [Demand::of(&self.owner.policy, self.owner.subject, units.into()).ahead()];
        let mut decision = Decision::empty();
        let answer = if desk.store.decide_now(&demands, &mut decision) {
            Ok(decision)
        } else {
            desk.store.decide(&demands).await
        };
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

/// How often it is looked for what has expired: it adds that much to the hold time.
pub(super) const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// The draws that go back in one call.
const AT_A_TIME: usize = 64;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{sync::Notify, time::Instant};

use super::{account::Told, table::Table};
use crate::{
    key::{Key, Print},
    limit::{Decision, Demand, Micros, Outcome, Policy, Receipt, Store},
};

/// What the store's users, draws and the sweeper share.
pub(super) struct Desk<S> {
    pub(super) store: S,
    pub(super) table: Table<Slip>,
    /// Times are counted from then.
    opened: Instant,
    /// Set for good when everything was to be given back.
    pub(super) closed: AtomicBool,
    pub(super) sweeping: AtomicBool,
    /// Draws, and calls that give back.
    pub(super) under_way: AtomicUsize,
    pub(super) done: Notify,
}

/// What units are given back by.
#[derive(Debug)]
pub(super) struct Slip {
    pub(super) owner: Arc<Owner>,
    pub(super) receipt: Receipt,
}

#[derive(Debug)]
pub(super) struct Owner {
    pub(super) policy: Policy,
    pub(super) subject: Key,
}

pub(super) type Prints = SmallVec<[Print; 4]>;

impl<S: Store> Desk<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            table: Table::new(),
            opened: Instant::now(),
            closed: AtomicBool::new(false),
            sweeping: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            done: Notify::new(),
        }
    }

    pub(super) fn now(&self) -> Micros {
        let open = Instant::now().saturating_duration_since(self.opened);
        Micros::try_from(open.as_micros()).unwrap_or(Micros::MAX)
    }

    /// Answers from what is held, if it suffices for all demands, and draws where that runs low. Returns false, and
    /// leaves the decision empty, if it does not.
    pub(super) fn spend(
        self: &Arc<Self>,
        demands: &[Demand<'_>],
        prints: &[Print],
        now: Micros,
        decision: &mut Decision,
    ) -> bool {
        let mut locked = self.table.lock(prints);
        // Where one subject of a call is not hot, the store is asked anyway, and nothing would be spent here.
        let (mut enough, mut hot) = (true, true);
        for (demand, print) in demands.iter().zip(prints) {
            let (cost, account) = (demand.cost_u32(), locked.account(*print, demand.policy(), now));
            enough &= account.is_some_and(|account| {
                account.note(now, cost);
                hot &= account.is_hot(now);
                account.has(now, cost)
            });
        }
        let mut low: SmallVec<[bool; 4]> = SmallVec::new();
        for (demand, print) in demands.iter().zip(prints) {
            let (policy, cost) = (demand.policy(), demand.cost_u32());
            let Some(account) = locked.account(*print, policy, now) else { break };
            if enough {
                decision.push(outcome(policy, account.spend(now, cost)));
            }
            low.push(hot && account.due(now, policy.allotment(), cost).is_some());
        }
        drop(locked);
        for ((demand, print), _) in demands.iter().zip(prints).zip(low).filter(|(_, low)| *low) {
            self.draw(demand, *print, now);
        }
        decision.set_allotted(enough);
        enough
    }
}

/// Learns from what the store decides on a request of its own.
pub(super) struct Heard<S> {
    desk: Arc<Desk<S>>,
    asked: SmallVec<[(Print, Owner, u32); 1]>,
    at: Micros,
}

impl<S: Store> Heard<S> {
    pub(super) fn new(desk: &Arc<Desk<S>>, demands: &[Demand<'_>], prints: &Prints, at: Micros) -> Self {
        let asked = |(demand, print): (&Demand<'_>, &Print)| {
            (*print, Owner { policy: demand.policy().clone(), subject: *demand.subject() }, demand.cost_u32())
        };
        Self { desk: Arc::clone(desk), asked: demands.iter().zip(prints).map(asked).collect(), at }
    }

    pub(super) fn by(&self, decision: &Decision) {
        if decision.is_degraded() || decision.is_overflow() {
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

fn outcome(policy: &Policy, told: Told) -> Outcome {
    let remaining = told.remaining.min(policy.capacity_u32());
    let times = [told.next, told.full].map(Duration::from_micros);
    Outcome::pass(policy, remaining.into()).with_times(times[0], times[1])
}

pub(super) fn told(outcome: &Outcome, at: Micros) -> Told {
    let micros = |time: Duration| Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX);
    Told {
        at,
        remaining: u32::try_from(outcome.remaining()).unwrap_or(u32::MAX),
        next: micros(outcome.next_unit_in()),
        full: micros(outcome.full_in()),
    }
}

impl<S: fmt::Debug> fmt::Debug for Desk<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("store", &self.store).finish_non_exhaustive()
    }
}

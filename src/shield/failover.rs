use std::{
    num::NonZeroU32,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    time::{self, Instant},
};

use super::{
    parts::{Parts, Visitors},
    tuning::Tuning,
    vitals::Vitals,
};
use crate::{
    error::Error,
    key::Key,
    limit::{Adjustment, Answer, Decision, Demand, OnError, Pending, Policy, Store},
    memory::Memory,
};

/// Answers in time, whatever the store does: by the policies' [`OnError`] once the deadline has passed, and at once
/// while the store is known to fail.
#[derive(Debug)]
pub(crate) struct Failover<S> {
    store: S,
    bad_day: Arc<BadDay>,
}

/// What decides when the store does not.
#[derive(Debug)]
struct BadDay {
    parts: Parts,
    vitals: Arc<Vitals>,
    tuning: Arc<Tuning>,
    /// Decides instead, and follows what the store answers until then. Made when first needed.
    memory: OnceLock<Memory>,
}

impl<S: Store> Failover<S> {
    pub(crate) fn new(store: S, tuning: Arc<Tuning>, vitals: Arc<Vitals>) -> Self {
        let bad_day = BadDay { parts: Parts::new(Arc::clone(&vitals)), vitals, tuning, memory: OnceLock::new() };
        Self { store, bad_day: Arc::new(bad_day) }
    }
}

impl<S: Store> Store for Failover<S> {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        let bad_day = &self.bad_day;
        let Some(visitors) = bad_day.parts.enter(self.store.parts(demands)) else {
            let mut decision = Decision::empty();
            bad_day.decide(demands, &mut decision);
            return Answer::ready(Ok(decision));
        };
        let visit = Visit { bad_day: Arc::clone(bad_day), visitors: Some(visitors), began: Vitals::begin() };
        let pending = match self.store.decide(demands).now() {
            Ok(answered) => {
                let (mut decision, failed) = match answered {
                    Ok(decision) => (decision, None),
                    Err(error) => (Decision::empty(), Some(error)),
                };
                visit.judge(&mut decision, failed, demands, None);
                return Answer::ready(Ok(decision));
            }
            Err(pending) => pending,
        };
        let (asked, deadline) = (Asked::new(demands), self.bad_day.tuning.deadline());
        let waiting = pending.waiting();
        Answer::handed_on(async move {
            let (mut decision, failed) = match within(deadline, pending).await {
                Ok(decision) => (decision, None),
                Err(error) => (Box::new(Decision::empty()), Some(error)),
            };
            asked.with(|demands| visit.judge(&mut decision, failed, demands, waiting));
            Ok(decision)
        })
    }

    fn decide_now(&self, demands: &[Demand<'_>], decision: &mut Decision) -> bool {
        if self.store.decide_now(demands, decision) {
            return true;
        }
        let open = self.bad_day.parts.are_open(self.store.parts(demands));
        if open {
            self.bad_day.decide(demands, decision);
        }
        open
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        bounded(self.store.settle(adjustments), self.bad_day.tuning.deadline())
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        if let Some(memory) = self.bad_day.memory.get() {
            // Memory has done it by then.
            drop(memory.reset(policy, subject));
        }
        bounded(self.store.reset(policy, subject), self.bad_day.tuning.deadline())
    }

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        if policy.on_error_choice() == OnError::Local {
            drop(self.bad_day.memory().block(policy, subject, long));
        }
        bounded(self.store.block(policy, subject, long), self.bad_day.tuning.deadline())
    }

    fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    fn parts(&self, demands: &[Demand<'_>]) -> u64 {
        self.store.parts(demands)
    }
}

/// A request's way to the store and back. If it goes away meanwhile, it leaves room for the next.
struct Visit {
    bad_day: Arc<BadDay>,
    visitors: Option<Visitors>,
    began: Option<Instant>,
}

impl Visit {
    /// Takes note of what the store decided, or decides instead, into an empty decision, if it has failed.
    ///
    /// `waiting` tells what it was waited for then, if the store knows.
    fn judge(
        mut self,
        decision: &mut Decision,
        failed: Option<Error>,
        demands: &[Demand<'_>],
        waiting: Option<Arc<AtomicU64>>,
    ) {
        let bad_day = &self.bad_day;
        let visitors = self.visitors.take().expect("a visit ends once");
        bad_day.vitals.called(self.began, failed.as_ref());
        let Some(error) = failed else {
            bad_day.parts.succeeded(visitors);
            return bad_day.follow(demands, decision);
        };
        let waited_for = waiting.map_or(0, |waiting| waiting.load(Ordering::Relaxed));
        let guilty = if error.parts() == 0 { waited_for } else { error.parts() };
        bad_day.parts.failed(visitors, guilty, &error);
        bad_day.decide(demands, decision);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(visitors) = self.visitors {
            self.bad_day.parts.abandoned(visitors);
        }
    }
}

impl BadDay {
    /// Decides without the store, into an empty decision.
    fn decide(&self, demands: &[Demand<'_>], decision: &mut Decision) {
        match choice(demands) {
            OnError::Deny => *decision = Decision::without_store(false),
            OnError::Allow => *decision = Decision::without_store(true),
            OnError::Local => self.decide_here(demands, decision),
        }
    }

    /// Decides by this process's share. A policy that would allow is only looked at.
    #[cold]
    fn decide_here(&self, demands: &[Demand<'_>], decision: &mut Decision) {
        let shares: SmallVec<[Policy; 2]> = demands.iter().map(|demand| self.share(demand.policy())).collect();
        let here = demands.iter().zip(&shares).map(|(demand, share)| {
            let counts = demand.on_error() == OnError::Local;
            let units = if counts { demand.units() } else { 0 };
            Demand::of(share, *demand.subject(), units).in_shadow(demand.is_shadow())
        });
        self.memory().decide_now(&here.collect::<SmallVec<[_; 2]>>(), decision);
        decision.set_degraded();
    }

    /// Keeps this process's share up with what the store has answered.
    fn follow(&self, demands: &[Demand<'_>], decision: &Decision) {
        if decision.is_overflow() || decision.is_degraded() {
            return;
        }
        for (demand, outcome) in demands.iter().zip(decision.outcomes()) {
            let policy = demand.policy();
            if policy.on_error_choice() != OnError::Local {
                continue;
            }
            let (memory, admitted) = (self.memory(), decision.is_allowed() && outcome.is_allowed());
            let replicas = self.tuning.replicas();
            if replicas == NonZeroU32::MIN {
                memory.follow(policy, demand, outcome, admitted);
            } else {
                memory.follow(&policy.share(replicas), demand, outcome, admitted);
            }
        }
    }

    fn share(&self, policy: &Policy) -> Policy {
        let replicas = self.tuning.replicas();
        if replicas == NonZeroU32::MIN { policy.clone() } else { policy.share(replicas) }
    }

    fn memory(&self) -> &Memory {
        self.memory.get_or_init(Memory::new)
    }
}

/// Returns what decides about a call as a whole.
fn choice(demands: &[Demand<'_>]) -> OnError {
    let any = |choice, shadow| demands.iter().any(|demand| demand.on_error() == choice && demand.is_shadow() == shadow);
    let enforced = [OnError::Deny, OnError::Local, OnError::Allow].into_iter().find(|choice| any(*choice, false));
    // What is in the shadow decides nothing; alone it may go on counting.
    enforced.unwrap_or(if any(OnError::Local, true) { OnError::Local } else { OnError::Allow })
}

/// The demands of a call that waits for the store; two of them need no memory of their own.
struct Asked {
    demands: SmallVec<[(Policy, Key, u32, bool); 2]>,
    ahead: bool,
}

impl Asked {
    fn new(demands: &[Demand<'_>]) -> Self {
        let own =
            |demand: &Demand<'_>| (demand.policy().clone(), *demand.subject(), demand.cost_u32(), demand.is_shadow());
        Self { demands: demands.iter().map(own).collect(), ahead: demands.iter().any(Demand::is_ahead) }
    }

    fn with<T>(&self, act: impl FnOnce(&[Demand<'_>]) -> T) -> T {
        let demands = self.demands.iter().map(|(policy, subject, cost, shadow)| {
            let demand = Demand::of(policy, *subject, (*cost).into()).in_shadow(*shadow);
            if self.ahead { demand.ahead() } else { demand }
        });
        act(&demands.collect::<SmallVec<[_; 2]>>())
    }
}

fn bounded(answer: Answer<()>, deadline: Duration) -> Answer<()> {
    match answer.now() {
        Ok(answer) => Answer::ready(answer),
        Err(pending) => Answer::handed_on(within(deadline, pending)),
    }
}

async fn within<T>(deadline: Duration, answer: Pending<T>) -> Result<Box<T>, Error> {
    if Handle::try_current().is_err() {
        // There is no clock to keep a deadline by; the store may still say what it needs.
        return answer.await;
    }
    time::timeout(deadline, answer).await.unwrap_or_else(|_| Err(Error::deadline(deadline)))
}

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{tuning::Tuning, vitals::Vitals};
use crate::{
    key::{Key, Print, Printer},
    limit::{Adjustment, Answer, Decision, Demand, Micros, Outcome, Policy, Store},
};

/// Answers by itself what would be refused anyway, so that refused clients cost the store nothing.
///
/// A refusal says for how long it holds: until then, nothing that this process does can make the same request pass
/// but a settle, a reset or an unblock. Those clear what is remembered here, and so does each charge, which changes
/// what would be told. What other processes give back is seen after `max_age` at the latest. A request is answered here if
/// one of its demands is known to be refused and something recent is known of all others. Where refusals lead to a block,
/// only that is remembered: until then the store counts each.
#[derive(Debug)]
pub(crate) struct DenyCache<S> {
    store: S,
    memory: Arc<Recent>,
}

/// What the store has said of demands in refused requests.
#[derive(Debug)]
struct Recent {
    printer: Printer,
    /// Made by the first refusal.
    sets: OnceLock<Box<[Mutex<Set>]>>,
    tuning: Arc<Tuning>,
    vitals: Arc<Vitals>,
}

/// What may be remembered of who asked.
type Asked = SmallVec<[AskedFor; 2]>;

#[derive(Debug)]
struct AskedFor {
    print: Print,
    cost: u32,
    /// How often its place had been cleared then.
    cleared: u64,
    /// Whether units often come back, so that only a block holds.
    only_blocked: bool,
    /// Whether the store has to count refusals.
    escalates: bool,
}

/// Demands whose hashes fall into one place.
#[derive(Debug, Default)]
struct Set {
    seen: [Option<Box<Seen>>; WAYS],
    /// Which one gives way next.
    next: usize,
    /// How often something was cleared: an answer that was asked for before that is not remembered.
    cleared: u64,
}

#[derive(Debug)]
struct Seen {
    print: Print,
    cost: u32,
    asked_at: Instant,
    outcome: Outcome,
    /// Whether somebody has gone to the store for news, since this is getting old.
    is_asked_anew: bool,
    /// How often policies had changed by then.
    changes: u64,
}

impl<S: Store> DenyCache<S> {
    pub(crate) fn new(store: S, tuning: Arc<Tuning>, vitals: Arc<Vitals>) -> Self {
        let memory = Recent { printer: Printer::default(), sets: OnceLock::new(), tuning, vitals };
        Self { store, memory: Arc::new(memory) }
    }
}

impl<S: Store> Store for DenyCache<S> {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        if self.memory.tuning.deny_max_age().is_zero() {
            return self.store.decide(demands);
        }
        let now = Instant::now();
        let memory = Arc::clone(&self.memory);
        let ask = |demand: &Demand<'_>| {
            let print = memory.print(demand);
            AskedFor {
                print,
                cost: demand.cost_u32(),
                cleared: memory.cleared(&print),
                only_blocked: !demand.may_recall(),
                escalates: demand.policy().escalation().is_some(),
            }
        };
        let asked: Asked = demands.iter().map(ask).collect();
        let pending = match self.store.decide(demands).now() {
            Ok(answered) => {
                return Answer::ready(answered.inspect(|decision| memory.learn(&asked, decision, now)));
            }
            Err(pending) => pending,
        };
        Answer::handed_on(async move {
            let answered = pending.await;
            answered.inspect(|decision| memory.learn(&asked, decision, now))
        })
    }

    fn decide_now(&self, demands: &[Demand<'_>], decision: &mut Decision) -> bool {
        if self.memory.decide(demands, decision) {
            self.memory.vitals.deny_cache_hit();
            return true;
        }
        let decided = self.store.decide_now(demands, decision);
        if decided && decision.is_allowed() && !decision.is_degraded() {
            let charged = demands.iter().filter(|demand| demand.cost_u32() > 0);
            self.memory.forget(&charged.map(|demand| self.memory.print(demand)).collect::<SmallVec<[_; 4]>>());
        }
        decided
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        let places = adjustments.iter().map(|adjustment| (adjustment.policy(), *adjustment.subject())).collect();
        self.clearing(places, self.store.settle(adjustments))
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        self.clearing(vec![(policy, *subject)], self.store.reset(policy, subject))
    }

    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        self.clearing(vec![(policy, *subject)], self.store.block(policy, subject, long))
    }

    fn is_shared(&self) -> bool {
        self.store.is_shared()
    }
}

impl<S: Store> DenyCache<S> {
    /// Forgets what is known of some demands, now and again when the store has done what changes them.
    fn clearing(&self, places: Vec<(&Policy, Key)>, answer: Answer<()>) -> Answer<()> {
        let prints: Vec<_> = places.iter().map(|(policy, key)| self.memory.printer.print(policy.tag(), key)).collect();
        self.memory.forget_all(&prints);
        let memory = Arc::clone(&self.memory);
        match answer.now() {
            Ok(answer) => Answer::ready(answer),
            Err(pending) => Answer::handed_on(async move {
                let answer = pending.await;
                memory.forget_all(&prints);
                answer
            }),
        }
    }
}

impl Recent {
    fn print(&self, demand: &Demand<'_>) -> Print {
        self.printer.print(demand.policy().tag(), demand.subject())
    }

    /// Decides by what is remembered; returns false, and leaves the decision empty, if that does not suffice.
    fn decide(&self, demands: &[Demand<'_>], decision: &mut Decision) -> bool {
        if self.sets.get().is_none() {
            return false;
        }
        let now = Instant::now();
        for demand in demands {
            match self.recall(demand, now) {
                Some(outcome) => decision.push(outcome),
                None => break,
            }
        }
        let refused = decision.outcomes().len() == demands.len() && !decision.is_allowed();
        if !refused {
            *decision = Decision::empty();
        }
        refused
    }

    fn learn(&self, asked: &Asked, decision: &Decision, asked_at: Instant) {
        if decision.is_degraded() {
            // It tells nothing of the store.
        } else if decision.is_allowed() {
            self.forget(asked.iter().filter(|asked| asked.cost > 0).map(|asked| &asked.print));
        } else if !self.tuning.deny_max_age().is_zero() {
            self.remember(asked, decision, asked_at);
        }
    }

    fn recall(&self, demand: &Demand<'_>, now: Instant) -> Option<Outcome> {
        let print = self.print(demand);
        let mut set = self.set(&print);
        let seen = set.seen.iter_mut().flatten().find(|seen| seen.print == print)?;
        let age = now.saturating_duration_since(seen.asked_at);
        let max_age = self.tuning.deny_max_age();
        let holds = demand.may_recall() || seen.outcome.is_blocked();
        if !holds || age >= max_age || seen.changes != self.tuning.changes() {
            return None;
        }
        // One asks anew before all have to, so that a flood does not reach the store whenever this is too old.
        if age >= max_age - max_age / 8 && !mem::replace(&mut seen.is_asked_anew, true) {
            return None;
        }
        let age = Micros::try_from(age.as_micros()).ok()?;
        let outcome = seen.outcome.after(age, demand.policy(), seen.cost, demand.cost_u32());
        outcome.map(|outcome| outcome.in_shadow(demand.is_shadow()))
    }

    fn remember(&self, asked: &Asked, decision: &Decision, asked_at: Instant) {
        for (asked, outcome) in asked.iter().zip(decision.outcomes()) {
            let print = &asked.print;
            let counts = asked.escalates && !outcome.is_allowed();
            let mut set = self.set(print);
            if set.cleared != asked.cleared || (asked.only_blocked || counts) && !outcome.is_blocked() {
                continue;
            }
            // In the place of what is known of it already, or of nothing, or of the next in turn.
            let same = |seen: &Option<Box<Seen>>| seen.as_ref().is_some_and(|seen| seen.print == *print);
            let known = set.seen.iter().position(same).or_else(|| set.seen.iter().position(Option::is_none));
            let place = known.unwrap_or_else(|| {
                set.next = (set.next + 1) % WAYS;
                set.next
            });
            set.seen[place] = Some(Box::new(Seen {
                print: *print,
                cost: asked.cost,
                asked_at,
                outcome: outcome.clone(),
                is_asked_anew: false,
                changes: self.tuning.changes(),
            }));
        }
    }

    /// Forgets, and has answers on their way not remembered, also if nothing has been so far.
    fn forget_all(&self, prints: &[Print]) {
        self.sets.get_or_init(Self::empty);
        self.forget(prints);
    }

    fn forget<'a>(&self, prints: impl IntoIterator<Item = &'a Print>) {
        if self.sets.get().is_none() {
            return;
        }
        for print in prints {
            let mut set = self.set(print);
            set.cleared += 1;
            let same = |seen: &&mut Option<Box<Seen>>| seen.as_ref().is_some_and(|seen| seen.print == *print);
            set.seen.iter_mut().filter(same).for_each(|seen| *seen = None);
        }
    }

    /// Returns how often the place of a demand has been cleared.
    fn cleared(&self, print: &Print) -> u64 {
        if self.sets.get().is_some() { self.set(print).cleared } else { 0 }
    }

    fn set(&self, print: &Print) -> MutexGuard<'_, Set> {
        let sets = self.sets.get_or_init(Self::empty);
        let index = usize::try_from(print.0[0] % SETS).expect("a small remainder");
        sets[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn empty() -> Box<[Mutex<Set>]> {
        (0..SETS).map(|_| Mutex::default()).collect()
    }
}

/// Room for sixty-five thousand demands, so that ten thousand hardly ever push each other out: one megabyte, and nine
/// while as many are refused at once.
const SETS: u64 = 16_384;
const WAYS: usize = 4;

#[cfg(feature = "admin")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, sync::OnceLock};

use smallvec::SmallVec;
use tracing::Level;

#[cfg(feature = "admin")]
use super::refused::Refused;
use crate::{
    key::Key,
    limit::{Decision, Demand, Outcome, Policy},
    metrics::{KeysMeter, RuleMeter, Tally},
};

/// Takes note of each decision of a limiter: metrics, events, and counts for operators.
///
/// It stands where all decisions come by, however they were made.
#[derive(Debug, Default)]
pub(super) struct Observer {
    /// Made by the first decision that is looked at.
    rules: OnceLock<Rules>,
    /// Made when an operator is given a view of this limiter.
    #[cfg(feature = "admin")]
    board: OnceLock<Board>,
    /// Set if it is nobody's business.
    #[cfg(feature = "admin")]
    pub(super) is_private: bool,
}

/// What operators see beside the counts.
#[cfg(feature = "admin")]
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) refused: Refused,
    pub(super) shadow_refused: Refused,
}

/// How often each [`Tally`] was counted.
#[cfg(feature = "admin")]
pub(crate) type Counts = [u64; Tally::ALL.len()];

/// The rules that were seen so far, found by their names without a lock. None is ever taken out, so there is a bound.
struct Rules {
    seen: Box<[OnceLock<Box<Rule>>]>,
    /// Stands for all that found no place.
    others: Rule,
    keys: KeysMeter,
}

#[derive(Debug)]
struct Rule {
    /// There is none for the others.
    policy: Option<Policy>,
    meter: RuleMeter,
    #[cfg(feature = "admin")]
    counts: [AtomicU64; Tally::ALL.len()],
}

/// A demand, as much of it as is taken note of.
#[derive(Clone, Copy)]
struct Asked<'a> {
    policy: &'a Policy,
    subject: &'a Key,
    shadow: bool,
    /// Who asks for nothing only looks, and is not counted.
    counts: bool,
}

/// The demands of a call that waits.
#[derive(Debug)]
pub(super) struct Noted(SmallVec<[(Policy, Key, bool, bool); 2]>);

impl Noted {
    pub(super) fn of(demands: &[Demand<'_>]) -> Self {
        let own = |demand: &Demand<'_>| {
            (demand.policy().clone(), *demand.subject(), demand.is_shadow(), demand.cost_u32() > 0)
        };
        Self(demands.iter().map(own).collect())
    }
}

impl Observer {
    /// Returns true if anybody looks.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        #[cfg(feature = "admin")]
        if self.is_private || self.board.get().is_some() {
            return !self.is_private;
        }
        cfg!(feature = "metrics") || tracing::enabled!(target: "tollgate::decision", Level::DEBUG)
    }

    /// Takes note of a decision on some demands.
    pub(super) fn decided(&self, demands: &[Demand<'_>], decision: &Decision, keys: impl FnOnce() -> Option<usize>) {
        let asked = demands.iter().map(|demand| Asked {
            policy: demand.policy(),
            subject: demand.subject(),
            shadow: demand.is_shadow(),
            counts: demand.cost_u32() > 0,
        });
        self.all(asked, decision, keys);
    }

    /// Takes note of a decision that was waited for.
    pub(super) fn decided_later(&self, noted: &Noted, decision: &Decision, keys: impl FnOnce() -> Option<usize>) {
        let asked = noted.0.iter().map(|(policy, subject, shadow, counts)| Asked {
            policy,
            subject,
            shadow: *shadow,
            counts: *counts,
        });
        self.all(asked, decision, keys);
    }

    fn all<'a>(
        &self,
        asked: impl Iterator<Item = Asked<'a>>,
        decision: &Decision,
        keys: impl FnOnce() -> Option<usize>,
    ) {
        let rules = self.rules.get_or_init(Rules::new);
        for (place, asked) in asked.enumerate().filter(|(_, asked)| asked.counts) {
            self.one(rules.of(asked.policy), asked, decision.outcomes().get(place), decision);
        }
        rules.keys.decided(keys);
    }

    fn one(&self, rule: &Rule, asked: Asked<'_>, outcome: Option<&Outcome>, decision: &Decision) {
        let Asked { policy, subject, shadow, .. } = asked;
        let said = match outcome {
            Some(outcome) if shadow && outcome.is_allowed() => Some(Tally::ShadowAllowed),
            Some(_) if shadow => Some(Tally::ShadowRefused),
            Some(outcome) if !outcome.is_allowed() => Some(Tally::Refused),
            Some(_) if !decision.is_allowed() => Some(Tally::OtherRefused),
            // Nothing is known of what is only in the shadow.
            None if shadow => None,
            None if !decision.is_allowed() => Some(Tally::Unavailable),
            _ => Some(Tally::Allowed),
        };
        if let Some(said) = said {
            rule.count(said);
        }
        let near = |outcome: &Outcome| outcome.remaining() < policy.capacity().div_ceil(5);
        // A share of the quota says nothing about the whole.
        if said == Some(Tally::Allowed) && !decision.is_degraded() && outcome.is_some_and(near) {
            rule.count(Tally::NearLimit);
        }
        for (is_so, tally) in [
            (decision.is_degraded(), Tally::Degraded),
            (decision.is_overflow(), Tally::Overflow),
            (decision.is_allotted(), Tally::Allotted),
        ] {
            if is_so {
                rule.count(tally);
            }
        }
        #[cfg(feature = "admin")]
        if let Some(board) = self.board.get() {
            match said {
                Some(Tally::Refused) => board.refused.add(policy, subject),
                Some(Tally::ShadowRefused) => board.shadow_refused.add(policy, subject),
                _ => {}
            }
        }
        if let Some(said) = said {
            tell(said, policy, subject, outcome, decision);
        }
    }
}

#[cfg(feature = "admin")]
impl Observer {
    /// Returns what operators see; from the first time on it is kept.
    pub(super) fn board(&self) -> &Board {
        self.board.get_or_init(Board::default)
    }

    /// Returns what was counted of each rule so far; without a policy, of those for which there was no place.
    pub(super) fn counts(&self) -> Vec<(Option<Policy>, Counts)> {
        let rules = self.rules.get_or_init(Rules::new);
        let all = rules.seen.iter().filter_map(OnceLock::get).map(|rule| &**rule).chain([&rules.others]);
        let read = |rule: &Rule| rule.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        all.map(|rule| (rule.policy.clone(), read(rule))).collect()
    }
}

/// Makes an event of a decision. They are for those who look into a matter, so keys are told.
fn tell(said: Tally, policy: &Policy, subject: &Key, outcome: Option<&Outcome>, decision: &Decision) {
    let (rule, key) = (policy.name(), subject.as_str());
    let passes_in = outcome.and_then(Outcome::passes_in);
    let degraded = decision.is_degraded();
    match said {
        Tally::Refused => {
            tracing::debug!(name: "refused", target: "tollgate::decision", rule, key, ?passes_in, degraded, "refused");
        }
        Tally::ShadowRefused => {
            tracing::debug!(name: "shadow_refused", target: "tollgate::decision", rule, key, ?passes_in, degraded, "refused in the shadow");
        }
        Tally::Unavailable => {
            tracing::debug!(name: "unavailable", target: "tollgate::decision", rule, key, degraded, "unavailable");
        }
        _ => {
            tracing::trace!(name: "passed", target: "tollgate::decision", rule, key, outcome = said.name(), degraded, "passed")
        }
    }
}

impl Rules {
    fn new() -> Self {
        Self {
            seen: (0..MOST_RULES).map(|_| OnceLock::new()).collect(),
            others: Rule::new(OTHERS, None),
            keys: KeysMeter::new(),
        }
    }

    /// Finds the counts of a policy, and makes them at the first time.
    fn of(&self, policy: &Policy) -> &Rule {
        let first = usize::try_from(policy.tag() % MOST_RULES as u64).expect("a small remainder");
        let places = self.seen[first..].iter().chain(&self.seen[..first]);
        let new = || Box::new(Rule::new(policy.name(), Some(policy.clone())));
        // The tag stands for the name.
        let is_it = |rule: &&Rule| rule.policy.as_ref().is_some_and(|known| known.tag() == policy.tag());
        places.map(|place| &**place.get_or_init(new)).find(is_it).unwrap_or(&self.others)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.seen.iter().filter_map(OnceLock::get)).finish()
    }
}

impl Rule {
    fn new(name: &str, policy: Option<Policy>) -> Self {
        Self {
            policy,
            meter: RuleMeter::new(name),
            #[cfg(feature = "admin")]
            counts: Default::default(),
        }
    }

    fn count(&self, tally: Tally) {
        self.meter.count(tally);
        #[cfg(feature = "admin")]
        self.counts[tally.place()].fetch_add(1, Ordering::Relaxed);
    }
}

/// More rules than anybody writes; who makes policies of what clients send finds the rest among the [`OTHERS`].
const MOST_RULES: usize = 256;

/// No policy can have such a name.
const OTHERS: &str = "(others)";

use std::sync::Arc;

use super::{
    Gate, Limiter,
    observer::{Board, Counts},
    refused::Most,
};
use crate::{key::Key, limit::Policy, memory::Memory, shield::Seen};

/// What an operator can see of a limiter, and do to it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    limiter: Limiter,
}

/// A rule, and what was counted of it by this process since it was first looked at.
#[derive(Clone, Debug)]
pub(crate) struct RuleCounts {
    /// `None` stands for all rules for which there was no place.
    pub(crate) policy: Option<Policy>,
    pub(crate) counts: Counts,
}

impl Limiter {
    /// Lets an operator look; from now on it is counted what there is to see.
    pub(crate) fn view(&self) -> View {
        let view = View { limiter: self.clone() };
        view.board();
        view
    }

    /// Makes a limiter for this crate's own use, which shows up nowhere.
    pub(crate) fn private() -> Self {
        let mut limiter = Self::new(Memory::new());
        if let Some(gate) = Arc::get_mut(&mut limiter.gate) {
            gate.observer.is_private = true;
        }
        limiter
    }
}

impl View {
    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Returns all rules of layers, and then all policies that were used without one.
    pub(crate) fn rules(&self) -> Vec<RuleCounts> {
        let mut counted = self.gate().observer.counts();
        let mut rules: Vec<_> = self
            .limiter
            .policies()
            .into_iter()
            .map(|policy| {
                let is_it = |(known, _): &(Option<Policy>, Counts)| {
                    known.as_ref().is_some_and(|known| known.name() == policy.name())
                };
                let counts = counted.iter().position(is_it).map(|place| counted.remove(place).1);
                RuleCounts { policy: Some(policy), counts: counts.unwrap_or_default() }
            })
            .collect();
        let rest = counted.into_iter().map(|(policy, counts)| RuleCounts { policy, counts });
        rules.extend(rest.filter(|rule| rule.policy.is_some() || rule.counts.iter().any(|count| *count > 0)));
        rules
    }

    pub(crate) fn most_refused(&self, count: usize) -> Vec<Most> {
        self.board().refused.most(count)
    }

    pub(crate) fn most_refused_in_shadow(&self, count: usize) -> Vec<Most> {
        self.board().shadow_refused.most(count)
    }

    pub(crate) fn store(&self) -> Seen {
        self.gate().vitals.seen()
    }

    pub(crate) fn keys(&self) -> Option<usize> {
        self.gate().bare.keys()
    }

    pub(crate) fn is_connected(&self) -> Option<bool> {
        self.gate().bare.is_connected()
    }

    /// Stands for a key where its text is not to be read.
    pub(crate) fn fingerprint(&self, key: &Key) -> String {
        self.limiter.secrets().fingerprint(key)
    }

    fn board(&self) -> &Board {
        self.gate().observer.board()
    }

    fn gate(&self) -> &Gate {
        &self.limiter.gate
    }
}

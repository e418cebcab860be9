use std::{
    cell::Cell,
    fmt, mem,
    ops::{Deref, DerefMut},
    slice,
};

use super::Outcome;

/// The outcomes of a decision: a single one in place, as most have it, so that a decision is small; several in a list
/// that goes from one decision of a thread to the next, so that none allocates.
///
/// Its tag is a whole word, so that it is copied word by word and never in parts that overlap.
#[derive(Clone, Default)]
#[repr(u64)]
pub(crate) enum Outcomes {
    #[default]
    None,
    One(Outcome),
    Many(Lent),
}

/// A list that is given back when it is not needed any more.
pub(crate) struct Lent(Vec<Outcome>);

impl Outcomes {
    /// Takes the only outcome; there is none so far.
    #[inline]
    pub(crate) fn set(&mut self, outcome: Outcome) {
        debug_assert!(self.is_empty());
        // Of nothing, nothing is to be dropped: so the outcome is written where it is to be.
        mem::forget(mem::replace(self, Self::One(outcome)));
    }

    #[inline]
    pub(crate) fn push(&mut self, outcome: Outcome) {
        match self {
            Self::None => *self = Self::One(outcome),
            Self::One(_) => self.push_second(outcome),
            Self::Many(Lent(list)) => list.push(outcome),
        }
    }

    #[inline(never)]
    fn push_second(&mut self, outcome: Outcome) {
        let mut list = Lent::borrow();
        if let Self::One(first) = mem::take(self) {
            list.0.push(first);
        }
        list.0.push(outcome);
        *self = Self::Many(list);
    }
}

impl Lent {
    fn borrow() -> Self {
        // None is to be had while a thread ends.
        let spare = SPARE.try_with(Cell::take).unwrap_or_default();
        Self(if spare.capacity() > 0 { spare } else { Vec::with_capacity(MOSTLY) })
    }
}

impl Drop for Lent {
    // Apart, so that little is done where there is one outcome or none.
    #[inline(never)]
    fn drop(&mut self) {
        let mut list = mem::take(&mut self.0);
        if list.capacity() <= MOST_KEPT {
            list.clear();
            let _ = SPARE.try_with(|spare| spare.set(list));
        }
    }
}

impl Clone for Lent {
    fn clone(&self) -> Self {
        let mut list = Self::borrow();
        list.0.extend_from_slice(&self.0);
        list
    }
}

thread_local! {
    /// The list that the next decision on several demands takes.
    static SPARE: Cell<Vec<Outcome>> = const { Cell::new(Vec::new()) };
}

/// What a new list has room for: few requests match more rules.
const MOSTLY: usize = 4;

/// A longer list is not kept.
const MOST_KEPT: usize = 64;

impl Deref for Outcomes {
    type Target = [Outcome];

    #[inline]
    fn deref(&self) -> &[Outcome] {
        match self {
            Self::None => &[],
            Self::One(outcome) => slice::from_ref(outcome),
            Self::Many(Lent(list)) => list,
        }
    }
}

impl DerefMut for Outcomes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Outcome] {
        match self {
            Self::None => &mut [],
            Self::One(outcome) => slice::from_mut(outcome),
            Self::Many(Lent(list)) => list,
        }
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        let mut all = Self::None;
        outcomes.into_iter().for_each(|outcome| all.push(outcome));
        all
    }
}

impl fmt::Debug for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Policy, Quota};

    fn outcomes(units: &[u64]) -> Outcomes {
        let policy = Policy::fixed_window("p", Quota::per_minute(100));
        units.iter().map(|units| Outcome::pass(&policy, *units)).collect()
    }

    fn remaining(outcomes: &Outcomes) -> Vec<u64> {
        outcomes.iter().map(Outcome::remaining).collect()
    }

    #[test]
    fn lists_are_handed_on_empty_and_never_while_they_are_in_use() {
        for _ in 0..3 {
            let first = outcomes(&[1, 2]);
            let (second, copy) = (outcomes(&[3, 4, 5]), first.clone());
            drop(first);
            let third = outcomes(&[6, 7]);
            assert_eq!(remaining(&second), [3, 4, 5]);
            assert_eq!((remaining(&copy), remaining(&third)), (vec![1, 2], vec![6, 7]));
        }
        let capacity = |outcomes: &Outcomes| match outcomes {
            Outcomes::Many(Lent(list)) => list.capacity(),
            _ => 0,
        };
        let long = outcomes(&[0; MOST_KEPT + 1]);
        assert!(capacity(&long) > MOST_KEPT);
        drop(long);
        assert!(capacity(&outcomes(&[1, 2])) <= MOST_KEPT, "a long list is not kept");
    }

    #[test]
    fn none_and_one_need_no_list() {
        assert!(remaining(&Outcomes::None).is_empty());
        let mut one = Outcomes::None;
        one.set(outcomes(&[7])[0].clone());
        assert!(matches!(one, Outcomes::One(_)));
        assert_eq!(remaining(&one), [7]);
    }
}

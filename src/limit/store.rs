use std::{fmt, sync::Arc, time::Duration};

#[cfg(doc)]
use super::Outcome;
use super::{Adjustment, Answer, Decision, Escalation, MAX_UNITS, OnError, Policy};
use crate::{error::Error, key::Key};

/// Keeps the state of limits and decides on it.
///
/// The crate brings [`Memory`](crate::Memory) and, with the feature `redis`, `Redis`. To bring your own,
/// implement this and hand it to [`Limiter::new`](crate::Limiter::new).
///
/// An answer does not borrow: a store takes what it needs of its demands before it returns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tollgate::{Demand, Key, Limiter, Memory, Policy, Quota, limit::{Adjustment, Answer, Store}};
///
/// /// Counts how often it is asked, and leaves the rest to another store.
/// #[derive(Debug)]
/// struct Counting { inner: Memory, asked: &'static AtomicU64 }
///
/// impl Store for Counting {
///     fn decide(&self, demands: &[Demand<'_>]) -> Answer {
///         self.asked.fetch_add(1, Ordering::Relaxed);
///         self.inner.decide(demands)
///     }
///
///     fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
///         self.inner.settle(adjustments)
///     }
///
///     fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
///         self.inner.reset(policy, subject)
///     }
/// }
///
/// static API: Policy = Policy::token_bucket("api", Quota::per_minute(60));
/// static ASKED: AtomicU64 = AtomicU64::new(0);
/// let limiter = Limiter::new(Counting { inner: Memory::new(), asked: &ASKED });
/// assert!(limiter.check(&API, "user:42").await.is_allowed());
/// assert_eq!(ASKED.load(Ordering::Relaxed), 1);
/// # }
/// ```
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides on all demands together: charges every one of them, or none.
    ///
    /// Those [in the shadow](Demand::is_shadow) decide nothing: each is charged if the others are and it has room itself,
    /// and its outcome is put [in the shadow](Outcome::in_shadow).
    ///
    /// The outcomes come in the order of the demands. No two demands name the same policy and subject; a cost
    /// of zero asks without charging and leaves no trace.
    fn decide(&self, demands: &[Demand<'_>]) -> Answer;

    /// Decides as [`decide`](Self::decide) does, if that needs no waiting; else does nothing and returns false.
    ///
    /// `decision` is [empty](Decision::empty) before. A store that always waits need not have this; one that never
    /// does spares its callers an [`Answer`].
    fn decide_now(&self, demands: &[Demand<'_>], decision: &mut Decision) -> bool {
        let _ = (demands, decision);
        false
    }

    /// Changes charges to what they truly cost; those whose receipt has expired stay as they are.
    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()>;

    /// Forgets what one subject has used under one policy.
    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()>;

    /// Refuses one subject under one policy for so long, whatever it has used; zero lets it in again.
    ///
    /// A block is no part of the state: a reset does not lift it. A store that has no blocks answers an error.
    fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
        let _ = (policy, subject, long);
        Answer::ready(Err(Error::store("this store cannot block")))
    }

    /// Waits for what the store still does for requests that have gone away, like giving back what they were charged.
    ///
    /// A store that does nothing behind its answers need not have this.
    fn finish(&self) -> Answer<()> {
        Answer::ready(Ok(()))
    }

    /// Returns true if keys leave this process, where others may read them.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns how many keys it keeps in this process, if it does: for operators. It may take its time.
    fn keys(&self) -> Option<usize> {
        None
    }

    /// Returns whether it is connected to where it keeps its state; `None` if there is no such thing, or nobody knows.
    fn is_connected(&self) -> Option<bool> {
        None
    }

    /// Returns which parts of the store have to answer for these demands, a bit each.
    ///
    /// A part that fails is left alone for a while, and others are not. A store that fails as a whole, as most do, is
    /// one part, the lowest bit.
    fn parts(&self, demands: &[Demand<'_>]) -> u64 {
        let _ = demands;
        1
    }
}

/// Makes a pointer to a store one, so that which it is can be chosen at run time.
macro_rules! store_behind {
    ($pointer:ident) => {
        impl<T: Store + ?Sized> Store for $pointer<T> {
            fn decide(&self, demands: &[Demand<'_>]) -> Answer {
                (**self).decide(demands)
            }

            fn decide_now(&self, demands: &[Demand<'_>], decision: &mut Decision) -> bool {
                (**self).decide_now(demands, decision)
            }

            fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
                (**self).settle(adjustments)
            }

            fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
                (**self).reset(policy, subject)
            }

            fn block(&self, policy: &Policy, subject: &Key, long: Duration) -> Answer<()> {
                (**self).block(policy, subject, long)
            }

            fn finish(&self) -> Answer<()> {
                (**self).finish()
            }

            fn is_shared(&self) -> bool {
                (**self).is_shared()
            }

            fn keys(&self) -> Option<usize> {
                (**self).keys()
            }

            fn is_connected(&self) -> Option<bool> {
                (**self).is_connected()
            }

            fn parts(&self, demands: &[Demand<'_>]) -> u64 {
                (**self).parts(demands)
            }
        }
    };
}

store_behind!(Box);
store_behind!(Arc);

/// Asks for units of one policy, for one subject.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Demand, Limiter, Memory, Policy, Quota};
///
/// static REQUESTS: Policy = Policy::token_bucket("requests", Quota::per_second(10));
/// static BYTES: Policy = Policy::fixed_window("bytes", Quota::per_day(1_000_000));
/// let demands = [Demand::new(&REQUESTS, "user:42"), Demand::new(&BYTES, "user:42").cost(4_096)];
/// let (decision, _charge) = Limiter::new(Memory::new()).decide(&demands).await;
/// assert!(decision.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Demand<'a> {
    policy: &'a Policy,
    subject: Key,
    cost: u32,
    /// Whether they are drawn ahead: nobody is refused if nothing can be found out.
    ahead: bool,
    shadow: bool,
    /// Whether a refusal may be told from memory; not where units often come back.
    may_recall: bool,
}

impl<'a> Demand<'a> {
    /// Asks for one unit.
    pub fn new(policy: &'a Policy, subject: impl Into<Key>) -> Self {
        Self::of(policy, subject.into(), 1)
    }

    pub(crate) fn of(policy: &'a Policy, subject: Key, units: u64) -> Self {
        Self { policy, subject, cost: saturate(units), ahead: false, shadow: false, may_recall: true }
    }

    /// Asks for `units` instead; zero asks how things stand and charges nothing.
    ///
    /// More than the policy's capacity is refused for good, and so is all above 2³¹.
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = saturate(units);
        self
    }

    /// Asks only to see what the policy would say: that is reported, and never decides.
    ///
    /// It is charged if the demands beside it are, and its own quota has room; so its counts are what they would be if
    /// it were enforced alone. Where the same policy and subject are asked in earnest too, both count together.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// use tollgate::{Demand, Limiter, Memory, Policy, Quota};
    ///
    /// static NOW: Policy = Policy::fixed_window("now", Quota::per_minute(100));
    /// static PLANNED: Policy = Policy::fixed_window("planned", Quota::per_minute(1));
    /// let limiter = Limiter::new(Memory::new());
    ///
    /// let demands = [Demand::new(&NOW, "user:42"), Demand::new(&PLANNED, "user:42").shadow()];
    /// let (first, _) = limiter.decide(&demands).await;
    /// let (second, _) = limiter.decide(&demands).await;
    /// assert!(first.is_allowed() && second.is_allowed());
    /// assert!(second.outcomes().iter().any(|outcome| outcome.is_shadow() && !outcome.is_allowed()));
    /// # }
    /// ```
    pub fn shadow(self) -> Self {
        self.in_shadow(true)
    }

    /// Asks the store each time, since what was refused may pass at any moment.
    pub(crate) fn anew(self) -> Self {
        Self { may_recall: false, ..self }
    }

    pub(crate) fn may_recall(&self) -> bool {
        self.may_recall
    }

    pub(crate) fn in_shadow(self, shadow: bool) -> Self {
        Self { shadow, ..self }
    }

    /// Returns true if it is [only reported](Self::shadow).
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns the policy.
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns what the policy's refusal leads to, if it counts for that: the demand is one in earnest.
    pub fn escalation(&self) -> Option<&'a Escalation> {
        let counts = self.cost > 0 && !self.shadow && !self.ahead;
        if counts { self.policy.escalation() } else { None }
    }

    /// Returns whose units they are.
    pub fn subject(&self) -> &Key {
        &self.subject
    }

    /// Returns the units asked for, at most 2³¹ + 1.
    pub fn units(&self) -> u64 {
        self.cost.into()
    }

    pub(crate) fn subject_mut(&mut self) -> &mut Key {
        &mut self.subject
    }

    /// Asks this of another policy, which may be only to see what it would say.
    pub(crate) fn set(&mut self, policy: &'a Policy, units: u64, shadow: bool) {
        (self.policy, self.cost, self.shadow) = (policy, saturate(units), shadow);
    }

    pub(crate) fn cost_u32(&self) -> u32 {
        self.cost
    }

    /// Asks for units to be spent later, which only the store can grant.
    pub(crate) fn ahead(self) -> Self {
        Self { ahead: true, ..self }
    }

    pub(crate) fn is_ahead(&self) -> bool {
        self.ahead
    }

    /// Returns what decides if the store cannot.
    pub(crate) fn on_error(&self) -> OnError {
        if self.ahead { OnError::Deny } else { self.policy.on_error_choice() }
    }

    /// Returns true if both ask for units of the same state.
    pub(crate) fn is_twin_of(&self, other: &Demand<'_>) -> bool {
        self.policy.name() == other.policy.name()
            && self.policy.algorithm() == other.policy.algorithm()
            && self.subject == other.subject
    }

    /// Asks for the units of a twin as well.
    pub(crate) fn add(&mut self, twin: &Demand<'_>) {
        self.cost = saturate(u64::from(self.cost) + u64::from(twin.cost));
        self.shadow &= twin.shadow;
    }
}

/// One more than what can ever be granted stands for all of it.
pub(super) fn saturate(units: u64) -> u32 {
    u32::try_from(units).map_or(MAX_UNITS + 1, |units| units.min(MAX_UNITS + 1))
}

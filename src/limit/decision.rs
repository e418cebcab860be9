use std::time::Duration;

use super::{
    Algorithm, Micros, Policy, Quota, Receipt, Stand, Standing, Told,
    outcomes::Outcomes,
    policy::{Name, TICKS_PER_MICRO},
};

/// What was decided, and where each policy stands.
///
/// A decision knows the policies but not whose request it was. Refusing is a decision too: nothing was charged
/// then, and policies that would have let the request pass report what remains without it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// use tollgate::{Limiter, Memory, Policy, Quota};
///
/// static LOGIN: Policy = Policy::fixed_window("login", Quota::per_minute(2));
/// let limiter = Limiter::new(Memory::new());
///
/// let decision = limiter.check(&LOGIN, "user:42").await;
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), Some(1));
///
/// let _ = limiter.check(&LOGIN, "user:42").await;
/// let refused = limiter.check(&LOGIN, "user:42").await;
/// assert!(!refused.is_allowed());
/// assert!(refused.retry_after().is_some_and(|wait| wait <= Duration::from_secs(60)));
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Decision {
    outcomes: Outcomes,
    allowed: bool,
    degraded: bool,
    overflow: bool,
    allotted: bool,
}

impl Decision {
    /// Makes a decision on nothing, which lets the request pass.
    #[inline]
    pub fn empty() -> Self {
        Self { outcomes: Outcomes::None, allowed: true, degraded: false, overflow: false, allotted: false }
    }

    /// Adds what one more policy said.
    #[inline]
    pub fn push(&mut self, outcome: Outcome) {
        self.allowed &= outcome.is_allowed() || outcome.shadow;
        self.outcomes.push(outcome);
    }

    /// Takes what the only policy said; nothing is decided so far.
    #[inline]
    pub(crate) fn set(&mut self, outcome: Outcome) {
        self.allowed = outcome.allowed;
        self.outcomes.set(outcome);
    }

    /// Decides by what each policy says: all or nothing.
    pub(crate) fn by(outcomes: Outcomes) -> Self {
        let allowed = outcomes.iter().all(|outcome| outcome.is_allowed() || outcome.shadow);
        Self { outcomes, allowed, degraded: false, overflow: false, allotted: false }
    }

    /// Decides without a store: nothing is known of any policy.
    pub(crate) fn without_store(allowed: bool) -> Self {
        Self { allowed, degraded: true, ..Self::empty() }
    }

    /// Makes a decision of what a store of your own found, in the order of its demands.
    pub fn new(outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        Self::by(outcomes.into_iter().collect())
    }

    /// Returns true if the request may pass.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns true if the store could not answer and the policies' [`OnError`](super::OnError) decided.
    ///
    /// With [`OnError::Local`](super::OnError::Local) its outcomes tell of this process's share, and its charge cannot
    /// be settled. Else there are no outcomes, and nothing was charged as far as can be known.
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Returns true if the request was refused because the store could not answer: a fault of the service and
    /// not of its caller, to be told as HTTP 503 or gRPC status 14.
    ///
    /// Not so if this process has decided by its share and refused: that is over the limit, and
    /// [degraded](Self::is_degraded).
    pub fn is_unavailable(&self) -> bool {
        self.degraded && !self.allowed && self.outcomes.is_empty()
    }

    /// Marks it as made without the store.
    pub(crate) fn set_degraded(&mut self) {
        self.degraded = true;
    }

    /// Returns true if the key was counted together with others, since the store had no room for it.
    ///
    /// Its outcomes tell of those others too, and its charge cannot be settled.
    pub fn is_overflow(&self) -> bool {
        self.overflow
    }

    pub(crate) fn set_overflow(&mut self) {
        self.overflow = true;
    }

    pub(crate) fn outcomes_mut(&mut self) -> &mut [Outcome] {
        &mut self.outcomes
    }

    /// Returns true if it was decided in this process, from units that were drawn ahead: see
    /// [`Policy::allotted`](super::Policy::allotted).
    ///
    /// Its outcomes tell what the store said at the last draw, and its charge cannot be settled.
    pub fn is_allotted(&self) -> bool {
        self.allotted
    }

    pub(crate) fn set_allotted(&mut self, allotted: bool) {
        self.allotted = allotted;
    }

    /// Returns true if waiting cannot help: the cost is above what a policy can ever grant at once.
    pub fn is_never(&self) -> bool {
        self.enforced().any(Outcome::is_never)
    }

    /// Returns what the policies said that are enforced, not those [in the shadow](Outcome::is_shadow).
    pub fn enforced(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| !outcome.shadow)
    }

    /// Returns what each policy said, in the order of the demands.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Returns the outcome that matters most: the one that refuses longest, else the one with least left; none in the
    /// shadow.
    ///
    /// On a tie the longer window binds.
    pub fn binding(&self) -> Option<&Outcome> {
        let mut enforced = self.enforced();
        // Mostly there is one, and nothing to work out.
        let first = enforced.next()?;
        let tightness = |outcome: &Outcome| {
            let window_ms = outcome.quota.window_ms();
            if self.allowed {
                (outcome.remaining(), u64::MAX - window_ms)
            } else {
                (u64::MAX - outcome.stand.wait(), u64::MAX - window_ms)
            }
        };
        Some(enforced.fold(first, |binding, other| if tightness(other) < tightness(binding) { other } else { binding }))
    }

    /// Returns the units that are left under the policy that matters most; `None` if nothing is known.
    pub fn remaining(&self) -> Option<u64> {
        self.binding().map(Outcome::remaining)
    }

    /// Returns how long to wait until the same request would pass, if nobody else asks meanwhile.
    ///
    /// `None` if it passed (as one that only asks does, unless it is blocked), if waiting cannot help ([`is_never`](Self::is_never)), or if nothing is known.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.allowed { None } else { self.binding()?.passes_in() }
    }

    /// Joins this decision with that of another layer; both have let the request pass.
    pub(crate) fn and(&self, other: &Decision) -> Self {
        let outcomes = self.outcomes.iter().chain(other.outcomes.iter()).cloned().collect();
        Self {
            outcomes,
            allowed: self.allowed && other.allowed,
            degraded: self.degraded || other.degraded,
            overflow: self.overflow || other.overflow,
            allotted: self.allotted || other.allotted,
        }
    }

    /// Tells how things stand when a policy has got so many units back.
    pub(crate) fn give_back(&mut self, policy: &Policy, units: u64) {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let of_policy = self.outcomes.iter_mut().filter(|outcome| outcome.policy() == policy.name());
        of_policy.for_each(|outcome| outcome.give_back(policy, units));
    }

    /// Tells each of several demands the outcome at its place.
    pub(crate) fn spread(&mut self, places: &[usize]) {
        self.outcomes = places.iter().filter_map(|place| self.outcomes.get(*place).cloned()).collect();
    }
}

/// Where one policy stands after a decision.
///
/// Worked: `10/s` in a fixed window with 6 used, cost 3. It passes: `remaining` is 1, and `passes_in` is the
/// time to the window's end, since another 3 would not fit.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Limiter, Memory, Policy, Quota};
///
/// static API: Policy = Policy::fixed_window("api", Quota::per_minute(3));
/// let decision = Limiter::new(Memory::new()).check(&API, "user:42").await;
/// let outcome = &decision.outcomes()[0];
/// assert_eq!((outcome.policy(), outcome.remaining()), ("api", 2));
/// assert!(outcome.full_in() <= Duration::from_secs(60));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Outcome {
    name: Name,
    receipt: Receipt,
    quota: Quota,
    stand: Stand,
    algorithm: Algorithm,
    allowed: bool,
    /// Whether it is refused since the subject is blocked, for as long as that.
    blocked: bool,
    /// Whether it is only reported.
    shadow: bool,
}

impl Outcome {
    #[inline]
    pub(crate) fn allowed(policy: &Policy, stand: impl Into<Stand>, receipt: Receipt) -> Self {
        Self::of(policy, stand.into(), receipt, true)
    }

    /// What a policy says of a cost that has been charged, with a receipt, or does not fit.
    #[inline]
    pub(crate) fn taken(policy: &Policy, stand: Stand, receipt: Option<Receipt>) -> Self {
        Self::of(policy, stand, receipt.unwrap_or(Receipt::NONE), receipt.is_some())
    }

    /// What a policy says before anything is charged: it allows what would pass now.
    #[inline]
    pub(crate) fn before(policy: &Policy, stand: impl Into<Stand>) -> Self {
        let stand = stand.into();
        Self::of(policy, stand, Receipt::NONE, stand.wait() == 0)
    }

    #[inline]
    fn of(policy: &Policy, stand: Stand, receipt: Receipt, allowed: bool) -> Self {
        Self {
            name: policy.shared_name().clone(),
            receipt,
            quota: policy.quota(),
            stand,
            algorithm: policy.algorithm(),
            allowed,
            blocked: false,
            shadow: false,
        }
    }

    /// Refuses for as long as the subject is blocked, if it is at all.
    pub(crate) fn blocked_for(self, long: Micros) -> Self {
        if long == 0 {
            return self;
        }
        let standing = Standing { remaining: 0, next: long, full: self.standing().full.max(long), wait: long };
        Self { stand: standing.into(), allowed: false, blocked: true, ..self }
    }

    /// Returns what has become of this after some time in which nobody was granted anything: an outcome for `asked`
    /// units, told to somebody who asks for `cost`. `None` if that cannot be told.
    pub(crate) fn after(&self, age: Micros, policy: &Policy, asked: u32, cost: u32) -> Option<Self> {
        if policy.quota() != self.quota || policy.algorithm() != self.algorithm || cost < asked {
            return None;
        }
        let then = self.standing();
        let mut later = Standing {
            next: then.next.saturating_sub(age),
            full: then.full.saturating_sub(age),
            wait: if then.wait == Standing::NEVER { then.wait } else { then.wait.saturating_sub(age) },
            ..then
        };
        let told = |standing: Standing| Self { stand: standing.into(), ..self.clone() };
        if self.blocked {
            return (later.wait > 0 && cost == asked).then(|| told(later));
        }
        let unchanged = age < then.next || then.next == 0;
        match self.algorithm {
            // Whatever is asked, it was over for somebody who asks for no less, until then.
            _ if !self.allowed && age >= then.wait => return None,
            _ if unchanged && cost == asked => {}
            Algorithm::TokenBucket if !self.allowed && u64::from(cost) <= policy.capacity() => {
                let interval = policy.interval().div_ceil(TICKS_PER_MICRO);
                if !unchanged {
                    let more = 1 + (age - then.next) * TICKS_PER_MICRO / policy.interval();
                    later.remaining = later.remaining.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
                    later.next = interval - (age - then.next) % interval;
                }
                later.wait += u64::from(cost - asked) * interval;
            }
            Algorithm::FixedWindow if !self.allowed && u64::from(cost) <= policy.capacity() => {}
            _ => return None,
        }
        Some(told(later))
    }

    /// Lets the request pass; for a [`Store`](super::Store) of your own.
    pub fn pass(policy: &Policy, remaining: u64) -> Self {
        let standing = Standing { remaining: units(remaining), next: 0, full: 0, wait: 0 };
        Self::of(policy, standing.into(), Receipt::NONE, true)
    }

    /// Refuses it; for a [`Store`](super::Store) of your own. `passes_in` is `None` if it never can pass.
    pub fn refuse(policy: &Policy, remaining: u64, passes_in: Option<Duration>) -> Self {
        let wait = passes_in.map_or(Standing::NEVER, |wait| micros(wait).max(1));
        let standing = Standing { remaining: units(remaining), next: 0, full: 0, wait };
        Self::of(policy, standing.into(), Receipt::NONE, false)
    }

    /// Refuses it for as long as the subject is blocked; for a [`Store`](super::Store) of your own.
    pub fn block(policy: &Policy, long: Duration) -> Self {
        Self::refuse(policy, 0, Some(long)).blocked_for(micros(long).max(1))
    }

    /// Sets the time until one more unit is left, and the time until nothing is used any more.
    #[must_use]
    pub fn with_times(self, next_unit_in: Duration, full_in: Duration) -> Self {
        let standing = Standing { next: micros(next_unit_in), full: micros(full_in), ..self.standing() };
        Self { stand: standing.into(), ..self }
    }

    /// Sets what a later settle is to recognise the charge by.
    #[must_use]
    pub fn with_receipt(mut self, receipt: Receipt) -> Self {
        self.receipt = receipt;
        self
    }

    /// Tells how things stand when so many units have come back at once.
    pub(crate) fn give_back(&mut self, policy: &Policy, units: u32) {
        let mut standing = self.standing();
        standing.remaining = standing.remaining.saturating_add(units).min(policy.capacity_u32());
        let back = u64::from(units).saturating_mul(policy.interval()).div_ceil(TICKS_PER_MICRO);
        // A bucket refills by each unit for itself; a window is over as a whole.
        standing.full = standing.full.saturating_sub(back);
        if standing.remaining == policy.capacity_u32() {
            (standing.next, standing.full) = (0, 0);
        }
        self.stand = standing.into();
    }

    /// Makes it one that is only reported, if `shadow` is true: for a [`Store`](super::Store) of your own.
    #[must_use]
    pub fn in_shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Returns true if it is only reported: it decides nothing, and clients are not told of it.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns the policy's name.
    pub fn policy(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the policy's algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns true if this policy lets the request pass, whatever the others say.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns true if the subject is blocked under this policy: by an operator, or by what the policy [escalates
    /// to](super::Policy::escalate).
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Returns true if no waiting helps: the cost is above the policy's capacity.
    pub fn is_never(&self) -> bool {
        !self.allowed && self.stand.wait() == Standing::NEVER
    }

    /// Returns the policy's quota.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the units that are left after this call.
    pub fn remaining(&self) -> u64 {
        self.standing().remaining.into()
    }

    /// Returns the time until one more unit is left than now; zero if nothing is used.
    pub fn next_unit_in(&self) -> Duration {
        Duration::from_micros(self.standing().next)
    }

    /// Returns the time until nothing is used any more.
    pub fn full_in(&self) -> Duration {
        Duration::from_micros(self.standing().full)
    }

    /// Returns the time until the same cost would pass: zero if it would at once, `None` if it never can.
    pub fn passes_in(&self) -> Option<Duration> {
        let wait = self.stand.wait();
        (wait != Standing::NEVER).then(|| Duration::from_micros(wait))
    }

    /// Returns all that is told of where it stands, which takes no more than one part of it.
    #[inline]
    pub(crate) fn standing(&self) -> Standing {
        self.stand.standing()
    }

    pub(crate) fn receipt(&self) -> Receipt {
        self.receipt
    }

    /// Returns what it tells a state that follows it, if anything: of a request for `cost` units, `admitted` or not.
    pub(crate) fn told(&self, policy: &Policy, cost: u32, admitted: bool) -> Option<Told> {
        let standing = self.standing();
        let used = policy.capacity_u32().saturating_sub(standing.remaining);
        let charged = admitted.then_some(cost);
        let refused = !self.allowed && standing.wait != Standing::NEVER;
        (cost > 0 && (admitted || refused)).then_some(Told { charged, cost, used, standing })
    }
}

impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        let told = |outcome: &Self| {
            let Self { receipt, quota, algorithm, allowed, blocked, shadow, .. } = *outcome;
            (receipt, quota, outcome.standing(), algorithm, allowed, blocked, shadow)
        };
        self.name == other.name && told(self) == told(other)
    }
}

impl Eq for Outcome {}

fn units(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_micros()).unwrap_or(Standing::NEVER - 1)
}

/// What a charge is known by when it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    None,
    Window { ends_ms: u64 },
    Entry { at: Micros, tie: u32 },
    Arrival { ticks: u64 },
    Foreign(u64),
}

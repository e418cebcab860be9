use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Answer, Decision, Demand, Micros, Policy, decision::Proof, store::saturate};
use crate::key::Key;

/// What a [`Store`](super::Store) recognises a charge by when it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    kind: Kind,
    tie: u32,
    number: u64,
}

/// Of what the number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    None,
    Window,
    Entry,
    Arrival,
    Foreign,
}

impl Receipt {
    pub(crate) const NONE: Self = Self::of(Kind::None, 0);

    /// Makes a receipt for a store of your own, of whatever tells its charges apart.
    pub const fn new(id: u64) -> Self {
        Self::of(Kind::Foreign, id)
    }

    /// Returns what [`Receipt::new`] was given.
    pub const fn id(self) -> Option<u64> {
        match self.kind {
            Kind::Foreign => Some(self.number),
            _ => None,
        }
    }

    pub(crate) const fn window(ends_ms: u64) -> Self {
        Self::of(Kind::Window, ends_ms)
    }

    pub(crate) const fn entry(at: Micros, tie: u32) -> Self {
        Self { kind: Kind::Entry, tie, number: at }
    }

    pub(crate) const fn arrival(ticks: u64) -> Self {
        Self::of(Kind::Arrival, ticks)
    }

    const fn of(kind: Kind, number: u64) -> Self {
        Self { kind, tie: 0, number }
    }

    pub(crate) const fn proof(self) -> Proof {
        let number = self.number;
        match self.kind {
            Kind::None => Proof::None,
            Kind::Window => Proof::Window { ends_ms: number },
            Kind::Entry => Proof::Entry { at: number, tie: self.tie },
            Kind::Arrival => Proof::Arrival { ticks: number },
            Kind::Foreign => Proof::Foreign(number),
        }
    }
}

/// Changes one charge to its true cost.
#[derive(Clone, Debug)]
pub struct Adjustment<'a> {
    policy: &'a Policy,
    subject: &'a Key,
    receipt: Receipt,
    charged: u32,
    cost: u32,
}

impl<'a> Adjustment<'a> {
    pub(crate) fn new(policy: &'a Policy, subject: &'a Key, receipt: Receipt, charged: u32, cost: u32) -> Self {
        Self { policy, subject, receipt, charged, cost }
    }

    /// Returns the policy under which the charge was made.
    pub fn policy(&self) -> &Policy {
        self.policy
    }

    /// Returns whose charge it is.
    pub fn subject(&self) -> &Key {
        self.subject
    }

    /// Returns what the store gave out for the charge.
    pub fn receipt(&self) -> Receipt {
        self.receipt
    }

    /// Returns the units that were charged.
    pub fn charged(&self) -> u64 {
        self.charged.into()
    }

    /// Returns the units that it truly cost.
    pub fn units(&self) -> u64 {
        self.cost.into()
    }

    pub(crate) fn charged_u32(&self) -> u32 {
        self.charged
    }

    pub(crate) fn cost_u32(&self) -> u32 {
        self.cost
    }
}

/// What a decision has charged, to be corrected when the true cost is known.
///
/// Cheap to clone and to keep: a handler settles it when it is done, or never. A charge that nobody settles
/// stands. A charge of a refused or free request is empty, and settling it does nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Demand, Limiter, Memory, Policy, Quota};
///
/// static TOKENS: Policy = Policy::fixed_window("tokens", Quota::per_minute(1_000));
/// let limiter = Limiter::new(Memory::new());
///
/// let (decision, charge) = limiter.decide(&[Demand::new(&TOKENS, "user:42").cost(200)]).await;
/// assert!(decision.is_allowed());
/// charge.settle(350).await?; // the answer was longer than expected
///
/// assert_eq!(limiter.peek(&TOKENS, "user:42").await.remaining(), Some(650));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Charge {
    items: Arc<[Arc<Item>]>,
}

#[derive(Debug)]
struct Item {
    policy: Policy,
    subject: Key,
    receipt: Receipt,
    charged: u32,
    settled: AtomicBool,
    settler: Arc<dyn Settler>,
}

impl Item {
    fn adjusted(&self, cost: u32) -> Adjustment<'_> {
        Adjustment::new(&self.policy, &self.subject, self.receipt, self.charged, cost)
    }

    fn demand(&self) -> Demand<'_> {
        Demand::of(&self.policy, self.subject, self.charged.into())
    }
}

/// Carries adjustments to the store even if nobody waits for it.
pub(crate) trait Settler: fmt::Debug + Send + Sync {
    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()>;
}

impl Charge {
    pub(crate) fn new(settler: &Arc<dyn Settler>, demands: &[Demand<'_>], decision: &Decision) -> Self {
        let mut items: Vec<Item> = Vec::new();
        for (demand, outcome) in demands.iter().zip(decision.outcomes()) {
            let cannot_settle = decision.is_overflow() || decision.is_allotted() || decision.is_degraded();
            if !decision.is_allowed() || !outcome.is_allowed() || cannot_settle || demand.cost_u32() == 0 {
                continue;
            }
            match items.iter_mut().find(|item| item.demand().is_twin_of(demand)) {
                Some(item) => item.charged = saturate(u64::from(item.charged) + u64::from(demand.cost_u32())),
                None => items.push(Item {
                    policy: demand.policy().clone(),
                    subject: *demand.subject(),
                    receipt: outcome.receipt(),
                    charged: demand.cost_u32(),
                    settled: AtomicBool::new(false),
                    settler: Arc::clone(settler),
                }),
            }
        }
        Self { items: items.into_iter().map(Arc::new).collect() }
    }

    /// Joins this charge with that of another layer, so that both are settled together.
    pub(crate) fn and(&self, other: &Charge) -> Self {
        Self { items: self.items.iter().chain(other.items.iter()).cloned().collect() }
    }

    /// Returns true if there is nothing to settle.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Changes the charge under every policy to `true_cost` units; zero gives it back.
    ///
    /// Takes effect once over all clones of this charge: the first call counts. What goes beyond the limit is debt that later requests wait for. Does nothing where the
    /// charge is no longer remembered: its window has ended, or its units have refilled.
    ///
    /// # Errors
    ///
    /// If the store does not answer; the charge then stands, or has been corrected: nobody can know.
    ///
    /// # Cancel safety
    ///
    /// Dropping the answer neither undoes nor stops the correction, so it need not be awaited. (Outside a tokio
    /// runtime nothing could carry on with it: await it there.)
    pub fn settle(&self, true_cost: u64) -> Answer<()> {
        self.settle_where(true_cost, |_| true)
    }

    /// Changes the charge under the policy called `policy` alone; does nothing if it has none.
    ///
    /// # Errors
    ///
    /// As [`Charge::settle`].
    ///
    /// # Cancel safety
    ///
    /// As [`Charge::settle`].
    pub fn settle_policy(&self, policy: &str, true_cost: u64) -> Answer<()> {
        self.settle_where(true_cost, |item| item.policy.name() == policy)
    }

    /// Gives back what was charged under the policy called `policy`, if nobody has settled it; `None` if there is nothing
    /// to give back.
    pub(crate) fn give_back(&self, policy: &str) -> Option<Answer<()>> {
        let open = |item: &Arc<Item>| item.policy.name() == policy && !item.settled.load(Ordering::Acquire);
        self.items.iter().any(open).then(|| self.settle_policy(policy, 0))
    }

    fn settle_where(&self, true_cost: u64, which: impl Fn(&Item) -> bool) -> Answer<()> {
        let cost = saturate(true_cost);
        let first = |item: &&Arc<Item>| which(item) && !item.settled.swap(true, Ordering::AcqRel);
        let due: Vec<&Item> =
            self.items.iter().filter(first).map(|item| &**item).filter(|item| item.charged != cost).collect();
        let settle = |items: &[&Item]| {
            let adjustments: Vec<_> = items.iter().map(|item| item.adjusted(cost)).collect();
            items[0].settler.settle(&adjustments)
        };
        // Charges of one limiter go together; those of several, where layers are nested, each to its own.
        let mut answers = due.chunk_by(|a, b| Arc::ptr_eq(&a.settler, &b.settler)).map(settle).collect::<Vec<_>>();
        match answers.len() {
            0 => Answer::ready(Ok(())),
            1 => answers.remove(0),
            _ => Answer::pending(async {
                for answer in answers {
                    answer.await?;
                }
                Ok(())
            }),
        }
    }
}

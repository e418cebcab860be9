use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{Decision, MAX_UNITS, Micros, OnError, Policy, decision::Proof};
use crate::{error::Error, key::Key};

/// Keeps the state of limits and decides on it.
///
/// The crate brings [`Memory`](crate::Memory) and, with the feature `redis`, `Redis`. To bring your own,
/// implement this and hand it to [`Limiter::new`](crate::Limiter::new).
///
/// An answer does not borrow: a store takes what it needs of its demands before it returns.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides on all demands together: charges every one of them, or none.
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

    /// Returns true if keys leave this process, where others may read them.
    fn is_shared(&self) -> bool {
        false
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

            fn is_shared(&self) -> bool {
                (**self).is_shared()
            }
        }
    };
}

store_behind!(Box);
store_behind!(Arc);

/// Asks for units of one policy, for one subject.
#[derive(Clone, Debug)]
#[must_use]
pub struct Demand<'a> {
    policy: &'a Policy,
    subject: Key,
    cost: u32,
    /// Whether they are drawn ahead: nobody is refused if nothing can be found out.
    ahead: bool,
}

impl<'a> Demand<'a> {
    /// Asks for one unit.
    pub fn new(policy: &'a Policy, subject: impl Into<Key>) -> Self {
        Self::of(policy, subject.into(), 1)
    }

    pub(crate) fn of(policy: &'a Policy, subject: Key, units: u64) -> Self {
        Self { policy, subject, cost: saturate(units), ahead: false }
    }

    /// Asks for `units` instead; zero asks how things stand and charges nothing.
    ///
    /// More than the policy's capacity is refused for good, and so is all above 2³¹.
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = saturate(units);
        self
    }

    /// Returns the policy.
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns whose units they are.
    pub fn subject(&self) -> &Key {
        &self.subject
    }

    /// Returns the units asked for, at most 2³¹ + 1.
    pub fn units(&self) -> u64 {
        self.cost.into()
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
    }
}

/// One more than what can ever be granted stands for all of it.
fn saturate(units: u64) -> u32 {
    u32::try_from(units).map_or(MAX_UNITS + 1, |units| units.min(MAX_UNITS + 1))
}

/// The answer of a [`Store`]: there already, or on its way.
#[must_use = "an answer does nothing until it is awaited"]
pub struct Answer<T = Decision>(Inner<T>);

enum Inner<T> {
    Ready(Option<Result<T, Error>>),
    Pending(Pending<T>),
}

/// An answer that is on its way; small, whatever it will be.
pub(crate) enum Pending<T> {
    Boxed(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
    Promised(oneshot::Receiver<Result<T, Error>>),
}

/// Gives the answer that [`Answer::promised`] is waiting for.
///
/// Dropped without that, it answers that the connection to the store was lost.
#[derive(Debug)]
pub struct Promise<T = Decision>(oneshot::Sender<Result<T, Error>>);

impl<T> Promise<T> {
    /// Answers.
    pub fn keep(self, answer: Result<T, Error>) {
        // Who has gone away needs no answer.
        let _ = self.0.send(answer);
    }

    /// Returns true if nobody waits any more.
    pub fn is_pointless(&self) -> bool {
        self.0.is_closed()
    }
}

impl<T> Answer<T> {
    /// Answers at once.
    pub fn ready(answer: Result<T, Error>) -> Self {
        Self(Inner::Ready(Some(answer)))
    }

    /// Answers when `future` does.
    pub fn pending(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(Inner::Pending(Pending::Boxed(Box::pin(future))))
    }

    /// Answers when the promise is kept.
    pub fn promised() -> (Promise<T>, Self) {
        let (promise, answer) = oneshot::channel();
        (Promise(promise), Self(Inner::Pending(Pending::Promised(answer))))
    }

    /// Returns the answer that is there already, to be changed in place.
    pub(crate) fn ready_mut(&mut self) -> Option<&mut T> {
        match &mut self.0 {
            Inner::Ready(Some(Ok(answer))) => Some(answer),
            _ => None,
        }
    }

    /// Takes an answer that is there already.
    pub(crate) fn now(self) -> Result<Result<T, Error>, Pending<T>> {
        match self.0 {
            Inner::Ready(answer) => Ok(answer.expect("an answer is taken once")),
            Inner::Pending(pending) => Err(pending),
        }
    }
}

impl<T> From<Pending<T>> for Answer<T> {
    fn from(pending: Pending<T>) -> Self {
        Self(Inner::Pending(pending))
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Boxed(future) => future.as_mut().poll(cx),
            Self::Promised(answer) => Pin::new(answer)
                .poll(cx)
                .map(|kept| kept.unwrap_or_else(|_| Err(Error::store("the connection to the store was lost")))),
        }
    }
}

impl<T: Unpin> Future for Answer<T> {
    type Output = Result<T, Error>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(answer) => Poll::Ready(answer.take().expect("an answer is polled until it is ready")),
            Inner::Pending(pending) => Pin::new(pending).poll(cx),
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Inner::Ready(_) => "Answer(ready)",
            Inner::Pending(_) => "Answer(pending)",
        })
    }
}

/// What a [`Store`] recognises a charge by when it is settled.
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
            if !decision.is_allowed() || cannot_settle || demand.cost == 0 {
                continue;
            }
            match items.iter_mut().find(|item| item.demand().is_twin_of(demand)) {
                Some(item) => item.charged = saturate(u64::from(item.charged) + u64::from(demand.cost)),
                None => items.push(Item {
                    policy: demand.policy.clone(),
                    subject: demand.subject,
                    receipt: outcome.receipt(),
                    charged: demand.cost,
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

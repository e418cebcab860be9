//! The limiter: a store inside its shields.

mod observer;
#[cfg(feature = "admin")]
mod refused;
#[cfg(feature = "admin")]
mod view;

use std::{
    any::Any,
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{runtime::Handle, sync::watch, time};

use self::observer::{Noted, Observer};
#[cfg(feature = "admin")]
pub(crate) use self::{
    refused::{Most, SPAN},
    view::{RuleCounts, View},
};

use crate::{
    error::Error,
    key::{Key, Secrets},
    limit::{Adjustment, Answer, Charge, Decision, Demand, Name, Pending, Policy, Settler, Store},
    memory::Memory,
    shield::{Allotment, DenyCache, Failover, Options, Tuning, Vitals},
};

/// Decides on requests by policies, and keeps the state of that in a store.
///
/// This is the handle that applications hold: cheap to clone, all clones share one budget. It never fails. When
/// the store cannot answer within the deadline, the policies' [`OnError`](crate::OnError) decides, and the
/// decision says that it is [degraded](Decision::is_degraded).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use tollgate::{Limiter, Memory, Policy, Quota};
///
/// static MAILS: Policy = Policy::sliding_window("mails", Quota::per_hour(2));
/// let limiter = Limiter::new(Memory::new());
///
/// assert!(limiter.check(&MAILS, "user:42").await.is_allowed());
/// assert!(limiter.check(&MAILS, "user:42").await.is_allowed());
/// assert!(!limiter.check(&MAILS, "user:42").await.is_allowed());
/// assert!(limiter.check(&MAILS, "user:43").await.is_allowed());
/// # }
/// ```
///
/// Several policies at once, all or nothing:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use tollgate::{Demand, Limiter, Memory, Policy, Quota};
///
/// static REQUESTS: Policy = Policy::token_bucket("requests", Quota::per_second(10));
/// static BYTES: Policy = Policy::fixed_window("bytes", Quota::per_day(1_000_000));
/// let limiter = Limiter::new(Memory::new());
///
/// let upload = [Demand::new(&REQUESTS, "user:42"), Demand::new(&BYTES, "user:42").cost(1_000_001)];
/// let (decision, _) = limiter.decide(&upload).await;
/// assert!(decision.is_never()); // more than a day's bytes
/// let requests = decision.outcomes().first().map(|outcome| outcome.remaining());
/// assert_eq!(requests, Some(10)); // and no request was spent on it
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    gate: Arc<Gate>,
    secrets: Arc<Secrets>,
}

/// What all clones share.
#[derive(Debug)]
struct Gate {
    /// The store as it was given.
    bare: Arc<dyn Store>,
    /// The same, if it is known what it is: no choice at run time is as quick as that.
    memory: Option<Memory>,
    shielded: Shielded,
    tuning: Arc<Tuning>,
    observer: Observer,
    #[cfg(feature = "admin")]
    vitals: Arc<Vitals>,
    /// Those that layers have claimed names for.
    policies: Mutex<Vec<Policy>>,
    /// Each correction on its way hears it.
    settling: watch::Sender<()>,
}

/// The store inside its shields.
#[derive(Debug)]
enum Shielded {
    Local(Box<dyn Store>),
    /// One that other processes use too, which may have units drawn ahead.
    Shared(Allotment<Box<dyn Store>>),
}

impl Limiter {
    /// Makes a limiter on a store.
    pub fn new(store: impl Store) -> Self {
        let secrets = Secrets::unkeyed_for(store.is_shared());
        let options = Options {
            deadline: Self::DEFAULT_DEADLINE,
            deny_max_age: Self::DEFAULT_DENY_MAX_AGE,
            replicas: NonZeroU32::MIN,
        };
        let memory = (&store as &dyn Any).downcast_ref().cloned();
        Self { gate: Arc::new(Gate::new(Arc::new(store), memory, options)), secrets: Arc::new(secrets) }
    }

    /// Sets how long to wait for the store in each call; the default is
    /// [`DEFAULT_DEADLINE`](Self::DEFAULT_DEADLINE).
    ///
    /// Waiting for a connection is included. Later than that, the policies' on-error choice decides; after several
    /// such calls in a row it decides at once, and one request at a time is let through to see whether the store is
    /// well again. `Redis` itself gives up after one second without an answer. Set the deadline before the limiter is cloned or used.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        let options = Options { deadline, ..self.gate.tuning.options() };
        self.rebuilt(options)
    }

    /// Sets for how long a refusal by a shared store is remembered here, so that refused clients cost the store
    /// nothing; zero turns that off. The default is [`DEFAULT_DENY_MAX_AGE`](Self::DEFAULT_DENY_MAX_AGE).
    ///
    /// A refusal is remembered no longer than it holds, and what this process settles, resets or lets in again is
    /// forgotten at once. So the age bounds only how late it is seen that *another* process has given units back,
    /// reset a key or lifted a block. A flood costs the store one call a key and age; with an age above the longest
    /// refusal, one a key and refusal. Set it before the limiter is cloned or used.
    #[must_use]
    pub fn deny_max_age(self, max_age: Duration) -> Self {
        let options = Options { deny_max_age: max_age, ..self.gate.tuning.options() };
        self.rebuilt(options)
    }

    /// Sets how many processes share the store: in an outage each decides by that part of a quota, rounded up, where a
    /// policy says [`OnError::Local`](crate::OnError::Local). The default is one, and so is zero.
    ///
    /// Too low a number lets the fleet admit more in an outage; one that is too high refuses more. Set it before the
    /// limiter is cloned or used.
    #[must_use]
    pub fn replicas(self, replicas: u32) -> Self {
        let options =
            Options { replicas: NonZeroU32::new(replicas).unwrap_or(NonZeroU32::MIN), ..self.gate.tuning.options() };
        self.rebuilt(options)
    }

    /// The deadline of a call: long against a round trip in one data centre, short against a caller's patience.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

    /// How late it may be seen that another process has given something back: a second is the grain of
    /// `Retry-After`.
    pub const DEFAULT_DENY_MAX_AGE: Duration = Duration::from_secs(1);

    /// Returns how long a call may wait.
    pub(crate) fn deadline_of_calls(&self) -> Duration {
        self.gate.tuning.deadline()
    }

    /// Goes by other options from now on, in all clones.
    #[cfg(feature = "config")]
    pub(crate) fn tune(&self, deadline: Duration, deny_max_age: Duration, replicas: NonZeroU32) {
        self.gate.tuning.set(Options { deadline, deny_max_age, replicas });
    }

    /// Lets nothing that was said by former policies hold any longer.
    #[cfg(feature = "config")]
    pub(crate) fn policies_changed(&self) {
        self.gate.tuning.policies_changed();
    }

    fn rebuilt(self, options: Options) -> Self {
        let gate = Gate::new(Arc::clone(&self.gate.bare), self.gate.memory.clone(), options);
        Self { gate: Arc::new(gate), secrets: self.secrets }
    }

    /// Sets the key with which secret parts of keys are hashed, such as API keys.
    ///
    /// It must be the same in every replica and every clone, or each counts for itself: set it once, where the
    /// limiter is made. Without one, or with an empty one, the hash is unkeyed.
    #[must_use]
    pub fn key_secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        Arc::make_mut(&mut self.secrets).key_by(secret.as_ref());
        self
    }

    /// Asks one policy for one unit.
    ///
    /// # Cancel safety
    ///
    /// When dropped half-way the unit may have been charged; nothing else remains.
    pub async fn check(&self, policy: &Policy, subject: impl Into<Key>) -> Decision {
        let mut decision = Decision::empty();
        // What is asked with is not kept while waiting.
        let asked = self.check_or_ask(policy, &subject.into(), &mut decision);
        match asked {
            None => decision,
            Some(ask) => {
                drop(decision);
                ask.await
            }
        }
    }

    /// Asks how one subject stands, and charges nothing.
    ///
    /// Such a decision is allowed unless the subject is blocked; [`Decision::remaining`] tells what is left.
    ///
    /// # Cancel safety
    ///
    /// When dropped half-way nothing remains.
    pub async fn peek(&self, policy: &Policy, subject: impl Into<Key>) -> Decision {
        self.decision(&[Demand::new(policy, subject).cost(0)]).await
    }

    /// Asks several policies together: all are charged, or none.
    ///
    /// The same policy and subject twice count together. The outcomes come in the order of the demands. The
    /// charge can be [settled](Charge::settle) when the true cost is known.
    ///
    /// # Cancel safety
    ///
    /// When dropped half-way the units may have been charged; nothing else remains.
    pub async fn decide(&self, demands: &[Demand<'_>]) -> (Decision, Charge) {
        let decision = self.decision(demands).await;
        let charge = self.charge(demands, &decision);
        (decision, charge)
    }

    /// Waits until one unit of `policy` is to be had, and takes it.
    ///
    /// Nothing is spent while waiting. Waiters are not queued: each asks anew when its unit should be there.
    ///
    /// # Errors
    ///
    /// At once, if the unit will not be there within `max_wait` ([`Error::is_wait_too_long`]), or the store
    /// cannot answer and the policy denies then ([`Error::is_transient`]).
    ///
    /// # Cancel safety
    ///
    /// When dropped while waiting nothing was charged; while asking, the unit may have been.
    pub async fn until_allowed(
        &self,
        policy: &Policy,
        subject: impl Into<Key>,
        max_wait: Duration,
    ) -> Result<(), Error> {
        let demand = [Demand::new(policy, subject)];
        // So long a wait that no clock reaches its end is one without an end.
        let give_up = time::Instant::now().checked_add(max_wait);
        loop {
            let decision = self.decision(&demand).await;
            if decision.is_allowed() {
                return Ok(());
            }
            if decision.is_unavailable() {
                return Err(Error::store(format!("policy `{}`: the store cannot answer", policy.name())));
            }
            let Some(wait) = decision.retry_after() else {
                return Err(Error::never(format!("policy `{}` can never grant this", policy.name())));
            };
            if give_up.is_some_and(|give_up| time::Instant::now() + wait > give_up) {
                return Err(Error::not_in_time(wait));
            }
            time::sleep(wait).await;
        }
    }

    /// Forgets what one subject has used under one policy.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// When dropped half-way the subject may be reset.
    pub async fn reset(&self, policy: &Policy, subject: impl Into<Key>) -> Result<(), Error> {
        self.gate.store().reset(policy, &subject.into()).await
    }

    /// Refuses one subject under one policy for so long, whatever it has used.
    ///
    /// A second block takes the place of the first; a [`reset`](Self::reset) does not lift it.
    ///
    /// # Errors
    ///
    /// If the store does not answer, or cannot block.
    ///
    /// # Cancel safety
    ///
    /// When dropped half-way the subject may be blocked.
    pub async fn block(&self, policy: &Policy, subject: impl Into<Key>, long: Duration) -> Result<(), Error> {
        self.gate.store().block(policy, &subject.into(), long).await
    }

    /// Lifts a block, an operator's or one that a policy [escalated](Policy::escalate) to, and forgets what led to it.
    ///
    /// # Errors
    ///
    /// If the store does not answer, or cannot block.
    ///
    /// # Cancel safety
    ///
    /// When dropped half-way the block may be lifted.
    pub async fn unblock(&self, policy: &Policy, subject: impl Into<Key>) -> Result<(), Error> {
        self.block(policy, subject, Duration::ZERO).await
    }

    /// Gives back units that were drawn ahead, and waits until all that is given back or corrected has arrived, at most
    /// until `deadline` has passed.
    ///
    /// Call it after the server has stopped: nothing is drawn ahead any more. Returns false if something had not
    /// arrived.
    ///
    /// # Cancel safety
    ///
    /// When dropped half-way it is as if the deadline had passed.
    pub async fn shutdown(&self, deadline: Duration) -> bool {
        let all = async {
            let given_back = match &self.gate.shielded {
                Shielded::Local(_) => true,
                Shielded::Shared(store) => store.close().await,
            };
            self.gate.settling.closed().await;
            self.gate.bare.finish().await.is_ok() && given_back
        };
        time::timeout(deadline, all).await.unwrap_or(false)
    }

    /// Decides on one unit as [`ask`](Self::ask) does: the call that is made most.
    #[inline]
    fn check_or_ask(&self, policy: &Policy, subject: &Key, decision: &mut Decision) -> Option<Ask> {
        let Gate { memory, observer, .. } = &*self.gate;
        match memory {
            Some(memory) if !observer.is_on() && memory.decide_one(policy, subject, 1, decision) => None,
            _ => self.ask(&[Demand::of(policy, *subject, 1)], decision),
        }
    }

    async fn decision(&self, demands: &[Demand<'_>]) -> Decision {
        let mut decision = Decision::empty();
        match self.ask(demands, &mut decision) {
            None => decision,
            Some(ask) => {
                drop(decision);
                ask.await
            }
        }
    }

    /// Decides into an empty decision, or returns what to wait for; makes no charge of it.
    #[inline]
    pub(crate) fn ask(&self, demands: &[Demand<'_>], decision: &mut Decision) -> Option<Ask> {
        let ask = self.ask_store(demands, decision);
        if self.gate.observer.is_on() { self.observed(demands, decision, ask) } else { ask }
    }

    /// Takes note of what was decided, now or when it is.
    #[inline(never)]
    fn observed(&self, demands: &[Demand<'_>], decision: &Decision, ask: Option<Ask>) -> Option<Ask> {
        let Some(ask) = ask else {
            self.gate.observer.decided(demands, decision, || self.gate.bare.keys());
            return None;
        };
        Some(Ask { noted: Some(Box::new((Noted::of(demands), Arc::clone(&self.gate)))), ..ask })
    }

    /// Takes note of a decision that was made without asking.
    pub(crate) fn note(&self, demands: &[Demand<'_>], decision: &Decision) {
        if self.gate.observer.is_on() {
            self.gate.observer.decided(demands, decision, || self.gate.bare.keys());
        }
    }

    #[inline]
    fn ask_store(&self, demands: &[Demand<'_>], decision: &mut Decision) -> Option<Ask> {
        let twins = |(i, demand): (usize, &Demand<'_>)| demands[..i].iter().any(|other| other.is_twin_of(demand));
        if demands.len() > 1 && demands.iter().enumerate().any(twins) {
            return self.ask_merged(demands, decision);
        }
        self.gate.ask(demands, decision).map(|pending| Ask { pending, places: None, noted: None })
    }

    /// Counts demands for one policy and subject together, and tells each what was decided on their sum.
    fn ask_merged(&self, demands: &[Demand<'_>], decision: &mut Decision) -> Option<Ask> {
        let mut merged: Vec<Demand<'_>> = Vec::new();
        let mut places = Vec::with_capacity(demands.len());
        for demand in demands {
            let place = merged.iter().position(|other| other.is_twin_of(demand));
            match place {
                Some(place) => merged[place].add(demand),
                None => merged.push(demand.clone()),
            }
            places.push(place.unwrap_or(merged.len() - 1));
        }
        let pending = self.gate.ask(&merged, decision);
        if pending.is_none() {
            decision.spread(&places);
        }
        pending.map(|pending| Ask { pending, places: Some(places), noted: None })
    }

    pub(crate) fn charge(&self, demands: &[Demand<'_>], decision: &Decision) -> Charge {
        let settler: Arc<dyn Settler> = Arc::clone(&self.gate) as _;
        Charge::new(&settler, demands, decision)
    }

    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Claims a policy's name for as long as the registration lives.
    pub(crate) fn register(&self, policy: &Policy) -> Result<Registration, Error> {
        let name = policy.shared_name();
        let mut policies = self.gate.policies();
        if policies.iter().any(|other| other.name() == policy.name()) {
            return Err(Error::invalid(format!("policy `{name}`: the limiter has one of that name already")));
        }
        policies.push(policy.clone());
        Ok(Registration { name: name.clone(), gate: Arc::clone(&self.gate) })
    }

    /// Returns true if other processes use its store too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.gate.bare.is_shared()
    }

    /// Makes the key by which a secret alone is counted here, such as an API key: its hash, keyed by
    /// [`key_secret`](Self::key_secret).
    ///
    /// For operators, who are told a secret and look for its key.
    #[must_use]
    pub fn key_of_secret(&self, secret: &str) -> Key {
        Key::of_secret(secret, &self.secrets)
    }

    /// Returns the policies by which layers count in this limiter: their rules, as they are now.
    ///
    /// A rule's exceptions and look-ups may give some of its keys another quota. Policies that are handed to
    /// [`check`](Self::check) and its like are not among them.
    #[must_use]
    pub fn policies(&self) -> Vec<Policy> {
        self.gate.policies().clone()
    }
}

/// A name that one policy of a limiter bears.
#[derive(Debug)]
pub(crate) struct Registration {
    name: Name,
    gate: Arc<Gate>,
}

#[cfg(feature = "config")]
impl Registration {
    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Takes note that the policy of this name has changed.
    pub(crate) fn renew(&self, policy: &Policy) {
        if let Some(known) = self.gate.policies().iter_mut().find(|known| known.name() == policy.name()) {
            known.clone_from(policy);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.gate.policies().retain(|policy| *policy.shared_name() != self.name);
    }
}

/// Waits for a decision.
#[derive(Debug)]
#[must_use = "nothing is decided until it is awaited"]
pub(crate) struct Ask {
    pending: Pending<Decision>,
    /// Where the outcome of each demand is to be found, if demands were merged.
    places: Option<Vec<usize>>,
    /// What was asked, and where that is taken note of, if somebody looks.
    noted: Option<Box<(Noted, Arc<Gate>)>>,
}

impl Future for Ask {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let mut decision = decided(ready!(Pin::new(&mut self.pending).poll(cx)).map(|decision| *decision));
        if let Some(places) = &self.places {
            decision.spread(places);
        }
        if let Some(noted) = self.noted.take() {
            let (noted, gate) = *noted;
            gate.observer.decided_later(&noted, &decision, || gate.bare.keys());
        }
        Poll::Ready(decision)
    }
}

impl Gate {
    fn new(bare: Arc<dyn Store>, memory: Option<Memory>, options: Options) -> Self {
        let tuning = Arc::new(Tuning::new(options));
        let vitals = Arc::<Vitals>::default();
        let failover = Failover::new(Arc::clone(&bare), Arc::clone(&tuning), Arc::clone(&vitals));
        // A store in this process answers as fast as a cache or an allotment in front of it.
        let shielded = if bare.is_shared() {
            let deny_cache = DenyCache::new(failover, Arc::clone(&tuning), Arc::clone(&vitals));
            Shielded::Shared(Allotment::new(Box::new(deny_cache)))
        } else {
            Shielded::Local(Box::new(failover))
        };
        Self {
            bare,
            memory,
            shielded,
            tuning,
            observer: Observer::default(),
            #[cfg(feature = "admin")]
            vitals,
            policies: Mutex::default(),
            settling: watch::Sender::new(()),
        }
    }

    fn store(&self) -> &dyn Store {
        match &self.shielded {
            Shielded::Local(store) => store,
            Shielded::Shared(store) => store,
        }
    }

    /// Decides into an empty decision, or returns what to wait for.
    #[inline]
    fn ask(&self, demands: &[Demand<'_>], decision: &mut Decision) -> Option<Pending<Decision>> {
        // What a store in this process decides at once needs no shield.
        let decided_now = match (&self.memory, &self.shielded) {
            (Some(memory), _) => memory.decide_now(demands, decision),
            (None, Shielded::Local(_)) => self.bare.decide_now(demands, decision),
            (None, Shielded::Shared(store)) => store.decide_now(demands, decision),
        };
        if decided_now {
            return None;
        }
        match self.store().decide(demands).now() {
            Ok(answered) => {
                *decision = decided(answered);
                None
            }
            Err(pending) => Some(pending),
        }
    }

    fn policies(&self) -> MutexGuard<'_, Vec<Policy>> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failover shield has turned every error into a decision.
fn decided(answered: Result<Decision, Error>) -> Decision {
    answered.unwrap_or_else(|_| Decision::without_store(true))
}

impl Settler for Gate {
    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        let pending = match self.store().settle(adjustments).now() {
            Ok(answer) => return Answer::ready(answer),
            Err(pending) => pending,
        };
        let Ok(runtime) = Handle::try_current() else {
            // Nothing could drive it alone: then it is its caller's to await.
            return pending.into();
        };
        let on_its_way = self.settling.subscribe();
        let task = runtime.spawn(async move {
            let _on_its_way = on_its_way;
            pending.await
        });
        Answer::handed_on(async {
            task.await.unwrap_or_else(|cut| Err(Error::store("settling was cut off").with_source(cut)))
        })
    }
}

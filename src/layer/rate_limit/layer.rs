use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use http::{HeaderValue, Method, Response, header, request::Parts};
use smallvec::SmallVec;
use tokio::time::Instant;
use tower_layer::Layer;

use super::{
    RateLimit,
    future::Noted,
    quota_by::QuotaBy,
    rule::{BuiltRule, Rule},
};
use crate::{
    error::Error,
    key::Key,
    layer::{
        RefusalBody, grpc,
        headers::{Dialect, Dialects, Fields, PartitionKey, policies_value, tells_where_it_stands},
        key::NoKey,
        refuse::{self, Blame},
    },
    limit::{Decision, Demand, OnError, Outcome, Policy, Quota},
    limiter::{Limiter, Registration},
    memory::Memory,
};

/// Puts rate limits in front of a service; see the [module](crate::layer) for examples.
///
/// Clones, and all services made by them, share one budget: that of the [`Limiter`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RateLimitLayer {
    live: Arc<Live>,
}

/// What all services of a layer go by; it can be changed under them as a whole.
#[derive(Debug)]
pub(super) struct Live {
    limiter: Limiter,
    current: ArcSwap<Shared>,
    /// The names that the rules bear. Not in the rules, of which old ones may be in use for a while.
    names: Mutex<Vec<Arc<Registration>>>,
}

/// What all services of a layer share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) limiter: Limiter,
    rules: Vec<BuiltRule>,
    dialects: Dialects,
    /// `RateLimit-Policy` for when all rules apply, with their own quotas.
    policies: Option<HeaderValue>,
    /// Whether all keys have those.
    same_for_all: bool,
    pub(super) expose: bool,
    preflights: bool,
    exempt_grpc_probes: bool,
    partitions: bool,
    skip_cacheable: bool,
    /// Whether some rule charges by outcome, or lets handlers settle.
    has_returns: bool,
    /// Whether some rule looks quotas up.
    looks_up: bool,
    /// Look-ups for rules by their names, also those that come with a file later.
    quotas: Vec<(String, QuotaBy)>,
    refusal: Option<Refusal>,
    /// What the options above were made of: what was set in the code, and what a file says, which gives way to it.
    set: [Options; 2],
}

/// Options of a layer that both code and file can set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    dialects: Option<Dialects>,
    pub(crate) expose: bool,
    pub(crate) preflights: bool,
    pub(crate) exempt_grpc_probes: bool,
    pub(crate) partitions: bool,
    pub(crate) skip_cacheable: bool,
    /// Whether the limiter is the file's too.
    #[cfg(feature = "config")]
    pub(crate) owns_limiter: bool,
}

#[cfg(feature = "config")]
impl Options {
    /// Tells clients in these dialects.
    ///
    /// # Errors
    ///
    /// As [`RateLimitLayer::try_dialects`].
    pub(crate) fn tell_in(&mut self, dialects: impl IntoIterator<Item = Dialect>) -> Result<(), Error> {
        self.dialects = Some(Dialects::of(dialects)?);
        Ok(())
    }
}

#[derive(Clone)]
struct Refusal(Arc<RefusalFn>);

type RefusalFn = dyn Fn(&Decision, &Parts) -> Response<Bytes> + Send + Sync;

impl RateLimitLayer {
    /// Allows each client address `quota`, counted in memory: a token bucket that holds `quota.limit()` units.
    ///
    /// # Panics
    ///
    /// If the quota is above 100,000 units per second.
    pub fn per_client(quota: Quota) -> Self {
        Self::new(Limiter::new(Memory::new())).rule(Rule::new("per-client", quota))
    }

    /// Makes a layer without rules, which lets everything through.
    pub fn new(limiter: Limiter) -> Self {
        let shared = Shared {
            limiter,
            rules: Vec::new(),
            dialects: Dialects::one(Dialect::Draft11),
            policies: None,
            same_for_all: true,
            expose: false,
            preflights: false,
            exempt_grpc_probes: false,
            partitions: false,
            skip_cacheable: false,
            has_returns: false,
            looks_up: false,
            quotas: Vec::new(),
            refusal: None,
            set: Default::default(),
        };
        Self { live: Arc::new(Live::new(shared, Vec::new())) }
    }

    /// Adds a rule. All rules that match a request are decided together.
    ///
    /// # Panics
    ///
    /// If the rule cannot be used: [`try_rule`](Self::try_rule) tells the same as an error.
    pub fn rule(self, rule: Rule) -> Self {
        match self.try_rule(rule) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a rule.
    ///
    /// # Errors
    ///
    /// If its name is not 1 to 64 of `A-Z a-z 0-9 . _ -` or the limiter has a rule of that name, its path cannot
    /// be matched, its key is set up wrongly, its algorithm cannot count its quota, burst or alignment, or its allotted
    /// share is not 1 to 50 percent.
    pub fn try_rule(self, rule: Rule) -> Result<Self, Error> {
        let mut shared = Shared::clone(&self.live.load());
        let rule = rule.build(self.live.limiter.secrets())?;
        let mut names = self.live.names().clone();
        names.push(Arc::new(shared.limiter.register(&rule.policy)?));
        shared.rules.push(rule);
        shared.update();
        Ok(Self { live: Arc::new(Live::new(shared, names)) })
    }

    /// Sets which fields tell clients where they stand; the default is [`Dialect::Draft11`].
    pub fn dialect(self, dialect: Dialect) -> Self {
        self.with(|shared| shared.set[0].dialects = Some(Dialects::one(dialect)))
    }

    /// Tells clients in several dialects at once.
    ///
    /// `X-RateLimit` goes with all others, and draft 6 with draft 7.
    ///
    /// # Panics
    ///
    /// If they cannot be combined: [`try_dialects`](Self::try_dialects) tells the same as an error.
    pub fn dialects(self, dialects: impl IntoIterator<Item = Dialect>) -> Self {
        match self.try_dialects(dialects) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Tells clients in several dialects at once.
    ///
    /// # Errors
    ///
    /// If there is none, or two of them have a field in common with another meaning.
    pub fn try_dialects(self, dialects: impl IntoIterator<Item = Dialect>) -> Result<Self, Error> {
        let dialects = Dialects::of(dialects)?;
        Ok(self.with(|shared| shared.set[0].dialects = Some(dialects)))
    }

    /// Tells by the parameter `pk` of draft 11 whose budget each item is of: twelve bytes of a hash of policy and key,
    /// keyed by [`Limiter::key_secret`].
    ///
    /// A client that has several keys (behind one address and another, say) can tell its budgets apart by it. It costs a
    /// hash for each rule and request.
    ///
    /// # Panics
    ///
    /// If the limiter has no key secret: [`try_partition_keys`](Self::try_partition_keys) tells the same as an error.
    pub fn partition_keys(self) -> Self {
        match self.try_partition_keys() {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Tells whose budget each item is of, as [`partition_keys`](Self::partition_keys) does.
    ///
    /// # Errors
    ///
    /// If the limiter has no key secret: anybody could find out by trying what an unkeyed hash was made of.
    pub fn try_partition_keys(self) -> Result<Self, Error> {
        if !self.live.limiter.secrets().is_keyed() {
            return Err(Error::invalid("partition keys need a secret: give the limiter one by `Limiter::key_secret`"));
        }
        Ok(self.with(|shared| shared.set[0].partitions = true))
    }

    /// Adds no fields to responses that shared caches may keep: those whose `Cache-Control` has `public` or `s-maxage`.
    ///
    /// What one client has left would be told to all who are answered from the cache.
    pub fn skip_cacheable(self) -> Self {
        self.with(|shared| shared.set[0].skip_cacheable = true)
    }

    /// Puts the [`Decision`] and its [`Charge`](crate::limit::Charge) into the request's extensions, and the
    /// decision into the response's.
    pub fn expose_decision(self) -> Self {
        self.with(|shared| shared.set[0].expose = true)
    }

    /// Counts CORS preflights too.
    ///
    /// By default they pass uncounted: a browser sends them by itself, and cannot tell its user of a refusal.
    pub fn limit_preflights(self) -> Self {
        self.with(|shared| shared.set[0].preflights = true)
    }

    /// Lets calls of gRPC's health and reflection services through, uncounted: `grpc.health.v1.Health` and
    /// `grpc.reflection.*`.
    ///
    /// A probe that is refused takes the server out of service.
    pub fn exempt_grpc_probes(self) -> Self {
        self.with(|shared| shared.set[0].exempt_grpc_probes = true)
    }

    /// Answers refused requests by a function of your own. It gets no fields added but those of the dialect.
    ///
    /// Ask the decision whether it was [unavailable](Decision::is_unavailable): that is no 429. To change only a part of
    /// what would be answered, begin with [`respond`](crate::layer::respond):
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::HeaderValue;
    /// use tollgate::{Quota, RateLimitLayer, layer::respond};
    ///
    /// let layer = RateLimitLayer::per_client(Quota::per_minute(100)).refuse_with(|decision, request| {
    ///     let mut response = respond(decision, request).expect("it was refused").map(Bytes::from);
    ///     response.headers_mut().insert("x-support", HeaderValue::from_static("https://example.com/limits"));
    ///     response
    /// });
    /// # let _ = layer;
    /// ```
    pub fn refuse_with(self, refusal: impl Fn(&Decision, &Parts) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.refusal = Some(Refusal(Arc::new(refusal))))
    }

    /// Looks quotas up for the rule of this name, as [`Rule::quota_by`] does: for rules that come from a file, which cannot
    /// say that themselves.
    pub fn quota_by(self, rule: impl Into<String>, quota_by: QuotaBy) -> Self {
        let named = (rule.into(), quota_by);
        self.with(|shared| shared.quotas.push(named))
    }

    /// Returns the limiter in which this layer counts.
    pub fn limiter(&self) -> &Limiter {
        &self.live.limiter
    }

    /// Gives this layer and all its clones the rules and options of a file, in the place of what one has said before;
    /// all else stays.
    ///
    /// # Errors
    ///
    /// As [`try_rule`](Self::try_rule); nothing has changed then.
    #[cfg(feature = "config")]
    pub(crate) fn take_over(&self, rules: Vec<Rule>, options: Options) -> Result<(), Error> {
        // Held all the while: one file after the other.
        let mut names = self.live.names();
        let mut shared = Shared::clone(&self.live.load());
        let mut built = rules
            .into_iter()
            .map(|rule| rule.of_file().build(self.live.limiter.secrets()))
            .collect::<Result<Vec<_>, Error>>()?;
        built.extend(shared.rules.drain(..).filter(|rule| !rule.of_file));
        let mut kept = Vec::with_capacity(built.len());
        for (i, rule) in built.iter().enumerate() {
            let has_it = |name: &&Arc<Registration>| name.name() == rule.policy.name();
            let twice = built[..i].iter().any(|other| other.policy.name() == rule.policy.name());
            kept.push(match names.iter().find(has_it) {
                Some(name) if !twice => Arc::clone(name),
                _ => Arc::new(shared.limiter.register(&rule.policy)?),
            });
        }
        kept.iter().zip(&built).for_each(|(name, rule)| name.renew(&rule.policy));
        shared.rules = built;
        shared.set[1] = options;
        shared.update();
        self.live.current.store(Arc::new(shared));
        self.live.limiter.policies_changed();
        *names = kept;
        Ok(())
    }

    /// Returns true if a file has made the limiter.
    #[cfg(feature = "config")]
    pub(crate) fn owns_limiter(&self) -> bool {
        self.live.load().set[1].owns_limiter
    }

    /// Makes another layer that differs in some option; clones of this one stay as they are.
    fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Shared::clone(&self.live.load());
        change(&mut shared);
        shared.update();
        let names = self.live.names().clone();
        Self { live: Arc::new(Live::new(shared, names)) }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.live))
    }
}

impl Live {
    fn new(shared: Shared, names: Vec<Arc<Registration>>) -> Self {
        Self { limiter: shared.limiter.clone(), current: ArcSwap::from_pointee(shared), names: Mutex::new(names) }
    }

    /// Returns what to go by now; to be held no longer than it takes to look at one request.
    pub(super) fn load(&self) -> Guard<Arc<Shared>> {
        self.current.load()
    }

    fn names(&self) -> MutexGuard<'_, Vec<Arc<Registration>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Makes what follows from the rules and the options.
    fn update(&mut self) {
        let [code, file] = &self.set;
        self.dialects = code.dialects.or(file.dialects).unwrap_or(Dialects::one(Dialect::Draft11));
        self.expose = code.expose || file.expose;
        self.preflights = code.preflights || file.preflights;
        self.partitions = code.partitions || file.partitions;
        self.skip_cacheable = code.skip_cacheable || file.skip_cacheable;
        self.exempt_grpc_probes = code.exempt_grpc_probes || file.exempt_grpc_probes;
        for rule in self.rules.iter_mut().filter(|rule| rule.quota_by.is_none()) {
            let named = self.quotas.iter().find(|(name, _)| name == rule.policy.name());
            rule.quota_by = named.map(|(_, quota_by)| quota_by.clone());
        }
        self.looks_up = self.rules.iter().any(|rule| rule.quota_by.is_some());
        self.has_returns = self.rules.iter().any(|rule| rule.settles || rule.charging.is_some());
        let has_own_quota = |rule: &BuiltRule| rule.has_exceptions() || rule.quota_by.is_some();
        self.same_for_all = !self.rules.iter().any(has_own_quota);
        self.policies = policies_value(self.rules.iter().map(|rule| &rule.policy), self.dialects);
    }

    /// Makes the demands of all rules that match; none, if there are none.
    pub(super) fn demand<'a>(&'a self, request: &Parts, demands: &mut Demands<'a>) -> Result<(), NoKey> {
        if !self.preflights && is_preflight(request) {
            return Ok(());
        }
        if self.exempt_grpc_probes && grpc::is_probe(request) {
            return Ok(());
        }
        for rule in &self.rules {
            if rule.matches(request) {
                let place = demands.len();
                demands.push(rule.blank());
                match rule.fill(&mut demands[place], request, self.limiter.secrets()) {
                    Ok(()) => {}
                    Err(NoKey::Skip) => demands.truncate(place),
                    Err(no_key) => return Err(no_key),
                }
            }
        }
        Ok(())
    }

    /// Looks quotas up for demands if their rules do so, and returns what to wait for then.
    pub(super) fn look_up(shared: &Arc<Self>, demands: &[Demand<'_>]) -> Option<Looking> {
        if !shared.looks_up {
            return None;
        }
        let wanted = |demand: &Demand<'_>| {
            let of_demand = |rule: &BuiltRule| std::ptr::eq(&rule.policy, demand.policy()) && rule.quota_by.is_some();
            Wanted {
                policy: demand.policy().clone(),
                key: *demand.subject(),
                units: demand.units(),
                shadow: demand.is_shadow(),
                may_recall: demand.may_recall(),
                rule: shared.rules.iter().position(of_demand),
            }
        };
        let wanted: Vec<Wanted> = demands.iter().map(wanted).collect();
        let any = wanted.iter().any(|wanted| wanted.rule.is_some());
        any.then(|| Box::pin(look_up(Arc::clone(shared), wanted)) as Looking)
    }

    /// Returns true if a charge may be changed after the request was decided on.
    pub(super) fn keeps_charges(&self) -> bool {
        self.expose || self.has_returns
    }

    /// Returns the rule of this name.
    pub(super) fn rule(&self, name: &str) -> Option<&BuiltRule> {
        self.rules.iter().find(|rule| rule.policy.name() == name)
    }

    pub(super) fn refuse(
        &self,
        decision: &Decision,
        partitions: Option<&[PartitionKey]>,
        request: &Parts,
    ) -> Response<RefusalBody> {
        let mut response = match &self.refusal {
            Some(refusal) => (refusal.0)(decision, request).map(RefusalBody::from),
            None => {
                let blame = self.blame(decision);
                refuse::refuse(decision, request, blame).expect("the decision was a refusal")
            }
        };
        // An answer that was made by `respond` has them.
        if let Some(fields) = self.fields(decision, partitions)
            && (self.refusal.is_none() || !tells_where_it_stands(response.headers()))
        {
            fields.write_to(&mut response);
        }
        if self.expose {
            response.extensions_mut().insert(decision.clone());
        }
        response
    }

    /// Returns whose affair a refusal is: the server's if only rules have refused that limit what it can do.
    fn blame(&self, decision: &Decision) -> Blame {
        let of_server =
            |name: &str| self.rules.iter().any(|rule| rule.blame() == Blame::Server && rule.policy.name() == name);
        let mut refused = decision.enforced().filter(|outcome| !outcome.is_allowed());
        if refused.all(|outcome| of_server(outcome.policy())) { Blame::Server } else { Blame::Client }
    }

    /// Tells apart for whom the demands are, if clients are to be told that.
    pub(super) fn partitions(&self, demands: &[Demand<'_>]) -> Option<Vec<PartitionKey>> {
        let of = |demand| PartitionKey::of(demand, self.limiter.secrets());
        self.partitions.then(|| demands.iter().map(of).collect())
    }

    /// Writes the fields of a decision, if clients are to have them.
    pub(super) fn fields(&self, decision: &Decision, partitions: Option<&[PartitionKey]>) -> Option<Fields> {
        let outcomes = decision.outcomes();
        let fields = if outcomes.iter().any(Outcome::is_shadow) {
            // Clients are told nothing of those.
            let enforced: SmallVec<[Outcome; 4]> = decision.enforced().cloned().collect();
            let partitions = partitions.map(|keys| {
                let keys = keys.iter().zip(outcomes).filter(|(_, outcome)| !outcome.is_shadow());
                keys.map(|(key, _)| *key).collect::<SmallVec<[PartitionKey; 4]>>()
            });
            Fields::of(&enforced, self.dialects, None, partitions.as_deref())?
        } else {
            // In the order of the rules, so as many as there are rules are all of them.
            let base =
                || self.same_for_all || outcomes.iter().zip(&self.rules).all(|(o, r)| o.quota() == r.policy.quota());
            let policies = self.policies.as_ref().filter(|_| outcomes.len() == self.rules.len() && base());
            Fields::of(outcomes, self.dialects, policies, partitions)?
        };
        Some(if self.skip_cacheable { fields.unless_cacheable() } else { fields })
    }
}

/// A decision on quotas that have to be looked up first.
pub(super) type Looking = Pin<Box<dyn Future<Output = (Decision, Noted)> + Send>>;

/// A demand that waits for its quota.
struct Wanted {
    policy: Policy,
    key: Key,
    units: u64,
    shadow: bool,
    may_recall: bool,
    /// The rule that looks it up.
    rule: Option<usize>,
}

async fn look_up(shared: Arc<Shared>, mut wanted: Vec<Wanted>) -> (Decision, Noted) {
    let (started, deadline) = (Instant::now(), shared.limiter.deadline_of_calls());
    let (mut left_out, mut deny) = (Vec::new(), false);
    for (place, wanted) in wanted.iter_mut().enumerate() {
        let Some(rule) = wanted.rule.map(|rule| &shared.rules[rule]) else { continue };
        let Some(quota_by) = &rule.quota_by else { continue };
        let found = quota_by.find(wanted.key, deadline.saturating_sub(started.elapsed())).await;
        match (found.and_then(|quota| rule.with_quota(quota)), rule.policy.on_error_choice()) {
            (Some(policy), _) => wanted.policy = policy,
            (None, OnError::Local) => {}
            (None, OnError::Deny) if !wanted.shadow => {
                deny = true;
                break;
            }
            (None, _) => left_out.push(place),
        }
    }
    let mut decision = Decision::empty();
    let (ask, noted) = {
        let all = wanted.iter().enumerate().filter(|(place, _)| !left_out.contains(place));
        let demands: Demands<'_> = all
            .map(|(_, wanted)| {
                let demand = Demand::of(&wanted.policy, wanted.key, wanted.units).in_shadow(wanted.shadow);
                if wanted.may_recall { demand } else { demand.anew() }
            })
            .collect();
        if deny {
            decision = Decision::without_store(false);
            shared.limiter.note(&demands, &decision);
            return (decision, Noted::default());
        }
        let ask = if demands.is_empty() { None } else { shared.limiter.ask(&demands, &mut decision) };
        (ask, Noted::of(&demands, &shared))
    };
    if let Some(ask) = ask {
        decision = ask.await;
    }
    (decision, noted)
}

/// What one request asks of the rules that match it.
pub(super) type Demands<'a> = SmallVec<[Demand<'a>; 4]>;

/// A CORS preflight (Fetch, section 4.8): no request of the user's, and no credentials with it.
pub(super) fn is_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(header::ORIGIN)
        && request.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refusal")
    }
}

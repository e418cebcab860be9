use std::{borrow::Cow, fmt, sync::Arc};

use http::{Method, request::Parts};

use super::{
    charging::Charging,
    exceptions::{Exception, Exceptions, Found},
    quota_by::QuotaBy,
};
use crate::{
    error::Error,
    key::{Key, KeyWriter, Secrets, fnv1a},
    layer::{
        client_ip::client_ip,
        key::{KeyExtractor, NoKey},
        path::PathPattern,
        refuse::Blame,
        warn::Sameness,
    },
    limit::{Algorithm, Demand, Escalation, OnError, Policy, Quota},
};

/// One limit of a layer: a quota, and which requests it counts, for whom, at what cost.
///
/// Left alone, it counts every request of each client address as one unit of a token bucket.
///
/// ```
/// use http::Method;
/// use tollgate::{OnError, Quota, layer::{Rule, client_ip, path}};
///
/// let logins = Rule::new("login", Quota::per_minute(5))
///     .sliding_window()
///     .by((client_ip(), path()))
///     .path("/login")
///     .method(Method::POST)
///     .on_error(OnError::Deny);
/// let all = Rule::new("all", Quota::per_second(50)).burst(100).unless(|request| request.uri.path() == "/health");
/// # let _ = (logins, all);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Rule {
    name: Cow<'static, str>,
    quota: Quota,
    algorithm: Algorithm,
    burst: Option<u64>,
    aligned: bool,
    allotted: Option<u32>,
    escalation: Option<Escalation>,
    on_error: OnError,
    reduced_capacity: bool,
    key: Arc<dyn KeyExtractor>,
    cost: Cost,
    paths: Vec<String>,
    methods: Vec<Method>,
    conditions: Vec<Condition>,
    mode: Mode,
    exceptions: Vec<(Vec<String>, Exception)>,
    quota_by: Option<QuotaBy>,
    charging: String,
    settles: bool,
    of_file: bool,
}

/// For whom a rule is enforced; for all others it only reports.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    Enforce,
    Shadow,
    /// So many of a hundred keys.
    Percent(u32),
}

#[derive(Clone)]
enum Cost {
    Fixed(u64),
    Of(Arc<dyn Fn(&Parts) -> u64 + Send + Sync>),
}

#[derive(Clone)]
struct Condition(Arc<dyn Fn(&Parts) -> bool + Send + Sync>);

impl Rule {
    /// Makes a rule; `name` is what clients see, 1 to 64 of `A-Z a-z 0-9 . _ -`.
    ///
    /// What is wrong with a rule is found when a layer takes it.
    pub fn new(name: impl Into<Cow<'static, str>>, quota: Quota) -> Self {
        Self {
            name: name.into(),
            quota,
            algorithm: Algorithm::TokenBucket,
            burst: None,
            aligned: false,
            allotted: None,
            escalation: None,
            on_error: OnError::default(),
            reduced_capacity: false,
            key: Arc::new(client_ip()),
            cost: Cost::Fixed(1),
            paths: Vec::new(),
            methods: Vec::new(),
            conditions: Vec::new(),
            mode: Mode::Enforce,
            exceptions: Vec::new(),
            quota_by: None,
            charging: "always".to_owned(),
            settles: false,
            of_file: false,
        }
    }

    /// Counts in a token bucket, the default: steady for clients, one number a key.
    pub fn token_bucket(self) -> Self {
        self.algorithm(Algorithm::TokenBucket)
    }

    /// Counts in a window that opens with its first unit.
    pub fn fixed_window(self) -> Self {
        self.algorithm(Algorithm::FixedWindow)
    }

    /// Counts exactly, in the window that ends now.
    pub fn sliding_window(self) -> Self {
        self.algorithm(Algorithm::SlidingWindow)
    }

    /// Counts nearly as exactly, in two windows: one short text a key.
    pub fn sliding_counter(self) -> Self {
        self.algorithm(Algorithm::SlidingCounter)
    }

    /// Sets the algorithm.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Sets how many units a token bucket holds; the default is the quota's limit.
    pub fn burst(mut self, units: u64) -> Self {
        self.burst = Some(units);
        self
    }

    /// Opens fixed windows at multiples of their length since the Unix epoch, in UTC.
    pub fn aligned(mut self) -> Self {
        self.aligned = true;
        self
    }

    /// Lets each process hold up to `percent` (1 to 50) of the limit or burst drawn ahead for each key, and decide from
    /// that without the store: see [`Policy::allotted`] for the bound, and for what is given up.
    pub fn allotted(mut self, percent: u32) -> Self {
        self.allotted = Some(percent);
        self
    }

    /// Blocks a key that the rule refuses again and again, longer each time; it is told 429 and the time to the block's
    /// end.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Quota, layer::Rule, limit::Escalation};
    ///
    /// let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
    /// let logins = Rule::new("login", Quota::per_minute(5))
    ///     .path("/login")
    ///     .escalate(Escalation::new(10, minute, 10 * minute).up_to(24 * hour));
    /// # let _ = logins;
    /// ```
    pub fn escalate(mut self, escalation: Escalation) -> Self {
        self.escalation = Some(escalation);
        self
    }

    /// Sets what to decide when the store cannot answer; the default is [`OnError::Local`].
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Tells clients who are over this limit that the server can do no more, rather than that they have used their quota:
    /// HTTP 503 with the problem type `temporary-reduced-capacity`, or gRPC status 14, with the same time to wait.
    ///
    /// For limits by [`global`](super::super::global) and the like. Where a rule without it refuses too, it is 429.
    pub fn reduced_capacity(mut self) -> Self {
        self.reduced_capacity = true;
        self
    }

    /// Sets for whom to count; the default is [`client_ip`]. A tuple counts for each combination.
    pub fn by(mut self, key: impl KeyExtractor) -> Self {
        self.key = Arc::new(key);
        self
    }

    /// Sets what each request costs; zero asks how things stand and charges nothing.
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = Cost::Fixed(units);
        self
    }

    /// Sets what each request costs, by a function of it.
    pub fn cost_by(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Cost::Of(Arc::new(cost));
        self
    }

    /// Counts only requests whose path matches, by axum's patterns: `/users/{id}`, `/api/{*rest}`.
    ///
    /// Called again, either pattern will do. The path is the whole one that was asked for, also inside a nested
    /// router. It matches as it stands, and with its escapes, dot segments and double slashes resolved.
    pub fn path(mut self, pattern: impl Into<String>) -> Self {
        self.paths.push(pattern.into());
        self
    }

    /// Counts only requests with this method. Called again, either will do.
    pub fn method(mut self, method: Method) -> Self {
        self.methods.push(method);
        self
    }

    /// Counts only requests for which `condition` is true. Called again, all must be.
    pub fn when(mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.conditions.push(Condition(Arc::new(condition)));
        self
    }

    /// Does not count requests for which `condition` is true.
    pub fn unless(self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.when(move |request| !condition(request))
    }

    /// Lets the rule count and report what it would do, and refuse nobody.
    ///
    /// It is charged where the enforced rules let a request pass and its own quota has room. Its outcome is in the
    /// [exposed](super::RateLimitLayer::expose_decision) decision; clients are not told of it, and neither its refusal nor
    /// a failure of its is ever the request's.
    pub fn shadow(mut self) -> Self {
        self.mode = Mode::Shadow;
        self
    }

    /// Enforces the rule for `percent` of all keys, 0 to 100, and is [a shadow](Self::shadow) for the others.
    ///
    /// Which keys is told by a hash of name and key: the same in all processes and always, and a higher percentage only
    /// adds keys.
    pub fn enforce_percent(mut self, percent: u32) -> Self {
        self.mode = Mode::Percent(percent);
        self
    }

    /// Looks the quota of each key up; the rule's own is for keys whose quota cannot be found, if its
    /// [`OnError`] is `Local`. An [exception](Self::except) goes before it.
    pub fn quota_by(mut self, quota_by: QuotaBy) -> Self {
        self.quota_by = Some(quota_by);
        self
    }

    /// Charges only requests that are answered in some way, and gives the charge of others back on the way out.
    ///
    /// Written `status:401,403,5xx`, by HTTP status, or `grpc:16,7`, by gRPC status; `always` is the default. A request
    /// holds its unit while it is under way, so that no number of them at once gets around the limit; good ones may be
    /// refused while as many as the limit are under way. Fields tell how things stand after the charge came back; where
    /// the status comes in trailers, there are none. A response that never came leaves the charge, and what a handler has
    /// [settled](crate::limit::Charge::settle) stays settled.
    ///
    /// ```
    /// use tollgate::{Quota, layer::Rule};
    ///
    /// // Five wrong passwords in 15 minutes; right ones cost nothing.
    /// let logins = Rule::new("login", "5/15m".parse::<Quota>()?).fixed_window().path("/login").charge("status:401,403");
    /// # let _ = logins;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn charge(mut self, when: impl Into<String>) -> Self {
        self.charging = when.into();
        self
    }

    /// Lets handlers say what a request truly cost: its decision and [`Charge`](crate::limit::Charge) are in its extensions.
    ///
    /// As [`expose_decision`](super::RateLimitLayer::expose_decision) does for all rules; and a refusal by this one is not
    /// remembered in front of the store, since what is given back is to be had at once.
    pub fn settled(mut self) -> Self {
        self.settles = true;
        self
    }

    /// Makes an exception for the key of these values, one for each part of the rule's key.
    ///
    /// Values are written as requests have them; those that are kept as hashes are found by their hash. For a rule by client
    /// address alone, the value may be a range, `10.0.0.0/8`, or an address, matched before addresses are counted together
    /// by prefix: a range changes the quota of each client in it. An exact key goes before a range, the longest range
    /// before others, and what is said last of one key holds. Many exceptions cost a decision no more than one.
    pub fn except<V: Into<String>>(mut self, values: impl IntoIterator<Item = V>, exception: Exception) -> Self {
        self.exceptions.push((values.into_iter().map(Into::into).collect(), exception));
        self
    }

    /// Marks it as one that goes when its file no longer has it.
    #[cfg(feature = "config")]
    pub(super) fn of_file(self) -> Self {
        Self { of_file: true, ..self }
    }

    /// Says whether [`charge`](Self::charge) takes a text.
    #[cfg(feature = "config")]
    pub(crate) fn check_charge(when: &str) -> Result<(), Error> {
        Charging::parse(when).map(drop)
    }

    /// Makes a policy of it, with this quota and, if there is one, burst.
    fn policy(&self, quota: Quota, burst: Option<u64>) -> Result<Policy, Error> {
        let mut policy = Policy::new(self.name.clone(), quota, self.algorithm)?.on_error(self.on_error);
        if let Some(burst) = burst.or(self.burst) {
            policy = policy.try_burst(burst)?;
        }
        if self.aligned {
            policy = policy.try_aligned()?;
        }
        if let Some(percent) = self.allotted {
            policy = policy.try_allotted(percent)?;
        }
        Ok(match self.escalation {
            Some(escalation) => policy.escalate(escalation),
            None => policy,
        })
    }

    /// Checks the rule.
    pub(in crate::layer) fn build(self, secrets: &Secrets) -> Result<BuiltRule, Error> {
        let policy = self.policy(self.quota, None)?;
        let charging = Charging::parse(&self.charging)
            .map_err(|error| Error::invalid(format!("rule `{}`: {error}", policy.name())))?;
        let exceptions =
            Exceptions::new(&self.exceptions, |quota, burst| self.policy(quota, burst), &self.key, secrets)?;
        if let Mode::Percent(101..) = self.mode {
            return Err(Error::invalid(format!("rule `{}`: enforced for 0 to 100 percent of its keys", policy.name())));
        }
        self.key.check().map_err(|error| Error::invalid(format!("rule `{}`: {error}", policy.name())))?;
        let paths = self.paths.iter().map(|pattern| PathPattern::new(pattern)).collect::<Result<_, _>>();
        let paths = paths.map_err(|error: Error| Error::invalid(format!("rule `{}`: {error}", policy.name())))?;
        Ok(BuiltRule {
            policy,
            reduced_capacity: self.reduced_capacity,
            sameness: self.key.tells_apart().then(Arc::default),
            key: Arc::clone(&self.key),
            cost: self.cost.clone(),
            paths,
            methods: self.methods.clone(),
            conditions: self.conditions.clone(),
            mode: self.mode,
            exceptions,
            quota_by: self.quota_by.clone(),
            charging: charging.map(Arc::new),
            settles: self.settles,
            of_file: self.of_file,
            source: Arc::new(self),
        })
    }
}

/// A rule that has been found right.
#[derive(Clone, Debug)]
pub(in crate::layer) struct BuiltRule {
    pub(in crate::layer) policy: Policy,
    reduced_capacity: bool,
    key: Arc<dyn KeyExtractor>,
    /// Looks whether all have one key, where that would be a mistake.
    sameness: Option<Arc<Sameness>>,
    cost: Cost,
    paths: Vec<PathPattern>,
    methods: Vec<Method>,
    conditions: Vec<Condition>,
    mode: Mode,
    exceptions: Exceptions,
    pub(super) quota_by: Option<QuotaBy>,
    /// What it was built of, to make policies of other quotas.
    source: Arc<Rule>,
    pub(super) charging: Option<Arc<Charging>>,
    pub(super) settles: bool,
    #[cfg_attr(not(feature = "config"), expect(dead_code, reason = "only a file takes rules back"))]
    pub(super) of_file: bool,
}

impl Mode {
    fn is_shadow(self, policy: &Policy, key: &Key) -> bool {
        match self {
            Self::Enforce => false,
            Self::Shadow => true,
            Self::Percent(percent) => {
                // What is hashed never changes, so that a client's fate is steady.
                let hash = fnv1a(key.as_bytes()) ^ policy.tag().rotate_left(32);
                // Its bits are mixed, since the lowest hardly depend on the first bytes.
                let mixed = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
                (mixed ^ mixed >> 33) % 100 >= u64::from(percent)
            }
        }
    }
}

impl BuiltRule {
    pub(super) fn has_exceptions(&self) -> bool {
        !self.exceptions.is_empty()
    }

    /// Makes a policy of it with another quota, if that can be.
    pub(super) fn with_quota(&self, quota: Quota) -> Option<Policy> {
        let made = self.source.policy(quota, None);
        made.inspect_err(|error| tracing::warn!(%error, "a quota that was looked up cannot be counted")).ok()
    }

    pub(in crate::layer) fn matches(&self, request: &Parts) -> bool {
        (self.methods.is_empty() || self.methods.contains(&request.method))
            && (self.paths.is_empty() || self.paths.iter().any(|pattern| pattern.matches(request)))
            && self.conditions.iter().all(|condition| (condition.0)(request))
    }

    /// Returns what a request that matches asks of it.
    pub(in crate::layer) fn demand(&self, request: &Parts, secrets: &Secrets) -> Result<Demand<'_>, NoKey> {
        let mut demand = self.blank();
        self.fill(&mut demand, request, secrets)?;
        Ok(demand)
    }

    /// Returns a demand that is to be [filled](Self::fill) where it lies: keys are long, and copied for nothing.
    #[inline]
    pub(super) fn blank(&self) -> Demand<'_> {
        let demand = Demand::of(&self.policy, Key::EMPTY, 1);
        if self.settles || self.charging.is_some() { demand.anew() } else { demand }
    }

    /// Writes down what a request that matches asks.
    pub(super) fn fill<'a>(&'a self, demand: &mut Demand<'a>, request: &Parts, secrets: &Secrets) -> Result<(), NoKey> {
        let mut writer = KeyWriter::new(secrets, demand.subject_mut());
        self.key.extract(request, &mut writer)?;
        writer.finish();
        let key = demand.subject();
        if let Some(sameness) = &self.sameness {
            sameness.note(self.policy.name(), key);
        }
        let shadow = self.mode.is_shadow(&self.policy, key);
        let policy = match self.exceptions.find(key, &self.key, request) {
            None => &self.policy,
            Some(Found::Policy(policy)) => policy,
            Some(Found::Blocked) if !shadow => return Err(NoKey::Forbidden),
            Some(Found::Blocked | Found::Unlimited) => return Err(NoKey::Skip),
        };
        demand.set(policy, self.cost(request), shadow);
        Ok(())
    }

    /// Returns whose affair it is that its limit is reached.
    pub(in crate::layer) fn blame(&self) -> Blame {
        if self.reduced_capacity { Blame::Server } else { Blame::Client }
    }

    fn cost(&self, request: &Parts) -> u64 {
        match &self.cost {
            Cost::Fixed(units) => *units,
            Cost::Of(cost) => cost(request),
        }
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(units) => write!(f, "{units}"),
            Self::Of(_) => f.write_str("by request"),
        }
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condition")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforced(name: &'static str, percent: u32, keys: u32) -> Vec<u32> {
        let policy = Policy::fixed_window(name, Quota::per_day(1));
        let is_enforced = |key: &u32| !Mode::Percent(percent).is_shadow(&policy, &format!("user:{key}").into());
        (0..keys).filter(is_enforced).collect()
    }

    /// Another choice would change the fate of clients from one version to the next.
    #[test]
    fn a_percentage_chooses_the_same_keys_for_ever() {
        assert_eq!(
            enforced("part", 25, 100),
            [0, 3, 7, 8, 10, 11, 17, 20, 21, 22, 24, 29, 30, 31, 39, 51, 56, 63, 67, 69, 71, 78, 81, 84, 85, 88]
        );
        assert_ne!(enforced("part", 25, 100), enforced("other", 25, 100));
    }

    #[test]
    fn a_higher_percentage_only_adds_keys() {
        assert!(enforced("part", 0, 10_000).is_empty() && enforced("part", 100, 10_000).len() == 10_000);
        for percent in 1..=100 {
            let (fewer, more) = (enforced("part", percent - 1, 1_000), enforced("part", percent, 1_000));
            assert!(fewer.iter().all(|key| more.contains(key)), "{percent}");
            assert!(
                more.len().abs_diff(usize::try_from(percent * 10).expect("small")) < 50,
                "{percent}: {}",
                more.len()
            );
        }
    }
}

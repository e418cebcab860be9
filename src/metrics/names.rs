/// One of the metrics of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What kind of number it is.
    pub kind: Kind,
    /// The names of its labels, whose values are few and known beforehand, but for `rule`.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

/// What kind of number a [`Metric`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Durations in seconds, and how many of them were how long.
    Histogram,
}

/// All metrics of this crate: what dashboards and alerts can name.
pub const ALL: &[Metric] = &[
    counter(DECISIONS, &["rule", "outcome"], "Decisions, by rule and what it said."),
    counter(NEAR_LIMIT, &["rule"], "Requests that a rule admitted with less than a fifth of its capacity left."),
    counter(DEGRADED, &["rule"], "Decisions that were made without the store."),
    counter(OVERFLOW, &["rule"], "Decisions on keys that were counted together, for want of room."),
    counter(ALLOTTED, &["rule"], "Decisions from units drawn ahead."),
    counter(DENY_CACHE_HITS, &[], "Calls refused from memory, without asking the store."),
    Metric {
        name: STORE_SECONDS,
        kind: Kind::Histogram,
        labels: &["result"],
        help: "How long the store took for a decision.",
    },
    gauge(BREAKERS_OPEN, &[], "Parts of the store that are left alone since they fail."),
    gauge(KEYS, &[], "Keys that are kept in this process's memory."),
    gauge(LEASES_HELD, &["kind"], "Leases that this process holds."),
    counter(LEASES_ACQUIRED, &["kind"], "Leases that were acquired."),
    counter(LEASES_LOST, &["kind"], "Leases that ended before they were given up."),
    gauge(LEASES_WAITING, &["kind"], "Callers that wait for a lease."),
    Metric {
        name: LEASE_WAIT_SECONDS,
        kind: Kind::Histogram,
        labels: &["kind", "result"],
        help: "How long a lease was waited for.",
    },
    counter(CONCURRENCY, &["rule", "outcome"], "Requests to a concurrency limit, by what became of them."),
    counter(IDEMPOTENCY, &["outcome"], "Requests with an idempotency key, by what became of them."),
    counter(CONFIG_RELOADS, &["result"], "Changed configuration files, by whether they took effect."),
];

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help }
}

pub(super) const DECISIONS: &str = "tollgate_decisions_total";
pub(super) const NEAR_LIMIT: &str = "tollgate_near_limit_total";
pub(super) const DEGRADED: &str = "tollgate_degraded_total";
pub(super) const OVERFLOW: &str = "tollgate_overflow_total";
pub(super) const ALLOTTED: &str = "tollgate_allotted_total";
pub(super) const DENY_CACHE_HITS: &str = "tollgate_deny_cache_hits_total";
pub(super) const STORE_SECONDS: &str = "tollgate_store_seconds";
pub(super) const BREAKERS_OPEN: &str = "tollgate_store_breakers_open";
pub(super) const KEYS: &str = "tollgate_keys";
pub(super) const LEASES_HELD: &str = "tollgate_leases_held";
pub(super) const LEASES_ACQUIRED: &str = "tollgate_leases_acquired_total";
pub(super) const LEASES_LOST: &str = "tollgate_leases_lost_total";
pub(super) const LEASES_WAITING: &str = "tollgate_leases_waiting";
pub(super) const LEASE_WAIT_SECONDS: &str = "tollgate_lease_wait_seconds";
pub(super) const CONCURRENCY: &str = "tollgate_concurrency_total";
pub(super) const IDEMPOTENCY: &str = "tollgate_idempotency_total";
pub(super) const CONFIG_RELOADS: &str = "tollgate_config_reloads_total";

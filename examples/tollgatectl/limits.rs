//! Limits on the store that a configuration names.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate::{Config, Demand, Key, Limiter, Policy, RateLimitLayer, Redis, layer::global, limit::Outcome};

use crate::{Failure, args::Args, show};

pub(crate) enum Change {
    Reset,
    Block(Duration),
    Unblock,
}

/// Tells how a key stands, and whether the next request of it passes.
pub(crate) async fn explain(args: &Args, rule: Option<&str>, key: &str) -> Result<bool, Failure> {
    let layer = layer(args)?;
    let limiter = layer.limiter();
    let (policies, key) = (named(limiter, rule)?, read(args, limiter, key));
    let demands: Vec<_> = policies.iter().map(|policy| Demand::new(policy, key).cost(0)).collect();
    let (decision, _) = limiter.decide(&demands).await;
    // What this process could say by itself is of no use: it has seen nothing.
    if decision.is_degraded() {
        return Err(Failure::Silent("the store does not answer".to_owned()));
    }
    let outcomes = decision.outcomes();
    if args.json {
        let rules: Vec<Value> = outcomes.iter().map(as_json).collect();
        show::print(&format!("{}\n", json!({ "key": key.as_str(), "rules": rules })))?;
    } else {
        let row = |(policy, outcome): (&Policy, &Outcome)| {
            let next = match passes_in(outcome) {
                Some(Duration::ZERO) => "passes".to_owned(),
                wait => {
                    let wait =
                        wait.map_or_else(|| "never".to_owned(), |wait| format!("passes in {}", show::span(wait)));
                    format!("{}, {wait}", if outcome.is_blocked() { "blocked" } else { "refused" })
                }
            };
            let left = format!("{} of {}", outcome.remaining(), policy.capacity());
            let full =
                if outcome.full_in().is_zero() { "it is full".to_owned() } else { show::span(outcome.full_in()) };
            vec![policy.name().to_owned(), policy.quota().to_string(), next, left, full]
        };
        let rows: Vec<_> = policies.iter().zip(outcomes).map(row).collect();
        let table = show::table(&["rule", "quota", "next request", "left", "full in"], &rows);
        show::print(&format!("{}\n{table}", key.as_str()))?;
    }
    Ok(outcomes.iter().all(|outcome| passes_in(outcome) == Some(Duration::ZERO)))
}

pub(crate) async fn change(args: &Args, change: Change, rule: &str, key: &str) -> Result<bool, Failure> {
    let layer = layer(args)?;
    let limiter = layer.limiter();
    let (policies, key) = (named(limiter, Some(rule))?, read(args, limiter, key));
    for policy in &policies {
        match change {
            Change::Reset => limiter.reset(policy, key).await?,
            Change::Block(long) => limiter.block(policy, key, long).await?,
            Change::Unblock => limiter.unblock(policy, key).await?,
        }
    }
    let (done, long) = match change {
        Change::Reset => ("reset", None),
        Change::Block(long) => ("blocked", Some(long)),
        Change::Unblock => ("unblocked", None),
    };
    let key = key.as_str();
    show::print(&if args.json {
        let ms = long.map(|long| u64::try_from(long.as_millis()).unwrap_or(u64::MAX));
        format!("{}\n", json!({ "done": done, "rule": rule, "key": key, "for_ms": ms }))
    } else {
        let long = long.map_or_else(String::new, |long| format!(" for {}", show::span(long)));
        format!("{key} is {done} under {rule}{long}\n")
    })?;
    Ok(true)
}

/// Makes the rules of the services that this configuration is for, and their limiter.
fn layer(args: &Args) -> Result<RateLimitLayer, Failure> {
    let Some(file) = &args.config else {
        return Err(Failure::Wrong("--config FILE says which rules there are".to_owned()));
    };
    // No request is decided here, so any extractor will do.
    let config = args.named.iter().fold(Config::load(file)?, |config, name| config.with_key(name.clone(), global()));
    let layer = match &args.redis {
        Some(_) => RateLimitLayer::from_config_with(Limiter::new(redis(args)?), &config)?,
        None => RateLimitLayer::from_config(&config)?,
    };
    if !layer.limiter().is_shared() {
        let text = "this configuration counts in the memory of each process: ask those by --admin, or name a --redis";
        return Err(Failure::Wrong(text.to_owned()));
    }
    Ok(layer)
}

pub(crate) fn redis(args: &Args) -> Result<Redis, Failure> {
    let Some(url) = &args.redis else {
        return Err(Failure::Wrong("--redis URL says where to look".to_owned()));
    };
    let redis = Redis::open(url)?;
    Ok(match &args.prefix {
        Some(prefix) => redis.prefix(prefix)?,
        None => redis,
    })
}

fn named(limiter: &Limiter, rule: Option<&str>) -> Result<Vec<Policy>, Failure> {
    let mut policies = limiter.policies();
    if let Some(rule) = rule {
        let known: Vec<_> = policies.iter().map(|policy| policy.name().to_owned()).collect();
        policies.retain(|policy| policy.name() == rule);
        if policies.is_empty() {
            return Err(Failure::Wrong(format!("there is no rule `{rule}`; there are: {}", known.join(", "))));
        }
    }
    Ok(policies)
}

fn read(args: &Args, limiter: &Limiter, key: &str) -> Key {
    if args.secret { limiter.key_of_secret(key) } else { Key::from_shown(key) }
}

/// Returns when the next request passes; at once if anything is left.
fn passes_in(outcome: &Outcome) -> Option<Duration> {
    match outcome {
        outcome if outcome.is_blocked() => outcome.passes_in(),
        outcome if outcome.remaining() > 0 => Some(Duration::ZERO),
        outcome => Some(outcome.next_unit_in()),
    }
}

fn as_json(outcome: &Outcome) -> Value {
    let ms = |time: Duration| u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
    json!({
        "rule": outcome.policy(),
        "quota": outcome.quota().to_string(),
        "algorithm": outcome.algorithm().name(),
        "remaining": outcome.remaining(),
        "blocked": outcome.is_blocked(),
        "passes": passes_in(outcome) == Some(Duration::ZERO),
        "passes_in_ms": passes_in(outcome).map(ms),
        "full_in_ms": ms(outcome.full_in()),
    })
}

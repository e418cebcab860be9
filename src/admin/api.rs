use std::{process, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde_json::{Value, json};

use super::{Desk, guard::Peer};
use crate::{
    error::Error,
    key::Key,
    limit::{Demand, Outcome, Policy},
    limiter::{Most, RuleCounts, SPAN},
    metrics::Tally,
};

/// Tells how things stand: the rules and their counts, who is refused most, and how the store is.
pub(super) async fn state(State(desk): State<Arc<Desk>>) -> Response {
    let (view, seen) = (&desk.view, desk.view.store());
    let rules: Vec<Value> = view.rules().iter().map(rule).collect();
    let most = |most: Vec<Most>| most.iter().map(refused).collect::<Vec<_>>();
    answer(
        StatusCode::OK,
        &json!({
            "figures": "of this process only",
            "process": { "id": process::id(), "version": env!("CARGO_PKG_VERSION") },
            "counted_ms": ms(desk.since.elapsed()),
            "rules": rules,
            "store": {
                "shared": view.limiter().is_shared(),
                "connected": view.is_connected(),
                "keys": view.keys(),
                "breakers_open": seen.breakers_open,
                "calls": seen.calls,
                "failures": seen.failures,
                "call_us": seen.micros,
                "deny_cache_hits": seen.deny_cache_hits,
            },
            "refused": most(view.most_refused(MOST_SHOWN)),
            "shadow_refused": most(view.most_refused_in_shadow(MOST_SHOWN)),
            "refused_span_ms": ms(SPAN),
        }),
    )
}

/// Tells how one key stands under each rule, and what would happen next.
pub(super) async fn explain(State(desk): State<Arc<Desk>>, body: Bytes) -> Response {
    let asked = match Asked::read(&body, &desk) {
        Ok(asked) => asked,
        Err(wrong) => return problem(StatusCode::BAD_REQUEST, &wrong),
    };
    let demands: Vec<_> = asked.policies().map(|policy| Demand::new(policy, asked.key).cost(0)).collect();
    // All in one call.
    let (decision, _) = desk.view.limiter().decide(&demands).await;
    if decision.outcomes().len() != demands.len() {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "the store does not answer, so nothing is known of the key");
    }
    let rules: Vec<Value> =
        asked.rules.iter().zip(decision.outcomes()).filter_map(|(rule, outcome)| stands(rule, outcome)).collect();
    answer(
        StatusCode::OK,
        &json!({
            "key": asked.key.as_str(),
            "key_hash": desk.view.fingerprint(&asked.key),
            "degraded": decision.is_degraded(),
            "rules": rules,
        }),
    )
}

/// Forgets what a key has used.
pub(super) async fn reset(State(desk): State<Arc<Desk>>, Extension(peer): Extension<Peer>, body: Bytes) -> Response {
    change(&desk, &peer, &body, Change::Reset).await
}

/// Refuses a key for so long.
pub(super) async fn block(State(desk): State<Arc<Desk>>, Extension(peer): Extension<Peer>, body: Bytes) -> Response {
    change(&desk, &peer, &body, Change::Block).await
}

/// Lets a key in again.
pub(super) async fn unblock(State(desk): State<Arc<Desk>>, Extension(peer): Extension<Peer>, body: Bytes) -> Response {
    change(&desk, &peer, &body, Change::Unblock).await
}

/// What can be done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Reset,
    Block,
    Unblock,
}

async fn change(desk: &Desk, Peer(peer): &Peer, body: &[u8], change: Change) -> Response {
    let asked = match Asked::read(body, desk) {
        Ok(asked) => asked,
        Err(wrong) => return problem(StatusCode::BAD_REQUEST, &wrong),
    };
    let seconds = asked.seconds.unwrap_or_default();
    if change == Change::Block && !(1..=LONGEST_BLOCK_S).contains(&seconds) {
        let wrong = format!("`seconds` says for how long: a whole number from 1 to {LONGEST_BLOCK_S}");
        return problem(StatusCode::BAD_REQUEST, &wrong);
    }
    let (limiter, key) = (desk.view.limiter(), asked.key);
    let mut done = Vec::new();
    for policy in asked.policies() {
        let changed = match change {
            Change::Reset => limiter.reset(policy, key).await,
            Change::Block => limiter.block(policy, key, Duration::from_secs(seconds)).await,
            Change::Unblock => limiter.unblock(policy, key).await,
        };
        audit(change, policy, &desk.view.fingerprint(&key), seconds, peer, changed.as_ref().err());
        if let Err(error) = changed {
            let what = format!("rule `{}`: {error}; done for {done:?}", policy.name());
            return problem(StatusCode::SERVICE_UNAVAILABLE, &what);
        }
        done.push(policy.name());
    }
    // Who looks for the key of an entry above finds it at this level.
    let key_hash = desk.view.fingerprint(&key);
    tracing::debug!(name: "key", target: "tollgate::audit", key_hash, key = key.as_str(), "the key of a change");
    answer(StatusCode::OK, &json!({ "key": key.as_str(), "key_hash": key_hash, "rules": done }))
}

/// Leaves a trace of a change: what, of whom, by whom, and what came of it.
fn audit(change: Change, policy: &Policy, key_hash: &str, seconds: u64, peer: &str, error: Option<&Error>) {
    let (rule, error) = (policy.name(), error.map(tracing::field::display));
    match change {
        Change::Reset => {
            tracing::info!(name: "reset", target: "tollgate::audit", rule, key_hash, peer, error, "an operator has reset a key");
        }
        Change::Block => {
            tracing::info!(name: "block", target: "tollgate::audit", rule, key_hash, seconds, peer, error, "an operator has blocked a key");
        }
        Change::Unblock => {
            tracing::info!(name: "unblock", target: "tollgate::audit", rule, key_hash, peer, error, "an operator has unblocked a key");
        }
    }
}

/// Which key, and under which rules.
struct Asked {
    key: Key,
    /// Each with a policy.
    rules: Vec<RuleCounts>,
    seconds: Option<u64>,
}

impl Asked {
    fn read(body: &[u8], desk: &Desk) -> Result<Self, String> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| format!("the body is not JSON: {error}; write {{\"key\": \"...\", \"rule\": \"...\"}}"))?;
        let text = |name: &str| match &body[name] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.as_str())),
            _ => Err(format!("`{name}` must be a text")),
        };
        let key = match (text("key")?, text("secret")?) {
            (Some(key), None) => Key::from_shown(key),
            (None, Some(secret)) => desk.view.limiter().key_of_secret(secret),
            _ => return Err("write `key`, as this page shows it, or `secret`, whose hash is the key".to_owned()),
        };
        let mut rules = desk.view.rules();
        rules.retain(|rule| rule.policy.is_some());
        if let Some(name) = text("rule")? {
            let is_it = |rule: &RuleCounts| rule.policy.as_ref().is_some_and(|policy| policy.name() == name);
            let Some(place) = rules.iter().position(is_it) else {
                let known: Vec<_> = rules.iter().filter_map(|rule| Some(rule.policy.as_ref()?.name())).collect();
                return Err(format!("there is no rule `{name}`; there are: {}", known.join(", ")));
            };
            rules = vec![rules.swap_remove(place)];
        }
        Ok(Self { key, rules, seconds: body["seconds"].as_u64() })
    }

    fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.rules.iter().filter_map(|rule| rule.policy.as_ref())
    }
}

fn rule(rule: &RuleCounts) -> Value {
    let counts: serde_json::Map<String, Value> =
        Tally::ALL.iter().map(|tally| (tally.name().to_owned(), rule.counts[tally.place()].into())).collect();
    match &rule.policy {
        Some(policy) => json!({
            "name": policy.name(),
            "quota": policy.quota().to_string(),
            "algorithm": policy.algorithm().name(),
            "capacity": policy.capacity(),
            "shadow": is_shadow(rule),
            "counts": counts,
        }),
        None => json!({ "name": "(others)", "shadow": false, "counts": counts }),
    }
}

fn refused(most: &Most) -> Value {
    json!({
        "rule": most.policy.name(),
        "key": most.key.as_str(),
        "count": most.count,
        "over_by_at_most": most.over,
    })
}

/// Returns true if a rule was only asked in the shadow so far.
fn is_shadow(rule: &RuleCounts) -> bool {
    let any = |tallies: &[Tally]| tallies.iter().any(|tally| rule.counts[tally.place()] > 0);
    any(&[Tally::ShadowAllowed, Tally::ShadowRefused])
        && !any(&[Tally::Allowed, Tally::Refused, Tally::OtherRefused, Tally::Unavailable])
}

fn stands(rule: &RuleCounts, outcome: &Outcome) -> Option<Value> {
    let policy = rule.policy.as_ref()?;
    let passes_in = match outcome {
        outcome if outcome.is_blocked() => outcome.passes_in(),
        outcome if outcome.remaining() > 0 => Some(Duration::ZERO),
        outcome => Some(outcome.next_unit_in()),
    };
    Some(json!({
        "rule": policy.name(),
        "quota": policy.quota().to_string(),
        "algorithm": policy.algorithm().name(),
        "capacity": policy.capacity(),
        "shadow": is_shadow(rule),
        "remaining": outcome.remaining(),
        "blocked": outcome.is_blocked(),
        // What becomes of the next unit that is asked for.
        "passes": passes_in == Some(Duration::ZERO),
        "passes_in_ms": passes_in.map(ms),
        "next_unit_in_ms": ms(outcome.next_unit_in()),
        "full_in_ms": ms(outcome.full_in()),
    }))
}

/// Rounds up, so that waiting so long is enough.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn answer(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(body.to_string().into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(super) fn problem(status: StatusCode, what: &str) -> Response {
    answer(status, &json!({ "error": what }))
}

/// As many as fit onto a page.
const MOST_SHOWN: usize = 20;

/// A hundred years: for ever.
const LONGEST_BLOCK_S: u64 = 100 * 366 * 86_400;

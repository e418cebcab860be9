//! Every option that a builder has can be written in a file, or there is a reason why not.

use std::{collections::BTreeSet, fs, path::Path};

use tollgate::Config;

/// Where builders are, the option, and the key of a file that stands for it; or why there is none.
const OPTIONS: &[(&str, &str, Result<&str, &str>)] = &[
    (RULE, "token_bucket", Ok("rule.algorithm")),
    (RULE, "fixed_window", Ok("rule.algorithm")),
    (RULE, "sliding_window", Ok("rule.algorithm")),
    (RULE, "sliding_counter", Ok("rule.algorithm")),
    (RULE, "algorithm", Ok("rule.algorithm")),
    (RULE, "burst", Ok("rule.burst")),
    (RULE, "aligned", Ok("rule.aligned")),
    (RULE, "allotted", Ok("rule.allotted")),
    (RULE, "escalate", Ok("rule.escalate")),
    (ESCALATION, "up_to", Ok("rule.escalate.up_to")),
    (ESCALATION, "try_up_to", Ok("rule.escalate.up_to")),
    (RULE, "on_error", Ok("rule.on_error")),
    (RULE, "reduced_capacity", Ok("rule.reduced_capacity")),
    (RULE, "by", Ok("rule.key")),
    (RULE, "cost", Ok("rule.cost")),
    (RULE, "cost_by", Err("a function")),
    (RULE, "path", Ok("rule.match.path")),
    (RULE, "method", Ok("rule.match.method")),
    (RULE, "when", Err("a function")),
    (RULE, "unless", Ok("rule.match.not")),
    (RULE, "shadow", Ok("rule.mode")),
    (RULE, "enforce_percent", Ok("rule.mode")),
    (RULE, "charge", Ok("rule.charge")),
    (RULE, "settled", Ok("rule.settled")),
    (RULE, "except", Ok("rule.override")),
    (RULE, "quota_by", Err("a function")),
    (LAYER, "rule", Ok("rule")),
    (LAYER, "try_rule", Ok("rule")),
    (LAYER, "dialect", Ok("headers.dialect")),
    (LAYER, "dialects", Ok("headers.dialect")),
    (LAYER, "try_dialects", Ok("headers.dialect")),
    (LAYER, "partition_keys", Ok("headers.partition_keys")),
    (LAYER, "try_partition_keys", Ok("headers.partition_keys")),
    (LAYER, "skip_cacheable", Ok("headers.skip_cacheable")),
    (LAYER, "expose_decision", Ok("expose_decision")),
    (LAYER, "limit_preflights", Ok("limit_preflights")),
    (LAYER, "exempt_grpc_probes", Ok("exempt_grpc_probes")),
    (LAYER, "refuse_with", Err("a function")),
    (LAYER, "quota_by", Err("a function")),
    (LIMITER, "deadline", Ok("store.deadline")),
    (LIMITER, "deny_max_age", Ok("store.deny_max_age")),
    (LIMITER, "replicas", Ok("store.replicas")),
    (LIMITER, "key_secret", Ok("store.key_secret")),
    (MEMORY, "max_keys", Ok("store.max_keys")),
    (MEMORY, "when_full", Ok("store.when_full")),
    (MEMORY, "max_record_bytes", Err("of records, which no rule makes")),
    (REDIS, "prefix", Ok("store.prefix")),
    (TLS, "ca_pem", Ok("store.tls.ca")),
    (TLS, "client_pem", Ok("store.tls.cert")),
    (TLS, "tls", Ok("store.tls")),
    (CLIENT_IP, "trust", Ok("client_ip.trust")),
    (CLIENT_IP, "hops", Ok("client_ip.hops")),
    (CLIENT_IP, "header", Ok("client_ip.header")),
    (CLIENT_IP, "ipv4_prefix", Ok("client_ip.ipv4_prefix")),
    (CLIENT_IP, "ipv6_prefix", Ok("client_ip.ipv6_prefix")),
    (KEY, "secret", Ok("rule.secret")),
    (KEY, "plain", Ok("rule.secret")),
    (KEY, "or_skip", Ok("rule.missing")),
    (KEY, "or_reject", Ok("rule.missing")),
];

const RULE: &str = "src/layer/rate_limit/rule.rs";
const ESCALATION: &str = "src/limit/escalation.rs";
const LAYER: &str = "src/layer/rate_limit/layer.rs";
const LIMITER: &str = "src/limiter.rs";
const MEMORY: &str = "src/memory/mod.rs";
const REDIS: &str = "src/redis/mod.rs";
const TLS: &str = "src/redis/connect/tls.rs";
const CLIENT_IP: &str = "src/layer/client_ip/mod.rs";
const KEY: &str = "src/layer/key.rs";

/// What only tests of this crate use.
const FOR_TESTS: &[&str] = &["at_time_for_tests", "by_key_for_tests"];

#[test]
fn every_option_of_a_builder_has_a_key_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files: BTreeSet<&str> = OPTIONS.iter().map(|(file, ..)| *file).collect();
    let mut wrong = Vec::new();
    for file in files {
        let source = fs::read_to_string(root.join(file)).expect("a source");
        let listed: BTreeSet<&str> = OPTIONS.iter().filter(|(of, ..)| *of == file).map(|(_, name, _)| *name).collect();
        let there = setters(&source);
        let known = |name: &&String| listed.contains(name.as_str()) || FOR_TESTS.contains(&name.as_str());
        wrong.extend(
            there.iter().filter(|name| !known(name)).map(|name| format!("{file}: `{name}` is not listed here")),
        );
        wrong.extend(listed.iter().filter(|name| !there.contains(**name)).map(|name| format!("{file}: no `{name}`")));
    }
    let schema: serde_json::Value = serde_json::from_str(&Config::json_schema()).expect("JSON");
    for (_, option, key) in OPTIONS {
        if let Ok(key) = key
            && !has_key(&schema, key)
        {
            wrong.push(format!("`{option}`: files have no key `{key}`"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the names of public functions that take `self` and give it back.
fn setters(source: &str) -> BTreeSet<String> {
    let mut setters = BTreeSet::new();
    for (at, _) in source.match_indices("pub ") {
        let rest = &source[at + 4..];
        let rest = rest.strip_prefix("const ").unwrap_or(rest);
        let Some(rest) = rest.strip_prefix("fn ") else { continue };
        let end = rest.find('{').unwrap_or(rest.len());
        let head = rest[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        let name: String = head.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let takes_self = head.contains("(self")
            || head.contains("(mut self")
            || head.contains("( self")
            || head.contains("( mut self");
        let gives_self = head.contains("-> Self") || head.contains("-> Result<Self");
        if takes_self && gives_self {
            setters.insert(name);
        }
    }
    setters
}

fn has_key(schema: &serde_json::Value, key: &str) -> bool {
    let mut place = schema;
    for name in key.split('.') {
        let table = if place["items"].is_object() { &place["items"] } else { place };
        place = &table["properties"][name];
    }
    place.is_object()
}

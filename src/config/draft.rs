//! What a file asks for, found right as far as the file alone can tell.

use std::{collections::HashSet, num::NonZeroU32, time::Duration};

use http::{HeaderName, Method};

use super::{
    keys::{Keys, Manner},
    read::Fields,
    schema::{CLIENT_IP, ESCALATE, FILE, HEADERS, MATCH, NOT, OVERRIDE, RULE, STORE, TLS},
    source::{Faults, did_you_mean},
    tls::TlsDraft,
    value::{Kind, Value, shown},
};
use crate::{
    error::Error,
    layer::{ClientIp, Dialect, Exception, KeyExtractor, Options, PathPattern, Rule, client_ip},
    limit::{Algorithm, Escalation, OnError, Policy, Quota},
    memory::WhenFull,
};

#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) store: StoreDraft,
    pub(super) options: Options,
    /// Where the file asks for partition keys.
    pub(super) partitions_at: usize,
    pub(super) rules: Vec<RuleDraft>,
}

/// A text of the file, and where it is.
type Placed = Option<(String, usize)>;

#[derive(Clone, Debug)]
pub(super) struct StoreDraft {
    pub(super) at: usize,
    pub(super) url: Placed,
    pub(super) prefix: Placed,
    pub(super) key_secret: Placed,
    pub(super) tls: Option<TlsDraft>,
    pub(super) deadline: Option<Duration>,
    pub(super) on_error: OnError,
    pub(super) replicas: NonZeroU32,
    pub(super) deny_max_age: Option<Duration>,
    pub(super) max_keys: Option<usize>,
    pub(super) when_full: WhenFull,
}

#[derive(Clone, Debug)]
pub(super) struct RuleDraft {
    /// The rule but for whom it counts.
    pub(super) rule: Rule,
    pub(super) keys: Keys,
}

impl Draft {
    pub(super) fn read(value: &Value, faults: &mut Faults) -> Self {
        let mut draft = Self::default();
        let Some(file) = Fields::open(value, "the file", &FILE, faults) else { return draft };
        draft.store = StoreDraft::read(file.table("store", "`store`", &STORE, faults), faults);
        if let Some(headers) = file.table("headers", "`headers`", &HEADERS, faults) {
            draft.read_headers(headers, faults);
        }
        draft.options.expose = file.boolean("expose_decision", faults) == Some(true);
        draft.options.exempt_grpc_probes = file.boolean("exempt_grpc_probes", faults) == Some(true);
        draft.options.preflights = file.boolean("limit_preflights", faults) == Some(true);
        let client_ip = read_client_ip(file.table("client_ip", "`client_ip`", &CLIENT_IP, faults), faults);
        draft.rules = read_rules(file, &client_ip, draft.store.on_error, faults);
        draft
    }
}

impl Draft {
    fn read_headers(&mut self, headers: Fields<'_>, faults: &mut Faults) {
        let mut dialects = Vec::new();
        for (word, at) in headers.texts("dialect", faults).unwrap_or_default() {
            match word.parse::<Dialect>() {
                Ok(dialect) => dialects.push(dialect),
                Err(error) => faults.add(at, error.to_string()),
            }
        }
        if !dialects.is_empty()
            && let Err(error) = self.options.tell_in(dialects)
        {
            faults.add(headers.name_at("dialect"), error.to_string());
        }
        self.options.partitions = headers.boolean("partition_keys", faults) == Some(true);
        self.partitions_at = headers.name_at("partition_keys");
        self.options.skip_cacheable = headers.boolean("skip_cacheable", faults) == Some(true);
    }
}

impl Default for StoreDraft {
    fn default() -> Self {
        Self {
            at: 0,
            url: None,
            prefix: None,
            key_secret: None,
            tls: None,
            deadline: None,
            on_error: OnError::default(),
            replicas: NonZeroU32::MIN,
            deny_max_age: None,
            max_keys: None,
            when_full: WhenFull::default(),
        }
    }
}

impl StoreDraft {
    fn read(store: Option<Fields<'_>>, faults: &mut Faults) -> Self {
        let mut draft = Self::default();
        let Some(store) = store else { return draft };
        draft.at = store.at;
        let placed = |found: Option<(&str, usize)>| found.map(|(text, at)| (text.to_owned(), at));
        draft.url = placed(store.text("url", faults));
        draft.prefix = placed(store.text("prefix", faults));
        draft.key_secret = placed(store.text("key_secret", faults));
        draft.tls = store.table("tls", "`tls`", &TLS, faults).map(|tls| TlsDraft::read(tls, faults));
        draft.deadline = store.duration("deadline", faults);
        if draft.deadline.is_some_and(|deadline| deadline.is_zero()) {
            faults.add(
                store.name_at("deadline"),
                "`deadline` is zero; write the time that a decision may take, such as `100ms`",
            );
        }
        draft.on_error = on_error(store, faults).unwrap_or_default();
        let replicas = store.integer("replicas", faults).and_then(|count| u32::try_from(count).ok());
        draft.replicas = replicas.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        draft.deny_max_age = store.duration("deny_max_age", faults);
        draft.max_keys = store.integer("max_keys", faults).and_then(|keys| usize::try_from(keys).ok());
        draft.when_full = match store.word("when_full", faults) {
            Some("refuse") => WhenFull::Refuse,
            _ => WhenFull::Share,
        };
        if let Err((at, what)) = draft.check_url() {
            faults.add(at, what);
        }
        draft
    }

    /// Returns true if counts are kept in this process.
    pub(super) fn is_memory(&self) -> bool {
        self.url.as_ref().is_none_or(|(url, _)| url == "memory")
    }

    #[cfg(feature = "redis")]
    fn check_url(&self) -> Result<(), (usize, String)> {
        if let Some((prefix, at)) = &self.prefix {
            let any = crate::redis::Redis::open("redis://localhost").expect("an address");
            any.prefix(prefix).map_err(|error| (*at, error.to_string()))?;
        }
        let redis = match &self.url {
            Some((url, at)) if !self.is_memory() => {
                crate::redis::Redis::open(url).map_err(|error| (*at, format!("`url`: {error}, or `memory`")))?
            }
            _ => return self.check_no_tls(),
        };
        match &self.tls {
            Some(tls) => tls.apply(redis).map(drop).map_err(|error| (tls.at, error.to_string())),
            None => Ok(()),
        }
    }

    #[cfg(not(feature = "redis"))]
    fn check_url(&self) -> Result<(), (usize, String)> {
        match &self.url {
            Some((_, at)) if !self.is_memory() => {
                Err((*at, "`url` is not `memory`, and the service is built without the feature `redis`".to_owned()))
            }
            _ => self.check_no_tls(),
        }
    }

    fn check_no_tls(&self) -> Result<(), (usize, String)> {
        match &self.tls {
            Some(tls) => Err((tls.at, "`tls` does nothing: counts are kept in memory; leave it out".to_owned())),
            None => Ok(()),
        }
    }
}

fn on_error(fields: Fields<'_>, faults: &mut Faults) -> Option<OnError> {
    Some(match fields.word("on_error", faults)? {
        "allow" => OnError::Allow,
        "deny" => OnError::Deny,
        _ => OnError::Local,
    })
}

fn read_client_ip(fields: Option<Fields<'_>>, faults: &mut Faults) -> ClientIp {
    let mut client = client_ip();
    let Some(fields) = fields else { return client };
    if let Some(networks) = fields.texts("trust", faults) {
        client = client.trust(networks.iter().map(|(network, _)| *network));
    }
    if let Some(hops) = fields.integer("hops", faults) {
        client = client.hops(usize::try_from(hops).unwrap_or(usize::MAX));
    }
    if let Some((header, at)) = fields.text("header", faults) {
        match header.parse::<HeaderName>() {
            Ok(_) => client = client.header(header),
            Err(_) => {
                faults.add(at, format!("`{}` is not a header name; write one like `x-forwarded-for`", shown(header)))
            }
        }
    }
    client = prefixes(client, fields, faults);
    if let Err(error) = client.check() {
        let at = ["trust", "hops", "header"].into_iter().find(|name| fields.get(name).is_some());
        faults.add(at.map_or(fields.at, |name| fields.name_at(name)), error.to_string());
    }
    client
}

fn prefixes(client: ClientIp, fields: Fields<'_>, faults: &mut Faults) -> ClientIp {
    let mut bits = |name| fields.integer(name, faults).and_then(|bits| u8::try_from(bits).ok());
    let client = match bits("ipv4_prefix") {
        Some(bits) => client.ipv4_prefix(bits),
        None => client,
    };
    match bits("ipv6_prefix") {
        Some(bits) => client.ipv6_prefix(bits),
        None => client,
    }
}

fn read_rules(file: Fields<'_>, client_ip: &ClientIp, on_error: OnError, faults: &mut Faults) -> Vec<RuleDraft> {
    let none_on_purpose = file.get("rules").is_some_and(|rules| {
        let empty = matches!(&rules.kind, Kind::List(values) if values.is_empty());
        if !empty {
            faults.add(
                rules.at,
                "`rules` must be `[]`, which says that there is none; a rule is a table `rule`: write `[[rule]]`",
            );
        }
        true
    });
    let rules = match file.get("rule").map(|value| (&value.kind, value.at)) {
        Some((Kind::List(rules), _)) => rules.as_slice(),
        Some((_, at)) => {
            faults.add(at, "`rule` must be a list of tables: write `[[rule]]` (TOML) or `rule: [{ ... }]`");
            return Vec::new();
        }
        None => &[],
    };
    if rules.is_empty() && !none_on_purpose {
        faults.add(
            0,
            "the file has no `[[rule]]`, so nothing would be limited; write one, or `rules = []` if that is meant",
        );
    } else if !rules.is_empty() && none_on_purpose {
        faults.add(file.name_at("rules"), "`rules = []` says that there is no rule, and there are some; leave it out");
    }
    let mut drafts = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for value in rules {
        let Some(fields) = Fields::open(value, "the rule", &RULE, faults) else { continue };
        if let Some((name, at)) = fields.text("name", faults) {
            if names.contains(&name) {
                faults.add(at, format!("`{}` is the name of two rules; each needs one of its own", shown(name)));
            }
            names.push(name);
        }
        drafts.extend(read_rule(fields, client_ip, on_error, faults));
    }
    drafts
}

fn read_rule(fields: Fields<'_>, client_ip: &ClientIp, default: OnError, faults: &mut Faults) -> Option<RuleDraft> {
    let name = fields.text("name", faults);
    let quota = fields.quota("quota", faults);
    let algorithm = fields.word("algorithm", faults).map_or(Algorithm::TokenBucket, algorithm);
    let on_error = on_error(fields, faults).unwrap_or(default);
    let keys = read_keys(fields, client_ip, faults);
    let burst = fields.integer("burst", faults);
    let aligned = fields.boolean("aligned", faults) == Some(true);
    let allotted = fields.integer("allotted", faults).and_then(|percent| u32::try_from(percent).ok());
    let cost = fields.integer("cost", faults);
    if let Some((name, at)) = name
        && let Err(error) = Policy::new(name.to_owned(), PLAIN, Algorithm::FixedWindow)
    {
        faults.add(at, error.to_string());
    }
    // Where something is missing, all else is looked at all the same.
    if let Some(quota) = quota {
        check_policy(fields, quota, algorithm, burst, faults);
    }
    let quota = quota.map_or(PLAIN, |(quota, _)| quota);
    if aligned && algorithm != Algorithm::FixedWindow {
        let instead = "leave it out, or write `algorithm = \"fixed-window\"`";
        faults.add(fields.name_at("aligned"), format!("only a fixed window can be aligned; {instead}"));
    }
    let mut rule =
        Rule::new(name.map_or("rule", |(name, _)| name).to_owned(), quota).algorithm(algorithm).on_error(on_error);
    if let Some(units) = burst {
        rule = rule.burst(units);
    }
    if aligned {
        rule = rule.aligned();
    }
    if let Some(percent) = allotted {
        rule = rule.allotted(percent);
    }
    if let Some(units) = cost {
        rule = rule.cost(units);
    }
    if fields.boolean("reduced_capacity", faults) == Some(true) {
        rule = rule.reduced_capacity();
    }
    if let Some((when, at)) = fields.text("charge", faults) {
        if let Err(error) = Rule::check_charge(when) {
            faults.add(at, error.to_string());
        }
        rule = rule.charge(when);
    }
    if fields.boolean("settled", faults) == Some(true) {
        rule = rule.settled();
    }
    if let Some(escalation) = read_escalation(fields, faults) {
        rule = rule.escalate(escalation);
    }
    for (values, exception) in read_overrides(fields, algorithm, keys.as_ref(), faults) {
        rule = rule.except(values, exception);
    }
    rule = read_mode(rule, fields, faults);
    rule = read_match(rule, fields, faults);
    Some(RuleDraft { rule, keys: keys? })
}

fn read_escalation(fields: Fields<'_>, faults: &mut Faults) -> Option<Escalation> {
    let fields = fields.table("escalate", "`escalate`", &ESCALATE, faults)?;
    let after = fields.integer("after", faults).and_then(|after| u32::try_from(after).ok());
    let [within, block, up_to] = ["within", "block", "up_to"].map(|name| {
        let (time, value) = (fields.duration(name, faults)?, fields.get(name)?);
        if Escalation::try_new(1, time, time).is_err() {
            faults.add(value.at, format!("`{name}` is {}; it must be `1ms` to `366d`", value.called()));
            return None;
        }
        Some((time, value))
    });
    let (within, (block, first), up_to) = (within?.0, block?, up_to);
    let escalation = Escalation::try_new(after?, within, block).ok()?;
    let Some((longest, value)) = up_to else { return Some(escalation) };
    let tell = |_: &Error| {
        let what = format!("`up_to` is {}, and the first `block` is {}", value.called(), first.called());
        faults.add(value.at, what + "; write no less, or leave it out");
    };
    escalation.try_up_to(longest).inspect_err(tell).ok()
}

fn algorithm(word: &str) -> Algorithm {
    match word {
        "fixed-window" => Algorithm::FixedWindow,
        "sliding-window" => Algorithm::SlidingWindow,
        "sliding-counter" => Algorithm::SlidingCounter,
        _ => Algorithm::TokenBucket,
    }
}

/// Says what cannot be together of a quota, which is at some place, an algorithm and a burst.
fn check_policy(
    fields: Fields<'_>,
    (quota, at): (Quota, usize),
    algorithm: Algorithm,
    burst: Option<u64>,
    faults: &mut Faults,
) {
    // With a name that is surely right, so that each mistake is told once.
    match Policy::new("rule", quota, algorithm) {
        Ok(policy) => {
            if let Some(Err(error)) = burst.map(|units| policy.try_burst(units)) {
                let instead =
                    if algorithm == Algorithm::TokenBucket { "" } else { "; leave it out, or the `algorithm`" };
                faults.add(fields.name_at("burst"), about(&error) + instead);
            }
        }
        Err(error) => faults.add(at, about(&error) + ": `algorithm = \"fixed-window\"`"),
    }
}

/// Says what is wrong without the name that the line has already.
fn about(error: &Error) -> String {
    let text = error.to_string();
    text.strip_prefix("policy `rule`: ").map_or_else(|| text.clone(), str::to_owned)
}

fn read_keys(fields: Fields<'_>, client_ip: &ClientIp, faults: &mut Faults) -> Option<Keys> {
    let words = match fields.get("key") {
        Some(_) => fields.texts("key", faults)?,
        None => vec![("client-ip", fields.at)],
    };
    let has = |kinds: &[&str]| {
        words
            .iter()
            .any(|(word, _)| kinds.iter().any(|kind| word.split(':').next().is_some_and(|first| first == *kind)))
    };
    for (name, kinds, what) in [
        (
            "missing",
            &["header", "cookie", "matched-path", "grpc-service", "grpc-method"][..],
            "none of its keys is ever missing",
        ),
        ("secret", &["header", "cookie"][..], "its key has no header and no cookie"),
        ("ipv4_prefix", &["client-ip"][..], "its key has no `client-ip`"),
        ("ipv6_prefix", &["client-ip"][..], "its key has no `client-ip`"),
    ] {
        if fields.get(name).is_some() && !has(kinds) {
            faults.add(fields.name_at(name), format!("`{name}` does nothing in this rule: {what}; leave it out"));
        }
    }
    let manner = Manner {
        missing: fields.word("missing", faults),
        secret: fields.boolean("secret", faults),
        client_ip: prefixes(client_ip.clone(), fields, faults),
    };
    Keys::read(&words, &manner, faults)
}

/// Reads the overrides of a rule.
fn read_overrides(
    fields: Fields<'_>,
    algorithm: Algorithm,
    rule_keys: Option<&Keys>,
    faults: &mut Faults,
) -> Vec<(Vec<String>, Exception)> {
    let overrides = match fields.get("override").map(|value| (&value.kind, value.at)) {
        Some((Kind::List(overrides), _)) => overrides.as_slice(),
        Some((_, at)) => {
            faults.add(
                at,
                "`override` must be a list of tables: write `[[rule.override]]` (TOML) or `override: [{ ... }]`",
            );
            &[]
        }
        None => &[],
    };
    let mut known = HashSet::new();
    let mut exceptions = Vec::new();
    for value in overrides {
        let Some(fields) = Fields::open(value, "the override", &OVERRIDE, faults) else { continue };
        let keys = fields.texts("key", faults).unwrap_or_default();
        let wanted = rule_keys.map_or(keys.len(), Keys::len);
        if !keys.is_empty() && keys.len() != wanted {
            let has = keys.len();
            faults.add(
                fields.name_at("key"),
                format!("`key` has {has} values, and the rule's key has {wanted}; write one for each, in order"),
            );
        } else {
            for (place, (value, at)) in keys.iter().enumerate() {
                if let Some(what) = rule_keys.and_then(|rule_keys| rule_keys.refuse_value(place, value)) {
                    faults.add(*at, what);
                }
            }
        }
        let values: Vec<String> = keys.iter().map(|(value, _)| (*value).to_owned()).collect();
        if !keys.is_empty() && !known.insert(values.clone()) {
            faults.add(fields.name_at("key"), "there is an override of this key already; leave one out");
        }
        let burst = fields.integer("burst", faults);
        let Some((text, at)) = fields.text("quota", faults) else { continue };
        let exception = match text {
            "unlimited" | "blocked" if burst.is_some() => {
                faults.add(fields.name_at("burst"), "`burst` belongs to a quota; leave it out");
                continue;
            }
            "unlimited" => Exception::Unlimited,
            "blocked" => Exception::Blocked,
            _ => match text.parse() {
                Ok(quota) => {
                    check_policy(fields, (quota, at), algorithm, burst, faults);
                    burst.map_or(Exception::Quota(quota), |burst| Exception::Bucket { quota, burst })
                }
                Err(error) => {
                    let near = did_you_mean(text, ["unlimited", "blocked"]);
                    faults.add(at, format!("{error}, or `unlimited` or `blocked`{near}"));
                    continue;
                }
            },
        };
        exceptions.push((values, exception));
    }
    exceptions
}

fn read_mode(rule: Rule, fields: Fields<'_>, faults: &mut Faults) -> Rule {
    if let Some(Value { at, kind: Kind::Plain(number) }) = fields.get("mode") {
        faults.add(*at, format!("`mode` is `{number}`; a percentage is written `\"{number}%\"`"));
        return rule;
    }
    match fields.text("mode", faults) {
        None | Some(("enforce", _)) => rule,
        Some(("shadow", _)) => rule.shadow(),
        Some((text, at)) => {
            let percent =
                text.strip_suffix('%').and_then(|number| number.parse().ok()).filter(|percent| *percent <= 100);
            if percent.is_none() {
                let near = did_you_mean(text, ["enforce", "shadow"]);
                let text = shown(text);
                faults.add(
                    at,
                    format!("`mode` is `{text}`; it must be `enforce`, `shadow` or a percentage, `25%`{near}"),
                );
            }
            rule.enforce_percent(percent.unwrap_or(0))
        }
    }
}

fn read_match(mut rule: Rule, fields: Fields<'_>, faults: &mut Faults) -> Rule {
    let Some(matching) = fields.table("match", "`match`", &MATCH, faults) else { return rule };
    for (pattern, _) in read_paths(matching, faults) {
        rule = rule.path(pattern);
    }
    for method in read_methods(matching, faults) {
        rule = rule.method(method);
    }
    let Some(not) = matching.table("not", "`not`", &NOT, faults) else { return rule };
    let paths: Vec<PathPattern> = read_paths(not, faults).into_iter().map(|(_, pattern)| pattern).collect();
    let methods = read_methods(not, faults);
    if not.get("path").is_none() && not.get("method").is_none() {
        faults.add(not.at, "`not` leaves out all requests; write a `path` or a `method` in it");
    }
    rule.unless(move |request| {
        (methods.is_empty() || methods.contains(&request.method))
            && (paths.is_empty() || paths.iter().any(|pattern| pattern.matches(request)))
    })
}

fn read_paths(fields: Fields<'_>, faults: &mut Faults) -> Vec<(String, PathPattern)> {
    let mut patterns = Vec::new();
    for (text, at) in fields.texts("path", faults).unwrap_or_default() {
        match PathPattern::new(text) {
            Ok(pattern) => patterns.push((text.to_owned(), pattern)),
            Err(error) => faults.add(at, error.to_string()),
        }
    }
    patterns
}

fn read_methods(fields: Fields<'_>, faults: &mut Faults) -> Vec<Method> {
    let mut methods = Vec::new();
    for (text, at) in fields.texts("method", faults).unwrap_or_default() {
        // Methods are told apart by case (RFC 9110, section 9.1), and all that are known are written in capitals.
        match Method::from_bytes(text.as_bytes()) {
            Ok(method) if text == text.to_uppercase() => methods.push(method),
            Ok(_) => faults.add(at, format!("method `{}`: write `{}`", shown(text), text.to_uppercase())),
            Err(_) => faults.add(at, format!("`{}` is no method; write one such as `GET`", shown(text))),
        }
    }
    methods
}

/// A quota that every algorithm can count.
const PLAIN: Quota = Quota::per_second(1);

//! For whom a rule counts: from words to extractors.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use http::{HeaderName, request::Parts};

use super::{
    schema::{KEYS, NAMED_KEYS},
    source::{Faults, did_you_mean, either},
    value::shown,
};
#[cfg(feature = "axum")]
use crate::layer::matched_path;
use crate::{
    error::Error,
    key::KeyWriter,
    layer::{
        ClientIp, Header, KeyExtractor, NoKey, client_ip, cookie, global, grpc_method, grpc_service, method, path,
    },
};

/// The extractors that a service has named.
pub(super) type Named = HashMap<String, Arc<dyn KeyExtractor>>;

/// Whose requests a rule tells apart, as far as the file alone can say.
#[derive(Clone, Debug)]
pub(super) struct Keys(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    /// What a word stands for, and the word.
    Known(Arc<dyn KeyExtractor>, String),
    /// A name that the service has to know, and where it is.
    Named(String, usize),
}

/// What a rule says of all its keys.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    pub(super) missing: Option<&'static str>,
    pub(super) secret: Option<bool>,
    pub(super) client_ip: ClientIp,
}

/// Gives an extractor what a rule says of requests without a value.
macro_rules! known {
    ($extractor:expr, $manner:expr) => {
        Arc::new(match $manner.missing {
            Some("skip") => $extractor.or_skip(),
            Some("reject") => $extractor.or_reject(),
            _ => $extractor,
        }) as Arc<dyn KeyExtractor>
    };
}

impl Keys {
    pub(super) fn read(words: &[(&str, usize)], manner: &Manner, faults: &mut Faults) -> Option<Self> {
        let mut parts = Vec::new();
        for (i, (word, at)) in words.iter().enumerate() {
            if words[..i].iter().any(|(other, _)| other == word) {
                faults.add(*at, format!("`{}` is there twice; leave one out", shown(word)));
            }
            match part(word, *at, manner) {
                Ok(part) => parts.push(part),
                Err(what) => faults.add(*at, what),
            }
        }
        (parts.len() == words.len()).then_some(Self(parts))
    }

    /// Returns how many values a key has.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Says what is wrong with values for which a rule is to make an exception, one of each part, if anything is.
    pub(super) fn refuse_value(&self, place: usize, value: &str) -> Option<String> {
        let alone = self.0.len() == 1;
        let Part::Known(extractor, word) = self.0.get(place)? else { return None };
        let is_range = || client_ip().trust([value]).check().is_ok();
        let is_alone = || value.parse::<IpAddr>().is_ok_and(|address| extractor.is_alone(address.to_canonical()));
        let instead = match word.as_str() {
            "client-ip" if alone && !is_range() => "write an address, or a range of them such as `10.0.0.0/8`",
            "client-ip" if !alone && !is_alone() => {
                "beside other keys it must be one address that is counted alone, not a range; IPv6 is counted by \
                 `ipv6_prefix`"
            }
            "global" => "its key is `global`, the same for all; change the rule's `quota`",
            "method" if value != value.to_uppercase() => "methods are written in capitals, such as `GET`",
            "path" if !value.starts_with('/') => "a path begins with a slash, and is no pattern",
            _ => return None,
        };
        Some(format!("`{}` is no key that requests can have: {instead}", shown(value)))
    }

    /// Finds what the names stand for.
    pub(super) fn resolve(&self, named: &Named, faults: &mut Faults) -> Option<Arc<dyn KeyExtractor>> {
        let mut parts = Vec::new();
        for part in &self.0 {
            match part {
                Part::Known(extractor, _) => parts.push(Arc::clone(extractor)),
                Part::Named(name, at) => match named.get(name) {
                    Some(extractor) => parts.push(Arc::clone(extractor)),
                    None => faults.add(*at, unknown(name, named)),
                },
            }
        }
        match parts.len() {
            len if len < self.0.len() => None,
            1 => parts.pop(),
            _ => Some(Arc::new(Composite(parts))),
        }
    }
}

fn part(word: &str, at: usize, manner: &Manner) -> Result<Part, String> {
    let known: Arc<dyn KeyExtractor> = match word.split_once(':') {
        Some(("header", name)) => {
            let parsed = name.parse::<HeaderName>();
            let parsed = parsed
                .map_err(|_| format!("`{}` is not a header name; write one such as `header:x-api-key`", shown(name)))?;
            let header = match (Header::new(parsed), manner.secret) {
                (header, Some(true)) => header.secret(),
                (header, Some(false)) => header.plain(),
                (header, None) => header,
            };
            known!(header, manner)
        }
        Some(("cookie", name)) => {
            if name.is_empty() || name.contains(|c: char| !c.is_ascii_graphic() || "=;,\"".contains(c)) {
                return Err(format!("`{}` is not a cookie's name; write one such as `cookie:session`", shown(name)));
            }
            let cookie = if manner.secret == Some(false) { cookie(name).plain() } else { cookie(name) };
            known!(cookie, manner)
        }
        Some((kind, name)) => {
            let near = did_you_mean(kind, NAMED_KEYS.iter().copied());
            return Err(format!("key `{}:{}`: write `header:NAME` or `cookie:NAME`{near}", shown(kind), shown(name)));
        }
        None => match word {
            "client-ip" => Arc::new(manner.client_ip.clone()),
            "global" => Arc::new(global()),
            "method" => Arc::new(method()),
            "path" => Arc::new(path()),
            #[cfg(feature = "axum")]
            "matched-path" => known!(matched_path(), manner),
            #[cfg(not(feature = "axum"))]
            "matched-path" => return Err("key `matched-path` needs the feature `axum`".to_owned()),
            "grpc-service" => known!(grpc_service(), manner),
            "grpc-method" => known!(grpc_method(), manner),
            "header" | "cookie" => return Err(format!("key `{word}` lacks a name; write `{word}:NAME`")),
            name if is_name(name) => return Ok(Part::Named(name.to_owned(), at)),
            other => return Err(unknown(other, &Named::new())),
        },
    };
    Ok(Part::Known(known, word.to_owned()))
}

fn unknown(name: &str, named: &Named) -> String {
    let accepted = || KEYS.iter().copied().chain(named.keys().map(String::as_str));
    let near = did_you_mean(name, accepted());
    let mut words: Vec<&str> = accepted().collect();
    words[KEYS.len()..].sort_unstable();
    words.extend(["header:NAME", "cookie:NAME"]);
    let name = shown(name);
    format!(
        "nobody knows the key `{name}`; write {}, or a name that the service gives by `with_key`{near}",
        either(words)
    )
}

/// Returns true for what a service can name a key.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Counts for each combination.
#[derive(Debug)]
struct Composite(Vec<Arc<dyn KeyExtractor>>);

impl KeyExtractor for Composite {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        self.0.iter().try_for_each(|part| part.extract(request, key))
    }

    fn check(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(KeyExtractor::check)
    }

    fn write_values(&self, values: &mut dyn Iterator<Item = &str>, key: &mut KeyWriter<'_>) {
        self.0.iter().for_each(|part| part.write_values(values, key));
    }

    fn tells_apart(&self) -> bool {
        self.0.iter().any(KeyExtractor::tells_apart)
    }
}

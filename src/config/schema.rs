//! What a file may say: the one table by which files are read, and the JSON Schema and the documentation are written.

use std::fmt::Write;

/// A table of a file.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) keys: &'static [Key],
}

/// A key of a table.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    /// What holds without it, in words.
    pub(super) default: &'static str,
    /// A value, as TOML has it.
    pub(super) example: &'static str,
    pub(super) about: &'static str,
}

/// What a key takes.
#[derive(Debug)]
pub(super) enum Takes {
    Text,
    Quota,
    Duration,
    Integer(u64, u64),
    Bool,
    Word(&'static [&'static str]),
    /// A word, or a text of another kind, which is told in words.
    WordOr(&'static [&'static str], &'static str),
    /// One text, or a list of them.
    Texts,
    Table(&'static Table),
    Tables(&'static Table),
    /// A list without anything in it.
    EmptyList,
}

impl Table {
    pub(super) fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }
}

impl Takes {
    /// Says in a few words what is taken.
    #[cfg(test)]
    fn in_words(&self) -> String {
        let words = |words: &[&str]| words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ");
        match self {
            Self::Text => "text".to_owned(),
            Self::Quota => "quota: `\"100/min\"`".to_owned(),
            Self::Duration => "duration: `\"100ms\"`, `\"1h30m\"`".to_owned(),
            Self::Integer(least, most) => format!("integer, {least} to {most}"),
            Self::Bool => "`true` or `false`".to_owned(),
            Self::Word(accepted) => words(accepted),
            Self::WordOr(accepted, other) => format!("{} {other}", words(accepted)),
            Self::Texts => "text, or a list of texts".to_owned(),
            Self::Table(_) => "table".to_owned(),
            Self::Tables(_) => "list of tables".to_owned(),
            Self::EmptyList => "`[]`".to_owned(),
        }
    }
}

/// Writes the JSON Schema (draft 2020-12) of a file.
pub(super) fn json_schema() -> String {
    let mut json = String::new();
    json.push_str("{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n  \"title\": \"tollgate\",\n");
    json.push_str("  \"description\": \"Rate limits of tollgate; see docs/configuration.md\",\n");
    write_table(&mut json, &FILE, "  ");
    json.push_str("\n}\n");
    json
}

/// Writes what an object schema of a table has between its braces.
fn write_table(json: &mut String, table: &Table, indent: &str) {
    // Writing to a String cannot fail.
    let _ = write!(json, "{indent}\"type\": \"object\",\n{indent}\"additionalProperties\": false,\n");
    let required: Vec<String> =
        table.keys.iter().filter(|key| key.default == REQUIRED).map(|key| text(key.name)).collect();
    if !required.is_empty() {
        let _ = writeln!(json, "{indent}\"required\": [{}],", required.join(", "));
    }
    let _ = write!(json, "{indent}\"properties\": {{");
    for (i, key) in table.keys.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(json, "{comma}\n{indent}  {}: {{\n", text(key.name));
        let default = if key.default == REQUIRED { String::new() } else { format!(" Default: {}.", key.default) };
        let about = format!("{}{default}", key.about).replace('`', "'");
        let _ = writeln!(json, "{indent}    \"description\": {},", text(&about));
        write_takes(json, &key.takes, &format!("{indent}    "));
        let _ = write!(json, "\n{indent}  }}");
    }
    let _ = write!(json, "\n{indent}}}");
}

fn write_takes(json: &mut String, takes: &Takes, indent: &str) {
    let one_of =
        |kind: String| format!("{indent}\"anyOf\": [{kind}, {{ \"type\": \"string\", \"pattern\": \"{VARIABLE}\" }}]");
    let _ = match takes {
        Takes::Text => write!(json, "{indent}\"type\": \"string\""),
        Takes::Quota => write!(json, "{indent}\"type\": \"string\",\n{indent}\"examples\": [\"100/min\", \"5/15m\"]"),
        Takes::Duration => write!(json, "{indent}\"type\": \"string\",\n{indent}\"examples\": [\"100ms\", \"1h30m\"]"),
        Takes::Integer(least, most) => {
            let kind = format!("{{ \"type\": \"integer\", \"minimum\": {least}, \"maximum\": {most} }}");
            write!(json, "{}", one_of(kind))
        }
        Takes::Bool => write!(json, "{}", one_of("{ \"type\": \"boolean\" }".to_owned())),
        Takes::Word(words) => {
            let words: Vec<String> = words.iter().map(|word| text(word)).collect();
            write!(json, "{}", one_of(format!("{{ \"enum\": [{}] }}", words.join(", "))))
        }
        Takes::WordOr(words, other) => {
            let other = text(&other.replace('`', ""));
            let words: Vec<String> = words.iter().map(|word| text(word)).collect();
            let other = format!("{{ \"type\": \"string\", \"description\": {other} }}");
            write!(json, "{indent}\"anyOf\": [{{ \"enum\": [{}] }}, {other}]", words.join(", "))
        }
        Takes::Texts => write!(
            json,
            "{indent}\"anyOf\": [{{ \"type\": \"string\" }}, {{ \"type\": \"array\", \"items\": {{ \"type\": \"string\" }}, \
             \"minItems\": 1 }}]"
        ),
        Takes::Table(table) => {
            write_table(json, table, indent);
            Ok(())
        }
        Takes::Tables(table) => {
            let _ = write!(json, "{indent}\"type\": \"array\",\n{indent}\"items\": {{\n");
            write_table(json, table, &format!("{indent}  "));
            write!(json, "\n{indent}}}")
        }
        Takes::EmptyList => write!(json, "{indent}\"type\": \"array\",\n{indent}\"maxItems\": 0"),
    };
}

fn text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Says in place of a default that there is none.
pub(super) const REQUIRED: &str = "required";

/// A text that is filled from the environment, in the place of what is no text.
const VARIABLE: &str = r"^\\$\\{.*\\}$";

const MOST_UNITS: u64 = 1 << 31;

pub(super) const ALGORITHMS: &[&str] = &["token-bucket", "fixed-window", "sliding-window", "sliding-counter"];
pub(super) const ON_ERROR: &[&str] = &["local", "allow", "deny"];
pub(super) const MISSING: &[&str] = &["shared", "skip", "reject"];
pub(super) const WHEN_FULL: &[&str] = &["share", "refuse"];
/// Keys that are made by a word alone, and those by a word with a name behind a colon.
pub(super) const KEYS: &[&str] =
    &["client-ip", "global", "method", "path", "matched-path", "grpc-service", "grpc-method"];
pub(super) const NAMED_KEYS: &[&str] = &["header", "cookie"];

/// A whole file.
pub(super) static FILE: Table = Table {
    keys: &[
        Key {
            name: "store",
            takes: Takes::Table(&STORE),
            default: "memory",
            example: "{ url = \"redis://127.0.0.1:6379\" }",
            about: "Where counts are kept, and what happens when it cannot answer.",
        },
        Key {
            name: "headers",
            takes: Takes::Table(&HEADERS),
            default: "draft-11",
            example: "{ dialect = \"none\" }",
            about: "What clients are told.",
        },
        Key {
            name: "client_ip",
            takes: Takes::Table(&CLIENT_IP),
            default: "the peer's address",
            example: "{ trust = [\"10.0.0.0/8\"] }",
            about: "Who is behind the proxies: for all rules whose key has `client-ip`.",
        },
        Key {
            name: "limit_preflights",
            takes: Takes::Bool,
            default: "`false`",
            example: "true",
            about: "Counts CORS preflights too.",
        },
        Key {
            name: "exempt_grpc_probes",
            takes: Takes::Bool,
            default: "`false`",
            example: "true",
            about: "Does not count calls of gRPC's health check and reflection.",
        },
        Key {
            name: "expose_decision",
            takes: Takes::Bool,
            default: "`false`",
            example: "true",
            about: "Puts the decision and its charge into the request's extensions, for handlers.",
        },
        Key {
            name: "rule",
            takes: Takes::Tables(&RULE),
            default: "an error, unless `rules = []`",
            example: "[{ name = \"per-ip\", quota = \"100/min\" }]",
            about: "The rules; all that match a request are decided together.",
        },
        Key {
            name: "rules",
            takes: Takes::EmptyList,
            default: "not there",
            example: "[]",
            about: "Says that the file has no rule on purpose.",
        },
    ],
};

pub(super) static STORE: Table = Table {
    keys: &[
        Key {
            name: "url",
            takes: Takes::Text,
            default: "`\"memory\"`",
            example: "\"redis://127.0.0.1:6379\"",
            about: "`memory`, or the address of a Redis or Valkey. Cannot change while the service runs.",
        },
        Key {
            name: "prefix",
            takes: Takes::Text,
            default: "`\"tollgate\"`",
            example: "\"shop\"",
            about: "What all keys in Redis begin with. Cannot change while the service runs.",
        },
        Key {
            name: "key_secret",
            takes: Takes::Text,
            default: "unkeyed hashes",
            example: "\"${TOLLGATE_KEY_SECRET:-}\"",
            about: "Hashes secret parts of keys, such as API keys; the same in every replica. Cannot change while the \
                    service runs.",
        },
        Key {
            name: "tls",
            takes: Takes::Table(&TLS),
            default: "what the system trusts",
            example: "{ ca = \"/etc/tollgate/ca.pem\" }",
            about: "Which certificates count on connections to `rediss://`. Cannot change while the service runs.",
        },
        Key {
            name: "deadline",
            takes: Takes::Duration,
            default: "`\"100ms\"`",
            example: "\"50ms\"",
            about: "How long a decision may wait for the store.",
        },
        Key {
            name: "on_error",
            takes: Takes::Word(ON_ERROR),
            default: "`\"local\"`",
            example: "\"deny\"",
            about: "What rules decide when the store cannot answer: by this process's share, to let through, or to refuse \
                    with 503.",
        },
        Key {
            name: "replicas",
            takes: Takes::Integer(1, 1_000_000),
            default: "`1`",
            example: "3",
            about: "How many processes share the store: the share of each when `on_error` is `local`.",
        },
        Key {
            name: "deny_max_age",
            takes: Takes::Duration,
            default: "`\"1s\"`",
            example: "\"0s\"",
            about: "For how long a refusal by Redis is remembered in this process; zero turns that off.",
        },
        Key {
            name: "max_keys",
            takes: Takes::Integer(1, 1_000_000_000),
            default: "`1000000`",
            example: "100_000",
            about: "How many keys memory holds at most. Cannot change while the service runs.",
        },
        Key {
            name: "when_full",
            takes: Takes::Word(WHEN_FULL),
            default: "`\"share\"`",
            example: "\"refuse\"",
            about: "What becomes of new keys when memory is full: they share one count for each rule, or are refused. Cannot \
                    change while the service runs.",
        },
    ],
};

pub(super) static TLS: Table = Table {
    keys: &[
        Key {
            name: "ca",
            takes: Takes::Text,
            default: "what the system trusts",
            example: "\"/etc/tollgate/ca.pem\"",
            about: "A file with the authorities to trust, in PEM, and no others. Read once, as the others here.",
        },
        Key {
            name: "cert",
            takes: Takes::Text,
            default: "none",
            example: "\"/etc/tollgate/client.pem\"",
            about: "A file with the certificate to show, and its chain, in PEM.",
        },
        Key {
            name: "key",
            takes: Takes::Text,
            default: "none",
            example: "\"/etc/tollgate/client.key\"",
            about: "A file with the private key of `cert`, in PEM.",
        },
    ],
};

pub(super) static HEADERS: Table = Table {
    keys: &[
        Key {
            name: "dialect",
            takes: Takes::Texts,
            default: "`\"draft-11\"`",
            example: "[\"draft-11\", \"x-ratelimit\"]",
            about: "Which fields tell clients where they stand: `draft-11`, `draft-07`, `draft-06`, `x-ratelimit`, \
                    `x-ratelimit-epoch`, `none`, or a list where they combine.",
        },
        Key {
            name: "partition_keys",
            takes: Takes::Bool,
            default: "`false`",
            example: "true",
            about: "Tells by the parameter `pk` of draft 11 whose budget each item is of; needs a `key_secret`.",
        },
        Key {
            name: "skip_cacheable",
            takes: Takes::Bool,
            default: "`false`",
            example: "true",
            about: "Adds no fields to responses that shared caches may keep.",
        },
    ],
};

pub(super) static CLIENT_IP: Table = Table {
    keys: &[
        Key {
            name: "trust",
            takes: Takes::Texts,
            default: "no proxy",
            example: "[\"10.0.0.0/8\", \"2001:db8:1::/48\"]",
            about: "The proxies' addresses and ranges: the client is the last address that is none of theirs.",
        },
        Key {
            name: "hops",
            takes: Takes::Integer(1, 255),
            default: "no proxy",
            example: "1",
            about: "How many proxies there are, where their addresses are not known.",
        },
        Key {
            name: "header",
            takes: Takes::Text,
            default: "`\"x-forwarded-for\"` with `trust` or `hops`, else none",
            example: "\"cf-connecting-ip\"",
            about: "The one header to believe.",
        },
        Key {
            name: "ipv4_prefix",
            takes: Takes::Integer(1, 32),
            default: "`32`",
            example: "24",
            about: "How many bits of an IPv4 address are one client. A rule may differ.",
        },
        Key {
            name: "ipv6_prefix",
            takes: Takes::Integer(1, 128),
            default: "`64`",
            example: "56",
            about: "How many bits of an IPv6 address are one client. A rule may differ.",
        },
    ],
};

pub(super) static RULE: Table = Table {
    keys: &[
        Key {
            name: "name",
            takes: Takes::Text,
            default: REQUIRED,
            example: "\"per-ip\"",
            about: "What clients and operators see: 1 to 64 of `A-Z a-z 0-9 . _ -`, once in a file.",
        },
        Key {
            name: "quota",
            takes: Takes::Quota,
            default: REQUIRED,
            example: "\"100/min\"",
            about: "Units in a window: 1 to 2147483648 in 1 ms to 366 days.",
        },
        Key {
            name: "key",
            takes: Takes::Texts,
            default: "`\"client-ip\"`",
            example: "[\"header:x-api-key\", \"method\"]",
            about: "For whom it counts: `client-ip`, `global`, `method`, `path`, `matched-path`, `grpc-service`, \
                    `grpc-method`, `header:NAME`, `cookie:NAME`, or a name that the service knows. A list counts for each \
                    combination.",
        },
        Key {
            name: "missing",
            takes: Takes::Word(MISSING),
            default: "`\"shared\"`",
            example: "\"skip\"",
            about: "What becomes of requests without such a key: they are counted together, not counted, or refused with 400.",
        },
        Key {
            name: "secret",
            takes: Takes::Bool,
            default: "by the header's name; cookies are",
            example: "false",
            about: "Keeps the values of headers and cookies in its key as hashes only.",
        },
        Key {
            name: "ipv4_prefix",
            takes: Takes::Integer(1, 32),
            default: "that of `client_ip`",
            example: "24",
            about: "How many bits of an IPv4 address are one client of this rule.",
        },
        Key {
            name: "ipv6_prefix",
            takes: Takes::Integer(1, 128),
            default: "that of `client_ip`",
            example: "48",
            about: "How many bits of an IPv6 address are one client of this rule.",
        },
        Key {
            name: "algorithm",
            takes: Takes::Word(ALGORITHMS),
            default: "`\"token-bucket\"`",
            example: "\"sliding-window\"",
            about: "How it counts.",
        },
        Key {
            name: "burst",
            takes: Takes::Integer(1, MOST_UNITS),
            default: "the quota's limit",
            example: "20",
            about: "How many units a token bucket holds.",
        },
        Key {
            name: "aligned",
            takes: Takes::Bool,
            default: "`false`",
            example: "true",
            about: "Opens fixed windows at multiples of their length since 1970, in UTC.",
        },
        Key {
            name: "allotted",
            takes: Takes::Integer(1, 50),
            default: "every decision is the store's",
            example: "10",
            about: "The percentage of the limit or burst that each process may hold drawn ahead for each key.",
        },
        Key {
            name: "cost",
            takes: Takes::Integer(0, MOST_UNITS),
            default: "`1`",
            example: "5",
            about: "What each request costs; zero only asks.",
        },
        Key {
            name: "charge",
            takes: Takes::Text,
            default: "`\"always\"`",
            example: "\"status:401,403,5xx\"",
            about: "Which responses are charged: `always`, `status:401,403,5xx` or `grpc:16,7`; the charge of others is given \
                    back on the way out.",
        },
        Key {
            name: "settled",
            takes: Takes::Bool,
            default: "`false`",
            example: "true",
            about: "Lets handlers say what a request truly cost: its decision and charge are in its extensions.",
        },
        Key {
            name: "reduced_capacity",
            takes: Takes::Bool,
            default: "`false`",
            example: "true",
            about: "Says that it limits what the server can do, not what one client may: refusals are 503.",
        },
        Key {
            name: "escalate",
            takes: Takes::Table(&ESCALATE),
            default: "none",
            example: "{ after = 10, within = \"1m\", block = \"10m\" }",
            about: "Blocks a key that it refuses again and again, twice as long each time.",
        },
        Key {
            name: "match",
            takes: Takes::Table(&MATCH),
            default: "all requests",
            example: "{ path = \"/api/{*rest}\", method = [\"GET\", \"POST\"] }",
            about: "Which requests it counts.",
        },
        Key {
            name: "mode",
            takes: Takes::WordOr(&["enforce", "shadow"], "or a percentage: `\"25%\"`"),
            default: "`\"enforce\"`",
            example: "\"25%\"",
            about: "Whether it refuses, only counts and reports, or refuses so many of a hundred keys, always the same; more \
                    only adds keys.",
        },
        Key {
            name: "override",
            takes: Takes::Tables(&OVERRIDE),
            default: "none",
            example: "[{ key = \"203.0.113.7\", quota = \"1000/min\" }]",
            about: "What holds for single keys. An exact key goes before a range, and the longest range before others.",
        },
        Key {
            name: "on_error",
            takes: Takes::Word(ON_ERROR),
            default: "that of `store`",
            example: "\"deny\"",
            about: "What it decides when the store cannot answer.",
        },
    ],
};

pub(super) static ESCALATE: Table = Table {
    keys: &[
        Key {
            name: "after",
            takes: Takes::Integer(1, 4_294_967_295),
            default: REQUIRED,
            example: "10",
            about: "How many refusals lead to a block.",
        },
        Key {
            name: "within",
            takes: Takes::Duration,
            default: REQUIRED,
            example: "\"1m\"",
            about: "For how long refusals are counted together, from the first.",
        },
        Key {
            name: "block",
            takes: Takes::Duration,
            default: REQUIRED,
            example: "\"10m\"",
            about: "How long the first block is; clients are told 429 and when it ends.",
        },
        Key {
            name: "up_to",
            takes: Takes::Duration,
            default: "`\"1d\"`, or `block` if that is longer",
            example: "\"7d\"",
            about: "How long a block can become. When so long has passed after one without another, the next is the first again.",
        },
    ],
};

pub(super) static OVERRIDE: Table = Table {
    keys: &[
        Key {
            name: "key",
            takes: Takes::Texts,
            default: REQUIRED,
            example: "\"203.0.113.7\"",
            about: "The key as requests have it, secrets too; for `client-ip` an address or a range, `10.0.0.0/8`; for several \
                    keys a list in their order.",
        },
        Key {
            name: "quota",
            takes: Takes::WordOr(&["unlimited", "blocked"], "or a quota: `\"1000/min\"`"),
            default: REQUIRED,
            example: "\"1000/min\"",
            about: "A quota for each client that it is about, nothing at all, or 403.",
        },
        Key {
            name: "burst",
            takes: Takes::Integer(1, MOST_UNITS),
            default: "that of the rule",
            example: "200",
            about: "How many units a token bucket of this quota holds.",
        },
    ],
};

pub(super) static MATCH: Table = Table {
    keys: &[
        Key {
            name: "path",
            takes: Takes::Texts,
            default: "all paths",
            example: "\"/api/{*rest}\"",
            about: "Patterns as axum has them, of which one must match.",
        },
        Key {
            name: "method",
            takes: Takes::Texts,
            default: "all methods",
            example: "[\"GET\", \"POST\"]",
            about: "Methods, of which it must be one.",
        },
        Key {
            name: "not",
            takes: Takes::Table(&NOT),
            default: "none",
            example: "{ path = \"/api/health\" }",
            about: "Requests that are left out; with both, those that match both.",
        },
    ],
};

pub(super) static NOT: Table = Table {
    keys: &[
        Key {
            name: "path",
            takes: Takes::Texts,
            default: "all paths",
            example: "\"/api/health\"",
            about: "Patterns, of which one must match for a request to be left out.",
        },
        Key {
            name: "method",
            takes: Takes::Texts,
            default: "all methods",
            example: "\"OPTIONS\"",
            about: "Methods, of which it must be one to be left out.",
        },
    ],
};

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path};

    use super::*;

    /// Compares a file with what it should be; with `TOLLGATE_WRITE` set it is written instead.
    fn assert_current(name: &str, text: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        if env::var_os("TOLLGATE_WRITE").is_some() {
            fs::write(&path, text).expect("the file can be written");
        }
        let current = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            current == text,
            "{name} is not current: run `TOLLGATE_WRITE=1 cargo test --all-features --lib config`"
        );
    }

    #[test]
    fn the_committed_schema_is_current() {
        let schema = json_schema();
        let read: serde_json::Value = serde_json::from_str(&schema).expect("JSON");
        assert_eq!(read["properties"]["rule"]["items"]["required"], serde_json::json!(["name", "quota"]));
        assert_current("tollgate.schema.json", &schema);
    }

    #[test]
    fn the_documentation_has_every_key() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
        let text = fs::read_to_string(path).expect("the documentation");
        let (before, rest) = text.split_once(BEGIN).expect("a mark where the keys begin");
        let (_, after) = rest.split_once(END).expect("a mark where they end");
        let mut keys = String::new();
        document(&mut keys, "", &FILE);
        assert_current("docs/configuration.md", &format!("{before}{BEGIN}\n{keys}\n{END}{after}"));
    }

    fn document(text: &mut String, name: &str, table: &Table) {
        let title = if name.is_empty() { "The file".to_owned() } else { format!("`{name}`") };
        let _ = write!(text, "\n### {title}\n\n| key | takes | without it | example | |\n|---|---|---|---|---|\n");
        for key in table.keys {
            // What stands for a bar within a cell.
            let plain = |text: &str| text.replace('|', "\\|");
            let (takes, example) = (plain(&key.takes.in_words()), plain(key.example));
            let _ = writeln!(
                text,
                "| `{}` | {takes} | {} | `{} = {example}` | {} |",
                key.name, key.default, key.name, key.about
            );
        }
        for key in table.keys {
            let full = if name.is_empty() { key.name.to_owned() } else { format!("{name}.{}", key.name) };
            if let Takes::Table(table) | Takes::Tables(table) = &key.takes {
                document(text, &full, table);
            }
        }
    }

    const BEGIN: &str = "<!-- The keys are written from the schema by a test: TOLLGATE_WRITE=1 -->";
    const END: &str = "<!-- end of the keys -->";
}

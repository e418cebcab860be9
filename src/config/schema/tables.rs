//! Every table and key that a file may have.

use super::{ALGORITHMS, Key, MISSING, MOST_UNITS, ON_ERROR, REQUIRED, Table, Takes, WHEN_FULL};

/// A whole file.
pub(in crate::config) static FILE: Table = Table {
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

pub(in crate::config) static STORE: Table = Table {
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

pub(in crate::config) static TLS: Table = Table {
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

pub(in crate::config) static HEADERS: Table = Table {
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

pub(in crate::config) static CLIENT_IP: Table = Table {
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

pub(in crate::config) static RULE: Table = Table {
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

pub(in crate::config) static ESCALATE: Table = Table {
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

pub(in crate::config) static OVERRIDE: Table = Table {
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

pub(in crate::config) static MATCH: Table = Table {
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

pub(in crate::config) static NOT: Table = Table {
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

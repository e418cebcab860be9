//! Wrong files, one for each kind of mistake, and what is said of them: enough for a stranger to mend the file.

use tollgate::{
    Config,
    config::Format::{self, Json, Toml, Yaml},
};

/// A mistake, the file that has it, and what is told.
type Wrong = (&'static str, Format, &'static str, &'static str);

#[test]
fn each_mistake_is_told_with_its_place_and_what_to_write_instead() {
    let mut different = Vec::new();
    for (mistake, format, text, expected) in WRONG {
        let told =
            Config::parse(*text, *format).map(|_| "nothing".to_owned()).unwrap_or_else(|error| error.to_string());
        if told != *expected {
            different.push(format!("{mistake}:\n{told}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n\n"));
}

const WRONG: &[Wrong] = &[
    (
        "a key misspelt",
        Toml,
        "[[rule]]\nname = \"a\"\nqouta = \"1/s\"",
        "config:3:1: the rule has no `qouta`; it takes `name`, `quota`, `key`, `missing`, `secret`, `ipv4_prefix`, `ipv6_prefix`, `algorithm`, `burst`, `aligned`, `allotted`, `cost`, `charge`, `settled`, `reduced_capacity`, `escalate`, `match`, `mode`, `override` or `on_error`; did you mean `quota`?",
    ),
    (
        "a word misspelt",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nalgorithm = \"tokn-bucket\"",
        "config:4:13: `algorithm` is `tokn-bucket`; it must be `token-bucket`, `fixed-window`, `sliding-window` or `sliding-counter`; did you mean `token-bucket`?",
    ),
    (
        "a key left out",
        Toml,
        "[[rule]]\nname = \"a\"",
        "config:1:1: the rule lacks `quota`; write `quota = \"100/min\"`",
    ),
    (
        "a unit that is none",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"100/fortnight\"",
        "config:3:9: quota `100/fortnight`: the window's unit must be one of ms, s, min, h, day, week; for example 100/min, 10/s, 1000/day or 5/15m",
    ),
    (
        "nothing allowed",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"0/s\"",
        "config:3:9: quota `0/s`: a limit is 1 to 2147483648 units; for example 100/min, 10/s, 1000/day or 5/15m",
    ),
    (
        "too fast for a bucket",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"200000/s\"",
        "config:3:9: 200000/s as a token bucket: it counts at most 100000 units per second; use the fixed window: `algorithm = \"fixed-window\"`",
    ),
    (
        "a name twice",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\n[[rule]]\nname = \"a\"\nquota = \"2/s\"",
        "config:5:8: `a` is the name of two rules; each needs one of its own",
    ),
    (
        "a name with a space",
        Toml,
        "[[rule]]\nname = \"per ip\"\nquota = \"1/s\"",
        "config:2:8: policy name `per ip`: must be 1 to 64 of A-Z a-z 0-9 . _ -",
    ),
    (
        "a burst of a window",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nalgorithm = \"sliding-window\"\nburst = 5",
        "config:5:1: burst of 5: only a token bucket has one; leave it out, or the `algorithm`",
    ),
    (
        "a number too large",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\ncost = 3_000_000_000",
        "config:4:8: `cost` is `3000000000`; it must be a whole number, 0 to 2147483648",
    ),
    (
        "a number below zero",
        Yaml,
        "rule:\n  - name: a\n    quota: 1/s\n    cost: -1",
        "config:4:11: `cost` is `-1`; it must be a whole number, 0 to 2147483648",
    ),
    (
        "a text for a number",
        Json,
        "{\"rule\": [{\"name\": \"a\", \"quota\": \"1/s\", \"burst\": \"many\"}]}",
        "config:1:50: `burst` is `many`; it must be a whole number, 1 to 2147483648",
    ),
    (
        "a number for a text",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = 100",
        "config:3:9: `quota` is `100`; write a count, a slash and a window: `\"100/min\"`",
    ),
    (
        "a list for a text",
        Yaml,
        "rule:\n  - name: [a, b]\n    quota: 1/s",
        "config:2:11: `name` is a list; it must be text",
    ),
    (
        "a table for a list",
        Toml,
        "[rule]\nname = \"a\"\nquota = \"1/s\"",
        "config:1:1: `rule` must be a list of tables: write `[[rule]]` (TOML) or `rule: [{ ... }]`",
    ),
    (
        "a path without a slash",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nmatch = { path = \"api/*\" }",
        "config:4:18: path `api/*` cannot be matched: it does not begin with a slash; write /users/{id} or /api/{*rest}, with a slash in front",
    ),
    (
        "a path in the old style",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nmatch.path = \"/users/:id\"",
        "config:4:14: path `/users/:id` cannot be matched: a parameter is written {id} or {*rest}; write /users/{id} or /api/{*rest}, with a slash in front",
    ),
    (
        "a method in small letters",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nmatch.method = [\"GET\", \"post\"]",
        "config:4:24: method `post`: write `POST`",
    ),
    (
        "an unknown kind of key",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nkey = \"heder:x-api-key\"",
        "config:4:7: key `heder:x-api-key`: write `header:NAME` or `cookie:NAME`; did you mean `header`?",
    ),
    (
        "no header's name",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nkey = \"header:x api key\"",
        "config:4:7: `x api key` is not a header name; write one such as `header:x-api-key`",
    ),
    (
        "an option for another key",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nkey = \"global\"\nmissing = \"skip\"",
        "config:5:1: `missing` does nothing in this rule: none of its keys is ever missing; leave it out",
    ),
    (
        "no range of addresses",
        Toml,
        "rules = []\n[client_ip]\ntrust = [\"10.0.0.0/33\"]",
        "config:3:1: client address: `trust` of `10.0.0.0/33`: not a range of addresses; write `10.0.0.0/8`, `2001:db8::/32` or one address",
    ),
    (
        "proxies told twice",
        Toml,
        "rules = []\n[client_ip]\nhops = 1\ntrust = \"10.0.0.0/8\"",
        "config:4:1: client address: `trust` and `hops` together; write `trust` where the proxies' addresses are known, else `hops` alone",
    ),
    (
        "no address",
        Toml,
        "rules = []\n[store]\nurl = \"http://localhost\"",
        "config:3:7: `url`: redis address `http://localhost`: the scheme `http` is unknown; write redis://host:port, or `memory`",
    ),
    (
        "a time without a unit",
        Toml,
        "rules = []\n[store]\ndeadline = \"100\"",
        "config:3:12: `deadline` is `100`; write a time such as `100ms`, `10s` or `1h30m`",
    ),
    (
        "a variable that is not set",
        Toml,
        "rules = []\n[store]\nkey_secret = \"${TOLLGATE_TEST_UNSET}\"",
        "config:3:14: environment variable `TOLLGATE_TEST_UNSET` is not set; set it, or write `${TOLLGATE_TEST_UNSET:-default}`",
    ),
    (
        "no such mode",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nmode = \"250%\"",
        "config:4:8: `mode` is `250%`; it must be `enforce`, `shadow` or a percentage, `25%`",
    ),
    (
        "no such charge",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\ncharge = \"status:6xx\"",
        "config:4:10: charge `status:6xx`: a status is 100 to 599, or a class such as `5xx`; write `always`, `status:401,403,5xx` or `grpc:16,7`",
    ),
    (
        "an escalation of nothing",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nescalate = { after = 0, within = \"0s\", block = \"10\", upto = \"1d\" }",
        "config:4:22: `after` is `0`; it must be a whole number, 1 to 4294967295\nconfig:4:34: `within` is `0s`; it must be `1ms` to `366d`\nconfig:4:48: `block` is `10`; write a time such as `100ms`, `10s` or `1h30m`\nconfig:4:54: `escalate` has no `upto`; it takes `after`, `within`, `block` or `up_to`; did you mean `up_to`?",
    ),
    (
        "blocks that cannot grow",
        Yaml,
        "rule:\n- name: a\n  quota: 1/s\n  escalate: { after: 3, within: 1m, block: 2h, up_to: 90m }",
        "config:4:55: `up_to` is `90m`, and the first `block` is `2h`; write no less, or leave it out",
    ),
    (
        "bursts of what has none",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nalgorithm = \"fixed-window\"\noverride = [{ key = \"10.0.0.1\", quota = \"2/s\", burst = 9 }, { key = \"10.0.0.2\", quota = \"blocked\", burst = 9 }]",
        "config:5:48: burst of 9: only a token bucket has one; leave it out, or the `algorithm`\nconfig:5:100: `burst` belongs to a quota; leave it out",
    ),
    (
        "TLS in memory, and half a certificate",
        Toml,
        "rules = []\n[store.tls]\ncert = \"Cargo.toml\"",
        "config:2:1: `tls` does nothing: counts are kept in memory; leave it out\nconfig:3:8: `cert` is there without its private `key`; write both",
    ),
    (
        "overrides that no request can have",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\noverride = [{ key = \"10.0.0.0/40\", quota = \"2/s\" }, { key = \"10.0.0.300\", quota = \"2/s\" }]\n[[rule]]\nname = \"b\"\nquota = \"1/s\"\nkey = [\"client-ip\", \"method\", \"path\"]\noverride = [{ key = [\"10.0.0.0/8\", \"get\", \"api\"], quota = \"2/s\" }]\n[[rule]]\nname = \"c\"\nquota = \"1/s\"\nkey = \"global\"\noverride = [{ key = \"all\", quota = \"2/s\" }]",
        "config:4:21: `10.0.0.0/40` is no key that requests can have: write an address, or a range of them such as `10.0.0.0/8`\nconfig:4:61: `10.0.0.300` is no key that requests can have: write an address, or a range of them such as `10.0.0.0/8`\nconfig:9:22: `10.0.0.0/8` is no key that requests can have: beside other keys it must be one address that is counted alone, not a range; IPv6 is counted by `ipv6_prefix`\nconfig:9:36: `get` is no key that requests can have: methods are written in capitals, such as `GET`\nconfig:9:43: `api` is no key that requests can have: a path begins with a slash, and is no pattern\nconfig:14:21: `all` is no key that requests can have: its key is `global`, the same for all; change the rule's `quota`",
    ),
    (
        "a header with spaces, and a percentage without its sign",
        Toml,
        "[client_ip]\nheader = \"X Real IP\"\nhops = 1\n[[rule]]\nname = \"a\"\nquota = \"1/s\"\nmode = 25\nkey = [\"method\", \"method\"]",
        "config:2:10: `X Real IP` is not a header name; write one like `x-forwarded-for`\nconfig:7:8: `mode` is `25`; a percentage is written `\"25%\"`\nconfig:8:18: `method` is there twice; leave one out",
    ),
    (
        "a table for a quota",
        Json,
        "{\"rule\": [{\"name\": \"a\", \"quota\": {\"limit\": 5}}]}",
        "config:1:34: `quota` is a table; write a quota: `\"100/min\"`",
    ),
    (
        "a variable that is not set, and other mistakes of the same rule",
        Toml,
        "[[rule]]\nquota = \"${TOLLGATE_TEST_UNSET}\"\nmode = \"shadwo\"\nkey = \"ip\"\nmatch = { paths = \"/x\" }\noverride = [{ key = \"10.0.0.1\", quota = \"1\" }]",
        "config:1:1: the rule lacks `name`; write `name = \"per-ip\"`\nconfig:2:9: environment variable `TOLLGATE_TEST_UNSET` is not set; set it, or write `${TOLLGATE_TEST_UNSET:-default}`\nconfig:3:8: `mode` is `shadwo`; it must be `enforce`, `shadow` or a percentage, `25%`; did you mean `shadow`?\nconfig:5:11: `match` has no `paths`; it takes `path`, `method` or `not`; did you mean `path`?\nconfig:6:41: quota `1`: write a count, a slash and a window; for example 100/min, 10/s, 1000/day or 5/15m, or `unlimited` or `blocked`",
    ),
    (
        "overrides of another shape",
        Toml,
        "[[rule]]\nname = \"a\"\nquota = \"1/s\"\nkey = [\"method\", \"path\"]\noverride = [{ key = \"GET\", quota = \"unlimted\" }]",
        "config:5:15: `key` has 1 values, and the rule's key has 2; write one for each, in order\nconfig:5:36: quota `unlimted`: write a count, a slash and a window; for example 100/min, 10/s, 1000/day or 5/15m, or `unlimited` or `blocked`; did you mean `unlimited`?",
    ),
    (
        "an override twice",
        Yaml,
        "rule:\n- { name: a, quota: 1/s, override: [{ key: 10.0.0.1, quota: 2/s }, { key: 10.0.0.1, quota: blocked }] }",
        "config:2:70: there is an override of this key already; leave one out",
    ),
    (
        "no TOML",
        Toml,
        "[[rule]]\nname = a\nquota = \"1/s\"",
        "config:2:8: no valid TOML: string values must be quoted, expected literal string",
    ),
    (
        "no JSON",
        Json,
        "{\"rule\": [{\"name\": \"a\", \"quota\": \"1/s\",}]}",
        "config:1:39: no valid JSON: Trailing commas are not allowed",
    ),
    (
        "no YAML",
        Yaml,
        "rule:\n  - name: a\n   quota: 1/s",
        "config:3:4: no valid YAML here: while parsing a block collection, did not find expected '-' indicator",
    ),
    (
        "an alias",
        Yaml,
        "x: &x 1/s\nrule: [{ name: a, quota: *x }]",
        "config:2:26: no valid YAML here: an alias; write out what it stands for",
    ),
    (
        "a key twice",
        Json,
        "{\"rules\": [], \"store\": {}, \"store\": {}}",
        "config:1:28: `store` is there twice; leave one out",
    ),
    (
        "nothing",
        Yaml,
        "",
        "config:1:1: the file has no `[[rule]]`, so nothing would be limited; write one, or `rules = []` if that is meant",
    ),
    (
        "several at once",
        Toml,
        "[stor]\n[[rule]]\nname = \"a b\"\nquota = \"1/x\"\nkey = \"ip\"\n[[rule]]\nquota = \"1/s\"\nburst = 0",
        "config:1:2: the file has no `stor`; it takes `store`, `headers`, `client_ip`, `limit_preflights`, `exempt_grpc_probes`, `expose_decision`, `rule` or `rules`; did you mean `store`?\nconfig:3:8: policy name `a b`: must be 1 to 64 of A-Z a-z 0-9 . _ -\nconfig:4:9: quota `1/x`: the window's unit must be one of ms, s, min, h, day, week; for example 100/min, 10/s, 1000/day or 5/15m\nconfig:6:1: the rule lacks `name`; write `name = \"per-ip\"`\nconfig:8:9: `burst` is `0`; it must be a whole number, 1 to 2147483648",
    ),
];

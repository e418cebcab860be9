//! What a file may say: the one table by which files are read, and the JSON Schema and the documentation are written.

mod tables;

use std::fmt::Write;

pub(super) use self::tables::{CLIENT_IP, ESCALATE, FILE, HEADERS, MATCH, NOT, OVERRIDE, RULE, STORE, TLS};

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

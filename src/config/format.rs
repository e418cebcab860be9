use std::path::Path;

use jsonc_parser::{ParseOptions, ast, common::Ranged, parse_to_ast};
use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use toml::de::{DeTable, DeValue};

use super::{
    source::{Faults, Source},
    value::{Entry, Kind, Value},
};

/// The language of a configuration file.
///
/// ```
/// use tollgate::config::Format;
///
/// assert_eq!(Format::of("limits.toml"), Some(Format::Toml));
/// assert_eq!(Format::of("limits.txt"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// TOML 1.0 or 1.1: `.toml`.
    Toml,
    /// JSON as of RFC 8259: `.json`.
    Json,
    /// YAML 1.2, one document without aliases and tags: `.yaml`, `.yml`.
    Yaml,
}

impl Format {
    /// Tells the format of a file by the extension of its name.
    pub fn of(path: impl AsRef<Path>) -> Option<Self> {
        match path.as_ref().extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// Reads a text; what cannot be read at all is told, and the rest is looked at nevertheless.
    pub(super) fn read(self, source: &Source, faults: &mut Faults) -> Value {
        let mut value = match self {
            Self::Toml => read_toml(source, faults),
            Self::Json => read_json(source, faults),
            Self::Yaml => read_yaml(source, faults),
        };
        tell_duplicates(&value, faults);
        if matches!(value.kind, Kind::Nothing) {
            value.kind = Kind::Table(Vec::new());
        }
        value
    }
}

fn tell_duplicates(value: &Value, faults: &mut Faults) {
    match &value.kind {
        Kind::List(values) => values.iter().for_each(|value| tell_duplicates(value, faults)),
        Kind::Table(entries) => {
            for (i, entry) in entries.iter().enumerate() {
                if entries[..i].iter().any(|other| other.name == entry.name) {
                    faults.add(entry.at, format!("`{}` is there twice; leave one out", entry.name));
                }
                tell_duplicates(&entry.value, faults);
            }
        }
        Kind::Text(_) | Kind::Plain(_) | Kind::Nothing => {}
    }
}

fn read_toml(source: &Source, faults: &mut Faults) -> Value {
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        faults.add(at, format!("no valid TOML: {}", one_line(error.message())));
    }
    toml_table(0, table.into_inner())
}

fn toml_table(at: usize, table: DeTable<'_>) -> Value {
    let entry = |(name, value): (toml::Spanned<std::borrow::Cow<'_, str>>, toml::Spanned<DeValue<'_>>)| Entry {
        at: name.span().start,
        name: name.into_inner().into_owned(),
        value: toml_value(value),
    };
    let mut entries: Vec<Entry> = table.into_iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.at);
    Value::new(at, Kind::Table(entries))
}

fn toml_value(value: toml::Spanned<DeValue<'_>>) -> Value {
    let at = value.span().start;
    let kind = match value.into_inner() {
        DeValue::String(text) => Kind::Text(text.into_owned()),
        // Of another base it is no number that anything here takes, and is shown as it is written.
        DeValue::Integer(number) => Kind::Plain(number.to_string()),
        DeValue::Float(number) => Kind::Plain(number.to_string()),
        DeValue::Boolean(is_true) => Kind::Plain(is_true.to_string()),
        DeValue::Datetime(time) => Kind::Plain(time.to_string()),
        DeValue::Array(values) => Kind::List(values.into_iter().map(toml_value).collect()),
        DeValue::Table(table) => return toml_table(at, table),
    };
    Value::new(at, kind)
}

fn read_json(source: &Source, faults: &mut Faults) -> Value {
    let strict = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    match parse_to_ast(&source.text, &Default::default(), &strict) {
        Ok(parsed) => parsed.value.map_or(Value::new(0, Kind::Nothing), json_value),
        Err(error) => {
            faults.add(error.range().start, format!("no valid JSON: {}", one_line(&error.kind().to_string())));
            Value::new(0, Kind::Nothing)
        }
    }
}

fn json_value(value: ast::Value<'_>) -> Value {
    let at = value.range().start;
    Value::new(
        at,
        match value {
            ast::Value::StringLit(text) => Kind::Text(text.value.into_owned()),
            ast::Value::NumberLit(number) => Kind::Plain(number.value.to_owned()),
            ast::Value::BooleanLit(boolean) => Kind::Plain(boolean.value.to_string()),
            ast::Value::NullKeyword(_) => Kind::Nothing,
            ast::Value::Array(array) => Kind::List(array.elements.into_iter().map(json_value).collect()),
            ast::Value::Object(object) => {
                let entry = |property: ast::ObjectProp<'_>| Entry {
                    at: property.range.start,
                    name: property.name.into_string(),
                    value: json_value(property.value),
                };
                Kind::Table(object.properties.into_iter().map(entry).collect())
            }
        },
    )
}

fn read_yaml(source: &Source, faults: &mut Faults) -> Value {
    let mut reading = Yaml { source, events: Parser::new_from_str(&source.text), depth: 0 };
    match reading.document() {
        Ok(value) => value,
        Err((at, what)) => {
            faults.add(at, format!("no valid YAML here: {}", one_line(&what)));
            Value::new(0, Kind::Nothing)
        }
    }
}

struct Yaml<'a, I> {
    source: &'a Source,
    events: I,
    depth: usize,
}

type Wrong = (usize, String);

impl<'a, I> Yaml<'a, I>
where
    I: Iterator<Item = Result<(Event<'a>, Span), saphyr_parser::ScanError>>,
{
    fn document(&mut self) -> Result<Value, Wrong> {
        let mut value = Value::new(0, Kind::Nothing);
        let mut documents = 0;
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(value),
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        return Err((at, "a second document; write one".to_owned()));
                    }
                }
                event => value = self.value(event, at)?,
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, usize), Wrong> {
        let place = |mark: &saphyr_parser::Marker| self.source.offset(mark.line().saturating_sub(1), mark.col());
        match self.events.next() {
            Some(Ok((event, span))) => Ok((event, place(&span.start))),
            Some(Err(error)) => Err((place(error.marker()), error.info().to_owned())),
            None => Ok((Event::StreamEnd, self.source.text.len())),
        }
    }

    fn value(&mut self, event: Event<'a>, at: usize) -> Result<Value, Wrong> {
        let kind = match event {
            Event::Scalar(_, _, _, Some(_)) | Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) => {
                return Err((at, "a tag; leave it out".to_owned()));
            }
            Event::Scalar(text, ScalarStyle::Plain, ..) => match &*text {
                "" | "~" | "null" | "Null" | "NULL" => Kind::Nothing,
                "true" | "false" => Kind::Plain(text.into_owned()),
                number if is_number(number) => Kind::Plain(text.into_owned()),
                _ => Kind::Text(text.into_owned()),
            },
            Event::Scalar(text, ..) => Kind::Text(text.into_owned()),
            Event::SequenceStart(..) => {
                self.deeper(at)?;
                let mut values = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (event, at) => values.push(self.value(event, at)?),
                    }
                }
                self.depth -= 1;
                Kind::List(values)
            }
            Event::MappingStart(..) => {
                self.deeper(at)?;
                let mut entries = Vec::new();
                loop {
                    let (event, at) = self.next()?;
                    let name = match event {
                        Event::MappingEnd => break,
                        Event::Scalar(name, _, _, None) => name.into_owned(),
                        _ => return Err((at, "a name must be a text".to_owned())),
                    };
                    let (event, value_at) = self.next()?;
                    entries.push(Entry { name, at, value: self.value(event, value_at)? });
                }
                self.depth -= 1;
                Kind::Table(entries)
            }
            Event::Alias(_) => return Err((at, "an alias; write out what it stands for".to_owned())),
            _ => return Err((at, "a value is missing".to_owned())),
        };
        Ok(Value::new(at, kind))
    }

    fn deeper(&mut self, at: usize) -> Result<(), Wrong> {
        self.depth += 1;
        if self.depth > DEEPEST { Err((at, "too many tables within tables".to_owned())) } else { Ok(()) }
    }
}

/// Returns true for what YAML's core schema takes for a number.
fn is_number(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']);
    digits.starts_with(|c: char| c.is_ascii_digit()) && digits.parse::<f64>().is_ok()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Far more than any configuration has.
const DEEPEST: usize = 32;

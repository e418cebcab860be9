//! Reads values by the schema, and tells what is wrong with them.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    schema::{self, Takes},
    source::{Faults, did_you_mean, either},
    value::{Entry, Kind, Value, shown},
};
use crate::limit::{Quota, window_ms};

/// A table of a file, looked through for what nobody knows.
#[derive(Clone, Copy)]
pub(super) struct Fields<'v> {
    pub(super) at: usize,
    entries: &'v [Entry],
    table: &'static schema::Table,
}

impl<'v> Fields<'v> {
    /// Opens a table, called `what` in messages.
    pub(super) fn open(
        value: &'v Value,
        what: &str,
        table: &'static schema::Table,
        faults: &mut Faults,
    ) -> Option<Self> {
        let Kind::Table(entries) = &value.kind else {
            faults.add(
                value.at,
                format!("{what} is {}; it must be a table with {}", value.called(), either(table.names())),
            );
            return None;
        };
        let mut misspelt = Vec::new();
        for entry in entries {
            if table.key(&entry.name).is_none() {
                let near = did_you_mean(&entry.name, table.names());
                misspelt.push(near.clone());
                let (name, known) = (shown(&entry.name), either(table.names()));
                faults.add(entry.at, format!("{what} has no `{name}`; it takes {known}{near}"));
            }
        }
        let fields = Self { at: value.at, entries, table };
        for key in table.keys {
            let is_misspelt = misspelt.iter().any(|near| near.contains(&format!("`{}`", key.name)));
            if key.default == schema::REQUIRED && fields.get(key.name).is_none() && !is_misspelt {
                faults.add(value.at, format!("{what} lacks `{}`; write `{} = {}`", key.name, key.name, key.example));
            }
        }
        Some(fields)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'v Value> {
        debug_assert!(self.table.key(name).is_some(), "the schema has no {name}");
        self.entries.iter().find(|entry| entry.name == name).map(|entry| &entry.value)
    }

    /// Returns where the name of a key is, or else where the table begins.
    pub(super) fn name_at(&self, name: &str) -> usize {
        self.entries.iter().find(|entry| entry.name == name).map_or(self.at, |entry| entry.at)
    }

    pub(super) fn text(&self, name: &str, faults: &mut Faults) -> Option<(&'v str, usize)> {
        let value = self.get(name)?;
        Some((text(value, name, faults)?, value.at))
    }

    /// Reads one text or a list of them, with where each is.
    pub(super) fn texts(&self, name: &str, faults: &mut Faults) -> Option<Vec<(&'v str, usize)>> {
        let value = self.get(name)?;
        let Kind::List(values) = &value.kind else {
            return Some(vec![(text(value, name, faults)?, value.at)]);
        };
        if values.is_empty() {
            faults.add(value.at, format!("`{name}` is an empty list; write one or more texts, or leave it out"));
            return None;
        }
        // All of them are looked at, so that all that is wrong is told.
        let texts: Vec<_> = values.iter().map(|value| Some((text(value, name, faults)?, value.at))).collect();
        texts.into_iter().collect()
    }

    pub(super) fn integer(&self, name: &str, faults: &mut Faults) -> Option<u64> {
        let value = self.get(name)?;
        let (least, most) = match self.table.key(name).map(|key| &key.takes) {
            Some(Takes::Integer(least, most)) => (*least, *most),
            _ => (0, u64::MAX),
        };
        integer(value, name, least..=most, faults)
    }

    pub(super) fn boolean(&self, name: &str, faults: &mut Faults) -> Option<bool> {
        let value = self.get(name)?;
        match &value.kind {
            Kind::Plain(text) | Kind::Text(text) if text == "true" => Some(true),
            Kind::Plain(text) | Kind::Text(text) if text == "false" => Some(false),
            _ => {
                faults.add(value.at, format!("`{name}` is {}; write `true` or `false`", value.called()));
                None
            }
        }
    }

    pub(super) fn duration(&self, name: &str, faults: &mut Faults) -> Option<Duration> {
        let (text, at) = self.text(name, faults)?;
        match window_ms(text) {
            Ok(ms) => Some(Duration::from_millis(ms)),
            Err(_) => {
                faults
                    .add(at, format!("`{name}` is `{}`; write a time such as `100ms`, `10s` or `1h30m`", shown(text)));
                None
            }
        }
    }

    pub(super) fn quota(&self, name: &str, faults: &mut Faults) -> Option<(Quota, usize)> {
        if let Some(Value { at, kind: Kind::Plain(count) }) = self.get(name) {
            faults.add(*at, format!("`{name}` is `{count}`; write a count, a slash and a window: `\"{count}/min\"`"));
            return None;
        }
        let value = self.get(name)?;
        let Kind::Text(text) = &value.kind else {
            faults.add(value.at, format!("`{name}` is {}; write a quota: `\"100/min\"`", value.called()));
            return None;
        };
        let at = value.at;
        match text.parse() {
            Ok(quota) => Some((quota, at)),
            Err(error) => {
                faults.add(at, format!("{error}"));
                None
            }
        }
    }

    /// Reads one of the words that the schema has, and returns which.
    pub(super) fn word(&self, name: &str, faults: &mut Faults) -> Option<&'static str> {
        let (text, at) = self.text(name, faults)?;
        let accepted = match self.table.key(name).map(|key| &key.takes) {
            Some(Takes::Word(words)) => *words,
            _ => &[],
        };
        let found = accepted.iter().find(|word| **word == text);
        if found.is_none() {
            let near = did_you_mean(text, accepted.iter().copied());
            let accepted = either(accepted.iter().copied());
            faults.add(at, format!("`{name}` is `{}`; it must be {accepted}{near}", shown(text)));
        }
        found.copied()
    }

    pub(super) fn table(
        &self,
        name: &str,
        what: &str,
        table: &'static schema::Table,
        faults: &mut Faults,
    ) -> Option<Fields<'v>> {
        Fields::open(self.get(name)?, what, table, faults)
    }
}

fn text<'v>(value: &'v Value, name: &str, faults: &mut Faults) -> Option<&'v str> {
    match &value.kind {
        Kind::Text(text) => Some(text),
        // What may be secret is not shown.
        Kind::Plain(text) if !matches!(name, "url" | "key_secret") => {
            faults.add(value.at, format!("`{name}` is `{text}`; it must be text: write `\"{text}\"`"));
            None
        }
        Kind::Plain(_) => {
            faults.add(value.at, format!("`{name}` is a number; it must be text: put it into quotes"));
            None
        }
        _ => {
            faults.add(value.at, format!("`{name}` is {}; it must be text", value.called()));
            None
        }
    }
}

fn integer(value: &Value, name: &str, range: RangeInclusive<u64>, faults: &mut Faults) -> Option<u64> {
    let number = match &value.kind {
        Kind::Plain(text) | Kind::Text(text) => text.parse().ok(),
        _ => None,
    };
    let number = number.filter(|number| range.contains(number));
    if number.is_none() {
        let (least, most) = range.into_inner();
        faults.add(value.at, format!("`{name}` is {}; it must be a whole number, {least} to {most}", value.called()));
    }
    number
}

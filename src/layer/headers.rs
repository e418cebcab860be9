use std::{cell::RefCell, time::Duration};

use bytes::BytesMut;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{Entry, OccupiedEntry},
};

use super::warn;
use crate::limit::{Decision, Outcome, Policy};

/// Which fields tell clients where they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy` as of draft-ietf-httpapi-ratelimit-headers-11.
    #[default]
    Draft11,
    /// No such fields. Refusals still have `Retry-After`.
    None,
}

/// Adds the `RateLimit` and `RateLimit-Policy` fields of a decision to a response's headers.
///
/// For handlers and `axum::middleware::from_fn`; a [`RateLimitLayer`](super::RateLimitLayer) does it by itself.
/// What an inner layer has written stays in front. A decision made without the store adds nothing.
pub fn write_fields(decision: &Decision, headers: &mut HeaderMap) {
    if let Some(fields) = Fields::of(decision.outcomes(), None) {
        fields.write(headers);
    }
}

/// The values of both fields, written when it was decided.
#[derive(Debug)]
pub(super) struct Fields {
    policies: HeaderValue,
    states: HeaderValue,
}

impl Fields {
    /// Writes the fields, if there is anything to tell; `policies` is the value of `RateLimit-Policy` for these
    /// outcomes, if that is known.
    pub(super) fn of(outcomes: &[Outcome], policies: Option<&HeaderValue>) -> Option<Self> {
        if outcomes.is_empty() {
            return None;
        }
        let policies = policies.cloned().unwrap_or_else(|| list(outcomes, write_policy));
        Some(Self { policies, states: list(outcomes, write_state) })
    }

    /// Adds the fields to those of a response.
    pub(super) fn write(self, headers: &mut HeaderMap) {
        for (field, value) in [(RATE_LIMIT_POLICY, self.policies), (RATE_LIMIT, self.states)] {
            match headers.entry(field) {
                Entry::Vacant(place) => drop(place.insert(value)),
                Entry::Occupied(others) => write_beside(others, &value),
            }
        }
    }
}

/// Adds to what an inner layer has written, but no name a second time: clients join both fields by it.
#[cold]
fn write_beside(mut others: OccupiedEntry<'_, HeaderValue>, value: &HeaderValue) {
    let mut new: Vec<&[u8]> = Vec::new();
    for item in items(value) {
        let name = item.name.unwrap_or_default();
        if others.iter().any(|value| has_item(value, name)) {
            warn::NAME_TWICE.tell(format_args!(
                "two nested layers have a rule of the name `{}`; the outer one is not told to clients, so give it another",
                String::from_utf8_lossy(name)
            ));
        } else {
            new.push(item.text);
        }
    }
    // What is of another dialect is left alone: one List of both would be neither.
    if !new.is_empty() && others.iter().all(is_list_of_strings) {
        others.append(HeaderValue::from_bytes(&new.join(&b", "[..])).expect("parts of a value are one"));
    }
}

/// Returns the value of `RateLimit-Policy` for these outcomes' policies.
pub(super) fn policy_value<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> HeaderValue {
    let items: Vec<Outcome> = policies.into_iter().map(|policy| Outcome::pass(policy, 0)).collect();
    list(&items, write_policy)
}

/// Writes one item: its name, quota and window (section 3 of the draft).
///
/// A window that is not whole seconds has no `w`, since the draft has no way to say it.
fn write_policy(value: &mut Buffer<'_>, outcome: &Outcome) {
    value.name(outcome.policy());
    value.parameter("q", outcome.quota().limit());
    let window = outcome.quota().window();
    if window.subsec_millis() == 0 {
        value.parameter("w", window.as_secs());
    }
}

/// Writes one item: its name, the units left and the seconds until there is one more (section 4 of the draft).
fn write_state(value: &mut Buffer<'_>, outcome: &Outcome) {
    value.name(outcome.policy());
    value.parameter("r", outcome.remaining());
    value.parameter("t", seconds_up(outcome.next_unit_in()));
}

/// Returns whole seconds, rounded up: who waits that long has waited long enough.
pub(super) fn seconds_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn list(outcomes: &[Outcome], item: fn(&mut Buffer<'_>, &Outcome)) -> HeaderValue {
    BUFFER.with_borrow_mut(|(text, block)| {
        text.clear();
        for (i, outcome) in outcomes.iter().enumerate() {
            if i > 0 {
                text.extend_from_slice(b", ");
            }
            item(&mut Buffer(text), outcome);
        }
        // Values are cut from one block after another: most cost no allocation.
        if block.capacity() < text.len() {
            *block = BytesMut::with_capacity(BLOCK.max(text.len()));
        }
        block.extend_from_slice(text);
        HeaderValue::from_maybe_shared(block.split().freeze()).expect("names and numbers are header text")
    })
}

/// Structured fields (RFC 9651) with Strings as items and Integers as parameters.
struct Buffer<'a>(&'a mut Vec<u8>);

impl Buffer<'_> {
    /// Policies' names have nothing that a String would have to escape.
    fn name(&mut self, name: &str) {
        self.0.extend_from_slice(b"\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\"");
    }

    fn parameter(&mut self, name: &str, number: u64) {
        let number = number.min(LARGEST_INTEGER);
        self.0.extend_from_slice(b";");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"=");
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
}

/// Returns true if a List has an item whose String is `name`.
fn has_item(value: &HeaderValue, name: &[u8]) -> bool {
    items(value).any(|item| item.name == Some(name))
}

/// Returns true if all items of a List are Strings, as they are since draft 8.
fn is_list_of_strings(value: &HeaderValue) -> bool {
    items(value).all(|item| item.name.is_some())
}

/// An item of a List.
struct Item<'a> {
    text: &'a [u8],
    /// The text within the quotes, if it is a String.
    name: Option<&'a [u8]>,
}

/// Goes through the items of a List.
fn items(value: &HeaderValue) -> impl Iterator<Item = Item<'_>> {
    let bytes = value.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while bytes.get(at).is_some_and(|byte| b" \t,".contains(byte)) {
            at += 1;
        }
        let start = at;
        let string_until = (*bytes.get(start)? == b'"').then(|| string_end(bytes, start));
        while bytes.get(at).is_some_and(|byte| *byte != b',') {
            at = if bytes[at] == b'"' { string_end(bytes, at) + 1 } else { at + 1 };
        }
        let text = bytes.get(start..at).unwrap_or(&bytes[start..]).trim_ascii_end();
        Some(Item { text, name: string_until.and_then(|end| bytes.get(start + 1..end)) })
    })
}

/// Returns where the String that starts at `from` has its closing quote.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => break,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

thread_local! {
    /// Where values are written, and where they are kept.
    static BUFFER: RefCell<(Vec<u8>, BytesMut)> = RefCell::default();
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The largest Integer of RFC 9651, section 3.3.1.
const LARGEST_INTEGER: u64 = 999_999_999_999_999;
/// Room for some dozens of values; a response holds on to the block that its value was cut from.
const BLOCK: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Quota;

    fn outcome(name: &'static str, remaining: u64, next: Duration) -> Outcome {
        let policy = Policy::fixed_window(name, Quota::per_minute(100));
        Outcome::pass(&policy, remaining).with_times(next, Duration::from_secs(60))
    }

    fn written(headers: &HeaderMap, field: &HeaderName) -> Vec<String> {
        headers.get_all(field).iter().map(|value| value.to_str().expect("text").to_owned()).collect()
    }

    #[test]
    fn the_fields_are_those_of_the_draft() {
        let mut headers = HeaderMap::new();
        let decision = Decision::new([
            outcome("burst", 19, Duration::from_millis(1)),
            outcome("daily", 0, Duration::from_secs(36_000)),
        ]);
        write_fields(&decision, &mut headers);
        assert_eq!(written(&headers, &RATE_LIMIT_POLICY), [r#""burst";q=100;w=60, "daily";q=100;w=60"#]);
        assert_eq!(written(&headers, &RATE_LIMIT), [r#""burst";r=19;t=1, "daily";r=0;t=36000"#]);
    }

    #[test]
    fn an_outer_layer_adds_behind_and_never_a_name_twice() {
        let mut headers = HeaderMap::new();
        headers.append(RATE_LIMIT_POLICY, HeaderValue::from_static(r#""in";q=1, "a\"b" ; c="out""#));
        headers.append(RATE_LIMIT, HeaderValue::from_static(r#""in";r=0"#));
        let decision = Decision::new([outcome("in", 1, Duration::ZERO), outcome("out", 2, Duration::ZERO)]);
        write_fields(&decision, &mut headers);
        assert_eq!(written(&headers, &RATE_LIMIT_POLICY)[1..], [r#""out";q=100;w=60"#]);
        assert_eq!(written(&headers, &RATE_LIMIT)[1..], [r#""out";r=2;t=0"#]);
    }

    #[test]
    fn fields_of_another_dialect_are_left_alone() {
        for (field, value) in [(RATE_LIMIT, "limit=100, remaining=50, reset=5"), (RATE_LIMIT_POLICY, "100;w=60")] {
            let mut headers = HeaderMap::new();
            headers.insert(&field, HeaderValue::from_static(value));
            write_fields(&Decision::new([outcome("ours", 1, Duration::ZERO)]), &mut headers);
            assert_eq!(written(&headers, &field), [value]);
        }
    }

    #[test]
    fn a_window_of_parts_of_a_second_has_no_w() {
        let policy = Policy::fixed_window("quick", "5/1500ms".parse().expect("a quota"));
        assert_eq!(policy_value([&policy]), r#""quick";q=5"#);
    }

    #[test]
    fn foreign_fields_are_looked_through_without_harm() {
        for (value, has) in [
            (r#""a""#, true),
            (r#""b";x="a""#, false),
            (r#"b, "a";q=1"#, true),
            (r#""b\", \"a\"", "c""#, false),
            (r#""a"#, true),
            (r#"""#, false),
            (r#""\"#, false),
            ("a", false),
            ("", false),
        ] {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            assert_eq!(has_item(&value, b"a"), has, "{value:?}");
        }
    }
}

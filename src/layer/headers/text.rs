//! Structured fields (RFC 9651): those that we write, and those of others that we look through.

use std::{cell::RefCell, time::Duration};

use bytes::BytesMut;
use http::HeaderValue;

/// Writes the text of a field.
pub(super) struct Text<'a>(&'a mut BytesMut);

impl Text<'_> {
    /// Adds text that has nothing to escape.
    pub(super) fn raw(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Adds a String. Policies' names have nothing that it would have to escape.
    pub(super) fn string(&mut self, name: &str) {
        self.raw("\"");
        self.raw(name);
        self.raw("\"");
    }

    /// Adds an Integer.
    pub(super) fn integer(&mut self, number: u64) {
        self.raw(itoa::Buffer::new().format(number.min(LARGEST_INTEGER)));
    }
}

/// Makes a value of what is written, which is at most so many bytes long.
pub(super) fn value(most: usize, write: impl FnOnce(&mut Text<'_>)) -> HeaderValue {
    BLOCK.with_borrow_mut(|block| {
        // Values are cut from one block after another: most cost no allocation.
        if block.capacity() < most {
            *block = BytesMut::with_capacity(BLOCK_BYTES.max(most));
        }
        write(&mut Text(block));
        HeaderValue::from_maybe_shared(block.split().freeze()).expect("names and numbers are header text")
    })
}

/// Returns whole seconds, rounded up: who waits that long has waited long enough.
pub(in crate::layer) fn seconds_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// An item of a List.
pub(super) struct Item<'a> {
    pub(super) text: &'a [u8],
    /// The text within the quotes, if it is a String.
    pub(super) name: Option<&'a [u8]>,
}

impl Item<'_> {
    /// Returns the number that it begins with, if it is an Integer.
    pub(super) fn integer(&self) -> Option<u64> {
        let end = self.text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.text.len());
        std::str::from_utf8(&self.text[..end]).ok()?.parse().ok()
    }
}

/// Goes through the items of a List.
pub(super) fn items(value: &HeaderValue) -> impl Iterator<Item = Item<'_>> {
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
    /// What values are cut from.
    static BLOCK: RefCell<BytesMut> = RefCell::default();
}

/// The largest Integer of RFC 9651, section 3.3.1.
const LARGEST_INTEGER: u64 = 999_999_999_999_999;
/// Room for some dozens of values; a response holds on to the block that its value was cut from.
const BLOCK_BYTES: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_fields_are_looked_through_without_harm() {
        for (text, has) in [
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
            let value = HeaderValue::from_bytes(text.as_bytes()).expect("a value");
            assert_eq!(items(&value).any(|item| item.name == Some(b"a")), has, "{text}");
        }
    }

    #[test]
    fn an_integer_has_at_most_15_digits() {
        for (number, text) in [(0, "0"), (LARGEST_INTEGER, "999999999999999"), (u64::MAX, "999999999999999")] {
            assert_eq!(value(20, |value| value.integer(number)), text);
        }
    }

    #[test]
    fn a_value_may_be_longer_than_a_block() {
        let long = "x".repeat(3 * BLOCK_BYTES);
        for _ in 0..3 {
            assert_eq!(value(long.len(), |value| value.raw(&long)), long);
            assert_eq!(value(1, |value| value.raw("y")), "y");
        }
    }
}

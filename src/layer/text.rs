//! Text for fields and bodies, written without a detour, and cut from one block after another.

use std::{cell::RefCell, time::Duration};

use bytes::{Bytes, BytesMut};
use http::HeaderValue;

use crate::limit::Quota;

/// Writes text.
pub(super) struct Text<'a>(&'a mut BytesMut);

impl Text<'_> {
    /// Adds text that has nothing to escape.
    pub(super) fn raw(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Adds a String of structured fields or JSON. Policies' names have nothing that it would have to escape.
    pub(super) fn string(&mut self, name: &str) {
        self.raw("\"");
        self.raw(name);
        self.raw("\"");
    }

    /// Adds a number.
    pub(super) fn number(&mut self, number: u64) {
        self.raw(itoa::Buffer::new().format(number));
    }

    /// Adds an Integer of structured fields.
    pub(super) fn integer(&mut self, number: u64) {
        self.number(number.min(LARGEST_INTEGER));
    }

    /// Adds a quota, as it displays.
    pub(super) fn quota(&mut self, quota: Quota) {
        self.number(quota.limit());
        self.raw("/");
        let (count, unit) = quota.window_in_words();
        if let Some(count) = count {
            self.number(count);
        }
        self.raw(unit);
    }
}

/// Makes a value of what is written, some `most` bytes at most.
pub(super) fn value(most: usize, write: impl FnOnce(&mut Text<'_>)) -> HeaderValue {
    HeaderValue::from_maybe_shared(bytes(most, write)).expect("names and numbers are header text")
}

/// Makes a body of what is written, some `most` bytes at most.
pub(super) fn bytes(most: usize, write: impl FnOnce(&mut Text<'_>)) -> Bytes {
    BLOCK.with_borrow_mut(|block| {
        // Most cost no allocation.
        if block.capacity() < most {
            *block = BytesMut::with_capacity(BLOCK_BYTES.max(most));
        }
        write(&mut Text(block));
        block.split().freeze()
    })
}

/// Returns whole seconds, rounded up: who waits that long has waited long enough.
pub(super) fn seconds_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

thread_local! {
    /// What texts are cut from.
    static BLOCK: RefCell<BytesMut> = RefCell::default();
}

/// The largest Integer of RFC 9651, section 3.3.1.
const LARGEST_INTEGER: u64 = 999_999_999_999_999;
/// Room for some dozens of values; a response holds on to the block that its text was cut from.
const BLOCK_BYTES: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_has_at_most_15_digits() {
        for (number, text) in [(0, "0"), (LARGEST_INTEGER, "999999999999999"), (u64::MAX, "999999999999999")] {
            assert_eq!(value(20, |value| value.integer(number)), text);
        }
    }

    #[test]
    fn a_quota_is_written_as_it_displays() {
        for text in ["100/min", "5/15m", "1/day", "7/s", "3/1500ms", "9/2d", "1/hour", "2/ms"] {
            let quota: Quota = text.parse().expect("a quota");
            assert_eq!(value(20, |value| value.quota(quota)), quota.to_string().as_str());
        }
    }

    #[test]
    fn a_text_may_be_longer_than_a_block() {
        let long = "x".repeat(3 * BLOCK_BYTES);
        for _ in 0..3 {
            assert_eq!(value(long.len(), |value| value.raw(&long)), long);
            assert_eq!(value(1, |value| value.raw("y")), "y");
        }
    }
}

//! Fields of others, looked through item by item (RFC 9651).

use http::HeaderValue;

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
}

use http::{HeaderMap, HeaderName};

/// Reads the key of a request; nothing if it has none.
///
/// The field is an Item that is a String (RFC 8941, section 3.3.3); its parameters, of which none is defined, are read over
/// (draft-ietf-httpapi-idempotency-key-header-07, section 2.1). A lenient reader also takes a bare token.
///
/// # Errors
///
/// If it is none: with what is wrong, and what to write instead.
pub(super) fn read(headers: &HeaderMap, lenient: bool) -> Result<Option<String>, &'static str> {
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err("the request has more than one Idempotency-Key field; send one");
    }
    let text = line.to_str().map_err(|_| NOT_A_STRING)?.trim_matches(' ');
    let key = match text.strip_prefix('"') {
        Some(rest) => string(rest).filter(|(_, rest)| parameters(rest)).ok_or(NOT_A_STRING)?.0,
        None if text.is_empty() => return Err(EMPTY),
        None if lenient && text.bytes().all(is_bare) => text.to_owned(),
        None => return Err(NOT_A_STRING),
    };
    match key.len() {
        0 => Err(EMPTY),
        1..=MOST => Ok(Some(key)),
        _ => Err("the Idempotency-Key is longer than 255 characters; send a shorter one, such as a UUID"),
    }
}

/// Reads a String after its first quote; returns what follows it too.
fn string(text: &str) -> Option<(String, &str)> {
    let mut string = String::with_capacity(text.len());
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((string, &text[at + 1..])),
            '\\' => string.push(chars.next().map(|(_, c)| c).filter(|c| matches!(c, '"' | '\\'))?),
            ' '..='~' => string.push(c),
            _ => return None,
        }
    }
    None
}

/// Returns true if there is nothing, or parameters (RFC 8941, section 3.1.2).
fn parameters(mut text: &str) -> bool {
    while let Some(rest) = text.strip_prefix(';') {
        let rest = rest.trim_start_matches(' ');
        let begins = rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '*');
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*".contains(c);
        let rest = rest.trim_start_matches(is_name);
        let value = match rest.strip_prefix('=') {
            None => Some(rest),
            Some(value) => match value.strip_prefix('"') {
                Some(value) => string(value).map(|(_, rest)| rest),
                None => {
                    let end = value.find([';', ' ', '"', ',']).unwrap_or(value.len());
                    (end > 0).then(|| &value[end..])
                }
            },
        };
        match value {
            Some(rest) if begins => text = rest,
            _ => return false,
        }
    }
    text.is_empty()
}

/// Returns true for what a bare token may have: as tokens do (RFC 9110, section 5.6.2), and `:`, `/` and `=`.
fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/=".contains(&byte)
}

pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The most characters of a key.
const MOST: usize = 255;

const EMPTY: &str = "the Idempotency-Key is empty; send a new one for each operation, such as a UUID";
const NOT_A_STRING: &str = "the Idempotency-Key is not a string in double quotes (RFC 8941, section 3.3.3); send one, such as \
     \"8e03978e-40d5-43dd-bc93-6894a57f9324\"";

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read_all(lines: &[&str], lenient: bool) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(line.as_bytes()).expect("a value"));
        }
        read(&headers, lenient)
    }

    #[test]
    fn a_key_is_a_string_in_quotes() {
        for (line, key) in [
            (r#""8e03978e-40d5-43dd-bc93-6894a57f9324""#, "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            (r#"  "a b"  "#, "a b"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r#""a";x;y=1; z="q;""#, "a"),
            (r#""a, b""#, "a, b"),
        ] {
            for lenient in [false, true] {
                assert_eq!(read_all(&[line], lenient), Ok(Some(key.to_owned())), "{line}");
            }
        }
        let longest = "x".repeat(255);
        assert_eq!(read_all(&[&format!("\"{longest}\"")], false), Ok(Some(longest)));
        assert_eq!(read_all(&[], false), Ok(None));
    }

    #[test]
    fn what_is_no_key_is_told() {
        for lenient in [false, true] {
            for line in [
                "",
                " ",
                "\"\"",
                "\"a",
                "a\"",
                r#""a\b""#,
                r#""a"b"#,
                r#""a" "b""#,
                r#""a", "b""#,
                "\"ä\"",
                r#""a";"#,
                r#""a";X"#,
                r#""a";x="#,
                "a b",
                "a,b",
                "\"a\tb\"",
                r#"("a")"#,
            ] {
                assert!(read_all(&[line], lenient).is_err(), "{line:?}");
            }
            assert!(read_all(&["\"a\"", "\"a\""], lenient).is_err(), "twice");
            assert!(read_all(&[&format!("\"{}\"", "x".repeat(256))], lenient).is_err(), "too long");
        }
        assert!(read_all(&[&"x".repeat(256)], true).is_err());
    }

    #[test]
    fn a_bare_token_is_for_the_lenient() {
        for token in ["8e03978e-40d5-43dd-bc93-6894a57f9324", "a", "KG5LxwFBepaKHyUD", "1", "order/7:a=b"] {
            assert!(read_all(&[token], false).is_err(), "{token}");
            assert_eq!(read_all(&[token], true), Ok(Some(token.to_owned())));
        }
    }
}

//! What proxies write about whom they forward for: `X-Forwarded-For`, and `Forwarded` (RFC 7239).
//!
//! Lists are taken apart from the right. What the nearest proxies have appended stands there, and nothing that a client
//! has written to the left of it, be it a quote that is never closed, changes how it reads.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use smallvec::SmallVec;

/// Goes through the elements of a line, the last one first; `comma` finds the last comma that parts two.
pub(super) fn elements(line: &[u8], comma: fn(&[u8]) -> Option<usize>) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let left = rest?;
        let at = comma(left);
        rest = at.map(|at| &left[..at]);
        Some(&left[at.map_or(0, |at| at + 1)..])
    })
}

/// Returns the place of the last comma.
pub(super) fn last_comma(line: &[u8]) -> Option<usize> {
    line.iter().rposition(|byte| *byte == b',')
}

/// Returns the place of the last comma that stands in no quotes, as seen from the right.
pub(super) fn last_unquoted_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for at in (0..line.len()).rev() {
        match line[at] {
            b'"' if !quoted => quoted = true,
            b'"' => quoted = is_escaped(&line[..at]),
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// Returns true if a backslash takes what follows out of its meaning.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Reads an element of `X-Forwarded-For`, or a header that holds one address.
///
/// Nobody has specified these, so this takes what is seen: with a port, in brackets or quotes, with a zone. What has
/// more than one colon is IPv6 to its end, unless brackets say where that is.
pub(super) fn address(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element).ok()?.trim_matches([' ', '\t']);
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    node(text)
}

/// Reads `address:port` where an IPv6 address has no brackets, as CloudFront writes it.
pub(super) fn address_with_port(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element).ok()?.trim_matches([' ', '\t']);
    let (address, port) = text.rsplit_once(':')?;
    is_port(port).then(|| bare(address)).flatten()
}

/// Reads an address of any notation.
fn node(text: &str) -> Option<IpAddr> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (inside, behind) = bracketed.split_once(']')?;
        let ends = behind.is_empty() || behind.strip_prefix(':').is_some_and(is_port);
        return ends.then(|| bare(inside)).flatten();
    }
    bare(text).or_else(|| text.parse().ok().map(|address: SocketAddr| address.ip()))
}

/// Reads an address without brackets or port. The zone of an IPv6 address names an interface of who wrote it.
fn bare(text: &str) -> Option<IpAddr> {
    match text.split_once('%') {
        Some((address, zone)) if !zone.is_empty() => address.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        Some(_) => None,
        None => text.parse().ok(),
    }
}

/// RFC 7239, section 6: one to five digits. No more than what a port can be.
fn is_port(text: &str) -> bool {
    (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Reads the `for` of an element of `Forwarded`: `None` if it has none, names no address, or is not well-formed.
pub(super) fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut rest = element;
    let mut names: SmallVec<[&[u8]; 4]> = SmallVec::new();
    let mut found = None;
    loop {
        rest = rest.trim_ascii_start();
        if !rest.starts_with(b";") && !rest.is_empty() {
            let name = token(&mut rest)?;
            expect(&mut rest, b'=')?;
            let value = value(&mut rest)?;
            // RFC 7239, section 4: each parameter at most once, whatever its case.
            if names.iter().any(|other| other.eq_ignore_ascii_case(name)) {
                return None;
            }
            names.push(name);
            if name.eq_ignore_ascii_case(b"for") {
                found = Some(value);
            }
        }
        if rest.trim_ascii_start().is_empty() {
            return identified(&found?);
        }
        expect(&mut rest, b';')?;
    }
}

/// Reads who is meant (RFC 7239, section 6). `unknown` and what is obfuscated is nobody's address.
fn identified(name: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(name).ok()?;
    let (address, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (inside, behind) = bracketed.split_once(']')?;
            (bare(inside).filter(IpAddr::is_ipv6)?, behind)
        }
        None => {
            let (address, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            (IpAddr::V4(address.parse().ok()?), port)
        }
    };
    (port.is_empty() || port.strip_prefix(':').is_some_and(|port| is_port(port) || is_obfuscated(port)))
        .then_some(address)
}

/// RFC 7239, section 6.3.
fn is_obfuscated(text: &str) -> bool {
    text.len() > 1
        && text.starts_with('_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Takes a sign that stands in white space or none.
fn expect(rest: &mut &[u8], sign: u8) -> Option<()> {
    *rest = rest.trim_ascii_start().strip_prefix(&[sign])?.trim_ascii_start();
    Some(())
}

fn token<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (token, left) = rest.split_at(rest.iter().position(|byte| !is_token(*byte)).unwrap_or(rest.len()));
    *rest = left;
    (!token.is_empty()).then_some(token)
}

/// Takes a token or a quoted string, without its quotes and backslashes (RFC 9110, section 5.6.4).
fn value(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let Some(mut quoted) = rest.strip_prefix(b"\"") else {
        return token(rest).map(<[u8]>::to_vec);
    };
    let mut value = Vec::new();
    loop {
        let (first, left) = quoted.split_first()?;
        quoted = left;
        match first {
            b'"' => {
                *rest = quoted;
                return Some(value);
            }
            b'\\' => {
                let (escaped, left) = quoted.split_first()?;
                value.push(*escaped);
                quoted = left;
            }
            byte => value.push(*byte),
        }
    }
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_is_read_in_every_notation_that_is_seen() {
        for (text, read) in [
            ("203.0.113.7", "203.0.113.7"),
            (" \t203.0.113.7 ", "203.0.113.7"),
            ("203.0.113.7:51000", "203.0.113.7"),
            ("\"203.0.113.7:51000\"", "203.0.113.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("2001:DB8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("[2001:db8::7]:443", "2001:db8::7"),
            ("\"[2001:db8::7]:443\"", "2001:db8::7"),
            ("2001:db8::1:443", "2001:db8::1:443"),
            ("fe80::1%eth0", "fe80::1"),
            ("[fe80::1%25eth0]:80", "fe80::1"),
            ("[fe80::1%2]:80", "fe80::1"),
            ("::ffff:203.0.113.7", "::ffff:203.0.113.7"),
            ("[::ffff:cb00:7107]:1", "::ffff:203.0.113.7"),
        ] {
            assert_eq!(address(text.as_bytes()), Some(ip(read)), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_told_from_one() {
        for text in [
            "",
            " ",
            "unknown",
            "_hidden",
            "garbage",
            "203.0.113",
            "203.0.113.7.8",
            "203.0.113.256",
            "0203.0.113.7",
            "203.0.113.7:",
            "203.0.113.7:70000",
            "203.0.113.7:http",
            "203.0.113.7 ,",
            "203.0.113.7%eth0",
            "[2001:db8::7",
            "2001:db8::7]",
            "[2001:db8::7]443",
            "[2001:db8::7]:",
            "[]",
            "[]:80",
            "fe80::1%",
            "[2001:db8::7]:443:1",
            "\"203.0.113.7",
            "for=203.0.113.7",
            "203.0.113.7/32",
            "::ffff:1.2.3.4:80",
        ] {
            assert_eq!(address(text.as_bytes()), None, "{text}");
        }
        assert_eq!(address(b"203.0.113.7\xff"), None);
    }

    #[test]
    fn an_address_with_its_port_behind_the_last_colon_is_read() {
        for (text, read) in [
            ("203.0.113.7:51000", Some("203.0.113.7")),
            ("2001:db8::7:51000", Some("2001:db8::7")),
            ("2001:db8:0:0:0:0:0:7:443", Some("2001:db8::7")),
            ("203.0.113.7", None),
            ("2001:db8::7:x", None),
            ("", None),
        ] {
            assert_eq!(address_with_port(text.as_bytes()), read.map(ip), "{text}");
        }
    }

    #[test]
    fn an_element_of_forwarded_is_read_as_the_rfc_has_it() {
        for (text, read) in [
            ("for=192.0.2.60", Some("192.0.2.60")),
            ("for=192.0.2.60;proto=http;by=203.0.113.43", Some("192.0.2.60")),
            ("FOR=\"192.0.2.60:8080\"", Some("192.0.2.60")),
            ("For=\"[2001:db8:cafe::17]:4711\"", Some("2001:db8:cafe::17")),
            ("for=\"[2001:db8::17]\"", Some("2001:db8::17")),
            ("for=\"[2001:db8::17]:_port\"", Some("2001:db8::17")),
            ("for=\"192.0.2.60:_p\"", Some("192.0.2.60")),
            (" for = 192.0.2.60 ; proto = http ", Some("192.0.2.60")),
            (";;for=192.0.2.60;", Some("192.0.2.60")),
            ("host=\"a;for=6.6.6.6,b\\\"\";for=192.0.2.60", Some("192.0.2.60")),
            ("for=\"192.0.2.\\60\"", Some("192.0.2.60")),
            ("for=unknown", None),
            ("for=_hidden", None),
            ("for=\"_hidden:80\"", None),
            ("proto=http", None),
            ("", None),
            ("for=", None),
            ("for", None),
            ("=192.0.2.60", None),
            ("for=192.0.2.60;for=192.0.2.61", None),
            ("for=192.0.2.60;By=a;bY=b", None),
            ("for=192.0.2.60 proto=http", None),
            ("for=192.0.2.60:8080", None),
            ("for=2001:db8::17", None),
            ("for=[2001:db8::17]", None),
            ("for=\"2001:db8::17\"", None),
            ("for=\"[192.0.2.60]\"", None),
            ("for=\"192.0.2.60:\"", None),
            ("for=\"192.0.2.60:123456\"", None),
            ("for=\"192.0.2.60", None),
            ("for=\"192.0.2.60\\", None),
            ("for=\"192.0.2.60\"x", None),
        ] {
            assert_eq!(forwarded_for(text.as_bytes()), read.map(ip), "{text}");
        }
    }

    #[test]
    fn nothing_that_a_client_writes_swallows_what_a_proxy_appends() {
        for sent in ["for=\"", "for=\"\\", "for=6.6.6.6;x=\"", "\\", "\"\"\"", "for=\"a, for=b", ",,,\",\""] {
            for appended in ["for=192.0.2.60", "for=\"[2001:db8::17]:4711\";by=\"a,\\\"b\"", "for=_x"] {
                let line = format!("{sent}, {appended}");
                let last = elements(line.as_bytes(), last_unquoted_comma).next().expect("an element");
                assert_eq!(last.trim_ascii(), appended.as_bytes(), "{line}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_list_comes_apart_into_what_it_was_made_of(
            values in prop::collection::vec("[ -~]{0,12}", 1..6),
            before in "[ -~]{0,20}",
        ) {
            let quote = |value: &String| format!("for=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
            let made: Vec<String> = values.iter().map(quote).collect();
            let line = format!("{before},{}", made.join(","));
            let apart: Vec<&[u8]> = elements(line.as_bytes(), last_unquoted_comma).take(made.len()).collect();
            let expected: Vec<&[u8]> = made.iter().rev().map(|element| element.as_bytes()).collect();
            prop_assert_eq!(apart, expected);
            for (value, element) in values.iter().zip(&made) {
                let mut rest = &element.as_bytes()[4..];
                prop_assert_eq!(super::value(&mut rest), Some(value.as_bytes().to_vec()));
                prop_assert!(rest.is_empty());
            }
        }

        #[test]
        fn no_line_is_too_wild(line in prop::collection::vec(any::<u8>(), 0..60)) {
            for element in elements(&line, last_unquoted_comma).chain(elements(&line, last_comma)) {
                let _ = (forwarded_for(element), address(element), address_with_port(element));
            }
        }
    }
}

use http::{HeaderMap, header};

/// Returns true if a client would rather be told in JSON than in plain text, by its `Accept` (RFC 9110, section
/// 12.5.1).
///
/// So would one that accepts anything, or says nothing. A browser's page is read by a person: it prefers text.
pub(super) fn reads_json(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::ACCEPT).iter().peekable();
    if lines.peek().is_none_or(|line| line.as_bytes() == b"*/*") {
        return true;
    }
    let accepted: Vec<Accepted<'_>> = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(Accepted::parse)
        .collect();
    let json = quality(&accepted, "application", "problem+json").max(quality(&accepted, "application", "json"));
    let text = quality(&accepted, "text", "plain").max(quality(&accepted, "text", "html"));
    json > 0 && json >= text
}

/// A range of media types, with its weight in thousandths.
struct Accepted<'a> {
    kind: &'a str,
    subtype: &'a str,
    weight: u16,
}

impl<'a> Accepted<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        Some(Self { kind, subtype, weight: weight.map_or(Some(1_000), thousandths)? })
    }

    /// Returns how closely it names a type, if it does.
    fn closeness(&self, kind: &str, subtype: &str) -> Option<u8> {
        match (self.kind.eq_ignore_ascii_case(kind), self.subtype.eq_ignore_ascii_case(subtype)) {
            (true, true) => Some(2),
            (true, false) if self.subtype == "*" => Some(1),
            _ if self.kind == "*" && self.subtype == "*" => Some(0),
            _ => None,
        }
    }
}

/// Returns the weight of the range that names a type most closely; zero if none does.
fn quality(accepted: &[Accepted<'_>], kind: &str, subtype: &str) -> u16 {
    let named = accepted.iter().filter_map(|range| Some((range.closeness(kind, subtype)?, range.weight)));
    named.max().map_or(0, |(_, weight)| weight)
}

/// Reads `0.85` (RFC 9110, section 12.4.2).
fn thousandths(text: &str) -> Option<u16> {
    let (whole, parts) = text.split_once('.').unwrap_or((text, ""));
    let digits = parts.len() <= 3 && parts.bytes().all(|byte| byte.is_ascii_digit());
    let parts: u16 = if digits { format!("{parts:0<3}").parse().ok()? } else { return None };
    match whole {
        "0" => Some(parts),
        "1" if parts == 0 => Some(1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn who_reads_json_is_told_from_who_reads_text() {
        for (accept, json) in [
            (&[][..], true),
            (&["*/*"], true),
            (&["application/json"], true),
            (&["application/problem+json"], true),
            (&["application/*"], true),
            (&["Application/JSON, text/plain, */*"], true),
            (&["application/json;q=0.5, text/html;q=0.4"], true),
            (&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"], false),
            (&["text/plain"], false),
            (&["text/plain", "application/json"], true),
            (&["text/*, application/json;q=0.9"], false),
            (&["text/*;q=0.1, */*"], true),
            (&["application/json;q=0, */*"], true),
            (&["application/json;q=0, application/problem+json;q=0, */*"], false),
            (&["text/plain;q=0.001, application/json;q=0.002"], true),
            (&["image/png"], false),
            (&["text/event-stream"], false),
            (&["*/*;q=0"], false),
            (&["nonsense"], false),
            (&["application/json;q=2, text/plain;q=0.1"], false),
            (&["application/json;version=1;q=0.3, text/html;q=0.2"], true),
        ] {
            let mut headers = HeaderMap::new();
            for line in accept {
                headers.append(header::ACCEPT, HeaderValue::from_static(line));
            }
            assert_eq!(reads_json(&headers), json, "{accept:?}");
        }
    }
}

//! What is stored of a response, in bytes that later versions can read.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

/// What is kept of a request that has been executed.
#[derive(Debug)]
pub(super) enum Record {
    /// Its response, to be given again.
    Kept(Box<Kept>),
    /// That there was a response, which could not be kept.
    NotRetained,
}

/// A response that is kept as a whole.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

impl Record {
    /// Writes a record: version, kind; then status, fields, trailers, body.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::NotRetained => vec![VERSION, NOT_RETAINED],
            Self::Kept(kept) => {
                let mut bytes = Vec::with_capacity(kept.body.len() + 512);
                bytes.extend([VERSION, KEPT, u8::from(kept.trailers.is_some())]);
                bytes.extend(kept.status.as_u16().to_be_bytes());
                write_fields(&kept.headers, &mut bytes);
                if let Some(trailers) = &kept.trailers {
                    write_fields(trailers, &mut bytes);
                }
                bytes.extend_from_slice(&kept.body);
                bytes
            }
        }
    }

    /// Reads a record; `None` if it is none.
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        match bytes[..] {
            [VERSION, NOT_RETAINED] => return Some(Self::NotRetained),
            [VERSION, KEPT, 0 | 1, ..] => {}
            _ => return None,
        }
        let has_trailers = bytes[2] == 1;
        let mut rest = &bytes[3..];
        let status = StatusCode::from_u16(take_u16(&mut rest)?).ok()?;
        let headers = read_fields(&mut rest)?;
        let trailers = if has_trailers { Some(read_fields(&mut rest)?) } else { None };
        let begin = bytes.len() - rest.len();
        let body = Bytes::from(bytes).slice(begin..);
        Some(Self::Kept(Box::new(Kept { status, headers, body, trailers })))
    }
}

/// Returns the fields that are given again: none that belong to a connection, to a moment or to one client.
pub(super) fn kept_fields(headers: &HeaderMap, cookies: bool) -> HeaderMap {
    // RFC 9110, section 7.6.1: fields of the connection are named by it.
    let named: Vec<&str> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(',').map(str::trim))
        .collect();
    let is_kept = |name: &HeaderName| {
        let text = name.as_str();
        !NOT_KEPT.contains(&text)
            && !text.starts_with("ratelimit")
            && !text.starts_with("x-ratelimit")
            && !named.iter().any(|named| named.eq_ignore_ascii_case(text))
            && (cookies || *name != header::SET_COOKIE)
    };
    let kept = headers.iter().filter(|(name, _)| is_kept(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Writes fields in their order.
fn write_fields(fields: &HeaderMap, bytes: &mut Vec<u8>) {
    let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    bytes.extend(length(fields.len()));
    for (name, value) in fields {
        for part in [name.as_str().as_bytes(), value.as_bytes()] {
            bytes.extend(length(part.len()));
            bytes.extend_from_slice(part);
        }
    }
}

fn read_fields(rest: &mut &[u8]) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    for _ in 0..take_u32(rest)? {
        let name = HeaderName::from_bytes(take_part(rest)?).ok()?;
        let value = HeaderValue::from_bytes(take_part(rest)?).ok()?;
        fields.try_append(name, value).ok()?;
    }
    Some(fields)
}

fn take_part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take_u32(rest)?).ok()?;
    rest.split_off(..length)
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    rest.split_off(..2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes)
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    rest.split_off(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
}

const VERSION: u8 = 1;
const KEPT: u8 = 1;
const NOT_RETAINED: u8 = 2;

/// Fields of the connection, of the moment, of the one client that was to be told; and the length, which is told by the body.
const NOT_KEPT: [&str; 13] = [
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        let mut headers = HeaderMap::new();
        for (name, value) in [("link", "</a>"), ("x", "\u{e4}"), ("link", "</b>"), ("location", "/payments/1")] {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
        Kept { status: StatusCode::CREATED, headers, body: Bytes::from_static(b"\0body"), trailers: Some(trailers) }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let bytes = Record::Kept(Box::new(kept())).to_bytes();
        let Some(Record::Kept(read)) = Record::from_bytes(bytes) else { panic!("not read") };
        let links: Vec<_> = read.headers.get_all("link").iter().collect();
        assert_eq!(links, ["</a>", "</b>"]);
        assert_eq!((read.status, &read.headers, &read.body), (kept().status, &kept().headers, &kept().body));
        assert_eq!(read.trailers, kept().trailers);
        assert!(matches!(Record::from_bytes(Record::NotRetained.to_bytes()), Some(Record::NotRetained)));
    }

    #[test]
    fn a_record_that_is_cut_or_foreign_is_none_and_nothing_panics() {
        let whole = Record::Kept(Box::new(kept())).to_bytes();
        let head = whole.len() - kept().body.len();
        for end in 0..head {
            assert!(Record::from_bytes(whole[..end].to_vec()).is_none(), "{end}");
        }
        assert!(Record::from_bytes(b"garbage".to_vec()).is_none());
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let _ = Record::from_bytes(changed);
            }
        }
    }

    #[test]
    fn fields_of_the_connection_are_not_kept() {
        let all = [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("date", "now"),
            ("ratelimit", "1"),
            ("set-cookie", "a=1"),
            ("content-length", "3"),
            ("www-authenticate", "Basic"),
            ("etag", "\"1\""),
            ("retry-after", "3"),
        ];
        let headers: HeaderMap = all
            .into_iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let names = |cookies| {
            let mut names: Vec<_> = kept_fields(&headers, cookies).keys().map(|name| name.to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(names(false), ["etag", "retry-after"]);
        assert_eq!(names(true), ["etag", "retry-after", "set-cookie"]);
    }
}

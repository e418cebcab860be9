use std::ops::RangeInclusive;

use http::{HeaderMap, StatusCode};

use crate::error::Error;

/// Which responses leave a charge as it is; after all others it is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::layer) enum Charging {
    Status(Vec<RangeInclusive<u16>>),
    Grpc(Vec<u32>),
}

impl Charging {
    /// Reads `status:401,403,5xx` or `grpc:16,7`; nothing if it is `always`.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, Error> {
        let wrong = |what: &str| {
            let accepted = "write `always`, `status:401,403,5xx` or `grpc:16,7`";
            Error::invalid(format!("charge `{}`: {what}; {accepted}", text.escape_debug()))
        };
        let (kind, list) = match text.split_once(':') {
            None if text == "always" => return Ok(None),
            None => return Err(wrong("not known")),
            Some(parts) => parts,
        };
        let items = list.split(',').map(str::trim);
        match kind {
            "status" => items
                .map(statuses)
                .collect::<Option<_>>()
                .map(Self::Status)
                .ok_or_else(|| wrong("a status is 100 to 599, or a class such as `5xx`")),
            "grpc" => {
                let code = |item: &str| item.parse().ok().filter(|code| *code <= MOST_CODE);
                items.map(code).collect::<Option<_>>().map(Self::Grpc).ok_or_else(|| wrong("a gRPC status is 0 to 16"))
            }
            _ => Err(wrong("not known")),
        }
        .map(Some)
    }

    /// Returns true if the charge stands after a response with this head; nothing if that is told by its trailers.
    pub(in crate::layer) fn stands_after(&self, status: StatusCode, headers: &HeaderMap) -> Option<bool> {
        match self {
            Self::Status(ranges) => Some(ranges.iter().any(|range| range.contains(&status.as_u16()))),
            Self::Grpc(_) if headers.contains_key(GRPC_STATUS) => self.stands_after_trailers(headers),
            Self::Grpc(_) => {
                let kind = headers.get(http::header::CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
                (!kind.starts_with(b"application/grpc")).then_some(false)
            }
        }
    }

    /// Returns true if the charge stands after these trailers; nothing if they have no status.
    pub(in crate::layer) fn stands_after_trailers(&self, trailers: &HeaderMap) -> Option<bool> {
        let Self::Grpc(codes) = self else { return None };
        let code = trailers.get(GRPC_STATUS)?.to_str().ok()?.parse::<u32>().ok()?;
        Some(codes.contains(&code))
    }
}

fn statuses(text: &str) -> Option<RangeInclusive<u16>> {
    if let Some(class) = text.strip_suffix("xx") {
        let class = class.parse::<u16>().ok().filter(|class| (1..=5).contains(class))?;
        return Some(class * 100..=class * 100 + 99);
    }
    let status = text.parse::<u16>().ok().filter(|status| (100..600).contains(status))?;
    Some(status..=status)
}

const GRPC_STATUS: &str = "grpc-status";
const MOST_CODE: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_is_read_and_what_is_not_is_told() {
        let status = |text: &str, code: u16| {
            let charging = Charging::parse(text).expect(text).expect("not always");
            charging.stands_after(StatusCode::from_u16(code).expect("a status"), &HeaderMap::new())
        };
        assert!(matches!(Charging::parse("always"), Ok(None)));
        for (code, stands) in [(401, true), (403, true), (500, true), (599, true), (200, false), (404, false)] {
            assert_eq!(status("status:401, 403,5xx", code), Some(stands), "{code}");
        }
        for text in ["", "never", "status:", "status:99", "status:6xx", "status:4x", "grpc:17", "grpc:x", "http:200"] {
            let error = Charging::parse(text).expect_err(text);
            assert!(error.to_string().contains("`status:401,403,5xx`"), "{error}");
        }
    }

    #[test]
    fn a_grpc_status_is_found_in_the_head_or_in_trailers() {
        let charging = Charging::parse("grpc:16,7").expect("right").expect("not always");
        let head = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value)));
            pairs.collect::<HeaderMap>()
        };
        let after = |pairs: &[(&'static str, &'static str)]| charging.stands_after(StatusCode::OK, &head(pairs));
        assert_eq!(after(&[("content-type", "application/grpc"), ("grpc-status", "16")]), Some(true));
        assert_eq!(after(&[("content-type", "application/grpc"), ("grpc-status", "5")]), Some(false));
        assert_eq!(after(&[("content-type", "application/grpc+proto")]), None, "in the trailers");
        assert_eq!(after(&[("content-type", "text/html")]), Some(false), "no gRPC at all");
        assert_eq!(charging.stands_after_trailers(&head(&[("grpc-status", "7")])), Some(true));
        assert_eq!(charging.stands_after_trailers(&head(&[("grpc-status", "0")])), Some(false));
        assert_eq!(charging.stands_after_trailers(&head(&[])), None);
    }
}

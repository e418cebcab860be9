//! Refusals for gRPC: trailers-only responses, written by hand so that no gRPC library is needed.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header, request::Parts};
use http_body::Frame;

use super::RefusalBody;
use crate::limit::Decision;

pub(super) const INVALID_ARGUMENT: u8 = 3;
pub(super) const PERMISSION_DENIED: u8 = 7;
const RESOURCE_EXHAUSTED: u8 = 8;
pub(super) const INTERNAL: u8 = 13;
pub(super) const UNAVAILABLE: u8 = 14;

/// Returns the content type to answer a gRPC or gRPC-Web request with; `None` for any other request.
///
/// Told by its content type alone: gRPC-Web comes over HTTP/1.1 too.
pub(super) fn content_type(request: &Parts) -> Option<HeaderValue> {
    let value = request.headers.get(header::CONTENT_TYPE)?;
    Some(match kind(value)? {
        Kind::Grpc => HeaderValue::from_static("application/grpc"),
        Kind::Web | Kind::WebText => value.clone(), // such clients want it back as they sent it
    })
}

/// Returns true for a content type of gRPC or gRPC-Web.
pub(super) fn is_grpc(content_type: &HeaderValue) -> bool {
    kind(content_type).is_some()
}

/// Returns true for gRPC-Web in base64.
pub(super) fn is_text(content_type: &HeaderValue) -> bool {
    kind(content_type) == Some(Kind::WebText)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Grpc,
    Web,
    WebText,
}

/// `application/grpc` followed by its end, `+` or `;` (gRPC over HTTP/2, Requests), or one of the gRPC-Web types.
fn kind(value: &HeaderValue) -> Option<Kind> {
    // Media types ignore case (RFC 9110, section 8.3.1).
    let (name, rest) = value.as_bytes().split_at_checked(GRPC.len())?;
    if !name.eq_ignore_ascii_case(GRPC) {
        return None;
    }
    let kinds = [(&b"-web-text"[..], Kind::WebText), (b"-web", Kind::Web), (b"", Kind::Grpc)];
    let starts = |of: &[u8]| rest.get(..of.len()).is_some_and(|start| start.eq_ignore_ascii_case(of));
    let (of, kind) = kinds.into_iter().find(|(of, _)| starts(of))?;
    matches!(rest[of.len()..], [] | [b'+' | b';', ..]).then_some(kind)
}

const GRPC: &[u8] = b"application/grpc";

/// Returns the frame that ends a stream with a status: trailers, or for gRPC-Web their text behind a prefix of their own.
pub(super) fn ending(refusal: &HeaderMap, content_type: &HeaderValue) -> Frame<Bytes> {
    let mut trailers = refusal.clone();
    trailers.remove(header::CONTENT_TYPE);
    if kind(content_type) == Some(Kind::Grpc) {
        return Frame::trailers(trailers);
    }
    let mut text = Vec::new();
    for (name, value) in &trailers {
        text.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    let len = u32::try_from(text.len()).expect("a status is short");
    let prefix = [&[TRAILERS][..], &len.to_be_bytes()].concat();
    Frame::data([prefix, text].concat().into())
}

/// The flag of the frame of trailers in a body (gRPC-Web, Protocol differences).
const TRAILERS: u8 = 0x80;

/// Splits `/package.Service/Method`.
///
/// Only of requests that are gRPC by their content type: any other path would make a key too.
pub(super) fn service_and_method(request: &Parts) -> Option<(&str, &str)> {
    content_type(request)?;
    let (service, method) = request.uri.path().strip_prefix('/')?.split_once('/')?;
    (!service.is_empty() && !method.is_empty() && !method.contains('/')).then_some((service, method))
}

/// Returns true for a call of the health or reflection services, which are asked by machines that watch over the server.
pub(super) fn is_probe(request: &Parts) -> bool {
    let service = service_and_method(request).map(|(service, _)| service);
    service.is_some_and(|service| service == "grpc.health.v1.Health" || service.starts_with("grpc.reflection."))
}

/// Answers status 8 with what a client needs to come back in time.
///
/// `grpc-retry-pushback-ms` is what the retry policy of gRPC libraries obeys (proposal A6), -1 telling them not to
/// retry. `RetryInfo` and `QuotaFailure` in the details are what OpenTelemetry, Google's clients and people read.
pub(super) fn over_limit(content_type: HeaderValue, decision: &Decision, message: &str) -> Response<RefusalBody> {
    let mut failure = Message::default();
    for outcome in decision.enforced().filter(|outcome| !outcome.is_allowed()) {
        let mut violation = Message::default();
        violation.text(1, outcome.policy());
        violation.text(2, &outcome.quota().to_string());
        violation.text(5, outcome.policy());
        violation.number(7, outcome.quota().limit());
        failure.bytes(1, &violation.0);
    }
    refused(content_type, RESOURCE_EXHAUSTED, decision, message, Some(&failure))
}

/// Answers status 14 with what a client needs to come back in time: the limit is the server's own.
pub(super) fn reduced_capacity(content_type: HeaderValue, decision: &Decision, message: &str) -> Response<RefusalBody> {
    refused(content_type, UNAVAILABLE, decision, message, None)
}

fn refused(
    content_type: HeaderValue,
    code: u8,
    decision: &Decision,
    message: &str,
    failure: Option<&Message>,
) -> Response<RefusalBody> {
    let mut response = status(content_type, code, message);
    let headers = response.headers_mut();
    let wait = decision.retry_after();
    let pushback = wait.map(|wait| i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX).max(1));
    headers.insert("grpc-retry-pushback-ms", HeaderValue::from(pushback.unwrap_or(-1)));

    let mut details = Message::default();
    details.number(1, code.into());
    details.text(2, message);
    if let Some(ms) = pushback.map(i32::unsigned_abs).map(u64::from) {
        let mut delay = Message::default();
        delay.number(1, ms / 1_000);
        delay.number(2, ms % 1_000 * 1_000_000);
        let mut retry = Message::default();
        retry.bytes(1, &delay.0);
        details.any(3, "RetryInfo", &retry);
    }
    if let Some(failure) = failure {
        details.any(3, "QuotaFailure", failure);
    }
    let details = STANDARD_NO_PAD.encode(&details.0);
    headers.insert("grpc-status-details-bin", HeaderValue::try_from(details).expect("base64 is header text"));
    response
}

/// Answers with a status and no message: one header block that ends the stream.
pub(super) fn status(content_type: HeaderValue, code: u8, message: &str) -> Response<RefusalBody> {
    let mut response = Response::new(RefusalBody::default());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert("grpc-status", HeaderValue::from(u16::from(code)));
    let message = HeaderValue::try_from(percent_encoded(message)).expect("percent-encoding leaves header text");
    headers.insert("grpc-message", message);
    response
}

/// Encodes all but printable ASCII, and the percent sign (gRPC over HTTP/2, Responses).
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => encoded.push_str(&format!("%{byte:02X}")),
            byte => encoded.push(char::from(byte)),
        }
    }
    encoded
}

/// A protobuf message in its wire format, of the three kinds of field that status details have.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Zero is what a field without a value means, and is not written.
    fn number(&mut self, field: u8, number: u64) {
        if number != 0 {
            self.0.push(field << 3);
            self.varint(number);
        }
    }

    fn text(&mut self, field: u8, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.0.push(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Writes a `google.protobuf.Any` that holds a message of `google.rpc`.
    fn any(&mut self, field: u8, name: &str, message: &Message) {
        let mut any = Message::default();
        any.text(1, &format!("type.googleapis.com/google.rpc.{name}"));
        any.bytes(2, &message.0);
        self.bytes(field, &any.0);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
            number >>= 7;
        }
        self.0.push(u8::try_from(number).expect("seven bits"));
    }
}

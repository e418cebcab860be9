use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};

use super::{
    RefusalBody, grpc,
    headers::{seconds_up, write_fields},
    key::NoKey,
};
use crate::limit::{Decision, Outcome};

/// Answers a request that was refused; `None` if it was allowed.
///
/// For handlers and `axum::middleware::from_fn`. A gRPC request is answered with a status in the header block,
/// any other with HTTP 429, or 503 if the store could not answer, and problem details (RFC 9457). The `RateLimit`
/// fields are there.
///
/// ```
/// use axum::response::{IntoResponse, Response};
/// use http::request::Parts;
/// use tollgate::{Limiter, Policy, Quota, layer};
///
/// static EXPORTS: Policy = Policy::fixed_window("exports", Quota::per_hour(5));
///
/// async fn export(limiter: Limiter, user: &str, request: &Parts) -> Response {
///     let decision = limiter.check(&EXPORTS, user).await;
///     if let Some(refusal) = layer::respond(&decision, request) {
///         return refusal.into_response();
///     }
///     let mut response = "exported".into_response();
///     layer::write_fields(&decision, response.headers_mut());
///     response
/// }
/// ```
pub fn respond(decision: &Decision, request: &Parts) -> Option<Response<RefusalBody>> {
    let mut response = refuse(decision, request)?;
    write_fields(decision, response.headers_mut());
    Some(response)
}

/// Answers a request that was refused, without the fields that a dialect adds.
pub(super) fn refuse(decision: &Decision, request: &Parts) -> Option<Response<RefusalBody>> {
    if decision.is_allowed() {
        return None;
    }
    if decision.is_unavailable() {
        return Some(fault(request, Fault::Unavailable));
    }
    if let Some(content_type) = grpc::content_type(request) {
        let mut text = String::new();
        detail(decision, &mut text);
        return Some(grpc::over_limit(content_type, decision, &text));
    }
    // In one go: names of policies and quotas have nothing that JSON would have to escape.
    let mut body = String::with_capacity(ROOM);
    body.push_str(OVER_LIMIT);
    detail(decision, &mut body);
    body.push_str(r#"","violated-policies":["#);
    for (i, outcome) in violated(decision).enumerate() {
        body.push_str(if i > 0 { ",\"" } else { "\"" });
        body.push_str(outcome.policy());
        body.push('"');
    }
    body.push_str("]}");
    let mut response = problem(request, StatusCode::TOO_MANY_REQUESTS, body);
    if let Some(wait) = decision.retry_after() {
        // RFC 9110, section 10.2.3: whole seconds. Zero would be legal and have clients come back at once.
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds_up(wait).max(1)));
    }
    Some(response)
}

/// Answers a request that no rule could judge.
pub(super) fn without_key(no_key: &NoKey, request: &Parts) -> Response<RefusalBody> {
    match no_key {
        NoKey::Reject(what) => fault(request, Fault::Rejected(what)),
        NoKey::PeerUnknown | NoKey::Skip => fault(request, Fault::PeerUnknown),
    }
}

/// Why a request is refused that is not over its limit.
enum Fault<'a> {
    Unavailable,
    PeerUnknown,
    Rejected(&'a str),
}

fn fault(request: &Parts, fault: Fault<'_>) -> Response<RefusalBody> {
    let (status, code, title, detail) = match fault {
        Fault::Unavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            grpc::UNAVAILABLE,
            "Service Unavailable",
            "the rate limit cannot be checked at present",
        ),
        Fault::PeerUnknown => {
            (StatusCode::INTERNAL_SERVER_ERROR, grpc::INTERNAL, "Internal Server Error", PEER_UNKNOWN)
        }
        Fault::Rejected(what) => (StatusCode::BAD_REQUEST, grpc::INVALID_ARGUMENT, "Bad Request", what),
    };
    match grpc::content_type(request) {
        Some(content_type) => grpc::status(content_type, code, detail),
        None => {
            let (detail, number) = (json_string(detail), status.as_u16());
            let body = format!(r#"{{"type":"about:blank","title":"{title}","status":{number},"detail":{detail}}}"#);
            problem(request, status, body)
        }
    }
}

fn problem(request: &Parts, status: StatusCode, body: String) -> Response<RefusalBody> {
    let mut body = Bytes::from(body);
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    // RFC 6585, section 4: a cache must not store a 429.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if request.method == Method::HEAD {
        // RFC 9110, section 9.3.2: what a GET would have, without the content.
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        body = Bytes::new();
    }
    let mut response = Response::new(RefusalBody::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Tells the client in words what its request met.
fn detail(decision: &Decision, text: &mut String) {
    let Some(binding) = decision.binding() else { return text.push_str("over the limit") };
    text.push_str("policy ");
    text.push_str(binding.policy());
    // Writing to a String cannot fail.
    let _ = write!(text, " allows {}", binding.quota());
    match decision.retry_after() {
        Some(wait) => {
            text.push_str("; try again in ");
            text.push_str(itoa::Buffer::new().format(seconds_up(wait).max(1)));
            text.push_str(" s");
        }
        None => text.push_str(" and can never grant what this request costs"),
    }
}

fn violated(decision: &Decision) -> impl Iterator<Item = &Outcome> {
    decision.outcomes().iter().filter(|outcome| !outcome.is_allowed())
}

/// Writes a JSON string (RFC 8259, section 7).
fn json_string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

/// The beginning of problem details (RFC 9457), with a type of draft-ietf-httpapi-ratelimit-headers-11.
const OVER_LIMIT: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
    r#""title":"Quota exceeded","status":429,"detail":""#
);

/// What most problem details fit.
const ROOM: usize = 320;

pub(super) const PEER_UNKNOWN: &str = "a rule counts by client address, and the server does not tell it; with axum, \
     serve `app.into_make_service_with_connect_info::<SocketAddr>()`; with tonic, enable tollgate's feature `tonic`; \
     elsewhere put a `tollgate::PeerAddr` into the request's extensions";

mod accept;

use std::fmt::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};

use self::accept::reads_json;
use super::{
    RefusalBody, grpc,
    headers::write_fields,
    key::NoKey,
    text::{Text, bytes, seconds_up, value},
};
use crate::limit::{Decision, Outcome};

/// Answers a request that was refused; `None` if it was allowed.
///
/// For handlers and `axum::middleware::from_fn`, and for a [function of your
/// own](super::RateLimitLayer::refuse_with) that changes what it returns. A gRPC request is answered with a status in
/// the header block, any other with HTTP 429, or 503 if the store could not answer, and problem details (RFC 9457), or
/// plain text if its `Accept` prefers that. The `RateLimit` fields are there.
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
    let mut response = refuse(decision, request, Blame::Client)?;
    write_fields(decision, response.headers_mut());
    Some(response)
}

/// Whose affair it is that a limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// It has used its quota.
    Client,
    /// The limit is what the server can do.
    Server,
}

/// Answers a request that was refused, without the fields that a dialect adds.
pub(super) fn refuse(decision: &Decision, request: &Parts, blame: Blame) -> Option<Response<RefusalBody>> {
    if decision.is_allowed() {
        return None;
    }
    if let Some(content_type) = grpc::content_type(request) {
        return Some(grpc_refusal(content_type, decision, blame));
    }
    if decision.is_unavailable() {
        return Some(fault(request, Fault::Unavailable));
    }
    let wait = whole_seconds(decision);
    let room = violated(decision).count() * NAME;
    let (status, begin) = match blame {
        Blame::Client => (StatusCode::TOO_MANY_REQUESTS, OVER_LIMIT),
        Blame::Server => (StatusCode::SERVICE_UNAVAILABLE, REDUCED_CAPACITY),
    };
    let mut response = if reads_json(&request.headers) {
        let body = bytes(begin.len() + DETAIL + VIOLATED.len() + room, |text| {
            text.raw(begin);
            detail(decision, wait, text);
            text.raw(VIOLATED);
            for (i, outcome) in violated(decision).enumerate() {
                text.raw(if i > 0 { "," } else { "" });
                text.string(outcome.policy());
            }
            text.raw("]}");
        });
        answer(request, status, PROBLEM, body)
    } else {
        let body = bytes(DETAIL, |text| {
            detail(decision, wait, text);
            text.raw("\n");
        });
        answer(request, status, PLAIN, body)
    };
    if let Some(wait) = wait {
        let wait = value(DIGITS, |text| text.number(wait));
        response.headers_mut().insert(header::RETRY_AFTER, wait);
    }
    Some(response)
}

/// Answers a gRPC call that was refused.
pub(super) fn grpc_refusal(content_type: HeaderValue, decision: &Decision, blame: Blame) -> Response<RefusalBody> {
    if decision.is_unavailable() {
        return grpc::status(content_type, grpc::UNAVAILABLE, UNAVAILABLE);
    }
    let message = bytes(DETAIL, |text| detail(decision, whole_seconds(decision), text));
    let message = String::from_utf8_lossy(&message);
    match blame {
        Blame::Client => grpc::over_limit(content_type, decision, &message),
        Blame::Server => grpc::reduced_capacity(content_type, decision, &message),
    }
}

/// Returns how long to wait, as it is told over HTTP (RFC 9110, section 10.2.3): in whole seconds. Zero would be legal and
/// have clients come back at once.
fn whole_seconds(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|wait| seconds_up(wait).max(1))
}

/// Answers a request that no rule could judge.
pub(super) fn without_key(no_key: &NoKey, request: &Parts) -> Response<RefusalBody> {
    match no_key {
        NoKey::Reject(what) => fault(request, Fault::Rejected(what)),
        NoKey::Forbidden => fault(request, Fault::Forbidden),
        NoKey::PeerUnknown | NoKey::Skip => fault(request, Fault::PeerUnknown),
    }
}

/// Why a request is refused that is not over its limit.
enum Fault<'a> {
    Unavailable,
    PeerUnknown,
    Forbidden,
    Rejected(&'a str),
}

fn fault(request: &Parts, fault: Fault<'_>) -> Response<RefusalBody> {
    let (status, code, kind, title, detail) = match fault {
        Fault::Unavailable => {
            (StatusCode::SERVICE_UNAVAILABLE, grpc::UNAVAILABLE, TEMPORARY, TEMPORARY_TITLE, UNAVAILABLE)
        }
        Fault::PeerUnknown => {
            (StatusCode::INTERNAL_SERVER_ERROR, grpc::INTERNAL, BLANK, "Internal Server Error", PEER_UNKNOWN)
        }
        Fault::Forbidden => {
            (StatusCode::FORBIDDEN, grpc::PERMISSION_DENIED, BLANK, "Forbidden", "this client is not served")
        }
        Fault::Rejected(what) => (StatusCode::BAD_REQUEST, grpc::INVALID_ARGUMENT, BLANK, "Bad Request", what),
    };
    problem(request, &Problem { status, code, kind, title, detail })
}

/// What went wrong, as HTTP and gRPC tell it.
pub(super) struct Problem<'a> {
    pub(super) status: StatusCode,
    pub(super) code: u8,
    pub(super) kind: &'a str,
    pub(super) title: &'a str,
    pub(super) detail: &'a str,
}

/// Answers with problem details (RFC 9457), in plain text to who prefers that, or with a status to a gRPC request.
pub(super) fn problem(request: &Parts, problem: &Problem<'_>) -> Response<RefusalBody> {
    let Problem { status, code, kind, title, detail } = *problem;
    if let Some(content_type) = grpc::content_type(request) {
        return grpc::status(content_type, code, detail);
    }
    if reads_json(&request.headers) {
        let (kind, title, detail) = (json_string(kind), json_string(title), json_string(detail));
        let number = status.as_u16();
        let body = format!(r#"{{"type":{kind},"title":{title},"status":{number},"detail":{detail}}}"#);
        answer(request, status, PROBLEM, body.into())
    } else {
        answer(request, status, PLAIN, format!("{detail}\n").into())
    }
}

fn answer(request: &Parts, status: StatusCode, content_type: HeaderValue, mut body: Bytes) -> Response<RefusalBody> {
    let mut headers = HeaderMap::with_capacity(FIELDS);
    headers.insert(header::CONTENT_TYPE, content_type);
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
fn detail(decision: &Decision, wait: Option<u64>, text: &mut Text<'_>) {
    let Some(binding) = decision.binding() else { return text.raw("over the limit") };
    text.raw("policy ");
    text.raw(binding.policy());
    text.raw(" allows ");
    text.quota(binding.quota());
    match wait {
        Some(wait) => {
            text.raw("; try again in ");
            text.number(wait);
            text.raw(" s");
        }
        None => text.raw(" and can never grant what this request costs"),
    }
}

fn violated(decision: &Decision) -> impl Iterator<Item = &Outcome> {
    decision.enforced().filter(|outcome| !outcome.is_allowed())
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

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Types of problems that have none of their own (RFC 9457, section 4.2.1).
const BLANK: &str = "about:blank";
/// A type of draft-ietf-httpapi-ratelimit-headers-11.
const TEMPORARY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
const TEMPORARY_TITLE: &str = "Temporarily reduced capacity";

const UNAVAILABLE: &str = "the rate limit cannot be checked at present";

/// How problem details begin, with types of draft-ietf-httpapi-ratelimit-headers-11.
const OVER_LIMIT: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
    r#""title":"Quota exceeded","status":429,"detail":""#
);
const REDUCED_CAPACITY: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
    r#""title":"Temporarily reduced capacity","status":503,"detail":""#
);
const VIOLATED: &str = r#"","violated-policies":["#;

/// The most bytes of a detail: a name of 64, a quota of 32, a wait of 20, and words between.
const DETAIL: usize = 192;
/// The most bytes of a name in quotes, with a comma.
const NAME: usize = 67;
/// The most digits of a number.
const DIGITS: usize = 20;
/// A map for as many fields allocates no more than it needs for those that a refusal mostly has.
const FIELDS: usize = 6;

pub(super) const PEER_UNKNOWN: &str = "a rule counts by client address, and the server does not tell it; with axum, \
     serve `app.into_make_service_with_connect_info::<SocketAddr>()`; with tonic, enable tollgate's feature `tonic`; \
     elsewhere put a `tollgate::PeerAddr` into the request's extensions";

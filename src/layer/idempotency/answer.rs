use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header, request::Parts};

use super::record::Kept;
use crate::{
    layer::{
        RefusalBody, grpc,
        refuse::{Problem, problem},
        text::seconds_up,
    },
    metrics,
};

/// What the layer answers by itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    Missing,
    Wrong(&'static str),
    Broken,
    TooSlow,
    TooLong(usize),
    /// A gRPC request that is not one message.
    NotUnary,
    Mismatch,
    InFlight(Duration),
    NotRetained,
    Unknown,
    Unavailable,
    Failed,
}

impl Refused {
    /// Answers a request; what is told of is described at `described_by`, or else in this crate's documentation.
    pub(super) fn answer(self, request: &Parts, described_by: Option<&str>) -> Response<RefusalBody> {
        metrics::idempotency(self.what().2);
        self.uncounted(request, described_by)
    }

    fn uncounted(self, request: &Parts, described_by: Option<&str>) -> Response<RefusalBody> {
        let (status, code, anchor, title) = self.what();
        let detail = self.detail();
        let kind = described_by.map_or_else(|| format!("{DOCS}#{anchor}"), str::to_owned);
        let mut response = problem(request, &Problem { status, code, kind: &kind, title, detail: &detail });
        let headers = response.headers_mut();
        if grpc::content_type(request).is_some() {
            if let Some(wait) = self.wait() {
                let ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX).max(1);
                headers.insert("grpc-retry-pushback-ms", HeaderValue::from(ms));
            }
            return response;
        }
        if let Some(wait) = self.wait() {
            // RFC 9110, section 10.2.3: whole seconds. Zero would have clients come back at once.
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds_up(wait).max(1)));
        }
        if status == StatusCode::BAD_REQUEST
            && let Ok(link) = HeaderValue::try_from(format!(r#"<{kind}>; rel="describedby"; type="text/html""#))
        {
            headers.insert(header::LINK, link);
        }
        response
    }

    /// Returns the status of HTTP, that of gRPC, the place in the documentation and the title.
    ///
    /// Titles and statuses are those of draft-ietf-httpapi-idempotency-key-header-07, section 2.7, where it has them.
    fn what(self) -> (StatusCode, u8, &'static str, &'static str) {
        match self {
            Self::Missing => {
                (StatusCode::BAD_REQUEST, grpc::INVALID_ARGUMENT, "key-missing", "Idempotency-Key is missing")
            }
            Self::Wrong(_) => {
                (StatusCode::BAD_REQUEST, grpc::INVALID_ARGUMENT, "key-wrong", "Idempotency-Key is wrong")
            }
            Self::Broken | Self::NotUnary => {
                (StatusCode::BAD_REQUEST, grpc::INVALID_ARGUMENT, "body-broken", "The request's body cannot be read")
            }
            Self::TooSlow => {
                (StatusCode::REQUEST_TIMEOUT, DEADLINE_EXCEEDED, "body-slow", "The request's body did not come in time")
            }
            Self::TooLong(_) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                RESOURCE_EXHAUSTED,
                "body-long",
                "The request's body is too long for an Idempotency-Key",
            ),
            Self::Mismatch => {
                (StatusCode::UNPROCESSABLE_ENTITY, FAILED_PRECONDITION, "key-used", "Idempotency-Key is already used")
            }
            Self::InFlight(_) => {
                (StatusCode::CONFLICT, ABORTED, "in-flight", "A request is outstanding for this Idempotency-Key")
            }
            Self::NotRetained => (StatusCode::CONFLICT, FAILED_PRECONDITION, "not-retained", "Response not retained"),
            Self::Unknown => (StatusCode::CONFLICT, FAILED_PRECONDITION, "unknown", "Outcome unknown"),
            Self::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                grpc::UNAVAILABLE,
                "unavailable",
                "Idempotency-Key cannot be checked at present",
            ),
            Self::Failed => (
                StatusCode::INTERNAL_SERVER_ERROR,
                grpc::INTERNAL,
                "failed",
                "The request failed while it was executed",
            ),
        }
    }

    fn detail(self) -> String {
        match self {
            Self::Missing => {
                "this operation needs an Idempotency-Key field, so that it can be tried again and is done once; send a new key \
                 for each operation, such as a UUID in double quotes"
            }
            Self::Wrong(what) => what,
            Self::Broken => "the body broke off, or is not what its fields say; nothing was executed",
            Self::NotUnary => {
                "an idempotency-key is for calls of one message, and the body is not exactly one; nothing was executed"
            }
            Self::TooSlow => "the body has to be there before anything is executed, and took too long; nothing was executed",
            Self::TooLong(most) => {
                return format!("with an Idempotency-Key a body may have {most} bytes at most; nothing was executed");
            }
            Self::Mismatch => {
                "the Idempotency-Key was used for another request: other method, path, content or content type; send a new key \
                 for a new operation"
            }
            Self::InFlight(_) => {
                "a request with the same Idempotency-Key is being executed; try again later to be told its response"
            }
            Self::NotRetained => {
                "the request was executed, and its response was too long, streamed or otherwise not to be kept; it is not \
                 executed again"
            }
            Self::Unknown => {
                "an earlier attempt broke off, and nobody knows what it did; it is not executed again: find out, and send a new \
                 Idempotency-Key if need be"
            }
            Self::Unavailable => "the store of idempotency keys does not answer; nothing was executed",
            Self::Failed => "the request was executed and failed on the way; it is not executed again",
        }
        .to_owned()
    }

    fn wait(self) -> Option<Duration> {
        match self {
            Self::InFlight(left) => Some(left),
            Self::Unavailable => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// Returns an answer as it is stored, for all who come with the key.
    pub(super) fn kept(self, request: &Parts, described_by: Option<&str>) -> Kept {
        let (parts, body) = self.uncounted(request, described_by).into_parts();
        Kept { status: parts.status, headers: parts.headers, body: body.into(), trailers: None }
    }
}

/// Returns as much of a request as answers go by: what is left of it when it has gone on.
pub(super) fn asked(request: &Parts) -> Parts {
    let (mut asked, ()) = Request::new(()).into_parts();
    asked.method = request.method.clone();
    for name in [header::ACCEPT, header::CONTENT_TYPE] {
        for line in request.headers.get_all(&name) {
            asked.headers.append(&name, line.clone());
        }
    }
    asked
}

// The statuses of gRPC that no other layer answers.
const DEADLINE_EXCEEDED: u8 = 4;
const RESOURCE_EXHAUSTED: u8 = 8;
const FAILED_PRECONDITION: u8 = 9;
const ABORTED: u8 = 10;

const DOCS: &str = "https://docs.rs/tollgate/latest/tollgate/guide/idempotency/";

use axum::{
    extract::{OriginalUri, Request},
    http::{HeaderName, HeaderValue, header},
    middleware::Next,
    response::Response,
};

/// Serves the page without any figures, which its script asks for with the token.
pub(super) async fn shell(OriginalUri(uri): OriginalUri) -> Response {
    // Beside the page, wherever the router lies: `/admin` has its script at `/admin/app.js`, and `/admin/` too.
    let last = uri.path().rsplit('/').next().unwrap_or_default();
    let base = if last.is_empty() { String::new() } else { format!("{}/", escaped(last)) };
    file("text/html; charset=utf-8", SHELL.replace("{base}", &base))
}

pub(super) async fn css() -> Response {
    file("text/css; charset=utf-8", CSS)
}

pub(super) async fn js() -> Response {
    file("text/javascript; charset=utf-8", JS)
}

/// Adds to every response what keeps it from being stored, framed, guessed at or mixed with code of others.
pub(super) async fn add_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn file(kind: &'static str, text: impl Into<axum::body::Body>) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Writes text so that it can stand in an attribute. What is left of a path has no spaces or control characters.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

const SHELL: &str = include_str!("page/index.html");
const CSS: &str = include_str!("page/app.css");
const JS: &str = include_str!("page/app.js");

const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

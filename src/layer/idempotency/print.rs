use bytes::Bytes;
use http::{header, request::Parts};
use sha2::{Digest, Sha256};

/// Hashes what a request is: method, path and query, content type and encoding, and body, each after its length.
pub(super) fn of(request: &Parts, body: &Bytes) -> Vec<u8> {
    let mut hash = Sha256::new();
    let mut part = |part: &[u8]| {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    part(request.method.as_str().as_bytes());
    part(target(request).as_bytes());
    for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING] {
        part(request.headers.get(name).map_or(b"", |value| value.as_bytes()));
    }
    part(body);
    hash.finalize().to_vec()
}

/// Returns path and query as the client sent them, also inside of a nested router.
pub(super) fn target(request: &Parts) -> &str {
    let uri = &request.uri;
    #[cfg(feature = "axum")]
    let uri = request.extensions.get().map_or(uri, |axum::extract::OriginalUri(uri)| uri);
    uri.path_and_query().map_or("/", |target| target.as_str())
}

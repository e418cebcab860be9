//! What a unary call of gRPC or gRPC-Web looks like in a body.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, header};

use crate::layer::grpc;

/// Returns true if a body is exactly one message.
pub(super) fn is_one_message(headers: &HeaderMap, data: &[u8]) -> bool {
    let Some(data) = frames(headers, data) else { return false };
    message_end(&data) == Some(data.len())
}

/// Returns true if a body goes on after its first message, and not with the trailers of gRPC-Web.
pub(super) fn has_second_message(data: &[u8]) -> bool {
    let after = message_end(data).and_then(|end| data.get(end));
    // The text of gRPC-Web begins with a letter, which is no flag.
    data.first().is_some_and(|flags| *flags <= 1) && after.is_some_and(|flags| flags & TRAILERS == 0)
}

/// Returns the status that fields or trailers have.
pub(super) fn status(fields: &HeaderMap) -> Option<u16> {
    fields.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// Returns the status of gRPC-Web, which has its trailers in the body: after the message, marked by the highest bit.
pub(super) fn web_status(data: &[u8]) -> Option<u16> {
    let is_trailers = |data: &&[u8]| data.first().is_some_and(|flags| flags & TRAILERS != 0);
    let trailers = Some(data).filter(is_trailers).or_else(|| data.get(message_end(data)?..).filter(is_trailers))?;
    let text = std::str::from_utf8(trailers.get(5..)?).ok()?;
    let mut fields = text.split("\r\n").filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.trim().eq_ignore_ascii_case("grpc-status"))?.1.trim().parse().ok()
}

/// Returns the frames of a whole body: as they are, or out of base64 where the content type says so; `None` if it is none.
pub(super) fn frames<'a>(headers: &HeaderMap, data: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    if !headers.get(header::CONTENT_TYPE).is_some_and(grpc::is_text) {
        return Some(Cow::Borrowed(data));
    }
    // Each piece that was sent is padded by itself (gRPC-Web, Message framing), so padding may be anywhere.
    let mut frames = Vec::with_capacity(data.len() / 4 * 3);
    for group in data.chunks(4) {
        STANDARD.decode_vec(group, &mut frames).ok()?;
    }
    Some(Cow::Owned(frames))
}

/// Returns where the first message ends, if its head is there: a byte of flags and four of length (gRPC over HTTP/2).
fn message_end(data: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(data.get(1..5)?.try_into().ok()?);
    usize::try_from(length).ok()?.checked_add(5)
}

/// The flag of the frame of trailers in a body (gRPC-Web, Protocol differences).
const TRAILERS: u8 = 0x80;

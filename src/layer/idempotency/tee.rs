use std::{future::poll_fn, mem, pin::Pin, task::Poll};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header, response::Parts};
use http_body::{Body, Frame};
use tokio::sync::mpsc;

use super::{
    TeedBody,
    body::{BoxError, Piece, Whole},
    unary::has_second_message,
    work::Reply,
};
use crate::layer::ResponseBody;

/// A response on its way to the client, who may be gone.
///
/// One frame is held back as long as more may follow at once, so that a client has not all of a response before it is
/// stored: it could come again with its key.
pub(super) struct Tee<R, E> {
    state: State<R, E>,
    body: Option<Pin<Box<R>>>,
    /// How many bytes it has in all, if it says so.
    length: Option<u64>,
    held: Option<Frame<Bytes>>,
}

enum State<R, E> {
    /// The client has nothing yet.
    Waiting {
        parts: Box<Parts>,
        reply: Reply<R, E>,
    },
    /// The client has the head, and gets the pieces.
    Sending(mpsc::UnboundedSender<Piece<R>>),
    Over,
}

/// How a body ended.
pub(super) enum Ended {
    Whole {
        data: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// It is not to be kept, and goes on.
    TooLong,
    Broken(BoxError),
}

impl<R: Body<Data = Bytes>, E> Tee<R, E> {
    pub(super) fn new(parts: Parts, body: R, reply: Reply<R, E>) -> Self {
        let length = body.size_hint().exact();
        let state = State::Waiting { parts: Box::new(parts), reply };
        Self { state, body: Some(Box::pin(body)), length, held: None }
    }

    /// Returns true if it will not end by itself.
    pub(super) fn is_streamed(&self) -> bool {
        match &self.state {
            State::Waiting { parts, .. } => is_streamed(parts.status, &parts.headers),
            State::Sending(_) | State::Over => false,
        }
    }

    /// Gives the client what is left to read by itself.
    pub(super) fn rest(mut self) {
        let Some(body) = self.body.take() else { return };
        if self.held.is_some() {
            self.flush();
        }
        match mem::replace(&mut self.state, State::Over) {
            State::Waiting { parts, reply } => respond(*parts, TeedBody::rest(body), reply),
            State::Sending(pieces) => _ = pieces.send(Piece::Rest(body)),
            State::Over => {}
        }
    }

    /// Gives the client the end.
    pub(super) fn end(mut self, whole: Whole) {
        match mem::replace(&mut self.state, State::Over) {
            State::Waiting { parts, reply } => respond(*parts, TeedBody::whole(whole), reply),
            State::Sending(pieces) => {
                let held = self.held.take().map(Piece::Frame);
                held.into_iter().chain([Piece::End]).for_each(|piece| _ = pieces.send(piece));
            }
            State::Over => {}
        }
    }

    /// Tells the client that there is no end.
    pub(super) fn broken(mut self, error: BoxError) {
        self.flush();
        if let State::Sending(pieces) = &self.state {
            let _ = pieces.send(Piece::Error(error));
        }
    }

    /// Returns the next frame; sends what is held back, and be it the head alone, if that takes time.
    async fn next(&mut self) -> Option<Result<Frame<Bytes>, R::Error>> {
        poll_fn(|cx| {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            let poll = body.as_mut().poll_frame(cx);
            if poll.is_pending() {
                self.flush();
            }
            poll
        })
        .await
    }

    /// Holds a frame back, and sends the one before.
    fn hold(&mut self, frame: Frame<Bytes>) {
        if self.held.is_some() {
            self.flush();
        }
        self.held = Some(frame);
    }

    /// Sends what is held back, after the head if that has not been sent.
    fn flush(&mut self) {
        match mem::replace(&mut self.state, State::Over) {
            State::Waiting { parts, reply } => {
                let (sender, pieces) = mpsc::unbounded_channel();
                respond(*parts, TeedBody::live(pieces, self.length), reply);
                self.state = State::Sending(sender);
            }
            other => self.state = other,
        }
        if let (State::Sending(pieces), Some(frame)) = (&self.state, self.held.take()) {
            let _ = pieces.send(Piece::Frame(frame));
        }
    }
}

/// Collects a response's body, and sends it on the way, until it ends or is not to be kept.
pub(super) async fn read<R, E>(tee: &mut Tee<R, E>, most: usize, is_grpc: bool) -> Ended
where
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let (mut data, mut trailers) = (Vec::new(), None);
    loop {
        let frame = match tee.next().await {
            None => return Ended::Whole { data: data.into(), trailers },
            Some(Err(error)) => return Ended::Broken(error.into()),
            Some(Ok(frame)) => frame,
        };
        let mut is_too_long = false;
        let frame = match frame.into_data() {
            Ok(bytes) => {
                is_too_long = bytes.len() > most - data.len();
                if !is_too_long {
                    data.extend_from_slice(&bytes);
                    is_too_long = is_grpc && has_second_message(&data);
                }
                Frame::data(bytes)
            }
            Err(frame) => match frame.into_trailers() {
                Ok(fields) => Frame::trailers(trailers.insert(fields).clone()),
                Err(frame) => frame,
            },
        };
        tee.hold(frame);
        if is_too_long {
            return Ended::TooLong;
        }
    }
}

fn respond<R, E>(parts: Parts, body: TeedBody<R>, reply: Reply<R, E>) {
    let _ = reply.send(Ok(Response::from_parts(parts, ResponseBody::inner(body))));
}

/// Returns true for responses that go on until one side has had enough.
fn is_streamed(status: StatusCode, headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes()).to_ascii_lowercase();
    status.is_informational()
        || kind.starts_with(b"text/event-stream")
        || kind.starts_with(b"multipart/x-mixed-replace")
}

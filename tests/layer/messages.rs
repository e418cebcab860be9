//! Messages that clients stream, each counted by itself.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, Request, Response, uri::PathAndQuery};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::{net::TcpListener, sync::mpsc, time::Instant};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tollgate::{
    Limiter, ManualClock, Memory, Quota, Rule,
    layer::{MessageBody, MessageLimitLayer, global, header},
};
use tonic::{
    Code, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::NamedService,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_types::StatusExt;
use tower::{Layer, Service, ServiceExt, service_fn};

type Pieces = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;

fn limited(limit: u64) -> (MessageLimitLayer, ManualClock) {
    let (memory, clock) = Memory::manual();
    let rule = Rule::new("messages", Quota::per_hour(limit)).fixed_window().by(global());
    (MessageLimitLayer::new(Limiter::new(memory)).rule(rule), clock)
}

fn message(text: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.put_u32(u32::try_from(text.len()).expect("short"));
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn call<B>(content_type: &str, body: B) -> Request<B> {
    Request::post("/test.Echo/Echo").header("content-type", content_type).body(body).expect("a request")
}

/// Reads all the messages, and answers with how much there was.
async fn reads_all<B>(request: Request<MessageBody<B>>) -> Result<Response<Full<Bytes>>, Infallible>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let text = match request.into_body().collect().await {
        Ok(body) => body.to_bytes().len().to_string(),
        Err(error) => error.to_string(),
    };
    Ok(Response::builder().header("content-type", "application/grpc").body(text.into()).expect("a response"))
}

#[tokio::test]
async fn each_message_is_one_however_the_stream_is_cut() {
    for (count, passes) in [(0, true), (1, true), (3, true), (4, false), (9, false)] {
        let stream: Vec<u8> = (0..count).flat_map(|i| message(&"x".repeat(i * 7))).collect();
        for cut in [1, 3, 5, 6, 17, 1_000] {
            let (layer, _) = limited(3);
            let (send, receive) = mpsc::channel(1_000);
            for piece in stream.chunks(cut) {
                send.send(Ok(Frame::data(Bytes::copy_from_slice(piece)))).await.expect("room");
            }
            drop(send);
            let service = layer.layer(service_fn(reads_all::<Pieces>));
            let request = call("application/grpc", StreamBody::new(ReceiverStream::new(receive)));
            let answer = service.oneshot(request).await.expect("an answer");
            if passes {
                assert_eq!(answer.headers().get("grpc-status"), None, "{count} cut by {cut}");
                let body = answer.collect().await.expect("a body").to_bytes();
                assert_eq!(body, stream.len().to_string(), "{count} cut by {cut}");
            } else {
                // Nothing has been answered: it is the header block that ends the call.
                assert!(answer.body().is_end_stream());
                assert_eq!(answer.headers()["grpc-status"], "8");
                assert_eq!(answer.headers()["grpc-retry-pushback-ms"], "3600000");
                assert_eq!(answer.headers()["content-type"], "application/grpc");
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_call_passes_untouched() {
    let (layer, _) = limited(1);
    for content_type in ["application/json", "application/grpcx", "text/plain"] {
        let service = layer.layer(service_fn(reads_all::<Full<Bytes>>));
        let body: Bytes = [message("a"), message("b"), message("c")].concat().into();
        let answer = service.oneshot(call(content_type, Full::new(body))).await.expect("an answer");
        assert_eq!(answer.collect().await.expect("a body").to_bytes(), "18");
    }
    // Nor does a call that no rule matches.
    let (memory, _) = Memory::manual();
    let rule = Rule::new("r", Quota::per_hour(1)).by(header("x-user").or_skip()).path("/other/{*rest}");
    let elsewhere = MessageLimitLayer::new(Limiter::new(memory)).rule(rule);
    let body: Bytes = [message("a"), message("b")].concat().into();
    let service = elsewhere.layer(service_fn(reads_all::<Full<Bytes>>));
    let answer = service.oneshot(call("application/grpc", Full::new(body))).await.expect("an answer");
    assert_eq!(answer.collect().await.expect("a body").to_bytes(), "12");
}

#[tokio::test]
async fn a_message_of_grpc_web_is_refused_in_its_own_content_type() {
    for content_type in ["application/grpc-web+proto", "application/grpc-web-text"] {
        let (layer, _) = limited(1);
        for refused in [false, true] {
            let service = layer.layer(service_fn(reads_all::<Full<Bytes>>));
            let request = call(content_type, Full::new(Bytes::from(message("a"))));
            let answer = service.oneshot(request).await.expect("an answer");
            assert_eq!(answer.headers().get("grpc-status").is_some(), refused);
            assert!(!refused || answer.headers()["content-type"] == content_type);
        }
    }
}

#[tokio::test]
async fn an_answer_under_way_ends_between_two_of_its_messages() {
    let (layer, _) = limited(1);
    let (ask, asked) = mpsc::channel(9);
    let (answer, answered) = mpsc::channel(9);
    // Answers at once, and reads the request beside.
    let mut answered = Some(answered);
    let service = layer.layer(service_fn(move |request: Request<MessageBody<Pieces>>| {
        tokio::spawn(request.into_body().collect());
        let body: Pieces = StreamBody::new(ReceiverStream::new(answered.take().expect("one call")));
        ready(Ok::<_, Infallible>(
            Response::builder().header("content-type", "application/grpc").body(body).expect("a response"),
        ))
    }));
    let request = call("application/grpc", StreamBody::new(ReceiverStream::new(asked)));
    let mut body = service.oneshot(request).await.expect("an answer").into_body();
    let mut next = async |expected: &[u8]| {
        let frame = body.frame().await.expect("a frame").expect("no error");
        assert_eq!(frame.into_data().expect("data"), expected);
    };
    let reply = message("a reply");
    let (one, two) = reply.split_at(8);
    answer.send(Ok(Frame::data(Bytes::copy_from_slice(one)))).await.expect("room");
    next(one).await;
    for _ in 0..2 {
        ask.send(Ok(Frame::data(message("a").into()))).await.expect("room");
    }
    // Real time: nothing comes while the reply is half sent.
    assert!(tokio::time::timeout(Duration::from_millis(20), next(&[])).await.is_err());
    answer.send(Ok(Frame::data(Bytes::copy_from_slice(two)))).await.expect("room");
    next(two).await;
    let trailers = body.frame().await.expect("a frame").expect("no error").into_trailers().expect("trailers");
    assert_eq!((&trailers["grpc-status"], trailers.get("content-type")), (&"8".parse().expect("a value"), None));
    assert!(body.frame().await.is_none() && body.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_message_waits_for_its_turn_if_it_may() {
    let (memory, clock) = Memory::manual();
    let rule = Rule::new("messages", Quota::per_second(1)).burst(1).by(global());
    let layer = MessageLimitLayer::new(Limiter::new(memory)).rule(rule);
    for (max_wait, passes) in [(999, false), (1_500, true)] {
        let service =
            layer.clone().max_wait(Duration::from_millis(max_wait)).layer(service_fn(reads_all::<Full<Bytes>>));
        let ticking = clock.clone();
        let ticks = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                ticking.advance(Duration::from_millis(100));
            }
        });
        let started = Instant::now();
        let body: Bytes = [message("a"), message("b"), message("c")].concat().into();
        let answer = service.oneshot(call("application/grpc", Full::new(body))).await.expect("an answer");
        assert_eq!(answer.headers().get("grpc-status").is_none(), passes);
        if passes {
            assert_eq!(started.elapsed().as_secs(), 2);
        }
        ticks.abort();
        clock.advance(Duration::from_secs(60));
    }
}

/// Sends back each piece that comes in, as a real tonic server's service.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl<B> Service<Request<B>> for Echo
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
{
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (send, receive) = mpsc::channel::<Result<Frame<Bytes>, Status>>(9);
        tokio::spawn(async move {
            let mut body = request.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                if send.send(Ok(frame)).await.is_err() {
                    return;
                }
            }
            let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), 0.into())]);
            let _ = send.send(Ok(Frame::trailers(trailers))).await;
        });
        let body = tonic::body::Body::new(StreamBody::new(ReceiverStream::new(receive)));
        let response = Response::builder().header("content-type", "application/grpc");
        ready(Ok(response.body(body).expect("a response")))
    }
}

/// Messages that are just their bytes.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[tokio::test]
async fn a_stream_of_a_real_client_ends_with_status_8_and_its_details() {
    let (layer, _) = limited(3);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address: SocketAddr = listener.local_addr().expect("its address");
    let server = Server::builder().layer(layer).add_service(Echo);
    tokio::spawn(async move { server.serve_with_incoming(TcpIncoming::from(listener)).await });
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    let mut client = tonic::client::Grpc::new(channel.connect().await.expect("a connection"));
    client.ready().await.expect("ready");

    let (send, receive) = mpsc::channel::<Bytes>(9);
    let path = PathAndQuery::from_static("/test.Echo/Echo");
    let request = tonic::Request::new(ReceiverStream::new(receive));
    let mut replies = client.streaming(request, path, Raw).await.expect("an answer").into_inner();
    for text in ["one", "two", "three"] {
        send.send(text.into()).await.expect("room");
        assert_eq!(replies.next().await.expect("a reply").expect("granted"), text);
    }
    send.send("four".into()).await.expect("room");
    let status = replies.next().await.expect("an end").expect_err("over the limit");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("messages") && status.message().contains("3/hour"), "{status}");
    let details = status.check_error_details().expect("details that tonic-types reads");
    assert_eq!(details.retry_info().expect("a retry info").retry_delay, Some(Duration::from_secs(3_600)));
    assert_eq!(details.quota_failure().expect("a quota failure").violations[0].subject, "messages");
    assert!(replies.next().await.is_none());
}

#[test]
fn a_rule_that_cannot_be_used_is_an_error() {
    let layer = MessageLimitLayer::new(Limiter::new(Memory::new())).rule(Rule::new("r", Quota::per_hour(1)));
    let error = layer.try_rule(Rule::new("r", Quota::per_hour(1))).expect_err("twice");
    assert!(error.is_invalid() && error.to_string().contains("`r`"), "{error}");
}

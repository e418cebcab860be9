//! Unary calls of gRPC, through a real tonic server.

use std::sync::Mutex;

use tokio::net::TcpListener;
use tonic::{
    Code, Status,
    transport::{Channel, Server as Tonic, server::TcpIncoming},
};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_client::HealthClient,
    health_server::{Health, HealthServer},
};

use super::*;

const CHECK: &str = "/grpc.health.v1.Health/Check";

/// Answers with what it is told to, and counts.
#[derive(Clone, Default)]
struct Service {
    count: Count,
    fails: Arc<Mutex<Option<Code>>>,
}

#[tonic::async_trait]
impl Health for Service {
    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        let number = self.count.more();
        // Real time, since a real client waits for it on a socket.
        tokio::time::sleep(ms(if request.get_ref().service == "slow" { 300 } else { 0 })).await;
        if let Some(code) = *self.fails.lock().expect("no panic") {
            return Err(Status::new(code, format!("execution {number}")));
        }
        let mut response = tonic::Response::new(HealthCheckResponse { status: i32::try_from(number).expect("few") });
        response.metadata_mut().insert("x-made", "here".parse().expect("a value"));
        Ok(response)
    }

    type WatchStream = tokio_stream::Iter<std::vec::IntoIter<Result<HealthCheckResponse, Status>>>;

    async fn watch(&self, _: tonic::Request<HealthCheckRequest>) -> Result<tonic::Response<Self::WatchStream>, Status> {
        self.count.more();
        let all: Vec<_> = (1..=3).map(|status| Ok(HealthCheckResponse { status })).collect();
        Ok(tonic::Response::new(tokio_stream::iter(all)))
    }
}

async fn start(layer: IdempotencyLayer) -> (HealthClient<Channel>, Service) {
    let service = Service::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    let server = Tonic::builder().layer(layer).add_service(HealthServer::new(service.clone()));
    tokio::spawn(async move { server.serve_with_incoming(TcpIncoming::from(listener)).await });
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    (HealthClient::new(channel.connect().await.expect("a connection")), service)
}

fn call(key: &str, service: &str) -> tonic::Request<HealthCheckRequest> {
    let mut request = tonic::Request::new(HealthCheckRequest { service: service.into() });
    request.metadata_mut().insert("idempotency-key", key.parse().expect("a value"));
    request
}

#[tokio::test]
async fn a_unary_call_is_executed_once_and_comes_again_with_its_trailers() {
    for stage in stages() {
        let (mut client, service) = start(stage.layer().grpc_methods([CHECK])).await;
        for is_again in [false, true] {
            let reply = client.check(call("\"k\"", "a")).await.expect("served");
            assert_eq!(reply.get_ref().status, 1);
            assert_eq!(reply.metadata().get("x-made").expect("kept"), "here");
            assert_eq!(reply.metadata().contains_key("idempotency-replayed"), is_again);
        }
        assert_eq!(service.count.get(), 1);
        assert_eq!(client.check(call("\"k\"", "b")).await.expect_err("other").code(), Code::FailedPrecondition);
        assert_eq!(client.check(call("bare", "a")).await.expect_err("no key").code(), Code::InvalidArgument);
        let slow = tokio::spawn({
            let mut client = client.clone();
            async move { client.check(call("\"s\"", "slow")).await }
        });
        while service.count.get() == 1 {
            // The server runs on its own.
            tokio::time::sleep(ms(5)).await;
        }
        assert_eq!(client.check(call("\"s\"", "slow")).await.expect_err("in flight").code(), Code::Aborted);
        assert_eq!(slow.await.expect("an end").expect("served").get_ref().status, 2);
    }
}

#[tokio::test]
async fn statuses_are_kept_but_for_those_of_who_did_nothing() {
    for stage in stages() {
        let (mut client, service) = start(stage.layer().grpc_methods([CHECK])).await;
        for (code, executions) in [
            (Code::NotFound, 1),
            (Code::Internal, 1),
            (Code::DeadlineExceeded, 2),
            (Code::PermissionDenied, 2),
            (Code::ResourceExhausted, 2),
            (Code::Unavailable, 2),
            (Code::Unauthenticated, 2),
        ] {
            *service.fails.lock().expect("no panic") = Some(code);
            let (before, key) = (service.count.get(), format!("\"{code:?}\""));
            for _ in 0..2 {
                assert_eq!(client.check(call(&key, "a")).await.expect_err("as told").code(), code);
            }
            assert_eq!(service.count.get() - before, executions, "{code:?}");
        }
    }
}

#[tokio::test]
async fn a_method_that_is_not_named_passes_and_a_second_message_is_not_kept() {
    for stage in stages() {
        let (mut client, service) = start(stage.layer()).await;
        for _ in 0..2 {
            client.check(call("\"k\"", "a")).await.expect("served");
        }
        assert_eq!(service.count.get(), 2);
        let (mut client, service) = start(stage.layer().grpc_methods(["/grpc.health.v1.Health/Watch"])).await;
        let mut stream = client.watch(call("\"w\"", "a")).await.expect("served").into_inner();
        for expected in 1..=3 {
            assert_eq!(stream.message().await.expect("a stream").expect("a message").status, expected);
        }
        assert!(stream.message().await.expect("an end").is_none());
        assert_eq!(client.watch(call("\"w\"", "a")).await.expect_err("gone").code(), Code::FailedPrecondition);
        assert_eq!(service.count.get(), 1);
    }
}

#[tokio::test]
async fn a_store_that_is_down_is_status_14() {
    let mut server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    server.kill();
    let layer = IdempotencyLayer::new(&redis, header("authorization")).lease(ms(500)).grpc_methods([CHECK]);
    let (mut client, service) = start(layer).await;
    assert_eq!(client.check(call("\"k\"", "a")).await.expect_err("no store").code(), Code::Unavailable);
    assert_eq!(service.count.get(), 0);
}

#[tokio::test]
async fn a_request_is_one_message() {
    let (address, count) = serve_work(stages()[0].layer().grpc_methods(["/work"]), ms(0)).await;
    let fields = [("idempotency-key", "\"k\""), ("content-type", "application/grpc")];
    for body in ["\0\0\0\0\u{1}a\0\0\0\0\u{1}b", "\0\0\0\0\u{2}a", "\0\0", ""] {
        let refused = work_with(address, &fields, body).await;
        assert_eq!(refused.text("grpc-status"), Some("3"), "{body:?}");
    }
    assert_eq!(count.get(), 0);
    let served = work_with(address, &fields, "\0\0\0\0\u{1}a").await;
    assert_eq!((served.status, count.get()), (StatusCode::CREATED, 1));
}

/// Calls a method that answers by gRPC-Web with this body, twice or with another message.
struct Web {
    address: SocketAddr,
    content_type: &'static str,
    count: Count,
}

impl Web {
    async fn start(layer: IdempotencyLayer, content_type: &'static str, frames: Vec<Vec<u8>>) -> Self {
        let count = Count::default();
        let (counted, body) =
            (count.clone(), frames.iter().map(|frame| encoded(content_type, frame)).collect::<String>());
        let body = if content_type.contains("text") { body.into_bytes() } else { frames.concat() };
        let answer = move || {
            counted.more();
            let body = body.clone();
            async move { ([("content-type", content_type)], body) }
        };
        let layer = layer.grpc_methods(["/shop.Payments/Pay"]);
        let app = Router::new().route("/shop.Payments/Pay", post(answer)).layer(layer);
        Self { address: serve(app).await, content_type, count }
    }

    async fn call(&self, key: &str, message: &[u8]) -> Answer {
        let body = if self.content_type.contains("text") {
            encoded(self.content_type, message).into()
        } else {
            message.to_vec()
        };
        let request = Request::post("/shop.Payments/Pay")
            .header("idempotency-key", format!("\"{key}\""))
            .header("content-type", self.content_type)
            .body(Body::from(body));
        send(self.address, None, request.expect("a request")).await
    }
}

fn encoded(content_type: &str, frame: &[u8]) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    if content_type.contains("text") { STANDARD.encode(frame) } else { String::new() }
}

fn message(text: &str) -> Vec<u8> {
    [&[0, 0, 0, 0, u8::try_from(text.len()).expect("short")], text.as_bytes()].concat()
}

fn trailers(status: u8) -> Vec<u8> {
    let mut frame = message(&format!("grpc-status: {status}\r\ngrpc-message: as told\r\n"));
    frame[0] = 0x80;
    frame
}

#[tokio::test]
async fn a_call_by_grpc_web_is_executed_once_unless_its_trailers_say_that_nothing_was_done() {
    for stage in stages() {
        for content_type in ["application/grpc-web+proto", "application/grpc-web-text+proto"] {
            for (frames, executions) in [
                (vec![message("paid"), trailers(0)], 1),
                (vec![trailers(5)], 1),
                (vec![message("half"), trailers(13)], 1),
                (vec![message("half"), trailers(14)], 2),
                (vec![trailers(8)], 2),
            ] {
                let web = Web::start(stage.layer(), content_type, frames).await;
                let key = format!("{content_type} {executions} {:?}", web.address);
                let (first, again) = (web.call(&key, &message("7")).await, web.call(&key, &message("7")).await);
                assert_eq!((first.status, &first.body), (StatusCode::OK, &again.body));
                assert_eq!(again.text("content-type"), Some(content_type));
                assert_eq!(replayed(&again), executions == 1);
                assert_eq!(web.count.get(), executions, "{key}");
                let other = web.call(&key, &message("8")).await;
                if executions == 1 {
                    assert_eq!(
                        (other.text("grpc-status"), other.text("content-type")),
                        (Some("9"), Some(content_type))
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn by_grpc_web_too_a_call_is_one_message_and_so_is_what_is_kept() {
    for content_type in ["application/grpc-web", "application/grpc-web-text"] {
        let two = vec![message("one"), message("two"), trailers(0)];
        let web = Web::start(stages()[0].layer(), content_type, two).await;
        for body in [&[message("a"), message("b")].concat()[..], &[0, 0], &[]] {
            assert_eq!(web.call("k", body).await.text("grpc-status"), Some("3"), "{body:?}");
        }
        assert_eq!(web.count.get(), 0);
        assert_eq!(web.call("k", &message("a")).await.status, StatusCode::OK);
        assert_eq!(web.call("k", &message("a")).await.text("grpc-status"), Some("9"), "not retained");
        assert_eq!(web.count.get(), 1);
    }
}

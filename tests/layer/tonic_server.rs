//! Through a real tonic server, over sockets.

use std::{net::SocketAddr, time::Duration};

use http::{Request, StatusCode};
use tokio::{net::TcpListener, process::Command};
use tollgate::{
    Limiter, Memory, Quota, RateLimitLayer, Rule,
    layer::{client_ip, global, grpc_method},
};
use tonic::{
    Code,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::http::{Answer, get as fetch, serve};

async fn serve_health(layer: RateLimitLayer) -> SocketAddr {
    let (_, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(async move { server.serve_with_incoming(TcpIncoming::from(listener)).await });
    address
}

async fn client(address: SocketAddr) -> HealthClient<Channel> {
    let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
    HealthClient::new(channel.connect().await.expect("a connection"))
}

fn hourly(limit: u64) -> RateLimitLayer {
    let (memory, _) = Memory::manual();
    RateLimitLayer::new(Limiter::new(memory)).rule(Rule::new("per-client", Quota::per_hour(limit)).by(client_ip()))
}

#[tokio::test]
async fn a_client_reads_status_8_and_its_details() {
    let mut client = client(serve_health(hourly(2)).await).await;
    for _ in 0..2 {
        let reply = client.check(HealthCheckRequest::default()).await.expect("served");
        assert!(reply.metadata().get("ratelimit").is_some());
    }
    let status = client.check(HealthCheckRequest::default()).await.expect_err("over the limit");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("per-client") && status.message().contains("2/hour"), "{status}");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").expect("a pushback"), "1800000");
    assert_eq!(status.metadata().get("ratelimit").expect("a field"), r#""per-client";r=0;t=1800"#);

    let details = status.check_error_details().expect("details that tonic-types reads");
    assert_eq!(details.retry_info().expect("a retry info").retry_delay, Some(Duration::from_secs(1_800)));
    let violations = &details.quota_failure().expect("a quota failure").violations;
    assert_eq!((violations.len(), violations[0].subject.as_str()), (1, "per-client"));
    assert!(violations[0].description.contains("2/hour"));
}

#[tokio::test]
async fn a_cost_that_can_never_pass_tells_clients_not_to_retry() {
    let (memory, _) = Memory::manual();
    let layer =
        RateLimitLayer::new(Limiter::new(memory)).rule(Rule::new("big", Quota::per_hour(2)).by(global()).cost(3));
    let mut client = client(serve_health(layer).await).await;
    let status = client.check(HealthCheckRequest::default()).await.expect_err("too much");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").expect("a pushback"), "-1");
    let details = status.check_error_details().expect("details that tonic-types reads");
    assert!(details.retry_info().is_none() && details.quota_failure().is_some());
}

#[tokio::test]
async fn methods_count_apart() {
    let (memory, _) = Memory::manual();
    let layer = RateLimitLayer::new(Limiter::new(memory))
        .rule(Rule::new("m", Quota::per_hour(1)).by((client_ip(), grpc_method())));
    let mut client = client(serve_health(layer).await).await;
    assert!(client.check(HealthCheckRequest::default()).await.is_ok());
    assert!(client.check(HealthCheckRequest::default()).await.is_err());
    assert!(client.watch(HealthCheckRequest::default()).await.is_ok());
}

#[tokio::test]
async fn a_refusal_is_one_header_frame_that_ends_the_stream() {
    let address = serve_health(hourly(1)).await;
    let mut client = client(address).await;
    assert!(client.check(HealthCheckRequest::default()).await.is_ok());
    let message = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(message.path(), [0; 5]).expect("an empty message");
    let output = Command::new("nghttp")
        .args(["-v", "-H:method: POST", "-Hcontent-type: application/grpc", "-Hte: trailers", "-d"])
        .arg(message.path())
        .arg(format!("http://{address}/grpc.health.v1.Health/Check"))
        .output()
        .await;
    let output = match output {
        Ok(output) => String::from_utf8(output.stdout).expect("text"),
        Err(_) => {
            println!("skipped: nghttp is not installed (apt-get install nghttp2-client)");
            return;
        }
    };
    let received: Vec<&str> =
        output.lines().filter(|line| line.contains("recv") && !line.contains("stream_id=0>")).collect();
    let headers: Vec<_> = received.iter().filter(|line| line.contains("recv HEADERS")).collect();
    assert_eq!(headers.len(), 1, "{output}");
    assert!(headers[0].contains("flags=0x05"), "{output}");
    assert!(!received.iter().any(|line| line.contains("recv DATA")), "{output}");
    assert!(received.iter().any(|line| line.contains("grpc-status: 8")), "{output}");
}

#[tokio::test]
async fn http_and_grpc_share_one_budget() {
    let (memory, _) = Memory::manual();
    let layer = RateLimitLayer::new(Limiter::new(memory)).rule(Rule::new("both", Quota::per_hour(5)).by(client_ip()));
    let (grpc, http) = (
        serve_health(layer.clone()).await,
        serve(axum::Router::new().route("/", axum::routing::get(|| async { "hello" })).layer(layer)).await,
    );
    let mut client = client(grpc).await;
    for _ in 0..3 {
        assert_eq!(fetch(http, "/").await.status, StatusCode::OK);
    }
    for _ in 0..2 {
        assert!(client.check(HealthCheckRequest::default()).await.is_ok());
    }
    assert!(client.check(HealthCheckRequest::default()).await.is_err());
    assert_eq!(fetch(http, "/").await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn what_is_grpc_is_told_by_its_content_type() {
    for (sent, answered) in [
        ("application/grpc", Some("application/grpc")),
        ("application/grpc+proto", Some("application/grpc")),
        ("application/grpc;charset=utf-8", Some("application/grpc")),
        ("application/grpc-web", Some("application/grpc-web")),
        ("application/grpc-web-text+proto", Some("application/grpc-web-text+proto")),
        ("Application/GRPC", Some("application/grpc")),
        ("application/grpc-website", None),
        ("application/grpcx", None),
        ("application/json", None),
    ] {
        let (memory, _) = Memory::manual();
        let layer =
            RateLimitLayer::new(Limiter::new(memory)).rule(Rule::new("r", Quota::per_hour(1)).by(global()).cost(2));
        let inner = service_fn(async |_: Request<axum::body::Body>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
        });
        let request =
            Request::post("/a.B/C").header("content-type", sent).body(axum::body::Body::empty()).expect("a request");
        let answer = Answer::of(layer.layer(inner).oneshot(request).await.expect("an answer")).await;
        match answered {
            Some(content_type) => {
                assert_eq!(
                    (answer.status, answer.text("content-type")),
                    (StatusCode::OK, Some(content_type)),
                    "{sent}"
                );
                assert_eq!(answer.text("grpc-status"), Some("8"), "{sent}");
                assert!(answer.body.is_empty());
            }
            None => assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{sent}"),
        }
    }
}

#[tokio::test]
async fn probes_are_exempt_if_asked_so() {
    let layer = |limit| {
        let (memory, _) = Memory::manual();
        RateLimitLayer::new(Limiter::new(memory)).rule(Rule::new("r", Quota::per_hour(limit)).by(global()))
    };
    let mut client = client(serve_health(layer(1).exempt_grpc_probes()).await).await;
    for _ in 0..5 {
        let reply = client.check(HealthCheckRequest::default()).await.expect("exempt");
        assert!(reply.metadata().get("ratelimit").is_none());
    }
    for (path, content_type, exempt) in [
        ("/grpc.health.v1.Health/Check", "application/grpc", true),
        ("/grpc.health.v1.Health/Watch", "application/grpc-web+proto", true),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "application/grpc", true),
        ("/grpc.health.v1.Health/Check", "application/json", false),
        ("/grpc.health.v1.Health/../a.B/C", "application/grpc", false),
        ("/grpc.health.v1.Healthy/Check", "application/grpc", false),
        ("/a.grpc.reflection.v1.B/C", "application/grpc", false),
    ] {
        let inner = service_fn(async |_: Request<axum::body::Body>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
        });
        let request = Request::post(path).header("content-type", content_type);
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let service = layer(9).exempt_grpc_probes().layer(inner);
        let answer = Answer::of(service.oneshot(request).await.expect("an answer")).await;
        assert_eq!(answer.text("ratelimit").is_none(), exempt, "{path} {content_type}");
    }
}

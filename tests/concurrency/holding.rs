//! For how long a request counts.

use axum::{
    Extension,
    body::Body,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tollgate::{layer::concurrency::RequestPermit, lease::Permit};

use super::*;

type Pieces = mpsc::UnboundedSender<Result<&'static str, std::io::Error>>;

/// Serves `/`, whose body is sent piece by piece by the test.
async fn serve_pieces(layer: ConcurrencyLimitLayer) -> (SocketAddr, mpsc::UnboundedReceiver<Pieces>) {
    let (tell, told) = mpsc::unbounded_channel();
    let handler = move || {
        let (sender, pieces) = mpsc::unbounded_channel();
        tell.send(sender).expect("a test");
        async { Body::from_stream(UnboundedReceiverStream::new(pieces)).into_response() }
    };
    (serve(Router::new().route("/", get(handler)).layer(layer)).await, told)
}

/// Sends a request, and returns the response without waiting for its end.
async fn open(address: SocketAddr) -> http::Response<hyper::body::Incoming> {
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
    let request = http::Request::get(format!("http://{address}/")).body(Body::empty()).expect("a request");
    client.request(request).await.expect("an answer")
}

/// Opens until there is a permit; it is given back in the background.
async fn open_soon(address: SocketAddr) -> http::Response<hyper::body::Incoming> {
    let response = async {
        loop {
            let response = open(address).await;
            if response.status() == StatusCode::OK {
                return response;
            }
        }
    };
    // A twentieth of the lease: it does not come back by that.
    tokio::time::timeout(ms(1_500), response).await.expect("a permit comes back at once")
}

#[tokio::test]
async fn a_request_counts_until_its_body_has_ended_or_is_dropped() {
    for stage in stages() {
        let (address, mut told) = serve_pieces(ConcurrencyLimitLayer::new(&stage.store, "work", 1)).await;
        let first = open_soon(address).await;
        let pieces = told.recv().await.expect("a request");
        pieces.send(Ok("one")).expect("a body");
        assert_eq!(open(address).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(pieces);
        assert_eq!(first.into_body().collect().await.expect("a body").to_bytes(), "one");
        let second = open_soon(address).await;
        assert_eq!(open(address).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(second);
        open_soon(address).await;
    }
}

#[tokio::test]
async fn a_permit_is_renewed_while_its_body_lasts() {
    for stage in stages() {
        let layer = ConcurrencyLimitLayer::new(&stage.store, "work", 1).lease(ms(1_000));
        let (address, mut told) = serve_pieces(layer).await;
        let first = open_soon(address).await;
        let pieces = told.recv().await.expect("a request");
        for _ in 0..5 {
            // Two leases and a half of real time on a real server.
            tokio::time::sleep(ms(500)).await;
            assert_eq!(open(address).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        }
        drop((first, pieces));
        open_soon(address).await;
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_before_the_answer_gives_its_permit_back() {
    for stage in stages() {
        let (address, peak) = serve_work(ConcurrencyLimitLayer::new(&stage.store, "work", 1), ms(60_000)).await;
        let waiting = tokio::spawn(fetch(address, "/"));
        while peak.now() == 0 {
            // The server runs on its own.
            tokio::time::sleep(ms(5)).await;
        }
        waiting.abort();
        let second = tokio::spawn(fetch_soon(address, "/"));
        let begins = async {
            while peak.now() < 2 {
                tokio::time::sleep(ms(5)).await;
            }
        };
        tokio::time::timeout(ms(1_500), begins).await.expect("a permit comes back at once");
        second.abort();
    }
}

/// Answers as an upgrade is, and keeps the permit if it is to.
fn upgrading(takes: bool, kept: mpsc::UnboundedSender<Permit>) -> Router {
    let handler = move |Extension(permit): Extension<RequestPermit>| {
        if takes {
            kept.send(permit.take().expect("a permit")).expect("a test");
        }
        async { upgrade() }
    };
    Router::new().route("/", get(handler))
}

fn upgrade() -> Response {
    let fields = [("connection", "upgrade"), ("upgrade", "echo")];
    (StatusCode::SWITCHING_PROTOCOLS, fields).into_response()
}

#[tokio::test]
async fn an_upgraded_connection_counts_if_its_handler_takes_the_permit() {
    for stage in stages() {
        for takes in [true, false] {
            let name = if takes { "taken" } else { "untaken" };
            let (keep, mut kept) = mpsc::unbounded_channel();
            let layer = ConcurrencyLimitLayer::new(&stage.store, name, 1);
            let address = serve(upgrading(takes, keep).layer(layer)).await;
            let status = || async {
                let mut socket = TcpStream::connect(address).await.expect("a connection");
                let head = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
                socket.write_all(head.as_bytes()).await.expect("sent");
                let mut answer = [0; 12];
                socket.read_exact(&mut answer).await.expect("an answer");
                String::from_utf8_lossy(&answer).into_owned()
            };
            let upgraded = async { while status().await != "HTTP/1.1 101" {} };
            assert_eq!(status().await, "HTTP/1.1 101");
            if takes {
                assert_eq!(status().await, "HTTP/1.1 503");
                drop(kept.recv().await.expect("a permit"));
            }
            tokio::time::timeout(ms(1_500), upgraded).await.expect("a permit comes back at once");
        }
    }
}

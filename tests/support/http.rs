//! Real servers and a real client, over sockets.

use std::net::{IpAddr, SocketAddr};

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;

/// Serves an axum router that knows its peers, until the test's runtime ends.
pub async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener, app).await.expect("serving");
    });
    address
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn text(&self, header: &str) -> Option<&str> {
        Some(self.headers.get(header)?.to_str().expect("a text header"))
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    pub async fn of<B>(response: Response<B>) -> Self
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        Self { status: parts.status, headers: parts.headers, body }
    }
}

/// Sends a GET on a connection of its own.
pub async fn get(address: SocketAddr, path: &str) -> Answer {
    send(address, None, Request::get(path).body(Body::empty()).expect("a request")).await
}

/// Sends a GET from another address of this machine.
pub async fn get_from(from: &str, address: SocketAddr, path: &str) -> Answer {
    let from = from.parse().expect("an address");
    send(address, Some(from), Request::get(path).body(Body::empty()).expect("a request")).await
}

pub async fn send(address: SocketAddr, from: Option<IpAddr>, request: Request<Body>) -> Answer {
    let mut connector = HttpConnector::new();
    connector.set_local_address(from);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let (mut parts, body) = request.into_parts();
    parts.uri = format!("http://{address}{}", parts.uri).parse().expect("a URI");
    let body = Full::new(body.collect().await.expect("a whole body").to_bytes());
    Answer::of(client.request(Request::from_parts(parts, body)).await.expect("an answer")).await
}

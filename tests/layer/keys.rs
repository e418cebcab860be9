//! Whose request it is.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollgate::{
    Key, Limiter, Memory, PeerAddr, Quota, RateLimitLayer, Redis, Rule,
    layer::{
        KeyExtractor, ResponseBody, client_ip, extension, global, grpc_method, grpc_service, header, key_fn,
        matched_path, method, path,
    },
};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};

use crate::support::{http::Answer, server::Server};

type Sent = Request<Full<Bytes>>;

/// A service that lets each key pass once.
fn once_each(key: impl KeyExtractor) -> BoxCloneService<Sent, Response<ResponseBody<Full<Bytes>>>, Infallible> {
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(Rule::new("r", Quota::per_hour(1)).by(key));
    BoxCloneService::new(layer.layer(service_fn(async |_: Sent| Ok(Response::new(Full::default())))))
}

/// Asserts that no two of the requests share a key, each alone passes, and each twice does not.
async fn assert_apart(key: impl KeyExtractor, requests: &[Sent]) {
    let service = once_each(key);
    for expected in [true, false] {
        for request in requests {
            let answer = service.clone().oneshot(request.clone()).await.expect("an answer");
            assert_eq!(passed(&answer), expected, "{request:?}");
        }
    }
}

fn passed<B>(answer: &Response<B>) -> bool {
    answer.status() == StatusCode::OK && !answer.headers().contains_key("grpc-status")
}

/// Asserts that all the requests share one key.
async fn assert_together(key: impl KeyExtractor, requests: &[Sent]) {
    let service = once_each(key);
    let mut count = 0;
    for request in requests {
        count += usize::from(passed(&service.clone().oneshot(request.clone()).await.expect("an answer")));
    }
    assert_eq!(count, 1, "{requests:?}");
}

fn get(uri: &str) -> Sent {
    Request::get(uri).body(Full::default()).expect("a request")
}

fn grpc(path: &str) -> Sent {
    Request::post(path).header("content-type", "application/grpc").body(Full::default()).expect("a request")
}

fn with_headers(headers: &[(&str, &[u8])]) -> Sent {
    let mut request = Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).expect("a request")
}

fn from(peer: &str) -> Sent {
    let mut request = get("/");
    let address = peer.parse::<SocketAddr>().expect("an address");
    request.extensions_mut().insert(PeerAddr(address));
    request
}

#[tokio::test]
async fn a_client_is_its_ipv4_address_or_its_ipv6_network() {
    assert_together(client_ip(), &["1.2.3.4:1", "1.2.3.4:2", "[::ffff:1.2.3.4]:3", "[::ffff:102:304]:4"].map(from))
        .await;
    assert_apart(client_ip(), &["1.2.3.4:1", "1.2.3.5:1", "[::ffff:1.2.3.6]:1", "[::1.2.3.4]:1"].map(from)).await;
    let thousand: Vec<Sent> = (0..1_000).map(|i| from(&format!("[2001:db8:1:2:{i:x}::{i:x}]:80"))).collect();
    assert_together(client_ip(), &thousand).await;
    assert_apart(client_ip(), &["[2001:db8:1:2::1]:1", "[2001:db8:1:3::1]:1", "[fe80::1%3]:1"].map(from)).await;
    assert_together(client_ip().ipv6_prefix(56), &["[2001:db8:1:2::1]:1", "[2001:db8:1:3::1]:1"].map(from)).await;
    assert_apart(client_ip().ipv6_prefix(128), &["[2001:db8:1:2::1]:1", "[2001:db8:1:2::2]:1"].map(from)).await;
    assert_together(client_ip().ipv6_prefix(1), &["[2001:db8:1:2::1]:1", "[3001::2]:1"].map(from)).await;
}

#[tokio::test]
async fn headers_that_anybody_can_write_do_not_make_a_client() {
    let spoofed: Vec<Sent> = (0..100)
        .map(|i| {
            let mut request = from("10.0.0.1:1");
            for name in ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip"] {
                request.headers_mut().insert(name, format!("1.1.1.{i}").parse().expect("a value"));
            }
            request
        })
        .collect();
    assert_together(client_ip(), &spoofed).await;
}

#[tokio::test]
async fn axum_and_tonic_tell_the_peer_too() {
    let mut by_axum = get("/");
    by_axum.extensions_mut().insert(axum::extract::ConnectInfo(SocketAddr::from(([1, 2, 3, 4], 5))));
    let mut by_tonic = get("/");
    by_tonic.extensions_mut().insert(tonic::transport::server::TcpConnectInfo {
        local_addr: None,
        remote_addr: Some(SocketAddr::from(([1, 2, 3, 4], 6))),
    });
    let mut by_mock = get("/");
    let mock = axum::extract::connect_info::MockConnectInfo(SocketAddr::from(([1, 2, 3, 4], 8)));
    by_mock.extensions_mut().insert(mock);
    assert_together(client_ip(), &[by_axum, by_tonic, by_mock, from("1.2.3.4:7")]).await;
}

#[tokio::test]
async fn a_header_counts_byte_by_byte() {
    let values: [&[u8]; 7] = [b"a", b"A", b"a ", b"", b"\xff\xfe", b"a|b", b"%61"];
    // Spaces around a value are not part of it on the wire, but an in-process request keeps them.
    assert_apart(header("x-tenant"), &values.map(|value| with_headers(&[("x-tenant", value)]))).await;
    assert_apart(header("x-api-key"), &values.map(|value| with_headers(&[("x-api-key", value)]))).await;
}

#[tokio::test]
async fn a_missing_value_follows_the_extractors_rule() {
    let (none, twice) = (with_headers(&[]), with_headers(&[("x-a", b"1"), ("x-a", b"2")]));
    assert_together(header("x-a"), &[none.clone(), none.clone(), twice.clone()]).await;
    assert_apart(
        header("x-a"),
        &[none.clone(), with_headers(&[("x-a", b"")]), with_headers(&[("x-a", b"~")]), with_headers(&[("x-a", b"-")])],
    )
    .await;

    let skipping = once_each(header("x-a").or_skip());
    for _ in 0..3 {
        assert_eq!(skipping.clone().oneshot(none.clone()).await.expect("an answer").status(), StatusCode::OK);
    }
    // Doubling a header is no way around.
    let doubled = with_headers(&[("x-a", b"3"), ("x-a", b"3")]);
    assert_together(header("x-a").or_skip(), &[twice.clone(), twice.clone(), doubled]).await;
    let rejecting = once_each((header("x-b"), header("x-a").or_reject()));
    let answer = Answer::of(rejecting.clone().oneshot(twice).await.expect("an answer")).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.json()["detail"].as_str().is_some_and(|detail| detail.contains("x-a")));
    let mut grpc = none;
    grpc.headers_mut().insert("content-type", "application/grpc".parse().expect("a value"));
    let answer = Answer::of(rejecting.oneshot(grpc).await.expect("an answer")).await;
    assert_eq!((answer.status, answer.text("grpc-status")), (StatusCode::OK, Some("3")));
}

#[tokio::test]
async fn parts_of_a_request_make_keys() {
    assert_together(global(), &[get("/a"), get("/b")]).await;
    assert_apart(method(), &[get("/"), Request::post("/").body(Full::default()).expect("a request")]).await;
    assert_apart(path(), &[get("/a"), get("/b"), get("/a/b")]).await;
    assert_together(path(), &[get("/a?x"), get("//a"), get("/./a"), get("/%61")]).await;
    assert_together(matched_path(), &[get("/a"), get("/b")]).await;
    assert_apart(grpc_service(), &[grpc("/a.B/C"), grpc("/a.C/C"), grpc("/not-grpc")]).await;
    assert_together(grpc_service(), &[grpc("/a.B/C"), grpc("/a.B/D")]).await;
    assert_together(grpc_service(), &[get("/a.B/C"), get("/x/y"), get("/")]).await;
    assert_apart(grpc_method(), &[grpc("/a.B/C"), grpc("/a.B/D"), grpc("/a/B/C")]).await;
    let host = key_fn(|request| Some(request.headers.get("host")?.to_str().ok()?.to_owned()));
    assert_apart(host, &[with_headers(&[("host", b"a")]), with_headers(&[("host", b"b")]), get("/")]).await;
}

#[tokio::test]
async fn a_tuple_keeps_its_parts_apart() {
    let pair = |a: &[u8], b: &[u8]| with_headers(&[("x-a", a), ("x-b", b)]);
    let requests =
        [pair(b"1", b"2"), pair(b"1|2", b""), pair(b"", b"1|2"), pair(b"12", b""), with_headers(&[("x-a", b"1")])];
    assert_apart((header("x-a"), header("x-b")), &requests).await;
    assert_apart((global(), method(), path(), header("x-a")), &[get("/a"), get("/b")]).await;
}

#[tokio::test]
async fn what_authentication_found_makes_a_key() {
    #[derive(Clone)]
    struct User(u64);
    let by = |id| {
        let mut request = get("/");
        request.extensions_mut().insert(User(id));
        request
    };
    assert_apart(extension::<User>(|user| user.0.to_string()), &[by(1), by(2), get("/")]).await;
    assert_together(extension::<User>(|user| (user.0 / 10).to_string()), &[by(1), by(2)]).await;
}

#[tokio::test]
async fn no_secret_is_kept_readable_on_redis() {
    let server = Server::start();
    let mut admin = server.admin();
    let secrets = [
        ("authorization", "Bearer hunter2"),
        ("x-api-key", "hunter2"),
        ("cookie", "id=hunter2"),
        ("x-session-id", "hunter2"),
    ];
    let mut keys_seen = std::collections::HashSet::new();
    for key_secret in [None, Some("pepper"), Some("other pepper")] {
        let mut limiter = Limiter::new(Redis::open(&server.url()).expect("an address"));
        if let Some(secret) = key_secret {
            limiter = limiter.key_secret(secret);
        }
        for (name, value) in secrets {
            let layer =
                RateLimitLayer::new(limiter.clone()).rule(Rule::new("secret", Quota::per_hour(9)).by(header(name)));
            let service =
                layer.layer(service_fn(async |_: Sent| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
            let _ = service.oneshot(with_headers(&[(name, value.as_bytes())])).await;
        }
        let plain =
            RateLimitLayer::new(limiter).rule(Rule::new("plain", Quota::per_hour(9)).by(header("x-api-key").plain()));
        let service =
            plain.layer(service_fn(async |_: Sent| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
        let _ = service.oneshot(with_headers(&[("x-api-key", b"readable")])).await;
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin).expect("KEYS");
        assert!(keys.iter().all(|key| !key.contains("hunter2")), "{keys:?}");
        assert!(keys.iter().any(|key| key.ends_with(":plain:readable")), "{keys:?}");
        keys_seen.extend(keys.into_iter().filter(|key| key.contains(":secret:")));
        let _: () = redis::cmd("FLUSHALL").query(&mut admin).expect("FLUSHALL");
    }
    // Three different values under three ways of hashing.
    assert_eq!(keys_seen.len(), 9, "{keys_seen:?}");
    assert!(Key::from("x").as_str() == "x");
}

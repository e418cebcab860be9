//! Each mistake that a layer can see is told, once, with a link to what it means.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{LazyLock, Mutex, MutexGuard},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::Full;
use tollgate::{
    ConcurrencyLimitLayer, IdempotencyLayer, Limiter, Memory, PeerAddr, Quota, RateLimitLayer, Redis, Rule,
    layer::{client_ip, extension, global, header as by_header},
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

type Sent = Request<Full<Bytes>>;

/// What this process has logged.
static LOG: LazyLock<&'static Mutex<Vec<u8>>> = LazyLock::new(|| {
    let log: &'static Mutex<Vec<u8>> = Box::leak(Box::default());
    struct Writer(MutexGuard<'static, Vec<u8>>);
    impl io::Write for Writer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || Writer(log.lock().expect("a log"))).init();
    log
});

/// Returns the lines of the log that lead to this place.
fn told(anchor: &str) -> Vec<String> {
    let log = String::from_utf8(LOG.lock().expect("a log").clone()).expect("text");
    log.lines().filter(|line| line.ends_with(&format!("/warnings/#{anchor}"))).map(str::to_owned).collect()
}

fn from(peer: &str) -> Sent {
    let mut request = Sent::default();
    request.extensions_mut().insert(PeerAddr(SocketAddr::new(peer.parse().expect("an address"), 4_711)));
    request
}

async fn send(layer: &RateLimitLayer, request: Sent) {
    LazyLock::force(&LOG);
    let inner = service_fn(async |_: Sent| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    layer.layer(inner).oneshot(request).await.expect("an answer");
}

fn layer(rule: Rule) -> RateLimitLayer {
    LazyLock::force(&LOG);
    RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule)
}

fn rule() -> Rule {
    Rule::new("r", Quota::per_hour(1))
}

/// Asserts that it was told once, at a level, with words that help.
fn assert_told(anchor: &str, level: &str, words: &[&str]) {
    let lines = told(anchor);
    assert_eq!(lines.len(), 1, "{anchor}: {lines:#?}");
    assert!(lines[0].contains(level) && words.iter().all(|word| lines[0].contains(word)), "{}", lines[0]);
}

#[tokio::test]
async fn a_peer_that_is_not_known() {
    for _ in 0..3 {
        send(&layer(rule()), Sent::default()).await;
    }
    assert_told("peer-unknown", "ERROR", &["into_make_service_with_connect_info", "PeerAddr", "feature `tonic`"]);
}

#[tokio::test]
async fn a_proxy_that_nobody_listens_to() {
    for name in ["x-forwarded-for", "forwarded"] {
        let mut request = from("10.0.0.1");
        request.headers_mut().insert(name, HeaderValue::from_static("for=1.2.3.4"));
        send(&layer(rule().by(client_ip().hops(1).header(name))), request.clone()).await;
        send(&layer(rule()), request).await;
    }
    assert_told("forwarded-not-trusted", "WARN", &["`x-forwarded-for`", "client_ip().trust", "client_ip().hops(1)"]);
}

#[test]
fn trust_in_everybody() {
    for everybody in ["0.0.0.0/0", "::/0"] {
        let _ = layer(rule().by(client_ip().trust(["10.0.0.0/8", everybody])));
    }
    assert_told("trusts-everybody", "WARN", &["`hops`"]);
}

#[tokio::test]
async fn one_key_for_all() {
    let (shared, apart, meant) =
        (layer(rule().by(by_header("x-user"))), layer(rule().by(by_header("x-user"))), layer(rule().by(global())));
    for i in 0..999u32 {
        send(&shared, from("10.0.0.1")).await;
        send(&meant, from("10.0.0.1")).await;
        let mut request = from("10.0.0.1");
        request.headers_mut().insert("x-user", HeaderValue::from(i / 998));
        send(&apart, request).await;
    }
    send(&meant, from("10.0.0.1")).await;
    send(&apart, from("10.0.0.1")).await;
    assert_eq!(told("one-key"), [""; 0]);
    for _ in 0..2_000 {
        send(&shared, from("10.0.0.1")).await;
    }
    assert_told("one-key", "WARN", &["`r`", "by(global())", "proxy"]);
}

#[tokio::test]
async fn authentication_further_in() {
    #[derive(Clone)]
    struct User;
    let by_user = || layer(rule().by(extension::<User>(|_| "one".to_owned())));
    let (never, sometimes) = (by_user(), by_user());
    let mut known = from("10.0.0.1");
    known.extensions_mut().insert(User);
    for i in 0..200 {
        send(&sometimes, if i == 50 { known.clone() } else { from("10.0.0.1") }).await;
    }
    assert_eq!(told("no-identity"), [""; 0]);
    for _ in 0..200 {
        send(&never, from("10.0.0.1")).await;
    }
    assert_told("no-identity", "WARN", &["User", "authentication"]);
}

#[tokio::test]
async fn cors_further_in() {
    let preflight = |headers: [(header::HeaderName, &'static str); 2]| {
        let mut request = Request::options("/").body(Full::<Bytes>::default()).expect("a request");
        for (name, value) in headers {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        request
    };
    let cors = service_fn(async |_: Sent| {
        let mut response = Response::new(Full::<Bytes>::default());
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        Ok::<_, Infallible>(response)
    });
    let service = ServiceBuilder::new().layer(layer(rule().by(global()))).service(cors);
    let origin = (header::ORIGIN, "https://example.com");
    service.clone().oneshot(preflight([origin.clone(), origin.clone()])).await.expect("an answer");
    assert_eq!(told("cors-inside"), [""; 0]);
    for _ in 0..3 {
        let request = preflight([origin.clone(), (header::ACCESS_CONTROL_REQUEST_METHOD, "PUT")]);
        service.clone().oneshot(request).await.expect("an answer");
    }
    assert_told("cors-inside", "WARN", &["CORS outside"]);
}

#[tokio::test]
async fn two_rules_of_one_name_in_nested_layers() {
    let inner = service_fn(async |_: Sent| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let by_all = || layer(Rule::new("same", Quota::per_hour(9)).by(global()));
    let service = ServiceBuilder::new().layer(by_all()).layer(by_all()).service(inner);
    for _ in 0..3 {
        service.clone().oneshot(Sent::default()).await.expect("an answer");
    }
    assert_told("name-twice", "WARN", &["`same`"]);
}

#[tokio::test]
async fn secrets_that_leave_the_process_as_plain_hashes() {
    LazyLock::force(&LOG);
    let (memory, redis) = (Memory::new(), Redis::open("redis://127.0.0.1:1").expect("an address"));
    // What is told is told before the store is asked, which is not there.
    let ask = async |layer: IdempotencyLayer| {
        let mut request = Request::post("/").body(Full::<Bytes>::default()).expect("a request");
        request.headers_mut().insert("idempotency-key", HeaderValue::from_static("\"k\""));
        request.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
        layer.layer(inner).oneshot(request).await.expect("an answer");
    };
    ask(IdempotencyLayer::new(&memory, by_header("authorization"))).await;
    ask(IdempotencyLayer::new(&redis, global())).await;
    ask(IdempotencyLayer::new(&redis, by_header("authorization")).key_secret("pepper")).await;
    let count = ConcurrencyLimitLayer::new(&memory, "work", 1).by(by_header("authorization"));
    let inner = service_fn(async |_: Sent| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let mut request = Sent::default();
    request.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer x"));
    count.layer(inner).oneshot(request).await.expect("an answer");
    assert_eq!(told("unkeyed-secrets"), [""; 0]);
    for _ in 0..2 {
        // An empty one, as from a variable that is not set, is none.
        ask(IdempotencyLayer::new(&redis, by_header("authorization")).key_secret("")).await;
    }
    assert_told("unkeyed-secrets", "WARN", &["`key_secret`"]);
}

//! Who is behind the proxies.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tollgate::{
    Key, Limiter, Memory, PeerAddr, Quota, RateLimitLayer, Rule,
    layer::{ClientIp, client_ip, global},
};
use tower::{Layer, ServiceExt, service_fn};

type Sent = Request<Full<Bytes>>;

fn from(peer: &str, headers: &[(&str, &str)]) -> Sent {
    let mut request = Sent::default();
    let peer = peer.parse().expect("an address");
    request.extensions_mut().insert(PeerAddr(SocketAddr::new(peer, 4_711)));
    for (name, value) in headers {
        let name: HeaderName = name.parse().expect("a name");
        request.headers_mut().append(name, HeaderValue::from_str(value).expect("a value"));
    }
    request
}

/// Returns the address that a request is counted by: the one that cannot ask once more.
async fn counted(key: ClientIp, request: Sent) -> String {
    let limiter = Limiter::new(Memory::new());
    let layer = RateLimitLayer::new(limiter.clone())
        .rule(Rule::new("r", Quota::per_hour(1)).by(key.ipv6_prefix(128)))
        .expose_decision();
    let policy = tollgate::Policy::token_bucket("r", Quota::per_hour(1));
    let service = layer.layer(service_fn(async |_: Sent| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
    let answer = service.oneshot(request).await.expect("an answer");
    if answer.status() == StatusCode::INTERNAL_SERVER_ERROR {
        return "nobody".to_owned();
    }
    for candidate in CANDIDATES {
        let key = if candidate.contains(':') { format!("{candidate}/128") } else { (*candidate).to_owned() };
        if limiter.peek(&policy, Key::from(&key)).await.remaining() == Some(0) {
            return (*candidate).to_owned();
        }
    }
    "somebody else".to_owned()
}

const CANDIDATES: &[&str] = &[
    "203.0.113.7",
    "203.0.113.8",
    "6.6.6.6",
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "2001:db8::7",
    "2001:db8::1:443",
    "198.51.100.1",
    "fe80::1",
    "::1",
];

#[tokio::test]
async fn the_client_is_the_last_address_that_no_trusted_proxy_has() {
    let trusting = || client_ip().trust(["10.0.0.0/8"]);
    let list = |list: &str| from("10.0.0.1", &[("x-forwarded-for", list)]);
    for (request, client) in [
        (list("203.0.113.7"), "203.0.113.7"),
        (list("2001:db8::7"), "2001:db8::7"),
        (list("203.0.113.7:51000"), "203.0.113.7"),
        (list("[2001:db8::7]:443"), "2001:db8::7"),
        (list("2001:db8::1:443"), "2001:db8::1:443"),
        (list("\"[2001:db8::7]:443\""), "2001:db8::7"),
        (list("fe80::1%eth0"), "fe80::1"),
        (list("6.6.6.6, 203.0.113.7, 10.0.0.2"), "203.0.113.7"),
        (list("6.6.6.6,203.0.113.7 ,\t10.0.0.2:80,10.0.0.3"), "203.0.113.7"),
        (list("203.0.113.7, ::ffff:10.0.0.2"), "203.0.113.7"),
        (list("203.0.113.7, [::ffff:a00:2]:80"), "203.0.113.7"),
        (list("::ffff:203.0.113.7"), "203.0.113.7"),
        // What cannot be read is not looked behind.
        (list("6.6.6.6, garbage"), "10.0.0.1"),
        (list("6.6.6.6, garbage, 10.0.0.2"), "10.0.0.2"),
        (list("6.6.6.6, unknown, 10.0.0.2, 10.0.0.3"), "10.0.0.2"),
        (list("6.6.6.6, _hidden"), "10.0.0.1"),
        (list("6.6.6.6,, 10.0.0.2"), "10.0.0.2"),
        (list("6.6.6.6,"), "10.0.0.1"),
        (list(""), "10.0.0.1"),
        (list("garbage, 203.0.113.7"), "203.0.113.7"),
        // All of them are proxies of ours: the first is where it began.
        (list("10.0.0.3, 10.0.0.2"), "10.0.0.3"),
        (from("10.0.0.1", &[]), "10.0.0.1"),
        // From anybody else the header means nothing.
        (from("198.51.100.1", &[("x-forwarded-for", "203.0.113.7")]), "198.51.100.1"),
        (from("::ffff:10.0.0.1", &[("x-forwarded-for", "203.0.113.7")]), "203.0.113.7"),
        (from("::ffff:198.51.100.1", &[("x-forwarded-for", "203.0.113.7")]), "198.51.100.1"),
        // A header of another kind is the client's own.
        (from("10.0.0.1", &[("forwarded", "for=6.6.6.6"), ("x-forwarded-for", "203.0.113.7")]), "203.0.113.7"),
        (from("10.0.0.1", &[("forwarded", "for=6.6.6.6"), ("x-real-ip", "6.6.6.6")]), "10.0.0.1"),
        // Several lines are one list.
        (from("10.0.0.1", &[("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "203.0.113.7")]), "203.0.113.7"),
        (
            from("10.0.0.1", &[("x-forwarded-for", "6.6.6.6, 203.0.113.7"), ("x-forwarded-for", "10.0.0.2")]),
            "203.0.113.7",
        ),
    ] {
        let told = format!("{request:?}");
        assert_eq!(counted(trusting(), request).await, client, "{told}");
    }
}

#[tokio::test]
async fn forwarded_is_read_as_its_rfc_has_it() {
    let trusting = || client_ip().trust(["10.0.0.0/8"]).header("Forwarded");
    let list = |list: &str| from("10.0.0.1", &[("forwarded", list)]);
    for (request, client) in [
        (list("for=203.0.113.7"), "203.0.113.7"),
        (list("for=\"[2001:db8::7]:443\""), "2001:db8::7"),
        (list("for=6.6.6.6, For=203.0.113.7;proto=http, for=\"10.0.0.2:80\""), "203.0.113.7"),
        (list("for=203.0.113.7 ; proto = http , FOR = 10.0.0.2"), "203.0.113.7"),
        (list("for=203.0.113.7;host=\"a,b;for=6.6.6.6\""), "203.0.113.7"),
        (list("for=203.0.113.7;host=\"\\\"\", for=10.0.0.2"), "203.0.113.7"),
        (list("for=\"[::ffff:203.0.113.7]\""), "203.0.113.7"),
        (list("for=6.6.6.6, for=_hidden"), "10.0.0.1"),
        (list("for=6.6.6.6, for=unknown, for=10.0.0.2"), "10.0.0.2"),
        (list("for=6.6.6.6, proto=https"), "10.0.0.1"),
        (list("for=6.6.6.6, for=203.0.113.7;for=203.0.113.8"), "10.0.0.1"),
        (list("for=6.6.6.6, for=2001:db8::7"), "10.0.0.1"),
        (list("for=\"203.0.113.7:_port\""), "203.0.113.7"),
        // A quote that a client has left open takes nothing with it.
        (list("for=\"6.6.6.6, for=203.0.113.7"), "203.0.113.7"),
        (list("for=6.6.6.6;x=\", for=\"[2001:db8::7]:1\""), "2001:db8::7"),
        (from("10.0.0.1", &[("forwarded", "for=\"6.6.6.6"), ("forwarded", "for=203.0.113.7")]), "203.0.113.7"),
        (from("10.0.0.1", &[("x-forwarded-for", "6.6.6.6"), ("forwarded", "for=203.0.113.7")]), "203.0.113.7"),
        (from("198.51.100.1", &[("forwarded", "for=203.0.113.7")]), "198.51.100.1"),
    ] {
        let told = format!("{request:?}");
        assert_eq!(counted(trusting(), request).await, client, "{told}");
    }
}

#[tokio::test]
async fn hops_count_from_the_end_of_the_list() {
    let list = |list: &str| from("198.51.100.1", &[("x-forwarded-for", list)]);
    for (hops, request, client) in [
        (1, list("203.0.113.7"), "203.0.113.7"),
        (1, list("6.6.6.6, 203.0.113.7"), "203.0.113.7"),
        (2, list("203.0.113.7, 10.0.0.2"), "203.0.113.7"),
        (2, list("6.6.6.6, 203.0.113.7:80, 10.0.0.2:80"), "203.0.113.7"),
        (2, list("6.6.6.6, 203.0.113.7, unknown"), "203.0.113.7"),
        (3, list("203.0.113.7, 10.0.0.3, 10.0.0.2"), "203.0.113.7"),
        // Fewer than there are proxies: it came another way.
        (2, list("203.0.113.7"), "198.51.100.1"),
        (1, from("198.51.100.1", &[]), "198.51.100.1"),
        (3, list("6.6.6.6, 203.0.113.7"), "198.51.100.1"),
        // It cannot be read: the nearest to its right, else the peer.
        (1, list("6.6.6.6, garbage"), "198.51.100.1"),
        (2, list("6.6.6.6, garbage, 10.0.0.2"), "10.0.0.2"),
        (2, list("garbage, garbage"), "198.51.100.1"),
        (
            2,
            from("198.51.100.1", &[("x-forwarded-for", "6.6.6.6, 203.0.113.7"), ("x-forwarded-for", "10.0.0.2")]),
            "203.0.113.7",
        ),
    ] {
        let told = format!("{hops} {request:?}");
        assert_eq!(counted(client_ip().hops(hops), request).await, client, "{told}");
    }
    let forwarded = from("198.51.100.1", &[("forwarded", "for=6.6.6.6, for=\"[2001:db8::7]\", for=10.0.0.2")]);
    assert_eq!(counted(client_ip().hops(2).header("forwarded"), forwarded).await, "2001:db8::7");
    // Behind a Unix socket there is no peer, and the count needs none.
    let mut no_peer = list("203.0.113.7");
    no_peer.extensions_mut().clear();
    assert_eq!(counted(client_ip().hops(1), no_peer.clone()).await, "203.0.113.7");
    assert_eq!(counted(client_ip().hops(2), no_peer.clone()).await, "nobody");
    assert_eq!(counted(client_ip().trust(["10.0.0.0/8"]), no_peer).await, "nobody");
}

#[tokio::test]
async fn a_header_of_one_address_is_one_line_with_one_address() {
    let sent = |name: &str, values: &[&str]| {
        let headers: Vec<_> = values.iter().map(|value| (name, *value)).collect();
        from("198.51.100.1", &headers)
    };
    for (name, values, client) in [
        ("cf-connecting-ip", &["203.0.113.7"][..], "203.0.113.7"),
        ("CF-Connecting-IP", &[" 2001:db8::7 "], "2001:db8::7"),
        ("x-real-ip", &["203.0.113.7:80"], "203.0.113.7"),
        ("fly-client-ip", &["::ffff:203.0.113.7"], "203.0.113.7"),
        ("x-real-ip", &["203.0.113.7", "203.0.113.8"], "198.51.100.1"),
        ("x-real-ip", &["203.0.113.7", "203.0.113.7"], "198.51.100.1"),
        ("x-real-ip", &["203.0.113.7, 203.0.113.8"], "198.51.100.1"),
        ("x-real-ip", &["garbage"], "198.51.100.1"),
        ("x-real-ip", &[""], "198.51.100.1"),
        ("x-real-ip", &[], "198.51.100.1"),
        ("cloudfront-viewer-address", &["203.0.113.7:51000"], "203.0.113.7"),
        ("cloudfront-viewer-address", &["2001:db8::7:51000"], "2001:db8::7"),
        ("cloudfront-viewer-address", &["2001:db8::1:443:51000"], "2001:db8::1:443"),
    ] {
        assert_eq!(counted(client_ip().header(name), sent(name, values)).await, client, "{name} {values:?}");
    }
    let trusting = || client_ip().trust(["10.0.0.0/8"]).header("x-real-ip");
    for (peer, client) in [("10.0.0.1", "203.0.113.7"), ("198.51.100.1", "198.51.100.1")] {
        assert_eq!(counted(trusting(), from(peer, &[("x-real-ip", "203.0.113.7")])).await, client);
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_an_error_that_says_what_does() {
    let wrong: [(ClientIp, &[&str]); 16] = [
        (client_ip().trust(["10.0.0.0/8"]).hops(1), &["`trust` and `hops` together", "`hops` alone"]),
        (client_ip().header("x-forwarded-for"), &["`x-forwarded-for` without", "`trust`", "`hops`"]),
        (client_ip().header("Forwarded"), &["`forwarded` without", "`trust`", "`hops`"]),
        (client_ip().hops(0), &["no hops", "how many"]),
        (client_ip().hops(1).header("x-real-ip"), &["`x-real-ip` holds one address", "`trust`"]),
        (client_ip().header("x real ip"), &["`x real ip` is not a header name", "`x-forwarded-for`"]),
        (client_ip().header(""), &["`` is not a header name"]),
        (client_ip().trust(Vec::<String>::new()), &["`trust` names nobody", "leave it out"]),
        (client_ip().trust(["10.0.0.0/33"]), &["`10.0.0.0/33`", "`10.0.0.0/8`"]),
        (client_ip().trust(["10.0.0.0/8", "localhost"]), &["`localhost`"]),
        (client_ip().trust(["10.0.0.0/8"]).trust(["x\ny"]), &["`x\\ny`"]),
        (client_ip().trust(["::ffff:10.0.0.0/90"]), &["`::ffff:10.0.0.0/90`"]),
        (client_ip().ipv6_prefix(0), &["`ipv6_prefix` of 0", "1 to 128"]),
        (client_ip().ipv6_prefix(129), &["`ipv6_prefix` of 129"]),
        (client_ip().ipv4_prefix(0), &["`ipv4_prefix` of 0", "1 to 32"]),
        (client_ip().ipv4_prefix(33), &["`ipv4_prefix` of 33"]),
    ];
    for (key, parts) in wrong {
        let layer = || RateLimitLayer::new(Limiter::new(Memory::new()));
        let told = format!("{key:?}");
        let error = layer().try_rule(Rule::new("mine", Quota::per_hour(1)).by(key.clone())).expect_err(&told);
        let text = error.to_string();
        assert!(error.is_invalid() && text.starts_with("rule `mine`: client address: "), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        // As a part of another it is looked at too.
        let together = Rule::new("mine", Quota::per_hour(1)).by((global(), key.clone()));
        assert!(layer().try_rule(together).is_err(), "{told}");
        assert!(layer().try_rule(Rule::new("mine", Quota::per_hour(1)).by(std::sync::Arc::new(key))).is_err());
    }
}

/// Sends them all, and returns how many passed of one unit each.
async fn passed(rules: Vec<Rule>, requests: Vec<Sent>) -> usize {
    let layer = rules.into_iter().fold(RateLimitLayer::new(Limiter::new(Memory::new())), RateLimitLayer::rule);
    let service = layer.layer(service_fn(async |_: Sent| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
    let mut count = 0;
    for request in requests {
        count += usize::from(service.clone().oneshot(request).await.expect("an answer").status() == StatusCode::OK);
    }
    count
}

fn once(key: ClientIp) -> Vec<Rule> {
    vec![Rule::new("r", Quota::per_hour(1)).by(key)]
}

#[tokio::test]
async fn a_thousand_headers_of_one_peer_are_one_client() {
    let rotated = |peer: &'static str| -> Vec<Sent> {
        let header = |i: u32| format!("{}, {}", std::net::Ipv4Addr::from(i * 7_919), std::net::Ipv4Addr::from(i));
        (0..1_000)
            .map(|i| from(peer, &[("x-forwarded-for", header(i).as_str()), ("forwarded", &format!("for={}", i))]))
            .collect()
    };
    assert_eq!(passed(once(client_ip()), rotated("198.51.100.1")).await, 1);
    assert_eq!(passed(once(client_ip().trust(["10.0.0.0/8"])), rotated("198.51.100.1")).await, 1);
    // A client that forges what a trusted proxy then appends to is still the one that the proxy names.
    let forged = (0..1_000).map(|i| {
        let header = format!("{}, 203.0.113.7", std::net::Ipv4Addr::from(i * 7_919));
        from("10.0.0.1", &[("x-forwarded-for", &header)])
    });
    assert_eq!(passed(once(client_ip().trust(["10.0.0.0/8"])), forged.clone().collect()).await, 1);
    assert_eq!(passed(once(client_ip().hops(1)), forged.collect()).await, 1);
}

#[tokio::test]
async fn spellings_of_one_client_are_one_and_mapped_clients_are_two() {
    let list = |list: &str| from("10.0.0.1", &[("x-forwarded-for", list)]);
    let six = [
        "203.0.113.7",
        "203.0.113.7:1",
        "::ffff:203.0.113.7",
        "[::ffff:cb00:7107]:2",
        "\"203.0.113.7\"",
        "::FFFF:CB00:7107",
    ];
    let trusting = || client_ip().trust(["10.0.0.0/8"]);
    assert_eq!(passed(once(trusting()), six.map(list).into()).await, 1);
    let six =
        ["2001:db8::7", "2001:DB8:0:0::7", "[2001:db8::7]:1", "[2001:db8::7]", "2001:0db8::0007", "2001:db8::7%eth0"];
    assert_eq!(passed(once(trusting().ipv6_prefix(128)), six.map(list).into()).await, 1);
    let two = ["::ffff:203.0.113.7", "::ffff:203.0.113.8"];
    assert_eq!(passed(once(trusting()), two.map(list).into()).await, 2);
    assert_eq!(passed(once(client_ip()), two.map(|peer| from(peer, &[])).into()).await, 2);
}

#[tokio::test]
async fn a_prefix_makes_a_client_of_each_family_and_several_make_several_rules() {
    let peers = |peers: &[&str]| -> Vec<Sent> { peers.iter().map(|peer| from(peer, &[])).collect() };
    let v4 = ["203.0.113.7", "203.0.113.8", "203.0.112.1", "::ffff:203.0.113.9"];
    assert_eq!(passed(once(client_ip().ipv4_prefix(24)), peers(&v4)).await, 2);
    assert_eq!(passed(once(client_ip().ipv4_prefix(1)), peers(&v4)).await, 1);
    assert_eq!(passed(once(client_ip()), peers(&v4)).await, 4);
    let thousand: Vec<Sent> = (0..1_000).map(|i| from(&format!("2001:db8:1:2:{i:x}::{i:x}"), &[])).collect();
    assert_eq!(passed(once(client_ip()), thousand).await, 1);
    // A /48 with many /64: each of these one, all of them five.
    let rules = vec![
        Rule::new("network", Quota::per_hour(5)).by(client_ip().ipv6_prefix(48)),
        Rule::new("client", Quota::per_hour(1)).by(client_ip()),
    ];
    let many =
        (0..100).flat_map(|i| [from(&format!("2001:db8:1:{i:x}::1"), &[]), from(&format!("2001:db8:1:{i:x}::2"), &[])]);
    assert_eq!(passed(rules, many.collect()).await, 5);
}

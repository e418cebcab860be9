//! Against npm's proxy-addr, which Express goes by: both find the same client in random lists of random proxies.

use std::{
    convert::Infallible,
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use tollgate::{Key, Limiter, Memory, PeerAddr, Policy, Quota, RateLimitLayer, Rule, layer::client_ip};
use tower::{Layer, ServiceExt, service_fn};

type Sent = Request<Full<Bytes>>;

/// Few addresses, so that proxies, clients and ranges meet, in many spellings.
fn address() -> impl Strategy<Value = String> {
    let v4 = || (prop_oneof![Just(10u8), Just(192)], 0..3u8, 0..3u8).prop_map(|(a, b, d)| Ipv4Addr::new(a, b, 0, d));
    prop_oneof![
        4 => v4().prop_map(|address| address.to_string()),
        1 => v4().prop_map(|address| format!("::ffff:{address}")),
        1 => v4().prop_map(|address| address.to_ipv6_mapped().to_string().to_uppercase()),
        2 => (0..3u16, 0..3u16).prop_map(|(a, b)| format!("2001:db8:{a:x}::{b:x}")),
        1 => (0..3u16, 0..3u16).prop_map(|(a, b)| format!("2001:0DB8:{a:04x}:0:0:0:0:{b:04x}")),
    ]
}

fn element() -> impl Strategy<Value = String> {
    let bad = prop_oneof![Just("unknown"), Just("_hidden"), Just("garbage"), Just("10.0.0"), Just("1:2")];
    prop_oneof![8 => address(), 1 => bad.prop_map(str::to_owned)]
}

fn range() -> impl Strategy<Value = String> {
    prop_oneof![
        (address(), 0..=32u8).prop_map(|(address, bits)| match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => format!("{address}/{}", bits.max(8)),
            // A range of mapped addresses is one of IPv4 addresses, and shorter ones are of neither.
            _ => format!("{address}/{}", 96 + bits.max(8)),
        }),
        address(),
        Just("10.0.0.0/8".to_owned()),
    ]
}

/// Returns the address that a request is counted by, of those that it can be.
async fn counted(peer: &str, forwarded: &str, trust: &[String], candidates: &[IpAddr]) -> Option<IpAddr> {
    let limiter = Limiter::new(Memory::new());
    let key = client_ip().trust(trust).ipv6_prefix(128);
    let layer = RateLimitLayer::new(limiter.clone()).rule(Rule::new("r", Quota::per_hour(1)).by(key));
    let service = layer.layer(service_fn(async |_: Sent| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
    let mut request = Sent::default();
    request.extensions_mut().insert(PeerAddr(SocketAddr::new(peer.parse().expect("an address"), 4_711)));
    request.headers_mut().insert("x-forwarded-for", forwarded.parse().expect("a value"));
    service.oneshot(request).await.expect("an answer");
    let policy = Policy::token_bucket("r", Quota::per_hour(1));
    for candidate in candidates {
        let key = match candidate {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("{address}/128"),
        };
        if limiter.peek(&policy, Key::from(&key)).await.remaining() == Some(0) {
            return Some(*candidate);
        }
    }
    None
}

#[tokio::test]
async fn proxy_addr_finds_the_same_client() {
    let Ok(script) = std::env::var("TOLLGATE_PROXY_ADDR") else {
        println!("skipped: scripts/test --clients installs proxy-addr");
        return;
    };
    let mut runner = TestRunner::deterministic();
    let case = (address(), prop::collection::vec(element(), 0..6), prop::collection::vec(range(), 1..4));
    let mut next = || case.new_tree(&mut runner).expect("a case").current();
    let cases: Vec<_> = (0..CASES).map(|_| next()).collect();

    let mut node =
        Command::new("node").arg(&script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("node starts");
    let mut input = node.stdin.take().expect("its input");
    let lines: Vec<String> = cases
        .iter()
        .map(|(peer, list, trust)| {
            serde_json::json!({ "peer": peer, "forwarded": list.join(", "), "trust": trust }).to_string()
        })
        .collect();
    let writer = std::thread::spawn(move || input.write_all((lines.join("\n") + "\n").as_bytes()));
    let output = node.wait_with_output().expect("node ends");
    writer.join().expect("a thread").expect("all is read");
    let output = String::from_utf8(output.stdout).expect("text");
    let walked: Vec<Vec<String>> =
        output.lines().map(|line| serde_json::from_str(line).expect("a list of addresses")).collect();
    assert_eq!(walked.len(), CASES);

    let (mut beyond, mut bad) = (0, 0);
    for ((peer, list, trust), walked) in cases.iter().zip(walked) {
        // It stops at what is no address too, and names it; we name the proxy that has vouched for it.
        let client = walked.iter().rev().find_map(|address| address.parse::<IpAddr>().ok()).expect("a peer");
        let candidates: Vec<IpAddr> = walked.iter().filter_map(|address| address.parse::<IpAddr>().ok()).collect();
        let candidates: Vec<IpAddr> = candidates.iter().map(IpAddr::to_canonical).collect();
        beyond += usize::from(walked.len() > 1);
        bad += usize::from(walked.last().is_some_and(|last| last.parse::<IpAddr>().is_err()));
        let ours = counted(peer, &list.join(", "), trust, &candidates).await;
        assert_eq!(ours, Some(client.to_canonical()), "{peer} {list:?} {trust:?} {walked:?}");
    }
    println!("{CASES} cases, {beyond} beyond the peer, {bad} ended by what is no address");
    assert!(beyond > CASES / 4 && bad > CASES / 50);
}

const CASES: usize = 5_000;

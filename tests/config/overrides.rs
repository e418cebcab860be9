//! Other quotas for single keys.

use std::net::SocketAddr;

use axum::{Router, body::Body};
use tollgate::{
    Config, Key, Limiter, Memory, Policy, Quota, RateLimitLayer, Rule,
    config::Format,
    layer::{Exception, client_ip, global, header, method},
};

use crate::support::http::{Answer, get_from, send, serve};

async fn service(text: &str) -> (SocketAddr, RateLimitLayer) {
    let layer = RateLimitLayer::from_config(&Config::parse(text, Format::Toml).expect("right")).expect("known keys");
    (serve(Router::new().fallback(|| async { "hello" }).layer(layer.clone())).await, layer)
}

async fn ask(address: SocketAddr, name: &str, value: &str) -> Answer {
    send(address, None, http::Request::get("/").header(name, value).body(Body::empty()).expect("a request")).await
}

fn policy(answer: &Answer) -> &str {
    answer.text("ratelimit-policy").unwrap_or("none")
}

const BY_ADDRESS: &str = r#"
[[rule]]
name = "r"
quota = "2/hour"

  [[rule.override]]
  key = "127.0.0.2"
  quota = "5/hour"

  [[rule.override]]
  key = "127.0.2.0/24"
  quota = "7/hour"

  [[rule.override]]
  key = "127.0.0.0/16"
  quota = "3/hour"

  [[rule.override]]
  key = "127.0.2.9"
  quota = "unlimited"

  [[rule.override]]
  key = "127.1.0.0/16"
  quota = "blocked"
"#;

#[tokio::test]
async fn an_override_may_have_a_burst_of_its_own() {
    let text = r#"
        [[rule]]
        name = "r"
        key = "header:x-tenant"
        quota = "2/hour"
        burst = 1
        override = [{ key = "large", quota = "9/hour", burst = 3 }, { key = "fast", quota = "9/hour" }]
    "#;
    let (address, _) = service(text).await;
    for (tenant, most) in [("small", 1), ("large", 3), ("fast", 1)] {
        let mut allowed = 0;
        while ask(address, "x-tenant", tenant).await.status == 200 {
            allowed += 1;
        }
        assert_eq!(allowed, most, "{tenant}");
    }
}

#[tokio::test]
async fn an_exact_address_goes_before_a_range_and_a_longer_range_before_a_shorter() {
    let (address, _) = service(BY_ADDRESS).await;
    for (from, quota) in [
        ("127.0.0.2", r#""r";q=5;w=3600"#),
        ("127.0.0.3", r#""r";q=3;w=3600"#),
        ("127.0.2.1", r#""r";q=7;w=3600"#),
        ("127.0.2.9", "none"),
        ("127.2.0.1", r#""r";q=2;w=3600"#),
    ] {
        let answer = get_from(from, address, "/").await;
        assert_eq!((answer.status.as_u16(), policy(&answer)), (200, quota), "{from}");
    }
    let refused = get_from("127.1.0.1", address, "/").await;
    assert_eq!((refused.status.as_u16(), refused.text("retry-after")), (403, None));
    // Each client of a range has a quota of its own.
    for from in ["127.0.3.1", "127.0.3.2"] {
        for status in [200, 200, 200, 429] {
            assert_eq!(get_from(from, address, "/").await.status, status, "{from}");
        }
    }
}

#[tokio::test]
async fn an_address_is_found_before_addresses_are_counted_together() {
    let rule = Rule::new("r", Quota::per_hour(2))
        .by(client_ip().header("x-client"))
        .except(["2001:db8::5"], Exception::Quota(Quota::per_hour(9)))
        .except(["2001:db8:1::/48"], Exception::Quota(Quota::per_hour(7)))
        .except(["::ffff:192.0.2.1"], Exception::Quota(Quota::per_hour(6)));
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule);
    let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await;
    for (client, quota) in [
        ("2001:db8::5", "q=9"),
        ("2001:db8::6", "q=2"),
        ("2001:db8:1:2::1", "q=7"),
        ("192.0.2.1", "q=6"),
        ("192.0.2.2", "q=2"),
    ] {
        let answer = ask(address, "x-client", client).await;
        assert!(policy(&answer).contains(quota), "{client}: {}", policy(&answer));
    }
}

#[tokio::test]
async fn secrets_and_composite_keys_are_found_by_their_values() {
    let (address, layer) = service(
        r#"
        [store]
        key_secret = "pepper"

        [[rule]]
        name = "r"
        key = ["header:x-api-key", "method"]
        quota = "2/hour"
        override = [{ key = ["gold", "GET"], quota = "9/hour" }, { key = ["gold", "PUT"], quota = "8/hour" }]
        "#,
    )
    .await;
    assert!(policy(&ask(address, "x-api-key", "gold").await).contains("q=9"));
    assert!(policy(&ask(address, "x-api-key", "silver").await).contains("q=2"));
    drop(layer);
    let rule = Rule::new("r", Quota::per_hour(1))
        .by((header("x-tenant"), global(), method()))
        .except(["large", "GET"], Exception::Quota(Quota::per_hour(5)));
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule);
    let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await;
    assert!(policy(&ask(address, "x-tenant", "large").await).contains("q=5"));
}

#[tokio::test]
async fn an_override_counts_on_what_was_used() {
    let limiter = Limiter::new(Memory::new());
    let rule = |quota| {
        Rule::new("r", Quota::per_hour(2)).fixed_window().by(header("x-user")).except(["u"], Exception::Quota(quota))
    };
    let layer = RateLimitLayer::new(limiter.clone()).rule(rule(Quota::per_hour(5)));
    let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await;
    for status in [200, 200, 200] {
        assert_eq!(ask(address, "x-user", "u").await.status, status);
    }
    let base = Policy::fixed_window("r", Quota::per_hour(10));
    assert_eq!(limiter.peek(&base, Key::from("u")).await.remaining(), Some(7), "one state, whatever the quota");
}

#[tokio::test]
async fn a_shadow_rule_blocks_nobody() {
    let rule = Rule::new("r", Quota::per_hour(2)).by(header("x-user")).shadow().except(["u"], Exception::Blocked);
    let layer = RateLimitLayer::new(Limiter::new(Memory::new())).rule(rule);
    let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer)).await;
    assert_eq!(ask(address, "x-user", "u").await.status, 200);
}

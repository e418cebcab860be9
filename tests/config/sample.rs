//! The example of a whole file, served by the example server as it is.

use std::{ffi::OsStr, fs, time::Duration};

use tollgate::{Config, config::Format};

use crate::support::{
    example::Example,
    http::{get, send},
};

/// As the documentation of the design has it, but for the port of a server that is there.
const SAMPLE: &str = r#"
[store]
url      = "redis://127.0.0.1:6379"   # "memory" if the table is left out
prefix   = "tollgate"
deadline = "100ms"
on_error = "local"                    # allow | deny | local; a rule may differ
replicas = 3                          # for local: the share of one process
key_secret = "${TOLLGATE_KEY_SECRET}" # hashes secret-bearing keys; the same in every replica

[headers]
dialect = "draft-11"                  # draft-11 | draft-07 | draft-06 | x-ratelimit | none, or a list where they combine

[client_ip]
trust       = ["10.0.0.0/8"]          # or hops = 1
header      = "x-forwarded-for"       # or "forwarded", "cf-connecting-ip", ...
ipv6_prefix = 64

[[rule]]
name      = "per-ip"
key       = "client-ip"
quota     = "100/min"
algorithm = "token-bucket"
burst     = 20
cost      = 1
mode      = "enforce"
match     = { path = "/api/{*rest}", method = ["GET", "POST"], not = { path = "/api/health" } }
on_error  = "deny"
charge    = "always"

  [[rule.override]]
  key   = "203.0.113.7"
  quota = "1000/min"
"#;

#[tokio::test]
async fn the_example_server_serves_the_sample_and_follows_it() {
    let server = crate::support::server::Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tollgate.toml");
    let text = SAMPLE.replace("redis://127.0.0.1:6379", &server.url());
    fs::write(&file, &text).expect("written");
    let Some(example) = Example::start("axum", [OsStr::new("--config"), file.as_os_str()]) else { return };
    let answer = get(example.address, "/api/x").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.text("ratelimit-policy"), Some(r#""per-ip";q=100;w=60"#));
    assert!(answer.text("ratelimit").expect("the field").starts_with(r#""per-ip";r=19;"#));
    assert_eq!(get(example.address, "/api/health").await.text("ratelimit"), None);
    let request = http::Request::get("/api/x").body(axum::body::Body::empty()).expect("a request");
    assert_eq!(send(example.address, None, request).await.status, 200);
    fs::write(&file, text.replace("burst     = 20", "burst     = 2")).expect("written");
    for _ in 0..500 {
        if get(example.address, "/api/x").await.status == 429 {
            return;
        }
        // The file is followed by the real clock.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the changed file takes no effect");
}

#[test]
fn the_sample_lacks_only_its_secret() {
    let error = Config::parse(SAMPLE, Format::Toml).expect_err("no secret is set");
    assert!(
        error.to_string().starts_with("config:8:14: environment variable `TOLLGATE_KEY_SECRET` is not set"),
        "{error}"
    );
}

//! One meaning, whichever language it is written in.

use std::fs;

use tollgate::{
    Config, RateLimitLayer,
    config::Format,
    layer::{global, header},
};

use crate::support::http::{get, serve};

const TOML: &str = r#"
limit_preflights = true

[store]
deadline = "50ms"

[client_ip]
trust = ["10.0.0.0/8"]

[[rule]]
name = "api"
quota = "2/hour"
algorithm = "fixed-window"
match = { path = "/api/{*rest}", method = ["GET"], not = { path = "/api/health" } }

[[rule]]
name = "all"
key = "global"
quota = "5/hour"
"#;

const YAML: &str = r#"
# The same.
limit_preflights: true
store: { deadline: 50ms }
client_ip:
  trust: ["10.0.0.0/8"]
rule:
  - name: api
    quota: 2/hour
    algorithm: fixed-window
    match:
      path: "/api/{*rest}"
      method: [GET]
      not: { path: /api/health }
  - { name: all, key: global, quota: 5/hour }
"#;

const JSON: &str = r#"{
	"limit_preflights": true,
	"store": { "deadline": "50ms" },
	"client_ip": { "trust": ["10.0.0.0\/8"] },
	"rule": [
		{
			"name": "api", "quota": "2/hour", "algorithm": "fixed-window",
			"match": { "path": "/api/{*rest}", "method": "GET", "not": { "path": "/api/health" } }
		},
		{ "name": "all", "key": "global", "quota": "5/hour" }
	]
}"#;

#[tokio::test]
async fn all_formats_say_the_same() {
    for (format, text) in [(Format::Toml, TOML), (Format::Yaml, YAML), (Format::Json, JSON)] {
        let layer = RateLimitLayer::from_config(&Config::parse(text, format).expect("right")).expect("known keys");
        let app = axum::Router::new().fallback(|| async { "hello" }).layer(layer);
        let address = serve(app).await;
        let statuses = async |paths: &[&str]| {
            let mut statuses = Vec::new();
            for path in paths {
                statuses.push(get(address, path).await.status.as_u16());
            }
            statuses
        };
        let told = get(address, "/api/a").await;
        assert_eq!(told.text("ratelimit-policy"), Some(r#""api";q=2;w=3600, "all";q=5;w=3600"#), "{format:?}");
        assert_eq!(statuses(&["/api/b", "/api/c", "/api/health", "/"]).await, [200, 429, 200, 200], "{format:?}");
        assert_eq!(statuses(&["/", "/"]).await, [200, 429], "{format:?}");
    }
}

#[test]
fn the_language_of_a_file_is_told_by_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [("a.toml", TOML), ("a.yaml", YAML), ("a.YML", YAML), ("a.json", JSON)] {
        fs::write(folder.path().join(name), text).expect("written");
        assert!(Config::load(folder.path().join(name)).is_ok(), "{name}");
    }
    fs::write(folder.path().join("a.conf"), TOML).expect("written");
    let error = Config::load(folder.path().join("a.conf")).expect_err("no language");
    assert!(error.to_string().contains(".toml, .json, .yaml"), "{error}");
    let error = Config::load(folder.path().join("b.toml")).expect_err("no file");
    assert!(error.to_string().contains("b.toml: cannot be read"), "{error}");
    fs::write(folder.path().join("c.toml"), b"rules = []\n# \xff").expect("written");
    let error = Config::load(folder.path().join("c.toml")).expect_err("no text");
    assert!(error.to_string().contains("c.toml:2:3: no text in UTF-8"), "{error}");
}

#[test]
fn a_file_may_have_no_rule_only_on_purpose() {
    assert!(Config::parse("rules = []", Format::Toml).is_ok());
    assert!(Config::parse("{\"rules\": []}", Format::Json).is_ok());
    for (text, format) in [("", Format::Toml), ("", Format::Yaml), ("", Format::Json), ("rule = []", Format::Toml)] {
        let error = Config::parse(text, format).expect_err("nothing limited");
        assert!(error.to_string().contains("rules = []"), "{error}");
    }
}

#[test]
fn a_key_of_the_service_is_found_by_its_name() {
    let text = "[[rule]]\nname = 'a'\nquota = '1/s'\nkey = ['tenent', 'method']";
    let config = Config::parse(text, Format::Toml).expect("names are looked up later");
    let error = RateLimitLayer::from_config(&config).expect_err("nobody knows it");
    assert!(error.to_string().starts_with("config:4:8: nobody knows the key `tenent`"), "{error}");
    let config = config.with_key("tenant", header("x-tenant"));
    let error = RateLimitLayer::from_config(&config).expect_err("nobody knows it").to_string();
    assert!(error.contains("did you mean `tenant`?"), "{error}");
    assert!(RateLimitLayer::from_config(&config.with_key("tenent", global())).is_ok());
}

#[test]
fn a_configuration_keeps_its_secrets_to_itself() {
    let text = "[store]\nurl = 'redis://:hunter2@localhost'\nkey_secret = 'pepper'\n[[rule]]\nname='a'\nquota='1/s'";
    let config = Config::parse(text, Format::Toml).expect("right");
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("pepper"), "{shown}");
    let error = Config::parse("rules = []\n[store]\nkey_secret = 1234567", Format::Toml).expect_err("a number");
    assert!(!error.to_string().contains("1234567"), "{error}");
    let error = Config::parse("rules = []\n[store]\nurl = 'rediss:/:hunter2@x'", Format::Toml).expect_err("no address");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

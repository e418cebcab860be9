//! TLS: own authorities, client certificates, and no way around them.

use std::{fs, path::Path};

use tollgate::{Config, Demand, Policy, Quota, RateLimitLayer, Redis, Tls, config::Format, limit::Store};

use super::patient;
use crate::support::{certificates, sentinels::Sentinel, server::Server};

static POLICY: Policy = Policy::token_bucket("calls", Quota::per_hour(5));

/// Starts a server that speaks TLS alone, beside its plain port for the tests.
fn start(dir: &Path, more: &[&str]) -> (Server, String) {
    certificates::authority(dir, "ca");
    certificates::signed(dir, "server", "ca");
    let path = |file: &str| dir.join(file).to_str().expect("plain text").to_owned();
    let (cert, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let port = Server::free_port().to_string();
    let args = ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    (Server::start_with(&[&args[..], more].concat()), port)
}

async fn failure(redis: &Redis) -> String {
    let error = redis.decide(&[Demand::new(&POLICY, "user:42")]).await.expect_err("no trust");
    assert!(error.is_transient(), "{error:?}");
    format!("{error:?}")
}

#[tokio::test]
async fn a_server_is_trusted_by_an_authority_of_ours_and_by_no_other() {
    let dir = tempfile::tempdir().expect("a folder");
    let (server, port) = start(dir.path(), &["--tls-auth-clients", "no"]);
    certificates::authority(dir.path(), "other");
    let read = |file: &str| fs::read(dir.path().join(file)).expect(file);
    for host in ["127.0.0.1", "localhost"] {
        let redis = Redis::open(&format!("rediss://{host}:{port}/2")).expect("an address");
        let limiter = patient(redis.clone().tls(&Tls::new().ca_pem(read("ca.pem"))).expect("certificates"));
        assert!(!limiter.check(&POLICY, "user:42").await.is_degraded());

        let wrong = redis.clone().tls(&Tls::new().ca_pem(read("other.pem"))).expect("certificates");
        let said = failure(&wrong).await;
        assert!(said.contains("certificate"), "{said}");
        // The system trusts no authority of ours.
        let said = failure(&redis).await;
        assert!(said.contains("certificate"), "{said}");
    }
    // A certificate of the right authority for another name.
    let said = failure(
        &Redis::open(&format!("rediss://127.0.0.2:{port}"))
            .expect("an address")
            .tls(&Tls::new().ca_pem(read("ca.pem")))
            .expect("certificates"),
    )
    .await;
    assert!(said.contains("cannot connect"), "{said}");
    // Nobody who was not trusted was sent anything in the clear.
    assert_eq!(crate::support::calls(&mut server.admin(), "evalsha"), 2);
}

#[tokio::test]
async fn a_configuration_names_the_files_of_authorities_and_certificate() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_server, port) = start(dir.path(), &["--tls-auth-clients", "yes"]);
    certificates::signed(dir.path(), "client", "ca");
    let file = |name: &str| dir.path().join(name).to_str().expect("plain text").to_owned();
    let text = format!(
        "rules = []\n[store]\nurl = \"rediss://127.0.0.1:{port}\"\ndeadline = \"10s\"\n[store.tls]\nca = \"{}\"\n\
         cert = \"{}\"\nkey = \"{}\"\n",
        file("ca.pem"),
        file("client.pem"),
        file("client.key")
    );
    let layer = RateLimitLayer::from_config(&Config::parse(text.as_str(), Format::Toml).expect("right")).expect("made");
    assert!(!layer.limiter().check(&POLICY, "user:42").await.is_degraded());

    let told = |text: &str| Config::parse(text, Format::Toml).expect_err("wrong").to_string();
    let no_key = told(&text.replace("client.key", "server.pem"));
    assert_eq!(no_key, "config:5:1: tls: the client key holds no private key");
    let no_file = told(&text.replace("client.key", "nobody.key"));
    assert!(no_file.starts_with("config:8:7: `key`: `") && no_file.contains("cannot be read"), "{no_file}");
    let in_the_clear = told(&text.replace("rediss", "redis"));
    assert!(in_the_clear.contains("tls: the address is not rediss://"), "{in_the_clear}");
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_is_shown_ours() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_server, port) = start(dir.path(), &["--tls-auth-clients", "yes"]);
    certificates::signed(dir.path(), "client", "ca");
    certificates::authority(dir.path(), "other");
    certificates::signed(dir.path(), "stranger", "other");
    let read = |file: &str| fs::read(dir.path().join(file)).expect(file);
    let tls = || Tls::new().ca_pem(read("ca.pem"));
    let redis = Redis::open(&format!("rediss://127.0.0.1:{port}")).expect("an address");

    let known = redis.clone().tls(&tls().client_pem(read("client.pem"), read("client.key"))).expect("certificates");
    assert!(!patient(known).check(&POLICY, "user:42").await.is_degraded());
    let nobody = redis.clone().tls(&tls()).expect("certificates");
    assert!(failure(&nobody).await.contains("cannot connect"));
    let stranger = redis.tls(&tls().client_pem(read("stranger.pem"), read("stranger.key"))).expect("certificates");
    assert!(failure(&stranger).await.contains("cannot connect"));
}

#[tokio::test]
async fn sentinels_and_their_master_are_spoken_to_by_tls_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let (server, port) = start(dir.path(), &["--tls-auth-clients", "no", "--tls-replication", "yes"]);
    let file = |name: &str| dir.path().join(name).display().to_string();
    let lines = format!(
        "tls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\ntls-auth-clients no\ntls-replication yes",
        file("server.pem"),
        file("server.key"),
        file("ca.pem")
    );
    let sentinel = Sentinel::start(port.parse().expect("a port"), 1, &lines);
    let ca = fs::read(dir.path().join("ca.pem")).expect("readable");
    let open = |scheme| Redis::open(&format!("{scheme}+sentinel://127.0.0.1:{}/main", sentinel.port()));
    let redis = open("rediss").expect("an address").tls(&Tls::new().ca_pem(ca.clone())).expect("certificates");
    let demands = [Demand::new(&POLICY, "user:42")];
    let mut tries = 0;
    while let Err(error) = redis.decide(&demands).await {
        tries += 1;
        assert!(tries < 200, "{error:?}");
        // Real time, since a real sentinel starts.
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(crate::support::calls(&mut server.admin(), "evalsha"), 1);
    // The system trusts no authority of ours, and in the clear nobody answers.
    assert!(failure(&open("rediss").expect("an address")).await.contains("certificate"));
    failure(&open("redis").expect("an address")).await;
    let error = open("redis").expect("an address").tls(&Tls::new().ca_pem(ca)).expect_err("in the clear");
    assert!(error.to_string().contains("in the clear"), "{error}");
}

#[tokio::test]
async fn which_cryptography_a_process_uses_elsewhere_is_left_to_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_server, port) = start(dir.path(), &["--tls-auth-clients", "no"]);
    let redis = Redis::open(&format!("rediss://127.0.0.1:{port}")).expect("an address");
    let ca = fs::read(dir.path().join("ca.pem")).expect("readable");
    let redis = redis.tls(&Tls::new().ca_pem(ca)).expect("certificates");
    assert!(!patient(redis).check(&POLICY, "user:42").await.is_degraded());
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

#[test]
fn what_is_no_certificate_is_told_before_a_server_is_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    certificates::authority(dir.path(), "ca");
    certificates::signed(dir.path(), "client", "ca");
    certificates::signed(dir.path(), "second", "ca");
    let read = |file: &str| fs::read(dir.path().join(file)).expect(file);
    let (ca, cert, key) = (read("ca.pem"), read("client.pem"), read("client.key"));
    let damaged = b"-----BEGIN CERTIFICATE-----\n%%%%\n-----END CERTIFICATE-----\n";
    let empty = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (tls, says) in [
        (Tls::new().ca_pem("/etc/ssl/ca.pem"), "the CA is not PEM"),
        (Tls::new().ca_pem(""), "the CA is not PEM"),
        (Tls::new().ca_pem(key.clone()), "the CA holds no certificate"),
        (Tls::new().ca_pem(*damaged), "the CA is damaged PEM"),
        (Tls::new().ca_pem(*empty), "the CA has a certificate that is none"),
        (Tls::new().client_pem("x", key.clone()), "the client certificate is not PEM"),
        (Tls::new().client_pem(key.clone(), key.clone()), "the client certificate holds no certificate"),
        (Tls::new().client_pem(cert.clone(), "x"), "the client key is not PEM"),
        (Tls::new().client_pem(cert.clone(), cert.clone()), "the client key holds no private key"),
        (Tls::new().client_pem(cert.clone(), read("second.key")), "cannot be used with its key"),
    ] {
        let error = Redis::open("rediss://localhost").expect("an address").tls(&tls).expect_err(says);
        assert!(error.is_invalid() && error.to_string().contains(says), "{says}: {error:?}");
    }
    let tls = Tls::new().ca_pem(ca).client_pem(cert, key);
    assert_eq!(format!("{tls:?}"), "Tls { ca: true, client: true }");
    let error = Redis::open("redis://localhost").expect("an address").tls(&tls).expect_err("no TLS");
    assert!(error.to_string().contains("in the clear"), "{error}");
    let error = Redis::open("rediss://u:secret@localhost/#insecure").expect_err("no checks");
    assert!(error.to_string().contains("always checked") && !error.to_string().contains("secret"), "{error}");
}

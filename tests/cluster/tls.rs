//! TLS to the nodes.

use std::fs;

use tollgate::{Demand, Policy, Quota, Redis, Tls, limit::Store};

use crate::support::{certificates, cluster::Cluster, server::Server};

static POLICY: Policy = Policy::token_bucket("calls", Quota::per_day(100));

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_a_cluster_is_spoken_to_by_tls() {
    let dir = tempfile::tempdir().expect("a folder");
    certificates::authority(dir.path(), "ca");
    certificates::signed(dir.path(), "server", "ca");
    let path = |file: &str| dir.path().join(file).to_str().expect("plain text").to_owned();
    let (cert, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let port = Server::free_port().to_string();
    let tls = ["--tls-port", &port, "--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let _cluster = Cluster::start_with(1, 0, &[&tls[..], &["--tls-cluster", "yes"]].concat(), |_| None);
    let redis = Redis::open(&format!("rediss+cluster://127.0.0.1:{port}")).expect("an address");
    let said = redis.decide(&[Demand::new(&POLICY, "user:42")]).await.expect_err("no trust");
    assert!(format!("{said:?}").contains("certificate"), "{said:?}");
    certificates::signed(dir.path(), "client", "ca");
    let read = |file: &str| fs::read(dir.path().join(file)).expect(file);
    let tls = Tls::new().ca_pem(read("ca.pem")).client_pem(read("client.pem"), read("client.key"));
    let redis = redis.tls(&tls).expect("certificates");
    assert!(redis.decide(&[Demand::new(&POLICY, "user:42")]).await.expect("an answer").is_allowed());
}

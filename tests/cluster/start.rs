//! How a cluster is found.

use std::{net::TcpListener, time::Duration};

use tokio::time::{Instant, sleep};
use tollgate::{Demand, OnError, Policy, Quota, Redis, limit::Store};

use crate::{
    open, patient,
    support::{
        cluster::{Cluster, run},
        server::Server,
    },
};

static POLICY: Policy = Policy::token_bucket("calls", Quota::per_day(100)).on_error(OnError::Deny);

/// Returns all that an error tells.
async fn failure(url: &str) -> String {
    let redis = Redis::open(url).expect("an address");
    let error = redis.decide(&[Demand::new(&POLICY, "user:42")]).await.expect_err("it cannot be found");
    assert!(error.is_transient(), "{error:?}");
    format!("{error:?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_that_is_there_suffices_and_a_cluster_that_comes_later_is_found() {
    let mut cluster = Cluster::start(3);
    let port = |server: &Server| server.port();
    // One that refuses, one that takes calls and says nothing, and one that is well.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = silent.local_addr().expect("its address").port();
    let url = format!("redis+cluster://127.0.0.1:1,127.0.0.1:{silent},127.0.0.1:{}", port(&cluster.masters[2]));
    for _ in 0..3 {
        let started = Instant::now();
        let limiter = open(&url).deadline(Duration::from_secs(5));
        for node in 0..3 {
            let decision = limiter.check(&POLICY, cluster.subject_of(node, 0)).await;
            assert!(!decision.is_degraded(), "{decision:?}");
        }
        assert!(started.elapsed() < Duration::from_millis(600), "{:?}", started.elapsed());
    }

    let limiter = open(&cluster.url());
    assert!(!limiter.check(&POLICY, "user:42").await.is_degraded());
    cluster.masters.iter_mut().for_each(Server::kill);
    let late = open(&cluster.url());
    for _ in 0..20 {
        let started = Instant::now();
        assert!(late.check(&POLICY, "user:42").await.is_unavailable());
        assert!(limiter.check(&POLICY, "user:42").await.is_unavailable());
        assert!(started.elapsed() < Duration::from_millis(400), "{:?}", started.elapsed());
    }
    let said = failure(&cluster.url()).await;
    assert!(said.contains("cannot find the redis cluster"), "{said}");
    for server in &cluster.masters {
        assert!(said.contains(&format!("127.0.0.1:{}", port(server))), "{said}");
    }
    cluster.masters.iter_mut().for_each(Server::restart);
    let back = Instant::now();
    for limiter in [&late, &limiter] {
        for node in 0..3 {
            while limiter.check(&POLICY, cluster.subject_of(node, 0)).await.is_degraded() {
                assert!(back.elapsed() < Duration::from_secs(10), "it is not found");
                // Real time: real nodes take some two seconds to serve again.
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
    println!("decided again {:?} after all nodes were back", back.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told() {
    let cluster = Cluster::start(1);
    let node = &cluster.masters[0];
    run::<()>(node, "ACL SETUSER limited on >a-long-password ~tollgate:* +@all", &[]);
    let said = failure(&cluster.url_as("limited:wrong-one@")).await;
    assert!(said.contains("127.0.0.1") && said.to_lowercase().contains("password"), "{said}");
    assert!(!said.contains("wrong-one"), "{said}");
    // One that becomes right is used without a restart.
    let limiter = open(&cluster.url_as("limited:later@"));
    assert!(limiter.check(&POLICY, "user:42").await.is_unavailable());
    run::<()>(node, "ACL SETUSER limited >later", &[]);
    let started = Instant::now();
    while limiter.check(&POLICY, "user:42").await.is_degraded() {
        assert!(started.elapsed() < Duration::from_secs(2), "it is not used");
        // Real time: the server is asked again after a pause.
        sleep(Duration::from_millis(10)).await;
    }
    run::<()>(node, "ACL SETUSER limited -cluster", &[]);
    let said = failure(&cluster.url_as("limited:later@")).await;
    assert!(said.to_lowercase().contains("permission"), "{said}");

    let single = Server::start();
    let said = failure(&format!("redis+cluster://127.0.0.1:{}", single.port())).await;
    assert!(said.contains("cluster support disabled"), "{said}");
    let said = failure(&node.url()).await;
    assert!(said.contains("begins with redis+cluster://"), "{said}");
    run::<()>(node, "FLUSHALL", &[]);
    run::<()>(node, "CLUSTER FLUSHSLOTS", &[]);
    let said = failure(&cluster.url()).await;
    assert!(said.contains("serves any slot"), "{said}");
}

/// A limiter outlives a runtime, and two of them share it.
#[test]
fn one_limiter_serves_two_runtimes_in_turn_and_at_once() {
    let cluster = Cluster::start(1);
    let limiter = patient(&cluster.url());
    let check = async || limiter.check(&POLICY, "user:42").await;
    let [first, second] =
        [0, 1].map(|_| tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"));
    assert!(!first.block_on(check()).is_degraded());
    // The first runtime is alive, and nobody drives it.
    assert!(!second.block_on(check()).is_degraded());
    assert!(!first.block_on(check()).is_degraded());
    drop(first);
    assert!(!second.block_on(check()).is_degraded());
    drop(second);
    let third = tokio::runtime::Runtime::new().expect("a runtime");
    assert_eq!(third.block_on(check()).remaining(), Some(95));
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut cluster.masters[0].admin()).expect("CLIENT LIST");
    assert_eq!(clients.lines().count(), 2, "a runtime that ended left its connection behind: {clients}");
    drop(limiter);
    // Nobody can ask any more: all that was there for it ends.
    third.block_on(async {
        let started = Instant::now();
        loop {
            let clients: String =
                redis::cmd("CLIENT").arg("LIST").query(&mut cluster.masters[0].admin()).expect("CLIENT LIST");
            if clients.lines().count() == 1 && third.metrics().num_alive_tasks() == 0 {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(2), "{clients} {:?}", third.metrics().num_alive_tasks());
            // Real time: connections have to end.
            sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_wrong_address_says_what_to_write() {
    for (url, says) in [
        ("redis+cluster://", "host is missing"),
        ("redis+cluster://h1,", "host is missing"),
        ("redis+cluster://,h1", "host is missing"),
        ("redis+cluster://h1:port", "cannot be read"),
        ("redis+cluster://h1:99999", "cannot be read"),
        ("redis+cluster://h1,h2/3", "one database"),
        ("redis+cluster://h1?x=y", "one database"),
        ("redis+cluster://u:secret@h1:port", "cannot be read"),
        ("redis+cluster://u:secret@h1/secret", "one database"),
        ("rediss+cluster://h1#insecure", "fragment"),
        ("rediss+cluster://h1/1", "write rediss+cluster://"),
    ] {
        let error = Redis::open(url).expect_err(url);
        assert!(error.is_invalid(), "{error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
    let error = Redis::open("redis+cluster://u:secret@h1/3").expect_err("a database");
    assert!(error.to_string().contains("write redis+cluster://") && !format!("{error:?}").contains("secret"));
    for url in [
        "redis+cluster://h1",
        "valkey+cluster://h1/",
        "redis+cluster://u:p%40@h1:1,[::1],[::1]:5/0",
        "rediss+cluster://:p@h1",
    ] {
        assert!(Redis::open(url).is_ok(), "{url}");
    }
}

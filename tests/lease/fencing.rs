//! Writes that come too late are refused where they arrive.

use std::time::Duration;

use tollgate::lease::{FenceGate, Lock};

use super::{ms, open, sleep};
use crate::support::{assert_all_keys_expire, server::Server};

const KEPT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_write_of_a_former_holder_is_refused_as_soon_as_another_one_holds() {
    let server = Server::start();
    let redis = open(&server);
    let lock = Lock::new(&redis, "order:7").ttl(ms(60));
    let old = lock.acquire().await.expect("held").fence().expect("a fence");
    redis.write_fenced("order:7", old, b"one", KEPT).await.expect("the newest");
    redis.write_fenced("order:7", old, b"two", KEPT).await.expect("still the newest");
    sleep(ms(80)).await;
    let new = lock.acquire().await.expect("free");
    // Before the new one has written anything.
    let error = redis.write_fenced("order:7", old, b"late", KEPT).await.expect_err("too late");
    assert!(error.is_lost(), "{error:?}");
    assert_eq!(redis.read_fenced("order:7").await.expect("an answer"), Some((old, b"two".to_vec())));
    let new = new.fence().expect("a fence");
    redis.write_fenced("order:7", new, b"three", KEPT).await.expect("the newest");
    // Nor when the lease's own counter is lost.
    let counters: Vec<String> = redis::cmd("KEYS").arg("*:f:*").query(&mut server.admin()).expect("KEYS");
    let _: () = redis::cmd("DEL").arg(&counters).query(&mut server.admin()).expect("DEL");
    assert!(redis.write_fenced("order:7", old, b"late", KEPT).await.expect_err("too late").is_lost());
    assert_eq!(redis.read_fenced("order:8").await.expect("an answer"), None);
    assert_all_keys_expire(&mut server.admin());
}

#[tokio::test]
async fn a_lease_that_is_ended_by_force_can_write_no_more() {
    let server = Server::start();
    let redis = open(&server);
    let lock = Lock::new(&redis, "x");
    let guard = lock.acquire().await.expect("held");
    lock.force_release().await.expect("an answer");
    let fence = guard.fence().expect("a fence");
    assert!(redis.write_fenced("x", fence, b"late", KEPT).await.expect_err("too late").is_lost());
}

#[test]
fn a_gate_lets_nothing_back() {
    let gate = FenceGate::new();
    for fence in [3_u64, 3, 7, 7, 9] {
        gate.pass("x", fence.into()).expect("not older");
    }
    for fence in [3_u64, 8] {
        assert!(gate.pass("x", fence.into()).expect_err("older").is_lost());
    }
    gate.pass("y", 1.into()).expect("another name");
}

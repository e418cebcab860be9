//! Connections that the user made.

use std::{
    future, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};
use tollgate::{Demand, OnError, Policy, Quota, Redis, limit::Store};

use super::{access::use_all, patient};
use crate::support::{calls, connections, server::Server};

static POLICY: Policy = Policy::token_bucket("calls", Quota::per_hour(5)).on_error(OnError::Deny);

fn client(server: &Server) -> redis::Client {
    redis::Client::open(server.url()).expect("an address")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_the_users_own_does_all_that_ours_does() {
    let server = Server::start();
    let connection = client(&server).get_multiplexed_async_connection().await.expect("a connection");
    let before = connections(&mut server.admin());
    let limiter = patient(Redis::from_connection(connection.clone()));
    use_all(&limiter).await;
    // One that speaks RESP3 is answered in other types.
    let url = format!("{}/2?protocol=resp3", server.url());
    let resp3 = redis::Client::open(url).expect("an address").get_multiplexed_async_connection().await;
    use_all(&patient(Redis::from_connection(resp3.expect("a connection")))).await;
    use_all(&patient(Redis::from_connection(connection).prefix("other").expect("a prefix"))).await;
    // The one of RESP3, and the one that counts: a limiter made none.
    assert_eq!(connections(&mut server.admin()), before + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_on_a_connection_of_the_users_own_travel_together() {
    let server = Server::start();
    let connection = client(&server).get_multiplexed_async_connection().await.expect("a connection");
    let limiter = patient(Redis::from_connection(connection));
    let _ = limiter.check(&POLICY, "user:0").await;
    let before = calls(&mut server.admin(), "evalsha");
    let one = |i| {
        let limiter = limiter.clone();
        async move { limiter.check(&POLICY, format!("user:{i}")).await.is_allowed() }
    };
    let decisions = (1..=500).map(one).collect::<tokio::task::JoinSet<_>>().join_all().await;
    assert!(decisions.into_iter().all(|allowed| allowed));
    let sent = calls(&mut server.admin(), "evalsha") - before;
    assert!(sent < 250, "{sent} calls for 500 decisions");
}

#[tokio::test]
async fn a_connection_manager_heals_by_itself_and_a_plain_connection_does_not() {
    let mut server = Server::start();
    let manager = client(&server).get_connection_manager().await.expect("a connection");
    let plain = client(&server).get_multiplexed_async_connection().await.expect("a connection");
    let (managed, plain) = (Redis::from_connection(manager), Redis::from_connection(plain));
    let demands = [Demand::new(&POLICY, "user:42")];
    assert!(managed.decide(&demands).await.is_ok() && plain.decide(&demands).await.is_ok());
    server.restart();
    let mut tries = 0;
    while managed.decide(&demands).await.is_err() {
        tries += 1;
        assert!(tries < 100, "not healed");
        // Real time, since a real server comes back.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Nobody waits for what will not come, in the pauses between attempts neither.
    for _ in 0..100 {
        let answer = tokio::time::timeout(Duration::from_millis(50), plain.decide(&demands)).await;
        let error = answer.expect("an answer").expect_err("what ended stays ended");
        assert!(error.is_transient(), "{error:?}");
        // Real time: pauses grow to half a second.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A connection that has ended, and counts what it is asked.
#[derive(Clone, Default)]
struct Ended(Arc<AtomicUsize>);

impl ConnectionLike for Ended {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(future::ready(Err(io::Error::from(io::ErrorKind::BrokenPipe).into())))
    }

    fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(future::ready(Err(io::Error::from(io::ErrorKind::BrokenPipe).into())))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_has_ended_is_tried_at_the_pace_of_a_server_that_is_down() {
    let ended = Ended::default();
    let redis = Redis::from_connection(ended.clone());
    for _ in 0..1_000 {
        assert!(redis.decide(&[Demand::new(&POLICY, "user:42")]).await.is_err());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Ten seconds, in which pauses soon are of a quarter to half a second.
    let tries = ended.0.load(Ordering::Relaxed);
    assert!((15..60).contains(&tries), "{tries}");
}

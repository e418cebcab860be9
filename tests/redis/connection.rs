//! Servers that are down, slow, wrong or gone, and runtimes that end.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::Runtime;
use tollgate::{Demand, Limiter, OnError, Policy, Quota, Redis, limit::Store};

use super::limiter;
use crate::support::{calls, connections, server::Server};

static OPEN: Policy = Policy::token_bucket("open", Quota::per_hour(5)).on_error(OnError::Allow);
static CLOSED: Policy = Policy::token_bucket("closed", Quota::per_hour(5)).on_error(OnError::Deny);

/// Asks through the limiter, which decides, and the store itself, which tells why.
async fn ask(url: &str) -> (tollgate::Decision, tollgate::Decision, String) {
    let redis = Redis::open(url).expect("an address");
    let limiter = Limiter::new(redis.clone());
    let (open, closed) = (limiter.check(&OPEN, "user:42").await, limiter.check(&CLOSED, "user:42").await);
    let answer = tokio::time::timeout(Duration::from_secs(5), redis.decide(&[Demand::new(&OPEN, "user:42")])).await;
    let error = match answer {
        Ok(answer) => answer.expect_err("no answer is to be had"),
        Err(_) => return (open, closed, "none".to_owned()),
    };
    assert!(error.is_transient());
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    (open, closed, format!("{error}: {source}"))
}

fn assert_each_decides_by_its_choice(open: &tollgate::Decision, closed: &tollgate::Decision) {
    assert!(open.is_allowed() && open.is_degraded() && !open.is_unavailable());
    assert!(!closed.is_allowed() && closed.is_degraded() && closed.is_unavailable());
    assert!(closed.retry_after().is_none() && closed.outcomes().is_empty());
}

#[tokio::test]
async fn a_server_that_is_down_leaves_it_to_the_policy() {
    let (open, closed, error) = ask("redis://127.0.0.1:1").await;
    assert_each_decides_by_its_choice(&open, &closed);
    assert!(error.contains("cannot connect") && error.contains("refused"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_told_as_one() {
    let server = Server::start_with(&["--requirepass", "right"]);
    for (user_info, says) in [(":wrong@", "password"), ("", "NOAUTH"), ("nobody:right@", "password")] {
        let (open, closed, error) = ask(&format!("redis://{user_info}127.0.0.1:{}", server.port())).await;
        assert_each_decides_by_its_choice(&open, &closed);
        assert!(error.to_lowercase().contains(&says.to_lowercase()), "{user_info}: {error}");
        assert!(!error.contains("right") && !error.contains("wrong@"), "{error}");
    }
    let redis = Redis::open(&format!("redis://:right@127.0.0.1:{}", server.port())).expect("an address");
    assert!(!Limiter::new(redis).deadline(Duration::from_secs(10)).check(&CLOSED, "user:42").await.is_degraded());
}

#[tokio::test]
async fn a_server_that_speaks_an_error_or_nonsense_is_survived() {
    for reply in [
        "-ERR unknown command\r\n",
        "-LOADING Redis is loading\r\n",
        "+OK\r\n",
        ":1\r\n",
        "*1\r\n:1\r\n",
        "HTTP/1.1 400 Bad\r\n\r\n",
        "*-7\r\n",
        "$99\r\nx",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("redis://{}", listener.local_addr().expect("its address"));
        thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.expect("a connection");
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(1..) = socket.read(&mut bytes) {
                        // One reply a command: each begins an array.
                        let commands =
                            bytes.windows(2).filter(|two| two == b"*3" || two == b"*4" || two == b"*5").count().max(1);
                        if socket.write_all(reply.repeat(commands).as_bytes()).is_err() {
                            return;
                        }
                        bytes.fill(0);
                    }
                });
            }
        });
        let (open, closed, error) = ask(&url).await;
        assert_each_decides_by_its_choice(&open, &closed);
        println!("{reply:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_costs_the_deadline_and_no_more() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let redis = Redis::open(&format!("redis://{}", listener.local_addr().expect("its address"))).expect("an address");
    let limiter = Limiter::new(redis);
    #[allow(clippy::disallowed_methods)]
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let limiter = limiter.clone();
        tasks.spawn(async move { limiter.check(&CLOSED, "user:42").await });
    }
    let decisions = tasks.join_all().await;
    assert!(decisions.iter().all(tollgate::Decision::is_unavailable));
    let took = started.elapsed();
    assert!(
        took >= Limiter::DEFAULT_DEADLINE && took < Limiter::DEFAULT_DEADLINE + Duration::from_millis(200),
        "{took:?}"
    );
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again_on_few_connections() {
    let mut server = Server::start();
    let limiter = Limiter::new(Redis::open(&server.url()).expect("an address"));
    for _ in 0..20 {
        let _ = limiter.check(&OPEN, "user:42").await;
    }
    server.kill();
    for _ in 0..50 {
        let decision = limiter.check(&CLOSED, "user:42").await;
        assert!(decision.is_unavailable());
    }
    server.restart();
    let mut tries = 0;
    while limiter.check(&CLOSED, "user:42").await.is_degraded() {
        tries += 1;
        assert!(tries < 150, "still not used a while after it came back");
        // Real time, since a real server comes back.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut admin = server.admin();
    let connections = connections(&mut admin);
    assert!(connections < 10, "{connections} connections");
}

#[test]
fn one_static_limiter_serves_two_runtimes_in_turn_and_at_once() {
    static LIMITER: OnceLock<Limiter> = OnceLock::new();
    // Not static: nothing would end the server.
    let server = Server::start();
    let limiter = LIMITER.get_or_init(|| limiter(&server));
    let check = async || limiter.check(&CLOSED, "user:42").await;

    let [first, second] =
        [0, 1].map(|_| tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"));
    assert!(!first.block_on(check()).is_degraded());
    // The first runtime is alive, and nobody drives it.
    assert!(!second.block_on(check()).is_degraded());
    assert!(!first.block_on(check()).is_degraded());
    drop(first);
    assert!(!second.block_on(check()).is_degraded());
    drop(second);
    let third = Runtime::new().expect("a runtime");
    assert!(third.block_on(check()).is_allowed());
    assert!(!third.block_on(check()).is_allowed(), "all runtimes shared one budget of five");

    let mut admin = server.admin();
    assert_eq!(calls(&mut admin, "evalsha"), 6);
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut admin).expect("CLIENT LIST");
    assert_eq!(clients.lines().count(), 2, "a runtime that ended left its connection behind: {clients}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_decisions_use_one_connection() {
    let server = Server::start();
    let limiter = limiter(&server);
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..1_000 {
        let limiter = limiter.clone();
        tasks.spawn(async move { limiter.check(&CLOSED, format!("user:{i}")).await });
    }
    assert!(tasks.join_all().await.iter().all(|decision| decision.is_allowed() && !decision.is_degraded()));
    let mut admin = server.admin();
    // One by Server::start to see that it answers, one of the limiter, one of this test.
    assert_eq!(connections(&mut admin), 3);
}

#[tokio::test]
async fn a_connection_that_the_server_has_closed_is_not_asked_first() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    for _ in 0..20 {
        assert!(!limiter.check(&OPEN, "user:42").await.is_degraded());
        let _: () = redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes")
            .query(&mut admin)
            .expect("CLIENT KILL");
        // Real time: the end of the connection has to arrive.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_connection_on_which_nothing_comes_back_is_replaced() {
    let server = Server::start();
    let target = server.port();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let redis = Redis::open(&format!("redis://{}", listener.local_addr().expect("its address"))).expect("an address");
    // The first connection goes dead without being closed once it was used, as by a failed host; the next is well.
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut client, _) = listener.accept().await.expect("a connection");
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(("127.0.0.1", target)).await.expect("the server");
                let copying = tokio::io::copy_bidirectional(&mut client, &mut server);
                if connection > 0 {
                    let _ = copying.await;
                } else {
                    let _ = tokio::time::timeout(Duration::from_millis(200), copying).await;
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    let limiter = Limiter::new(redis);
    assert!(!limiter.check(&CLOSED, "user:42").await.is_degraded());
    // Real time, since the sockets and the server are real: until the proxy has gone dead.
    tokio::time::sleep(Duration::from_millis(250)).await;
    let mut degraded = 0;
    while limiter.check(&CLOSED, "user:42").await.is_degraded() {
        degraded += 1;
        assert!(degraded < 400, "the dead connection is still in use");
        // Real time: it is a second after which an answer is given up.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(degraded > 0);
}

#[tokio::test]
async fn outside_a_runtime_the_answer_is_an_error() {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    let outside = thread::spawn(move || {
        let mut answer = redis.decide(&[Demand::new(&OPEN, "user:42")]);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(&mut answer).poll(&mut cx) {
            std::task::Poll::Ready(answer) => answer.expect_err("there is no runtime").to_string(),
            std::task::Poll::Pending => "pending".to_owned(),
        }
    });
    assert!(outside.join().expect("no panic").contains("tokio runtime"));

    let limiter = limiter(&server);
    let outside = thread::spawn(move || {
        let mut check = std::pin::pin!(limiter.check(&CLOSED, "user:42"));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match check.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(decision) => decision.is_unavailable(),
            std::task::Poll::Pending => false,
        }
    });
    assert!(outside.join().expect("no panic"));
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_connected_to_anew() {
    let server = Server::start();
    let (limiter, mut admin) = (limiter(&server), server.admin());
    assert!(!limiter.check(&CLOSED, "user:42").await.is_degraded());
    let before = connections(&mut admin);
    let _: () = redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query(&mut admin).expect("REPLICAOF");
    assert!(limiter.check(&CLOSED, "user:42").await.is_unavailable());
    assert!(limiter.check(&CLOSED, "user:42").await.is_unavailable());
    // It may be another server by now. Real time: the new connection has to arrive.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(connections(&mut admin) > before);
    let _: () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut admin).expect("REPLICAOF");
    let mut tries = 0;
    while limiter.check(&CLOSED, "user:42").await.is_degraded() {
        tries += 1;
        assert!(tries < 100);
        // Real time, since the server is real: one request at a time finds out.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_callers_make_one_attempt_at_a_time() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let redis = Redis::open(&format!("redis://{}", listener.local_addr().expect("its address"))).expect("an address");
    let open = Arc::new(AtomicUsize::new(0));
    let (most, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now_open, now_most, now_all) = (Arc::clone(&open), Arc::clone(&most), Arc::clone(&all));
    // Takes each attempt, keeps it waiting a while, and then hangs up.
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.expect("a connection");
            now_all.fetch_add(1, Ordering::SeqCst);
            now_most.fetch_max(now_open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let now_open = Arc::clone(&now_open);
            tokio::spawn(async move {
                // Real time, since the sockets are real.
                tokio::time::sleep(Duration::from_millis(50)).await;
                now_open.fetch_sub(1, Ordering::SeqCst);
                drop(socket);
            });
        }
    });
    let limiter = Limiter::new(redis);
    let one = |_| {
        let limiter = limiter.clone();
        async move {
            for _ in 0..20 {
                assert!(limiter.check(&CLOSED, "user:42").await.is_unavailable());
                // Real time: callers come back, as clients do.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    (0..1_000).map(one).collect::<tokio::task::JoinSet<_>>().join_all().await;
    assert_eq!(most.load(Ordering::SeqCst), 1, "attempts at once");
    let all = all.load(Ordering::SeqCst);
    assert!((2..30).contains(&all), "{all} attempts");
}

#[test]
fn a_wrong_address_says_what_to_write() {
    for (url, says) in [
        ("", "scheme is missing"),
        ("localhost", "scheme is missing"),
        ("127.0.0.1:6379", "scheme is missing"),
        ("redis:/localhost", "scheme is missing"),
        ("http://localhost", "`http` is unknown"),
        ("reds://localhost", "`reds` is unknown"),
        ("redis+clusters://a,b", "`redis+clusters` is unknown"),
        ("redis://", "cannot be read"),
        ("redis://localhost:port", "cannot be read"),
        ("redis://localhost:99999", "cannot be read"),
        ("redis://localhost/db", "cannot be read"),
        ("redis://user:secret@localhost:port", "cannot be read"),
        ("user:secret@localhost:6379", "scheme is missing"),
        ("redis://u:secret?secret@h:1", "cannot be read"),
        ("unix:///x.sock?pass=secret&db=abc", "cannot be read"),
        ("redis:/user:secret@localhost", "scheme is missing"),
    ] {
        let error = Redis::open(url).expect_err(url);
        assert!(error.is_invalid(), "{error}");
        let said = error.to_string();
        assert!(said.contains(says) && said.contains("redis://"), "{url}: {said}");
        assert!(!said.contains("secret"), "{said}");
    }
    for url in ["redis://localhost", "redis://127.0.0.1:6379/3", "redis://:pw@[::1]:6380", "valkey://localhost"] {
        assert!(Redis::open(url).is_ok(), "{url}");
    }
}

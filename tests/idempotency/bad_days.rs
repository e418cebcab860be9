//! Stores that die, handlers that fail, bodies that do not come.

use std::pin::Pin;

use axum::response::IntoResponse;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

fn with_server() -> (Server, Redis) {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    (server, redis)
}

#[tokio::test]
async fn a_store_that_is_down_before_refuses_or_lets_pass_as_chosen() {
    let (mut server, redis) = with_server();
    server.kill();
    let layer = IdempotencyLayer::new(&redis, header("authorization")).lease(ms(500));
    let (address, count) = serve_work(layer.clone(), ms(0)).await;
    let refused = work(address, "k", "7").await;
    assert_problem(&refused, 503, "unavailable");
    assert_eq!((refused.text("retry-after"), count.get()), (Some("1"), 0));
    let (open, _) = serve_work(layer.fail_open(), ms(0)).await;
    assert_eq!(work(open, "k", "7").await.body, "execution 1, attempt 0");
    server.restart();
    let answer = async {
        loop {
            let answer = work(address, "k", "7").await;
            if answer.status != StatusCode::SERVICE_UNAVAILABLE {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(ms(5_000), answer).await.expect("it is well again");
    assert_eq!(answer.body, "execution 1, attempt 1");
}

#[tokio::test]
async fn a_store_that_dies_during_or_after_the_handler_costs_no_answer_and_no_second_execution() {
    let (mut server, redis) = with_server();
    let layer = IdempotencyLayer::new(&redis, header("authorization")).lease(ms(4_000));
    let (address, count) = serve_work(layer.clone(), ms(300)).await;
    let first = tokio::spawn(async move { work(address, "k", "7").await });
    while count.get() == 0 {
        // The server runs on its own.
        tokio::time::sleep(ms(5)).await;
    }
    server.kill();
    let first = first.await.expect("an answer");
    assert_eq!((first.status, replayed(&first)), (StatusCode::CREATED, false), "the real answer");
    // It comes back within the lease, and has lost its memory.
    server.restart();
    assert!(layer.shutdown(ms(8_000)).await, "stored at last");
    let again = work(address, "k", "7").await;
    assert!(replayed(&again) && again.body == first.body, "{again:?}");
    assert_eq!(count.get(), 1);
}

#[tokio::test]
async fn a_store_that_hangs_past_the_lease_parks_the_key() {
    let (server, redis) = with_server();
    let layer = IdempotencyLayer::new(&redis, header("authorization")).lease(ms(500));
    let (address, count) = serve_work(layer.clone(), ms(200)).await;
    let first = tokio::spawn(async move { work(address, "k", "7").await });
    while count.get() == 0 {
        // The server runs on its own.
        tokio::time::sleep(ms(5)).await;
    }
    let signal = |name: &str| {
        let pid = server.pid().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().expect("kill").success());
    };
    signal("-STOP");
    let first = first.await.expect("an answer");
    assert_eq!(first.status, StatusCode::CREATED, "the real answer");
    assert!(layer.shutdown(ms(8_000)).await, "it gives up");
    signal("-CONT");
    // What was sent meanwhile may still arrive, and is the truth.
    let answer = work(address, "k", "7").await;
    assert!(replayed(&answer) || answer.status == StatusCode::CONFLICT, "{answer:?}");
    assert_eq!(count.get(), 1);
}

#[tokio::test]
async fn a_stored_record_that_cannot_be_read_is_not_executed_again() {
    let (server, redis) = with_server();
    let (address, count) = serve_work(IdempotencyLayer::new(&redis, header("authorization")), ms(0)).await;
    let mut admin = server.admin();
    for (i, garbage) in [&b"garbage"[..], b"", b"\x01\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff"].iter().enumerate() {
        redis::cmd("FLUSHALL").query::<()>(&mut admin).expect("FLUSHALL");
        work(address, "k", "7").await;
        let key: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin).expect("KEYS");
        redis::cmd("HSET").arg(&key[0]).arg("o").arg(*garbage).query::<()>(&mut admin).expect("HSET");
        assert_problem(&work(address, "k", "7").await, 409, "not-retained");
        assert_eq!(count.get(), i + 1);
    }
    let key: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin).expect("KEYS");
    redis::cmd("SET").arg(&key[0]).arg("a string").query::<()>(&mut admin).expect("SET");
    assert_problem(&work(address, "k", "7").await, 503, "unavailable");
    assert_eq!(count.get(), 3);
}

#[tokio::test]
async fn a_handler_that_panics_is_executed_once() {
    for stage in stages() {
        let count = Count::default();
        let counted = count.clone();
        let handler = move || {
            counted.more();
            async { panic!("as a test of what becomes of it") }
        };
        let handler = move || -> Pin<Box<dyn Future<Output = ()> + Send>> { Box::pin(handler.clone()()) };
        let address = serve(Router::new().route("/work", post(handler)).layer(stage.layer())).await;
        let first = work(address, "k", "7").await;
        assert_problem(&first, 500, "failed");
        let again = work(address, "k", "7").await;
        assert_problem(&again, 500, "failed");
        assert!(replayed(&again) && !replayed(&first));
        assert_eq!(count.get(), 1);
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_anything() {
    for stage in stages() {
        let (address, count) = serve_work(stage.layer(), ms(0)).await;
        let long = |bytes: usize| {
            let body = Body::from(vec![b'x'; bytes]);
            Request::post("/work").header("idempotency-key", "\"k\"").body(body).expect("a request")
        };
        assert_problem(&send(address, None, long((1 << 20) + 1)).await, 413, "body-long");
        assert_eq!(count.get(), 0);
        assert_eq!(send(address, None, long(1 << 20)).await.status, StatusCode::CREATED);
        // In pieces, its length not told before.
        let mut socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let head = "POST /work HTTP/1.1\r\nhost: x\r\nidempotency-key: \"c\"\r\ntransfer-encoding: chunked\r\n\r\n";
        socket.write_all(head.as_bytes()).await.expect("sent");
        let piece = [format!("{:x}\r\n", 64 << 10).into_bytes(), vec![b'x'; 64 << 10], b"\r\n".to_vec()].concat();
        for _ in 0..17 {
            if socket.write_all(&piece).await.is_err() {
                break;
            }
        }
        let mut answer = [0; 64];
        let read = socket.read(&mut answer).await.expect("an answer");
        assert!(answer[..read].starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(count.get(), 1);
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_or_breaks_off_takes_no_key() {
    for stage in stages() {
        let (address, count) = serve_work(stage.layer().read_timeout(ms(200)), ms(0)).await;
        let head = "POST /work HTTP/1.1\r\nhost: x\r\nidempotency-key: \"k\"\r\ncontent-length: 5\r\n\r\nab";
        let mut socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        socket.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = [0; 64];
        let read = socket.read(&mut answer).await.expect("an answer");
        assert!(answer[..read].starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
        let mut socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        socket.write_all(head.as_bytes()).await.expect("sent");
        drop(socket);
        assert_eq!(work(address, "k", "other").await.status, StatusCode::CREATED, "the key is new");
        assert_eq!(count.get(), 1);
    }
}

#[tokio::test]
async fn statuses_of_who_did_nothing_release_the_key() {
    use tollgate::layer::idempotency::IdempotencyOutcome::{Release, Store, StoreFor};
    for stage in stages() {
        for (status, chosen, layer, executions) in [
            (200, None, stage.layer(), 1),
            (402, None, stage.layer(), 1),
            (500, None, stage.layer(), 1),
            (503, None, stage.layer(), 2),
            (429, None, stage.layer(), 2),
            (401, None, stage.layer(), 2),
            (500, None, stage.layer().retry_server_errors(), 2),
            (400, None, stage.layer().retry_server_errors(), 1),
            (503, None, stage.layer().stripe(), 1),
            (503, Some(Store), stage.layer(), 1),
            (200, Some(Release), stage.layer(), 2),
            (200, Some(StoreFor(ms(50))), stage.layer(), 2),
        ] {
            let count = Count::default();
            let counted = count.clone();
            let handler = move || async move {
                counted.more();
                let mut response = StatusCode::from_u16(status).expect("a status").into_response();
                chosen.map(|chosen| response.extensions_mut().insert(chosen));
                response
            };
            let address = serve(Router::new().route("/work", post(handler)).layer(layer)).await;
            let key = format!("{status}-{chosen:?}-{executions}");
            assert_eq!(work(address, &key, "7").await.status, status);
            // What is kept for 50 ms is over then, by the clock of a real server.
            tokio::time::sleep(ms(60)).await;
            assert_eq!(work(address, &key, "7").await.status, status);
            assert_eq!(count.get(), executions, "{key}");
        }
    }
}

//! The example `payments`, in two processes on one Redis, and alone.

use support::{example::Example, http::get};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use super::*;

/// How long a payment takes, and when it is known that one has broken off.
const TAKES: Duration = Duration::from_millis(300);
const LEASE: Duration = Duration::from_secs(5);

fn start(server: &Server) -> Option<Example> {
    Example::start("payments", ["--redis", &server.url()])
}

async fn pay(address: SocketAddr, key: &str, amount: &'static str) -> Answer {
    pay_as(address, "", key, amount).await
}

async fn pay_as(address: SocketAddr, who: &str, key: &str, amount: &'static str) -> Answer {
    let mut request = request("/payments", key, amount);
    if !who.is_empty() {
        request.headers_mut().insert("authorization", who.parse().expect("a value"));
    }
    send(address, None, request).await
}

async fn count(example: &Example) -> u64 {
    let count = get(example.address, "/payments/count").await.body;
    std::str::from_utf8(&count).expect("text").parse().expect("a number")
}

/// Waits until a payment is being executed.
async fn begins(example: &Example, executions: u64) {
    while count(example).await < executions {
        // Another process gets there by itself.
        tokio::time::sleep(ms(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_payments_with_one_key_in_two_processes_are_one() {
    let server = Server::start();
    let (Some(a), Some(b)) = (start(&server), start(&server)) else { return };
    let mut all = JoinSet::new();
    for i in 0..100 {
        let address = [a.address, b.address][i % 2];
        all.spawn(async move { pay(address, "k", "amount=7").await });
    }
    let answers = all.join_all().await;
    let first = answers.iter().find(|answer| answer.status == StatusCode::CREATED).expect("one is executed");
    for answer in &answers {
        if answer.status == StatusCode::CREATED {
            assert_eq!(answer.body, first.body);
        } else {
            assert_problem(answer, 409, "in-flight");
        }
    }
    for example in [&a, &b] {
        let again = pay(example.address, "k", "amount=7").await;
        assert!(replayed(&again) && again.status == StatusCode::CREATED && again.body == first.body);
    }
    assert_eq!(count(&a).await + count(&b).await, 1);

    // Another tenant, another body, also while the first is executed.
    let other = pay_as(b.address, "Bearer x", "k", "amount=7").await;
    assert!(!replayed(&other) && other.status == StatusCode::CREATED && other.body != first.body);
    let before = count(&a).await;
    let address = a.address;
    let slow = tokio::spawn(async move { pay(address, "other", "amount=7").await });
    begins(&a, before + 1).await;
    assert_problem(&pay(b.address, "other", "amount=8").await, 422, "key-used");
    assert_eq!(slow.await.expect("an answer").status, StatusCode::CREATED);
    assert_problem(&pay(b.address, "other", "amount=8").await, 422, "key-used");
}

#[tokio::test]
async fn a_payment_whose_client_hangs_up_is_there_for_the_next_try() {
    let server = Server::start();
    let (Some(a), Some(b)) = (start(&server), start(&server)) else { return };
    let head = "POST /payments HTTP/1.1\r\nhost: x\r\nidempotency-key: \"k\"\r\ncontent-length: 8\r\n\r\namount=7";
    let mut socket = TcpStream::connect(a.address).await.expect("a connection");
    socket.write_all(head.as_bytes()).await.expect("sent");
    begins(&a, 1).await;
    drop(socket);
    // It goes on by itself, in real time.
    tokio::time::sleep(TAKES + ms(300)).await;
    let again = pay(b.address, "k", "amount=7").await;
    assert!(replayed(&again) && again.status == StatusCode::CREATED, "{again:?}");
    assert_eq!((count(&a).await, count(&b).await), (1, 0));
}

#[tokio::test]
async fn a_payment_in_a_process_that_is_killed_is_not_executed_again() {
    let server = Server::start();
    let (Some(mut a), Some(b)) = (start(&server), start(&server)) else { return };
    let address = a.address;
    let killed = tokio::spawn(async move { pay(address, "k", "amount=7").await });
    begins(&a, 1).await;
    a.kill();
    let lapses = tokio::time::Instant::now() + LEASE;
    assert!(killed.await.is_err(), "the client had no answer");
    assert_problem(&pay(b.address, "k", "amount=7").await, 409, "in-flight");
    tokio::time::sleep_until(lapses + ms(100)).await;
    assert_problem(&pay(b.address, "k", "amount=7").await, 409, "unknown");
    assert_eq!(count(&b).await, 0);
}

#[tokio::test]
async fn what_is_no_payment_is_told_as_the_table_says() {
    let Some(example) = Example::start("payments", [""; 0]) else { return };
    let long = format!("\"{}\"", "x".repeat(300));
    for (keys, status) in [
        (&[][..], 400),
        (&["\"a\"", "\"b\""], 400),
        (&["\"a\"", "\"a\""], 400),
        (&[long.as_str()], 400),
        (&["\"\""], 400),
        (&[""], 400),
        (&["bare"], 400),
    ] {
        let mut request = Request::post("/payments").body(Body::from("amount=7")).expect("a request");
        for key in keys {
            request.headers_mut().append("idempotency-key", key.parse().expect("a value"));
        }
        let refused = send(example.address, None, request).await;
        assert_eq!(refused.status, status, "{keys:?}");
        assert!(refused.text("link").is_some_and(|link| link.contains("describedby")));
    }
    let long =
        Request::post("/payments").header("idempotency-key", "\"k\"").body(Body::from(vec![b'x'; (1 << 20) + 1]));
    assert_problem(&send(example.address, None, long.expect("a request")).await, 413, "body-long");
    assert_eq!(count(&example).await, 0);
}

#[tokio::test]
async fn a_store_that_freezes_or_dies_costs_no_payment_its_answer() {
    let mut server = Server::start();
    let Some(example) = start(&server) else { return };
    let address = example.address;
    let signal = |server: &Server, name: &str| {
        let pid = server.pid().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().expect("kill").success());
    };
    // Frozen while the handler runs, and well again: stored.
    let first = tokio::spawn(async move { pay(address, "frozen", "amount=7").await });
    begins(&example, 1).await;
    signal(&server, "-STOP");
    let first = first.await.expect("an answer");
    assert_eq!((first.status, replayed(&first)), (StatusCode::CREATED, false));
    signal(&server, "-CONT");
    let again = async {
        loop {
            let again = pay(address, "frozen", "amount=7").await;
            if again.status == StatusCode::CREATED {
                return again;
            }
        }
    };
    let again = tokio::time::timeout(LEASE, again).await.expect("it is stored");
    assert!(replayed(&again) && again.body == first.body);
    // Killed while the handler runs, and gone: the answer is the real one, and nothing is executed while it is gone.
    let second = tokio::spawn(async move { pay(address, "killed", "amount=7").await });
    begins(&example, 2).await;
    server.kill();
    assert_eq!(second.await.expect("an answer").status, StatusCode::CREATED);
    assert_problem(&pay(address, "new", "amount=7").await, 503, "unavailable");
    assert_eq!(count(&example).await, 2);
}

#[tokio::test]
async fn a_head_that_says_two_keys_is_refused_on_the_wire() {
    let Some(example) = Example::start("payments", [""; 0]) else { return };
    let head = "POST /payments HTTP/1.1\r\nhost: x\r\nIdempotency-Key: \"a\"\r\nidempotency-key: \"a\"\r\n\
                content-length: 0\r\nconnection: close\r\n\r\n";
    let mut socket = TcpStream::connect(example.address).await.expect("a connection");
    socket.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
}

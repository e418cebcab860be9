//! A process that is killed in the middle of a request.

use std::{
    env,
    io::{BufRead, BufReader},
    process::Child,
};

use super::*;

const VAR: &str = "TOLLGATE_IDEMPOTENCY_SERVER";
const LEASE: Duration = Duration::from_millis(500);

fn layer(url: &str, takes_over: bool) -> IdempotencyLayer {
    let layer = IdempotencyLayer::new(&Redis::open(url).expect("an address"), header("authorization")).lease(LEASE);
    if takes_over { layer.takeover() } else { layer }
}

/// Serves in a process of its own, when it is one.
#[tokio::test]
async fn a_server_that_will_be_killed() {
    let Ok(url) = env::var(VAR) else { return };
    let (address, _) = serve_work(layer(&url, false), Duration::from_secs(60)).await;
    println!("\nlistening {address}");
    std::future::pending().await
}

fn start(url: &str) -> (Child, SocketAddr) {
    let mut child = support::other_process("crash::a_server_that_will_be_killed", VAR, url);
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let address = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("listening ")?.parse().ok());
    (child, address.expect("an address"))
}

#[tokio::test]
async fn after_a_kill_the_key_is_parked_or_taken_over_as_chosen() {
    for takes_over in [false, true] {
        let server = Server::start();
        let (mut child, address) = start(&server.url());
        let killed = tokio::spawn(async move {
            let request = request("/work", "k", "7");
            let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
            let (mut parts, body) = request.into_parts();
            parts.uri = format!("http://{address}/work").parse().expect("a URI");
            client.request(Request::from_parts(parts, body)).await.map(drop)
        });
        let mut admin = server.admin();
        while redis::cmd("DBSIZE").query::<i64>(&mut admin).expect("a number") == 0 {
            // Another process gets there by itself.
            tokio::time::sleep(ms(10)).await;
        }
        child.kill().expect("a process to kill");
        child.wait().expect("its end");
        assert!(killed.await.expect("an end").is_err(), "the client had no answer");

        let (other, count) = serve_work(layer(&server.url(), takes_over), ms(0)).await;
        assert_problem(&work(other, "k", "7").await, 409, "in-flight");
        // The lease of the dead is real time on a real server.
        tokio::time::sleep(LEASE + ms(50)).await;
        assert_problem(&work(other, "k", "8").await, 422, "key-used");
        let after = work(other, "k", "7").await;
        if takes_over {
            assert_eq!((after.status, &after.body[..]), (StatusCode::CREATED, &b"execution 1, attempt 2"[..]));
            assert!(replayed(&work(other, "k", "7").await));
        } else {
            assert_problem(&after, 409, "unknown");
            assert_problem(&work(other, "k", "7").await, 409, "unknown");
        }
        assert_eq!(count.get(), usize::from(takes_over));
    }
}

#[tokio::test]
async fn an_attempt_that_takes_over_has_the_greater_fence() {
    for stage in stages() {
        let fences = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = Arc::clone(&fences);
        let handler = move |Extension(attempt): Extension<IdempotentAttempt>| {
            let mut fences = seen.lock().expect("no panic");
            fences.push((attempt.number(), u64::from(attempt.fence())));
            let is_first = fences.len() == 1;
            drop(fences);
            async move { assert!(!is_first, "as if it crashed") }
        };
        let layer = stage.layer().lease(ms(200)).takeover();
        let address = serve(Router::new().route("/work", post(handler)).layer(layer)).await;
        assert_problem(&work(address, "k", "7").await, 500, "failed");
        // The lease is real time on a real server.
        tokio::time::sleep(ms(250)).await;
        assert_eq!(work(address, "k", "7").await.status, StatusCode::OK);
        let fences = fences.lock().expect("no panic");
        assert_eq!((fences[0].0, fences[1].0), (1, 2));
        assert!(fences[1].1 > fences[0].1);
    }
}

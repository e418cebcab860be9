//! What leases cost, beside the least that it could be; run by hand, for the figures need a quiet machine:
//!
//! ```text
//! cargo test --release --all-features --test lease -- --ignored --nocapture --test-threads 1
//! ```

use std::{fs, time::Duration};

use tokio::time::Instant;
use tollgate::lease::{Guard, Lock};

use super::{ms, open, sleep, soon};
use crate::support::{calls, server::Server};

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[tokio::test]
#[ignore = "a measurement"]
async fn a_hand_over_takes_no_more_than_three_times_a_bare_publish() {
    let server = Server::start();
    // Of one process each, as far as the server can tell.
    let (one, other) = (open(&server), open(&server));
    let mut handed_over = Vec::new();
    for _ in 0..300 {
        let guard = Lock::new(&one, "x").acquire().await.expect("held");
        let next = Lock::new(&other, "x");
        let waiter = tokio::spawn(async move {
            let guard = soon(next.acquire()).await.expect("free");
            (Instant::now(), guard)
        });
        sleep(ms(8)).await;
        let begun = Instant::now();
        guard.release().await.expect("released");
        let (held, guard) = waiter.await.expect("no panic");
        handed_over.push(held - begun);
        guard.release().await.expect("released");
    }

    let client = redis::Client::open(server.url()).expect("an address");
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let config = redis::AsyncConnectionConfig::new().set_push_sender(sender);
    let resp3 = redis::Client::open(format!("{}/?protocol=resp3", server.url())).expect("an address");
    let mut subscriber = resp3.get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
    subscriber.subscribe("bare").await.expect("subscribed");
    let mut publisher = client.get_multiplexed_async_connection().await.expect("a connection");
    let mut published = Vec::new();
    while heard.try_recv().is_ok() {}
    for _ in 0..300 {
        sleep(ms(8)).await;
        let waiter = async {
            while heard.recv().await.expect("a message").kind != redis::PushKind::Message {}
            Instant::now()
        };
        let begun = Instant::now();
        let mut publish = redis::cmd("PUBLISH");
        let send = publish.arg("bare").arg("x").query_async::<i64>(&mut publisher);
        let (received, sent) = tokio::join!(waiter, send);
        sent.expect("published");
        published.push(received - begun);
    }
    let (ours, bare) = (median(&mut handed_over), median(&mut published));
    let p99 = handed_over[handed_over.len() * 99 / 100];
    println!("hand-over: p50 {ours:?}, p99 {p99:?}; a bare PUBLISH: p50 {bare:?}");
    assert!(ours <= 3 * bare, "{ours:?} against {bare:?}");
}

/// Returns the time that this process has worked, in hundredths of a second.
fn worked() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
}

#[tokio::test]
#[ignore = "a measurement"]
async fn ten_thousand_locks_are_renewed_in_batches_by_a_fiftieth_of_a_core() {
    let server = Server::start();
    let redis = open(&server);
    let mut guards: Vec<Guard> = Vec::new();
    for i in 0..10_000_u32 {
        guards.push(Lock::new(&redis, i).ttl(Duration::from_secs(30)).acquire().await.expect("held"));
    }
    // The first renewals are as close together as the acquires were.
    sleep(Duration::from_secs(12)).await;
    let (before, calls_before, begun) = (worked(), calls(&mut server.admin(), "evalsha"), Instant::now());
    sleep(Duration::from_secs(30)).await;
    let (took, sent) = (begun.elapsed(), calls(&mut server.admin(), "evalsha") - calls_before);
    // Hundredths of a second, in thousandths of the time that has passed.
    let share = (worked() - before) * 10_000 / u64::try_from(took.as_millis()).expect("short");
    println!("10,000 locks: {share} thousandths of a core, {sent} calls in {took:?}");
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert!(share < 20, "{share} thousandths");
    assert!(sent < 600, "{sent} calls");
}

//! The example `uploads`, in several processes that are killed.

use std::sync::{Mutex, atomic::AtomicBool};

use axum::body::Body;
use support::{example::Example, http::send};
use tokio::time::Instant;

use super::*;

const K: usize = 2;
/// What an upload takes, and how long a permit outlives its process.
const TAKES: Duration = Duration::from_millis(500);
const LEASE: Duration = Duration::from_secs(2);

fn start(server: &Server) -> Option<Example> {
    Example::start("uploads", ["--redis", &server.url()])
}

async fn upload(address: SocketAddr) -> StatusCode {
    send(address, None, http::Request::post("/upload").body(Body::from("data")).expect("a request")).await.status
}

/// Uploads; nothing if the process that should serve it is being killed.
async fn try_upload(address: SocketAddr) -> Option<StatusCode> {
    tokio::spawn(upload(address)).await.ok()
}

/// Returns how many uploads were certainly served at a time, by when they were sent and answered.
///
/// Wherever in between an upload takes its time, it is under way so long before its answer until so long after it was sent.
fn most_at_a_time(served: &[(Instant, Instant)]) -> usize {
    let certain: Vec<_> = served.iter().map(|(sent, answered)| (*answered - TAKES, *sent + TAKES)).collect();
    let at = |time: Instant| certain.iter().filter(|(from, to)| (*from..*to).contains(&time)).count();
    certain.iter().filter(|(from, to)| from < to).map(|(from, _)| at(*from)).max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn four_processes_of_which_one_is_killed_each_second_serve_two_at_a_time() {
    const SECONDS: usize = 6;
    let server = Arc::new(Server::start());
    let Some(fleet) = (0..4).map(|_| start(&server).map(Mutex::new)).collect::<Option<Vec<_>>>() else { return };
    let (fleet, ends) = (Arc::new(fleet), Arc::new(AtomicBool::new(false)));
    let mut load = tokio::task::JoinSet::new();
    for i in 0..16 {
        let (fleet, ends) = (Arc::clone(&fleet), Arc::clone(&ends));
        load.spawn(async move {
            let mut served = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let address = fleet[i % 4].lock().expect("no panic").address;
                let sent = Instant::now();
                match try_upload(address).await {
                    Some(StatusCode::OK) => served.push((sent, Instant::now())),
                    Some(status) => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE),
                    None => {}
                }
                tokio::time::sleep(ms(20)).await;
            }
            served
        });
    }
    for second in 0..SECONDS {
        tokio::time::sleep(ms(1_000)).await;
        let (server, fleet) = (Arc::clone(&server), Arc::clone(&fleet));
        let killed = move || {
            let mut process = fleet[second % 4].lock().expect("no panic");
            process.kill();
            *process = start(&server).expect("it was there before");
        };
        tokio::task::spawn_blocking(killed).await.expect("a new process");
    }
    ends.store(true, Ordering::Relaxed);
    let served: Vec<(Instant, Instant)> = load.join_all().await.into_iter().flatten().collect();
    let most = most_at_a_time(&served);
    println!("served {}, at most {most} at a time", served.len());
    assert_eq!(most, K, "never more, and as many as there may be");
    // While a killed one's permits last, others are served by what is left.
    assert!(served.len() >= 4, "{}", served.len());

    // All are killed in the middle of two uploads: both permits are held, and are back within a lease.
    let address = fleet[0].lock().expect("no panic").address;
    let mut held = 0;
    while held < K {
        held = 0;
        let all: Vec<_> = (0..8).map(|_| tokio::spawn(upload(address))).collect();
        tokio::time::sleep(TAKES / 2).await;
        held += all.iter().filter(|upload| !upload.is_finished()).count();
    }
    fleet.iter().for_each(|process| process.lock().expect("no panic").kill());
    let killed = Instant::now();
    let last = start(&server).expect("it was there before");
    assert_eq!(upload(last.address).await, StatusCode::SERVICE_UNAVAILABLE, "they are held still");
    tokio::time::sleep_until(killed + LEASE).await;
    let (one, two) = tokio::join!(upload(last.address), upload(last.address));
    assert_eq!((one, two), (StatusCode::OK, StatusCode::OK));
}

#[tokio::test]
async fn each_client_has_two_uploads_at_a_time() {
    let Some(example) = Example::start("uploads", [""; 0]) else { return };
    let from = |client: &'static str| {
        let request = http::Request::post("/upload").body(Body::from("data")).expect("a request");
        send(example.address, Some(client.parse().expect("an address")), request)
    };
    let (a, b, c, d) = tokio::join!(from("127.0.0.1"), from("127.0.0.1"), from("127.0.0.1"), from("127.0.0.2"));
    let mut statuses = [a.status.as_u16(), b.status.as_u16(), c.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!((statuses, d.status.as_u16()), ([200, 200, 503], 200));
}

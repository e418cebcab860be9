//! Processes that share a limit, and die.

use std::{
    io::{BufRead, BufReader},
    process::Child,
    sync::Mutex,
};

use super::*;

const K: usize = 3;
const LEASE: Duration = Duration::from_millis(1_500);
const VAR: &str = "TOLLGATE_CONCURRENCY_SERVER";

/// Serves in a process of its own, when it is one: each request adds itself to a set of its time on the Redis while it is
/// served.
#[tokio::test]
async fn a_server_that_will_be_killed() {
    let Ok(url) = std::env::var(VAR) else { return };
    let redis = Redis::open(&url).expect("an address");
    let layer = ConcurrencyLimitLayer::new(&redis, "work", u32::try_from(K).expect("few")).lease(LEASE);
    let client = redis::Client::open(url).expect("an address");
    let connection = client.get_multiplexed_async_connection().await.expect("a connection");
    let me = std::process::id();
    let work = move || {
        let mut connection = connection.clone();
        async move {
            let member = format!("{me}:{}", tollgate::lease::Token::random().expect("random bytes"));
            let now: usize = redis::pipe()
                .atomic()
                .cmd("HSET")
                .arg("served")
                .arg(&member)
                .arg(me)
                .ignore()
                .cmd("HLEN")
                .arg("served")
                .query_async::<(usize,)>(&mut connection)
                .await
                .expect("an answer")
                .0;
            // Real time, since a real client waits for it on a socket.
            tokio::time::sleep(ms(50)).await;
            redis::cmd("HDEL").arg("served").arg(&member).query_async::<()>(&mut connection).await.expect("an answer");
            now.to_string()
        }
    };
    let address = serve(Router::new().route("/", get(work)).layer(layer)).await;
    println!("\nlistening {address}");
    std::future::pending().await
}

struct Process {
    child: Child,
    address: SocketAddr,
}

fn start(url: &str) -> Process {
    let mut child = support::other_process("fleet::a_server_that_will_be_killed", VAR, url);
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let address = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("listening ")?.parse().ok());
    Process { child, address: address.expect("an address") }
}

impl Process {
    fn kill(&mut self) {
        self.child.kill().expect("a process to kill");
        self.child.wait().expect("its end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn four_processes_of_which_one_dies_each_second_serve_no_more_than_so_many() {
    let server = Server::start();
    let fleet: Vec<_> = (0..4).map(|_| Mutex::new(start(&server.url()))).collect();
    let fleet = Arc::new(fleet);
    let ends = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut load = tokio::task::JoinSet::new();
    for i in 0..24 {
        let (fleet, ends) = (Arc::clone(&fleet), Arc::clone(&ends));
        load.spawn(async move {
            let (mut served, mut most) = (0, 0);
            while !ends.load(Ordering::Relaxed) {
                let address = fleet[i % 4].lock().expect("no panic").address;
                let url = format!("http://{address}/");
                // One that is being killed does not answer.
                let Ok(answer) = try_get(&url).await else { continue };
                if let Some(now) = answer {
                    served += 1;
                    most = most.max(now);
                }
                tokio::time::sleep(ms(10)).await;
            }
            (served, most)
        });
    }
    let mut admin = server.admin();
    for second in 0..5 {
        tokio::time::sleep(ms(1_000)).await;
        let (url, fleet) = (server.url(), Arc::clone(&fleet));
        let mut admin_of_killer = server.admin();
        tokio::task::spawn_blocking(move || {
            let mut process = fleet[second % 4].lock().expect("no panic");
            let pid = process.child.id().to_string();
            process.kill();
            // What it served ends with it.
            let all: Vec<(String, String)> =
                redis::cmd("HGETALL").arg("served").query(&mut admin_of_killer).expect("HGETALL");
            for (member, _) in all.iter().filter(|(_, owner)| *owner == pid) {
                redis::cmd("HDEL").arg("served").arg(member).query::<()>(&mut admin_of_killer).expect("HDEL");
            }
            *process = start(&url);
        })
        .await
        .expect("a new process");
    }
    ends.store(true, Ordering::Relaxed);
    let results = load.join_all().await;
    let served: usize = results.iter().map(|(served, _)| served).sum();
    let most = results.iter().map(|(_, most)| *most).max().unwrap_or_default();
    println!("served {served}, at most {most} at a time");
    assert_eq!(most, K, "never more, and as many as there may be");
    assert!(served > 10, "{served}");

    // Killed with all permits in hand, they are all back within a lease.
    for process in fleet.iter() {
        process.lock().expect("no panic").kill();
    }
    redis::cmd("DEL").arg("served").query::<()>(&mut admin).expect("DEL");
    let redis = Redis::open(&server.url()).expect("an address");
    let layer = ConcurrencyLimitLayer::new(&redis, "work", u32::try_from(K).expect("few")).lease(LEASE);
    let (address, peak) = serve_work(layer, ms(400)).await;
    tokio::time::sleep(LEASE).await;
    let mut all = tokio::task::JoinSet::new();
    (0..K).for_each(|_| _ = all.spawn(fetch(address, "/")));
    assert!(all.join_all().await.iter().all(|answer| answer.status == StatusCode::OK));
    assert_eq!(peak.most(), K);
}

/// Returns how many were served at that time, if it was.
async fn try_get(url: &str) -> Result<Option<usize>, hyper_util::client::legacy::Error> {
    use http_body_util::BodyExt;
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
    let request = http::Request::get(url).body(axum::body::Body::empty()).expect("a request");
    let response = client.request(request).await?;
    if response.status() != StatusCode::OK {
        return Ok(None);
    }
    let Ok(body) = response.into_body().collect().await else { return Ok(None) };
    Ok(std::str::from_utf8(&body.to_bytes()).expect("text").parse().ok())
}

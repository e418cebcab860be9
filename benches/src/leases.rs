use std::{
    fs,
    time::{Duration, Instant},
};

use armature_distributed::{DistributedLock, RedisLock};
use redis::{AsyncConnectionConfig, PushKind};
use rslock::LockManager;
use tokio::{runtime::Runtime, task::LocalSet, time::sleep};
use tollgate::{
    Redis,
    lease::{Lock, Redlock},
};

use crate::{
    cores,
    run::{Run, Wanted},
    server::{Server, runtime},
};

/// Measures how locks are handed over, on one server and on three, and what holding them costs.
pub fn run(run: &mut Run) {
    cores::pinned(cores::CLIENT, || {
        let runtime = runtime();
        hand_overs(run, &runtime);
        majorities(run, &runtime);
        losses(run, &runtime);
        renewals(run, &runtime);
    });
}

/// From the release to the next holder, who has waited for a while on a connection of its own.
fn hand_overs(run: &mut Run, runtime: &Runtime) {
    let server = Server::start();
    let title = format!("leases: a hand-over, median of {HAND_OVERS}, {}", server.version());
    let names = ["bare PUBLISH", "tollgate", "rslock", "armature-distributed"];
    let measured = run.in_turn(&title, "us", &names, |case| {
        let work = async {
            let mut times = match case {
                0 => published(&server).await,
                1 => ours(&server).await,
                2 => rslocks(&server).await,
                _ => armatures(&server).await,
            };
            median(&mut times)
        };
        LocalSet::new().block_on(runtime, work)
    });
    run.bar("a hand-over, of a bare PUBLISH", Wanted::AtMost(3.0), measured.ratio("tollgate", "bare PUBLISH"));
    let best = measured.of("rslock").min(measured.of("armature-distributed"));
    run.bar("a hand-over, of the best peer's", Wanted::AtMost(0.05), measured.of("tollgate") / best);
}

async fn published(server: &Server) -> Vec<Duration> {
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let resp3 = redis::Client::open(format!("{}/?protocol=resp3", server.url())).expect("an address");
    let mut subscriber = resp3.get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
    subscriber.subscribe("bare").await.expect("subscribed");
    let publisher = redis::Client::open(server.url()).expect("an address");
    let mut publisher = publisher.get_multiplexed_async_connection().await.expect("a connection");
    let mut times = Vec::new();
    for turn in 0..HAND_OVERS {
        sleep(waits(turn)).await;
        while heard.try_recv().is_ok() {}
        let begun = Instant::now();
        let received = async {
            while heard.recv().await.expect("a message").kind != PushKind::Message {}
            begun.elapsed()
        };
        let mut publish = redis::cmd("PUBLISH");
        let send = publish.arg("bare").arg("x").query_async::<i64>(&mut publisher);
        let (received, sent) = tokio::join!(received, send);
        sent.expect("published");
        times.push(received);
    }
    times
}

/// Hands a lock over from one holder to another and back; `release` and `acquire` are for the peer of that number.
async fn between<G: 'static>(
    acquire: impl AsyncFn(usize) -> G + Clone + 'static,
    release: impl AsyncFn(G),
) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut guard = acquire(0).await;
    for turn in 0..HAND_OVERS {
        let acquire = acquire.clone();
        let waiter = tokio::task::spawn_local(async move { (acquire(1 - turn % 2).await, Instant::now()) });
        sleep(waits(turn)).await;
        let begun = Instant::now();
        release(guard).await;
        let (next, held) = waiter.await.expect("no panic");
        times.push(held - begun);
        guard = next;
    }
    release(guard).await;
    times
}

async fn ours(server: &Server) -> Vec<Duration> {
    let locks = [(); 2].map(|()| Lock::new(&Redis::open(&server.url()).expect("an address"), "ours"));
    between(
        async move |at: usize| locks[at].acquire().await.expect("free"),
        async |guard| _ = guard.release().await.expect("an answer"),
    )
    .await
}

async fn rslocks(server: &Server) -> Vec<Duration> {
    let managers = [(); 2].map(|()| LockManager::new(vec![server.url()]));
    between(
        async move |at: usize| managers[at].acquire("rslock", TTL).await.expect("free"),
        async |guard| guard.release().await,
    )
    .await
}

async fn armatures(server: &Server) -> Vec<Duration> {
    let mut locks = Vec::new();
    for _ in 0..2 {
        let client = redis::Client::open(server.url()).expect("an address");
        locks.push(std::sync::Arc::new(RedisLock::new(
            "armature",
            TTL,
            client.get_connection_manager().await.expect("a connection"),
        )));
    }
    between(
        async move |at: usize| locks[at].acquire().await.expect("free"),
        async |guard| guard.release().await.expect("an answer"),
    )
    .await
}

/// A lock on three servers, all well and with one of them frozen.
fn majorities(run: &mut Run, runtime: &Runtime) {
    let servers = [(); 3].map(|()| Server::start());
    let redlock = runtime.block_on(async {
        let nodes = servers.iter().map(|server| Redis::open(&server.url()).expect("an address"));
        Redlock::over(nodes.collect::<Vec<_>>()).trust_fresh_nodes().build().await.expect("three")
    });
    let lock = Lock::new(&redlock, "ours").ttl(TTL);
    let peers = LockManager::new(servers.iter().map(Server::url).collect());
    let title = format!("leases: acquire and release on three servers, median, {}", servers[0].version());
    let names = ["tollgate", "tollgate, one frozen", "rslock", "rslock, one frozen"];
    let measured = run.in_turn(&title, "us", &names, |case| {
        let is_frozen = case % 2 == 1;
        if is_frozen {
            servers[1].signal("STOP");
        }
        let mut times = runtime.block_on(async {
            let mut times = Vec::new();
            // The peer takes a second each with one frozen.
            for _ in 0..if case == 3 { 3 } else { 100 } {
                let begun = Instant::now();
                if case < 2 {
                    let guard = lock.acquire().await.expect("free");
                    guard.release().await.expect("an answer");
                } else {
                    peers.acquire("rslock", TTL).await.expect("free").release().await;
                }
                times.push(begun.elapsed());
            }
            times
        });
        if is_frozen {
            servers[1].signal("CONT");
        }
        median(&mut times)
    });
    let name = "one of three frozen, of the healthy time";
    run.bar(name, Wanted::AtMost(2.0), measured.ratio("tollgate, one frozen", "tollgate"));
}

/// How late a holder is told that its lease has ended, and how late a bare timer for that moment is.
fn losses(run: &mut Run, runtime: &Runtime) {
    let server = Server::start();
    let lock = Lock::new(&Redis::open(&server.url()).expect("an address"), "ours").ttl(Duration::from_millis(500));
    let names = ["a bare timer", "lost()"];
    let mut both = [0.0; 2];
    let measured = run.in_turn("leases: late at the deadline, the server frozen", "us", &names, |case| {
        if case == 0 {
            both = runtime.block_on(async {
                let guard = lock.acquire().await.expect("free");
                server.signal("STOP");
                // What was on its way has come by then.
                sleep(Duration::from_millis(20)).await;
                let deadline = Instant::now() + guard.remaining();
                let late = |()| (Instant::now() - deadline).as_nanos() as f64 / 1_000.0;
                let bare = async { late(tokio::time::sleep_until(deadline.into()).await) };
                let lost = async {
                    let _ = guard.lost().await;
                    late(())
                };
                let (bare, lost) = tokio::join!(bare, lost);
                server.signal("CONT");
                drop(guard);
                sleep(Duration::from_millis(100)).await;
                [bare, lost]
            });
        }
        both[case]
    });
    let wanted = measured.of("a bare timer").max(5_000.0);
    run.bar("lost() is late, in us", Wanted::AtMost(wanted), measured.of("lost()"));
}

/// What ten thousand locks that are held cost this process and the server, renewed each third of half a minute.
fn renewals(run: &mut Run, runtime: &Runtime) {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    let (share, calls, held) = runtime.block_on(async {
        let mut guards = Vec::new();
        for i in 0..HELD {
            guards.push(Lock::new(&redis, i).ttl(Duration::from_secs(30)).acquire().await.expect("free"));
        }
        // The first renewals are as close together as the acquires were.
        sleep(Duration::from_secs(12)).await;
        server.forget_stats();
        let (worked, begun) = (worked(), Instant::now());
        sleep(Duration::from_secs(30)).await;
        let share = (self::worked() - worked) as f64 / 100.0 / begun.elapsed().as_secs_f64();
        let calls: u64 = server.stats().iter().filter(|(name, ..)| name == "evalsha").map(|(_, calls, _)| calls).sum();
        (share, calls, guards.iter().filter(|guard| guard.is_held()).count())
    });
    println!(
        "\nleases: {HELD} locks of 30 s, {held} still held: {:.2} % of a core, {calls} calls in 30 s",
        share * 100.0
    );
    run.bar(format!("{HELD} locks renewed, share of a core"), Wanted::AtMost(0.02), share);
}

/// Returns the time that this process has worked, in hundredths of a second.
fn worked() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_nanos() as f64 / 1_000.0
}

/// For so long a waiter waits, so that none that asks again and again is always met at the same moment.
fn waits(turn: usize) -> Duration {
    Duration::from_millis(8 + turn as u64 * 7 % 13)
}

const HAND_OVERS: usize = 40;

const HELD: u32 = 10_000;

const TTL: Duration = Duration::from_secs(10);

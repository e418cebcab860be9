//! What is left on a server when all is done: keys that end, and jobs that nobody has done.

use std::time::Duration;

use tollgate::{
    Key,
    lease::{Claims, Leader, Lock, NotStarted, Once, Redlock, Semaphore, Tickets},
};

use super::{ms, open, sleep, soon};
use crate::support::server::Server;

const KEPT: Duration = Duration::from_secs(60);

/// Returns the keys of a server, each with its time left in milliseconds, -1 if it has none.
fn keys(server: &Server) -> Vec<(String, i64)> {
    let mut admin = server.admin();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin).expect("KEYS");
    let left = |key: String| {
        let left = redis::cmd("PTTL").arg(&key).query(&mut admin).expect("PTTL");
        (key, left)
    };
    keys.into_iter().map(left).filter(|(_, left)| *left != -2).collect()
}

#[tokio::test]
async fn nothing_is_left_but_keys_that_end_and_jobs_that_wait() {
    let server = Server::start();
    let (redis, other) = (open(&server), open(&server));
    // Released, dropped, waited for, given up, lost by force, run.
    for fair in [false, true] {
        let lock = |store| {
            let lock = Lock::new(store, Key::from_parts(["lock", if fair { "fair" } else { "any" }])).wait(ms(50));
            if fair { lock.fair() } else { lock }
        };
        let guard = lock(&redis).acquire().await.expect("free");
        assert!(lock(&other).acquire().await.is_err());
        guard.release().await.expect("an answer");
        drop(lock(&redis).acquire().await.expect("free"));
        sleep(ms(20)).await;
        lock(&redis).run(async |_| ()).await.expect("held");
        let _guard = lock(&redis).acquire().await.expect("free");
        assert!(lock(&other).force_release().await.expect("an answer"));
    }
    Lock::all(&redis, ["one", "two"]).run(async |_| ()).await.expect("held");
    let guard = Lock::new(&redis, "fenced").acquire().await.expect("free");
    redis.write_fenced("fenced", guard.fence().expect("a fence"), b"x", KEPT).await.expect("the newest");
    std::mem::forget(guard); // as by a process that dies
    let semaphore = Semaphore::new(&redis, "permits", 2).expect("permits");
    let (one, two) = (semaphore.acquire().await.expect("free"), semaphore.acquire().await.expect("free"));
    one.release().await.expect("an answer");
    std::mem::forget(two);
    let leader = Leader::new(&redis, "leader");
    leader.run(async |_| ()).await.expect("elected");
    leader.campaign().await.expect("nobody leads").resign().await.expect("an answer");

    let once = Once::new(&redis, "once", KEPT).lease(ms(50));
    once.run("done", async |_| Ok(vec![1])).await.expect("an answer");
    once.run("not started", async |_| Err(NotStarted)).await.expect("an answer");
    let breaks_off = once.run("unknown", async |_| std::future::pending().await);
    assert!(tokio::time::timeout(ms(20), breaks_off).await.is_err());
    assert!(once.claim("flag").await.expect("an answer"));
    let tickets = Tickets::new(&redis, "tickets", KEPT);
    let ticket = tickets.issue(b"x").await.expect("issued");
    assert!(tickets.redeem(&ticket).await.expect("an answer").is_some());
    let _unused = tickets.issue(b"x").await.expect("issued");

    let done = Claims::new(&redis, "done");
    for _ in 0..3 {
        done.push(b"x").await.expect("pushed");
    }
    done.claim().await.expect("a job").nack(Duration::ZERO).await.expect("ours");
    for _ in 0..3 {
        soon(done.claim()).await.expect("a job").ack().await.expect("ours");
    }
    let waits = Claims::new(&redis, "waits");
    waits.push(b"x").await.expect("pushed");

    for (key, left) in keys(&server) {
        let waits = key.contains(":q1:") && key.ends_with(":waits");
        // A fence is kept for a day after it was needed.
        let ends = (1..=2 * 86_400_000).contains(&left);
        assert!(ends || (waits && left == -1), "{key} is left for {left} ms");
        assert!(!key.contains(":q1:") || waits, "{key} is left of jobs that are done");
    }
    soon(waits.claim()).await.expect("a job").ack().await.expect("ours");
    assert!(!keys(&server).iter().any(|(_, left)| *left == -1), "{:?}", keys(&server));
    // Nobody listens when nobody has waited for a while.
    sleep(ms(1_300)).await;
    let channels: Vec<String> = redis::cmd("PUBSUB").arg("CHANNELS").query(&mut server.admin()).expect("PUBSUB");
    assert!(channels.is_empty(), "{channels:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_on_any_server_of_a_majority() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let redlock = Redlock::over(servers.iter().map(open).collect::<Vec<_>>()).trust_fresh_nodes().build();
    let redlock = redlock.await.expect("three");
    let lock = Lock::new(&redlock, "x").ttl(ms(300));
    lock.run(async |_| sleep(ms(250)).await).await.expect("held");
    drop(lock.acquire().await.expect("free"));
    std::mem::forget(soon(lock.acquire()).await.expect("free"));
    for server in &servers {
        let keys = keys(server);
        assert!(!keys.is_empty() && keys.iter().all(|(_, left)| *left > 0), "{keys:?}");
    }
}

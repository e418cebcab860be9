//! What is held when the master of a Sentinel dies.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::{
    Redis,
    lease::{Claims, Lock, Once, Ran, Semaphore},
};

use super::{coordination::all_of_it_works, ms, sleep, soon};
use crate::support::{sentinels::Sentinels, server::Server};

/// Longer than it takes until there is another master.
const TTL: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_held_by_the_next_master_too_and_all_goes_on() {
    let mut servers = Sentinels::start();
    let [one, other] = [(); 2].map(|()| Redis::open(&servers.url("")).expect("an address"));
    all_of_it_works(&one, &other, "before").await;

    let lock = |redis: &Redis| Lock::new(redis, "held").ttl(TTL).wait_forever();
    let permits = |redis: &Redis| Semaphore::new(redis, "held", 1).expect("a permit").ttl(TTL).wait_forever();
    let [jobs, more_jobs] = [&one, &other].map(|redis| Claims::new(redis, "jobs").visibility(TTL));
    let guard = lock(&one).acquire().await.expect("held");
    let permit = permits(&one).acquire().await.expect("free");
    jobs.push(b"first").await.expect("pushed");
    jobs.push(b"second").await.expect("pushed");
    let claim = jobs.claim().await.expect("a job");
    let (lock, permits) = (lock(&other), permits(&other));
    let next_guard = tokio::spawn(async move { lock.acquire().await });
    let next_permit = tokio::spawn(async move { permits.acquire().await });
    // The master dies while a body runs.
    let mut second = None;
    let once = |redis: &Redis| Once::new(redis, "once", TTL).lease(TTL);
    let here = once(&one);
    let run = here.run("held", async |_| {
        replicate(&servers.master);
        servers.master.kill();
        let killed = Instant::now();
        while second.is_none() {
            second = jobs.try_claim().await.unwrap_or_default();
            assert!(killed.elapsed() < TTL * 2 / 3, "no new master");
            sleep(ms(20)).await;
        }
        println!("coordinated again after {:?}", killed.elapsed());
        Ok(b"done".to_vec())
    });
    assert_eq!(run.await.expect("an answer"), Ran::Here(b"done".to_vec()));
    let again = once(&other).run("held", async |_| Ok(vec![])).await;
    assert_eq!(again.expect("an answer"), Ran::Before(b"done".to_vec()));

    guard.check().expect("held");
    assert!(permit.is_held());
    assert!(!next_guard.is_finished() && !next_permit.is_finished());
    let fence = guard.fence();
    guard.release().await.expect("released");
    permit.release().await.expect("released");
    let next = soon(next_guard).await.expect("no panic").expect("free");
    assert!(next.fence() > fence);
    drop(soon(next_permit).await.expect("no panic").expect("free"));
    assert!(more_jobs.try_claim().await.expect("an answer").is_none(), "both are worked on");
    let second = second.expect("a job");
    assert_eq!((claim.payload(), second.payload()), (&b"first"[..], &b"second"[..]));
    claim.ack().await.expect("ours");
    second.ack().await.expect("ours");
    all_of_it_works(&one, &other, "after").await;
}

/// Waits until the replica has all that was written.
fn replicate(master: &Server) {
    let mut admin = master.admin();
    let written =
        redis::pipe().cmd("SET").arg(&["x", "1", "EX", "1"]).ignore().cmd("WAIT").arg(&[1, 5_000]).query(&mut admin);
    let replicas: [u32; 1] = written.expect("WAIT");
    assert_eq!(replicas, [1]);
}

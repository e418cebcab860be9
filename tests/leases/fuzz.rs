//! Futures that are dropped at every poll leave nothing behind.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use tokio::time::sleep;
use tollgate::{
    Redis,
    lease::{Claims, Leader, Lock, Once, Semaphore, Tickets},
};

use super::support::{assert_all_keys_expire, server::Server};

/// Polls a future so often at most, and drops it; returns true if it was done by then.
async fn for_polls(polls: usize, future: impl Future<Output = ()>) -> bool {
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(|cx| {
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if polled >= polls => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops what `make` makes after one poll, after two, and so on until it is done; looks after each what is left.
async fn at_every_poll<F: Future<Output = ()>>(make: impl Fn() -> F, mut look: impl AsyncFnMut(usize)) {
    for polls in 1..200 {
        let is_done = for_polls(polls, make()).await;
        look(polls).await;
        if is_done {
            return;
        }
    }
    panic!("it takes more than 200 polls");
}

#[tokio::test]
async fn whatever_is_dropped_at_any_poll_holds_nothing() {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    let free = async |what: &str, polls: usize| {
        let lock = Lock::new(&redis, what).wait(Duration::from_secs(2));
        let fair = Lock::new(&redis, what).wait(Duration::from_secs(2)).fair();
        for lock in [lock, fair] {
            let guard = lock.acquire().await.unwrap_or_else(|error| panic!("{what} at poll {polls}: {error:?}"));
            guard.release().await.expect("an answer");
        }
    };
    let lock = || Lock::new(&redis, "x");
    at_every_poll(async || drop(lock().acquire().await), async |polls| free("x", polls).await).await;
    at_every_poll(async || drop(lock().try_acquire().await), async |polls| free("x", polls).await).await;
    at_every_poll(async || drop(lock().fair().acquire().await), async |polls| free("x", polls).await).await;
    at_every_poll(
        async || {
            let guard = lock().acquire().await.expect("held");
            let _ = guard.ensure(Duration::from_secs(30)).await;
            let _ = guard.release().await;
        },
        async |polls| free("x", polls).await,
    )
    .await;
    at_every_poll(
        async || _ = lock().run(async |_| tokio::task::yield_now().await).await,
        async |polls| free("x", polls).await,
    )
    .await;
    at_every_poll(
        async || _ = lock().run_or_warn(async |_| tokio::task::yield_now().await).await,
        async |polls| free("x", polls).await,
    )
    .await;
    at_every_poll(
        async || drop(Lock::all(&redis, ["x", "y"]).acquire().await),
        async |polls| {
            free("x", polls).await;
            free("y", polls).await;
        },
    )
    .await;
    let semaphore = Semaphore::new(&redis, "s", 1).expect("permits").wait(Duration::from_secs(2));
    at_every_poll(
        async || _ = semaphore.acquire().await.expect("free").release().await,
        async |_| _ = semaphore.acquire().await.expect("free").release().await,
    )
    .await;
    let leader = Leader::new(&redis, "l");
    at_every_poll(
        async || _ = leader.run(async |_| tokio::task::yield_now().await).await,
        async |_| _ = leader.campaign().await.expect("free").resign().await,
    )
    .await;
    assert_all_keys_expire(&mut server.admin());
}

#[tokio::test]
async fn a_waiter_dropped_at_any_poll_stands_in_nobodys_way() {
    let server = Server::start();
    let [one, other] = [(); 2].map(|()| Redis::open(&server.url()).expect("an address"));
    for fair in [false, true] {
        let lock = |redis: &Redis| {
            let lock = Lock::new(redis, "x").wait(Duration::from_secs(2));
            if fair { lock.fair() } else { lock }
        };
        for polls in 1..12 {
            let guard = lock(&one).acquire().await.expect("free");
            let waiting = for_polls(polls, async { drop(lock(&other).acquire().await) });
            // Some wait for what comes only with the release.
            let _ = tokio::time::timeout(Duration::from_millis(20), waiting).await;
            guard.release().await.expect("an answer");
            lock(&one).acquire().await.expect("free").release().await.expect("an answer");
        }
    }
}

#[tokio::test]
async fn things_done_once_that_are_dropped_before_they_began_have_not_happened() {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    let once = Once::new(&redis, "x", Duration::from_secs(60)).wait(Duration::from_secs(2));
    for polls in 1..20 {
        let began = std::cell::Cell::new(false);
        let body = async |_| {
            began.set(true);
            Ok(vec![1])
        };
        let is_done = for_polls(polls, async { _ = once.run("a", body).await }).await;
        // From then on nobody knows what it did.
        if is_done || began.get() {
            break;
        }
        // What was begun for nothing is given back, a round trip later.
        sleep(Duration::from_millis(20)).await;
        let again = once.run("a", async |_| Err(tollgate::lease::NotStarted)).await.expect("an answer");
        assert_eq!(again, tollgate::lease::Ran::NotStarted, "at poll {polls}");
    }
    let tickets = Tickets::new(&redis, "t", Duration::from_secs(60));
    at_every_poll(async || drop(tickets.issue(b"x").await), async |_| ()).await;
    let jobs = Claims::new(&redis, "q").visibility(Duration::from_millis(50));
    for polls in 1..20 {
        jobs.push(b"x").await.expect("pushed");
        let claiming = for_polls(polls, async { _ = jobs.claim().await.expect("one").ack().await });
        if claiming.await {
            break;
        }
        // A claim that nobody has comes back when it has ended.
        let claim = tokio::time::timeout(Duration::from_secs(2), jobs.claim()).await.expect("in time").expect("one");
        claim.ack().await.expect("ours");
        while let Ok(Ok(claim)) = tokio::time::timeout(Duration::from_millis(80), jobs.claim()).await {
            claim.ack().await.expect("ours");
        }
    }
}

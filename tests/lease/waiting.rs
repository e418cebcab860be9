//! Waiters: woken at once, at the holder's end after a crash, in turn if they ask for it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::time::Instant;
use tollgate::lease::{LeaseId, LeaseStore, Lock, Share, Terms, Token};

use super::{ms, open, sleep, soon, stages};
use crate::support::{calls, other_process, server::Server};

/// Holds a name as a process does that has died: nobody renews or releases.
async fn crash(store: &Arc<dyn LeaseStore>, name: &str, ttl: u64) {
    let id = LeaseId::new([name.into()], Share::Whole, Token::random().expect("random bytes"));
    store.acquire(&id, &Terms::new(ms(ttl), "dead")).await.expect("an answer");
}

#[tokio::test]
async fn a_waiter_of_another_process_is_woken_by_the_release() {
    for stage in stages() {
        let guard = Lock::new(&stage.store, "x").acquire().await.expect("held");
        let other = Lock::new(&stage.other(), "x");
        let waiter = tokio::spawn(async move {
            let guard = soon(other.acquire()).await.expect("free");
            (Instant::now(), guard)
        });
        sleep(ms(150)).await;
        assert!(!waiter.is_finished());
        let fence = guard.fence();
        let begun = Instant::now();
        guard.release().await.expect("an answer");
        let (woken, next) = waiter.await.expect("no panic");
        assert!(woken - begun < ms(50), "{:?}", woken - begun);
        assert!(next.fence() > fence);
    }
}

#[tokio::test]
async fn a_waiter_has_the_lease_when_a_dead_holders_time_is_up() {
    for stage in stages() {
        crash(&stage.store, "x", 250).await;
        let begun = Instant::now();
        let _guard = soon(Lock::new(&stage.other(), "x").acquire()).await.expect("free");
        assert!((ms(240)..ms(300)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_wait_ends_when_it_was_to_and_an_attempt_never_waits() {
    for stage in stages() {
        let _guard = Lock::new(&stage.store, "x").acquire().await.expect("held");
        let other = Lock::new(&stage.other(), "x").wait(ms(100));
        let begun = Instant::now();
        let error = other.acquire().await.expect_err("taken");
        assert!(error.is_wait_too_long() && !error.is_transient(), "{error:?}");
        assert!((ms(95)..ms(160)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        let begun = Instant::now();
        assert!(other.try_acquire().await.expect("an answer").is_none());
        assert!(begun.elapsed() < ms(50));
    }
}

#[tokio::test]
async fn many_waiters_hold_one_after_the_other_and_all_of_them_do() {
    for stage in stages() {
        let inside = Arc::new(AtomicU64::new(0));
        let last = Arc::new(AtomicU64::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..40 {
            let store = if i % 2 == 0 { Arc::clone(&stage.store) } else { stage.other() };
            let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
            tasks.spawn(async move {
                let guard = soon(Lock::new(&store, "x").acquire()).await.expect("free");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                let fence = guard.fence().map(u64::from).expect("a fence");
                assert!(last.swap(fence, Ordering::SeqCst) < fence, "fences grow");
                sleep(ms(1)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("an answer");
            });
        }
        tasks.join_all().await;
    }
}

#[tokio::test]
async fn holders_of_one_process_hand_over_in_one_call_and_let_others_in_between() {
    let server = Server::start();
    let (here, there) = (open(&server), open(&server));
    let (ours, theirs) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let first = Lock::new(&here, "x").acquire().await.expect("held");
    let mut tasks = tokio::task::JoinSet::new();
    let waiter = |store: &tollgate::Redis, count: &Arc<AtomicU64>, others: &Arc<AtomicU64>| {
        let (lock, count, others) = (Lock::new(store, "x"), Arc::clone(count), Arc::clone(others));
        async move {
            let guard = soon(lock.acquire()).await.expect("free");
            count.fetch_add(1, Ordering::SeqCst);
            let others = others.load(Ordering::SeqCst);
            // Long enough for a waiter elsewhere to ask.
            sleep(ms(2)).await;
            guard.release().await.expect("an answer");
            others
        }
    };
    for _ in 0..60 {
        tasks.spawn(waiter(&here, &ours, &theirs));
    }
    sleep(ms(20)).await;
    let elsewhere = tokio::spawn(waiter(&there, &theirs, &ours));
    sleep(ms(50)).await;
    let before = calls(&mut server.admin(), "publish");
    first.release().await.expect("an answer");
    let waited_for = elsewhere.await.expect("no panic");
    assert!(waited_for <= 40, "{waited_for} of another process came first");
    tasks.join_all().await;
    // Each release that is none to an heir publishes.
    let published = calls(&mut server.admin(), "publish") - before;
    assert!(published <= 12, "{published} of 62");
}

/// The other process of the next test: forty tasks that want the same lock again and again, and count how often.
#[test]
fn crowd() {
    let Ok(url) = std::env::var(CROWD_AT) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let lock = Lock::new(&tollgate::Redis::open(&url).expect("an address"), "x").wait_forever();
        let counter = redis::Client::open(url).expect("an address");
        let counter = counter.get_multiplexed_async_connection().await.expect("a connection");
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let (lock, mut counter) = (lock.clone(), counter.clone());
            tasks.spawn(async move {
                loop {
                    let guard = lock.acquire().await.expect("held");
                    let _: u64 = redis::cmd("INCR").arg("held").query_async(&mut counter).await.expect("INCR");
                    guard.release().await.expect("an answer");
                }
            });
        }
        tasks.join_all().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_many_waiters_lets_others_have_their_turn() {
    let server = Server::start();
    let held = |server: &Server| -> u64 {
        let held: Option<u64> = redis::cmd("GET").arg("held").query(&mut server.admin()).expect("GET");
        held.unwrap_or_default()
    };
    let mut crowd = other_process("waiting::crowd", CROWD_AT, &server.url());
    while held(&server) < 100 {
        sleep(ms(10)).await;
    }
    let lock = Lock::new(&open(&server), "x");
    let mut came_first = Vec::new();
    for _ in 0..30 {
        let before = held(&server);
        let guard = soon(lock.acquire()).await.expect("free");
        came_first.push(held(&server) - before);
        guard.release().await.expect("an answer");
    }
    crowd.kill().expect("killed");
    crowd.wait().expect("ended");
    came_first.sort_unstable();
    println!("came first: {came_first:?}");
    // Sixteen in a row at most, and some between the count and the question.
    let (median, most) = (came_first[15], came_first[29]);
    assert!(median <= 25 && most <= 60, "{came_first:?} of another process came first");
}

const CROWD_AT: &str = "TOLLGATE_CROWD_AT";

#[tokio::test]
async fn fair_waiters_of_all_processes_come_in_their_order() {
    for stage in stages() {
        let fair = |store: &Arc<dyn LeaseStore>| Lock::new(store, "x").fair();
        let guard = fair(&stage.store).acquire().await.expect("held");
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for i in 0..9 {
            let store = if i % 3 == 0 { Arc::clone(&stage.store) } else { stage.other() };
            let lock = fair(&store);
            let sender = sender.clone();
            tokio::spawn(async move {
                let guard = soon(lock.acquire()).await.expect("free");
                sender.send(i).expect("a receiver");
                guard.release().await.expect("an answer");
            });
            // Each is in the queue before the next one comes.
            sleep(ms(15)).await;
        }
        let begun = Instant::now();
        guard.release().await.expect("an answer");
        for i in 0..9 {
            assert_eq!(soon(order.recv()).await, Some(i));
        }
        assert!(begun.elapsed() < ms(500), "woken, not by asking: {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn waiters_ask_again_and_again_where_channels_are_refused() {
    let server = Server::start();
    let rights: &[&str] = &["SETUSER", "u", "on", "nopass", "resetchannels", "~*", "+@all"];
    let _: () = redis::cmd("ACL").arg(rights).query(&mut server.admin()).expect("ACL SETUSER");
    let url = format!("redis://u:any@127.0.0.1:{}", server.port());
    let [one, other] = [(); 2].map(|()| tollgate::Redis::open(&url).expect("an address"));
    let guard = Lock::new(&one, "x").acquire().await.expect("held");
    let waiter = tokio::spawn(async move { soon(Lock::new(&other, "x").acquire()).await.map(drop) });
    sleep(ms(300)).await;
    let asked = calls(&mut server.admin(), "evalsha");
    assert!((3..60).contains(&asked), "{asked}");
    let begun = Instant::now();
    guard.release().await.expect("released without the right to publish");
    waiter.await.expect("no panic").expect("free");
    assert!(begun.elapsed() < ms(150), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_waiter_subscribes_for_as_long_as_it_waits_and_again_after_a_cut() {
    let server = Server::start();
    let (one, other) = (open(&server), open(&server));
    let subscribed = |server: &Server| -> Vec<String> {
        redis::cmd("PUBSUB").arg("CHANNELS").query(&mut server.admin()).expect("PUBSUB")
    };
    let guard = Lock::new(&one, "x").ttl(ms(5_000)).acquire().await.expect("held");
    assert!(subscribed(&server).is_empty(), "nobody waits");
    let waiter = tokio::spawn(async move {
        let guard = soon(Lock::new(&other, "x").acquire()).await.expect("free");
        (guard, other)
    });
    sleep(ms(100)).await;
    assert_eq!(subscribed(&server).len(), 1);
    let _: u32 = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query(&mut server.admin()).expect("CLIENT");
    let mut tries = 0;
    while subscribed(&server).is_empty() {
        tries += 1;
        assert!(tries < 200, "not subscribed again");
        sleep(ms(10)).await;
    }
    sleep(ms(50)).await;
    let begun = Instant::now();
    guard.release().await.expect("an answer");
    let held = waiter.await.expect("no panic");
    assert!(begun.elapsed() < ms(100), "{:?}", begun.elapsed());
    // Some time after the last waiter.
    sleep(ms(1_300)).await;
    assert!(subscribed(&server).is_empty());
    drop(held);
}

#[tokio::test]
async fn a_waiter_that_gives_up_leaves_nothing_behind() {
    for stage in stages() {
        let guard = Lock::new(&stage.store, "x").acquire().await.expect("held");
        for fair in [false, true] {
            let lock = Lock::new(&stage.other(), "x").wait_forever();
            let lock = if fair { lock.fair() } else { lock };
            let waiter = tokio::spawn(async move { lock.acquire().await });
            sleep(ms(30)).await;
            waiter.abort();
            let _ = waiter.await;
        }
        sleep(ms(50)).await;
        guard.release().await.expect("an answer");
        assert!(Lock::new(&stage.other(), "x").fair().try_acquire().await.expect("an answer").is_some());
    }
}

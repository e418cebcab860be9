//! Guards: renewed while they live, lost in time, released at the end.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::lease::{Lock, Lost, Released};

use super::{ms, sleep, soon, stages};

#[tokio::test]
async fn a_guard_is_renewed_for_as_long_as_it_lives() {
    for stage in stages() {
        let lock = Lock::new(&stage.store, "x").ttl(ms(200));
        let guard = lock.acquire().await.expect("held");
        let fence = guard.fence();
        sleep(ms(600)).await;
        guard.check().expect("still held");
        assert!(guard.remaining() > ms(100) && guard.fence() == fence);
        assert!(Lock::new(&stage.other(), "x").try_acquire().await.expect("an answer").is_none());
        assert_eq!(guard.release().await.expect("an answer"), Released::Released);
        assert!(Lock::new(&stage.other(), "x").try_acquire().await.expect("an answer").is_some());
    }
}

#[tokio::test]
async fn a_dropped_guard_is_released_in_the_background() {
    for stage in stages() {
        let lock = Lock::new(&stage.store, "x");
        drop(lock.acquire().await.expect("held"));
        let other = Lock::new(&stage.other(), "x").wait(ms(1_000));
        soon(other.acquire()).await.expect("free").release().await.expect("an answer");
    }
}

#[tokio::test]
async fn a_lease_that_is_ended_by_force_is_lost_at_the_next_renewal_and_for_good() {
    for stage in stages() {
        let lock = Lock::new(&stage.store, "x").ttl(ms(300));
        let guard = lock.acquire().await.expect("held");
        let lease = guard.lease();
        assert!(lock.force_release().await.expect("an answer"));
        assert!(!lock.force_release().await.expect("an answer"));
        let begun = Instant::now();
        assert_eq!(soon(lease.lost()).await, Lost::Taken);
        assert!(begun.elapsed() < ms(200), "{:?}", begun.elapsed());
        assert!(lease.check().expect_err("lost").is_lost());
        assert!(guard.ensure(ms(1)).await.expect_err("lost").is_lost());
        let next = lock.try_acquire().await.expect("an answer").expect("free");
        assert!(next.fence() > guard.fence());
        assert_eq!(guard.release().await.expect("an answer"), Released::NotHeld);
        next.check().expect("the other is not touched");
        assert_eq!(next.release().await.expect("an answer"), Released::Released);
        assert_eq!(lease.lost().await, Lost::Taken, "the first reason stays");
    }
}

#[tokio::test]
async fn no_guard_is_held_longer_than_it_may() {
    for stage in stages() {
        let lock = Lock::new(&stage.store, "x").ttl(ms(150)).max_hold(ms(400));
        let begun = Instant::now();
        let guard = lock.acquire().await.expect("held");
        assert_eq!(soon(guard.lost()).await, Lost::MaxHold);
        assert!((ms(395)..ms(450)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        sleep(ms(160)).await;
        assert!(Lock::new(&stage.other(), "x").try_acquire().await.expect("an answer").is_some());
    }
}

#[tokio::test]
async fn time_can_be_made_sure_of_before_something_long() {
    for stage in stages() {
        let guard = Lock::new(&stage.store, "x").ttl(ms(600)).acquire().await.expect("held");
        sleep(ms(120)).await;
        assert!(guard.remaining() < ms(500));
        guard.ensure(ms(500)).await.expect("extended");
        assert!(guard.remaining() > ms(550));
        assert!(guard.ensure(Duration::from_secs(1)).await.expect_err("never").is_invalid());
        guard.check().expect("held all the same");
    }
}

#[tokio::test]
async fn a_holder_is_warned_before_the_end() {
    let stage = stages().pop().expect("redis");
    let server = stage.server.as_ref().expect("a server");
    let begun = Instant::now();
    let guard = Lock::new(&stage.store, "x").ttl(ms(600)).acquire().await.expect("held");
    let held = Instant::now();
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(2_000).query(&mut server.admin()).expect("CLIENT PAUSE");
    soon(guard.expiring_soon()).await;
    assert!(begun.elapsed() > ms(330) && held.elapsed() < ms(500), "{:?}", begun.elapsed());
    guard.check().expect("not lost yet");
    assert_eq!(soon(guard.lost()).await, Lost::Expired);
    // 600 ms less the margin of 8 ms, and what a timer is late on a busy machine.
    assert!(begun.elapsed() > ms(590) && held.elapsed() < ms(640), "{:?}", begun.elapsed());
}

#[test]
fn guards_may_outlive_their_runtime() {
    for stage in stages() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let lock = Lock::new(&stage.store, "x").ttl(ms(100));
        let (guard, dropped) = runtime.block_on(async {
            let dropped = Lock::new(&stage.store, "y").ttl(ms(100)).acquire().await.expect("held");
            (lock.acquire().await.expect("held"), dropped)
        });
        drop(runtime);
        drop(dropped);
        assert!(guard.is_held());
        // Nobody renews it any more.
        std::thread::sleep(ms(110));
        assert!(!guard.is_held());
        let other = tokio::runtime::Runtime::new().expect("a runtime");
        other.block_on(async { drop(soon(lock.acquire()).await.expect("free")) });
    }
}

#[tokio::test]
async fn guards_can_be_moved_and_shared() {
    fn of<T: Send + Sync + 'static>() {}
    of::<Lock>();
    of::<tollgate::lease::Guard>();
    of::<tollgate::lease::Lease>();
    for stage in stages() {
        let guard = Lock::new(&stage.store, "x").acquire().await.expect("held");
        let released = tokio::spawn(guard.release()).await.expect("no panic");
        assert_eq!(released.expect("an answer"), Released::Released);
    }
}

//! Bodies that run under a lease, and break off when it is lost.

use std::{cell::Cell, process::Command, rc::Rc, time::Duration};

use tokio::time::Instant;
use tollgate::lease::{Lock, Lost};

use super::{ms, sleep, soon, stages};

#[tokio::test]
async fn a_body_runs_under_a_lease_that_is_renewed_and_then_released() {
    for stage in stages() {
        let lock = Lock::new(&stage.store, "x").ttl(ms(150));
        // Neither `Send` nor `'static`.
        let steps = Rc::new(Cell::new(0));
        let output = lock
            .run(async |lease| {
                for _ in 0..4 {
                    sleep(ms(100)).await;
                    lease.check().expect("held");
                    steps.set(steps.get() + 1);
                }
                "done"
            })
            .await
            .expect("held to the end");
        assert_eq!((output, steps.get()), ("done", 4));
        assert!(Lock::new(&stage.other(), "x").try_acquire().await.expect("an answer").is_some());
    }
}

#[tokio::test]
async fn a_body_is_broken_off_when_its_lease_is_taken_away() {
    for stage in stages() {
        let lock = Lock::new(&stage.store, "x").ttl(ms(300));
        let steps = Cell::new(0);
        let error = soon(lock.run(async |_| {
            assert!(lock.force_release().await.expect("an answer"));
            loop {
                sleep(ms(5)).await;
                steps.set(steps.get() + 1);
            }
        }))
        .await
        .expect_err("lost");
        assert!(error.is_lost() && steps.get() < 60, "{error:?} after {}", steps.get());
        assert!(Lock::new(&stage.store, "x").try_acquire().await.expect("an answer").is_some());
    }
}

#[tokio::test]
async fn no_step_of_a_body_starts_after_the_deadline() {
    for stage in stages() {
        let lock = Lock::new(&stage.store, "x").ttl(ms(100));
        let late = Cell::new(false);
        let error = lock
            .run(async |_| {
                tokio::task::yield_now().await;
                // As a process that is stopped and goes on later.
                std::thread::sleep(ms(150));
                tokio::task::yield_now().await;
                late.set(true);
            })
            .await
            .expect_err("lost");
        assert!(error.is_lost() && !late.get());
        assert!(error.into_output().is_none());
    }
}

#[tokio::test]
async fn a_body_that_finishes_too_late_tells_what_it_came_to() {
    for stage in stages() {
        let lock = Lock::new(&stage.store, "x").ttl(ms(100));
        let error = lock
            .run(async |_| {
                std::thread::sleep(ms(150));
                42
            })
            .await
            .expect_err("lost");
        assert!(error.is_lost());
        assert_eq!(error.into_output(), Some(42));

        let ran = lock
            .run_or_warn(async |lease| {
                std::thread::sleep(ms(150));
                tokio::task::yield_now().await;
                lease.is_held()
            })
            .await
            .expect("held at first");
        assert_eq!((ran.output, ran.lost), (false, Some(Lost::Expired)));
        let ran = lock.run_or_warn(async |_| sleep(ms(200)).await).await.expect("held");
        assert_eq!(ran.lost, None, "renewed");
    }
}

#[tokio::test]
async fn a_body_that_is_dropped_gives_its_lease_back() {
    for stage in stages() {
        let lock = Lock::new(&stage.store, "x");
        let _ = tokio::time::timeout(ms(50), lock.run(async |_| std::future::pending::<()>().await)).await;
        drop(soon(Lock::new(&stage.other(), "x").acquire()).await.expect("free"));
    }
}

#[tokio::test]
async fn a_holder_of_a_frozen_server_knows_its_end_by_itself() {
    let stage = stages().pop().expect("redis");
    let server = stage.server.as_ref().expect("a server");
    let signal = |signal: &str| {
        let sent = Command::new("kill").args([signal, &server.pid().to_string()]).status();
        assert!(sent.expect("kill").success());
    };
    let ttl = ms(500);
    let lock = Lock::new(&stage.store, "x").ttl(ttl);
    let begun = Cell::new(Instant::now());
    let last = Cell::new(Instant::now());
    let error = soon(lock.run(async |_| {
        begun.set(Instant::now());
        signal("-STOP");
        loop {
            sleep(ms(5)).await;
            last.set(Instant::now());
        }
    }))
    .await
    .expect_err("lost");
    let lost = begun.get().elapsed();
    signal("-CONT");
    assert!(error.is_lost());
    // The deadline is 493 ms after the sending; the body worked all the while.
    let late = Duration::from_millis(if cfg!(debug_assertions) { 20 } else { 5 });
    assert!(lost < ms(493) + late, "{lost:?}");
    assert!(last.get() - begun.get() > ms(440), "{:?}", last.get() - begun.get());
}

#[tokio::test]
async fn what_runs_under_a_lease_can_be_a_task() {
    for stage in stages() {
        let (store, other) = (stage.other(), stage.other());
        let locked = tokio::spawn(async move { Lock::new(&store, "x").run(async |lease| lease.is_held()).await });
        assert!(locked.await.expect("no panic").expect("held"));
        let led = tokio::spawn(async move {
            let leader = tollgate::lease::Leader::new(&other, "x");
            leader.run(async |term| term.is_held()).await
        });
        assert!(led.await.expect("no panic").expect("elected"));
    }
}

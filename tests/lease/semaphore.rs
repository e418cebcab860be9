//! Several holders at a time, and never one more.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tollgate::lease::Semaphore;

use super::{ms, sleep, soon, stages};

#[tokio::test]
async fn of_many_never_more_hold_than_there_are_permits() {
    for stage in stages() {
        let (inside, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..40 {
            let store = if i % 2 == 0 { Arc::clone(&stage.store) } else { stage.other() };
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            tasks.spawn(async move {
                let semaphore = Semaphore::new(&store, "x", 3).expect("permits");
                let permit = soon(semaphore.acquire()).await.expect("free");
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(ms(3)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                permit.release().await.expect("an answer");
            });
        }
        tasks.join_all().await;
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }
}

#[tokio::test]
async fn permits_are_renewed_while_they_are_held_and_come_back_when_dropped() {
    for stage in stages() {
        let semaphore = Semaphore::new(&stage.store, "x", 2).expect("permits").ttl(ms(150)).wait(ms(500));
        let (one, _two) = (semaphore.acquire().await.expect("free"), semaphore.acquire().await.expect("free"));
        sleep(ms(400)).await;
        assert!(one.is_held() && one.fence().is_none());
        assert_eq!(semaphore.holders().await.expect("an answer").len(), 2);
        let other = Semaphore::new(&stage.other(), "x", 2).expect("permits");
        assert!(other.try_acquire().await.expect("an answer").is_none());
        drop(one);
        drop(soon(other.acquire()).await.expect("free"));
    }
}

#[tokio::test]
async fn a_number_of_permits_that_cannot_be_is_refused() {
    for stage in stages() {
        for most in [0, 100_001] {
            let error = Semaphore::new(&stage.store, "x", most).expect_err("out of bounds");
            assert!(error.is_invalid() && error.to_string().contains("100000"), "{error}");
        }
    }
}

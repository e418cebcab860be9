//! What is refused, and how that is said.

use std::time::Duration;

use tollgate::{Memory, lease::Lock};

use super::ms;

#[tokio::test]
async fn options_that_cannot_be_are_refused_with_what_could() {
    let store = Memory::new();
    let lock = || Lock::new(&store, "x");
    let cases = [
        (lock().ttl(ms(19)), "20ms"),
        (lock().ttl(Duration::from_secs(86_401)), "86400s"),
        (lock().ttl(Duration::from_micros(30_500)), "whole milliseconds"),
        (lock().label(&"x".repeat(257)), "256"),
        (Lock::all(&store, Vec::<String>::new()), "1 to 64"),
        (Lock::all(&store, 0..65_u32), "1 to 64"),
        (Lock::all(&store, ["x", "y"]).fair(), "one name"),
    ];
    for (lock, said) in cases {
        let error = lock.try_acquire().await.expect_err(said);
        assert!(error.is_invalid() && error.to_string().contains(said), "{error}");
        assert!(lock.acquire().await.expect_err(said).is_invalid());
        assert!(lock.run(async |_| ()).await.expect_err(said).error().is_invalid());
    }
}

#[tokio::test]
async fn memory_that_is_full_says_so_and_forgets_nobody() {
    let store = Memory::new().max_keys(100);
    let mut guards = Vec::new();
    for i in 0..100_u32 {
        guards.push(Lock::new(&store, i).acquire().await.expect("room"));
    }
    let error = Lock::new(&store, "more").wait(ms(50)).acquire().await.expect_err("full");
    assert!(format!("{error:?}").contains("full"), "{error:?}");
    assert!(Lock::new(&store, 7_u32).try_acquire().await.is_err() || guards[7].is_held());
    assert!(guards.iter().all(|guard| guard.is_held()));
}

#[tokio::test]
async fn a_moved_clock_ends_leases_of_a_memory_in_a_test() {
    let (store, clock) = Memory::manual();
    let lock = Lock::new(&store, "x").ttl(Duration::from_secs(3_600));
    let guard = lock.acquire().await.expect("held");
    clock.advance(Duration::from_secs(3_500));
    assert!(guard.is_held());
    clock.advance(Duration::from_secs(101));
    assert!(!guard.is_held());
    assert!(lock.try_acquire().await.expect("an answer").is_some());
}

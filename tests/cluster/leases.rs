//! Leases on a Cluster: a name lies in one slot, several names anywhere.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::{Redis, lease::Lock};

use crate::support::{assert_all_keys_expire, cluster::Cluster};

#[tokio::test(flavor = "multi_thread")]
async fn locks_on_any_names_are_held_handed_over_and_waited_for() {
    let cluster = Cluster::start(3);
    let [one, other] = [(); 2].map(|()| Redis::open(&cluster.url()).expect("an address"));
    for i in 0..30 {
        let guard = Lock::new(&one, format!("name:{i}")).acquire().await.expect("held");
        assert!(Lock::new(&other, format!("name:{i}")).try_acquire().await.expect("an answer").is_none());
        let next = Lock::new(&other, format!("name:{i}"));
        let waiter = tokio::spawn(async move { next.acquire().await.map(|guard| (Instant::now(), guard)) });
        // Real time, in which the waiter subscribes.
        sleep(Duration::from_millis(30)).await;
        let fence = guard.fence();
        let begun = Instant::now();
        guard.release().await.expect("released");
        let (woken, next) = waiter.await.expect("no panic").expect("free");
        assert!(woken - begun < Duration::from_millis(100), "{:?}", woken - begun);
        assert!(next.fence() > fence);
    }

    // Several names, of which some are held already.
    let names: Vec<String> = (0..10).map(|i| format!("several:{i}")).collect();
    let all = |redis: &Redis| Lock::all(redis, names.clone()).ttl(Duration::from_millis(300));
    let held = all(&one).acquire().await.expect("held");
    assert_eq!(held.fences().count(), 10);
    assert!(all(&other).try_acquire().await.expect("an answer").is_none());
    // Renewed several times.
    sleep(Duration::from_millis(700)).await;
    held.check().expect("held");
    held.release().await.expect("released");
    let seventh = Lock::new(&one, names[7].clone()).acquire().await.expect("free");
    assert!(all(&other).try_acquire().await.expect("an answer").is_none());
    for (i, name) in names.iter().enumerate().filter(|(i, _)| *i != 7) {
        assert!(Lock::new(&one, name.clone()).try_acquire().await.expect("an answer").is_some(), "{i} was kept");
    }
    drop(seventh);
    all(&other).acquire().await.expect("free").release().await.expect("released");
    for master in &cluster.masters {
        assert_all_keys_expire(&mut master.admin());
    }
}

//! Leases on a Cluster: a name lies in one slot, several names anywhere.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::{Redis, lease::Lock};

use crate::{
    coordination::all_of_it_works,
    support::{
        assert_all_keys_expire,
        cluster::{Cluster, move_slot, run},
    },
};

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

#[tokio::test(flavor = "multi_thread")]
async fn all_that_is_coordinated_works_wherever_its_name_lies() {
    let cluster = Cluster::start(3);
    let [one, other] = [(); 2].map(|()| Redis::open(&cluster.url()).expect("an address"));
    for i in 0..8 {
        all_of_it_works(&one, &other, &format!("name-{i}")).await;
    }
    for master in &cluster.masters {
        assert_all_keys_expire(&mut master.admin());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_kept_while_its_slot_moves() {
    let cluster = std::sync::Arc::new(Cluster::start(2));
    let [one, other] = [(); 2].map(|()| Redis::open(&cluster.url()).expect("an address"));
    // Renewed again and again, and waited for.
    let guard = Lock::new(&one, "moving").ttl(Duration::from_secs(1)).acquire().await.expect("held");
    let next = Lock::new(&other, "moving").wait_forever();
    let waiter = tokio::spawn(async move { next.acquire().await });
    let servers = std::sync::Arc::clone(&cluster);
    let moving = tokio::task::spawn_blocking(move || {
        let all: Vec<_> = servers.masters.iter().collect();
        let keys = |server| run::<Vec<String>>(server, "KEYS *", &[]);
        let from = usize::from(keys(all[0]).is_empty());
        let key = keys(all[from]).first().expect("the lock's").clone();
        let slot = run::<u16>(all[0], "CLUSTER KEYSLOT", &[&key]);
        // Real time, in which it is renewed in each state of the move.
        move_slot(slot, all[from], all[1 - from], &all, || std::thread::sleep(Duration::from_millis(500)));
        assert!(keys(all[from]).is_empty() && !keys(all[1 - from]).is_empty());
    });
    moving.await.expect("it moves");
    guard.check().expect("held all the while");
    let fence = guard.fence();
    guard.release().await.expect("released");
    let next = tokio::time::timeout(Duration::from_secs(2), waiter).await.expect("soon");
    assert!(next.expect("no panic").expect("free").fence() > fence);
}

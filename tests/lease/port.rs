//! What every store of leases promises.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use tollgate::{
    Key,
    lease::{Acquired, Fence, LeaseId, LeaseStore, Share, Terms, Token},
};

use super::{ms, open, sleep, stages};
use crate::support::assert_all_keys_expire;

fn id(name: &str, share: Share) -> LeaseId {
    ids(&[name], share)
}

fn ids(names: &[&str], share: Share) -> LeaseId {
    let names: Vec<Key> = names.iter().map(|name| Key::from(*name)).collect();
    LeaseId::new(names, share, Token::random().expect("random bytes"))
}

fn terms(ttl: u64) -> Terms {
    Terms::new(ms(ttl), "a test")
}

async fn take(store: &Arc<dyn LeaseStore>, id: &LeaseId, ttl: u64) -> Option<Vec<Fence>> {
    match store.acquire(id, &terms(ttl)).await.expect("an answer") {
        Acquired::Held { fences } => Some(fences),
        Acquired::Permit { .. } => Some(Vec::new()),
        _ => None,
    }
}

async fn left(store: &Arc<dyn LeaseStore>, id: &LeaseId) -> Duration {
    match store.acquire(id, &terms(5_000)).await.expect("an answer") {
        Acquired::Taken { left, .. } => left,
        other => panic!("{other:?}"),
    }
}

async fn release(store: &Arc<dyn LeaseStore>, id: &LeaseId) -> bool {
    store.release(id).await.expect("an answer")
}

async fn extend(store: &Arc<dyn LeaseStore>, id: &LeaseId, ttl: u64) -> bool {
    store.extend(&[(id.clone(), ms(ttl))]).await.expect("an answer")[0]
}

#[tokio::test]
async fn one_token_holds_a_name_at_a_time() {
    for stage in stages() {
        for share in [Share::Whole, Share::InTurn(ms(500))] {
            let (a, b) = (id("x", share), id("x", share));
            assert!(take(&stage.store, &a, 5_000).await.is_some());
            let told = left(&stage.store, &b).await;
            assert!(told > ms(4_000) && told <= ms(5_000), "{told:?}");
            assert!(take(&stage.store, &id("y", share), 5_000).await.is_some(), "another name");
            assert!(!release(&stage.store, &b).await);
            assert!(release(&stage.store, &a).await);
            assert!(!release(&stage.store, &a).await, "released twice");
            assert!(take(&stage.store, &b, 5_000).await.is_some());
            assert!(release(&stage.store, &b).await);
            assert!(stage.store.force(&Key::from("y"), share).await.expect("an answer") > 0);
        }
    }
}

#[tokio::test]
async fn a_lease_that_has_ended_is_neither_released_nor_extended_by_its_holder() {
    for stage in stages() {
        for share in [Share::Whole, Share::InTurn(ms(500)), Share::OneOf(NonZeroU32::MIN)] {
            let (a, b) = (id("x", share), id("x", share));
            assert!(take(&stage.store, &a, 40).await.is_some());
            sleep(ms(60)).await;
            assert!(!extend(&stage.store, &a, 5_000).await, "an extension makes nothing");
            assert!(take(&stage.store, &b, 5_000).await.is_some());
            assert!(!extend(&stage.store, &a, 5_000).await);
            assert!(!release(&stage.store, &a).await);
            assert!(extend(&stage.store, &b, 5_000).await, "still held by the other");
            assert!(release(&stage.store, &b).await);
        }
    }
}

#[tokio::test]
async fn an_acquire_that_is_repeated_gets_the_same_fences_and_the_whole_time() {
    for stage in stages() {
        for share in [Share::Whole, Share::InTurn(ms(500))] {
            let (a, b) = (id("x", share), id("x", share));
            let first = take(&stage.store, &a, 1_000).await.expect("held");
            assert_eq!(first.len(), 1);
            sleep(ms(20)).await;
            assert_eq!(take(&stage.store, &a, 5_000).await, Some(first));
            assert!(left(&stage.store, &b).await > ms(4_000));
            assert!(release(&stage.store, &a).await);
            release(&stage.store, &b).await;
        }
    }
}

#[tokio::test]
async fn fences_grow_with_each_holder_and_with_each_end_by_force() {
    for stage in stages() {
        let mut last = 0;
        for round in 0..20 {
            let holder = id("x", Share::Whole);
            let fence = u64::from(take(&stage.store, &holder, 5_000).await.expect("held")[0]);
            assert!(fence > last, "{fence} after {last}");
            last = fence;
            if round % 3 == 0 {
                assert_eq!(stage.store.force(&Key::from("x"), Share::Whole).await.expect("an answer"), 1);
                assert!(!extend(&stage.store, &holder, 5_000).await);
            } else {
                assert!(extend(&stage.store, &holder, 5_000).await);
                assert!(release(&stage.store, &holder).await);
            }
        }
    }
}

#[tokio::test]
async fn fences_grow_when_the_counter_is_lost() {
    let stage = stages().pop().expect("redis");
    let mut admin = stage.server.as_ref().expect("a server").admin();
    let mut last = 0;
    for loss in ["DEL", "FLUSHALL", "SET", "SADD"] {
        let holder = id("x", Share::Whole);
        let fence = u64::from(take(&stage.store, &holder, 5_000).await.expect("held")[0]);
        assert!(fence > last, "{fence} after {last}, by {loss}");
        last = fence;
        assert!(release(&stage.store, &holder).await);
        let counter: Vec<String> = redis::cmd("KEYS").arg("*:f:*").query(&mut admin).expect("KEYS");
        assert_eq!(counter.len(), 1);
        let mut command = redis::cmd(loss);
        match loss {
            "FLUSHALL" => {}
            "DEL" => _ = command.arg(&counter[0]),
            "SET" => _ = command.arg(&counter[0]).arg("rubbish"),
            _ => {
                let _: () = redis::cmd("DEL").arg(&counter[0]).query(&mut admin).expect("DEL");
                command.arg(&counter[0]).arg("rubbish");
            }
        }
        let _: redis::Value = command.query(&mut admin).expect("a command of ours");
    }
    // And when the clock is behind: the counter alone counts then.
    let counter: Vec<String> = redis::cmd("KEYS").arg("*:f:*").query(&mut admin).expect("KEYS");
    let ahead = last + 3_600_000_000;
    let _: () = redis::cmd("SET").arg(&counter[0]).arg(ahead).query(&mut admin).expect("SET");
    let holder = id("x", Share::Whole);
    assert_eq!(take(&stage.store, &holder, 5_000).await.expect("held"), [Fence::from(ahead + 1)]);
    let kept: i64 = redis::cmd("PTTL").arg(&counter[0]).query(&mut admin).expect("PTTL");
    assert!(kept > 24 * 3_600_000 + 3_590_000, "{kept}: a day after the fence's own time");
}

#[tokio::test]
async fn several_names_are_taken_together_or_not_at_all() {
    for stage in stages() {
        let (both, one) = (ids(&["x", "y"], Share::Whole), id("y", Share::Whole));
        assert!(take(&stage.store, &one, 5_000).await.is_some());
        match stage.store.acquire(&both, &terms(5_000)).await.expect("an answer") {
            Acquired::Taken { left, name } => assert!(left > ms(4_000) && name == 1, "{left:?} {name}"),
            other => panic!("{other:?}"),
        }
        let x = id("x", Share::Whole);
        assert!(take(&stage.store, &x, 5_000).await.is_some(), "nothing was taken");
        assert!(release(&stage.store, &x).await && release(&stage.store, &one).await);

        let fences = take(&stage.store, &both, 5_000).await.expect("held");
        assert_eq!(fences.len(), 2);
        assert!(take(&stage.store, &one, 5_000).await.is_none());
        assert!(extend(&stage.store, &both, 5_000).await);
        // One of them is taken away: the lease is no more, and asked for again nothing of it stays.
        stage.store.force(&Key::from("y"), Share::Whole).await.expect("an answer");
        assert!(!extend(&stage.store, &both, 5_000).await);
        assert!(take(&stage.store, &one, 5_000).await.is_some());
        assert!(take(&stage.store, &both, 5_000).await.is_none());
        assert!(take(&stage.store, &x, 5_000).await.is_some(), "the rest was given up");
    }
}

#[tokio::test]
async fn a_lease_is_handed_over_under_a_new_fence_by_its_holder_alone() {
    for stage in stages() {
        let (a, b, c) = (id("x", Share::Whole), id("x", Share::Whole), id("x", Share::Whole));
        let first = take(&stage.store, &a, 5_000).await.expect("held");
        let hand_over = |from: &LeaseId, to: &LeaseId| stage.store.hand_over(from, to, &terms(5_000));
        assert!(matches!(hand_over(&b, &c).await, Ok(Acquired::Taken { .. })), "not by a stranger");
        match hand_over(&a, &b).await.expect("an answer") {
            Acquired::Held { fences } => {
                assert!(fences[0] > first[0]);
                assert_eq!(take(&stage.store, &b, 5_000).await, Some(fences), "asked for by itself as well");
            }
            other => panic!("{other:?}"),
        }
        assert!(!extend(&stage.store, &a, 5_000).await && !release(&stage.store, &a).await);
        assert!(take(&stage.store, &c, 5_000).await.is_none());
    }
}

#[tokio::test]
async fn so_many_permits_are_held_and_no_more() {
    for stage in stages() {
        let share = Share::OneOf(NonZeroU32::new(3).expect("three"));
        let holders = [(); 3].map(|()| id("x", share));
        for ((holder, ttl), free) in holders.iter().zip([5_000, 300, 4_000]).zip([2, 1, 0]) {
            for _repeated in [false, true] {
                let answer = stage.store.acquire(holder, &terms(ttl)).await.expect("an answer");
                assert_eq!(answer, Acquired::Permit { free });
            }
        }
        // Who says another number goes by that.
        let fewer = LeaseId::new([Key::from("x")], Share::OneOf(NonZeroU32::MIN), holders[0].token());
        let answer = stage.store.acquire(&fewer, &terms(5_000)).await.expect("an answer");
        assert_eq!(answer, Acquired::Permit { free: 0 });
        let fourth = id("x", share);
        let told = left(&stage.store, &fourth).await;
        assert!(told <= ms(300), "the first that ends: {told:?}");
        sleep(told + ms(1)).await;
        assert!(take(&stage.store, &fourth, 5_000).await.is_some());
        assert!(!extend(&stage.store, &holders[1], 5_000).await, "it has ended");
        assert!(extend(&stage.store, &holders[0], 5_000).await);
        let known = stage.store.holders(&Key::from("x"), share).await.expect("an answer");
        assert_eq!(known.len(), 3);
        assert!(take(&stage.store, &id("x", Share::Whole), 5_000).await.is_some(), "a lock is something else");
        assert!(release(&stage.store, &fourth).await && !release(&stage.store, &fourth).await);
    }
}

#[tokio::test]
async fn waiters_in_turn_are_served_in_their_order() {
    for stage in stages() {
        let share = Share::InTurn(ms(300));
        let [holder, first, dead, last] = [(); 4].map(|()| id("x", share));
        assert!(take(&stage.store, &holder, 5_000).await.is_some());
        for waiter in [&first, &dead, &last] {
            assert!(take(&stage.store, waiter, 5_000).await.is_none());
        }
        assert!(release(&stage.store, &holder).await);
        assert!(take(&stage.store, &last, 5_000).await.is_none(), "not its turn");
        assert!(take(&stage.store, &first, 5_000).await.is_some());
        assert!(release(&stage.store, &first).await);
        // The next one does not ask, and its place lapses by itself.
        let told = left(&stage.store, &last).await;
        assert!(told > Duration::ZERO && told <= ms(300), "{told:?}");
        sleep(told + ms(2)).await;
        assert!(take(&stage.store, &last, 5_000).await.is_some());
        // One that gives its place up lets the next one in at once.
        let [gives_up, next] = [(); 2].map(|()| id("x", share));
        assert!(take(&stage.store, &gives_up, 5_000).await.is_none());
        assert!(take(&stage.store, &next, 5_000).await.is_none());
        assert!(release(&stage.store, &last).await);
        assert!(!release(&stage.store, &gives_up).await);
        assert!(take(&stage.store, &next, 5_000).await.is_some());
    }
}

#[tokio::test]
async fn operators_are_told_who_holds() {
    for stage in stages() {
        let holder = id("x", Share::Whole);
        let name = Key::from("x");
        assert!(stage.store.holders(&name, Share::Whole).await.expect("an answer").is_empty());
        let fences = take(&stage.store, &holder, 5_000).await.expect("held");
        sleep(ms(20)).await;
        let known = stage.store.holders(&name, Share::Whole).await.expect("an answer");
        let [known] = known.as_slice() else { panic!("{known:?}") };
        assert_eq!((known.token, known.fence, known.label.as_str()), (holder.token(), Some(fences[0]), "a test"));
        assert!(known.left <= ms(4_990) && known.held_for >= ms(15), "{known:?}");
    }
}

#[tokio::test]
async fn a_lease_that_lost_its_expiry_still_ends() {
    let stage = stages().pop().expect("redis");
    let server = stage.server.as_ref().expect("a server");
    for share in [Share::Whole, Share::InTurn(ms(300))] {
        let (a, b) = (id("x", share), id("x", share));
        assert!(take(&stage.store, &a, 5_000).await.is_some());
        let lease: Vec<String> = redis::cmd("KEYS").arg("*:l:*").query(&mut server.admin()).expect("KEYS");
        let _: u32 = redis::cmd("PERSIST").arg(&lease[0]).query(&mut server.admin()).expect("PERSIST");
        assert!(take(&stage.store, &b, 50).await.is_none());
        sleep(ms(60)).await;
        assert!(take(&stage.store, &b, 5_000).await.is_some());
        assert!(release(&stage.store, &b).await);
    }
}

#[tokio::test]
async fn all_that_is_kept_has_an_expiry() {
    let stage = stages().pop().expect("redis");
    let server = stage.server.as_ref().expect("a server");
    for share in [Share::Whole, Share::InTurn(ms(300)), Share::OneOf(NonZeroU32::MIN)] {
        for name in ["x", "{odd} name:*", "ä"] {
            let name = &format!("{name}{share:?}");
            assert!(take(&stage.store, &id(name, share), 5_000).await.is_some());
            assert!(take(&stage.store, &id(name, share), 5_000).await.is_none());
            // Scripts that the server has forgotten are brought again.
            let _: () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut server.admin()).expect("SCRIPT FLUSH");
        }
    }
    assert_all_keys_expire(&mut server.admin());
    drop(open(server));
}

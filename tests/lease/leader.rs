//! Who leads, and for how long.

use std::cell::Cell;

use tollgate::lease::{Election, Leader, Lock, Lost};

use super::{ms, sleep, soon, stages};

#[tokio::test]
async fn one_leads_until_it_resigns_and_then_another_one() {
    for stage in stages() {
        let (one, other) = (Leader::new(&stage.store, "x").label("one"), Leader::new(&stage.other(), "x"));
        let mut events = one.events();
        let term = soon(one.campaign()).await.expect("nobody leads");
        assert!(one.is_leader() && !other.is_leader());
        assert_eq!(other.leader().await.expect("an answer").expect("a leader").label, "one");
        let follower = other.clone();
        let waiting = tokio::spawn(async move { soon(follower.campaign()).await });
        sleep(ms(100)).await;
        assert!(!waiting.is_finished());
        let fence = term.fence().expect("a fence");
        term.resign().await.expect("an answer");
        let next = waiting.await.expect("no panic").expect("elected");
        assert!(next.fence() > Some(fence) && other.is_leader() && !one.is_leader());
        assert_eq!(events.next().await, Some(Election::Elected(fence)));
        assert_eq!(events.next().await, Some(Election::Lost(Lost::Released)));
    }
}

#[tokio::test]
async fn a_body_is_dropped_with_its_term_and_begun_anew_with_the_next() {
    for stage in stages() {
        let leader = Leader::new(&stage.store, "x").ttl(ms(200));
        let mut events = leader.events();
        let terms = Cell::new(0);
        // The name that leaders have is one of locks, too.
        let lock = Lock::new(&stage.store, tollgate::Key::from_parts(["leader", "x"]));
        let output = soon(leader.run(async |term| {
            terms.set(terms.get() + 1);
            if terms.get() == 1 {
                assert!(lock.force_release().await.expect("an answer"));
                std::future::pending::<()>().await;
            }
            sleep(ms(300)).await;
            term.check().expect("renewed");
            terms.get()
        }))
        .await
        .expect("elected");
        assert_eq!(output, 2);
        let mut told = Vec::new();
        for _ in 0..4 {
            told.push(events.next().await.expect("an event"));
        }
        assert!(
            matches!(told[..], [Election::Elected(one), Election::Lost(Lost::Taken), Election::Elected(two), Election::Lost(Lost::Released)] if two > one),
            "{told:?}"
        );
        assert!(leader.leader().await.expect("an answer").is_none(), "given up after the body");
    }
}

#[tokio::test]
async fn a_leader_can_be_made_to_resign_and_tells_when_its_body_overruns() {
    for stage in stages() {
        let leader = Leader::new(&stage.store, "x").ttl(ms(100));
        let handle = leader.clone();
        let running = async { leader.run(async |_| std::future::pending::<()>().await).await };
        let resigning = async {
            while !handle.is_leader() {
                sleep(ms(5)).await;
            }
            assert!(handle.is_healthy(ms(0)));
            handle.resign();
        };
        let (ran, ()) = soon(async { tokio::join!(running, resigning) }).await;
        assert!(ran.expect_err("resigned").is_lost());

        let (handle, terms) = (leader.clone(), Cell::new(0));
        let ran = soon(leader.run(async |_| {
            terms.set(terms.get() + 1);
            if terms.get() == 1 {
                // It blocks, as it should not, for longer than its term.
                std::thread::sleep(ms(120));
                assert!(handle.is_healthy(ms(20)), "not for so long yet");
                std::thread::sleep(ms(30));
                assert!(!handle.is_healthy(ms(20)));
            }
            handle.is_healthy(ms(0))
        }));
        assert!(ran.await.expect("elected") && leader.is_healthy(ms(0)));
        assert_eq!(terms.get(), 2, "the first one finished too late");
    }
}

//! What is done once, and tickets: one suite over all stores.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tollgate::{
    Key, Memory,
    lease::{Begin, Begun, NotStarted, OnUnknown, Once, Ran, RecordStore, Tickets, Token},
};

use super::{ms, open, sleep, soon};
use crate::support::{assert_all_keys_expire, server::Server};

const KEPT: Duration = Duration::from_secs(60);

struct Stage {
    store: Arc<dyn RecordStore>,
    server: Option<Server>,
}

fn stages() -> Vec<Stage> {
    let server = Server::start();
    let redis = open(&server);
    vec![Stage { store: Arc::new(Memory::new()), server: None }, Stage { store: Arc::new(redis), server: Some(server) }]
}

fn begin(lease: u64) -> Begin {
    Begin::new(Token::random().expect("random bytes"), ms(lease), KEPT).print(b"print".to_vec())
}

async fn ask(stage: &Stage, begin: &Begin) -> Begun {
    stage.store.begin(&Key::from("x"), begin).await.expect("an answer")
}

fn print() -> Vec<u8> {
    b"print".to_vec()
}

#[tokio::test]
async fn a_record_goes_from_its_attempt_to_its_outcome() {
    for stage in stages() {
        let (name, first) = (Key::from("x"), begin(5_000));
        let Begun::Started { attempt: 1, fence } = ask(&stage, &first).await else { panic!("not begun") };
        assert_eq!(ask(&stage, &first).await, Begun::Started { attempt: 1, fence }, "repeated");
        match ask(&stage, &begin(5_000)).await {
            Begun::Running { left, print: told } => assert!(left > ms(4_000) && told == print()),
            other => panic!("{other:?}"),
        }
        assert_eq!(stage.store.take(&name).await.expect("an answer"), None, "nothing to take yet");
        let stranger = Token::random().expect("random bytes");
        for (token, is_ours) in [(stranger, false), (first.token, true)] {
            assert_eq!(stage.store.extend(&name, token, ms(5_000)).await.expect("an answer"), is_ours);
            assert_eq!(stage.store.complete(&name, token, b"\0out", KEPT).await.expect("an answer"), is_ours);
        }
        assert!(stage.store.complete(&name, first.token, b"\0out", KEPT).await.expect("an answer"), "repeated");
        let done = Begun::Done { outcome: b"\0out".to_vec(), print: print() };
        assert_eq!(ask(&stage, &begin(5_000)).await, done);
        assert!(!stage.store.abandon(&name, first.token).await.expect("an answer"), "what is done stays");
        assert_eq!(stage.store.take(&name).await.expect("an answer"), Some(b"\0out".to_vec()));
        assert_eq!(stage.store.take(&name).await.expect("an answer"), None);
    }
}

#[tokio::test]
async fn an_attempt_that_lapsed_is_parked_or_taken_over() {
    for stage in stages() {
        let name = Key::from("x");
        let first = begin(40);
        let Begun::Started { fence, .. } = ask(&stage, &first).await else { panic!("not begun") };
        sleep(ms(60)).await;
        assert!(!stage.store.extend(&name, first.token, ms(5_000)).await.expect("an answer"));
        assert_eq!(ask(&stage, &begin(5_000)).await, Begun::Unknown { attempt: 1, print: print() });
        let second = begin(40).on_unknown(OnUnknown::TakeOver);
        let Begun::Started { attempt: 2, fence: greater } = ask(&stage, &second).await else { panic!("not begun") };
        assert!(greater > fence);
        assert!(!stage.store.complete(&name, first.token, b"late", KEPT).await.expect("an answer"));
        // The last one can still tell, after its end.
        sleep(ms(60)).await;
        assert!(stage.store.complete(&name, second.token, b"late", KEPT).await.expect("an answer"));
        assert!(matches!(ask(&stage, &begin(5_000)).await, Begun::Done { .. }));
    }
}

#[tokio::test]
async fn an_abandoned_attempt_has_never_been() {
    for stage in stages() {
        let (name, first) = (Key::from("x"), begin(5_000));
        ask(&stage, &first).await;
        assert!(stage.store.abandon(&name, first.token).await.expect("an answer"));
        assert!(!stage.store.abandon(&name, first.token).await.expect("an answer"));
        assert!(matches!(ask(&stage, &begin(5_000)).await, Begun::Started { attempt: 1, .. }));
    }
}

#[tokio::test]
async fn of_a_hundred_one_does_it_and_all_are_told_the_same() {
    for stage in stages() {
        let count = Arc::new(AtomicU32::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let once = Once::new(&stage.store, "mail", KEPT).wait(Duration::from_secs(5));
            let count = Arc::clone(&count);
            tasks.spawn(async move {
                let body = async |_| {
                    let run = count.fetch_add(1, Ordering::SeqCst);
                    sleep(ms(50)).await;
                    Ok(vec![7, u8::try_from(run).expect("few")])
                };
                soon(once.run("user:42", body)).await.expect("an answer")
            });
        }
        let ran = tasks.join_all().await;
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(ran.iter().all(|ran| ran.outcome() == Some(&[7, 0])), "{ran:?}");
        assert_eq!(ran.iter().filter(|ran| matches!(ran, Ran::Here(_))).count(), 1);
        if let Some(server) = &stage.server {
            assert_all_keys_expire(&mut server.admin());
        }
    }
}

#[tokio::test]
async fn a_body_that_is_longer_than_its_lease_is_renewed() {
    for stage in stages() {
        let once = Once::new(&stage.store, "x", KEPT).lease(ms(150));
        let other = once.clone();
        let run = once.run("a", async |attempt| {
            sleep(ms(500)).await;
            attempt.check().expect("still on");
            assert!(matches!(other.run("a", async |_| Ok(vec![])).await, Ok(Ran::Running { .. })));
            Ok(b"done".to_vec())
        });
        assert_eq!(run.await.expect("in time"), Ran::Here(b"done".to_vec()));
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_parked_and_one_that_did_not_start_is_not() {
    for stage in stages() {
        let once = Once::new(&stage.store, "x", KEPT).lease(ms(400));
        let _ = tokio::time::timeout(ms(100), once.run("a", async |_| std::future::pending().await)).await;
        let again = || once.run("a", async |_| Ok(b"again".to_vec()));
        assert!(matches!(again().await.expect("an answer"), Ran::Running { .. }));
        sleep(ms(420)).await;
        assert_eq!(again().await.expect("an answer"), Ran::Unknown { attempt: 1 });
        let taking_over = once.clone().takeover();
        let twice = taking_over.run("a", async |attempt| Ok(vec![u8::try_from(attempt.number()).expect("few")]));
        assert_eq!(twice.await.expect("an answer"), Ran::Here(vec![2]));
        assert_eq!(again().await.expect("an answer"), Ran::Before(vec![2]));

        assert_eq!(once.run("b", async |_| Err(NotStarted)).await.expect("an answer"), Ran::NotStarted);
        assert_eq!(once.run("b", async |_| Ok(vec![1])).await.expect("an answer"), Ran::Here(vec![1]));
    }
}

#[tokio::test]
async fn an_id_is_claimed_by_one() {
    for stage in stages() {
        let flags = Once::new(&stage.store, "x", ms(200));
        let claims = (0..50).map(|_| {
            let flags = flags.clone();
            async move { flags.claim("a").await.expect("an answer") }
        });
        let claimed = claims.collect::<tokio::task::JoinSet<_>>().join_all().await;
        assert_eq!(claimed.iter().filter(|claimed| **claimed).count(), 1);
        assert!(flags.claim("b").await.expect("an answer"), "another id");
        sleep(ms(220)).await;
        assert!(flags.claim("a").await.expect("an answer"), "kept no longer");
    }
}

#[tokio::test]
async fn a_ticket_is_redeemed_by_one_caller_in_time() {
    for stage in stages() {
        let tickets = Tickets::new(&stage.store, "reset", ms(300));
        let ticket = tickets.issue(b"user:42").await.expect("issued");
        assert_eq!(ticket.len(), 43);
        if let Some(server) = &stage.server {
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.admin()).expect("KEYS");
            assert!(keys.iter().all(|key| !key.contains(&ticket)), "{keys:?}");
            assert_all_keys_expire(&mut server.admin());
        }
        let other = Tickets::new(&stage.store, "invitation", ms(300));
        assert_eq!(other.redeem(&ticket).await.expect("an answer"), None, "of another kind");
        let redeeming = (0..50).map(|_| {
            let (tickets, ticket) = (tickets.clone(), ticket.clone());
            async move { tickets.redeem(&ticket).await.expect("an answer") }
        });
        let redeemed = redeeming.collect::<tokio::task::JoinSet<_>>().join_all().await;
        let carried: Vec<_> = redeemed.into_iter().flatten().collect();
        assert_eq!(carried, [b"user:42".to_vec()]);
        let late = tickets.issue(b"user:43").await.expect("issued");
        sleep(ms(320)).await;
        assert_eq!(tickets.redeem(&late).await.expect("an answer"), None);
    }
}

#[tokio::test]
async fn memory_holds_so_many_bytes_of_records_and_forgets_none() {
    let store = Memory::new().max_record_bytes(20_000);
    let once = Once::new(&store, "x", KEPT);
    let run = |id: u32| {
        let once = &once;
        async move { once.run(id, async |_| Ok(vec![1; 4_000])).await }
    };
    for id in 0..4 {
        assert!(run(id).await.expect("room").outcome().is_some());
    }
    // The body has run, and its caller has what it came to; what is not stored is parked.
    let small = Once::new(&store, "small", KEPT).lease(ms(50));
    let error = store
        .begin(&Key::from("big"), &Begin::done(Token::random().expect("random bytes"), vec![1; 4_000], KEPT))
        .await;
    assert!(error.expect_err("full").to_string().contains("max_record_bytes"));
    assert!(small.run("a", async |_| Ok(vec![])).await.expect("room").outcome().is_some());
    for id in 0..4 {
        assert!(matches!(run(id).await, Ok(Ran::Before(_))), "{id}");
    }
}

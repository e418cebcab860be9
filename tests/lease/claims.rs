//! Jobs: each is worked on by one at a time, and none is lost.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;
use tollgate::{
    Memory,
    lease::{Claims, NewJob, QueueStore},
};

use super::{ms, open, sleep, soon};
use crate::support::server::Server;

struct Stage {
    store: Arc<dyn QueueStore>,
    server: Option<Server>,
}

impl Stage {
    /// Returns another handle, as another process has it.
    fn other(&self) -> Arc<dyn QueueStore> {
        match &self.server {
            Some(server) => Arc::new(open(server)),
            None => Arc::clone(&self.store),
        }
    }
}

fn stages() -> Vec<Stage> {
    let server = Server::start();
    let redis = open(&server);
    vec![Stage { store: Arc::new(Memory::new()), server: None }, Stage { store: Arc::new(redis), server: Some(server) }]
}

#[tokio::test]
async fn each_job_is_done_by_one_worker() {
    for stage in stages() {
        let done = Arc::new(Mutex::new(Vec::new()));
        let jobs = Claims::new(&stage.store, "q");
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let (jobs, done) = (Claims::new(&stage.other(), "q"), Arc::clone(&done));
            workers.spawn(async move {
                while let Ok(Ok(claim)) = tokio::time::timeout(ms(300), jobs.claim()).await {
                    done.lock().expect("no panic").push(claim.payload().to_vec());
                    claim.ack().await.expect("ours");
                }
            });
        }
        for i in 0..100_u8 {
            jobs.push(&[i]).await.expect("pushed");
        }
        workers.join_all().await;
        let done = done.lock().expect("no panic");
        assert_eq!((done.len(), done.iter().collect::<BTreeSet<_>>().len()), (100, 100));
        if let Some(server) = &stage.server {
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.admin()).expect("KEYS");
            assert!(keys.is_empty(), "{keys:?}");
        }
    }
}

#[tokio::test]
async fn jobs_come_by_priority_and_then_in_their_order_and_not_before_their_time() {
    for stage in stages() {
        let jobs = Claims::new(&stage.store, "q");
        for (id, priority, delay) in [("a", 0, 0), ("b", 9, 0), ("c", 9, 0), ("d", 0, 0), ("late", 255, 150)] {
            let job = NewJob::new(id, id).priority(priority).delay(ms(delay));
            assert!(jobs.push_job(&job).await.expect("an answer"));
            assert!(!jobs.push_job(&job).await.expect("an answer"), "an id is there once");
        }
        let begun = Instant::now();
        for id in ["b", "c", "a", "d", "late"] {
            let claim = soon(jobs.claim()).await.expect("a job");
            assert_eq!((claim.id(), claim.payload()), (id, id.as_bytes()));
            claim.ack().await.expect("ours");
        }
        assert!((ms(145)..ms(250)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_waiting_worker_is_woken_by_a_push() {
    for stage in stages() {
        let jobs = Claims::new(&stage.other(), "q");
        let waiting = tokio::spawn(async move {
            let claim = soon(jobs.claim()).await.expect("a job");
            (Instant::now(), claim.ack().await)
        });
        sleep(ms(120)).await;
        let begun = Instant::now();
        Claims::new(&stage.store, "q").push(b"x").await.expect("pushed");
        let (woken, acked) = waiting.await.expect("no panic");
        acked.expect("ours");
        assert!(woken - begun < ms(45), "{:?}", woken - begun);
    }
}

#[tokio::test]
async fn a_claim_is_renewed_while_it_lives_and_comes_back_when_its_worker_dies() {
    for stage in stages() {
        let jobs = Claims::new(&stage.store, "q").visibility(ms(150));
        jobs.push(b"x").await.expect("pushed");
        let claim = jobs.try_claim().await.expect("an answer").expect("a job");
        sleep(ms(400)).await;
        claim.check().expect("renewed");
        assert!(jobs.try_claim().await.expect("an answer").is_none());
        let fence = claim.fence();
        // As by a worker that dies: nothing is said.
        drop(claim);
        assert!(jobs.try_claim().await.expect("an answer").is_none());
        let begun = Instant::now();
        let again = soon(jobs.claim()).await.expect("a job");
        assert!(begun.elapsed() < ms(200), "{:?}", begun.elapsed());
        assert_eq!(again.attempt(), 2);
        assert!(again.fence() > fence);
        again.ack().await.expect("ours");
    }
}

#[tokio::test]
async fn who_answers_when_the_claim_has_ended_is_told_so() {
    for stage in stages() {
        let jobs = Claims::new(&stage.store, "q").visibility(ms(60));
        jobs.push(b"x").await.expect("pushed");
        for round in 0..3 {
            let late = jobs.try_claim().await.expect("an answer").expect("a job");
            // The thread is stopped, and with it the renewal.
            std::thread::sleep(ms(80));
            let error = match round {
                0 => late.ack().await,
                1 => late.nack(Duration::ZERO).await,
                _ => late.bury("late").await,
            };
            assert!(error.expect_err("too late").is_lost());
        }
        let claim = soon(jobs.claim()).await.expect("still there");
        assert_eq!(claim.attempt(), 4);
        claim.ack().await.expect("ours");
    }
}

#[tokio::test]
async fn a_job_that_is_put_back_comes_again_later() {
    for stage in stages() {
        let jobs = Claims::new(&stage.store, "q");
        jobs.push(b"x").await.expect("pushed");
        jobs.claim().await.expect("a job").nack(ms(120)).await.expect("ours");
        let begun = Instant::now();
        let again = soon(jobs.claim()).await.expect("a job");
        assert!((ms(110)..ms(220)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(again.attempt(), 2);
    }
}

#[tokio::test]
async fn what_fails_again_and_again_is_buried_and_can_be_requeued() {
    for stage in stages() {
        let jobs = Claims::new(&stage.store, "q").visibility(ms(150)).max_attempts(2);
        let id = jobs.push(b"poison").await.expect("pushed");
        for _ in 0..2 {
            drop(soon(jobs.claim()).await.expect("a job"));
        }
        sleep(ms(200)).await;
        assert!(jobs.try_claim().await.expect("an answer").is_none());
        let dead = jobs.dead(10).await.expect("an answer");
        assert_eq!((dead.len(), dead[0].id.as_str(), dead[0].attempts), (1, id.as_str(), 2));
        assert!(jobs.requeue(&id).await.expect("an answer"));
        assert!(!jobs.requeue(&id).await.expect("an answer"));
        let claim = soon(jobs.claim()).await.expect("a job");
        assert_eq!((claim.attempt(), claim.payload()), (1, b"poison".as_slice()));
        claim.bury("cannot be read").await.expect("ours");
        let dead = jobs.dead(10).await.expect("an answer");
        assert_eq!((dead[0].reason.as_str(), dead[0].payload.as_slice()), ("cannot be read", b"poison".as_slice()));
    }
}

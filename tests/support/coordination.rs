//! What is coordinated by one Redis, each kind once, by two handles on it as two processes have them.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
    routing::post,
};
use tokio::time::sleep;
use tollgate::{
    ConcurrencyLimitLayer, IdempotencyLayer, Redis,
    layer::header,
    lease::{Claims, Lock, Once, Ran, Semaphore, Tickets},
};

use crate::support::http::{Answer, send, serve};

/// Asserts that locks, permits, records, jobs, tickets and both layers do what they promise, by names of their own.
pub(crate) async fn all_of_it_works(one: &Redis, other: &Redis, name: &str) {
    tokio::join!(
        a_lock_is_handed_over(one, other, name),
        permits_are_handed_over(one, other, name),
        one_body_runs(one, other, name),
        a_job_is_done(one, other, name),
        a_ticket_is_redeemed(one, other, name),
        a_request_is_executed_once(one, other, name),
        one_request_at_a_time_is_served(one, other, name),
    );
}

async fn a_lock_is_handed_over(one: &Redis, other: &Redis, name: &str) {
    for fair in [false, true] {
        let lock = |redis| {
            let lock = Lock::new(redis, format!("{name}:{fair}"));
            if fair { lock.fair() } else { lock }
        };
        let guard = lock(one).acquire().await.expect("held");
        assert!(lock(other).try_acquire().await.expect("an answer").is_none());
        let next = lock(other);
        let waiter = tokio::spawn(async move { next.acquire().await });
        begins_to_wait().await;
        let fence = guard.fence();
        guard.release().await.expect("released");
        let next = waiter.await.expect("no panic").expect("free");
        assert!(next.fence() > fence);
        next.release().await.expect("released");
    }
}

async fn permits_are_handed_over(one: &Redis, other: &Redis, name: &str) {
    let permits = |redis| Semaphore::new(redis, name, 2).expect("permits");
    let first = permits(one).acquire().await.expect("free");
    let second = permits(other).acquire().await.expect("free");
    assert!(permits(other).try_acquire().await.expect("an answer").is_none());
    let next = permits(other);
    let waiter = tokio::spawn(async move { next.acquire().await });
    begins_to_wait().await;
    first.release().await.expect("released");
    let third = waiter.await.expect("no panic").expect("free");
    assert_eq!(permits(one).holders().await.expect("an answer").len(), 2);
    second.release().await.expect("released");
    third.release().await.expect("released");
}

async fn one_body_runs(one: &Redis, other: &Redis, name: &str) {
    let runs = AtomicUsize::new(0);
    let [here, there] = [one, other].map(|redis| Once::new(redis, "once", MINUTE).wait(PATIENCE));
    let body = async |_| {
        runs.fetch_add(1, Ordering::SeqCst);
        begins_to_wait().await;
        Ok(b"done".to_vec())
    };
    let (first, second) = tokio::join!(here.run(name, body), there.run(name, body));
    let ran = [first.expect("an answer"), second.expect("an answer")];
    assert!(ran.iter().all(|ran| ran.outcome() == Some(b"done")), "{ran:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(there.run(name, body).await.expect("an answer"), Ran::Before(b"done".to_vec()));
    let flag = format!("{name}:claimed");
    assert!(here.claim(flag.clone()).await.expect("an answer"));
    assert!(!there.claim(flag).await.expect("an answer"));
}

async fn a_job_is_done(one: &Redis, other: &Redis, name: &str) {
    let [here, there] = [one, other].map(|redis| Claims::new(redis, name));
    let worker = there.clone();
    let waiter = tokio::spawn(async move { worker.claim().await });
    begins_to_wait().await;
    here.push(b"job").await.expect("pushed");
    let claim = waiter.await.expect("no panic").expect("a job");
    assert_eq!((claim.payload(), claim.attempt()), (&b"job"[..], 1));
    claim.nack(Duration::ZERO).await.expect("ours");
    let again = here.claim().await.expect("a job");
    assert_eq!(again.attempt(), 2);
    assert!(there.try_claim().await.expect("an answer").is_none());
    again.ack().await.expect("ours");
}

async fn a_ticket_is_redeemed(one: &Redis, other: &Redis, name: &str) {
    let [here, there] = [one, other].map(|redis| Tickets::new(redis, "reset", MINUTE));
    let ticket = here.issue(name.as_bytes()).await.expect("issued");
    assert_eq!(there.redeem(&ticket).await.expect("an answer").as_deref(), Some(name.as_bytes()));
    assert_eq!(here.redeem(&ticket).await.expect("an answer"), None);
}

async fn a_request_is_executed_once(one: &Redis, other: &Redis, name: &str) {
    let executed = Arc::new(AtomicUsize::new(0));
    let app = |redis| {
        let layer = IdempotencyLayer::new(redis, header("authorization")).wait(PATIENCE);
        serve(work(&executed).layer(layer))
    };
    let [here, there] = [app(one).await, app(other).await];
    let ask = |address| request(address, name);
    let (first, second) = tokio::join!(ask(here), ask(there));
    let third = ask(there).await;
    for answer in [&first, &second, &third] {
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"1"[..]), "{answer:?}");
    }
    assert_eq!(executed.load(Ordering::SeqCst), 1);
}

async fn one_request_at_a_time_is_served(one: &Redis, other: &Redis, name: &str) {
    let served = Arc::new(AtomicUsize::new(0));
    let app = |redis| {
        let layer = ConcurrencyLimitLayer::new(redis, "work", 1).by(header("authorization")).wait(PATIENCE, 4);
        serve(work(&served).layer(layer))
    };
    let [here, there] = [app(one).await, app(other).await];
    let answers = tokio::join!(request(here, name), request(there, name), request(here, name));
    let mut bodies = [answers.0, answers.1, answers.2].map(|answer| {
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.body
    });
    bodies.sort();
    assert_eq!(bodies, ["1", "2", "3"], "each had begun when no other was there");
}

/// Answers how many requests there were when it ends, which is its own number if none came in between.
fn work(count: &Arc<AtomicUsize>) -> Router {
    let count = Arc::clone(count);
    let handler = move || {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            begins_to_wait().await;
            count.load(Ordering::SeqCst).to_string()
        }
    };
    Router::new().route("/work", post(handler))
}

async fn request(address: SocketAddr, name: &str) -> Answer {
    let request = Request::post("/work").header("authorization", name).header("idempotency-key", "\"a-key\"");
    send(address, None, request.body(Body::empty()).expect("a request")).await
}

/// Real time, in which a waiter asks and subscribes: nobody tells when it has.
async fn begins_to_wait() {
    sleep(Duration::from_millis(50)).await;
}

const MINUTE: Duration = Duration::from_secs(60);

/// Longer than any of it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

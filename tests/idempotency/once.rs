//! Who executes, who is told, who is refused.

use axum::{
    body::Body,
    http::{Method, Request},
};
use tokio::task::JoinSet;

use super::*;

#[tokio::test]
async fn of_a_hundred_requests_with_one_key_one_is_executed() {
    for stage in stages() {
        // They wait, or are told to come again.
        for (wait, is_told) in [(ms(10_000), false), (Duration::ZERO, true)] {
            let key = format!("key-{is_told}");
            let (address, count) = serve_work(stage.layer().wait(wait), ms(300)).await;
            let mut all = JoinSet::new();
            for _ in 0..100 {
                let key = key.clone();
                all.spawn(async move { work(address, &key, "7").await });
            }
            let answers = all.join_all().await;
            assert_eq!(count.get(), 1);
            let (done, told): (Vec<_>, Vec<_>) =
                answers.iter().partition(|answer| answer.status == StatusCode::CREATED);
            assert!(done.iter().all(|answer| answer.body == "execution 1, attempt 1"));
            assert!(done.iter().all(|answer| without_date(&answer.headers) == without_date(&done[0].headers)));
            assert_eq!(done.iter().filter(|answer| !replayed(answer)).count(), 1);
            assert_eq!(told.is_empty(), !is_told);
            for answer in told {
                assert_problem(answer, 409, "in-flight");
                let wait: u64 = answer.text("retry-after").expect("a wait").parse().expect("seconds");
                assert!((1..=30).contains(&wait), "as long as the lease at most");
            }
            let again = work(address, &key, "7").await;
            assert!(replayed(&again) && again.body == "execution 1, attempt 1");
        }
    }
}

#[tokio::test]
async fn a_key_with_another_request_is_refused_even_while_the_first_is_executed() {
    for stage in stages() {
        let (address, count) = serve_work(stage.layer(), ms(400)).await;
        let first = tokio::spawn(async move { work(address, "k", "7").await });
        while count.get() == 0 {
            // The server runs on its own.
            tokio::time::sleep(ms(5)).await;
        }
        assert_problem(&work(address, "k", "8").await, 422, "key-used");
        assert_eq!(first.await.expect("an answer").status, StatusCode::CREATED);
        assert_problem(&work(address, "k", "8").await, 422, "key-used");
        let mut patch = request("/work", "k", "7");
        *patch.method_mut() = Method::PATCH;
        assert_problem(&send(address, None, patch).await, 422, "key-used");
        assert_problem(&send(address, None, request("/work?x=1", "k", "7")).await, 422, "key-used");
        let typed = work_with(address, &[("idempotency-key", "\"k\""), ("content-type", "text/plain")], "7").await;
        assert_problem(&typed, 422, "key-used");
        assert!(replayed(&work(address, "k", "7").await));
        assert_eq!(count.get(), 1);
    }
}

#[tokio::test]
async fn two_tenants_may_choose_one_key() {
    for stage in stages() {
        let (address, count) = serve_work(stage.layer(), ms(0)).await;
        for (number, who) in ["Bearer a", "Bearer b"].iter().enumerate() {
            let fields = [("idempotency-key", "\"k\""), ("authorization", who)];
            let body = format!("execution {}, attempt 1", number + 1);
            assert_eq!(work_with(address, &fields, "7").await.body, body);
            let again = work_with(address, &fields, "7").await;
            assert!(replayed(&again) && again.body == body);
        }
        assert_eq!(work(address, "k", "7").await.body, "execution 3, attempt 1");
        assert_eq!(count.get(), 3);
    }
}

#[tokio::test]
async fn a_route_may_have_keys_of_its_own() {
    for stage in stages() {
        let (address, count) = serve_work(stage.layer().key_per_route(), ms(0)).await;
        assert!(!replayed(&work(address, "k", "7").await));
        assert!(!replayed(&send(address, None, request("/work?x=1", "k", "7")).await));
        assert!(replayed(&work(address, "k", "7").await));
        assert_eq!(count.get(), 2);
    }
}

#[tokio::test]
async fn what_has_no_key_passes_or_is_refused() {
    for stage in stages() {
        let (address, count) = serve_work(stage.layer(), ms(0)).await;
        for expected in 1..=2 {
            assert_eq!(work_with(address, &[], "7").await.body, format!("execution {expected}, attempt 0"));
        }
        let (strict, _) = serve_work(stage.layer().draft(), ms(0)).await;
        let refused = work_with(strict, &[], "7").await;
        let problem = assert_problem(&refused, 400, "key-missing");
        assert_eq!(problem["title"], "Idempotency-Key is missing");
        assert!(refused.text("link").is_some_and(|link| link.contains(r#"rel="describedby""#)));
        let mut put = request("/work", "k", "7");
        *put.method_mut() = Method::PUT;
        assert!(send(strict, None, put).await.body.ends_with(b"attempt 0"), "PUT is none of its methods");
        assert_eq!(count.get(), 2);
    }
}

#[tokio::test]
async fn keys_that_are_none_are_refused() {
    for stage in stages() {
        let (address, count) = serve_work(stage.layer(), ms(0)).await;
        let long = format!("\"{}\"", "x".repeat(300));
        for fields in [
            &[("idempotency-key", "\"a\""), ("idempotency-key", "\"b\"")][..],
            &[("idempotency-key", "\"a\", \"b\"")],
            &[("idempotency-key", &long)],
            &[("idempotency-key", "\"\"")],
            &[("idempotency-key", "")],
            &[("idempotency-key", "bare")],
        ] {
            let refused = work_with(address, fields, "7").await;
            assert_problem(&refused, 400, "key-wrong");
            assert!(refused.text("link").is_some());
        }
        assert_eq!(count.get(), 0);
        let (lenient, _) = serve_work(stage.layer().lenient(), ms(0)).await;
        assert_eq!(work_with(lenient, &[("idempotency-key", "bare")], "7").await.status, StatusCode::CREATED);
        assert!(replayed(&work_with(lenient, &[("idempotency-key", "\"bare\"")], "7").await), "the same key");
    }
}

#[tokio::test]
async fn a_handler_longer_than_its_lease_is_not_run_twice() {
    for stage in stages() {
        let (address, count) = serve_work(stage.layer().lease(ms(500)).takeover(), ms(1_600)).await;
        let first = tokio::spawn(async move { work(address, "k", "7").await });
        while !first.is_finished() {
            // The lease is real time on a real server.
            tokio::time::sleep(ms(50)).await;
            let other = work(address, "k", "7").await;
            assert!(other.status == StatusCode::CONFLICT || replayed(&other), "{other:?}");
        }
        assert_eq!((first.await.expect("an answer").status, count.get()), (StatusCode::CREATED, 1));
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_gets_the_stored_answer_later() {
    for stage in stages() {
        let layer = stage.layer();
        let (address, count) = serve_work(layer.clone(), ms(300)).await;
        let first = tokio::spawn(async move { work(address, "k", "7").await });
        while count.get() == 0 {
            // The server runs on its own.
            tokio::time::sleep(ms(5)).await;
        }
        first.abort();
        assert!(layer.shutdown(ms(5_000)).await, "it ends by itself");
        let again = work(address, "k", "7").await;
        assert!(replayed(&again) && again.body == "execution 1, attempt 1", "{again:?}");
        assert_eq!(count.get(), 1);
    }
}

#[tokio::test]
async fn shutdown_tells_of_what_has_not_ended() {
    let stage = &stages()[0];
    let layer = stage.layer();
    let (address, count) = serve_work(layer.clone(), ms(1_500)).await;
    assert!(layer.shutdown(ms(0)).await, "nothing is under way");
    let first = tokio::spawn(async move { work(address, "k", "7").await });
    while count.get() == 0 {
        // The server runs on its own.
        tokio::time::sleep(ms(5)).await;
    }
    assert!(!layer.shutdown(ms(10)).await);
    first.await.expect("an answer");
    assert!(layer.shutdown(ms(5_000)).await);
}

#[tokio::test]
async fn a_replay_is_one_call_to_the_store_and_all_keys_expire() {
    let stage = stages().pop().expect("a stage with a server");
    let server = stage.server.as_ref().expect("a server");
    let (address, _) = serve_work(stage.layer(), ms(0)).await;
    work(address, "k", "7").await;
    work(address, "k", "7").await;
    let mut admin = server.admin();
    let before = support::calls(&mut admin, "evalsha");
    for _ in 0..10 {
        assert!(replayed(&work(address, "k", "7").await));
    }
    assert_eq!(support::calls(&mut admin, "evalsha") - before, 10);
    support::assert_all_keys_expire(&mut admin);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin).expect("KEYS");
    assert!(keys.iter().all(|key| !key.contains("\"k\"")), "{keys:?}");
}

#[tokio::test]
async fn a_fingerprint_of_ones_own_decides_what_is_the_same() {
    let fields = |body: &'static str| Request::post("/work").header("idempotency-key", "\"k\"").body(Body::from(body));
    for stage in stages() {
        // Only the amount counts, by the user's own word.
        let layer = stage.layer().fingerprint(|_, body| body.iter().copied().filter(u8::is_ascii_digit).collect());
        let (address, count) = serve_work(layer, ms(0)).await;
        assert!(!replayed(&send(address, None, fields("amount=7").expect("a request")).await));
        assert!(replayed(&send(address, None, fields("amount = 7").expect("a request")).await));
        assert_problem(&send(address, None, fields("amount=8").expect("a request")).await, 422, "key-used");
        assert_eq!(count.get(), 1);
    }
}

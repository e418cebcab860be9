//! Who is refused, and what they are told.

use tokio::task::JoinSet;
use tollgate::layer::header;

use super::*;

#[tokio::test]
async fn no_more_than_so_many_are_served_at_a_time() {
    for stage in stages() {
        let layer = ConcurrencyLimitLayer::new(&stage.store, "work", 3);
        let (address, peak) = serve_work(layer, ms(200)).await;
        let mut all = JoinSet::new();
        (0..20).for_each(|_| _ = all.spawn(fetch(address, "/")));
        let answers = all.join_all().await;
        let served = answers.iter().filter(|answer| answer.status == StatusCode::OK).count();
        assert_eq!((served, peak.most()), (3, 3));
        let mut free: Vec<_> = answers.iter().filter(|answer| answer.status == StatusCode::OK).collect();
        free.sort_by_key(|answer| answer.text("ratelimit"));
        let free: Vec<_> = free.iter().map(|answer| answer.text("ratelimit")).collect();
        assert_eq!(free, [Some(r#""work";r=0"#), Some(r#""work";r=1"#), Some(r#""work";r=2"#)]);
        for refused in answers.iter().filter(|answer| answer.status != StatusCode::OK) {
            assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(refused.text("retry-after"), Some("1"));
            assert_eq!(refused.text("ratelimit-policy"), Some(r#""work";q=3;qu="concurrent-requests""#));
            assert_eq!(refused.text("ratelimit"), Some(r#""work";r=0"#));
            let problem = refused.json();
            assert_eq!(problem["status"], 503);
            assert!(problem["type"].as_str().is_some_and(|kind| kind.ends_with("#temporary-reduced-capacity")));
            assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("3 requests at a time")));
        }
        let served = fetch_soon(address, "/").await;
        assert_eq!(served.text("ratelimit-policy"), Some(r#""work";q=3;qu="concurrent-requests""#));
    }
}

#[tokio::test]
async fn it_may_be_the_clients_own_fault() {
    for stage in stages() {
        let layer = ConcurrencyLimitLayer::new(&stage.store, "work", 1).too_many_requests().retry_after(ms(2_500));
        let (address, peak) = serve_work(layer, ms(300)).await;
        let first = tokio::spawn(fetch(address, "/"));
        while peak.now() == 0 {
            // The server runs on its own.
            tokio::time::sleep(ms(5)).await;
        }
        let refused = fetch(address, "/").await;
        assert_eq!((refused.status, refused.text("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("3")));
        assert!(refused.json()["type"].as_str().is_some_and(|kind| kind.ends_with("#quota-exceeded")));
        assert_eq!(first.await.expect("an end").status, StatusCode::OK);
    }
}

#[tokio::test]
async fn each_key_has_its_own() {
    for stage in stages() {
        let layer = ConcurrencyLimitLayer::new(&stage.store, "work", 1).by(header("x-client").or_skip());
        let (address, peak) = serve_work(layer, ms(200)).await;
        let get = |client: Option<&'static str>| async move {
            let mut request = http::Request::get("/").body(axum::body::Body::empty()).expect("a request");
            client.map(|client| request.headers_mut().insert("x-client", client.parse().expect("a value")));
            support::http::send(address, None, request).await.status
        };
        let mut all = JoinSet::new();
        for client in [Some("a"), Some("b"), Some("c"), None, None] {
            all.spawn(get(client));
        }
        assert!(all.join_all().await.iter().all(|status| *status == StatusCode::OK));
        assert_eq!(peak.most(), 5);
    }
}

#[tokio::test]
async fn a_queue_has_an_end_and_a_deadline() {
    for stage in stages() {
        let layer = ConcurrencyLimitLayer::new(&stage.store, "work", 1).wait(ms(5_000), 3);
        let (address, peak) = serve_work(layer, ms(100)).await;
        let mut all = JoinSet::new();
        (0..10).for_each(|_| _ = all.spawn(fetch(address, "/")));
        let answers = all.join_all().await;
        let served = answers.iter().filter(|answer| answer.status == StatusCode::OK).count();
        // One is served and three wait; who comes when one has been served may find a place too.
        assert!((4..=6).contains(&served), "{served}");
        assert_eq!(peak.most(), 1);

        let layer = ConcurrencyLimitLayer::new(&stage.store, "slow", 1).wait(ms(100), 3);
        let (address, peak) = serve_work(layer, ms(1_000)).await;
        let first = tokio::spawn(fetch(address, "/"));
        while peak.now() == 0 {
            // The server runs on its own.
            tokio::time::sleep(ms(5)).await;
        }
        let refused = tokio::time::timeout(ms(700), fetch(address, "/")).await.expect("no longer than its deadline");
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        first.await.expect("an end");
    }
}

#[tokio::test]
async fn without_a_store_requests_are_refused_or_served_as_chosen() {
    let mut server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    server.kill();
    let layer = ConcurrencyLimitLayer::new(&redis, "work", 1).lease(ms(500));
    let (address, peak) = serve_work(layer.clone(), ms(0)).await;
    let refused = fetch(address, "/").await;
    assert_eq!((refused.status, peak.most()), (StatusCode::SERVICE_UNAVAILABLE, 0));
    assert!(refused.json()["detail"].as_str().is_some_and(|detail| detail.contains("cannot be checked")));
    let (open, _) = serve_work(layer.fail_open(), ms(0)).await;
    assert_eq!(fetch(open, "/").await.status, StatusCode::OK);
}

#[tokio::test]
async fn what_cannot_be_counted_is_told_when_it_is_built() {
    let memory = Memory::new();
    for (name, most, part) in [("a b", 1, "a b"), ("", 1, "1 to 64"), ("x", 0, "0"), ("x", 100_001, "100000")] {
        let error = ConcurrencyLimitLayer::try_new(&memory, name, most).expect_err("out of bounds").to_string();
        assert!(error.replace(',', "").contains(part), "{error}");
    }
}

#[tokio::test]
async fn a_grpc_request_is_told_status_8() {
    let (address, peak) = serve_work(ConcurrencyLimitLayer::new(&Memory::new(), "work", 1), ms(1_500)).await;
    let first = tokio::spawn(fetch(address, "/"));
    while peak.now() == 0 {
        // The server runs on its own.
        tokio::time::sleep(ms(5)).await;
    }
    for content_type in ["application/grpc", "application/grpc-web+proto", "application/grpc-web-text"] {
        let mut request = http::Request::get("/").body(axum::body::Body::empty()).expect("a request");
        request.headers_mut().insert("content-type", content_type.parse().expect("a value"));
        let refused = support::http::send(address, None, request).await;
        assert_eq!((refused.text("grpc-status"), refused.text("grpc-retry-pushback-ms")), (Some("8"), Some("1000")));
        assert_eq!(refused.text("content-type"), Some(content_type));
    }
    first.await.expect("an end");
}

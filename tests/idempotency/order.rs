//! Together with a limit on the same store: the limit outside, idempotency inside.

use tollgate::{Limiter, Quota, RateLimitLayer, Rule, layer::global};

use super::*;

#[tokio::test]
async fn a_replay_is_charged_unless_it_is_to_be_spared() {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    for spared in [false, true] {
        let limit = RateLimitLayer::new(Limiter::new(redis.clone()).deny_max_age(Duration::ZERO))
            .rule(Rule::new(if spared { "spared" } else { "charged" }, Quota::per_hour(3)).by(global()).fixed_window())
            .expose_decision();
        let once = IdempotencyLayer::new(&redis, header("authorization"));
        let once = if spared { once.uncharge_replays() } else { once };
        let key = format!("k-{spared}");
        // What is added later is further out.
        let app = Router::new().route("/work", post(|| async { "done" })).layer(once).layer(limit);
        let address = serve(app).await;
        let mut statuses = Vec::new();
        for _ in 0..6 {
            statuses.push(work(address, &key, "7").await.status.as_u16());
            // What is given back is on its way in a task of its own.
            tokio::time::sleep(ms(30)).await;
        }
        assert_eq!(statuses, if spared { [200; 6] } else { [200, 200, 200, 429, 429, 429] });
    }
    assert!(support::connections(&mut server.admin()) <= 3, "one for all, and those of this test");
}

#[tokio::test]
async fn what_the_limit_refuses_takes_no_key() {
    let memory = Memory::new();
    let limit = RateLimitLayer::new(Limiter::new(memory.clone()))
        .rule(Rule::new("r", Quota::per_hour(1)).by(header("x-client")).fixed_window());
    let once = IdempotencyLayer::new(&memory, header("authorization"));
    let address = serve(Router::new().route("/work", post(|| async { "done" })).layer(once).layer(limit)).await;
    let from = |who: &'static str| [("x-client", who), ("idempotency-key", "\"k\"")];
    assert_eq!(work_with(address, &[("x-client", "a")], "").await.status, StatusCode::OK);
    assert_eq!(work_with(address, &from("a"), "7").await.status, StatusCode::TOO_MANY_REQUESTS);
    let first = work_with(address, &from("b"), "7").await;
    assert_eq!((first.status, replayed(&first)), (StatusCode::OK, false), "the refusal was not stored");
}

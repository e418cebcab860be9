//! tower's contract: readiness, clones, errors, cancellation, and the types that a user has to write.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollgate::{
    Decision, Demand, Error, Key, Limiter, Memory, Policy, Quota, RateLimitLayer, Rule,
    layer::{KeyExtractor, RateLimit, ResponseBody, global},
    limit::{Adjustment, Answer, Charge, Outcome, Receipt, Store},
};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, load_shed::LoadShedLayer, service_fn,
};

fn layer(limit: u64) -> RateLimitLayer {
    RateLimitLayer::new(Limiter::new(Memory::new())).rule(Rule::new("r", Quota::per_hour(limit)).by(global()))
}

fn request() -> Request<Full<Bytes>> {
    Request::new(Full::default())
}

/// Panics when called without having been polled ready; a clone is not ready.
#[derive(Debug, Default)]
struct Strict {
    ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl Service<Request<Full<Bytes>>> for Strict {
    type Response = Response<Full<Bytes>>;
    type Error = String;
    type Future = Ready<Result<Self::Response, String>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been polled ready");
        ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test]
async fn the_service_that_was_polled_ready_is_the_one_called() {
    let mut service = layer(3).layer(Strict::default());
    for _ in 0..3 {
        assert_eq!(
            service.ready().await.expect("ready").call(request()).await.expect("called").status(),
            StatusCode::OK
        );
    }
    assert_eq!(
        service.ready().await.expect("ready").call(request()).await.expect("refused").status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(layer(3).layer(Strict::default()).oneshot(request()).await.expect("called").status(), StatusCode::OK);
}

#[tokio::test]
async fn a_concurrency_limit_works_inside_and_outside() {
    let slow =
        || service_fn(async |_: Request<Full<Bytes>>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let inside = ServiceBuilder::new().layer(layer(9)).layer(ConcurrencyLimitLayer::new(1)).service(slow());
    let outside = ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(1)).layer(layer(9)).service(slow());
    for _ in 0..5 {
        assert_eq!(inside.clone().oneshot(request()).await.expect("called").status(), StatusCode::OK);
        assert_eq!(outside.clone().oneshot(request()).await.expect("called").status(), StatusCode::OK);
    }
    let shed = ServiceBuilder::new()
        .layer(layer(9))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(slow());
    assert_eq!(shed.oneshot(request()).await.expect("called").status(), StatusCode::OK);
}

#[tokio::test]
async fn a_refusal_is_a_response_and_an_error_is_the_inner_services() {
    let failing = service_fn(async |_: Request<Full<Bytes>>| Err::<Response<Full<Bytes>>, _>("inner"));
    let mut service = layer(1).layer(failing);
    assert_eq!(service.ready().await.expect("ready").call(request()).await.expect_err("the inner error"), "inner");
    assert_eq!(
        service.ready().await.expect("ready").call(request()).await.expect("a refusal").status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

/// A store that never answers.
#[derive(Debug, Default)]
struct Silent(Arc<AtomicUsize>);

impl Store for Silent {
    fn decide(&self, _: &[Demand<'_>]) -> Answer {
        let asked = Arc::clone(&self.0);
        Answer::pending(async move {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        })
    }

    fn settle(&self, _: &[Adjustment<'_>]) -> Answer<()> {
        Answer::pending(std::future::pending())
    }

    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        Answer::pending(std::future::pending())
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_while_it_waits_calls_nobody_and_gives_back_its_place() {
    let called = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&called);
    let inner = service_fn(move |_: Request<Full<Bytes>>| {
        counted.fetch_add(1, Ordering::Relaxed);
        ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    });
    let asked = Arc::new(AtomicUsize::new(0));
    let limiter = Limiter::new(Silent(Arc::clone(&asked))).deadline(Duration::from_secs(3_600));
    let limit = RateLimitLayer::new(limiter).rule(Rule::new("r", Quota::per_hour(1)).by(global()));
    let service = ServiceBuilder::new().layer(limit).layer(ConcurrencyLimitLayer::new(1)).service(inner);
    for _ in 0..3 {
        // The place in the concurrency limit is taken before the decision, and must come back each time.
        let waiting = service.clone().oneshot(request());
        assert!(tokio::time::timeout(Duration::from_millis(5), waiting).await.is_err());
    }
    assert_eq!((asked.load(Ordering::Relaxed), called.load(Ordering::Relaxed)), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_costs_the_deadline() {
    let limiter = Limiter::new(Silent::default());
    let before = tokio::time::Instant::now();
    static CLOSED: Policy = Policy::fixed_window("closed", Quota::per_hour(1)).on_error(tollgate::OnError::Deny);
    assert!(limiter.check(&CLOSED, "user:42").await.is_unavailable());
    assert_eq!(before.elapsed(), Limiter::DEFAULT_DEADLINE);
    assert!(limiter.reset(&CLOSED, "user:42").await.expect_err("no answer").is_timeout());
    let error = limiter.until_allowed(&CLOSED, "user:42", Duration::from_secs(9)).await.expect_err("no answer");
    assert!(error.is_transient());
}

/// A store of a user's own: everybody may come once.
#[derive(Debug, Default)]
struct Once(std::sync::Mutex<std::collections::HashSet<(String, Key)>>);

impl Store for Once {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        let mut seen = self.0.lock().expect("not poisoned");
        let outcomes =
            demands.iter().map(|demand| match seen.insert((demand.policy().name().to_owned(), *demand.subject())) {
                true => Outcome::pass(demand.policy(), 0)
                    .with_times(Duration::ZERO, Duration::ZERO)
                    .with_receipt(Receipt::new(4_711)),
                false => Outcome::refuse(demand.policy(), 0, None),
            });
        Answer::ready(Ok(Decision::new(outcomes)))
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        for adjustment in adjustments {
            assert_eq!((adjustment.receipt().id(), adjustment.charged(), adjustment.units()), (Some(4_711), 1, 0));
            let mut seen = self.0.lock().expect("not poisoned");
            seen.remove(&(adjustment.policy().name().to_owned(), *adjustment.subject()));
        }
        Answer::ready(Ok(()))
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        self.0.lock().expect("not poisoned").remove(&(policy.name().to_owned(), *subject));
        Answer::ready(Ok(()))
    }
}

#[tokio::test]
async fn a_store_of_ones_own_will_do() {
    let limiter = Limiter::new(Once::default());
    static POLICY: Policy = Policy::fixed_window("once", Quota::per_hour(7));
    assert!(limiter.check(&POLICY, "a").await.is_allowed());
    assert!(limiter.check(&POLICY, "a").await.is_never());
    assert!(limiter.check(&POLICY, "b").await.is_allowed());
    limiter.reset(&POLICY, "a").await.expect("reset");
    let (decision, charge) = limiter.decide(&[Demand::new(&POLICY, "a")]).await;
    assert!(decision.is_allowed());
    charge.settle(0).await.expect("settled");
    assert!(limiter.check(&POLICY, "a").await.is_allowed());
}

#[tokio::test]
async fn the_same_policy_and_subject_twice_count_together_and_others_of_the_name_apart() {
    let limiter = Limiter::new(Memory::new());
    static BUCKET: Policy = Policy::token_bucket("api", Quota::per_hour(5));
    static WINDOW: Policy = Policy::fixed_window("api", Quota::per_hour(9));
    let three = Demand::new(&BUCKET, "a").cost(3);
    let (decision, _) = limiter.decide(&[three.clone(), three.clone()]).await;
    assert!(decision.is_never() && decision.outcomes().len() == 2);
    let two = three.cost(2);
    let (decision, charge) = limiter.decide(&[two.clone(), Demand::new(&WINDOW, "a").cost(7), two]).await;
    let left: Vec<u64> = decision.outcomes().iter().map(Outcome::remaining).collect();
    assert_eq!(left, [1, 2, 1]);
    charge.settle(1).await.expect("settled");
    for (policy, left) in [(&BUCKET, 4), (&WINDOW, 8)] {
        assert_eq!(limiter.peek(policy, "a").await.outcomes()[0].remaining(), left);
    }
    assert!(limiter.until_allowed(&BUCKET, "a", Duration::MAX).await.is_ok());
    let wait = limiter.until_allowed(&WINDOW, "b", Duration::ZERO).await;
    assert!(wait.is_ok());
}

#[test]
fn handles_are_send_sync_and_clone() {
    fn handle<T: Send + Sync + Clone + std::fmt::Debug + 'static>() {}
    fn shared<T: Send + Sync + std::fmt::Debug + 'static + ?Sized>() {}
    handle::<Limiter>();
    handle::<Memory>();
    handle::<tollgate::Redis>();
    handle::<tollgate::ManualClock>();
    handle::<RateLimitLayer>();
    handle::<Rule>();
    handle::<RateLimit<Strict>>();
    handle::<Policy>();
    handle::<Quota>();
    handle::<Key>();
    handle::<Decision>();
    handle::<Charge>();
    handle::<Demand<'static>>();
    shared::<Error>();
    shared::<dyn Store>();
    shared::<dyn KeyExtractor>();
    fn sent<T: Send>(_: &T) {}
    let future = layer(1).layer(Strict::default()).oneshot(request());
    sent(&future);
}

/// What a user writes into a struct and returns from a function: no type parameter but the inner service's.
#[expect(dead_code, reason = "it has to compile, not to run")]
struct App {
    limiter: Limiter,
    layer: RateLimitLayer,
    rule: Rule,
    store: Arc<dyn Store>,
}

#[test]
fn everything_that_takes_a_layer_takes_this_one() {
    fn limits() -> RateLimitLayer {
        layer(1)
    }
    let router: axum::Router = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
    let router = router.layer(limits()).route_layer(limits());
    let _: axum::Router = router.fallback_service(
        limits().layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())))),
    );
    let (_, health) = tonic_health::server::health_reporter();
    let one = tonic::service::LayerExt::named_layer(&limits(), health.clone());
    let _ = tonic::transport::Server::builder().layer(limits()).add_service(health);
    let _ = tonic::transport::Server::builder().add_service(one);
    // Plain hyper: a body that is neither Default nor cloneable, and a request body of any kind.
    let service = limits().layer(service_fn(async |_: Request<hyper::body::Incoming>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    fn hyper_takes<S>(_: hyper_util::service::TowerToHyperService<S>)
    where
        S: Service<Request<hyper::body::Incoming>, Response = Response<ResponseBody<Full<Bytes>>>, Error = Infallible>
            + Clone,
    {
    }
    hyper_takes(hyper_util::service::TowerToHyperService::new(service));
}

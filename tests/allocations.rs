//! What a request costs in allocations, on the admitted memory path, by a counting allocator.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::Empty;
use tollgate::{
    Demand, Error, IdempotencyLayer, Key, Limiter, Memory, PeerAddr, Policy, Quota, RateLimitLayer, Rule,
    layer::{Dialect, client_ip, global, header as by_header, idempotency::RequestBody},
    limit::{Adjustment, Answer, Store},
};
use tower::{Layer, Service, service_fn, util::MapRequest};

/// Answers at once; with a header, as nearly every response has one, or without.
#[derive(Clone)]
struct Inner {
    content_type: bool,
}

impl Service<Request<Empty<Bytes>>> for Inner {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Empty<Bytes>>) -> Self::Future {
        let mut response = Response::new(Empty::new());
        if self.content_type {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        }
        ready(Ok(response))
    }
}

fn request() -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    request.extensions_mut().insert(PeerAddr(SocketAddr::from(([192, 0, 2, 7], 4_711))));
    request.headers_mut().insert("x-tenant", HeaderValue::from_static("a-tenant"));
    request
}

/// Sends a hundred requests after some to warm up, and returns the most and the sum of allocations of one.
fn allocations<S>(mut service: S) -> (u64, u64)
where
    S: Service<Request<Empty<Bytes>>, Error = Infallible>,
{
    let mut count = || {
        let mut cx = Context::from_waker(Waker::noop());
        let mut request = Some(request());
        let counted = allocation_counter::measure(|| {
            assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
            let future = pin!(service.call(request.take().expect("one request")));
            assert!(matches!(future.poll(&mut cx), Poll::Ready(Ok(_))), "answers at once");
        });
        counted.count_total
    };
    (0..10).for_each(|_| {
        count();
    });
    let counts: Vec<u64> = (0..100).map(|_| count()).collect();
    (counts.iter().copied().max().expect("a hundred"), counts.iter().sum())
}

fn layer(rules: [Rule; 2]) -> RateLimitLayer {
    rules.into_iter().fold(RateLimitLayer::new(Limiter::new(Memory::new())), RateLimitLayer::rule)
}

fn rules() -> [[Rule; 2]; 2] {
    let quota = Quota::per_second(10_000);
    let one = |name: &'static str| Rule::new(name, quota).by(client_ip());
    let two = |name: &'static str| Rule::new(name, quota).by((by_header("x-tenant"), client_ip()));
    [[one("bucket"), two("bucket-too")], [one("window").fixed_window(), two("aligned").fixed_window().aligned()]]
}

#[test]
fn a_decision_in_memory_allocates_nothing() {
    let quota = Quota::per_hour(2);
    for policy in [Policy::token_bucket("bucket", quota), Policy::fixed_window("window", quota)] {
        let limiter = Limiter::new(Memory::new());
        let check = || {
            let mut decision = pin!(limiter.check(&policy, "user:42"));
            match decision.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(decision) => decision.is_allowed(),
                Poll::Pending => panic!("memory answers at once"),
            }
        };
        // The first charge makes the entry.
        assert!(check());
        for allowed in [true, false, false] {
            let counted = allocation_counter::measure(|| assert_eq!(check(), allowed));
            assert_eq!(counted.count_total, 0, "{}, allowed: {allowed}", policy.name());
        }
    }
}

/// A store that others use too, and that answers or fails at once.
#[derive(Debug, Default)]
struct Remote {
    memory: Memory,
    failing: Arc<AtomicBool>,
}

impl Store for Remote {
    fn decide(&self, demands: &[Demand<'_>]) -> Answer {
        if self.failing.load(Ordering::Relaxed) {
            return Answer::ready(Err(Error::store("down")));
        }
        self.memory.decide(demands)
    }

    fn settle(&self, adjustments: &[Adjustment<'_>]) -> Answer<()> {
        self.memory.settle(adjustments)
    }

    fn reset(&self, policy: &Policy, subject: &Key) -> Answer<()> {
        self.memory.reset(policy, subject)
    }

    fn is_shared(&self) -> bool {
        true
    }
}

#[test]
fn to_keep_a_share_warm_and_to_decide_by_it_allocates_nothing() {
    let quota = Quota::per_day(1_000);
    for policy in [Policy::token_bucket("bucket", quota), Policy::fixed_window("window", quota)] {
        for replicas in [1, 8] {
            let remote = Remote::default();
            let failing = Arc::clone(&remote.failing);
            let limiter = Limiter::new(remote).replicas(replicas).deny_max_age(Duration::ZERO);
            let check = || {
                let mut decision = pin!(limiter.check(&policy, "user:42"));
                match decision.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(decision) => decision.is_degraded(),
                    Poll::Pending => panic!("it answers at once"),
                }
            };
            assert!(!check());
            let counted = allocation_counter::measure(|| (0..10).for_each(|_| assert!(!check())));
            assert_eq!(counted.count_total, 0, "{} {replicas}", policy.name());
            failing.store(true, Ordering::Relaxed);
            for _ in 0..5 {
                let counted = allocation_counter::measure(|| (0..10).for_each(|_| assert!(check())));
                assert_eq!(counted.count_total, 0, "{} {replicas}", policy.name());
                // Real time: the first failures are asked for, later ones are not.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn without_fields_an_admitted_request_allocates_nothing() {
    let bare = allocations(Inner { content_type: true });
    for rules in rules() {
        let limited = allocations(layer(rules).dialect(Dialect::None).layer(Inner { content_type: true }));
        assert_eq!(limited, bare);
    }
}

#[test]
fn without_a_key_idempotency_allocates_nothing() {
    let inner = service_fn(|_: Request<RequestBody<Empty<Bytes>>>| ready(Ok(Response::new(Empty::<Bytes>::new()))));
    let layered = IdempotencyLayer::new(&Memory::new(), global()).layer(inner);
    let post = |mut request: Request<Empty<Bytes>>| {
        *request.method_mut() = Method::POST;
        request
    };
    assert_eq!(allocations(layered.clone()), (0, 0), "GET");
    assert_eq!(allocations(MapRequest::new(layered, post)), (0, 0), "POST");
}

#[test]
fn with_fields_it_allocates_at_most_twice() {
    for content_type in [true, false] {
        let (_, bare) = allocations(Inner { content_type });
        for rules in rules() {
            let (most, sum) = allocations(layer(rules).layer(Inner { content_type }));
            // A hundred requests. Without any header of its own, the response's map is the two.
            let per_request = if content_type { 1 } else { 2 };
            assert!(sum - bare <= per_request * 100 + 10, "{sum} over {bare}");
            assert!(most <= bare / 100 + per_request + 2, "{most} over {}", bare / 100);
        }
    }
}

#[test]
fn a_tracked_key_costs_at_most_72_bytes() {
    static POLICY: Policy = Policy::token_bucket("per-client", Quota::per_hour(10));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    for keys in [10_000u64, 1_000_000] {
        let memory = Memory::new().max_keys(2_000_000);
        let limiter = Limiter::new(memory.clone());
        let counted = allocation_counter::measure(|| {
            runtime.block_on(async {
                for key in 0..keys {
                    assert!(limiter.check(&POLICY, key).await.is_allowed());
                }
            });
        });
        assert_eq!(memory.len() as u64, keys);
        let bytes = counted.bytes_current / keys.cast_signed();
        assert!(bytes <= 72, "{bytes} bytes a key at {keys} keys");
        println!("{bytes} bytes a key at {keys} keys");
    }
}

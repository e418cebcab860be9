use std::{
    cell::Cell,
    future::Future,
    net::TcpListener,
    process::{Child, Command, Stdio},
    rc::Rc,
    time::Duration,
};

use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;
use tollgate::{Limiter, OnError, Policy, Quota, Redis};

use crate::{Case, table};

const KEYS: u64 = 10_000;

/// A server on a core of its own, where `taskset` is there to give it one.
struct Server(Child, u16);

impl Server {
    fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let program = std::env::var("TOLLGATE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let child = Command::new("taskset")
            .args([
                "-c",
                "1",
                &program,
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        // The server tells nobody when it is ready.
        std::thread::sleep(Duration::from_millis(500));
        Self(child, port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Keeps `in_flight` operations going until there were `total`.
fn closed_loop<F: Future<Output = ()>>(
    rt: &Runtime,
    in_flight: u64,
    total: u64,
    operation: impl Fn(u64) -> F + 'static,
) -> u64
where
    F: Future<Output = ()> + 'static,
{
    let local = tokio::task::LocalSet::new();
    let (next, operation) = (Rc::new(Cell::new(0u64)), Rc::new(operation));
    local.block_on(rt, async {
        let tasks: Vec<_> = (0..in_flight)
            .map(|_| {
                let (next, operation) = (Rc::clone(&next), Rc::clone(&operation));
                tokio::task::spawn_local(async move {
                    while next.get() < total {
                        let i = next.get();
                        next.set(i + 1);
                        operation(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a task");
        }
    });
    total
}

pub fn run() {
    let server = Server::start();
    let url = format!("redis://127.0.0.1:{}", server.1);
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let connection: MultiplexedConnection = rt.block_on(async {
        let client = redis::Client::open(url.as_str()).expect("an address");
        client.get_multiplexed_async_connection().await.expect("a connection")
    });
    let limiter = Limiter::new(Redis::open(&url).expect("an address")).deadline(Duration::from_secs(10));
    let quota = Quota::new(2_000_000_000, Duration::from_secs(86_400)).expect("a quota");
    let policies = [
        ("fixed window", Policy::new("fixed", quota, tollgate::limit::Algorithm::FixedWindow).expect("a policy")),
        (
            "sliding window",
            Policy::new(
                "sliding",
                Quota::new(2_000_000_000, Duration::from_secs(1)).expect("a quota"),
                tollgate::limit::Algorithm::SlidingWindow,
            )
            .expect("a policy"),
        ),
        ("token bucket", Policy::token_bucket("bucket", Quota::per_second(50_000)).burst(2_000_000_000)),
    ];
    for in_flight in [1, 16, 64, 256, 1_024] {
        let total = if in_flight == 1 { 5_000 } else { 60_000 };
        let mut cases: Vec<Case<'_>> = Vec::new();
        let rt = &rt;
        let incr = connection.clone();
        cases.push((
            "bare INCR",
            Box::new(move || {
                let incr = incr.clone();
                closed_loop(rt, in_flight, total, move |key| {
                    let mut connection = incr.clone();
                    async move {
                        let _: i64 = redis::cmd("INCR")
                            .arg(format!("user:{key:07}"))
                            .query_async(&mut connection)
                            .await
                            .expect("INCR");
                    }
                })
            }),
        ));
        let script = connection.clone();
        cases.push((
            "one EVALSHA a call, return 1",
            Box::new(move || {
                let script = script.clone();
                let sha: String = rt.block_on(async {
                    let mut connection = script.clone();
                    redis::cmd("SCRIPT")
                        .arg("LOAD")
                        .arg("return 1")
                        .query_async(&mut connection)
                        .await
                        .expect("SCRIPT LOAD")
                });
                closed_loop(rt, in_flight, total, move |key| {
                    let (mut connection, sha) = (script.clone(), sha.clone());
                    async move {
                        let _: i64 = redis::cmd("EVALSHA")
                            .arg(sha)
                            .arg(1)
                            .arg(format!("user:{key:07}"))
                            .query_async(&mut connection)
                            .await
                            .expect("EVALSHA");
                    }
                })
            }),
        ));
        for (name, policy) in &policies {
            let (limiter, policy) = (limiter.clone(), policy.clone().on_error(OnError::Deny));
            cases.push((
                name,
                Box::new(move || {
                    let (limiter, policy) = (limiter.clone(), policy.clone());
                    closed_loop(rt, in_flight, total, move |key| {
                        let (limiter, policy) = (limiter.clone(), policy.clone());
                        async move { assert!(limiter.check(&policy, format!("user:{key:07}")).await.is_allowed()) }
                    })
                }),
            ));
        }
        let medians = table(&format!("redis, {in_flight} in flight, one connection, one client thread"), &mut cases);
        let rates: Vec<String> = medians[2..].iter().map(|median| format!("{:.2}", medians[0] / median)).collect();
        println!("\nthroughput of bare INCR: fixed, sliding, bucket: {}", rates.join(", "));
    }
}

//! What is promised of a limit of requests at a time: through real axum servers over sockets, on memory and on a real Redis.

mod fleet;
mod holding;
mod refusing;
#[path = "../support/mod.rs"]
mod support;
mod uploads;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, http::StatusCode, routing::get};
use support::{
    http::{Answer, get as fetch, serve},
    server::Server,
};
use tollgate::{ConcurrencyLimitLayer, Memory, Redis, lease::LeaseStore};

/// A store, and the server behind it if there is one.
struct Stage {
    store: Arc<dyn LeaseStore>,
    _server: Option<Server>,
}

fn stages() -> Vec<Stage> {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address");
    vec![
        Stage { store: Arc::new(Memory::new()), _server: None },
        Stage { store: Arc::new(redis), _server: Some(server) },
    ]
}

/// How many are served, and the most there were.
#[derive(Clone, Default)]
struct Peak(Arc<(AtomicUsize, AtomicUsize)>);

impl Peak {
    fn begin(&self) -> usize {
        let now = self.0.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.1.fetch_max(now, Ordering::SeqCst);
        now
    }

    fn end(&self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn now(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

/// Serves `/`, which takes so long.
async fn serve_work(layer: ConcurrencyLimitLayer, takes: Duration) -> (SocketAddr, Peak) {
    let peak = Peak::default();
    let counted = peak.clone();
    let work = move || {
        let peak = counted.clone();
        async move {
            peak.begin();
            // Real time, since a real client waits for it on a socket.
            tokio::time::sleep(takes).await;
            peak.end();
            "done"
        }
    };
    (serve(Router::new().route("/", get(work)).layer(layer)).await, peak)
}

/// Fetches until there is a permit, as it is given back in the background.
async fn fetch_soon(address: SocketAddr, path: &str) -> Answer {
    let answer = async {
        loop {
            let answer = fetch(address, path).await;
            if answer.status == StatusCode::OK {
                return answer;
            }
            tokio::time::sleep(ms(5)).await;
        }
    };
    tokio::time::timeout(ms(5_000), answer).await.expect("a permit comes back")
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

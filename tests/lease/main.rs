//! What is promised of leases: one suite, over memory and over a real server.

mod access;
mod bounds;
mod claims;
#[path = "../support/coordination.rs"]
mod coordination;
mod examples;
mod failing_over;
mod fencing;
mod holding;
mod leader;
mod left;
mod port;
mod records;
mod redlock;
mod run;
mod semaphore;
#[path = "../support/mod.rs"]
mod support;
mod waiting;

use std::{future::Future, sync::Arc, time::Duration};

use support::server::Server;
use tollgate::{Memory, Redis, lease::LeaseStore};

/// A store, and the server behind it if there is one.
struct Stage {
    store: Arc<dyn LeaseStore>,
    server: Option<Server>,
}

impl Stage {
    /// Returns another handle on the same leases, as another process has it.
    fn other(&self) -> Arc<dyn LeaseStore> {
        match &self.server {
            Some(server) => Arc::new(open(server)),
            None => Arc::clone(&self.store),
        }
    }
}

fn open(server: &Server) -> Redis {
    Redis::open(&server.url()).expect("an address")
}

/// Each engine, empty.
fn stages() -> Vec<Stage> {
    let server = Server::start();
    let redis = open(&server);
    vec![Stage { store: Arc::new(Memory::new()), server: None }, Stage { store: Arc::new(redis), server: Some(server) }]
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Waits for real time to pass: servers count it.
async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Fails if something takes longer than it ever may.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), what).await.expect("it takes too long")
}

use std::{
    cell::Cell,
    future::Future,
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    rc::Rc,
    thread,
    time::Duration,
};

use redis::aio::MultiplexedConnection;
use tokio::runtime::{self, Runtime};

use crate::cores;

/// A Redis server of our own, which ends with this.
pub struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts the server that `TOLLGATE_REDIS_SERVER` names, or the one that is installed.
    pub fn start() -> Self {
        let port = free_port();
        let program = std::env::var("TOLLGATE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let child = cores::on(cores::SERVER, &program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start `{program}`: {error}"));
        let server = Self { child, port };
        wait_for(port);
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns a connection that one thread of requests shares.
    pub fn connect(&self, runtime: &Runtime) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).expect("an address");
        runtime.block_on(client.get_multiplexed_async_connection()).expect("a connection")
    }

    /// Starts counting commands anew.
    pub fn forget_stats(&self) {
        let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut self.admin()).expect("CONFIG RESETSTAT");
    }

    /// Returns what commands have been run, how often, and for how many microseconds in all.
    pub fn stats(&self) -> Vec<(String, u64, u64)> {
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut self.admin()).expect("INFO");
        let stat = |line: &str| {
            let (name, numbers) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
            let number = |at: usize| numbers.split(['=', ',']).nth(at)?.parse().ok();
            Some((name.to_owned(), number(1)?, number(3)?))
        };
        info.lines().filter_map(stat).collect()
    }

    /// Sends the server a signal: `STOP` freezes it.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status();
        assert!(sent.expect("kill").success());
    }

    pub fn memory(&self) -> u64 {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut self.admin()).expect("INFO");
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used.and_then(|used| used.trim().parse().ok()).expect("a number")
    }

    pub fn flush(&self) {
        let _: () = redis::cmd("FLUSHALL").query(&mut self.admin()).expect("FLUSHALL");
    }

    pub fn admin(&self) -> redis::Connection {
        redis::Client::open(self.url()).and_then(|client| client.get_connection()).expect("a connection")
    }

    pub fn version(&self) -> String {
        let info: String = redis::cmd("INFO").arg("server").query(&mut self.admin()).expect("INFO");
        let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).map(str::to_owned);
        match (line("valkey_version:"), line("redis_version:")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, version) => format!("Redis {}", version.unwrap_or_default()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

/// Waits until somebody listens.
pub fn wait_for(port: u16) {
    for _ in 0..500 {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return;
        }
        // A server tells nobody when it is ready.
        thread::sleep(Duration::from_millis(10));
    }
    panic!("no server came up on port {port}");
}

pub fn runtime() -> Runtime {
    runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Keeps `in_flight` operations going until there were `total`; each is for one of so many keys.
pub fn closed_loop<F>(
    runtime: &Runtime,
    in_flight: u64,
    total: u64,
    keys: u64,
    operation: impl Fn(u64) -> F + 'static,
) -> u64
where
    F: Future<Output = ()> + 'static,
{
    let local = tokio::task::LocalSet::new();
    let (next, operation) = (Rc::new(Cell::new(0u64)), Rc::new(operation));
    local.block_on(runtime, async {
        let tasks: Vec<_> = (0..in_flight)
            .map(|_| {
                let (next, operation) = (Rc::clone(&next), Rc::clone(&operation));
                tokio::task::spawn_local(async move {
                    while next.get() < total {
                        let i = next.get();
                        next.set(i + 1);
                        // All keys, far from each other.
                        operation(i.wrapping_mul(618_033) % keys).await;
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

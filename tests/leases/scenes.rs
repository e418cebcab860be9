//! The servers of a run, and what can be done to them.

use std::{process::Command, thread, time::Duration};

use tokio::runtime::Runtime;

use super::{
    proxy::{Mood, Proxy},
    support::{
        cluster::{Cluster, info, move_slot, run, wait},
        sentinels::Sentinels,
        server::{FakeClock, Server},
    },
    worker::{MAX_LEASE, monotonic},
};

/// The servers of a run.
pub(crate) trait Scene {
    /// Returns what workers are told: an address, or several with commas between them.
    fn address(&self) -> String;

    /// Does something to the servers, for so long; returns what it came to, or nothing if it cannot be done at present.
    fn suffer(&mut self, what: &'static str, long: Duration) -> Option<&'static str>;

    /// Returns the servers that are left.
    fn servers(&self) -> Vec<&Server>;
}

/// One server behind a network, with a clock that can be stepped if that was asked for.
pub(crate) struct One {
    _runtime: Runtime,
    proxy: Proxy,
    server: Server,
    clock: Option<FakeClock>,
    ahead: i64,
}

impl One {
    pub(crate) fn start() -> Self {
        Self::behind_a_network(Server::start(), None)
    }

    pub(crate) fn start_with_clock() -> Option<Self> {
        let (server, clock) = Server::start_with_fake_clock()?;
        Some(Self::behind_a_network(server, Some(clock)))
    }

    fn behind_a_network(server: Server, clock: Option<FakeClock>) -> Self {
        let (_runtime, proxy) = network(&server);
        Self { _runtime, proxy, server, clock, ahead: 0 }
    }

    fn step_clock(&mut self, hours: i64) {
        self.ahead += hours;
        self.clock.as_ref().expect("a clock that can be stepped").shift(self.ahead);
    }

    fn forget(&self) {
        command(&self.server, "FLUSHALL");
    }
}

impl Scene for One {
    fn address(&self) -> String {
        self.proxy.url()
    }

    fn suffer(&mut self, what: &'static str, long: Duration) -> Option<&'static str> {
        match what {
            "freeze" => freeze(&self.server, long),
            "scripts" => command(&self.server, "SCRIPT FLUSH"),
            "clients" => command(&self.server, "CLIENT KILL TYPE normal"),
            "flush" => self.forget(),
            // As it forgets if it is started anew: whoever waits asks at once.
            "restart" => {
                self.forget();
                command(&self.server, "CLIENT KILL TYPE normal");
                command(&self.server, "CLIENT KILL TYPE pubsub");
            }
            "ahead" => self.step_clock(1),
            "flush and ahead" => {
                self.step_clock(1);
                self.forget();
            }
            "flush and behind" => {
                self.step_clock(-1);
                self.forget();
            }
            network => disturb(&self.proxy, network, long),
        }
        Some(what)
    }

    fn servers(&self) -> Vec<&Server> {
        vec![&self.server]
    }
}

/// A master and a replica, which is promoted while the master still grants.
pub(crate) struct Replicated {
    _runtime: Runtime,
    proxy: Proxy,
    master: Server,
    replica: Server,
}

impl Replicated {
    pub(crate) fn start() -> Self {
        let master = Server::start();
        let (_runtime, proxy) = network(&master);
        let replica = replica_of(&master);
        Self { _runtime, proxy, master, replica }
    }
}

impl Scene for Replicated {
    fn address(&self) -> String {
        self.proxy.url()
    }

    fn suffer(&mut self, what: &'static str, long: Duration) -> Option<&'static str> {
        assert_eq!(what, "failover");
        command(&self.replica, "REPLICAOF NO ONE");
        // What is granted meanwhile is lost.
        thread::sleep(long);
        self.proxy.lead_to(self.replica.port());
        self.master.kill();
        let next = replica_of(&self.replica);
        self.master = std::mem::replace(&mut self.replica, next);
        Some(what)
    }

    fn servers(&self) -> Vec<&Server> {
        vec![&self.master, &self.replica]
    }
}

/// A master and a replica that sentinels watch.
impl Scene for Sentinels {
    fn address(&self) -> String {
        self.url("")
    }

    fn suffer(&mut self, what: &'static str, _: Duration) -> Option<&'static str> {
        assert_eq!(what, "failover");
        let is_master = |server: &Server| info(server, "INFO replication").contains("role:master");
        let old = is_master(&self.master);
        // They refuse while the last one is not over for them.
        let asked = redis::cmd("SENTINEL").arg("FAILOVER").arg("main").query::<()>(&mut self.sentinel());
        if asked.is_err() {
            return None;
        }
        let [before, after] = if old { [&self.master, &self.replica] } else { [&self.replica, &self.master] };
        wait("replace the master", || is_master(after) && !is_master(before));
        Some(what)
    }

    fn servers(&self) -> Vec<&Server> {
        vec![&self.master, &self.replica]
    }
}

/// Masters among which the slot of the lock is moved.
pub(crate) struct Moving {
    cluster: Cluster,
    owner: Option<(u16, usize)>,
}

impl Moving {
    pub(crate) fn start() -> Self {
        Self { cluster: Cluster::start(3), owner: None }
    }
}

impl Scene for Moving {
    fn address(&self) -> String {
        self.cluster.url()
    }

    fn suffer(&mut self, what: &'static str, long: Duration) -> Option<&'static str> {
        assert_eq!(what, "move");
        let masters: Vec<&Server> = self.cluster.masters.iter().collect();
        // Where it lies is known when it has been held.
        let found = || {
            masters.iter().enumerate().find_map(|(i, master)| {
                let keys: Vec<String> = run(master, "KEYS *:f:*", &[]);
                Some((run(master, "CLUSTER KEYSLOT", &[keys.first()?]), i))
            })
        };
        let (slot, from) = self.owner.or_else(found)?;
        let to = (from + 1) % masters.len();
        move_slot(slot, masters[from], masters[to], &masters, || thread::sleep(long / 4));
        self.owner = Some((slot, to));
        Some(what)
    }

    fn servers(&self) -> Vec<&Server> {
        self.cluster.masters.iter().collect()
    }
}

/// Three servers of which one at a time is not there.
pub(crate) struct Majority {
    servers: Vec<Server>,
    networks: Vec<(Runtime, Proxy)>,
    turn: usize,
    whole_at: u64,
}

impl Majority {
    pub(crate) fn start() -> Self {
        let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
        let networks = servers.iter().map(network).collect();
        // Before that they do not count.
        thread::sleep(COUNTS_AFTER);
        Self { servers, networks, turn: 0, whole_at: 0 }
    }
}

impl Majority {
    /// Empties a server; returns whether a lease stood there, and the two others do not keep one without it.
    fn forget(&self, at: usize) -> bool {
        let token = |server: &Server, then: &str| -> String {
            let script = format!(
                "local key = redis.call('KEYS', '*:l:*')[1] local value = key and redis.call('GET', key) or '' {then} \
                 return string.sub(value, 1, 32)"
            );
            redis::cmd("EVAL").arg(script).arg(0).query(&mut server.admin()).expect("a token")
        };
        let forgotten = token(&self.servers[at], "redis.call('FLUSHALL')");
        let others = self.servers.iter().enumerate().filter(|(i, _)| *i != at);
        let kept: Vec<String> = others.map(|(_, server)| token(server, "")).collect();
        let is_kept = !kept[0].is_empty() && kept[0] == kept[1];
        !forgotten.is_empty() && !is_kept
    }
}

impl Scene for Majority {
    fn address(&self) -> String {
        let all: Vec<String> = self.networks.iter().map(|(_, proxy)| proxy.url()).collect();
        all.join(",")
    }

    fn suffer(&mut self, what: &'static str, long: Duration) -> Option<&'static str> {
        if monotonic() < self.whole_at {
            return None;
        }
        self.turn += 1;
        let at = self.turn % self.servers.len();
        let server = &mut self.servers[at];
        let (mut suffered, mut heals_in) = (what, MAX_LEASE);
        match what {
            "freeze one" => freeze(server, long),
            "restart one" => {
                server.restart();
                heals_in = COUNTS_AFTER;
            }
            "flush one" => {
                suffered = if self.forget(at) { "flush one of two" } else { "flush one of three" };
            }
            network => disturb(&self.networks[at].1, network.strip_suffix(" one").expect("one"), long),
        }
        self.whole_at = monotonic() + u64::try_from(heals_in.as_nanos()).expect("short");
        Some(suffered)
    }

    fn servers(&self) -> Vec<&Server> {
        self.servers.iter().collect()
    }
}

fn network(server: &Server) -> (Runtime, Proxy) {
    let runtime = Runtime::new().expect("a runtime");
    let proxy = runtime.block_on(Proxy::start(server.port()));
    (runtime, proxy)
}

fn disturb(proxy: &Proxy, what: &str, long: Duration) {
    match what {
        "cut" => proxy.cut(),
        "drop" => {
            proxy.be(Mood::DropsReplies);
            thread::sleep(long / 4);
            proxy.be(Mood::Passes);
            // What was swallowed is missing for good on these connections.
            proxy.cut();
        }
        "delay" => {
            proxy.delay(Duration::from_millis(20));
            thread::sleep(long / 2);
            proxy.delay(Duration::ZERO);
        }
        other => unreachable!("{other}"),
    }
}

fn freeze(server: &Server, long: Duration) {
    signal(server.pid(), "STOP");
    thread::sleep(long);
    signal(server.pid(), "CONT");
}

pub(crate) fn signal(pid: u32, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(sent.expect("kill").success());
}

fn command(server: &Server, words: &str) {
    run::<redis::Value>(server, words, &[]);
}

/// Starts a replica, and waits until it has all that its master has.
fn replica_of(master: &Server) -> Server {
    let replica = Server::start_with(&[
        "--replicaof",
        "127.0.0.1",
        &master.port().to_string(),
        "--repl-diskless-sync-delay",
        "0",
    ]);
    wait("replicate", || info(&replica, "INFO replication").contains("master_link_status:up"));
    replica
}

/// A server tells its uptime in whole seconds.
const COUNTS_AFTER: Duration = Duration::from_secs(MAX_LEASE.as_secs() + 3);

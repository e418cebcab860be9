//! Clusters of real servers.

use std::{thread, time::Duration};

use redis::{FromRedisValue, RedisResult};

use super::server::Server;

/// Masters that share all slots, each with so many replicas; all end when this is dropped.
pub struct Cluster {
    /// The masters, in the order of their slots.
    pub masters: Vec<Server>,
    /// One of each master in turn.
    pub replicas: Vec<Server>,
}

impl Cluster {
    pub fn start(masters: usize) -> Self {
        Self::start_with(masters, 0, &[], |_| None)
    }

    /// Starts a cluster with replicas, more arguments than the usual ones, and ports of masters that are announced in
    /// the place of their own.
    pub fn start_with(
        masters: usize,
        replicas: usize,
        args: &[&str],
        mut announced: impl FnMut(&Server) -> Option<u16>,
    ) -> Self {
        let usual = [
            &["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"][..],
            // What is left of it goes on when a node is lost; no replica goes to a master that has none.
            &["--cluster-require-full-coverage", "no", "--cluster-migration-barrier", "10"],
            &["--repl-diskless-sync-delay", "0"],
            args,
        ]
        .concat();
        let start = |count: usize| (0..count).map(|_| Server::start_with(&usual)).collect::<Vec<_>>();
        let all = Self { masters: start(masters), replicas: start(masters * replicas) };
        let mut ports = Vec::new();
        for (i, master) in all.masters.iter().enumerate() {
            let slots: Vec<usize> = (0..16_384).filter(|slot| slot * masters / 16_384 == i).collect();
            run::<()>(master, "CLUSTER SET-CONFIG-EPOCH", &[&(i + 1).to_string()]);
            let slots: Vec<String> = slots.iter().map(ToString::to_string).collect();
            run::<()>(master, "CLUSTER ADDSLOTS", &slots.iter().map(String::as_str).collect::<Vec<_>>());
            if let Some(port) = announced(master) {
                run::<()>(master, "CONFIG SET cluster-announce-ip 127.0.0.1", &[]);
                run::<()>(master, "CONFIG SET cluster-announce-port", &[&port.to_string()]);
            }
            ports.push(master.port().to_string());
        }
        for one in all.servers() {
            ports.iter().for_each(|port| run::<()>(one, "CLUSTER MEET 127.0.0.1", &[port]));
        }
        let count = all.servers().count();
        let known = |server: &Server| info(server, "CLUSTER INFO").contains(&format!("cluster_known_nodes:{count}\r"));
        wait("meet", || all.servers().all(known));
        for (i, replica) in all.replicas.iter().enumerate() {
            let master = id(&all.masters[i % masters]);
            run::<()>(replica, "CLUSTER REPLICATE", &[&master]);
        }
        let connected = |server: &Server| info(server, "INFO replication").contains("master_link_status:up");
        wait("replicate", || all.replicas.iter().all(connected));
        let well = |server: &Server| {
            let info = info(server, "CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        };
        wait("serve all slots", || all.servers().all(well));
        all
    }

    /// Returns the address of all masters.
    pub fn url(&self) -> String {
        self.url_as("")
    }

    pub fn url_as(&self, user_info: &str) -> String {
        let hosts: Vec<String> = self.masters.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{user_info}{}", hosts.join(","))
    }

    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.masters.iter().chain(&self.replicas)
    }

    /// Returns the master that served a subject's keys in the beginning.
    pub fn master_of(&self, subject: &str) -> usize {
        usize::from(slot_of(&self.masters[0], subject)) * self.masters.len() / 16_384
    }

    /// Returns a subject whose keys a master served in the beginning; another one for each number.
    pub fn subject_of(&self, master: usize, number: usize) -> String {
        let own = |subject: &String| self.master_of(subject) == master;
        (0..).map(|i| format!("user:{i}")).filter(own).nth(number).expect("there is no end of subjects")
    }
}

/// Returns the slot of a subject's keys, by the word of a server.
pub fn slot_of(server: &Server, subject: &str) -> u16 {
    run(server, "CLUSTER KEYSLOT", &[&bucket_of(subject).to_string()])
}

/// Returns the bucket of a subject whose name needs no escapes: FNV-1a, as documented.
pub fn bucket_of(subject: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    subject.bytes().fold(0xcbf2_9ce4_8422_2325, step) % 256
}

pub fn id(server: &Server) -> String {
    run(server, "CLUSTER MYID", &[])
}

/// Asks a server about itself. One that takes on another role ends its connections, the asker's too: it is asked again.
pub fn info(server: &Server, words: &str) -> String {
    for _ in 0..10 {
        match try_run(server, words, &[]) {
            Err(error) if error.is_io_error() => thread::sleep(Duration::from_millis(10)),
            told => return told.unwrap_or_else(|error| panic!("{words}: {error}")),
        }
    }
    panic!("{words}: the server ends all connections");
}

/// Runs a command: some words, and some more.
pub fn run<T: FromRedisValue>(server: &Server, words: &str, more: &[&str]) -> T {
    try_run(server, words, more).unwrap_or_else(|error| panic!("{words} {more:?}: {error}"))
}

fn try_run<T: FromRedisValue>(server: &Server, words: &str, more: &[&str]) -> RedisResult<T> {
    let mut all = words.split(' ');
    let mut command = redis::cmd(all.next().expect("a command"));
    all.chain(more.iter().copied()).for_each(|word| _ = command.arg(word));
    command.query(&mut server.admin())
}

/// Moves a slot to another node as redis-cli does, and does something while the slot is on its way, before any and
/// after each of its keys has moved.
pub fn move_slot(slot: u16, from: &Server, to: &Server, all: &[&Server], mut between: impl FnMut()) {
    let (slot, from_id, to_id) = (slot.to_string(), id(from), id(to));
    run::<()>(to, "CLUSTER SETSLOT", &[&slot, "IMPORTING", &from_id]);
    run::<()>(from, "CLUSTER SETSLOT", &[&slot, "MIGRATING", &to_id]);
    between();
    loop {
        let keys: Vec<String> = run(from, "CLUSTER GETKEYSINSLOT", &[&slot, "1"]);
        let Some(key) = keys.first() else { break };
        // A key that has ended meanwhile is none to move.
        run::<redis::Value>(from, "MIGRATE 127.0.0.1", &[&to.port().to_string(), key, "0", "1000"]);
        between();
    }
    run::<()>(to, "CLUSTER SETSLOT", &[&slot, "NODE", &to_id]);
    for server in std::iter::once(from).chain(all.iter().copied().filter(|server| server.port() != to.port())) {
        run::<()>(server, "CLUSTER SETSLOT", &[&slot, "NODE", &to_id]);
    }
}

/// Waits until something is so.
pub fn wait(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if is_so() {
            return;
        }
        // Nodes tell nobody when they have heard of each other.
        thread::sleep(Duration::from_millis(10));
    }
    panic!("the nodes do not {what}");
}

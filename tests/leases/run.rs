//! A run: workers, faults, and what became of them.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::{
    broken::Variant,
    history::{Event, Fault, History},
    proxy::{Mood, Proxy},
    support::{other_process, server::Server},
    worker::{ASKED, TTL, monotonic},
};

/// What is done to workers and servers, in turn.
#[derive(Clone, Copy)]
pub(crate) struct Faults(&'static [&'static str]);

impl Faults {
    /// What is kept on the server is lost, and nothing else.
    pub(crate) const FLUSHES: Self = Self(&["flush"]);
    pub(crate) const PAUSES: Self = Self(&["pause"]);
    pub(crate) const PAUSES_AND_CLOCK: Self = Self(&["step"]);
    pub(crate) const STATE_LOST: Self = Self(&["flush", "kill", "pause"]);
    pub(crate) const PROCESSES_AND_NETWORK: Self =
        Self(&["kill", "pause", "cut", "drop", "freeze", "scripts", "delay", "clients"]);
}

const WORKERS: usize = 4;

struct Worker {
    child: Child,
    number: usize,
}

/// Has workers hold a lock for so long, under faults; returns what they saw, and the server.
pub(crate) fn run(variant: Variant, faults: Faults, long: Duration) -> (History, Server) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (server, register) = (Server::start(), Server::start());
    let proxy = runtime.block_on(Proxy::start(server.port()));
    let dir = tempfile::tempdir().expect("a folder");
    let steps = dir.path().join("steps");
    let events = Arc::new(Mutex::new(Vec::new()));
    let start = |number: usize| {
        let asked =
            format!("redis://127.0.0.1:{} {} {variant:?} {} {number}", proxy.port(), register.url(), steps.display());
        let mut child = other_process("worker", ASKED, &asked);
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let events = Arc::clone(&events);
        thread::spawn(move || {
            let told = output.lines().map_while(Result::ok).filter_map(|line| read(number, &line));
            told.for_each(|event| events.lock().expect("no panic").push(event));
        });
        Worker { child, number }
    };
    let mut workers: Vec<Worker> = (0..WORKERS).map(start).collect();
    let mut next_number = WORKERS;
    let mut done = Vec::new();
    let begun = monotonic();
    let end = begun + u64::try_from(long.as_nanos()).expect("short");
    // A mixture that is the same each time, but for the machine.
    let mut chance = 0x9e37_79b9_7f4a_7c15_u64;
    let mut dice = |sides: u64| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        chance % sides
    };
    thread::sleep(Duration::from_millis(300));
    let (mut turn, mut stepped) = (0, 0);
    while monotonic() < end {
        thread::sleep(Duration::from_millis(30 + dice(250)));
        let what = faults.0[turn % faults.0.len()];
        turn += 1;
        // Whoever holds, as often as not.
        let holder = {
            let events = events.lock().expect("no panic");
            let last = events.iter().rev().find(|event: &&Event| event.what == "acquired").map(|event| event.worker);
            workers.iter().position(|worker| Some(worker.number) == last)
        };
        let at = usize::try_from(dice(2 * WORKERS as u64)).expect("few");
        let at = if at < WORKERS { at } else { holder.unwrap_or(0) };
        let from = monotonic();
        let long = Duration::from_millis(u64::try_from(TTL.as_millis()).expect("short") / 4 + dice(600));
        let mut of_worker = None;
        match what {
            "kill" => {
                let worker = &mut workers[at];
                of_worker = Some(worker.number);
                worker.child.kill().expect("killed");
                worker.child.wait().expect("ended");
                workers[at] = start(next_number);
                next_number += 1;
            }
            "pause" | "step" => {
                of_worker = Some(workers[at].number);
                signal(workers[at].child.id(), "STOP");
                thread::sleep(long);
                if what == "step" {
                    stepped += 10 + dice(60);
                    step(&steps, stepped);
                }
                signal(workers[at].child.id(), "CONT");
            }
            "freeze" => {
                signal(server.pid(), "STOP");
                thread::sleep(long);
                signal(server.pid(), "CONT");
            }
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
            "scripts" => command(&server, &["SCRIPT", "FLUSH"]),
            "clients" => command(&server, &["CLIENT", "KILL", "TYPE", "normal"]),
            "flush" => command(&server, &["FLUSHALL"]),
            other => unreachable!("{other}"),
        }
        done.push(Fault { what, worker: of_worker, from, until: monotonic() });
    }
    thread::sleep(Duration::from_millis(200));
    for worker in &mut workers {
        worker.child.kill().expect("killed");
        worker.child.wait().expect("ended");
    }
    thread::sleep(Duration::from_millis(200));
    let mut events = events.lock().expect("no panic").clone();
    events.sort_by_key(|event: &Event| event.at);
    let taken: Vec<u64> =
        redis::cmd("LRANGE").arg("register").arg(0).arg(-1).query(&mut register.admin()).expect("LRANGE");
    (History { events, faults: done, register: taken }, server)
}

fn read(worker: usize, line: &str) -> Option<Event> {
    let words: Vec<&str> = line.split_once('@')?.1.split(' ').collect();
    let [what, fence, at, more] = words.as_slice() else { return None };
    let number = |word: &str| word.parse::<u64>().ok();
    Some(Event { worker, what: (*what).to_owned(), fence: number(fence)?, at: number(at)?, more: number(more)? })
}

fn step(steps: &PathBuf, seconds: u64) {
    let new = steps.with_extension("new");
    fs::write(&new, seconds.to_string()).expect("a file");
    fs::rename(&new, steps).expect("a file");
}

fn signal(pid: u32, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(sent.expect("kill").success());
}

fn command(server: &Server, words: &[&str]) {
    let _: redis::Value = redis::cmd(words[0]).arg(&words[1..]).query(&mut server.admin()).expect("a command of ours");
}

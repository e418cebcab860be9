//! A run: workers, faults, and what became of them.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::Child,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use super::{
    broken::Variant,
    history::{Event, Fault, History},
    scenes::{Scene, signal},
    support::{keys_without_expiry, other_process, server::Server},
    worker::{ASKED, TTL, monotonic},
};

/// What is done to workers and servers, in turn.
pub(crate) type Faults = &'static [&'static str];

const WORKERS: usize = 4;

/// After so many faults nothing is done for a while, so that it shows whether all goes on.
const IN_A_ROW: usize = 6;

struct Worker {
    child: Child,
    number: usize,
}

/// Has workers hold a lock for so long, under faults; returns what they saw.
pub(crate) fn run(scene: &mut dyn Scene, variant: Variant, faults: Faults, long: Duration) -> History {
    let register = Server::start();
    let dir = tempfile::tempdir().expect("a folder");
    let steps = dir.path().join("steps");
    let events = Arc::new(Mutex::new(Vec::new()));
    let address = scene.address();
    let start = |number: usize| {
        let asked = format!("{address} {} {variant:?} {} {number}", register.url(), steps.display());
        let mut child = other_process("worker", ASKED, &asked);
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let events = Arc::clone(&events);
        thread::spawn(move || {
            let told = output.lines().map_while(Result::ok).filter_map(|line| read(number, &line));
            told.for_each(|event| events.lock().expect("no panic").push(event));
        });
        Worker { child, number }
    };
    let stalls = Stalls::watch();
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
    let mut stepped = 0;
    for turn in 0.. {
        thread::sleep(Duration::from_millis(30 + dice(250)));
        if turn % (IN_A_ROW + 1) == IN_A_ROW {
            thread::sleep(QUIET);
        }
        if monotonic() >= end {
            break;
        }
        let mut what = faults[turn % faults.len()];
        // Whoever holds, as often as not.
        let holder = {
            let events = events.lock().expect("no panic");
            let last = events.iter().rev().find(|event: &&Event| event.what == "acquired").map(|event| event.worker);
            workers.iter().position(|worker| Some(worker.number) == last)
        };
        let at = usize::try_from(dice(2 * WORKERS as u64)).expect("few");
        let at = if at < WORKERS { at } else { holder.unwrap_or(0) };
        let from = monotonic();
        let long = TTL / 4 + Duration::from_millis(dice(600));
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
            of_servers => {
                let Some(suffered) = scene.suffer(of_servers, long) else { continue };
                what = suffered;
            }
        }
        done.push(Fault { what, worker: of_worker, from, until: monotonic() });
    }
    let end = monotonic();
    for worker in &mut workers {
        worker.child.kill().expect("killed");
        worker.child.wait().expect("ended");
    }
    // What they have said last is read by then.
    thread::sleep(Duration::from_millis(200));
    let mut events = events.lock().expect("no panic").clone();
    events.sort_by_key(|event: &Event| event.at);
    done.extend(stalls.end());
    done.sort_by_key(|fault: &Fault| fault.from);
    let taken: Vec<u64> =
        redis::cmd("LRANGE").arg("register").arg(0).arg(-1).query(&mut register.admin()).expect("LRANGE");
    History { events, faults: done, register: taken, left: left_on(&scene.servers()), end }
}

/// Returns what is left on servers that does not end by itself: keys, and channels to which somebody listens.
fn left_on(servers: &[&Server]) -> Vec<String> {
    let left = |server: &&Server| {
        let mut channels: Vec<String> =
            redis::cmd("PUBSUB").arg("CHANNELS").arg("*wake*").query(&mut server.admin()).expect("PUBSUB");
        channels.append(&mut keys_without_expiry(&mut server.admin()));
        channels
    };
    servers.iter().flat_map(left).collect()
}

/// Watches for times in which this machine gave its processes no time, which is no fault of a lock.
struct Stalls {
    end: mpsc::Sender<()>,
    watch: thread::JoinHandle<Vec<Fault>>,
}

impl Stalls {
    fn watch() -> Self {
        let (end, ended) = mpsc::channel();
        let watch = thread::spawn(move || {
            let mut stalls = Vec::new();
            let mut from = monotonic();
            while ended.recv_timeout(Duration::from_millis(5)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let until = monotonic();
                if until - from > STALL {
                    stalls.push(Fault { what: "stall", worker: None, from, until });
                }
                from = until;
            }
            stalls
        });
        Self { end, watch }
    }

    fn end(self) -> Vec<Fault> {
        drop(self.end);
        self.watch.join().expect("no panic")
    }
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

/// Longer than it may take until somebody holds after a fault.
const QUIET: Duration = Duration::from_millis(1_400);

/// A timer of 5 ms that fires so late, in nanoseconds, tells that nothing can be said of the time.
const STALL: u64 = 60_000_000;

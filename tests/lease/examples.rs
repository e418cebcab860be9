//! The examples as programs of their own: what `lock` says of itself under strain, and what the others print.

use std::{
    env,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::ms;
use crate::support::{assert_all_keys_expire, server::Server};

/// Returns an example that `cargo test` has built beside this test; `None` if it was not built.
fn example(name: &str) -> Option<PathBuf> {
    let program = env::current_exe().ok()?.parent()?.parent()?.join("examples").join(name);
    if !program.exists() {
        // `cargo test --test lease` builds none.
        println!("skipped: the example `{name}` is not built");
        return None;
    }
    Some(program)
}

/// One line of the example `lock`.
#[derive(Clone, Debug)]
struct Told {
    worker: usize,
    event: String,
    fence: Option<u64>,
    at: u64,
}

/// Runs of the example `lock`, which end when this is dropped.
struct Workers {
    program: PathBuf,
    children: Vec<Child>,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Workers {
    fn new() -> Option<Self> {
        Some(Self { program: example("lock")?, children: Vec::new(), told: Arc::default() })
    }

    /// Starts one more; returns its number.
    fn start(&mut self, options: &str) -> usize {
        let worker = self.children.len();
        let mut command = Command::new(&self.program);
        command.args(options.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the example");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let told = Arc::clone(&self.told);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line: serde_json::Value = serde_json::from_str(&line).expect("a JSON object a line");
                let event = line["event"].as_str().expect("an event").to_owned();
                let at = line["t_ns"].as_u64().expect("a time");
                assert!(line["fence"].is_null() == (event == "failed"), "{line}");
                told.lock().expect("no panic").push(Told { worker, event, fence: line["fence"].as_u64(), at });
            }
        });
        self.children.push(child);
        worker
    }

    fn told(&self) -> Vec<Told> {
        let mut told = self.told.lock().expect("no panic").clone();
        told.sort_by_key(|told| told.at);
        told
    }

    /// Waits until a worker says something that it had not said at a time.
    fn wait(&self, worker: usize, event: &str, after: u64) -> Told {
        for _ in 0..2_000 {
            let told =
                self.told().into_iter().find(|told| told.worker == worker && told.event == event && told.at > after);
            if let Some(told) = told {
                return told;
            }
            // Another process, in real time.
            thread::sleep(ms(5));
        }
        panic!("worker {worker} does not tell `{event}`: {:?}", self.told());
    }

    fn signal(&self, worker: usize, signal: &str) {
        kill(self.children[worker].id(), signal);
    }

    /// Waits until all have ended by themselves.
    fn join(&mut self) {
        for child in &mut self.children {
            assert!(child.wait().expect("ended").success());
        }
        // What they said last is read by then.
        thread::sleep(ms(50));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn kill(pid: u32, signal: &str) {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(sent.expect("kill").success());
}

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).expect("a time since the start")
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("short")
}

/// Fails if two held at a time or a fence did not grow; returns how often it was held.
fn assert_one_at_a_time(told: &[Told]) -> usize {
    let mut holder: Option<&Told> = None;
    let mut held = 0;
    for told in told {
        match told.event.as_str() {
            "acquired" => {
                assert!(told.fence > holder.map(|last| last.fence).unwrap_or_default(), "{told:?} after {holder:?}");
                (holder, held) = (Some(told), held + 1);
            }
            "step" | "released" => {
                let holder = holder.expect("somebody holds");
                assert_eq!((told.worker, told.fence), (holder.worker, holder.fence), "at the same time");
            }
            _ => {}
        }
    }
    held
}

#[test]
fn several_workers_hold_one_after_the_other_with_growing_fences() {
    let Some(mut workers) = Workers::new() else { return };
    let server = Server::start();
    for _ in 0..3 {
        workers.start(&format!("--redis {} --name a:b --ttl 2s --hold 30ms --count 8", server.url()));
    }
    workers.join();
    let told = workers.told();
    assert_eq!(assert_one_at_a_time(&told), 24, "{told:?}");
    assert_eq!(told.iter().filter(|told| told.event == "released").count(), 24);
    assert_eq!(told.iter().filter(|told| told.event == "step").count(), 24 * 3, "steps of 10 ms");
    assert_all_keys_expire(&mut server.admin());
}

#[test]
fn a_worker_that_is_stopped_past_its_lease_makes_no_step_when_it_goes_on() {
    let Some(mut workers) = Workers::new() else { return };
    let server = Server::start();
    let options = format!("--redis {} --ttl 400ms --hold 60s --count 2", server.url());
    let one = workers.start(&options);
    workers.wait(one, "step", 0);
    let other = workers.start(&options);
    workers.signal(one, "-STOP");
    let taken = workers.wait(other, "acquired", 0);
    // A pause that is longer than the lease.
    thread::sleep(ms(200));
    let woken = now();
    workers.signal(one, "-CONT");
    let lost = workers.wait(one, "lost", woken);
    thread::sleep(ms(100));
    let told = workers.told();
    assert!(!told.iter().any(|told| told.worker == one && told.event == "step" && told.at > woken), "{told:?}");
    assert!(lost.at < woken + ns(LATE), "{} us late", (lost.at - woken) / 1_000);
    assert!(taken.fence > lost.fence);
    assert_eq!(assert_one_at_a_time(&told), 2);
}

#[test]
fn the_next_worker_holds_when_the_lease_of_a_killed_one_has_ended() {
    let Some(mut workers) = Workers::new() else { return };
    let server = Server::start();
    let options = format!("--redis {} --ttl 500ms --hold 60s --count 1", server.url());
    let one = workers.start(&options);
    let held = workers.wait(one, "step", 0);
    let other = workers.start(&options);
    thread::sleep(ms(300));
    workers.signal(one, "-KILL");
    let killed = now();
    let next = workers.wait(other, "acquired", 0);
    assert!(next.fence > held.fence && next.at > killed, "{next:?}");
    // Its last renewal was a third of its time ago at most.
    let (least, most) = (killed + ns(ms(250)), killed + ns(ms(500) + LATE));
    assert!((least..most).contains(&next.at), "{} ms after", (next.at - killed) / 1_000_000);
    assert_one_at_a_time(&workers.told());
}

#[test]
fn a_worker_whose_server_hangs_is_told_in_time() {
    let Some(mut workers) = Workers::new() else { return };
    let server = Server::start();
    let one = workers.start(&format!("--redis {} --ttl 600ms --hold 60s --count 2", server.url()));
    workers.wait(one, "step", 0);
    thread::sleep(ms(450));
    kill(server.pid(), "-STOP");
    let frozen = now();
    let lost = workers.wait(one, "lost", frozen);
    thread::sleep(ms(50));
    kill(server.pid(), "-CONT");
    let again = workers.wait(one, "acquired", lost.at);
    // The last renewal was sent before, so the lease ends less than its time after.
    assert!(lost.at < frozen + ns(ms(600 - 8) + LATE), "{} ms after", (lost.at - frozen) / 1_000_000);
    assert!(lost.at > frozen + ns(ms(350)), "{} ms after: not before its time", (lost.at - frozen) / 1_000_000);
    assert!(again.fence > lost.fence);
    let told = workers.told();
    assert!(!told.iter().any(|told| told.event == "step" && (lost.at..again.at).contains(&told.at)), "{told:?}");
}

#[test]
fn workers_on_three_servers_go_on_while_one_hangs() {
    let Some(mut workers) = Workers::new() else { return };
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let options = format!("--redlock {} --trust-fresh-nodes --ttl 2s --hold 20ms --count 8", urls.join(","));
    (0..2).for_each(|_| _ = workers.start(&options));
    workers.wait(0, "acquired", 0);
    kill(servers[1].pid(), "-STOP");
    workers.join();
    kill(servers[1].pid(), "-CONT");
    let told = workers.told();
    assert_eq!(assert_one_at_a_time(&told), 16, "{told:?}");
    servers.iter().for_each(|server| assert_all_keys_expire(&mut server.admin()));
}

#[test]
fn servers_that_have_just_started_do_not_count_unless_they_are_trusted() {
    let Some(mut workers) = Workers::new() else { return };
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    workers.start(&format!("--redlock {} --wait 200ms --count 1", urls.join(",")));
    workers.join();
    let told = workers.told();
    assert!(told.len() == 1 && told[0].event == "failed", "{told:?}");
}

#[test]
fn a_wrong_option_is_told() {
    let Some(program) = example("lock") else { return };
    for (options, says) in [
        ("--ttl 2h", "500ms or 2s"),
        ("--ttl soon", "500ms or 2s"),
        ("--what", "--what"),
        ("--redis http://x", "redis://"),
        ("--redlock redis://127.0.0.1:1,redis://127.0.0.1:2", "2 servers"),
    ] {
        let output = Command::new(&program).args(options.split(' ')).output().expect("the example");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{options}: {said}");
    }
}

#[test]
fn the_other_examples_do_what_they_say_in_memory_and_on_a_server() {
    for (name, says) in [
        ("leader", &["one: round 3 under", "two: round 3 under", "one: Elected", "two: Elected"][..]),
        (
            "claims",
            &["to user:4, urgent, attempt 1", "(server busy), attempt 2", "put aside: to nobody (has no address)"],
        ),
        ("fencing", &["`paid` written", "`refunded` written", "`shipped` refused"]),
        ("once", &["later:     Unknown", "takes over: attempt 2"]),
        ("reset_password", &["may set a new password: user:42", "this link has been used", "guessed: None"]),
    ] {
        let Some(program) = example(name) else { return };
        let server = Server::start();
        for arguments in [vec![], vec!["--redis".to_owned(), server.url()]] {
            let output = Command::new(&program).args(&arguments).output().expect("the example");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            for says in says {
                assert!(said.contains(says), "{name} {arguments:?} does not say `{says}`: {said}");
            }
        }
    }
}

/// What a process may be late at on a busy machine, beside what is promised.
const LATE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 60 } else { 25 });

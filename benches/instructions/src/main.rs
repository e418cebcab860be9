//! Counts the instructions of a decision by valgrind, and fails if one needs more than it did.
//!
//! ```text
//! scripts/test                          # counts after all tests, and compares with counts.txt
//! scripts/test --accept-instructions    # counts, and writes counts.txt
//! ```
//!
//! Time depends on the machine and on who shares it; instructions hardly do. What a run counts is the difference
//! between two runs of different length, divided by the difference in length, so that what happens once does not count.

mod counts;
mod workload;

use std::process::{Command, ExitCode};

use crate::{
    counts::Counts,
    workload::{WORKLOADS, Workload},
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => compare(),
        ["--accept"] => accept(),
        ["run", name, times] => {
            let workload = WORKLOADS.iter().find(|workload| workload.name == *name).expect("the name of a workload");
            // What sets the clock does so once in a process, and takes as long as it takes.
            drop(tollgate::Memory::new());
            counted(workload, times.parse().expect("a number"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: cargo run --release -- [--accept]");
            ExitCode::from(2)
        }
    }
}

/// What valgrind counts, which finds it by its name.
#[inline(never)]
fn counted(workload: &Workload, times: u64) {
    (workload.run)(times);
}

fn compare() -> ExitCode {
    if let Some(why) = cannot_count() {
        println!("skipped: no instructions are counted, since {why}");
        return ExitCode::SUCCESS;
    }
    let committed = Counts::read();
    let mut risen = false;
    println!("{:<36} {:>10} {:>10} {:>9}", "instructions of", "committed", "now", "change");
    for (name, now) in count_all() {
        let Some(before) = committed.of(name) else {
            println!("{name:<36} {:>10} {now:>10}", "none");
            risen = true;
            continue;
        };
        let change = (now as f64 / before as f64 - 1.0) * 100.0;
        let rises = change > MOST_RISE_PERCENT;
        risen |= rises;
        println!("{name:<36} {before:>10} {now:>10} {change:>+8.1}%{}", if rises { "  too many" } else { "" });
    }
    if risen {
        eprintln!(
            "\nA decision needs more than {MOST_RISE_PERCENT} % more instructions than it did, or is counted for the \
             first time.\nIf that is meant, accept the new counts, and say in the commit why:\n\n    \
             scripts/test --accept-instructions\n"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn accept() -> ExitCode {
    if let Some(why) = cannot_count() {
        eprintln!("no instructions can be counted, since {why}");
        return ExitCode::FAILURE;
    }
    let counts = Counts::new(count_all());
    counts.write();
    print!("{counts}");
    ExitCode::SUCCESS
}

/// Says why no instructions can be counted here, or none that could be compared.
fn cannot_count() -> Option<&'static str> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("those of x86-64 Linux are committed, and this is something else");
    }
    let valgrind = Command::new("valgrind").arg("--version").output();
    (!valgrind.is_ok_and(|output| output.status.success())).then_some("valgrind does not run here")
}

/// Counts the instructions of each workload, without those of its floor.
fn count_all() -> Vec<(&'static str, u64)> {
    let counts: Vec<u64> = WORKLOADS.iter().map(|workload| count(workload.name)).collect();
    let floor = |name| WORKLOADS.iter().position(|workload| workload.name == name).expect("the name of a workload");
    let own = |(i, count): (usize, &u64)| {
        let workload = &WORKLOADS[i];
        (workload.name, count - workload.over.map_or(0, |over| counts[floor(over)]))
    };
    counts.iter().enumerate().map(own).collect()
}

fn count(name: &str) -> u64 {
    let [few, many] = [FEW, MANY].map(|times| instructions(name, times));
    (many - few) / (MANY - FEW)
}

/// Runs a workload under valgrind, which shows every program the same processor: what is chosen at run time by what
/// a processor has, such as glibc's `memcpy`, is the same on all machines of the last ten years.
fn instructions(name: &str, times: u64) -> u64 {
    let program = std::env::current_exe().expect("the path of this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted*"])
        .arg(program)
        .args(["run", name, &times.to_string()])
        .output()
        .expect("valgrind starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} failed under valgrind:\n{text}");
    let line = text.lines().find_map(|line| line.split_once("Collected :"));
    let (_, count) = line.unwrap_or_else(|| panic!("valgrind does not say what it counted:\n{text}"));
    count.trim().parse().expect("a number")
}

/// Both a multiple of the keys, so that each key is asked for as often.
const FEW: u64 = 2 * workload::KEYS;
const MANY: u64 = 12 * workload::KEYS;

/// What another libc or a newer version of a dependency may cost. A lost fast path costs more.
const MOST_RISE_PERCENT: f64 = 10.0;

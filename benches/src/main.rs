//! Measures tollgate beside the floor and its peers, in one run, and prints ratios.
//!
//! ```text
//! cargo measure [--rounds N] [TABLE ...]
//! ```
//!
//! README.md tells what each table holds and needs. Absolute figures move with the machine; ratios of one table do
//! not by much.

mod allotment;
mod bytes;
mod cores;
mod http;
mod layer;
mod leases;
mod memory;
mod redis_store;
mod refusals;
mod rules;
mod run;
mod server;

use crate::run::Run;

/// Each measures by itself, and tells the run which bars it has met.
const TABLES: &[(&str, fn(&mut Run))] = &[
    ("memory", memory::run),
    ("layer", layer::run),
    ("redis", redis_store::run),
    ("rules", rules::run),
    ("bytes", bytes::run),
    ("refusals", refusals::run),
    ("allotment", allotment::run),
    ("leases", leases::run),
    ("http", http::run),
];

/// Enough for a median that a single disturbance does not move.
const ROUNDS: usize = 7;

fn main() {
    let mut arguments = std::env::args().skip(1).peekable();
    // A server of the table `http`, which this program starts as another process.
    if arguments.next_if(|argument| argument == "serve").is_some() {
        return http::serve(&arguments.collect::<Vec<_>>());
    }
    let (mut rounds, mut asked) = (ROUNDS, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => rounds = arguments.next().and_then(|n| n.parse().ok()).unwrap_or_else(|| usage()),
            table if TABLES.iter().any(|(name, _)| *name == table) => asked.push(argument),
            _ => usage(),
        }
    }
    let mut run = Run::new(rounds);
    for (name, measure) in TABLES {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            measure(&mut run);
        }
    }
    run.print_bars();
}

fn usage() -> ! {
    let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
    eprintln!("usage: cargo measure [--rounds N] [{}]", names.join(" | "));
    std::process::exit(2)
}

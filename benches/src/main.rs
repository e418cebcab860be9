//! Measures tollgate beside the floor and its peers, in one run, and prints ratios.
//!
//! ```text
//! cargo run --release -- [memory|layer|redis ...]
//! ```
//!
//! Every case runs [`ROUNDS`] times in turn with all others of its table; a cell is the median. Absolute figures
//! move with the machine; ratios of one table do not by much.

mod layer;
mod memory;
mod redis_store;

use std::time::Instant;

const ROUNDS: usize = 7;

/// A case of a table: its name, and a function that runs it once and returns how many operations that were.
type Case<'a> = (&'a str, Box<dyn FnMut() -> u64 + 'a>);

/// Runs all cases in turn, and prints the median time of an operation and its ratio to the first case.
fn table(title: &str, cases: &mut [Case<'_>]) -> Vec<f64> {
    let mut times = vec![Vec::new(); cases.len()];
    for (_, run) in cases.iter_mut() {
        run(); // to warm up
    }
    for _ in 0..ROUNDS {
        for ((_, run), times) in cases.iter_mut().zip(&mut times) {
            let started = Instant::now();
            let operations = run();
            times.push(started.elapsed().as_nanos() as f64 / operations as f64);
        }
    }
    println!("\n{title}\n");
    println!("| case | ns an operation (min to max) | of the first |\n|---|---|---|");
    let mut medians = Vec::new();
    for ((name, _), times) in cases.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        medians.push(median);
        let (min, max, ratio) = (times[0], times[times.len() - 1], median / medians[0]);
        println!("| {name} | {median:.1} ({min:.1} to {max:.1}) | {ratio:.2} |");
    }
    medians
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wants = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    if wants("memory") {
        memory::run();
    }
    if wants("layer") {
        layer::run();
    }
    if wants("redis") {
        redis_store::run();
    }
}

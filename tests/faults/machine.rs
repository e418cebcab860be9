//! What the machine takes for itself: threads that could go on wait while others, of any program, have the processors.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use tokio::time::Instant;

/// Returns whether something that began then is over within a limit, what the machine took for itself not counted.
///
/// Three threads have to come one after the other at most: the server's, the one that keeps the time, the caller's. On a
/// machine that does not tell what it takes, all counts.
pub(crate) fn is_in_time(began: Instant, limit: Duration) -> bool {
    let took = began.elapsed();
    took < limit || took < limit + taken_since(began)
}

/// Takes note from now on of what the machine takes.
pub(crate) fn watch() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        thread::spawn(|| {
            loop {
                let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
                notes.push_back((Instant::now(), waits()));
                if notes.len() > 1_000 {
                    notes.pop_front();
                }
                drop(notes);
                // Looking costs a few files each.
                thread::sleep(Duration::from_millis(20));
            }
        });
    });
}

/// Returns what the three threads have waited that were kept waiting the longest since then.
fn taken_since(began: Instant) -> Duration {
    let now = waits();
    let notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, before)) = notes.iter().rev().find(|(at, _)| *at <= began) else { return Duration::ZERO };
    let mut waited: Vec<u64> =
        now.iter().map(|(thread, waited)| waited - before.get(thread).unwrap_or(&0).min(waited)).collect();
    waited.sort_unstable();
    Duration::from_nanos(waited.iter().rev().take(3).sum())
}

/// Returns how long each thread of this program, and of those that it has started, has waited for a processor.
fn waits() -> HashMap<String, u64> {
    let mut waits = HashMap::new();
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return waits };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let of = children.split_whitespace().map(|child| format!("/proc/{child}"));
        for path in of.chain([thread.path().display().to_string()]) {
            let told = fs::read_to_string(format!("{path}/schedstat")).unwrap_or_default();
            if let Some(waited) = told.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()) {
                waits.insert(path, waited);
            }
        }
    }
    waits
}

static NOTES: Mutex<VecDeque<(Instant, HashMap<String, u64>)>> = Mutex::new(VecDeque::new());

//! What the tests share.
#![allow(dead_code, unreachable_pub)] // Each test uses its part of it.

pub mod certificates;
pub mod cluster;
pub mod example;
pub mod http;
pub mod log;
pub mod sentinels;
pub mod server;

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use redis::Connection;

/// Asserts that every key of a server has an expiry.
pub fn assert_all_keys_expire(admin: &mut Connection) {
    let kept = keys_without_expiry(admin);
    assert!(kept.is_empty(), "without an expiry: {kept:?}");
}

/// Returns the keys of a server that do not end by themselves.
pub fn keys_without_expiry(admin: &mut Connection) -> Vec<String> {
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(admin).expect("KEYS");
    let mut left = |key: &[u8]| redis::cmd("PTTL").arg(key).query::<i64>(admin).expect("PTTL");
    // -2: it has ended since it was listed.
    let kept = keys.iter().filter(|key| !matches!(left(key), -2 | 1..));
    kept.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

/// Returns how often a server was sent a command, by its own count.
pub fn calls(admin: &mut Connection, command: &str) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(admin).expect("INFO");
    let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    line.map_or(0, |line| {
        let count = line.split(['=', ',']).nth(1).expect("calls=N");
        count.parse().expect("a number")
    })
}

/// Returns how many commands a server has run since it started, those of scripts included.
pub fn all_calls(admin: &mut Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(admin).expect("INFO");
    let counted = stats.lines().filter(|line| line.starts_with("cmdstat_") && !line.starts_with("cmdstat_info:"));
    let count = |line: &str| line.split(['=', ',']).nth(1).expect("calls=N").parse::<u64>().expect("a number");
    counted.map(count).sum()
}

/// Returns how many connections a server has accepted so far.
pub fn connections(admin: &mut Connection) -> u32 {
    let info: String = redis::cmd("INFO").arg("stats").query(admin).expect("INFO");
    let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:")).expect("a count");
    line.parse().expect("a number")
}

/// Starts this test program once more, as another process that runs one test alone.
///
/// `var` tells the test that it is the other process.
pub fn other_process(test: &str, var: &str, value: &str) -> Child {
    Command::new(env::current_exe().expect("this program"))
        .args([test, "--exact", "--nocapture"])
        .env(var, value)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("this program starts once more")
}

/// Waits for a process of [`other_process`] and returns what it printed after `label`.
pub fn printed(child: &mut Child, label: &str) -> String {
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let lines: Vec<String> = output.lines().map(|line| line.expect("text")).collect();
    let _ = child.wait();
    let found = lines.iter().find_map(|line| line.split_once(label));
    found.unwrap_or_else(|| panic!("no `{label}` in {lines:?}")).1.trim().to_owned()
}

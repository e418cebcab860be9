//! Takes a lock again and again, works under it, and tells what happens as JSON, one object a line.
//!
//! ```text
//! cargo run --example lock -- --redis redis://127.0.0.1:6379 --name order:7 --ttl 2s --hold 500ms --count 10
//! cargo run --example lock -- --redlock redis://a,redis://b,redis://c --trust-fresh-nodes
//! ```
//!
//! It is also a worker that can be put under strain: run several, stop and kill them or their servers, and look at what
//! they say. `t_ns` is `CLOCK_MONOTONIC`, the same for all processes of a machine. `released` has the time at which the
//! work was done and the lease given up, and is told when the server knows it.

use std::{cell::Cell, io::Write, sync::Arc, time::Duration};

use lexopt::{Arg, ValueExt};
use tokio::time::sleep;
use tollgate::{
    Error, Memory, Redis,
    lease::{Fence, LeaseStore, Lock, Redlock},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::read()?;
    let store = options.store().await?;
    let lock = Lock::new(&store, options.name.as_str()).ttl(options.ttl).wait(options.wait);
    for _ in 0..options.count {
        let fence = Cell::new(None);
        let work = async |lease: tollgate::lease::Lease| {
            fence.set(lease.fence());
            tell("acquired", lease.fence(), now());
            let mut worked = Duration::ZERO;
            while worked < options.hold {
                tell("step", lease.fence(), now());
                sleep(STEP).await;
                worked += STEP;
            }
            now()
        };
        match lock.run(work).await {
            Ok(done) => tell("released", fence.get(), done),
            Err(error) if error.is_lost() => tell("lost", fence.get(), now()),
            Err(error) => {
                eprintln!("{error:?}");
                tell("failed", None, now());
                // As one who comes again later, and does not ask a server without a pause that is gone.
                sleep(STEP).await;
            }
        }
    }
    Ok(())
}

/// Returns the time in nanoseconds, by the clock that all processes of a machine share.
fn now() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Prints what happened when, at once.
fn tell(event: &str, fence: Option<Fence>, t_ns: i64) {
    let line = serde_json::json!({ "event": event, "fence": fence.map(u64::from), "t_ns": t_ns });
    let mut out = std::io::stdout().lock();
    // Who does not listen any more need not be told.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

struct Options {
    redis: Option<String>,
    redlock: Vec<String>,
    trust_fresh_nodes: bool,
    name: String,
    ttl: Duration,
    hold: Duration,
    wait: Duration,
    count: u64,
}

impl Options {
    fn read() -> Result<Self, lexopt::Error> {
        let mut options = Self {
            redis: None,
            redlock: Vec::new(),
            trust_fresh_nodes: false,
            name: "example".to_owned(),
            ttl: Duration::from_secs(2),
            hold: Duration::from_millis(100),
            wait: Duration::from_secs(10),
            count: 10,
        };
        let mut words = lexopt::Parser::from_env();
        while let Some(word) = words.next()? {
            match word {
                Arg::Long("redis") => options.redis = Some(words.value()?.string()?),
                Arg::Long("redlock") => {
                    options.redlock = words.value()?.string()?.split(',').map(str::to_owned).collect();
                }
                Arg::Long("trust-fresh-nodes") => options.trust_fresh_nodes = true,
                Arg::Long("name") => options.name = words.value()?.string()?,
                Arg::Long("ttl") => options.ttl = words.value()?.parse_with(duration)?,
                Arg::Long("hold") => options.hold = words.value()?.parse_with(duration)?,
                Arg::Long("wait") => options.wait = words.value()?.parse_with(duration)?,
                Arg::Long("count") => options.count = words.value()?.parse()?,
                _ => return Err(word.unexpected()),
            }
        }
        Ok(options)
    }

    async fn store(&self) -> Result<Arc<dyn LeaseStore>, Error> {
        if !self.redlock.is_empty() {
            let nodes = self.redlock.iter().map(|url| Redis::open(url)).collect::<Result<Vec<_>, _>>()?;
            let redlock = Redlock::over(nodes);
            let redlock = if self.trust_fresh_nodes { redlock.trust_fresh_nodes() } else { redlock };
            return Ok(Arc::new(redlock.build().await?));
        }
        Ok(match &self.redis {
            Some(url) => Arc::new(Redis::open(url)?),
            None => Arc::new(Memory::new()),
        })
    }
}

/// Reads `2s`, `500ms`, or a number of milliseconds.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is no duration; write 500ms or 2s"))?;
    match unit {
        "ms" | "" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => Err(format!("`{text}` has an unknown unit; write 500ms or 2s")),
    }
}

/// How long one step of the work takes.
const STEP: Duration = Duration::from_millis(10);

//! How far processes that draw units ahead are off an exact limit: 1 to 1,000 of them on one store, on virtual time,
//! with skewed traffic, a slow store, lost calls and a crash. Prints what was measured beside the formula that the
//! documentation gives, and fails if the formula does not hold.
//!
//! ```text
//! cargo run --example simulate
//! cargo run --example simulate -- --seed 7 --svg allotment.svg
//! ```

mod fleet;
mod svg;

use std::{error::Error, fs, path::PathBuf, process::ExitCode, time::Duration};

use fleet::{Fleet, Random, Verdict, Weather};
use tokio::{runtime, task::JoinSet, time::sleep};
use tollgate::{OnError, Policy, Quota};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse()?;
    println!(
        "{LIMIT} units in {} ms; over and under: the most, in units, and what the formula grants",
        WINDOW.as_millis()
    );
    println!(
        "{:>9} {:>5}  {:<14} {:<8} {:>8} {:>9} {:>6} {:>6} {:>5} {:>11} {:>11}",
        "processes", "share", "algorithm", "store", "offered", "admitted", "local", "calls", "lost", "over", "under"
    );
    let mut results = Vec::new();
    for (processes, percent) in FLEETS {
        for policy in policies(percent)? {
            for (scenario, weather) in SCENARIOS {
                let result = run(processes, percent, &policy, scenario, weather, args.seed)?;
                println!("{result}");
                results.push(result);
            }
        }
    }
    if let Some(path) = &args.svg {
        fs::write(path, svg::draw(&results))?;
        println!("drawn: {}", path.display());
    }
    let broken = results.iter().filter(|result| !result.holds()).count();
    println!("{} of {} runs are within the formula", results.len() - broken, results.len());
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What one run came to.
struct Run {
    processes: u64,
    percent: u32,
    policy: Policy,
    scenario: &'static str,
    offered: u64,
    /// The decisions that were made without the store.
    local: u64,
    /// How often the store was asked, draws and returns included.
    calls: u64,
    verdict: Verdict,
    over_formula: u64,
    under_formula: u64,
}

impl Run {
    fn holds(&self) -> bool {
        self.verdict.over <= self.over_formula && self.verdict.under <= self.under_formula
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let beside = |measured: u64, formula: u64| format!("{measured} / {formula}");
        write!(
            f,
            "{:>9} {:>4}%  {:<14} {:<8} {:>8} {:>9} {:>6} {:>6} {:>5} {:>11} {:>11}{}",
            self.processes,
            self.percent,
            self.policy.algorithm().name(),
            self.scenario,
            self.offered,
            self.verdict.admitted,
            self.local,
            self.calls,
            self.verdict.lost,
            beside(self.verdict.over, self.over_formula),
            beside(self.verdict.under, self.under_formula),
            if self.holds() { "" } else { "  BROKEN" }
        )
    }
}

fn run(
    processes: u64,
    percent: u32,
    policy: &Policy,
    scenario: &'static str,
    weather: Weather,
    seed: u64,
) -> Result<Run, Box<dyn Error>> {
    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let fleet = runtime.block_on(traffic(processes, policy, weather, seed));
    let (offered, local, fleet) = fleet;
    let log = fleet.log();
    let (calls, verdict) = (log.calls, log.judge(policy));
    // A process that is started anew after a crash is one more that may hold something.
    let crashed = u64::from(weather.failing > 0);
    let cap = (policy.capacity() * u64::from(percent) / 100).max(1);
    let held = (processes + crashed) * cap;
    let refilled = LIMIT * HELD_FOR_MS / u64::try_from(WINDOW.as_millis())?;
    let over_formula = match policy.name() {
        "fixed" => 0,
        "sliding" => held.min(LIMIT),
        _ => held.min(policy.capacity() + refilled),
    };
    let under_formula = held.min(policy.capacity());
    Ok(Run {
        processes,
        percent,
        policy: policy.clone(),
        scenario,
        offered,
        local,
        calls,
        verdict,
        over_formula,
        under_formula,
    })
}

/// Lets processes be asked for a few seconds, some far more than others, and others after a while.
async fn traffic(processes: u64, policy: &Policy, weather: Weather, seed: u64) -> (u64, u64, Fleet) {
    let fleet = Fleet::new(weather, seed);
    let mut random = Random::new(seed ^ processes);
    let mut all: Vec<_> = (0..processes).map(|_| fleet.process()).collect();
    let weights = weights(processes);
    let sum = *weights.last().expect("at least one process");
    let (mut offered, mut requests) = (0, JoinSet::new());
    for ms in 0..LENGTH_MS {
        // Per second, so that units are drawn in a rush and lie idle afterwards.
        let load = [5, 20, 15][usize::try_from(ms / 1_000 % 3).expect("small")];
        // The most asked is another one from time to time.
        let shift = ms / 1_500 * (processes / 3 + 1);
        let mean = LIMIT * load / 10 * 1_000 / u64::try_from(WINDOW.as_millis()).expect("short");
        for _ in 0..(mean + random.below(1_000)) / 1_000 {
            let rank = weights.partition_point(|weight| *weight <= random.below(sum));
            let process = (u64::try_from(rank).expect("a process") + shift) % processes;
            let process = all[usize::try_from(process).expect("a process")].clone();
            let cost = if random.below(20) == 0 { 3 } else { 1 };
            offered += cost;
            let policy = policy.clone();
            requests.spawn(async move { process.ask(&policy, "everybody", cost).await.is_allotted() });
        }
        if weather.failing > 0 && ms == CRASH_MS {
            let busiest = usize::try_from(shift % processes).expect("a process");
            all[busiest].crash();
            all[busiest] = fleet.process();
        }
        sleep(Duration::from_millis(1)).await;
    }
    let answers = requests.join_all().await;
    // What nobody waits for any more is still to be written down: an answer that comes too late is a loss.
    sleep(2 * weather.trip + Duration::from_millis(10)).await;
    let local = answers.into_iter().filter(|local| *local).count();
    (offered, u64::try_from(local).expect("a count"), fleet)
}

/// Returns the running sum of how often each process is asked: Zipf's law, the second half as often as the first.
fn weights(processes: u64) -> Vec<u64> {
    let running = |sum: &mut u64, rank| {
        *sum += 1_000_000 / rank;
        Some(*sum)
    };
    (1..=processes).scan(0, running).collect()
}

fn policies(percent: u32) -> Result<[Policy; 3], tollgate::Error> {
    let quota = Quota::new(LIMIT, WINDOW)?;
    let ready = |policy: Policy| policy.on_error(OnError::Deny).try_allotted(percent);
    Ok([
        ready(Policy::fixed_window("fixed", quota))?,
        ready(Policy::sliding_window("sliding", quota))?,
        ready(Policy::token_bucket("bucket", quota))?,
    ])
}

struct Args {
    seed: u64,
    svg: Option<PathBuf>,
}

impl Args {
    fn parse() -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;
        let mut args = Self { seed: 1, svg: None };
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Long("seed") => args.seed = parser.value()?.parse()?,
                Long("svg") => args.svg = Some(parser.value()?.into()),
                _ => return Err(arg.unexpected()),
            }
        }
        Ok(args)
    }
}

/// How many processes, and the percent of the limit that each may hold.
const FLEETS: [(u64, u32); 4] = [(1, 20), (10, 5), (100, 1), (1_000, 1)];

const SCENARIOS: [(&str, Weather); 3] = [
    ("fast", Weather { trip: Duration::from_millis(1), failing: 0, out: (0, 0) }),
    ("slow", Weather { trip: Duration::from_millis(45), failing: 0, out: (0, 0) }),
    ("failing", Weather { trip: Duration::from_millis(4), failing: 60, out: (1_800, 3_400) }),
];

/// A unit refills in a whole number of microseconds, which makes exact what is compared.
const LIMIT: u64 = 2_000;
const WINDOW: Duration = Duration::from_secs(2);

const LENGTH_MS: u64 = 4_500;
const CRASH_MS: u64 = 2_500;

/// The longest that a unit is held: the hold time, a sweep, the call that gives it back, and a second more if nobody
/// knows whether that has arrived.
const HELD_FOR_MS: u64 = 1_000 + 250 + 100 + 1_000;

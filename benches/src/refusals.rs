use std::time::{Duration, Instant};

use tollgate::{Limiter, Policy, Quota, Redis};

use crate::{
    cores,
    run::{Run, Wanted},
    server::{Server, closed_loop, runtime},
};

/// Measures what a flood of refused requests costs the server.
pub fn run(run: &mut Run) {
    cores::pinned(cores::CLIENT, || measure(run));
}

fn measure(run: &mut Run) {
    let (server, runtime) = (Server::start(), runtime());
    println!("\nrefusals, 64 in flight, {}\n", server.version());
    println!("| refusals | subjects | remembered for | ns a refusal | commands at the server | for each refusal |");
    println!("|---|---|---|---|---|---|");
    // The last is for longer than refusals are remembered if nothing else is said, and the one before for more
    // subjects than are remembered for certain.
    for (refusals, subjects, remembered) in
        [(1_000_000, 1, 60), (1_000_000, 100, 60), (200_000, 10_000, 60), (16_000_000, 1, 1)]
    {
        let limiter = Limiter::new(Redis::open(&server.url()).expect("an address"))
            .deadline(Duration::from_secs(10))
            .deny_max_age(Duration::from_secs(remembered));
        let policy = Policy::token_bucket("refusing", Quota::per_day(1));
        let flood = |total: u64, refused: Option<bool>| {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            closed_loop(&runtime, 64, total, subjects, move |key| {
                let (limiter, policy) = (limiter.clone(), policy.clone());
                async move {
                    let decision = limiter.check(&policy, key).await;
                    assert!(refused.is_none_or(|refused| refused != decision.is_allowed()));
                }
            })
        };
        // Each is let in once, and refused once by the server.
        flood(subjects, None);
        flood(subjects, Some(true));
        server.forget_stats();
        let started = Instant::now();
        flood(refusals, Some(true));
        let each = started.elapsed().as_nanos() as f64 / refusals as f64;
        let ours = |name: &str| !["info", "config|resetstat", "config", "client|setinfo", "hello"].contains(&name);
        let commands: u64 = server.stats().iter().filter(|(name, ..)| ours(name)).map(|(_, calls, _)| calls).sum();
        let per_refusal = commands as f64 / refusals as f64;
        println!("| {refusals} | {subjects} | {remembered} s | {each:.0} | {commands} | {per_refusal:.6} |");
        if remembered > 1 && subjects <= 100 {
            let name = format!("refusals of {subjects} subjects while remembered: commands at the server each");
            run.bar(name, Wanted::AtMost(0.0), per_refusal);
        }
    }
}

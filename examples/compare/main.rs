//! What each algorithm lets pass of the same traffic: at a window's edge, in bursts and under steady overload. It runs
//! the real code on simulated time, prints the most that passed within any window, draws one SVG for each kind of
//! traffic, and fails if an algorithm let more pass than it promises.
//!
//! ```text
//! cargo run --example compare
//! cargo run --example compare -- --svg docs/images
//! ```

mod svg;
mod traffic;

use std::{error::Error, fs, path::PathBuf, process::ExitCode};

use self::traffic::{TRAFFIC, WINDOW, run_all};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse()?;
    let mut kept = true;
    for traffic in TRAFFIC {
        let plots = run_all(&traffic).await?;
        for plot in &plots {
            println!(
                "{:<9} {:<16} {:>4} offered, {:>4} passed, at most {:>3} in any {} s of {} promised",
                traffic.name,
                plot.label,
                plot.offered.iter().sum::<u32>(),
                plot.passed.iter().sum::<u32>(),
                plot.most,
                WINDOW.as_secs(),
                plot.promised,
            );
            kept &= plot.most <= plot.promised;
        }
        if let Some(directory) = &args.svg {
            fs::create_dir_all(directory)?;
            let path = directory.join(format!("{}.svg", traffic.name));
            fs::write(&path, svg::draw(traffic.title, &plots))?;
            println!("drawn: {}", path.display());
        }
    }
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Args {
    svg: Option<PathBuf>,
}

impl Args {
    fn parse() -> Result<Self, lexopt::Error> {
        use lexopt::prelude::{Long, ValueExt};
        let (mut parser, mut args) = (lexopt::Parser::from_env(), Self { svg: None });
        while let Some(argument) = parser.next()? {
            match argument {
                Long("svg") => args.svg = Some(parser.value()?.parse()?),
                other => return Err(other.unexpected()),
            }
        }
        Ok(args)
    }
}

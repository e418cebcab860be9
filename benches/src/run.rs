use std::time::Instant;

/// A case of a table: its name, and a function that runs it once and returns how many operations that were.
pub type Case<'a> = (&'a str, Box<dyn FnMut() -> u64 + 'a>);

/// One run of this program: how often it measures, and what came of it.
pub struct Run {
    rounds: usize,
    bars: Vec<Bar>,
}

/// What a ratio is wanted to be.
pub enum Wanted {
    AtMost(f64),
    AtLeast(f64),
}

struct Bar {
    name: String,
    wanted: Wanted,
    measured: f64,
}

/// What each case of a table came to.
pub struct Medians(Vec<(String, f64)>);

impl Run {
    pub fn new(rounds: usize) -> Self {
        Self { rounds: rounds.max(1), bars: Vec::new() }
    }

    /// Times all cases in turn, and prints nanoseconds an operation and the ratio to the first case.
    pub fn table(&self, title: &str, cases: &mut [Case<'_>]) -> Medians {
        for (_, run) in cases.iter_mut() {
            run(); // to warm up
        }
        let names: Vec<&str> = cases.iter().map(|(name, _)| *name).collect();
        self.in_turn(title, "ns an operation", &names, |case| {
            let started = Instant::now();
            let operations = cases[case].1();
            started.elapsed().as_nanos() as f64 / operations as f64
        })
    }

    /// Measures all cases in turn, and prints the median, the least and the most of each, and its ratio to the first.
    pub fn in_turn(&self, title: &str, unit: &str, names: &[&str], mut once: impl FnMut(usize) -> f64) -> Medians {
        let mut samples = vec![Vec::new(); names.len()];
        for _ in 0..self.rounds {
            for (case, samples) in samples.iter_mut().enumerate() {
                samples.push(once(case));
            }
        }
        println!("\n{title}\n");
        println!("| case | {unit} (min to max) | of the first |\n|---|---|---|");
        let mut medians = Vec::new();
        for (name, samples) in names.iter().zip(&mut samples) {
            samples.sort_by(f64::total_cmp);
            let (min, median, max) = (samples[0], samples[samples.len() / 2], samples[samples.len() - 1]);
            medians.push(((*name).to_owned(), median));
            println!("| {name} | {median:.1} ({min:.1} to {max:.1}) | {:.2} |", median / medians[0].1);
        }
        Medians(medians)
    }

    pub fn bar(&mut self, name: impl Into<String>, wanted: Wanted, measured: f64) {
        self.bars.push(Bar { name: name.into(), wanted, measured });
    }

    /// Prints all bars of the run.
    pub fn print_bars(&self) {
        if self.bars.is_empty() {
            return;
        }
        println!("\nbars\n\n| bar | wanted | measured | |\n|---|---|---|---|");
        for Bar { name, wanted, measured } in &self.bars {
            let (wanted, met) = match *wanted {
                Wanted::AtMost(most) => (format!("at most {most}"), *measured <= most),
                Wanted::AtLeast(least) => (format!("at least {least}"), *measured >= least),
            };
            println!("| {name} | {wanted} | {measured:.3} | {} |", if met { "met" } else { "missed" });
        }
    }
}

impl Medians {
    pub fn of(&self, name: &str) -> f64 {
        let case = self.0.iter().find(|(other, _)| other == name);
        case.unwrap_or_else(|| panic!("the table has no case `{name}`")).1
    }

    pub fn ratio(&self, of: &str, to: &str) -> f64 {
        self.of(of) / self.of(to)
    }
}

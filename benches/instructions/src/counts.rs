use std::{fmt, fs};

/// Instructions by workload, as they are committed.
pub struct Counts(Vec<(String, u64)>);

impl Counts {
    pub fn new<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> Self {
        Self(counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect())
    }

    pub fn read() -> Self {
        let text = fs::read_to_string(FILE).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pair = |line: &str| {
            let (count, name) = line.trim().split_once(' ').expect("a count and a name");
            (name.to_owned(), count.parse().expect("a number"))
        };
        Self(lines.map(pair).collect())
    }

    pub fn write(&self) {
        fs::write(FILE, self.to_string()).expect("counts.txt can be written");
    }

    pub fn of(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, count)| *count)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Instructions of one operation, on x86-64; written by `scripts/test --accept-instructions`.")?;
        self.0.iter().try_for_each(|(name, count)| writeln!(f, "{count:>6} {name}"))
    }
}

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/counts.txt");

use crate::error::Error;

/// A text with a name, in which places can be pointed at.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: String,
}

/// Something that is wrong in a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fault {
    /// Where, in bytes.
    at: usize,
    what: String,
}

/// All that is wrong in a text.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Source {
    /// Returns the line and column of a place, counted from one; columns are characters.
    fn line_and_column(&self, at: usize) -> (usize, usize) {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// Returns where a line and column are, both counted from zero.
    pub(super) fn offset(&self, line: usize, column: usize) -> usize {
        let start: usize = self.text.split_inclusive('\n').take(line).map(str::len).sum();
        let rest = &self.text[start.min(self.text.len())..];
        start + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at)
    }

    /// Returns the faults as an error, if there is any.
    pub(super) fn verdict(&self, faults: Faults) -> Result<(), Error> {
        if faults.is_empty() { Ok(()) } else { Err(self.error(faults)) }
    }

    /// Tells all faults, one a line, as `FILE:LINE:COLUMN: what`.
    pub(super) fn error(&self, mut faults: Faults) -> Error {
        faults.0.sort();
        faults.0.dedup();
        let tell = |fault: &Fault| {
            let (line, column) = self.line_and_column(fault.at);
            format!("{}:{line}:{column}: {}", self.name, fault.what)
        };
        Error::invalid(faults.0.iter().map(tell).collect::<Vec<_>>().join("\n"))
    }
}

impl Faults {
    pub(super) fn add(&mut self, at: usize, what: impl Into<String>) {
        self.0.push(Fault { at, what: what.into() });
    }

    /// Adds others but at places of which something is told already.
    pub(super) fn add_elsewhere(&mut self, others: Self) {
        let known: Vec<usize> = self.0.iter().map(|fault| fault.at).collect();
        self.0.extend(others.0.into_iter().filter(|fault| !known.contains(&fault.at)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns `; did you mean ...?` if a word is nearly one of those that are accepted.
pub(super) fn did_you_mean<'a>(word: &str, accepted: impl IntoIterator<Item = &'a str>) -> String {
    let plain = |word: &str| word.to_lowercase().replace(['_', ' ', '.'], "-");
    let word = plain(word);
    let near = accepted.into_iter().map(|other| (distance(&word, &plain(other)), other));
    match near.min_by_key(|(distance, _)| *distance) {
        Some((distance, other)) if distance <= (other.len() / 3).clamp(1, 3) => format!("; did you mean `{other}`?"),
        _ => String::new(),
    }
}

/// Returns how many letters have to be changed, added, left out or swapped with the next.
fn distance(one: &str, other: &str) -> usize {
    // What is longer than all accepted words is none of them misspelt.
    let one: Vec<char> = one.chars().take(64).collect();
    let other: Vec<char> = other.chars().collect();
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let change = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                let swapped = i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
                let swap = if swapped { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                change.min(swap).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
            };
        }
    }
    rows[one.len()][other.len()]
}

/// Lists words for a message: `a, b or c`, each in quotes.
pub(super) fn either<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let mut words: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match words.pop() {
        Some(last) if words.is_empty() => last,
        Some(last) => format!("{} or {last}", words.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_in_lines_and_characters() {
        let source = Source { name: "f".to_owned(), text: "ab\näb = 1\n".to_owned() };
        assert_eq!(source.line_and_column(0), (1, 1));
        assert_eq!(source.line_and_column(3), (2, 1));
        assert_eq!(source.line_and_column(4), (2, 1), "within a character");
        assert_eq!(source.line_and_column(5), (2, 2));
        assert_eq!(source.line_and_column(100), (3, 1));
        assert_eq!((source.offset(1, 1), source.offset(1, 99), source.offset(9, 9)), (5, 11, 11));
    }

    #[test]
    fn near_misses_are_seen() {
        let words = ["token-bucket", "fixed-window", "sliding-window"];
        assert_eq!(did_you_mean("tokn-bucket", words), "; did you mean `token-bucket`?");
        assert_eq!(did_you_mean("Sliding_Window", words), "; did you mean `sliding-window`?");
        assert_eq!(did_you_mean("leaky", words), "");
        assert_eq!(did_you_mean("kye", ["key", "cost"]), "; did you mean `key`?");
        assert_eq!(did_you_mean("", ["key"]), "");
    }

    #[test]
    fn all_faults_are_told_in_order() {
        let source = Source { name: "f".to_owned(), text: "a\nb".to_owned() };
        let mut faults = Faults::default();
        faults.add(2, "second");
        faults.add(0, "first");
        faults.add(0, "first");
        assert_eq!(source.error(faults).to_string(), "f:1:1: first\nf:2:1: second");
    }
}

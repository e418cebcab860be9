//! How things are printed.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use crate::Failure;

/// Prints to standard output; who has closed it wants no more.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| Failure::Silent(error.to_string()))
}

/// Prints rows under a head, each column as wide as it must be; numbers to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([head[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let is_number = |column: usize| {
        !rows.is_empty() && rows.iter().all(|row| row[column].starts_with(|c: char| c.is_ascii_digit()))
    };
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.enumerate().map(|(column, cell)| {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            if is_number(column) && head[column] != "key" { format!("{pad}{cell}") } else { format!("{cell}{pad}") }
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let mut text = line(&mut head.iter().copied());
    rows.iter().for_each(|row| text += &line(&mut row.iter().map(String::as_str)));
    text
}

/// Writes a time as people say it.
pub(crate) fn span(time: Duration) -> String {
    let ms = time.as_micros().div_ceil(1_000);
    if ms < 1_000 {
        return format!("{ms} ms");
    }
    let mut rest = ms.div_ceil(1_000);
    let mut parts = Vec::new();
    for (unit, seconds) in [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)] {
        if rest >= seconds {
            parts.push(format!("{} {unit}", rest / seconds));
        }
        rest %= seconds;
    }
    parts.truncate(2);
    parts.join(" ")
}

/// Puts the cursor home and clears what follows, where that is a terminal.
pub(crate) fn anew() -> &'static str {
    if io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" }
}

//! A plain drawing of the runs: measured against the formula.
#![allow(clippy::float_arithmetic, clippy::cast_precision_loss)] // A drawing is made of fractions.

use std::fmt::Write;

use super::{LIMIT, Run};

/// Draws over-admission and under-admission beside each other, by the number of processes.
pub(crate) fn draw(runs: &[Run]) -> String {
    let mut svg = String::new();
    let _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13" fill="#222">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
<text x="20" y="26" font-size="16">Units drawn ahead: how far a fleet is off the exact limit</text>
"##
    );
    panel(&mut svg, 60.0, "most admitted beyond the limit", runs, |run| (run.verdict.over, run.over_formula));
    panel(&mut svg, 480.0, "most left unused at a refusal", runs, |run| (run.verdict.under, run.under_formula));
    for (i, (_, label, colour)) in ALGORITHMS.iter().enumerate() {
        let x = 60.0 + 150.0 * i as f64;
        let _ =
            writeln!(svg, r#"<line x1="{x}" y1="405" x2="{}" y2="405" stroke="{colour}" stroke-width="2"/>"#, x + 24.0);
        let _ = writeln!(svg, r#"<text x="{}" y="409">{label}</text>"#, x + 30.0);
    }
    svg.push_str("<text x=\"560\" y=\"409\">dotted: the formula; solid: measured, at worst</text>\n</svg>\n");
    svg
}

fn panel(svg: &mut String, left: f64, title: &str, runs: &[Run], pick: impl Fn(&Run) -> (u64, u64)) {
    let mut fleets: Vec<u64> = runs.iter().map(|run| run.processes).collect();
    fleets.dedup();
    let percent = |units: u64| 100.0 * units as f64 / LIMIT as f64;
    let highest = runs.iter().map(&pick).map(|(measured, formula)| measured.max(formula)).max().unwrap_or(1);
    let top = (percent(highest) / 50.0).ceil().max(1.0) * 50.0;
    let x = |i: usize| left + 20.0 + (PANEL_WIDTH - 40.0) * i as f64 / (fleets.len() - 1) as f64;
    let y = |percent: f64| BOTTOM - (BOTTOM - TOP) * percent / top;

    let _ = writeln!(svg, r#"<text x="{left}" y="54">{title}, % of the limit</text>"#);
    for step in 0..=5 {
        let value = top * f64::from(step) / 5.0;
        let (y, right) = (y(value), left + PANEL_WIDTH);
        let _ = writeln!(svg, r##"<line x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#ddd"/>"##);
        let _ = writeln!(svg, r#"<text x="{}" y="{:.1}" text-anchor="end">{value}</text>"#, left - 6.0, y + 4.0);
    }
    for (i, processes) in fleets.iter().enumerate() {
        let _ = writeln!(svg, r#"<text x="{:.1}" y="{}" text-anchor="middle">{processes}</text>"#, x(i), BOTTOM + 20.0);
    }
    let middle = left + PANEL_WIDTH / 2.0;
    let _ = writeln!(svg, r#"<text x="{middle}" y="{}" text-anchor="middle">processes</text>"#, BOTTOM + 40.0);

    for (name, _, colour) in ALGORITHMS {
        let worst = |which: fn((u64, u64)) -> u64| {
            let of = |processes: &u64| {
                let same = |run: &&Run| run.processes == *processes && run.policy.name() == name;
                runs.iter().filter(same).map(|run| which(pick(run))).max().unwrap_or(0)
            };
            let points = fleets.iter().map(of).enumerate();
            points.map(|(i, units)| format!("{:.1},{:.1}", x(i), y(percent(units)))).collect::<Vec<_>>().join(" ")
        };
        let (measured, formula) = (worst(|pair| pair.0), worst(|pair| pair.1));
        let _ = writeln!(
            svg,
            r#"<polyline points="{formula}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="2 4"/>
<polyline points="{measured}" fill="none" stroke="{colour}" stroke-width="2"/>"#
        );
    }
}

/// The name of a policy, what to call it, and its colour: told apart by the colour-blind too.
const ALGORITHMS: [(&str, &str, &str); 3] = [
    ("fixed", "fixed window", "#0072b2"),
    ("sliding", "sliding window", "#d55e00"),
    ("bucket", "token bucket", "#009e73"),
];

const WIDTH: u32 = 880;
const HEIGHT: u32 = 430;
const PANEL_WIDTH: f64 = 360.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 330.0;

//! A plain drawing: for each algorithm what was offered and what passed.
#![allow(clippy::float_arithmetic, clippy::cast_precision_loss)] // A drawing is made of fractions.

use std::fmt::Write;

use super::traffic::{LIMIT, Plot, STEP, STEPS, WINDOW};

pub(crate) fn draw(title: &str, plots: &[Plot]) -> String {
    let height = TOP + PANEL * plots.len() as f64 + 40.0;
    let mut svg = String::new();
    let _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13" fill="#222">
<rect width="{WIDTH}" height="{height}" fill="#fff"/>
<text x="20" y="26" font-size="16">{LIMIT} in {} s: {title}</text>
<rect x="20" y="40" width="12" height="12" fill="#ccc"/><text x="38" y="51">offered</text>
<rect x="110" y="40" width="12" height="12" fill="#0072b2"/><text x="128" y="51">passed, in each second</text>
"##,
        WINDOW.as_secs()
    );
    for (i, plot) in plots.iter().enumerate() {
        panel(&mut svg, TOP + PANEL * i as f64, plot);
    }
    let seconds = STEPS as f64 * STEP.as_secs_f64();
    for second in (0..=30).step_by(5) {
        let x = LEFT + (WIDTH - LEFT - RIGHT) * f64::from(second) / seconds;
        let _ = writeln!(svg, r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{second} s</text>"#, height - 16.0);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, top: f64, plot: &Plot) {
    let seconds = |steps: &[u32]| steps.chunks(STEPS_OF_A_SECOND).map(|steps| steps.iter().sum()).collect::<Vec<u32>>();
    let (offered, passed) = (seconds(&plot.offered), seconds(&plot.passed));
    let highest = f64::from(offered.iter().copied().max().unwrap_or(1).max(1));
    let bottom = top + PANEL - 30.0;
    let width = (WIDTH - LEFT - RIGHT) / offered.len() as f64;
    for (bars, colour) in [(&offered, "#ccc"), (&passed, "#0072b2")] {
        for (i, requests) in bars.iter().enumerate().filter(|(_, requests)| **requests > 0) {
            let (x, bar) = (LEFT + width * i as f64, (PANEL - 55.0) * f64::from(*requests) / highest);
            let _ = writeln!(
                svg,
                r#"<rect x="{x:.1}" y="{:.1}" width="{:.1}" height="{bar:.1}" fill="{colour}"/>"#,
                bottom - bar,
                width - 1.0
            );
        }
    }
    let _ = writeln!(svg, r##"<line x1="{LEFT}" y1="{bottom}" x2="{}" y2="{bottom}" stroke="#222"/>"##, WIDTH - RIGHT);
    let _ = writeln!(
        svg,
        r#"<text x="{LEFT}" y="{:.1}">{}: at most {} in any {} s</text>"#,
        top + 12.0,
        plot.label,
        plot.most,
        WINDOW.as_secs()
    );
    let _ = writeln!(svg, r#"<text x="{:.1}" y="{bottom:.1}" text-anchor="end">0</text>"#, LEFT - 6.0);
    let highest_at = bottom - (PANEL - 55.0) + 10.0;
    let _ = writeln!(svg, r#"<text x="{:.1}" y="{highest_at:.1}" text-anchor="end">{highest}</text>"#, LEFT - 6.0);
}

const STEPS_OF_A_SECOND: usize = 10;
const WIDTH: f64 = 880.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 70.0;
const PANEL: f64 = 150.0;

//! What the example `compare` draws holds, and is what the documentation shows.

#[path = "../examples/compare/svg.rs"]
mod svg;
#[path = "../examples/compare/traffic.rs"]
mod traffic;

use std::{fs, path::Path};

use self::traffic::{TRAFFIC, run_all};

#[tokio::test]
async fn no_algorithm_lets_more_pass_than_it_promises_and_the_pictures_are_true() {
    for traffic in TRAFFIC {
        let plots = run_all(&traffic).await.expect("quotas");
        for plot in &plots {
            assert!(plot.most <= plot.promised, "{}, {}: {}", traffic.name, plot.label, plot.most);
            assert_eq!(plot.offered.len(), plot.passed.len());
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/images/{}.svg", traffic.name));
        let shown = fs::read_to_string(&path).unwrap_or_default();
        let drawn = svg::draw(traffic.title, &plots);
        assert!(shown == drawn, "draw it anew: cargo run --example compare -- --svg docs/images");
    }
}

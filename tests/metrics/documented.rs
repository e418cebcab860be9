//! What is documented, and what the dashboard shows, is what there is.

use std::{collections::BTreeSet, fs, path::Path};

use tollgate::metrics::{ALL, Kind};

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).expect(file)
}

/// The rows of a table: what stands between backticks in each cell of rows whose first cell has something there.
fn rows(page: &str) -> Vec<Vec<String>> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn in_ticks(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_metric_is_documented_and_nothing_else_is() {
    let page = read("docs/metrics.md");
    let documented: Vec<_> = rows(&page).into_iter().filter(|row| row[0].starts_with("`tollgate_")).collect();
    let names: Vec<_> = documented.iter().map(|row| in_ticks(&row[0])[0]).collect();
    assert_eq!(names, ALL.iter().map(|metric| metric.name).collect::<Vec<_>>());
    for (row, metric) in documented.iter().zip(ALL) {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            _ => panic!("a kind that the page does not know"),
        };
        assert_eq!((row[1].as_str(), in_ticks(&row[2])), (kind, metric.labels.to_vec()), "{}", metric.name);
        assert!(row.len() == 5 && row[3].len() > 20 && !row[4].is_empty(), "{}", metric.name);
    }
}

#[test]
fn every_event_with_a_name_is_documented_and_nothing_else_is() {
    let page = read("docs/metrics.md");
    let documented: BTreeSet<(String, String)> = rows(&page)
        .into_iter()
        .filter(|row| row[0].starts_with("`tollgate::"))
        .map(|row| (in_ticks(&row[0])[0].to_owned(), in_ticks(&row[1])[0].to_owned()))
        .collect();
    let mut named = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = fs::read_to_string(&path).unwrap_or_default();
            for event in source.split("name: \"").skip(1) {
                let mut texts = event.split('"');
                let (name, between, target) = (texts.next(), texts.next(), texts.next());
                if let (Some(name), Some(between), Some(target)) = (name, between, target)
                    && between.trim_matches([',', ' ', '\n']) == "target:"
                {
                    named.insert((target.to_owned(), name.to_owned()));
                }
            }
        }
    }
    assert_eq!(named, documented);
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("docs/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut shown = BTreeSet::new();
    let mut places = Vec::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        if panel["type"] == "row" {
            continue;
        }
        assert!(!panel["description"].as_str().unwrap_or_default().is_empty(), "{title} says nothing of itself");
        let queries = panel["targets"].as_array().expect("queries");
        assert!(!queries.is_empty(), "{title} shows nothing");
        for query in queries {
            let query = query["expr"].as_str().expect("a query");
            for word in query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                if let Some(metric) = ALL.iter().find(|metric| metric.name == word) {
                    assert_ne!(metric.kind, Kind::Histogram, "{query}");
                    shown.insert(metric.name);
                } else if word.starts_with("tollgate_") {
                    let histogram = ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end));
                    let metric = ALL.iter().find(|metric| Some(metric.name) == histogram);
                    let metric = metric.unwrap_or_else(|| panic!("{title} asks for {word}, which there is not"));
                    assert_eq!(metric.kind, Kind::Histogram, "{query}");
                    shown.insert(metric.name);
                }
            }
            // Labels that it names are labels of what it asks for.
            let known: BTreeSet<_> = ALL.iter().flat_map(|metric| metric.labels).copied().chain(["le"]).collect();
            for by in query.split("by (").skip(1) {
                let labels = by.split(')').next().expect("an end");
                labels.split(',').for_each(|label| assert!(known.contains(label.trim()), "{title}: {label}"));
            }
        }
        places.push(panel["gridPos"].clone());
    }
    let missing: Vec<_> = ALL.iter().filter(|metric| !shown.contains(metric.name)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().expect("an id")).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has its own id");
    let overlap = |a: &serde_json::Value, b: &serde_json::Value| {
        let [ax, ay, aw, ah] = ["x", "y", "w", "h"].map(|side| a[side].as_u64().expect("a place"));
        let [bx, by, bw, bh] = ["x", "y", "w", "h"].map(|side| b[side].as_u64().expect("a place"));
        ax < bx + bw && bx < ax + aw && ay < by + bh && by < ay + ah
    };
    for (i, a) in places.iter().enumerate() {
        assert!(!places[..i].iter().any(|b| overlap(a, b)), "{a} lies on another panel");
    }
}

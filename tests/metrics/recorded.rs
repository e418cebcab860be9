//! Reads what a Prometheus would.

use std::collections::BTreeMap;

use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// Series by their names and labels, as `name{label="value"}`, and what they have come to.
pub(crate) type Numbers = BTreeMap<String, f64>;

/// Records all that this thread does from now on.
pub(crate) struct Recorded {
    handle: PrometheusHandle,
    _here: LocalRecorderGuard<'static>,
}

impl Recorded {
    pub(crate) fn here() -> Self {
        // For as long as the process lives: a handful of tests.
        let recorder = Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
        Self { handle: recorder.handle(), _here: metrics::set_default_local_recorder(recorder) }
    }

    /// Returns all that is not zero; of histograms how much was recorded.
    pub(crate) fn numbers(&self) -> Numbers {
        let text = self.handle.render();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let pair = |line: &str| {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            (series.to_owned(), value.parse::<f64>().expect("a number"))
        };
        let counts = |series: &str| !series.contains("quantile=") && !series.contains("_seconds_sum");
        lines.map(pair).filter(|(series, value)| *value != 0.0 && counts(series)).collect()
    }
}

/// Asserts that a run came to these numbers, and to nothing else.
pub(crate) fn assert_are(numbers: &Numbers, expected: &[(&str, f64)]) {
    let expected: Numbers = expected.iter().map(|(series, value)| ((*series).to_owned(), *value)).collect();
    assert_eq!(numbers, &expected);
}

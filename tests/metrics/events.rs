//! Events: which there are for a decision, and what they do not tell.

use tollgate::{Demand, Limiter, Memory, Policy, Quota};
use tracing::Level;

use super::support::log::Log;

#[tokio::test]
async fn decisions_are_told_at_debug_and_keys_never_above() {
    let log = Log::listen(Level::TRACE);
    static API: Policy = Policy::fixed_window("told", Quota::per_day(1));
    static PLANNED: Policy = Policy::fixed_window("told-planned", Quota::per_day(1));
    let limiter = Limiter::new(Memory::new());
    let _ = limiter.check(&API, "ada@example.com").await;
    let _ = limiter.check(&API, "ada@example.com").await;
    for _ in 0..2 {
        let _ = limiter.decide(&[Demand::new(&PLANNED, "ada@example.com").shadow()]).await;
    }
    let text = log.text();
    // Other tests make decisions too.
    let lines: Vec<_> = text.lines().filter(|line| line.contains("ada@example.com")).collect();
    let expected = [
        r#"TRACE tollgate::decision: passed rule="told" key="ada@example.com" outcome="allowed""#,
        r#"DEBUG tollgate::decision: refused rule="told" key="ada@example.com""#,
        r#"TRACE tollgate::decision: passed rule="told-planned""#,
        r#"DEBUG tollgate::decision: refused in the shadow rule="told-planned""#,
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(expected), "{line}");
    }
}

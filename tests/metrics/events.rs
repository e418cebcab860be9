//! Events: which there are for a decision, and what they do not tell.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use tollgate::{Demand, Limiter, Memory, Policy, Quota};
use tracing::Level;

/// What a log would have.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn decisions_are_told_at_debug_and_keys_never_above() {
    // For the whole program: what only one thread listens to may be found to interest nobody by another.
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_max_level(Level::TRACE).with_ansi(false).with_writer(move || writer.clone()).init();
    static API: Policy = Policy::fixed_window("told", Quota::per_day(1));
    static PLANNED: Policy = Policy::fixed_window("told-planned", Quota::per_day(1));
    let limiter = Limiter::new(Memory::new());
    let _ = limiter.check(&API, "ada@example.com").await;
    let _ = limiter.check(&API, "ada@example.com").await;
    for _ in 0..2 {
        let _ = limiter.decide(&[Demand::new(&PLANNED, "ada@example.com").shadow()]).await;
    }
    let text = String::from_utf8_lossy(&log.0.lock().expect("no panic")).into_owned();
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

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

async fn logged(level: Level) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(move || writer.clone()).finish();
    let guard = tracing::subscriber::set_default(subscriber);
    static API: Policy = Policy::fixed_window("api", Quota::per_day(1));
    static PLANNED: Policy = Policy::fixed_window("planned", Quota::per_day(1));
    let limiter = Limiter::new(Memory::new());
    let _ = limiter.check(&API, "ada@example.com").await;
    let _ = limiter.check(&API, "ada@example.com").await;
    for _ in 0..2 {
        let _ = limiter.decide(&[Demand::new(&PLANNED, "ada@example.com").shadow()]).await;
    }
    drop(guard);
    let bytes = log.0.lock().expect("no panic").clone();
    String::from_utf8(bytes).expect("text")
}

#[tokio::test]
async fn decisions_are_told_at_debug_and_keys_never_above() {
    assert_eq!(logged(Level::INFO).await, "");
    let debug = logged(Level::DEBUG).await;
    let lines: Vec<_> = debug.lines().collect();
    assert_eq!(lines.len(), 2, "{debug}");
    assert!(lines[0].contains(r#"DEBUG tollgate::decision: refused rule="api" key="ada@example.com""#), "{debug}");
    assert!(lines[1].contains(r#"refused in the shadow rule="planned""#), "{debug}");
    let trace = logged(Level::TRACE).await;
    assert_eq!(trace.lines().count(), 4, "{trace}");
    assert!(trace.contains(r#"passed rule="api" key="ada@example.com" outcome="allowed""#), "{trace}");
}

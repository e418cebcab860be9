use std::{fmt, sync::Arc, time::Duration};

use tokio::time;

/// The clock by which a holder knows how long it holds.
///
/// On Linux it is the time since the system's start, sleep included (`CLOCK_BOOTTIME`): a machine that was suspended
/// past the end of a lease knows it when it wakes. Elsewhere it is the monotonic clock, which stands still in sleep on
/// some systems. It is never the wall clock.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<dyn Fn() -> Duration + Send + Sync>>);

impl Clock {
    /// Takes the time from a function; for stores whose time is moved by a test.
    pub fn by(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(now)))
    }

    pub(crate) fn now(&self) -> Duration {
        match &self.0 {
            None => since_start(),
            Some(now) => now(),
        }
    }

    /// Sleeps until this clock has reached a time, looking again and again: neither suspend nor a clock that is moved
    /// by hand lets a timer fire.
    pub(crate) async fn reaches(&self, at: Duration) {
        let longest = if self.0.is_some() { LOOK_AT_MOVED } else { LOOK };
        loop {
            let left = at.saturating_sub(self.now());
            if left.is_zero() {
                return;
            }
            time::sleep(left.min(longest)).await;
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Clock(moved)" } else { "Clock(system)" })
    }
}

/// `CLOCK_BOOTTIME` goes on in suspend; `Instant` on Linux does not.
#[cfg(target_os = "linux")]
fn since_start() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(not(target_os = "linux"))]
#[allow(clippy::disallowed_methods)] // Here is where time comes from.
fn since_start() -> Duration {
    static STARTED: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    STARTED.get_or_init(std::time::Instant::now).elapsed()
}

/// Timers do not count suspend, so none is longer.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_AT_MOVED: Duration = Duration::from_millis(5);

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::limit::Micros;

/// Where a store in memory has its time from.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    System(Arc<SystemClock>),
    Manual(ManualClock),
}

impl Clock {
    pub(super) fn system() -> Self {
        Self::System(Arc::new(SystemClock::new(quanta::Clock::new())))
    }

    #[inline]
    pub(super) fn now(&self) -> Micros {
        match self {
            Self::System(clock) => clock.now(),
            Self::Manual(clock) => clock.now(),
        }
    }
}

/// The wall clock at the start, carried on by the monotonic clock: it never steps back.
///
/// The processor's counter is read in place of that clock, for less than half of the time and without holding up what
/// the processor does meanwhile. A counter is not to be trusted for long: it drifts, and starts anew when a machine
/// wakes up or moves to another host. So once in a second of it, and whenever it has gone back, it is compared.
#[derive(Debug)]
pub(super) struct SystemClock {
    counter: Counter,
    started: Instant,
    epoch: Micros,
    /// What makes the counter's microseconds the time; wraps.
    offset: AtomicU64,
    /// What the counter was when it was compared last.
    compared: AtomicU64,
    /// The time that was told then: it stands still rather than step back.
    floor: AtomicU64,
}

/// The processor's counter, in microseconds.
#[derive(Debug)]
struct Counter {
    clock: quanta::Clock,
    /// Microseconds of one count, in parts of 2⁶⁴.
    scale: u64,
}

impl Counter {
    fn new(clock: quanta::Clock) -> Self {
        // Of so many counts that what is lost by rounding is nothing.
        let nanos = u128::from(clock.delta_as_nanos(0, 1 << 40));
        let scale = u64::try_from((nanos << 24) / 1_000).unwrap_or(u64::MAX);
        Self { clock, scale }
    }

    /// Returns its microseconds, by one multiplication.
    #[inline]
    fn micros(&self) -> u64 {
        let scaled = u128::from(self.clock.raw()) * u128::from(self.scale);
        u64::try_from(scaled >> 64).expect("the high half of 128 bits")
    }
}

impl SystemClock {
    #[allow(clippy::disallowed_methods)] // Here is where time comes from.
    fn new(counter: quanta::Clock) -> Self {
        let counter = Counter::new(counter);
        // A machine that believes to be before 1970 counts from there.
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
        let started = Instant::now();
        let counted = counter.micros();
        Self {
            counter,
            started,
            epoch,
            offset: epoch.wrapping_sub(counted).into(),
            compared: counted.into(),
            floor: epoch.into(),
        }
    }

    #[inline]
    fn now(&self) -> Micros {
        let counted = self.counter.micros();
        if counted.wrapping_sub(self.compared.load(Ordering::Acquire)) >= COMPARED_EVERY {
            return self.compare();
        }
        self.told(counted)
    }

    #[inline]
    fn told(&self, counted: u64) -> Micros {
        counted.wrapping_add(self.offset.load(Ordering::Relaxed)).max(self.floor.load(Ordering::Relaxed))
    }

    /// Sets the counter by the monotonic clock, and returns the time.
    #[cold]
    #[inline(never)]
    fn compare(&self) -> Micros {
        let before = self.counter.micros();
        let now = self.epoch + micros(self.started.elapsed());
        let counted = self.counter.micros();
        let mut floor = self.floor.load(Ordering::Relaxed);
        // If the thread was held up in between, nobody knows which time belongs to which count: the next one compares.
        if counted.wrapping_sub(before) < READ_WITHIN {
            // What was told of late is hardly off; what is far off was told to nobody.
            floor = floor.max(self.told(counted).min(now + HARDLY));
            self.floor.store(floor, Ordering::Relaxed);
            self.offset.store(now.wrapping_sub(counted), Ordering::Relaxed);
            self.compared.store(counted, Ordering::Release);
        }
        now.max(floor)
    }
}

/// How often the counter is compared, in its microseconds: one that is off by a hundred parts in a million is so by as
/// many microseconds until then.
const COMPARED_EVERY: u64 = 1_000_000;

/// Within how many microseconds the counter and the clock must be read to belong together.
const READ_WITHIN: u64 = 20;

/// By how many microseconds a counter can be off within a second.
const HARDLY: Micros = 1_000;

/// Moves the time of a [`Memory`](super::Memory) in tests.
///
/// It starts at 2026-01-01 00:00:00 UTC and stands still. Clones move the same time.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Memory;
///
/// let (_memory, clock) = Memory::manual();
/// let before = clock.elapsed_since_epoch();
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.elapsed_since_epoch() - before, Duration::from_secs(60));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START)))
    }

    /// Moves the time forward. A duration counts to the microsecond.
    pub fn advance(&self, by: Duration) {
        self.change(|now| now.saturating_add(micros(by)).min(END));
    }

    /// Steps the time back, as a clock does that is corrected; not below 1970.
    pub fn step_back(&self, by: Duration) {
        self.change(|now| now.saturating_sub(micros(by)));
    }

    /// Returns the time since 1970.
    pub fn elapsed_since_epoch(&self) -> Duration {
        Duration::from_micros(self.now())
    }

    fn now(&self) -> Micros {
        self.0.load(Ordering::Acquire)
    }

    fn change(&self, to: impl Fn(Micros) -> Micros) {
        // `update` would read better and is newer than the oldest compiler that we support.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(to(now)));
    }
}

/// Returns whole microseconds, without the detour by 128 bits.
pub(super) fn micros(time: Duration) -> Micros {
    time.as_secs().saturating_mul(1_000_000).saturating_add(time.subsec_micros().into()).min(END)
}

/// 2026-01-01 00:00:00 UTC.
const START: Micros = 1_767_225_600_000_000;

/// The year 2255, up to which microseconds since 1970 are below 2⁵³.
const END: Micros = 1 << 53;

#[cfg(test)]
mod tests {
    use super::*;

    /// What the monotonic clock says.
    fn truth(clock: &SystemClock) -> Micros {
        clock.epoch + micros(clock.started.elapsed())
    }

    #[test]
    fn the_counter_tells_the_time_of_the_monotonic_clock() {
        let clock = SystemClock::new(quanta::Clock::new());
        // What a machine under load is held up between two readings.
        assert!(truth(&clock).abs_diff(clock.now()) < 50_000);
    }

    #[test]
    fn a_counter_that_jumps_or_starts_anew_is_compared() {
        const HOURS: Duration = Duration::from_secs(10 * 3_600);
        let (counter, mock) = quanta::Clock::mock();
        mock.increment(HOURS);
        let clock = SystemClock::new(counter);
        mock.increment(HOURS);
        assert!(truth(&clock).abs_diff(clock.now()) < 50_000, "gone ahead");
        mock.decrement(HOURS + HOURS);
        assert!(truth(&clock).abs_diff(clock.now()) < 50_000, "started anew");
        mock.increment(Duration::from_millis(1_001));
        assert!(truth(&clock).abs_diff(clock.now()) < 50_000, "went on");
    }

    #[test]
    fn time_never_steps_back_when_a_fast_counter_is_set_back() {
        let (counter, mock) = quanta::Clock::mock();
        let clock = SystemClock::new(counter);
        let (mut last, mut counted, mut told_late) = (clock.now(), Duration::ZERO, 0);
        let mut compared = (clock.started.elapsed(), counted);
        for i in 0..20_000 {
            // A tenth too fast, and compared so often that it is hardly off, however long this is held up.
            let elapsed = clock.started.elapsed();
            let hardly = compared.1 + (elapsed - compared.0) + Duration::from_micros(HARDLY / 2);
            let fast = (elapsed * 11 / 10).min(hardly);
            mock.increment(fast.saturating_sub(counted));
            counted = counted.max(fast);
            let now = if i % 100 == 0 { clock.compare() } else { clock.now() };
            if i % 100 == 0 {
                compared = (clock.started.elapsed(), counted);
            }
            assert!(now >= last, "{now} after {last}");
            told_late += u32::from(now > truth(&clock));
            last = now;
        }
        assert!(told_late > 0, "the counter was never ahead");
    }
}

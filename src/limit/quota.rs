use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use crate::error::Error;

/// Units per window: `100/min`, `10/s`, `5/15m`.
///
/// `Quota::per_second(100)` is one hundred per second. A limit is 1 to 2³¹ units, a window a whole number of
/// milliseconds from 1 ms to 366 days. What a quota means at a window's edge is its
/// [`Algorithm`](super::Algorithm)'s to say.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
///
/// const PER_CLIENT: Quota = Quota::per_minute(100);
/// let logins: Quota = "5/15m".parse()?;
///
/// assert_eq!(PER_CLIENT.to_string(), "100/min");
/// assert_eq!(logins.window(), Duration::from_secs(900));
/// assert!("0/min".parse::<Quota>().is_err());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u32,
    window_ms: u64,
}

impl Quota {
    /// Allows `limit` units per second.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above 2³¹. Use [`Quota::new`] for numbers from outside.
    pub const fn per_second(limit: u64) -> Self {
        Self::expect(limit, SECOND)
    }

    /// Allows `limit` units per minute.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above 2³¹. Use [`Quota::new`] for numbers from outside.
    pub const fn per_minute(limit: u64) -> Self {
        Self::expect(limit, MINUTE)
    }

    /// Allows `limit` units per hour.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above 2³¹. Use [`Quota::new`] for numbers from outside.
    pub const fn per_hour(limit: u64) -> Self {
        Self::expect(limit, HOUR)
    }

    /// Allows `limit` units per day of 24 hours.
    ///
    /// # Panics
    ///
    /// If `limit` is zero or above 2³¹. Use [`Quota::new`] for numbers from outside.
    pub const fn per_day(limit: u64) -> Self {
        Self::expect(limit, DAY)
    }

    /// Allows `limit` units per `window`.
    ///
    /// # Errors
    ///
    /// If `limit` is zero or above 2³¹, or `window` is not a whole number of milliseconds from 1 ms to 366 days.
    pub fn new(limit: u64, window: Duration) -> Result<Self, Error> {
        let window_ms = match u64::try_from(window.as_millis()) {
            Ok(ms) if Duration::from_millis(ms) == window => ms,
            _ => return Err(Error::invalid(format!("window of {window:?}: {WINDOWS}"))),
        };
        match Self::checked(limit, window_ms) {
            Ok(quota) => Ok(quota),
            Err(Wrong::Limit) => Err(Error::invalid(format!("limit of {limit}: {LIMITS}"))),
            Err(Wrong::Window) => Err(Error::invalid(format!("window of {window:?}: {WINDOWS}"))),
        }
    }

    /// Returns the number of units, at least 1.
    pub const fn limit(self) -> u64 {
        self.limit as u64
    }

    /// Returns the length of the window, at least 1 ms.
    pub const fn window(self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// Returns one of so many parts, rounded up.
    pub(crate) fn share(self, parts: NonZeroU32) -> Self {
        Self { limit: self.limit.div_ceil(parts.get()), ..self }
    }

    pub(crate) const fn limit_u32(self) -> u32 {
        self.limit
    }

    pub(crate) const fn window_ms(self) -> u64 {
        self.window_ms
    }

    /// Returns the window as it is written: how many of which unit, none for one.
    pub(crate) const fn window_in_words(self) -> (Option<u64>, &'static str) {
        match self.window_ms {
            DAY => (None, "day"),
            HOUR => (None, "hour"),
            MINUTE => (None, "min"),
            SECOND => (None, "s"),
            1 => (None, "ms"),
            ms if ms % DAY == 0 => (Some(ms / DAY), "d"),
            ms if ms % HOUR == 0 => (Some(ms / HOUR), "h"),
            ms if ms % MINUTE == 0 => (Some(ms / MINUTE), "m"),
            ms if ms % SECOND == 0 => (Some(ms / SECOND), "s"),
            ms => (Some(ms), "ms"),
        }
    }

    const fn expect(limit: u64, window_ms: u64) -> Self {
        match Self::checked(limit, window_ms) {
            Ok(quota) => quota,
            Err(_) => panic!("a quota's limit must be 1 to 2147483648 units"),
        }
    }

    const fn checked(limit: u64, window_ms: u64) -> Result<Self, Wrong> {
        if limit == 0 || limit > MAX_UNITS as u64 {
            return Err(Wrong::Limit);
        }
        if window_ms == 0 || window_ms > 366 * DAY {
            return Err(Wrong::Window);
        }
        // The bound above makes this exact.
        #[allow(clippy::cast_possible_truncation)]
        let limit = limit as u32;
        Ok(Self { limit, window_ms })
    }
}

enum Wrong {
    Limit,
    Window,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.window_in_words() {
            (Some(count), unit) => write!(f, "{}/{count}{unit}", self.limit),
            (None, unit) => write!(f, "{}/{unit}", self.limit),
        }
    }
}

impl FromStr for Quota {
    type Err = Error;

    /// Reads a count, `/` or `per`, and a window: `100/min`, `10/s`, `1000/day`, `5/15m`, `1_000 per hour`,
    /// `3 / 1h30m`, `20 requests per second`. Case and spaces do not matter.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what: &str| Error::invalid(format!("quota `{text}`: {what}; {EXAMPLES}"));
        let lower = text.trim().to_ascii_lowercase();
        let (count, window) = split_once_by(&lower, &["/", " per ", " every ", " in "])
            .ok_or_else(|| wrong("write a count, a slash and a window"))?;
        let limit = read_count(count).map_err(&wrong)?;
        let window_ms = window_ms(window).map_err(&wrong)?;
        match Self::checked(limit, window_ms) {
            Ok(quota) => Ok(quota),
            Err(Wrong::Limit) => Err(wrong(LIMITS)),
            Err(Wrong::Window) => Err(wrong(WINDOWS)),
        }
    }
}

fn split_once_by<'a>(text: &'a str, separators: &[&str]) -> Option<(&'a str, &'a str)> {
    separators.iter().find_map(|separator| text.split_once(separator))
}

fn read_count(text: &str) -> Result<u64, &'static str> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '_')).unwrap_or(text.len());
    let (digits, noun) = text.split_at(end);
    match noun.trim() {
        "" | "request" | "requests" | "req" | "reqs" | "hit" | "hits" | "unit" | "units" | "token" | "tokens"
        | "call" | "calls" => {}
        _ => return Err("the count must be a whole number"),
    }
    let digits: String = digits.chars().filter(|c| *c != '_').collect();
    if digits.is_empty() {
        return Err("the count must be a whole number");
    }
    // Digits that do not parse are too many of them.
    Ok(digits.parse().unwrap_or(u64::MAX))
}

/// Reads a time: `min`, `15m`, `1h30m` or `2 hours` into milliseconds.
pub(crate) fn window_ms(text: &str) -> Result<u64, &'static str> {
    let mut rest = text.trim();
    let mut total: u64 = 0;
    let mut parts = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '_')).unwrap_or(rest.len());
        let (digits, tail) = rest.split_at(end);
        let tail = tail.trim_start();
        let end = tail.find(|c: char| !c.is_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        rest = tail.trim_start();
        let count: u64 = match digits {
            // Only a whole window may leave its count out: `/min`, not `/1hm`.
            "" if parts == 0 && rest.is_empty() => 1,
            "" => return Err(UNITS),
            digits => digits.replace('_', "").parse().map_err(|_| WINDOWS)?,
        };
        total = total.saturating_add(count.saturating_mul(unit_ms(unit)?));
        parts += 1;
    }
    if parts == 0 { Err("the window is missing") } else { Ok(total) }
}

fn unit_ms(unit: &str) -> Result<u64, &'static str> {
    Ok(match unit {
        "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
        "m" | "min" | "mins" | "minute" | "minutes" => MINUTE,
        "h" | "hr" | "hrs" | "hour" | "hours" => HOUR,
        "d" | "day" | "days" => DAY,
        "w" | "week" | "weeks" => 7 * DAY,
        "us" | "µs" | "ns" => return Err(WINDOWS),
        "mo" | "month" | "months" => return Err("months differ in length: write 30d"),
        "y" | "year" | "years" => return Err("years differ in length: write 365d"),
        _ => return Err(UNITS),
    })
}

/// The most units that a limit, a burst or a cost may have.
pub(crate) const MAX_UNITS: u32 = 1 << 31;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

const LIMITS: &str = "a limit is 1 to 2147483648 units";
const WINDOWS: &str = "a window is a whole number of milliseconds from 1 ms to 366 days";
const UNITS: &str = "the window's unit must be one of ms, s, min, h, day, week";
const EXAMPLES: &str = "for example 100/min, 10/s, 1000/day or 5/15m";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_read() {
        for (text, limit, ms) in [
            ("100/min", 100, MINUTE),
            ("10/s", 10, SECOND),
            ("1000/day", 1000, DAY),
            ("5/15m", 5, 15 * MINUTE),
            ("  7 / 2 Hours ", 7, 2 * HOUR),
            ("1_000 per hour", 1000, HOUR),
            ("20 requests per second", 20, SECOND),
            ("20 req/sec", 20, SECOND),
            ("3 every 10 minutes", 3, 10 * MINUTE),
            ("3/1h30m", 3, 90 * MINUTE),
            ("3/1h 30m", 3, 90 * MINUTE),
            ("1/250ms", 1, 250),
            ("2/week", 2, 7 * DAY),
            ("9/D", 9, DAY),
            ("2147483648/366d", 1 << 31, 366 * DAY),
        ] {
            let quota: Quota = text.parse().expect(text);
            assert_eq!((quota.limit(), quota.window_ms()), (limit, ms), "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for ms in [1, 999, SECOND, 90 * SECOND, MINUTE, 15 * MINUTE, HOUR, 36 * HOUR, DAY, 7 * DAY, 366 * DAY] {
            let quota = Quota::checked(42, ms).ok().expect("in range");
            assert_eq!(quota.to_string().parse::<Quota>().expect("printed"), quota, "{quota}");
        }
    }

    #[test]
    fn a_wrong_quota_says_what_is_accepted() {
        for (text, hint) in [
            ("", "a slash"),
            ("100", "a slash"),
            ("/min", "whole number"),
            ("1.5/s", "whole number"),
            ("-1/s", "whole number"),
            ("ten/s", "whole number"),
            ("10k/s", "whole number"),
            ("0/min", "1 to 2147483648"),
            ("2147483649/s", "1 to 2147483648"),
            ("99999999999999999999999/s", "1 to 2147483648"),
            ("1/0s", "1 ms to 366 days"),
            ("1/367d", "1 ms to 366 days"),
            ("1/99999999999999999999s", "1 ms to 366 days"),
            ("1/18446744073709551615w", "1 ms to 366 days"),
            ("1/500us", "1 ms to 366 days"),
            ("1/", "window is missing"),
            ("1/fortnight", "ms, s, min"),
            ("1/5", "ms, s, min"),
            ("1/1hm", "ms, s, min"),
            ("1/0.5s", "ms, s, min"),
            ("1/s/s", "ms, s, min"),
            ("1/month", "30d"),
            ("1/year", "365d"),
            ("1/½s", "ms, s, min"),
        ] {
            let error = text.parse::<Quota>().expect_err(text);
            let said = error.to_string();
            assert!(error.is_invalid() && said.contains(hint) && said.contains("100/min"), "{text}: {said}");
        }
    }

    #[test]
    fn a_window_is_whole_milliseconds() {
        for window in [Duration::ZERO, Duration::from_micros(999), Duration::from_micros(1500), Duration::MAX] {
            assert!(Quota::new(1, window).expect_err("out of range").is_invalid());
        }
        assert!(Quota::new(0, Duration::from_secs(1)).is_err());
        assert!(Quota::new(u64::MAX, Duration::from_secs(1)).is_err());
        assert!(Quota::new(1 << 31, Duration::from_millis(1)).is_ok());
    }
}

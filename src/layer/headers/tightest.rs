//! Fields that tell of one policy only: those of drafts 6 and 7, and the `X-RateLimit` family.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    RATE_LIMIT, RATE_LIMIT_POLICY,
    dialect::{Dialect, Dialects},
    items::items,
};
use crate::{
    layer::text::{seconds_up, value},
    limit::{Outcome, Quota},
};

/// The policy that has least left, as these fields tell it; on a tie the one of the longer window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tightest {
    limit: u64,
    remaining: u64,
    /// The time until there is one unit more.
    next: Duration,
}

impl Tightest {
    pub(super) fn of(outcomes: &[Outcome]) -> Option<Self> {
        let tightness = |outcome: &&Outcome| (outcome.remaining(), u64::MAX - outcome.quota().window_ms());
        let outcome = outcomes.iter().min_by_key(tightness)?;
        let limit = outcome.quota().limit();
        // A burst may be above the limit, and clients reckon with what is left of that.
        let remaining = outcome.remaining().min(limit);
        Some(Self { limit, remaining, next: outcome.next_unit_in() })
    }

    /// Writes the fields, in the place of looser ones of an inner layer. `now` is the time since 1970.
    pub(super) fn write(self, dialects: Dialects, now: impl Fn() -> Duration, headers: &mut HeaderMap) {
        let reset = seconds_up(self.next);
        if dialects.has(Dialect::Draft07) && self.is_tighter_than(headers.get(RATE_LIMIT), dictionary_remaining) {
            let text = value(DICTIONARY, |text| {
                text.raw("limit=");
                text.integer(self.limit);
                text.raw(", remaining=");
                text.integer(self.remaining);
                text.raw(", reset=");
                text.integer(reset);
            });
            headers.insert(RATE_LIMIT, text);
        }
        if dialects.has(Dialect::Draft06) {
            self.write_three([RATE_LIMIT_LIMIT, RATE_LIMIT_REMAINING, RATE_LIMIT_RESET], reset, headers);
        }
        let names = [X_RATE_LIMIT_LIMIT, X_RATE_LIMIT_REMAINING, X_RATE_LIMIT_RESET];
        if dialects.has(Dialect::XRateLimit) {
            self.write_three(names, reset, headers);
        } else if dialects.has(Dialect::XRateLimitEpoch) {
            self.write_three(names, seconds_up(now() + self.next), headers);
        }
    }

    fn write_three(self, names: [HeaderName; 3], reset: u64, headers: &mut HeaderMap) {
        if self.is_tighter_than(headers.get(&names[1]), number) {
            for (name, number) in names.into_iter().zip([self.limit, self.remaining, reset]) {
                headers.insert(name, HeaderValue::from(number));
            }
        }
    }

    /// Returns true if nothing is told yet, or something that leaves more. What cannot be read is left alone.
    fn is_tighter_than(self, told: Option<&HeaderValue>, read: fn(&HeaderValue) -> Option<u64>) -> bool {
        told.is_none_or(|told| read(told).is_some_and(|remaining| self.remaining < remaining))
    }
}

/// Adds `RateLimit-Policy` as drafts 6 and 7 have it: a List of Integers, none of them twice.
pub(super) fn write_policies(policies: &HeaderValue, headers: &mut HeaderMap) {
    let others: Vec<&HeaderValue> = headers.get_all(RATE_LIMIT_POLICY).iter().collect();
    if !others.iter().all(|line| items(line).all(|item| item.integer().is_some())) {
        return;
    }
    let is_new = |limit| !others.iter().any(|line| items(line).any(|item| item.integer() == limit));
    let new: Vec<&[u8]> = items(policies).filter(|item| is_new(item.integer())).map(|item| item.text).collect();
    if !new.is_empty() {
        let line = HeaderValue::from_bytes(&new.join(&b", "[..])).expect("parts of a value are one");
        headers.append(RATE_LIMIT_POLICY, line);
    }
}

/// Returns the value of `RateLimit-Policy` as drafts 6 and 7 have it. There windows must be told, in whole seconds.
pub(super) fn policies(quotas: impl Iterator<Item = Quota> + Clone) -> HeaderValue {
    let mut told: Vec<u64> = Vec::new();
    value(quotas.clone().count() * DICTIONARY, |text| {
        for quota in quotas {
            if told.contains(&quota.limit()) {
                continue;
            }
            if !told.is_empty() {
                text.raw(", ");
            }
            told.push(quota.limit());
            text.integer(quota.limit());
            text.raw(";w=");
            text.integer(seconds_up(quota.window()));
        }
    })
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}

/// Reads the member `remaining` of a Dictionary.
fn dictionary_remaining(value: &HeaderValue) -> Option<u64> {
    let members = value.to_str().ok()?.split(',');
    let mut remaining = members.filter_map(|member| member.trim().strip_prefix("remaining="));
    remaining.next_back()?.parse().ok()
}

/// The most bytes of a Dictionary with three Integers.
const DICTIONARY: usize = 80;

const RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Policy;

    fn outcome(limit: u64, window: &str, remaining: u64, next_ms: u64) -> Outcome {
        let quota: Quota = format!("{limit}/{window}").parse().expect("a quota");
        let policy = Policy::fixed_window("r", quota);
        Outcome::pass(&policy, remaining).with_times(Duration::from_millis(next_ms), Duration::ZERO)
    }

    fn written(outcomes: &[Outcome], dialect: Dialect, headers: &mut HeaderMap) -> Vec<String> {
        let now = || Duration::from_millis(1_700_000_000_700);
        Tightest::of(outcomes).expect("some").write(Dialects::one(dialect), now, headers);
        let mut all: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("text"))).collect();
        all.sort();
        all
    }

    #[test]
    fn the_tightest_policy_is_told_in_each_dialect() {
        let outcomes = [outcome(100, "min", 9, 1_000), outcome(5_000, "day", 7, 1_300), outcome(10, "s", 7, 200)];
        for (dialect, fields) in [
            (Dialect::Draft07, &["ratelimit: limit=5000, remaining=7, reset=2"][..]),
            (Dialect::Draft06, &["ratelimit-limit: 5000", "ratelimit-remaining: 7", "ratelimit-reset: 2"]),
            (Dialect::XRateLimit, &["x-ratelimit-limit: 5000", "x-ratelimit-remaining: 7", "x-ratelimit-reset: 2"]),
            (
                Dialect::XRateLimitEpoch,
                // 1700000000.7 and 1.3 seconds: up only where there is something over.
                &["x-ratelimit-limit: 5000", "x-ratelimit-remaining: 7", "x-ratelimit-reset: 1700000002"],
            ),
        ] {
            assert_eq!(written(&outcomes, dialect, &mut HeaderMap::new()), fields);
        }
    }

    #[test]
    fn no_more_is_left_than_the_limit() {
        let fields = written(&[outcome(10, "s", 50, 0)], Dialect::Draft06, &mut HeaderMap::new());
        assert_eq!(fields, ["ratelimit-limit: 10", "ratelimit-remaining: 10", "ratelimit-reset: 0"]);
    }

    #[test]
    fn of_nested_layers_the_tighter_is_told() {
        for (inner, outer, told) in [(3, 5, 3), (5, 3, 3), (4, 4, 4)] {
            for dialect in [Dialect::Draft07, Dialect::Draft06, Dialect::XRateLimit, Dialect::XRateLimitEpoch] {
                let mut headers = HeaderMap::new();
                let of = |remaining| outcome(100 + remaining, "min", remaining, 1_000);
                written(&[of(inner)], dialect, &mut headers);
                let all = written(&[of(outer)], dialect, &mut headers).join("; ");
                assert!(
                    all.contains(&format!("imit: {}", 100 + told)) || all.contains(&format!("limit={}", 100 + told)),
                    "{all}"
                );
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        for (name, foreign, dialect) in [
            ("ratelimit", r#""a";r=9;t=1"#, Dialect::Draft07),
            ("ratelimit-remaining", "many", Dialect::Draft06),
            ("x-ratelimit-remaining", "10, 20", Dialect::XRateLimit),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(foreign));
            assert_eq!(written(&[outcome(9, "s", 0, 1)], dialect, &mut headers), [format!("{name}: {foreign}")]);
        }
    }

    #[test]
    fn policies_are_integers_and_none_is_there_twice() {
        let quotas = ["100/min", "5/1500ms", "100/day", "7/s"].map(|quota| quota.parse().expect("a quota"));
        let own = policies(quotas.into_iter());
        assert_eq!(own, "100;w=60, 5;w=2, 7;w=1");
        for (inner, lines) in [
            (&[][..], &["100;w=60, 5;w=2, 7;w=1"][..]),
            (&["7;w=9, 8"], &["7;w=9, 8", "100;w=60, 5;w=2"]),
            (&["5", "7", "100"], &["5", "7", "100"]),
            (&[r#""a";q=1"#], &[r#""a";q=1"#]),
        ] {
            let mut headers = HeaderMap::new();
            for line in inner {
                headers.append(RATE_LIMIT_POLICY, HeaderValue::from_static(line));
            }
            write_policies(&own, &mut headers);
            assert!(headers.get_all(RATE_LIMIT_POLICY).iter().eq(lines), "{headers:?}");
        }
    }
}

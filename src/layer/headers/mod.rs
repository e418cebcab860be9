mod dialect;
mod items;
mod lists;
mod partition;
mod tightest;

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Response, header};

pub use self::dialect::Dialect;
pub(super) use self::{dialect::Dialects, lists::write_concurrency, partition::PartitionKey};
use self::{lists::Lists, tightest::Tightest};
use crate::limit::{Decision, Outcome, Policy, Quota};

/// The fields that pages from other origins must be allowed to read: for `Access-Control-Expose-Headers`, since
/// browsers show them none of these else.
///
/// Has the fields of all dialects, and those of gRPC-Web. `*` would not do for requests with credentials.
///
/// ```
/// use tollgate::layer::EXPOSED_HEADERS;
///
/// // CorsLayer::new().expose_headers(EXPOSED_HEADERS), outside of the limit
/// assert!(EXPOSED_HEADERS.iter().any(|name| name == "retry-after"));
/// ```
pub const EXPOSED_HEADERS: [HeaderName; 13] = [
    header::RETRY_AFTER,
    RATE_LIMIT,
    RATE_LIMIT_POLICY,
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-message"),
    HeaderName::from_static("grpc-status-details-bin"),
    HeaderName::from_static("grpc-retry-pushback-ms"),
];

/// Adds the `RateLimit` and `RateLimit-Policy` fields of a decision to a response's headers, as of draft 11.
///
/// For handlers and `axum::middleware::from_fn`; a [`RateLimitLayer`](super::RateLimitLayer) does it by itself.
/// What an inner layer has written stays in front. A decision made without the store adds nothing.
pub fn write_fields(decision: &Decision, headers: &mut HeaderMap) {
    let enforced: Vec<Outcome> = decision.enforced().cloned().collect();
    if let Some(fields) = Fields::of(&enforced, Dialects::one(Dialect::Draft11), None, None) {
        fields.write(headers);
    }
}

/// The values of the fields, written when it was decided.
#[derive(Debug)]
pub(super) struct Fields {
    lists: Option<Lists>,
    /// Boxed, since few want it and each request would have to carry it.
    tightest: Option<Box<OfTightest>>,
    unless_cacheable: bool,
}

#[derive(Debug)]
struct OfTightest {
    dialects: Dialects,
    tightest: Tightest,
    policies: Option<HeaderValue>,
}

impl Fields {
    /// Writes the fields, if there is anything to tell; `policies` is the value of `RateLimit-Policy` for these
    /// outcomes, if that is known.
    pub(super) fn of(
        outcomes: &[Outcome],
        dialects: Dialects,
        policies: Option<&HeaderValue>,
        partitions: Option<&[PartitionKey]>,
    ) -> Option<Self> {
        if outcomes.is_empty() || dialects.has(Dialect::None) {
            return None;
        }
        let of_outcomes = outcomes.iter().map(|outcome| (outcome.policy(), outcome.quota()));
        let policies = policies.cloned().or_else(|| policy_value(of_outcomes, dialects));
        let tightest = dialects.tell_the_tightest().then(|| of_tightest(outcomes, dialects, policies.clone()));
        let lists = policies
            .filter(|_| dialects.has(Dialect::Draft11))
            .map(|policies| Lists { policies, states: lists::states(outcomes, partitions) });
        Some(Self { lists, tightest: tightest.flatten().map(Box::new), unless_cacheable: false })
    }

    /// Leaves them out of responses that shared caches may keep.
    pub(super) fn unless_cacheable(self) -> Self {
        Self { unless_cacheable: true, ..self }
    }

    /// Adds the fields to a response that has room for them: no redirect, since a client may wait for its time before it
    /// follows, no 304, which would put old numbers into a cache (RFC 9111, section 3.2), and no switch of protocols.
    pub(super) fn write_to<B>(self, response: &mut Response<B>) {
        let status = response.status();
        let cacheable = self.unless_cacheable && is_shared_cacheable(response.headers());
        if !status.is_redirection() && !status.is_informational() && !cacheable {
            self.write(response.headers_mut());
        }
    }

    /// Adds the fields to others.
    fn write(self, headers: &mut HeaderMap) {
        if let Some(lists) = self.lists {
            lists.write(headers);
        }
        if let Some(of) = self.tightest {
            if let Some(policies) = &of.policies {
                tightest::write_policies(policies, headers);
            }
            of.tightest.write(of.dialects, calendar, headers);
        }
    }
}

/// Returns true if a cache that many share may keep the response (RFC 9111, sections 5.2.2.9 and 5.2.2.10).
fn is_shared_cacheable(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    let directives = lines.flat_map(|line| line.split(','));
    let mut names = directives.map(|directive| directive.split('=').next().unwrap_or_default().trim());
    names.any(|name| name.eq_ignore_ascii_case("public") || name.eq_ignore_ascii_case("s-maxage"))
}

/// Returns true if a response has a field of any dialect.
pub(super) fn tells_where_it_stands(headers: &HeaderMap) -> bool {
    EXPOSED_HEADERS.iter().any(|name| name.as_str().contains("ratelimit") && headers.contains_key(name))
}

#[cold]
fn of_tightest(outcomes: &[Outcome], dialects: Dialects, policies: Option<HeaderValue>) -> Option<OfTightest> {
    let policies = policies.filter(|_| dialects.count_by_integers());
    Some(OfTightest { dialects, tightest: Tightest::of(outcomes)?, policies })
}

/// Returns the value of `RateLimit-Policy` for these policies; none where no dialect has it.
pub(super) fn policies_value<'a>(
    policies: impl Iterator<Item = &'a Policy> + Clone,
    dialects: Dialects,
) -> Option<HeaderValue> {
    policy_value(policies.map(|policy| (policy.name(), policy.quota())), dialects)
}

fn policy_value<'a>(
    policies: impl Iterator<Item = (&'a str, Quota)> + Clone,
    dialects: Dialects,
) -> Option<HeaderValue> {
    if dialects.has(Dialect::Draft11) {
        Some(lists::policies(policies))
    } else if dialects.count_by_integers() {
        Some(tightest::policies(policies.map(|(_, quota)| quota)))
    } else {
        None
    }
}

/// Returns the time since 1970.
#[allow(
    clippy::disallowed_methods,
    reason = "a time that is told to clients is one of the calendar, and decides nothing"
)]
fn calendar() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &'static str, remaining: u64, next: Duration) -> Outcome {
        let policy = Policy::fixed_window(name, Quota::per_minute(100));
        Outcome::pass(&policy, remaining).with_times(next, Duration::from_secs(60))
    }

    fn written(headers: &HeaderMap, field: &HeaderName) -> Vec<String> {
        headers.get_all(field).iter().map(|value| value.to_str().expect("text").to_owned()).collect()
    }

    #[test]
    fn the_fields_are_those_of_the_draft() {
        let mut headers = HeaderMap::new();
        let decision = Decision::new([
            outcome("burst", 19, Duration::from_millis(1)),
            outcome("daily", 0, Duration::from_secs(36_000)),
        ]);
        write_fields(&decision, &mut headers);
        assert_eq!(written(&headers, &RATE_LIMIT_POLICY), [r#""burst";q=100;w=60, "daily";q=100;w=60"#]);
        assert_eq!(written(&headers, &RATE_LIMIT), [r#""burst";r=19;t=1, "daily";r=0;t=36000"#]);
    }

    #[test]
    fn an_outer_layer_adds_behind_and_never_a_name_twice() {
        let mut headers = HeaderMap::new();
        headers.append(RATE_LIMIT_POLICY, HeaderValue::from_static(r#""in";q=1, "a\"b" ; c="out""#));
        headers.append(RATE_LIMIT, HeaderValue::from_static(r#""in";r=0"#));
        let decision = Decision::new([outcome("in", 1, Duration::ZERO), outcome("out", 2, Duration::ZERO)]);
        write_fields(&decision, &mut headers);
        assert_eq!(written(&headers, &RATE_LIMIT_POLICY)[1..], [r#""out";q=100;w=60"#]);
        assert_eq!(written(&headers, &RATE_LIMIT)[1..], [r#""out";r=2;t=0"#]);
        write_fields(&decision, &mut headers);
        assert_eq!(written(&headers, &RATE_LIMIT).len(), 2);
    }

    #[test]
    fn fields_of_another_dialect_are_left_alone() {
        for (field, value) in [(RATE_LIMIT, "limit=100, remaining=50, reset=5"), (RATE_LIMIT_POLICY, "100;w=60")] {
            let mut headers = HeaderMap::new();
            headers.insert(&field, HeaderValue::from_static(value));
            write_fields(&Decision::new([outcome("ours", 1, Duration::ZERO)]), &mut headers);
            assert_eq!(written(&headers, &field), [value]);
        }
    }

    #[test]
    fn a_window_of_parts_of_a_second_has_no_w() {
        let policy = Policy::fixed_window("quick", "5/1500ms".parse().expect("a quota"));
        assert_eq!(
            policies_value([&policy].into_iter(), Dialects::one(Dialect::Draft11)).expect("a value"),
            r#""quick";q=5"#
        );
    }

    #[test]
    fn the_longest_items_fit() {
        let name = "n".repeat(64);
        let policy = Policy::new(name.clone(), Quota::per_day(2_147_483_648), crate::limit::Algorithm::FixedWindow)
            .expect("a policy");
        let outcome = Outcome::pass(&policy, u64::MAX).with_times(Duration::MAX, Duration::MAX);
        let mut headers = HeaderMap::new();
        write_fields(&Decision::new(vec![outcome; 40]), &mut headers);
        let item = format!(r#""{name}";r=4294967295;t="#);
        assert_eq!(written(&headers, &RATE_LIMIT)[0].matches(&item).count(), 40);
    }
}

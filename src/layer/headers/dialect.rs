use std::{fmt, str::FromStr};

use crate::error::Error;

/// Which fields tell clients where they stand.
///
/// No client that was measured reads `RateLimit` of draft 8 or later by itself, so nothing is lost by a default that is
/// the last word of the standard: what all obey is `Retry-After`, and refusals have it in every dialect. Choose another,
/// or [several](super::super::RateLimitLayer::dialects), for clients of yours that read older fields.
///
/// It is written, and read, as text: `"draft-11".parse()`.
///
/// ```
/// use tollgate::{Limiter, Memory, RateLimitLayer, layer::Dialect};
///
/// let layer = RateLimitLayer::new(Limiter::new(Memory::new())).dialect(Dialect::XRateLimit);
/// assert_eq!("x-ratelimit".parse::<Dialect>()?, Dialect::XRateLimit);
/// # let _ = layer;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `RateLimit: "name";r=59;t=1` and `RateLimit-Policy: "name";q=60;w=60`, Lists with one item a policy, as of
    /// draft-ietf-httpapi-ratelimit-headers-11 (`draft-11`).
    #[default]
    Draft11,
    /// `RateLimit: limit=60, remaining=59, reset=1` of the tightest policy, and `RateLimit-Policy: 60;w=60`, as of draft 7
    /// (`draft-07`).
    Draft07,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` of the tightest policy, and `RateLimit-Policy: 60;w=60`, as
    /// of draft 6 (`draft-06`).
    Draft06,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` of the tightest policy; the last in seconds from
    /// now, rounded up (`x-ratelimit`).
    XRateLimit,
    /// The same with `X-RateLimit-Reset` as a time: seconds since 1970 in UTC, rounded up (`x-ratelimit-epoch`).
    XRateLimitEpoch,
    /// No such fields (`none`). Refusals still have `Retry-After`.
    None,
}

const NAMES: [(Dialect, &str); 6] = [
    (Dialect::Draft11, "draft-11"),
    (Dialect::Draft07, "draft-07"),
    (Dialect::Draft06, "draft-06"),
    (Dialect::XRateLimit, "x-ratelimit"),
    (Dialect::XRateLimitEpoch, "x-ratelimit-epoch"),
    (Dialect::None, "none"),
];

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = NAMES.iter().find(|(dialect, _)| dialect == self);
        f.write_str(known.map_or("none", |(_, name)| name))
    }
}

impl FromStr for Dialect {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = NAMES.iter().find(|(_, name)| *name == text);
        known.map(|(dialect, _)| *dialect).ok_or_else(|| {
            let names: Vec<_> = NAMES.iter().map(|(_, name)| format!("`{name}`")).collect();
            Error::invalid(format!("dialect `{}` is not known; write one of {}", text.escape_debug(), names.join(", ")))
        })
    }
}

/// The dialects that a layer speaks at once: none of them gives a field another meaning than the others do.
#[derive(Clone, Copy, Debug)]
pub(in crate::layer) struct Dialects(u8);

impl Dialects {
    /// Takes them together, if that can be.
    pub(in crate::layer) fn of(dialects: impl IntoIterator<Item = Dialect>) -> Result<Self, Error> {
        let mut all = Self(0);
        for dialect in dialects {
            all.0 |= bit(dialect);
        }
        if all.0 == 0 {
            return Err(Error::invalid("no dialect; write `none` for no fields"));
        }
        for (one, other, what) in CLASHES {
            if all.has(*one) && all.has(*other) {
                return Err(Error::invalid(format!("dialects `{one}` and `{other}` together: {what}")));
            }
        }
        if all.has(Dialect::None) && all.0 != bit(Dialect::None) {
            return Err(Error::invalid("dialect `none` and another: write `none` alone, or leave it out"));
        }
        Ok(all)
    }

    pub(in crate::layer) const fn one(dialect: Dialect) -> Self {
        Self(bit(dialect))
    }

    pub(in crate::layer) const fn has(self, dialect: Dialect) -> bool {
        self.0 & bit(dialect) != 0
    }

    /// Returns true if one of them has `RateLimit-Policy` as of draft 7 and before.
    pub(super) const fn count_by_integers(self) -> bool {
        self.has(Dialect::Draft07) || self.has(Dialect::Draft06)
    }

    /// Returns true if one of them tells of one policy only.
    pub(super) const fn tell_the_tightest(self) -> bool {
        self.0 & !(bit(Dialect::Draft11) | bit(Dialect::None)) != 0
    }
}

const fn bit(dialect: Dialect) -> u8 {
    match dialect {
        Dialect::None => 1,
        Dialect::Draft11 => 2,
        Dialect::Draft07 => 4,
        Dialect::Draft06 => 8,
        Dialect::XRateLimit => 16,
        Dialect::XRateLimitEpoch => 32,
    }
}

/// Pairs that have a field in common, of another type (RFC 9651, section 4.2: one wrong member spoils the whole field).
const CLASHES: &[(Dialect, Dialect, &str)] = &[
    (Dialect::Draft11, Dialect::Draft07, "both have `RateLimit`, of another form; write one of them"),
    (Dialect::Draft11, Dialect::Draft06, "both have `RateLimit-Policy`, of another form; write one of them"),
    (
        Dialect::XRateLimit,
        Dialect::XRateLimitEpoch,
        "both have `X-RateLimit-Reset`, of another meaning; write one of them",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_combine_where_no_field_would_have_two_meanings() {
        use Dialect::*;
        for legal in [
            &[Draft11][..],
            &[Draft11, XRateLimit],
            &[Draft11, XRateLimitEpoch],
            &[Draft07, Draft06, XRateLimit],
            &[Draft06, XRateLimitEpoch],
            &[None],
            &[XRateLimit, XRateLimit],
        ] {
            assert!(Dialects::of(legal.iter().copied()).is_ok(), "{legal:?}");
        }
        for (wrong, words) in [
            (&[][..], "`none`"),
            (&[Draft11, Draft07], "`RateLimit`"),
            (&[Draft06, XRateLimit, Draft11], "`RateLimit-Policy`"),
            (&[XRateLimitEpoch, XRateLimit], "`X-RateLimit-Reset`"),
            (&[None, Draft11], "`none` alone"),
        ] {
            let error = Dialects::of(wrong.iter().copied()).expect_err("a clash").to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_dialect_is_written_as_it_is_read() {
        for (dialect, name) in NAMES {
            assert_eq!(dialect.to_string(), name);
            assert_eq!(name.parse::<Dialect>().expect("a dialect"), dialect);
        }
        let error = "draft-8".parse::<Dialect>().expect_err("not known").to_string();
        assert!(error.contains("`draft-8`") && error.contains("`draft-11`") && error.contains("`none`"), "{error}");
    }
}

//! The one error of the crate.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc, time::Duration};

/// Says why a question could not be answered, or why a value cannot be used.
///
/// A refusal is never an error: it is a [`Decision`](crate::limit::Decision). The type is opaque so that
/// causes can be added without breaking anybody; ask its predicates, or print it.
///
/// ```
/// use tollgate::Quota;
///
/// let error = "100/minit".parse::<Quota>().expect_err("no such unit");
/// assert!(error.is_invalid() && !error.is_transient());
/// ```
#[derive(Clone)]
pub struct Error {
    kind: Kind,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// Which parts of a store it is the fault of, if that is known.
    parts: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Invalid(Cow<'static, str>),
    Store(Cow<'static, str>),
    Deadline(Duration),
    NotInTime(Duration),
    Never(Cow<'static, str>),
    Taken(Cow<'static, str>),
    Lost(Cow<'static, str>),
}

impl Error {
    /// Returns true if a value was wrong (a quota, a name, an address): trying again cannot help.
    pub fn is_invalid(&self) -> bool {
        matches!(self.kind, Kind::Invalid(_))
    }

    /// Returns true if the store did not answer within the deadline.
    ///
    /// What was asked may still have happened.
    pub fn is_timeout(&self) -> bool {
        matches!(self.kind, Kind::Deadline(_))
    }

    /// Returns true if the store failed, and may not the next time.
    ///
    /// It was out of reach, too slow, or answered with an error. Only its text tells a server that is being
    /// restarted from a wrong password.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, Kind::Store(_) | Kind::Deadline(_))
    }

    /// Returns true if a wait ended because its turn would not have come, or did not come, within the longest wait
    /// asked for.
    pub fn is_wait_too_long(&self) -> bool {
        matches!(self.kind, Kind::NotInTime(_) | Kind::Taken(_))
    }

    /// Returns true if something is held no more: a lease was lost, or a write came under a fence that is too old.
    pub fn is_lost(&self) -> bool {
        matches!(self.kind, Kind::Lost(_))
    }

    /// Returns true if what was asked for can never be granted, since it costs more than the limit holds.
    pub fn is_never(&self) -> bool {
        matches!(self.kind, Kind::Never(_))
    }

    pub(crate) fn invalid(what: impl Into<Cow<'static, str>>) -> Self {
        Kind::Invalid(what.into()).into()
    }

    /// Says that a store failed; for those who write a [`Store`](crate::limit::Store) of their own.
    pub fn store(what: impl Into<Cow<'static, str>>) -> Self {
        Kind::Store(what.into()).into()
    }

    pub(crate) fn deadline(after: Duration) -> Self {
        Kind::Deadline(after).into()
    }

    pub(crate) fn not_in_time(wait: Duration) -> Self {
        Kind::NotInTime(wait).into()
    }

    pub(crate) fn never(what: impl Into<Cow<'static, str>>) -> Self {
        Kind::Never(what.into()).into()
    }

    /// Says which part of a store failed, by name and by bit.
    #[cfg(feature = "cluster")]
    pub(crate) fn in_part(mut self, name: &str, part: u64) -> Self {
        if let Kind::Store(what) = &mut self.kind {
            *what = format!("{name}: {what}").into();
        }
        Self { parts: part, ..self }
    }

    pub(crate) fn parts(&self) -> u64 {
        self.parts
    }

    pub(crate) fn taken(what: impl Into<Cow<'static, str>>) -> Self {
        Kind::Taken(what.into()).into()
    }

    pub(crate) fn lost(what: impl Into<Cow<'static, str>>) -> Self {
        Kind::Lost(what.into()).into()
    }

    /// Adds the error that was at the bottom of this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        Self { kind, source: None, parts: 0 }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Invalid(what) | Kind::Store(what) | Kind::Never(what) | Kind::Taken(what) | Kind::Lost(what) => {
                f.write_str(what)
            }
            Kind::Deadline(after) => write!(f, "no answer from the store within {after:?}"),
            Kind::NotInTime(wait) => write!(f, "would have to wait {wait:?}, longer than asked for"),
        }
    }
}

/// As it is printed when `main` returns it: what went wrong, and what was at the bottom of it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{self}: {source}"),
            None => write!(f, "{self}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::connection::CALL_TIMEOUT;
use crate::error::Error;

/// Why there was no answer that serves.
pub(super) enum Failure {
    Error(RedisError),
    /// Nothing came for [`CALL_TIMEOUT`].
    Silence,
}

#[cfg(feature = "cluster")]
impl Failure {
    /// Returns true if what was asked for may have been done.
    pub(super) fn is_ambiguous(&self) -> bool {
        match self {
            Self::Error(error) => error.is_unrecoverable_error() || error.is_io_error(),
            Self::Silence => true,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Error(error) => error,
            Failure::Silence => return Self::deadline(CALL_TIMEOUT),
        };
        let elsewhere = [ServerErrorKind::Moved, ServerErrorKind::CrossSlot].map(ErrorKind::Server);
        let what = match (error.code(), error.detail().unwrap_or_default()) {
            (Some(code), detail) if elsewhere.contains(&error.kind()) => {
                format!("redis answered {code}: {detail}; it is a Cluster, whose address begins with redis+cluster://")
            }
            (Some(code), detail) => format!("redis answered {code}: {detail}"),
            (None, _) => "redis did not answer".to_owned(),
        };
        Self::store(what).with_source(error)
    }
}

pub(super) fn no_runtime() -> Error {
    Error::store("redis needs a tokio runtime, and this is none")
}

/// What waiters are told whose connection went away under them.
pub(in crate::redis) fn cut_off() -> Error {
    Error::store("the connection to redis was lost")
}

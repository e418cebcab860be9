use std::{fmt, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use super::{Begin, RecordStore, Token};
use crate::{error::Error, key::Key};

/// Issues tickets that carry something, and are redeemed by one caller, once, before they expire.
///
/// For password resets, invitations, confirmations. A ticket is 256 random bits; only its hash is stored, so that who reads
/// the store can redeem nothing. What it carries is stored as it is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use std::time::Duration;
/// use tollgate::{Memory, lease::Tickets};
///
/// let resets = Tickets::new(&Memory::new(), "password-reset", Duration::from_secs(900));
/// let ticket = resets.issue(b"user:42").await?;
/// assert_eq!(resets.redeem(&ticket).await?, Some(b"user:42".to_vec()));
/// assert_eq!(resets.redeem(&ticket).await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "tickets do nothing until one is issued"]
pub struct Tickets {
    store: Arc<dyn RecordStore>,
    scope: Key,
    valid_for: Duration,
}

impl Tickets {
    /// Issues tickets of one kind, which are valid for so long.
    pub fn new<S: RecordStore + Clone>(store: &S, name: &str, valid_for: Duration) -> Self {
        Self { store: Arc::new(store.clone()), scope: Key::from_parts(["ticket", name]), valid_for }
    }

    /// Issues a ticket: 43 letters, digits, `-` and `_`.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, there may be a ticket that nobody has; it expires.
    pub async fn issue(&self, carries: &[u8]) -> Result<String, Error> {
        if self.valid_for < Duration::from_millis(1) || self.valid_for > LONGEST {
            let valid_for = self.valid_for;
            return Err(Error::invalid(format!("tickets valid for {valid_for:?}: must be from 1ms to {LONGEST:?}")));
        }
        let halves = [Token::random()?, Token::random()?];
        let ticket = URL_SAFE_NO_PAD.encode(halves.map(|half| *half.as_bytes()).concat());
        let begin = Begin::done(Token::random()?, carries.to_vec(), self.valid_for);
        self.store.begin(&self.name(&ticket), &begin).await?;
        Ok(ticket)
    }

    /// Takes what a ticket carries; nothing if it is none, has expired, or somebody has redeemed it.
    ///
    /// # Errors
    ///
    /// If the store does not answer. The ticket may be redeemed then: issue another one.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the ticket may be redeemed, and what it carried is lost.
    pub async fn redeem(&self, ticket: &str) -> Result<Option<Vec<u8>>, Error> {
        self.store.take(&self.name(ticket)).await
    }

    /// Stored under its hash alone.
    fn name(&self, ticket: &str) -> Key {
        Key::from_parts([self.scope.as_bytes(), &Sha256::digest(ticket)])
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets")
            .field("scope", &self.scope)
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}

/// A hundred years.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

use std::fmt;

use crate::error::Error;

/// Tells one holder from all others: 128 random bits, made anew for each attempt to hold something.
///
/// ```
/// use tollgate::lease::Token;
///
/// let token = Token::random()?;
/// assert_eq!(token.to_string().len(), 32);
/// assert_ne!(token, Token::random()?);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// Makes a token that nobody else has.
    ///
    /// # Errors
    ///
    /// If the system gives no random bytes.
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::store("the system gives no random bytes").with_source(error.to_string()))?;
        Ok(Self(bytes))
    }

    /// Returns the token's bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns 16 of the token's bits, to spread what happens at the same time.
    pub(crate) fn jitter(&self) -> u32 {
        u32::from(self.0[0]) << 8 | u32::from(self.0[1])
    }
}

impl From<[u8; 16]> for Token {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// As 32 hexadecimal digits.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

/// Orders the holders of one name: who comes later has the greater fence.
///
/// It is minted in the same atomic step that grants the lease, `max(last + 1, time in µs since 1970)`, and stays the
/// same for as long as the lease is held. Hand it to the resource with each write, which refuses what comes under a
/// lesser fence than it has seen ([`FenceGate`](super::FenceGate) does that in process). Fences of different names have
/// nothing to do with each other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// use tollgate::{Memory, lease::Lock};
///
/// let lock = Lock::new(&Memory::new(), "order:7");
/// let first = lock.acquire().await?;
/// let (former, _) = (first.fence(), first.release().await?);
/// let second = lock.acquire().await?;
/// assert!(second.fence() > former);
/// let column: Option<u64> = second.fence().map(u64::from);
/// # let _ = column;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use]
pub struct Fence(u64);

impl From<u64> for Fence {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

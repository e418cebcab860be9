use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{key::Secrets, limit::Demand};

/// Stands for whose budget an item tells of, so that a client with several can tell them apart.
///
/// Twelve bytes of a keyed hash, as text: nobody can find out by trying what it was made of.
#[derive(Clone, Copy)]
pub(in crate::layer) struct PartitionKey([u8; TEXT]);

const BYTES: usize = 12;
const TEXT: usize = BYTES / 3 * 4;

impl PartitionKey {
    /// Makes that of one demand; of another policy, the same subject has another.
    pub(in crate::layer) fn of(demand: &Demand<'_>, secrets: &Secrets) -> Self {
        let mut subject = Vec::with_capacity(160);
        subject.extend_from_slice(b"pk\0");
        subject.extend_from_slice(demand.policy().name().as_bytes());
        subject.push(0);
        subject.extend_from_slice(demand.subject().as_bytes());
        let hash = secrets.hash(&subject);
        let mut text = [0; TEXT];
        let len = STANDARD.encode_slice(&hash[..BYTES], &mut text);
        debug_assert_eq!(len, Ok(TEXT));
        Self(text)
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("base64 is text")
    }
}

impl fmt::Debug for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

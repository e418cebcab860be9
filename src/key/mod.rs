//! The bytes that name a counter.
//!
//! A [`Key`] says whose units are counted. It is short, needs no heap, and no two subjects share one: parts are
//! escaped, so that a client cannot write a separator, and what does not fit is replaced by its SHA-256.

mod print;

use std::{fmt, net::IpAddr, sync::Once};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

pub(crate) use self::print::{Print, Printer};

/// Names the subject of a limit: a client, a tenant, a route, or several of these together.
///
/// Made of text, `"user:42".into()`, or by a key extractor from a request. Keys are compared as bytes.
///
/// ```
/// use tollgate::Key;
///
/// assert_eq!(Key::from("user:42").as_str(), "user:42");
/// assert_eq!(Key::from_parts(["user:42", "a|b"]).as_str(), "user:42|a%7Cb");
/// assert_eq!(Key::from("x".repeat(1_000).as_str()).as_str().len(), 33); // a hash
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    len: u8,
    bytes: [u8; Self::CAPACITY],
}

impl Key {
    /// The most bytes that a key has; what is longer when escaped becomes a hash.
    pub const CAPACITY: usize = 64;

    /// Makes a key of several parts, which are kept apart whatever they contain.
    pub fn from_parts<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut key = Self::EMPTY;
        let mut writer = KeyWriter::new(&Secrets::UNKEYED, &mut key);
        for part in parts {
            writer.text(part);
        }
        writer.finish();
        key
    }

    /// Makes the key that [`as_str`](Self::as_str) tells as this text; of text that no key is told as, the key that it
    /// makes by itself.
    ///
    /// For what operators copy from a log or a page: `|` stands between the parts of a key, not in one.
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// let key = Key::from_parts(["user:42", "a|b"]);
    /// assert_eq!(Key::from_shown("user:42|a%7Cb"), key);
    /// assert_eq!(Key::from_shown("zoë"), Key::from("zoë"));
    /// ```
    #[must_use]
    pub fn from_shown(text: &str) -> Self {
        let mut key = Self::EMPTY;
        match key.bytes.get_mut(..text.len()) {
            Some(bytes) if is_shown(text.as_bytes()) => {
                bytes.copy_from_slice(text.as_bytes());
                key.len = u8::try_from(text.len()).expect("the capacity fits a byte");
                key
            }
            _ => text.into(),
        }
    }

    /// Makes the key of a secret alone, as [`KeyWriter::secret`] does.
    pub(crate) fn of_secret(secret: &str, secrets: &Secrets) -> Self {
        let mut key = Self::EMPTY;
        let mut writer = KeyWriter::new(secrets, &mut key);
        writer.secret(secret);
        writer.finish();
        key
    }

    /// Returns the key as text; it has printable ASCII only.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("a key is written as ASCII")
    }

    /// Returns the key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns a number below `buckets` that depends on the key alone.
    ///
    /// It is part of stored keys, so it never changes.
    #[cfg(feature = "redis")]
    pub(crate) fn bucket(&self, buckets: u16) -> u16 {
        u16::try_from(self.hash() % u64::from(buckets)).expect("a remainder is below its divisor")
    }

    /// Hashes the key, the same in all processes and versions.
    #[cfg(feature = "redis")]
    pub(crate) fn hash(&self) -> u64 {
        fnv1a(self.as_bytes())
    }
}

impl From<&[u8]> for Key {
    #[inline]
    fn from(part: &[u8]) -> Self {
        let mut key = Self::EMPTY;
        // As nearly always: short, and nothing to escape.
        if part.len() <= Self::CAPACITY && key.write_plain(part) {
            return key;
        }
        Self::from_parts([part])
    }
}

impl Key {
    /// Is nobody's yet.
    pub(crate) const EMPTY: Self = Self { len: 0, bytes: [0; Self::CAPACITY] };

    /// Stands for nobody: it is no text that a key can have.
    pub(crate) const NOBODY: Self = {
        let mut bytes = [0; Self::CAPACITY];
        bytes[0] = b'{';
        Self { len: 1, bytes }
    };

    /// Returns all that there is room for; what follows the text is zeros.
    #[inline]
    fn words(&self) -> &[[u8; 8]] {
        self.bytes.as_chunks().0
    }

    /// Writes a text that fits, word by word; returns false, and leaves anything, if it has something to escape.
    #[inline]
    fn write_plain(&mut self, part: &[u8]) -> bool {
        let mut plain = true;
        let (words, rest) = part.as_chunks::<8>();
        let mut places = self.bytes.as_chunks_mut::<8>().0.iter_mut();
        for (word, place) in words.iter().zip(&mut places) {
            plain &= plain_bytes(u64::from_le_bytes(*word)) == HIGH_BITS;
            *place = *word;
        }
        if let (false, Some(place)) = (rest.is_empty(), places.next()) {
            // The last eight bytes, without those that are there already.
            let word = match part.last_chunk::<8>() {
                Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
                None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
            };
            plain &= plain_bytes(word) == HIGH_BITS >> (64 - 8 * rest.len());
            *place = word.to_le_bytes();
        }
        self.len = u8::try_from(part.len()).expect("the capacity fits a byte");
        plain
    }
}

/// Makes what can be a key on its own one.
macro_rules! key_from {
    ($($type:ty),+ => $write:expr) => {$(
        impl From<$type> for Key {
            fn from(part: $type) -> Self {
                let write: fn($type) -> Key = $write;
                write(part)
            }
        }
    )+};
}

key_from!(&str => |text| text.as_bytes().into());
key_from!(&String, String => |text| text.as_bytes().into());
key_from!(Vec<u8> => |bytes| bytes.as_slice().into());
key_from!(u32, u64, IpAddr => |part| {
    let mut key = Key::EMPTY;
    let mut writer = KeyWriter::new(&Secrets::UNKEYED, &mut key);
    writer.display(part);
    writer.finish();
    key
});

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.as_str())
    }
}

/// Writes a [`Key`] part by part.
#[derive(Debug)]
pub struct KeyWriter<'a> {
    secrets: &'a Secrets,
    parts: usize,
    len: usize,
    /// What is written, and zeros behind it.
    bytes: &'a mut [u8; Key::CAPACITY],
    key_len: &'a mut u8,
    /// Takes over from `bytes` when these are full; seldom there, so kept small.
    long: Option<Box<Sha256>>,
}

impl<'a> KeyWriter<'a> {
    /// Writes a key in its place, which is [empty](Key::EMPTY).
    pub(crate) fn new(secrets: &'a Secrets, key: &'a mut Key) -> Self {
        debug_assert_eq!(*key, Key::EMPTY);
        Self { secrets, parts: 0, len: 0, bytes: &mut key.bytes, key_len: &mut key.len, long: None }
    }

    /// Adds a part that may be read by operators and in the store.
    pub fn text(&mut self, part: impl AsRef<[u8]>) {
        self.separate();
        self.write(part.as_ref());
    }

    /// Adds a part that is known to need no escapes.
    pub(crate) fn plain(&mut self, part: &[u8]) {
        debug_assert!(part.iter().all(|byte| is_plain(*byte)), "{part:?}");
        self.separate();
        let end = self.len + part.len();
        match (&self.long, self.bytes.get_mut(self.len..end)) {
            (None, Some(free)) => {
                free.copy_from_slice(part);
                self.len = end;
            }
            _ => part.iter().for_each(|byte| self.push(*byte)),
        }
    }

    /// Adds a part of sixteen bytes at most that is known to need no escapes, the first in the lowest byte.
    #[inline]
    pub(crate) fn plain_word(&mut self, word: u128, len: usize) {
        let bytes = word.to_le_bytes();
        match (&self.long, self.bytes.get_mut(self.len..self.len + bytes.len())) {
            (None, Some(free)) if self.parts == 0 => {
                free.copy_from_slice(&bytes);
                (self.parts, self.len) = (1, len);
            }
            _ => self.plain(&bytes[..len]),
        }
    }

    /// Adds what `part` displays as, without a detour through a `String`.
    pub fn display(&mut self, part: impl fmt::Display) {
        self.separate();
        // A `Display` that fails has at least shown what it could; the key is that.
        let _ = fmt::write(&mut Escape(self), format_args!("{part}"));
    }

    /// Adds a part that nobody is to read: only its hash is kept.
    ///
    /// The hash is keyed by the limiter's [`key_secret`](crate::Limiter::key_secret) if there is one. Without
    /// it, somebody who reads the store can try out guesses.
    pub fn secret(&mut self, part: impl AsRef<[u8]>) {
        self.separate();
        self.hash(&self.secrets.hash(part.as_ref()));
    }

    /// Adds a part that stands for a value that is not there, and that no value can imitate.
    pub fn absent(&mut self) {
        self.separate();
        self.push(MARK);
    }

    pub(crate) fn finish(mut self) {
        if let Some(long) = self.long.take() {
            (self.len, *self.bytes) = (0, [0; Key::CAPACITY]);
            self.hash(&long.finalize());
        }
        *self.key_len = u8::try_from(self.len).expect("the capacity fits a byte");
    }

    fn separate(&mut self) {
        if self.parts > 0 {
            self.push(SEPARATOR);
        }
        self.parts += 1;
    }

    fn hash(&mut self, hash: &[u8]) {
        self.push(MARK);
        for byte in &hash[..HASH_BYTES] {
            self.push(LOWER_HEX[usize::from(byte >> 4)]);
            self.push(LOWER_HEX[usize::from(byte & 15)]);
        }
    }

    /// Writes text: as a whole if it needs no escapes and there is room for it, as nearly always.
    fn write(&mut self, part: &[u8]) {
        let end = self.len + part.len();
        match (&self.long, self.bytes.get_mut(self.len..end)) {
            (None, Some(free)) if part.iter().all(|byte| is_plain(*byte)) => {
                free.copy_from_slice(part);
                self.len = end;
            }
            _ => part.iter().for_each(|byte| self.escape(*byte)),
        }
    }

    fn escape(&mut self, byte: u8) {
        match byte {
            byte if is_plain(byte) => self.push(byte),
            byte => {
                self.push(ESCAPE);
                self.push(UPPER_HEX[usize::from(byte >> 4)]);
                self.push(UPPER_HEX[usize::from(byte & 15)]);
            }
        }
    }

    fn push(&mut self, byte: u8) {
        match (&mut self.long, self.bytes.get_mut(self.len)) {
            (Some(long), _) => long.update([byte]),
            (None, Some(free)) => {
                *free = byte;
                self.len += 1;
            }
            (None, None) => {
                self.long = Some(Box::new(Sha256::new().chain_update(*self.bytes).chain_update([byte])));
            }
        }
    }
}

struct Escape<'w, 'a>(&'w mut KeyWriter<'a>);

impl fmt::Write for Escape<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// How secret parts of keys are hashed.
#[derive(Clone)]
pub(crate) struct Secrets {
    keyed: Option<Hmac<Sha256>>,
    /// Whether hashes leave this process, so that it matters if they are keyed.
    leave: bool,
}

impl Secrets {
    pub(crate) const UNKEYED: Self = Self { keyed: None, leave: false };

    pub(crate) fn unkeyed_for(leave: bool) -> Self {
        Self { keyed: None, leave }
    }

    pub(crate) fn keyed(key: &[u8]) -> Self {
        Self { keyed: Some(Hmac::new_from_slice(key).expect("HMAC takes keys of any length")), leave: true }
    }

    /// Keys hashes by a secret; one that is empty is none.
    pub(crate) fn key_by(&mut self, secret: &[u8]) {
        if !secret.is_empty() {
            *self = Self::keyed(secret);
        }
    }

    /// Stands for a key where its text is not to be read: the first 64 bits of its hash, keyed if there is a key.
    #[cfg(feature = "admin")]
    pub(crate) fn fingerprint(&self, key: &Key) -> String {
        let hash: [u8; 32] = match &self.keyed {
            Some(keyed) => keyed.clone().chain_update(key.as_bytes()).finalize().into_bytes().into(),
            None => Sha256::digest(key.as_bytes()).into(),
        };
        hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn is_keyed(&self) -> bool {
        self.keyed.is_some()
    }

    pub(crate) fn hash(&self, secret: &[u8]) -> [u8; 32] {
        if let Some(keyed) = &self.keyed {
            return keyed.clone().chain_update(secret).finalize().into_bytes().into();
        }
        if self.leave {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(
                    "secrets are kept in the store as unkeyed hashes, which can be guessed; set `key_secret`; see \
                     https://docs.rs/tollgate/latest/tollgate/guide/warnings/#unkeyed-secrets"
                );
            });
        }
        Sha256::digest(secret).into()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.keyed.is_some() { "Secrets(keyed)" } else { "Secrets(unkeyed)" })
    }
}

/// Hashes by FNV-1a, 64 bits: plain, known, and good enough to spread keys.
pub(crate) const fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let (mut hash, mut i) = (OFFSET, 0);
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(PRIME);
        i += 1;
    }
    hash
}

/// Returns true for what a key can be told as: plain bytes, escapes of others, separators and marks.
fn is_shown(text: &[u8]) -> bool {
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        rest = match *first {
            ESCAPE => {
                let digit = |digit: &u8| UPPER_HEX.iter().position(|known| known == digit);
                let [high, low, tail @ ..] = tail else { return false };
                let (Some(high), Some(low)) = (digit(high), digit(low)) else { return false };
                if u8::try_from(high * 16 + low).is_ok_and(is_plain) {
                    return false;
                }
                tail
            }
            SEPARATOR | MARK => tail,
            byte if is_plain(byte) => tail,
            _ => return false,
        };
    }
    true
}

/// Returns true for what is written as it is: printable ASCII but for what marks, separates and escapes, and braces.
///
/// `{`, `|`, `}` and `~` follow each other, at the end.
const fn is_plain(byte: u8) -> bool {
    byte > b' ' && byte < b'{' && byte != ESCAPE
}

/// Returns the high bit of each byte of a word that [is plain](is_plain).
#[inline]
const fn plain_bytes(word: u64) -> u64 {
    const ONES: u64 = HIGH_BITS >> 7;
    let low = word & !HIGH_BITS;
    // Each sum has its high bit set where a byte is at least so much, and none carries into the next.
    let above_space = low + ONES * (0x80 - (b' ' as u64 + 1));
    let below_brace = !(low + ONES * (0x80 - b'{' as u64));
    let no_escape = (low ^ (ONES * ESCAPE as u64)) + ONES * 0x7f;
    above_space & below_brace & no_escape & !word & HIGH_BITS
}

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

const SEPARATOR: u8 = b'|';
const ESCAPE: u8 = b'%';
/// Begins what no text can contain: a hash, or the sign that a value is absent.
const MARK: u8 = b'~';
/// 128 bits of SHA-256: two subjects share a key once in 2⁶⁴ of them.
const HASH_BYTES: usize = 16;
const LOWER_HEX: &[u8; 16] = b"0123456789abcdef";
const UPPER_HEX: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_never_share_a_key() {
        let long = "x".repeat(65);
        let hashed = Key::from(long.as_str());
        let keys = [
            Key::from_parts(["a", "b"]),
            Key::from("a|b"),
            Key::from("a%7Cb"),
            Key::from_parts(["ab"]),
            Key::from_parts(["", "ab"]),
            Key::from_parts(["ab", ""]),
            Key::from(""),
            Key::from("~"),
            hashed,
            Key::from(hashed.as_str()),
            Key::from("{0}"),
            Key::from("ä"),
            Key::from([0xc3, 0xa4, 0].as_slice()),
            Key::from("x".repeat(64)),
            Key::from("x".repeat(66)),
            Key::from_parts(["x".repeat(60), "x".repeat(60)]),
            Key::from_parts(["x".repeat(61), "x".repeat(59)]),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(a.as_str().bytes().all(|b| b.is_ascii_graphic()), "{a:?}");
            assert!(!a.as_str().contains(['{', '}']), "{a:?}");
            assert_eq!(Key::from_shown(a.as_str()), *a);
            for b in &keys[..i] {
                assert_ne!(a, b);
            }
        }
    }

    #[test]
    fn text_that_is_no_key_is_made_one() {
        for text in ["a b", "100%", "%zz", "%4", "%41", "%7c", "{0}", "ä", &"x".repeat(65)] {
            assert_eq!(Key::from_shown(text), Key::from(text), "{text}");
        }
    }

    #[test]
    fn a_text_is_written_at_once_as_it_is_byte_by_byte() {
        for len in 0..=Key::CAPACITY {
            let text: String = ('!'..='z').filter(|c| *c != '%').cycle().skip(len).take(len).collect();
            assert_eq!(Key::from(text.as_str()).as_str(), text);
            for at in 0..len {
                for byte in 0..=u8::MAX {
                    let mut bytes = text.clone().into_bytes();
                    bytes[at] = byte;
                    assert_eq!(Key::from(bytes.as_slice()), Key::from_parts([&bytes]), "{byte} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn a_secret_is_kept_as_its_hash_only() {
        let write = |secrets: &Secrets| {
            let mut key = Key::EMPTY;
            let mut writer = KeyWriter::new(secrets, &mut key);
            writer.secret("hunter2");
            writer.finish();
            key
        };
        let (plain, keyed) = (write(&Secrets::UNKEYED), write(&Secrets::keyed(b"pepper")));
        // SHA-256 and HMAC-SHA-256, as any other tool computes them.
        assert_eq!(plain.as_str(), "~f52fbd32b2b3b86ff88ef6c490628285");
        assert_eq!(keyed.as_str(), "~e075c939d4acb1f39c7839b235d928a7");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn the_bucket_of_a_key_never_changes() {
        // FNV-1a, 64 bits: offset basis for "", 0xaf63dc4c8601ec8c for "a".
        assert_eq!(Key::from("").bucket(256), 0x25);
        assert_eq!(Key::from("a").bucket(256), 0x8c);
        assert_eq!(Key::from("a").bucket(1), 0);
    }
}

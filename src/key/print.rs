use std::{
    fmt,
    hash::{BuildHasher, RandomState},
};

use super::Key;

/// Stands for a subject and something of which it is one, such as a policy: two hashes with seeds of this process.
///
/// Two of them are the same with a probability of some 2⁻¹²⁸, and nobody outside can look for such a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Print(pub(crate) [u64; 2]);

impl Print {
    /// Returns a hash for a table.
    #[inline]
    pub(crate) fn hash(self) -> u64 {
        self.0[0]
    }

    /// Returns which of so many parts it lies in: a power of two.
    ///
    /// By bits in the middle: a table tags its entries with the top seven and finds them by the lowest.
    #[inline]
    pub(crate) fn part(self, parts: usize) -> usize {
        usize::try_from(self.0[0] >> 32 & (parts as u64 - 1)).expect("a small number")
    }
}

/// Makes prints.
#[derive(Clone)]
pub(crate) struct Printer {
    seeds: [u64; 6],
}

impl Default for Printer {
    fn default() -> Self {
        let random = RandomState::new();
        Self { seeds: [0, 1, 2, 3, 4, 5].map(|i: u64| random.hash_one(i)) }
    }
}

impl Printer {
    /// Makes one whose prints are the same in every process. Whoever knows the seed can look for keys that fall together.
    pub(crate) fn seeded(seed: u64) -> Self {
        // The steps of SplitMix64.
        let mixed = |i: u64| {
            let step = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let step = (step ^ step >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let step = (step ^ step >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            step ^ step >> 31
        };
        Self { seeds: [1, 2, 3, 4, 5, 6].map(mixed) }
    }

    /// Goes through the key once, sixteen bytes at a time, for both hashes.
    #[inline]
    pub(crate) fn print(&self, tag: u64, subject: &Key) -> Print {
        let [a, b, c, d, e, f] = self.seeds;
        let (mut left, mut right) = (a, b);
        // What follows a text is zeros, which no text contains.
        for pair in subject.words().chunks_exact(2).take(usize::from(subject.len).div_ceil(16)) {
            let (x, y) = (u64::from_le_bytes(pair[0]), u64::from_le_bytes(pair[1]));
            (left, right) = (folded(left ^ x, c ^ y), folded(right ^ y, d ^ x));
        }
        // The tag comes last: before, one key with one tag would be as another key with another.
        Print([folded(left, e ^ tag), folded(right, f ^ tag)])
    }
}

/// Multiplies to 128 bits, and lays both halves over each other: each bit of the result depends on all.
#[inline]
#[allow(clippy::cast_possible_truncation)] // To take it apart is the point.
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl fmt::Debug for Printer {
    /// Tells nothing of how keys are hashed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Printer")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Keys as they come: numbered, and with all that differs at one end.
    fn keys() -> impl Iterator<Item = Key> {
        let texts = |i: u32| {
            let long = format!("{}{i:04}", "x".repeat(56));
            [format!("user:{i:07}"), format!("{i}"), format!("{i:08}-tail-of-the-key"), long]
        };
        (0..10_000).flat_map(texts).map(Key::from)
    }

    #[test]
    fn different_subjects_and_tags_have_different_prints_in_either_half() {
        let printer = Printer::default();
        for half in [0, 1] {
            let mut seen = HashSet::new();
            for key in keys() {
                for tag in [0, 1, 1 << 63] {
                    assert!(seen.insert(printer.print(tag, &key).0[half]), "{key:?}");
                }
            }
        }
    }

    #[test]
    fn every_bit_of_a_print_is_set_as_often_as_not_and_depends_on_every_bit_of_a_key() {
        let printer = Printer::seeded(7);
        let bits = |print: Print| (0..128).map(move |bit| print.0[bit / 64] >> (bit % 64) & 1);
        let mut set = [0u64; 128];
        let mut count = 0;
        for key in keys() {
            bits(printer.print(1, &key)).zip(&mut set).for_each(|(bit, sum)| *sum += bit);
            count += 1;
        }
        assert!(set.iter().all(|set| set.abs_diff(count / 2) < count / 50), "{set:?}");

        for at in 0..32 {
            let mut changed = [0u64; 128];
            for i in 0..2_000 {
                let mut bytes = format!("{i:032}").into_bytes();
                let before = printer.print(1, &Key::from(bytes.as_slice()));
                bytes[at] ^= 1;
                let after = printer.print(1, &Key::from(bytes.as_slice()));
                bits(before).zip(bits(after)).zip(&mut changed).for_each(|((a, b), sum)| *sum += a ^ b);
            }
            assert!(changed.iter().all(|changed| (800..1_200).contains(changed)), "{at}: {changed:?}");
        }
    }

    #[test]
    fn the_longest_and_the_shortest_keys_have_prints_of_their_own() {
        let printer = Printer::seeded(1);
        let prints: HashSet<_> = (0..=64).map(|len| printer.print(3, &Key::from("a".repeat(len)))).collect();
        assert_eq!(prints.len(), 65);
    }
}

/// Follows the messages of a stream, each behind a byte of flags and its length in four (gRPC over HTTP/2,
/// Length-Prefixed-Message).
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// How much of the prefix has been seen.
    prefix: usize,
    length: u32,
    left: u32,
}

impl Frames {
    /// Returns true between two messages.
    pub(super) fn is_between(&self) -> bool {
        self.prefix == 0
    }

    /// Goes on until a message ends, or all the bytes have been seen; returns how many were.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> usize {
        let mut seen = 0;
        while let Some(byte) = bytes.get(seen) {
            if self.prefix < PREFIX {
                seen += 1;
                self.length = if self.prefix == 0 { 0 } else { self.length << 8 | u32::from(*byte) };
                self.prefix += 1;
                self.left = self.length;
            } else {
                let rest = u32::try_from(bytes.len() - seen).unwrap_or(u32::MAX);
                let step = self.left.min(rest);
                self.left -= step;
                seen += step as usize;
            }
            if self.prefix == PREFIX && self.left == 0 {
                *self = Self::default();
                return seen;
            }
        }
        seen
    }
}

const PREFIX: usize = 5;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(len: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::try_from(len).expect("short").to_be_bytes());
        bytes.resize(5 + len, 7);
        bytes
    }

    proptest! {
        #[test]
        fn messages_are_told_apart_however_they_are_cut(
            lens in prop::collection::vec(prop_oneof![Just(0usize), 1..5usize, 200..600usize], 0..8),
            cuts in prop::collection::vec(1..40usize, 1..20),
        ) {
            let stream: Vec<u8> = lens.iter().flat_map(|len| message(*len)).collect();
            let (mut frames, mut ends, mut at) = (Frames::default(), Vec::new(), 0);
            let mut cuts = cuts.iter().cycle();
            while at < stream.len() {
                let end = stream.len().min(at + cuts.next().expect("endless"));
                let mut piece = &stream[at..end];
                while !piece.is_empty() {
                    let seen = frames.follow(piece);
                    prop_assert!(seen > 0);
                    piece = &piece[seen..];
                    if frames.is_between() {
                        ends.push(end - piece.len());
                    } else {
                        prop_assert!(piece.is_empty());
                    }
                }
                at = end;
            }
            let mut sum = 0;
            let expected: Vec<usize> = lens.iter().map(|len| { sum += 5 + len; sum }).collect();
            prop_assert_eq!(ends, expected);
        }
    }
}

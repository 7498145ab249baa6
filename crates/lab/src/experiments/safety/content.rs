//! The content of a store. Every value contains the number of the commit that wrote it, so that a reader can tell which
//! answers are right.

use serde::{Deserialize, Serialize};

use super::stores::Pairs;

/// Bytes of a key.
const KEY_BYTES: u64 = 8;

/// The content of a store. Pair `p` is two keys far apart in the tree; both values contain the stamp, the number of the
/// commit that wrote them last.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Content {
    pub(super) pairs: u64,
    pub(super) value_bytes: usize,
}

impl Content {
    pub(super) fn keys_of(self, pair: u64) -> [[u8; 8]; 2] {
        [pair.to_be_bytes(), (pair + self.pairs).to_be_bytes()]
    }

    /// Returns the value of a key: the stamp, then bytes that follow from key and stamp.
    fn value(self, key: [u8; 8], stamp: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.value_bytes);
        value.extend_from_slice(&stamp.to_le_bytes());
        let mut word = u64::from_be_bytes(key) ^ stamp.rotate_left(32) ^ 0x9E37_79B9_7F4A_7C15;
        while value.len() < self.value_bytes {
            word = word.wrapping_mul(0xD120_0000_0000_0001 | 5).rotate_left(29) ^ stamp;
            let rest = (self.value_bytes - value.len()).min(8);
            value.extend_from_slice(&word.to_le_bytes()[..rest]);
        }
        value
    }

    /// Chooses one of the pairs belonging to a writer at random.
    pub(super) fn pair_of(self, chance: &mut fastrand::Rng, writer: u64, writers: u64) -> u64 {
        chance.u64(..(self.pairs / writers).max(1)) * writers + writer
    }

    pub(super) fn write(self, pair: u64, stamp: u64) -> Pairs {
        self.keys_of(pair).into_iter().map(|key| (key.to_vec(), self.value(key, stamp))).collect()
    }

    /// Returns the stamp in a right value of a key; `None` for a value that no commit wrote.
    pub(super) fn stamp_of(self, key: [u8; 8], value: Option<&[u8]>) -> Option<u64> {
        let value = value?;
        let stamp = u64::from_le_bytes(value.get(..8)?.try_into().ok()?);
        (value == self.value(key, stamp)).then_some(stamp)
    }

    pub(super) fn bytes_per_commit(self) -> u64 {
        2 * (KEY_BYTES + self.value_bytes as u64)
    }
}

//! Keys, values and orders for key-value stores, in the benchmark and in `engines`. A value says which key it belongs to and is checked whole wherever it is read.

use crate::error::{LabError, LabErrorKind, Result};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 16;
/// A key.
pub(crate) type Key = [u8; KEY_BYTES];

/// A set of entries: how many, how large, of which seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) count: u64,
    pub(crate) value_bytes: usize,
    pub(crate) seed: u64,
}

impl Data {
    /// So many entries as make up `bytes` of keys and values.
    pub(crate) fn of_bytes(bytes: u64, value_bytes: usize, seed: u64) -> Self {
        Self { count: (bytes / (KEY_BYTES + value_bytes) as u64).max(1000), value_bytes, seed }
    }

    /// Keys and values together.
    pub(crate) fn user_bytes(&self) -> u64 {
        self.count * self.entry_bytes()
    }

    /// A key and its value.
    pub(crate) fn entry_bytes(&self) -> u64 {
        (KEY_BYTES + self.value_bytes) as u64
    }

    /// The key of a number: in the order of the numbers, with a half that does not compress.
    pub(crate) fn key(&self, number: u64) -> Key {
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key[8..].copy_from_slice(&mix(number ^ self.seed).to_be_bytes());
        key
    }

    /// Fills `value` for a key, in one of its versions.
    pub(crate) fn fill(&self, number: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        let mut word = self.first_word(number, version);
        value.extend_from_slice(&version.to_le_bytes());
        while value.len() < self.value_bytes {
            let bytes = word.to_le_bytes();
            value.extend_from_slice(&bytes[..bytes.len().min(self.value_bytes - value.len())]);
            word = word.wrapping_mul(MULTIPLIER).wrapping_add(1);
        }
    }

    /// Whether a value is what was written for this key, in any version: every byte counts.
    pub(crate) fn is_right(&self, number: u64, value: &[u8]) -> bool {
        let Some((version, rest)) = value.split_first_chunk() else { return false };
        let mut word = self.first_word(number, u64::from_le_bytes(*version));
        let mut right = value.len() == self.value_bytes;
        for chunk in rest.chunks(8) {
            right &= chunk == &word.to_le_bytes()[..chunk.len()];
            word = word.wrapping_mul(MULTIPLIER).wrapping_add(1);
        }
        right
    }

    /// Fails unless the value is there and right.
    ///
    /// # Errors
    /// `WrongData`, naming who answered.
    pub(crate) fn check(&self, who: &str, number: u64, value: Option<&[u8]>) -> Result<()> {
        if value.is_some_and(|value| self.is_right(number, value)) {
            return Ok(());
        }
        let what = if value.is_some() { "another value than was written" } else { "nothing" };
        Err(LabError::new(
            LabErrorKind::WrongData,
            format!("{who} answered {what} for key {number}: no figure is worth anything"),
        ))
    }

    /// The entry of a number in one of its versions.
    pub(crate) fn changed(&self, number: u64, version: u64) -> (Key, Vec<u8>) {
        let mut value = Vec::with_capacity(self.value_bytes);
        self.fill(number, version, &mut value);
        (self.key(number), value)
    }

    /// All entries in order.
    pub(crate) fn entries(self) -> impl Iterator<Item = (Key, Vec<u8>)> + Send + 'static {
        (0..self.count).map(move |number| self.changed(number, 0))
    }

    fn first_word(&self, number: u64, version: u64) -> u64 {
        mix(number ^ self.seed.rotate_left(32)) ^ version.wrapping_mul(MULTIPLIER)
    }
}

const MULTIPLIER: u64 = 0x5851_f42d_4c95_7f2d;

/// Spreads a number over all 64 bits (the finisher of SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// YCSB's zipfian: rank 0 is the most popular, with the constant 0.99. After Gray and others, "Quickly generating
/// billion-record synthetic databases" (1994).
#[derive(Clone)]
pub(crate) struct Zipfian {
    count: f64,
    zeta: f64,
    eta: f64,
    alpha: f64,
    half: f64,
    rng: fastrand::Rng,
}

const THETA: f64 = 0.99;

impl Zipfian {
    /// Ranks below `count`. Takes time in proportion to it.
    pub(crate) fn new(count: u64, seed: u64) -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let (all, two) = (zeta(count), zeta(count.min(2)));
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - two / all);
        let rng = fastrand::Rng::with_seed(seed);
        Self { count: count as f64, zeta: all, eta, alpha: 1.0 / (1.0 - THETA), half: 0.5_f64.powf(THETA), rng }
    }

    /// The same with other choices.
    pub(crate) fn reseeded(&self, seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), ..self.clone() }
    }

    /// The next rank.
    pub(crate) fn next(&mut self) -> u64 {
        let chance = self.rng.f64();

        let scaled = chance * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + self.half {
            return 1;
        }
        let rank = self.count * (self.eta * chance - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_right_for_its_own_key_only_and_every_byte_counts() {
        for value_bytes in [16, 100, 1000] {
            let data = Data { count: 10, value_bytes, seed: 7 };
            let mut value = Vec::new();
            data.fill(3, 5, &mut value);
            assert_eq!(value.len(), value_bytes);
            assert!(data.is_right(3, &value) && !data.is_right(4, &value));
            for at in 0..value_bytes {
                value[at] ^= 1;
                assert!(!data.is_right(3, &value), "byte {at} of {value_bytes}");
                value[at] ^= 1;
            }
            assert!(!data.is_right(3, &value[1..]) && !data.is_right(3, &[]));
        }
    }

    #[test]
    fn keys_ascend_with_their_numbers() {
        let data = Data { count: 1000, value_bytes: 16, seed: 7 };
        assert!((1..1000).all(|number| data.key(number - 1) < data.key(number)));
    }

    #[test]
    fn zipfian_ranks_are_in_range_and_the_first_is_the_most_popular() {
        let mut zipfian = Zipfian::new(1000, 1);
        let mut counts = vec![0_u32; 1000];
        (0..100_000).for_each(|_| counts[zipfian.next() as usize] += 1);
        // P(0) = 1 / zeta(1000) = 1 / 7.73.
        assert!((11_000..15_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[0] > counts[1] && counts[1] > counts[100]);
    }
}

//! Keys, values and orders for key-value stores, shared by experiments. A value is derived from its key and
//! is verified in full at every read.

/// Length of a key in bytes.
pub(crate) const KEY_BYTES: usize = 16;
/// The key of an entry: bytes that sort like the entry's number.
pub(crate) type Key = [u8; KEY_BYTES];

/// A data set of entries, described by their number, value size and seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) count: u64,
    pub(crate) value_bytes: usize,
    pub(crate) seed: u64,
}

impl Data {
    /// A data set of as many entries as make up `bytes` of keys and values.
    pub(crate) fn of_bytes(bytes: u64, value_bytes: usize, seed: u64) -> Self {
        Self { count: (bytes / (KEY_BYTES + value_bytes) as u64).max(1000), value_bytes, seed }
    }

    /// Bytes of all keys and values together.
    pub(crate) fn user_bytes(&self) -> u64 {
        self.count * self.entry_bytes()
    }

    /// Bytes of a key and its value.
    pub(crate) fn entry_bytes(&self) -> u64 {
        (KEY_BYTES + self.value_bytes) as u64
    }

    /// The key of the entry with this number. Keys sort like their numbers, and half of each key does not compress.
    pub(crate) fn key(&self, number: u64) -> Key {
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key[8..].copy_from_slice(&mix(number ^ self.seed).to_be_bytes());
        key
    }

    /// Fills `value` with the value of entry `number` in version `version`.
    pub(crate) fn fill(&self, number: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&version.to_le_bytes());
        value.resize(self.value_bytes, 0);
        let mut word = self.first_word(number, version);
        let (words, tail) = value[VERSION_BYTES..].as_chunks_mut();
        for bytes in words {
            *bytes = word.to_le_bytes();
            word = word.wrapping_add(STEP);
        }
        tail.copy_from_slice(&word.to_le_bytes()[..tail.len()]);
    }

    /// Whether `value` is one that was written for entry `number`, in any version. Every byte is checked, at some 0.03
    /// ns a byte, so that the check does not weigh on the store's figures.
    pub(crate) fn is_right(&self, number: u64, value: &[u8]) -> bool {
        let Some((version, rest)) = value.split_first_chunk::<VERSION_BYTES>() else { return false };
        let mut word = self.first_word(number, u64::from_le_bytes(*version));
        let (words, tail) = rest.as_chunks();
        // Differences are accumulated and tested once: without a branch the loop compares whole registers.
        let mut different = 0;
        for bytes in words {
            different |= u64::from_le_bytes(*bytes) ^ word;
            word = word.wrapping_add(STEP);
        }
        value.len() == self.value_bytes && different == 0 && *tail == word.to_le_bytes()[..tail.len()]
    }

    /// Returns the key and value of entry `number` in version `version`.
    pub(crate) fn changed(&self, number: u64, version: u64) -> (Key, Vec<u8>) {
        let mut value = Vec::with_capacity(self.value_bytes);
        self.fill(number, version, &mut value);
        (self.key(number), value)
    }

    /// Returns all entries in key order, in their first version.
    pub(crate) fn entries(self) -> impl Iterator<Item = (Key, Vec<u8>)> + Send + 'static {
        (0..self.count).map(move |number| self.changed(number, 0))
    }

    fn first_word(&self, number: u64, version: u64) -> u64 {
        mix(number ^ self.seed.rotate_left(32)) ^ version.wrapping_mul(MULTIPLIER)
    }
}

/// Bytes of the version number at the start of each value.
const VERSION_BYTES: usize = 8;
/// Factor that makes versions different. It is odd, so that no two versions have the same words.
const MULTIPLIER: u64 = 0x5851_f42d_4c95_7f2d;
/// Difference between consecutive words of a value. A sum lets the CPU compute many words at a time; an odd step
/// repeats no word.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads a number over all 64 bits (the finisher of SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// YCSB's zipfian distribution: rank 0 is the most popular, with the constant 0.99. After Gray and others, "Quickly
/// generating billion-record synthetic databases" (1994).
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
    /// Creates a distribution over ranks below `count`. Takes time in proportion to `count`.
    pub(crate) fn new(count: u64, seed: u64) -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let (all, two) = (zeta(count), zeta(count.min(2)));
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - two / all);
        let rng = fastrand::Rng::with_seed(seed);
        Self { count: count as f64, zeta: all, eta, alpha: 1.0 / (1.0 - THETA), half: 0.5_f64.powf(THETA), rng }
    }

    /// Returns the same distribution with another seed.
    pub(crate) fn reseeded(&self, seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), ..self.clone() }
    }

    /// Draws the next rank from the distribution.
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

    /// Lengths of values, with and without a whole last word.
    const LENGTHS: [usize; 6] = [16, 17, 100, 1000, 1007, 1016];

    #[test]
    fn a_value_is_right_for_its_own_key_and_length_only_and_every_bit_counts() {
        for value_bytes in LENGTHS {
            let data = Data { count: 10, value_bytes, seed: 7 };
            let mut value = vec![0xff; 3];
            data.fill(3, 5, &mut value);
            assert_eq!(value.len(), value_bytes);
            assert_eq!(value[..8], 5_u64.to_le_bytes());
            assert!(data.is_right(3, &value));
            for at in 0..value_bytes {
                for bit in 0..8 {
                    value[at] ^= 1 << bit;
                    assert!(!data.is_right(3, &value), "bit {bit} of byte {at} of {value_bytes}");
                    value[at] ^= 1 << bit;
                }
            }
            assert!((0..1000).all(|other| other == 3 || !data.is_right(other, &value)), "of another key");
            assert!(!Data { seed: 8, ..data }.is_right(3, &value), "of another data set");
            for length in 0..value_bytes {
                assert!(!data.is_right(3, &value[..length]), "{length} of {value_bytes}");
            }
            // A prefix of a longer value is no valid value of this length.
            let longer = Data { value_bytes: value_bytes + 1, ..data }.changed(3, 5).1;
            assert!(longer.starts_with(&value) && !data.is_right(3, &longer));
        }
    }

    #[test]
    fn a_value_that_is_part_of_one_version_and_part_of_another_is_wrong_wherever_it_is_torn() {
        for value_bytes in LENGTHS {
            let data = Data { count: 10, value_bytes, seed: 7 };
            for (one, other) in [(0, 1), (5, 6), (1, 1 << 40), (u64::MAX, 0)] {
                let (one, other) = (data.changed(3, one).1, data.changed(3, other).1);
                for cut in 1..value_bytes {
                    for (front, back) in [(&one, &other), (&other, &one)] {
                        let torn = [&front[..cut], &back[cut..]].concat();
                        // Where both versions have the same bytes, the value is not torn.
                        let whole = torn == one || torn == other;
                        assert_eq!(data.is_right(3, &torn), whole, "torn at {cut} of {value_bytes}");
                        assert!(!whole || cut < 8 || value_bytes - cut < 8, "versions differ in every word");
                    }
                }
            }
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

//! Histograms of times and sizes: many threads add values at once, and a copy answers questions.
//!
//! Values below [`PARTS`] have a bucket each. Above, every power of two is divided into [`PARTS`] buckets of the same width, so a
//! bucket is never wider than an eighth of its least value, which bounds the error of every answer. All histograms have the same
//! buckets, so they can be added to each other.
//!
//! Kept true by: adding a value is two relaxed additions, to the bucket and to the sum. No decision depends on a histogram, so
//! a copy taken in between may have a value in one of the two only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets in each power of two, as a number of bits.
const PARTS_BITS: u32 = 3;
/// Buckets in each power of two, and number of values with a bucket each.
const PARTS: usize = 1 << PARTS_BITS;
/// Values of more bits than this count in the last bucket: as nanoseconds, 18 minutes.
const VALUE_BITS_MAX: u32 = 40;
/// Number of buckets.
const BUCKETS: usize = PARTS + (VALUE_BITS_MAX - PARTS_BITS) as usize * PARTS;

/// Returns the bucket of a value.
#[inline]
fn bucket_of(value: u64) -> usize {
    let value = value.min((1 << VALUE_BITS_MAX) - 1);
    if value < PARTS as u64 {
        return value as usize;
    }
    let shift = value.ilog2() - PARTS_BITS;
    (shift as usize) * PARTS + (value >> shift) as usize
}

/// Returns the least value of a bucket.
fn least_of(bucket: usize) -> u64 {
    match bucket.checked_sub(PARTS) {
        None => bucket as u64,
        Some(above) => ((PARTS + above % PARTS) as u64) << (above / PARTS),
    }
}

/// Returns the greatest value of a bucket. Of the last one it is the greatest value that does not belong to it for its size
/// alone.
fn greatest_of(bucket: usize) -> u64 {
    least_of(bucket + 1) - 1
}

/// A histogram to which threads add values. It has all its memory from the beginning: 2.4 KiB.
#[derive(Debug)]
pub(crate) struct AtomicHistogram {
    counts: Box<[AtomicU64; BUCKETS]>,
    sum: AtomicU64,
}

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self { counts: Box::new([const { AtomicU64::new(0) }; BUCKETS]), sum: AtomicU64::new(0) }
    }
}

impl AtomicHistogram {
    /// Adds a value.
    #[inline]
    pub(crate) fn add(&self, value: u64) {
        self.counts[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Adds a time, in nanoseconds.
    #[inline]
    pub(crate) fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns a copy of the present state.
    pub(crate) fn copy(&self) -> Histogram {
        let mut counts: Vec<u64> = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        trim(&mut counts);
        Histogram { counts, sum: self.sum.load(Ordering::Relaxed) }
    }
}

/// Removes the empty buckets at the end, so that equal histograms have equal lists.
fn trim(counts: &mut Vec<u64>) {
    let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts.truncate(used);
}

/// A histogram: how many values of which size were counted. Times are in nanoseconds.
///
/// Values are counted in buckets at most an eighth as wide as their least value, up to 2⁴⁰ (18 minutes in
/// nanoseconds; greater ones count in the last bucket). The sum is exact.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// let before = db.stats().histograms.commit_ns;
/// stock.put("apples", "12")?;
/// stock.put("pears", "3")?;
/// let commits = db.stats().histograms.commit_ns.since(&before);
/// assert_eq!(commits.count(), 2);
/// println!("half of the commits took {} ns at most, all {}", commits.percentile(50.0), commits.percentile(100.0));
/// for bucket in commits.buckets() {
///     println!("{} commits of {} to {} ns", bucket.count, bucket.least, bucket.greatest);
/// }
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Number of values in each bucket, up to the last one that is not empty.
    counts: Vec<u64>,
    sum: u64,
}

/// A bucket of a [`Histogram`] that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The least value belonging to the bucket.
    pub least: u64,
    /// The greatest value belonging to the bucket. The last bucket there is has greater ones as well.
    pub greatest: u64,
    /// Number of values in the bucket.
    pub count: u64,
}

impl Histogram {
    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the mean of all values; 0 without values.
    pub fn mean(&self) -> f64 {
        if self.counts.is_empty() { 0.0 } else { self.sum as f64 / self.count() as f64 }
    }

    /// Returns a value that `percent` percent of the values do not exceed: the greatest value of the bucket in which the
    /// percentile lies, so at most an eighth too much and never too little. 0 without values; 100 asks for the greatest
    /// value.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.count() as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil().max(1.0) as u64;
        let mut passed = 0;
        let reaches = |count: &u64| {
            passed += count;
            passed >= rank
        };
        // By rounding the rank may be greater than the count.
        let bucket = self.counts.iter().position(reaches).or(self.counts.len().checked_sub(1));
        bucket.map_or(0, greatest_of)
    }

    /// Returns the buckets that are not empty, from the least values to the greatest.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let used = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        used.map(|(bucket, count)| Bucket { least: least_of(bucket), greatest: greatest_of(bucket), count: *count })
    }

    /// Adds the values of another histogram, such as another database's.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Returns the values added after `earlier`, an earlier copy of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.counts.iter().chain(std::iter::repeat(&0));
        let mut counts: Vec<u64> =
            self.counts.iter().zip(before).map(|(now, then)| now.saturating_sub(*then)).collect();
        trim(&mut counts);
        Self { counts, sum: self.sum.wrapping_sub(earlier.sum) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Histogram {
        let histogram = AtomicHistogram::default();
        values.iter().for_each(|value| histogram.add(*value));
        histogram.copy()
    }

    /// Values of every size.
    fn values() -> impl Strategy<Value = Vec<u64>> {
        let value =
            (0_u32..VALUE_BITS_MAX).prop_flat_map(|bits| (1_u64 << bits) - 1..1 << (bits + 1).min(VALUE_BITS_MAX - 1));
        proptest::collection::vec(value, 1..200)
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap_and_are_narrow() {
        for bucket in 0..BUCKETS {
            let (least, greatest) = (least_of(bucket), greatest_of(bucket));
            assert_eq!((bucket_of(least), bucket_of(greatest)), (bucket, bucket));
            assert!((greatest - least) * 8 <= least, "bucket {bucket}: {least} to {greatest}");
            assert_eq!(bucket_of(greatest + 1), (bucket + 1).min(BUCKETS - 1));
        }
        assert_eq!(least_of(BUCKETS), 1 << VALUE_BITS_MAX);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_empty_histogram_answers() {
        let empty = of(&[]);
        assert_eq!((empty.count(), empty.sum(), empty.percentile(50.0), empty.buckets().count()), (0, 0, 0, 0));
        assert_eq!(empty, Histogram::default());
    }

    #[test]
    fn threads_lose_no_value() {
        let histogram = AtomicHistogram::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let histogram = &histogram;
                scope.spawn(move || (0..10_000).for_each(|value| histogram.add(value * (thread + 1))));
            }
        });
        let copy = histogram.copy();
        assert_eq!((copy.count(), copy.sum()), (40_000, 10 * 9_999 * 5_000));
    }

    proptest! {
        #[test]
        fn percentiles_agree_with_sorted_values(mut values in values(), percent in 0.0_f64..=100.0) {
            let histogram = of(&values);
            values.sort_unstable();
            let rank = ((values.len() as f64 * percent / 100.0).ceil() as usize).clamp(1, values.len());
            let (exact, answer) = (values[rank - 1], histogram.percentile(percent));
            prop_assert!(answer >= exact && answer - exact <= exact / 8, "{answer} for {exact}");
            prop_assert_eq!(histogram.count(), values.len() as u64);
            prop_assert_eq!(histogram.sum(), values.iter().sum::<u64>());
            for bucket in histogram.buckets() {
                let inside = values.iter().filter(|value| (bucket.least..=bucket.greatest).contains(value)).count();
                prop_assert_eq!(bucket.count, inside as u64);
            }
        }

        #[test]
        fn merging_and_taking_away_agree_with_lists(first in values(), second in values()) {
            let mut both = of(&first);
            both.merge(&of(&second));
            prop_assert_eq!(&both, &of(&[&first[..], &second[..]].concat()));
            prop_assert_eq!(both.since(&of(&first)), of(&second));
        }
    }
}

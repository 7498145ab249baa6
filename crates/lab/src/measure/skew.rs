//! Random orders in which some blocks are read more often than others: a zipfian one, and one with a hot set. Popular
//! blocks lie scattered over the data, as they do in a database, and at the same places for every thread and trial.

use crate::machine::content;
use crate::measure::entries::{Zipfian, mix};

/// The blocks that a skewed order prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skew {
    /// YCSB's zipfian distribution, with the constant 0.99.
    Zipf,
    /// A set of hot blocks takes a share of the reads; the others are uniform over all blocks.
    HotSet {
        /// Number of blocks in the hot set.
        blocks: u64,
        /// Share of the reads that go to the hot set, in percent.
        percent: u8,
    },
}

/// State of a skewed order ([`super::workload::Order::Skewed`]).
#[derive(Clone)]
pub struct SkewedOrder {
    ranks: Ranks,
    scatter: Scatter,
}

impl std::fmt::Debug for SkewedOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SkewedOrder").field("scatter", &self.scatter).finish_non_exhaustive()
    }
}

/// Draws ranks: 0 is the most popular block.
#[derive(Clone)]
enum Ranks {
    Zipf(Zipfian),
    HotSet { chance: fastrand::Rng, count: u64, hot: u64, percent: u8 },
}

impl SkewedOrder {
    /// Creates the orders of `threads` threads over `count` blocks. The sequence of each depends on seed and thread alone.
    /// A zipfian order takes time in proportion to `count`, once for all threads.
    pub(super) fn many(skew: Skew, count: u64, seed: u64, threads: u32) -> Vec<Self> {
        let zipfian = (skew == Skew::Zipf).then(|| Zipfian::new(count.max(1), 0));
        let order = |thread: u32| {
            let seed = content::tag(seed, u64::from(thread));
            let ranks = match (&zipfian, skew) {
                (Some(zipfian), _) => Ranks::Zipf(zipfian.reseeded(seed)),
                (None, Skew::HotSet { blocks, percent }) => {
                    let hot = blocks.clamp(1, count.max(1));
                    Ranks::HotSet { chance: fastrand::Rng::with_seed(seed), count: count.max(1), hot, percent }
                }
                (None, Skew::Zipf) => Ranks::Zipf(Zipfian::new(count.max(1), seed)),
            };
            Self { ranks, scatter: Scatter::over(count) }
        };
        (0..threads).map(order).collect()
    }

    #[inline]
    pub(super) fn next_block(&mut self) -> u64 {
        let rank = match &mut self.ranks {
            Ranks::Zipf(zipfian) => zipfian.next(),
            Ranks::HotSet { chance, count, hot, percent } => {
                let end = if chance.u8(0..100) < *percent { *hot } else { *count };
                chance.u64(0..end)
            }
        };
        self.scatter.block(rank)
    }
}

/// A permutation of the blocks that puts neighbouring ranks far apart: multiplication by a number that shares no factor with
/// the count.
#[derive(Debug, Clone, Copy)]
pub struct Scatter {
    count: u64,
    factor: u64,
}

impl Scatter {
    /// Creates the permutation of `count` blocks; it depends on the count alone.
    pub fn over(count: u64) -> Self {
        let count = count.max(1);
        // Near the golden section of the count, where multiples are spread most evenly; then the next number without a
        // common factor, with an offset from the count so that the multiples form no visible grid.
        let start = (count as f64 * 0.618_033_988_75) as u64 + mix(count) % 1024.min(count);
        let coprime = |factor: &u64| common_factor(*factor % count, count) == 1 || count == 1;
        let factor = (start.max(1)..start + 4096).find(coprime).unwrap_or(1) % count;
        Self { count, factor: factor.max(1) }
    }

    /// Returns the block with this rank, which must be below the count.
    #[inline]
    pub fn block(self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.factor) % u128::from(self.count)) as u64
    }
}

fn common_factor(mut a: u64, mut b: u64) -> u64 {
    while a > 0 {
        (a, b) = (b % a, a);
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_block_of_its_own() {
        for count in [1, 2, 3, 6, 97, 4096, 65_536, 99_991] {
            let scatter = Scatter::over(count);
            let mut seen = vec![false; count as usize];
            for rank in 0..count {
                let block = scatter.block(rank) as usize;
                assert!(!std::mem::replace(&mut seen[block], true), "{count}: {block} twice");
            }
        }
    }

    #[test]
    fn neighbouring_ranks_lie_far_apart() {
        let scatter = Scatter::over(65_536);
        let near = (1..1000).filter(|rank| scatter.block(*rank).abs_diff(scatter.block(rank - 1)) < 64).count();
        assert_eq!(near, 0);
    }

    #[test]
    fn a_hot_set_takes_its_share_and_all_blocks_are_reached() {
        let hot: std::collections::HashSet<u64> = (0..100).map(|rank| Scatter::over(1000).block(rank)).collect();
        let mut order = SkewedOrder::many(Skew::HotSet { blocks: 100, percent: 95 }, 1000, 7, 2).remove(1);
        let blocks: Vec<u64> = (0..300_000).map(|_| order.next_block()).collect();
        let share = blocks.iter().filter(|block| hot.contains(block)).count();
        // 95 % and a tenth of the rest.
        assert!((285_000..288_000).contains(&share), "{share}");
        let distinct: std::collections::HashSet<&u64> = blocks.iter().collect();
        assert_eq!(distinct.len(), 1000);
    }

    #[test]
    fn threads_of_a_zipfian_order_prefer_the_same_blocks_in_sequences_of_their_own() {
        let mut orders = SkewedOrder::many(Skew::Zipf, 1000, 7, 2);
        let mut draw = |thread: usize| (0..1000).map(|_| orders[thread].next_block()).collect::<Vec<_>>();
        let (a, b) = (draw(0), draw(1));
        let first = Scatter::over(1000).block(0);
        assert!(a != b && [a, b].iter().all(|all| all.iter().filter(|block| **block == first).count() > 80));
    }
}

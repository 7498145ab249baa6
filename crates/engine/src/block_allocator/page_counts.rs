//! The number of pages in each block that compressed pages share (`format::compressed`): such a block is released with
//! the last of its pages.
//!
//! For each block it is also known with how many pages it was written, unless that was before the database was opened
//! and the block was not read since. So it is known how many blocks are partly empty, and how many could be saved.

use rustc_hash::FxHashMap;

use super::{GROUP_BLOCKS, group_of};
use crate::format::BlockId;

/// Counts up to this one are told apart when blocks are counted by their pages.
const COUNT_MAX: usize = 64;
/// The blocks with the most pages, one of so many, tell how many pages a full block has where that is not known.
const FULL_SHARE: u64 = 4;

/// The counts of one block: pages left, and pages with which it was written, zero if that is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    left: u8,
    written: u8,
}

/// The counts of one group of blocks.
type GroupCounts = Box<[Count; GROUP_BLOCKS as usize]>;

/// Counts the pages of shared blocks. A block without a count belongs to one page, or is free.
#[derive(Debug, Default)]
pub(crate) struct PageCounts {
    groups: FxHashMap<u32, GroupCounts>,
    pages: u64,
    blocks: u64,
    /// Number of blocks by the pages with which they were written, and by the pages left. Empty before the first shared
    /// block.
    by_count: Vec<[u64; COUNT_MAX + 1]>,
}

/// The share of shared blocks that is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct PackedBlocks {
    /// Number of shared blocks.
    pub(crate) blocks: u64,
    /// Estimate of the number of blocks that their pages need.
    needed: f64,
    /// Estimate of the number of pages in a full block, for blocks of which that is not known.
    full: f64,
}

impl PackedBlocks {
    /// Returns the estimated number of blocks that the pages do not need.
    pub(crate) fn excess(&self) -> f64 {
        self.blocks as f64 - self.needed
    }
}

impl PageCounts {
    fn count(&self, block: BlockId) -> Count {
        let group = self.groups.get(&(group_of(block) as u32));
        group.map_or(Count::default(), |counts| counts[(block.0 % GROUP_BLOCKS) as usize])
    }

    /// Returns the number of pages in a shared block; zero for any other.
    pub(super) fn of(&self, block: BlockId) -> u8 {
        self.count(block).left
    }

    /// Adds pages to the count of a block, which was written with `written` pages, zero if that is unknown. Returns
    /// false, without a change, when the count cannot be that high.
    pub(super) fn add(&mut self, block: BlockId, pages: u8, written: u8) -> bool {
        let before = self.count(block);
        let Some(left) = before.left.checked_add(pages) else { return false };
        self.set(block, Count { left, written });
        true
    }

    /// Removes one page from the count of a block. Returns whether the block has no page left; a block without a count
    /// has none after its only page.
    pub(super) fn remove_page(&mut self, block: BlockId) -> bool {
        let before = self.count(block);
        let Some(left) = before.left.checked_sub(1) else { return true };
        let written = if left == 0 { 0 } else { before.written };
        self.set(block, Count { left, written });
        left == 0
    }

    /// Notes with how many pages a shared block was written.
    pub(super) fn learn(&mut self, block: BlockId, written: u8) {
        let before = self.count(block);
        if before.left > 0 && before.written == 0 {
            self.set(block, Count { written: written.max(before.left), ..before });
        }
    }

    /// Sets the count of a block, and the totals with it.
    fn set(&mut self, block: BlockId, count: Count) {
        let empty = || Box::new([Count::default(); GROUP_BLOCKS as usize]);
        let counts = self.groups.entry(group_of(block) as u32).or_insert_with(empty);
        let before = std::mem::replace(&mut counts[(block.0 % GROUP_BLOCKS) as usize], count);
        if self.by_count.is_empty() {
            self.by_count = vec![[0; COUNT_MAX + 1]; COUNT_MAX + 1];
        }
        let place = |count: Count| (usize::from(count.written).min(COUNT_MAX), usize::from(count.left).min(COUNT_MAX));
        for (count, is_new) in [(before, false), (count, true)] {
            if count.left == 0 {
                continue;
            }
            let (written, left) = place(count);
            let of_kind = &mut self.by_count[written][left];
            if is_new {
                (*of_kind, self.blocks, self.pages) =
                    (*of_kind + 1, self.blocks + 1, self.pages + u64::from(count.left));
            } else {
                (*of_kind, self.blocks, self.pages) =
                    (*of_kind - 1, self.blocks - 1, self.pages - u64::from(count.left));
            }
        }
    }

    /// Forgets a group that has no used block any more.
    pub(super) fn forget_group(&mut self, group: u32) {
        let forgotten = self.groups.remove(&group);
        debug_assert!(forgotten.is_none_or(|counts| counts.iter().all(|count| count.left == 0)), "a block with pages");
    }

    /// Returns the number of pages in shared blocks, and of these blocks.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.pages, self.blocks)
    }

    /// Returns how much of the shared blocks is in use.
    pub(crate) fn packed(&self) -> PackedBlocks {
        let full = self.pages_of_full();
        let mut needed = 0.0;
        for (written, by_left) in self.by_count.iter().enumerate() {
            let of_full = if written == 0 { full } else { written as f64 };
            for (left, blocks) in by_left.iter().enumerate().filter(|(_, blocks)| **blocks > 0) {
                needed += *blocks as f64 * (left as f64 / of_full).min(1.0);
            }
        }
        PackedBlocks { blocks: self.blocks, needed, full }
    }

    /// Returns the mean number of pages of the fullest blocks of which it is unknown with how many they were written.
    fn pages_of_full(&self) -> f64 {
        let Some(unknown) = self.by_count.first() else { return 1.0 };
        let wanted = unknown.iter().sum::<u64>().div_ceil(FULL_SHARE);
        let (mut blocks, mut pages) = (0, 0);
        for (left, count) in unknown.iter().enumerate().rev() {
            let taken = (wanted - blocks).min(*count);
            (blocks, pages) = (blocks + taken, pages + taken * left as u64);
        }
        if blocks == 0 { 1.0 } else { pages as f64 / blocks as f64 }
    }

    /// Returns whether less than `share` of a shared block is in use, as far as that is known.
    pub(crate) fn is_loose(&self, block: BlockId, packed: &PackedBlocks, share: f64) -> bool {
        let count = self.count(block);
        let full = if count.written == 0 { packed.full } else { f64::from(count.written) };
        count.left > 0 && f64::from(count.left) < full * share
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let group_bytes = size_of::<[Count; GROUP_BLOCKS as usize]>();
        let table = self.by_count.len() * size_of::<[u64; COUNT_MAX + 1]>();
        self.groups.len() * group_bytes + self.groups.capacity() * (size_of::<(u32, GroupCounts)>() + 1) + table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_loose_by_what_they_were_written_with_or_by_the_fullest_of_those_of_which_that_is_unknown() {
        let mut counts = PageCounts::default();
        let block = |number: u64| BlockId(1000 + number);
        for number in 0..8 {
            assert!(counts.add(block(number), 6, 6));
        }
        assert_eq!(counts.packed(), PackedBlocks { blocks: 8, needed: 8.0, full: 1.0 });
        for number in 0..4 {
            (0..4).for_each(|_| assert!(!counts.remove_page(block(number))));
        }
        let packed = counts.packed();
        assert!((packed.needed - (4.0 + 4.0 / 3.0)).abs() < 1e-9 && packed.blocks == 8, "{packed:?}");
        assert!(counts.is_loose(block(0), &packed, 0.5) && !counts.is_loose(block(4), &packed, 1.0));
        assert!(!counts.is_loose(block(9), &packed, 1.0), "not shared");
        // As an opening counts them.
        for number in 20..28 {
            let pages = if number < 22 { 9 } else { 3 };
            (0..pages).for_each(|_| assert!(counts.add(block(number), 1, 0)));
        }
        let packed = counts.packed();
        assert!(counts.is_loose(block(27), &packed, 0.5) && !counts.is_loose(block(20), &packed, 0.5), "{packed:?}");
        counts.learn(block(27), 3);
        counts.learn(block(0), 99);
        assert!(!counts.is_loose(block(27), &counts.packed(), 0.5), "it was written with three pages");
        assert!(!counts.remove_page(block(0)) && counts.remove_page(block(0)) && counts.remove_page(block(0)));
        assert_eq!(counts.totals(), (66, 15));
    }
}

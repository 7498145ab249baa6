//! Groups of blocks: which blocks of a group are in use, and sets of groups to be emptied.

use std::ops::Range;

use rustc_hash::FxHashSet;

use super::{GROUP_BLOCKS, SPARE_BLOCKS, group_of};
use crate::format::BlockId;

/// Width of a class of groups with similar numbers of free blocks: a group changes its class only when its free count
/// crosses a multiple of this.
pub(super) const CLASS_BLOCKS: u32 = 32;
pub(super) const GROUP_WORDS: usize = (GROUP_BLOCKS / 64) as usize;

/// The blocks of a group.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// A bit for each block, set when it is in use.
    pub(super) used: [u64; GROUP_WORDS],
    /// Number of free blocks.
    pub(super) free: u32,
}

impl Group {
    /// Returns a group of free blocks.
    pub(super) fn empty() -> Self {
        Self { used: [0; GROUP_WORDS], free: GROUP_BLOCKS as u32 }
    }

    /// Returns a group in which these blocks are in use.
    pub(super) fn of_used(used: [u64; GROUP_WORDS]) -> Self {
        Self { used, free: used.iter().map(|word| word.count_zeros()).sum() }
    }

    /// Returns the free block of this group that is nearest to `wanted`; both are indexes in the group.
    pub(super) fn nearest_free(&self, wanted: u64) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        let is_free = |at: u64| self.used[(at / 64) as usize] >> (at % 64) & 1 == 0;
        (0..GROUP_BLOCKS).find_map(|distance| {
            let after = wanted + distance;
            if after < GROUP_BLOCKS && is_free(after) {
                return Some(after);
            }
            wanted.checked_sub(distance).filter(|before| is_free(*before))
        })
    }

    /// Returns the first run of `want` free blocks in this group, or the longest run if none is that long, as indexes
    /// in the group. Leaves the spare blocks free.
    pub(super) fn longest_row(&self, want: u64) -> Range<u64> {
        let want = want.min(u64::from(self.free.saturating_sub(SPARE_BLOCKS)));
        let is_free = |at: u64| self.used[(at / 64) as usize] >> (at % 64) & 1 == 0;
        let (mut best, mut start) = (0..0, 0);
        for at in 0..GROUP_BLOCKS {
            if !is_free(at) {
                start = at + 1;
            } else if at + 1 - start > best.end - best.start {
                best = start..at + 1;
            }
            if best.end - best.start >= want {
                break;
            }
        }
        best.start..best.end.min(best.start + want)
    }
}

/// Returns the word and the bit of a block in its group.
pub(super) fn place_in_group(block: BlockId) -> (usize, u64) {
    let at = block.0 % GROUP_BLOCKS;
    ((at / 64) as usize, at % 64)
}

/// The groups of blocks that a compaction empties, and the groups with free blocks that receive their pages.
#[derive(Debug, Clone)]
pub(crate) struct GroupsToEmpty {
    pub(super) from: FxHashSet<u64>,
    pub(super) into: Vec<u64>,
}

impl GroupsToEmpty {
    /// Returns whether no group is to be emptied.
    pub(crate) fn is_empty(&self) -> bool {
        self.from.is_empty()
    }

    /// Returns whether a block lies in a group that the compaction empties.
    pub(crate) fn concerns(&self, block: BlockId) -> bool {
        self.from.contains(&group_of(block))
    }
}

/// Returns the class of a group with so many free blocks.
pub(super) const fn class_of(free: u32) -> u32 {
    free / CLASS_BLOCKS
}

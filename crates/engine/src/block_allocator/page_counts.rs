//! The number of pages in each block that compressed pages share (`format::compressed`): such a block is released with
//! the last of its pages.

use rustc_hash::FxHashMap;

use super::{GROUP_BLOCKS, group_of};
use crate::format::BlockId;

/// The counts of one group of blocks, a byte a block.
type GroupCounts = Box<[u8; GROUP_BLOCKS as usize]>;

/// Counts the pages of shared blocks. A block without a count belongs to one page, or is free.
#[derive(Debug, Default)]
pub(super) struct PageCounts {
    groups: FxHashMap<u32, GroupCounts>,
    pages: u64,
    blocks: u64,
}

impl PageCounts {
    /// Returns the number of pages in a shared block; zero for any other.
    pub(super) fn of(&self, block: BlockId) -> u8 {
        let group = self.groups.get(&(group_of(block) as u32));
        group.map_or(0, |counts| counts[(block.0 % GROUP_BLOCKS) as usize])
    }

    /// Adds pages to the count of a block. Returns false, without a change, when the count cannot be that high.
    pub(super) fn add(&mut self, block: BlockId, pages: u8) -> bool {
        let counts = self.groups.entry(group_of(block) as u32).or_insert_with(|| Box::new([0; GROUP_BLOCKS as usize]));
        let count = &mut counts[(block.0 % GROUP_BLOCKS) as usize];
        let Some(more) = count.checked_add(pages) else { return false };
        self.blocks += u64::from(*count == 0);
        self.pages += u64::from(pages);
        *count = more;
        true
    }

    /// Removes one page from the count of a block. Returns whether the block has no page left; a block without a count
    /// has none after its only page.
    pub(super) fn remove_page(&mut self, block: BlockId) -> bool {
        let counts = self.groups.get_mut(&(group_of(block) as u32));
        let Some(count) = counts.map(|counts| &mut counts[(block.0 % GROUP_BLOCKS) as usize]) else { return true };
        if *count == 0 {
            return true;
        }
        *count -= 1;
        self.pages -= 1;
        self.blocks -= u64::from(*count == 0);
        *count == 0
    }

    /// Forgets a group that has no used block any more.
    pub(super) fn forget_group(&mut self, group: u32) {
        let forgotten = self.groups.remove(&group);
        debug_assert!(forgotten.is_none_or(|counts| counts.iter().all(|count| *count == 0)), "a block with pages");
    }

    /// Returns the number of pages in shared blocks, and of these blocks.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.pages, self.blocks)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.groups.len() * GROUP_BLOCKS as usize + self.groups.capacity() * (size_of::<(u32, GroupCounts)>() + 1)
    }
}

//! The block allocator: tracks the used blocks of the data file, and chooses the block of the next page.
//!
//! No page is ever overwritten, so each write of a page needs a new block. Scans are fast only while pages that are
//! neighbours in key order stay near each other on disk; therefore a page goes *near its old place*: into the same
//! group of blocks if that has room, else into a neighbouring group, and only then elsewhere. A scan that asks for a
//! window of pages and sorts them by block then still reads a few large pieces (`fragmentation` measures it).
//!
//! The set of used blocks is not stored on disk: the page table names every block in use, so opening rebuilds this map.
//!
//! Invariant: [`BlockAllocator::release`] only defers. A deferred block is free once a later checkpoint is durable
//! ([`BlockAllocator::checkpoint_durable`]) and no snapshot or backup holds it ([`DeferredBlocks::hold`]). Only blocks
//! in which no page was stored need no checkpoint ([`BlockAllocator::give_back`], [`BlockAllocator::set_aside`]): on a
//! disk that refuses writes, no checkpoint becomes durable either.

use std::ops::Range;

use self::deferred::DeferredBlocks;
pub(crate) use self::group::GroupsToEmpty;
pub(crate) use self::page_counts::PageCounts;
pub(crate) use self::placement::Placement;
use self::space::Space;
use self::unnamed::UnnamedBlocks;
use crate::format::BlockId;
use crate::sync::budget::Budget;

mod deferred;
#[cfg(test)]
mod fragmentation;
mod group;
mod groups;
mod page_counts;
mod placement;
mod space;
#[cfg(test)]
mod tests;
mod unnamed;

/// Number of blocks in a group, the unit in which "near" is measured and spare room is kept: 1 MiB with pages of 4 KiB.
pub(crate) const GROUP_BLOCKS: u64 = 256;
/// Number of blocks that sequential allocation leaves free in each group, for the pages that will be rewritten there.
const SPARE_BLOCKS: u32 = 8;
/// Number of groups on each side of a block's own group that count as near it.
const NEAR_GROUPS: u64 = 4;
/// Most blocks of one contiguous run: a group without its spare blocks.
pub(crate) const ROW_BLOCKS_MAX: u64 = GROUP_BLOCKS - SPARE_BLOCKS as u64;
/// Steps of a `Budget` that freeing one block spends.
const STEPS_A_BLOCK: usize = 2;

/// Allocates and frees the blocks of one data file.
#[derive(Debug)]
pub(crate) struct BlockAllocator {
    /// The blocks of the file, used and free.
    pub(crate) space: Space,
    /// The group that takes new pages, which have no old place, until it is full.
    open_group: Option<u32>,
    /// Used blocks that are not needed any more and become free later.
    pub(crate) deferred: DeferredBlocks,
    /// The pages of blocks that several pages share.
    pub(crate) pages: PageCounts,
    /// The used blocks that no checkpoint names.
    unnamed: UnnamedBlocks,
    /// While the file is being made shorter: the first group that takes no more pages as long as a group before it can.
    ceiling: Option<u64>,
    placed: Placement,
}

/// Returns the group that a block lies in.
pub(crate) fn group_of(block: BlockId) -> u64 {
    block.0 / GROUP_BLOCKS
}

/// The error returned when no block is free and the file may not grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoFreeBlocks;

impl BlockAllocator {
    /// Creates the allocator of an empty file that may grow to `blocks_max` blocks. Blocks before `first_block` are
    /// never allocated.
    pub(crate) fn new(first_block: u64, blocks_max: u64) -> Self {
        Self {
            space: Space::new(first_block, blocks_max),
            open_group: None,
            deferred: DeferredBlocks::default(),
            pages: PageCounts::default(),
            unnamed: UnnamedBlocks::default(),
            ceiling: None,
            placed: Placement::default(),
        }
    }

    /// Marks a block as used by one more of the compressed pages that share it, while a page table is loaded. Returns
    /// false when something else uses the block.
    pub(crate) fn mark_page(&mut self, block: BlockId) -> bool {
        (self.pages.of(block) > 0 || self.space.mark_used(block)) && self.pages.add(block, 1, 0)
    }

    /// Notes that an allocated block was written with this many compressed pages. Each of them is to be released.
    pub(crate) fn share(&mut self, block: BlockId, pages: usize) {
        debug_assert!(self.space.is_used(block) && self.pages.of(block) == 0, "{block:?} is free or shared");
        let pages = u8::try_from(pages).unwrap_or(u8::MAX);
        let noted = self.pages.add(block, pages, pages);
        debug_assert!(noted, "too many pages in a block");
    }

    /// Notes with how many compressed pages a block was written, as its bytes say.
    pub(crate) fn learn_shared(&mut self, block: BlockId, pages: usize) {
        self.pages.learn(block, u8::try_from(pages).unwrap_or(u8::MAX));
    }

    /// Returns the number of pages that lie in a used block: old versions that a checkpoint or a reader needs count.
    pub(crate) fn pages_in(&self, block: BlockId) -> usize {
        usize::from(self.pages.of(block)).max(1)
    }

    /// Allocates a block for a page that was at `near`, or that belongs next to the page there.
    ///
    /// # Errors
    /// `NoFreeBlocks` when every block is used and the file is at its largest.
    pub(crate) fn allocate_near(&mut self, near: BlockId) -> Result<BlockId, NoFreeBlocks> {
        let home = near.0 / GROUP_BLOCKS;
        if home >= self.space.group_count() {
            return self.allocate();
        }
        if let Some(block) = self.take_below_ceiling(home, near.0 % GROUP_BLOCKS) {
            self.placed.same_group += 1;
            return Ok(block);
        }
        for distance in 1..=NEAR_GROUPS {
            if let Some(block) = self.take_below_ceiling(home + distance, 0) {
                self.placed.near_group += 1;
                return Ok(block);
            }
            let before = home.checked_sub(distance);
            if let Some(block) = before.and_then(|group| self.take_below_ceiling(group, GROUP_BLOCKS - 1)) {
                self.placed.near_group += 1;
                return Ok(block);
            }
        }
        self.placed.far += 1;
        self.allocate_anywhere(0)
    }

    /// Allocates a block for a page without an old place. Consecutive calls return neighbouring blocks as long as there
    /// is room.
    ///
    /// # Errors
    /// `NoFreeBlocks` when every block is used and the file is at its largest.
    pub(crate) fn allocate(&mut self) -> Result<BlockId, NoFreeBlocks> {
        self.placed.fresh += 1;
        self.allocate_anywhere(SPARE_BLOCKS)
    }

    fn allocate_anywhere(&mut self, spare: u32) -> Result<BlockId, NoFreeBlocks> {
        if let Some(open) = self.open_group
            && u64::from(open) < self.ceiling()
            && self.space.group(open).is_some_and(|group| group.free > spare)
            && let Some(block) = self.take_nearest(u64::from(open), 0)
        {
            return Ok(block);
        }
        let ceiling = self.ceiling();
        let next = self.space.next_group(ceiling).or_else(|| self.space.next_group(u64::MAX)).ok_or(NoFreeBlocks)?;
        self.open_group = Some(next);
        self.take_nearest(u64::from(next), 0).ok_or(NoFreeBlocks)
    }

    /// Returns the first group that takes no pages as long as a group before it can.
    fn ceiling(&self) -> u64 {
        self.ceiling.unwrap_or(u64::MAX)
    }

    fn take_nearest(&mut self, group: u64, wanted: u64) -> Option<BlockId> {
        self.space.take_nearest(group, wanted).inspect(|block| self.unnamed.insert(*block))
    }

    fn take_below_ceiling(&mut self, group: u64, wanted: u64) -> Option<BlockId> {
        if group < self.ceiling() { self.take_nearest(group, wanted) } else { None }
    }

    /// Allocates consecutive blocks for pages that are to lie together: `want` of them (at most `ROW_BLOCKS_MAX`), or a
    /// shorter run of at least `least` blocks. The file may grow for this as long as it ends before block `end_max`.
    /// Searches behind `after` first, so that runs allocated one after another are neighbours as well.
    ///
    /// # Errors
    /// `NoFreeBlocks` when no free run has `least` blocks.
    pub(crate) fn allocate_row(
        &mut self,
        want: u64,
        least: u64,
        after: Option<BlockId>,
        end_max: u64,
    ) -> Result<Range<u64>, NoFreeBlocks> {
        let row = self.space.take_row((want, least), after, (self.ceiling(), end_max)).ok_or(NoFreeBlocks)?;
        row.clone().for_each(|block| self.unnamed.insert(BlockId(block)));
        Ok(row)
    }

    /// Allocates a block in one of the groups that receive the pages of emptied groups; `None` when these have no free
    /// block left.
    pub(crate) fn allocate_into(&mut self, groups: &mut GroupsToEmpty) -> Option<BlockId> {
        while let Some(group) = groups.into.last() {
            if let Some(block) = self.take_nearest(*group, 0) {
                return Some(block);
            }
            groups.into.pop();
        }
        None
    }

    /// Sets the first group that takes no more pages while one before it can, as the file becomes shorter; `None` ends it.
    pub(crate) fn set_ceiling(&mut self, group: Option<u64>) {
        self.ceiling = group;
    }

    /// Forgets empty groups at the end of the file: some of them a call, and returns whether to call again. Afterwards
    /// the blocks from [`Space::end_block`] on are in use by nothing, and the file may end there.
    pub(crate) fn forget_empty_end(&mut self) -> bool {
        let is_left = self.space.forget_empty_end(|group| self.pages.forget_group(group));
        self.open_group.take_if(|open| u64::from(*open) >= self.space.group_count());
        is_left
    }

    /// Returns whether the next new page would go into a group that is more than half full, because no emptier group
    /// exists.
    pub(crate) fn is_cramped(&self) -> bool {
        let open =
            self.open_group.and_then(|open| self.space.group(open)).is_some_and(|group| group.free > SPARE_BLOCKS);
        self.ceiling.is_none() && !open && !self.space.has_roomy_group()
    }

    /// Returns the counts of page placements by their distance from the wanted place.
    pub(crate) fn placement(&self) -> Placement {
        self.placed
    }

    /// Returns about how many bytes of memory the allocator uses.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.space.memory_bytes()
            + self.deferred.memory_bytes()
            + self.pages.memory_bytes()
            + self.unnamed.memory_bytes()) as u64
    }

    /// Notes that the page table of a checkpoint, durable or to come, names this block.
    pub(crate) fn note_named(&mut self, block: BlockId) {
        self.unnamed.remove(block);
    }

    /// Releases the block of a page that the current state does not have any more, unless other pages share it. If a
    /// checkpoint names it, it becomes free once a checkpoint that *begins* after this call is durable, because the last
    /// durable checkpoint may still refer to it; otherwise it is free at once, or when its last hold ends.
    pub(crate) fn release(&mut self, block: BlockId) {
        debug_assert!(self.space.is_used(block), "released a free block {block:?}");
        if !self.pages.remove_page(block) {
            return;
        }
        if !self.unnamed.remove(block) {
            self.deferred.release(block);
        } else if !self.deferred.wait_if_held(block) {
            self.space.free(block);
        }
    }

    /// Frees at once a block that was allocated and in which no page was stored, because the disk was full or the write
    /// was never attempted.
    pub(crate) fn give_back(&mut self, block: BlockId) {
        debug_assert!(self.space.is_used(block), "gave back a free block {block:?}");
        self.unnamed.remove(block);
        self.space.free(block);
    }

    /// Takes back a block to which a write failed or stored wrong bytes. The block may be bad, so others are tried first:
    /// it becomes free after many more failures, or when a checkpoint is durable.
    pub(crate) fn set_aside(&mut self, block: BlockId) {
        debug_assert!(self.space.is_used(block), "set aside a free block {block:?}");
        self.unnamed.remove(block);
        if let Some(oldest) = self.deferred.set_aside(block) {
            self.space.free(oldest);
        }
    }

    /// Notes that the checkpoint that began last is durable. Frees some of the blocks to which only the checkpoint
    /// before it referred, and the blocks set aside; returns how many. To be called until it returns zero.
    pub(crate) fn checkpoint_durable(&mut self) -> usize {
        let mut budget = Budget::new();
        let mut ended = 0;
        while !budget.is_spent()
            && let Some((block, is_free)) = self.deferred.take_expired()
        {
            if is_free {
                self.space.free(block);
            }
            ended += 1;
            budget.spend(STEPS_A_BLOCK);
        }
        let set_aside = self.deferred.take_set_aside();
        set_aside.iter().for_each(|block| self.space.free(*block));
        ended + set_aside.len()
    }

    /// Frees some of the blocks kept under numbers up to `until`; returns how many. To be called until it
    /// returns zero.
    pub(crate) fn free_kept(&mut self, until: u64) -> usize {
        let mut budget = Budget::new();
        let mut ended = 0;
        while !budget.is_spent()
            && let Some((block, is_free)) = self.deferred.take_kept(until)
        {
            if is_free {
                self.space.free(block);
            }
            ended += 1;
            budget.spend(STEPS_A_BLOCK);
        }
        ended
    }

    /// Ends one hold of a block that [`DeferredBlocks::hold`] began.
    pub(crate) fn unhold(&mut self, block: BlockId) {
        if self.deferred.unhold(block) {
            self.space.free(block);
        }
    }
}

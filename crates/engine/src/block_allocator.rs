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
//! ([`BlockAllocator::checkpoint_durable`]) and no snapshot or backup holds it ([`BlockAllocator::hold`]). Only blocks
//! in which no page was stored need no checkpoint ([`BlockAllocator::give_back`], [`BlockAllocator::set_aside`]): on a
//! disk that refuses writes, no checkpoint becomes durable either.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashSet;

use self::deferred::DeferredBlocks;
pub(crate) use self::group::GroupsToEmpty;
use self::group::{CLASS_BLOCKS, Group, class_of, place_in_group};
use self::groups::Groups;
pub(crate) use self::page_counts::PageCounts;
pub(crate) use self::placement::Placement;
use self::unnamed::UnnamedBlocks;
use crate::budget::Budget;
use crate::format::BlockId;

mod deferred;
#[cfg(test)]
mod fragmentation;
mod group;
mod groups;
mod page_counts;
mod placement;
mod release;
#[cfg(test)]
mod tests;
mod unnamed;

/// Number of blocks in a group, the unit in which "near" is measured and spare room is kept: 1 MiB with pages of 4 KiB.
pub(crate) const GROUP_BLOCKS: u64 = 256;
/// Number of blocks that sequential allocation leaves free in each group, for the pages that will be rewritten there.
const SPARE_BLOCKS: u32 = 8;
/// Number of groups on each side of a block's own group that count as near it.
const NEAR_GROUPS: u64 = 4;
/// Fewest free blocks of a group that takes new pages, or pages from distant groups.
const ROOMY_BLOCKS: u32 = 128;
/// Most blocks of one contiguous run: a group without its spare blocks.
pub(crate) const ROW_BLOCKS_MAX: u64 = GROUP_BLOCKS - SPARE_BLOCKS as u64;
/// Most groups searched for a run of free blocks, the groups with the most free blocks first.
const GROUPS_LOOKED_AT: usize = 64;
/// Steps of a `Budget` that forgetting one empty group spends.
const STEPS_A_GROUP: usize = 4;

/// Allocates and frees the blocks of one data file.
#[derive(Debug)]
pub(crate) struct BlockAllocator {
    /// The groups in which a block was used since the file was opened, by their numbers.
    groups: Groups,
    /// Ranges of groups in which no block was used yet: the first group of each range, and the group after its last. So
    /// a sparse file takes memory for its used groups, not for its length.
    untouched: BTreeMap<u32, u32>,
    /// Number of groups in the file.
    group_count: u64,
    /// The group that takes new pages, which have no old place, until it is full.
    open_group: Option<u32>,
    /// Used blocks that are not needed any more and become free later.
    deferred: DeferredBlocks,
    /// The pages of blocks that several pages share.
    pages: PageCounts,
    /// The used blocks that no checkpoint names.
    unnamed: UnnamedBlocks,
    first_block: u64,
    used_blocks: u64,
    blocks_max: u64,
    /// While the file is being made shorter: the first group that takes no more pages as long as a group before it can.
    ceiling: Option<u64>,
    /// End of the part of the file allocated on disk: the file must grow before a block from here on is
    /// allocated.
    backed_end: u64,
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
        let mut allocator = Self {
            groups: Groups::default(),
            untouched: BTreeMap::new(),
            group_count: 0,
            open_group: None,
            deferred: DeferredBlocks::default(),
            pages: PageCounts::default(),
            unnamed: UnnamedBlocks::default(),
            first_block,
            used_blocks: 0,
            blocks_max,
            ceiling: None,
            backed_end: blocks_max,
            placed: Placement::default(),
        };
        for block in 0..first_block {
            let marked = allocator.mark_used(BlockId(block));
            debug_assert!(marked, "a fresh map has no used blocks");
        }
        allocator
    }

    /// Marks a block as used, while a page table is loaded. Returns false when the block was marked before: then two
    /// pages refer to it.
    pub(crate) fn mark_used(&mut self, block: BlockId) -> bool {
        if self.is_used(block) {
            return false;
        }
        let group = group_of(block) as u32;
        if u64::from(group) >= self.group_count {
            if u64::from(group) > self.group_count {
                self.untouched.insert(self.group_count as u32, group);
            }
            self.group_count = u64::from(group) + 1;
            self.make(group);
        } else {
            self.touch(group);
        }
        self.take(group, block.0 % GROUP_BLOCKS);
        true
    }

    /// Marks a block as used by one more of the compressed pages that share it, while a page table is loaded. Returns
    /// false when something else uses the block.
    pub(crate) fn mark_page(&mut self, block: BlockId) -> bool {
        (self.pages.of(block) > 0 || self.mark_used(block)) && self.pages.add(block, 1, 0)
    }

    /// Notes that an allocated block was written with this many compressed pages. Each of them is to be released.
    pub(crate) fn share(&mut self, block: BlockId, pages: usize) {
        debug_assert!(self.is_used(block) && self.pages.of(block) == 0, "{block:?} is free or shared");
        let pages = u8::try_from(pages).unwrap_or(u8::MAX);
        let noted = self.pages.add(block, pages, pages);
        debug_assert!(noted, "too many pages in a block");
    }

    /// Notes with how many compressed pages a block was written, as its bytes say.
    pub(crate) fn learn_shared(&mut self, block: BlockId, pages: usize) {
        self.pages.learn(block, u8::try_from(pages).unwrap_or(u8::MAX));
    }

    /// Returns the pages of the blocks that several pages share.
    pub(crate) fn page_counts(&self) -> &PageCounts {
        &self.pages
    }

    /// Returns the number of pages that lie in a used block: old versions that a checkpoint or a reader needs count.
    pub(crate) fn pages_in(&self, block: BlockId) -> usize {
        usize::from(self.pages.of(block)).max(1)
    }

    /// Returns the number of compressed pages, and of the blocks that they share.
    pub(crate) fn shared(&self) -> (u64, u64) {
        self.pages.totals()
    }

    /// Returns whether a block is allocated, or released and not free yet.
    pub(crate) fn is_used(&self, block: BlockId) -> bool {
        let (word, bit) = place_in_group(block);
        self.groups.get(group_of(block) as u32).is_some_and(|group| group.used[word] >> bit & 1 == 1)
    }

    /// Allocates a block for a page that was at `near`, or that belongs next to the page there.
    ///
    /// # Errors
    /// `NoFreeBlocks` when every block is used and the file is at its largest.
    pub(crate) fn allocate_near(&mut self, near: BlockId) -> Result<BlockId, NoFreeBlocks> {
        let home = near.0 / GROUP_BLOCKS;
        if home >= self.group_count {
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
            && self.groups.get(open).is_some_and(|group| group.free > spare)
            && let Some(block) = self.take_nearest(u64::from(open), 0)
        {
            return Ok(block);
        }
        let next = self.next_group(self.ceiling()).or_else(|| self.next_group(u64::MAX)).ok_or(NoFreeBlocks)?;
        self.open_group = Some(next);
        self.take_nearest(u64::from(next), 0).ok_or(NoFreeBlocks)
    }

    /// Returns a group before group `end` with free blocks: one that is half free, else one without a used block, else
    /// a new one, else the one with the most free blocks.
    fn next_group(&mut self, end: u64) -> Option<u32> {
        match self.roomiest(end) {
            Some((class, group)) if class * CLASS_BLOCKS >= ROOMY_BLOCKS => Some(group),
            roomiest => self.touch_first(end).or_else(|| self.add_group(end)).or(roomiest.map(|(_, group)| group)),
        }
    }

    /// Returns the first of the groups before group `end` with the most free blocks, by class, with its class.
    fn roomiest(&self, end: u64) -> Option<(u32, u32)> {
        self.by_room(end, 0).next()
    }

    /// Returns the groups before group `end`, each with its class, the roomiest first, without the classes in which
    /// every group has fewer than `least` free blocks.
    fn by_room(&self, end: u64, least: u64) -> impl Iterator<Item = (u32, u32)> + '_ {
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        let classes = (0..=class_of(GROUP_BLOCKS as u32)).rev();
        let classes = classes.take_while(move |class| u64::from((class + 1) * CLASS_BLOCKS) > least);
        classes.flat_map(move |class| self.groups.of_class(class, end).map(move |group| (class, group)))
    }

    /// Returns the first group that takes no pages as long as a group before it can.
    fn ceiling(&self) -> u64 {
        self.ceiling.unwrap_or(u64::MAX)
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
        let behind = after.map(|block| (block.0 + 1) / GROUP_BLOCKS);
        let end = self.ceiling();
        let roomy = self.by_room(end, least).take(GROUPS_LOOKED_AT).map(|(_, group)| u64::from(group));
        let behind = behind.into_iter().flat_map(|group| [group, group + 1]).filter(|group| *group < end);
        let mut best = (0, 0..0);
        for group in behind.chain(roomy) {
            let Some(of_group) = self.groups.get(group as u32) else { continue };
            let row = of_group.longest_row(want);
            if row.end - row.start > best.1.end - best.1.start {
                best = (group, row);
            }
            if best.1.end - best.1.start == want {
                break;
            }
        }
        let found = best.1.end - best.1.start;
        let grown_end = end.min(end_max / GROUP_BLOCKS);
        let is_short = found < want.div_ceil(2);
        let empty = if is_short { self.touch_first(end).or_else(|| self.add_group(grown_end)) } else { None };
        if let Some(group) = empty {
            best = (u64::from(group), 0..want.min(ROW_BLOCKS_MAX));
        } else if found == 0 || found < least {
            return Err(NoFreeBlocks);
        }
        let (group, row) = best;
        let first = group * GROUP_BLOCKS;
        for at in row.clone() {
            self.take(group as u32, at);
            self.unnamed.insert(BlockId(first + at));
        }
        Ok(first + row.start..first + row.end)
    }

    /// Chooses at most `most` groups to empty, those with the most free blocks first and none of `but`, and the groups
    /// that receive their pages. Groups without a used block are in neither list.
    pub(crate) fn groups_to_empty(&self, most: usize, but: &FxHashSet<u64>) -> GroupsToEmpty {
        let free = |group: &u64| self.groups.get(*group as u32).map_or(GROUP_BLOCKS, |group| u64::from(group.free));
        let mut groups: Vec<u64> = self.groups.numbers().map(u64::from).filter(|group| !but.contains(group)).collect();
        groups.sort_unstable_by_key(|group| (free(group), *group));
        let mut room: u64 = groups.iter().map(free).sum();
        let mut from = Vec::new();
        while from.len() < most
            && let Some(group) = groups.pop()
        {
            // Emptying a group uses up its own free blocks, and as many blocks elsewhere as it has used ones: a whole
            // group in all.
            let Some(left) = room.checked_sub(GROUP_BLOCKS) else {
                groups.push(group);
                break;
            };
            room = left;
            // An empty group needs no emptying.
            if free(&group) < GROUP_BLOCKS {
                from.push(group);
            }
        }
        groups.retain(|group| free(group) > 0);
        GroupsToEmpty { from: from.into_iter().collect(), into: groups }
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

    /// Sets the end of the file as allocated on disk to block `end`, rounded down to whole groups. Without this call
    /// the file counts as having its largest size.
    pub(crate) fn set_backed(&mut self, end: u64) {
        self.backed_end = end.min(self.blocks_max);
    }

    /// Returns the block at which the next growth of the file begins: always the end of a group.
    pub(crate) fn backed_end(&self) -> u64 {
        self.end_block().max(self.backed_end / GROUP_BLOCKS * GROUP_BLOCKS)
    }

    /// Sets the first group that takes no more pages while one before it can, as the file becomes shorter; `None` ends it.
    pub(crate) fn set_ceiling(&mut self, group: Option<u64>) {
        self.ceiling = group;
    }

    /// Forgets empty groups at the end of the file: some of them a call, and returns whether to call again. Afterwards
    /// the blocks from [`BlockAllocator::end_block`] on are in use by nothing, and the file may end there.
    pub(crate) fn forget_empty_end(&mut self) -> bool {
        let mut budget = Budget::new();
        while let Some(last) = self.group_count.checked_sub(1).map(|last| last as u32) {
            if budget.is_spent() {
                return true;
            }
            budget.spend(STEPS_A_GROUP);
            if let Some((first, _)) = self.untouched.last_key_value().filter(|(_, end)| **end == last + 1) {
                let first = *first;
                self.untouched.remove(&first);
                self.group_count = u64::from(first);
            } else if self.groups.get(last).is_some_and(|group| group.free == GROUP_BLOCKS as u32) {
                self.groups.remove(last);
                self.pages.forget_group(last);
                self.group_count = u64::from(last);
            } else {
                break;
            }
        }
        if self.open_group.is_some_and(|open| u64::from(open) >= self.group_count) {
            self.open_group = None;
        }
        false
    }

    /// Returns the most blocks that the file may have.
    pub(crate) fn blocks_max(&self) -> u64 {
        self.blocks_max / GROUP_BLOCKS * GROUP_BLOCKS
    }

    /// Returns the number of blocks that can be allocated before the file must grow.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.backed_end() - self.used_blocks
    }

    /// Returns whether the next new page would go into a group that is more than half full, because no emptier group
    /// exists.
    pub(crate) fn is_cramped(&self) -> bool {
        let open =
            self.open_group.and_then(|open| self.groups.get(open)).is_some_and(|group| group.free > SPARE_BLOCKS);
        let roomy = self.roomiest(u64::MAX).is_some_and(|(class, _)| class * CLASS_BLOCKS >= ROOMY_BLOCKS);
        self.ceiling.is_none() && !open && !roomy && self.untouched.is_empty() && self.backed_end() == self.end_block()
    }

    /// Returns the number of blocks that the file needs to contain every group.
    pub(crate) fn end_block(&self) -> u64 {
        self.group_count * GROUP_BLOCKS
    }

    /// Returns the number of blocks in use, including released blocks that are not free yet.
    pub(crate) fn used_blocks(&self) -> u64 {
        self.used_blocks
    }

    /// Returns the number of blocks that were released and are not free yet.
    pub(crate) fn deferred_blocks(&self) -> u64 {
        self.deferred.len() as u64
    }

    /// Returns the counts of page placements by their distance from the wanted place.
    pub(crate) fn placement(&self) -> Placement {
        self.placed
    }

    /// Returns about how many bytes of memory the allocator uses.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let groups = self.groups.memory_bytes() + self.untouched.len() * 24;
        (groups + self.deferred.memory_bytes() + self.pages.memory_bytes() + self.unnamed.memory_bytes()) as u64
    }

    /// Adds an empty group at the end of the file, if it lies before group `end` and is allocated on disk. Returns its
    /// number.
    fn add_group(&mut self, end: u64) -> Option<u32> {
        let index = self.group_count;
        if index >= end || (index + 1) * GROUP_BLOCKS > self.backed_end {
            return None;
        }
        self.group_count += 1;
        self.make(index as u32);
        Some(index as u32)
    }

    fn make(&mut self, group: u32) {
        self.groups.set(group, Group::empty());
    }

    /// Adds a group of the file to `groups`, if it is not there yet.
    fn touch(&mut self, group: u32) {
        if self.groups.contains(group) {
            return;
        }
        let row = self.untouched.range(..=group).next_back().map(|(first, end)| (*first, *end));
        let Some((first, end)) = row.filter(|(_, end)| group < *end) else {
            debug_assert!(false, "group {group} of {} is neither touched nor untouched", self.group_count);
            return;
        };
        self.untouched.remove(&first);
        if first < group {
            self.untouched.insert(first, group);
        }
        if group + 1 < end {
            self.untouched.insert(group + 1, end);
        }
        self.make(group);
    }

    /// Adds the first group without a used block to `groups`, if it lies before group `end`, and returns its number.
    fn touch_first(&mut self, end: u64) -> Option<u32> {
        let first = *self.untouched.first_key_value()?.0;
        if u64::from(first) >= end {
            return None;
        }
        self.touch(first);
        Some(first)
    }

    fn take_nearest(&mut self, group: u64, wanted: u64) -> Option<BlockId> {
        if group >= self.group_count {
            return None;
        }
        self.touch(group as u32);
        let at = self.groups.get(group as u32)?.nearest_free(wanted)?;
        self.take(group as u32, at);
        let block = BlockId(group * GROUP_BLOCKS + at);
        self.unnamed.insert(block);
        Some(block)
    }

    fn take(&mut self, group: u32, at: u64) {
        let Some(mut target) = self.groups.get(group) else { return };
        target.used[(at / 64) as usize] |= 1 << (at % 64);
        target.free -= 1;
        self.groups.set(group, target);
        self.used_blocks += 1;
    }

    fn free(&mut self, block: BlockId) {
        debug_assert!(block.0 >= self.first_block, "freed a reserved block");
        let group = (block.0 / GROUP_BLOCKS) as u32;
        let (word, bit) = place_in_group(block);
        let Some(mut target) = self.groups.get(group) else { return };
        target.used[word] &= !(1 << bit);
        target.free += 1;
        self.groups.set(group, target);
        self.used_blocks -= 1;
    }
}

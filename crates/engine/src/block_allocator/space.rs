//! The blocks of the file: which are used, in groups, and where free ones are.
//!
//! The caller decides which block a page gets, and which released block is free.

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashSet;

use super::group::{CLASS_BLOCKS, Group, GroupsToEmpty, class_of, place_in_group};
use super::groups::Groups;
use super::{GROUP_BLOCKS, ROW_BLOCKS_MAX, group_of};
use crate::format::BlockId;
use crate::sync::budget::Budget;

/// Fewest free blocks of a group that takes new pages, or pages from distant groups.
const ROOMY_BLOCKS: u32 = 128;
/// Most groups searched for a run of free blocks, the groups with the most free blocks first.
const GROUPS_LOOKED_AT: usize = 64;
/// Steps of a `Budget` that forgetting one empty group spends.
const STEPS_A_GROUP: usize = 4;

/// The blocks of one data file.
#[derive(Debug)]
pub(crate) struct Space {
    /// The groups in which a block was used since the file was opened, by their numbers.
    groups: Groups,
    /// Ranges of groups in which no block was used yet: the first group of each range, and the group after its last. So
    /// a sparse file takes memory for its used groups, not for its length.
    untouched: BTreeMap<u32, u32>,
    /// Number of groups in the file.
    group_count: u64,
    first_block: u64,
    used_blocks: u64,
    blocks_max: u64,
    /// End of the part of the file allocated on disk: the file must grow before a block from here on is
    /// allocated.
    backed_end: u64,
}

impl Space {
    /// Creates the space of an empty file: see [`BlockAllocator::new`](super::BlockAllocator::new).
    pub(super) fn new(first_block: u64, blocks_max: u64) -> Self {
        let mut space = Self {
            groups: Groups::default(),
            untouched: BTreeMap::new(),
            group_count: 0,
            first_block,
            used_blocks: 0,
            blocks_max,
            backed_end: blocks_max,
        };
        for block in 0..first_block {
            let marked = space.mark_used(BlockId(block));
            debug_assert!(marked, "a fresh map has no used blocks");
        }
        space
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
            self.groups.set(group, Group::empty());
        } else {
            self.touch(group);
        }
        self.take(group, block.0 % GROUP_BLOCKS);
        true
    }

    /// Returns whether a block is allocated, or released and not free yet.
    pub(crate) fn is_used(&self, block: BlockId) -> bool {
        let (word, bit) = place_in_group(block);
        self.groups.get(group_of(block) as u32).is_some_and(|group| group.used[word] >> bit & 1 == 1)
    }

    /// Returns a group; `None` when no block of it was ever used.
    pub(super) fn group(&self, number: u32) -> Option<Group> {
        self.groups.get(number)
    }

    /// Returns the number of groups in the file.
    pub(super) fn group_count(&self) -> u64 {
        self.group_count
    }

    /// Returns a group before group `end` with free blocks: one that is half free, else one without a used block, else
    /// a new one, else the one with the most free blocks.
    pub(super) fn next_group(&mut self, end: u64) -> Option<u32> {
        let roomiest = self.by_room(end, 0).next();
        match roomiest {
            Some((class, group)) if class * CLASS_BLOCKS >= ROOMY_BLOCKS => Some(group),
            _ => self.touch_first(end).or_else(|| self.add_group(end)).or(roomiest.map(|(_, group)| group)),
        }
    }

    /// Returns the groups before group `end`, each with its class, the roomiest first, without the classes in which
    /// every group has fewer than `least` free blocks.
    fn by_room(&self, end: u64, least: u64) -> impl Iterator<Item = (u32, u32)> + '_ {
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        let classes = (0..=class_of(GROUP_BLOCKS as u32)).rev();
        let classes = classes.take_while(move |class| u64::from((class + 1) * CLASS_BLOCKS) > least);
        classes.flat_map(move |class| self.groups.of_class(class, end).map(move |group| (class, group)))
    }

    /// Returns whether a new page finds a group that is half free, in the file or by its growth within the part on disk.
    pub(super) fn has_roomy_group(&self) -> bool {
        let roomy = self.by_room(u64::MAX, 0).next().is_some_and(|(class, _)| class * CLASS_BLOCKS >= ROOMY_BLOCKS);
        roomy || !self.untouched.is_empty() || self.backed_end() != self.end_block()
    }

    /// Takes consecutive blocks before group `end`, as [`BlockAllocator::allocate_row`](super::BlockAllocator::allocate_row) says.
    pub(super) fn take_row(
        &mut self,
        (want, least): (u64, u64),
        after: Option<BlockId>,
        (end, end_max): (u64, u64),
    ) -> Option<Range<u64>> {
        let behind = after.map(|block| (block.0 + 1) / GROUP_BLOCKS);
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
            return None;
        }
        let (group, row) = best;
        let first = group * GROUP_BLOCKS;
        for at in row.clone() {
            self.take(group as u32, at);
        }
        Some(first + row.start..first + row.end)
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

    /// Sets the end of the file as allocated on disk to block `end`, rounded down to whole groups. Without this call
    /// the file counts as having its largest size.
    pub(crate) fn set_backed(&mut self, end: u64) {
        self.backed_end = end.min(self.blocks_max);
    }

    /// Returns the block at which the next growth of the file begins: always the end of a group.
    pub(crate) fn backed_end(&self) -> u64 {
        self.end_block().max(self.backed_end / GROUP_BLOCKS * GROUP_BLOCKS)
    }

    /// Forgets empty groups at the end of the file, some of them a call, and tells their numbers. Returns whether to call again.
    pub(super) fn forget_empty_end(&mut self, mut forgotten: impl FnMut(u32)) -> bool {
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
                forgotten(last);
                self.group_count = u64::from(last);
            } else {
                break;
            }
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

    /// Returns the number of blocks that the file needs to contain every group.
    pub(crate) fn end_block(&self) -> u64 {
        self.group_count * GROUP_BLOCKS
    }

    /// Returns the number of blocks in use, including released blocks that are not free yet.
    pub(crate) fn used_blocks(&self) -> u64 {
        self.used_blocks
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.groups.memory_bytes() + self.untouched.len() * 24
    }

    /// Adds an empty group at the end of the file, if it lies before group `end` and is allocated on disk. Returns its
    /// number.
    fn add_group(&mut self, end: u64) -> Option<u32> {
        let index = self.group_count;
        if index >= end || (index + 1) * GROUP_BLOCKS > self.backed_end {
            return None;
        }
        self.group_count += 1;
        self.groups.set(index as u32, Group::empty());
        Some(index as u32)
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
        self.groups.set(group, Group::empty());
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

    /// Takes the free block of a group that is nearest to block number `wanted` in it.
    pub(super) fn take_nearest(&mut self, group: u64, wanted: u64) -> Option<BlockId> {
        if group >= self.group_count {
            return None;
        }
        self.touch(group as u32);
        let at = self.groups.get(group as u32)?.nearest_free(wanted)?;
        self.take(group as u32, at);
        Some(BlockId(group * GROUP_BLOCKS + at))
    }

    fn take(&mut self, group: u32, at: u64) {
        let Some(mut target) = self.groups.get(group) else { return };
        target.used[(at / 64) as usize] |= 1 << (at % 64);
        target.free -= 1;
        self.groups.set(group, target);
        self.used_blocks += 1;
    }

    pub(super) fn free(&mut self, block: BlockId) {
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

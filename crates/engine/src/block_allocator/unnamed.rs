//! The blocks that were allocated since the last checkpoint took pages over and that no checkpoint names: when their
//! pages are released, no state on the disk needs them, and they are free at once.

use rustc_hash::FxHashMap;

use super::group::{GROUP_WORDS, place_in_group};
use super::group_of;
use crate::format::BlockId;

/// A set of blocks, a bit each, in groups; only groups with a block in the set take memory.
#[derive(Debug, Default)]
pub(super) struct UnnamedBlocks {
    groups: FxHashMap<u32, [u64; GROUP_WORDS]>,
}

impl UnnamedBlocks {
    pub(super) fn insert(&mut self, block: BlockId) {
        let (word, bit) = place_in_group(block);
        self.groups.entry(group_of(block) as u32).or_default()[word] |= 1 << bit;
    }

    /// Removes a block. Returns whether it was in the set.
    pub(super) fn remove(&mut self, block: BlockId) -> bool {
        let (group, (word, bit)) = (group_of(block) as u32, place_in_group(block));
        let Some(blocks) = self.groups.get_mut(&group) else { return false };
        let was_in = blocks[word] >> bit & 1 == 1;
        blocks[word] &= !(1 << bit);
        if blocks.iter().all(|word| *word == 0) {
            self.groups.remove(&group);
        }
        was_in
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.groups.capacity() * (size_of::<(u32, [u64; GROUP_WORDS])>() + 1)
    }
}

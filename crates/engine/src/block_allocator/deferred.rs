//! Blocks that are in use no more, but not free yet: a checkpoint still names them, a reader of this or another process
//! holds them, or a write to them failed.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::format::BlockId;

/// Most blocks that are set aside at a time after failed writes: 4 MiB with pages of 4 KiB.
pub(super) const SET_ASIDE_MAX: usize = 1024;

/// The blocks waiting to become free.
#[derive(Debug, Default)]
pub(crate) struct DeferredBlocks {
    /// Blocks released since the last checkpoint began; that checkpoint still refers to them, the next checkpoint will
    /// not.
    released: Vec<BlockId>,
    /// Blocks to which the last durable checkpoint still refers; they become free when the checkpoint in progress is
    /// durable.
    expiring: Vec<BlockId>,
    /// Blocks to which only checkpoints before the durable one refer, and which readers in other processes may use: by the
    /// number of the checkpoint that gave them up, oldest first.
    kept: VecDeque<(u64, Vec<BlockId>)>,
    /// Blocks in which a write failed, oldest first. They are not allocated before other blocks have been tried.
    set_aside: VecDeque<BlockId>,
    /// Blocks that a verification or a relocation reads, with the number of holders.
    held: HashMap<BlockId, u32>,
    /// Released blocks in `held` that become free when their last hold ends.
    waiting: BTreeSet<BlockId>,
}

impl DeferredBlocks {
    /// Adds a block free after the next checkpoint.
    pub(super) fn release(&mut self, block: BlockId) {
        self.released.push(block);
    }

    /// Notes that a checkpoint begins: it will not refer to any block released before this call.
    pub(crate) fn checkpoint_begins(&mut self) {
        if self.expiring.is_empty() {
            std::mem::swap(&mut self.expiring, &mut self.released);
        } else {
            self.expiring.append(&mut self.released);
        }
    }

    /// Removes a block to which only the checkpoint before the durable one refers. Returns it with whether it is free
    /// now; if not, a reader holds it.
    pub(super) fn take_expired(&mut self) -> Option<(BlockId, bool)> {
        let block = self.expiring.pop()?;
        Some((block, !self.wait_if_held(block)))
    }

    /// Notes that the checkpoint that began last is durable, as [`BlockAllocator::checkpoint_durable`] does, but keeps the
    /// blocks to which only the checkpoint before it referred: readers in other processes may use them. They become free
    /// by [`BlockAllocator::free_kept`] with this number, or a larger one.
    ///
    /// [`BlockAllocator::checkpoint_durable`]: super::BlockAllocator::checkpoint_durable
    /// [`BlockAllocator::free_kept`]: super::BlockAllocator::free_kept
    pub(crate) fn keep_expired(&mut self, sequence: u64) {
        let expiring = std::mem::take(&mut self.expiring);
        if !expiring.is_empty() {
            self.kept.push_back((sequence, expiring));
        }
    }

    /// Removes a block kept under a number up to `until`, as [`DeferredBlocks::take_expired`] does.
    pub(super) fn take_kept(&mut self, until: u64) -> Option<(BlockId, bool)> {
        while let Some((_, blocks)) = self.kept.front_mut().filter(|(sequence, _)| *sequence <= until) {
            if let Some(block) = blocks.pop() {
                return Some((block, !self.wait_if_held(block)));
            }
            self.kept.pop_front();
        }
        None
    }

    /// Returns the number of blocks kept for readers in other processes.
    pub(crate) fn kept_len(&self) -> u64 {
        self.kept.iter().map(|(_, blocks)| blocks.len() as u64).sum()
    }

    /// Adds a block that no checkpoint refers to, if a reader holds it: it is free after the last hold. Returns whether
    /// that is so.
    pub(super) fn wait_if_held(&mut self, block: BlockId) -> bool {
        let is_held = self.held.contains_key(&block);
        if is_held {
            self.waiting.insert(block);
        }
        is_held
    }

    /// Sets a block aside. Returns the oldest such block, to be freed, when there are too many.
    pub(super) fn set_aside(&mut self, block: BlockId) -> Option<BlockId> {
        self.set_aside.push_back(block);
        if self.set_aside.len() > SET_ASIDE_MAX { self.set_aside.pop_front() } else { None }
    }

    /// Removes the blocks that were set aside, at most `SET_ASIDE_MAX`.
    pub(super) fn take_set_aside(&mut self) -> VecDeque<BlockId> {
        std::mem::take(&mut self.set_aside)
    }

    /// Keeps a block from being reused until [`BlockAllocator::unhold`](super::BlockAllocator::unhold) was called once for each call of this
    /// function.
    pub(crate) fn hold(&mut self, block: BlockId) {
        *self.held.entry(block).or_insert(0) += 1;
    }

    /// Removes a holder of a block. Returns whether the block is free now.
    pub(super) fn unhold(&mut self, block: BlockId) -> bool {
        let Some(holders) = self.held.get_mut(&block) else {
            debug_assert!(false, "the hold of {block:?} ends, which no reader holds");
            return false;
        };
        *holders -= 1;
        if *holders > 0 {
            return false;
        }
        self.held.remove(&block);
        self.waiting.remove(&block)
    }

    /// Returns the number of blocks that wait, without the blocks kept for readers in other processes: no checkpoint
    /// makes these free.
    pub(crate) fn len(&self) -> u64 {
        (self.released.len() + self.expiring.len() + self.set_aside.len() + self.waiting.len()) as u64
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let lists = self.released.capacity() + self.expiring.capacity() + self.set_aside.capacity();
        let lists = lists + self.kept.iter().map(|(_, blocks)| blocks.capacity()).sum::<usize>();
        lists * 8 + self.held.capacity() * 17 + self.waiting.len() * 24
    }
}

//! Blocks that are given back: at once, after a checkpoint, or when the last reader that may use them has gone.

use super::BlockAllocator;
use crate::budget::Budget;
use crate::format::BlockId;

/// Steps of a `Budget` that freeing one block spends.
const STEPS_A_BLOCK: usize = 2;

impl BlockAllocator {
    /// Notes that the page table of a checkpoint, durable or to come, names this block.
    pub(crate) fn note_named(&mut self, block: BlockId) {
        self.unnamed.remove(block);
    }

    /// Releases the block of a page that the current state does not have any more, unless other pages share it. If a
    /// checkpoint names it, it becomes free once a checkpoint that *begins* after this call is durable, because the last
    /// durable checkpoint may still refer to it; otherwise it is free at once, or when its last hold ends.
    pub(crate) fn release(&mut self, block: BlockId) {
        debug_assert!(self.is_used(block), "released a free block {block:?}");
        if !self.pages.remove_page(block) {
            return;
        }
        if !self.unnamed.remove(block) {
            self.deferred.release(block);
        } else if !self.deferred.wait_if_held(block) {
            self.free(block);
        }
    }

    /// Frees at once a block that was allocated and in which no page was stored, because the disk was full or the write
    /// was never attempted.
    pub(crate) fn give_back(&mut self, block: BlockId) {
        debug_assert!(self.is_used(block), "gave back a free block {block:?}");
        self.unnamed.remove(block);
        self.free(block);
    }

    /// Takes back a block to which a write failed or stored wrong bytes. The block may be bad, so others are tried first:
    /// it becomes free after many more failures, or when a checkpoint is durable.
    pub(crate) fn set_aside(&mut self, block: BlockId) {
        debug_assert!(self.is_used(block), "set aside a free block {block:?}");
        self.unnamed.remove(block);
        if let Some(oldest) = self.deferred.set_aside(block) {
            self.free(oldest);
        }
    }

    /// Notes that a checkpoint begins: it will not refer to any block released before this call.
    pub(crate) fn checkpoint_begins(&mut self) {
        self.deferred.checkpoint_begins();
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
                self.free(block);
            }
            ended += 1;
            budget.spend(STEPS_A_BLOCK);
        }
        let set_aside = self.deferred.take_set_aside();
        set_aside.iter().for_each(|block| self.free(*block));
        ended + set_aside.len()
    }

    /// Notes that the checkpoint that began last is durable, as [`BlockAllocator::checkpoint_durable`] does, but keeps the
    /// blocks to which only the checkpoint before it referred: readers in other processes may use them. They become free
    /// by [`BlockAllocator::free_kept`] with this number, or a larger one.
    pub(crate) fn keep_expired(&mut self, sequence: u64) {
        self.deferred.keep_expired(sequence);
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
                self.free(block);
            }
            ended += 1;
            budget.spend(STEPS_A_BLOCK);
        }
        ended
    }

    /// Returns the number of blocks kept for readers in other processes.
    pub(crate) fn kept_blocks(&self) -> u64 {
        self.deferred.kept_len() as u64
    }

    /// Keeps a block from being reused until [`BlockAllocator::unhold`] was called once for each call of this function.
    pub(crate) fn hold(&mut self, block: BlockId) {
        self.deferred.hold(block);
    }

    /// Ends one hold of a block that [`BlockAllocator::hold`] began.
    pub(crate) fn unhold(&mut self, block: BlockId) {
        if self.deferred.unhold(block) {
            self.free(block);
        }
    }
}

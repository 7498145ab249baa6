//! Usage counts: how often each frame was used lately, for the clocks that choose frames to evict. A frame's count also
//! says whether the frame holds a block of the compressed tier, so that the pages' clock and the blocks' clock pass the
//! frames of the other without a look at anything else: sixty-four counts share a cache line.
//!
//! Kept true by: a count changes its kind only while its frame is owned. A thread that raises a count has found the frame
//! under an epoch guard; one that lowers it has not, and so changes the count only if it is still as it was.

use std::sync::atomic::{AtomicU8, Ordering};

/// Highest usage count: the number of rounds of the clock that a frame survives without being used again.
const USAGE_MAX: u8 = 3;
/// Set in the count of a frame holding a block.
const BLOCK: u8 = 0x80;

/// The usage count of each frame, one byte each: sixty-four share a cache line, because every hit reads a count.
pub(crate) struct UsageCounts(Box<[AtomicU8]>);

impl UsageCounts {
    /// Creates the counts of `frames` frames, all zero.
    pub(super) fn new(frames: usize) -> Self {
        Self((0..frames).map(|_| AtomicU8::new(0)).collect())
    }

    pub(super) fn get(&self, frame: u32) -> u8 {
        self.0[frame as usize].load(Ordering::Relaxed)
    }

    /// Notes a use of a frame. Stores only when the count changes, so that the counts of hot frames stay shared in the
    /// caches of all cores.
    #[inline]
    pub(super) fn touch(&self, frame: u32) {
        let count = &self.0[frame as usize];
        let usage = count.load(Ordering::Relaxed);
        if usage < USAGE_MAX {
            count.store(usage + 1, Ordering::Relaxed);
        }
    }

    /// Notes a use of a frame that holds a block.
    pub(super) fn touch_block(&self, frame: u32) {
        let count = &self.0[frame as usize];
        let usage = count.load(Ordering::Relaxed);
        if usage < BLOCK + USAGE_MAX {
            count.store(usage + 1, Ordering::Relaxed);
        }
    }

    /// Returns whether a frame holds a block.
    pub(super) fn is_block(&self, frame: u32) -> bool {
        self.0[frame as usize].load(Ordering::Relaxed) & BLOCK != 0
    }

    /// Lowers the count of a frame by one, as the clock's hand passes it, and returns whether the count was zero
    /// already.
    pub(super) fn lower(&self, frame: u32) -> bool {
        let count = &self.0[frame as usize];
        let usage = count.load(Ordering::Relaxed);
        if usage & !BLOCK > 0 {
            let _ = count.compare_exchange(usage, usage - 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        usage & !BLOCK == 0
    }

    /// Sets the count of a frame that receives a new page: one use, or none.
    pub(super) fn reset(&self, frame: u32, is_used: bool) {
        self.0[frame as usize].store(u8::from(is_used), Ordering::Relaxed);
    }

    /// Sets the count of a frame that receives a block: no use yet.
    pub(super) fn reset_for_block(&self, frame: u32) {
        self.0[frame as usize].store(BLOCK, Ordering::Relaxed);
    }
}

//! Usage counts: how often each frame was used lately, for the clock that chooses frames to evict.

use std::sync::atomic::{AtomicU8, Ordering};

/// Highest usage count: the number of rounds of the clock that a frame survives without being used again.
const USAGE_MAX: u8 = 3;

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

    /// Lowers the count of a frame by one, as the clock's hand passes it, and returns whether the count was zero
    /// already.
    pub(super) fn lower(&self, frame: u32) -> bool {
        let count = &self.0[frame as usize];
        let usage = count.load(Ordering::Relaxed);
        if usage > 0 {
            count.store(usage - 1, Ordering::Relaxed);
        }
        usage == 0
    }

    /// Sets the count of a frame that receives a new page: one use, or none.
    pub(super) fn reset(&self, frame: u32, is_used: bool) {
        self.0[frame as usize].store(u8::from(is_used), Ordering::Relaxed);
    }
}

//! Decides which frames get memory from the kernel before they are used.
//!
//! The kernel gives a frame memory, and fills it with zeroes, when it is written to first. For a load into a new pool that
//! is a sixth of its time, which a background thread takes over: it is always a part of the pool ahead. That part is no
//! larger than the part in use, so a small database does not take the memory of a large one.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most bytes that are ahead.
const AHEAD_BYTES: usize = 32 << 20;
/// Fewest bytes in use before any are ahead.
const USED_BYTES_MIN: usize = 4 << 20;

/// The frames with memory: the frames in use as a rule, and some ahead.
#[derive(Debug, Default)]
pub(super) struct MemoryAhead {
    /// Number of first frames that have memory.
    given: AtomicUsize,
    /// Number of first frames in use: those that have no memory yet get it by their use.
    used: AtomicUsize,
    /// Number of first frames that are to have memory.
    wanted: AtomicUsize,
    is_asked: AtomicBool,
}

impl MemoryAhead {
    /// Notes that a frame is used, of a pool of `count` frames. Returns whether a thread should be woken that calls
    /// [`MemoryAhead::take`]: once for each such call.
    #[inline]
    pub(super) fn note_used(&self, frame: u32, count: usize, page_bytes: usize) -> bool {
        let used = frame as usize + 1;
        let ahead = used.min(AHEAD_BYTES / page_bytes);
        let given = self.given.load(Ordering::Relaxed);
        if used + ahead / 2 <= given || given >= count || used < USED_BYTES_MIN / page_bytes {
            return false;
        }
        self.used.fetch_max(used, Ordering::Relaxed);
        self.wanted.fetch_max((used + ahead).min(count), Ordering::Relaxed);
        !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// Returns the frames that are to get memory, [`AHEAD_BYTES`] of them at most, for the one thread that asks the kernel
    /// for it; after it has asked, it calls [`MemoryAhead::set_given`].
    pub(super) fn take(&self) -> Option<Range<usize>> {
        if !self.is_asked.swap(false, Ordering::Relaxed) {
            return None;
        }
        // Loaded in this order, so that it never exceeds the limit.
        let wanted = self.wanted.load(Ordering::Relaxed);
        let begin = self.given.load(Ordering::Relaxed).max(self.used.load(Ordering::Relaxed));
        (begin < wanted).then_some(begin..wanted)
    }

    /// Notes that the first `frames` frames have memory, or that the kernel need not be asked for it.
    pub(super) fn set_given(&self, frames: usize) {
        self.given.fetch_max(frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_get_memory_ahead_of_their_use_and_no_more_than_twice_what_is_used() {
        let (ahead, page_bytes, count) = (MemoryAhead::default(), 4096, 100_000);
        let mut calls = 0;
        for frame in 0..count as u32 {
            if ahead.note_used(frame, count, page_bytes) {
                assert!(!ahead.note_used(frame, count, page_bytes), "it was asked already");
                let frames = ahead.take().unwrap();
                assert!(frames.len() <= AHEAD_BYTES / page_bytes, "{frames:?}");
                ahead.set_given(frames.end);
                calls += 1;
            }
            let (used, given) = (frame as usize + 1, ahead.given.load(Ordering::Relaxed));
            assert!(given == 0 || used <= given, "frame {frame}");
            assert!(given <= used + used.min(AHEAD_BYTES / page_bytes), "{given} for {used}");
            assert!(used >= USED_BYTES_MIN / page_bytes || given == 0, "{given} for {used}");
        }
        assert_eq!(ahead.given.load(Ordering::Relaxed), count);
        assert!(calls < 40, "{calls}");
        assert_eq!(ahead.take(), None);
    }

    /// The frames before were used by reads, which ask for nothing.
    #[test]
    fn the_first_frame_that_asks_gets_no_memory_for_all_before_it() {
        let ahead = MemoryAhead::default();
        assert!(ahead.note_used(5_000_000, 8_000_000, 4096));
        assert_eq!(ahead.take(), Some(5_000_001..5_000_001 + AHEAD_BYTES / 4096));
    }

    #[test]
    fn a_kernel_that_gives_no_memory_is_not_asked_again() {
        let ahead = MemoryAhead::default();
        assert!(ahead.note_used(5_000, 100_000, 4096));
        assert!(ahead.take().is_some());
        ahead.set_given(usize::MAX);
        assert!((5_000..100_000).all(|frame| !ahead.note_used(frame, 100_000, 4096)));
    }
}

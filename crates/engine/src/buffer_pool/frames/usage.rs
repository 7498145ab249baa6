//! Facts about the use of frames and pages: how often each frame was used lately, the latest expiry of the leaf in it, and the recent
//! evictions.
//!
//! **Usage counts** are for the clocks that choose frames to evict. A frame's count also says whether the frame holds a block of the
//! compressed tier, so that the pages' clock and the blocks' clock pass the frames of the other without a look at anything else: sixty-four
//! counts share a cache line. Kept true by: a count changes its kind only while its frame is owned. A thread that raises a count has found
//! the frame under an epoch guard; one that lowers it has not, and so changes the count only if it is still as it was.
//!
//! **Leaf expiries** are the latest moment at which an entry of a leaf expires, for frames with leaves of which a scan has found that all
//! entries had expired. Another scan passes them without a look at the page. Kept true by: a published frame never changes, so its latest
//! expiry holds until it is published again, which forgets it first. A thread notes a moment only under the epoch guard, or pin, by which
//! it reads the frame.
//!
//! **Ghosts** are the numbers of pages or blocks that were evicted a short time ago. One that is wanted again, and is a ghost, would have
//! been in memory if there had been somewhat more of it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use nofault_io::prefetch::{LINE_BYTES, prefetch_read};

use crate::format::Moment;

/// Highest usage count: the number of rounds of the clock that a frame survives without being used again.
const USAGE_MAX: u8 = 3;
/// Set in the count of a frame holding a block.
const BLOCK: u8 = 0x80;

/// The usage count of each frame, one byte each: sixty-four share a cache line, because every hit reads a count.
pub(crate) struct UsageCounts(Box<[AtomicU8]>);

impl UsageCounts {
    /// Creates the counts of `frames` frames, all zero.
    pub(crate) fn new(frames: usize) -> Self {
        Self((0..frames).map(|_| AtomicU8::new(0)).collect())
    }

    pub(crate) fn get(&self, frame: u32) -> u8 {
        self.0[frame as usize].load(Ordering::Relaxed)
    }

    /// Notes a use of a frame. Stores only when the count changes, so that the counts of hot frames stay shared in the
    /// caches of all cores.
    #[inline]
    pub(crate) fn touch(&self, frame: u32) {
        let count = &self.0[frame as usize];
        let usage = count.load(Ordering::Relaxed);
        if usage < USAGE_MAX {
            count.store(usage + 1, Ordering::Relaxed);
        }
    }

    /// Notes a use of a frame that holds a block.
    pub(crate) fn touch_block(&self, frame: u32) {
        let count = &self.0[frame as usize];
        let usage = count.load(Ordering::Relaxed);
        if usage < BLOCK + USAGE_MAX {
            count.store(usage + 1, Ordering::Relaxed);
        }
    }

    /// Returns whether a frame holds a block.
    pub(crate) fn is_block(&self, frame: u32) -> bool {
        self.0[frame as usize].load(Ordering::Relaxed) & BLOCK != 0
    }

    /// Lowers the count of a frame by one, as the clock's hand passes it, and returns whether the count was zero
    /// already.
    pub(crate) fn lower(&self, frame: u32) -> bool {
        let count = &self.0[frame as usize];
        let usage = count.load(Ordering::Relaxed);
        if usage & !BLOCK > 0 {
            let _ = count.compare_exchange(usage, usage - 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        usage & !BLOCK == 0
    }

    /// Sets the count of a frame that receives a new page: one use, or none.
    pub(crate) fn reset(&self, frame: u32, is_used: bool) {
        self.0[frame as usize].store(u8::from(is_used), Ordering::Relaxed);
    }

    /// Sets the count of a frame that receives a block: no use yet.
    pub(crate) fn reset_for_block(&self, frame: u32) {
        self.0[frame as usize].store(BLOCK, Ordering::Relaxed);
    }
}

/// The latest expiry in each frame: its complement, so that memory that was never written to says [`Moment::NEVER`].
pub(crate) struct LeafExpiries(Box<[AtomicU64]>);

impl LeafExpiries {
    /// Creates the moments of `frames` frames, all [`Moment::NEVER`]: nothing is known.
    pub(crate) fn new(frames: usize) -> Self {
        Self((0..frames).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns a moment from which on all entries of the leaf in this frame have expired; `NEVER` where none is known.
    #[inline]
    pub(crate) fn latest(&self, frame: u32) -> Moment {
        Moment(!self.0[frame as usize].load(Ordering::Relaxed))
    }

    /// Notes the latest expiry of the leaf in this frame.
    pub(crate) fn note(&self, frame: u32, latest: Moment) {
        self.0[frame as usize].store(!latest.0, Ordering::Relaxed);
    }

    /// Forgets the note for this frame, before it is published.
    pub(crate) fn forget(&self, frame: u32) {
        self.note(frame, Moment::NEVER);
    }

    /// Returns the bytes of memory that the moments take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.0) as u64
    }
}

/// Number of ghosts for every ten frames. Ghosts are not forgotten in exact order: with as many ghosts as frames, in a
/// loop over slightly more pages than the cache holds, all pages would be remembered and none would count as new (see
/// `evict::policies`).
const GHOSTS_IN_TEN: usize = 8;
/// Number of ghosts in a set: as many as one cache line holds.
const SET: usize = LINE_BYTES / size_of::<u32>();

/// A set of ghosts, somewhat fewer than there are frames. They lie in sets, and a number determines its set, so that each
/// lookup touches one cache line, which can be prefetched. A set forgets its oldest ghost for a new one, so ghosts are
/// forgotten nearly in the order of their evictions.
#[derive(Debug)]
pub(crate) struct Ghosts {
    sets: Box<[Set]>,
}

/// One set of ghosts, as marks of their numbers, newest first; zero is an empty place.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Set([u32; SET]);

impl Ghosts {
    /// Creates the ghosts for a pool of `frames` frames.
    pub(crate) fn new(frames: usize) -> Self {
        Self { sets: vec![Set([0; SET]); (frames * GHOSTS_IN_TEN / 10 / SET).max(1)].into() }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.sets) as u64
    }

    /// Returns whether the page or block was evicted recently.
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.sets[self.set_of(number)].0.contains(&mark(number))
    }

    /// Notes that the page or block was evicted.
    pub(crate) fn add(&mut self, number: u64) {
        let set = self.set_of(number);
        let Set(marks) = &mut self.sets[set];
        if !marks.contains(&mark(number)) {
            marks.copy_within(..SET - 1, 1);
            marks[0] = mark(number);
        }
    }

    pub(crate) fn prefetch(&self, number: u64) {
        prefetch_read(&raw const self.sets[self.set_of(number)]);
    }

    fn set_of(&self, number: u64) -> usize {
        let spread = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((spread * self.sets.len() as u64) >> 32) as usize
    }
}

/// Returns the mark that stands for a number in a set. Page ids have 32 bits. The highest of them has the mark of an
/// empty place, so it always counts as recently evicted, which does no harm; nor do blocks beyond 2^32, which share marks.
fn mark(number: u64) -> u32 {
    (number as u32).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ghosts_are_somewhat_fewer_than_frames_and_are_forgotten_nearly_in_order() {
        let frames = 20_480;
        let mut ghosts = Ghosts::new(frames);
        let pages: Vec<_> = (0..4 * frames as u64).map(|number| number * 7 + 3).collect();
        pages.iter().for_each(|page| ghosts.add(*page));
        let known =
            |from: usize, until: usize| pages[from..until].iter().filter(|page| ghosts.contains(**page)).count();
        let (all, young) = (known(0, pages.len()), known(pages.len() - frames / 2, pages.len()));
        assert_eq!(all, frames / 10 * GHOSTS_IN_TEN, "each set is full");
        assert!(young > frames / 2 * 9 / 10, "of the last {} evicted pages {young} are remembered", frames / 2);
        assert!(known(0, 2 * frames) < frames / 20, "the oldest are forgotten");
        assert!(!ghosts.contains(1), "page 1 was never evicted");
    }
}

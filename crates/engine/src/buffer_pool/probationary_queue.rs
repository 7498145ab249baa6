//! The probationary queue of pages that were just read from disk (S3-FIFO's small queue). Most are not requested again, so
//! they are evicted before any page that was used twice; a page that is read again soon after its eviction skips the queue.
//! This is S3-FIFO's answer to scans (Yang and others, SOSP 2023) before a clock: `evict::policies` compares it with others.
//!
//! Invariant: nothing here owns or pins a frame. An entry records the page that a frame held when it was noted; the code that
//! takes an entry checks whether the frame still holds that page.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nofault_io::prefetch::{LINE_BYTES, prefetch_read};

use crate::format::PageId;

/// The length that the queue keeps, as a divisor of the number of frames.
const SHARE: usize = 10;
/// Number of ghosts for every ten frames. Ghosts are not forgotten in exact order: with as many ghosts as frames, in a
/// loop over slightly more pages than the cache holds, all pages would be remembered and none would count as new (see
/// `evict::policies`).
const GHOSTS_IN_TEN: usize = 8;
/// Number of ghosts in a set: as many as one cache line holds.
const SET: usize = LINE_BYTES / size_of::<u32>();

/// The probationary queue and the ghosts of the pages evicted from it. No other lock is taken while its lock is held.
#[derive(Debug)]
pub(super) struct ProbationaryQueue {
    state: Mutex<State>,
    share_max: usize,
    entries_max: usize,
}

#[derive(Debug)]
struct State {
    /// The frame and the page of each entry, oldest first.
    queue: VecDeque<(u32, PageId)>,
    ghosts: Ghosts,
}

impl ProbationaryQueue {
    /// Creates the queue for a pool of `frames` frames.
    pub(super) fn new(frames: usize) -> Self {
        let state = State { queue: VecDeque::new(), ghosts: Ghosts::new(frames) };
        Self { state: Mutex::new(state), share_max: (frames / SHARE).max(2), entries_max: frames }
    }

    /// Prefetches the CPU cache lines that `add` will need for these pages.
    pub(super) fn expect(&self, pages: impl Iterator<Item = PageId>) {
        let state = self.lock();
        pages.for_each(|page| state.ghosts.prefetch(page));
    }

    /// Adds pages that were just read, each with its frame.
    pub(super) fn add(&self, pages: impl Iterator<Item = (u32, PageId)>) {
        let mut state = self.lock();
        for (frame, page) in pages {
            if state.ghosts.contains(page) {
                continue;
            }
            if state.queue.len() >= self.entries_max {
                // With more entries than frames, the oldest entry names a frame that holds another page by now, or a
                // page used long ago.
                state.queue.pop_front();
            }
            state.queue.push_back((frame, page));
        }
    }

    /// Returns the number of pages in the queue.
    pub(super) fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Removes up to `most` of the oldest entries, as long as the queue is longer than its share.
    pub(super) fn take_oldest(&self, most: usize, into: &mut Vec<(u32, PageId)>) {
        let mut state = self.lock();
        let State { queue, ghosts } = &mut *state;
        let count = queue.len().saturating_sub(self.share_max).min(most);
        for (frame, page) in queue.drain(..count) {
            ghosts.prefetch(page);
            into.push((frame, page));
        }
    }

    /// Records what became of entries that were taken from the queue: the pages in `left` were evicted, and the entries
    /// in `stay` go back into the queue.
    pub(super) fn put_back(&self, left: &[PageId], stay: &[(u32, PageId)]) {
        let mut state = self.lock();
        left.iter().for_each(|page| state.ghosts.add(*page));
        state.queue.extend(stay);
    }

    /// Returns the most bytes of memory that the queue takes in a pool of `frames` frames.
    pub(super) fn bytes_max(frames: usize) -> u64 {
        // The queue, with the room that growing leaves, and the ghosts.
        (frames * (2 * 16 + size_of::<u32>())) as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ghosts: the ids of pages recently evicted from the queue, somewhat fewer than there are frames. They lie in
/// sets, and a page's id determines its set, so that each lookup touches one cache line, which can be prefetched. A set
/// forgets its oldest page for a new one, so pages are forgotten nearly in the order of their evictions.
#[derive(Debug)]
pub(super) struct Ghosts {
    sets: Box<[Set]>,
}

/// One set of ghosts, as marks of page ids, newest first; zero is an empty place.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Set([u32; SET]);

impl Ghosts {
    /// Creates the ghost sets for a pool of `frames` frames.
    pub(super) fn new(frames: usize) -> Self {
        Self { sets: vec![Set([0; SET]); (frames * GHOSTS_IN_TEN / 10 / SET).max(1)].into() }
    }

    /// Returns whether the page was evicted from the queue recently.
    pub(super) fn contains(&self, page: PageId) -> bool {
        self.sets[self.set_of(page)].0.contains(&mark(page))
    }

    /// Notes that the page was evicted from the queue.
    pub(super) fn add(&mut self, page: PageId) {
        let set = self.set_of(page);
        let Set(marks) = &mut self.sets[set];
        if !marks.contains(&mark(page)) {
            marks.copy_within(..SET - 1, 1);
            marks[0] = mark(page);
        }
    }

    fn prefetch(&self, page: PageId) {
        prefetch_read(&raw const self.sets[self.set_of(page)]);
    }

    fn set_of(&self, page: PageId) -> usize {
        let spread = page.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((spread * self.sets.len() as u64) >> 32) as usize
    }
}

/// Returns the mark that stands for a page in a set. Page ids have 32 bits. The highest id has the mark of an empty
/// place, so it always counts as recently evicted, which does no harm.
fn mark(page: PageId) -> u32 {
    (page.0 as u32).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oldest(queue: &ProbationaryQueue) -> Option<(u32, PageId)> {
        let mut taken = Vec::new();
        queue.take_oldest(1, &mut taken);
        taken.pop()
    }

    #[test]
    fn new_pages_are_evicted_first_and_a_page_read_again_soon_skips_the_queue() {
        let queue = ProbationaryQueue::new(20);
        queue.add((0..4).map(|page| (page as u32, PageId(page))));
        assert_eq!(oldest(&queue), Some((0, PageId(0))));
        queue.put_back(&[PageId(0)], &[]);
        assert_eq!(oldest(&queue), Some((1, PageId(1))));
        queue.put_back(&[], &[(1, PageId(1))]);
        assert_eq!(oldest(&queue), Some((2, PageId(2))));
        assert_eq!(oldest(&queue), None, "two entries are the share of the queue");
        queue.add([(9, PageId(0))].into_iter());
        assert_eq!(queue.len(), 2, "page 0 is among the ghosts");
        queue.put_back(&(100..130).map(PageId).collect::<Vec<_>>(), &[]);
        queue.add([(9, PageId(0))].into_iter());
        assert_eq!(queue.len(), 3, "page 0 is no longer among the ghosts");
    }

    #[test]
    fn many_pages_leave_at_once_but_the_queue_keeps_its_share() {
        let queue = ProbationaryQueue::new(100);
        queue.add((0..30).map(|page| (page as u32, PageId(page))));
        let mut taken = Vec::new();
        queue.take_oldest(15, &mut taken);
        queue.take_oldest(15, &mut taken);
        assert_eq!(taken, (0..20).map(|page| (page as u32, PageId(page))).collect::<Vec<_>>());
        assert_eq!(queue.len(), 10);
    }

    #[test]
    fn ghosts_are_somewhat_fewer_than_frames_and_are_forgotten_nearly_in_order() {
        let frames = 20_480;
        let mut ghosts = Ghosts::new(frames);
        let pages: Vec<_> = (0..4 * frames as u64).map(|number| PageId(number * 7 + 3)).collect();
        pages.iter().for_each(|page| ghosts.add(*page));
        let known =
            |from: usize, until: usize| pages[from..until].iter().filter(|page| ghosts.contains(**page)).count();
        let (all, young) = (known(0, pages.len()), known(pages.len() - frames / 2, pages.len()));
        assert_eq!(all, frames / 10 * GHOSTS_IN_TEN, "each set is full");
        assert!(young > frames / 2 * 9 / 10, "of the last {} evicted pages {young} are remembered", frames / 2);
        assert!(known(0, 2 * frames) < frames / 20, "the oldest are forgotten");
        assert!(!ghosts.contains(PageId(1)), "page 1 was never evicted");
    }
}

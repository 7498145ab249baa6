//! The probationary queue of pages that were just read from disk (S3-FIFO's small queue). Most are not requested again, so
//! they are evicted before any page used twice; a page read again soon after its eviction skips the queue.
//! This is S3-FIFO's answer to scans (Yang and others, SOSP 2023) before a clock: `evict::policies` compares it with others.
//!
//! Invariant: nothing here owns or pins a frame. An entry records the page that a frame held when it was noted; the code that
//! takes an entry checks whether the frame still holds that page.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::buffer_pool::frames::Ghosts;
use crate::format::PageId;

/// The length that the queue keeps, as a divisor of the number of frames.
const SHARE: usize = 10;

/// The probationary queue and the ghosts of the pages evicted from it. No other lock is taken while its lock is held.
#[derive(Debug)]
pub(crate) struct ProbationaryQueue {
    state: Mutex<State>,
    frames: usize,
}

#[derive(Debug)]
struct State {
    /// The frame and the page of each entry, oldest first.
    queue: VecDeque<(u32, PageId)>,
    ghosts: Ghosts,
}

impl ProbationaryQueue {
    /// Creates the queue for a pool of `frames` frames.
    pub(crate) fn new(frames: usize) -> Self {
        let state = State { queue: VecDeque::new(), ghosts: Ghosts::new(frames) };
        Self { state: Mutex::new(state), frames }
    }

    /// Prefetches the CPU cache lines that `add` will need for these pages.
    pub(crate) fn expect(&self, pages: impl Iterator<Item = PageId>) {
        let state = self.lock();
        pages.for_each(|page| state.ghosts.prefetch(page.0));
    }

    /// Adds pages that were just read, each with its frame.
    pub(crate) fn add(&self, pages: impl Iterator<Item = (u32, PageId)>) {
        let mut state = self.lock();
        for (frame, page) in pages {
            if state.ghosts.contains(page.0) {
                continue;
            }
            if state.queue.len() >= self.frames {
                // With more entries than frames, the oldest entry names a frame that holds another page by now, or a
                // page used long ago.
                state.queue.pop_front();
            }
            state.queue.push_back((frame, page));
        }
    }

    /// Returns the number of pages in the queue.
    pub(crate) fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Removes up to `most` of the oldest entries, as long as the queue is longer than its share of the frames. Of these
    /// `frames_without` can have no page, as they hold blocks.
    pub(crate) fn take_oldest(&self, most: usize, frames_without: usize, into: &mut Vec<(u32, PageId)>) {
        let share_max = (self.frames.saturating_sub(frames_without) / SHARE).max(2);
        let mut state = self.lock();
        let State { queue, ghosts } = &mut *state;
        let count = queue.len().saturating_sub(share_max).min(most);
        for (frame, page) in queue.drain(..count) {
            ghosts.prefetch(page.0);
            into.push((frame, page));
        }
    }

    /// Records the fate of entries taken from the queue: the pages in `left` were evicted, and the entries
    /// in `stay` go back into the queue.
    pub(crate) fn put_back(&self, left: &[PageId], stay: &[(u32, PageId)]) {
        let mut state = self.lock();
        left.iter().for_each(|page| state.ghosts.add(page.0));
        state.queue.extend(stay);
    }

    /// Returns the most bytes of memory that the queue takes in a pool of `frames` frames.
    pub(crate) fn bytes_max(frames: usize) -> u64 {
        // The queue, with the room that growing leaves, and the ghosts.
        (frames * (2 * 16 + size_of::<u32>())) as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oldest(queue: &ProbationaryQueue) -> Option<(u32, PageId)> {
        let mut taken = Vec::new();
        queue.take_oldest(1, 0, &mut taken);
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
        queue.take_oldest(15, 0, &mut taken);
        queue.take_oldest(15, 0, &mut taken);
        assert_eq!(taken, (0..20).map(|page| (page as u32, PageId(page))).collect::<Vec<_>>());
        assert_eq!(queue.len(), 10);
        queue.take_oldest(15, 60, &mut taken);
        assert_eq!(queue.len(), 4, "sixty frames hold blocks, so the share is a part of forty");
    }
}

//! Pages that have just come from disk. Most are not asked for again, so they leave before anything that has been used twice; one
//! that left and comes back soon after is not new any more. This is S3-FIFO's answer to scans (Yang and others, SOSP
//! 2023) before a clock: `evict::policies` compares it with others.
//!
//! Kept true by: nothing here owns or pins a frame. An entry says what a frame held when it was noted; whoever takes it looks
//! whether that is still so.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashSet;

use crate::format::PageId;

/// The part of the frames that newcomers have to themselves.
const SHARE: usize = 10;

/// See the module. Its lock is a leaf.
#[derive(Debug)]
pub(super) struct Nursery {
    state: Mutex<State>,
    young_max: usize,
    ghosts_max: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first.
    young: VecDeque<(u32, PageId)>,
    /// Pages that left young, oldest first.
    ghosts: VecDeque<PageId>,
    is_ghost: FxHashSet<PageId>,
}

impl Nursery {
    /// For a pool of so many frames.
    pub(super) fn new(frames: usize) -> Self {
        Self { state: Mutex::default(), young_max: (frames / SHARE).max(2), ghosts_max: frames }
    }

    /// A page was read into this frame.
    pub(super) fn came(&self, page: PageId, frame: u32) {
        let mut state = self.lock();
        if !state.is_ghost.contains(&page) {
            if state.young.len() >= self.ghosts_max {
                // More entries than frames: the oldest names a frame that holds something else by now, or one used long ago.
                state.young.pop_front();
            }
            state.young.push_back((frame, page));
        }
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.lock().young.len()
    }

    /// The oldest newcomer, if there are more than their share.
    pub(super) fn oldest(&self) -> Option<(u32, PageId)> {
        let mut state = self.lock();
        if state.young.len() > self.young_max { state.young.pop_front() } else { None }
    }

    /// It could not leave now.
    pub(super) fn stays(&self, frame: u32, page: PageId) {
        self.lock().young.push_back((frame, page));
    }

    /// It left.
    pub(super) fn left(&self, page: PageId) {
        let mut state = self.lock();
        if state.is_ghost.insert(page) {
            state.ghosts.push_back(page);
        }
        if state.ghosts.len() > self.ghosts_max
            && let Some(oldest) = state.ghosts.pop_front()
        {
            state.is_ghost.remove(&oldest);
        }
    }

    /// Memory for a pool of so many frames, at most.
    pub(super) fn bytes_max(frames: usize) -> u64 {
        // Queue, list and set of ghosts, each with the room that growing leaves.
        (frames * 2 * (16 + 8 + 9)) as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newcomers_leave_first_and_who_comes_back_is_none() {
        let nursery = Nursery::new(20);
        (0..4).for_each(|page| nursery.came(PageId(page), page as u32));
        assert_eq!(nursery.oldest(), Some((0, PageId(0))));
        nursery.left(PageId(0));
        assert_eq!(nursery.oldest(), Some((1, PageId(1))));
        nursery.stays(1, PageId(1));
        assert_eq!(nursery.oldest(), Some((2, PageId(2))));
        assert_eq!(nursery.oldest(), None, "two are their share");
        nursery.came(PageId(0), 9);
        assert_eq!(nursery.len(), 2, "it is known");
        (100..130).for_each(|page| nursery.left(PageId(page)));
        nursery.came(PageId(0), 9);
        assert_eq!(nursery.len(), 3, "it is forgotten");
    }
}

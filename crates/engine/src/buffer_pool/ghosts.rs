//! Ghosts: the numbers of pages or blocks that were evicted a short time ago. One that is wanted again, and is a ghost,
//! would have been in memory if there had been somewhat more of it.

use nofault_io::prefetch::{LINE_BYTES, prefetch_read};

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
pub(super) struct Ghosts {
    sets: Box<[Set]>,
}

/// One set of ghosts, as marks of their numbers, newest first; zero is an empty place.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Set([u32; SET]);

impl Ghosts {
    /// Creates the ghosts for a pool of `frames` frames.
    pub(super) fn new(frames: usize) -> Self {
        Self { sets: vec![Set([0; SET]); (frames * GHOSTS_IN_TEN / 10 / SET).max(1)].into() }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.sets) as u64
    }

    /// Returns whether the page or block was evicted recently.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.sets[self.set_of(number)].0.contains(&mark(number))
    }

    /// Notes that the page or block was evicted.
    pub(super) fn add(&mut self, number: u64) {
        let set = self.set_of(number);
        let Set(marks) = &mut self.sets[set];
        if !marks.contains(&mark(number)) {
            marks.copy_within(..SET - 1, 1);
            marks[0] = mark(number);
        }
    }

    pub(super) fn prefetch(&self, number: u64) {
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

//! Which pages a scan requests next, so that reads are large and the device always has nearly the whole distance before it.

use crate::format::PageId;

/// The part of the distance requested together (one eighth), if that is more than a large read.
const ASKED_AT_ONCE_SHARE: usize = 8;

/// How far ahead of a scan pages were requested.
#[derive(Debug)]
pub(super) struct ReadAhead {
    /// The farthest leaf that was requested.
    leaf: Option<PageId>,
    /// The farthest leaf for which the pages of values were requested.
    values_of: Option<PageId>,
    /// Average number of pages for one leaf: itself and the pages of its values.
    pub(super) pages_a_leaf: usize,
    /// Number of leaves that the scan passes before more pages can be requested.
    pub(super) idle_leaves: usize,
    /// Number of pages in one large read.
    read_pages: usize,
    /// Number of pages ahead of the scan for which reads were queued.
    queued: usize,
    /// Number of reads that the scan has queued for the store.
    shared: usize,
}

impl ReadAhead {
    /// Creates the state of a scan that has requested nothing yet.
    pub(super) fn new(read_pages: usize) -> Self {
        Self { leaf: None, values_of: None, pages_a_leaf: 1, idle_leaves: 0, read_pages, queued: 0, shared: 0 }
    }

    /// Notes reads queued for the store. Returns how many there were in all.
    pub(super) fn note_shared(&mut self, count: usize) -> usize {
        self.queued += count;
        self.shared += count;
        self.shared
    }

    /// Notes reads queued for the scan alone.
    pub(super) fn note_own(&mut self, count: usize) {
        self.queued += count;
    }

    /// Notes that the scan moves to the next leaf. Returns whether the leaves from there on were all in memory.
    pub(super) fn pass_leaf(&mut self) -> bool {
        self.idle_leaves = self.idle_leaves.saturating_sub(1);
        let all_in_memory = self.queued == 0;
        self.queued = self.queued.saturating_sub(self.pages_a_leaf);
        all_in_memory
    }

    /// Returns how many of `span` leaves the scan must pass before it requests more: so many that reads are large, so
    /// few that the device stays busy.
    fn step(&self, span: usize) -> usize {
        let read = self.read_pages / self.pages_a_leaf;
        (span / ASKED_AT_ONCE_SHARE).max(read.min(span / 2)).max(1)
    }

    /// Returns the pages to request now, given the leaves to come: up to `distance` pages ahead, and no leaf farther
    /// than `leaves_max`.
    ///
    /// The pages of values are known only when their leaf is in memory, so leaves are requested twice as far ahead.
    pub(super) fn next(
        &mut self,
        leaves: &[PageId],
        distance: usize,
        leaves_max: usize,
        mut name_values: impl FnMut(PageId, &mut Vec<PageId>) -> bool,
    ) -> Vec<PageId> {
        let mut pages = Vec::new();
        let done = |farthest: Option<PageId>| {
            farthest.and_then(|farthest| leaves.iter().position(|leaf| *leaf == farthest)).map_or(0, |at| at + 1)
        };
        let mut span = (distance / self.pages_a_leaf).min(leaves_max);
        let mut idle_leaves = usize::MAX;
        if self.pages_a_leaf > 1 {
            let (mut reached, step) = (done(self.values_of), self.step(span));
            if reached + step <= span {
                for leaf in leaves.iter().take(span).skip(reached) {
                    let before = pages.len();
                    if !name_values(*leaf, &mut pages) {
                        break;
                    }
                    reached += 1;
                    self.values_of = Some(*leaf);
                    self.pages_a_leaf = pages.len() - before + 1;
                }
            }
            idle_leaves = (reached + step).saturating_sub(span);
            span = (span * 2).max(1).min(leaves_max);
        }
        let (mut reached, step) = (done(self.leaf), self.step(span));
        let upto = leaves.len().min(span);
        if reached + step <= span && reached < upto {
            pages.extend(&leaves[reached..upto]);
            self.leaf = leaves[..upto].last().copied();
            reached = upto;
        }
        self.idle_leaves = idle_leaves.min((reached + step).saturating_sub(span));
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns page ids for leaves: leaf `n` is page `n`. In these tests each leaf has three pages of values.
    fn ids(range: std::ops::Range<u64>) -> Vec<PageId> {
        range.map(PageId).collect()
    }

    fn read_ahead() -> ReadAhead {
        ReadAhead::new(64)
    }

    #[test]
    fn more_leaves_are_requested_when_half_of_them_are_used_up() {
        let mut read_ahead = read_ahead();
        let none = |_, _: &mut Vec<PageId>| unreachable!("no values anywhere");
        assert_eq!(read_ahead.next(&ids(1..100), 8, usize::MAX, none), ids(1..9));
        for first in 2..5 {
            assert_eq!(read_ahead.next(&ids(first..100), 8, usize::MAX, none), [], "from {first}");
        }
        assert_eq!(read_ahead.next(&ids(5..100), 8, usize::MAX, none), ids(9..13));
        assert_eq!(read_ahead.next(&ids(9..13), 8, usize::MAX, none), [], "there are no more");
        assert_eq!(read_ahead.next(&ids(9..100), 8, 0, none), [], "none are wanted");
    }

    #[test]
    fn a_long_distance_is_filled_up_again_in_small_parts() {
        let mut read_ahead = read_ahead();
        let none = |_, _: &mut Vec<PageId>| unreachable!("no values anywhere");
        assert_eq!(read_ahead.next(&ids(1..5000), 2048, usize::MAX, none), ids(1..2049));
        assert_eq!(read_ahead.idle_leaves, 256, "an eighth");
        assert_eq!(read_ahead.next(&ids(256..5000), 2048, usize::MAX, none), []);
        assert_eq!(read_ahead.next(&ids(257..5000), 2048, usize::MAX, none), ids(2049..2305));
        assert_eq!(
            read_ahead.next(&ids(321..5000), 256, usize::MAX, none),
            [],
            "less far than what was asked for already"
        );
        assert_eq!(read_ahead.idle_leaves, 2305 - 321 + 64 - 256, "a large read is the least");
    }

    #[test]
    fn values_are_requested_as_far_as_their_leaves_are_in_memory_and_leaves_twice_as_far() {
        let mut read_ahead = ReadAhead { pages_a_leaf: 4, ..read_ahead() };
        let values = |leaf: u64| ids(leaf * 1000..leaf * 1000 + 3);
        let there = |most: u64| {
            move |leaf: PageId, into: &mut Vec<PageId>| {
                into.extend(if leaf.0 <= most { values(leaf.0) } else { Vec::new() });
                leaf.0 <= most
            }
        };
        assert_eq!(
            read_ahead.next(&ids(1..100), 3, usize::MAX, there(9)),
            ids(1..2),
            "not far enough for a whole leaf"
        );
        let first = read_ahead.next(&ids(1..100), 16, usize::MAX, there(2));
        assert_eq!(first, [values(1), values(2), ids(2..9)].concat(), "of four leaves two are there");
        let second = read_ahead.next(&ids(2..100), 16, usize::MAX, there(9));
        assert_eq!(second, [values(3), values(4), values(5)].concat(), "no leaf before half of them are used up");
        assert_eq!(read_ahead.next(&ids(3..100), 16, usize::MAX, there(9)), []);
        assert_eq!(
            read_ahead.next(&ids(5..100), 16, usize::MAX, there(20)),
            [values(6), values(7), values(8), ids(9..13)].concat()
        );
    }

    #[test]
    fn a_leaf_that_was_read_ahead_counts_as_one_that_was_not_in_memory() {
        let mut read_ahead = ReadAhead { queued: 2, ..read_ahead() };
        assert_eq!([(); 3].map(|()| read_ahead.pass_leaf()), [false, false, true]);
    }
}

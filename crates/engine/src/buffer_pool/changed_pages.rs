//! Ranges of neighbouring pages that one commit changed last, so that a bulk load takes the memory of a few ranges and not of its pages.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::format::{CommitSeq, PageId};

/// Bytes of memory of one range: key and value in a B-tree of the standard library, which is two thirds full as a rule.
const RANGE_BYTES: usize = (size_of::<u64>() + size_of::<ChangedRange>()) * 3 / 2 + 4;

/// Pages with the number of the commit that changed each of them last.
///
/// Invariant: ranges neither overlap nor are empty, and two that touch have different commits.
#[derive(Debug, Default)]
pub(crate) struct ChangedPages {
    /// The ranges, each under its first page.
    ranges: BTreeMap<u64, ChangedRange>,
    pages: u64,
    /// Number of ranges that the last checkpoint could not remove because later commits changed their pages.
    left: usize,
}

/// One range of changed pages: its end, and the last commit that changed its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChangedRange {
    end: u64,
    commit: CommitSeq,
}

impl ChangedPages {
    /// Returns the last commit that changed a page; `None` when the page is not in the list.
    pub(crate) fn get(&self, page: PageId) -> Option<CommitSeq> {
        self.range_of(page.0).map(|(_, range)| range.commit)
    }

    /// Notes that `commit` is the last commit that changed this page. Takes a few steps in the tree.
    pub(crate) fn insert(&mut self, page: PageId, commit: CommitSeq) {
        if self.renew_alone(page.0, commit) {
            return;
        }
        let (mut first, mut end) = (page.0, page.0 + 1);
        match self.range_of(page.0) {
            Some((_, range)) if range.commit == commit => return,
            Some((start, range)) => {
                self.ranges.remove(&start);
                self.put(start..page.0, range.commit);
                self.put(end..range.end, range.commit);
            }
            None => self.pages += 1,
        }
        if let Some((start, before)) = self.ranges.range(..first).next_back().map(|(start, range)| (*start, *range))
            && before == (ChangedRange { end: first, commit })
        {
            self.ranges.remove(&start);
            first = start;
        }
        if let Some(after) = self.ranges.get(&end).copied().filter(|after| after.commit == commit) {
            self.ranges.remove(&end);
            end = after.end;
        }
        self.put(first..end, commit);
    }

    /// Returns the changed pages from `from` on and below `end`, in order.
    pub(crate) fn between(&self, from: PageId, end: PageId) -> impl Iterator<Item = PageId> + '_ {
        let first = self.range_of(from.0).map_or(from.0, |(start, _)| start);
        let ranges = self.ranges.range(first..end.0.max(first));
        ranges.flat_map(move |(start, range)| (*start).max(from.0)..range.end.min(end.0)).map(PageId)
    }

    /// Examines up to `ranges_max` ranges from page `from` on, which must not lie inside a range, and removes the
    /// ranges changed last in `commit` or before. Returns how many ranges it examined, and the page to go on
    /// from, or `None` at the end of the list.
    pub(crate) fn forget(&mut self, from: PageId, commit: CommitSeq, ranges_max: usize) -> (usize, Option<PageId>) {
        let some: Vec<(u64, ChangedRange)> =
            self.ranges.range(from.0..).take(ranges_max).map(|(start, range)| (*start, *range)).collect();
        for (start, range) in &some {
            if range.commit <= commit {
                self.ranges.remove(start);
                self.pages -= range.end - start;
            }
        }
        let next = some.last().filter(|_| some.len() == ranges_max).map(|(_, range)| PageId(range.end));
        (some.len(), next)
    }

    /// Returns the number of changed pages.
    pub(crate) fn page_count(&self) -> u64 {
        self.pages
    }

    /// Returns the bytes of memory that the list takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.ranges.len() * RANGE_BYTES) as u64
    }

    /// Notes that a checkpoint has removed all the ranges that it could.
    pub(crate) fn checkpoint_made(&mut self) {
        self.left = self.ranges.len();
    }

    /// Returns whether the list takes more than `bytes_max` bytes, and more than twice the memory that it had after the
    /// last checkpoint: then another checkpoint, which examines all of the list again, makes it smaller.
    pub(crate) fn has_outgrown(&self, bytes_max: u64) -> bool {
        self.memory_bytes() > bytes_max && self.ranges.len() > 2 * self.left
    }

    /// Changes the commit of a page that is a range by itself, as nearly every page is that random changes meet, and that
    /// stays one. Returns whether it did. Takes one search in the tree.
    fn renew_alone(&mut self, page: u64, commit: CommitSeq) -> bool {
        let mut from_behind = self.ranges.range_mut(..=page + 1).rev();
        let mut found = from_behind.next();
        if let Some((start, after)) = &found
            && **start > page
        {
            if after.commit == commit {
                return false;
            }
            found = from_behind.next();
        }
        let Some((start, range)) = found else { return false };
        let joins = |before: &ChangedRange| before.end == page && before.commit == commit;
        if *start != page || range.end != page + 1 || from_behind.next().is_some_and(|(_, before)| joins(before)) {
            return false;
        }
        range.commit = commit;
        true
    }

    fn range_of(&self, page: u64) -> Option<(u64, ChangedRange)> {
        let (start, range) = self.ranges.range(..=page).next_back()?;
        (page < range.end).then_some((*start, *range))
    }

    fn put(&mut self, pages: Range<u64>, commit: CommitSeq) {
        if !pages.is_empty() {
            self.ranges.insert(pages.start, ChangedRange { end: pages.end, commit });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_hold_the_pages_and_commits_that_a_map_would(
            steps in prop::collection::vec((0..40_u64, 1..40_u64, 0..4_u64, any::<bool>()), 1..60),
        ) {
            let (mut changed, mut model) = (ChangedPages::default(), BTreeMap::new());
            for (first, len, commit, forgets) in steps {
                let commit = CommitSeq(commit);
                if forgets {
                    let mut next = Some(PageId(0));
                    while let Some(from) = next {
                        (_, next) = changed.forget(from, commit, 2);
                    }
                    model.retain(|_, last| *last > commit);
                } else {
                    for page in (first..first + len.min(8)).map(PageId) {
                        changed.insert(page, commit);
                        model.insert(page, commit);
                    }
                }
                prop_assert!((0..50).map(PageId).all(|page| changed.get(page) == model.get(&page).copied()));
                prop_assert_eq!(changed.page_count(), model.len() as u64);
                let (from, end) = (PageId(first), PageId(first + len));
                let expected: Vec<_> = model.range(from..end).map(|(page, _)| *page).collect();
                prop_assert_eq!(changed.between(from, end).collect::<Vec<_>>(), expected);
                let runs = model.iter().filter(|(page, commit)| {
                    page.0 == 0 || model.get(&PageId(page.0 - 1)) != Some(*commit)
                });
                prop_assert_eq!(changed.ranges.len(), runs.count(), "no more ranges than are needed");
            }
        }
    }

    #[test]
    fn pages_of_one_commit_are_one_range_in_whatever_order_they_come() {
        let mut changed = ChangedPages::default();
        for page in (1..1000_u32).step_by(2).chain((0..1000).step_by(2).rev()) {
            changed.insert(PageId(u64::from(page)), CommitSeq(7));
        }
        assert_eq!((changed.page_count(), changed.memory_bytes()), (1000, RANGE_BYTES as u64));
    }
}

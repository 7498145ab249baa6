//! Notes the pages that have changed since a checkpoint took them over: commits note them, and the next checkpoint
//! reads them.
//!
//! Kept true by: the lock of the books is held for a bounded part of the pages at a time.

use std::sync::Arc;

use super::Core;
use super::registry::Superseded;
use crate::budget::Budget;
use crate::format::{CommitSeq, PageId};

/// Changed pages that are noted, or looked at, under one hold of the books' lock.
const CHANGED_AT_ONCE: usize = 512;
/// Steps of noting or forgetting one.
const STEPS_A_CHANGE: usize = 2;

impl Core {
    /// The last change of a page since a checkpoint took it over; zero without any. May be called under the page's shard lock.
    pub(super) fn last_change(&self, page: PageId) -> CommitSeq {
        self.books().changed.get(&page).copied().unwrap_or_default()
    }

    /// Before a publication: which pages there are only from now on.
    pub(super) fn note_new(&self, seq: CommitSeq, pages: impl Iterator<Item = PageId>) {
        let pages: Vec<PageId> = pages.collect();
        self.note_changed(seq, &pages);
    }

    pub(super) fn note_changed(&self, seq: CommitSeq, pages: &[PageId]) {
        for pages in pages.chunks(CHANGED_AT_ONCE) {
            let mut budget = Budget::new();
            budget.spend(STEPS_A_CHANGE * pages.len());
            self.books().changed.extend(pages.iter().map(|page| (*page, seq)));
        }
    }

    /// A page number above all that are in use.
    pub(crate) fn pages_end(&self) -> PageId {
        PageId(self.books().ids.end())
    }

    /// Some pages that were changed since a checkpoint took them over, from page `from` on and below `end`, and where to go on.
    pub(crate) fn changed_between(&self, from: PageId, end: PageId) -> (Vec<PageId>, Option<PageId>) {
        let mut budget = Budget::new();
        let books = self.books();
        let changed = books.changed.range(from..end.max(from)).take(CHANGED_AT_ONCE);
        let pages: Vec<PageId> = changed.map(|(page, _)| *page).collect();
        budget.spend(pages.len());
        let next = pages.last().filter(|_| pages.len() == CHANGED_AT_ONCE).map(|last| PageId(last.0 + 1));
        (pages, next)
    }

    /// A checkpoint has taken over all changes up to `commit`.
    pub(crate) fn forget_changed(&self, commit: CommitSeq) {
        let (mut next, end) = (Some(PageId(0)), self.pages_end());
        while let Some(from) = next {
            let pages;
            (pages, next) = self.changed_between(from, end);
            let mut budget = Budget::new();
            budget.spend(STEPS_A_CHANGE * pages.len());
            let mut books = self.books();
            for page in pages {
                // Those that have changed once more meanwhile are changed for the next one.
                if books.changed.get(&page).is_some_and(|last| *last <= commit) {
                    books.changed.remove(&page);
                }
            }
        }
    }

    /// Notes the changed pages after a publication, and the versions that it superseded.
    pub(super) fn note_published(self: &Arc<Self>, seq: CommitSeq, changed: &[PageId], superseded: Vec<Superseded>) {
        self.note_changed(seq, changed);
        if self.frames.dirty_count() > self.frames.dirty_max() * 3 / 4 {
            // Ahead of need, so that the next commits find frames.
            self.keeper.wake();
        }
        // A version of the same commit was never visible under any number.
        let (same, older): (Vec<_>, Vec<_>) = superseded.into_iter().partition(|old| old.from == old.until);
        self.registry().supersede(older);
        self.drop_later(same);
    }
}

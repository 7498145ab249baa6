//! Notes the pages that have changed since a checkpoint took them over: commits note them, and the next checkpoint
//! reads them.
//!
//! Invariant: the lock of the books is held for a bounded part of the pages at a time.

use std::sync::Arc;

use super::Core;
use super::registry::Superseded;
use crate::budget::Budget;
use crate::format::{CommitSeq, PageId};

/// Changed pages that are noted, or looked at, under one hold of the books' lock.
const CHANGED_AT_ONCE: usize = 512;
/// Steps of noting a page: at most four ranges are looked at or changed, three of them beside each other.
const STEPS_A_CHANGE: usize = 4;
/// The part of the frames' memory that the list of changed pages may take before a checkpoint is due.
const CHANGED_SHARE: u64 = 32;
/// Steps of forgetting a range.
const STEPS_A_RANGE: usize = 2;

impl Core {
    /// The last change of a page since a checkpoint took it over; zero without any. May be called under the page's shard lock.
    pub(super) fn last_change(&self, page: PageId) -> CommitSeq {
        self.books().changed.get(page).unwrap_or_default()
    }

    /// Notes, before a publication, the pages that are new with it.
    pub(super) fn note_new(&self, seq: CommitSeq, pages: impl Iterator<Item = PageId>) {
        let pages: Vec<PageId> = pages.collect();
        self.note_changed(seq, &pages);
    }

    pub(super) fn note_changed(&self, seq: CommitSeq, pages: &[PageId]) {
        for pages in pages.chunks(CHANGED_AT_ONCE) {
            let mut budget = Budget::new();
            budget.spend(STEPS_A_CHANGE * pages.len());
            let mut books = self.books();
            pages.iter().for_each(|page| books.changed.insert(*page, seq));
        }
    }

    /// Returns a page number above all that are in use.
    pub(crate) fn pages_end(&self) -> PageId {
        PageId(self.books().ids.end())
    }

    /// Returns some of the pages changed since a checkpoint took them over, from page `from` on and below `end`, and the page to go
    /// on from.
    pub(crate) fn changed_between(&self, from: PageId, end: PageId) -> (Vec<PageId>, Option<PageId>) {
        let mut budget = Budget::new();
        let books = self.books();
        let pages: Vec<PageId> = books.changed.between(from, end).take(CHANGED_AT_ONCE).collect();
        budget.spend(pages.len());
        let next = pages.last().filter(|_| pages.len() == CHANGED_AT_ONCE).map(|last| PageId(last.0 + 1));
        (pages, next)
    }

    /// Forgets all changes up to `commit`, which a checkpoint has taken over.
    pub(crate) fn forget_changed(&self, commit: CommitSeq) {
        let mut next = Some(PageId(0));
        while let Some(from) = next {
            let mut budget = Budget::new();
            let looked_at;
            // Pages that have changed again meanwhile stay noted for the next checkpoint.
            (looked_at, next) = self.books().changed.forget(from, commit, CHANGED_AT_ONCE);
            budget.spend(STEPS_A_RANGE * looked_at);
        }
        self.books().changed.checkpoint_made();
    }

    /// Whether the list of changed pages takes more than its share of the memory, and a checkpoint would make it shorter.
    pub(crate) fn has_many_changed(&self) -> bool {
        let bytes_max = self.frames.memory_bytes() / CHANGED_SHARE;
        self.books().changed.has_outgrown(bytes_max)
    }

    /// Notes the changed pages after a publication, and the versions that it superseded.
    pub(super) fn note_published(self: &Arc<Self>, seq: CommitSeq, changed: &[PageId], superseded: Vec<Superseded>) {
        self.note_changed(seq, changed);
        if self.frames.dirty_count() > self.frames.dirty_max() * 3 / 4 {
            // Evicts ahead of need, so that the next commits find frames.
            self.keeper.wake();
        }
        // A version of the same commit was never visible under any number.
        let (same, older): (Vec<_>, Vec<_>) = superseded.into_iter().partition(|old| old.from == old.until);
        self.registry().supersede(older);
        self.drop_later(same);
    }
}

//! Allocates page ids. Ids stay dense, so that the page table stays an array without holes.

use std::ops::Range;

use super::block_map::BlockMap;
use super::word_array::PAGES_MAX;
use crate::ids::PageId;

/// The page ids that can be allocated: first ids of freed pages, then ids under which no page was ever stored, then new
/// ids.
#[derive(Debug, Default)]
pub(super) struct PageIds {
    free: Vec<PageId>,
    /// Ranges of ids below the end of the page table under which no page was ever stored. The lowest ranges come last.
    gaps: Vec<Range<u64>>,
    next: u64,
}

impl PageIds {
    /// Returns the ids that a page table leaves free. Takes memory in proportion to the table's nodes, however large
    /// the page ids are.
    pub(super) fn of(map: &BlockMap) -> Self {
        let mut free: Vec<PageId> = map.unused_in_leaves().collect();
        let mut gaps = map.gaps();
        // Reversed, because ids are taken from the end and the lowest is to be taken first.
        free.reverse();
        gaps.reverse();
        Self { free, gaps, next: map.page_count() }
    }

    pub(super) fn take(&mut self) -> Option<PageId> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        while let Some(gap) = self.gaps.last_mut() {
            if let Some(id) = gap.next() {
                return Some(PageId(id));
            }
            self.gaps.pop();
        }
        (self.next < PAGES_MAX).then(|| {
            self.next += 1;
            PageId(self.next - 1)
        })
    }

    /// Returns the lowest id that is above all ids ever allocated.
    pub(super) fn end(&self) -> u64 {
        self.next
    }

    pub(super) fn put_back(&mut self, id: PageId) {
        self.free.push(id);
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.free.capacity() * size_of::<PageId>() + self.gaps.capacity() * size_of::<Range<u64>>()) as u64
    }
}

//! Which page ids are free. Ids stay dense, so that the page table stays an array without holes.

use super::table::PAGES_MAX;
use crate::ids::PageId;

/// Page ids to give out: those freed first, then new ones.
#[derive(Debug, Default)]
pub(super) struct PageIds {
    pub(super) free: Vec<PageId>,
    pub(super) next: u64,
}

impl PageIds {
    pub(super) fn take(&mut self) -> Option<PageId> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        (self.next < PAGES_MAX).then(|| {
            self.next += 1;
            PageId(self.next - 1)
        })
    }

    /// The first id that was never given out.
    pub(super) fn end(&self) -> u64 {
        self.next
    }

    pub(super) fn put_back(&mut self, id: PageId) {
        self.free.push(id);
    }
}

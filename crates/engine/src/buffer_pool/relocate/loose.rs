//! Packs compressed pages anew whose blocks are partly empty. A block that compressed pages share is free only with the
//! last of them, so while pages change at random, ever more blocks hold a few pages each.
//!
//! The pages are listed in lots, each in the order of their blocks, so that neighbours stay neighbours; a lot is moved a
//! megabyte at a time. Pages are moved only where that saves blocks, and only to blocks that are free: the file does
//! not grow for it.

use super::{HeldBlocks, Relocator};
use crate::buffer_pool::word_array::Entry;
use crate::error::Result;
use crate::format::{Location, PageId};

/// Part of the blocks of a list that packing must save, as a divisor.
const SAVED_SHARE: u64 = 16;
/// Shortest run of blocks that is sought first: pages in shorter runs are read more slowly.
const RUN_BLOCKS: u64 = 16;
/// Pages whose blocks are looked up during one hold of the lock.
const PAGES_A_LOOK: usize = 256;
/// Fewest pages of a lot; a cache of many frames makes lots of as many pages.
const LOT_PAGES_MIN: usize = 4096;

/// The pages that are to be packed anew: see the module.
pub(crate) struct LooseMove {
    /// Part of a block below which the rest of it is to be moved.
    share: f64,
    /// The pages of this lot that are left, those of the first block last.
    pages: Vec<PageId>,
    /// The page from which on the next lot is listed; `None` after the last one.
    next: Option<PageId>,
}

/// The outcome of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LooseStep {
    /// Number of pages that were moved.
    pub(crate) moved: u64,
    /// Number of blocks that they need less than before, once the next checkpoint has freed their old blocks.
    pub(crate) saved: u64,
    /// Whether pages stayed because no block was free: a checkpoint may free some.
    pub(crate) is_full: bool,
}

impl LooseMove {
    /// Begins with the first page. Blocks of which less than `share` is in use are emptied.
    pub(crate) fn new(share: f64) -> Self {
        Self { share, pages: Vec::new(), next: Some(PageId(0)) }
    }

    /// Lists the next lot. Memory: 16 bytes for each of its pages.
    fn list(&mut self, relocator: &Relocator) {
        let versions = &relocator.versions;
        let most = versions.frames().count().max(LOT_PAGES_MIN);
        let (page_count, packed) = {
            let metadata = versions.metadata().lock();
            (metadata.map.page_count(), metadata.allocator.page_counts().packed())
        };
        let Some(from) = self.next.take() else { return };
        let mut found: Vec<(u64, PageId)> = Vec::new();
        let mut look = Vec::with_capacity(PAGES_A_LOOK);
        let place = |page: PageId, entry: Entry| match entry {
            Entry::OnDisk(at) => Some(at),
            _ => versions.pages().place_on_disk(page),
        };
        let filter = |look: &mut Vec<(PageId, Location)>, found: &mut Vec<(u64, PageId)>| {
            let metadata = versions.metadata().lock();
            look.retain(|(_, at)| metadata.allocator.page_counts().is_loose(at.block, &packed, self.share));
            found.extend(look.drain(..).map(|(page, at)| (at.block.0, page)));
        };
        for (page, entry) in versions.pages().entries_below(page_count).filter(|(page, _)| *page >= from) {
            if found.len() + look.len() >= most {
                self.next = Some(page);
                break;
            }
            look.extend(place(page, entry).filter(|at| at.is_compressed).map(|at| (page, at)));
            if look.len() == PAGES_A_LOOK {
                filter(&mut look, &mut found);
            }
        }
        filter(&mut look, &mut found);
        found.sort_unstable_by(|one, other| other.cmp(one));
        self.pages = found.into_iter().map(|(_, page)| page).collect();
    }

    /// Packs and moves the next pages. Returns `None` when all are done. No checkpoint may be under way; the old blocks
    /// are free after the next one.
    ///
    /// # Errors
    /// As [`Relocator::defragment`].
    pub(crate) fn step(&mut self, relocator: &mut Relocator) -> Result<Option<LooseStep>> {
        while self.pages.is_empty() {
            if self.next.is_none() {
                return Ok(None);
            }
            self.list(relocator);
        }
        let now = self.pages.split_off(self.pages.len().saturating_sub(relocator.pages_at_once()));
        let (_held, mut places) =
            HeldBlocks::of_pages(&relocator.versions, now.into_iter().rev(), |at: Location| at.is_compressed);
        let (before, _) = super::blocks_and_fragments(&places);
        let mut repacked = relocator.repack(&places)?;
        let after = repacked.contents.len() as u64;
        let mut step = LooseStep::default();
        if after + before.div_ceil(SAVED_SHARE) > before {
            return Ok(Some(step));
        }
        while !repacked.contents.is_empty() {
            let Some(row) = relocator.allocate_within(repacked.contents.len() as u64, RUN_BLOCKS) else {
                step.is_full = true;
                break;
            };
            step.moved += relocator.move_to(row, &mut repacked, &mut places)?;
        }
        if !step.is_full {
            step.saved = before - after;
        }
        relocator.note_moved(step.moved);
        Ok(Some(step))
    }
}

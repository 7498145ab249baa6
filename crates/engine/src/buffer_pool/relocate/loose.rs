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
    /// The leaf of the page table from which on the next lot is listed; `None` after the last one.
    next_leaf: Option<u64>,
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
    /// Begins with the first pages. Blocks of which less than `share` is in use are emptied.
    pub(crate) fn new(share: f64) -> Self {
        Self { share, pages: Vec::new(), next_leaf: Some(0) }
    }

    /// Lists the next lot. Memory: 16 bytes for each of its pages. Blocks.
    fn list(&mut self, relocator: &Relocator) -> Result<()> {
        let versions = &relocator.versions;
        let most = versions.frames().count().max(LOT_PAGES_MIN);
        let packed = versions.metadata().lock().allocator.page_counts().packed();
        let mut next = self.next_leaf.take().and_then(|from| relocator.leaves.next(from));
        let mut found: Vec<(u64, PageId)> = Vec::new();
        let place = |page: PageId| match versions.pages().entry(page) {
            Entry::OnDisk(at) => Some(at),
            _ => versions.pages().place_on_disk(page),
        };
        while let Some(leaf) = next {
            if found.len() >= most {
                self.next_leaf = Some(leaf);
                break;
            }
            if let Some(pinned) = relocator.leaves.pin(leaf)? {
                let compressed = |page| place(page).filter(|at| at.is_compressed).map(|at| (page, at));
                let placed: Vec<(PageId, Location)> = pinned.pages().filter_map(compressed).collect();
                for some in placed.chunks(PAGES_A_LOOK) {
                    let metadata = versions.metadata().lock();
                    let counts = metadata.allocator.page_counts();
                    let loose = some.iter().filter(|(_, at)| counts.is_loose(at.block, &packed, self.share));
                    found.extend(loose.map(|(page, at)| (at.block.0, *page)));
                }
            }
            next = relocator.leaves.next(leaf + 1);
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        self.pages = found.into_iter().map(|(_, page)| page).collect();
        Ok(())
    }

    /// Packs and moves the next pages. Returns `None` when all are done. No checkpoint may be under way; the old blocks
    /// are free after the next one.
    ///
    /// # Errors
    /// As [`Relocator::defragment`].
    pub(crate) fn step(&mut self, relocator: &mut Relocator) -> Result<Option<LooseStep>> {
        while self.pages.is_empty() {
            if self.next_leaf.is_none() {
                return Ok(None);
            }
            self.list(relocator)?;
        }
        let now = self.pages.split_off(self.pages.len().saturating_sub(relocator.pages_at_once()));
        let _leaves = relocator.leaves.pin_all(now.iter().copied())?;
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

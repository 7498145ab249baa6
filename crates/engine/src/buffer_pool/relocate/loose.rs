//! Repacks compressed pages whose blocks are partly empty. A block that compressed pages share is free only with the
//! last of them, so while pages change at random, ever more blocks hold a few pages each.
//!
//! The pages are listed in lots, each in the order of their blocks, so that neighbours stay neighbours; a lot is moved a
//! megabyte at a time. Pages are moved only where that saves blocks, and only to blocks free: the file does
//! not grow for it.
//!
//! On a full disk all compressed pages are packed as tightly as possible ([`LooseMove::tight`]), blocks with the fewest
//! pages first. A step takes the pages of as many blocks as are free, so all of them find room, and moves
//! them only if that empties more blocks than they take.

use super::{HeldBlocks, Packing, Relocator, blocks_and_fragments};
use crate::buffer_pool::page_table::Entry;
use crate::error::Result;
use crate::format::{Location, PageId};
use crate::pages::ReservationKind;

/// Part of the blocks of a list that packing must save, as a divisor.
const SAVED_SHARE: u64 = 16;
/// Shortest run of blocks that is sought first: pages in shorter runs are read more slowly.
const RUN_BLOCKS: u64 = 16;
/// Pages whose blocks are looked up during one hold of the lock.
const PAGES_A_LOOK: usize = 256;
/// Fewest pages of a lot; a cache of many frames makes lots of as many pages.
const LOT_PAGES_MIN: usize = 4096;

/// The pages to be repacked: see the module.
pub(crate) struct LooseMove {
    /// Part of a block below which the rest of it is to be moved.
    share: f64,
    /// Whether they are packed as tightly as possible.
    is_tight: bool,
    /// The pages left of this lot, each with its block, the first block's last.
    pages: Vec<(u64, PageId)>,
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
        Self { share, is_tight: false, pages: Vec::new(), next_leaf: Some(0) }
    }

    /// Begins with the first pages. All shared blocks are packed as tightly as possible, with blocks of the reserve.
    pub(crate) fn tight() -> Self {
        Self { is_tight: true, ..Self::new(f64::INFINITY) }
    }

    /// Lists the next lot. Memory: 16 bytes for each of its pages. Blocks.
    fn list(&mut self, relocator: &Relocator) -> Result<()> {
        let versions = &relocator.versions;
        let most = versions.frames().count().max(LOT_PAGES_MIN);
        let packed = versions.metadata().lock().allocator.pages.packed();
        let mut next = self.next_leaf.take().and_then(|from| relocator.leaves.next(from));
        let mut found: Vec<(usize, u64, PageId)> = Vec::new();
        let place = |page: PageId| match versions.pages().entry(page) {
            Entry::OnDisk(at) => Some(at),
            _ => versions.pages().places().place_on_disk(page),
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
                    let counts = &metadata.allocator.pages;
                    let loose = some.iter().filter(|(_, at)| counts.is_loose(at.block, &packed, self.share));
                    let first = |at: &Location| if self.is_tight { metadata.allocator.pages_in(at.block) } else { 0 };
                    found.extend(loose.map(|(page, at)| (first(at), at.block.0, *page)));
                }
            }
            next = relocator.leaves.next(leaf + 1);
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        self.pages = found.into_iter().map(|(_, block, page)| (block, page)).collect();
        Ok(())
    }

    /// Removes the next pages of the lot: at most `pages_max`, and of at most `blocks_max` blocks.
    fn take(&mut self, pages_max: usize, blocks_max: u64) -> Vec<PageId> {
        let (mut blocks, mut last) = (0, None);
        let is_next = |(block, _): &&(u64, PageId)| {
            blocks += u64::from(last != Some(*block));
            last = Some(*block);
            blocks <= blocks_max
        };
        let count = self.pages.iter().rev().take(pages_max).take_while(is_next).count();
        let taken = self.pages.split_off(self.pages.len() - count);
        taken.into_iter().rev().map(|(_, page)| page).collect()
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
        let mut step = LooseStep::default();
        let (packing, blocks_max) = if self.is_tight {
            (Packing::Tight, relocator.spare(ReservationKind::Packing))
        } else {
            (Packing::InOrder, u64::MAX)
        };
        // Two blocks are the fewest of which one can be saved.
        if blocks_max < 2 {
            return Ok(Some(LooseStep { is_full: true, ..step }));
        }
        let now = self.take(relocator.pages_at_once(), blocks_max);
        let _leaves = relocator.leaves.pin_all(now.iter().copied())?;
        let (_held, mut places) =
            HeldBlocks::of_pages(&relocator.versions, now.into_iter(), |at: Location| at.is_compressed);
        let mut repacked = relocator.repack(&places, packing)?;
        let after = repacked.contents.len() as u64;
        let (before, kind, gain_min) = if self.is_tight {
            (relocator.emptied_by(&places), ReservationKind::Packing, 1)
        } else {
            let (before, _) = blocks_and_fragments(&places);
            (before, relocator.kind_of_move(&places, &repacked), before.div_ceil(SAVED_SHARE))
        };
        if after + gain_min > before {
            return Ok(Some(step));
        }
        while !repacked.contents.is_empty() {
            let Some(row) = relocator.allocate_within(repacked.contents.len() as u64, RUN_BLOCKS, kind) else {
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

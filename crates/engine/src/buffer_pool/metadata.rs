//! Page and block metadata that only writers, evictors and checkpoints use: free blocks, the page table as a checkpoint
//! writes it, changed pages, page ids, and the blocks promised to pages.
//!
//! Pages are written only to allocated blocks that exist in the file (`BlockAllocator` gives out no others). A commit
//! is admitted only while the free ones are at least as many as
//! 1. the dirty pages in memory, each of which takes one when it is written,
//! 2. the blocks reserved by commits under way, this one included ([`BlockReservation`]),
//! 3. the nodes of the page table, twice: for the checkpoint that may be under way, and for the next,
//! 4. and the reserve ([`RESERVE_BLOCKS`]), or where the commit itself frees blocks a small part of it.
//!
//! So eviction and checkpoints always find the blocks they need, also on a full disk. A checkpoint gives back the
//! blocks that the one before named and this one does not; deletes and dropped tables never make the database larger,
//! so with the reserve they can go on from checkpoint to checkpoint until blocks are free again.
//!
//! Of compressed pages the last sentence is true for these reasons, in this order:
//! 1. While blocks of the reserve are in use ([`Metadata::is_short`]) and the file cannot grow, a page that lay compressed
//!    is written compressed.
//! 2. A page that changes leaves its block to the others that share it, so that more blocks are in use than pages need.
//!    Work that finds no block has these blocks packed again
//!    (`Repacker::squeeze`). A part of the reserve is kept for that alone
//!    ([`PACKING_BLOCKS`]).
//! 3. Pages are moved with blocks of the reserve only where they take no more blocks afterwards than they leave free.
//!
//! Invariant: the lock is held for a bounded part of the changed pages at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::block_map::BlockMap;
use super::changed_pages::ChangedPages;
use super::frames::Frames;
use super::page_ids::PageIds;
use crate::block_allocator::{BlockAllocator, GROUP_BLOCKS};
use crate::budget::Budget;
use crate::error::{Error, ErrorKind};
use crate::format::{BlockId, CommitSeq, Location, PageId, entries_per_node, levels_for, nodes_on_level};
use crate::pages::{BlockReservation, ReservationKind, ReservationLedger};

/// Most changed pages that are noted, or most ranges that are examined, during one hold of the lock.
const CHANGED_AT_ONCE: usize = 512;
/// Steps of a `Budget`, which bounds the work under one lock, that noting one changed page spends: at most four ranges
/// are examined or changed, three of them adjacent.
const STEPS_A_CHANGE: usize = 4;
/// The memory of the frames divided by this is the memory that the list of changed pages may take before a checkpoint
/// is due.
const CHANGED_SHARE: u64 = 32;
/// Number of times that a changed leaf of the page table could not leave memory before a checkpoint is due.
const LEAVES_HELD_MAX: u64 = 64;
/// Steps of a `Budget` that removing one range from the list of changed pages spends.
const STEPS_A_RANGE: usize = 2;
/// Blocks that ordinary commits leave free: 1 MiB with pages of 4 KiB. As many as compaction moves at a time, and more
/// than a commit that deletes a hundred rows changes.
pub(super) const RESERVE_BLOCKS: u64 = GROUP_BLOCKS;
/// A file that compaction has made shorter keeps one free block for so many in use.
const FREE_SHARE: u64 = 16;
/// Number of free blocks that no reservation may take: they serve commits that change more pages than they reserved, as
/// merges of nodes may.
const MARGIN_BLOCKS: u64 = 32;
/// Blocks of the reserve that only repacking compressed pages may use. It packs the pages of as many blocks at a time
/// as are free, and frees at least one more: two would do, and with more of them fewer checkpoints are made.
const PACKING_BLOCKS: u64 = 32;

/// The change of a page by a commit, which ends the version before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageChange {
    pub(super) page: PageId,
    /// The commit.
    pub(super) seq: CommitSeq,
    /// No reader of this commit or a later one reaches the version before: `seq`, if no earlier commit is known.
    pub(super) unread_from: CommitSeq,
}

/// The metadata of a pool, and its lock.
pub(crate) struct Metadata {
    state: Mutex<MetadataState>,
    page_bytes: usize,
    /// How often a leaf of the page table could not leave memory since the last checkpoint, because it was changed.
    leaves_held: AtomicU64,
}

/// The metadata of the pages and blocks of a pool.
pub(crate) struct MetadataState {
    pub(crate) allocator: BlockAllocator,
    pub(crate) map: BlockMap,
    /// Pages changed since the last checkpoint took them over, each with the last commit that changed it. A new page,
    /// or one with a reused id, is noted before the page table shows it. Otherwise it could be written before a
    /// checkpoint in progress can tell that the page is newer than itself. Any other page is noted afterwards; until
    /// then a lookup finds an earlier commit. The pages are ordered, so that a checkpoint can take one part at a time.
    pub(crate) changed: ChangedPages,
    pub(super) ids: PageIds,
    /// Pages freed while the leaf with their entry was not in memory.
    pub(super) cold_frees: Vec<PageChange>,
    /// Number of blocks reserved for commits in progress.
    reserved: u64,
}

#[cfg(test)]
impl MetadataState {
    /// Returns the number of pages waiting to be freed until the leaf with their entry is in memory.
    pub(crate) fn cold_frees_count(&self) -> usize {
        self.cold_frees.len()
    }
}

impl Metadata {
    pub(super) fn new(allocator: BlockAllocator, map: BlockMap, ids: PageIds, page_bytes: usize) -> Self {
        let (changed, cold_frees) = (ChangedPages::default(), Vec::new());
        let state = MetadataState { allocator, map, changed, ids, cold_frees, reserved: 0 };
        Self { state: Mutex::new(state), page_bytes, leaves_held: AtomicU64::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MetadataState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last commit that changed a page since a checkpoint took the page over; zero when there is none. May
    /// be called under the page's shard lock.
    pub(super) fn last_change(&self, page: PageId) -> CommitSeq {
        self.lock().changed.get(page).unwrap_or_default()
    }

    /// Notes that commit `seq` changed these pages: new pages before its publication, and all pages after it.
    pub(super) fn note_changed(&self, seq: CommitSeq, pages: &[PageId]) {
        for pages in pages.chunks(CHANGED_AT_ONCE) {
            let mut budget = Budget::new();
            budget.spend(STEPS_A_CHANGE * pages.len());
            let mut state = self.lock();
            pages.iter().for_each(|page| state.changed.insert(*page, seq));
        }
    }

    /// Counts a leaf of the page table that cannot leave memory because no checkpoint has written it.
    pub(super) fn note_leaf_held(&self) {
        self.leaves_held.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes and returns the pages freed while the leaf with their entry was not in memory, in order. A
    /// checkpoint frees them before it takes over what commits have changed: a page freed in memory only would stay in
    /// use forever.
    pub(super) fn take_cold_frees(&self) -> Vec<PageChange> {
        let mut pages = std::mem::take(&mut self.lock().cold_frees);
        pages.sort_unstable();
        // Only a damaged page can free a page twice. The second time could hit a new page of this id.
        pages.dedup_by_key(|freed| freed.page);
        pages
    }

    /// Returns a page id above all that are in use.
    pub(crate) fn pages_end(&self) -> PageId {
        PageId(self.lock().ids.end())
    }

    /// Returns some of the pages from `from` on and below `end` that were changed since a checkpoint took them over,
    /// and the page to go on from.
    pub(crate) fn changed_between(&self, from: PageId, end: PageId) -> (Vec<PageId>, Option<PageId>) {
        let mut budget = Budget::new();
        let state = self.lock();
        let pages: Vec<PageId> = state.changed.between(from, end).take(CHANGED_AT_ONCE).collect();
        budget.spend(pages.len());
        let next = pages.last().filter(|_| pages.len() == CHANGED_AT_ONCE).map(|last| PageId(last.0 + 1));
        (pages, next)
    }

    /// Removes from the list of changed pages all changes up to `commit`, which a durable checkpoint now contains.
    pub(crate) fn forget_changed(&self, commit: CommitSeq) {
        let mut next = Some(PageId(0));
        while let Some(from) = next {
            let mut budget = Budget::new();
            let looked_at;
            // Pages that have changed again since stay noted for the next checkpoint.
            (looked_at, next) = self.lock().changed.forget(from, commit, CHANGED_AT_ONCE);
            budget.spend(STEPS_A_RANGE * looked_at);
        }
        self.lock().changed.checkpoint_made();
        self.leaves_held.store(0, Ordering::Relaxed);
    }

    /// Returns whether the memory kept for the next checkpoint exceeds its share and a checkpoint would shorten it: the
    /// list of changed pages, the list of pages freed unseen, or the changed leaves of the page table.
    pub(super) fn has_many_changed(&self, frames: &Frames) -> bool {
        let state = self.lock();
        let bytes_max = frames.memory_bytes() / CHANGED_SHARE;
        let cold_bytes = (state.cold_frees.len() * size_of::<PageChange>()) as u64;
        let leaves_held = self.leaves_held.load(Ordering::Relaxed);
        state.changed.has_outgrown(bytes_max) || cold_bytes > bytes_max || leaves_held > LEAVES_HELD_MAX
    }

    /// Releases the block of a dropped version. If the page table of the next checkpoint still names the block, it is
    /// released when that entry is replaced. The caller holds the lock of the page's shard.
    pub(super) fn release_unless_mapped(&self, page: PageId, at: Location) {
        let mut state = self.lock();
        if state.map.get(page).is_none_or(|mapped| mapped.block != at.block) {
            state.allocator.release(at.block);
        }
    }

    /// Takes back blocks allocated for a write that failed with `error`. No page table ever named them, so
    /// they become free without a checkpoint. Otherwise each retry would use up more blocks, and on a full disk no
    /// checkpoint succeeds.
    pub(super) fn take_back(&self, blocks: impl Iterator<Item = BlockId>, error: &Error) {
        let mut state = self.lock();
        for block in blocks {
            match error.kind() {
                ErrorKind::NoSpace | ErrorKind::NoResources => state.allocator.give_back(block),
                _ => state.allocator.set_aside(block),
            }
        }
    }

    /// Returns the blocks promised to dirty pages, commits under way and the page-table nodes that there would be with
    /// `more_pages` more pages. Dirty pages are counted under the lock: a commit that has just published its pages and
    /// ended its reservation is then counted as dirty.
    pub(super) fn promised_blocks(&self, frames: &Frames, state: &MetadataState, more_pages: u64) -> u64 {
        frames.dirty_count() as u64 + state.reserved + 2 * self.nodes(frames, state, more_pages)
    }

    /// Returns the most nodes that the page table could have with `more_pages` more pages: no more than a table without
    /// gaps needs, and no more than the existing nodes and the nodes that pages not in the table yet can add.
    fn nodes(&self, frames: &Frames, state: &MetadataState, more_pages: u64) -> u64 {
        let pages = state.ids.end() + more_pages;
        let levels = levels_for(pages, self.page_bytes);
        let without_gaps: u64 = (0..levels).map(|level| nodes_on_level(pages, level, self.page_bytes)).sum();
        let unnamed = pages.saturating_sub(state.map.page_count()) + frames.dirty_count() as u64 + state.reserved;
        let added = unnamed.div_ceil(entries_per_node(self.page_bytes)) + 2 * u64::from(levels);
        without_gaps.min(state.map.node_count() + added)
    }

    /// Reserves blocks for this many pages, if enough blocks are free. Does no I/O.
    pub(super) fn reserve(
        self: &Arc<Self>,
        frames: &Frames,
        pages: u64,
        kind: ReservationKind,
    ) -> Option<BlockReservation> {
        let mut state = self.lock();
        let kept = blocks_kept(kind);
        // Dirty pages are counted before free blocks, so that a page being written is counted twice rather than missed.
        let promised = self.promised_blocks(frames, &state, pages) + pages + kept;
        if promised > state.allocator.free_blocks() {
            return None;
        }
        state.reserved += pages;
        drop(state);
        Some(BlockReservation::of(Arc::clone(self) as Arc<dyn ReservationLedger>, pages))
    }

    /// Returns the number of free blocks that no commit has reserved and that work of this kind may take.
    pub(super) fn spare_blocks(&self, frames: &Frames, kind: ReservationKind) -> u64 {
        let state = self.lock();
        // Includes the nodes for as many more pages as are moved at a time.
        let promised = self.promised_blocks(frames, &state, GROUP_BLOCKS);
        state.allocator.free_blocks().saturating_sub(promised + blocks_kept(kind))
    }

    /// Returns whether blocks of the reserve are in use. Writing a page changes nothing of that, as the block of a dirty
    /// page is promised: only commits that may use the reserve do.
    pub(super) fn is_short(&self, frames: &Frames) -> bool {
        let state = self.lock();
        self.promised_blocks(frames, &state, 0) + RESERVE_BLOCKS > state.allocator.free_blocks()
    }

    /// Returns whether a page lies compressed in the state of the last checkpoint.
    pub(super) fn lies_compressed(&self, page: PageId) -> bool {
        self.lock().map.in_memory(page).is_some_and(|at| at.is_compressed)
    }

    /// Returns the end of the shortest file that compaction makes: with as many blocks as are in use, and free ones
    /// between them or behind them for pages that change near their places, deletes and checkpoints.
    pub(super) fn shortest_end(&self, frames: &Frames, state: &MetadataState) -> u64 {
        let live = state.allocator.used_blocks() - state.allocator.deferred_blocks();
        let free = (live / FREE_SHARE).max(self.blocks_needed_free(frames, state));
        (live + free).next_multiple_of(GROUP_BLOCKS)
    }

    /// Returns the number of blocks free in the shortest file: with them every page in memory can be written, two
    /// checkpoints can be made, and the reserve is whole.
    pub(super) fn blocks_needed_free(&self, frames: &Frames, state: &MetadataState) -> u64 {
        RESERVE_BLOCKS + self.promised_blocks(frames, state, 0)
    }

    /// Returns the number of blocks kept free for deletes, dropped tables, compaction and the next checkpoints.
    pub(super) fn blocks_kept_free(&self, frames: &Frames, state: &MetadataState) -> u64 {
        RESERVE_BLOCKS + 2 * self.nodes(frames, state, 0)
    }
}

/// Returns how many free blocks work of this kind leaves, in addition to the promised ones.
fn blocks_kept(kind: ReservationKind) -> u64 {
    match kind {
        ReservationKind::Ordinary => RESERVE_BLOCKS,
        ReservationKind::Reserve => MARGIN_BLOCKS + PACKING_BLOCKS,
        ReservationKind::Packing => MARGIN_BLOCKS,
    }
}

impl ReservationLedger for Metadata {
    fn end_reservation(&self, blocks: u64) {
        self.lock().reserved -= blocks;
    }
}

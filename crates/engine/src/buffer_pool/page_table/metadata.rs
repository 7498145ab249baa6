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

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::block_map::BlockMap;
use super::page_ids::PageIds;
use crate::block_allocator::{BlockAllocator, GROUP_BLOCKS};
use crate::buffer_pool::frames::Frames;
use crate::error::{Error, ErrorKind};
use crate::format::{BlockId, CommitSeq, Location, PageId, entries_per_node, levels_for, nodes_on_level};
use crate::pages::{BlockReservation, ReservationKind, ReservationLedger};
use crate::sync::budget::Budget;

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
pub(crate) const RESERVE_BLOCKS: u64 = GROUP_BLOCKS;
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
pub(crate) struct PageChange {
    pub(crate) page: PageId,
    /// The commit.
    pub(crate) seq: CommitSeq,
    /// No reader of this commit or a later one reaches the version before: `seq`, if no earlier commit is known.
    pub(crate) unread_from: CommitSeq,
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
    pub(crate) ids: PageIds,
    /// Pages freed while the leaf with their entry was not in memory.
    pub(crate) cold_frees: Vec<PageChange>,
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
    pub(crate) fn new(allocator: BlockAllocator, map: BlockMap, ids: PageIds, page_bytes: usize) -> Self {
        let (changed, cold_frees) = (ChangedPages::default(), Vec::new());
        let state = MetadataState { allocator, map, changed, ids, cold_frees, reserved: 0 };
        Self { state: Mutex::new(state), page_bytes, leaves_held: AtomicU64::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MetadataState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last commit that changed a page since a checkpoint took the page over; zero when there is none. May
    /// be called under the page's shard lock.
    pub(crate) fn last_change(&self, page: PageId) -> CommitSeq {
        self.lock().changed.get(page).unwrap_or_default()
    }

    /// Notes that commit `seq` changed these pages: new pages before its publication, and all pages after it.
    pub(crate) fn note_changed(&self, seq: CommitSeq, pages: &[PageId]) {
        for pages in pages.chunks(CHANGED_AT_ONCE) {
            let mut budget = Budget::new();
            budget.spend(STEPS_A_CHANGE * pages.len());
            let mut state = self.lock();
            pages.iter().for_each(|page| state.changed.insert(*page, seq));
        }
    }

    /// Counts a leaf of the page table that cannot leave memory because no checkpoint has written it.
    pub(crate) fn note_leaf_held(&self) {
        self.leaves_held.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes and returns the pages freed while the leaf with their entry was not in memory, in order. A
    /// checkpoint frees them before it takes over what commits have changed: a page freed in memory only would stay in
    /// use forever.
    pub(crate) fn take_cold_frees(&self) -> Vec<PageChange> {
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
    pub(crate) fn has_many_changed(&self, frames: &Frames) -> bool {
        let state = self.lock();
        let bytes_max = frames.memory_bytes() / CHANGED_SHARE;
        let cold_bytes = (state.cold_frees.len() * size_of::<PageChange>()) as u64;
        let leaves_held = self.leaves_held.load(Ordering::Relaxed);
        state.changed.has_outgrown(bytes_max) || cold_bytes > bytes_max || leaves_held > LEAVES_HELD_MAX
    }

    /// Releases the block of a dropped version. If the page table of the next checkpoint still names the block, it is
    /// released when that entry is replaced. The caller holds the lock of the page's shard.
    pub(crate) fn release_unless_mapped(&self, page: PageId, at: Location) {
        let mut state = self.lock();
        if state.map.get(page).is_none_or(|mapped| mapped.block != at.block) {
            state.allocator.release(at.block);
        }
    }

    /// Takes back blocks allocated for a write that failed with `error`. No page table ever named them, so
    /// they become free without a checkpoint. Otherwise each retry would use up more blocks, and on a full disk no
    /// checkpoint succeeds.
    pub(crate) fn take_back(&self, blocks: impl Iterator<Item = BlockId>, error: &Error) {
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
    pub(crate) fn promised_blocks(&self, frames: &Frames, state: &MetadataState, more_pages: u64) -> u64 {
        frames.limits().dirty_count() as u64 + state.reserved + 2 * self.nodes(frames, state, more_pages)
    }

    /// Returns the most nodes that the page table could have with `more_pages` more pages: no more than a table without
    /// gaps needs, and no more than the existing nodes and the nodes that pages not in the table yet can add.
    fn nodes(&self, frames: &Frames, state: &MetadataState, more_pages: u64) -> u64 {
        let pages = state.ids.end() + more_pages;
        let levels = levels_for(pages, self.page_bytes);
        let without_gaps: u64 = (0..levels).map(|level| nodes_on_level(pages, level, self.page_bytes)).sum();
        let unnamed =
            pages.saturating_sub(state.map.page_count()) + frames.limits().dirty_count() as u64 + state.reserved;
        let added = unnamed.div_ceil(entries_per_node(self.page_bytes)) + 2 * u64::from(levels);
        without_gaps.min(state.map.node_count() + added)
    }

    /// Reserves blocks for this many pages, if enough blocks are free. Does no I/O.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        frames: &Frames,
        pages: u64,
        kind: ReservationKind,
    ) -> Option<BlockReservation> {
        let mut state = self.lock();
        let kept = blocks_kept(kind);
        // Dirty pages are counted before free blocks, so that a page being written is counted twice rather than missed.
        let promised = self.promised_blocks(frames, &state, pages) + pages + kept;
        if promised > state.allocator.space.free_blocks() {
            return None;
        }
        state.reserved += pages;
        drop(state);
        Some(BlockReservation::of(Arc::clone(self) as Arc<dyn ReservationLedger>, pages))
    }

    /// Returns the number of free blocks that no commit has reserved and that work of this kind may take.
    pub(crate) fn spare_blocks(&self, frames: &Frames, kind: ReservationKind) -> u64 {
        let state = self.lock();
        // Includes the nodes for as many more pages as are moved at a time.
        let promised = self.promised_blocks(frames, &state, GROUP_BLOCKS);
        state.allocator.space.free_blocks().saturating_sub(promised + blocks_kept(kind))
    }

    /// Returns whether blocks of the reserve are in use. Writing a page changes nothing of that, as the block of a dirty
    /// page is promised: only commits that may use the reserve do.
    pub(crate) fn is_short(&self, frames: &Frames) -> bool {
        let state = self.lock();
        self.promised_blocks(frames, &state, 0) + RESERVE_BLOCKS > state.allocator.space.free_blocks()
    }

    /// Returns whether a page lies compressed in the state of the last checkpoint.
    pub(crate) fn lies_compressed(&self, page: PageId) -> bool {
        self.lock().map.in_memory(page).is_some_and(|at| at.is_compressed)
    }

    /// Returns the end of the shortest file that compaction makes: with as many blocks as are in use, and free ones
    /// between them or behind them for pages that change near their places, deletes and checkpoints.
    pub(crate) fn shortest_end(&self, frames: &Frames, state: &MetadataState) -> u64 {
        let live = state.allocator.space.used_blocks() - state.allocator.deferred.len();
        let free = (live / FREE_SHARE).max(self.blocks_needed_free(frames, state));
        (live + free).next_multiple_of(GROUP_BLOCKS)
    }

    /// Returns the number of blocks free in the shortest file: with them every page in memory can be written, two
    /// checkpoints can be made, and the reserve is whole.
    pub(crate) fn blocks_needed_free(&self, frames: &Frames, state: &MetadataState) -> u64 {
        RESERVE_BLOCKS + self.promised_blocks(frames, state, 0)
    }

    /// Returns the number of blocks kept free for deletes, dropped tables, compaction and the next checkpoints.
    pub(crate) fn blocks_kept_free(&self, frames: &Frames, state: &MetadataState) -> u64 {
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

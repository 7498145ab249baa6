//! Relocates pages that lie scattered in the file to adjacent blocks. The caller chooses *which* pages belong together.
//!
//! A page's checksum covers its content, its id and the file, but not its place. So a version can be moved to another
//! block without becoming a new version, and a move is no commit: the log does not record it, and snapshots neither see
//! it nor keep anything for it. The pages are read from their blocks, checked, repacked where their table is
//! compressed ([`super::packing`]), and written to new blocks; then the table names the new blocks. Until a checkpoint
//! records the new place, recovery after a power cut uses the old block, which stays unchanged until then.
//!
//! In the same way the end of the file is emptied, so that it can be cut ([`Relocator::plan_tail`]), and so are blocks
//! of compressed pages that are partly empty ([`LooseMove`]).
//!
//! Invariants:
//! 1. No checkpoint is under way (`Checkpointer::defragment` sees to it). So no block becomes free during a move, and a
//!    page that still lies where it was read is still the same version; and no checkpoint has looked up a place that it
//!    will record later.
//! 2. A place is replaced under the lock of the page's shard, and only if it is still the one that was read from. A
//!    writer that has changed the page, or a read that is loading it, wins: then the new block is given up.
//! 3. In the same step the page is noted as changed, so that the next checkpoint records its new place and frees the
//!    old one.
//! 4. Blocks of the reserve are taken only for pages that take no more blocks afterwards than they leave free
//!    ([`Relocator::kind_of_move`]): otherwise compaction would use up the reserve forever.
//!
//! The blocks from which pages are moved are held ([`HeldBlocks`]). A block that no checkpoint names is free with its page, so without the
//! hold a page that changes during the move could leave its block to another page, or to another version of itself.

mod loose;
mod repacked;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nofault_io::disk::Disk;
use rustc_hash::FxHashSet;

pub(crate) use self::loose::{LooseMove, LooseStep};
use self::repacked::{MovingPage, RepackedPages};
use super::evict::{Writer, pack, pack_tightly};
use super::page_table::Entry;
use super::versions::{LeafLoads, Versions};
use crate::block_allocator::{GROUP_BLOCKS, GroupsToEmpty, NoFreeBlocks, ROW_BLOCKS_MAX, group_of};
use crate::blocks::{BLOCKS_AT_A_TIME, BlockReader};
use crate::codec::Compression;
use crate::error::Result;
use crate::format::compressed::{codec_of, restore_page, written_pages};
use crate::format::{BlockId, Location, NodeId, PageId, TableId, Tag};
use crate::pages::ReservationKind;
use crate::sync::budget::Budget;

/// Most bytes moved with one operation.
const BYTES_AT_ONCE: usize = 1 << 20;
/// Size of a fragment from which on larger fragments are read no faster: pages in such fragments are not moved.
const FRAGMENT_BYTES_ENOUGH: usize = 64 << 10;
/// The limit of `FRAGMENT_BYTES_ENOUGH` in pages, at most: with small pages moving them still gains something.
const FRAGMENT_PAGES_ENOUGH: usize = 16;
/// The share of the blocks in use by which the file may exceed them while pages are relocated, as a divisor;
/// `GROWTH_BLOCKS` come on top.
const GROWTH_SHARE: u64 = 8;
/// Further blocks by which the file may exceed the blocks in use: see `GROWTH_SHARE`.
const GROWTH_BLOCKS: u64 = 4096;
/// Number of groups of blocks emptied at a time, to make contiguous runs of free blocks.
const GROUPS_EMPTIED: usize = 256;
/// Number of nodes of the page table examined during one hold of the lock.
const NODES_AT_ONCE: usize = 256;
/// Steps of a `Budget` that examining one node spends.
const STEPS_A_NODE: usize = 8;
/// Fewest moved pages, whose old blocks are not free yet, at which a checkpoint should be made.
const PENDING_PAGES: u64 = 4096;
const PENDING_SHARE: u64 = 16;

/// Share of the blocks of compressed pages that packing them again must save, as a divisor, if they lie in order.
const SAVED_SHARE_MIN: u64 = 16;

/// The action that error messages name.
const MOVE: &str = "write pages that are being moved";

/// The outcome of relocating a set of pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RelocationOutcome {
    /// Pages examined, without those that are only in memory or being read.
    pub(crate) pages: u64,
    /// Number of pages moved.
    pub(crate) moved: u64,
    /// Number of pages that should have been moved but found no contiguous run of free blocks.
    pub(crate) without_free_blocks: u64,
    /// Number of fragments in which the examined pages lay before, sorted by block.
    pub(crate) fragments_before: u64,
    /// Number of fragments in which the examined pages lie afterwards.
    pub(crate) fragments_after: u64,
}

/// Relocates pages to adjacent blocks, one list of pages at a time.
pub(crate) struct Relocator {
    versions: Arc<Versions>,
    writer: Arc<Writer>,
    leaves: LeafLoads,
    reader: BlockReader,
    /// The block after which the last moved run ended.
    after: Option<BlockId>,
    /// Groups of blocks in which pages already lie in order.
    defragmented: FxHashSet<u64>,
    /// Number of pages moved since the last checkpoint: until the next one they occupy their old blocks as well.
    pending: u64,
}

/// How pages that move are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    /// In the given order, each as its table says.
    InOrder,
    /// Into as few blocks as possible, as [`pack_tightly`] does.
    Tight,
}

/// Groups of blocks that are emptied so that contiguous runs become free: their pages are moved to single free blocks
/// elsewhere.
pub(crate) struct Evacuation {
    pages: Vec<PageId>,
    groups: GroupsToEmpty,
}

/// The pages at the end of the file, which are to be moved so that the file can be cut. While it lives, no page gets a
/// block in the end as long as there is one before it.
pub(crate) struct TailMove {
    versions: Arc<Versions>,
    /// The first block of the end.
    end: BlockId,
    /// The pages in the end, those with the highest block first.
    pages: Vec<PageId>,
}

impl Drop for TailMove {
    fn drop(&mut self) {
        self.versions.metadata().lock().allocator.set_ceiling(None);
    }
}

impl Relocator {
    /// Opens a relocator that reads past the pool, with its own queue.
    ///
    /// # Errors
    /// The disk's error when it opens the queue.
    pub(super) fn new(
        versions: &Arc<Versions>,
        writer: &Arc<Writer>,
        leaves: &LeafLoads,
        disk: &dyn Disk,
    ) -> Result<Self> {
        let (versions, writer, reader) = (Arc::clone(versions), Arc::clone(writer), BlockReader::open(disk)?);
        let (leaves, defragmented) = (leaves.clone(), FxHashSet::default());
        Ok(Self { versions, writer, leaves, reader, after: None, defragmented, pending: 0 })
    }

    /// Returns the number of pages that callers should pass to [`Relocator::defragment`] at a time.
    pub(crate) fn pages_at_once(&self) -> usize {
        (BYTES_AT_ONCE / self.versions.frames().page_bytes()).clamp(1, ROW_BLOCKS_MAX as usize)
    }

    /// Begins to put another table in order: groups of blocks in which pages lay in order may be emptied again.
    pub(crate) fn begin_order(&mut self) {
        self.defragmented.clear();
        self.after = None;
    }

    /// Returns the number of blocks in which these pages lie, and the number of runs of consecutive blocks that they
    /// form. Pages that are only in memory do not count. Blocks.
    ///
    /// # Errors
    /// As [`LeafLoads::pin`].
    pub(crate) fn fragments(&self, pages: &[PageId]) -> Result<(u64, u64)> {
        let _leaves = self.leaves.pin_all(pages.iter().copied())?;
        let place = |page: &PageId| Some((*page, self.versions.pages().places().place_on_disk(*page)?));
        Ok(blocks_and_fragments(&pages.iter().filter_map(place).collect::<Vec<_>>()))
    }

    /// Returns whether a checkpoint should be made, because many moved pages still occupy their old blocks as well.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.pending > PENDING_PAGES.max(self.live_blocks() / PENDING_SHARE)
    }

    /// Returns whether a checkpoint would free old blocks of moved pages.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending > 0
    }

    /// Notes that a checkpoint was made since the last list of pages.
    pub(crate) fn checkpoint_made(&mut self) {
        self.pending = 0;
    }

    /// Moves pages of a table to adjacent blocks in the given order, unless they already lie in few fragments, have
    /// no other codec than the table's, and would not take fewer blocks. Skips pages that exist only in memory, because
    /// their first write will place them. Blocks. Memory: two megabytes and a few pages. No checkpoint may be under way.
    ///
    /// # Errors
    /// `Corrupt` when a page is damaged where it lies, or the disk's error. Pages moved before stay moved.
    pub(crate) fn defragment(&mut self, table: TableId, pages: &[PageId]) -> Result<RelocationOutcome> {
        // In memory until the new places are in the table.
        let _leaves = self.leaves.pin_all(pages.iter().copied())?;
        let mut seen = FxHashSet::default();
        let once = pages.iter().copied().filter(|page| seen.insert(*page));
        let (_held, mut found) = HeldBlocks::of_pages(&self.versions, once, |_| true);
        let (blocks_before, fragments_before) = blocks_and_fragments(&found);
        let mut outcome = RelocationOutcome {
            pages: found.len() as u64,
            fragments_before,
            fragments_after: fragments_before,
            ..RelocationOutcome::default()
        };
        let enough = (FRAGMENT_BYTES_ENOUGH / self.versions.frames().page_bytes()).clamp(2, FRAGMENT_PAGES_ENOUGH);
        let compression = self.writer.codecs().of_table(table);
        let is_compressed = compression != Compression::None;
        let has_compressed = found.iter().any(|(_, at)| at.is_compressed);
        // The first and the last block may be shared with the lists before and after this one, wherever those lie.
        let fragments_max = blocks_before.div_ceil(enough as u64) + u64::from(has_compressed);
        let is_ordered = found.len() < 2 || fragments_before <= fragments_max;
        if found.is_empty() || (is_ordered && !is_compressed && !has_compressed) {
            self.defragmented.extend(found.iter().map(|(_, at)| group_of(at.block)));
            return Ok(outcome);
        }
        let mut repacked = self.repack(&found, Packing::InOrder)?;
        let is_smaller = repacked.contents.len() as u64 + blocks_before / SAVED_SHARE_MIN < blocks_before;
        // The table's compression was chosen, so its pages get it although they may take more blocks then. A full disk, on
        // which pages were packed tightly, must have room again before.
        let has_other_codec = repacked.has_other_codec(compression) && (!is_compressed || !self.is_short());
        if is_ordered && !is_smaller && !has_other_codec {
            self.defragmented.extend(found.iter().map(|(_, at)| group_of(at.block)));
            return Ok(outcome);
        }
        let kind = self.kind_of_move(&found, &repacked);
        let moved = loop {
            let left = repacked.contents.len();
            if left == 0 {
                break Ok(());
            }
            // The new run must hold all remaining pages, or be at least as long as a fragment that is read fast enough.
            let Some(row) = self.allocate_row(left as u64, left.min(enough) as u64, kind) else {
                outcome.without_free_blocks = repacked.page_count();
                break Ok(());
            };
            match self.move_to(row, &mut repacked, &mut found) {
                Ok(moved) => outcome.moved += moved,
                Err(error) => break Err(error),
            }
        };
        self.note_moved(outcome.moved);
        outcome.fragments_after = blocks_and_fragments(&found).1;
        moved.map(|()| outcome)
    }

    /// Plans which groups of blocks to empty so that contiguous runs become free; `None` when no group can be emptied.
    /// To be called after a checkpoint. Memory: eight bytes for each page in these groups. Blocks.
    ///
    /// # Errors
    /// As [`LeafLoads::pin`].
    pub(crate) fn plan_evacuation(&self) -> Result<Option<Evacuation>> {
        let groups =
            self.versions.metadata().lock().allocator.space.groups_to_empty(GROUPS_EMPTIED, &self.defragmented);
        if groups.is_empty() {
            return Ok(None);
        }
        let mut pages = Vec::new();
        self.for_each_page(|page| {
            let entry = self.versions.pages().entry(page);
            let at = if let Entry::OnDisk(at) = entry {
                Some(at)
            } else {
                self.versions.pages().places().place_on_disk(page)
            };
            pages.extend(at.filter(|at| groups.concerns(at.block)).map(|_| page));
        })?;
        Ok(Some(Evacuation { pages, groups }))
    }

    /// Calls `visit` for each page of the table, in order, while the leaf with its entry is in memory.
    fn for_each_page(&self, mut visit: impl FnMut(PageId)) -> Result<()> {
        let mut next = self.leaves.next(0);
        while let Some(leaf) = next {
            if let Some(pinned) = self.leaves.pin(leaf)? {
                pinned.pages().for_each(&mut visit);
            }
            next = self.leaves.next(leaf + 1);
        }
        Ok(())
    }

    /// Moves the next pages out of the groups to be emptied. Returns how many pages were moved; `None` when all are
    /// done or no block is free. No checkpoint may be under way; the old blocks become free with the next checkpoint.
    ///
    /// # Errors
    /// `Corrupt` when a page is damaged where it lies, or the disk's error. Pages moved before stay moved.
    pub(crate) fn evacuate(&mut self, evacuation: &mut Evacuation) -> Result<Option<u64>> {
        if evacuation.pages.is_empty() {
            return Ok(None);
        }
        let at_once = BLOCKS_AT_A_TIME.min(self.spare(ReservationKind::Reserve) as usize);
        if at_once == 0 {
            return Ok(None);
        }
        let now = evacuation.pages.split_off(evacuation.pages.len().saturating_sub(at_once));
        let _leaves = self.leaves.pin_all(now.iter().copied())?;
        let is_concerned = |at: Location| evacuation.groups.concerns(at.block);
        let (_held, mut places) = HeldBlocks::of_pages(&self.versions, now.into_iter(), is_concerned);
        let mut repacked = self.repack(&places, self.packing_in_place())?;
        if self.spare(self.kind_of_move(&places, &repacked)) < repacked.contents.len() as u64 {
            return Ok(Some(0));
        }
        let mut to = Vec::with_capacity(repacked.contents.len());
        {
            let mut metadata = self.versions.metadata().lock();
            while to.len() < repacked.contents.len()
                && let Some(block) = metadata.allocator.allocate_into(&mut evacuation.groups)
            {
                to.push(block);
            }
        }
        let moved = self.write_repacked(&to, &mut repacked, &mut places)?;
        self.note_moved(moved);
        Ok(Some(moved))
    }

    /// Plans to empty the file behind the length that `Metadata::shortest_end` returns; `None` when the file is no longer
    /// than that. To be called after a checkpoint. Memory: 24 bytes for each page in that end, eight afterwards. Blocks.
    ///
    /// # Errors
    /// As [`LeafLoads::pin`].
    pub(crate) fn plan_tail(&self) -> Result<Option<TailMove>> {
        let versions = Arc::clone(&self.versions);
        let mut tail = {
            let mut metadata = self.versions.metadata().lock();
            let end = BlockId(self.versions.metadata().shortest_end(self.versions.frames(), &metadata));
            if end.0 >= metadata.allocator.space.end_block() {
                return Ok(None);
            }
            metadata.allocator.set_ceiling(Some(group_of(end)));
            TailMove { versions, end, pages: Vec::new() }
        };
        self.list_tail(&mut tail)?;
        Ok(Some(tail))
    }

    /// Lists again the pages in the end of the file after a checkpoint, if there are any: pages changed in memory
    /// when they were to be moved, and old versions of them that the checkpoint wrote. Returns whether the end is not
    /// empty. Blocks.
    ///
    /// # Errors
    /// As [`LeafLoads::pin`].
    pub(crate) fn plan_again(&self, tail: &mut TailMove) -> Result<bool> {
        if self.versions.metadata().lock().allocator.space.end_block() <= tail.end.0 {
            return Ok(false);
        }
        self.list_tail(tail)?;
        Ok(true)
    }

    /// Lists the pages in the end of the file, and marks the nodes of the page table there as changed.
    fn list_tail(&self, tail: &mut TailMove) -> Result<()> {
        let mut pages: Vec<(BlockId, PageId)> = Vec::new();
        self.for_each_page(|page| pages.extend(self.place_in(tail, page).map(|at| (at.block, page))))?;
        pages.sort_unstable_by_key(|(block, _)| std::cmp::Reverse(*block));
        tail.pages = pages.into_iter().map(|(_, page)| page).collect();
        let mut node = Some(NodeId { level: 0, index: 0 });
        while let Some(from) = node {
            let mut budget = Budget::new();
            budget.spend(NODES_AT_ONCE * STEPS_A_NODE);
            node = self.versions.metadata().lock().map.mark_nodes_behind(tail.end, from, NODES_AT_ONCE);
        }
        Ok(())
    }

    /// Returns the place of a page, if it is in the end of the file.
    fn place_in(&self, tail: &TailMove, page: PageId) -> Option<Location> {
        self.versions.pages().places().place_on_disk(page).filter(|at| at.block >= tail.end)
    }

    /// Moves the next pages out of the end of the file, at most a megabyte. Returns how many moved; `None` when all are
    /// done, or no block before the end is free. No checkpoint may be under way; the old blocks are free after the next
    /// one.
    ///
    /// # Errors
    /// As [`Relocator::defragment`].
    pub(crate) fn move_tail(&mut self, tail: &mut TailMove) -> Result<Option<u64>> {
        let now = tail.pages.split_off(tail.pages.len().saturating_sub(self.pages_at_once()));
        if now.is_empty() {
            return Ok(None);
        }
        let _leaves = self.leaves.pin_all(now.iter().copied())?;
        // The lowest blocks first: pages that lie in a row stay in that order.
        let end = tail.end;
        let (_held, mut found) =
            HeldBlocks::of_pages(&self.versions, now.into_iter().rev(), |at: Location| at.block >= end);
        let (mut moved, mut repacked) = (0, self.repack(&found, self.packing_in_place())?);
        let kind = self.kind_of_move(&found, &repacked);
        let outcome = loop {
            if repacked.contents.is_empty() {
                break Ok(Some(moved));
            }
            let Some(row) = self.allocate_before(tail.end, repacked.contents.len() as u64, kind) else {
                tail.pages.clear();
                break Ok((moved > 0).then_some(moved));
            };
            match self.move_to(row, &mut repacked, &mut found) {
                Ok(of_row) => moved += of_row,
                Err(error) => break Err(error),
            }
        };
        self.note_moved(moved);
        outcome
    }

    /// Allocates at most `want` adjacent blocks before block `end`; `None` when there is none.
    fn allocate_before(&mut self, end: BlockId, want: u64, kind: ReservationKind) -> Option<Range<u64>> {
        let row = self.allocate_within(want, 1, kind)?;
        debug_assert!(row.end <= end.0, "blocks {row:?} lie behind the ceiling");
        Some(row)
    }

    /// Allocates at most `want` adjacent blocks within the present file, at least `least` of them if there
    /// are as many; `None` when none is free.
    fn allocate_within(&mut self, want: u64, least: u64, kind: ReservationKind) -> Option<Range<u64>> {
        let want = want.min(ROW_BLOCKS_MAX).min(self.spare(kind));
        if want == 0 {
            return None;
        }
        let _until_taken = self.versions.metadata().reserve(self.versions.frames(), want, kind)?;
        let allocate = |least| self.versions.metadata().lock().allocator.allocate_row(want, least, self.after, 0);
        let row = allocate(least.min(want)).or_else(|_| allocate(1)).ok()?;
        self.after = Some(BlockId(row.end - 1));
        Some(row)
    }

    /// Returns the number of free blocks that no commit has reserved and that work of this kind may take.
    fn spare(&self, kind: ReservationKind) -> u64 {
        self.versions.metadata().spare_blocks(self.versions.frames(), kind)
    }

    /// Returns how to pack pages moved only to change their place.
    fn packing_in_place(&self) -> Packing {
        if self.is_short() { Packing::Tight } else { Packing::InOrder }
    }

    /// Returns whether blocks of the reserve are in use, as on a full disk: pages may have another codec than their table's then.
    fn is_short(&self) -> bool {
        self.versions.metadata().is_short(self.versions.frames())
    }

    /// Returns the kind of reservation for moving these pages as they are packed: only a move after which, with the next
    /// checkpoint, as many blocks are free as before may use the reserve. A move of compressed pages that ends half-way
    /// may have emptied none of their blocks, so all of it must fit.
    fn kind_of_move(&self, places: &[(PageId, Location)], repacked: &RepackedPages) -> ReservationKind {
        let needed = repacked.contents.len() as u64;
        let is_whole = places.iter().all(|(_, at)| !at.is_compressed) || needed <= self.spare(ReservationKind::Reserve);
        if is_whole && needed <= self.emptied_by(places) { ReservationKind::Reserve } else { ReservationKind::Ordinary }
    }

    /// Returns the number of blocks in which nothing is left once these pages have left them. Pages of which only old
    /// versions lie there stay.
    fn emptied_by(&self, places: &[(PageId, Location)]) -> u64 {
        let mut blocks: Vec<BlockId> = places.iter().map(|(_, at)| at.block).collect();
        blocks.sort_unstable();
        let is_emptied =
            |pages: &&[BlockId]| self.versions.metadata().lock().allocator.pages_in(pages[0]) <= pages.len();
        blocks.chunk_by(|block, next| block == next).filter(is_emptied).count() as u64
    }

    /// Counts pages that were moved.
    fn note_moved(&mut self, moved: u64) {
        self.pending += moved;
        self.versions.counters().moved.fetch_add(moved, Ordering::Relaxed);
    }

    /// Returns the number of blocks in use, without the old blocks of moved pages.
    fn live_blocks(&self) -> u64 {
        let metadata = self.versions.metadata().lock();
        metadata.allocator.space.used_blocks().saturating_sub(metadata.allocator.deferred.len() + self.pending)
    }

    fn allocate_row(&mut self, want: u64, least: u64, kind: ReservationKind) -> Option<Range<u64>> {
        let live = self.live_blocks();
        let end_max = live + live / GROWTH_SHARE + GROWTH_BLOCKS;
        let may_grow = || self.versions.metadata().lock().allocator.space.backed_end() + GROUP_BLOCKS <= end_max;
        let want = want.min(ROW_BLOCKS_MAX);
        // Blocks promised to commits stay free.
        let spare = || self.spare(kind);
        // Otherwise the last pages of a list would find no block each time that the list is moved.
        if spare() < least && may_grow() {
            // A full disk is no error here: the row is refused below.
            let _ = self.writer.grow();
        }
        let want = want.min(spare());
        if want < least {
            return None;
        }
        let _until_taken = self.versions.metadata().reserve(self.versions.frames(), want, kind)?;
        let allocate = |least| self.versions.metadata().lock().allocator.allocate_row(want, least, self.after, end_max);
        let row = allocate(least.max(want.div_ceil(2))).or_else(|_| {
            if may_grow() && matches!(self.writer.grow(), Ok(true)) {
                allocate(least.max(want.div_ceil(2)))
            } else {
                Err(NoFreeBlocks)
            }
        });
        let row = row.or_else(|_| allocate(least)).ok()?;
        self.after = Some(BlockId(row.end - 1));
        Some(row)
    }

    /// Moves the next repacked pages to the blocks of `row`, and updates the locations in `pages`. Returns the number
    /// of pages moved. After an error none of them was moved.
    fn move_to(
        &mut self,
        row: Range<u64>,
        repacked: &mut RepackedPages,
        pages: &mut [(PageId, Location)],
    ) -> Result<u64> {
        self.defragmented.insert(group_of(BlockId(row.start)));
        let to: Vec<BlockId> = row.map(BlockId).collect();
        self.write_repacked(&to, repacked, pages)
    }

    /// Writes the next repacked pages to the blocks of `to`, each run of blocks with one operation, and replaces the
    /// locations of these pages. Returns how many were replaced: pages that have changed since keep their locations.
    /// After an error no location was replaced, and the blocks are taken back.
    fn write_repacked(
        &self,
        to: &[BlockId],
        repacked: &mut RepackedPages,
        pages: &mut [(PageId, Location)],
    ) -> Result<u64> {
        let page_bytes = self.versions.frames().page_bytes();
        let written =
            repacked.buffers(to, page_bytes).and_then(|runs| self.writer.write_blocks(MOVE, runs.into_iter()));
        if let Err(error) = written {
            self.versions.metadata().take_back(to.iter().copied(), &error);
            return Err(error);
        }
        let mut moved = 0;
        for (block, content) in to.iter().zip(repacked.contents.drain(..to.len().min(repacked.contents.len()))) {
            if content.sharing() > 0 {
                self.versions.metadata().lock().allocator.share(*block, content.sharing());
            }
            for (moving, to) in content.located(*block, |moving| Tag::of_page(&moving.bytes)) {
                let (page, at) = &mut pages[moving.index];
                if self.versions.pages().places().replace_place(*page, *at, to) {
                    *at = to;
                    moved += 1;
                }
            }
        }
        Ok(moved)
    }

    /// Reads these pages, checks them, and packs them into blocks.
    fn repack(&mut self, pages: &[(PageId, Location)], packing: Packing) -> Result<RepackedPages> {
        let mut moving = Vec::with_capacity(pages.len());
        for window in pages.chunks(BLOCKS_AT_A_TIME) {
            self.read(window, &mut moving)?;
        }
        let shape = (self.versions.file_codec(), self.versions.frames().page_bytes());
        let codecs = self.writer.codecs();
        let contents = match packing {
            Packing::InOrder => pack(codecs, shape, moving, MovingPage::sealed),
            Packing::Tight => {
                pack_tightly(codecs, shape, moving, MovingPage::sealed, |moving| pages[moving.index].1.is_compressed)
            }
        };
        Ok(RepackedPages { contents: contents.into() })
    }

    /// Reads these pages, checks them, and adds them to `moving` in the given order: at most `BLOCKS_AT_A_TIME` pages.
    fn read(&mut self, pages: &[(PageId, Location)], moving: &mut Vec<MovingPage>) -> Result<()> {
        let (file, page_bytes) = (self.versions.file_codec(), self.versions.frames().page_bytes());
        // Compressed pages share blocks, which are read once.
        let mut offsets: Vec<u64> = pages.iter().map(|(_, at)| at.block.0 * page_bytes as u64).collect();
        offsets.sort_unstable();
        offsets.dedup();
        let mut blocks = self.reader.read(page_bytes, &offsets)?;
        for (page, at) in pages {
            let offset = at.block.0 * page_bytes as u64;
            let Some(block) = offsets.binary_search(&offset).ok().and_then(|index| blocks.get_mut(index)) else {
                continue;
            };
            if at.is_compressed {
                self.versions.metadata().lock().allocator.learn_shared(at.block, written_pages(block));
            }
            let mut bytes = vec![0; page_bytes];
            if restore_page(file, *page, *at, block, &mut bytes).is_err() {
                // Reads once more, as for any page, because not every wrong bit comes from the disk.
                *block = self.reader.read(page_bytes, &[offset])?.remove(0);
                restore_page(file, *page, *at, block, &mut bytes)?;
            }
            let codec = at.is_compressed.then(|| codec_of(*page, block)).flatten().unwrap_or_default();
            moving.push(MovingPage { index: moving.len(), page: *page, bytes, codec });
        }
        self.reader.recycle(blocks);
        Ok(())
    }
}

/// Number of holds of blocks ended during one hold of the lock, and the steps of a `Budget` for each.
const UNHELD_AT_ONCE: usize = 128;
const STEPS_A_HOLD: usize = 4;

/// Blocks that are not reused until this is dropped.
pub(super) struct HeldBlocks {
    versions: Arc<Versions>,
    blocks: Vec<BlockId>,
}

impl HeldBlocks {
    /// Holds the blocks of these pages' newest versions, as far as they are on disk and `wanted`. Returns these pages
    /// with their locations.
    pub(super) fn of_pages(
        versions: &Arc<Versions>,
        pages: impl Iterator<Item = PageId>,
        wanted: impl Fn(Location) -> bool,
    ) -> (Self, Vec<(PageId, Location)>) {
        let mut held = Self { versions: Arc::clone(versions), blocks: Vec::new() };
        let mut found = Vec::new();
        for page in pages {
            let Some(at) = versions.pages().places().hold_on_disk(page) else { continue };
            held.blocks.push(at.block);
            if wanted(at) {
                found.push((page, at));
            }
        }
        (held, found)
    }
}

impl Drop for HeldBlocks {
    fn drop(&mut self) {
        for blocks in self.blocks.chunks(UNHELD_AT_ONCE) {
            let mut budget = Budget::new();
            budget.spend(STEPS_A_HOLD * blocks.len());
            let mut metadata = self.versions.metadata().lock();
            blocks.iter().for_each(|block| metadata.allocator.unhold(*block));
        }
    }
}

/// Returns the number of blocks in which the pages lie, and the number of runs of consecutive blocks that they form, in
/// any order.
fn blocks_and_fragments(pages: &[(PageId, Location)]) -> (u64, u64) {
    let mut blocks: Vec<u64> = pages.iter().map(|(_, at)| at.block.0).collect();
    blocks.sort_unstable();
    blocks.dedup();
    (blocks.len() as u64, blocks.chunk_by(|block, next| block + 1 == *next).count() as u64)
}

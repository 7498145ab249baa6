//! Writes pages: out of place, near their old blocks, many in one operation where blocks follow each other; and grows
//! the file.
//!
//! Pages of compressed tables written together share blocks ([`super::packing`]). A block's earlier content leaves
//! the compressed tier before the block is written.
//!
//! A page is written at most once per version: every writing thread holds the write queue, and skips frames that have a
//! place on disk by then. A thread that writes at a [`Pace`] holds the queue in its pauses too, and makes none while another
//! thread waits for the queue or for frames.
//!
//! **Locks**: the write queue, before shards and metadata.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use nofault_io::aligned::{IoBuf, StableBytes};
use nofault_io::completion::{OpKind, WriteData};

use super::packing::{BlockContent, TableCodecs, pack, pack_tightly};
use super::write_queue::{Pace, WriteQueue};
use crate::block_allocator::GROUP_BLOCKS;
use crate::buffer_pool::page_table::DirtyPage;
use crate::buffer_pool::versions::Versions;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockId, PageId, Tag};
use crate::sync::awaited_mutex::AwaitedMutex;

/// Fewest bytes by which the file grows at a time.
const GROW_BYTES_MIN: u64 = 1 << 20;
/// Share of its size by which a small file grows at a time, as a divisor, up to `GROW_BYTES`.
const GROW_SHARE_SMALL: u64 = 4;
const GROW_BYTES: u64 = 8 << 20;
/// Share of its size by which a large file grows at a time, as a divisor, but at most `GROW_BYTES_MAX`. The step is
/// bounded because the file system does no other work for the file during a step, and bytes that it allocates before the
/// disk is full stay allocated.
const GROW_SHARE: u64 = 16;
const GROW_BYTES_MAX: u64 = 64 << 20;

/// Writes the pages of a pool, and grows its file.
pub(crate) struct Writer {
    versions: Arc<Versions>,
    codecs: TableCodecs,
    queue: AwaitedMutex<WriteQueue>,
}

/// A frame that is pinned, and therefore stays published, until this is dropped.
struct PinnedFrame {
    versions: Arc<Versions>,
    item: DirtyPage,
}

// SAFETY: the frame was pinned when this was made and is unpinned when it is dropped; a pinned frame is not recycled,
// so its bytes stay in place and unchanged. They lie in a region, so moving this moves none of them.
unsafe impl StableBytes for PinnedFrame {
    fn bytes(&self) -> &[u8] {
        // SAFETY: as above; the slice is bound to `&self`.
        unsafe { self.versions.frames().bytes(self.item.frame) }
    }
}

impl Drop for PinnedFrame {
    fn drop(&mut self) {
        self.versions.unpin(self.item.page, self.item.frame);
    }
}

fn sealed(part: &Arc<PinnedFrame>) -> (PageId, &[u8]) {
    (part.item.page, part.bytes())
}

/// What is written to one block of the file.
type WrittenBlock = BlockContent<Arc<PinnedFrame>>;

fn stable_bytes(content: &WrittenBlock) -> Arc<dyn StableBytes> {
    match content {
        BlockContent::Whole(part) => Arc::clone(part) as Arc<dyn StableBytes>,
        BlockContent::Packed { block, .. } => Arc::clone(block) as Arc<dyn StableBytes>,
    }
}

/// A node of the page table to be written, and the block near which it should lie.
pub(crate) struct NodeToWrite {
    pub(crate) near: Option<BlockId>,
    pub(crate) buffer: IoBuf,
}

impl Writer {
    pub(crate) fn new(versions: &Arc<Versions>, queue: WriteQueue) -> Self {
        let (codecs, queue) = (TableCodecs::default(), AwaitedMutex::new(queue));
        Self { versions: Arc::clone(versions), codecs, queue }
    }

    /// Returns the compression of each table.
    pub(crate) fn codecs(&self) -> &TableCodecs {
        &self.codecs
    }

    /// Ends the queue: nothing is written any more. Waits for another thread that is writing.
    pub(crate) fn end(&self) {
        self.lock().end();
    }

    fn lock(&self) -> MutexGuard<'_, WriteQueue> {
        self.queue.lock()
    }

    /// Returns whether another thread waits for the queue, or an operation for frames.
    fn is_awaited(&self) -> bool {
        self.queue.is_awaited() || self.versions.frame_waits().has_waiters()
    }

    /// Returns whether a thread holds the write queue, and so may be waiting for the device.
    pub(crate) fn is_busy(&self) -> bool {
        self.queue.try_lock().is_none()
    }

    /// Writes frames that are not on disk yet, and removes one pin from each. Skips frames written before,
    /// and writes a frame named twice once. Waits for the device, so readers never call it while a background
    /// writer runs.
    ///
    /// # Errors
    /// The first failure; frames that could not be written stay dirty, the others are clean.
    pub(crate) fn write_frames(&self, frames: Vec<DirtyPage>) -> Result<()> {
        self.write_frames_at(&mut Pace::at_once(), frames)
    }

    /// As [`Writer::write_frames`], at this pace.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn write_frames_at(&self, pace: &mut Pace<'_>, mut frames: Vec<DirtyPage>) -> Result<()> {
        frames.sort_unstable_by_key(|item| item.frame);
        let mut queue = self.lock();
        let mut parts: Vec<Arc<PinnedFrame>> = Vec::with_capacity(frames.len());
        for item in frames {
            let part = PinnedFrame { versions: Arc::clone(&self.versions), item };
            // All frames are checked before any is written, so the second of two equal entries would still seem to need
            // a write.
            if self.versions.pages().places().must_be_written(item)
                && parts.last().is_none_or(|last| last.item.frame != item.frame)
            {
                parts.push(Arc::new(part));
            }
        }
        let outcome = self.write_parts(&mut queue, pace, parts);
        drop(queue);
        outcome
    }

    fn write_parts(&self, queue: &mut WriteQueue, pace: &mut Pace<'_>, mut parts: Vec<Arc<PinnedFrame>>) -> Result<()> {
        let page_bytes = self.versions.frames().page_bytes();
        let near = |part: &PinnedFrame| self.versions.frames().frame(part.item.frame).near();
        // Sorted by their old blocks, so that neighbours stay neighbours where they find room together.
        parts.sort_by_key(|part| (near(part).unwrap_or(u64::MAX), part.item.page));
        let shape = (self.versions.file_codec(), page_bytes);
        let metadata = self.versions.metadata();
        let has_compressed = self.codecs.has_any() || metadata.lock().allocator.pages.totals().0 > 0;
        let contents = if has_compressed && metadata.is_short(self.versions.frames()) && !self.grow_by(queue)? {
            pack_tightly(&self.codecs, shape, parts, sealed, |part| metadata.lies_compressed(part.item.page))
        } else {
            pack(&self.codecs, shape, parts, sealed)
        };
        let near = |content: &WrittenBlock| content.first().and_then(|part| near(part)).map(BlockId);
        let blocks = self.place(queue, contents.iter().map(near))?;
        let out_of_room = blocks.iter().any(Option::is_none);
        let mut placed: Vec<(BlockId, WrittenBlock)> =
            blocks.into_iter().zip(contents).filter_map(|(block, content)| Some((block?, content))).collect();
        placed.sort_by_key(|(block, _)| *block);
        self.versions.forget_blocks(placed.iter().map(|(block, _)| *block));
        let write_bytes_max = pace.write_bytes_max();
        let mut runs: Vec<Vec<(BlockId, WrittenBlock)>> = Vec::new();
        for (block, content) in placed {
            match runs.last_mut() {
                Some(run)
                    if run.last().is_some_and(|(last, _)| last.0 + 1 == block.0)
                        && (run.len() + 1) * page_bytes <= write_bytes_max =>
                {
                    run.push((block, content));
                }
                _ => runs.push(vec![(block, content)]),
            }
        }
        let op_of = |run: &Vec<(BlockId, WrittenBlock)>| {
            let parts = run.iter().map(|(_, content)| stable_bytes(content)).collect();
            (run[0].0.0 * page_bytes as u64, OpKind::Write { data: WriteData::Gather(parts), durable: false })
        };
        let ops = runs.iter().map(op_of).collect();
        let mut runs: Vec<_> = runs.into_iter().map(Some).collect();
        let mut failure = out_of_room.then(|| self.no_room());
        let ended = |index: usize, result: nofault_io::error::Result<()>| {
            let Some(run) = runs.get_mut(index).and_then(Option::take) else { return };
            match result {
                Ok(()) => run.into_iter().for_each(|(block, content)| self.note_written(block, content)),
                Err(error) => {
                    let action = format!("write {} blocks at block {}", run.len(), run[0].0);
                    let error = Error::from_io(action, error);
                    self.versions.metadata().take_back(run.iter().map(|(block, _)| *block), &error);
                    failure.get_or_insert(error);
                }
            }
            // Done after each run, so that an operation waiting for frames can continue while the rest is written.
            self.versions.frame_waits().grant();
        };
        let broken = self.run_at(queue, pace, ops, ended).err();
        // A missing result means that the whole queue failed.
        if let Some(error) = &broken {
            runs.into_iter()
                .flatten()
                .for_each(|run| self.versions.metadata().take_back(run.iter().map(|(block, _)| *block), error));
        }
        broken.or(failure).map_or(Ok(()), Err)
    }

    /// Runs operations as [`WriteQueue::run_each`] does, all together or, where `pace` wants it, some at a time.
    fn run_at(
        &self,
        queue: &mut WriteQueue,
        pace: &mut Pace<'_>,
        mut ops: VecDeque<(u64, OpKind)>,
        mut ended: impl FnMut(usize, nofault_io::error::Result<()>),
    ) -> Result<()> {
        let mut first = 0;
        while !ops.is_empty() {
            let (begun, mut part) = (Instant::now(), Vec::new());
            let bytes_max = pace.bytes_at_once(self.is_awaited());
            let mut bytes = 0;
            while let Some((_, op)) = ops.front()
                && (part.is_empty() || bytes + op.len_bytes() <= bytes_max)
            {
                bytes += op.len_bytes();
                part.extend(ops.pop_front());
            }
            let count = part.len();
            queue.run_each(part, |index, result| ended(first + index, result))?;
            first += count;
            pace.pause_after(begun.elapsed());
        }
        Ok(())
    }

    fn note_written(&self, block: BlockId, content: WrittenBlock) {
        if content.sharing() > 0 {
            self.versions.metadata().lock().allocator.share(block, content.sharing());
        }
        for (part, at) in content.located(block, |part| Tag::of_page(part.bytes())) {
            self.versions.counters().written.fetch_add(1, Ordering::Relaxed);
            self.versions.pages().places().note_written(part.item, at);
        }
    }

    /// Writes buffers of one or more pages, each to consecutive blocks from the given block on. The caller has
    /// allocated the blocks.
    ///
    /// # Errors
    /// The first failure. The contents of the blocks are unknown then.
    pub(crate) fn write_blocks(&self, action: &str, pieces: impl Iterator<Item = (BlockId, IoBuf)>) -> Result<()> {
        let page_bytes = self.versions.frames().page_bytes() as u64;
        let op_of = |(first, bytes): (BlockId, IoBuf)| {
            let end = first.0 + bytes.len() as u64 / page_bytes;
            self.versions.forget_blocks((first.0..end).map(BlockId));
            (first.0 * page_bytes, OpKind::write(bytes, false))
        };
        let ops: Vec<_> = pieces.map(op_of).collect();
        let results = self.lock().run(ops)?;
        let failed = results.into_iter().find_map(std::result::Result::err);
        failed.map_or(Ok(()), |error| Err(Error::from_io(action, error)))
    }

    fn no_room(&self) -> Error {
        let what = "the data file has no free block and the disk no room for more: free some space on the disk";
        Error::new(ErrorKind::NoSpace, what)
    }

    /// Writes nodes of the page table to new blocks. Returns the block of each; the caller computes the checksums.
    ///
    /// # Errors
    /// The first failure; then no node counts as written.
    pub(crate) fn write_nodes(&self, nodes: Vec<NodeToWrite>) -> Result<Vec<BlockId>> {
        let placed = self.place(&mut self.lock(), nodes.iter().map(|node| node.near))?;
        let blocks: Vec<BlockId> = placed.iter().copied().flatten().collect();
        if blocks.len() < placed.len() {
            let mut metadata = self.versions.metadata().lock();
            blocks.into_iter().for_each(|block| metadata.allocator.give_back(block));
            drop(metadata);
            return Err(self.no_room());
        }
        let buffers = nodes.into_iter().map(|node| node.buffer);
        match self.write_blocks("write nodes of the page table", blocks.iter().copied().zip(buffers)) {
            Ok(()) => Ok(blocks),
            Err(error) => {
                self.versions.metadata().take_back(blocks.into_iter(), &error);
                Err(error)
            }
        }
    }

    /// Makes every completed write of the data file durable.
    ///
    /// # Errors
    /// The disk's error, when the sync fails. The writes since the last sync may or may not be on the disk then.
    pub(crate) fn sync_data(&self) -> Result<()> {
        self.single(0, OpKind::Sync, "sync the data file")
    }

    /// Writes a superblock durably.
    ///
    /// # Errors
    /// The disk's error, when the write fails. The contents of the slot are unknown then.
    pub(crate) fn write_superblock(&self, offset_bytes: u64, sector: IoBuf) -> Result<()> {
        self.single(offset_bytes, OpKind::write(sector, true), "write the superblock")
    }

    fn single(&self, offset_bytes: u64, kind: OpKind, action: &str) -> Result<()> {
        self.lock().run(vec![(offset_bytes, kind)])?.remove(0).map_err(|error| Error::from_io(action, error))
    }

    /// Grows the data file by one step. Returns false when the disk is full, or the file has its largest size. Blocks.
    ///
    /// # Errors
    /// Any error of the disk other than being full.
    pub(crate) fn grow(&self) -> Result<bool> {
        self.grow_by(&mut self.lock())
    }

    /// Gives the free end of the file back to the file system, but for the blocks that are kept free for deletes,
    /// dropped tables and checkpoints. Returns by how many bytes the file became shorter. Blocks.
    ///
    /// A block is free only after both superblocks, durably, name a state without it. So whichever of the two an
    /// opening reads, and whether or not a power cut undoes the cut, no block that it names is missing.
    ///
    /// # Errors
    /// The error of the disk: the end of the file is not used any more, and may not have been given back.
    pub(crate) fn cut_free_end(&self) -> Result<u64> {
        let page_bytes = self.versions.frames().page_bytes() as u64;
        // No write is under way while this is held, and the file does not grow.
        let mut queue = self.lock();
        while self.versions.metadata().lock().allocator.forget_empty_end() {}
        let from = queue.file_bytes();
        let to = {
            let mut metadata = self.versions.metadata().lock();
            let free = self.versions.metadata().blocks_needed_free(self.versions.frames(), &metadata);
            let needed = (metadata.allocator.space.used_blocks() + free).next_multiple_of(GROUP_BLOCKS);
            let end = needed.max(metadata.allocator.space.end_block());
            if end * page_bytes >= from {
                return Ok(0);
            }
            metadata.allocator.space.set_backed(end);
            end * page_bytes
        };
        if queue.cut(to)? {
            return Ok(from - to);
        }
        self.versions.metadata().lock().allocator.space.set_backed(from / page_bytes);
        Ok(0)
    }

    /// Allocates the missing blocks of the file's last, incomplete group on disk, or marks them as used when the disk
    /// is full. To be called before anything is written. Blocks.
    ///
    /// # Errors
    /// Any error of the disk other than being full.
    pub(crate) fn complete_last_group(&self) -> Result<()> {
        let mut queue = self.lock();
        let page_bytes = self.versions.frames().page_bytes() as u64;
        let (from, to) = (queue.file_bytes(), self.versions.metadata().lock().allocator.space.end_block() * page_bytes);
        if from >= to || queue.extend(to)? {
            let backed = queue.file_bytes().max(to) / page_bytes;
            self.versions.metadata().lock().allocator.space.set_backed(backed);
            return Ok(());
        }
        let mut metadata = self.versions.metadata().lock();
        for block in from / page_bytes..to / page_bytes {
            // A block that is marked already is in use, so it exists.
            let _ = metadata.allocator.space.mark_used(BlockId(block));
        }
        Ok(())
    }

    /// Grows the data file as [`Writer::grow`] does, for a caller holding the write queue.
    fn grow_by(&self, queue: &mut WriteQueue) -> Result<bool> {
        let page_bytes = self.versions.frames().page_bytes() as u64;
        let group_bytes = page_bytes * GROUP_BLOCKS;
        let from = self.versions.metadata().lock().allocator.space.backed_end() * page_bytes;
        let room = self.versions.metadata().lock().allocator.space.blocks_max() * page_bytes - from;
        let by_small_share = (from / GROW_SHARE_SMALL).min(GROW_BYTES);
        let step = (from / GROW_SHARE).max(by_small_share).clamp(GROW_BYTES_MIN, GROW_BYTES_MAX);
        let mut step = step.next_multiple_of(group_bytes).min(room);
        while step >= group_bytes {
            if queue.extend(from + step)? {
                self.versions.metadata().lock().allocator.space.set_backed((from + step) / page_bytes);
                return Ok(true);
            }
            step = (step / 2).next_multiple_of(group_bytes).min(step - group_bytes);
        }
        Ok(false)
    }

    /// Allocates a block for each page or node, near the block that `near` names for it. Grows the file where pages
    /// would otherwise go into small gaps. Returns `None` in place of a block when no block is left.
    fn place(
        &self,
        queue: &mut WriteQueue,
        near: impl Iterator<Item = Option<BlockId>>,
    ) -> Result<Vec<Option<BlockId>>> {
        let mut may_grow = true;
        let mut metadata = self.versions.metadata().lock();
        let mut blocks = Vec::new();
        for near in near {
            if may_grow && metadata.allocator.is_cramped() {
                drop(metadata);
                let grown = self.grow_by(queue);
                metadata = self.versions.metadata().lock();
                match grown {
                    Ok(grown) => may_grow = grown,
                    Err(error) => {
                        blocks.into_iter().flatten().for_each(|block| metadata.allocator.give_back(block));
                        return Err(error);
                    }
                }
            }
            let block = match near {
                Some(near) => metadata.allocator.allocate_near(near),
                None => metadata.allocator.allocate(),
            };
            blocks.push(block.ok());
        }
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nofault_sim::{Rates, SimOptions, SimWorld};

    use super::*;
    use crate::buffer_pool::versions::NEWEST;
    use crate::buffer_pool::{BufferPool, CheckpointPlace, LoadedTable, PoolOptions};
    use crate::clock::ClockSource;
    use crate::format::CommitSeq;
    use crate::pages::{PageCopies as _, Store as _};
    use crate::settings::TierUse;

    fn pool(world: &SimWorld) -> BufferPool {
        let disk = world.directory().create("data").unwrap();
        let options = PoolOptions {
            cache_bytes: 1 << 20,
            spent_bytes: 0,
            page_bytes: 512,
            file_id: 7,
            snapshot_bytes_max: u64::MAX,
            reads_in_flight_max: 8,
            scan_bytes_min: 0,
            registers_frames: true,
            evicts_table: false,
            tier: TierUse::Judged,
            clock: ClockSource::default(),
        };
        BufferPool::new(&disk, &options, LoadedTable::new(512, 1 << 30), CommitSeq(0)).unwrap()
    }

    /// Publishes new pages, and pins them as a checkpoint does.
    fn dirty_pages(pool: &BufferPool, count: usize) -> Vec<PageId> {
        let mut copies = pool.copies();
        let pages = (0..count).map(|_| copies.allocate(PageId(0)).ok().unwrap().0).collect();
        pool.publish(copies, CommitSeq(1));
        pages
    }

    fn pinned(pool: &BufferPool, page: &PageId) -> DirtyPage {
        match pool.checkpoint_place(*page, NEWEST) {
            CheckpointPlace::Dirty(item) => item,
            other => panic!("{other:?}"),
        }
    }

    fn assert_unpinned(pool: &BufferPool, items: &[DirtyPage]) {
        let pins = |item: &DirtyPage| pool.writer().versions.frames().frame(item.frame).pins();
        assert!(items.iter().all(|item| pins(item) == 0), "a pin is left");
    }

    #[test]
    fn a_page_named_twice_is_written_and_counted_once() {
        let pool = pool(&SimWorld::new(1, SimOptions::calm()));
        let pages = dirty_pages(&pool, 3);
        let twice: Vec<DirtyPage> = pages.iter().chain(&pages).map(|page| pinned(&pool, page)).collect();
        let before = pool.stats().blocks_used;
        pool.writer().write_frames(twice.clone()).unwrap();
        let stats = pool.stats();
        assert_eq!((stats.pages_written, stats.blocks_used - before, stats.pages_dirty), (3, 3, 0));
        assert_unpinned(&pool, &twice);
    }

    #[test]
    fn a_failure_among_parts_leaves_no_pin_and_no_page_out() {
        let world = SimWorld::new(1, SimOptions::calm());
        let pool = pool(&world);
        let pages = dirty_pages(&pool, 900);
        let items: Vec<DirtyPage> = pages.iter().map(|page| pinned(&pool, page)).collect();
        let parts = Cell::new(0);
        let delays_commits = || {
            parts.set(parts.get() + 1);
            // The first part is written, and the second is not.
            world.set_rates(Rates { write_error: if parts.get() == 3 { 1.0 } else { 0.0 }, ..Rates::default() });
            true
        };
        let outcome = pool.writer().write_frames_at(&mut Pace::beside_commits(&delays_commits), items.clone());
        assert!(outcome.is_err() && parts.get() > 3, "{outcome:?} after {} looks", parts.get());
        let dirty = pool.stats().pages_dirty;
        assert!((1..=256).contains(&dirty), "the pages of one part: {dirty}");
        assert_unpinned(&pool, &items);
        world.set_rates(Rates::default());
        let left = pages.iter().filter_map(|page| match pool.checkpoint_place(*page, NEWEST) {
            CheckpointPlace::Dirty(item) => Some(item),
            _ => None,
        });
        pool.writer().write_frames_at(&mut Pace::beside_commits(&|| true), left.collect()).unwrap();
        assert_eq!((pool.stats().pages_dirty, pool.stats().pages_written), (0, 900));
        assert_unpinned(&pool, &items);
    }
}

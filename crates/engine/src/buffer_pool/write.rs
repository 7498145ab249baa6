//! Writes pages: out of place, near their old blocks, many in one operation where blocks follow each other.
//!
//! A page is written at most once per version: every writing thread holds the write lane, and skips frames that have a place
//! on disk by then.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use nofault_io::aligned::{IoBuf, StableBytes};
use nofault_io::completion::{Op, OpKind, WriteData};
use nofault_io::disk::{Disk, Queue};
use nofault_io::error::ErrorKind as IoKind;

use super::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BlockId, Location, PageId, Tag};

/// Most bytes of one write.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The queue for writes, and how long the file is.
pub(super) struct WriteLane {
    queue: Box<dyn Queue>,
    pub(super) file_bytes: u64,
    pub(super) may_preallocate: bool,
}

impl WriteLane {
    pub(super) fn new(queue: Box<dyn Queue>, disk: &dyn Disk) -> Result<Self> {
        let file_bytes = disk.len_bytes().map_err(|error| Error::from_io("ask the data file's length", error))?;
        Ok(Self { queue, file_bytes, may_preallocate: true })
    }

    /// Runs operations to their end. Returns their results in the order of the operations.
    pub(super) fn run(&mut self, ops: Vec<(u64, OpKind)>) -> Result<Vec<nofault_io::error::Result<()>>> {
        let mut results: Vec<_> = ops.iter().map(|_| Ok(())).collect();
        self.run_each(ops, |index, result| results[index] = result)?;
        Ok(results)
    }

    /// Runs operations to their end, and reports each result at once, while the device goes on with the others.
    ///
    /// # Errors
    /// When the queue fails: the outcome of every operation that was not reported is unknown.
    fn run_each(
        &mut self,
        ops: Vec<(u64, OpKind)>,
        mut ended: impl FnMut(usize, nofault_io::error::Result<()>),
    ) -> Result<()> {
        let mut waiting: VecDeque<Op> =
            ops.into_iter().enumerate().map(|(index, (offset, kind))| Op::new(index as u64, offset, kind)).collect();
        let mut done = Vec::new();
        // After a failed wait some operations may be left: their writes must not come after new writes in the same place, and
        // their tokens are those of other operations.
        while self.queue.in_flight() > 0 {
            self.queue.reap(1, &mut done).map_err(|error| Error::from_io("wait for earlier writes", error))?;
            done.clear();
        }
        while !waiting.is_empty() || self.queue.in_flight() > 0 {
            while let Some(op) = waiting.pop_front() {
                let Err(refused) = self.queue.push(op) else { continue };
                if refused.error.kind() == IoKind::Busy && self.queue.in_flight() > 0 {
                    waiting.push_front(refused.op);
                    break;
                }
                ended(refused.op.token as usize, Err(refused.error));
            }
            if self.queue.in_flight() > 0 {
                self.queue.reap(1, &mut done).map_err(|error| Error::from_io("wait for writes", error))?;
            }
            for completion in done.drain(..) {
                ended(completion.op.token as usize, completion.result.map(drop));
            }
        }
        Ok(())
    }
}

/// A published frame that stays one: pinned until this is dropped.
struct PinnedFrame {
    core: Arc<Core>,
    page: PageId,
    index: u32,
}

// SAFETY: the frame was pinned when this was made and is unpinned when it is dropped; a pinned frame is not recycled, so its
// bytes stay in place and unchanged. They lie in a region, so moving this moves none of them.
unsafe impl StableBytes for PinnedFrame {
    fn bytes(&self) -> &[u8] {
        // SAFETY: as above; the slice is bound to `&self`.
        unsafe { self.core.frames.bytes(self.index) }
    }
}

impl Drop for PinnedFrame {
    fn drop(&mut self) {
        self.core.unpin(self.page, self.index);
    }
}

/// A dirty frame to be written, pinned by the caller on behalf of [`Core::write_frames`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToWrite {
    pub(crate) page: PageId,
    pub(crate) frame: u32,
}

/// A node of the page table to be written.
pub(crate) struct NodeToWrite {
    pub(crate) near: Option<BlockId>,
    pub(crate) buffer: IoBuf,
}

impl Core {
    pub(super) fn writer(&self) -> MutexGuard<'_, WriteLane> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes frames that have no place on disk yet; skips those that got one meanwhile, and writes a frame that is named twice
    /// once. Takes over one pin of each. Waits for the device, so never called by a reader while a keeper runs.
    ///
    /// # Errors
    /// The first failure; frames that could not be written stay dirty, the others are clean.
    pub(crate) fn write_frames(self: &Arc<Self>, mut frames: Vec<ToWrite>) -> Result<()> {
        frames.sort_unstable_by_key(|item| item.frame);
        let mut lane = self.writer();
        let mut parts: Vec<Arc<PinnedFrame>> = Vec::with_capacity(frames.len());
        for ToWrite { page, frame } in frames {
            let part = PinnedFrame { core: Arc::clone(self), page, index: frame };
            let entry = self.frames.frame(frame);
            let _shard = self.shard(page);
            let wanted = entry.disk().is_none() && !entry.is_doomed();
            drop(_shard);
            // All are looked at before any is written: the second of two would be found unwritten as well.
            if wanted && parts.last().is_none_or(|last| last.index != frame) {
                parts.push(Arc::new(part));
            }
        }
        let outcome = self.write_parts(&mut lane, parts);
        drop(lane);
        outcome
    }

    fn write_parts(self: &Arc<Self>, lane: &mut WriteLane, mut parts: Vec<Arc<PinnedFrame>>) -> Result<()> {
        let page_bytes = self.frames.page_bytes();
        // In the order of their old places, so that neighbours that find room together stay neighbours.
        parts.sort_by_key(|part| (self.frames.frame(part.index).near().unwrap_or(u64::MAX), part.page));
        let blocks = self.place(lane, parts.iter().map(|part| self.frames.frame(part.index).near().map(BlockId)))?;
        let out_of_room = blocks.iter().any(Option::is_none);
        let mut placed: Vec<(BlockId, Arc<PinnedFrame>)> =
            blocks.into_iter().zip(parts).filter_map(|(block, part)| Some((block?, part))).collect();
        placed.sort_by_key(|(block, _)| *block);
        let mut runs: Vec<Vec<(BlockId, Arc<PinnedFrame>)>> = Vec::new();
        for (block, part) in placed {
            match runs.last_mut() {
                Some(run)
                    if run.last().is_some_and(|(last, _)| last.0 + 1 == block.0)
                        && (run.len() + 1) * page_bytes <= WRITE_BYTES_MAX =>
                {
                    run.push((block, part));
                }
                _ => runs.push(vec![(block, part)]),
            }
        }
        let op_of = |run: &Vec<(BlockId, Arc<PinnedFrame>)>| {
            let parts = run.iter().map(|(_, part)| Arc::clone(part) as Arc<dyn StableBytes>).collect();
            (run[0].0.0 * page_bytes as u64, OpKind::Write { data: WriteData::Gather(parts), durable: false })
        };
        let ops = runs.iter().map(op_of).collect();
        let mut runs: Vec<_> = runs.into_iter().map(Some).collect();
        let mut failure = out_of_room.then(|| self.no_room());
        let ended = |index: usize, result: nofault_io::error::Result<()>| {
            let Some(run) = runs.get_mut(index).and_then(Option::take) else { return };
            match result {
                Ok(()) => run.into_iter().for_each(|(block, part)| self.note_written(block, &part)),
                Err(error) => {
                    let action = format!("write {} pages at block {}", run.len(), run[0].0);
                    let error = Error::from_io(action, error);
                    self.take_back(run.iter().map(|(block, _)| *block), &error);
                    failure.get_or_insert(error);
                }
            }
            // Done after each run, so that a waiting writer goes on while the rest is written.
            self.settle_full();
        };
        let broken = lane.run_each(ops, ended).err();
        // Without a result the whole lane failed.
        if let Some(error) = &broken {
            runs.into_iter().flatten().for_each(|run| self.take_back(run.iter().map(|(block, _)| *block), error));
        }
        broken.or(failure).map_or(Ok(()), Err)
    }

    fn note_written(&self, block: BlockId, part: &PinnedFrame) {
        self.counts.written.fetch_add(1, Ordering::Relaxed);
        let frame = self.frames.frame(part.index);
        let at = Location { block, tag: Tag::of_page(part.bytes()) };
        let _shard = self.shard(part.page);
        if frame.is_doomed() {
            // The version died while it was written: no table or version will ever name the block.
            self.books().space.release(block);
        } else {
            self.frames.set_clean(part.index, at);
        }
    }

    /// Writes pieces of one or more pages, each to consecutive blocks from the given block on, which the caller has allocated.
    ///
    /// # Errors
    /// The first failure: then the blocks may hold anything.
    pub(super) fn write_blocks(&self, action: &str, pieces: impl Iterator<Item = (BlockId, IoBuf)>) -> Result<()> {
        let page_bytes = self.frames.page_bytes() as u64;
        let ops: Vec<_> = pieces.map(|(first, bytes)| (first.0 * page_bytes, OpKind::write(bytes, false))).collect();
        let results = self.writer().run(ops)?;
        let failed = results.into_iter().find_map(std::result::Result::err);
        failed.map_or(Ok(()), |error| Err(Error::from_io(action, error)))
    }

    /// Takes back blocks that were allocated for a write that failed with `error`. No table ever named them, so they need no
    /// checkpoint to become free. On a full disk no checkpoint succeeds, and otherwise each retry would use up more blocks.
    pub(super) fn take_back(&self, blocks: impl Iterator<Item = BlockId>, error: &Error) {
        let mut books = self.books();
        for block in blocks {
            match error.kind() {
                ErrorKind::NoSpace => books.space.give_back(block),
                _ => books.space.set_aside(block),
            }
        }
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
        let placed = self.place(&mut self.writer(), nodes.iter().map(|node| node.near))?;
        let blocks: Vec<BlockId> = placed.iter().copied().flatten().collect();
        if blocks.len() < placed.len() {
            let mut books = self.books();
            blocks.into_iter().for_each(|block| books.space.give_back(block));
            drop(books);
            return Err(self.no_room());
        }
        let buffers = nodes.into_iter().map(|node| node.buffer);
        match self.write_blocks("write nodes of the page table", blocks.iter().copied().zip(buffers)) {
            Ok(()) => Ok(blocks),
            Err(error) => {
                self.take_back(blocks.into_iter(), &error);
                Err(error)
            }
        }
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// When the sync fails: then the writes since the last sync may or may not be on the disk.
    pub(crate) fn sync_data(&self) -> Result<()> {
        self.single(0, OpKind::Sync, "sync the data file")
    }

    /// Writes a superblock durably.
    ///
    /// # Errors
    /// When the write fails: then the slot may hold anything.
    pub(crate) fn write_superblock(&self, offset_bytes: u64, sector: IoBuf) -> Result<()> {
        self.single(offset_bytes, OpKind::write(sector, true), "write the superblock")
    }

    fn single(&self, offset_bytes: u64, kind: OpKind, action: &str) -> Result<()> {
        self.writer().run(vec![(offset_bytes, kind)])?.remove(0).map_err(|error| Error::from_io(action, error))
    }
}

#[cfg(test)]
mod tests {
    use nofault_sim::{SimOptions, SimWorld};

    use super::super::{CheckpointPlace, Map, NEWEST, Pager, PagerOptions};
    use super::*;
    use crate::format::CommitSeq;
    use crate::pages::{Edits as _, Store as _};

    #[test]
    fn what_is_named_twice_is_written_and_counted_once() {
        let disk = SimWorld::new(1, SimOptions::calm()).directory().create("data").unwrap();
        let options = PagerOptions {
            cache_bytes: 1 << 20,
            spent_bytes: 0,
            page_bytes: 512,
            file_id: 7,
            snapshot_bytes_max: u64::MAX,
            reads_in_flight_max: 8,
        };
        let pool = Pager::new(&disk, &options, Map::new(512), Pager::new_space(512, 1 << 30), CommitSeq(0)).unwrap();
        let mut edits = pool.edits();
        let pages: Vec<PageId> = (0..3).map(|_| edits.allocate(PageId(0)).ok().unwrap().0).collect();
        pool.publish(edits, CommitSeq(1));
        let core = pool.core();
        let dirty = |page: &PageId| match core.checkpoint_place(*page, NEWEST) {
            CheckpointPlace::Dirty(item) => item,
            other => panic!("{other:?}"),
        };
        let twice: Vec<ToWrite> = pages.iter().chain(&pages).map(dirty).collect();
        let before = pool.stats().blocks_used;
        core.write_frames(twice.clone()).unwrap();
        let stats = pool.stats();
        assert_eq!((stats.pages_written, stats.blocks_used - before, stats.pages_dirty), (3, 3, 0));
        assert!(twice.iter().all(|item| core.frames.frame(item.frame).pins() == 0), "a pin is left");
    }
}

//! Completed reads: what the device has given back, before the pages are checked and installed.
//!
//! A run read through scratch memory is cut into pieces, so that threads can install its pages side by side: one run
//! can hold hundreds of compressed pages. Its pages are restored directly from there; the scratch memory is free again with the
//! last of them.

use std::sync::Arc;

use nofault_io::aligned::IoBuf;

use super::scan_run::ScanRead;
use super::scratch::Scratch;
use super::state::Read;
use crate::buffer_pool::frames::{OwnedFrame, OwnedRun};
use crate::error::Error;

/// Most pages of one piece of a run. Fewer are not worth the hand-over to another thread.
const PIECE_PAGES_MAX: usize = 32;

/// A completed read of one page, with its frame and its error, if any.
pub(super) struct CompletedRead {
    pub(super) read: Read,
    pub(super) owned: Option<OwnedFrame>,
    pub(super) error: Option<Error>,
    /// The block that was read, if it does not lie in the frame.
    pub(super) block: Option<RunBlock>,
}

impl CompletedRead {
    /// A read into its own frame.
    pub(super) fn in_frame(read: Read, owned: Option<OwnedFrame>, error: Option<Error>) -> Self {
        Self { read, owned, error, block: None }
    }
}

/// The bytes of a run in scratch memory, which are given back there when nothing refers to them any more.
pub(super) struct RunBytes {
    bytes: Option<IoBuf>,
    tail: Option<IoBuf>,
    scratch: Arc<Scratch>,
}

impl Drop for RunBytes {
    fn drop(&mut self) {
        self.scratch.give_back(self.bytes.take(), self.tail.take());
    }
}

/// One block of a run in scratch memory.
pub(super) struct RunBlock {
    run: Arc<RunBytes>,
    from: usize,
    len: usize,
}

impl RunBlock {
    /// Returns a block; `None` when it does not lie in the run.
    fn new(run: &Arc<RunBytes>, from: usize, len: usize) -> Option<Self> {
        let is_inside = run.bytes.as_deref().is_some_and(|bytes| bytes.get(from..from + len).is_some());
        is_inside.then(|| Self { run: Arc::clone(run), from, len })
    }

    /// Returns the bytes of the block.
    pub(super) fn bytes(&self) -> &[u8] {
        self.run.bytes.as_deref().and_then(|bytes| bytes.get(self.from..self.from + self.len)).unwrap_or_default()
    }
}

/// A completed operation that read several pages, before the pages are checked.
pub(super) enum CompletedPages {
    /// The pages are to be installed.
    OfPool(CompletedRun),
    /// The pages were read for a scan alone.
    OfScan(ScanRead),
}

/// A completed read of several adjacent blocks, before its pages are installed.
pub(super) struct CompletedRun {
    pub(super) reads: Vec<Read>,
    pub(super) first_block: u64,
    pub(super) memory: RunMemory,
}

/// The memory into which a run was read.
pub(super) enum RunMemory {
    /// The run was read into frames, including frames of blocks that were not requested; `is_read` tells whether the
    /// read filled them.
    Frames { run: Option<OwnedRun>, is_read: bool },
    /// The run was read through scratch memory: its bytes, unless the read failed.
    Scratch(Option<Arc<RunBytes>>),
}

impl CompletedRun {
    /// Returns the pieces of a run read through scratch memory: `bytes`, unless the read failed, and the unused
    /// rest of the buffer.
    pub(super) fn pieces_of(
        reads: Vec<Read>,
        first_block: u64,
        bytes: Option<(IoBuf, Option<IoBuf>)>,
        scratch: &Arc<Scratch>,
    ) -> impl Iterator<Item = Self> {
        let whole = |(bytes, tail)| Arc::new(RunBytes { bytes: Some(bytes), tail, scratch: Arc::clone(scratch) });
        let bytes = bytes.map(whole);
        let mut left = reads.into_iter();
        std::iter::from_fn(move || {
            let reads: Vec<Read> = left.by_ref().take(PIECE_PAGES_MAX).collect();
            (!reads.is_empty()).then(|| Self { reads, first_block, memory: RunMemory::Scratch(bytes.clone()) })
        })
    }

    /// Returns the completed reads of the run, and the frames that are not needed.
    pub(super) fn unload(self, page_bytes: usize) -> (Vec<CompletedRead>, Vec<OwnedFrame>) {
        let Self { reads, first_block, memory } = self;
        match memory {
            RunMemory::Scratch(run) => (with_blocks(reads, first_block, run.as_ref(), page_bytes), Vec::new()),
            RunMemory::Frames { run, is_read } => {
                let mut frames = run.into_iter().flat_map(|run| run.into_frames(page_bytes));
                let (mut completed, mut gaps, mut next) = (Vec::with_capacity(reads.len()), Vec::new(), first_block);
                for read in reads {
                    gaps.extend(frames.by_ref().take((read.block() - next) as usize));
                    next = read.block() + 1;
                    let owned = frames.next();
                    let read = if is_read && owned.is_some() { read } else { read.repeated_alone() };
                    completed.push(CompletedRead::in_frame(read, owned, None));
                }
                gaps.extend(frames);
                (completed, gaps)
            }
        }
    }
}

/// Gives each read its block in the bytes of a run. The pages of a failed run are to be read again one by one.
fn with_blocks(
    reads: Vec<Read>,
    first_block: u64,
    run: Option<&Arc<RunBytes>>,
    page_bytes: usize,
) -> Vec<CompletedRead> {
    let complete = |mut read: Read| {
        let owned = read.frame.take();
        let from = (read.block() - first_block) as usize * page_bytes;
        let block = run.filter(|_| owned.is_some()).and_then(|run| RunBlock::new(run, from, page_bytes));
        let read = if block.is_some() { read } else { read.repeated_alone() };
        CompletedRead { read, owned, error: None, block }
    };
    reads.into_iter().map(complete).collect()
}

#[cfg(test)]
mod tests {
    use nofault_io::aligned::PageKind;

    use super::*;
    use crate::buffer_pool::compressed_tier::Need;
    use crate::buffer_pool::shard::Shard;
    use crate::format::{BlockId, Location, PageId, Tag};

    const PAGE_BYTES: usize = 4096;
    const FIRST_BLOCK: u64 = 7;

    /// Reads of three pages in each block of a run.
    fn reads(count: u64) -> Vec<Read> {
        let mut shard = Shard::default();
        let read = |number: u64| {
            let at =
                Location { is_compressed: true, ..Location::of_whole(BlockId(FIRST_BLOCK + number / 3), Tag::of(1)) };
            let mut read = Read::new(shard.begin_load(PageId(number), at), Need::Later);
            let buffer = IoBuf::zeroed(PAGE_BYTES, PageKind::Small).unwrap();
            read.frame = Some(OwnedFrame { index: number as u32, buffer });
            read
        };
        (0..count).map(read).collect()
    }

    #[test]
    fn a_run_is_installed_in_pieces_and_its_memory_is_free_after_the_last() {
        let scratch = Arc::new(Scratch::new(512, PAGE_BYTES).unwrap());
        let mut bytes = scratch.take().unwrap();
        bytes.chunks_mut(PAGE_BYTES).enumerate().for_each(|(number, block)| block.fill(number as u8));
        let reads = reads(75);
        let mut pieces: Vec<_> = CompletedRun::pieces_of(reads, FIRST_BLOCK, Some((bytes, None)), &scratch).collect();
        assert_eq!(pieces.iter().map(|piece| piece.reads.len()).collect::<Vec<_>>(), [32, 32, 11]);
        let mut page = 0;
        while let Some(piece) = (!pieces.is_empty()).then(|| pieces.remove(0)) {
            let (completed, unused) = piece.unload(PAGE_BYTES);
            assert!(unused.is_empty() && scratch.is_in_use());
            for completed in completed {
                assert_eq!((completed.read.page(), completed.read.alone), (PageId(page), false));
                let block = completed.block.expect("the run has this block");
                assert_eq!(block.bytes(), vec![(page / 3) as u8; PAGE_BYTES]);
                page += 1;
            }
        }
        assert_eq!(page, 75);
        assert!(!scratch.is_in_use());
    }

    #[test]
    fn the_pages_of_a_run_that_failed_are_read_again_alone() {
        let scratch = Arc::new(Scratch::new(512, PAGE_BYTES).unwrap());
        for piece in CompletedRun::pieces_of(reads(40), FIRST_BLOCK, None, &scratch) {
            let (completed, _) = piece.unload(PAGE_BYTES);
            assert!(completed.iter().all(|read| read.read.alone && read.block.is_none() && read.owned.is_some()));
        }
    }
}

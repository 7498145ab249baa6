//! One read of one page, with its states; and the operation at the device that carries reads out ([`ReadOperation`]).
//!
//! Pages that lie near each other are read in one operation. Where there are frames that lie together (`frames`) it reads straight
//! into them, and otherwise through scratch memory, from which each page is copied to its frame. A run that fails is read again page by
//! page, so a bad block costs only its own page.
//!
//! A run read through scratch memory is cut into pieces, so that threads can install its pages side by side: one run
//! can hold hundreds of compressed pages. Its pages are restored directly from there; the scratch memory is free again with the
//! last of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nofault_io::aligned::{ALIGN_BYTES, IoBuf, PageKind, Region};
use nofault_io::completion::{Op, OpKind};
use nofault_io::error::Error as IoError;

use super::scan_run::{ScanRead, ScanRun};
use crate::buffer_pool::compressed_tier::Need;
use crate::buffer_pool::frames::{OwnedFrame, OwnedRun};
use crate::buffer_pool::page_table::ReadId;
use crate::error::{Error, Result};
use crate::format::PageId;

/// Most bytes of one run. Longer operations are not faster.
const RUN_BYTES_MAX: usize = 256 << 10;
/// Most runs in flight through scratch memory.
const RUNS_MAX: usize = 32;
/// Part of the frames' memory, as a divisor, that scratch memory takes, but for one run at least.
const SHARE: usize = 32;

/// Most pages of one piece of a run. Fewer are not worth the hand-over to another thread.
const PIECE_PAGES_MAX: usize = 32;

/// The state of a read. The legal transitions are:
///
/// | from | to | when |
/// |---|---|---|
/// | `Requested` | `Staged` | no thread carries it out at once: it waits for the next submission |
/// | `Requested` | `InFlight` | the thread that misses the page reads it itself |
/// | `Requested` | `Completed` | the page's block is in the compressed tier: nothing has to be read |
/// | `Staged` | `Queued` | a thread with the read queue puts the staged reads in line |
/// | `Staged` | `InFlight` | a blocking waiter takes its read back and carries it out itself |
/// | `Queued` | `InFlight` | it has a frame, or memory of a run, and the device's queue takes it |
/// | `Queued` | `Completed` | the device's queue refuses it, or it is given up: there is only an error |
/// | `InFlight` | `Completed` | the device is done with it |
/// | `Completed` | `Staged` | it is repeated: its checksum is wrong, or the run that it was part of failed |
/// | `Completed` | `InFlight` | it is repeated at once by the thread that carries it out itself |
/// | `Completed` | `Installed` | its page is in memory |
/// | `Completed` | `Failed` | its waiters have the error |
/// | `Completed` | `Discarded` | its page went while it was read, or the read was abandoned |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadState {
    /// The page is marked as being read; the read is in no list yet.
    Requested,
    /// The read is in the scheduler's list, until a thread locks the read queue.
    Staged,
    /// The read is in line for a frame and a place at the device.
    Queued,
    /// The device writes to the read's memory.
    InFlight,
    /// The device has finished; the page is neither checked nor installed.
    Completed,
    /// The read ended: the page can be found in its frame.
    Installed,
    /// The read ended with an error.
    Failed,
    /// The read ended without a page in a frame: its page was not wanted any more, or it was a leaf's.
    Discarded,
}

impl ReadState {
    /// Returns whether a read in this state may go to state `next`, by the table above.
    pub(crate) fn can_become(self, next: Self) -> bool {
        use ReadState::{Completed, Discarded, Failed, InFlight, Installed, Queued, Requested, Staged};
        match self {
            Requested => matches!(next, Staged | InFlight | Completed),
            Staged => matches!(next, Queued | InFlight),
            Queued => matches!(next, InFlight | Completed),
            InFlight => next == Completed,
            Completed => matches!(next, Staged | InFlight | Installed | Failed | Discarded),
            Installed | Failed | Discarded => false,
        }
    }
}

/// The read of one page, or of one leaf of the page table, which ends as `Discarded` or `Failed`: it has no frame.
pub(crate) struct Read {
    pub(super) id: ReadId,
    /// Number of times that the page was read by itself, this time included; 0 while the page is to be read again after
    /// the read of a run, which does not count.
    pub(super) attempt: u32,
    /// Set when a multi-page read with this page failed: the page must be read by itself.
    pub(super) alone: bool,
    /// How an operation needs the page. If a scan only requests it early, its block is neither kept nor counted as used: the
    /// pages of a scan come with all others of their blocks, which would drive out blocks read again.
    pub(super) need: Need,
    /// Set when the block is to stay in memory, in the compressed tier.
    pub(super) keeps_block: bool,
    /// The moment of the miss, if an operation waits for the page: the time of such a read is measured.
    pub(super) missed_at: Option<Instant>,
    /// The frame of the read, unless the operation in flight owns the memory.
    pub(super) frame: Option<OwnedFrame>,
    state: ReadState,
}

impl Read {
    /// Creates the read for an id that the page table has just given out.
    pub(super) fn new(id: ReadId, need: Need) -> Self {
        let missed_at = (need != Need::Later).then(Instant::now);
        let state = ReadState::Requested;
        Self { id, attempt: 1, alone: false, need, keeps_block: false, missed_at, frame: None, state }
    }

    pub(super) fn page(&self) -> PageId {
        self.id.page
    }

    /// Returns the number of the block to be read.
    pub(super) fn block(&self) -> u64 {
        self.id.at.block.0
    }

    /// Turns a read of a failed run into a read of its page alone, to be repeated.
    pub(super) fn repeated_alone(self) -> Self {
        Self { alone: true, attempt: 0, ..self }
    }

    /// Changes the state to `next`, which must be allowed by the table of [`ReadState`].
    pub(super) fn advance(&mut self, next: ReadState) {
        debug_assert!(self.state.can_become(next), "a read went from {:?} to {next:?}", self.state);
        self.state = next;
    }

    /// Changes the state as [`Read::advance`] does, for a read passed by value.
    pub(super) fn into_state(mut self, next: ReadState) -> Self {
        self.advance(next);
        self
    }
}

/// One operation at the device, and the reads that it completes. Every page, leaf of the page table and run is read by one. Each is made
/// together with the memory to read into. The caller gives [`ReadOperation::request`] to the device and the answer to
/// [`ReadOperation::end`], or calls [`ReadOperation::take_back`] where the device took nothing.
pub(super) struct ReadOperation {
    content: Content,
    first_block: u64,
    /// Number of blocks, gaps between pages included.
    blocks: u64,
}

/// The reads of an operation, and their memory.
enum Content {
    /// One page, into its frame.
    Page { read: Read, frame: u32 },
    /// Several pages, into adjacent frames from `first_frame` on.
    Frames { reads: Vec<Read>, first_frame: u32 },
    /// Several pages, through scratch memory, with the unused rest of the buffer.
    Scratch { reads: Vec<Read>, tail: Option<IoBuf>, scratch: Arc<Scratch> },
    /// A run for a scan alone.
    Scan(ScanRead),
}

/// The reads of an operation that the device did not take.
pub(super) enum UnsentReads {
    /// The reads, and the frames that they do not have any more.
    OfPool(Vec<Read>, Vec<OwnedFrame>),
    OfScan(ScanRead),
}

/// Number of blocks from the first to the last of some reads, which are sorted by block.
fn blocks_of(reads: &[Read]) -> u64 {
    reads.first().zip(reads.last()).map_or(0, |(first, last)| last.block() - first.block() + 1)
}

impl ReadOperation {
    /// Reads one page into its frame.
    pub(super) fn of_page(read: Read, owned: OwnedFrame) -> (Self, IoBuf) {
        let (first_block, OwnedFrame { index: frame, buffer }) = (read.block(), owned);
        (Self { content: Content::Page { read, frame }, first_block, blocks: 1 }, buffer)
    }

    /// Reads pages, which are sorted by block, into adjacent frames, of which there are enough. Returns the frames that are not
    /// needed, too.
    pub(super) fn into_frames(
        reads: Vec<Read>,
        memory: OwnedRun,
        page_bytes: usize,
    ) -> ((Self, IoBuf), Vec<OwnedFrame>) {
        let (first_block, blocks) = (reads.first().map_or(0, Read::block), blocks_of(&reads));
        let (first_frame, buffer) = memory.into_parts();
        let (buffer, rest) = buffer.split_at(blocks as usize * page_bytes);
        let unused = OwnedRun::from_parts(first_frame + blocks as u32, rest).into_frames(page_bytes).collect();
        ((Self { content: Content::Frames { reads, first_frame }, first_block, blocks }, buffer), unused)
    }

    /// Reads pages, which are sorted by block and have their frames, through a buffer of `scratch`.
    pub(super) fn through_scratch(
        reads: Vec<Read>,
        buffer: IoBuf,
        scratch: &Arc<Scratch>,
        page_bytes: usize,
    ) -> (Self, IoBuf) {
        let (first_block, blocks) = (reads.first().map_or(0, Read::block), blocks_of(&reads));
        let (buffer, tail) = buffer.split_at(blocks as usize * page_bytes);
        let tail = (!tail.is_empty()).then_some(tail);
        (Self { content: Content::Scratch { reads, tail, scratch: Arc::clone(scratch) }, first_block, blocks }, buffer)
    }

    /// Reads a run for a scan alone, into its own memory.
    ///
    /// # Errors
    /// The read, failed, when its scan has ended.
    pub(super) fn for_scan(mut read: ScanRead) -> std::result::Result<(Self, IoBuf), ScanRead> {
        let buffer = if read.is_wanted() { read.take_buffer() } else { None };
        let Some(buffer) = buffer else {
            read.note_failed();
            return Err(read);
        };
        let (first_block, blocks) = (read.run().first_block(), read.run().blocks());
        Ok((Self { content: Content::Scan(read), first_block, blocks }, buffer))
    }

    /// Returns the reads of pages for the pool.
    pub(super) fn reads(&self) -> &[Read] {
        match &self.content {
            Content::Page { read, .. } => std::slice::from_ref(read),
            Content::Frames { reads, .. } | Content::Scratch { reads, .. } => reads,
            Content::Scan(_) => &[],
        }
    }

    /// Returns the run of a scan.
    pub(super) fn scan(&self) -> Option<&Arc<ScanRun>> {
        if let Content::Scan(read) = &self.content { Some(read.run()) } else { None }
    }

    /// Returns whether several pages are read straight into frames.
    pub(super) fn is_into_frames(&self) -> bool {
        matches!(self.content, Content::Frames { .. })
    }

    /// Returns the number of blocks; 0 for a single page.
    pub(super) fn run_blocks(&self) -> u64 {
        if matches!(self.content, Content::Page { .. }) { 0 } else { self.blocks }
    }

    fn advance(&mut self, next: ReadState) {
        match &mut self.content {
            Content::Page { read, .. } => read.advance(next),
            Content::Frames { reads, .. } | Content::Scratch { reads, .. } => {
                reads.iter_mut().for_each(|read| read.advance(next));
            }
            Content::Scan(_) => {}
        }
    }

    /// Returns the request for the device.
    pub(super) fn request(&self, token: u64, buffer: IoBuf, page_bytes: usize) -> Op {
        Op::new(token, self.first_block * page_bytes as u64, OpKind::Read(buffer))
    }

    /// Notes that the device has the request.
    pub(super) fn note_sent(&mut self) {
        self.advance(ReadState::InFlight);
    }

    /// Ends the operation: with its memory, unless that is lost, and with the device's error, if there was one. Gives its parts to
    /// `into`.
    pub(super) fn end(
        mut self,
        buffer: Option<IoBuf>,
        error: Option<IoError>,
        page_bytes: usize,
        mut into: impl FnMut(CompletedPart),
    ) {
        self.advance(ReadState::Completed);
        let first_block = self.first_block;
        match self.content {
            Content::Page { read, frame } => {
                let offset = first_block * page_bytes as u64;
                let error = error.map(|error| Error::from_io(format!("read page {} at {offset}", read.page()), error));
                let owned = buffer.map(|buffer| OwnedFrame { index: frame, buffer });
                into(CompletedPart::Page(CompletedRead::in_frame(read, owned, error)));
            }
            Content::Frames { reads, first_frame } => {
                let run = buffer.map(|buffer| OwnedRun::from_parts(first_frame, buffer));
                let memory = RunMemory::Frames { run, is_read: error.is_none() };
                into(CompletedPart::Pages(CompletedPages::OfPool(CompletedRun { reads, first_block, memory })));
            }
            Content::Scratch { reads, tail, scratch } => {
                let bytes = match (buffer, error) {
                    (Some(bytes), None) => Some((bytes, tail)),
                    (bytes, _) => {
                        scratch.give_back(bytes, tail);
                        None
                    }
                };
                let pieces = CompletedRun::pieces_of(reads, first_block, bytes, &scratch);
                pieces.for_each(|piece| into(CompletedPart::Pages(CompletedPages::OfPool(piece))));
            }
            Content::Scan(mut read) => {
                read.put_buffer(buffer);
                if error.is_some() {
                    read.note_failed();
                }
                into(CompletedPart::Pages(CompletedPages::OfScan(read)));
            }
        }
    }

    /// Takes the operation apart, whose request the device did not take.
    pub(super) fn take_back(self, buffer: Option<IoBuf>, page_bytes: usize) -> UnsentReads {
        match self.content {
            Content::Page { mut read, frame } => {
                read.frame = buffer.map(|buffer| OwnedFrame { index: frame, buffer });
                UnsentReads::OfPool(vec![read], Vec::new())
            }
            Content::Frames { reads, first_frame } => {
                let run = buffer.map(|buffer| OwnedRun::from_parts(first_frame, buffer));
                UnsentReads::OfPool(reads, run.into_iter().flat_map(|run| run.into_frames(page_bytes)).collect())
            }
            Content::Scratch { reads, tail, scratch } => {
                scratch.give_back(buffer, tail);
                UnsentReads::OfPool(reads, Vec::new())
            }
            Content::Scan(mut read) => {
                read.put_buffer(buffer);
                UnsentReads::OfScan(read)
            }
        }
    }
}

/// A completed operation, or a part of it.
pub(super) enum CompletedPart {
    Page(CompletedRead),
    Pages(CompletedPages),
}

/// Reads that the device has completed, before pages are checked and installed.
#[derive(Default)]
pub(super) struct CompletedReads {
    /// Reads of single pages.
    pub(super) pages: Vec<CompletedRead>,
    /// Operations that read several pages, or pieces of them.
    pub(super) runs: Vec<CompletedPages>,
}

impl CompletedReads {
    pub(super) fn add(&mut self, part: CompletedPart) {
        match part {
            CompletedPart::Page(page) => self.pages.push(page),
            CompletedPart::Pages(pages) => self.runs.push(pages),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.runs.is_empty()
    }
}

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

/// Buffers for operations that read several pages.
pub(super) struct Scratch {
    spare: Mutex<Vec<IoBuf>>,
    count: usize,
    region: Region,
    run_blocks_max: u64,
    bytes: u64,
}

/// The lengths of the scratch memory of a pool.
struct Lengths {
    run_blocks_max: usize,
    run_bytes: usize,
    runs: usize,
}

impl Lengths {
    fn of(frames: usize, page_bytes: usize) -> Self {
        let run_blocks_max = (frames / 8).clamp(2, (RUN_BYTES_MAX / page_bytes).max(2));
        let run_bytes = (run_blocks_max * page_bytes).next_multiple_of(ALIGN_BYTES);
        let runs = (frames * page_bytes / SHARE / run_bytes).clamp(1, RUNS_MAX);
        Self { run_blocks_max, run_bytes, runs }
    }
}

impl Scratch {
    /// Returns the bytes of the scratch memory of a pool of `frames` frames.
    pub(super) fn bytes_for(frames: usize, page_bytes: usize) -> usize {
        let Lengths { run_bytes, runs, .. } = Lengths::of(frames, page_bytes);
        run_bytes * runs
    }

    /// Allocates the scratch memory for a pool of `frames` frames: its [share](SHARE) of their memory, and at most
    /// [`RUNS_MAX`] runs.
    ///
    /// # Errors
    /// `NoResources` when the system has no memory.
    pub(super) fn new(frames: usize, page_bytes: usize) -> Result<Self> {
        let Lengths { run_blocks_max, run_bytes, runs } = Lengths::of(frames, page_bytes);
        let memory = IoBuf::zeroed(run_bytes * runs, PageKind::Huge)
            .map_err(|error| Error::from_io("take memory for reading runs", error))?;
        let region = memory.region().clone();
        let bytes = region.len_bytes() as u64;
        let spare = memory.pieces(run_bytes);
        let (count, run_blocks_max) = (spare.len(), run_blocks_max as u64);
        Ok(Self { spare: Mutex::new(spare), count, region, run_blocks_max, bytes })
    }

    /// Takes a buffer for one run; `None` when all buffers are in use.
    pub(super) fn take(&self) -> Option<IoBuf> {
        self.spare().pop()
    }

    /// Returns whether any buffer is in use.
    pub(super) fn is_in_use(&self) -> bool {
        self.spare().len() < self.count
    }

    /// Returns the most blocks of one run.
    pub(super) fn run_blocks_max(&self) -> u64 {
        self.run_blocks_max
    }

    fn spare(&self) -> MutexGuard<'_, Vec<IoBuf>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the two parts of a buffer taken for a run.
    pub(super) fn give_back(&self, buffer: Option<IoBuf>, tail: Option<IoBuf>) {
        let whole = match (buffer, tail) {
            (Some(buffer), Some(tail)) => buffer.join(tail).ok(),
            (buffer, _) => buffer,
        };
        self.spare().extend(whole);
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::ReadState::{Completed, Discarded, Failed, InFlight, Installed, Queued, Requested, Staged};
    use super::*;
    use crate::buffer_pool::page_table::Shard;
    use crate::format::{BlockId, Location, Tag};

    const ALL: [ReadState; 8] = [Requested, Staged, Queued, InFlight, Completed, Installed, Failed, Discarded];
    /// The rows of the table in the comment of [`ReadState`].
    const TABLE: [(ReadState, ReadState); 13] = [
        (Requested, Staged),
        (Requested, InFlight),
        (Requested, Completed),
        (Staged, Queued),
        (Staged, InFlight),
        (Queued, InFlight),
        (Queued, Completed),
        (InFlight, Completed),
        (Completed, Staged),
        (Completed, InFlight),
        (Completed, Installed),
        (Completed, Failed),
        (Completed, Discarded),
    ];

    fn reachable(from: ReadState) -> Vec<ReadState> {
        let mut found = vec![from];
        let mut next = 0;
        while let Some(state) = found.get(next).copied() {
            found.extend(
                ALL.iter().filter(|to| state.can_become(**to) && !found.contains(to)).copied().collect::<Vec<_>>(),
            );
            next += 1;
        }
        found
    }

    #[test]
    fn the_transitions_are_the_rows_of_the_table() {
        for from in ALL {
            for to in ALL {
                assert_eq!(from.can_become(to), TABLE.contains(&(from, to)), "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn every_read_can_end_and_one_that_has_ended_does_nothing_more() {
        let ends = [Installed, Failed, Discarded];
        assert_eq!(reachable(Requested).len(), ALL.len(), "a state that no read reaches");
        for state in ALL {
            let after = reachable(state);
            if ends.contains(&state) {
                assert_eq!(after, [state]);
            } else {
                assert!(ends.iter().all(|end| after.contains(end)), "{state:?} cannot end in all ways");
            }
        }
    }

    #[test]
    #[should_panic(expected = "a read went from")]
    #[cfg(debug_assertions)]
    fn a_read_that_skips_a_state_stops_the_process() {
        let at = Location::of_whole(BlockId(1), Tag::from_bits(0));
        Read::new(Shard::default().begin_load(PageId(1), at), Need::Later).advance(Installed);
    }

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

//! Private runs: adjacent pages that are read for a single scan, checked, and not installed in the page table.
//!
//! A scan of a table larger than the pool cannot leave its pages there for the next scan, so finding
//! frames for them, evicting pages and copying bytes is wasted time. Such a scan keeps the runs as they were read, until it has
//! returned their entries.
//!
//! Right because published pages never change. The page table named a location as the newest version's, after the scan had its
//! snapshot. A page that is found there intact, with the tag that the table named and of a commit that the snapshot shows, is the
//! version that the snapshot shows, whatever becomes of the page and of its block from then on. If this does not hold, because the block
//! was used again before the device came to it, or because the page is damaged, the scan reads the page through the pool.
//!
//! Compressed pages are restored into separate memory, by the thread that takes the run.
//!
//! The memory of the runs is a region, from which each run takes the bytes that it needs. A scan keeps it until it has returned the
//! entries of the run, for as long as its caller takes. So it is no part of the memory through which pages come into the pool, and no read
//! waits for it: a scan without it reads through the pool.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use nofault_io::aligned::{ALIGN_BYTES, IoBuf, PageKind, Region};

use crate::buffer_pool::frames::Waiter;
use crate::error::{Error, Result};
use crate::format::compressed::{FileCodec, restore_page};
use crate::format::{CommitSeq, Location, PageId, check_page, page_commit, whole_page};
use crate::sync::wakers::wake_all;

/// Most unrequested blocks between two requested blocks that are still read with one operation.
pub(super) const GAP_BLOCKS: u64 = 4;
/// Fewest pages that are worth a separate run: so many, or half of the most that a run can have.
const PAGES_MIN: usize = 8;

/// Returns whether two pages can be in the same run, the first before the second.
fn lie_together((_, before): &(PageId, Location), (_, next): &(PageId, Location)) -> bool {
    let gap = next.block.0 - before.block.0;
    gap <= GAP_BLOCKS + 1 && (gap > 0 || next.is_compressed)
}

/// Adjacent blocks read for a scan: shared by the scan and the read queue.
pub(crate) struct ScanRun {
    /// The pages, by block.
    pages: Vec<(PageId, Location)>,
    /// Whether any page is compressed: then the restored pages lie one behind another, apart from the blocks.
    is_packed: bool,
    page_bytes: usize,
    /// The commit that the scan's snapshot shows.
    at: CommitSeq,
    /// The outcome of the read; `None` when it has failed.
    outcome: OnceLock<Option<CheckedRun>>,
    waiters: Mutex<Vec<Arc<Waiter>>>,
}

/// The bytes of a run, and for each of its pages whether the bytes are the version that the scan's snapshot shows.
struct CheckedRun {
    bytes: ScanBytes,
    is_shown: Vec<bool>,
}

impl ScanRun {
    /// Divides pages, which this sorts by block, into runs of at most `blocks_max` blocks, and of nearly equal length where they lie
    /// together. Returns the runs that are worth it, and adds the pages of shorter runs to `rest`.
    pub(super) fn divide(
        mut pages: Vec<(PageId, Location)>,
        blocks_max: usize,
        rest: &mut Vec<PageId>,
    ) -> Vec<Vec<(PageId, Location)>> {
        pages.sort_unstable_by_key(|(page, at)| (at.block, *page));
        // Values named in turn may lie in the same two pages.
        pages.dedup_by_key(|(page, _)| *page);
        let mut runs = Vec::new();
        for group in pages.chunk_by(lie_together) {
            let is_packed = group.iter().any(|(_, at)| at.is_compressed);
            let block = |at: usize| group[at].1.block.0;
            let blocks = (block(group.len() - 1) + 1 - block(0)) as usize;
            // Compressed pages take longer to restore than to read, so their runs have no more pages than runs of plain pages.
            let length = if is_packed { blocks.max(group.len()) } else { blocks };
            let blocks_a_run = blocks.div_ceil(length.div_ceil(blocks_max)) as u64;
            let number = |at: &Location| (at.block.0 - block(0)) / blocks_a_run;
            for run in group.chunk_by(|(_, before), (_, next)| number(before) == number(next)) {
                if run.len() >= PAGES_MIN.min(blocks_max / 2) {
                    runs.push(run.to_vec());
                } else {
                    rest.extend(run.iter().map(|(page, _)| *page));
                }
            }
        }
        runs
    }

    /// Creates a run that is about to be read.
    pub(super) fn new(pages: Vec<(PageId, Location)>, page_bytes: usize, at: CommitSeq) -> Arc<Self> {
        let is_packed = pages.iter().any(|(_, at)| at.is_compressed);
        Arc::new(Self { pages, is_packed, page_bytes, at, outcome: OnceLock::new(), waiters: Mutex::default() })
    }

    /// Returns the pages of the run.
    pub(crate) fn pages(&self) -> impl ExactSizeIterator<Item = PageId> {
        self.pages.iter().map(|(page, _)| *page)
    }

    /// Returns the number of the first block.
    pub(super) fn first_block(&self) -> u64 {
        self.pages.first().map_or(0, |(_, at)| at.block.0)
    }

    /// Returns the number of blocks, gaps between pages included.
    pub(super) fn blocks(&self) -> u64 {
        self.pages.last().map_or(0, |(_, at)| at.block.0 + 1 - self.first_block())
    }

    /// Returns the bytes of memory that the run needs for its blocks, and for restored pages.
    pub(super) fn memory_bytes(&self) -> (usize, Option<usize>) {
        let restored = self.is_packed.then_some(self.pages.len() * self.page_bytes);
        (self.blocks() as usize * self.page_bytes, restored)
    }

    /// Returns the place of a page's block among the bytes that the device read.
    fn block_range(&self, at: Location) -> Range<usize> {
        let from = (at.block.0 - self.first_block()) as usize * self.page_bytes;
        from..from + self.page_bytes
    }

    /// Returns where page number `index` lies in the memory of the checked run.
    fn page_range(&self, index: usize) -> Option<Range<usize>> {
        let (_, at) = self.pages.get(index)?;
        let from = index * self.page_bytes;
        Some(if self.is_packed { from..from + self.page_bytes } else { self.block_range(*at) })
    }

    /// Returns page number `index` of the run, with its header, if it was read and is the version that the scan's snapshot shows.
    pub(crate) fn page(&self, index: usize) -> Option<&[u8]> {
        let run = self.outcome.get()?.as_ref().filter(|run| run.is_shown.get(index) == Some(&true))?;
        run.bytes.buffer.as_deref()?.get(self.page_range(index)?)
    }

    /// Returns the pages of a run whose read has ended that the scan cannot use.
    pub(crate) fn refused(&self) -> impl Iterator<Item = PageId> {
        self.pages().enumerate().filter(|(index, _)| self.page(*index).is_none()).map(|(_, page)| page)
    }

    /// Returns whether the read has ended, well or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Adds a waiter for the end of the read, which is a read of `page` for it. Returns false when the read has ended.
    pub(crate) fn add_waiter(&self, waiter: &Arc<Waiter>, page: PageId) -> bool {
        let mut waiters = self.waiters();
        let is_coming = !self.has_ended();
        if is_coming {
            waiter.expect_read(page);
            waiters.push(Arc::clone(waiter));
        }
        is_coming
    }

    fn waiters(&self) -> MutexGuard<'_, Vec<Arc<Waiter>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the read. Returns the wakers to be called. Only the first call has an effect.
    fn end(&self, outcome: Option<CheckedRun>) -> Vec<Waker> {
        if self.outcome.set(outcome).is_err() {
            return Vec::new();
        }
        // A waiter was either added before this, or finds the outcome.
        let waiters = std::mem::take(&mut *self.waiters());
        waiters.iter().filter_map(|waiter| waiter.read_over(None)).collect()
    }

    /// Ends the read as failed: the scan reads its pages through the pool then. The caller holds no lock.
    pub(super) fn fail(&self) {
        wake_all(self.end(None));
    }
}

/// The read of a run, with its memory. When it is dropped, the run has ended.
pub(super) struct ScanRead {
    run: Arc<ScanRun>,
    /// The memory of the read, and of the pages if they are restored; `None` once the read has failed.
    memory: Option<(ScanBytes, Option<ScanBytes>)>,
}

impl ScanRead {
    /// Creates the read of a run into memory of the lengths that the run needs.
    pub(super) fn new(run: &Arc<ScanRun>, memory: (ScanBytes, Option<ScanBytes>)) -> Self {
        Self { run: Arc::clone(run), memory: Some(memory) }
    }

    pub(super) fn run(&self) -> &Arc<ScanRun> {
        &self.run
    }

    /// Returns whether the scan still has the run.
    pub(super) fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.run) > 1
    }

    /// Takes the buffer into which the device reads, until [`ScanRead::put_buffer`].
    pub(super) fn take_buffer(&mut self) -> Option<IoBuf> {
        self.memory.as_mut()?.0.buffer.take()
    }

    /// Puts the buffer back, if the device has returned it.
    pub(super) fn put_buffer(&mut self, buffer: Option<IoBuf>) {
        if let Some((memory, _)) = &mut self.memory {
            memory.buffer = buffer;
        }
    }

    /// Notes that the read has failed: the memory is given back.
    pub(super) fn note_failed(&mut self) {
        self.memory = None;
    }

    /// Checks the pages that were read, restores them if they are compressed, and ends the read. Returns the pages of which damaged bytes
    /// were read: neither a page with their block now, nor compressed ones, for which the two cannot be told apart. The caller holds no
    /// lock.
    pub(super) fn check(mut self, file: FileCodec<'_>) -> Vec<PageId> {
        let (Some((memory, restored)), run) = (self.memory.take(), &self.run) else { return Vec::new() };
        let mut damaged = Vec::new();
        let read = memory.buffer.as_deref().unwrap_or_default();
        let block = |at: &Location| read.get(run.block_range(*at)).unwrap_or_default();
        let (is_shown, bytes) = match restored {
            None => {
                let is_shown = |(page, at): &(PageId, Location)| {
                    let is_intact = check_page(file.file_id, *page, *at, block(at)).is_ok();
                    if !is_intact && whole_page(file.file_id, block(at)).is_none() {
                        damaged.push(*page);
                    }
                    is_intact && page_commit(block(at)) <= run.at
                };
                (run.pages.iter().map(is_shown).collect(), memory)
            }
            Some(mut restored) => {
                let into = restored.buffer.as_deref_mut().unwrap_or_default().chunks_exact_mut(run.page_bytes);
                let is_shown = |((page, at), into): (&(PageId, Location), &mut [u8])| {
                    restore_page(file, *page, *at, block(at), into).is_ok() && page_commit(into) <= run.at
                };
                (run.pages.iter().zip(into).map(is_shown).collect(), restored)
            }
        };
        wake_all(run.end(Some(CheckedRun { bytes, is_shown })));
        damaged
    }
}

impl Drop for ScanRead {
    fn drop(&mut self) {
        self.run.fail();
    }
}

/// Part of the frames' memory, as a divisor, and most bytes of the region.
const SHARE: usize = 16;
const BYTES_MAX: usize = 16 << 20;
/// Most bytes of a run. Longer operations are not faster.
const RUN_BYTES_MAX: usize = 512 << 10;
/// Fewest bytes of a region with which a scan reads as far ahead as it must for the completion thread to work for it.
pub(crate) const SCAN_BYTES_MIN: usize = 832 << 10;
/// Number of the longest runs that a small region holds, and fewest blocks of such a run.
const RUNS_MIN: usize = 8;
const RUN_BLOCKS_MIN: usize = 4;

/// The memory of all scans.
pub(super) struct ScanMemory {
    /// The free parts, by address, as large as they can be.
    free: Mutex<Vec<IoBuf>>,
    region: Option<Region>,
    bytes: usize,
    run_blocks_max: usize,
}

/// The memory of a run. It is given back when this is dropped.
pub(super) struct ScanBytes {
    /// The bytes of the blocks; `None` while the device has them.
    pub(super) buffer: Option<IoBuf>,
    /// The bytes behind the blocks, to the next aligned address.
    rest: Option<IoBuf>,
    memory: Arc<ScanMemory>,
}

/// Returns the most blocks of a run in a region of so many bytes.
fn run_blocks_in(bytes: usize, page_bytes: usize) -> usize {
    (bytes / RUNS_MIN).min(RUN_BYTES_MAX) / page_bytes
}

impl ScanMemory {
    /// Returns the bytes of the region of a pool of `frames` frames. There is none with fewer than `bytes_min` bytes.
    pub(super) fn bytes_for(frames: usize, page_bytes: usize, bytes_min: usize) -> usize {
        let bytes = (frames * page_bytes / SHARE).min(BYTES_MAX) / ALIGN_BYTES * ALIGN_BYTES;
        if bytes < bytes_min || run_blocks_in(bytes, page_bytes) < RUN_BLOCKS_MIN { 0 } else { bytes }
    }

    /// Allocates the region for a pool of `frames` frames: see [`ScanMemory::bytes_for`].
    ///
    /// # Errors
    /// `NoResources` when the system has no memory.
    pub(super) fn new(frames: usize, page_bytes: usize, bytes_min: usize) -> Result<Self> {
        let bytes = Self::bytes_for(frames, page_bytes, bytes_min);
        if bytes == 0 {
            return Ok(Self { free: Mutex::default(), region: None, bytes: 0, run_blocks_max: 0 });
        }
        let run_blocks_max = run_blocks_in(bytes, page_bytes);
        let memory = IoBuf::zeroed(bytes, PageKind::Huge)
            .map_err(|error| Error::from_io("take memory for reading runs of scans", error))?;
        let region = memory.region().clone();
        Ok(Self { free: Mutex::new(vec![memory]), region: Some(region), bytes, run_blocks_max })
    }

    /// Takes memory for a run; `None` when no free part is large enough.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<ScanBytes> {
        let wanted = bytes.next_multiple_of(ALIGN_BYTES);
        let mut free = self.free();
        let at = free.iter().position(|part| part.len() >= wanted)?;
        let (taken, left) = free.remove(at).split_at(wanted);
        if !left.is_empty() {
            free.insert(at, left);
        }
        drop(free);
        let (buffer, rest) = taken.split_at(bytes);
        let rest = (!rest.is_empty()).then_some(rest);
        Some(ScanBytes { buffer: Some(buffer), rest, memory: Arc::clone(self) })
    }

    fn give_back(&self, part: IoBuf) {
        let mut free = self.free();
        let at = free.partition_point(|other| other.address() < part.address());
        free.insert(at, part);
        // With the part behind it, and then with the part before it.
        for first in [at, at.wrapping_sub(1)] {
            if first < free.len() && first + 1 < free.len() {
                let next = free.remove(first + 1);
                match free.remove(first).join(next) {
                    Ok(joined) => free.insert(first, joined),
                    Err((part, next)) => free.splice(first..first, [part, next]).for_each(drop),
                }
            }
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<IoBuf>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the most blocks of a run; 0 where there is no region.
    pub(super) fn run_blocks_max(&self) -> usize {
        self.run_blocks_max
    }

    /// Returns the bytes of the region.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Returns whether a run has any of the memory.
    #[cfg(test)]
    pub(super) fn is_in_use(&self) -> bool {
        self.free().iter().map(|part| part.len()).sum::<usize>() < self.bytes
    }
}

impl Drop for ScanBytes {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let whole = match self.rest.take() {
            Some(rest) => buffer.join(rest).unwrap_or_else(|(buffer, _)| buffer),
            None => buffer,
        };
        self.memory.give_back(whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BlockId, Tag};

    #[test]
    fn a_page_that_is_named_twice_is_in_a_run_once() {
        let at = |number: u64| {
            let at = Location { block: BlockId(number + 5), tag: Tag::of(number), is_compressed: false };
            (PageId(number), at)
        };
        let named = (0..20).flat_map(|number| [at(number), at(number / 2)]).collect();
        let mut rest = Vec::new();
        let runs = ScanRun::divide(named, 128, &mut rest);
        assert_eq!((runs, rest), (vec![(0..20).map(at).collect()], Vec::new()));
    }

    #[test]
    fn runs_take_what_they_need_and_the_parts_are_one_again_afterwards() {
        for page_bytes in [512, 4096] {
            let memory = Arc::new(ScanMemory::new((4 << 20) / page_bytes, page_bytes, 0).unwrap());
            assert_eq!((memory.bytes(), memory.run_blocks_max()), (256 << 10, (32 << 10) / page_bytes));
            let mut random = fastrand::Rng::with_seed(7);
            let (mut taken, mut refused) = (Vec::<ScanBytes>::new(), 0);
            for _ in 0..20_000 {
                if random.bool() {
                    let bytes = random.usize(1..=memory.run_blocks_max()) * page_bytes;
                    match memory.take(bytes) {
                        Some(run) => {
                            assert_eq!(run.buffer.as_deref().unwrap().len(), bytes);
                            assert_eq!(run.buffer.as_ref().unwrap().address() as usize % ALIGN_BYTES, 0);
                            taken.push(run);
                        }
                        None => refused += 1,
                    }
                } else if !taken.is_empty() {
                    drop(taken.swap_remove(random.usize(..taken.len())));
                }
                let free = memory.free();
                assert!(free.windows(2).all(|two| {
                    let end = two[0].address() as usize + two[0].len();
                    end < two[1].address() as usize
                }));
            }
            assert!(refused > 100, "{refused}");
            drop(taken);
            assert!(!memory.is_in_use() && memory.free().len() == 1);
        }
    }

    #[test]
    fn a_small_pool_has_no_memory_for_scans_and_a_large_one_no_more_than_the_most() {
        let small = ScanMemory::new(3_300, 4096, SCAN_BYTES_MIN).unwrap();
        assert_eq!((small.bytes(), small.run_blocks_max(), small.region().is_none()), (0, 0, true));
        assert!(Arc::new(small).take(4096).is_none());
        assert_eq!(ScanMemory::new(1 << 20, 4096, SCAN_BYTES_MIN).unwrap().bytes(), BYTES_MAX);
    }
}

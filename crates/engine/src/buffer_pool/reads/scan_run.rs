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

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use nofault_io::aligned::IoBuf;

use super::scan_memory::ScanBytes;
use super::scratch::GAP_BLOCKS;
use crate::buffer_pool::waiter::Waiter;
use crate::format::compressed::{FileCodec, restore_page};
use crate::format::{CommitSeq, Location, PageId, check_page, page_commit, whole_page};
use crate::sync::wakers::wake_all;

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
}

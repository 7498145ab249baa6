//! Handles of waiting operations: a [`Ticket`] polls or blocks until the pages and frames that it requested are there. A [`RangeScan`] has the
//! private pages of a range scan: read for this scan, not installed in the pool, and kept while the scan needs them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::Reads;
use super::completion_demand::ServedScan;
use super::scan_run::{ScanBytes, ScanRead, ScanRun};
use crate::buffer_pool::frames::Waiter;
use crate::buffer_pool::page_table::Entry;
use crate::error::Result;
use crate::format::{CommitSeq, HEADER_BYTES, PageId};
use crate::pages::{self, OwnPage};
use crate::sync::semaphore::Permit;

/// Number of a scan's runs, about, that are partly used up.
const SCAN_RUNS_PARTIAL: usize = 3;
/// Most completions for which a blocking waiter sleeps at a time, if it needs so many.
const COMPLETIONS_AT_ONCE: usize = 4;
/// Most milliseconds that a blocking waiter sleeps without checking the queue itself, relying on other threads to take
/// completions.
const PARKED_MS: usize = 100;

/// The result of one round of a blocking waiter's loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// A read made progress, or the wait is over.
    Moved,
    /// Nothing happened for as long as `weight` short rounds take.
    Idle { weight: usize },
}

impl Round {
    fn of(moved: bool) -> Self {
        if moved { Self::Moved } else { Self::Idle { weight: 1 } }
    }
}

/// A handle of a waiting operation; keeps the pages that have arrived in memory until it is dropped.
pub(crate) struct Ticket {
    reads: Arc<Reads>,
    waiter: Arc<Waiter>,
    /// Whether a task waits for it.
    is_task: bool,
    /// The permits for all pages that this ticket pins. They are returned after the pins have been removed.
    _permit: Option<Permit>,
}

impl Ticket {
    pub(crate) fn new(reads: Arc<Reads>, waiter: Arc<Waiter>, permit: Permit) -> Self {
        Self { reads, waiter, is_task: false, _permit: Some(permit) }
    }

    /// A ticket that pins no page.
    pub(crate) fn without_pins(reads: &Arc<Reads>, waiter: Arc<Waiter>) -> Self {
        Self { reads: Arc::clone(reads), waiter, is_task: false, _permit: None }
    }

    /// Runs one round of a thread that waits: submits the staged reads and waits for a completion, or frees
    /// frames, or waits while another thread does this. Returns whether something happened.
    ///
    /// # Errors
    /// The queue's error, when the queue cannot be used any more.
    pub(crate) fn round(&self) -> Result<Round> {
        let reads = &*self.reads;
        if reads.dispatcher.read_here(&self.waiter) {
            return Ok(Round::Moved);
        }
        if reads.dispatcher.unload_run() {
            // The memory of the run can serve the next run.
            reads.submit();
            return Ok(Round::Moved);
        }
        if reads.is_served()
            && let Some(round) = self.rely_on_completion_thread()
        {
            return Ok(round);
        }
        let Some(queue) = reads.scheduler.try_queue_or_wait(&self.waiter) else {
            return Ok(self.park_for_others());
        };
        if self.waiter.is_ready() {
            drop(queue);
            // Other threads may have found the queue taken.
            reads.dispatcher.look_again();
            reads.submit();
            return Ok(Round::Moved);
        }
        // A waiter that is alone waits for several of its pages at once. When executors or other waiters need the
        // queue, it takes each completion as it comes.
        let is_shared = reads.demand.serves_tasks() || reads.scheduler.has_queue_waiters();
        let wait_for = if is_shared { 1 } else { self.waiter.reads_left().clamp(1, COMPLETIONS_AT_ONCE) };
        let progress = reads.dispatcher.work(queue, wait_for)?;
        // Submits reads that other threads staged while this thread had the queue.
        reads.submit();
        if progress > 0 || self.waiter.is_ready() {
            return Ok(Round::Moved);
        }
        if reads.signal.is_running() {
            reads.signal.wake();
            self.waiter.park(Duration::from_millis(1));
            return Ok(Round::of(self.waiter.is_ready()));
        }
        Ok(Round::of(reads.evictor.free_frames(reads.evictor.batch()) > 0))
    }

    /// Parks the thread of a waiter until another thread completes its reads, at most for [`PARKED_MS`] milliseconds.
    /// Returns [`Round::Idle`] when no read was under way or completed in that time.
    fn park_for_others(&self) -> Round {
        let reads = &*self.reads;
        let before = reads.scheduler.finished();
        self.waiter.park(Duration::from_millis(PARKED_MS as u64));
        let moved =
            self.waiter.is_ready() || reads.scheduler.device().under_way() > 0 || reads.scheduler.finished() != before;
        if moved { Round::Moved } else { Round::Idle { weight: PARKED_MS } }
    }

    /// Leaves one round of waiting to the completion thread. Returns `None` when that thread has just stopped taking
    /// completions.
    fn rely_on_completion_thread(&self) -> Option<Round> {
        let reads = &*self.reads;
        reads.demand.while_reliant(|| {
            reads.is_served().then(|| {
                // This thread does not wait with the queue locked: executors that submit would have to wait for its
                // read.
                reads.submit();
                self.park_for_others()
            })
        })
    }

    #[cfg(test)]
    pub(crate) fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }
}

impl pages::Ticket for Ticket {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<()>> {
        if !self.is_task {
            self.is_task = true;
            self.reads.demand.begin_task();
        }
        match self.reads.failure().error() {
            Some(error) => Poll::Ready(Err(error.clone())),
            None => self.waiter.poll(waker),
        }
    }

    fn wait(&mut self) -> Result<()> {
        let mut idle_rounds = 0;
        loop {
            if let Some(outcome) = self.waiter.outcome() {
                self.reads.scheduler().hand_on_queue();
                return outcome;
            }
            if let Some(error) = self.reads.failure().error() {
                return Err(error.clone());
            }
            idle_rounds = match self.round()? {
                Round::Moved => 0,
                Round::Idle { weight } => self.reads.standstill().count_idle(idle_rounds, weight)?,
            };
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.reads.versions().process().is_here() {
            return;
        }
        if self.is_task {
            self.reads.demand.end_task();
        }
        let (pinned, wants_frames) = self.waiter.withdraw();
        for (page, frame) in pinned {
            self.reads.versions().unpin(page, frame);
        }
        if wants_frames {
            self.reads.versions().frame_waits().leave(&self.waiter);
        }
    }
}

/// Returns the number of private pages that a scan can request at a time, about.
pub(crate) fn pages_for_scan(reads: &Reads) -> usize {
    let partial = SCAN_RUNS_PARTIAL * reads.scan_memory.run_blocks_max();
    (reads.scan_memory.bytes() / reads.versions.frames().page_bytes()).saturating_sub(partial)
}

/// A long range scan in progress: the completion thread works for it until this is dropped.
pub(crate) struct RangeScan {
    reads: Arc<Reads>,
    /// Number of reads for the pool that the scan has queued, and from which on it reads for itself alone.
    shared: usize,
    alone_from: usize,
    /// Number of pages that were last requested for the scan alone, and whether more had to be requested for the pool.
    own: usize,
    is_mostly_shared: bool,
    /// The pages that were read for the scan, and that it still needs: their runs, and their numbers there.
    pages: FxHashMap<PageId, (Arc<ScanRun>, usize)>,
    /// Pages used for this leaf, and for the leaf before.
    used: Vec<PageId>,
    used_before: Vec<PageId>,
    _served: ServedScan,
}

impl RangeScan {
    pub(crate) fn new(reads: &Arc<Reads>) -> Self {
        let frames = reads.versions().frames();
        Self {
            reads: Arc::clone(reads),
            shared: 0,
            // The pages of a smaller table stay in the pool for the next scan.
            alone_from: if pages_for_scan(reads) > 0 { frames.count() } else { usize::MAX },
            own: 0,
            is_mostly_shared: false,
            pages: FxHashMap::default(),
            used: Vec::new(),
            used_before: Vec::new(),
            _served: ServedScan::new(&reads.demand),
        }
    }

    /// Makes the scan read for itself alone once it has queued reads of so many pages for the pool.
    #[cfg(test)]
    pub(crate) fn be_alone_from(&mut self, pages: usize) {
        self.alone_from = pages;
    }

    /// Queues reads of private pages for a scan whose snapshot shows commit `at` and was taken before. Returns the queued runs.
    /// Pages without a read are left in `pages`: in memory, or with a block there, being read, too few in one place, or without memory for a
    /// run.
    fn read_for_scan(&self, pages: &mut Vec<PageId>, at: CommitSeq) -> Vec<Arc<ScanRun>> {
        if self.reads.scan_memory.bytes() == 0 {
            return Vec::new();
        }
        let (table, page_bytes) = (self.reads.versions.pages(), self.reads.versions.frames().page_bytes());
        pages.iter().for_each(|page| table.prefetch(*page));
        let mut on_disk = Vec::with_capacity(pages.len());
        pages.retain(|page| match table.entry(*page) {
            // A compressed page whose block is in memory already needs no read.
            Entry::OnDisk(place)
                if !place.is_compressed || table.tier().find(table.frames(), place.block).is_none() =>
            {
                table.words().0.touch_leaf_of(*page);
                on_disk.push((*page, place));
                false
            }
            _ => true,
        });
        let (mut runs, mut reads, mut count) = (Vec::new(), Vec::new(), 0);
        for run in ScanRun::divide(on_disk, self.reads.scan_memory.run_blocks_max(), pages) {
            let run = ScanRun::new(run, page_bytes, at);
            let Some(memory) = self.take_memory(&run) else {
                pages.extend(run.pages());
                continue;
            };
            count += run.pages().len();
            reads.push(ScanRead::new(&run, memory));
            runs.push(run);
        }
        if count > 0 {
            self.reads.versions.counters().misses.fetch_add(count as u64, Ordering::Relaxed);
            self.reads.versions.counters().for_scans.fetch_add(count as u64, Ordering::Relaxed);
            self.reads.scheduler.begin(count);
            self.reads.scheduler.staged().add_for_scan(reads);
        }
        runs
    }

    /// Takes the memory that a run of a scan needs; `None` when there is too little.
    fn take_memory(&self, run: &ScanRun) -> Option<(ScanBytes, Option<ScanBytes>)> {
        let (read_bytes, restored_bytes) = run.memory_bytes();
        let read = self.reads.scan_memory.take(read_bytes)?;
        let restored = match restored_bytes {
            Some(bytes) => Some(self.reads.scan_memory.take(bytes)?),
            None => None,
        };
        Some((read, restored))
    }

    /// Returns whether the scan reads pages for itself alone.
    fn is_alone(&self) -> bool {
        self.shared >= self.alone_from
    }
}

impl pages::RangeScan<Ticket> for RangeScan {
    fn ahead_max(&self, most: usize) -> usize {
        if self.is_alone() && !self.is_mostly_shared { pages_for_scan(&self.reads) } else { most }
    }

    fn read(&mut self, pages: &mut Vec<PageId>, at: CommitSeq) -> usize {
        if !self.is_alone() {
            return 0;
        }
        let mut refused = Vec::new();
        pages.retain(|page| {
            let own = self.page(*page);
            refused.extend((own == Some(OwnPage::Refused)).then_some(*page));
            own.is_none()
        });
        let mut count = 0;
        for run in self.read_for_scan(pages, at) {
            count += run.pages().len();
            self.pages.extend(run.pages().enumerate().map(|(index, page)| (page, (Arc::clone(&run), index))));
        }
        self.own = count;
        for page in refused {
            self.pages.remove(&page);
            pages.push(page);
        }
        count
    }

    fn note_shared(&mut self, count: usize, in_all: usize) {
        self.shared = in_all;
        self.is_mostly_shared = count > std::mem::take(&mut self.own);
    }

    fn page(&self, id: PageId) -> Option<OwnPage<'_>> {
        let (run, index) = self.pages.get(&id)?;
        let body = run.page(*index).and_then(|page| page.get(HEADER_BYTES..));
        Some(match body {
            Some(body) => OwnPage::Shown(body),
            None if run.has_ended() => OwnPage::Refused,
            None => OwnPage::Coming,
        })
    }

    fn request(&self, page: PageId) -> Option<Ticket> {
        let (run, _) = self.pages.get(&page)?;
        let waiter = Waiter::new();
        self.reads.failure().watch(&waiter);
        run.add_waiter(&waiter, page).then(|| Ticket::without_pins(&self.reads, waiter))
    }

    fn take_refused(&mut self, page: PageId) -> Vec<PageId> {
        let Some((run, _)) = self.pages.get(&page).filter(|(run, _)| run.has_ended()) else { return Vec::new() };
        let refused: Vec<PageId> = run.refused().collect();
        if !refused.contains(&page) {
            return Vec::new();
        }
        refused.into_iter().filter(|page| self.pages.remove(page).is_some()).collect()
    }

    fn note_used(&mut self, mut pages: Vec<PageId>) {
        self.reads.versions().counters().hits.add(pages.len() as u64);
        self.used.append(&mut pages);
    }

    fn pass_leaf(&mut self) {
        std::mem::swap(&mut self.used, &mut self.used_before);
        for page in self.used.drain(..) {
            if !self.used_before.contains(&page) {
                self.pages.remove(&page);
            }
        }
    }
}

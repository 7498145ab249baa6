//! The read path of the pool: from a miss to a resident page.
//!
//! A miss marks its page *loading* in the page table and stages a read; a submission gives staged reads a frame and sends them
//! together. The thread that takes completions from the queue installs their pages and wakes the waiters. One thread at a time has
//! the queue; the others leave their reads staged and go on, so an executor's thread never waits for the queue. A thread that may
//! block and needs one page carries the read out itself: without a ticket ([`Dispatcher::read_alone`]), or, where it has one, by taking
//! the read back if it has not been submitted yet.
//!
//! A compressed page whose block is in memory already ([`super::compressed_tier`]) needs no read: the thread that misses it restores it.
//!
//! A long range scan leaves all of this to the completion thread (`completion_demand`); and when it must wait all the same, it helps
//! to install the completed runs.
//!
//! Each part uses only parts above it in this table:
//!
//! | part | purpose |
//! |---|---|
//! | `scan_run` | private runs of scans, and their memory |
//! | `read` | one read, its states and their legal transitions; the operation that carries reads out, before and after |
//! | `queue` | groups reads into operations, and holds them until they complete |
//! | `scheduler` | staged reads, the queue and its next holder, the places at the device, and the counts of all reads |
//! | `installer` | checks completed reads, installs or restores their pages, wakes the waiters; ends all waits after a panic |
//! | `standstill` | ends waits for frames when no frame can become free |
//! | `dispatcher` | carries operations out: sends staged reads and takes completions, or reads on the calling thread |
//! | `completion_demand` | decides which thread takes completions: the pool's, an executor, or a waiting thread |
//! | `ticket` | waits for pages and frames; the private pages of a range scan |

mod completion_demand;
mod dispatcher;
mod installer;
mod queue;
mod read;
mod scan_run;
mod scheduler;
mod standstill;
mod ticket;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nofault_io::disk::{Disk, QueueOptions};

use self::completion_demand::CompletionDemand;
pub(crate) use self::completion_demand::ReadCompletions;
pub(super) use self::completion_demand::ReadWatch;
use self::dispatcher::{BUSY_WITH, Dispatcher};
use self::installer::{Failure, Installer};
use self::queue::ReadQueue;
use self::read::{Read, Scratch};
pub(crate) use self::scan_run::SCAN_BYTES_MIN;
use self::scan_run::ScanMemory;
use self::scheduler::Scheduler;
use self::standstill::Standstill;
pub(crate) use self::ticket::{RangeScan, Ticket};
#[cfg(test)]
pub(super) use self::ticket::{Round, pages_for_scan};
use super::PoolOptions;
use super::compressed_tier::Need;
use super::evict::{Evictor, Writer};
use super::frames::Waiter;
use super::page_table::ReadRequest;
use super::versions::{Versions, WriterSignal};
use crate::error::{Error, Result};
use crate::pages::Missing;
use crate::sync::budget::Budget;

/// Share of the frames, as a divisor, and number of bytes beyond which reads of scans wait in line though the device has places: with
/// pages of 4 KiB half of a scan's read-ahead. Some virtual disks report completed reads only when no other read is left. With all
/// read-ahead at the device, the device and the scan would take turns.
const READ_AHEAD_SHARE: usize = 32;
const READ_AHEAD_BYTES_MAX: usize = 4 << 20;
/// Returns the bytes of memory for runs, in addition to the frames of a pool.
pub(super) fn run_memory_bytes(frames: u64, page_bytes: usize, scan_bytes_min: usize) -> u64 {
    let frames = frames as usize;
    (Scratch::bytes_for(frames, page_bytes) + ScanMemory::bytes_for(frames, page_bytes, scan_bytes_min)) as u64
}

/// The read path of a pool: starts reads, submits them and takes their completions.
pub(crate) struct Reads {
    versions: Arc<Versions>,
    evictor: Arc<Evictor>,
    signal: Arc<WriterSignal>,
    scheduler: Arc<Scheduler>,
    demand: Arc<CompletionDemand>,
    dispatcher: Arc<Dispatcher>,
    installer: Arc<Installer>,
    standstill: Arc<Standstill>,
    scratch: Arc<Scratch>,
    scan_memory: Arc<ScanMemory>,
}

impl Reads {
    /// Opens a queue of `disk`.
    ///
    /// # Errors
    /// `NoSpace` without memory, or the disk's error when it opens the queue.
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        options: &PoolOptions,
        (versions, writer, evictor): (&Arc<Versions>, &Arc<Writer>, &Arc<Evictor>),
        signal: &Arc<WriterSignal>,
    ) -> Result<Self> {
        let (frames, at_device_max) = (versions.frames(), options.reads_in_flight_max.max(1));
        let scratch = Arc::new(Scratch::new(frames.count(), frames.page_bytes())?);
        let scan_memory = Arc::new(ScanMemory::new(frames.count(), frames.page_bytes(), options.scan_bytes_min)?);
        let mut registered = Vec::new();
        if options.registers_frames {
            registered.extend([frames.region().clone(), scratch.region().clone()]);
            registered.extend(scan_memory.region().cloned());
        }
        let options = QueueOptions { registered, depth_max: at_device_max, ..QueueOptions::default() };
        let queue = disk.queue(&options).map_err(|error| Error::from_io("open a queue of the data file", error))?;
        let run_blocks_max =
            (frames.count() / READ_AHEAD_SHARE).clamp(1, (READ_AHEAD_BYTES_MAX / frames.page_bytes()).max(1)) as u64;
        let queue = ReadQueue::new(queue, Arc::clone(&scratch), frames.page_bytes(), run_blocks_max);
        let scheduler = Arc::new(Scheduler::new(queue, at_device_max));
        let demand = Arc::new(CompletionDemand::default());
        let installer = Arc::new(Installer::new(versions, evictor, &scheduler));
        let standstill = Arc::new(Standstill::new((versions, writer), (&scheduler, &installer)));
        let below = (versions, evictor, signal);
        let dispatcher = Arc::new(Dispatcher::new(disk, below, (&scheduler, &scratch), (&installer, &standstill)));
        let (versions, evictor, signal) = (Arc::clone(versions), Arc::clone(evictor), Arc::clone(signal));
        Ok(Self {
            versions,
            evictor,
            signal,
            scheduler,
            demand,
            dispatcher,
            installer,
            standstill,
            scratch,
            scan_memory,
        })
    }

    /// Returns the number of reads in line, and of blocks at the device that are read for scans alone.
    #[cfg(test)]
    pub(super) fn in_line_and_for_scans(&self) -> (usize, u64) {
        let queue = self.scheduler.queue();
        (queue.line.len(), queue.scan_blocks())
    }

    /// Returns whether the lock of the read queue is held, in a test with a single thread.
    #[cfg(test)]
    pub(super) fn is_queue_locked(&self) -> bool {
        self.scheduler.try_queue().is_none()
    }

    /// Returns whether memory of runs of scans is in use.
    #[cfg(test)]
    pub(super) fn has_runs_of_scans(&self) -> bool {
        self.scan_memory.is_in_use()
    }

    /// Returns the bytes of scratch memory for reads of several pages at once.
    pub(super) fn scratch_bytes(&self) -> u64 {
        self.scratch.bytes() + self.scan_memory.bytes() as u64
    }

    pub(super) fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Returns the scheduler, which holds all reads in progress.
    pub(super) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Returns the failure that ends all waits after a panic.
    pub(super) fn failure(&self) -> &Failure {
        self.installer.failure()
    }

    /// Returns the detector of standstills, which ends waits for frames when no frame can become free.
    pub(super) fn standstill(&self) -> &Standstill {
        &self.standstill
    }

    /// Requests a page in the version that a view at commit `missing.at` sees, and has it pinned for the waiter once it
    /// is in memory: at once if its block is, and the budget allows to restore it.
    pub(super) fn request(&self, missing: Missing, waiter: &Arc<Waiter>, budget: &mut Budget) {
        let begun = self.begin(missing, Some(waiter));
        let mut missed = begun.and_then(|read| self.installer.restore(read, budget));
        if let Some(read) = &mut missed {
            read.keeps_block = self.versions.pages().note_missed(&read.id, read.need);
        }
        self.stage(missed.into_iter());
    }

    /// Requests pages that no operation waits for yet. Returns the number of reads that it begins.
    pub(super) fn prefetch(&self, pages: &[Missing]) -> usize {
        // The table entries are in no CPU cache, and neighbours' entries share lines: they are prefetched together.
        pages.iter().for_each(|missing| self.versions.pages().prefetch(missing.page));
        let mut budget = Budget::new();
        let begun = pages.iter().filter_map(|missing| self.begin(*missing, None));
        let reads: Vec<Read> = begun.filter_map(|read| self.installer.restore(read, &mut budget)).collect();
        let count = reads.len();
        self.stage(reads.into_iter());
        count
    }

    /// Begins the read of a page. Returns `None` when the page is in memory or being read already.
    fn begin(&self, missing: Missing, waiter: Option<&Arc<Waiter>>) -> Option<Read> {
        match self.versions.pages().request_read(missing, waiter) {
            ReadRequest::New(id) => Some(Read::new(id, if waiter.is_some() { Need::InTask } else { Need::Later })),
            ReadRequest::Joined => {
                self.versions.counters().joined.fetch_add(1, Ordering::Relaxed);
                None
            }
            ReadRequest::InMemory | ReadRequest::Absent => None,
        }
    }

    fn stage(&self, reads: impl ExactSizeIterator<Item = Read>) {
        let count = reads.len();
        if count > 0 {
            self.versions.counters().misses.fetch_add(count as u64, Ordering::Relaxed);
            self.scheduler.begin(count);
            self.scheduler.staged().add(reads);
        }
    }

    /// Submits staged reads as long as there are frames, and takes completions, unless another thread has the read
    /// queue.
    pub(super) fn submit(&self) {
        self.dispatcher.submit();
    }

    /// Submits the staged reads if they are enough for a batch. Returns whether they were.
    pub(super) fn submit_batch(&self) -> bool {
        let is_batch = self.scheduler.staged().are_batch();
        if is_batch {
            self.submit();
        }
        is_batch
    }

    /// Submits staged reads as [`Reads::submit`] does, for a caller that does not wait for them: leaves them to the
    /// completion thread while that thread takes completions.
    pub(super) fn submit_soon(&self) {
        if !self.is_served() {
            self.submit();
        } else if self.scheduler.device().taken() < BUSY_WITH {
            self.demand.wake();
        }
    }

    /// Returns whether the completion thread takes completions at present, so that no waiter has to take them.
    fn is_served(&self) -> bool {
        self.demand.is_served() && self.signal.is_running()
    }

    /// Takes completions and submits staged reads. Called by the completion thread.
    pub(super) fn take_for_others(&self) {
        // The error is dropped: it concerns the whole queue, so the next submission gets it as well.
        let _ = self.dispatcher.reap(0);
        self.submit();
    }

    /// Hands the completions of reads to an executor; `None` when the queue has no descriptor.
    pub(super) fn completions(&self) -> Option<ReadCompletions> {
        ReadCompletions::new(&self.demand, &self.dispatcher, self.watch())
    }

    /// Begins a watch over the read queue, for the completion thread or an executor.
    pub(super) fn watch(&self) -> ReadWatch {
        ReadWatch::begin(&self.scheduler)
    }

    /// Returns the counts of the completion thread's users.
    pub(super) fn demand(&self) -> &CompletionDemand {
        &self.demand
    }

    /// Returns the number of blocks of the operations at the device that read several pages.
    #[cfg(test)]
    pub(super) fn run_blocks(&self) -> u64 {
        self.scheduler.queue().run_blocks()
    }

    /// Returns the dispatcher, which carries out reads.
    pub(super) fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }
}

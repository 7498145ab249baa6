//! The read scheduler: holds the reads on their way to the device, and gives the read queue to one thread at a time.
//!
//! The other threads leave their reads staged and go on, so an executor's thread never waits for the queue.
//!
//! **Locks**: the queue is the first of the pool's locks; the list of completed runs and the queue waiters are leaves, and so are the
//! staged reads, but for the queue's thread, which takes them under the queue.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::queue::ReadQueue;
use super::read::{CompletedPages, Read, ReadState};
use super::scan_run::ScanRead;
use crate::buffer_pool::frames::Waiter;
use crate::format::PageId;

/// Number of staged reads of tasks submitted together without waiting for more. Twice as many would save no
/// CPU time.
const BATCH: usize = 8;
/// Number of staged reads, the latest ones, among which a blocking waiter searches for its own.
const LOOK_BACK: usize = 64;

/// Holds all reads of a pool, from the request to the completion.
pub(crate) struct Scheduler {
    staged: StagedReads,
    queue: Mutex<ReadQueue>,
    /// Completed runs with pages not installed yet. The thread that added a run installs its pages, and waiting threads
    /// help.
    completed_runs: Mutex<VecDeque<CompletedPages>>,
    /// Number of reads in line for the device, as noted by the thread that held the read queue last.
    in_line: AtomicUsize,
    /// Number of reads that were begun and have not ended.
    in_flight: AtomicUsize,
    /// Number of reads that have ended since the pool was opened. A waiter compares two values to learn whether a read
    /// has ended in between.
    finished: AtomicUsize,
    device: DevicePlaces,
    /// Blocking waiters that found the lock of the read queue held.
    queue_waiters: Mutex<Vec<Arc<Waiter>>>,
    /// Set when an executor found the lock of the read queue held: the lock's holder looks for completions again after
    /// releasing it.
    missed: AtomicBool,
    /// Number of watches over the read queue, which need its descriptor.
    watches: AtomicUsize,
    /// Set when operations in the queue could not be submitted: then the next attempt must not depend on a completion.
    stuck: AtomicBool,
}

impl Scheduler {
    /// Creates the scheduler with at most `at_device_max` operations at the device.
    pub(super) fn new(queue: ReadQueue, at_device_max: usize) -> Self {
        Self {
            staged: StagedReads::default(),
            queue: Mutex::new(queue),
            completed_runs: Mutex::default(),
            in_line: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            device: DevicePlaces::new(at_device_max),
            queue_waiters: Mutex::default(),
            missed: AtomicBool::new(false),
            watches: AtomicUsize::new(0),
            stuck: AtomicBool::new(false),
        }
    }

    pub(super) fn device(&self) -> &DevicePlaces {
        &self.device
    }

    /// Returns the staged reads: begun, and not in the read queue's line yet.
    pub(crate) fn staged(&self) -> &StagedReads {
        &self.staged
    }

    /// Counts `count` more reads as begun.
    pub(super) fn begin(&self, count: usize) {
        self.in_flight.fetch_add(count, Ordering::Relaxed);
    }

    /// Locks the read queue; blocks while another thread holds it.
    pub(super) fn queue(&self) -> MutexGuard<'_, ReadQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the read queue, unless another thread holds it.
    pub(super) fn try_queue(&self) -> Option<MutexGuard<'_, ReadQueue>> {
        match self.queue.try_lock() {
            Ok(queue) => Some(queue),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks the read queue. When another thread holds it, returns `None` and sets a flag, so that the holder looks for
    /// completions again after releasing the queue.
    pub(super) fn try_queue_or_miss(&self) -> Option<MutexGuard<'_, ReadQueue>> {
        self.try_queue().or_else(|| {
            self.missed.store(true, Ordering::SeqCst);
            // Tries again, because the holder may have released the queue and checked `missed` just before it was set.
            self.try_queue()
        })
    }

    /// Returns whether an executor has found the lock of the read queue held since the last call.
    pub(super) fn take_missed(&self) -> bool {
        self.missed.load(Ordering::SeqCst) && self.missed.swap(false, Ordering::SeqCst)
    }

    /// Returns the flag that tells the queue's holder to look for completions again.
    #[cfg(test)]
    pub(crate) fn missed(&self) -> &AtomicBool {
        &self.missed
    }

    /// Locks the read queue. When another thread holds it, returns `None` and adds `waiter` to the queue waiters, so
    /// that the holder wakes it to take over the queue.
    pub(super) fn try_queue_or_wait(&self, waiter: &Arc<Waiter>) -> Option<MutexGuard<'_, ReadQueue>> {
        self.try_queue().or_else(|| {
            self.queue_waiters().push(Arc::clone(waiter));
            // Tries again, because the holder may have released the queue and checked for queue waiters just before the
            // push above.
            self.try_queue()
        })
    }

    /// Begins a watch over the read queue. Returns its descriptor. Blocks while another thread holds the queue.
    pub(super) fn begin_watch(&self) -> Option<OwnedFd> {
        // Counted before the lock: the thread with the queue leaves it its descriptor.
        self.watches.fetch_add(1, Ordering::SeqCst);
        self.queue().watch()
    }

    /// Ends a watch. Waits for no thread: one that has the queue lets it rest later.
    pub(super) fn end_watch(&self) {
        if self.watches.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(mut queue) = self.try_queue_or_miss()
        {
            self.let_rest(&mut queue);
        }
    }

    /// Lets the read queue give up its descriptor, unless there is a watch.
    pub(super) fn let_rest(&self, queue: &mut ReadQueue) {
        if self.watches.load(Ordering::SeqCst) == 0 {
            queue.end_watches();
        }
    }

    fn queue_waiters(&self) -> MutexGuard<'_, Vec<Arc<Waiter>>> {
        self.queue_waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_queue_waiters(&self) -> bool {
        !self.queue_waiters().is_empty()
    }

    /// Wakes another queue waiter, if there is one, to take over the read queue, because the caller's own wait is over.
    pub(crate) fn hand_on_queue(&self) {
        while let Some(next) = self.queue_waiters().pop() {
            if next.nudge() {
                break;
            }
        }
    }

    pub(super) fn add_completed_runs(&self, runs: Vec<CompletedPages>) {
        self.completed_runs.lock().unwrap_or_else(PoisonError::into_inner).extend(runs);
    }

    pub(super) fn next_completed_run(&self) -> Option<CompletedPages> {
        self.completed_runs.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Counts reads of so many pages as ended.
    pub(super) fn note_finished(&self, count: usize) {
        self.in_flight.fetch_sub(count, Ordering::Relaxed);
        self.finished.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the number of reads that were begun and have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the number of reads that have ended since the pool was opened.
    pub(super) fn finished(&self) -> usize {
        self.finished.load(Ordering::Relaxed)
    }

    /// Notes how many reads are in line for the device. The caller holds the lock of the read queue.
    pub(super) fn set_in_line(&self, count: usize) {
        self.in_line.store(count, Ordering::SeqCst);
    }

    /// Notes whether operations in the queue could not be submitted. The caller holds the lock of the read queue.
    pub(super) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Relaxed);
    }

    /// Returns whether operations in the queue could not be submitted.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Returns whether reads are in line while the device is idle: they wait for frames, or the queue refused them.
    pub(crate) fn is_short_of_frames(&self) -> bool {
        self.in_line.load(Ordering::SeqCst) > 0 && self.device.under_way() == 0
    }

    /// Returns whether some reads have not been sent to the device yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.in_line.load(Ordering::Relaxed) > 0 || self.is_stuck() || !self.staged.is_empty()
    }
}

/// Staged reads: requested, and not put in line at the device yet. No other lock is taken while its lock is held.
#[derive(Default)]
pub(crate) struct StagedReads {
    reads: Mutex<VecDeque<Read>>,
    /// Runs that scans read for themselves.
    scans: Mutex<Vec<ScanRead>>,
    /// Number of times that the whole list was moved to the queue's line. Counted under the list's lock.
    lined_up: AtomicUsize,
}

impl StagedReads {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Read>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stages reads: the next thread that locks the queue moves them to its line.
    pub(super) fn add(&self, reads: impl Iterator<Item = Read>) {
        self.lock().extend(reads.map(|read| read.into_state(ReadState::Staged)));
    }

    /// Stages runs of a scan, as [`StagedReads::add`] does.
    pub(super) fn add_for_scan(&self, reads: Vec<ScanRead>) {
        self.scans().extend(reads);
    }

    fn scans(&self) -> MutexGuard<'_, Vec<ScanRead>> {
        self.scans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back the staged read of a page, if it is among the [`LOOK_BACK`] latest staged reads.
    pub(super) fn take(&self, page: PageId) -> Option<Read> {
        let mut reads = self.lock();
        let from = reads.len().saturating_sub(LOOK_BACK);
        let at = (from..reads.len()).rev().find(|at| reads[*at].page() == page)?;
        reads.remove(at)
    }

    /// Stages a read again that [`StagedReads::take`] returned.
    pub(super) fn put_back(&self, read: Read) {
        self.lock().push_front(read);
    }

    /// Returns whether there are enough staged reads for a batch.
    pub(super) fn are_batch(&self) -> bool {
        self.lock().len() >= BATCH
    }

    pub(super) fn is_empty(&self) -> bool {
        let has_reads = !self.lock().is_empty();
        !has_reads && self.scans().is_empty()
    }

    /// Moves all staged reads to the queue's line.
    pub(super) fn line_up(&self, queue: &mut ReadQueue) {
        let mut reads = self.lock();
        if !reads.is_empty() {
            queue.line.line_up(&mut reads);
            self.lined_up.fetch_add(1, Ordering::Relaxed);
        }
        drop(reads);
        // After the count: a run staged before the count is lined up here.
        queue.line.line_up_for_scans(&mut self.scans());
    }

    /// Returns how often the whole list was moved to the queue's line.
    pub(crate) fn lined_up(&self) -> usize {
        self.lined_up.load(Ordering::Relaxed)
    }
}

/// Counts the places at the device that reads take, so that no more are under way than the settings allow.
pub(super) struct DevicePlaces {
    /// Number of operations with a place: at the device already, or still waiting for a frame.
    taken: AtomicUsize,
    max: usize,
    /// Number of operations at the device.
    under_way: AtomicUsize,
}

impl DevicePlaces {
    pub(super) fn new(max: usize) -> Self {
        Self { taken: AtomicUsize::new(0), max, under_way: AtomicUsize::new(0) }
    }

    /// Takes a place for an operation, if one is free, until [`DevicePlaces::leave`] or [`DevicePlaces::note_back`].
    pub(super) fn enter(&self) -> bool {
        let more = |count: usize| (count < self.max).then_some(count + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Frees the place of an operation that was not sent to the device.
    pub(super) fn leave(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an operation sent to the device.
    pub(super) fn note_sent(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts operations that the device completed, and frees their places.
    pub(super) fn note_back(&self, count: usize) {
        self.under_way.fetch_sub(count, Ordering::Relaxed);
        self.taken.fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns the number of places that are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the number of operations at the device.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }
}

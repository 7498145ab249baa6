//! Staged reads: requested, and not put in line at the device yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::in_flight::ReadQueue;
use super::scan_run::ScanRead;
use super::state::{Read, ReadState};
use crate::format::PageId;

/// Number of staged reads of tasks submitted together without waiting for more. Twice as many would save no
/// CPU time.
const BATCH: usize = 8;
/// Number of staged reads, the latest ones, among which a blocking waiter searches for its own.
const LOOK_BACK: usize = 64;

/// The list of staged reads. No other lock is taken while its lock is held.
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
            queue.line_up(&mut reads);
            self.lined_up.fetch_add(1, Ordering::Relaxed);
        }
        drop(reads);
        // After the count: a run staged before the count is lined up here.
        queue.line_up_for_scans(&mut self.scans());
    }

    /// Returns how often the whole list was moved to the queue's line.
    pub(crate) fn lined_up(&self) -> usize {
        self.lined_up.load(Ordering::Relaxed)
    }
}

//! Staged reads: requested, and not put in line at the device yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::in_flight::ReadQueue;
use super::state::{Read, ReadState};
use crate::format::PageId;

/// Staged reads of tasks that go out without waiting for more. Twice as many save no CPU.
const BATCH: usize = 8;
/// Staged reads that a blocking waiter looks through for its own.
const LOOK_BACK: usize = 64;

/// The list of staged reads. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct StagedReads {
    reads: Mutex<VecDeque<Read>>,
    /// How often the staged reads, all of them, were put in line. Counted under their lock.
    lined_up: AtomicUsize,
}

impl StagedReads {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Read>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stages reads: the next thread that has the queue puts them in line.
    pub(super) fn add(&self, reads: impl Iterator<Item = Read>) {
        self.lock().extend(reads.map(|read| read.into_state(ReadState::Staged)));
    }

    /// Takes back the staged read of a page, if it is one of the last.
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

    /// Whether they are as many as go out without waiting for more.
    pub(super) fn are_batch(&self) -> bool {
        self.lock().len() >= BATCH
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Puts the staged reads in line, all of them.
    pub(super) fn line_up(&self, queue: &mut ReadQueue) {
        let mut reads = self.lock();
        if !reads.is_empty() {
            queue.line_up(&mut reads);
            self.lined_up.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often they were put in line.
    pub(crate) fn lined_up(&self) -> usize {
        self.lined_up.load(Ordering::Relaxed)
    }
}

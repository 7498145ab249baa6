//! A watch over the read queue: while one lives, the queue keeps its descriptor, for a thread or an executor to poll.
//!
//! A queue at rest may have no descriptor: one on a ring borrows the ring for its operations, and for these watches.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::scheduler::Scheduler;

/// A watch over the read queue, which ends when this is dropped.
pub(crate) struct ReadWatch {
    scheduler: Arc<Scheduler>,
    ready_fd: Option<OwnedFd>,
}

impl ReadWatch {
    /// Begins a watch. Waits for the thread with the queue.
    pub(super) fn begin(scheduler: &Arc<Scheduler>) -> Self {
        Self { ready_fd: scheduler.begin_watch(), scheduler: Arc::clone(scheduler) }
    }

    /// Returns a descriptor that is readable when the queue has completions; `None` when the queue has none, or the process none
    /// left.
    pub(crate) fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ready_fd.as_ref().map(AsFd::as_fd)
    }

    /// Takes the descriptor out of the watch, which must outlive its use.
    pub(super) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.ready_fd.take()
    }
}

impl Drop for ReadWatch {
    fn drop(&mut self) {
        self.scheduler.end_watch();
    }
}

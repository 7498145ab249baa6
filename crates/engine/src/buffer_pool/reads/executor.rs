//! Completions that an executor takes by itself, when its own poll of the queue's descriptor says so.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nofault_io::process::Process;

use super::completion_demand::CompletionDemand;
use super::dispatcher::Dispatcher;
use super::read_watch::ReadWatch;

/// The right of an executor to take completions itself. While such a right exists and is used, the completion
/// thread is idle.
pub(crate) struct ReadCompletions {
    /// The process with the queue.
    process: Process,
    demand: Arc<CompletionDemand>,
    dispatcher: Arc<Dispatcher>,
    ready_fd: OwnedFd,
    _watch: ReadWatch,
}

impl ReadCompletions {
    /// Creates the right of an executor; `None` when the queue has no descriptor that the executor could poll.
    pub(super) fn new(
        demand: &Arc<CompletionDemand>,
        dispatcher: &Arc<Dispatcher>,
        mut watch: ReadWatch,
    ) -> Option<Self> {
        let (process, ready_fd) = (Process::current(), watch.take_fd()?);
        demand.begin_executor();
        let (demand, dispatcher) = (Arc::clone(demand), Arc::clone(dispatcher));
        Some(Self { process, demand, dispatcher, ready_fd, _watch: watch })
    }

    /// Takes completions and submits queued reads, unless another thread is doing so.
    pub(crate) fn take(&self) {
        if self.process.is_here() {
            self.demand.note_take();
            self.dispatcher.take();
        }
    }
}

impl AsFd for ReadCompletions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready_fd.as_fd()
    }
}

impl Drop for ReadCompletions {
    fn drop(&mut self) {
        if self.process.is_here() {
            self.demand.end_executor();
        }
    }
}

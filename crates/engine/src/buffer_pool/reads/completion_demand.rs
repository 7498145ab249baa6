//! Decides which thread takes the completions of reads: the pool's completion thread, an executor, or the waiting threads.
//!
//! Until a ticket is polled or a long range scan begins, blocking waiters take their completions themselves. An executor that
//! polls the queue's descriptor replaces the completion thread.
//!
//! Copying, checking and finding room for the pages that a read brings takes longer than scanning them. A thread that does all
//! of this alone reads no faster than one CPU allows, however far ahead it requests pages; and while it is busy with pages, its
//! requested reads are not submitted. So while a scan is under way the completion thread listens to the queue, as it does for
//! executors, and waiting threads rely on it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::sync::notifier::Notifier;

/// How long the completion thread sleeps between polls where the queue has no descriptor.
const WITHOUT_DESCRIPTOR: Duration = Duration::from_micros(200);

/// Counts the users of the completion thread, and wakes it.
pub(crate) struct CompletionDemand {
    notifier: Notifier,
    /// A descriptor that is readable when the read queue has completions.
    ready_fd: Option<OwnedFd>,
    /// Set once a task has polled a ticket: from then on the thread must always take completions.
    is_polled: AtomicBool,
    /// Number of executors that take completions themselves.
    executors: AtomicUsize,
    /// Number of long range scans in progress.
    scans: AtomicUsize,
    /// Number of blocking waiters that have left their reads to the completion thread.
    reliant: AtomicUsize,
}

impl CompletionDemand {
    /// Creates the record without users.
    ///
    /// # Errors
    /// `NoSpace` when the process has no descriptors left.
    pub(super) fn new(ready_fd: Option<OwnedFd>) -> Result<Self> {
        Ok(Self {
            notifier: Notifier::new()?,
            ready_fd,
            is_polled: AtomicBool::new(false),
            executors: AtomicUsize::new(0),
            scans: AtomicUsize::new(0),
            reliant: AtomicUsize::new(0),
        })
    }

    /// Returns a descriptor for an executor to poll; `None` when the queue has none.
    pub(super) fn ready_fd(&self) -> Option<OwnedFd> {
        self.ready_fd.as_ref()?.try_clone().ok()
    }

    /// Notes that a task polled a ticket: from now on the completion thread must always take completions.
    pub(super) fn note_polled(&self) {
        if !self.is_polled() {
            self.is_polled.store(true, Ordering::SeqCst);
            self.notifier.notify();
        }
    }

    pub(super) fn is_polled(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed)
    }

    pub(super) fn begin_executor(&self) {
        self.executors.fetch_add(1, Ordering::SeqCst);
        self.notifier.notify();
    }

    pub(super) fn end_executor(&self) {
        self.executors.fetch_sub(1, Ordering::SeqCst);
        self.notifier.notify();
    }

    fn begin_scan(&self) {
        if self.scans.fetch_add(1, Ordering::SeqCst) == 0 {
            // The completion thread does not listen to the queue yet.
            self.notifier.notify();
        }
    }

    fn end_scan(&self) {
        self.scans.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts a thread that relies on the completion thread during `wait`, which checks whether the completion thread
    /// listens: such a thread counts even after the range scan has ended.
    pub(super) fn while_reliant<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.reliant.fetch_add(1, Ordering::SeqCst);
        let result = wait();
        self.reliant.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Returns whether the completion thread, if there is one, will take the completions of a thread that begins to
    /// wait.
    pub(super) fn is_served(&self) -> bool {
        (self.is_polled() || self.scans.load(Ordering::SeqCst) > 0) && self.executors.load(Ordering::SeqCst) == 0
    }

    /// Returns whether the completion thread must listen to the queue.
    fn is_wanted(&self) -> bool {
        let relied_on = || self.scans.load(Ordering::SeqCst) > 0 || self.reliant.load(Ordering::SeqCst) > 0;
        (self.is_polled() || relied_on()) && self.executors.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn wake(&self) {
        self.notifier.notify();
    }

    pub(crate) fn set_listening(&self, is_listening: bool) {
        self.notifier.set_listening(is_listening);
    }

    /// Sleeps until there may be completions for the completion thread. Returns whether it should take them.
    pub(crate) fn wait(&self) -> bool {
        // A wake-up for each read of a blocking waiter would only slow that down.
        let listens = self.is_wanted();
        let ready = self.ready_fd.as_ref().filter(|_| listens).map(AsFd::as_fd);
        let most = (listens && ready.is_none()).then_some(WITHOUT_DESCRIPTOR);
        self.notifier.wait(ready, most);
        // The notification may be for a scan that has just begun and for its first reads.
        listens || self.is_wanted()
    }
}

/// Counts a long range scan as in progress until this is dropped.
pub(crate) struct RangeScan(Arc<CompletionDemand>);

impl RangeScan {
    pub(super) fn new(demand: &Arc<CompletionDemand>) -> Self {
        demand.begin_scan();
        Self(Arc::clone(demand))
    }
}

impl Drop for RangeScan {
    fn drop(&mut self) {
        self.0.end_scan();
    }
}

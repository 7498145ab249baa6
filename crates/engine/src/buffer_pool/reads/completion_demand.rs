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

/// Time for which the completion thread sleeps between polls when the queue has no descriptor.
const WITHOUT_DESCRIPTOR: Duration = Duration::from_micros(200);

/// Counts the users of the completion thread, which decide whether it takes completions, and wakes it.
pub(crate) struct CompletionDemand {
    notifier: Notifier,
    /// A descriptor that is readable when the read queue has completions.
    ready_fd: Option<OwnedFd>,
    /// Set once a task has polled a ticket: from then on the completion thread must always take completions.
    is_polled: AtomicBool,
    /// Number of executors that take completions themselves.
    executors: AtomicUsize,
    /// Number of long range scans in progress.
    scans: AtomicUsize,
    /// Number of blocking waiters that rely on the completion thread to take their completions.
    reliant: AtomicUsize,
}

impl CompletionDemand {
    /// Creates the counts, with no users yet.
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
            // The completion thread does not poll the queue yet.
            self.notifier.notify();
        }
    }

    fn end_scan(&self) {
        self.scans.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts the calling thread as relying on the completion thread while `wait` runs, so that the completion thread
    /// goes on taking completions even if the range scan ends meanwhile. `wait` must check first whether that thread
    /// takes completions.
    pub(super) fn while_reliant<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.reliant.fetch_add(1, Ordering::SeqCst);
        let result = wait();
        self.reliant.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Returns whether the completion thread, if there is one, will take the completions of a thread that now begins to
    /// wait.
    pub(super) fn is_served(&self) -> bool {
        (self.is_polled() || self.scans.load(Ordering::SeqCst) > 0) && self.executors.load(Ordering::SeqCst) == 0
    }

    /// Returns whether the completion thread must take completions from the queue.
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

    /// Puts the completion thread to sleep until there may be completions. Returns whether the thread should take them.
    pub(crate) fn wait(&self) -> bool {
        // Without other users the queue is not polled: a wake-up for each read of a blocking waiter would only slow the
        // waiter down.
        let listens = self.is_wanted();
        let ready = self.ready_fd.as_ref().filter(|_| listens).map(AsFd::as_fd);
        let most = (listens && ready.is_none()).then_some(WITHOUT_DESCRIPTOR);
        self.notifier.wait(ready, most);
        // The notification may come from a scan that has just begun and requested its first reads.
        listens || self.is_wanted()
    }
}

/// A long range scan in progress: counted as a user of the completion thread until this is dropped.
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

//! Long range scans: the keeper's thread submits, completes and installs their reads beside the scan.
//!
//! Copying, checking and finding room for the pages that a read brings takes longer than scanning them. A thread that does all
//! of this alone reads no faster than one CPU allows, however far ahead it requests pages; and while it is busy with pages, its
//! requested reads are not submitted. So while a scan is under way the keeper listens to the queue, as it does for executors,
//! and waiting threads rely on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Core;
use super::flights::BUSY_WITH;
use super::lane::Round;
use super::ticket::Waiter;

/// Counts the threads for which the keeper's thread handles the queue.
#[derive(Debug, Default)]
pub(super) struct Walks {
    /// Long walks.
    under_way: AtomicUsize,
    /// Blocking waiters that have left their reads to the keeper's thread.
    reliant: AtomicUsize,
}

impl Walks {
    /// Whether the keeper's thread should take completions for threads. A thread that came to rely on it during a scan counts even
    /// after the scan has ended: it increments `reliant` before it checks for a scan.
    pub(super) fn are_relied_on(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0 || self.reliant.load(Ordering::SeqCst) > 0
    }
}

/// A range scan under way, until this is dropped.
pub(crate) struct Walk(Arc<Core>);

impl Walk {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        if core.lane.walks.under_way.fetch_add(1, Ordering::SeqCst) == 0 {
            // The keeper does not listen to the queue yet.
            core.bell.ring();
        }
        Self(Arc::clone(core))
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.0.lane.walks.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Core {
    /// Whether the keeper's thread takes completions, so that no waiter has to.
    pub(super) fn is_reaped(&self) -> bool {
        let wanted = self.async_seen.load(Ordering::Relaxed) || self.lane.walks.under_way.load(Ordering::SeqCst) > 0;
        wanted && self.keeper.is_running() && !self.lane.is_reaped_outside()
    }

    /// As `submit_reads`, for a caller that does not wait for these reads: leaves them to the keeper's thread where that handles
    /// the queue.
    pub(super) fn submit_reads_soon(self: &Arc<Self>) {
        if !self.is_reaped() {
            self.submit_reads();
        } else if self.lane.at_device() < BUSY_WITH {
            self.bell.ring();
        }
    }

    /// Leaves a round to the keeper's thread. `None` when that has just stopped listening.
    pub(super) fn rely_on_keeper(self: &Arc<Self>, waiter: &Arc<Waiter>) -> Option<Round> {
        self.lane.walks.reliant.fetch_add(1, Ordering::SeqCst);
        let round = self.is_reaped().then(|| {
            // Holding the queue here would make executors' submits wait for our read.
            self.submit_reads();
            self.park_for_others(waiter)
        });
        self.lane.walks.reliant.fetch_sub(1, Ordering::SeqCst);
        round
    }
}

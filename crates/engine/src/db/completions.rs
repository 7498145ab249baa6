//! Reads that complete on the thread that waits for them: the descriptor for a runtime's own poller.
//!
//! By default a thread of the database takes completions and wakes the tasks, which costs a hop between threads for each
//! handful of reads. A runtime that polls descriptors anyway can do it itself.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::Db;
use super::owner::OwnerHandle;
use crate::buffer_pool::ReadCompletions;

/// Completions of reads, for a runtime to take. While one lives, no thread of the database takes them: its owner must
/// call [`Completions::take`] each time the descriptor becomes readable, and reads of tasks do not complete before.
/// Blocking calls take their own completions in any case.
///
/// With tokio, on the thread of a current-thread runtime:
///
/// ```no_run
/// # async fn run(db: nofault::Db) -> std::io::Result<()> {
/// if let Some(completions) = db.completions() {
///     use tokio::io::{Interest, unix::AsyncFd};
///     // SAFETY: the descriptor is the same, and open, for as long as `completions` lives, which `ready` owns.
///     let ready = unsafe { AsyncFd::register_with_interest(completions, Interest::READABLE)? };
///     tokio::spawn(async move {
///         // Cleared before they are taken: what completes in between makes it readable again.
///         while let Ok(mut guard) = ready.readable().await {
///             guard.clear_ready();
///             ready.get_ref().take();
///         }
///     });
/// }
/// # Ok(())
/// # }
/// ```
pub struct Completions {
    reads: ReadCompletions,
    _owner: OwnerHandle,
}

impl Completions {
    /// Takes all completed reads, wakes the tasks that wait for them, and submits queued reads. Never waits for the
    /// device.
    pub fn take(&self) {
        self.reads.take();
    }
}

impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reads.as_fd()
    }
}

impl AsRawFd for Completions {
    fn as_raw_fd(&self) -> RawFd {
        self.reads.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for Completions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Completions(descriptor {})", self.as_raw_fd())
    }
}

/// Returns the handle for the read completions of `db`; `None` where its disk has no descriptor to poll.
pub(super) fn completions(db: &Db) -> Option<Completions> {
    let reads = db.core.store.completions()?;
    Some(Completions { reads, _owner: db.owner.clone() })
}

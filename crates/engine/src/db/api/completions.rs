//! Reads that complete on the thread waiting for them: the descriptor for a runtime's own poller.
//!
//! By default a thread of the database takes completions and wakes the tasks, which costs a hop between threads for each
//! handful of reads. A runtime that polls descriptors anyway can do it itself.
//!
//! A runtime's part does not keep the database open: it is a task waiting for reads, so it would wait for ever. It is
//! told when the database is closed, and may outlive it for a moment, in which no read completes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::buffer_pool::ReadCompletions;
use crate::db::open::handle::Db;
use crate::sync::event::Event;

/// Completions of reads, for a runtime to take. While one lives, no thread of the database takes them: its owner must
/// call [`Completions::take`] each time the descriptor becomes readable, and reads of tasks do not complete before. An
/// owner that does not is replaced: when completions have been there for 50 to 100 ms, a thread of the database takes them,
/// and all later ones, until the owner calls [`Completions::take`] again. (Without the database's threads,
/// [`Settings::background_threads`](crate::settings::Settings::background_threads), nothing replaces it.) Blocking calls take
/// their own completions in any case.
///
/// With tokio, use `Db::complete_on_tokio` (feature `tokio`). With another runtime, a task does the following. Here
/// `readable` stands for the runtime's own way of waiting for a descriptor, and `first` for its way of waiting for two
/// things at once, which returns `None` when the first has happened:
///
/// ```no_run
/// # async fn readable(_: std::os::fd::BorrowedFd<'_>) {}
/// # async fn first<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> Option<B> { None }
/// # async fn run(db: nofault::Db) {
/// use std::os::fd::AsFd as _;
///
/// if let Some(completions) = db.completions() {
///     // Ends when the last handle of the database is dropped, or it is closed.
///     while first(completions.closed(), readable(completions.as_fd())).await.is_some() {
///         completions.take();
///     }
/// }
/// # }
/// ```
///
/// It does not keep the database open.
pub struct Completions {
    reads: ReadCompletions,
    closed: Arc<Event>,
}

impl Completions {
    /// Takes all completed reads, wakes the tasks that wait for them, and submits queued reads. Never waits for the
    /// device.
    pub fn take(&self) {
        self.reads.take();
    }

    /// Waits until the database is being closed: nothing is left to take then.
    pub async fn closed(&self) {
        std::future::poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// As [`Completions::closed`], for futures written by hand.
    pub fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        self.closed.poll(cx)
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
pub(in crate::db) fn completions(db: &Db) -> Option<Completions> {
    db.owner.check_process().ok()?;
    let reads = db.core.store.completions()?;
    Some(Completions { reads, closed: Arc::clone(db.owner.closed()) })
}

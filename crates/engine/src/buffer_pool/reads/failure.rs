//! The end of all waits for pages and frames after a panic of a thread that works for others: a background thread of the
//! pool, or any thread that has reads of others in its hands. It may have been about to complete any read, or to free any
//! frame.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::background::PanicWatch;
use crate::buffer_pool::versions::Versions;
use crate::buffer_pool::waiter::Waiter;
use crate::error::{Error, ErrorKind};
use crate::sync::wakers::wake_all;

/// The error of all waits, once there is one.
pub(crate) struct Failure {
    versions: Arc<Versions>,
    error: OnceLock<Error>,
    /// Waiters for runs of scans, which stand in no shard; some of them have gone.
    scans: Mutex<Vec<Weak<Waiter>>>,
}

/// Fails all waits when a panic of the current thread drops it.
pub(super) struct FailsInPanic<'a> {
    failure: &'a Failure,
    watch: PanicWatch,
}

impl Failure {
    pub(super) fn new(versions: &Arc<Versions>) -> Self {
        Self { versions: Arc::clone(versions), error: OnceLock::new(), scans: Mutex::default() }
    }

    /// Returns the error with which all waits end, if there is one.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.get()
    }

    /// Ends all waits with an error, those that begin later as well. `cause` is the panic. The caller holds no lock.
    pub(crate) fn fail(&self, cause: &Error) {
        let what = format!("{cause}; reads from the disk fail until the database is reopened");
        self.end(&Error::new(ErrorKind::Poisoned, what));
    }

    /// Ends all waits with this error, unless they have ended before, and those that begin later as well. The caller holds
    /// no lock.
    pub(crate) fn end(&self, error: &Error) {
        let error = self.error.get_or_init(|| error.clone());
        // A waiter added to a read later finds the error when its ticket is polled: it takes the lock of a shard
        // after this call did.
        wake_all(self.versions.pages().fail_waiters(error));
        self.versions.frame_waits().fail_all(error);
        let scans = std::mem::take(&mut *self.scans.lock().unwrap_or_else(PoisonError::into_inner));
        wake_all(scans.iter().filter_map(Weak::upgrade).filter_map(|waiter| waiter.fail(error.clone())));
    }

    /// Adds a waiter for a private run to the waiters that a panic fails. Called before the ticket is polled: the poll finds an earlier
    /// error.
    pub(crate) fn watch(&self, waiter: &Arc<Waiter>) {
        let mut scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
        if scans.len() == scans.capacity() {
            scans.retain(|waiter| waiter.strong_count() > 0);
            let more = scans.len() + 8;
            scans.reserve(more);
        }
        scans.push(Arc::downgrade(waiter));
    }

    /// Returns a guard for work on reads that others may wait for.
    #[must_use]
    pub(super) fn guard(&self) -> FailsInPanic<'_> {
        FailsInPanic { failure: self, watch: PanicWatch::begin() }
    }
}

impl Drop for FailsInPanic<'_> {
    fn drop(&mut self) {
        if let Some(cause) = self.watch.panic("read pages") {
            self.failure.fail(&cause);
        }
    }
}

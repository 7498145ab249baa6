//! Bulk loads under way, and the calls that they refuse: a write by the entries of a load would wait for the load itself.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::btree::overflow::VALUE_BYTES_MAX;
use crate::error::{Error, ErrorKind, Result};

/// The thread, if any, that holds the commit section for a bulk load while it runs the caller's iterator.
#[derive(Debug, Default)]
pub(super) struct Loads(Mutex<Option<ThreadId>>);

impl Loads {
    /// Registers this thread as holding the commit section for a load, until the returned guard is dropped.
    pub(super) fn begin(&self) -> impl Drop + '_ {
        self.set(Some(std::thread::current().id()));
        Loading(self)
    }

    /// Fails on a thread holding the commit section for a load, because a commit there would wait for itself.
    ///
    /// # Errors
    /// `InvalidCall` on such a thread.
    pub(super) fn refuse_inside(&self) -> Result<()> {
        let loading = *self.lock();
        if loading.is_none_or(|thread| thread != std::thread::current().id()) {
            return Ok(());
        }
        let what = "the entries of a bulk load write to the database that is being loaded, which waits for them: write before \
                    or after the load, or to another database";
        Err(Error::new(ErrorKind::InvalidCall, what))
    }

    /// Returns whether a thread holds the commit section for a load.
    pub(super) fn are_under_way(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, thread: Option<ThreadId>) {
        *self.lock() = thread;
    }
}

struct Loading<'l>(&'l Loads);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Fails for a value too long.
///
/// # Errors
/// `InvalidCall` for such a value.
pub(super) fn refuse_too_long(value: &[u8]) -> Result<()> {
    if value.len() as u64 <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("a value of {} bytes; {VALUE_BYTES_MAX} is the most", value.len());
    Err(Error::new(ErrorKind::InvalidCall, message))
}

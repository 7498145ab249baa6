//! Closes a database for all of its handles, also in the middle of their calls.
//!
//! 1. The history ends: commits are refused, so the newest one is known. A large commit in progress is waited for, because
//!    its thread does nothing but complete it. A bulk load is not: it runs the caller's iterator, which may wait for
//!    anything. It fails with its next entry; its pages belong to no commit.
//! 2. The threads end after the last checkpoint (`owner`). Reads are answered until then.
//! 3. Log and pool end: every wait, and every later look at a page, fails with `Closed`.
//! 4. The access to the files ends ([`super::disk_access`]), and the locks are given back.
//!
//! Kept true by: no step waits for a handle to be dropped, for a future to be polled, or for a caller's code.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind, Result};

/// How far the closing of a database is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Open,
    Closing,
    Closed,
}

/// Lets one call close a database, and others wait for it.
#[derive(Debug, Default)]
pub(in crate::db) struct Closing {
    stage: Mutex<Stage>,
    changed: Condvar,
}

/// The call that closes the database.
pub(super) struct ClosingCall<'a>(&'a Closing);

/// Returns the error of a handle of a closed database.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the database was closed: open it again, and take tables and snapshots from that")
}

impl Closing {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails when the database is being closed, or was.
    ///
    /// # Errors
    /// `Closed`.
    pub(in crate::db) fn check_open(&self) -> Result<()> {
        if *self.lock() == Stage::Open { Ok(()) } else { Err(closed()) }
    }

    /// Begins to close; waits for another call that does so.
    ///
    /// # Errors
    /// `Closed`, once another call has closed the database.
    pub(super) fn begin(&self) -> Result<ClosingCall<'_>> {
        let mut stage = self.lock();
        while *stage == Stage::Closing {
            stage = self.changed.wait(stage).unwrap_or_else(PoisonError::into_inner);
        }
        if *stage == Stage::Closed {
            let what = "the database was closed before, by another handle: there is nothing left to be done";
            return Err(Error::new(ErrorKind::Closed, what));
        }
        *stage = Stage::Closing;
        Ok(ClosingCall(self))
    }
}

impl Drop for ClosingCall<'_> {
    fn drop(&mut self) {
        *self.0.lock() = Stage::Closed;
        self.0.changed.notify_all();
    }
}

//! Counts the transactions that have begun and may be checked against later commits.
//!
//! While there are none, a large commit that is visible as soon as it takes effect need not list its keys. Nearly every
//! transaction counted later takes its snapshot later still, and sees the commit. One that takes it between the look
//! at the count and the moment at which the commit is visible does not: the commit tells the window that its keys are not
//! listed (`forget_before`), in the hold of the section's lock in which it becomes visible, so that every transaction
//! that lacks it conflicts.
//!
//! Kept true by: a transaction is counted before it takes its snapshot, and until it was checked or is given up; so every
//! transaction that was open at the look at the count finds the keys listed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The transactions that are open.
#[derive(Debug, Default)]
pub(super) struct OpenTransactions(Arc<AtomicUsize>);

/// A transaction counted as open until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenTransaction(Arc<AtomicUsize>);

impl OpenTransactions {
    /// Counts a transaction.
    pub(super) fn open(&self) -> OpenTransaction {
        self.0.fetch_add(1, Ordering::SeqCst);
        OpenTransaction(Arc::clone(&self.0))
    }

    /// Returns whether no transaction is open.
    pub(super) fn are_none(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

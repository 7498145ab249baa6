//! Blocks of the data file that are reserved for a commit before it happens, so that all of its changes can be written.

use std::sync::Arc;

/// The kind of work that claims room: it decides whether the reserve may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A commit that may make the database larger. Leaves the reserve alone.
    Ordinary,
    /// Work that makes room, or that finishes commits from the log: deletes, dropped tables, replay. May use the
    /// reserve.
    Reserve,
}

/// Counts the reserved blocks.
pub(crate) trait RoomLedger: Send + Sync {
    /// Ends a claim to `blocks` blocks.
    fn end_claim(&self, blocks: u64);
}

/// Blocks reserved until this is dropped. By then the commit has published its pages, which count by themselves, or failed.
#[derive(Default)]
pub(crate) struct Room(Option<(Arc<dyn RoomLedger>, u64)>);

impl Room {
    /// Creates a claim to `blocks` blocks that `ledger` has counted.
    pub(crate) fn of(ledger: Arc<dyn RoomLedger>, blocks: u64) -> Self {
        Self(Some((ledger, blocks)))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some((ledger, blocks)) = self.0.take() {
            ledger.end_claim(blocks);
        }
    }
}

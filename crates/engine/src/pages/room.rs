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

/// Keeps count of the room that is set aside.
pub(crate) trait RoomLedger: Send + Sync {
    /// Ends the claim to so many blocks.
    fn end_claim(&self, blocks: u64);
}

/// Blocks set aside, until this is dropped. By then the pages they are for are published, and count by themselves, or there are none.
#[derive(Default)]
pub(crate) struct Room(Option<(Arc<dyn RoomLedger>, u64)>);

impl Room {
    /// So many blocks, which `ledger` has counted.
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

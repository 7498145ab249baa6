//! Blocks of the data file that are reserved for a commit before it happens, so that all of its changes can be written.

use std::sync::Arc;

/// The kind of work that reserves blocks: it decides whether the reserve may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReservationKind {
    /// A commit that may make the database larger. It may not use the reserve.
    Ordinary,
    /// Work that frees blocks, or that finishes commits from the log: deletes, dropped tables, replay, and pages that are
    /// moved and take no more blocks afterwards. It may use the reserve, but for the blocks of `Packing`.
    Reserve,
    /// Repacking compressed pages into fewer blocks, so that the other work finds some. It may use the whole reserve.
    Packing,
}

/// Counts the blocks that are reserved.
pub(crate) trait ReservationLedger: Send + Sync {
    /// Ends a reservation of `blocks` blocks.
    fn end_reservation(&self, blocks: u64);
}

/// Blocks of the data file, reserved until this is dropped. By then the commit has failed, or has published its pages,
/// which count as dirty pages from then on.
#[derive(Default)]
pub(crate) struct BlockReservation(Option<(Arc<dyn ReservationLedger>, u64)>);

impl BlockReservation {
    /// Returns a reservation of `blocks` blocks that `ledger` has counted.
    pub(crate) fn of(ledger: Arc<dyn ReservationLedger>, blocks: u64) -> Self {
        Self(Some((ledger, blocks)))
    }
}

impl Drop for BlockReservation {
    fn drop(&mut self) {
        if let Some((ledger, blocks)) = self.0.take() {
            ledger.end_reservation(blocks);
        }
    }
}

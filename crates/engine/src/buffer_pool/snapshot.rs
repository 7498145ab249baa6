//! A commit that stays readable: registered for as long as it lives.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::versions::Versions;
use crate::format::CommitSeq;

/// Keeps the pages of one commit readable until it is dropped or evicted.
pub(crate) struct Snapshot {
    versions: Arc<Versions>,
    seq: CommitSeq,
    too_old: Arc<AtomicBool>,
    essential: bool,
}

impl Snapshot {
    pub(super) fn new(versions: &Arc<Versions>, essential: bool) -> Self {
        let (seq, too_old) = versions.register(essential);
        Self { versions: Arc::clone(versions), seq, too_old, essential }
    }

    /// Returns the flag that is set when this snapshot has been evicted.
    pub(super) fn too_old(&self) -> &AtomicBool {
        &self.too_old
    }
}

impl crate::pages::Snapshot for Snapshot {
    fn seq(&self) -> CommitSeq {
        self.seq
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.versions.unregister(self.seq, &self.too_old, self.essential);
    }
}

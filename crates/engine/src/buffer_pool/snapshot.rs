//! A commit that stays readable: registered for as long as it lives.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::Core;
use crate::format::CommitSeq;

/// A commit that stays readable.
pub(crate) struct Snapshot {
    core: Arc<Core>,
    seq: CommitSeq,
    pub(super) too_old: Arc<AtomicBool>,
    essential: bool,
}

impl Snapshot {
    pub(super) fn new(core: &Arc<Core>, essential: bool) -> Self {
        let (seq, too_old) = core.registry().register(essential);
        Self { core: Arc::clone(core), seq, too_old, essential }
    }
}

impl crate::pages::Snapshot for Snapshot {
    fn seq(&self) -> CommitSeq {
        self.seq
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let unneeded = self.core.registry().unregister(self.seq, &self.too_old, self.essential);
        self.core.drop_later(unneeded);
    }
}

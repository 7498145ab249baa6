//! A commit that stays readable: registered for as long as it lives.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::versions::Versions;
use super::view::ShownEntries;
use crate::format::{CommitSeq, Moment};

/// Keeps the pages of one commit readable until it is dropped or evicted.
pub(crate) struct Snapshot {
    versions: Arc<Versions>,
    seq: CommitSeq,
    /// `None` for a snapshot that shows all entries.
    moment: Option<Moment>,
    too_old: Arc<AtomicBool>,
    essential: bool,
}

impl Snapshot {
    pub(super) fn new(versions: &Arc<Versions>, essential: bool) -> Self {
        let (seq, too_old) = versions.register(essential);
        // After the commit was chosen: see `Snapshot::moment`.
        let moment = versions.clock().now();
        Self { versions: Arc::clone(versions), seq, moment: Some(moment), too_old, essential }
    }

    /// Lets the snapshot show all entries, also expired ones.
    pub(crate) fn with_expired(self) -> Self {
        let mut all = self;
        all.moment = None;
        all
    }

    /// Returns the entries that views of the snapshot show.
    pub(super) fn shown(&self) -> ShownEntries<'_> {
        self.moment.map_or(ShownEntries::All, ShownEntries::At)
    }

    /// Returns the flag set when this snapshot has been evicted.
    pub(super) fn too_old(&self) -> &AtomicBool {
        &self.too_old
    }
}

impl crate::pages::Snapshot for Snapshot {
    fn seq(&self) -> CommitSeq {
        self.seq
    }

    fn moment(&self) -> Moment {
        self.moment.unwrap_or(Moment(0))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.versions.unregister(self.seq, &self.too_old, self.essential);
    }
}

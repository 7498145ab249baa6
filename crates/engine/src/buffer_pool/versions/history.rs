//! The commits that can be read, which are the visible one and the snapshots' commits; and the versions and frames that no reader can reach any more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_epoch::Guard;
use nofault_io::process::Process;

use super::reclamation::{RETIRED_MAX, Reclamation};
use super::registry::{ReaderInfo, Registry};
use crate::buffer_pool::page_table::SupersededVersion;
use crate::format::CommitSeq;

/// The readable commits of a pool, and its retired versions and frames.
pub(crate) struct History {
    registry: Mutex<Registry>,
    visible: AtomicU64,
    reclamation: Reclamation,
    /// Most versions that evictable snapshots may keep.
    kept_max: usize,
    page_bytes: usize,
    /// The process with the frames. In a forked child no snapshot is registered, because a thread that is not there may hold the lock.
    process: Process,
}

impl History {
    /// Begins with `commit`. `kept_max` is the most versions that evictable snapshots may keep.
    pub(super) fn new(commit: CommitSeq, (kept_max, page_bytes): (usize, usize), process: Process) -> Self {
        let (registry, visible) = (Mutex::new(Registry::new(commit)), AtomicU64::new(commit.0));
        Self { registry, visible, reclamation: Reclamation::new(), kept_max, page_bytes, process }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins the current epoch: every frame found from now on keeps its page until the guard is dropped.
    #[inline]
    pub(crate) fn pin(&self) -> Guard {
        self.reclamation.pin()
    }

    /// Advances the epoch as far as pinned guards allow, so that all items that no guard protects can be taken.
    pub(crate) fn help_epoch(&self) {
        self.reclamation.help();
    }

    /// Returns the commit that new views and snapshots show.
    pub(crate) fn visible(&self) -> CommitSeq {
        CommitSeq(self.visible.load(Ordering::SeqCst))
    }

    /// Makes a commit visible to new views and snapshots.
    pub(crate) fn set_visible(&self, seq: CommitSeq) {
        self.advance(|_| seq);
    }

    /// Drops versions superseded by commits that are visible already.
    pub(crate) fn drop_superseded(&self) {
        self.advance(Registry::visible);
    }

    /// Makes visible the commit that `visible` chooses under the lock, so that it is not older than the one before.
    fn advance(&self, visible: impl FnOnce(&Registry) -> CommitSeq) {
        let unneeded = {
            let mut registry = self.registry();
            let seq = visible(&registry);
            let unneeded = registry.advance(seq);
            // Stored under the lock, because the number must not go back when two commits become visible at once.
            self.visible.store(registry.visible().0, Ordering::SeqCst);
            unneeded
        };
        self.drop_later(unneeded);
        self.limit_snapshots();
    }

    fn limit_snapshots(&self) {
        let unneeded = {
            let mut registry = self.registry();
            if registry.kept_count() <= self.kept_max { Vec::new() } else { registry.limit(self.kept_max) }
        };
        self.drop_later(unneeded);
    }

    /// Registers the visible commit for a snapshot. Returns the commit and the flag set when the snapshot is
    /// evicted.
    pub(crate) fn register(&self, essential: bool) -> (CommitSeq, Arc<AtomicBool>) {
        if !self.process.is_here() {
            return (self.visible(), Arc::default());
        }
        self.registry().register(essential)
    }

    /// Removes one holder from the snapshot of a commit.
    pub(crate) fn unregister(&self, commit: CommitSeq, too_old: &Arc<AtomicBool>, essential: bool) {
        if !self.process.is_here() {
            return;
        }
        let unneeded = self.registry().unregister(commit, too_old, essential);
        self.drop_later(unneeded);
    }

    /// Returns the live snapshots, oldest first.
    pub(crate) fn readers(&self) -> Vec<ReaderInfo> {
        let mut readers: Vec<ReaderInfo> = Vec::new();
        if !self.process.is_here() {
            return readers;
        }
        loop {
            let last = readers.last().map(|reader| reader.commit);
            let mut some = self.registry().readers_after(last, self.page_bytes);
            if some.is_empty() {
                return readers;
            }
            readers.append(&mut some);
        }
    }

    /// Returns the number of versions kept for snapshots.
    pub(crate) fn kept_count(&self) -> usize {
        self.registry().kept_count()
    }

    /// Drops versions that no later view requests, once the views that exist now are gone. This is safe because every
    /// view pins its epoch guard before it reads the visible commit.
    pub(crate) fn drop_later(&self, versions: Vec<SupersededVersion>) {
        self.reclamation.retire_versions(versions);
    }

    /// Recycles frames that cannot be found any more, once no reader can still be reading them.
    pub(crate) fn retire(&self, frames: Vec<u32>) {
        self.reclamation.retire_frames(frames);
    }

    /// Returns the number of evicted frames that become free once the epoch guards pinned now are gone.
    pub(crate) fn retired_frames(&self) -> usize {
        self.reclamation.frame_count()
    }

    /// Notes versions that a commit has superseded.
    pub(super) fn supersede(&self, older: Vec<SupersededVersion>) {
        self.registry().supersede(older);
    }

    /// Returns whether many retired versions have piled up.
    pub(super) fn has_many_retired(&self) -> bool {
        self.reclamation.version_count() > RETIRED_MAX
    }

    /// Returns whether nothing is left that could be taken now, and no version whose readers are not known yet.
    pub(super) fn is_swept(&self) -> bool {
        self.reclamation.is_empty() && self.registry().is_settled()
    }

    /// Takes some of the frames and versions that no reader can reach any more, within a budget.
    pub(super) fn take_unreachable(&self) -> (Vec<u32>, Vec<SupersededVersion>) {
        let unneeded = self.registry().settle();
        self.drop_later(unneeded);
        self.reclamation.take_some()
    }

    /// Returns the retired items, for tests.
    #[cfg(test)]
    pub(crate) fn reclamation(&self) -> &Reclamation {
        &self.reclamation
    }
}

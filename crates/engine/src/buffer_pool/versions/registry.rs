//! Tracks which versions of pages can still be read: the visible commit, the snapshots, and the versions kept for them.
//!
//! A version `from..until` of a page is needed while the visible commit is below `until` (a view may be made there at
//! any time) or a snapshot lies in the range. The pages of a dropped table are freed some time after the drop, and no reader of
//! a later commit reaches them: of the snapshots from that commit on only checkpoints', backups' and verifications' snapshots
//! need them. Each needed version is noted once, with the *newest* snapshot needing it.
//!
//! The versions that a commit has superseded, and the versions kept for a snapshot that ends, are checked
//! later, a bounded number at a time ([`Registry::settle`]): the snapshots that need a version are looked up then, and
//! no snapshot of the past can have been added since. So no call takes longer the larger a commit was or the more
//! versions a snapshot has kept.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::chunked_queue::ChunkedQueue;
use crate::buffer_pool::page_table::SupersededVersion;
use crate::format::CommitSeq;
use crate::sync::budget::Budget;

/// Most snapshots described during one hold of the lock.
const READERS_AT_ONCE: usize = 256;
/// Steps of a `Budget`, which bounds the work under one lock, that evicting one snapshot spends.
const STEPS_A_SNAPSHOT: usize = 4;

/// One snapshot, as `readers` reports it: shows which readers keep old versions, and so memory and disk blocks, in use.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// let held = db.snapshot();
/// for reader in db.readers() {
///     println!("commit {}: {} holders, {} ns old, keeps {} bytes", reader.commit, reader.holders, reader.age_ns, reader.pinned_bytes);
/// }
/// assert_eq!(db.readers()[0].commit, held.commit());
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderInfo {
    /// The commit that the snapshot shows.
    pub commit: CommitSeq,
    /// Number of holders of the snapshot.
    pub holders: usize,
    /// Age of the oldest holder, in nanoseconds.
    pub age_ns: u64,
    /// Bytes of old page versions kept for this snapshot and for no newer one.
    pub pinned_bytes: u64,
}

#[derive(Debug)]
struct Group {
    holders: usize,
    since: Instant,
    too_old: Arc<AtomicBool>,
    kept: ChunkedQueue<SupersededVersion>,
    /// Number of checkpoints, backups and verifications among the holders: these are never evicted.
    essential: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    visible: CommitSeq,
    snapshots: BTreeMap<CommitSeq, Group>,
    /// The commits of snapshots that keep versions and may be evicted.
    limitable: BTreeSet<CommitSeq>,
    /// The commits of snapshots that are never evicted.
    essential: BTreeSet<CommitSeq>,
    /// Superseded versions that new views may still request, as one list for each superseding commit (`until`), in the
    /// order of these commits.
    fresh: VecDeque<(CommitSeq, Vec<SupersededVersion>)>,
    /// Superseded versions to be examined: the newest commit does not show them, but a snapshot may need them.
    unsettled: ChunkedQueue<SupersededVersion>,
    kept_count: usize,
    /// Number of versions counted in `kept_count` that are kept for snapshots that are never evicted: at most one
    /// version of each page for each such snapshot.
    kept_essential: usize,
}

impl Registry {
    pub(crate) fn new(visible: CommitSeq) -> Self {
        Self { visible, ..Self::default() }
    }

    pub(crate) fn visible(&self) -> CommitSeq {
        self.visible
    }

    /// Adds versions that were all superseded by the same commit.
    pub(crate) fn supersede(&mut self, versions: impl IntoIterator<Item = SupersededVersion>) {
        let versions: Vec<_> = versions.into_iter().collect();
        if let Some(first) = versions.first() {
            self.fresh.push_back((first.until, versions));
        }
    }

    /// Makes a later commit visible. Returns some of the versions that no reader can need any more.
    pub(crate) fn advance(&mut self, visible: CommitSeq) -> Vec<SupersededVersion> {
        debug_assert!(visible >= self.visible, "the visible commit went back");
        self.visible = self.visible.max(visible);
        while let Some((_, versions)) = self.fresh.pop_front_if(|(until, _)| *until <= visible) {
            self.unsettled.push_all(versions);
        }
        self.settle()
    }

    /// Examines some of the superseded versions that the newest commit does not show. Returns the versions that no
    /// reader can need any more.
    pub(crate) fn settle(&mut self) -> Vec<SupersededVersion> {
        let mut unneeded = Vec::new();
        self.settle_within(&mut Budget::new(), &mut unneeded);
        unneeded
    }

    fn settle_within(&mut self, budget: &mut Budget, unneeded: &mut Vec<SupersededVersion>) {
        while !budget.is_spent()
            && let Some(version) = self.unsettled.pop()
        {
            self.keep_or_drop(version, unneeded);
            budget.spend(1);
        }
    }

    /// Returns whether no versions are left to be examined.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Registers a holder of the visible commit. Returns the commit, and the flag set when the snapshot is
    /// evicted.
    pub(crate) fn register(&mut self, essential: bool) -> (CommitSeq, Arc<AtomicBool>) {
        let group = self.snapshots.entry(self.visible).or_insert_with(|| Group {
            holders: 0,
            since: Instant::now(),
            too_old: Arc::default(),
            kept: ChunkedQueue::default(),
            essential: 0,
        });
        debug_assert!(group.kept.is_empty(), "a version that is still visible was taken for an old one");
        group.holders += 1;
        group.essential += usize::from(essential);
        if essential {
            self.essential.insert(self.visible);
        }
        (self.visible, Arc::clone(&group.too_old))
    }

    /// Removes one holder of a snapshot. Returns some of the versions that no reader needs any more.
    pub(crate) fn unregister(
        &mut self,
        commit: CommitSeq,
        flag: &Arc<AtomicBool>,
        essential: bool,
    ) -> Vec<SupersededVersion> {
        let Some(group) = self.snapshots.get_mut(&commit).filter(|group| Arc::ptr_eq(&group.too_old, flag)) else {
            return Vec::new();
        };
        group.holders -= 1;
        group.essential -= usize::from(essential);
        let was_last_essential = essential && group.essential == 0;
        if was_last_essential {
            self.essential.remove(&commit);
            self.kept_essential -= group.kept.len();
        }
        if group.holders == 0 {
            self.end(commit);
        } else if was_last_essential {
            // The other holders may not need all of these versions.
            let kept = std::mem::take(&mut group.kept);
            self.kept_count -= kept.len();
            self.unsettled.append(kept);
        } else {
            return Vec::new();
        }
        self.settle()
    }

    /// Evicts the oldest snapshots, as many as one budget allows, until at most `kept_max` versions are kept. Versions
    /// kept for snapshots that are never evicted do not count, because evicting other snapshots would not free them.
    /// Holders of an evicted snapshot get `SnapshotTooOld`. Returns the versions that no reader needs any more.
    pub(crate) fn limit(&mut self, kept_max: usize) -> Vec<SupersededVersion> {
        let (mut unneeded, mut budget) = (Vec::new(), Budget::new());
        while self.kept_count - self.kept_essential > kept_max {
            let Some(&commit) = self.limitable.first() else { break };
            let Some(group) = self.snapshots.get(&commit) else { break };
            group.too_old.store(true, Ordering::Release);
            self.end(commit);
            budget.spend(STEPS_A_SNAPSHOT);
            self.settle_within(&mut budget, &mut unneeded);
            if budget.is_spent() || !self.is_settled() {
                // The remaining versions may now be kept for older snapshots, which the next call limits.
                break;
            }
        }
        unneeded
    }

    fn end(&mut self, commit: CommitSeq) {
        let Some(group) = self.snapshots.remove(&commit) else { return };
        self.limitable.remove(&commit);
        self.kept_count -= group.kept.len();
        self.unsettled.append(group.kept);
    }

    fn keep_or_drop(&mut self, version: SupersededVersion, unneeded: &mut Vec<SupersededVersion>) {
        // A forged page may name a later commit than the commit that replaced it. No reader can have seen such a
        // version.
        let until = version.until.max(version.from);
        let read_until = version.unread_from.clamp(version.from, until);
        let essential = self.essential.range(read_until..until).next_back().copied();
        let newest = essential.or_else(|| Some(*self.snapshots.range(version.from..read_until).next_back()?.0));
        match newest.and_then(|commit| Some((commit, self.snapshots.get_mut(&commit)?))) {
            Some((commit, group)) => {
                if group.kept.is_empty() && group.essential == 0 {
                    self.limitable.insert(commit);
                }
                group.kept.push(version);
                self.kept_count += 1;
                self.kept_essential += usize::from(group.essential > 0);
            }
            None => unneeded.push(version),
        }
    }

    /// Returns the number of versions kept for snapshots.
    pub(crate) fn kept_count(&self) -> usize {
        self.kept_count
    }

    /// Returns the snapshots of some commits after `after`, oldest first.
    pub(crate) fn readers_after(&self, after: Option<CommitSeq>, page_bytes: usize) -> Vec<ReaderInfo> {
        let info = |(commit, group): (&CommitSeq, &Group)| ReaderInfo {
            commit: *commit,
            holders: group.holders,
            age_ns: group.since.elapsed().as_nanos() as u64,
            pinned_bytes: (group.kept.len() * page_bytes) as u64,
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.snapshots.range((from, Bound::Unbounded)).take(READERS_AT_ONCE).map(info).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::PageId;
    use crate::sync::budget::{self, STEPS_MAX};

    fn version(from: u64, until: u64) -> SupersededVersion {
        freed_late(from, until, until)
    }

    /// A version of a page that was freed by commit `until`, and that no reader reached since commit `unread_from`.
    fn freed_late(from: u64, unread_from: u64, until: u64) -> SupersededVersion {
        let (from, until, unread_from) = (CommitSeq(from), CommitSeq(until), CommitSeq(unread_from));
        SupersededVersion { page: PageId(1), from, until, unread_from }
    }

    #[test]
    fn a_version_is_dropped_when_its_successor_is_visible_and_no_snapshot_lies_between() {
        let mut registry = Registry::new(CommitSeq(1));
        registry.supersede([version(1, 2)]);
        assert!(registry.advance(CommitSeq(1)).is_empty(), "commit 2 is not visible yet");
        let (at, flag) = registry.register(false);
        registry.supersede([version(2, 3)]);
        assert_eq!(registry.advance(CommitSeq(3)), [version(2, 3)], "no reader looks at commit 2");
        assert_eq!(registry.unregister(at, &flag, false), [version(1, 2)]);
    }

    #[test]
    fn ending_a_snapshot_hands_its_versions_to_the_next_older_one_that_needs_them() {
        let mut registry = Registry::new(CommitSeq(1));
        let (old, old_flag) = registry.register(false);
        registry.advance(CommitSeq(4));
        let (new, new_flag) = registry.register(false);
        registry.supersede([version(1, 5)]);
        assert!(registry.advance(CommitSeq(5)).is_empty());
        assert!(registry.unregister(new, &new_flag, false).is_empty());
        assert_eq!(registry.kept_count(), 1);
        assert_eq!(registry.unregister(old, &old_flag, false), [version(1, 5)]);
    }

    #[test]
    fn a_version_that_claims_to_be_newer_than_its_successor_is_dropped_at_once() {
        let mut registry = Registry::new(CommitSeq(1));
        let (at, flag) = registry.register(false);
        registry.supersede([version(9, 2)]);
        assert_eq!(registry.advance(CommitSeq(2)), [version(9, 2)]);
        assert!(registry.unregister(at, &flag, false).is_empty());
    }

    #[test]
    fn past_the_limit_the_oldest_snapshot_is_evicted_but_never_a_checkpoint() {
        let mut registry = Registry::new(CommitSeq(1));
        let (checkpoint, checkpoint_flag) = registry.register(true);
        registry.supersede([version(1, 2)]);
        registry.advance(CommitSeq(2));
        let (at, flag) = registry.register(false);
        registry.supersede([version(2, 3)]);
        registry.advance(CommitSeq(3));
        assert_eq!(registry.limit(0), [version(2, 3)]);
        assert!(flag.load(Ordering::Relaxed) && !checkpoint_flag.load(Ordering::Relaxed));
        assert!(registry.unregister(at, &flag, false).is_empty(), "the snapshot is no longer registered");
        assert_eq!(registry.unregister(checkpoint, &checkpoint_flag, true), [version(1, 2)]);
    }
    #[test]
    fn versions_kept_for_a_backup_do_not_evict_other_snapshots() {
        let mut registry = Registry::new(CommitSeq(1));
        let (backup, backup_flag) = registry.register(true);
        registry.register(true);
        registry.supersede([version(1, 2), version(1, 2), version(1, 2)]);
        registry.advance(CommitSeq(2));
        let (at, flag) = registry.register(false);
        registry.supersede([version(2, 3)]);
        registry.advance(CommitSeq(3));
        assert!(registry.limit(2).is_empty());
        assert!(!flag.load(Ordering::Relaxed));
        // One of two backups ends: the other backup keeps all versions.
        assert!(registry.unregister(backup, &backup_flag, true).is_empty());
        assert!(registry.limit(1).is_empty());
        assert_eq!(registry.limit(0), [version(2, 3)]);
        assert!(registry.unregister(at, &flag, false).is_empty());
        assert_eq!(registry.kept_count(), 3);
    }

    #[test]
    fn versions_kept_for_a_backup_count_for_an_older_snapshot_once_the_backup_has_ended() {
        let mut registry = Registry::new(CommitSeq(1));
        let (_, old_flag) = registry.register(false);
        registry.advance(CommitSeq(2));
        let (backup, backup_flag) = registry.register(true);
        registry.supersede([version(1, 3), version(1, 3)]);
        registry.advance(CommitSeq(3));
        assert!(registry.limit(0).is_empty());
        assert!(registry.unregister(backup, &backup_flag, true).is_empty(), "the older snapshot needs the versions");
        assert!(registry.limit(2).is_empty());
        assert_eq!(registry.limit(1), [version(1, 3), version(1, 3)]);
        assert!(old_flag.load(Ordering::Relaxed));
    }

    #[test]
    fn pages_that_are_freed_late_are_kept_for_readers_that_reach_them_and_for_checkpoints_only() {
        let mut registry = Registry::new(CommitSeq(1));
        let (old, old_flag) = registry.register(false);
        // Commit 2 drops the table, commit 5 frees the page.
        registry.advance(CommitSeq(2));
        let (after_drop, after_drop_flag) = registry.register(false);
        registry.advance(CommitSeq(3));
        let (checkpoint, checkpoint_flag) = registry.register(true);
        let (beside, beside_flag) = registry.register(false);
        registry.supersede([freed_late(1, 2, 5)]);
        assert!(registry.advance(CommitSeq(5)).is_empty());
        assert!(registry.limit(0).is_empty(), "the checkpoint needs the page");
        assert!(registry.unregister(checkpoint, &checkpoint_flag, true).is_empty(), "the oldest snapshot needs it");
        assert_eq!(registry.kept_count(), 1);
        assert_eq!(registry.limit(0), [freed_late(1, 2, 5)]);
        assert!(old_flag.load(Ordering::Relaxed));
        assert!(!after_drop_flag.load(Ordering::Relaxed) && !beside_flag.load(Ordering::Relaxed));
        for (commit, flag) in [(old, old_flag), (after_drop, after_drop_flag), (beside, beside_flag)] {
            assert!(registry.unregister(commit, &flag, false).is_empty());
        }
        // A page created after the drop was noted does not confuse anything.
        registry.supersede([freed_late(6, 2, 7)]);
        registry.register(false);
        assert_eq!(registry.advance(CommitSeq(7)), [freed_late(6, 2, 7)]);
    }

    #[test]
    fn no_hold_of_the_registry_grows_with_a_commit_or_with_the_versions_of_a_snapshot() {
        let largest = |work: &mut dyn FnMut()| {
            budget::take_largest();
            work();
            budget::take_largest()
        };
        for size in [1_000, 100_000] {
            let mut registry = Registry::new(CommitSeq(1));
            let (at, flag) = registry.register(false);
            registry.supersede(vec![version(1, 2); size]);
            let mut gone = 0;
            let advanced = largest(&mut || gone += registry.advance(CommitSeq(2)).len());
            while !registry.is_settled() {
                gone += registry.settle().len();
            }
            assert_eq!((gone, registry.kept_count()), (0, size));
            let ended = largest(&mut || gone += registry.unregister(at, &flag, false).len());
            assert_eq!(registry.kept_count(), 0);
            while !registry.is_settled() {
                gone += registry.settle().len();
            }
            assert_eq!(gone, size, "each is answered once");
            println!("{size}: {advanced} steps to advance, {ended} to end");
            for steps in [advanced, ended] {
                assert!(steps > 0 && steps <= STEPS_MAX, "{size}: {steps} steps");
            }
        }
    }

    #[test]
    fn a_version_is_dropped_when_its_snapshot_ends_before_it_is_examined() {
        let mut registry = Registry::new(CommitSeq(1));
        let (at, flag) = registry.register(false);
        registry.supersede(vec![version(1, 2); STEPS_MAX + 1]);
        assert!(registry.advance(CommitSeq(2)).is_empty());
        assert!(!registry.is_settled());
        // One version is not settled yet, and comes before the versions that the snapshot kept.
        assert_eq!(registry.unregister(at, &flag, false).len(), STEPS_MAX);
        assert_eq!((registry.settle().len(), registry.is_settled(), registry.kept_count()), (1, true, 0));
    }

    #[test]
    fn evicting_many_snapshots_takes_several_calls_of_bounded_work() {
        for count in [200, 5000] {
            let mut registry = Registry::new(CommitSeq(1));
            let held: Vec<_> = (1..=count)
                .map(|commit| {
                    registry.advance(CommitSeq(commit));
                    registry.register(false)
                })
                .collect();
            // Each snapshot needs the version, so one snapshot after the other is evicted for it.
            registry.supersede([version(1, count + 1)]);
            registry.advance(CommitSeq(count + 1));
            budget::take_largest();
            let mut unneeded = Vec::new();
            let calls = (1..=count).find(|_| {
                unneeded.append(&mut registry.limit(0));
                unneeded.append(&mut registry.settle());
                registry.kept_count() == 0 && registry.is_settled()
            });
            let (largest, calls) = (budget::take_largest(), calls.expect("each call gives some up"));
            assert!(largest <= STEPS_MAX + 8, "{largest} steps under the lock for {count} snapshots");
            assert!(calls <= 1 + 8 * count / STEPS_MAX as u64, "{calls} calls for {count} snapshots");
            assert_eq!(unneeded, [version(1, count + 1)]);
            assert!(held.iter().all(|(_, flag)| flag.load(Ordering::Relaxed)));
        }
    }
}

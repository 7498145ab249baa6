//! The commits that can be read, which are the visible one and the snapshots' commits; and the versions and frames that no reader can reach any more.
//!
//! Epoch reclamation: collects the frames and versions that no reader can reach any more, once the epoch guards that
//! were pinned while one could are gone. Memory that a thread looks at under a guard is not reclaimed before the guard is gone.
//!
//! Each pool has its own collector. So guards of another pool, or of another user of the library in this process, do not
//! delay the reuse of this pool's frames; and a history of a pool repeats exactly, independent of the rest of the process.
//!
//! A thread must be registered with a collector before it can pin. Each thread keeps the handles of the collectors it used last.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crossbeam_epoch::{Collector, Guard, LocalHandle};
use nofault_io::process::Process;

use super::chunked_queue::ChunkedQueue;
use super::registry::{ReaderInfo, Registry};
use crate::buffer_pool::page_table::SupersededVersion;
use crate::format::CommitSeq;
use crate::sync::budget::Budget;

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

/// Number of retired versions that may pile up before a committing thread drops them, and of retired items waiting to
/// be deferred together.
pub(crate) const RETIRED_MAX: usize = 64;
/// Steps of a `Budget`, which bounds the work under one lock, that dropping a version spends.
const STEPS_A_VERSION: usize = 4;
/// Steps of a `Budget` that recycling a frame spends.
const STEPS_A_FRAME: usize = 2;
/// Number of flushes that let the epoch advance twice, unless a pinned guard prevents it.
const FLUSHES: usize = 4;

/// The epochs of a pool, and the frames and versions retired in them.
pub(crate) struct Reclamation {
    epochs: Epochs,
    retired: Arc<RetiredItems>,
}

/// Retired items that are ready to be recycled. The deferred calls of the epochs add items here, whenever any thread
/// pins an epoch, under any lock that this thread holds.
#[derive(Default)]
struct RetiredItems {
    /// The lists. No other lock is taken while this lock is held.
    lists: Mutex<RetiredLists>,
    /// Frames and versions to be deferred together. A deferred call stays in the list of the thread that
    /// deferred it until that thread flushes it, and no other thread can run it: a thread that commits no more would
    /// keep what it has retired, and the blocks of these versions, forever. No other lock is taken while this lock is
    /// held.
    waiting: Mutex<WaitingItems>,
    /// Number of retired frames that were not taken to be recycled yet.
    frame_count: AtomicUsize,
}

/// Retired frames and versions that no call has been deferred for yet.
#[derive(Default)]
struct WaitingItems {
    frames: Vec<u32>,
    versions: Vec<SupersededVersion>,
}

impl WaitingItems {
    fn len(&self) -> usize {
        self.frames.len() + self.versions.len()
    }
}

/// Retired frames and versions that no reader can reach any more.
#[derive(Default)]
pub(crate) struct RetiredLists {
    frames: ChunkedQueue<u32>,
    versions: ChunkedQueue<SupersededVersion>,
}

impl Reclamation {
    pub(crate) fn new() -> Self {
        Self { epochs: Epochs::new(), retired: Arc::default() }
    }

    #[inline]
    pub(crate) fn pin(&self) -> Guard {
        self.epochs.pin()
    }

    /// Advances the epoch as far as pinned guards allow, so that all items that no guard protects can be taken.
    pub(crate) fn help(&self) {
        self.defer(std::mem::take(&mut *self.retired.lock_waiting()));
        for _ in 0..FLUSHES {
            self.epochs.pin().flush();
        }
    }

    /// Retires frames that cannot be found any more: they can be recycled once all guards pinned now are gone.
    pub(crate) fn retire_frames(&self, frames: Vec<u32>) {
        self.retired.frame_count.fetch_add(frames.len(), Ordering::Relaxed);
        self.retire(WaitingItems { frames, versions: Vec::new() });
    }

    /// Retires versions that no later view requests: they can be dropped once all guards pinned now are gone.
    pub(crate) fn retire_versions(&self, versions: Vec<SupersededVersion>) {
        self.retire(WaitingItems { frames: Vec::new(), versions });
    }

    fn retire(&self, items: WaitingItems) {
        if items.len() > RETIRED_MAX {
            return self.defer(items);
        }
        let mut waiting = self.retired.lock_waiting();
        waiting.frames.extend(items.frames);
        waiting.versions.extend(items.versions);
        if waiting.len() > RETIRED_MAX {
            let items = std::mem::take(&mut *waiting);
            drop(waiting);
            self.defer(items);
        }
    }

    /// Adds the items to the lists of free things once every epoch guard that exists now has been dropped.
    fn defer(&self, items: WaitingItems) {
        if items.len() == 0 {
            return;
        }
        let retired = Arc::downgrade(&self.retired);
        let guard = self.epochs.pin();
        guard.defer(move || {
            // Only adds the items to a list, because this may run under any lock that the thread holds.
            if let Some(retired) = retired.upgrade() {
                let mut lists = retired.lock();
                lists.frames.push_all(items.frames);
                lists.versions.push_all(items.versions);
            }
        });
        guard.flush();
    }

    /// Takes some of the retired frames and versions, as many as one budget allows to recycle.
    pub(crate) fn take_some(&self) -> (Vec<u32>, Vec<SupersededVersion>) {
        let (mut frames, mut versions, mut budget) = (Vec::new(), Vec::new(), Budget::new());
        let mut lists = self.retired.lock();
        while !budget.is_spent()
            && let Some(version) = lists.versions.pop()
        {
            budget.spend(STEPS_A_VERSION);
            versions.push(version);
        }
        while !budget.is_spent()
            && let Some(frame) = lists.frames.pop()
        {
            budget.spend(STEPS_A_FRAME);
            frames.push(frame);
        }
        drop(lists);
        self.retired.frame_count.fetch_sub(frames.len(), Ordering::Relaxed);
        (frames, versions)
    }

    /// Returns the number of frames that were retired and not taken since: they become free without another eviction, once the
    /// guards pinned now are gone.
    pub(crate) fn frame_count(&self) -> usize {
        self.retired.frame_count.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let lists = self.retired.lock();
        lists.frames.is_empty() && lists.versions.is_empty()
    }

    /// Returns the number of versions that can be dropped.
    pub(crate) fn version_count(&self) -> usize {
        self.retired.lock().versions.len()
    }

    /// Blocks the threads that drop retired versions, until the returned guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> MutexGuard<'_, RetiredLists> {
        self.retired.lock()
    }
}

impl RetiredItems {
    fn lock(&self) -> MutexGuard<'_, RetiredLists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_waiting(&self) -> MutexGuard<'_, WaitingItems> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Most pools whose epoch handles a thread keeps, so that it can alternate between them without registering again.
const HANDLES_MAX: usize = 8;

/// The epoch collector of a pool, which hands out epoch guards.
pub(crate) struct Epochs {
    collector: Collector,
    /// Dropped with the pool, so that a thread can tell which of its handles belong to pools that no longer exist.
    alive: Arc<()>,
}

struct ThreadHandle {
    handle: Rc<LocalHandle>,
    pool: Weak<()>,
}

thread_local! {
    /// The epoch handles of this thread, most recently used first.
    static HANDLES: RefCell<Vec<ThreadHandle>> = const { RefCell::new(Vec::new()) };
}

impl Epochs {
    pub(crate) fn new() -> Self {
        Self { collector: Collector::new(), alive: Arc::new(()) }
    }

    /// Pins the current epoch. Nothing is pinned or dropped while the thread's list of handles is borrowed, because
    /// both may run deferred calls.
    #[inline]
    pub(crate) fn pin(&self) -> Guard {
        let last = HANDLES.try_with(|handles| {
            let handles = handles.borrow();
            let first = handles.first().filter(|first| *first.handle.collector() == self.collector)?;
            Some(Rc::clone(&first.handle))
        });
        match last {
            Ok(Some(handle)) => handle.pin(),
            _ => self.pin_another(),
        }
    }

    /// Pins the epoch with a handle that is not the most recently used one, or with a new handle.
    #[cold]
    fn pin_another(&self) -> Guard {
        let earlier = HANDLES.try_with(|handles| {
            let mut handles = handles.borrow_mut();
            let at = handles.iter().position(|entry| *entry.handle.collector() == self.collector)?;
            handles[..=at].rotate_right(1);
            Some(Rc::clone(&handles[0].handle))
        });
        if let Ok(Some(handle)) = earlier {
            return handle.pin();
        }
        let handle = Rc::new(self.collector.register());
        let new = ThreadHandle { handle: Rc::clone(&handle), pool: Arc::downgrade(&self.alive) };
        // A thread that is ending keeps no handle: the guard alone keeps the registration alive.
        let gone = HANDLES.try_with(|handles| {
            let mut handles = handles.borrow_mut();
            let is_of_use = |handle: &mut ThreadHandle| handle.pool.strong_count() > 0;
            let mut gone: Vec<ThreadHandle> = handles.extract_if(.., |handle| !is_of_use(handle)).collect();
            if handles.len() == HANDLES_MAX {
                gone.extend(handles.pop());
            }
            handles.insert(0, new);
            gone
        });
        drop(gone);
        handle.pin()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn handles() -> usize {
        HANDLES.with(|handles| handles.borrow().len())
    }

    #[test]
    fn a_thread_keeps_a_bounded_number_of_handles_and_none_of_pools_that_are_gone() {
        let pools: Vec<_> = (0..HANDLES_MAX * 3).map(|_| Epochs::new()).collect();
        for round in 0..3 {
            for pool in pools.iter().cycle().skip(round).take(pools.len() * 2) {
                drop(pool.pin());
                assert!(*HANDLES.with(|handles| Rc::clone(&handles.borrow()[0].handle)).collector() == pool.collector);
            }
        }
        assert_eq!(handles(), HANDLES_MAX);
        drop(pools);
        drop(Epochs::new().pin());
        assert_eq!(handles(), 1);
    }

    #[test]
    fn guards_of_other_pools_delay_no_reclamation() {
        let (of_others, mine) = (Epochs::new(), Epochs::new());
        let _held = (crossbeam_epoch::pin(), of_others.pin());
        let ran = Arc::new(AtomicBool::new(false));
        let by_call = Arc::clone(&ran);
        mine.pin().defer(move || by_call.store(true, Ordering::SeqCst));
        for _ in 0..8 {
            mine.pin().flush();
        }
        assert!(ran.load(Ordering::SeqCst));
    }
}

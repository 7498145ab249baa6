//! Epoch reclamation: collects the frames and versions that no reader can reach any more, once the epoch guards that
//! were pinned while one could are gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_epoch::Guard;

use super::chunked_queue::ChunkedQueue;
use super::epochs::Epochs;
use super::registry::SupersededVersion;
use crate::budget::Budget;

/// Number of retired versions that may pile up before a committing thread drops them, and of retired items waiting to
/// be deferred together.
pub(super) const RETIRED_MAX: usize = 64;
/// Steps of a `Budget`, which bounds the work under one lock, that dropping a version spends.
const STEPS_A_VERSION: usize = 4;
/// Steps of a `Budget` that recycling a frame spends.
const STEPS_A_FRAME: usize = 2;
/// Number of flushes that let the epoch advance twice, unless a pinned guard prevents it.
const FLUSHES: usize = 4;

/// The epochs of a pool, and the frames and versions retired in them.
pub(super) struct Reclamation {
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
pub(super) struct RetiredLists {
    frames: ChunkedQueue<u32>,
    versions: ChunkedQueue<SupersededVersion>,
}

impl Reclamation {
    pub(super) fn new() -> Self {
        Self { epochs: Epochs::new(), retired: Arc::default() }
    }

    #[inline]
    pub(super) fn pin(&self) -> Guard {
        self.epochs.pin()
    }

    /// Advances the epoch as far as pinned guards allow, so that all items that no guard protects can be taken.
    pub(super) fn help(&self) {
        self.defer(std::mem::take(&mut *self.retired.lock_waiting()));
        for _ in 0..FLUSHES {
            self.epochs.pin().flush();
        }
    }

    /// Retires frames that cannot be found any more: they can be recycled once all guards pinned now are gone.
    pub(super) fn retire_frames(&self, frames: Vec<u32>) {
        self.retired.frame_count.fetch_add(frames.len(), Ordering::Relaxed);
        self.retire(WaitingItems { frames, versions: Vec::new() });
    }

    /// Retires versions that no later view requests: they can be dropped once all guards pinned now are gone.
    pub(super) fn retire_versions(&self, versions: Vec<SupersededVersion>) {
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
    pub(super) fn take_some(&self) -> (Vec<u32>, Vec<SupersededVersion>) {
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
    pub(super) fn frame_count(&self) -> usize {
        self.retired.frame_count.load(Ordering::Relaxed)
    }

    pub(super) fn is_empty(&self) -> bool {
        let lists = self.retired.lock();
        lists.frames.is_empty() && lists.versions.is_empty()
    }

    /// Returns the number of versions that can be dropped.
    pub(super) fn version_count(&self) -> usize {
        self.retired.lock().versions.len()
    }

    /// Blocks the threads that drop retired versions, until the returned guard is dropped.
    #[cfg(test)]
    pub(super) fn hold(&self) -> MutexGuard<'_, RetiredLists> {
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

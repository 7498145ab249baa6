//! Epoch reclamation: collects the frames and versions that no reader can reach any more, once the epoch guards that were
//! pinned while one could are gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_epoch::Guard;

use super::chunked_queue::ChunkedQueue;
use super::epochs::Epochs;
use super::registry::SupersededVersion;
use crate::budget::Budget;

/// Number of retired versions that may pile up before a committing thread drops them, and of deferred items before it
/// flushes the deferred calls.
pub(super) const RETIRED_MAX: usize = 64;
/// Budget steps that dropping a version takes; `STEPS_A_FRAME` is the same for recycling a frame.
const STEPS_A_VERSION: usize = 4;
const STEPS_A_FRAME: usize = 2;
/// Number of flushes that let the epoch advance twice, unless a pinned guard prevents it.
const FLUSHES: usize = 4;

/// The epochs of a pool, and the frames and versions that were retired in them.
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
    /// Number of retired frames and versions that deferred calls have not added yet.
    pending: AtomicUsize,
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

    /// Advances the epoch as far as pinned guards allow, so that deferred calls run.
    pub(super) fn help(&self) {
        for _ in 0..FLUSHES {
            self.epochs.pin().flush();
        }
    }

    /// Retires frames that cannot be found any more: they can be recycled once all guards that are pinned now are gone.
    pub(super) fn retire_frames(&self, frames: Vec<u32>) {
        self.after_this_epoch(frames.len(), move |lists| lists.frames.push_all(frames));
    }

    /// Retires versions that no later view requests: they can be dropped once all guards that are pinned now are gone.
    pub(super) fn retire_versions(&self, versions: Vec<SupersededVersion>) {
        self.after_this_epoch(versions.len(), move |lists| lists.versions.push_all(versions));
    }

    /// Defers the call of `add`, which adds `count` items, until all guards that are pinned now are gone.
    fn after_this_epoch(&self, count: usize, add: impl FnOnce(&mut RetiredLists) + Send + 'static) {
        if count == 0 {
            return;
        }
        let retired = Arc::downgrade(&self.retired);
        let pending = self.retired.pending.fetch_add(count, Ordering::Relaxed) + count;
        let guard = self.epochs.pin();
        guard.defer(move || {
            // Only adds the items to a list, because this may run under any lock that the thread holds.
            if let Some(retired) = retired.upgrade() {
                retired.pending.fetch_sub(count, Ordering::Relaxed);
                add(&mut retired.lock());
            }
        });
        if pending > RETIRED_MAX {
            // Without a flush the call would stay in this thread's own list until the thread has deferred some dozens more; no
            // other thread can run it, and each of many committing threads would keep some dozens of groups of dead versions.
            guard.flush();
        }
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
        (frames, versions)
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
}

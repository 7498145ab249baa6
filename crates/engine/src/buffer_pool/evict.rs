//! Evicts frames: first new pages that were used no more than once (`nursery`), then by a clock with small counters
//! (GCLOCK). A use raises a frame's counter, the hand lowers it, and frames with a zero counter are evicted: clean ones at
//! once, dirty ones after they were written, many together, if they are still cold.

#[cfg(test)]
mod policies;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::Core;
use super::frames::Frame;
use super::shard::Place;
use super::table::Entry;
use super::write::ToWrite;
use crate::bell::wake_all;
use crate::budget::{Budget, STEPS_MAX};
use crate::error::Error;
use crate::format::{CommitSeq, Location, PageId};

/// Rounds of the clock that find nothing before giving up: one more than the highest counter.
const ROUNDS: usize = 5;
/// Frames that the clock's hand may pass for each that is wanted at once.
const STEPS_AT_ONCE: usize = 16;
/// Frames that are kept free for reads that go out many together: this share of all, and so many at the most.
const STOCK_SHARE: usize = 64;
const STOCK_MAX: usize = 256;
/// A newcomer counts one use: by the operation that requested it.
const USES_OF_NEWCOMERS: u8 = 1;

/// A frame that the clock's hand found.
enum Found {
    /// Evicted: its number was removed from its place and is unreachable now.
    Clean(u32),
    /// Must be written first; pinned.
    Dirty(ToWrite),
}

impl Core {
    /// Frees about `want` frames, writing dirty pages if it must. Returns how many frames became free, will be soon, or became
    /// clean. Waits for the device. When pages cannot be written, the waiters for frames to write in receive the error; readers
    /// go on with frames that can be evicted without a write.
    pub(super) fn make_room(self: &Arc<Self>, want: usize) -> usize {
        self.help_epoch();
        let swept = self.sweep_all_ripe();
        let writers_wait = !self.full().waiting.is_empty();
        if swept >= want && !writers_wait {
            return swept;
        }
        let (mut clean, cold) = self.sweep_rounds(want, true);
        let mut dirty = cold.clone();
        let many_dirty = self.frames.dirty_count() > self.frames.dirty_max() * 3 / 4;
        if (writers_wait || many_dirty) && !self.keeper.has_soon() {
            self.pin_dirty(want.saturating_sub(dirty.len()), &mut dirty);
        }
        let before = self.counts.written.load(Ordering::Relaxed);
        if !dirty.is_empty() {
            if let Err(error) = self.write_frames(dirty) {
                self.fail_full(&error);
                clean.extend(self.sweep_rounds(want, false).0);
            }
            for item in &cold {
                match self.try_evict(item.frame, false) {
                    Some(Found::Clean(index)) => clean.push(index),
                    Some(Found::Dirty(item)) => self.unpin(item.page, item.frame),
                    None => {}
                }
            }
        }
        let written = (self.counts.written.load(Ordering::Relaxed) - before) as usize;
        self.counts.evicted.fetch_add(clean.len() as u64, Ordering::Relaxed);
        let freed = clean.len();
        self.retire(clean);
        self.help_epoch();
        let swept = swept + self.sweep_all_ripe();
        self.settle_full();
        freed.max(swept) + written
    }

    /// Frees about `want` frames that need no write, with a bounded amount of work and without waiting: for threads that need
    /// frames now, executors' threads included. Where this finds too few, the keeper must write.
    pub(super) fn make_clean_room(self: &Arc<Self>, want: usize) {
        if self.sweep_ripe() > 0 {
            return;
        }
        let (clean, _) = self.sweep_clock(want, false, want * STEPS_AT_ONCE, want * STEPS_AT_ONCE);
        self.counts.evicted.fetch_add(clean.len() as u64, Ordering::Relaxed);
        self.retire(clean);
        self.help_epoch();
        self.sweep_ripe();
    }

    /// Evicts `want` frames for reads to come when few are free: an evicted frame is free only after an epoch, which takes a moment
    /// while other threads read pages. Otherwise as [`Core::make_clean_room`].
    pub(super) fn restock(self: &Arc<Self>, want: usize) {
        self.sweep_ripe();
        let stock = (self.frames.count() / STOCK_SHARE).min(STOCK_MAX);
        if self.frames.free_count() >= self.frames.reserve() + stock {
            return;
        }
        let (clean, _) = self.sweep_clock(want, false, want * STEPS_AT_ONCE, want * STEPS_AT_ONCE);
        self.counts.evicted.fetch_add(clean.len() as u64, Ordering::Relaxed);
        self.retire(clean);
        self.help_epoch();
    }

    /// Moves the clock's hand until it has found `want` frames that can leave, or has turned so often that there are none. Others may
    /// move it in between.
    fn sweep_rounds(self: &Arc<Self>, want: usize, also_dirty: bool) -> (Vec<u32>, Vec<ToWrite>) {
        let (mut clean, mut dirty) = (Vec::new(), Vec::new());
        let (mut newcomers, mut steps) = (self.nursery.len(), self.frames.count() * ROUNDS);
        while clean.len() + dirty.len() < want && newcomers + steps > 0 {
            let wanted = want - clean.len() - dirty.len();
            // One or the other under one hold of the hand.
            let (of_newcomers, of_steps) =
                if newcomers > 0 { (newcomers.min(STEPS_MAX), 0) } else { (0, steps.min(STEPS_MAX)) };
            let found = self.sweep_clock(wanted, also_dirty, of_newcomers, of_steps);
            (newcomers, steps) = (newcomers - of_newcomers, steps - of_steps);
            clean.extend(found.0);
            dirty.extend(found.1);
            // A lock is not handed on in turn: this lets a thread that waits for the hand have it.
            std::thread::yield_now();
        }
        (clean, dirty)
    }

    /// Looks at so many newcomers, then moves the clock's hand so many steps, until it has found `want` frames that can leave.
    fn sweep_clock(
        self: &Arc<Self>,
        want: usize,
        also_dirty: bool,
        newcomers_max: usize,
        steps: usize,
    ) -> (Vec<u32>, Vec<ToWrite>) {
        let mut budget = Budget::new();
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut clean, mut dirty) = (Vec::new(), Vec::new());
        let mut newcomers_left = self.nursery.len().min(newcomers_max);
        let (mut newcomers, mut left, mut stay) = (Vec::new(), Vec::new(), Vec::new());
        while newcomers_left > 0 && clean.len() + dirty.len() < want {
            self.nursery.take_oldest(newcomers_left.min(want - clean.len() - dirty.len()), &mut newcomers);
            if newcomers.is_empty() {
                break;
            }
            newcomers_left -= newcomers.len();
            budget.spend(newcomers.len());
            // Each newcomer takes two cache misses: prefetched together.
            for (index, page) in &newcomers {
                self.frames.prefetch_facts(*index);
                self.table.prefetch(*page);
            }
            for (index, page) in newcomers.drain(..) {
                let frame = self.frames.frame(index);
                if !frame.is_published() || frame.page() != page || self.frames.heat(index) > USES_OF_NEWCOMERS {
                    // Evicted already, or used again: from now on the clock decides.
                    continue;
                }
                match self.try_evict(index, false) {
                    Some(Found::Clean(index)) => {
                        left.push(page);
                        clean.push(index);
                    }
                    // It became another page's in between, or the like: rare, and the clock finds it.
                    Some(Found::Dirty(item)) => self.unpin(item.page, item.frame),
                    None => stay.push((index, page)),
                }
            }
            self.nursery.settle(&left, &stay);
            left.clear();
            stay.clear();
        }
        for _ in 0..steps {
            if clean.len() + dirty.len() >= want {
                break;
            }
            budget.spend(1);
            let index = *clock as u32;
            *clock = (*clock + 1) % self.frames.count();
            if !also_dirty && self.frames.frame(index).disk().is_none() {
                continue;
            }
            match self.try_evict(index, true) {
                Some(Found::Clean(index)) => clean.push(index),
                Some(Found::Dirty(item)) if also_dirty => dirty.push(item),
                // Became dirty since it was looked at: not possible, but its pin must not be lost.
                Some(Found::Dirty(item)) => self.unpin(item.page, item.frame),
                None => {}
            }
        }
        (clean, dirty)
    }

    /// Pins dirty frames, hot or not, to be written and kept: too many dirty frames block writers.
    fn pin_dirty(&self, want: usize, into: &mut Vec<ToWrite>) {
        let first = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let most = into.len() + want;
        let count = self.frames.count();
        for index in (first..first + count).map(|index| (index % count) as u32) {
            if into.len() >= most {
                break;
            }
            if self.frames.frame(index).is_published()
                && self.frames.frame(index).disk().is_none()
                && let Some(Found::Dirty(item)) = self.try_evict(index, false)
            {
                into.push(item);
            }
        }
    }

    /// Gives the writers that wait for frames an error, in place of frames.
    pub(super) fn fail_full(&self, error: &Error) {
        let waiting = std::mem::take(&mut self.full().waiting);
        let wake: Vec<_> = waiting.iter().filter_map(|waiter| waiter.fail(error.clone())).collect();
        wake_all(wake);
    }

    /// Evicts a frame if it is cold, clean and unpinned. Returns it pinned, as dirty, if it only has to be written first.
    fn try_evict(&self, index: u32, cool: bool) -> Option<Found> {
        let frame = self.frames.frame(index);
        if !frame.is_published() || frame.pins() > 0 || (cool && !self.frames.cool(index)) {
            return None;
        }
        let page = frame.page();
        let mut shard = self.shard(page);
        // Under the lock it cannot be pinned or moved; before, it may have become another page's.
        if !frame.is_published() || frame.page() != page || frame.pins() > 0 || frame.is_doomed() {
            return None;
        }
        let newest = Entry::from_word(self.table.load(page)) == Entry::Resident(index);
        let version = if newest { None } else { shard.version_in_frame(page, index) };
        if !newest && version.is_none() {
            return None;
        }
        let Some(at) = frame.disk() else {
            frame.pin(1);
            return Some(Found::Dirty(ToWrite { page, frame: index }));
        };
        match version {
            None => self.table.store(page, Entry::OnDisk(at).to_word()),
            Some(version) => version.place = Place::Disk(at),
        }
        Some(Found::Clean(index))
    }

    /// Runs deferred calls that wait only for some thread to advance the epoch.
    pub(crate) fn help_epoch(&self) {
        for _ in 0..4 {
            self.epochs.pin().flush();
        }
    }

    /// Pins the frame of a page version as of `at` if it must still be written, or says where it is. `at` is registered.
    pub(crate) fn checkpoint_place(&self, page: PageId, at: CommitSeq) -> CheckpointPlace {
        let place_of = |index: u32, frame: &Frame| match frame.disk() {
            Some(at) => CheckpointPlace::OnDisk(at),
            None => {
                frame.pin(1);
                CheckpointPlace::Dirty(ToWrite { page, frame: index })
            }
        };
        let mut shard = self.shard(page);
        if let Some(version) = shard.version_at(page, at) {
            return match version.place {
                Place::Frame(index) => place_of(index, self.frames.frame(index)),
                Place::Disk(at) | Place::Loading(at) => CheckpointPlace::OnDisk(at),
            };
        }
        match Entry::from_word(self.table.load(page)) {
            Entry::Resident(index) if self.frames.frame(index).commit() <= at => {
                place_of(index, self.frames.frame(index))
            }
            // Changed since, and not among the versions: so it did not exist as of `at`, even if its id had a page before. Looked up
            // under this lock, because the id may have been reused since an earlier look.
            Entry::OnDisk(_) | Entry::Loading(_) if self.last_change(page) > at => CheckpointPlace::Absent,
            Entry::OnDisk(at) | Entry::Loading(at) => CheckpointPlace::OnDisk(at),
            Entry::Free | Entry::Resident(_) => CheckpointPlace::Absent,
        }
    }

    /// Enters `at` for this page into the page table of the next checkpoint. Releases the block that the table named before,
    /// unless a version that can still be read lies there.
    pub(crate) fn take_over(&self, page: PageId, at: Option<Location>) {
        let shard = self.shard(page);
        let mut books = self.books();
        let before = books.map.set(page, at);
        let Some(before) = before.filter(|before| at.is_none_or(|at| at.block != before.block)) else { return };
        let disk_of = |index: u32| self.frames.frame(index).disk();
        let newest_uses = match Entry::from_word(self.table.load(page)) {
            Entry::OnDisk(at) | Entry::Loading(at) => at.block == before.block,
            Entry::Resident(index) => disk_of(index).is_some_and(|at| at.block == before.block),
            Entry::Free => false,
        };
        if !newest_uses && !shard.version_uses(page, before.block, disk_of) {
            books.space.release(before.block);
        }
    }
}

/// The work that a checkpoint has to do for a page.
#[derive(Debug)]
pub(crate) enum CheckpointPlace {
    /// Write it: pinned.
    Dirty(ToWrite),
    /// Name this place.
    OnDisk(Location),
    /// There is no such page as of the checkpoint.
    Absent,
}

//! Which frames leave: a clock with small counters (GCLOCK). A use raises a frame's counter, the hand lowers it, cold
//! frames go. Clean ones go at once; dirty ones are written first, many together, and go if they are still cold.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::Core;
use super::frames::Frame;
use super::shard::Place;
use super::table::Entry;
use super::write::ToWrite;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, Location, PageId};

/// Rounds of the clock that find nothing before giving up: one more than the highest counter.
const ROUNDS: usize = 5;
/// Times a waiter looks again, a moment later each time, before it says that the pool is too small.
const IDLE_ROUNDS_MAX: usize = 5000;

/// What the hand found.
enum Found {
    /// Could be taken out of its place: unreachable now.
    Clean(u32),
    /// Must be written first; pinned.
    Dirty(ToWrite),
}

impl Core {
    /// Frees about `want` frames, writing dirty pages if it must. Answers how many frames became free or may soon. Waits
    /// for the device.
    ///
    /// # Errors
    /// When nothing could be freed because writes fail.
    pub(super) fn make_room(self: &Arc<Self>, want: usize) -> Result<usize> {
        self.help_epoch();
        let swept = self.sweep_ripe();
        if swept >= want {
            return Ok(swept);
        }
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut clean = Vec::new();
        let mut dirty = Vec::new();
        for _ in 0..self.frames.count() * ROUNDS {
            if clean.len() + dirty.len() >= want {
                break;
            }
            let index = *clock as u32;
            *clock = (*clock + 1) % self.frames.count();
            match self.try_evict(index, true) {
                Some(Found::Clean(index)) => clean.push(index),
                Some(Found::Dirty(item)) => dirty.push(item),
                None => {}
            }
        }
        drop(clock);
        let mut written = Ok(());
        if !dirty.is_empty() {
            written = self.write_frames(dirty.clone());
            for item in &dirty {
                match self.try_evict(item.frame, false) {
                    Some(Found::Clean(index)) => clean.push(index),
                    Some(Found::Dirty(item)) => self.unpin(item.page, item.frame),
                    None => {}
                }
            }
        }
        self.counts.evicted_clean.fetch_add((clean.len().saturating_sub(dirty.len())) as u64, Ordering::Relaxed);
        let freed = clean.len();
        self.retire(clean);
        self.help_epoch();
        let swept = swept + self.sweep_ripe();
        if freed + swept == 0 { written.map(|()| 0) } else { Ok(freed.max(swept)) }
    }

    /// Takes a frame out of its place if it is cold, clean and unpinned; says so if it only has to be written first.
    fn try_evict(&self, index: u32, cool: bool) -> Option<Found> {
        let frame = self.frames.frame(index);
        if !frame.is_published() || frame.pins() > 0 || (cool && !frame.cool()) {
            return None;
        }
        let page = frame.page();
        let mut shard = self.shard(page);
        // Under the lock nobody pins it and nobody moves it; before, it may have become another page's.
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

    /// Lets deferred calls run that wait only for nobody in particular to look at the epoch.
    pub(crate) fn help_epoch(&self) {
        for _ in 0..4 {
            crossbeam_epoch::pin().flush();
        }
    }

    /// After many idle rounds of a waiter that nobody else can help.
    ///
    /// # Errors
    /// `NoSpace` when it is time to give up: everything is pinned, and stays so.
    pub(super) fn give_up_after(&self, idle_rounds: usize) -> Result<()> {
        if idle_rounds > IDLE_ROUNDS_MAX {
            let what = format!(
                "no frame of {} became free: too many operations wait at once for a cache this small",
                self.frames.count()
            );
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        if idle_rounds > 2 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    /// Pins the frame of a page version as of `at` if it must still be written, or says where it is. `at` is registered;
    /// `changed_since` says that the page's last change is younger.
    pub(crate) fn checkpoint_place(&self, page: PageId, at: CommitSeq, changed_since: bool) -> CheckpointPlace {
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
            // Not among the versions: then it did not exist yet.
            _ if changed_since => CheckpointPlace::Absent,
            Entry::Resident(index) if self.frames.frame(index).commit() <= at => {
                place_of(index, self.frames.frame(index))
            }
            Entry::OnDisk(at) | Entry::Loading(at) => CheckpointPlace::OnDisk(at),
            Entry::Free | Entry::Resident(_) => CheckpointPlace::Absent,
        }
    }

    /// The page table in the making names `at` for this page from now on. The block it named before is given up, unless
    /// some version that can still be read lies there.
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

/// What a checkpoint has to do about a page.
#[derive(Debug)]
pub(crate) enum CheckpointPlace {
    /// Write it: pinned.
    Dirty(ToWrite),
    /// Name this place.
    OnDisk(Location),
    /// There is no such page as of the checkpoint.
    Absent,
}

//! The optional background threads of a pool: one writes dirty pages and keeps frames free where a search for clean frames
//! finds too few; the other takes completions of reads for executors and for long range scans. Without them blocking waiters
//! do both themselves, as in deterministic tests.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::lane::evict_batch;
use super::{CheckpointPlace, Core, NEWEST, Pager};
use crate::background;
use crate::error::Result;
use crate::format::PageId;

/// Most frames freed at a time while many of them must be written first.
const WRITE_BATCH_MAX: usize = 1024;
/// Most pages written early at a time: so many that the device is seldom idle between two lots.
const SOON_BATCH_MAX: usize = 4096;
/// Most pages that wait to be written without need: half a megabyte of numbers.
const SOON_MAX: usize = 1 << 16;

/// Longest pause of the thread that keeps frames free, unless it is woken.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Its pause while the queue refuses reads.
const OFFER_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// How the keeper is woken.
#[derive(Debug)]
pub(super) struct Signal {
    work: Mutex<bool>,
    changed: Condvar,
    running: AtomicBool,
    /// True while reads wait for frames and the thread has been woken for them already.
    starving: AtomicBool,
    /// Rounds in a row that freed nothing.
    rounds_in_vain: AtomicU32,
    /// Pages to be written when nothing is more pressing.
    soon: Mutex<VecDeque<PageId>>,
}

impl Signal {
    pub(super) fn new() -> Self {
        let (running, starving) = (AtomicBool::new(false), AtomicBool::new(false));
        let (work, changed) = (Mutex::new(false), Condvar::new());
        Self { work, changed, running, starving, rounds_in_vain: AtomicU32::new(0), soon: Mutex::default() }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    pub(super) fn wake(&self) {
        if self.is_running() {
            *self.work.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.changed.notify_one();
        }
    }

    /// Notes that reads wait for frames. Wakes the thread unless it has been woken for this already.
    pub(super) fn starve(&self) {
        if !self.starving.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    pub(super) fn is_starving(&self) -> bool {
        self.starving.load(Ordering::SeqCst)
    }

    /// Wakes the thread if reads wait for frames: a frame has become evictable.
    pub(super) fn wake_if_starving(&self) {
        if self.is_starving() {
            self.wake();
        }
    }

    /// The pause after a round that freed nothing: longer after each such round, until the thread is woken.
    fn longer_pause(&self) -> Duration {
        let rounds = self.rounds_in_vain.load(Ordering::Relaxed);
        self.rounds_in_vain.store(rounds.saturating_add(1), Ordering::Relaxed);
        Duration::from_millis(1 << rounds.min(7)).min(PAUSE_MAX)
    }

    /// See [`crate::pages::Store::write_soon`].
    pub(super) fn write_soon(&self, pages: &[PageId]) {
        if !self.is_running() {
            return;
        }
        {
            let mut soon = self.soon.lock().unwrap_or_else(PoisonError::into_inner);
            let room = SOON_MAX - soon.len();
            soon.extend(pages.iter().take(room));
        }
        self.wake();
    }

    /// Whether there are pages to be written anyway.
    pub(super) fn has_soon(&self) -> bool {
        !self.soon.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn take_soon(&self) -> Vec<PageId> {
        let mut soon = self.soon.lock().unwrap_or_else(PoisonError::into_inner);
        let count = soon.len().min(SOON_BATCH_MAX);
        soon.drain(..count).collect()
    }

    /// Whether it was woken and has not begun its next round.
    #[cfg(test)]
    pub(super) fn is_woken(&self) -> bool {
        *self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the thread as running without starting it, so that a test can call its rounds.
    #[cfg(test)]
    pub(super) fn run_by_test(&self) {
        self.running.store(true, Ordering::Relaxed);
    }

    /// Sleeps until it is woken, at most for the given time. A call of [`Signal::wake`] since the last sleep counts.
    pub(super) fn wait(&self, most: Duration) {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |work: &mut bool| !*work;
        let (mut work, _) = self.changed.wait_timeout_while(work, most, idle).unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *work) {
            self.rounds_in_vain.store(0, Ordering::Relaxed);
        }
    }
}

/// The threads of a pool; they end when this is dropped.
pub(crate) struct Keeper {
    core: Weak<Core>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pager {
    /// Starts the background threads: from now on readers never write, and tickets can be polled.
    ///
    /// # Errors
    /// `NoSpace` when the system has no threads or descriptors left.
    pub(crate) fn start_keeper(&self) -> Result<Keeper> {
        let stop = Arc::new(AtomicBool::new(false));
        let (core, core_again) = (Arc::downgrade(self.core()), Arc::downgrade(self.core()));
        let (stop_evict, stop_reap) = (Arc::clone(&stop), Arc::clone(&stop));
        let evictor = move || keep_frames_free(&core, &stop_evict);
        let reaper = move || reap_for_others(&core_again, &stop_reap);
        self.core().keeper.running.store(true, Ordering::Relaxed);
        self.core().bell.set_listened(true);
        let mut keeper = Keeper { core: Arc::downgrade(self.core()), stop, threads: Vec::new() };
        keeper.threads.push(background::start("nofault-evict", evictor)?);
        keeper.threads.push(background::start("nofault-reap", reaper)?);
        Ok(keeper)
    }
}

/// The right of an executor's own poller to take completions. While one exists, the reaper thread stands back.
pub(crate) struct ReadCompletions {
    core: Arc<Core>,
    ready_fd: OwnedFd,
}

impl Pager {
    /// Hands the completions of reads over; `None` when the queue has no descriptor.
    pub(crate) fn completions(&self) -> Option<ReadCompletions> {
        let ready_fd = self.core().lane.ready_fd.as_ref()?.try_clone().ok()?;
        self.core().lane.reaped_outside(true);
        self.core().bell.ring();
        Some(ReadCompletions { core: Arc::clone(self.core()), ready_fd })
    }
}

impl ReadCompletions {
    /// Takes completions and submits queued reads, unless another thread is doing so.
    pub(crate) fn take(&self) {
        self.core.take_reads();
    }
}

impl AsFd for ReadCompletions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready_fd.as_fd()
    }
}

impl Drop for ReadCompletions {
    fn drop(&mut self) {
        self.core.lane.reaped_outside(false);
        self.core.bell.ring();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(core) = self.core.upgrade() {
            core.keeper.wake();
            core.bell.ring();
            core.bell.set_listened(false);
            core.keeper.running.store(false, Ordering::Relaxed);
        }
        for thread in self.threads.drain(..) {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}

impl Core {
    /// Notes that a ticket is polled: from now on a dedicated thread must take completions.
    pub(super) fn expect_async(&self) {
        if !self.async_seen.load(Ordering::Relaxed) {
            self.async_seen.store(true, Ordering::SeqCst);
            self.bell.ring();
        }
    }

    /// Writes those of the pages that are only in memory. A page stays dirty if its write fails, until it must be written.
    fn write_early(self: &Arc<Self>, mut pages: Vec<PageId>) {
        // Each once: the frames of one call are all checked before the first of them is written.
        pages.sort_unstable();
        pages.dedup();
        let dirty_of = |page: &PageId| match self.checkpoint_place(*page, NEWEST) {
            CheckpointPlace::Dirty(item) => Some(item),
            CheckpointPlace::OnDisk(_) | CheckpointPlace::Absent => None,
        };
        let dirty: Vec<_> = pages.iter().filter_map(dirty_of).collect();
        if !dirty.is_empty() {
            let frames: Vec<_> = dirty.iter().map(|item| (item.frame, item.page)).collect();
            // The error is dropped: an operation that needs the frames, or the pages on disk, tries again and reports its error.
            let _ = self.write_frames(dirty);
            // No operation has requested them yet, so they are evicted before pages that were requested.
            self.nursery.came(frames.into_iter());
        }
    }
}

fn keep_frames_free(core: &Weak<Core>, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let Some(core) = core.upgrade() else { return };
        let pause = core.keep_round(Instant::now());
        if pause > Duration::ZERO {
            core.keeper.wait(pause);
        }
    }
}

impl Core {
    /// Runs one round of the thread that keeps frames free. Returns the time to sleep afterwards, unless the thread is woken: no
    /// round wakes the thread itself.
    pub(super) fn keep_round(self: &Arc<Self>, now: Instant) -> Duration {
        self.sweep_all_ripe();
        let batch = evict_batch(self.frames.count());
        let low_water = self.frames.reserve() + batch;
        // Pins that this round ends wake nothing.
        let starving = self.keeper.starving.swap(false, Ordering::SeqCst);
        if starving {
            // Before the writes, which take their time.
            self.make_clean_room(batch);
        }
        let soon = self.keeper.take_soon();
        let wrote_soon = !soon.is_empty();
        self.write_early(soon);
        let mut freed = 0;
        let many_dirty = self.frames.dirty_count() > self.frames.dirty_max() * 3 / 4;
        let writers_wait = !self.full().waiting.is_empty();
        let must_write = (many_dirty || writers_wait) && !self.keeper.has_soon();
        if starving || must_write || self.frames.free_count() < low_water {
            // Dirty pages go out many at a time, in a few large operations side by side; and writers go on writing meanwhile.
            freed = self.make_room(if many_dirty || writers_wait {
                batch.max(self.frames.count() / 16).min(WRITE_BATCH_MAX)
            } else {
                batch
            });
        }
        // Done at every round: a thread that finds no frame for its reads sets the flag and leaves, perhaps after frames were
        // freed, and perhaps while it still has the queue. Reads that find none now wake nothing, as this round looked for frames.
        self.keeper.starving.store(true, Ordering::SeqCst);
        self.send_reads();
        if !self.lane.is_short_of_frames() {
            self.keeper.starving.store(false, Ordering::SeqCst);
            if self.lane.is_short_of_frames() {
                // Some came in between, and woke nothing.
                self.keeper.starving.store(true, Ordering::SeqCst);
            }
        }
        self.look_for_standstill(now);
        let pressed = self.frames.free_count() < low_water;
        if pressed && freed == 0 && !wrote_soon {
            return self.keeper.longer_pause();
        }
        self.keeper.rounds_in_vain.store(0, Ordering::Relaxed);
        if pressed || wrote_soon {
            Duration::ZERO
        } else if self.lane.is_stuck() || self.lane.is_short_of_frames() {
            // Reads that the queue did not take are offered again.
            OFFER_AGAIN_AFTER
        } else {
            PAUSE_MAX
        }
    }
}

fn reap_for_others(core: &Weak<Core>, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        let Some(core) = core.upgrade() else { return };
        // Until a ticket is polled or a long range scan begins, blocking waiters take their completions themselves; a wake-up of
        // this thread for each of these would only slow them down.
        let is_wanted = || {
            let wanted = core.async_seen.load(Ordering::Relaxed) || core.lane.walks.are_relied_on();
            wanted && !core.lane.is_reaped_outside()
        };
        let listens = is_wanted();
        let ready = core.lane.ready_fd.as_ref().filter(|_| listens).map(AsFd::as_fd);
        // A disk without a descriptor: look now and then.
        let most = (listens && ready.is_none()).then_some(Duration::from_micros(200));
        core.bell.wait(ready, most);
        // The bell may have rung for a scan that has just begun and for its first reads.
        if (listens || is_wanted()) && !stop.load(Ordering::SeqCst) {
            // An error here is one of the queue as a whole: the next submit meets it, too.
            let _ = core.reap_reads(0);
            core.submit_reads();
        }
    }
}

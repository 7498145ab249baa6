//! The read path of the pool: from a miss to a resident page.
//!
//! A miss marks its page *loading* and stages a read; `submit_reads` gives staged reads a frame and submits them together. The
//! thread that takes completions from the queue installs their pages and wakes the waiters. One thread at a time handles the
//! queue; the others leave their reads staged and go on, so an executor's thread never waits for the queue. A thread that may
//! block and needs one page carries the read out itself: without a ticket (`read_alone`), or, where it has one, by taking the
//! read back if it has not been submitted yet (`read_here`).
//!
//! A long range scan leaves all of this to the keeper's thread (`walks`); and when it must wait all the same, it helps to
//! install the completed runs (`flights::Landed`).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use nofault_io::disk::{Disk, QueueOptions};

use super::Core;
use super::flights::{Landed, ReadQueue, Scratch};
use super::frames::OwnedFrame;
use super::shard::{Place, ReadId, Shard};
use super::table::Entry;
use super::ticket::Waiter;
use super::walks::Walks;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Location, PageId};
use crate::pages::Missing;

/// Staged reads of tasks that go out without waiting for more. Twice as many save no CPU.
const BATCH: usize = 8;
/// Completions that a blocking waiter waits for at a time, if it needs that many.
const COMPLETIONS_AT_ONCE: usize = 4;
/// Most milliseconds that a blocking waiter sleeps, relying on other threads, before it checks the queue itself.
const PARKED_MS: usize = 100;

/// The reads of a pool.
pub(super) struct Lane {
    pub(super) disk: Arc<dyn Disk>,
    /// Reads that no thread has put in line yet.
    staged: Mutex<VecDeque<Read>>,
    /// How often the staged reads, all of them, were put in line. Counted under their lock.
    lined_up: AtomicUsize,
    queue: Mutex<ReadQueue>,
    /// Completed runs that are not taken apart yet. The thread that put them there takes them apart, and waiting threads help.
    landed: Mutex<VecDeque<Landed>>,
    pub(super) scratch: Arc<Scratch>,
    /// Reads that wait in the queue for room at the device, as its last user left them.
    in_line: AtomicUsize,
    /// Reads staged or at the device.
    in_flight: AtomicUsize,
    /// Operations that the device has: those that got a place there and wait for a frame do not count.
    under_way: AtomicUsize,
    /// Reads that have completed, in all. A waiter compares two values of it to learn whether any read ended meanwhile.
    finished: AtomicUsize,
    /// Operations at the device, and at most.
    at_device: AtomicUsize,
    at_device_max: usize,
    /// Blocking waiters that found the queue taken.
    followers: Mutex<Vec<Arc<Waiter>>>,
    pub(super) ready_fd: Option<OwnedFd>,
    /// Number of executors' pollers that take completions themselves.
    outside: AtomicUsize,
    pub(super) walks: Walks,
    /// An outside poller found the queue taken: the queue's holder looks for completions again after it has released the queue.
    pub(super) missed: AtomicBool,
    /// Reads are in the queue that could not be submitted: the next attempt must not depend on a completion.
    stuck: AtomicBool,
}

/// A page to be read.
pub(super) struct Read {
    pub(super) id: ReadId,
    pub(super) attempt: u32,
    /// Set when a read together with others failed.
    pub(super) alone: bool,
    /// Its frame, unless the operation in flight has the memory.
    pub(super) frame: Option<OwnedFrame>,
}

impl Read {
    pub(super) fn new(id: ReadId) -> Self {
        Self { id, attempt: 1, alone: false, frame: None }
    }

    pub(super) fn page(&self) -> PageId {
        self.id.page
    }

    /// The block that is read.
    pub(super) fn block(&self) -> u64 {
        self.id.at.block.0
    }
}

/// The result of one round of a blocking waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// Something happened.
    Moved,
    /// Nothing happened, for as long as `weight` short rounds take.
    Idle { weight: usize },
}

impl Round {
    fn of(moved: bool) -> Self {
        if moved { Self::Moved } else { Self::Idle { weight: 1 } }
    }
}

/// The state of a page after an attempt to begin a read of it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Begun {
    /// Marked by this call: the caller must read it.
    Here(ReadId),
    /// Already being read from this place by another thread.
    Already(Location),
    /// It is in memory.
    Resident(u32),
    /// There is no such page.
    Nowhere,
}

impl Lane {
    pub(super) fn new(disk: &Arc<dyn Disk>, options: &QueueOptions, scratch: Scratch) -> Result<Self> {
        let queue = disk.queue(options).map_err(|error| Error::from_io("open a queue of the data file", error))?;
        let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let ready_fd =
            queue.ready_fd().map(own).transpose().map_err(|error| {
                Error::new(ErrorKind::NoSpace, format!("duplicate the descriptor of a queue: {error}"))
            })?;
        let scratch = Arc::new(scratch);
        let queue = Mutex::new(ReadQueue::new(queue, Arc::clone(&scratch)));
        Ok(Self {
            disk: Arc::clone(disk),
            staged: Mutex::default(),
            lined_up: AtomicUsize::new(0),
            queue,
            landed: Mutex::default(),
            scratch,
            in_line: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            at_device: AtomicUsize::new(0),
            at_device_max: options.depth_max,
            followers: Mutex::default(),
            ready_fd,
            outside: AtomicUsize::new(0),
            walks: Walks::default(),
            missed: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
        })
    }

    pub(super) fn reaped_outside(&self, begins: bool) {
        if begins {
            self.outside.fetch_add(1, Ordering::SeqCst);
        } else {
            self.outside.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn is_reaped_outside(&self) -> bool {
        self.outside.load(Ordering::SeqCst) > 0
    }

    pub(super) fn landed(&self) -> MutexGuard<'_, VecDeque<Landed>> {
        self.landed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one completed read.
    pub(super) fn one_is_over(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.finished.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How many operations are at the device.
    pub(super) fn at_device(&self) -> usize {
        self.at_device.load(Ordering::Relaxed)
    }

    /// Whether one more operation may go to the device; if so it counts until [`Lane::leave_device`].
    pub(super) fn enter_device(&self) -> bool {
        let more = |count: usize| (count < self.at_device_max).then_some(count + 1);
        self.at_device.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts an operation that was sent to the device.
    pub(super) fn note_sent(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts operations that came back from the device.
    pub(super) fn note_back(&self, count: usize) {
        self.under_way.fetch_sub(count, Ordering::Relaxed);
        self.leave_device(count);
    }

    pub(super) fn leave_device(&self, count: usize) {
        self.at_device.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn staged(&self) -> MutexGuard<'_, VecDeque<Read>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lined_up(&self) -> usize {
        self.lined_up.load(Ordering::Relaxed)
    }

    /// Takes the staged reads, all of them, to put them into line.
    pub(super) fn line_up(&self, take: impl FnOnce(&mut VecDeque<Read>)) {
        let mut staged = self.staged();
        if !staged.is_empty() {
            take(&mut staged);
            self.lined_up.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn set_in_line(&self, count: usize) {
        self.in_line.store(count, Ordering::SeqCst);
    }

    /// How many operations the device has.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    /// How many reads have ended, in all.
    pub(super) fn finished(&self) -> usize {
        self.finished.load(Ordering::Relaxed)
    }

    /// Whether reads are in line while the device has none: they wait for frames, or the queue refused them.
    pub(super) fn is_short_of_frames(&self) -> bool {
        self.in_line.load(Ordering::SeqCst) > 0 && self.under_way() == 0
    }

    /// Whether reads in the queue could not be sent.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Whether there are reads that are not at the device yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.in_line.load(Ordering::Relaxed) > 0 || self.is_stuck() || !self.staged().is_empty()
    }

    /// Notes whether reads in the queue could not be sent. Under its lock.
    pub(super) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Relaxed);
    }

    fn followers(&self) -> MutexGuard<'_, Vec<Arc<Waiter>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn try_queue(&self) -> Option<MutexGuard<'_, ReadQueue>> {
        match self.queue.try_lock() {
            Ok(queue) => Some(queue),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Core {
    /// Requests a page in the version that a view at `missing.at` wants, and has it pinned for the waiter once it is in memory.
    pub(super) fn ask(&self, missing: Missing, waiter: &Arc<Waiter>) {
        let read = self.ask_for(missing, Some(waiter));
        self.stage(read.into_iter());
    }

    /// Requests pages that no operation waits for yet.
    pub(super) fn ask_ahead(&self, pages: &[Missing]) {
        // The table entries are in no CPU cache, and those of neighbours share lines: they are prefetched together.
        pages.iter().for_each(|missing| self.table.prefetch(missing.page));
        let reads: Vec<Read> = pages.iter().filter_map(|missing| self.ask_for(*missing, None)).collect();
        self.stage(reads.into_iter());
    }

    fn stage(&self, reads: impl ExactSizeIterator<Item = Read>) {
        let count = reads.len();
        if count > 0 {
            self.count_misses(count);
            self.lane.staged().extend(reads);
        }
    }

    /// Counts reads that were begun and are nowhere yet.
    pub(super) fn count_misses(&self, count: usize) {
        self.counts.misses.fetch_add(count as u64, Ordering::Relaxed);
        self.lane.in_flight.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the read that brings a page, unless the page is in memory or being read already.
    fn ask_for(&self, missing: Missing, waiter: Option<&Arc<Waiter>>) -> Option<Read> {
        let page = missing.page;
        let mut guard = self.shard(page);
        let shard = &mut *guard;
        let found = self.begin_read(shard, missing);
        let (at, read) = match found {
            Begun::Here(id) => (id.at, Some(Read::new(id))),
            Begun::Already(at) => {
                self.counts.joined.fetch_add(1, Ordering::Relaxed);
                (at, None)
            }
            Begun::Resident(frame) => {
                self.pin_for(page, frame, waiter);
                return None;
            }
            Begun::Nowhere => return None,
        };
        if let (Some(waiter), Some(load)) = (waiter, shard.load(page, at.block)) {
            waiter.expect_read(page);
            load.add_waiter(Arc::clone(waiter));
        }
        read
    }

    /// Marks a page as being read, in the version that a view at `missing.at` wants, unless it is in memory or marked already. The
    /// caller that gets [`Begun::Here`] must carry the read out. Under the lock of the page's shard.
    pub(super) fn begin_read(&self, shard: &mut Shard, missing: Missing) -> Begun {
        let Missing { page, at } = missing;
        if let Some(version) = shard.version_at(page, at) {
            match version.place {
                Place::Frame(frame) => Begun::Resident(frame),
                Place::Loading(at) => Begun::Already(at),
                Place::Disk(at) => {
                    version.place = Place::Loading(at);
                    Begun::Here(shard.begin_load(page, at))
                }
            }
        } else {
            match Entry::from_word(self.table.load(page)) {
                Entry::Free => Begun::Nowhere,
                Entry::Resident(frame) => Begun::Resident(frame),
                Entry::Loading(at) => Begun::Already(at),
                Entry::OnDisk(at) => {
                    self.table.store(page, Entry::Loading(at).to_word());
                    Begun::Here(shard.begin_load(page, at))
                }
            }
        }
    }

    /// Pins a page that is in memory after all. Under the lock of the page's shard.
    fn pin_for(&self, page: PageId, frame: u32, waiter: Option<&Arc<Waiter>>) {
        if let Some(waiter) = waiter
            && waiter.pinned(page, frame)
        {
            self.frames.frame(frame).pin(1);
        }
    }

    /// Submits staged reads, as far as there are frames and no other thread has the queue, and takes completions.
    pub(super) fn submit_reads(self: &Arc<Self>) {
        let is_idle = self.send_reads();
        if !self.keeper.is_running() {
            self.look_for_standstill(Instant::now());
        } else if is_idle && !self.keeper.is_starving() {
            self.keeper.wake();
        }
    }

    /// As [`Core::submit_reads`], without waking a thread. Returns whether reads are left while the device has none: then no
    /// completion leads to the next attempt. Returns false while the device is busy, because the thread that takes the next
    /// completion submits more.
    pub(super) fn send_reads(self: &Arc<Self>) -> bool {
        // Again when reads were staged after the last look and their submitter found the queue taken.
        while self.lane.has_unsent() {
            let Some(queue) = self.lane.try_queue() else { return false };
            let busy = self.lane.at_device() > 0;
            let started = self.work_reads(queue, 0);
            if !matches!(started, Ok(progress) if progress > 0) {
                return !busy;
            }
        }
        false
    }

    /// Submits staged reads if they are a batch, and returns whether they were.
    pub(super) fn submit_batch(self: &Arc<Self>) -> bool {
        let is_batch = self.lane.staged().len() >= BATCH;
        if is_batch {
            self.submit_reads();
        }
        is_batch
    }

    /// Runs one round for a blocking waiter: submits the staged reads and waits for a completion, or evicts frames, or lets
    /// another thread do these. Returns whether something happened.
    ///
    /// # Errors
    /// When the queue cannot be used any more.
    pub(super) fn drive(self: &Arc<Self>, waiter: &Arc<Waiter>) -> Result<Round> {
        if self.read_here(waiter) {
            return Ok(Round::Moved);
        }
        if self.unload_run() {
            // The run's memory is free for the next run.
            self.submit_reads();
            return Ok(Round::Moved);
        }
        if self.is_reaped()
            && let Some(round) = self.rely_on_keeper(waiter)
        {
            return Ok(round);
        }
        let queue = self.lane.try_queue().or_else(|| {
            self.lane.followers().push(Arc::clone(waiter));
            // Tries once more: the holder may have released the queue, looking for followers, just before the push above.
            self.lane.try_queue()
        });
        let Some(queue) = queue else {
            return Ok(self.park_for_others(waiter));
        };
        if waiter.is_ready() {
            drop(queue);
            // Others found the queue taken meanwhile.
            self.look_again();
            self.submit_reads();
            return Ok(Round::Moved);
        }
        // A waiter alone waits for several of its pages at once. With executors or followers it takes each completion at once.
        let is_shared = self.async_seen.load(Ordering::Relaxed) || !self.lane.followers().is_empty();
        let wait_for = if is_shared { 1 } else { waiter.reads_left().clamp(1, COMPLETIONS_AT_ONCE) };
        let progress = self.work_reads(queue, wait_for)?;
        // Reads staged by others while this thread had the queue.
        self.submit_reads();
        if progress > 0 || waiter.is_ready() {
            return Ok(Round::Moved);
        }
        if self.keeper.is_running() {
            self.keeper.wake();
            waiter.park(Duration::from_millis(1));
            return Ok(Round::of(waiter.is_ready()));
        }
        Ok(Round::of(self.make_room(evict_batch(self.frames.count())) > 0))
    }

    /// Parks a waiter until another thread completes its reads, or for [`PARKED_MS`] milliseconds. Idle when no read
    /// was under way or completed meanwhile.
    pub(super) fn park_for_others(&self, waiter: &Waiter) -> Round {
        let before = self.lane.finished();
        waiter.park(Duration::from_millis(PARKED_MS as u64));
        let moved = waiter.is_ready() || self.lane.under_way() > 0 || self.lane.finished() != before;
        if moved { Round::Moved } else { Round::Idle { weight: PARKED_MS } }
    }

    /// Takes a frame for a read; when none is free, evicts a few and takes one of those.
    pub(super) fn frame_for_read(self: &Arc<Self>) -> Option<OwnedFrame> {
        self.frames.take_for_read().or_else(|| {
            self.make_clean_room(LEAVE_AT_ONCE);
            self.frames.take_for_read()
        })
    }

    /// Takes `count` frames for reads that are submitted together, or as many as there are.
    pub(super) fn frames_for_reads(self: &Arc<Self>, count: usize) -> Vec<OwnedFrame> {
        let mut frames = Vec::with_capacity(count);
        self.frames.take_some_for_read(count, &mut frames);
        if frames.len() < count {
            self.make_clean_room(LEAVE_AT_ONCE.max(count - frames.len()));
            self.frames.take_some_for_read(count - frames.len(), &mut frames);
        }
        self.restock(LEAVE_AT_ONCE);
        frames
    }

    /// Wakes another waiter, if any, to handle the queue, because the caller's own request is fulfilled.
    pub(super) fn leave_lane(&self) {
        while let Some(next) = self.lane.followers().pop() {
            if next.nudge() {
                break;
            }
        }
    }

    /// Takes completions from the queue. For the keeper.
    ///
    /// # Errors
    /// When the queue cannot be used any more.
    pub(super) fn reap_reads(self: &Arc<Self>, wait_for: usize) -> Result<usize> {
        let queue = self.lane.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.work_reads(queue, wait_for)
    }

    /// Takes completions without waiting for the queue: if another thread holds it, that thread looks again afterwards.
    pub(super) fn take_reads(self: &Arc<Self>) {
        let queue = self.lane.try_queue().or_else(|| {
            self.lane.missed.store(true, Ordering::SeqCst);
            // Tries once more: the holder may have released the queue, and looked at `missed`, just before.
            self.lane.try_queue()
        });
        if let Some(queue) = queue {
            // An error here is one of the queue as a whole: the next submit meets it, too.
            let _ = self.work_reads(queue, 0);
        }
        self.submit_reads();
    }

    /// Takes completions for an outside poller that found the queue taken, if there is one.
    fn look_again(self: &Arc<Self>) {
        if self.lane.missed.load(Ordering::SeqCst) && self.lane.missed.swap(false, Ordering::SeqCst) {
            self.take_reads();
        }
    }

    /// Submits staged reads, reaps, and installs the completed reads. Returns the number of reads started and finished.
    fn work_reads(self: &Arc<Self>, mut queue: MutexGuard<'_, ReadQueue>, wait_for: usize) -> Result<usize> {
        let (mut over, mut landed) = (Vec::new(), Vec::new());
        let started = self.start_staged(&mut queue, &mut over);
        // One completion of a run may bring all the pages of a waiter.
        let most = if queue.has_runs() { 1 } else { usize::MAX };
        let wait_for = if over.is_empty() && queue.queue.in_flight() > 0 { wait_for.min(most) } else { 0 };
        let (count, reaped) = queue.reap(wait_for, &mut over, &mut landed);
        self.lane.note_back(count);
        self.lane.set_stuck(reaped.is_err() && queue.queue.in_flight() > 0);
        let refused = queue.count_refusal(&reaped).map(|error| (error, queue.give_up()));
        self.lane.set_in_line(queue.in_line());
        drop(queue);
        let runs = landed.len();
        let progress = started + over.len() + runs;
        self.finish_reads(over);
        if let Some((error, (in_line, sent))) = refused {
            self.give_up_reads(in_line, sent, &Error::from_io("send reads", error));
        }
        if runs > 0 {
            self.lane.landed().extend(landed);
            // As many as it put there, so that all are taken apart and this thread is not kept for longer.
            for _ in 0..runs {
                if !self.unload_run() {
                    break;
                }
                self.keep_device_busy();
            }
        }
        self.look_again();
        reaped.map_err(|error| Error::from_io("wait for reads", error))?;
        Ok(progress)
    }
}

/// Frames evicted together when a read finds none free: so many share the cost of one epoch.
pub(super) const LEAVE_AT_ONCE: usize = 64;

/// Frames to free at a time.
pub(super) fn evict_batch(frames: usize) -> usize {
    (frames / 16).clamp(4, 128)
}

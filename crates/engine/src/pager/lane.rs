//! Reads: from a miss to a resident page.
//!
//! A miss marks its page *loading* and stages a read; `submit_reads` gives staged reads a frame and sends them together.
//! Whoever finds completions installs the pages and wakes the waiters. One thread at a time looks after the queue; the
//! others leave their reads staged and go on, so an executor's thread never waits for it. A thread that may block and waits for one
//! page takes that read back, if nobody has sent it yet, and carries it out itself (`read_here`).
//!
//! A long walk leaves all of this to the keeper's thread (`walks`); and when it must wait all the same, it helps to install what has
//! come (`flights::Landed`).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;
use std::time::Duration;

use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::{Disk, QueueOptions};

use super::Core;
use super::flights::{Landed, ReadQueue, Scratch};
use super::frames::{FrameFacts, OwnedFrame};
use super::shard::Place;
use super::table::Entry;
use super::ticket::Waiter;
use super::walks::Walks;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Location, PageId, check_page, page_commit};
use crate::pages::Missing;

/// Times a page is read before its checksum counts as wrong.
const READ_ATTEMPTS: u32 = 2;
/// Staged reads that a blocking waiter looks through for its own.
const LOOK_BACK: usize = 64;

/// The reads of a pool.
pub(super) struct Lane {
    disk: Arc<dyn Disk>,
    /// Reads that nobody has looked at yet.
    staged: Mutex<VecDeque<Read>>,
    queue: Mutex<ReadQueue>,
    /// Runs that were taken from the queue and that nobody has come to yet. Whoever put them there sees them through, and whoever
    /// waits helps.
    landed: Mutex<VecDeque<Landed>>,
    pub(super) scratch: Arc<Scratch>,
    /// Reads that wait in the queue for room at the device, as its last user left them.
    in_line: AtomicUsize,
    /// Reads staged or at the device.
    in_flight: AtomicUsize,
    /// Operations at the device, and at most.
    at_device: AtomicUsize,
    at_device_max: usize,
    /// Blocking waiters that found the queue taken.
    followers: Mutex<Vec<Arc<Waiter>>>,
    pub(super) ready_fd: Option<OwnedFd>,
    /// How many outsiders have taken completions upon themselves.
    outside: AtomicUsize,
    pub(super) walks: Walks,
    /// An outsider was told of completions and found the queue taken: who has it looks again when it has left it.
    missed: AtomicBool,
}

/// A page to be read.
pub(super) struct Read {
    pub(super) page: PageId,
    pub(super) at: Location,
    pub(super) attempt: u32,
    /// Set when a read together with others failed.
    pub(super) alone: bool,
    /// Its frame, unless the operation in flight has the memory.
    pub(super) frame: Option<OwnedFrame>,
}

/// A read that is over: with the frame it had, and with what went wrong.
pub(super) struct Over {
    pub(super) read: Read,
    pub(super) owned: Option<OwnedFrame>,
    pub(super) error: Option<Error>,
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
            queue,
            landed: Mutex::default(),
            scratch,
            in_line: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            at_device: AtomicUsize::new(0),
            at_device_max: options.depth_max,
            followers: Mutex::default(),
            ready_fd,
            outside: AtomicUsize::new(0),
            walks: Walks::default(),
            missed: AtomicBool::new(false),
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

    pub(super) fn leave_device(&self, count: usize) {
        self.at_device.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn staged(&self) -> MutexGuard<'_, VecDeque<Read>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_in_line(&self, count: usize) {
        self.in_line.store(count, Ordering::Relaxed);
    }

    /// Whether there are reads that are not at the device yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.in_line.load(Ordering::Relaxed) > 0 || !self.staged().is_empty()
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
    /// Asks for a page in the version that a view at `missing.at` wants: it is pinned for the waiter as soon as it is in memory.
    pub(super) fn ask(&self, missing: Missing, waiter: &Arc<Waiter>) {
        let read = self.ask_for(missing, Some(waiter));
        self.stage(read.into_iter());
    }

    /// Asks for pages that nobody waits for yet.
    pub(super) fn ask_ahead(&self, pages: &[Missing]) {
        // What is looked at for each lies in memory that no cache has, and for neighbours in the same lines.
        pages.iter().for_each(|missing| self.table.prefetch(missing.page));
        let reads: Vec<Read> = pages.iter().filter_map(|missing| self.ask_for(*missing, None)).collect();
        self.stage(reads.into_iter());
    }

    fn stage(&self, reads: impl ExactSizeIterator<Item = Read>) {
        let count = reads.len();
        if count > 0 {
            self.counts.misses.fetch_add(count as u64, Ordering::Relaxed);
            self.lane.in_flight.fetch_add(count, Ordering::Relaxed);
            self.lane.staged().extend(reads);
        }
    }

    /// Marks a page as loading, and answers the read that brings it, unless it is in memory or being read already.
    fn ask_for(&self, missing: Missing, waiter: Option<&Arc<Waiter>>) -> Option<Read> {
        let Missing { page, at } = missing;
        let mut guard = self.shard(page);
        let shard = &mut *guard;
        let mut start = None;
        let join = if let Some(version) = shard.version_at(page, at) {
            match version.place {
                Place::Frame(frame) => {
                    self.pin_for(page, frame, waiter);
                    return None;
                }
                Place::Loading(at) => at,
                Place::Disk(at) => {
                    version.place = Place::Loading(at);
                    *start.insert(at)
                }
            }
        } else {
            match Entry::from_word(self.table.load(page)) {
                Entry::Free => return None,
                Entry::Resident(frame) => {
                    self.pin_for(page, frame, waiter);
                    return None;
                }
                Entry::Loading(at) => at,
                Entry::OnDisk(at) => {
                    self.table.store(page, Entry::Loading(at).to_word());
                    *start.insert(at)
                }
            }
        };
        if let Some(waiter) = waiter {
            waiter.expect_read(page);
            shard.loads.entry((page, join.block)).or_default().add_waiter(Arc::clone(waiter));
        }
        if start.is_none() {
            self.counts.joined.fetch_add(1, Ordering::Relaxed);
        }
        start.map(|at| Read { page, at, attempt: 1, alone: false, frame: None })
    }

    /// Pins a page that is in memory after all. Under the lock of the page's shard.
    fn pin_for(&self, page: PageId, frame: u32, waiter: Option<&Arc<Waiter>>) {
        if let Some(waiter) = waiter
            && waiter.pinned(page, frame)
        {
            self.frames.frame(frame).pin(1);
        }
    }

    /// Sends staged reads, as far as there are frames and nobody else is at it, and takes what has completed.
    pub(super) fn submit_reads(self: &Arc<Self>) {
        // Again when reads were staged after the last look and their submitter found the queue taken.
        while self.lane.has_unsent() {
            let Some(queue) = self.lane.try_queue() else { return };
            let busy = self.lane.at_device() > 0;
            let started = self.work_reads(queue, 0);
            if !matches!(started, Ok(progress) if progress > 0) {
                // A device that has as many reads as it may is no reason to wake anybody: who takes the next completion
                // comes here again.
                if !busy {
                    self.keeper.wake();
                }
                return;
            }
        }
    }

    /// One round for a blocking waiter: sends what is staged and waits for something to complete, or makes room, or lets
    /// another thread do these. True when something happened.
    ///
    /// # Errors
    /// When the queue cannot be used any more.
    pub(super) fn drive(self: &Arc<Self>, waiter: &Arc<Waiter>) -> Result<bool> {
        if self.read_here(waiter) {
            return Ok(true);
        }
        if self.unload_run() {
            // Its memory is for the next one.
            self.submit_reads();
            return Ok(true);
        }
        if self.is_reaped() && self.rely_on_keeper(waiter) {
            return Ok(true);
        }
        let queue = self.lane.try_queue().or_else(|| {
            self.lane.followers().push(Arc::clone(waiter));
            // Once more: who had the queue may have left it, looking for followers, just before this one was one.
            self.lane.try_queue()
        });
        let Some(queue) = queue else {
            waiter.park(Duration::from_millis(100));
            return Ok(true);
        };
        if waiter.is_ready() {
            return Ok(true);
        }
        let progress = self.work_reads(queue, 1)?;
        // Reads staged by others while this thread had the queue.
        self.submit_reads();
        if progress > 0 || waiter.is_ready() {
            return Ok(true);
        }
        if self.keeper.is_running() {
            self.keeper.wake();
            waiter.park(Duration::from_millis(1));
            return Ok(waiter.is_ready());
        }
        Ok(self.make_room(evict_batch(self.frames.count())) > 0)
    }

    /// Reads the one page that a blocking waiter wants on its own thread, if nobody has sent that read yet: one system call, no
    /// queue to get hold of, and no other thread to wake this one.
    fn read_here(self: &Arc<Self>, waiter: &Arc<Waiter>) -> bool {
        let Some(page) = waiter.only_read() else { return false };
        let taken = {
            let mut staged = self.lane.staged();
            let from = staged.len().saturating_sub(LOOK_BACK);
            let at = (from..staged.len()).rev().find(|at| staged[*at].page == page);
            at.and_then(|at| staged.remove(at))
        };
        let Some(mut read) = taken else { return false };
        if read.frame.is_none() {
            read.frame = self.frame_for_read();
        }
        let Some(OwnedFrame { index, buffer }) = read.frame.take_if(|_| self.lane.enter_device()) else {
            self.lane.staged().push_front(read);
            return false;
        };
        let offset = read.at.block.0 * self.frames.page_bytes() as u64;
        let performed = self.lane.disk.perform(Op::new(0, offset, OpKind::Read(buffer)));
        self.lane.leave_device(1);
        let named = |error| Error::from_io(format!("read page {} at {offset}", read.page), error);
        let (owned, error) = match performed {
            Ok(done) => {
                let error = done.result.as_ref().err().cloned().map(named);
                (done.into_buffer().map(|buffer| OwnedFrame { index, buffer }), error)
            }
            Err(error) => (None, Some(named(error))),
        };
        let mut finished = Finished::default();
        self.finish_read(Over { read, owned, error }, &mut finished);
        self.settle_reads(finished);
        // Those who found the device full meanwhile left theirs.
        self.submit_reads();
        true
    }

    /// A frame for a read; when none is free, one of a few that leave for it now.
    pub(super) fn frame_for_read(self: &Arc<Self>) -> Option<OwnedFrame> {
        self.frames.take_for_read().or_else(|| {
            self.make_clean_room(LEAVE_AT_ONCE);
            self.frames.take_for_read()
        })
    }

    /// Frames for reads that go out together: so many, or as many as can be had.
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

    /// A blocking waiter has what it wanted: another one, if any, looks after the queue.
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

    /// Takes completions without waiting for the queue: who has it takes them, and looks again for what was staged.
    pub(super) fn take_reads(self: &Arc<Self>) {
        let queue = self.lane.try_queue().or_else(|| {
            self.lane.missed.store(true, Ordering::SeqCst);
            // Once more: who had the queue may have left it, and looked, just before.
            self.lane.try_queue()
        });
        if let Some(queue) = queue {
            // An error here is one of the queue as a whole: the next submit meets it, too.
            let _ = self.work_reads(queue, 0);
        }
        self.submit_reads();
    }

    /// Starts staged reads, reaps, and installs what has arrived. Answers the reads started and finished.
    fn work_reads(self: &Arc<Self>, mut queue: MutexGuard<'_, ReadQueue>, wait_for: usize) -> Result<usize> {
        let (mut over, mut landed) = (Vec::new(), Vec::new());
        let started = self.start_staged(&mut queue, &mut over);
        let wait_for = if over.is_empty() && queue.queue.in_flight() > 0 { wait_for } else { 0 };
        let (count, reaped) = queue.reap(wait_for, &mut over, &mut landed);
        self.lane.leave_device(count);
        drop(queue);
        let runs = landed.len();
        let progress = started + over.len() + runs;
        self.finish_reads(over);
        if runs > 0 {
            self.lane.landed().extend(landed);
            // As many as it brought, so that all are seen through and nobody is kept for longer.
            for _ in 0..runs {
                if !self.unload_run() {
                    break;
                }
                self.keep_device_busy();
            }
        }
        if self.lane.missed.load(Ordering::SeqCst) && self.lane.missed.swap(false, Ordering::SeqCst) {
            self.take_reads();
        }
        reaped.map_err(|error| Error::from_io("wait for reads", error))?;
        Ok(progress)
    }

    /// Finishes reads that came together.
    pub(super) fn finish_reads(self: &Arc<Self>, over: Vec<Over>) {
        if over.is_empty() {
            return;
        }
        // What will be looked at for each of them and is in no cache: asked for together, a lot of misses takes hardly longer
        // than one.
        self.nursery.expect(over.iter().map(|over| over.read.page));
        for Over { read, owned, .. } in &over {
            self.table.prefetch(read.page);
            if let Some(owned) = owned {
                self.frames.prefetch_facts(owned.index);
            }
        }
        let mut finished = Finished::default();
        for over in over {
            self.finish_read(over, &mut finished);
        }
        self.settle_reads(finished);
    }

    /// Installs a page that was read, or says why not.
    fn finish_read(self: &Arc<Self>, over: Over, finished: &mut Finished) {
        let Over { read, owned, mut error } = over;
        if read.alone && read.attempt == 0 {
            finished.again.push(Read { attempt: 1, frame: owned, ..read });
            return;
        }
        let mut good = None;
        if let Some(owned) = owned {
            let checked = match &error {
                None => check_page(self.file_id, read.page, read.at, &owned.buffer),
                Some(error) => Err(error.clone()),
            };
            match checked {
                Ok(()) => good = Some(owned),
                Err(_) if error.is_none() && read.attempt < READ_ATTEMPTS => {
                    self.counts.checksum_retries.fetch_add(1, Ordering::Relaxed);
                    finished.again.push(Read { attempt: read.attempt + 1, frame: Some(owned), ..read });
                    return;
                }
                Err(wrong) => {
                    error = Some(wrong);
                    finished.frames.push(owned);
                }
            }
        }
        self.lane.in_flight.fetch_sub(1, Ordering::Relaxed);
        let mut shard = self.shard(read.page);
        let load = shard.loads.remove(&(read.page, read.at.block)).unwrap_or_default();
        let newest = Entry::from_word(self.table.load(read.page)) == Entry::Loading(read.at);
        let version = shard.version_loading(read.page, read.at.block);
        let wanted = newest || version.is_some();
        match good {
            Some(owned) if wanted => {
                let commit = page_commit(&owned.buffer);
                let disk = Some(read.at);
                let facts = FrameFacts { page: read.page, commit, disk, near: None, pins: 0, hot: false };
                let index = self.frames.publish(owned, facts);
                finished.came.push((index, read.page));
                match version {
                    Some(version) if !newest => version.place = Place::Frame(index),
                    _ => self.table.store(read.page, Entry::Resident(index).to_word()),
                }
                let mut pins = 0;
                for waiter in load.waiters() {
                    let (pinned, waker) = waiter.arrived(read.page, index);
                    pins += u32::from(pinned);
                    finished.wake.extend(waker);
                }
                self.frames.frame(index).pin(pins);
                return;
            }
            // The version died while it was read: whoever still waits asks again.
            Some(owned) => finished.frames.push(owned),
            None if newest => self.table.store(read.page, Entry::OnDisk(read.at).to_word()),
            None => {
                if let Some(version) = version {
                    version.place = Place::Disk(read.at);
                }
            }
        }
        let error = error.filter(|_| wanted);
        finished.wake.extend(load.waiters().filter_map(|waiter| waiter.read_over(error.clone())));
    }

    /// What is left to do after reads were finished: no lock is held.
    fn settle_reads(self: &Arc<Self>, finished: Finished) {
        let Finished { again, came, frames, wake } = finished;
        if !came.is_empty() {
            self.nursery.came(came.into_iter());
        }
        self.return_frames(frames);
        if !again.is_empty() {
            self.lane.staged().extend(again);
        }
        wake.into_iter().for_each(Waker::wake);
    }
}

/// What came of reads that are over.
#[derive(Default)]
struct Finished {
    /// To be tried again.
    again: Vec<Read>,
    /// In memory.
    came: Vec<(u32, PageId)>,
    /// Not needed any more.
    frames: Vec<OwnedFrame>,
    /// Have all they waited for.
    wake: Vec<Waker>,
}

/// Frames that leave together when a read finds none free: what an epoch costs is then little for each.
pub(super) const LEAVE_AT_ONCE: usize = 64;

/// Frames to free at a time.
pub(super) fn evict_batch(frames: usize) -> usize {
    (frames / 16).clamp(4, 128)
}

//! Completes reads: checks and decompresses their pages, installs them and hands them to the waiters, or gives the
//! error to the waiters. The block of a compressed page can stay in memory as well, in the compressed tier, if there is
//! a free frame for it.
//!
//! The thread that took completions from the queue calls this module after it has released the queue: many threads can install
//! pages at once, and each holds the lock of one shard for one page at a time.
//!
//! A page whose block is in the compressed tier is restored by the thread that misses it, without the device. The page is marked as being
//! read until then, as for any read: other operations that miss it wait for this thread, some microseconds, and do no work themselves. No
//! lock is held while a page is checked and decompressed. One request restores as many pages as a budget allows, and reads the others.
//!
//! A panic of a thread that works for others – a background thread of the pool, or any thread that has reads of others in its hands – ends
//! all waits for pages and frames ([`Failure`]): it may have been about to complete any read, or to free any frame.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::Instant;

use super::queue::GivenUp;
use super::read::{CompletedPages, CompletedRead, Read, ReadState, RunBlock};
use super::scheduler::Scheduler;
use crate::buffer_pool::compressed_tier::Need;
use crate::buffer_pool::evict::Evictor;
use crate::buffer_pool::frames::{OwnedFrame, Waiter};
use crate::buffer_pool::page_table::{CheckedPage, ReadEnd, ReadId, leaf_read_as};
use crate::buffer_pool::versions::Versions;
use crate::error::{Error, ErrorKind};
use crate::events;
use crate::format::compressed::{restore_in_place, restore_page};
use crate::format::{NodeId, PageId, decode_node};
use crate::sync::background::PanicWatch;
use crate::sync::budget::Budget;
use crate::sync::wakers::wake_all;

/// Steps of a `Budget` that restoring one page spends.
const STEPS_A_PAGE: usize = 8;
/// Number of times a page is read before its checksum counts as wrong.
const READ_ATTEMPTS: u32 = 2;

/// Checks the pages that reads brought and installs them in the page table.
pub(super) struct Installer {
    versions: Arc<Versions>,
    evictor: Arc<Evictor>,
    scheduler: Arc<Scheduler>,
    failure: Failure,
}

/// Work that completed reads leave to be done once no lock is held.
#[derive(Default)]
pub(super) struct Aftermath {
    /// Reads to be repeated, because a checksum was wrong or the read of a run failed, and reads that follow the read
    /// of a leaf of the page table.
    pub(super) again: Vec<Read>,
    /// Pages that were installed, with their frames.
    installed: Vec<(u32, PageId)>,
    /// Frames that are not needed any more, to be freed.
    frames: Vec<OwnedFrame>,
    /// Frames of blocks for which the compressed tier had no room, to be retired.
    rejected: Vec<u32>,
    /// The wakers of tasks that have nothing left to wait for.
    wake: Vec<Waker>,
    /// The error of the last read that failed.
    pub(super) failed: Option<Error>,
    /// Memory for decompressing pages, kept from page to page.
    spare: Vec<u8>,
    /// The time, asked for once for all reads that completed together.
    now: Option<Instant>,
}

impl Installer {
    pub(super) fn new(versions: &Arc<Versions>, evictor: &Arc<Evictor>, scheduler: &Arc<Scheduler>) -> Self {
        let failure = Failure::new(versions);
        Self { versions: Arc::clone(versions), evictor: Arc::clone(evictor), scheduler: Arc::clone(scheduler), failure }
    }

    /// Returns what ends all waits after a panic.
    pub(super) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Restores the page of a read that has just begun. Returns the read when it must be carried out: the page's block is
    /// not in memory, no frame is free, or the budget is spent.
    pub(super) fn restore(&self, read: Read, budget: &mut Budget) -> Option<Read> {
        let is_here =
            |read: &Read| self.versions.pages().tier().find(self.versions.frames(), read.id.at.block).is_some();
        if !read.id.at.is_compressed || budget.is_spent() || !is_here(&read) {
            return Some(read);
        }
        budget.spend(STEPS_A_PAGE);
        let _fails = self.failure.guard();
        // Taken before the block is looked up: while an epoch is pinned no frame becomes free.
        let Some(owned) = self.evictor.frame_for_read() else { return Some(read) };
        let (read, owned) = self.restore_into(read, owned).err()?;
        self.versions.frame_waits().return_frames(vec![owned]);
        Some(read)
    }

    /// Restores the page of a read that has just begun into a frame.
    ///
    /// # Errors
    /// The read and the frame, when the page's block is not in memory.
    pub(super) fn restore_into(&self, mut read: Read, mut owned: OwnedFrame) -> Result<(), (Read, OwnedFrame)> {
        let at = read.id.at;
        if !at.is_compressed {
            return Err((read, owned));
        }
        let restore =
            |block: &[u8]| restore_page(self.versions.file_codec(), read.page(), at, block, &mut owned.buffer);
        match self.versions.with_block(at.block, read.need != Need::Later, restore) {
            None => return Err((read, owned)),
            Some(Err(_)) => {
                // Wrong bytes in memory, or a record that the disk had damaged when another page of the block was read:
                // reading the block again decides.
                self.versions.forget_blocks(std::iter::once(at.block));
                return Err((read, owned));
            }
            Some(Ok(())) => {}
        }
        self.versions.pages().tier().note_restored(read.page(), at.block, read.need);
        self.scheduler.begin(1);
        // Nothing is read.
        read.missed_at = None;
        read.advance(ReadState::Completed);
        let mut aftermath = Aftermath::default();
        self.end(read, Some(CheckedPage { page: owned, block: None }), None, &mut aftermath);
        self.settle(aftermath);
        Ok(())
    }

    /// Installs the pages of an operation that read several, or of a piece of one.
    pub(super) fn install_run(&self, run: CompletedPages) {
        match run {
            CompletedPages::OfPool(run) => {
                let (completed, unused) = run.unload(self.versions.frames().page_bytes());
                self.finish_all(completed);
                self.versions.frame_waits().return_frames(unused);
            }
            CompletedPages::OfScan(read) => {
                self.scheduler.note_finished(read.run().pages().len());
                // The scan reads these pages again, through the pool.
                read.check(self.versions.file_codec()).into_iter().for_each(|page| self.note_damage(page));
            }
        }
    }

    /// Notes that a page must be read again, because damaged bytes were read.
    fn note_damage(&self, page: PageId) {
        events::checksum_retry(page);
        self.versions.counters().checksum_retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Completes reads that the device finished together.
    pub(super) fn finish_all(&self, completed: Vec<CompletedRead>) {
        if completed.is_empty() {
            return;
        }
        self.prefetch(&completed);
        let mut aftermath = Aftermath::default();
        for completed in completed {
            self.finish(completed, &mut aftermath);
        }
        self.settle(aftermath);
    }

    /// Prefetches into the CPU caches the metadata that completing these reads will touch. Many cache misses at once
    /// take hardly longer than one.
    pub(super) fn prefetch(&self, completed: &[CompletedRead]) {
        self.evictor.probation().expect(completed.iter().map(|completed| completed.read.page()));
        for CompletedRead { read, owned, .. } in completed {
            self.versions.pages().prefetch(read.page());
            if let Some(owned) = owned {
                self.versions.frames().frame(owned.index).prefetch();
            }
        }
    }

    /// Installs the page of a completed read, or gives the read's error to the waiters.
    pub(super) fn finish(&self, completed: CompletedRead, aftermath: &mut Aftermath) {
        let CompletedRead { mut read, owned, mut error, block } = completed;
        if read.alone && read.attempt == 0 {
            (read.attempt, read.frame) = (1, owned);
            aftermath.again.push(read);
            return;
        }
        let mut good = None;
        if let Some(owned) = owned {
            let beside = if error.is_none() { self.frame_beside(&read) } else { None };
            let checked = match &error {
                None => self.check(&read, owned, (block, beside), aftermath),
                Some(error) => Err((error.clone(), owned)),
            };
            match checked {
                Ok(page) => good = Some(page),
                Err((_, owned)) if error.is_none() && read.attempt < READ_ATTEMPTS => {
                    self.note_damage(read.page());
                    read.attempt += 1;
                    read.frame = Some(owned);
                    aftermath.again.push(read);
                    return;
                }
                Err((wrong, owned)) => {
                    if wrong.kind() == ErrorKind::Corrupt {
                        events::corruption(read.page(), &wrong);
                    }
                    error = Some(wrong);
                    aftermath.frames.push(owned);
                }
            }
        }
        self.end(read, good, error, aftermath);
    }

    /// Returns a frame for the page of this read if its block is to stay in memory. Takes free frames only: nothing is
    /// evicted for a block, and nothing that waits for a frame waits longer.
    fn frame_beside(&self, read: &Read) -> Option<OwnedFrame> {
        let pages = self.versions.pages();
        if read.keeps_block && pages.tier().takes(pages.frames(), read.id.at.block) {
            self.evictor.spare_frame()
        } else {
            None
        }
    }

    /// Checks a page, as it is or in its block, and restores it. The block lies in `run`, or else in `owned`. The page is
    /// restored into `owned`; or, when the block is to stay in memory, into one of `owned` and `beside`, and the block is
    /// then in the other.
    ///
    /// # Errors
    /// `Corrupt`, with `owned`, when the block does not hold the page in the version that belongs there.
    fn check(
        &self,
        read: &Read,
        mut owned: OwnedFrame,
        (run, beside): (Option<RunBlock>, Option<OwnedFrame>),
        aftermath: &mut Aftermath,
    ) -> std::result::Result<CheckedPage, (Error, OwnedFrame)> {
        let (file, page, at) = (self.versions.file_codec(), read.page(), read.id.at);
        if let Some(index) = leaf_read_as(page) {
            if let Some(run) = run {
                owned.buffer.copy_from_slice(run.bytes());
            }
            let node = NodeId { level: 0, index };
            return match decode_node(file.file_id, node, at, &owned.buffer) {
                Ok(_) => Ok(CheckedPage { page: owned, block: None }),
                Err(error) => Err((error, owned)),
            };
        }
        let begun = at.is_compressed.then(Instant::now);
        let checked = match (run, beside) {
            (None, None) => match restore_in_place(file, page, at, &mut owned.buffer, &mut aftermath.spare) {
                Ok(()) => Ok(CheckedPage { page: owned, block: None }),
                Err(error) => Err((error, owned)),
            },
            (None, Some(mut beside)) => match restore_page(file, page, at, &owned.buffer, &mut beside.buffer) {
                Ok(()) => Ok(CheckedPage { page: beside, block: Some(owned) }),
                Err(error) => {
                    aftermath.frames.push(beside);
                    Err((error, owned))
                }
            },
            (Some(run), mut beside) => match restore_page(file, page, at, run.bytes(), &mut owned.buffer) {
                Ok(()) => {
                    if let Some(beside) = &mut beside {
                        beside.buffer.copy_from_slice(run.bytes());
                    }
                    Ok(CheckedPage { page: owned, block: beside })
                }
                Err(error) => {
                    aftermath.frames.extend(beside);
                    Err((error, owned))
                }
            },
        };
        if let Some(begun) = begun {
            self.versions.pages().tier().note_decompression(begun.elapsed());
        }
        checked
    }

    /// Ends a completed read: installs its page, or gives the error to the waiters.
    pub(super) fn end(
        &self,
        mut read: Read,
        good: Option<CheckedPage>,
        error: Option<Error>,
        aftermath: &mut Aftermath,
    ) {
        self.scheduler.note_finished(1);
        match self.versions.pages().end_read(read.id, good, error, &mut aftermath.wake) {
            ReadEnd::Installed { frame, rejected } => {
                read.advance(ReadState::Installed);
                self.note_time(&read, aftermath);
                aftermath.installed.push((frame, read.page()));
                aftermath.rejected.extend(rejected);
            }
            ReadEnd::NotInstalled { unused, error } => {
                read.advance(if error.is_some() { ReadState::Failed } else { ReadState::Discarded });
                self.note_time(&read, aftermath);
                aftermath.frames.extend(unused);
                aftermath.failed = error;
            }
            ReadEnd::Leaf { unused, error, next } => {
                read.advance(if error.is_some() { ReadState::Failed } else { ReadState::Discarded });
                aftermath.frames.extend(unused);
                aftermath.failed = error;
                self.begin_all(next, read.missed_at, aftermath);
            }
        }
    }

    /// Notes how long the operations that wait for a read have waited.
    fn note_time(&self, read: &Read, aftermath: &mut Aftermath) {
        if let Some(missed_at) = read.missed_at {
            let now = *aftermath.now.get_or_insert_with(Instant::now);
            let took = now.saturating_duration_since(missed_at);
            self.versions.counters().read_ns.add_time(took);
            events::waited("read", took);
        }
    }

    /// Begins the reads of pages whose places were not known before the read of a leaf, which was missed at `missed_at`.
    fn begin_all(&self, ids: Vec<ReadId>, missed_at: Option<Instant>, aftermath: &mut Aftermath) {
        self.versions.trim_leaves();
        self.versions.counters().misses.fetch_add(ids.len() as u64, Ordering::Relaxed);
        self.scheduler.begin(ids.len());
        // It is not known here whether anything waits for them, so their blocks are not kept.
        let begin = |id| {
            let mut read = Read::new(id, Need::Later);
            read.missed_at = missed_at;
            read
        };
        aftermath.again.extend(ids.into_iter().map(begin));
    }

    /// Gives `error` to the waiters of all reads when the queue accepts no reads. When reads complete later whose memory the queue
    /// still has, their frames are freed and their pages stay absent (see `page_table`). Private runs end without pages: the scans
    /// request these pages through the pool, and receive the error then.
    pub(super) fn give_up(&self, given_up: GivenUp, error: &Error) {
        let GivenUp { in_line, sent, scans_in_line, scans_sent } = given_up;
        let failed = |mut read: Read| {
            let owned = read.frame.take();
            CompletedRead::in_frame(read, owned, Some(error.clone()))
        };
        self.finish_all(in_line.into_iter().map(failed).collect());
        let mut wake = Vec::new();
        sent.into_iter().for_each(|id| self.versions.pages().abandon_read(id, error, &mut wake));
        wake_all(wake);
        self.scheduler.note_finished(scans_in_line.iter().map(|read| read.run().pages().len()).sum());
        drop(scans_in_line);
        scans_sent.iter().for_each(|run| run.fail());
    }

    /// Frees frames, repeats reads and wakes tasks after completed reads. The caller holds no lock.
    pub(super) fn settle(&self, aftermath: Aftermath) {
        let Aftermath { again, installed, frames, rejected, wake, .. } = aftermath;
        if !installed.is_empty() {
            self.evictor.probation().add(installed.into_iter());
        }
        self.versions.frame_waits().return_frames(frames);
        if !rejected.is_empty() {
            self.versions.history().retire(rejected);
        }
        if !again.is_empty() {
            self.scheduler.staged().add(again.into_iter());
        }
        wake_all(wake);
    }
}

/// The error of all waits, once there is one.
pub(crate) struct Failure {
    versions: Arc<Versions>,
    error: OnceLock<Error>,
    /// Waiters for runs of scans, which stand in no shard; some of them have gone.
    scans: Mutex<Vec<Weak<Waiter>>>,
}

/// Fails all waits when a panic of the current thread drops it.
pub(super) struct FailsInPanic<'a> {
    failure: &'a Failure,
    watch: PanicWatch,
}

impl Failure {
    pub(super) fn new(versions: &Arc<Versions>) -> Self {
        Self { versions: Arc::clone(versions), error: OnceLock::new(), scans: Mutex::default() }
    }

    /// Returns the error with which all waits end, if there is one.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.get()
    }

    /// Ends all waits with an error, those that begin later as well. `cause` is the panic. The caller holds no lock.
    pub(crate) fn fail(&self, cause: &Error) {
        let what = format!("{cause}; reads from the disk fail until the database is reopened");
        self.end(&Error::new(ErrorKind::Poisoned, what));
    }

    /// Ends all waits with this error, unless they have ended before, and those that begin later as well. The caller holds
    /// no lock.
    pub(crate) fn end(&self, error: &Error) {
        let error = self.error.get_or_init(|| error.clone());
        // A waiter added to a read later finds the error when its ticket is polled: it takes the lock of a shard
        // after this call did.
        wake_all(self.versions.pages().fail_waiters(error));
        self.versions.frame_waits().fail_all(error);
        let scans = std::mem::take(&mut *self.scans.lock().unwrap_or_else(PoisonError::into_inner));
        wake_all(scans.iter().filter_map(Weak::upgrade).filter_map(|waiter| waiter.fail(error.clone())));
    }

    /// Adds a waiter for a private run to the waiters that a panic fails. Called before the ticket is polled: the poll finds an earlier
    /// error.
    pub(crate) fn watch(&self, waiter: &Arc<Waiter>) {
        let mut scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
        if scans.len() == scans.capacity() {
            scans.retain(|waiter| waiter.strong_count() > 0);
            let more = scans.len() + 8;
            scans.reserve(more);
        }
        scans.push(Arc::downgrade(waiter));
    }

    /// Returns a guard for work on reads that others may wait for.
    #[must_use]
    pub(super) fn guard(&self) -> FailsInPanic<'_> {
        FailsInPanic { failure: self, watch: PanicWatch::begin() }
    }
}

impl Drop for FailsInPanic<'_> {
    fn drop(&mut self) {
        if let Some(cause) = self.watch.panic("read pages") {
            self.failure.fail(&cause);
        }
    }
}

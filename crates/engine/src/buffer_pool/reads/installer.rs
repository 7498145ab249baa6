//! Completes reads: checks and decompresses their pages, installs them and hands them to the waiters, or gives the
//! error to the waiters. The block of a compressed page can stay in memory as well, in the compressed tier, if there is
//! a free frame for it.
//!
//! The thread that took completions from the queue calls this module after it has released the queue: many threads can install
//! pages at once, and each holds the lock of one shard for one page at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Instant;

use super::completed::{CompletedRead, RunBlock};
use super::failure::Failure;
use super::in_flight::GivenUp;
use super::scheduler::Scheduler;
use super::state::{Read, ReadState};
use crate::buffer_pool::compressed_tier::Need;
use crate::buffer_pool::evict::Evictor;
use crate::buffer_pool::frames::OwnedFrame;
use crate::buffer_pool::page_table::{CheckedPage, ReadEnd};
use crate::buffer_pool::shard::ReadId;
use crate::buffer_pool::versions::Versions;
use crate::buffer_pool::word_array::leaf_read_as;
use crate::error::{Error, ErrorKind};
use crate::events;
use crate::format::compressed::{restore_in_place, restore_page};
use crate::format::{NodeId, PageId, decode_node};
use crate::sync::wakers::wake_all;

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
                self.versions.frames().prefetch_facts(owned.index);
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
                    events::checksum_retry(read.page());
                    self.versions.counters().checksum_retries.fetch_add(1, Ordering::Relaxed);
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
    /// still has, their frames are freed and their pages stay absent (see `shard`). Private runs end without pages: the scans
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
            self.versions.retire(rejected);
        }
        if !again.is_empty() {
            self.scheduler.staged().add(again.into_iter());
        }
        wake_all(wake);
    }
}

//! Completes reads: checks their pages, installs them and hands them to the waiters, or reports the error to these.
//!
//! The thread that took completions from the queue calls this module after it has released the queue: many threads can install
//! pages at once, and each holds the lock of one shard for one page at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::Core;
use super::frames::{FrameFacts, OwnedFrame};
use super::lane::Read;
use super::shard::{Place, ReadId};
use super::table::Entry;
use crate::bell::wake_all;
use crate::error::Error;
use crate::format::{PageId, check_page, page_commit};

/// Times a page is read before its checksum counts as wrong.
const READ_ATTEMPTS: u32 = 2;

/// A completed read, with its frame and its error, if any.
pub(super) struct Over {
    pub(super) read: Read,
    pub(super) owned: Option<OwnedFrame>,
    pub(super) error: Option<Error>,
}

impl Core {
    /// Completes reads that ended together.
    pub(super) fn finish_reads(self: &Arc<Self>, over: Vec<Over>) {
        if over.is_empty() {
            return;
        }
        self.fetch_ahead(&over);
        let mut finished = Finished::default();
        for over in over {
            self.finish_read(over, &mut finished);
        }
        self.settle_reads(finished);
    }

    /// Prefetches the metadata that completing these reads touches into the CPU caches, together: many cache misses at once take
    /// hardly longer than one.
    pub(super) fn fetch_ahead(&self, over: &[Over]) {
        self.nursery.expect(over.iter().map(|over| over.read.page()));
        for Over { read, owned, .. } in over {
            self.table.prefetch(read.page());
            if let Some(owned) = owned {
                self.frames.prefetch_facts(owned.index);
            }
        }
    }

    /// Installs a page that was read, or hands its error to the waiters.
    pub(super) fn finish_read(self: &Arc<Self>, over: Over, finished: &mut Finished) {
        let Over { read, owned, mut error } = over;
        if read.alone && read.attempt == 0 {
            finished.again.push(Read { attempt: 1, frame: owned, ..read });
            return;
        }
        let mut good = None;
        if let Some(owned) = owned {
            let checked = match &error {
                None => check_page(self.file_id, read.page(), read.id.at, &owned.buffer),
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
        self.lane.one_is_over();
        let ReadId { page, at, .. } = read.id;
        let mut shard = self.shard(page);
        let Some(load) = shard.end_load(read.id) else {
            finished.frames.extend(good);
            return;
        };
        let newest = Entry::from_word(self.table.load(page)) == Entry::Loading(at);
        let version = shard.version_loading(page, at);
        let wanted = newest || version.is_some();
        match good {
            Some(owned) if wanted => {
                let commit = page_commit(&owned.buffer);
                let disk = Some(at);
                let facts = FrameFacts { page, commit, disk, near: None, pins: 0, hot: false };
                let index = self.frames.publish(owned, facts);
                finished.came.push((index, page));
                match version {
                    Some(version) if !newest => version.place = Place::Frame(index),
                    _ => self.table.store(page, Entry::Resident(index).to_word()),
                }
                let mut pins = 0;
                for waiter in load.waiters() {
                    let (pinned, waker) = waiter.arrived(page, index);
                    pins += u32::from(pinned);
                    finished.wake.extend(waker);
                }
                self.frames.frame(index).pin(pins);
                return;
            }
            // The version died while it was read: its remaining waiters request the page again.
            Some(owned) => finished.frames.push(owned),
            None if newest => self.table.store(page, Entry::OnDisk(at).to_word()),
            None => {
                if let Some(version) = version {
                    version.place = Place::Disk(at);
                }
            }
        }
        let error = error.filter(|_| wanted);
        finished.wake.extend(load.waiters().filter_map(|waiter| waiter.read_over(error.clone())));
        finished.failed = error;
    }

    /// Tells the waiters of reads that the queue does not take. `sent` are those that the queue has all the same: should they end one
    /// day, their frames are given back, and nothing else happens (`shard`).
    pub(super) fn give_up_reads(self: &Arc<Self>, in_line: Vec<Read>, sent: Vec<ReadId>, error: &Error) {
        let over = |mut read: Read| Over { owned: read.frame.take(), read, error: Some(error.clone()) };
        self.finish_reads(in_line.into_iter().map(over).collect());
        let mut wake = Vec::new();
        for id in sent {
            let mut shard = self.shard(id.page);
            let Some(load) = shard.end_load(id) else { continue };
            let newest = Entry::from_word(self.table.load(id.page)) == Entry::Loading(id.at);
            if newest {
                self.table.store(id.page, Entry::OnDisk(id.at).to_word());
            } else if let Some(version) = shard.version_loading(id.page, id.at) {
                version.place = Place::Disk(id.at);
            }
            wake.extend(load.waiters().filter_map(|waiter| waiter.read_over(Some(error.clone()))));
        }
        wake_all(wake);
    }

    /// Does the rest after reads were completed: no lock is held.
    pub(super) fn settle_reads(self: &Arc<Self>, finished: Finished) {
        let Finished { again, came, frames, wake, .. } = finished;
        if !came.is_empty() {
            self.nursery.came(came.into_iter());
        }
        self.return_frames(frames);
        if !again.is_empty() {
            self.lane.staged().extend(again);
        }
        wake_all(wake);
    }
}

/// The outcome of completed reads.
#[derive(Default)]
pub(super) struct Finished {
    /// To be tried again.
    pub(super) again: Vec<Read>,
    /// In memory.
    came: Vec<(u32, PageId)>,
    /// Not needed any more.
    frames: Vec<OwnedFrame>,
    /// Have all they waited for.
    wake: Vec<Waker>,
    /// The error of the last read that failed.
    pub(super) failed: Option<Error>,
}

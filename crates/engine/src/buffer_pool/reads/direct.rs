//! Reads that a thread carries out itself, by one system call, because it needs a single page, or pages whose blocks lie
//! together; or without a system call where the blocks are in the compressed tier.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nofault_io::aligned::IoBuf;
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::Disk;

use super::completed::{CompletedRead, CompletedRun};
use super::dispatcher::Dispatcher;
use super::in_flight::are_one_run;
use super::installer::{Aftermath, Installer};
use super::restorer::Restorer;
use super::scheduler::Scheduler;
use super::scratch::Scratch;
use super::state::{Read, ReadState};
use crate::budget::Budget;
use crate::buffer_pool::compressed_tier::Need;
use crate::buffer_pool::evict::Evictor;
use crate::buffer_pool::frames::OwnedFrame;
use crate::buffer_pool::page_table::ReadRequest;
use crate::buffer_pool::versions::Versions;
use crate::buffer_pool::waiter::Waiter;
use crate::buffer_pool::writer_signal::WriterSignal;
use crate::error::{Error, Result};
use crate::pages::Missing;

/// Reads pages with blocking calls on the threads needing them, without the read queue.
pub(super) struct DirectReads {
    disk: Arc<dyn Disk>,
    versions: Arc<Versions>,
    evictor: Arc<Evictor>,
    signal: Arc<WriterSignal>,
    scheduler: Arc<Scheduler>,
    installer: Arc<Installer>,
    restorer: Arc<Restorer>,
    dispatcher: Arc<Dispatcher>,
    scratch: Arc<Scratch>,
}

impl DirectReads {
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        (versions, evictor, signal): (&Arc<Versions>, &Arc<Evictor>, &Arc<WriterSignal>),
        (scheduler, dispatcher): (&Arc<Scheduler>, &Arc<Dispatcher>),
        (installer, restorer, scratch): (&Arc<Installer>, &Arc<Restorer>, &Arc<Scratch>),
    ) -> Self {
        Self {
            disk: Arc::clone(disk),
            versions: Arc::clone(versions),
            evictor: Arc::clone(evictor),
            signal: Arc::clone(signal),
            scheduler: Arc::clone(scheduler),
            installer: Arc::clone(installer),
            restorer: Arc::clone(restorer),
            dispatcher: Arc::clone(dispatcher),
            scratch: Arc::clone(scratch),
        }
    }

    /// Reads the only page that a blocking waiter waits for on the waiter's own thread, if its read is still staged.
    /// This takes one system call, needs no lock of the read queue, and no other thread has to wake this one. Returns
    /// whether the page was read, or its read failed.
    pub(super) fn read_here(&self, waiter: &Arc<Waiter>) -> bool {
        let Some(page) = waiter.only_read() else { return false };
        let _fails = self.installer.failure().guard();
        let Some(mut read) = self.scheduler.staged().take(page) else { return false };
        if read.frame.is_none() {
            read.frame = self.evictor.frame_for_read();
        }
        let Some(owned) = read.frame.take_if(|_| self.scheduler.device().enter()) else {
            self.scheduler.staged().put_back(read);
            return false;
        };
        // All waiters for the page receive an error, this thread's waiter among them.
        let _ = self.carry_out(read, owned);
        true
    }

    /// Reads or restores one page on the calling thread, without a waiter, if the page is not being read yet. Returns
    /// false when the page must be requested instead. The page is not pinned, so it may be evicted before the caller looks
    /// it up again.
    ///
    /// # Errors
    /// The error of the read.
    pub(super) fn read_alone(&self, missing: Missing) -> Result<bool> {
        // All resources are taken before the page is marked as being read, because other threads wait for the read from
        // then on.
        let Some(owned) = self.evictor.frame_for_read() else { return Ok(false) };
        if !self.scheduler.device().enter() {
            self.versions.frame_waits().return_frames(vec![owned]);
            return Ok(false);
        }
        let _fails = self.installer.failure().guard();
        let request = self.versions.pages().request_read(missing, None);
        let ReadRequest::New(id) = request else {
            self.scheduler.device().leave();
            self.versions.frame_waits().return_frames(vec![owned]);
            self.dispatcher.submit();
            return Ok(matches!(request, ReadRequest::InMemory));
        };
        let (mut read, owned) = match self.restorer.restore_into(Read::new(id, Need::InThread), owned) {
            Err(missed) => missed,
            Ok(()) => {
                self.scheduler.device().leave();
                self.signal.wake_if_starving();
                return Ok(true);
            }
        };
        read.keeps_block = self.versions.pages().note_missed(&read.id, Need::InThread);
        self.versions.counters().misses.fetch_add(1, Ordering::Relaxed);
        self.scheduler.begin(1);
        let begun = id.at.is_compressed.then(Instant::now);
        let failed = self.carry_out(read, owned);
        if let Some(begun) = begun {
            self.versions.pages().tier().note_wait(begun.elapsed());
        }
        // As at the end of a ticket: the new page can be evicted, and a waiter may take the queue.
        self.signal.wake_if_starving();
        self.scheduler.hand_on_queue();
        failed.map_or(Ok(true), Err)
    }

    /// Returns whether the newest versions of these pages lie in adjacent blocks, in any order, few enough for a single read. False
    /// if the block of a page is unknown.
    pub(super) fn are_neighbours(&self, pages: &[Missing]) -> bool {
        if pages.len() as u64 > self.scratch.run_blocks_max() {
            return false;
        }
        let block = |missing: &Missing| self.versions.pages().block_of(missing.page);
        let Some(mut blocks) = pages.iter().map(block).collect::<Option<Vec<u64>>>() else { return false };
        blocks.sort_unstable();
        blocks.windows(2).all(|two| two[0] + 1 == two[1])
    }

    /// Reads pages on the calling thread as [`DirectReads::read_alone`] does, by one system call, if their blocks lie together.
    /// Returns false when a page must be requested instead: it may be in line already.
    ///
    /// # Errors
    /// The error of `read_alone`, for a single page.
    pub(super) fn read_together(&self, missing: &[Missing]) -> Result<bool> {
        if let [missing] = missing {
            return self.read_alone(*missing);
        }
        if missing.len() as u64 > self.scratch.run_blocks_max() {
            return Ok(false);
        }
        // All resources are taken before the pages are marked, as in `read_alone`.
        let frames = self.evictor.frames_for_reads(missing.len());
        let buffer = if frames.len() == missing.len() { self.scratch.take() } else { None };
        let Some(buffer) = buffer else {
            self.versions.frame_waits().return_frames(frames);
            return Ok(false);
        };
        if !self.scheduler.device().enter() {
            self.scratch.give_back(Some(buffer), None);
            self.versions.frame_waits().return_frames(frames);
            return Ok(false);
        }
        let _fails = self.installer.failure().guard();
        let (mut reads, mut is_all, mut budget) = (Vec::with_capacity(missing.len()), true, Budget::new());
        for missing in missing {
            match self.versions.pages().request_read(*missing, None) {
                ReadRequest::New(id) => reads.extend(self.restorer.restore(Read::new(id, Need::InThread), &mut budget)),
                ReadRequest::InMemory => {}
                ReadRequest::Joined | ReadRequest::Absent => is_all = false,
            }
        }
        for read in &mut reads {
            read.keeps_block = self.versions.pages().note_missed(&read.id, Need::InThread);
        }
        self.versions.counters().misses.fetch_add(reads.len() as u64, Ordering::Relaxed);
        self.scheduler.begin(reads.len());
        reads.sort_unstable_by_key(Read::block);
        if are_one_run(&reads, self.scratch.run_blocks_max()) {
            let begun = reads.iter().any(|read| read.id.at.is_compressed).then(Instant::now);
            self.carry_out_run(reads, frames, buffer);
            if let Some(begun) = begun {
                self.versions.pages().tier().note_wait(begun.elapsed());
            }
        } else {
            is_all &= reads.is_empty();
            self.scheduler.device().leave();
            self.scratch.give_back(Some(buffer), None);
            self.versions.frame_waits().return_frames(frames);
            self.scheduler.staged().add(reads.into_iter());
        }
        self.signal.wake_if_starving();
        self.dispatcher.submit();
        self.scheduler.hand_on_queue();
        Ok(is_all)
    }

    /// Reads pages whose blocks lie together on this thread, which has taken a place at the device, through `buffer`. After a
    /// failure, or with a wrong checksum, their reads are staged again, each by itself.
    fn carry_out_run(&self, mut reads: Vec<Read>, mut frames: Vec<OwnedFrame>, buffer: IoBuf) {
        let page_bytes = self.versions.frames().page_bytes();
        let (first, last) = (reads[0].block(), reads[reads.len() - 1].block());
        for read in &mut reads {
            read.frame = frames.pop();
            read.advance(ReadState::InFlight);
        }
        self.versions.frame_waits().return_frames(frames);
        let (bytes, tail) = buffer.split_at((last - first + 1) as usize * page_bytes);
        let tail = (!tail.is_empty()).then_some(tail);
        self.scheduler.device().note_sent();
        let performed = self.disk.perform(Op::new(0, first * page_bytes as u64, OpKind::Read(bytes)));
        self.scheduler.device().note_back(1);
        let bytes = match performed {
            Ok(done) if done.result.is_ok() => done.into_buffer().map(|bytes| (bytes, tail)),
            failed => {
                self.scratch.give_back(failed.ok().and_then(Completion::into_buffer), tail);
                None
            }
        };
        reads.iter_mut().for_each(|read| read.advance(ReadState::Completed));
        for piece in CompletedRun::pieces_of(reads, first, bytes, &self.scratch) {
            let (completed, unused) = piece.unload(page_bytes);
            self.installer.finish_all(completed);
            self.versions.frame_waits().return_frames(unused);
        }
    }

    /// Reads a page on this thread, which has taken a place at the device: by one system call, or by two if the
    /// checksum is wrong. Returns the error, if the read failed.
    fn carry_out(&self, read: Read, owned: OwnedFrame) -> Option<Error> {
        self.scheduler.device().note_sent();
        let mut aftermath = Aftermath::default();
        let mut next = Some((read, owned));
        while let Some((mut read, OwnedFrame { index, buffer })) = next.take() {
            read.advance(ReadState::InFlight);
            let offset = read.block() * self.versions.frames().page_bytes() as u64;
            let performed = self.disk.perform(Op::new(0, offset, OpKind::Read(buffer)));
            let named = |error| Error::from_io(format!("read page {} at {offset}", read.page()), error);
            let (owned, error) = match performed {
                Ok(done) => {
                    let error = done.result.as_ref().err().cloned().map(named);
                    (done.into_buffer().map(|buffer| OwnedFrame { index, buffer }), error)
                }
                Err(error) => (None, Some(named(error))),
            };
            let completed = CompletedRead::in_frame(read.into_state(ReadState::Completed), owned, error);
            self.installer.prefetch(std::slice::from_ref(&completed));
            self.installer.finish(completed, &mut aftermath);
            next = aftermath.again.pop_if(|again| again.frame.is_some()).and_then(|mut again| {
                let owned = again.frame.take()?;
                Some((again, owned))
            });
        }
        self.scheduler.device().note_back(1);
        let failed = aftermath.failed.take();
        self.installer.settle(aftermath);
        // Submits reads that other threads left staged because the device was full.
        self.dispatcher.submit();
        failed
    }
}

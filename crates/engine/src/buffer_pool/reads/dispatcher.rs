//! Carries reads out, in one of two ways: the thread with the read queue sends staged reads to the device and takes their completions; and
//! a thread that may block reads a single page, or pages whose blocks lie together, by one system call.
//! Both make the same operations ([`ReadOperation`]) and leave completed ones to the [`Installer`], which needs no device where a block is in
//! the compressed tier.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use nofault_io::aligned::IoBuf;
use nofault_io::disk::Disk;

use super::installer::{Aftermath, Installer};
use super::queue::{ReadQueue, SendOutcome, are_one_run};
use super::read::{CompletedPart, CompletedReads, Read, ReadOperation, Scratch};
use super::scheduler::Scheduler;
use super::standstill::Standstill;
use crate::buffer_pool::compressed_tier::Need;
use crate::buffer_pool::evict::Evictor;
use crate::buffer_pool::frames::{OwnedFrame, Waiter};
use crate::buffer_pool::page_table::ReadRequest;
use crate::buffer_pool::versions::{Versions, WriterSignal};
use crate::error::{Error, Result};
use crate::pages::Missing;
use crate::sync::budget::Budget;

/// Number of operations submitted with one system call. The device serves a tenth more reads in groups of this size
/// than in large groups.
const SUBMIT_EVERY: usize = 4;
/// Number of operations at the device that keep it busy until the next thread takes a completion and submits more: that
/// thread may have several runs to install first.
pub(super) const BUSY_WITH: usize = 12;
/// Fewest adjacent frames for which a long run of blocks is cut into shorter runs, each read directly into such frames.
const CUT_AT_LEAST: usize = 32;

/// Carries out the reads of a pool.
pub(crate) struct Dispatcher {
    disk: Arc<dyn Disk>,
    versions: Arc<Versions>,
    evictor: Arc<Evictor>,
    signal: Arc<WriterSignal>,
    scheduler: Arc<Scheduler>,
    installer: Arc<Installer>,
    standstill: Arc<Standstill>,
    scratch: Arc<Scratch>,
}

impl Dispatcher {
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        (versions, evictor, signal): (&Arc<Versions>, &Arc<Evictor>, &Arc<WriterSignal>),
        (scheduler, scratch): (&Arc<Scheduler>, &Arc<Scratch>),
        (installer, standstill): (&Arc<Installer>, &Arc<Standstill>),
    ) -> Self {
        Self {
            disk: Arc::clone(disk),
            versions: Arc::clone(versions),
            evictor: Arc::clone(evictor),
            signal: Arc::clone(signal),
            scheduler: Arc::clone(scheduler),
            installer: Arc::clone(installer),
            standstill: Arc::clone(standstill),
            scratch: Arc::clone(scratch),
        }
    }

    /// Submits staged reads as long as there are frames, and takes completions, unless another thread has the read
    /// queue.
    pub(super) fn submit(&self) {
        let is_idle = self.send();
        if !self.signal.is_running() {
            self.standstill.look(Instant::now());
        } else if is_idle && !self.signal.is_starving() {
            self.signal.wake();
        }
    }

    /// Submits staged reads and takes completions, as [`Dispatcher::submit`] does, but wakes no thread. Returns true
    /// when reads are left while none is at the device, so that no completion will lead to the next attempt. While the
    /// device is busy, the thread that takes the next completion submits more.
    pub(crate) fn send(&self) -> bool {
        // Repeats when reads were staged after the last check and their thread found the queue taken.
        while self.scheduler.has_unsent() {
            let Some(queue) = self.scheduler.try_queue() else { return false };
            let busy = self.scheduler.device().taken() > 0;
            let started = self.work(queue, 0);
            if !matches!(started, Ok(progress) if progress > 0) {
                return !busy;
            }
        }
        false
    }

    /// Waits for the lock of the queue, then for `wait_for` completions, and installs their pages.
    ///
    /// # Errors
    /// The queue's error, when the queue cannot be used any more.
    pub(crate) fn reap(&self, wait_for: usize) -> Result<usize> {
        self.work(self.scheduler.queue(), wait_for)
    }

    /// Takes completions, unless another thread holds the queue's lock: that thread looks for completions again after
    /// releasing it.
    pub(crate) fn take(&self) {
        if let Some(queue) = self.scheduler.try_queue_or_miss() {
            // The error is dropped: it concerns the whole queue, so the next submission gets it as well.
            let _ = self.work(queue, 0);
        }
        self.submit();
    }

    /// Takes completions again if an executor found the queue's lock held.
    pub(super) fn look_again(&self) {
        if self.scheduler.take_missed() {
            self.take();
        }
    }

    /// Submits staged reads, takes at least `wait_for` completions, and installs the completed reads. Returns the
    /// number of reads started and completed.
    ///
    /// # Errors
    /// The queue's error, when the queue cannot be used any more.
    pub(super) fn work(&self, queue: MutexGuard<'_, ReadQueue>, wait_for: usize) -> Result<usize> {
        let _fails = self.installer.failure().guard();
        let mut completed = CompletedReads::default();
        // Released before the guard by a panic as well, and before runs, whose end wakes tasks.
        let mut queue = queue;
        let started = self.start_staged(&mut queue, &mut completed);
        // One completion of a run may bring all the pages of a waiter.
        let most = if queue.has_runs() { 1 } else { usize::MAX };
        let wait_for = if completed.is_empty() && queue.operation_count() > 0 { wait_for.min(most) } else { 0 };
        let (count, reaped) = queue.reap(wait_for, &mut completed);
        if let Some(pace) = queue.note_pace(count) {
            self.versions.pages().tier().note_pace(pace);
        }
        self.scheduler.device().note_back(count);
        self.scheduler.set_stuck(reaped.is_err() && queue.operation_count() > 0);
        let refused = queue.count_refusal(&reaped).map(|error| (error, queue.give_up()));
        self.scheduler.set_in_line(queue.line.len());
        self.scheduler.let_rest(&mut queue);
        drop(queue);
        let CompletedReads { pages, runs } = completed;
        let run_count = runs.len();
        let progress = started + pages.len() + run_count;
        self.installer.finish_all(pages);
        if let Some((error, given_up)) = refused {
            self.installer.give_up(given_up, &Error::from_io("send reads", error));
        }
        if run_count > 0 {
            self.scheduler.add_completed_runs(runs);
            // First of all, so that the device reads while the pages are checked.
            self.keep_device_busy();
            // Installs as many runs as this thread added, so that all are installed and the thread is kept no longer.
            for _ in 0..run_count {
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

    /// Installs the pages of one completed run, or of a piece of one. Returns false when there is no completed run.
    pub(super) fn unload_run(&self) -> bool {
        let _fails = self.installer.failure().guard();
        let run = self.scheduler.next_completed_run();
        let is_there = run.is_some();
        run.into_iter().for_each(|run| self.installer.install_run(run));
        is_there
    }

    /// Submits unsent reads when the device will soon be idle, and takes no completions.
    fn keep_device_busy(&self) {
        if self.scheduler.device().taken() >= BUSY_WITH || !self.scheduler.has_unsent() {
            return;
        }
        let _fails = self.installer.failure().guard();
        let mut completed = CompletedReads::default();
        let Some(mut queue) = self.scheduler.try_queue() else { return };
        self.start_staged(&mut queue, &mut completed);
        // If the kernel refuses, nothing is lost: the next thread that looks for unsent reads submits again or reports the error.
        self.scheduler.set_stuck(queue.submit().is_err());
        drop(queue);
        let CompletedReads { pages, runs } = completed;
        self.installer.finish_all(pages);
        let ended = runs.len();
        self.scheduler.add_completed_runs(runs);
        for _ in 0..ended {
            self.unload_run();
        }
    }

    /// Gives frames to reads in line and sends them, as long as the device has free places. Returns how many operations
    /// were sent.
    fn start_staged(&self, queue: &mut ReadQueue, completed: &mut CompletedReads) -> usize {
        self.scheduler.staged().line_up(queue);
        let device = self.scheduler.device();
        let mut started = 0;
        let mut put_off = Vec::new();
        while queue.line.has_reads() && !queue.is_far_ahead() && device.enter() {
            let run = queue.next_run();
            let adjacent = queue.line.adjacent_blocks(run);
            let memory = adjacent.and_then(|blocks| self.evictor.run_for_read(blocks.min(CUT_AT_LEAST), blocks));
            let sent = if let Some(memory) = memory {
                let (sent, unused) = queue.send_into(run, memory, completed);
                self.versions.frame_waits().return_frames(unused);
                sent
            } else {
                let count = self.give_frames(queue, run);
                if count == 0 {
                    device.leave();
                    // Sets the number first, because a background thread that is awake already checks only the number.
                    self.scheduler.set_in_line(queue.line.len());
                    self.signal.wake_for_frames();
                    break;
                }
                queue.send(count, completed)
            };
            if matches!(sent, SendOutcome::InFlight) {
                started += 1;
                self.note_sent(queue, started);
                continue;
            }
            device.leave();
            match sent {
                SendOutcome::Full => break,
                SendOutcome::NoScratch(reads) => put_off.extend(reads),
                SendOutcome::InFlight | SendOutcome::Refused | SendOutcome::Alone => {}
            }
        }
        queue.line.put_first(put_off);
        while queue.has_scan_to_send() && device.enter() {
            match queue.send_for_scan(completed) {
                SendOutcome::InFlight => {
                    started += 1;
                    self.note_sent(queue, started);
                }
                SendOutcome::Full => {
                    device.leave();
                    break;
                }
                SendOutcome::Refused | SendOutcome::Alone | SendOutcome::NoScratch(_) => device.leave(),
            }
        }
        self.scheduler.set_in_line(queue.line.len());
        // The last operations are not submitted yet: the caller reaps next, which submits them in the same system call.
        started
    }

    /// Notes an operation that was pushed, the number `started` of this round, and submits those pushed before now and then.
    fn note_sent(&self, queue: &mut ReadQueue, started: usize) {
        self.scheduler.device().note_sent();
        if started.is_multiple_of(SUBMIT_EVERY) {
            // If the kernel refuses, nothing is lost: the pushed operations are still queued, and the reap that follows
            // submits them again or reports the error.
            let _ = queue.submit();
        }
    }

    /// Gives each of the first `run` reads in line a frame, until no frame is free. Returns how many of these reads
    /// have one.
    fn give_frames(&self, queue: &mut ReadQueue, run: usize) -> usize {
        let lacking = queue.line.frames_lacking(run);
        let mut frames = if lacking > 1 { self.evictor.frames_for_reads(lacking) } else { Vec::new() };
        queue.line.give_frames(run, || frames.pop().or_else(|| self.evictor.frame_for_read()))
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
    pub(crate) fn read_alone(&self, missing: Missing) -> Result<bool> {
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
            self.submit();
            return Ok(matches!(request, ReadRequest::InMemory));
        };
        let (mut read, owned) = match self.installer.restore_into(Read::new(id, Need::InThread), owned) {
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
    pub(crate) fn are_neighbours(&self, pages: &[Missing]) -> bool {
        if pages.len() as u64 > self.scratch.run_blocks_max() {
            return false;
        }
        let block = |missing: &Missing| self.versions.pages().block_of(missing.page);
        let Some(mut blocks) = pages.iter().map(block).collect::<Option<Vec<u64>>>() else { return false };
        blocks.sort_unstable();
        blocks.windows(2).all(|two| two[0] + 1 == two[1])
    }

    /// Reads pages on the calling thread as [`Dispatcher::read_alone`] does, by one system call, if their blocks lie together.
    /// Returns false when a page must be requested instead: it may be in line already.
    ///
    /// # Errors
    /// The error of `read_alone`, for a single page.
    pub(crate) fn read_together(&self, missing: &[Missing]) -> Result<bool> {
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
                ReadRequest::New(id) => {
                    reads.extend(self.installer.restore(Read::new(id, Need::InThread), &mut budget))
                }
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
        self.submit();
        self.scheduler.hand_on_queue();
        Ok(is_all)
    }

    /// Reads pages whose blocks lie together on this thread, which has taken a place at the device, through `buffer`. After a
    /// failure, or with a wrong checksum, their reads are staged again, each by itself.
    fn carry_out_run(&self, mut reads: Vec<Read>, mut frames: Vec<OwnedFrame>, buffer: IoBuf) {
        reads.iter_mut().for_each(|read| read.frame = frames.pop());
        self.versions.frame_waits().return_frames(frames);
        let page_bytes = self.versions.frames().page_bytes();
        let operation = ReadOperation::through_scratch(reads, buffer, &self.scratch, page_bytes);
        let mut completed = CompletedReads::default();
        self.scheduler.device().note_sent();
        self.perform(operation, |part| completed.add(part));
        self.scheduler.device().note_back(1);
        completed.runs.into_iter().for_each(|run| self.installer.install_run(run));
    }

    /// Reads a page on this thread, which has taken a place at the device: by one system call, or by two if the
    /// checksum is wrong. Returns the error, if the read failed.
    fn carry_out(&self, read: Read, owned: OwnedFrame) -> Option<Error> {
        self.scheduler.device().note_sent();
        let mut aftermath = Aftermath::default();
        let mut next = Some((read, owned));
        while let Some((read, owned)) = next.take() {
            self.perform(ReadOperation::of_page(read, owned), |part| match part {
                CompletedPart::Page(page) => {
                    self.installer.prefetch(std::slice::from_ref(&page));
                    self.installer.finish(page, &mut aftermath);
                }
                CompletedPart::Pages(pages) => self.installer.install_run(pages),
            });
            next = aftermath.again.pop_if(|again| again.frame.is_some()).and_then(|mut again| {
                let owned = again.frame.take()?;
                Some((again, owned))
            });
        }
        self.scheduler.device().note_back(1);
        let failed = aftermath.failed.take();
        self.installer.settle(aftermath);
        // Submits reads that other threads left staged because the device was full.
        self.submit();
        failed
    }

    /// Carries an operation out by a call that waits for the device.
    fn perform(&self, (mut operation, buffer): (ReadOperation, IoBuf), into: impl FnMut(CompletedPart)) {
        let page_bytes = self.versions.frames().page_bytes();
        operation.note_sent();
        let (buffer, error) = match self.disk.perform(operation.request(0, buffer, page_bytes)) {
            Ok(done) => {
                let error = done.result.as_ref().err().cloned();
                (done.into_buffer(), error)
            }
            Err(error) => (None, Some(error)),
        };
        operation.end(buffer, error, page_bytes, into);
    }
}

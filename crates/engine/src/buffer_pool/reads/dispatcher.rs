//! Sends staged reads to the device, and takes their completions: the work of the thread with the read queue.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use super::completed::{CompletedPages, CompletedRead};
use super::in_flight::{ReadQueue, SendOutcome};
use super::installer::Installer;
use super::scheduler::Scheduler;
use super::standstill::Standstill;
use crate::buffer_pool::evict::Evictor;
use crate::buffer_pool::versions::Versions;
use crate::buffer_pool::writer_signal::WriterSignal;
use crate::error::{Error, Result};
use crate::events;

/// Number of operations submitted with one system call. The device serves a tenth more reads in groups of this size
/// than in large groups.
const SUBMIT_EVERY: usize = 4;
/// Number of operations at the device that keep it busy until the next thread takes a completion and submits more: that
/// thread may have several runs to install first.
pub(super) const BUSY_WITH: usize = 12;
/// Fewest adjacent frames for which a long run of blocks is cut into shorter runs, each read directly into such frames.
const CUT_AT_LEAST: usize = 32;

/// Submits reads from the scheduler to the device and takes their completions.
pub(crate) struct Dispatcher {
    versions: Arc<Versions>,
    evictor: Arc<Evictor>,
    signal: Arc<WriterSignal>,
    scheduler: Arc<Scheduler>,
    installer: Arc<Installer>,
    standstill: Arc<Standstill>,
}

impl Dispatcher {
    pub(super) fn new(
        (versions, evictor, signal): (&Arc<Versions>, &Arc<Evictor>, &Arc<WriterSignal>),
        scheduler: &Arc<Scheduler>,
        (installer, standstill): (&Arc<Installer>, &Arc<Standstill>),
    ) -> Self {
        Self {
            versions: Arc::clone(versions),
            evictor: Arc::clone(evictor),
            signal: Arc::clone(signal),
            scheduler: Arc::clone(scheduler),
            installer: Arc::clone(installer),
            standstill: Arc::clone(standstill),
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
    pub(super) fn send(&self) -> bool {
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
        let (mut completed, mut runs) = (Vec::new(), Vec::new());
        // Released before the guard by a panic as well, and before runs, whose end wakes tasks.
        let mut queue = queue;
        let started = self.start_staged(&mut queue, (&mut completed, &mut runs));
        // One completion of a run may bring all the pages of a waiter.
        let most = if queue.has_runs() { 1 } else { usize::MAX };
        let wait_for =
            if completed.is_empty() && runs.is_empty() && queue.operation_count() > 0 { wait_for.min(most) } else { 0 };
        let (count, reaped) = queue.reap(wait_for, &mut completed, &mut runs);
        if let Some(pace) = queue.note_pace(count) {
            self.versions.pages().tier().note_pace(pace);
        }
        self.scheduler.device().note_back(count);
        self.scheduler.set_stuck(reaped.is_err() && queue.operation_count() > 0);
        let refused = queue.count_refusal(&reaped).map(|error| (error, queue.give_up()));
        self.scheduler.set_in_line(queue.in_line());
        self.scheduler.let_rest(&mut queue);
        drop(queue);
        let run_count = runs.len();
        let progress = started + completed.len() + run_count;
        self.installer.finish_all(completed);
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
        let Some(run) = self.scheduler.next_completed_run() else { return false };
        match run {
            CompletedPages::OfPool(run) => {
                let (completed, unused) = run.unload(self.versions.frames().page_bytes());
                self.installer.finish_all(completed);
                self.versions.frame_waits().return_frames(unused);
            }
            CompletedPages::OfScan(read) => {
                self.scheduler.note_finished(read.run().pages().len());
                for page in read.check(self.versions.file_codec()) {
                    // The scan reads it again, through the pool.
                    events::checksum_retry(page);
                    self.versions.counters().checksum_retries.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        true
    }

    /// Submits unsent reads when the device will soon be idle, and takes no completions.
    fn keep_device_busy(&self) {
        if self.scheduler.device().taken() >= BUSY_WITH || !self.scheduler.has_unsent() {
            return;
        }
        let _fails = self.installer.failure().guard();
        let (mut completed, mut runs) = (Vec::new(), Vec::new());
        let Some(mut queue) = self.scheduler.try_queue() else { return };
        self.start_staged(&mut queue, (&mut completed, &mut runs));
        // If the kernel refuses, nothing is lost: the next thread that looks for unsent reads submits again or reports the error.
        self.scheduler.set_stuck(queue.submit().is_err());
        drop(queue);
        self.installer.finish_all(completed);
        let ended = runs.len();
        self.scheduler.add_completed_runs(runs);
        for _ in 0..ended {
            self.unload_run();
        }
    }

    /// Gives frames to reads in line and sends them, as long as the device has free places. Returns how many operations
    /// were sent.
    fn start_staged(
        &self,
        queue: &mut ReadQueue,
        (completed, runs): (&mut Vec<CompletedRead>, &mut Vec<CompletedPages>),
    ) -> usize {
        self.scheduler.staged().line_up(queue);
        let page_bytes = self.versions.frames().page_bytes();
        let device = self.scheduler.device();
        let mut started = 0;
        let mut put_off = Vec::new();
        while queue.has_reads_in_line() && !queue.is_far_ahead() && device.enter() {
            let run = queue.next_run();
            let adjacent = queue.adjacent_blocks(run);
            let memory = adjacent.and_then(|blocks| self.evictor.run_for_read(blocks.min(CUT_AT_LEAST), blocks));
            let sent = if let Some(memory) = memory {
                let (sent, unused) = queue.send_direct(run, memory, page_bytes);
                self.versions.frame_waits().return_frames(unused);
                sent
            } else {
                let count = self.give_frames(queue, run);
                if count == 0 {
                    device.leave();
                    // Sets the number first, because a background thread that is awake already checks only the number.
                    self.scheduler.set_in_line(queue.in_line());
                    self.signal.wake_for_frames();
                    break;
                }
                queue.send(count, page_bytes, completed)
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
        queue.put_first(put_off);
        while queue.has_scan_to_send() && device.enter() {
            match queue.send_for_scan(page_bytes, runs) {
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
        self.scheduler.set_in_line(queue.in_line());
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
        let lacking = queue.frames_lacking(run);
        let mut frames = if lacking > 1 { self.evictor.frames_for_reads(lacking) } else { Vec::new() };
        queue.give_frames(run, || frames.pop().or_else(|| self.evictor.frame_for_read()))
    }
}

//! A disk by plain system calls (pread, pwrite) on a pool of threads: for systems without io_uring, and for
//! comparison.
//!
//! The pool belongs to the process: the disks share its threads, and each disk bounds how many of its operations are in the kernel at
//! a time. Threads start when there is work for one more, so no disk waits for another's; they end after a time without work, but
//! for one, which is joined when the last disk and its queues are gone. Each queue has its own list of completions, so that no queue
//! takes another's.
//!
//! Invariants:
//! 1. A worker owns the operation, memory included, until it hands it to the queue's list. A queue that is dropped takes back the
//!    operations that no worker has begun; the others are abandoned: they end in a list without readers, and are freed with it. No end
//!    of a disk waits for those, which may be another disk's that does not answer.
//! 2. An operation waits at its disk (`Load::waiting`) only while as many as the disk allows are with the pool. The end of each brings
//!    the next.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rustix::event::EventfdFlags;

use crate::completion::{Completion, Op};
use crate::disk::{Disk, DiskInfo, DiskNote, FileOptions, Queue, QueueOptions, RefusedOp, describe_op};
use crate::error::{Error, ErrorKind, Result};
use crate::file::DiskFile;
use crate::process::{PerProcess, Process};
use crate::transfer::{self, Transfer};

/// Stack of a worker, in bytes: its calls are not deep.
const STACK_BYTES: usize = 128 << 10;
/// Time without work after which a worker ends.
const IDLE: Duration = Duration::from_secs(1);

static OF_PROCESS: PerProcess<Mutex<Weak<Pool>>> = PerProcess::new();

/// A file or block device, used through system calls on a pool of threads.
#[derive(Debug)]
pub struct PsyncDisk {
    pool: Arc<Pool>,
    file: Arc<PoolFile>,
    info: DiskInfo,
}

impl PsyncDisk {
    /// Opens a file or block device; `threads` bounds how many operations are in the kernel at a time, over all
    /// queues of the disk. All disks of the process share their threads: one when there is nothing to do; more start with
    /// the work.
    ///
    /// # Errors
    /// `InvalidCall` for zero threads or a path that is neither file nor device, `Unsupported` when direct I/O is
    /// required and refused, `NotFound`, `AlreadyExists`, `NoPermission`, `NoSpace`, `NoResources` as the system reports.
    pub fn open(path: &Path, options: &FileOptions, threads: usize) -> Result<Self> {
        if threads == 0 {
            return Err(Error::new(ErrorKind::InvalidCall, "open", "a pool of zero threads").at(path));
        }
        Self::of(DiskFile::open("psync", path, options)?, threads).map_err(|error| error.at(path))
    }

    /// Makes a disk of a regular file of an open folder.
    ///
    /// # Errors
    /// As [`PsyncDisk::open`], and the error of `open`.
    pub(crate) fn open_by(
        path: &Path,
        open: impl FnOnce(&'static str) -> Result<DiskFile>,
        threads: usize,
    ) -> Result<Self> {
        Self::of(open("psync")?, threads).map_err(|error| error.at(path))
    }

    fn of(file: DiskFile, threads: usize) -> Result<Self> {
        let mut info = file.info().clone();
        info.notes.push(DiskNote::in_use(format!("system calls on up to {threads} threads")));
        let file = Arc::new(PoolFile { file, in_pool_max: threads, load: Mutex::default() });
        Ok(Self { pool: Pool::of_process()?, file, info })
    }

    /// Adds a note to the disk's description, such as the reason why threads are used.
    #[must_use]
    pub(crate) fn with_note(mut self, note: DiskNote) -> Self {
        self.info.notes.push(note);
        self
    }
}

impl Disk for PsyncDisk {
    fn info(&self) -> DiskInfo {
        self.info.clone()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.file.file.len_bytes()
    }

    fn truncate(&self, len_bytes: u64) -> Result<()> {
        self.file.file.truncate(len_bytes)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        if options.depth_max == 0 {
            return Err(Error::new(ErrorKind::InvalidCall, "open a queue", "a depth of zero"));
        }
        Ok(Box::new(PsyncQueue {
            pool: Arc::clone(&self.pool),
            file: Arc::clone(&self.file),
            done: Arc::default(),
            unsent: Vec::new(),
            in_flight: 0,
            depth_max: options.depth_max,
        }))
    }

    fn perform(&self, op: Op) -> Result<Completion> {
        Ok(transfer::perform(op, &self.file.file))
    }
}

/// The file of a disk, and its operations waiting for the pool.
#[derive(Debug)]
struct PoolFile {
    file: DiskFile,
    /// Most operations with the pool at a time.
    in_pool_max: usize,
    load: Mutex<Load>,
}

#[derive(Debug, Default)]
struct Load {
    in_pool: usize,
    waiting: VecDeque<Job>,
}

impl PoolFile {
    /// Returns the job if the pool may have it; otherwise it waits.
    fn admit(&self, job: Job) -> Option<Job> {
        let mut load = lock(&self.load);
        if load.in_pool < self.in_pool_max {
            load.in_pool += 1;
            return Some(job);
        }
        load.waiting.push_back(job);
        None
    }

    /// Notes that the pool has one job less. Returns the next, which takes its place.
    fn next(&self) -> Option<Job> {
        let mut load = lock(&self.load);
        let next = load.waiting.pop_front();
        if next.is_none() {
            load.in_pool -= 1;
        }
        next
    }
}

/// The threads of a process; dropping it ends them and waits for them, but not for abandoned operations.
#[derive(Debug)]
struct Pool {
    /// The process that started them: a forked child has none of them.
    process: Process,
    shared: Arc<PoolShared>,
}

/// The part of the pool that its threads share.
#[derive(Debug, Default)]
struct PoolShared {
    work: Mutex<Work>,
    more: Condvar,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    jobs: VecDeque<Job>,
    threads: usize,
    idle_threads: usize,
    /// Number of threads that carry out operations of queues that are gone.
    abandoned: usize,
    closed: bool,
}

/// An operation, its file, and the list its completion goes to.
#[derive(Debug)]
struct Job {
    transfer: Transfer,
    file: Arc<PoolFile>,
    done: Arc<CompletionQueue>,
}

thread_local! {
    /// Whether this is a thread of the pool.
    static IS_WORKER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Pool {
    /// Returns the pool of this process, with a thread at least.
    fn of_process() -> Result<Arc<Self>> {
        let mut of_process = lock(OF_PROCESS.get());
        if let Some(pool) = of_process.upgrade() {
            return Ok(pool);
        }
        let pool = Arc::new(Self { process: Process::current(), shared: Arc::default() });
        // Kept before the thread starts, so that an error ends nothing that others use.
        pool.add_thread()?;
        *of_process = Arc::downgrade(&pool);
        Ok(pool)
    }

    fn add_thread(&self) -> Result<()> {
        lock(&self.shared.work).threads += 1;
        let shared = Arc::clone(&self.shared);
        let thread =
            std::thread::Builder::new().name("nofault-io".into()).stack_size(STACK_BYTES).spawn(move || shared.serve());
        thread.map(drop).map_err(|error| {
            lock(&self.shared.work).threads -= 1;
            Error::from_spawn("start an I/O thread", &error)
        })
    }

    fn send(&self, jobs: impl Iterator<Item = Job>) {
        let mut admitted: VecDeque<Job> = jobs.filter_map(|job| Arc::clone(&job.file).admit(job)).collect();
        let sent = admitted.len();
        let mut work = lock(&self.shared.work);
        work.jobs.append(&mut admitted);
        let (waiting, idle) = (work.jobs.len(), work.idle_threads);
        drop(work);
        for _ in 0..sent.min(idle) {
            self.shared.more.notify_one();
        }
        for _ in 0..waiting.saturating_sub(idle).min(sent) {
            // One thread is always there: where the system has no more to give, it does the work.
            if self.add_thread().is_err() {
                break;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.process.is_here() {
            return;
        }
        let mut work = lock(&self.shared.work);
        work.closed = true;
        self.shared.more.notify_all();
        // The memory of an abandoned operation may hold the last handle of a disk: then a worker ends up here, and cannot wait for
        // itself.
        while work.threads > work.abandoned && !IS_WORKER.get() {
            work = self.shared.ended.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl PoolShared {
    /// Carries out jobs until the pool ends, or there has been none for a time.
    fn serve(&self) {
        IS_WORKER.set(true);
        let mut work = lock(&self.work);
        loop {
            if let Some(job) = work.jobs.pop_front() {
                drop(work);
                let file = Arc::clone(&job.file);
                let mut was_abandoned = false;
                // `finish` calls the kernel, and drops the caller's memory when its queue is gone. A panic in that
                // `Drop` must not end the worker: the callers of the jobs behind it would wait for ever.
                let finish = AssertUnwindSafe(|| job.finish(&mut was_abandoned));
                if let Err(payload) = std::panic::catch_unwind(finish) {
                    // The panic payload may panic again when it is dropped.
                    std::mem::forget(payload);
                }
                work = lock(&self.work);
                work.abandoned -= usize::from(was_abandoned);
                work.jobs.extend(file.next());
                drop(work);
                // Without the lock: this may be the last reference to the file.
                drop(file);
                work = lock(&self.work);
                continue;
            }
            if work.closed {
                break;
            }
            work.idle_threads += 1;
            let waited = self.more.wait_timeout(work, IDLE);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            work = guard;
            work.idle_threads -= 1;
            if timeout.timed_out() && work.jobs.is_empty() && work.threads > 1 {
                break;
            }
        }
        work.threads -= 1;
        self.ended.notify_all();
    }
}

impl Job {
    /// Carries the operation out. Sets `was_abandoned` if its queue is gone.
    fn finish(self, was_abandoned: &mut bool) {
        let Self { transfer, file, done } = self;
        *was_abandoned = done.arrive(transfer.carry_out(&file.file));
    }
}

/// Locks a mutex, ignoring poison: each holder moves one value in or out, so a panic leaves no half-made content.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The completions of one queue.
#[derive(Debug, Default)]
struct CompletionQueue {
    list: Mutex<Vec<Completion>>,
    /// Whether the queue is gone. Changes under the lock of `list`.
    is_abandoned: AtomicBool,
    arrived: Condvar,
    /// Readable while `list` is not empty; created, under its lock, once a caller asks for it. Until then no completion pays for the
    /// signal.
    event: OnceLock<OwnedFd>,
}

impl CompletionQueue {
    /// Adds a completion. Returns whether the queue is gone.
    fn arrive(&self, completion: Completion) -> bool {
        let mut list = lock(&self.list);
        list.push(completion);
        if list.len() == 1 {
            self.signal();
        }
        let is_abandoned = self.is_abandoned.load(Ordering::Relaxed);
        drop(list);
        self.arrived.notify_one();
        is_abandoned
    }

    /// Notes that the queue is gone. Returns the number of completions that have arrived.
    fn abandon(&self) -> usize {
        let list = lock(&self.list);
        self.is_abandoned.store(true, Ordering::Relaxed);
        list.len()
    }

    /// Makes the descriptor readable. The caller holds the lock of `list`, so that it cannot be emptied in between.
    fn signal(&self) {
        if let Some(event) = self.event.get() {
            // Fails only when the counter is full, and then it is readable already.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    /// Clears the descriptor. The caller holds the lock of `list` and is about to empty it.
    fn unsignal(&self) {
        if let Some(event) = self.event.get() {
            // Fails only when the counter is zero, and then it is not readable already.
            let _ = rustix::io::read(event, &mut [0_u8; 8]);
        }
    }
}

/// The queue of one consumer.
struct PsyncQueue {
    pool: Arc<Pool>,
    file: Arc<PoolFile>,
    done: Arc<CompletionQueue>,
    unsent: Vec<Job>,
    in_flight: usize,
    depth_max: usize,
}

impl Queue for PsyncQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        if self.in_flight >= self.depth_max {
            let error = Error::new(ErrorKind::Busy, describe_op(&op), format!("{} in flight", self.in_flight));
            return Err(RefusedOp { op, error });
        }
        if let Err(error) = self.file.file.accept(&op) {
            return Err(RefusedOp { op, error });
        }
        let (file, done) = (Arc::clone(&self.file), Arc::clone(&self.done));
        self.unsent.push(Job { transfer: Transfer::new(op), file, done });
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        if !self.unsent.is_empty() {
            self.pool.send(self.unsent.drain(..));
        }
        Ok(())
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        self.submit()?;
        let wanted = wait_for.min(self.in_flight);
        let mut list = lock(&self.done.list);
        while list.len() < wanted {
            list = self.done.arrived.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        if !list.is_empty() {
            self.done.unsignal();
        }
        self.in_flight -= list.len();
        into.append(&mut list);
        Ok(())
    }

    fn run(&mut self, op: Op, into: &mut Vec<Completion>) -> Result<()> {
        into.push(transfer::perform(op, &self.file.file));
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.done.event.get().is_none() {
            let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok()?;
            let list = lock(&self.done.list);
            if self.done.event.set(event).is_ok() && !list.is_empty() {
                self.done.signal();
            }
        }
        self.done.event.get().map(AsFd::as_fd)
    }
}

impl Drop for PsyncQueue {
    fn drop(&mut self) {
        // In a forked child a thread that does not exist may hold the locks.
        if !self.pool.process.is_here() {
            return;
        }
        let is_ours = |job: &Job| Arc::ptr_eq(&job.done, &self.done);
        let take_ours = |jobs: &mut VecDeque<Job>| {
            let (ours, others): (VecDeque<Job>, _) = jobs.drain(..).partition(is_ours);
            *jobs = others;
            ours
        };
        // At once, as a worker moves jobs from the one list to the other under the first lock.
        let mut work = lock(&self.pool.shared.work);
        let waiting = take_ours(&mut lock(&self.file.load).waiting);
        let ours = take_ours(&mut work.jobs);
        let back = self.unsent.len() + waiting.len() + ours.len();
        work.abandoned += self.in_flight - back - self.done.abandon();
        // Each makes room for one of the disk's other queues.
        let jobs_before = work.jobs.len();
        work.jobs.extend(ours.iter().filter_map(|_| self.file.next()));
        let has_more = work.jobs.len() > jobs_before;
        drop(work);
        if has_more {
            self.pool.shared.more.notify_all();
        }
        // Outside the locks: it frees the caller's memory, and that is the caller's code.
        drop((waiting, ours));
    }
}

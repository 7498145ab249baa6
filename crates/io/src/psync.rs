//! A disk by plain system calls (pread, pwrite) on a pool of threads: for systems without io_uring, and for
//! comparison.
//!
//! The pool belongs to the disk. Its threads start when there is work for one more, park when there is none, and are
//! joined when the disk and its queues are gone. Each queue has its own list of completions, so that no queue takes
//! another's.
//!
//! Invariant: a worker owns the operation, memory included, until it hands it to the queue's list. A queue that is
//! dropped takes back the operations that no worker has begun; the others end in a list without readers, and are
//! freed with it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::EventfdFlags;

use crate::completion::{Completion, Op};
use crate::disk::{Disk, DiskInfo, DiskNote, FileOptions, Queue, QueueOptions, RefusedOp, describe_op};
use crate::error::{Error, ErrorKind, Result};
use crate::file::DiskFile;
use crate::process::Process;
use crate::transfer::{self, Transfer};

/// Stack of a worker, in bytes: its calls are not deep.
const STACK_BYTES: usize = 128 << 10;

/// A file or block device, used through system calls on a pool of threads.
#[derive(Debug)]
pub struct PsyncDisk {
    pool: Arc<Pool>,
    info: DiskInfo,
}

impl PsyncDisk {
    /// Opens a file or block device; `threads` bounds how many operations are in the kernel at a time, over all
    /// queues of the disk. Starts one thread; more start with the work.
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

    /// Opens a regular file in an open folder; see [`DiskFile::open_in`].
    ///
    /// # Errors
    /// As [`PsyncDisk::open`].
    pub(crate) fn open_in(
        folder: BorrowedFd<'_>,
        name: &str,
        path: &Path,
        options: &FileOptions,
        threads: usize,
    ) -> Result<Self> {
        Self::of(DiskFile::open_in("psync", folder, name, path, options)?, threads).map_err(|error| error.at(path))
    }

    fn of(file: DiskFile, threads: usize) -> Result<Self> {
        let mut info = file.info().clone();
        info.notes.push(DiskNote::in_use(format!("system calls on up to {threads} threads")));
        let pool = Pool::start(file, threads)?;
        Ok(Self { pool: Arc::new(pool), info })
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
        self.pool.shared.file.len_bytes()
    }

    fn truncate(&self, len_bytes: u64) -> Result<()> {
        self.pool.shared.file.truncate(len_bytes)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        if options.depth_max == 0 {
            return Err(Error::new(ErrorKind::InvalidCall, "open a queue", "a depth of zero"));
        }
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Error::from_rustix("create an eventfd", error))?;
        let done =
            CompletionQueue { list: Mutex::default(), arrived: Condvar::new(), event, watched: AtomicBool::new(false) };
        Ok(Box::new(PsyncQueue {
            pool: Arc::clone(&self.pool),
            done: Arc::new(done),
            unsent: Vec::new(),
            in_flight: 0,
            depth_max: options.depth_max,
        }))
    }

    fn perform(&self, op: Op) -> Result<Completion> {
        Ok(transfer::perform(op, &self.pool.shared.file))
    }
}

/// The threads of one disk; dropping it ends and joins them.
#[derive(Debug)]
struct Pool {
    shared: Arc<PoolShared>,
    threads_max: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The process that has the threads.
    process: Process,
}

/// The part of the pool that its threads share.
#[derive(Debug)]
struct PoolShared {
    file: DiskFile,
    work: Mutex<Work>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Work {
    jobs: VecDeque<Job>,
    idle_threads: usize,
    closed: bool,
}

/// An operation, and the list its completion goes to.
#[derive(Debug)]
struct Job {
    transfer: Transfer,
    done: Arc<CompletionQueue>,
}

impl Pool {
    fn start(file: DiskFile, threads_max: usize) -> Result<Self> {
        let shared = Arc::new(PoolShared { file, work: Mutex::default(), more: Condvar::new() });
        let pool = Self { shared, threads_max, threads: Mutex::default(), process: Process::current() };
        pool.add_thread(&mut lock(&pool.threads))?;
        Ok(pool)
    }

    fn add_thread(&self, threads: &mut Vec<JoinHandle<()>>) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("nofault-io".into())
            .stack_size(STACK_BYTES)
            .spawn(move || shared.serve())
            .map_err(|error| Error::from_spawn("start an I/O thread", &error))?;
        threads.push(thread);
        Ok(())
    }

    fn send(&self, jobs: impl ExactSizeIterator<Item = Job>) {
        let sent = jobs.len();
        let mut work = lock(&self.shared.work);
        work.jobs.extend(jobs);
        let (waiting, idle) = (work.jobs.len(), work.idle_threads);
        drop(work);
        for _ in 0..sent.min(idle) {
            self.shared.more.notify_one();
        }
        let mut threads = lock(&self.threads);
        let missing = waiting.saturating_sub(idle).min(self.threads_max - threads.len());
        for _ in 0..missing {
            // One thread is there since the pool was opened: where the system has no more to give, it does the work.
            if self.add_thread(&mut threads).is_err() {
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
        lock(&self.shared.work).closed = true;
        self.shared.more.notify_all();
        for thread in lock(&self.threads).drain(..) {
            // The memory of an abandoned operation may hold the last handle to this disk: then a worker ends up here,
            // and cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl PoolShared {
    /// Carries out jobs until the pool ends.
    fn serve(&self) {
        let mut work = lock(&self.work);
        loop {
            if let Some(job) = work.jobs.pop_front() {
                drop(work);
                // `finish` calls the kernel, and drops the caller's memory when its queue is gone. A panic in that
                // `Drop` must not end the worker: the callers of the jobs behind it would wait for ever.
                if let Err(payload) = std::panic::catch_unwind(AssertUnwindSafe(|| self.finish(job))) {
                    // The panic payload may panic again when it is dropped.
                    std::mem::forget(payload);
                }
                work = lock(&self.work);
            } else if work.closed {
                return;
            } else {
                work.idle_threads += 1;
                work = self.more.wait(work).unwrap_or_else(PoisonError::into_inner);
                work.idle_threads -= 1;
            }
        }
    }

    fn finish(&self, job: Job) {
        let Job { transfer, done } = job;
        done.arrive(transfer.carry_out(&self.file));
    }
}

/// Locks a mutex, ignoring poison: each holder moves one value in or out, so a panic leaves no half-made content.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The completions of one queue.
#[derive(Debug)]
struct CompletionQueue {
    list: Mutex<Vec<Completion>>,
    arrived: Condvar,
    /// Readable while `list` is not empty, from the moment `watched` is set.
    event: OwnedFd,
    /// Set once a caller polls `event`. Until then no completion pays for the signal.
    watched: AtomicBool,
}

impl CompletionQueue {
    fn arrive(&self, completion: Completion) {
        let mut list = lock(&self.list);
        list.push(completion);
        if list.len() == 1 {
            self.signal();
        }
        drop(list);
        self.arrived.notify_one();
    }

    /// Makes the descriptor readable. The caller holds the lock of `list`, so that it cannot be emptied in between.
    fn signal(&self) {
        if self.watched.load(Ordering::Relaxed) {
            // Fails only when the counter is full, and then it is readable already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Clears the descriptor. The caller holds the lock of `list` and is about to empty it.
    fn unsignal(&self) {
        if self.watched.load(Ordering::Relaxed) {
            // Fails only when the counter is zero, and then it is not readable already.
            let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        }
    }
}

/// The queue of one consumer.
struct PsyncQueue {
    pool: Arc<Pool>,
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
        if let Err(error) = self.pool.shared.file.accept(&op) {
            return Err(RefusedOp { op, error });
        }
        self.unsent.push(Job { transfer: Transfer::new(op), done: Arc::clone(&self.done) });
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
        into.push(transfer::perform(op, &self.pool.shared.file));
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        let list = lock(&self.done.list);
        let watched_before = self.done.watched.swap(true, Ordering::Relaxed);
        if !watched_before && !list.is_empty() {
            self.done.signal();
        }
        Some(self.done.event.as_fd())
    }
}

impl Drop for PsyncQueue {
    fn drop(&mut self) {
        // In a forked child a thread that does not exist may hold the lock.
        if !self.pool.process.is_here() {
            return;
        }
        let mut work = lock(&self.pool.shared.work);
        let (ours, others) = work.jobs.drain(..).partition(|job| Arc::ptr_eq(&job.done, &self.done));
        work.jobs = others;
        drop(work);
        // Outside the lock: it frees the caller's memory, and that is the caller's code.
        let ours: VecDeque<Job> = ours;
        drop(ours);
    }
}

//! The directory of a database that is only read: after each read of the data file it looks whether the writer still keeps
//! what was read.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Directory, Disk, DiskInfo, FileLock, Queue, QueueOptions, RefusedOp};
use nofault_io::error::{Error, ErrorKind, Result};

use crate::readers::Registration;
use crate::recovery::names::DATA;

/// A directory of which one file is read under a registration, or under a lock that keeps writers out.
#[derive(Debug)]
pub(in crate::db) struct WatchedDirectory {
    below: Arc<dyn Directory>,
    registration: Option<Arc<Registration>>,
}

impl WatchedDirectory {
    pub(in crate::db) fn new(below: Arc<dyn Directory>, registration: Option<Arc<Registration>>) -> Self {
        Self { below, registration }
    }
}

impl Directory for WatchedDirectory {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.below.create(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        let disk = self.below.open(name)?;
        match &self.registration {
            Some(registration) if name == DATA => {
                Ok(Arc::new(WatchedDisk { disk, registration: Arc::clone(registration) }))
            }
            _ => Ok(disk),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.below.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.below.remove(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.below.list()
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read_text(&self, name: &str) -> Result<Vec<u8>> {
        self.below.read_text(name)
    }

    fn lock(&self, name: &str, signed: &str) -> Result<Box<dyn FileLock>> {
        match &self.registration {
            Some(registration) => Ok(Box::new(RegisteredReader(Arc::clone(registration)))),
            None => Ok(Box::new(SharedLock(self.below.lock(name, signed)?))),
        }
    }
}

/// A registration in the place of a lock. Several readers of a process may have the same file, so it tells no identity.
#[derive(Debug)]
struct RegisteredReader(Arc<Registration>);

impl FileLock for RegisteredReader {
    fn check(&self, name: &str) -> Result<()> {
        self.0.check(name)
    }
}

/// A lock that several readers of a process may have on the same file.
#[derive(Debug)]
struct SharedLock(Box<dyn FileLock>);

impl FileLock for SharedLock {
    fn check(&self, name: &str) -> Result<()> {
        self.0.check(name)
    }
}

/// A disk read under a registration.
#[derive(Debug)]
struct WatchedDisk {
    disk: Arc<dyn Disk>,
    registration: Arc<Registration>,
}

/// Replaces the results of reads whose blocks may have been used again. Called when they have ended.
fn check_reads(registration: &Registration, done: &mut [Completion]) {
    let mut reads = done.iter_mut().filter(|done| matches!(done.op.kind, OpKind::Read(_))).peekable();
    if reads.peek().is_none() {
        return;
    }
    let action = "read the data file beside the process that writes it";
    let why = match registration.is_given_up() {
        Ok(false) => return,
        Ok(true) => {
            let what = "the state that this reader shows is kept no more: refresh it, or let the writer wait longer";
            Error::new(ErrorKind::TooOld, action, what)
        }
        Err(error) => Error::new(ErrorKind::TooOld, action, error.to_string()),
    };
    reads.for_each(|done| done.result = Err(why.clone()));
}

impl Disk for WatchedDisk {
    fn info(&self) -> DiskInfo {
        self.disk.info()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.disk.len_bytes()
    }

    fn extent_bytes(&self) -> Result<u64> {
        self.disk.extent_bytes()
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        let queue = self.disk.queue(options)?;
        Ok(Box::new(WatchedQueue { queue, registration: Arc::clone(&self.registration) }))
    }

    fn perform(&self, op: Op) -> Result<Completion> {
        let mut done = self.disk.perform(op)?;
        check_reads(&self.registration, std::slice::from_mut(&mut done));
        Ok(done)
    }
}

/// A queue of a [`WatchedDisk`].
struct WatchedQueue {
    queue: Box<dyn Queue>,
    registration: Arc<Registration>,
}

impl Queue for WatchedQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        self.queue.push(op)
    }

    fn submit(&mut self) -> Result<()> {
        self.queue.submit()
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        let before = into.len();
        let reaped = self.queue.reap(wait_for, into);
        check_reads(&self.registration, &mut into[before..]);
        reaped
    }

    fn run(&mut self, op: Op, into: &mut Vec<Completion>) -> Result<()> {
        let before = into.len();
        let ended = self.queue.run(op, into);
        check_reads(&self.registration, &mut into[before..]);
        ended
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.ready_fd()
    }
}

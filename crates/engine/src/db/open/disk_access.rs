//! The access between a database and its files. Closing the database ends it: from then on no operation reaches the
//! files, also where threads with handles are in the middle of a call.
//!
//! Kept true by:
//! 1. Flag and count are one number: an operation is counted before the access ends, or refused.
//! 2. Changes in a queue, and operations that their thread waits for, are counted until they have ended, and
//!    [`DiskAccess::close`] waits for them. They wait for the device alone.
//! 3. Reads in a queue are not counted: no waiter of the pool is left to take their pages.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Directory, Disk, DiskInfo, FileLock, Queue, QueueOptions, RefusedOp};
use nofault_io::error::{Error, ErrorKind, Result};

/// The bit of the count that says that the access has ended.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The access of one database to its files.
#[derive(Debug, Default)]
pub(in crate::db) struct DiskAccess {
    /// Number of operations under way, with the bit `CLOSED`.
    under_way: AtomicUsize,
    /// Locked to wait for the last operation, and to tell of it.
    last: Mutex<()>,
    ended: Condvar,
}

impl DiskAccess {
    /// Returns a directory whose files are reached through this access.
    pub(in crate::db) fn before(self: &Arc<Self>, directory: &Arc<dyn Directory>) -> Arc<dyn Directory> {
        Arc::new(CheckedDirectory { below: Arc::clone(directory), access: Arc::clone(self) })
    }

    /// Refuses all operations from now on, and waits for those under way. Blocks.
    pub(in crate::db) fn close(&self) {
        self.under_way.fetch_or(CLOSED, Ordering::SeqCst);
        let mut last = self.lock();
        while self.under_way.load(Ordering::SeqCst) != CLOSED {
            last = self.ended.wait(last).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation that begins.
    ///
    /// # Errors
    /// `Stopped` when the access has ended.
    fn begin(&self) -> Result<()> {
        if self.under_way.fetch_add(1, Ordering::SeqCst) & CLOSED == 0 {
            return Ok(());
        }
        self.end(1);
        Err(closed())
    }

    /// Takes operations that have ended off the count.
    fn end(&self, count: usize) {
        let before = self.under_way.fetch_sub(count, Ordering::SeqCst);
        if before & CLOSED != 0 && before - count == CLOSED {
            let _last = self.lock();
            self.ended.notify_all();
        }
    }

    /// Carries out `work` as one operation.
    fn pass<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut passing = OperationCount { access: self, count: 0 };
        passing.begin()?;
        work()
    }

    fn is_closed(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) & CLOSED != 0
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Stopped, "use a file of the database", "the database was closed")
}

/// Operations under way, which end at the latest when this is dropped.
struct OperationCount<G: AsRef<DiskAccess>> {
    access: G,
    count: usize,
}

impl AsRef<Self> for DiskAccess {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<G: AsRef<DiskAccess>> OperationCount<G> {
    fn begin(&mut self) -> Result<()> {
        self.access.as_ref().begin()?;
        self.count += 1;
        Ok(())
    }

    fn end(&mut self, count: usize) {
        let count = count.min(self.count);
        self.count -= count;
        self.access.as_ref().end(count);
    }
}

impl<G: AsRef<DiskAccess>> Drop for OperationCount<G> {
    fn drop(&mut self) {
        self.end(self.count);
    }
}

/// A directory whose disks are reached through the access.
#[derive(Debug)]
struct CheckedDirectory {
    below: Arc<dyn Directory>,
    access: Arc<DiskAccess>,
}

impl CheckedDirectory {
    fn checked(&self, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(CheckedDisk { disk, access: Arc::clone(&self.access) })
    }
}

impl Directory for CheckedDirectory {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.access.pass(|| self.below.create(name)).map(|disk| self.checked(disk))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.below.open(name).map(|disk| self.checked(disk))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.access.pass(|| self.below.rename(from, to))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.access.pass(|| self.below.remove(name))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.below.list()
    }

    fn sync(&self) -> Result<()> {
        self.access.pass(|| self.below.sync())
    }

    fn write_text(&self, name: &str, text: &str) -> Result<()> {
        self.access.pass(|| self.below.write_text(name, text))
    }

    fn read_text(&self, name: &str) -> Result<Vec<u8>> {
        self.below.read_text(name)
    }

    fn lock(&self, name: &str, signed: &str) -> Result<Box<dyn FileLock>> {
        self.below.lock(name, signed)
    }

    fn sign(&self, name: &str) -> Result<Box<dyn FileLock>> {
        self.below.sign(name)
    }
}

/// A disk reached through the access.
#[derive(Debug)]
struct CheckedDisk {
    disk: Arc<dyn Disk>,
    access: Arc<DiskAccess>,
}

impl Disk for CheckedDisk {
    fn info(&self) -> DiskInfo {
        self.disk.info()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.disk.len_bytes()
    }

    fn extent_bytes(&self) -> Result<u64> {
        self.disk.extent_bytes()
    }

    fn truncate(&self, len_bytes: u64) -> Result<()> {
        self.access.pass(|| self.disk.truncate(len_bytes))
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        let (queue, access) = (self.disk.queue(options)?, Arc::clone(&self.access));
        Ok(Box::new(CheckedQueue { queue, changes: OperationCount { access, count: 0 } }))
    }

    fn perform(&self, op: Op) -> Result<Completion> {
        let mut passing = OperationCount { access: &*self.access, count: 0 };
        match passing.begin() {
            Ok(()) => self.disk.perform(op),
            Err(error) => Ok(Completion { op, result: Err(error) }),
        }
    }
}

/// A queue of a disk reached through the access.
struct CheckedQueue {
    queue: Box<dyn Queue>,
    /// The changes in flight. Declared last: a queue that is dropped has ended them.
    changes: OperationCount<Arc<DiskAccess>>,
}

fn is_change(op: &Op) -> bool {
    !matches!(op.kind, OpKind::Read(_))
}

impl CheckedQueue {
    /// Counts an operation that is about to begin, if it changes the disk.
    fn begin(&mut self, op: &Op) -> Result<()> {
        if is_change(op) {
            return self.changes.begin();
        }
        if self.changes.access.is_closed() { Err(closed()) } else { Ok(()) }
    }

    fn end(&mut self, done: &[Completion]) {
        self.changes.end(done.iter().filter(|done| is_change(&done.op)).count());
    }
}

impl Queue for CheckedQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        if let Err(error) = self.begin(&op) {
            return Err(RefusedOp { op, error });
        }
        self.queue.push(op).inspect_err(|refused| self.changes.end(usize::from(is_change(&refused.op))))
    }

    fn submit(&mut self) -> Result<()> {
        self.queue.submit()
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        let before = into.len();
        let reaped = self.queue.reap(wait_for, into);
        self.end(&into[before..]);
        reaped
    }

    fn run(&mut self, op: Op, into: &mut Vec<Completion>) -> Result<()> {
        if let Err(error) = self.begin(&op) {
            into.push(Completion { op, result: Err(error) });
            return Ok(());
        }
        let before = into.len();
        let ended = self.queue.run(op, into);
        self.end(&into[before..]);
        ended
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.ready_fd()
    }

    fn end_watch(&mut self) {
        self.queue.end_watch();
    }
}

#[cfg(test)]
mod tests {
    use nofault_io::aligned::IoBuf;
    use nofault_sim::{SimOptions, SimWorld};

    use super::*;

    fn bytes() -> IoBuf {
        IoBuf::zeroed(4096, nofault_io::aligned::PageKind::Small).unwrap()
    }

    fn op(kind: OpKind) -> Op {
        Op::new(0, 0, kind)
    }

    #[test]
    fn an_access_that_has_ended_lets_no_operation_through() {
        let access = Arc::new(DiskAccess::default());
        let directory = access.before(&SimWorld::new(1, SimOptions::calm()).directory());
        let disk = directory.create("file").unwrap();
        disk.perform(op(OpKind::write(bytes(), true))).unwrap().result.unwrap();
        let mut queue = disk.queue(&QueueOptions::default()).unwrap();
        access.close();
        let kinds = || [OpKind::Read(bytes()), OpKind::write(bytes(), false), OpKind::Sync];
        for kind in kinds() {
            assert_eq!(disk.perform(op(kind)).unwrap().result.unwrap_err().kind(), ErrorKind::Stopped);
        }
        for kind in kinds() {
            assert_eq!(queue.push(op(kind)).unwrap_err().error.kind(), ErrorKind::Stopped);
        }
        for kind in kinds() {
            let mut done = Vec::new();
            queue.run(op(kind), &mut done).unwrap();
            assert_eq!(done[0].result.clone().unwrap_err().kind(), ErrorKind::Stopped);
        }
        for refused in [disk.truncate(0), directory.remove("file"), directory.create("other").map(drop)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Stopped);
        }
        assert_eq!(disk.len_bytes().unwrap(), 4096);
    }

    #[test]
    fn ending_the_access_waits_for_a_change_in_a_queue_and_not_for_a_read() {
        let access = Arc::new(DiskAccess::default());
        let below = SimWorld::new(1, SimOptions::calm()).directory();
        let disk = access.before(&below).create("file").unwrap();
        disk.perform(op(OpKind::write(bytes(), true))).unwrap().result.unwrap();
        let mut queue = disk.queue(&QueueOptions::default()).unwrap();
        queue.push(op(OpKind::Read(bytes()))).unwrap();
        assert_eq!(access.under_way.load(Ordering::SeqCst), 0);
        queue.push(op(OpKind::write(bytes(), true))).unwrap();
        assert_eq!(access.under_way.load(Ordering::SeqCst), 1);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| access.close());
            while !access.is_closed() {
                std::thread::yield_now();
            }
            assert!(!closing.is_finished(), "a write is in flight");
            let mut done = Vec::new();
            while queue.in_flight() > 0 {
                queue.reap(1, &mut done).unwrap();
            }
            assert!(done.iter().all(|done| done.result.is_ok()));
        });
        // Of a queue that is dropped none is in flight.
        let access = Arc::new(DiskAccess::default());
        let disk = access.before(&below).open("file").unwrap();
        let mut queue = disk.queue(&QueueOptions::default()).unwrap();
        queue.push(op(OpKind::write(bytes(), true))).unwrap();
        drop(queue);
        access.close();
    }
}

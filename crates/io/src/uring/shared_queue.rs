//! A queue on a ring that it shares with other queues, one after the other: it borrows the ring with its first operation and gives it
//! back when no operation is left.
//!
//! Where the process can have no further ring, as when it has no descriptor left, the thread that submits carries the operations out.

use std::cell::{Cell, OnceCell};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::rings::{Lease, Rings};
use super::{UringOptions, UringQueue, build_ring};
use crate::completion::{Completion, Op};
use crate::disk::{Queue, QueueOptions, RefusedOp, describe_op};
use crate::error::{Error, ErrorKind, Result};
use crate::file::DiskFile;
use crate::transfer::perform;

/// A queue with a ring only while it is in use.
pub(super) struct SharedQueue {
    file: Arc<DiskFile>,
    rings: Arc<Rings>,
    options: QueueOptions,
    /// The queue on the borrowed ring.
    on_ring: OnceCell<UringQueue>,
    /// Whether the ring's descriptor is polled, so that it must stay the same.
    is_watched: Cell<bool>,
    /// Operations for which there was no ring.
    without_ring: Vec<Op>,
    done: Vec<Completion>,
}

impl SharedQueue {
    pub(super) fn new(file: Arc<DiskFile>, rings: Arc<Rings>, depth_max: usize) -> Self {
        let options = QueueOptions { depth_max, ..QueueOptions::default() };
        let (on_ring, is_watched) = (OnceCell::new(), Cell::new(false));
        Self { file, rings, options, on_ring, is_watched, without_ring: Vec::new(), done: Vec::new() }
    }

    fn borrow(&self) -> Result<UringQueue> {
        let options = UringOptions { register_file: false, register_buffers: false, ..UringOptions::default() };
        let ring: Lease = self.rings.borrow(|| build_ring(&QueueOptions::default(), &options, &mut Vec::new()))?;
        Ok(UringQueue::new(ring, Arc::clone(&self.file), &self.options, &options, Vec::new()))
    }

    /// Returns the queue on the ring; `None` where there is no ring to borrow.
    fn on_ring(&self) -> Option<&UringQueue> {
        if self.on_ring.get().is_none() {
            let _ = self.on_ring.set(self.borrow().ok()?);
        }
        self.on_ring.get()
    }

    /// Carries out the operations for which there was no ring.
    fn carry_out(&mut self) {
        self.done.extend(self.without_ring.drain(..).map(|op| perform(op, &self.file)));
    }

    /// Gives the ring back, unless it is needed.
    fn rest(&mut self) {
        if !self.is_watched.get() && self.on_ring.get().is_some_and(|queue| queue.in_flight() == 0) {
            drop(self.on_ring.take());
        }
    }
}

impl Queue for SharedQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        let in_flight = self.in_flight();
        if in_flight >= self.options.depth_max {
            let error = Error::new(ErrorKind::Busy, describe_op(&op), format!("{in_flight} in flight"));
            return Err(RefusedOp { op, error });
        }
        if self.on_ring().is_some()
            && let Some(queue) = self.on_ring.get_mut()
        {
            return queue.push(op);
        }
        if let Err(error) = self.file.accept(&op) {
            return Err(RefusedOp { op, error });
        }
        self.without_ring.push(op);
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        self.carry_out();
        self.on_ring.get_mut().map_or(Ok(()), Queue::submit)
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        self.carry_out();
        let wait_for = wait_for.saturating_sub(self.done.len());
        into.append(&mut self.done);
        let reaped = self.on_ring.get_mut().map_or(Ok(()), |queue| queue.reap(wait_for, into));
        self.rest();
        reaped
    }

    fn run(&mut self, op: Op, into: &mut Vec<Completion>) -> Result<()> {
        into.push(perform(op, &self.file));
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.on_ring.get().map_or(0, Queue::in_flight) + self.without_ring.len() + self.done.len()
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        if !self.without_ring.is_empty() || !self.done.is_empty() {
            // No ring would tell of these.
            return None;
        }
        let fd = self.on_ring()?.ready_fd();
        self.is_watched.set(true);
        fd
    }

    fn end_watch(&mut self) {
        self.is_watched.set(false);
        self.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::OpKind;
    use crate::disk::FileOptions;
    use crate::uring::UringDisk;

    #[test]
    fn operations_for_which_there_was_no_ring_are_carried_out_and_no_ring_is_to_tell_of_them() {
        if let Some(refused) = UringDisk::ring_refused() {
            eprintln!("not checked: {refused}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let options = FileOptions { create: true, ..FileOptions::default() };
        let disk = UringDisk::open(&folder.path().join("file"), &options).unwrap();
        let mut queue = SharedQueue::new(Arc::clone(&disk.file), Rings::of_process(), 8);
        // As `push` does where no ring can be borrowed. Others of the process give theirs back before a descriptor is asked for.
        queue.without_ring.push(Op::new(1, 0, OpKind::Sync));
        assert!(queue.in_flight() == 1 && queue.ready_fd().is_none());
        queue.submit().unwrap();
        assert!(queue.in_flight() == 1 && queue.ready_fd().is_none());
        queue.push(Op::new(2, 0, OpKind::Sync)).unwrap();
        let mut done = Vec::new();
        queue.reap(2, &mut done).unwrap();
        let tokens: Vec<_> = done.iter().map(|done| (done.op.token, done.result.is_ok())).collect();
        assert!(tokens == [(1, true), (2, true)] && queue.in_flight() == 0);
        assert!(queue.on_ring.get().is_none(), "the ring is given back");
        assert!(queue.ready_fd().is_some());
    }
}

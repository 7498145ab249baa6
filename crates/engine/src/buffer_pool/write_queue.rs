//! The queue of writes: runs operations to their end, and makes the file longer and shorter.

use std::collections::VecDeque;
use std::sync::Arc;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::{Disk, EndedQueue, Queue};
use nofault_io::error::ErrorKind as IoKind;

use crate::error::{Error, Result};

/// Number of zero bytes written at a time when the file system cannot allocate space.
const ZERO_BYTES: usize = 1 << 20;
/// Alignment of the offset of a direct write on every device, in bytes.
const WRITE_ALIGNMENT: u64 = 4096;
/// The action that error messages name.
const GROW: &str = "grow the data file";

/// The queue for writes, and the length of the data file.
pub(super) struct WriteQueue {
    queue: Box<dyn Queue>,
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    may_preallocate: bool,
}

impl WriteQueue {
    pub(super) fn new(queue: Box<dyn Queue>, disk: &Arc<dyn Disk>) -> Result<Self> {
        let file_bytes = disk.len_bytes().map_err(|error| Error::from_io("ask the data file's length", error))?;
        Ok(Self { queue, disk: Arc::clone(disk), file_bytes, may_preallocate: true })
    }

    /// Ends the queue, with all that a thread which has panicked left in flight in it.
    pub(super) fn end(&mut self) {
        self.queue = Box::new(EndedQueue);
    }

    /// Returns the length of the data file in bytes.
    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Runs operations, each an offset and a kind, to their end. Returns their results in the order of the operations.
    pub(super) fn run(&mut self, ops: Vec<(u64, OpKind)>) -> Result<Vec<nofault_io::error::Result<()>>> {
        let mut results: Vec<_> = ops.iter().map(|_| Ok(())).collect();
        self.run_each(ops, |index, result| results[index] = result)?;
        Ok(results)
    }

    /// Runs operations to their end, and reports each result at once, while the device works on the other operations.
    ///
    /// # Errors
    /// When the queue fails: the outcome of every operation that was not reported is unknown.
    pub(super) fn run_each(
        &mut self,
        ops: Vec<(u64, OpKind)>,
        mut ended: impl FnMut(usize, nofault_io::error::Result<()>),
    ) -> Result<()> {
        let mut waiting: VecDeque<Op> =
            ops.into_iter().enumerate().map(|(index, (offset, kind))| Op::new(index as u64, offset, kind)).collect();
        let mut done = Vec::new();
        // After a failed wait some operations may be left: their writes must not come after new writes in the same
        // place, and their tokens belong to other operations.
        while self.queue.in_flight() > 0 {
            self.queue.reap(1, &mut done).map_err(|error| Error::from_io("wait for earlier writes", error))?;
            done.clear();
        }
        while !waiting.is_empty() || self.queue.in_flight() > 0 {
            while let Some(op) = waiting.pop_front() {
                let Err(refused) = self.queue.push(op) else { continue };
                if refused.error.kind() == IoKind::Busy && self.queue.in_flight() > 0 {
                    waiting.push_front(refused.op);
                    break;
                }
                ended(refused.op.token as usize, Err(refused.error));
            }
            if self.queue.in_flight() > 0 {
                self.queue.reap(1, &mut done).map_err(|error| Error::from_io("wait for writes", error))?;
            }
            for completion in done.drain(..) {
                ended(completion.op.token as usize, completion.result.map(drop));
            }
        }
        Ok(())
    }

    /// Cuts the file at `end_bytes`. Returns false where files cannot be cut. No write is in flight.
    ///
    /// # Errors
    /// The error of the disk. The file, or a part of a striped one, may be as long as before. In any case the blocks
    /// behind `end_bytes` no longer count as allocated, so growing allocates them again.
    pub(super) fn cut(&mut self, end_bytes: u64) -> Result<bool> {
        let cut = self.disk.truncate(end_bytes);
        if cut.as_ref().is_err_and(|error| error.kind() == IoKind::Unsupported) {
            return Ok(false);
        }
        self.file_bytes = end_bytes;
        cut.map(|()| true).map_err(|error| Error::from_io("make the data file shorter", error))
    }

    /// Allocates the data file up to `end_bytes`. Returns false when the disk has no room for that.
    ///
    /// # Errors
    /// Any other error of the disk.
    pub(super) fn extend(&mut self, end_bytes: u64) -> Result<bool> {
        let from = self.file_bytes;
        if end_bytes <= from {
            return Ok(true);
        }
        if self.may_preallocate {
            match self.run(vec![(from, OpKind::Allocate { len_bytes: end_bytes - from })])?.remove(0) {
                Ok(()) => {
                    self.file_bytes = end_bytes;
                    return Ok(true);
                }
                Err(error) if matches!(error.kind(), IoKind::Unsupported | IoKind::InvalidCall) => {
                    self.may_preallocate = false;
                }
                Err(error) if error.kind() == IoKind::NoSpace => return Ok(false),
                Err(error) => return Err(Error::from_io(GROW, error)),
            }
        }
        // The file system cannot allocate space, so blocks exist only once they are written.
        let failed = |error| Error::from_io(GROW, error);
        // A file that was cut short outside of the database may end anywhere.
        let from = from.next_multiple_of(WRITE_ALIGNMENT);
        for offset in (from..end_bytes).step_by(ZERO_BYTES) {
            let len = (end_bytes - offset).min(ZERO_BYTES as u64) as usize;
            let zeroes = IoBuf::zeroed(len, PageKind::Small).map_err(failed)?;
            match self.run(vec![(offset, OpKind::write(zeroes, false))])?.remove(0) {
                Ok(()) => {}
                Err(error) if error.kind() == IoKind::NoSpace => return Ok(false),
                Err(error) => return Err(failed(error)),
            }
        }
        self.file_bytes = end_bytes;
        Ok(true)
    }
}

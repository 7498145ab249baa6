//! The queue of writes: runs operations to their end, and makes the file longer and shorter; and the pace at which the pages of a
//! checkpoint are given to it.
//!
//! A commit that becomes durable waits for earlier writes at the device, and its flush for all bytes written since the last
//! flush. A checkpoint that gives the device thousands of pages at once so delays commits by milliseconds. While commits are
//! waited for, it gives the device a part at a time instead, as much as takes about [`PART`], and then pauses for as long.
//!
//! Parts are of at least [`PART_BYTES_MIN`], so that a device which is slow for a single write has several at once. All pauses
//! of a checkpoint together are no longer than [`PAUSES_MAX`], so the log and the blocks to be freed, which grow until the
//! checkpoint ends, grow little more. There is no pause while another thread waits for the writes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

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
pub(crate) struct WriteQueue {
    queue: Box<dyn Queue>,
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    may_preallocate: bool,
}

impl WriteQueue {
    pub(crate) fn new(queue: Box<dyn Queue>, disk: &Arc<dyn Disk>) -> Result<Self> {
        let file_bytes = disk.len_bytes().map_err(|error| Error::from_io("ask the data file's length", error))?;
        Ok(Self { queue, disk: Arc::clone(disk), file_bytes, may_preallocate: true })
    }

    /// Ends the queue, with all that a thread which has panicked left in flight in it.
    pub(crate) fn end(&mut self) {
        self.queue = Box::new(EndedQueue);
    }

    /// Returns the length of the data file in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Runs operations, each an offset and a kind, to their end. Returns their results in the order of the operations.
    pub(crate) fn run(&mut self, ops: Vec<(u64, OpKind)>) -> Result<Vec<nofault_io::error::Result<()>>> {
        let mut results: Vec<_> = ops.iter().map(|_| Ok(())).collect();
        self.run_each(ops, |index, result| results[index] = result)?;
        Ok(results)
    }

    /// Runs operations to their end, and reports each result at once, while the device works on the other operations.
    ///
    /// # Errors
    /// When the queue fails: the outcome of every operation that was not reported is unknown.
    pub(crate) fn run_each(
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
    pub(crate) fn cut(&mut self, end_bytes: u64) -> Result<bool> {
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
    pub(crate) fn extend(&mut self, end_bytes: u64) -> Result<bool> {
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

/// The time that the device is to be busy with one part.
const PART: Duration = Duration::from_micros(200);
/// The pause after a part is as long as the part took, but no longer than this.
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// Sum of the pauses after which the rest is written at once.
const PAUSES_MAX: Duration = Duration::from_secs(1);
/// Fewest and most bytes of one part.
const PART_BYTES_MIN: usize = 64 << 10;
const PART_BYTES_MAX: usize = 256 << 10;
/// Most bytes of a write that no pause follows.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The pace of the writes of one checkpoint.
pub(crate) struct Pace<'a> {
    /// Returns whether these writes delay commits that threads or tasks wait for, and no other thread waits for the writes.
    delays_commits: &'a dyn Fn() -> bool,
    /// Bytes of the next part.
    part_bytes: usize,
    /// Whether a pause follows the current part.
    pauses: bool,
    /// The rest of [`PAUSES_MAX`].
    left: Duration,
}

impl<'a> Pace<'a> {
    /// Writes all pages at once.
    pub(crate) fn at_once() -> Self {
        Self::beside_commits(&|| false)
    }

    /// In parts while `delays_commits` returns true.
    pub(crate) fn beside_commits(delays_commits: &'a dyn Fn() -> bool) -> Self {
        Self { delays_commits, part_bytes: PART_BYTES_MIN, pauses: false, left: PAUSES_MAX }
    }

    /// Returns the largest size of a write, in bytes.
    pub(crate) fn write_bytes_max(&self) -> usize {
        if !self.left.is_zero() && (self.delays_commits)() { PART_BYTES_MIN } else { WRITE_BYTES_MAX }
    }

    /// Returns how many bytes the device may be given before [`Pace::pause_after`] is called; `is_awaited` tells whether another thread
    /// waits for these writes.
    pub(crate) fn bytes_at_once(&mut self, is_awaited: bool) -> usize {
        self.pauses = !is_awaited && !self.left.is_zero() && (self.delays_commits)();
        if self.pauses { self.part_bytes } else { usize::MAX }
    }

    /// Notes how long the device took for the bytes that [`Pace::bytes_at_once`] allowed, and pauses if they were a part.
    pub(crate) fn pause_after(&mut self, took: Duration) {
        if self.pauses {
            std::thread::sleep(self.note(took));
        }
    }

    /// Sets the size of the next part after one that took this long. Returns the pause before it.
    fn note(&mut self, took: Duration) -> Duration {
        let bytes = if took < PART { self.part_bytes * 2 } else { self.part_bytes / 2 };
        self.part_bytes = bytes.clamp(PART_BYTES_MIN, PART_BYTES_MAX);
        let pause = took.min(PAUSE_MAX).min(self.left);
        self.left -= pause;
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_go_in_parts_only_while_commits_are_delayed_and_the_writes_are_not_awaited() {
        let mut at_once = Pace::at_once();
        assert_eq!((at_once.write_bytes_max(), at_once.bytes_at_once(false)), (WRITE_BYTES_MAX, usize::MAX));
        let delays = std::cell::Cell::new(true);
        let look = || delays.get();
        let mut pace = Pace::beside_commits(&look);
        assert_eq!((pace.write_bytes_max(), pace.bytes_at_once(false)), (PART_BYTES_MIN, PART_BYTES_MIN));
        assert_eq!(pace.bytes_at_once(true), usize::MAX, "something waits for the writes");
        delays.set(false);
        assert_eq!((pace.write_bytes_max(), pace.bytes_at_once(false)), (WRITE_BYTES_MAX, usize::MAX));
    }

    #[test]
    fn parts_grow_while_they_take_less_than_their_time_and_shrink_when_they_take_more() {
        let mut pace = Pace::beside_commits(&|| true);
        assert_eq!((pace.note(PART / 2), pace.part_bytes), (PART / 2, 2 * PART_BYTES_MIN));
        assert_eq!((pace.note(PAUSE_MAX * 2), pace.part_bytes), (PAUSE_MAX, PART_BYTES_MIN));
        assert_eq!((pace.note(PART), pace.part_bytes), (PART, PART_BYTES_MIN), "no smaller");
        (0..20).for_each(|_| _ = pace.note(Duration::ZERO));
        assert_eq!(pace.part_bytes, PART_BYTES_MAX);
    }

    #[test]
    fn pauses_have_an_end() {
        let mut pace = Pace::beside_commits(&|| true);
        let mut sum = Duration::ZERO;
        while pace.bytes_at_once(false) < usize::MAX {
            sum += pace.note(PAUSE_MAX * 3 / 4);
        }
        assert_eq!((sum, pace.write_bytes_max()), (PAUSES_MAX, WRITE_BYTES_MAX));
    }
}

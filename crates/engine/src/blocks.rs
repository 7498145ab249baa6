//! Reads blocks of the data file past the pool: for recovery, verification and backups.

pub(crate) mod reread;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Disk, Queue, QueueOptions};

use crate::error::{Error, ErrorKind, Result};

/// Most blocks that one call of [`BlockReader::try_read`] reads.
pub(crate) const BLOCKS_AT_A_TIME: usize = 64;

/// Reads blocks of a disk through its own queue, into buffers that are reused.
pub(crate) struct BlockReader {
    queue: Box<dyn Queue>,
    file_bytes: u64,
    spare: Vec<IoBuf>,
}

impl BlockReader {
    /// Opens a queue on `disk`.  # Errors The disk's error.
    pub(crate) fn open(disk: &dyn Disk) -> Result<Self> {
        let failed = |error| Error::from_io("open the data file", error);
        let queue =
            disk.queue(&QueueOptions { depth_max: BLOCKS_AT_A_TIME, ..QueueOptions::default() }).map_err(failed)?;
        Ok(Self { queue, file_bytes: disk.extent_bytes().map_err(failed)?, spare: Vec::new() })
    }

    /// Returns the length that the file had when this reader was opened.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Reads `len_bytes` bytes at each of these offsets, at most `BLOCKS_AT_A_TIME` of them. The results are in the
    /// order of the offsets.
    ///
    /// # Errors
    /// The queue's error, when the whole queue fails. A single failed read is an error among the results.
    pub(crate) fn try_read(&mut self, len_bytes: usize, offsets: &[u64]) -> Result<Vec<Result<IoBuf>>> {
        let failed = |error| Error::from_io("read the data file", error);
        let mut answers: Vec<Option<Result<IoBuf>>> = offsets.iter().map(|_| None).collect();
        let mut done = Vec::new();
        // After a failed call some operations may be left in the queue, with the same tokens as the reads below.
        while self.queue.in_flight() > 0 {
            self.queue.reap(1, &mut done).map_err(failed)?;
            done.clear();
        }
        for (token, offset) in offsets.iter().enumerate() {
            let spare = self.spare.pop().filter(|buffer| buffer.len() == len_bytes);
            let buffer = spare.map_or_else(|| IoBuf::zeroed(len_bytes, PageKind::Small), Ok).map_err(failed)?;
            let op = Op::new(token as u64, *offset, OpKind::Read(buffer));
            self.queue.push(op).map_err(|refused| failed(refused.error))?;
        }
        while self.queue.in_flight() > 0 {
            self.queue.reap(1, &mut done).map_err(failed)?;
        }
        for completion in done {
            let token = completion.op.token as usize;
            let answer = match completion.result.clone() {
                Ok(_) => into_buffer(completion),
                Err(error) => Err(failed(error)),
            };
            if let Some(place) = answers.get_mut(token) {
                *place = Some(answer);
            }
        }
        let lost = || Err(Error::new(ErrorKind::Bug, "a read never came back"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect())
    }

    /// Reads `len_bytes` bytes at each of these offsets, as [`BlockReader::try_read`] does, and fails when one of the
    /// reads fails.
    ///
    /// # Errors
    /// The error of the first read that failed.
    pub(crate) fn read(&mut self, len_bytes: usize, offsets: &[u64]) -> Result<Vec<IoBuf>> {
        self.try_read(len_bytes, offsets)?.into_iter().collect()
    }

    /// Returns buffers to this reader, which uses them for its next reads.
    pub(crate) fn recycle(&mut self, buffers: impl IntoIterator<Item = IoBuf>) {
        self.spare.extend(buffers);
    }
}

/// Reads `len_bytes` bytes at `offset` with `Disk::perform`: on the calling thread, into a new buffer, and without a
/// queue. Used to repeat a read that failed or returned wrong bytes, and to read single superblocks.
///
/// # Errors
/// The error of the disk.
pub(crate) fn read_once(disk: &dyn Disk, len_bytes: usize, offset: u64) -> Result<IoBuf> {
    let failed = |error| Error::from_io("read the data file again", error);
    let buffer = IoBuf::zeroed(len_bytes, PageKind::Small).map_err(failed)?;
    let mut completion = disk.perform(Op::new(0, offset, OpKind::Read(buffer))).map_err(failed)?;
    std::mem::replace(&mut completion.result, Ok(0)).map_err(failed)?;
    into_buffer(completion)
}

fn into_buffer(completion: Completion) -> Result<IoBuf> {
    completion.into_buffer().ok_or_else(|| Error::new(ErrorKind::Bug, "a read came back without its buffer"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use nofault_sim::{SimOptions, SimWorld};

    use super::*;
    use crate::buffer_pool::tests::trouble::deaf_disk;

    const LEN: usize = 512;

    #[test]
    fn a_call_that_failed_leaves_nothing_behind_for_the_next() {
        let world = SimWorld::new(1, SimOptions::calm());
        let disk = world.directory().create("data").unwrap();
        let deaf = Arc::new(AtomicBool::new(false));
        let disk = deaf_disk(disk, Arc::clone(&deaf));
        let mut all = IoBuf::zeroed(2 * BLOCKS_AT_A_TIME * LEN, PageKind::Small).unwrap();
        all.chunks_mut(LEN).enumerate().for_each(|(at, block)| block.fill(at as u8));
        disk.perform(Op::new(0, 0, OpKind::write(all, false))).unwrap().result.unwrap();
        let mut reader = BlockReader::open(&*disk).unwrap();
        let offsets: Vec<u64> = (0..2 * BLOCKS_AT_A_TIME as u64).map(|at| at * LEN as u64).collect();
        let (first, second) = offsets.split_at(BLOCKS_AT_A_TIME);
        deaf.store(true, Ordering::Relaxed);
        reader.try_read(LEN, first).unwrap_err();
        deaf.store(false, Ordering::Relaxed);
        for (at, block) in reader.read(LEN, second).unwrap().iter().enumerate() {
            assert!(block.iter().all(|byte| *byte == (BLOCKS_AT_A_TIME + at) as u8), "block {at}");
        }
    }
}

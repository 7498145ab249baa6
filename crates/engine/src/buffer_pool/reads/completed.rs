//! Completed reads: what the device has given back, before the pages are checked and installed.

use nofault_io::aligned::IoBuf;

use super::scratch::Scratch;
use super::state::Read;
use crate::buffer_pool::frames::{OwnedFrame, OwnedRun};
use crate::error::Error;

/// A completed read of one page, with its frame and its error, if any.
pub(super) struct CompletedRead {
    pub(super) read: Read,
    pub(super) owned: Option<OwnedFrame>,
    pub(super) error: Option<Error>,
}

/// A completed read of several adjacent blocks, before its pages are installed.
pub(super) struct CompletedRun {
    pub(super) reads: Vec<Read>,
    pub(super) first_block: u64,
    pub(super) memory: RunMemory,
}

/// The memory into which a run was read.
pub(super) enum RunMemory {
    /// The run was read into frames, including frames of blocks that were not requested; `is_read` tells whether the
    /// read filled them.
    Frames { run: Option<OwnedRun>, is_read: bool },
    /// The run was read through scratch memory: its bytes, unless the read failed, and the unused rest of the buffer.
    Scratch { bytes: Option<IoBuf>, tail: Option<IoBuf> },
}

impl CompletedRun {
    /// Distributes the bytes of the run to its pages, and gives the scratch memory back. Returns the completed reads
    /// and the frames that are not needed.
    pub(super) fn unload(self, scratch: &Scratch, page_bytes: usize) -> (Vec<CompletedRead>, Vec<OwnedFrame>) {
        let Self { reads, first_block, memory } = self;
        match memory {
            RunMemory::Scratch { bytes, tail } => {
                let completed = copy_out(reads, first_block, bytes.as_deref());
                scratch.give_back(bytes, tail);
                (completed, Vec::new())
            }
            RunMemory::Frames { run, is_read } => {
                let mut frames = run.into_iter().flat_map(|run| run.into_frames(page_bytes));
                let (mut completed, mut gaps, mut next) = (Vec::with_capacity(reads.len()), Vec::new(), first_block);
                for read in reads {
                    gaps.extend(frames.by_ref().take((read.block() - next) as usize));
                    next = read.block() + 1;
                    let owned = frames.next();
                    let read = if is_read && owned.is_some() { read } else { read.repeated_alone() };
                    completed.push(CompletedRead { read, owned, error: None });
                }
                gaps.extend(frames);
                (completed, gaps)
            }
        }
    }
}

/// Copies the blocks of a run from scratch memory to the frames of their pages. The pages of a failed run are to be
/// read again one by one.
fn copy_out(reads: Vec<Read>, first_block: u64, bytes: Option<&[u8]>) -> Vec<CompletedRead> {
    let copy = |mut read: Read| {
        let mut owned = read.frame.take();
        match (&mut owned, bytes) {
            (Some(owned), Some(bytes)) => {
                let from = (read.block() - first_block) as usize * owned.buffer.len();
                let until = from + owned.buffer.len();
                owned.buffer.copy_from_slice(&bytes[from..until]);
            }
            _ => read = read.repeated_alone(),
        }
        CompletedRead { read, owned, error: None }
    };
    reads.into_iter().map(copy).collect()
}

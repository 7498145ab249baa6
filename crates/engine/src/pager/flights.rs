//! Reads on their way: which go out alone, and which together.
//!
//! Pages that lie near each other are read in one operation, with small gaps between them, into a scratch buffer, and copied
//! to their frames: a scan over pages that were rewritten now and then stays close to the speed of one over a
//! fresh file (`space::fragmentation`). A run that fails is read again page by page, so a bad block costs only its own page.

use std::sync::Arc;

use nofault_io::aligned::{ALIGN_BYTES, IoBuf, PageKind, Region};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::Queue;
use nofault_io::error::ErrorKind as IoKind;
use rustc_hash::FxHashMap;

use super::Core;
use super::frames::OwnedFrame;
use super::lane::{Over, Read};
use crate::error::{Error, Result};

/// Blocks that nobody asked for and that are read all the same, between two that somebody did.
const GAP_BLOCKS: u64 = 4;
/// Longest run, in bytes. Longer reads gain nothing.
const RUN_BYTES_MAX: usize = 256 << 10;
/// Operations sent to the device together: it serves a tenth more reads in small groups than in large ones.
const SUBMIT_EVERY: usize = 4;
/// Most runs in flight.
const RUNS_MAX: usize = 32;

/// Memory for reading runs.
pub(super) struct Scratch {
    spare: Vec<IoBuf>,
    region: Region,
    run_blocks_max: u64,
    bytes: u64,
}

impl Scratch {
    /// For a pool of this many frames: about a sixteenth of its memory, within reason.
    ///
    /// # Errors
    /// `NoSpace` when the system has no memory.
    pub(super) fn new(frames: usize, page_bytes: usize) -> Result<Self> {
        let run_blocks_max = (frames / 8).clamp(2, (RUN_BYTES_MAX / page_bytes).max(2));
        let run_bytes = (run_blocks_max * page_bytes).next_multiple_of(ALIGN_BYTES);
        let count = (frames * page_bytes / 16 / run_bytes).clamp(1, RUNS_MAX);
        let memory = IoBuf::zeroed(run_bytes * count, PageKind::Huge)
            .map_err(|error| Error::from_io("take memory for reading runs", error))?;
        let region = memory.region().clone();
        let bytes = region.len_bytes() as u64;
        Ok(Self { spare: memory.pieces(run_bytes), region, run_blocks_max: run_blocks_max as u64, bytes })
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The queue of reads, with what is in flight on it.
pub(super) struct ReadQueue {
    pub(super) queue: Box<dyn Queue>,
    flying: FxHashMap<u64, Flight>,
    next_token: u64,
    scratch: Scratch,
}

enum Flight {
    /// One page, straight into its frame.
    One { read: Read, frame: u32 },
    /// Several, through scratch memory: the part of the buffer not used, and the first block.
    Run { reads: Vec<Read>, first_block: u64, tail: Option<IoBuf> },
}

impl ReadQueue {
    pub(super) fn new(queue: Box<dyn Queue>, scratch: Scratch) -> Self {
        Self { queue, flying: FxHashMap::default(), next_token: 0, scratch }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Cuts reads, sorted by block, into those that go out together.
    fn runs(&self, reads: Vec<Read>) -> Vec<Vec<Read>> {
        let mut runs: Vec<Vec<Read>> = Vec::new();
        for read in reads {
            let fits = |run: &Vec<Read>| {
                let (first, last) = (run[0].at.block.0, run[run.len() - 1].at.block.0);
                let near = read.at.block.0 - last <= GAP_BLOCKS + 1 && read.at.block.0 > last;
                let whole = read.at.block.0 - first < self.scratch.run_blocks_max;
                near && whole && !read.alone && !run[0].alone
            };
            match runs.last_mut() {
                Some(run) if fits(run) => run.push(read),
                _ => runs.push(vec![read]),
            }
        }
        runs
    }

    /// Sends reads, each with its frame. What finds the queue full, or all scratch memory in flight, comes back.
    fn send(&mut self, mut reads: Vec<Read>, page_bytes: usize, over: &mut Vec<Over>) -> Vec<Read> {
        if reads.len() == 1 {
            let Some(mut read) = reads.pop() else { return reads };
            let Some(owned) = read.frame.take() else { return vec![read] };
            let offset = read.at.block.0 * page_bytes as u64;
            let token = self.token();
            return match self.queue.push(Op::new(token, offset, OpKind::Read(owned.buffer))) {
                Ok(()) => {
                    self.flying.insert(token, Flight::One { read, frame: owned.index });
                    Vec::new()
                }
                Err(refused) => {
                    let owned = read_buffer(refused.op.kind).map(|buffer| OwnedFrame { index: owned.index, buffer });
                    if refused.error.kind() == IoKind::Busy {
                        return vec![Read { frame: owned, ..read }];
                    }
                    let error = Error::from_io(format!("read page {} at {offset}", read.page), refused.error);
                    over.push(Over { read, owned, error: Some(error) });
                    Vec::new()
                }
            };
        }
        let Some(buffer) = self.scratch.spare.pop() else { return reads };
        let (first_block, last_block) = (reads[0].at.block.0, reads[reads.len() - 1].at.block.0);
        let len_bytes = (last_block - first_block + 1) as usize * page_bytes;
        let (buffer, tail) = buffer.split_at(len_bytes);
        let tail = (!tail.is_empty()).then_some(tail);
        let token = self.token();
        match self.queue.push(Op::new(token, first_block * page_bytes as u64, OpKind::Read(buffer))) {
            Ok(()) => {
                self.flying.insert(token, Flight::Run { reads, first_block, tail });
                Vec::new()
            }
            Err(refused) => {
                self.give_back(read_buffer(refused.op.kind), tail);
                // Alone each of them meets the error again, and reports it as its own.
                reads.iter_mut().for_each(|read| read.alone |= refused.error.kind() != IoKind::Busy);
                reads
            }
        }
    }

    fn give_back(&mut self, buffer: Option<IoBuf>, tail: Option<IoBuf>) {
        let whole = match (buffer, tail) {
            (Some(buffer), Some(tail)) => buffer.join(tail).ok(),
            (buffer, _) => buffer,
        };
        self.scratch.spare.extend(whole);
    }

    /// What a completion means for the pages it was about.
    pub(super) fn take_over(&mut self, done: Completion) -> Vec<Over> {
        let error = done.result.as_ref().err().cloned();
        let offset = done.op.offset_bytes;
        match self.flying.remove(&done.op.token) {
            None => Vec::new(),
            Some(Flight::One { read, frame }) => {
                let error = error.map(|error| Error::from_io(format!("read page {} at {offset}", read.page), error));
                let owned = done.into_buffer().map(|buffer| OwnedFrame { index: frame, buffer });
                vec![Over { read, owned, error }]
            }
            Some(Flight::Run { reads, first_block, tail }) => {
                let buffer = done.into_buffer();
                let mut over = Vec::with_capacity(reads.len());
                for mut read in reads {
                    let mut owned = read.frame.take();
                    match (&mut owned, &buffer, &error) {
                        (Some(owned), Some(buffer), None) => {
                            let from = (read.at.block.0 - first_block) as usize * owned.buffer.len();
                            let until = from + owned.buffer.len();
                            owned.buffer.copy_from_slice(&buffer[from..until]);
                        }
                        _ => read = Read { alone: true, attempt: 0, ..read },
                    }
                    over.push(Over { read, owned, error: None });
                }
                self.give_back(buffer, tail);
                over
            }
        }
    }
}

fn read_buffer(kind: OpKind) -> Option<IoBuf> {
    match kind {
        OpKind::Read(buffer) => Some(buffer),
        _ => None,
    }
}

impl Core {
    /// Gives frames to staged reads and sends them. Answers how many operations were started.
    pub(super) fn start_staged(self: &Arc<Self>, lane: &mut ReadQueue, over: &mut Vec<Over>) -> usize {
        let mut reads = Vec::new();
        loop {
            let Some(mut read) = self.lane.staged().pop_front() else { break };
            if read.frame.is_none() {
                read.frame = self.frame_for_read();
            }
            if read.frame.is_none() {
                self.lane.staged().push_front(read);
                self.keeper.starve();
                break;
            }
            reads.push(read);
        }
        if reads.is_empty() {
            return 0;
        }
        if reads.len() > 1 {
            reads.sort_by_key(|read| read.at.block);
        }
        let page_bytes = self.frames.page_bytes();
        let mut started = 0;
        let mut back = Vec::new();
        for run in lane.runs(reads) {
            if !self.lane.enter_device() {
                back.extend(run);
                continue;
            }
            let flying = lane.flying.len();
            let refused = lane.send(run, page_bytes, over);
            if lane.flying.len() == flying {
                self.lane.leave_device();
            }
            started += usize::from(refused.is_empty());
            back.extend(refused);
            if started % SUBMIT_EVERY == 0 {
                // Should the kernel refuse, nothing is lost: what was pushed is still queued, and the reap that follows submits
                // again or says why not.
                let _ = lane.queue.submit();
            }
        }
        if !back.is_empty() {
            let mut staged = self.lane.staged();
            back.into_iter().rev().for_each(|read| staged.push_front(read));
        }
        // The last ones are not submitted yet: the caller reaps next, which submits in the same system call.
        started
    }
}

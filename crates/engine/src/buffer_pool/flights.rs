//! In-flight reads: groups reads into runs, and submits each run as one operation.
//!
//! Pages that lie near each other are read in one operation, with small gaps between them: a scan over pages that were rewritten now
//! and then stays close to the speed of one over a fresh file (`space::fragmentation`). Where there are frames that lie
//! together (`free`) it reads straight into them, and otherwise into a scratch buffer, from which each page is copied to its
//! frame. A run that fails is read again page by page, so a bad block costs only its own page.
//!
//! Checking, and copying, a run takes longer than taking its completion, so it is done without the queue, by several threads side
//! by side where several are there ([`Landed`]).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nofault_io::aligned::{ALIGN_BYTES, IoBuf, PageKind, Region};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::Queue;
use nofault_io::error::{Error as IoError, ErrorKind as IoKind};

use super::Core;
use super::arrivals::Over;
use super::frames::{OwnedFrame, OwnedRun};
use super::lane::{LEAVE_AT_ONCE, Read};
use super::shard::ReadId;
use crate::error::{Error, Result};

/// Most unrequested blocks between two requested ones that are read along in one run.
const GAP_BLOCKS: u64 = 4;
/// Longest run, in bytes. Longer reads gain nothing.
const RUN_BYTES_MAX: usize = 256 << 10;
/// Operations sent to the device together: it serves a tenth more reads in small groups than in large ones.
const SUBMIT_EVERY: usize = 4;
/// Operations at the device that keep it busy until a thread takes the next completion and submits more: that thread may have
/// several runs to take apart first.
pub(super) const BUSY_WITH: usize = 12;
/// Most runs in flight through scratch memory.
const RUNS_MAX: usize = 32;
/// A run that is longer than this is cut for frames that lie together, if there are at least so many of them.
const CUT_AT_LEAST: usize = 32;
/// One frame in so many of a run may be filled by a gap, and is given back: with more gaps too many pages would be evicted.
const GAPS_ONE_IN: usize = 4;
/// Refusals of the queue in a row after which the waiters are told …
const REFUSALS_MAX: u32 = 100;
/// … but not before so long a time: many tasks may meet a lack of memory within a millisecond.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Memory for reading runs.
pub(super) struct Scratch {
    spare: Mutex<Vec<IoBuf>>,
    count: usize,
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
        let spare = memory.pieces(run_bytes);
        let (count, run_blocks_max) = (spare.len(), run_blocks_max as u64);
        Ok(Self { spare: Mutex::new(spare), count, region, run_blocks_max, bytes })
    }

    fn spare(&self) -> MutexGuard<'_, Vec<IoBuf>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, buffer: Option<IoBuf>, tail: Option<IoBuf>) {
        let whole = match (buffer, tail) {
            (Some(buffer), Some(tail)) => buffer.join(tail).ok(),
            (buffer, _) => buffer,
        };
        self.spare().extend(whole);
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The queue of reads and its in-flight reads.
pub(super) struct ReadQueue {
    pub(super) queue: Box<dyn Queue>,
    /// Reads that wait for room at the device, each lot of them by block. They are given frames when their turn comes.
    line: VecDeque<Read>,
    /// By token.
    flying: Vec<Option<Flight>>,
    tokens: Vec<u64>,
    scratch: Arc<Scratch>,
    /// Runs under way that read straight into frames.
    direct: usize,
    /// The error with which the queue took no read when one was last pushed.
    refused: Option<IoError>,
    refusals: Refusals,
    /// Kept for its memory.
    done: Vec<Completion>,
}

/// Refusals of the queue in a row, while nothing came back from it.
#[derive(Debug, Default)]
struct Refusals {
    count: u32,
    since: Option<Instant>,
}

impl Refusals {
    /// Counts one more. True when it is time to give up: the count begins anew.
    fn add(&mut self) -> bool {
        self.count += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        let is_over = self.count >= REFUSALS_MAX && since.elapsed() >= REFUSED_FOR;
        if is_over {
            *self = Self::default();
        }
        is_over
    }
}

enum Flight {
    /// One page, straight into its frame.
    One { read: Read, frame: u32 },
    /// Several, straight into frames that lie together: the first block and frame.
    Direct { reads: Vec<Read>, first_block: u64, first_frame: u32 },
    /// Several, through scratch memory: the part of the buffer not used, and the first block.
    Run { reads: Vec<Read>, first_block: u64, tail: Option<IoBuf> },
}

/// A completed run, before its pages are installed.
pub(super) struct Landed {
    reads: Vec<Read>,
    first_block: u64,
    memory: Memory,
}

/// Where a run was read to.
enum Memory {
    /// The frames, those of unrequested pages included, and whether they were filled.
    Frames { run: Option<OwnedRun>, is_read: bool },
    /// The bytes, unless the read failed, and the unused part of the buffer.
    Scratch { bytes: Option<IoBuf>, tail: Option<IoBuf> },
}

impl Landed {
    /// Gives each page its bytes, and returns the scratch memory. Returns the completed reads and the frames that are not needed.
    fn unload(self, scratch: &Scratch, page_bytes: usize) -> (Vec<Over>, Vec<OwnedFrame>) {
        let Self { reads, first_block, memory } = self;
        match memory {
            Memory::Scratch { bytes, tail } => {
                let over = copy_out(reads, first_block, bytes.as_deref());
                scratch.give_back(bytes, tail);
                (over, Vec::new())
            }
            Memory::Frames { run, is_read } => {
                let mut frames = run.into_iter().flat_map(|run| run.into_frames(page_bytes));
                let (mut over, mut gaps, mut next) = (Vec::with_capacity(reads.len()), Vec::new(), first_block);
                for read in reads {
                    gaps.extend(frames.by_ref().take((read.block() - next) as usize));
                    next = read.block() + 1;
                    let owned = frames.next();
                    let read = if is_read && owned.is_some() { read } else { alone(read) };
                    over.push(Over { read, owned, error: None });
                }
                gaps.extend(frames);
                (over, gaps)
            }
        }
    }
}

/// Copies pages to their frames. The pages of a failed run are to be read again.
fn copy_out(reads: Vec<Read>, first_block: u64, bytes: Option<&[u8]>) -> Vec<Over> {
    let copy = |mut read: Read| {
        let mut owned = read.frame.take();
        match (&mut owned, bytes) {
            (Some(owned), Some(bytes)) => {
                let from = (read.block() - first_block) as usize * owned.buffer.len();
                let until = from + owned.buffer.len();
                owned.buffer.copy_from_slice(&bytes[from..until]);
            }
            _ => read = alone(read),
        }
        Over { read, owned, error: None }
    };
    reads.into_iter().map(copy).collect()
}

/// Makes a read that is repeated by itself.
fn alone(read: Read) -> Read {
    Read { alone: true, attempt: 0, ..read }
}

/// The outcome of submitting the next reads.
enum Sent {
    /// At the device.
    Gone,
    /// Over already: the queue does not take it.
    Over,
    /// In line again, to be tried at once, each alone.
    Alone,
    /// In line again: the queue is full.
    Full,
    /// Given back: all memory for runs is in use.
    NoScratch(Vec<Read>),
}

impl ReadQueue {
    pub(super) fn new(queue: Box<dyn Queue>, scratch: Arc<Scratch>) -> Self {
        let (line, flying, tokens, done) = (VecDeque::new(), Vec::new(), Vec::new(), Vec::new());
        let (refused, refusals) = (None, Refusals::default());
        Self { queue, line, flying, tokens, scratch, direct: 0, refused, refusals, done }
    }

    /// Whether operations are under way that read several pages.
    pub(super) fn has_runs(&self) -> bool {
        self.direct > 0 || self.scratch.spare().len() < self.scratch.count
    }

    /// How many reads wait for room at the device.
    pub(super) fn in_line(&self) -> usize {
        self.line.len()
    }

    fn token(&mut self) -> u64 {
        self.tokens.pop().unwrap_or_else(|| {
            self.flying.push(None);
            self.flying.len() as u64 - 1
        })
    }

    /// Puts reads into line.
    fn line_up(&mut self, staged: &mut VecDeque<Read>) {
        if staged.len() > 1 {
            staged.make_contiguous().sort_unstable_by_key(|read| read.block());
        }
        self.line.append(staged);
    }

    /// How many of the reads that are next go out together.
    fn next_run(&self) -> usize {
        let Some(first) = self.line.front() else { return 0 };
        let mut last = first.block();
        let joins = |read: &&Read| {
            let block = read.block();
            let near = block > last && block - last <= GAP_BLOCKS + 1;
            let whole = near && block - first.block() < self.scratch.run_blocks_max;
            last = block;
            whole && !read.alone && !first.alone
        };
        1 + self.line.iter().skip(1).take_while(joins).count()
    }

    /// Sends the first `count` reads in line, each of which has its frame.
    fn send(&mut self, count: usize, page_bytes: usize, over: &mut Vec<Over>) -> Sent {
        if count > 1 {
            return self.send_run(count, page_bytes);
        }
        let Some(mut read) = self.line.pop_front() else { return Sent::Full };
        let Some(owned) = read.frame.take() else {
            self.line.push_front(read);
            return Sent::Full;
        };
        let offset = read.block() * page_bytes as u64;
        let token = self.token();
        let Err(refused) = self.queue.push(Op::new(token, offset, OpKind::Read(owned.buffer))) else {
            self.flying[token as usize] = Some(Flight::One { read, frame: owned.index });
            return Sent::Gone;
        };
        self.tokens.push(token);
        let owned = read_buffer(refused.op.kind).map(|buffer| OwnedFrame { index: owned.index, buffer });
        if refused.error.kind() == IoKind::Busy {
            self.refused = Some(refused.error);
            self.line.push_front(Read { frame: owned, ..read });
            return Sent::Full;
        }
        let error = Error::from_io(format!("read page {} at {offset}", read.page()), refused.error);
        over.push(Over { read, owned, error: Some(error) });
        Sent::Over
    }

    fn send_run(&mut self, count: usize, page_bytes: usize) -> Sent {
        let reads: Vec<Read> = self.line.drain(..count).collect();
        let Some(buffer) = self.scratch.spare().pop() else { return Sent::NoScratch(reads) };
        let (first_block, last_block) = (reads[0].block(), reads[reads.len() - 1].block());
        let len_bytes = (last_block - first_block + 1) as usize * page_bytes;
        let (buffer, tail) = buffer.split_at(len_bytes);
        let tail = (!tail.is_empty()).then_some(tail);
        let token = self.token();
        let Err(refused) = self.queue.push(Op::new(token, first_block * page_bytes as u64, OpKind::Read(buffer)))
        else {
            self.flying[token as usize] = Some(Flight::Run { reads, first_block, tail });
            return Sent::Gone;
        };
        self.tokens.push(token);
        self.scratch.give_back(read_buffer(refused.op.kind), tail);
        self.put_back(reads, refused.error)
    }

    /// Sends as many of the first `count` reads in line as these frames have room for, straight into them. Answers also the frames
    /// that are not needed.
    fn send_direct(&mut self, count: usize, memory: OwnedRun, page_bytes: usize) -> (Sent, Vec<OwnedFrame>) {
        let frames = (memory.buffer.len() / page_bytes) as u64;
        let first_block = self.line.front().map_or(0, |read| read.block());
        let fits = |read: &&Read| read.block() - first_block < frames;
        let count = self.line.iter().take(count).take_while(fits).count();
        let reads: Vec<Read> = self.line.drain(..count).collect();
        let blocks = reads.last().map_or(0, |last| last.block() - first_block + 1);
        let (first_frame, buffer) = memory.into_parts();
        let (buffer, rest) = buffer.split_at(blocks as usize * page_bytes);
        let rest = OwnedRun::from_parts(first_frame + blocks as u32, rest);
        let mut unused: Vec<OwnedFrame> = rest.into_frames(page_bytes).collect();
        let token = self.token();
        let Err(refused) = self.queue.push(Op::new(token, first_block * page_bytes as u64, OpKind::Read(buffer)))
        else {
            self.flying[token as usize] = Some(Flight::Direct { reads, first_block, first_frame });
            self.direct += 1;
            return (Sent::Gone, unused);
        };
        self.tokens.push(token);
        let back = read_buffer(refused.op.kind).map(|buffer| OwnedRun::from_parts(first_frame, buffer));
        unused.extend(back.into_iter().flat_map(|run| run.into_frames(page_bytes)));
        (self.put_back(reads, refused.error), unused)
    }

    /// Puts the reads of a run that the queue refused into line again. Alone each of them meets the error again, and reports it as
    /// its own.
    fn put_back(&mut self, reads: Vec<Read>, error: IoError) -> Sent {
        let busy = error.kind() == IoKind::Busy;
        self.refused = busy.then_some(error);
        let again = reads.into_iter().map(|read| Read { alone: read.alone || !busy, ..read });
        again.rev().for_each(|read| self.line.push_front(read));
        if busy { Sent::Full } else { Sent::Alone }
    }

    /// Takes completions, at least `wait_for`, and returns how many there were.
    ///
    /// # Errors
    /// When the queue cannot be used any more. The completions so far are in `over` and `landed` all the same.
    pub(super) fn reap(
        &mut self,
        wait_for: usize,
        over: &mut Vec<Over>,
        landed: &mut Vec<Landed>,
    ) -> (usize, nofault_io::error::Result<()>) {
        let mut done = std::mem::take(&mut self.done);
        let reaped = self.queue.reap(wait_for, &mut done);
        let count = done.len();
        done.drain(..).for_each(|done| self.take_over(done, over, landed));
        self.done = done;
        (count, reaped)
    }

    /// Counts a round in which the queue could submit nothing, or refused a read although it is empty. Returns the queue's error
    /// after too many such rounds in a row: then no operation is left that could complete.
    pub(super) fn count_refusal(&mut self, reaped: &nofault_io::error::Result<()>) -> Option<IoError> {
        let refused = self.refused.take().filter(|_| self.queue.in_flight() == 0);
        let Some(error) = reaped.as_ref().err().cloned().or(refused) else {
            self.refusals = Refusals::default();
            return None;
        };
        self.refusals.add().then_some(error)
    }

    /// Removes the reads in line, and returns the ids of those that the queue has: these keep their memory until the queue
    /// returns it.
    pub(super) fn give_up(&mut self) -> (Vec<Read>, Vec<ReadId>) {
        let ids = |flight: &Flight| match flight {
            Flight::One { read, .. } => vec![read.id],
            Flight::Direct { reads, .. } | Flight::Run { reads, .. } => reads.iter().map(|read| read.id).collect(),
        };
        (self.take_line(), self.flying.iter().flatten().flat_map(ids).collect())
    }

    /// Takes the reads out that are in line.
    pub(super) fn take_line(&mut self) -> Vec<Read> {
        self.line.drain(..).collect()
    }

    /// Turns a completion into completed reads or a completed run.
    fn take_over(&mut self, done: Completion, over: &mut Vec<Over>, landed: &mut Vec<Landed>) {
        let error = done.result.as_ref().err().cloned();
        let (token, offset) = (done.op.token, done.op.offset_bytes);
        let Some(flight) = self.flying.get_mut(token as usize).and_then(Option::take) else { return };
        self.tokens.push(token);
        match flight {
            Flight::One { read, frame } => {
                let error = error.map(|error| Error::from_io(format!("read page {} at {offset}", read.page()), error));
                let owned = done.into_buffer().map(|buffer| OwnedFrame { index: frame, buffer });
                over.push(Over { read, owned, error });
            }
            Flight::Direct { reads, first_block, first_frame } => {
                self.direct -= 1;
                let is_read = error.is_none();
                let run = done.into_buffer().map(|buffer| OwnedRun::from_parts(first_frame, buffer));
                landed.push(Landed { reads, first_block, memory: Memory::Frames { run, is_read } });
            }
            Flight::Run { reads, first_block, tail } => {
                let (mut bytes, mut tail) = (done.into_buffer(), tail);
                if error.is_some() {
                    self.scratch.give_back(bytes.take(), tail.take());
                }
                landed.push(Landed { reads, first_block, memory: Memory::Scratch { bytes, tail } });
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
    /// Gives frames to reads and submits them, as far as there is room at the device. Returns how many operations were started.
    pub(super) fn start_staged(self: &Arc<Self>, lane: &mut ReadQueue, over: &mut Vec<Over>) -> usize {
        self.lane.line_up(|staged| lane.line_up(staged));
        let page_bytes = self.frames.page_bytes();
        let mut started = 0;
        let mut put_off = Vec::new();
        while !lane.line.is_empty() && self.lane.enter_device() {
            let run = lane.next_run();
            let sent = if let Some(memory) = self.frames_together(&lane.line, run) {
                let (sent, unused) = lane.send_direct(run, memory, page_bytes);
                self.return_frames(unused);
                sent
            } else {
                let count = self.give_frames(&mut lane.line, run);
                if count == 0 {
                    self.lane.leave_device(1);
                    // Sets the number first: a background thread that was woken already looks only at the number.
                    self.lane.set_in_line(lane.line.len());
                    self.keeper.starve();
                    break;
                }
                lane.send(count, page_bytes, over)
            };
            if matches!(sent, Sent::Gone) {
                started += 1;
                self.lane.note_sent();
                if started % SUBMIT_EVERY == 0 {
                    // If the kernel refuses, nothing is lost: the pushed operations are still queued, and the reap that follows
                    // submits them again or reports the error.
                    let _ = lane.queue.submit();
                }
                continue;
            }
            self.lane.leave_device(1);
            match sent {
                Sent::Full => break,
                Sent::NoScratch(reads) => put_off.extend(reads),
                Sent::Gone | Sent::Over | Sent::Alone => {}
            }
        }
        put_off.into_iter().rev().for_each(|read| lane.line.push_front(read));
        self.lane.set_in_line(lane.line.len());
        // The last ones are not submitted yet: the caller reaps next, which submits in the same system call.
        started
    }

    /// Submits unsent reads when the device will soon be idle, and takes no completions.
    pub(super) fn keep_device_busy(self: &Arc<Self>) {
        if self.lane.at_device() >= BUSY_WITH || !self.lane.has_unsent() {
            return;
        }
        let Some(mut queue) = self.lane.try_queue() else { return };
        let mut over = Vec::new();
        self.start_staged(&mut queue, &mut over);
        // If the kernel refuses, nothing is lost: the next thread that looks for unsent reads submits again or reports the error.
        self.lane.set_stuck(queue.queue.submit().is_err());
        drop(queue);
        self.finish_reads(over);
    }

    /// Installs the pages of one run that has landed. False when there is none.
    pub(super) fn unload_run(self: &Arc<Self>) -> bool {
        let Some(run) = self.lane.landed().pop_front() else { return false };
        let (over, unused) = run.unload(&self.lane.scratch, self.frames.page_bytes());
        self.finish_reads(over);
        self.return_frames(unused);
        true
    }

    /// Takes adjacent frames for the first `run` reads in line, or for most of them, if there are enough to make it worthwhile.
    fn frames_together(self: &Arc<Self>, line: &VecDeque<Read>, run: usize) -> Option<OwnedRun> {
        let (first, last) = (line.front()?, line.get(run.checked_sub(1)?)?);
        let blocks = (last.block() - first.block() + 1) as usize;
        if run < 2 || blocks - run > blocks / GAPS_ONE_IN || line.iter().take(run).any(|read| read.frame.is_some()) {
            return None;
        }
        let least = blocks.min(CUT_AT_LEAST);
        let memory = self.frames.take_run_for_read(least, blocks).or_else(|| {
            self.make_clean_room(LEAVE_AT_ONCE.max(blocks));
            self.frames.take_run_for_read(least, blocks)
        });
        self.restock(LEAVE_AT_ONCE);
        memory
    }

    /// Gives each of the first `run` reads in line a frame, as far as there are some. Returns how many of the first have one.
    fn give_frames(self: &Arc<Self>, line: &mut VecDeque<Read>, run: usize) -> usize {
        let lacking = line.iter().take(run).filter(|read| read.frame.is_none()).count();
        let mut frames = if lacking > 1 { self.frames_for_reads(lacking) } else { Vec::new() };
        for (index, read) in line.iter_mut().take(run).enumerate() {
            if read.frame.is_none() {
                read.frame = frames.pop().or_else(|| self.frame_for_read());
            }
            if read.frame.is_none() {
                return index;
            }
        }
        run
    }
}

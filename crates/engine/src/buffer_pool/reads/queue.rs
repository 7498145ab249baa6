//! The read queue: reads in line for the device, grouped into operations, and the operations in flight.
//!
//! Pages that lie near each other are read in one operation, with small gaps between them: a scan over pages that were rewritten now
//! and then stays close to the speed of one over a fresh file (`block_allocator::fragmentation`).
//!
//! Checking, and copying, a run takes longer than taking its completion, so it is done without the queue, by several threads side
//! by side where several are there ([`CompletedRun`](super::read::CompletedRun)).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nofault_io::aligned::IoBuf;
use nofault_io::completion::{Completion, OpKind};
use nofault_io::disk::Queue;
use nofault_io::error::{Error as IoError, ErrorKind as IoKind};

use super::read::{CompletedPages, CompletedReads, Read, ReadOperation, ReadState, Scratch, UnsentReads};
use super::scan_run::{GAP_BLOCKS, ScanRead, ScanRun};
use crate::buffer_pool::frames::{OwnedFrame, OwnedRun};
use crate::buffer_pool::page_table::ReadId;

/// Share of a run's frames that may be filled by gaps between its pages, as a divisor. The frames of gaps are given
/// back, but with more of them too many pages would be evicted.
const GAPS_ONE_IN: usize = 4;
/// Number of consecutive refusals of the queue after which the waiters receive an error, once `REFUSED_FOR` has passed
/// as well.
const REFUSALS_MAX: u32 = 100;
/// Shortest time of refusals before the waiters receive an error: many tasks may be refused for lack of memory within a
/// millisecond.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The read queue: reads in line for the device, and the operations in flight.
pub(super) struct ReadQueue {
    queue: Box<dyn Queue>,
    /// Whether the queue's descriptor is polled.
    is_watched: bool,
    /// The reads that wait for a place at the device.
    pub(super) line: ReadLine,
    /// The operations submitted to the queue, by token.
    operations: Vec<Option<ReadOperation>>,
    tokens: Vec<u64>,
    scratch: Arc<Scratch>,
    page_bytes: usize,
    /// Number of operations in flight that read several pages straight into frames.
    into_frames: usize,
    /// Number of blocks of the operations in flight that read several pages, and the number beyond which no read-ahead is
    /// sent.
    run_blocks: u64,
    run_blocks_max: u64,
    /// The blocks among these read for scans alone.
    scan_blocks: u64,
    /// The error with which the queue refused the last read pushed, if it refused it.
    refused: Option<IoError>,
    refusals: Refusals,
    pace: Pace,
    /// A buffer of completions, empty between uses and kept to avoid allocations.
    done: Vec<Completion>,
}

/// Counts consecutive refusals of the queue, as long as no operation completes.
#[derive(Debug, Default)]
struct Refusals {
    count: u32,
    since: Option<Instant>,
}

impl Refusals {
    /// Counts one more refusal. Returns true when the waiters are to receive an error; counting then starts again.
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

/// Completed operations after which the pace of the device is known.
const PACE_OVER: u32 = 64;

/// Measures how long the device takes from one completed operation to the next, while it has any.
#[derive(Debug, Default)]
struct Pace {
    /// The beginning of the measurement; `None` while the device has no operation.
    since: Option<Instant>,
    completed: u32,
}

impl Pace {
    /// Notes completed operations, after which so many are in flight. Returns the pace once enough have completed or none is
    /// in flight any more. Asks for the time only then, and when the first operation is in flight.
    fn note(&mut self, completed: usize, in_flight: usize) -> Option<Duration> {
        let Some(since) = self.since else {
            self.since = (in_flight > 0).then(Instant::now);
            return None;
        };
        self.completed += u32::try_from(completed).unwrap_or(PACE_OVER);
        if self.completed == 0 || self.completed < PACE_OVER && in_flight > 0 {
            return None;
        }
        let now = Instant::now();
        self.since = (in_flight > 0).then_some(now);
        Some((now - since) / std::mem::take(&mut self.completed))
    }
}

/// All reads that a queue gives up, because it accepts none any more.
pub(super) struct GivenUp {
    /// Reads in line.
    pub(super) in_line: Vec<Read>,
    /// Reads at the device, which keep their memory until the queue returns it.
    pub(super) sent: Vec<ReadId>,
    /// Runs of scans in line.
    pub(super) scans_in_line: VecDeque<ScanRead>,
    /// Runs of scans at the device.
    pub(super) scans_sent: Vec<Arc<ScanRun>>,
}

/// The outcome of sending the next reads in line.
pub(super) enum SendOutcome {
    /// The reads are at the device.
    InFlight,
    /// The reads completed with an error, because the queue does not accept them.
    Refused,
    /// The reads are in line again, each marked to be sent alone, because the queue refused them as one operation.
    Alone,
    /// The reads are in line again, because the queue is full.
    Full,
    /// The reads are returned, because all scratch memory is in use.
    NoScratch(Vec<Read>),
}

/// Reads in line for the device.
#[derive(Default)]
pub(super) struct ReadLine {
    /// Reads waiting for a place at the device, each batch sorted by block. They get frames just before they are
    /// sent.
    reads: VecDeque<Read>,
    /// Runs of scans waiting for a place at the device.
    scans: VecDeque<ScanRead>,
}

impl ReadLine {
    /// Returns the number of reads in line for a place at the device.
    pub(super) fn len(&self) -> usize {
        self.reads.len() + self.scans.len()
    }

    /// Returns whether reads for the pool are in line.
    pub(super) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Returns the number of blocks from the first to the last of the first `run` reads in line, gaps included, if it
    /// pays to read them into adjacent frames.
    pub(super) fn adjacent_blocks(&self, run: usize) -> Option<usize> {
        let (first, last) = (self.reads.front()?, self.reads.get(run.checked_sub(1)?)?);
        let blocks = (last.block() - first.block() + 1) as usize;
        let is_worthwhile = run >= 2 && blocks.checked_sub(run).is_some_and(|gaps| gaps <= blocks / GAPS_ONE_IN);
        // A compressed page is decompressed from its own memory, and may share its block with the next.
        let suits = |read: &Read| read.frame.is_none() && !read.id.at.is_compressed;
        (is_worthwhile && self.reads.iter().take(run).all(suits)).then_some(blocks)
    }

    /// Returns how many of the first `run` reads in line have no frame.
    pub(super) fn frames_lacking(&self, run: usize) -> usize {
        self.reads.iter().take(run).filter(|read| read.frame.is_none()).count()
    }

    /// Gives each of the first `run` reads in line a frame, until `take` returns none. Returns how many of these reads
    /// have one.
    pub(super) fn give_frames(&mut self, run: usize, mut take: impl FnMut() -> Option<OwnedFrame>) -> usize {
        for (index, read) in self.reads.iter_mut().take(run).enumerate() {
            if read.frame.is_none() {
                read.frame = take();
            }
            if read.frame.is_none() {
                return index;
            }
        }
        run
    }

    /// Puts reads back at the front of the line, in the given order.
    pub(super) fn put_first(&mut self, reads: Vec<Read>) {
        reads.into_iter().rev().for_each(|read| self.reads.push_front(read));
    }

    /// Moves staged reads to the end of the line, sorted by block.
    pub(super) fn line_up(&mut self, staged: &mut VecDeque<Read>) {
        staged.iter_mut().for_each(|read| read.advance(ReadState::Queued));
        if staged.len() > 1 {
            staged.make_contiguous().sort_unstable_by_key(|read| read.block());
        }
        self.reads.append(staged);
    }

    /// Moves staged runs of scans to the end of their line.
    pub(super) fn line_up_for_scans(&mut self, staged: &mut Vec<ScanRead>) {
        self.scans.extend(staged.drain(..));
    }

    /// Returns how many reads at the front of the line can be sent as one operation.
    pub(super) fn next_run(&self, blocks_max: u64) -> usize {
        let Some(first) = self.reads.front() else { return 0 };
        let mut last = first.block();
        let joins = |read: &&Read| follows(first, std::mem::replace(&mut last, read.block()), read, blocks_max);
        1 + self.reads.iter().skip(1).take_while(joins).count()
    }

    /// Removes all reads from the line and returns them.
    pub(super) fn take_all(&mut self) -> GivenUp {
        let in_line = self.reads.drain(..).map(|read| read.into_state(ReadState::Completed)).collect();
        let scans_in_line = std::mem::take(&mut self.scans);
        GivenUp { in_line, sent: Vec::new(), scans_in_line, scans_sent: Vec::new() }
    }
}

impl ReadQueue {
    /// Creates an empty queue; at most about `run_blocks_max` blocks are read ahead at a time.
    pub(super) fn new(queue: Box<dyn Queue>, scratch: Arc<Scratch>, page_bytes: usize, run_blocks_max: u64) -> Self {
        let (operations, tokens, done) = (Vec::new(), Vec::new(), Vec::new());
        let (refused, refusals, pace) = (None, Refusals::default(), Pace::default());
        Self {
            queue,
            is_watched: false,
            line: ReadLine::default(),
            operations,
            tokens,
            scratch,
            page_bytes,
            into_frames: 0,
            run_blocks: 0,
            run_blocks_max,
            scan_blocks: 0,
            refused,
            refusals,
            pace,
            done,
        }
    }

    /// Returns the number of blocks of the operations in flight that read several pages.
    #[cfg(test)]
    pub(super) fn run_blocks(&self) -> u64 {
        self.run_blocks
    }

    /// Returns the number of these blocks read for scans alone.
    #[cfg(test)]
    pub(super) fn scan_blocks(&self) -> u64 {
        self.scan_blocks
    }

    /// Returns whether the device has enough read-ahead, and all reads in line are read-ahead: no operation missed their pages.
    pub(super) fn is_far_ahead(&self) -> bool {
        self.run_blocks >= self.run_blocks_max && self.line.reads.iter().all(|read| read.missed_at.is_none())
    }

    /// Returns whether an operation that reads several pages is in progress.
    pub(super) fn has_runs(&self) -> bool {
        self.into_frames > 0 || self.scratch.is_in_use()
    }

    /// Returns whether a run of a scan can be sent: the device has not enough read-ahead yet, or few runs of scans, which so progress
    /// next to read-ahead for the pool.
    pub(super) fn has_scan_to_send(&self) -> bool {
        let has_few = self.scan_blocks < self.run_blocks_max.div_ceil(2);
        !self.line.scans.is_empty() && (has_few || self.run_blocks < self.run_blocks_max)
    }

    /// Returns the number of operations in the queue.
    pub(super) fn operation_count(&self) -> usize {
        self.queue.in_flight()
    }

    /// Returns a copy of the queue's descriptor, which stays the same until the watches have ended.
    pub(super) fn watch(&mut self) -> Option<OwnedFd> {
        self.is_watched = true;
        self.queue.ready_fd()?.try_clone_to_owned().ok()
    }

    /// Notes that no copy of the queue's descriptor is polled any more.
    pub(super) fn end_watches(&mut self) {
        if std::mem::take(&mut self.is_watched) {
            self.queue.end_watch();
        }
    }

    /// Submits the operations that were pushed.
    ///
    /// # Errors
    /// When the kernel refuses: they are still queued, and the next call or reap submits them.
    pub(super) fn submit(&mut self) -> nofault_io::error::Result<()> {
        self.queue.submit()
    }

    fn token(&mut self) -> u64 {
        self.tokens.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() as u64 - 1
        })
    }

    /// Returns how many reads at the front of the line can be sent as one operation.
    pub(super) fn next_run(&self) -> usize {
        self.line.next_run(self.scratch.run_blocks_max())
    }

    /// Sends the first `count` reads in line as one operation. Each of them has a frame.
    pub(super) fn send(&mut self, count: usize, completed: &mut CompletedReads) -> SendOutcome {
        if count > 1 {
            let reads: Vec<Read> = self.line.reads.drain(..count).collect();
            let Some(buffer) = self.scratch.take() else { return SendOutcome::NoScratch(reads) };
            let operation = ReadOperation::through_scratch(reads, buffer, &self.scratch, self.page_bytes);
            return self.push(operation, completed, &mut Vec::new());
        }
        let Some(mut read) = self.line.reads.pop_front() else { return SendOutcome::Full };
        let Some(owned) = read.frame.take() else {
            self.line.reads.push_front(read);
            return SendOutcome::Full;
        };
        self.push(ReadOperation::of_page(read, owned), completed, &mut Vec::new())
    }

    /// Sends the first run of a scan in line. A run that the queue refuses finally, or whose scan has ended, is completed.
    pub(super) fn send_for_scan(&mut self, completed: &mut CompletedReads) -> SendOutcome {
        let Some(read) = self.line.scans.pop_front() else { return SendOutcome::Full };
        match ReadOperation::for_scan(read) {
            Ok(operation) => self.push(operation, completed, &mut Vec::new()),
            Err(ended) => {
                completed.runs.push(CompletedPages::OfScan(ended));
                SendOutcome::Refused
            }
        }
    }

    /// Sends as many of the first `count` reads in line as fit into the frames of `memory`, straight into these frames.
    /// Returns the outcome and the frames that are not needed.
    pub(super) fn send_into(
        &mut self,
        count: usize,
        memory: OwnedRun,
        completed: &mut CompletedReads,
    ) -> (SendOutcome, Vec<OwnedFrame>) {
        let frames = (memory.buffer.len() / self.page_bytes) as u64;
        let first_block = self.line.reads.front().map_or(0, |read| read.block());
        let fits = |read: &&Read| read.block() - first_block < frames;
        let count = self.line.reads.iter().take(count).take_while(fits).count();
        let reads = self.line.reads.drain(..count).collect();
        let (operation, mut unused) = ReadOperation::into_frames(reads, memory, self.page_bytes);
        (self.push(operation, completed, &mut unused), unused)
    }

    /// Pushes an operation to the device's queue. What the queue refuses finally is completed with the error, but for pages read together:
    /// each of these is then sent alone, so that a repeated error is reported for its own page.
    fn push(
        &mut self,
        (mut operation, buffer): (ReadOperation, IoBuf),
        completed: &mut CompletedReads,
        unused: &mut Vec<OwnedFrame>,
    ) -> SendOutcome {
        let token = self.token();
        let Err(refused) = self.queue.push(operation.request(token, buffer, self.page_bytes)) else {
            operation.note_sent();
            self.into_frames += usize::from(operation.is_into_frames());
            self.run_blocks += operation.run_blocks();
            self.scan_blocks += operation.scan().map_or(0, |run| run.blocks());
            self.operations[token as usize] = Some(operation);
            return SendOutcome::InFlight;
        };
        self.tokens.push(token);
        let is_busy = refused.error.kind() == IoKind::Busy;
        let buffer = if let OpKind::Read(buffer) = refused.op.kind { Some(buffer) } else { None };
        if !is_busy && operation.reads().len() <= 1 && !operation.is_into_frames() {
            operation.end(buffer, Some(refused.error), self.page_bytes, |part| completed.add(part));
            return SendOutcome::Refused;
        }
        self.refused = is_busy.then_some(refused.error);
        match operation.take_back(buffer, self.page_bytes) {
            UnsentReads::OfPool(mut reads, frames) => {
                reads.iter_mut().for_each(|read| read.alone |= !is_busy);
                self.line.put_first(reads);
                unused.extend(frames);
            }
            UnsentReads::OfScan(read) => self.line.scans.push_front(read),
        }
        if is_busy { SendOutcome::Full } else { SendOutcome::Alone }
    }

    /// Takes completions from the queue, waits for at least `wait_for` of them, and returns how many there were.
    ///
    /// # Errors
    /// The queue's error, when the queue cannot be used any more. The completions taken before are in `completed`
    /// nevertheless.
    pub(super) fn reap(
        &mut self,
        wait_for: usize,
        completed: &mut CompletedReads,
    ) -> (usize, nofault_io::error::Result<()>) {
        let mut done = std::mem::take(&mut self.done);
        let reaped = self.queue.reap(wait_for, &mut done);
        let count = done.len();
        done.drain(..).for_each(|done| self.take_over(done, completed));
        self.done = done;
        (count, reaped)
    }

    /// Notes operations taken from the queue. Returns the time from one to the next, now and then.
    pub(super) fn note_pace(&mut self, taken: usize) -> Option<Duration> {
        self.pace.note(taken, self.queue.in_flight())
    }

    /// Counts a round in which the queue could not submit anything, or refused a read although it was empty. Returns
    /// the queue's error after too many such rounds in a row: then no operation is left that could complete.
    pub(super) fn count_refusal(&mut self, reaped: &nofault_io::error::Result<()>) -> Option<IoError> {
        let refused = self.refused.take().filter(|_| self.queue.in_flight() == 0);
        let Some(error) = reaped.as_ref().err().cloned().or(refused) else {
            self.refusals = Refusals::default();
            return None;
        };
        self.refusals.add().then_some(error)
    }

    /// Removes all reads from the lines and returns them, with the ids and runs of the reads in flight.
    pub(super) fn give_up(&mut self) -> GivenUp {
        let (mut sent, mut scans_sent) = (Vec::new(), Vec::new());
        for operation in self.operations.iter().flatten() {
            sent.extend(operation.reads().iter().map(|read| read.id));
            scans_sent.extend(operation.scan().cloned());
        }
        GivenUp { sent, scans_sent, ..self.line.take_all() }
    }

    /// Ends the operation that a completion of the queue names.
    fn take_over(&mut self, done: Completion, completed: &mut CompletedReads) {
        let token = done.op.token;
        let Some(operation) = self.operations.get_mut(token as usize).and_then(Option::take) else { return };
        self.tokens.push(token);
        self.into_frames -= usize::from(operation.is_into_frames());
        self.run_blocks -= operation.run_blocks();
        self.scan_blocks -= operation.scan().map_or(0, |run| run.blocks());
        let error = done.result.as_ref().err().cloned();
        operation.end(done.into_buffer(), error, self.page_bytes, |part| completed.add(part));
    }
}

/// Returns whether these reads, which are sorted by block, can be one operation of at most `blocks_max` blocks.
pub(super) fn are_one_run(reads: &[Read], blocks_max: u64) -> bool {
    reads.first().is_some_and(|first| reads.windows(2).all(|two| follows(first, two[0].block(), &two[1], blocks_max)))
}

/// Returns whether a read can be part of the operation that begins with `first` and now ends with block `last`.
fn follows(first: &Read, last: u64, read: &Read, blocks_max: u64) -> bool {
    let block = read.block();
    let is_behind = block > last || (block == last && read.id.at.is_compressed);
    let near = is_behind && block - last <= GAP_BLOCKS + 1;
    near && block - first.block() < blocks_max && !read.alone && !first.alone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_taken_over_some_operations_or_until_none_is_in_flight() {
        let mut pace = Pace::default();
        assert!(pace.note(0, 0).is_none() && pace.since.is_none(), "nothing is in flight");
        assert!(pace.note(0, 8).is_none() && pace.since.is_some());
        assert!(pace.note(5, 8).is_none() && pace.note(0, 8).is_none());
        assert!(pace.note(3, 0).is_some() && pace.since.is_none(), "none is left");
        assert!(pace.note(0, 64).is_none());
        assert!(pace.note(PACE_OVER as usize - 1, 64).is_none() && pace.note(1, 64).is_some());
        assert!(pace.since.is_some() && pace.completed == 0, "the next measurement has begun");
    }
}

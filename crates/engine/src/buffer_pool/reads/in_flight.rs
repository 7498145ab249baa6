//! In-flight reads: groups reads into runs, and submits each run as one operation.
//!
//! Pages that lie near each other are read in one operation, with small gaps between them: a scan over pages that were rewritten now
//! and then stays close to the speed of one over a fresh file (`block_allocator::fragmentation`). Where there are frames that lie
//! together (`free_frames`) it reads straight into them, and otherwise into a scratch buffer, from which each page is copied to its
//! frame. A run that fails is read again page by page, so a bad block costs only its own page.
//!
//! Checking, and copying, a run takes longer than taking its completion, so it is done without the queue, by several threads side
//! by side where several are there ([`CompletedRun`]).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nofault_io::aligned::IoBuf;
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::Queue;
use nofault_io::error::{Error as IoError, ErrorKind as IoKind};

use super::completed::{CompletedPages, CompletedRead, CompletedRun, RunMemory};
use super::scan_run::{ScanRead, ScanRun};
use super::scratch::{GAP_BLOCKS, Scratch};
use super::state::{Read, ReadState};
use crate::buffer_pool::frames::{OwnedFrame, OwnedRun};
use crate::buffer_pool::shard::ReadId;
use crate::error::Error;

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
    /// Reads waiting for a place at the device, each batch sorted by block. They get frames just before they are
    /// sent.
    line: VecDeque<Read>,
    /// Runs of scans waiting for a place at the device.
    scan_line: VecDeque<ScanRead>,
    /// The operations submitted to the queue, by token.
    operations: Vec<Option<ReadOperation>>,
    tokens: Vec<u64>,
    scratch: Arc<Scratch>,
    /// Number of operations in flight that read several pages directly into frames.
    direct: usize,
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

/// A read operation at the device, and the reads that it completes.
enum ReadOperation {
    /// A read of one page, directly into its frame.
    One { read: Read, frame: u32 },
    /// A read of several pages directly into adjacent frames, with the first block and the first frame.
    Direct { reads: Vec<Read>, first_block: u64, first_frame: u32 },
    /// A read of several pages through scratch memory, with the first block and the unused rest of the buffer.
    Run { reads: Vec<Read>, first_block: u64, tail: Option<IoBuf> },
    /// A read of a run for a scan alone.
    Scan(ScanRead),
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

impl ReadQueue {
    /// Creates an empty queue; at most about `run_blocks_max` blocks are read ahead at a time.
    pub(super) fn new(queue: Box<dyn Queue>, scratch: Arc<Scratch>, run_blocks_max: u64) -> Self {
        let (line, operations, tokens, done) = (VecDeque::new(), Vec::new(), Vec::new(), Vec::new());
        let (refused, refusals, pace) = (None, Refusals::default(), Pace::default());
        Self {
            queue,
            is_watched: false,
            line,
            scan_line: VecDeque::new(),
            operations,
            tokens,
            scratch,
            direct: 0,
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
        self.run_blocks >= self.run_blocks_max && self.line.iter().all(|read| read.missed_at.is_none())
    }

    /// Returns whether an operation that reads several pages is in progress.
    pub(super) fn has_runs(&self) -> bool {
        self.direct > 0 || self.scratch.is_in_use()
    }

    /// Returns the number of reads in line for a place at the device.
    pub(super) fn in_line(&self) -> usize {
        self.line.len() + self.scan_line.len()
    }

    /// Returns whether reads for the pool are in line.
    pub(super) fn has_reads_in_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Returns whether a run of a scan can be sent: the device has not enough read-ahead yet, or few runs of scans, which so progress
    /// next to read-ahead for the pool.
    pub(super) fn has_scan_to_send(&self) -> bool {
        let has_few = self.scan_blocks < self.run_blocks_max.div_ceil(2);
        !self.scan_line.is_empty() && (has_few || self.run_blocks < self.run_blocks_max)
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

    /// Returns the number of blocks from the first to the last of the first `run` reads in line, gaps included, if it
    /// pays to read them into adjacent frames.
    pub(super) fn adjacent_blocks(&self, run: usize) -> Option<usize> {
        let (first, last) = (self.line.front()?, self.line.get(run.checked_sub(1)?)?);
        let blocks = (last.block() - first.block() + 1) as usize;
        let is_worthwhile = run >= 2 && blocks.checked_sub(run).is_some_and(|gaps| gaps <= blocks / GAPS_ONE_IN);
        // A compressed page is decompressed from its own memory, and may share its block with the next.
        let suits = |read: &Read| read.frame.is_none() && !read.id.at.is_compressed;
        (is_worthwhile && self.line.iter().take(run).all(suits)).then_some(blocks)
    }

    /// Returns how many of the first `run` reads in line have no frame.
    pub(super) fn frames_lacking(&self, run: usize) -> usize {
        self.line.iter().take(run).filter(|read| read.frame.is_none()).count()
    }

    /// Gives each of the first `run` reads in line a frame, until `take` returns none. Returns how many of these reads
    /// have one.
    pub(super) fn give_frames(&mut self, run: usize, mut take: impl FnMut() -> Option<OwnedFrame>) -> usize {
        for (index, read) in self.line.iter_mut().take(run).enumerate() {
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
        reads.into_iter().rev().for_each(|read| self.line.push_front(read));
    }

    fn token(&mut self) -> u64 {
        self.tokens.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() as u64 - 1
        })
    }

    /// Moves staged reads to the end of the line, sorted by block.
    pub(super) fn line_up(&mut self, staged: &mut VecDeque<Read>) {
        staged.iter_mut().for_each(|read| read.advance(ReadState::Queued));
        if staged.len() > 1 {
            staged.make_contiguous().sort_unstable_by_key(|read| read.block());
        }
        self.line.append(staged);
    }

    /// Moves staged runs of scans to the end of their line.
    pub(super) fn line_up_for_scans(&mut self, staged: &mut Vec<ScanRead>) {
        self.scan_line.extend(staged.drain(..));
    }

    /// Returns how many reads at the front of the line can be sent as one operation.
    pub(super) fn next_run(&self) -> usize {
        let Some(first) = self.line.front() else { return 0 };
        let (mut last, blocks_max) = (first.block(), self.scratch.run_blocks_max());
        let joins = |read: &&Read| follows(first, std::mem::replace(&mut last, read.block()), read, blocks_max);
        1 + self.line.iter().skip(1).take_while(joins).count()
    }

    /// Sends the first `count` reads in line as one operation. Each of them has a frame.
    pub(super) fn send(&mut self, count: usize, page_bytes: usize, completed: &mut Vec<CompletedRead>) -> SendOutcome {
        if count > 1 {
            return self.send_run(count, page_bytes);
        }
        let Some(mut read) = self.line.pop_front() else { return SendOutcome::Full };
        let Some(owned) = read.frame.take() else {
            self.line.push_front(read);
            return SendOutcome::Full;
        };
        let offset = read.block() * page_bytes as u64;
        let token = self.token();
        let Err(refused) = self.queue.push(Op::new(token, offset, OpKind::Read(owned.buffer))) else {
            read.advance(ReadState::InFlight);
            self.operations[token as usize] = Some(ReadOperation::One { read, frame: owned.index });
            return SendOutcome::InFlight;
        };
        self.tokens.push(token);
        let owned = read_buffer(refused.op.kind).map(|buffer| OwnedFrame { index: owned.index, buffer });
        if refused.error.kind() == IoKind::Busy {
            self.refused = Some(refused.error);
            read.frame = owned;
            self.line.push_front(read);
            return SendOutcome::Full;
        }
        let error = Error::from_io(format!("read page {} at {offset}", read.page()), refused.error);
        completed.push(CompletedRead::in_frame(read.into_state(ReadState::Completed), owned, Some(error)));
        SendOutcome::Refused
    }

    fn send_run(&mut self, count: usize, page_bytes: usize) -> SendOutcome {
        let reads: Vec<Read> = self.line.drain(..count).collect();
        let Some(buffer) = self.scratch.take() else { return SendOutcome::NoScratch(reads) };
        let (first_block, last_block) = (reads[0].block(), reads[reads.len() - 1].block());
        let len_bytes = (last_block - first_block + 1) as usize * page_bytes;
        let (buffer, tail) = buffer.split_at(len_bytes);
        let tail = (!tail.is_empty()).then_some(tail);
        let token = self.token();
        let Err(refused) = self.queue.push(Op::new(token, first_block * page_bytes as u64, OpKind::Read(buffer)))
        else {
            let reads = in_state(reads, ReadState::InFlight);
            self.run_blocks += last_block - first_block + 1;
            self.operations[token as usize] = Some(ReadOperation::Run { reads, first_block, tail });
            return SendOutcome::InFlight;
        };
        self.tokens.push(token);
        self.scratch.give_back(read_buffer(refused.op.kind), tail);
        self.put_back(reads, refused.error)
    }

    /// Sends the first run of a scan in line. A run that the queue refuses finally, or whose scan has ended, is added to `ended`.
    pub(super) fn send_for_scan(&mut self, page_bytes: usize, ended: &mut Vec<CompletedPages>) -> SendOutcome {
        let Some(mut read) = self.scan_line.pop_front() else { return SendOutcome::Full };
        let (offset, blocks) = (read.run().first_block() * page_bytes as u64, read.run().blocks());
        let buffer = if read.is_wanted() { read.take_buffer() } else { None };
        let Some(buffer) = buffer else {
            read.note_failed();
            ended.push(CompletedPages::OfScan(read));
            return SendOutcome::Refused;
        };
        let token = self.token();
        let Err(refused) = self.queue.push(Op::new(token, offset, OpKind::Read(buffer))) else {
            self.run_blocks += blocks;
            self.scan_blocks += blocks;
            self.operations[token as usize] = Some(ReadOperation::Scan(read));
            return SendOutcome::InFlight;
        };
        self.tokens.push(token);
        read.put_buffer(read_buffer(refused.op.kind));
        if refused.error.kind() == IoKind::Busy {
            self.refused = Some(refused.error);
            self.scan_line.push_front(read);
            return SendOutcome::Full;
        }
        read.note_failed();
        ended.push(CompletedPages::OfScan(read));
        SendOutcome::Refused
    }

    /// Sends as many of the first `count` reads in line as fit into the frames of `memory`, directly into these frames.
    /// Returns the outcome and the frames that are not needed.
    pub(super) fn send_direct(
        &mut self,
        count: usize,
        memory: OwnedRun,
        page_bytes: usize,
    ) -> (SendOutcome, Vec<OwnedFrame>) {
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
            let reads = in_state(reads, ReadState::InFlight);
            self.operations[token as usize] = Some(ReadOperation::Direct { reads, first_block, first_frame });
            self.direct += 1;
            self.run_blocks += blocks;
            return (SendOutcome::InFlight, unused);
        };
        self.tokens.push(token);
        let back = read_buffer(refused.op.kind).map(|buffer| OwnedRun::from_parts(first_frame, buffer));
        unused.extend(back.into_iter().flat_map(|run| run.into_frames(page_bytes)));
        (self.put_back(reads, refused.error), unused)
    }

    /// Puts the reads of a run that the queue refused back in line. Unless the queue was only full, each is then sent
    /// alone, so that a repeated error is reported for its own page.
    fn put_back(&mut self, reads: Vec<Read>, error: IoError) -> SendOutcome {
        let busy = error.kind() == IoKind::Busy;
        self.refused = busy.then_some(error);
        let mut again = reads;
        again.iter_mut().for_each(|read| read.alone |= !busy);
        self.put_first(again);
        if busy { SendOutcome::Full } else { SendOutcome::Alone }
    }

    /// Takes completions from the queue, waits for at least `wait_for` of them, and returns how many there were.
    ///
    /// # Errors
    /// The queue's error, when the queue cannot be used any more. The completions taken before are in `completed` and
    /// `runs` nevertheless.
    pub(super) fn reap(
        &mut self,
        wait_for: usize,
        completed: &mut Vec<CompletedRead>,
        runs: &mut Vec<CompletedPages>,
    ) -> (usize, nofault_io::error::Result<()>) {
        let mut done = std::mem::take(&mut self.done);
        let reaped = self.queue.reap(wait_for, &mut done);
        let count = done.len();
        done.drain(..).for_each(|done| self.take_over(done, completed, runs));
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
            match operation {
                ReadOperation::One { read, .. } => sent.push(read.id),
                ReadOperation::Direct { reads, .. } | ReadOperation::Run { reads, .. } => {
                    sent.extend(reads.iter().map(|read| read.id));
                }
                ReadOperation::Scan(read) => scans_sent.push(Arc::clone(read.run())),
            }
        }
        GivenUp { sent, scans_sent, ..self.take_lines() }
    }

    /// Removes all reads from the lines and returns them.
    pub(super) fn take_lines(&mut self) -> GivenUp {
        let in_line = in_state(self.line.drain(..).collect(), ReadState::Completed);
        let scans_in_line = std::mem::take(&mut self.scan_line);
        GivenUp { in_line, sent: Vec::new(), scans_in_line, scans_sent: Vec::new() }
    }

    /// Turns a completion of the queue into completed reads or a completed run.
    fn take_over(&mut self, done: Completion, completed: &mut Vec<CompletedRead>, runs: &mut Vec<CompletedPages>) {
        let error = done.result.as_ref().err().cloned();
        let (token, offset) = (done.op.token, done.op.offset_bytes);
        let Some(operation) = self.operations.get_mut(token as usize).and_then(Option::take) else { return };
        self.tokens.push(token);
        self.run_blocks -= match &operation {
            ReadOperation::One { .. } => 0,
            ReadOperation::Direct { reads, first_block, .. } | ReadOperation::Run { reads, first_block, .. } => {
                reads.last().map_or(0, |last| last.block() - first_block + 1)
            }
            ReadOperation::Scan(read) => read.run().blocks(),
        };
        match operation {
            ReadOperation::Scan(mut read) => {
                self.scan_blocks -= read.run().blocks();
                read.put_buffer(done.into_buffer());
                if error.is_some() {
                    read.note_failed();
                }
                runs.push(CompletedPages::OfScan(read));
            }
            ReadOperation::One { read, frame } => {
                let error = error.map(|error| Error::from_io(format!("read page {} at {offset}", read.page()), error));
                let owned = done.into_buffer().map(|buffer| OwnedFrame { index: frame, buffer });
                completed.push(CompletedRead::in_frame(read.into_state(ReadState::Completed), owned, error));
            }
            ReadOperation::Direct { reads, first_block, first_frame } => {
                self.direct -= 1;
                let is_read = error.is_none();
                let run = done.into_buffer().map(|buffer| OwnedRun::from_parts(first_frame, buffer));
                let reads = in_state(reads, ReadState::Completed);
                let memory = RunMemory::Frames { run, is_read };
                runs.push(CompletedPages::OfPool(CompletedRun { reads, first_block, memory }));
            }
            ReadOperation::Run { reads, first_block, tail } => {
                let reads = in_state(reads, ReadState::Completed);
                let bytes = match (done.into_buffer(), error) {
                    (Some(bytes), None) => Some((bytes, tail)),
                    (bytes, _) => {
                        self.scratch.give_back(bytes, tail);
                        None
                    }
                };
                let pieces = CompletedRun::pieces_of(reads, first_block, bytes, &self.scratch);
                runs.extend(pieces.map(CompletedPages::OfPool));
            }
        }
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

fn in_state(mut reads: Vec<Read>, state: ReadState) -> Vec<Read> {
    reads.iter_mut().for_each(|read| read.advance(state));
    reads
}

fn read_buffer(kind: OpKind) -> Option<IoBuf> {
    match kind {
        OpKind::Read(buffer) => Some(buffer),
        _ => None,
    }
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

//! The measurement of a trial of `replay`, method by method.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op as RingOp, OpKind};
use nofault_io::disk::{DirectIo, Disk, FileOptions, Queue, QueueOptions};
use nofault_io::uring::UringDisk;

use super::{RECORDED, Way};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::{BLOCK_BYTES, block_offset};
use crate::measure::read_loops::overwrite::{WritableFile, fill, pages};
use crate::measure::read_loops::pace;
use crate::measure::read_loops::sync::{Files, Means};
use crate::measure::workload::{Layout, first_word};
use crate::measure::{Work, Worker};
use crate::trace::{Op, Trace};

// The accesses of a trace as they are replayed: each recorded thread's, in the data of the lab. Does no I/O.
//
// Kept true by: a step lies wholly inside the data; the accesses of a recorded thread are in the order of their times.

/// Most bytes that one step moves. A longer access is replayed as several steps.
const STEP_BYTES_MAX: u64 = 1 << 20;
/// Most recorded threads. The first threads make the accesses of further ones.
const THREADS_MAX: u32 = 256;

/// One access to the data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Position in the data file, whose first block is the lab's header.
    pub(super) offset_bytes: u64,
    /// Number of bytes; 0 for a sync.
    len_bytes: usize,
    pub(super) op: Op,
    /// The time at which the access is due, from the start of the replay.
    pub(super) due: Duration,
}

impl Step {
    /// The whole blocks in which the step lies: the offset of the first, and their bytes.
    pub(super) fn blocks(&self) -> (u64, usize) {
        let block = BLOCK_BYTES as u64;
        let (from, end) = (self.offset_bytes / block * block, self.offset_bytes + self.len_bytes as u64);
        (from, (end.next_multiple_of(block) - from) as usize)
    }
}

/// The accesses of a trace by recorded thread.
#[derive(Debug)]
pub(super) struct Steps {
    /// The accesses of each thread.
    pub(super) threads: Vec<Vec<Step>>,
    /// The time at which the last access is due.
    pub(super) span: Duration,
    /// Whether each access is due at its recorded time.
    is_timed: bool,
}

impl Steps {
    /// Prepares a trace for data of `data_bytes`. The recorded variant has the accesses of the first `seconds`. An offset behind
    /// the data is counted from the start again.
    pub(super) fn of(trace: &Trace, data_bytes: u64, variant: &str, seconds: f64) -> Self {
        let (first_s, _) = trace.span();
        let count = (trace.threads.len() as u32).clamp(1, THREADS_MAX);
        let mut threads = vec![Vec::new(); count as usize];
        let end = whole_ns(seconds);
        for access in &trace.accesses {
            let due = whole_ns(access.at_s - first_s);
            if variant == RECORDED && due > end {
                continue;
            }
            let thread: &mut Vec<Step> = &mut threads[(access.thread % count) as usize];
            if access.op == Op::Sync {
                thread.push(Step { offset_bytes: block_offset(0), len_bytes: 0, op: Op::Sync, due });
                continue;
            }
            let mut at = access.offset_bytes % data_bytes.max(1);
            // An access is as long as the data at most: a longer one would only meet the same blocks again.
            let mut left = access.length_bytes.min(data_bytes);
            while left > 0 {
                let len = left.min(STEP_BYTES_MAX).min(data_bytes - at);
                thread.push(Step { offset_bytes: block_offset(0) + at, len_bytes: len as usize, op: access.op, due });
                at = (at + len) % data_bytes;
                left -= len;
            }
        }
        threads.retain(|thread| !thread.is_empty());
        threads.iter_mut().for_each(|thread| thread.sort_by_key(|step| step.due));
        let span = threads.iter().filter_map(|thread| thread.last()).map(|step| step.due).max().unwrap_or_default();
        Self { threads, span, is_timed: variant == RECORDED }
    }

    /// Bytes of the blocks of the longest step.
    fn block_bytes_max(&self) -> usize {
        self.threads.iter().flatten().map(|step| step.blocks().1).max().unwrap_or(0).max(BLOCK_BYTES)
    }
}

/// A time in whole nanoseconds, so that it stays the same through the parameters of a trial.
fn whole_ns(seconds: f64) -> Duration {
    Duration::from_nanos((seconds.max(0.0) * 1e9).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::replay::FAST;
    use crate::trace::Access;
    use crate::trace::made::Shape;

    fn trace(accesses: &[(u64, u64, Op, u32, f64)]) -> Trace {
        let access =
            |&(offset_bytes, length_bytes, op, thread, at_s)| Access { offset_bytes, length_bytes, op, thread, at_s };
        let threads = accesses.iter().map(|access| access.3).max().map_or(0, |most| most + 1);
        Trace {
            accesses: accesses.iter().map(access).collect(),
            threads: (0..threads).map(|thread| thread.to_string()).collect(),
            is_cut: false,
        }
    }

    #[test]
    fn every_thread_has_its_accesses_in_time_order_and_inside_the_data() {
        let data = 64 << 10;
        for seed in 0..50 {
            let trace = Trace::made(seed, Shape { count: 300, threads: 5, ..Shape::default() });
            let steps = Steps::of(&trace, data, FAST, 1.0);
            assert_eq!(steps.threads.len(), 5);
            for step in steps.threads.iter().flatten() {
                let (from, len) = step.blocks();
                assert!(from >= 4096 && from + len as u64 <= data + 4096, "seed {seed}: {step:?}");
                assert!(from <= step.offset_bytes && len >= step.len_bytes && len as u64 <= STEP_BYTES_MAX + 8192);
            }
            assert!(steps.threads.iter().all(|thread| thread.is_sorted_by_key(|step| step.due)), "seed {seed}");
            let moved =
                |op: Op| trace.accesses.iter().filter(move |access| access.op == op).map(|access| access.length_bytes);
            for op in [Op::Read, Op::Write] {
                let replayed: usize =
                    steps.threads.iter().flatten().filter(|step| step.op == op).map(|step| step.len_bytes).sum();
                assert_eq!(replayed as u64, moved(op).sum::<u64>(), "seed {seed}: all bytes are replayed");
            }
            let syncs = steps.threads.iter().flatten().filter(|step| step.op == Op::Sync).count();
            assert_eq!(syncs, trace.count(Op::Sync), "seed {seed}");
        }
    }

    #[test]
    fn only_the_first_seconds_are_replayed_at_the_recorded_times() {
        let trace = trace(&[(0, 10, Op::Read, 0, 7.0), (9, 10, Op::Read, 1, 7.25), (0, 1, Op::Write, 0, 9.0)]);
        let recorded = Steps::of(&trace, 8192, RECORDED, 1.0);
        assert_eq!((recorded.threads.len(), recorded.span), (2, Duration::from_millis(250)));
        let again = Steps::of(&trace, 8192, RECORDED, recorded.span.as_secs_f64());
        assert_eq!(again.threads, recorded.threads, "the planned time selects the same accesses");
        assert_eq!(Steps::of(&trace, 8192, FAST, 1.0).threads[0].len(), 2);
    }

    #[test]
    fn a_long_access_is_cut_and_one_behind_the_data_begins_again() {
        let steps = |offset, length, data| {
            let trace = trace(&[(offset, length, Op::Read, 0, 0.0)]);
            Steps::of(&trace, data, FAST, 1.0)
                .threads
                .concat()
                .iter()
                .map(|step| (step.offset_bytes, step.len_bytes))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            steps(0, 3 << 20, 8 << 20),
            [(4096, 1 << 20), (4096 + (1 << 20), 1 << 20), (4096 + (2 << 20), 1 << 20)]
        );
        assert_eq!(steps(8192 + 100, 50, 8192), [(4096 + 100, 50)]);
        assert_eq!(steps(8000, 1000, 8192), [(4096 + 8000, 192), (4096, 808)]);
        assert_eq!(steps(u64::MAX, u64::MAX, 8192).iter().map(|(_, len)| len).sum::<usize>(), 8192);
    }
}

// The replay by threads: each makes the accesses of one recorded thread, through a map or by calls, and waits for each.

/// Most written blocks of a recorded thread that are read back: of the latest ones.
const READ_BACK: usize = 64;

/// The work of a trial.
pub(super) struct Job<'a> {
    pub(super) layout: &'a Layout,
    pub(super) steps: &'a Steps,
    pub(super) content_seed: u64,
    /// Offsets of written blocks, filled when the recorded threads have ended.
    pub(super) written: &'a Mutex<Vec<u64>>,
}

impl Job<'_> {
    /// Whether the accesses are due at their recorded times.
    fn is_timed(&self) -> bool {
        self.steps.is_timed
    }

    /// Notes the blocks that a recorded thread has written, to be read back.
    fn note_written(&self, history: &History) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&history.blocks);
    }
}

/// The latest blocks that a recorded thread has written.
#[derive(Default)]
struct History {
    blocks: Vec<u64>,
    count: usize,
}

impl History {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::with_capacity(READ_BACK), count: 0 }
    }

    fn note(&mut self, step: &Step) {
        if step.op != Op::Write {
            return;
        }
        let (from, _) = step.blocks();
        match self.blocks.get_mut(self.count % READ_BACK) {
            Some(slot) => *slot = from,
            None => self.blocks.push(from),
        }
        self.count += 1;
    }
}

/// The open file of a trial, which its threads share.
pub(super) enum Subject {
    /// A shared map.
    Map(WritableFile),
    /// A file for read calls, and the same for write calls.
    Calls {
        files: Files,
        writer: WritableFile,
        /// Whether calls move whole blocks, as direct I/O must.
        whole: bool,
    },
}

impl Subject {
    /// Opens the file.
    ///
    /// # Errors
    /// The error of opening or mapping; `Usage` for a ring, which has its own loop.
    pub(super) fn open(layout: &Layout, path: &Path, way: Way) -> Result<Self> {
        match way {
            Way::Map(advice) => Ok(Self::Map(WritableFile::map(path, advice)?)),
            Way::Calls(means) => Ok(Self::Calls {
                files: Files::open(layout, means)?,
                writer: WritableFile::calls(path, means)?,
                whole: means == Means::Direct,
            }),
            Way::Ring => Err(LabError::new(LabErrorKind::Usage, "replay: a ring does not wait for each access")),
        }
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn sync(&self) -> Result<()> {
        match self {
            Self::Map(file) | Self::Calls { writer: file, .. } => file.sync(None),
        }
    }

    /// Makes one access. The buffer has room for the step's blocks, and for a write their content. Returns whether the content that
    /// was read is right; `None` where nothing could be checked.
    fn make(&self, job: &Job<'_>, step: &Step, buffer: &mut [u8]) -> Result<Option<bool>> {
        let (from, len) = step.blocks();
        let inner = (step.offset_bytes - from) as usize..(step.offset_bytes - from) as usize + step.len_bytes;
        match (self, step.op) {
            (_, Op::Sync) => self.sync()?,
            (Self::Map(file), Op::Read) => {
                let mut right = None;
                file.look(step.offset_bytes, step.len_bytes, |at, bytes| {
                    right = both(right, is_right_part(job.layout, at, bytes));
                })?;
                return Ok(right);
            }
            (Self::Map(file), Op::Write) => file.write(step.offset_bytes, &buffer[inner], false)?,
            (Self::Calls { files, whole: true, .. }, Op::Read) => {
                files.read(job.layout, 0, from, &mut buffer[..len])?;
                return Ok(job.layout.is_right(&buffer[..len], from));
            }
            (Self::Calls { files, whole: false, .. }, Op::Read) => {
                files.read(job.layout, 0, step.offset_bytes, &mut buffer[inner.clone()])?;
                let parts = pages(step.offset_bytes, step.len_bytes);
                let read = &buffer[inner];
                return Ok(
                    parts.fold(None, |right, (at, part)| both(right, is_right_part(job.layout, at, &read[part])))
                );
            }
            (Self::Calls { writer, whole: true, .. }, Op::Write) => writer.write(from, &buffer[..len], false)?,
            (Self::Calls { writer, whole: false, .. }, Op::Write) => {
                writer.write(step.offset_bytes, &buffer[inner], false)?;
            }
        }
        Ok(None)
    }
}

/// Whether two parts are both right; a part that cannot be checked says nothing.
fn both(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a && b),
        (one, other) => one.or(other),
    }
}

/// Whether a part of a page, which lies at an offset of the file, has the expected content: by its first word, or by its last one.
/// `None` for a part that has neither; a byte of it is loaded all the same.
fn is_right_part(layout: &Layout, offset_bytes: u64, part: &[u8]) -> Option<bool> {
    let within = (offset_bytes % BLOCK_BYTES as u64) as usize;
    let page = offset_bytes - within as u64;
    if within == 0 && part.len() >= 8 {
        return Some(layout.is_right_word(std::hint::black_box(first_word(part)), page));
    }
    match part.last_chunk() {
        Some(last) if within + part.len() == BLOCK_BYTES => {
            Some(layout.is_right_word(u64::from_le_bytes(std::hint::black_box(*last)), page))
        }
        _ => {
            std::hint::black_box(part.first());
            None
        }
    }
}

/// Records a finished access.
fn note(worker: &mut Worker<'_>, step: &Step, right: Option<bool>, (due, began): (Option<Instant>, Instant)) {
    let ended = Instant::now();
    worker.latency(step.op.name(), ended - began);
    if let Some(due) = due {
        worker.latency("open_loop", ended.saturating_duration_since(due));
    }
    if let Some(right) = right {
        worker.verified(right);
    }
    if step.op != Op::Sync {
        worker.latency("op", ended - began);
        worker.done(1, step.len_bytes as u64);
    }
}

/// The workers of a trial: one for each recorded thread.
pub(super) fn works<'a>(job: &'a Job<'a>, subject: &'a Subject) -> Vec<Work<'a>> {
    let work = |thread: &'a Vec<Step>| -> Work<'a> {
        Box::new(move |worker: &mut Worker<'_>| {
            let mut buffer = IoBuf::zeroed(job.steps.block_bytes_max(), PageKind::Small)?;
            buffer.fill(0);
            let mut history = History::new();
            let timed = job.is_timed();
            if timed {
                pace::exact_timer();
            }
            worker.start();
            let started = worker.started();
            let mut count = 0;
            // Without times the recorded thread begins again when it has ended.
            for step in thread.iter().cycle().take(if timed { thread.len() } else { usize::MAX }) {
                if step.op == Op::Write {
                    let (from, len) = step.blocks();
                    fill(&mut buffer[..len], job.content_seed, from);
                }
                let due = timed.then(|| started + step.due);
                let goes_on = match due {
                    Some(due) => pace::wait_until(worker, due, Duration::ZERO),
                    None => worker.running(),
                };
                if !goes_on {
                    break;
                }
                let began = Instant::now();
                let right = subject.make(job, step, &mut buffer)?;
                note(worker, step, right, (due, began));
                history.note(step);
                count += 1;
            }
            if timed {
                worker.figure("accesses_due", thread.len() as f64);
                worker.figure("accesses_started", f64::from(count));
            }
            job.note_written(&history);
            Ok(())
        })
    };
    job.steps.threads.iter().map(work).collect()
}

// The replay by a ring: one thread makes the accesses of all recorded threads, past the page cache, with at most one of each recorded thread in
// flight, as many as the threads of the other methods have.

/// Longest sleep while no access is due.
const NAP: Duration = Duration::from_millis(20);

/// The state of one recorded thread.
struct RecordedThread<'a> {
    steps: &'a [Step],
    /// Number of accesses that were started.
    started: usize,
    /// The buffer of the recorded thread; in flight it is the part that the operation does not need.
    buffer: Option<IoBuf>,
    /// The access in flight: when it was due, and when it began.
    flight: Option<(Option<Instant>, Instant)>,
}

impl RecordedThread<'_> {
    /// The next access; without times the recorded thread begins again when it has ended.
    fn next(&self, timed: bool) -> Option<Step> {
        let at = if timed { self.started } else { self.started % self.steps.len() };
        self.steps.get(at).copied()
    }

    /// The time at which the recorded thread's next access may start: `None` while one is in flight, and at the end.
    fn due(&self, timed: bool, started: Instant) -> Option<Instant> {
        let step = self.next(timed).filter(|_| self.flight.is_none())?;
        Some(if timed { started + step.due } else { started })
    }
}

/// Makes the accesses of all recorded threads.
///
/// # Errors
/// The error of opening, reading, writing or syncing.
pub(super) fn replay(worker: &mut Worker<'_>, job: &Job<'_>) -> Result<()> {
    let path = job.layout.paths.first().cloned().unwrap_or_default();
    let disk = UringDisk::open(&path, &FileOptions { direct: DirectIo::Require, write: true, create: false })?;
    let thread_bytes = job.steps.block_bytes_max();
    let mut memory = IoBuf::zeroed(thread_bytes * job.steps.threads.len(), PageKind::Small)?;
    memory.fill(0);
    let registered = vec![memory.region().clone()];
    let mut queue =
        disk.queue(&QueueOptions { depth_max: job.steps.threads.len(), single_thread: false, registered })?;
    let mut threads: Vec<RecordedThread<'_>> = (job.steps.threads.iter().zip(memory.pieces(thread_bytes)))
        .map(|(steps, buffer)| RecordedThread { steps, started: 0, buffer: Some(buffer), flight: None })
        .collect();
    let mut done = Vec::with_capacity(threads.len());
    let mut history = History::new();
    let timed = job.is_timed();
    if timed {
        pace::exact_timer();
    }
    worker.start();
    let started = worker.started();
    while worker.running() {
        let mut next: Option<Instant> = None;
        let mut pushed = false;
        for (number, thread) in threads.iter_mut().enumerate() {
            let Some(due) = thread.due(timed, started) else { continue };
            if due > Instant::now() {
                next = Some(next.map_or(due, |next| next.min(due)));
                continue;
            }
            push(&mut *queue, job, thread, number, timed.then_some(due))?;
            pushed = true;
        }
        if pushed {
            queue.submit()?;
        }
        match (queue.in_flight(), next) {
            // All recorded threads have ended.
            (0, None) => break,
            (0, Some(due)) => drop(pace::wait_until(worker, due, Duration::ZERO)),
            (_, None) => land(worker, job, &mut *queue, &mut threads, (1, &mut done), &mut history)?,
            (_, Some(due)) => {
                land(worker, job, &mut *queue, &mut threads, (0, &mut done), &mut history)?;
                if queue.in_flight() > 0 {
                    pace::wait_for_completion(&*queue, due.min(Instant::now() + NAP))?;
                }
            }
        }
    }
    // Accesses still in flight count, because otherwise the slowest would be missing.
    let rest = queue.in_flight();
    land(worker, job, &mut *queue, &mut threads, (rest, &mut done), &mut history)?;
    if timed {
        worker.figure("accesses_due", threads.iter().map(|thread| thread.steps.len()).sum::<usize>() as f64);
        worker.figure("accesses_started", threads.iter().map(|thread| thread.started).sum::<usize>() as f64);
    }
    job.note_written(&history);
    queue.push(RingOp::new(0, 0, OpKind::Sync)).map_err(|refused| LabError::from(refused.error))?;
    queue.reap(1, &mut done)?;
    done.drain(..).try_for_each(|completion| completion.result.map(|_| ()).map_err(LabError::from))
}

/// Starts the next access of a recorded thread.
fn push(
    queue: &mut dyn Queue,
    job: &Job<'_>,
    thread: &mut RecordedThread<'_>,
    number: usize,
    due: Option<Instant>,
) -> Result<()> {
    let Some(step) = thread.next(due.is_some()) else { return Ok(()) };
    let (from, len) = step.blocks();
    let kind = match step.op {
        Op::Sync => OpKind::Sync,
        Op::Read | Op::Write => {
            let (mut part, rest) = thread.buffer.take().ok_or_else(lost)?.split_at(len);
            thread.buffer = Some(rest);
            if step.op == Op::Write {
                fill(&mut part, job.content_seed, from);
                OpKind::write(part, false)
            } else {
                OpKind::Read(part)
            }
        }
    };
    thread.flight = Some((due, Instant::now()));
    thread.started += 1;
    let offset = if step.op == Op::Sync { 0 } else { from };
    queue.push(RingOp::new(number as u64, offset, kind)).map_err(|refused| refused.error.into())
}

/// Takes completed accesses, at least `wait_for` of them, and records their latencies.
fn land(
    worker: &mut Worker<'_>,
    job: &Job<'_>,
    queue: &mut dyn Queue,
    threads: &mut [RecordedThread<'_>],
    (wait_for, done): (usize, &mut Vec<Completion>),
    history: &mut History,
) -> Result<()> {
    queue.reap(wait_for, done)?;
    for completion in done.drain(..) {
        completion.result.clone()?;
        let (number, offset) = (completion.op.token as usize, completion.op.offset_bytes);
        let thread = threads.get_mut(number).ok_or_else(lost)?;
        let step = thread.steps[(thread.started - 1) % thread.steps.len()];
        let flight = thread.flight.take().ok_or_else(lost)?;
        let mut right = None;
        if let Some(part) = completion.into_buffer() {
            if step.op == Op::Read {
                right = job.layout.is_right(&part, offset);
            }
            thread.buffer = Some(part.join(thread.buffer.take().ok_or_else(lost)?).map_err(|_| lost())?);
        }
        note(worker, &step, right, flight);
        history.note(&step);
    }
    Ok(())
}

fn lost() -> LabError {
    LabError::new(LabErrorKind::System, "the ring did not return a buffer; this is a defect of the lab")
}

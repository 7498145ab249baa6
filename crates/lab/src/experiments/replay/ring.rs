//! The replay by a ring: one thread makes the accesses of all recorded threads, past the page cache, with at most one of each recorded thread in
//! flight, as many as the threads of the other methods have.

use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op as RingOp, OpKind};
use nofault_io::disk::{DirectIo, Disk, FileOptions, Queue, QueueOptions};
use nofault_io::uring::UringDisk;

use super::steps::Step;
use super::threads::{History, Job, note};
use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::Worker;
use crate::read_loops::overwrite::fill;
use crate::read_loops::pace;
use crate::trace::Op;

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

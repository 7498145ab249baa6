//! Measures the raw device as a baseline: reads and writes through a disk of `nofault-io`, in the same run as the
//! engine.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{DirectIo, Disk, FileOptions, Queue, QueueOptions};
use nofault_io::folder::{Backend, open_disk};

use super::place::State;
use super::trial::{Trial, order};
use super::works::SCAN_REWRITTEN;
use crate::entries::mix;
use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::{Work, Worker};
use crate::record::Outcome;

/// Bytes of a random read, and of a durable overwrite.
const BLOCK_BYTES: usize = 4096;
/// Bytes of the file whose blocks the durable overwrites change in turn.
const OVERWRITTEN_BYTES: u64 = 16 << 20;

/// Measures random reads of 4 KiB in the used part of the engine's file. With `batches`, the next reads are submitted
/// when all of a batch have arrived: the best rate for a caller waiting for whole batches. Otherwise the row's
/// number of reads is always in flight.
pub(super) fn random(trial: &mut Trial<'_, '_>, batches: bool) -> Result<Outcome> {
    let used_bytes = trial.have(State::Loaded)?;
    let disk = open(&trial.place.store().join("data"), false)?;
    let mut chance = fastrand::Rng::with_seed(order(trial.spec));
    let blocks = (used_bytes / BLOCK_BYTES as u64).max(1);
    let depth = trial.spec.params.depth.max(1) as usize;
    // Completions are taken in batches of the engine's size, so that one submission serves many reads.
    let batch = if batches { depth } else { depth.div_ceil(8) };
    let stream = Stream { bytes: BLOCK_BYTES, depth, batch };
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let mut offsets = std::iter::from_fn(|| Some(chance.u64(0..blocks) * BLOCK_BYTES as u64));
        stream.measure(worker, &*disk, OpKind::Read, &mut offsets)
    });
    trial.measure(vec![work])
}

/// Measures reading the used part of the engine's file from front to back.
pub(super) fn sequential(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let rewritten = trial.spec.variant == SCAN_REWRITTEN;
    let used_bytes = trial.have(if rewritten { State::Rewritten } else { State::Loaded })?;
    let disk = open(&trial.place.store().join("data"), false)?;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        LARGE.measure(worker, &*disk, OpKind::Read, &mut front_to_back(used_bytes))
    });
    trial.measure(vec![work])
}

/// Measures writing a new file with as many bytes as the data, from front to back, with a sync at the end.
pub(super) fn written(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let path = trial.place.free("raw")?;
    let (disk, bytes) = (open(&path, true)?, trial.data.user_bytes());
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        LARGE.measure(worker, &*disk, |buffer| OpKind::write(buffer, false), &mut front_to_back(bytes))?;
        sync(&*disk)
    });
    let outcome = trial.measure(vec![work]);
    trial.place.free("raw")?;
    outcome
}

/// Measures durable overwrites of 4 KiB, one after the other, in a file written before.
pub(super) fn overwrites(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let path = trial.place.free("raw")?;
    let disk = open(&path, true)?;
    LARGE.run(&*disk, |buffer| OpKind::write(buffer, false), &mut front_to_back(OVERWRITTEN_BYTES), &mut |_| true)?;
    sync(&*disk)?;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let blocks = OVERWRITTEN_BYTES / BLOCK_BYTES as u64;
        let mut offsets = (0..blocks).cycle().map(|block| block * BLOCK_BYTES as u64);
        let stream = Stream { bytes: BLOCK_BYTES, depth: 1, batch: 1 };
        stream.measure(worker, &*disk, |buffer| OpKind::write(buffer, true), &mut offsets)
    });
    let outcome = trial.measure(vec![work]);
    trial.place.free("raw")?;
    outcome
}

/// Returns the offsets of large reads or writes of `bytes` bytes, front to back.
fn front_to_back(bytes: u64) -> impl Iterator<Item = u64> {
    (0..(bytes / LARGE.bytes as u64).max(1)).map(|index| index * LARGE.bytes as u64)
}

fn open(path: &Path, write: bool) -> Result<Arc<dyn Disk>> {
    let options = FileOptions { direct: DirectIo::Prefer, write, create: write };
    Ok(open_disk(path, &options, Backend::Auto)?)
}

/// How operations are submitted: bytes of each, number in flight, and completions taken at a time.
#[derive(Clone, Copy)]
struct Stream {
    bytes: usize,
    depth: usize,
    batch: usize,
}

/// Large reads or writes from front to back.
const LARGE: Stream = Stream { bytes: 1 << 20, depth: 8, batch: 1 };

impl Stream {
    /// Runs operations and counts them for a worker, until its time or the offsets end. Operations that follow one another
    /// are timed. The first failed operation ends it with an error.
    fn measure(
        self,
        worker: &mut Worker<'_>,
        disk: &dyn Disk,
        make: impl Fn(IoBuf) -> OpKind,
        offsets: &mut dyn Iterator<Item = u64>,
    ) -> Result<()> {
        let mut last = None;
        self.run(disk, make, offsets, &mut |done| {
            match last {
                None => worker.start(),
                Some(last) if self.depth == 1 && done == 1 => worker.latency("op", Instant::elapsed(&last)),
                Some(_) => {}
            }
            last = Some(Instant::now());
            worker.done(done, done * self.bytes as u64);
            worker.running()
        })
    }

    /// Keeps operations in flight until the offsets end or `go_on` returns false. `go_on` gets the number of operations
    /// completed since its last call; the first call, with 0, comes when all buffers are ready.
    fn run(
        self,
        disk: &dyn Disk,
        make: impl Fn(IoBuf) -> OpKind,
        offsets: &mut dyn Iterator<Item = u64>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let mut memory = IoBuf::zeroed(self.bytes * self.depth, PageKind::Huge)?;
        // Fill with other bytes than zeros, because some devices are faster with zeros.
        memory.chunks_mut(8).zip(1_u64..).for_each(|(word, number)| word.copy_from_slice(&mix(number).to_le_bytes()));
        let registered = vec![memory.region().clone()];
        let options = QueueOptions { depth_max: self.depth, single_thread: true, registered };
        let mut queue = disk.queue(&options)?;
        let mut idle = memory.pieces(self.bytes);
        let mut goes_on = go_on(0);
        loop {
            while goes_on && let Some(buffer) = idle.pop() {
                let Some(offset) = offsets.next() else {
                    idle.push(buffer);
                    break;
                };
                push(&mut *queue, Op::new(0, offset, make(buffer)))?;
            }
            if queue.in_flight() == 0 {
                return Ok(());
            }
            let wait_for = self.batch.min(queue.in_flight()).max(1);
            let completions = reap(&mut *queue, wait_for)?;
            let count = completions.len() as u64;
            for completion in completions {
                if let Err(error) = completion.result {
                    return Err(error.into());
                }
                idle.extend(completion.into_buffer());
            }
            goes_on = go_on(count);
        }
    }
}

/// Syncs the file and waits for the sync.
fn sync(disk: &dyn Disk) -> Result<()> {
    let mut queue = disk.queue(&QueueOptions::default())?;
    push(&mut *queue, Op::new(0, 0, OpKind::Sync))?;
    for completion in reap(&mut *queue, 1)? {
        completion.result?;
    }
    Ok(())
}

fn push(queue: &mut dyn Queue, op: Op) -> Result<()> {
    queue.push(op).map_err(|refused| LabError::from(refused.error))
}

fn reap(queue: &mut dyn Queue, wait_for: usize) -> Result<Vec<Completion>> {
    let mut done = Vec::new();
    queue.reap(wait_for, &mut done)?;
    if done.is_empty() && wait_for > 0 {
        return Err(LabError::new(LabErrorKind::System, "the device completed no operation"));
    }
    Ok(done)
}

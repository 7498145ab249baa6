//! The raw performance of the device: reads and writes through a disk of `nofault-io`, the baselines of the same run.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{DirectIo, Disk, FileOptions, Queue, QueueOptions};
use nofault_io::folder::{Backend, open_disk};

use crate::error::{LabError, LabErrorKind, Result};

/// Bytes of a read or write in a stream.
const STREAM_BYTES: usize = 1 << 20;
/// Reads or writes of a stream in flight.
const STREAM_DEPTH: usize = 8;
/// Bytes of a random read and of a durable overwrite.
const BLOCK_BYTES: usize = 4096;

/// Random reads of 4 KiB a second in the first `len_bytes` of a file, with `depth` in flight.
pub(super) fn random_reads(path: &Path, len_bytes: u64, depth: usize, time: Duration, seed: u64) -> Result<f64> {
    let blocks = (len_bytes / BLOCK_BYTES as u64).max(1);
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut offsets = std::iter::from_fn(|| Some(chance.u64(0..blocks) * BLOCK_BYTES as u64));
    let disk = open(path, false)?;
    // The same batch size as the engine's: one submission for many reads.
    let done = stream(&*disk, BLOCK_BYTES, depth, depth.div_ceil(8), OpKind::Read, &mut offsets, Some(time))?;
    Ok(done.operations as f64 / done.seconds)
}

/// Random reads of 4 KiB a second in batches: the next `depth` reads are submitted when the last of a batch has
/// arrived. The best rate for a caller that waits for whole batches.
pub(super) fn random_batches(path: &Path, len_bytes: u64, depth: usize, time: Duration, seed: u64) -> Result<f64> {
    let blocks = (len_bytes / BLOCK_BYTES as u64).max(1);
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut offsets = std::iter::from_fn(|| Some(chance.u64(0..blocks) * BLOCK_BYTES as u64));
    let disk = open(path, false)?;
    let done = stream(&*disk, BLOCK_BYTES, depth, depth, OpKind::Read, &mut offsets, Some(time))?;
    Ok(done.operations as f64 / done.seconds)
}

/// Bytes a second of reading the first `len_bytes` of a file front to back, in huge pages.
pub(super) fn sequential_read(path: &Path, len_bytes: u64) -> Result<f64> {
    let mut offsets = (0..(len_bytes / STREAM_BYTES as u64).max(1)).map(|index| index * STREAM_BYTES as u64);
    let disk = open(path, false)?;
    let done = stream(&*disk, STREAM_BYTES, STREAM_DEPTH, 1, OpKind::Read, &mut offsets, None)?;
    Ok((done.operations * STREAM_BYTES as u64) as f64 / done.seconds)
}

/// Bytes a second of writing a new file of `len_bytes` front to back, synced at the end. Leaves the file.
pub(super) fn sequential_write(path: &Path, len_bytes: u64) -> Result<f64> {
    let started = Instant::now();
    let disk = open(path, true)?;
    let mut offsets = (0..(len_bytes / STREAM_BYTES as u64).max(1)).map(|index| index * STREAM_BYTES as u64);
    let write = |buffer| OpKind::write(buffer, false);
    let done = stream(&*disk, STREAM_BYTES, STREAM_DEPTH, 1, write, &mut offsets, None)?;
    let mut queue = disk.queue(&QueueOptions::default())?;
    push(&mut *queue, Op::new(0, 0, OpKind::Sync))?;
    for completion in reap(&mut *queue, 1)? {
        completion.result?;
    }
    Ok((done.operations * STREAM_BYTES as u64) as f64 / started.elapsed().as_secs_f64())
}

/// Durable overwrites of 4 KiB, one after the other through a file that was written before, a second.
pub(super) fn durable_writes(path: &Path, len_bytes: u64, time: Duration) -> Result<f64> {
    let disk = open(path, true)?;
    let mut offsets = (0..len_bytes / BLOCK_BYTES as u64).cycle().map(|block| block * BLOCK_BYTES as u64);
    let write = |buffer| OpKind::write(buffer, true);
    let done = stream(&*disk, BLOCK_BYTES, 1, 1, write, &mut offsets, Some(time))?;
    Ok(done.operations as f64 / done.seconds)
}

fn open(path: &Path, write: bool) -> Result<Arc<dyn Disk>> {
    let options = FileOptions { direct: DirectIo::Prefer, write, create: write && !path.exists() };
    Ok(open_disk(path, &options, Backend::Auto)?)
}

/// Number and duration of the operations of a stream.
struct Done {
    operations: u64,
    seconds: f64,
}

/// Keeps `depth` operations in flight until the offsets or the time end. The first failed operation is an error.
fn stream(
    disk: &dyn Disk,
    len_bytes: usize,
    depth: usize,
    batch: usize,
    make: impl Fn(IoBuf) -> OpKind,
    offsets: &mut dyn Iterator<Item = u64>,
    time: Option<Duration>,
) -> Result<Done> {
    let mut memory = IoBuf::zeroed(len_bytes * depth, PageKind::Huge)?;
    // Not zeros: some devices are faster with zeros.
    memory.chunks_mut(8).zip(1_u64..).for_each(|(word, number)| {
        word.copy_from_slice(&super::data::mix(number).to_le_bytes());
    });
    let options = QueueOptions { depth_max: depth, single_thread: true, registered: vec![memory.region().clone()] };
    let mut queue = disk.queue(&options)?;
    let mut idle = memory.pieces(len_bytes);
    let (started, mut operations) = (Instant::now(), 0);
    loop {
        let over = time.is_some_and(|time| started.elapsed() >= time);
        while !over && let Some(buffer) = idle.pop() {
            let Some(offset) = offsets.next() else {
                idle.push(buffer);
                break;
            };
            push(&mut *queue, Op::new(0, offset, make(buffer)))?;
        }
        if queue.in_flight() == 0 {
            return Ok(Done { operations, seconds: started.elapsed().as_secs_f64() });
        }
        for completion in reap(&mut *queue, batch.max(1))? {
            if let Err(error) = completion.result {
                return Err(error.into());
            }
            operations += 1;
            idle.extend(completion.into_buffer());
        }
    }
}

fn push(queue: &mut dyn Queue, op: Op) -> Result<()> {
    queue.push(op).map_err(|refused| LabError::from(refused.error))
}

fn reap(queue: &mut dyn Queue, wait_for: usize) -> Result<Vec<Completion>> {
    let mut done = Vec::new();
    queue.reap(wait_for, &mut done)?;
    if done.is_empty() && wait_for > 0 {
        return Err(LabError::new(LabErrorKind::System, "the device answered nothing"));
    }
    Ok(done)
}

//! The closed loop: a worker requests the next block, or batch, when the last has arrived. Contains batched reads,
//! overwrites and syncs; reads waiting for each block use `read_loops`.
//!
//! Kept true by: blocks are checked while their reads are timed; overwritten blocks are read back past the page cache
//! after the clock has stopped, and compared byte by byte.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::batches::{Ring, Setup};
use super::blocking::{Source, Way, Writer};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::{self, BLOCK_BYTES};
use crate::measure::Worker;
use crate::paths::shown;
use crate::read_loops::order_seed;
use crate::read_loops::overwrite::index_at;
use crate::read_loops::sync::Means;
use crate::record::TrialSpec;
use crate::workload::{Layout, Order, SAMPLE_COUNT, first_word};

/// Number of blocks whose content is checked before any block is overwritten.
const BLOCKS_BEFORE: u32 = 64;
/// Number of the first overwritten blocks that are read back, and also of the latest.
const READ_BACK: usize = SAMPLE_COUNT as usize;

/// How a method overwrites blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overwrite {
    pub(super) way: Way,
    /// Whether each write is durable by itself (RWF_DSYNC), so that no sync follows.
    pub(super) durable: bool,
    /// Number of writes between two syncs.
    pub(super) writes_per_sync: u64,
    /// Seed of the written content.
    pub(super) content_seed: u64,
    /// Whether each write is made durable before the next: `op` is then the time of write and sync together.
    pub(super) one_each: bool,
}

/// Counts a block, and the result of its check where its content could be checked.
pub(super) fn note(worker: &mut Worker<'_>, right: Option<bool>) {
    worker.done(1, BLOCK_BYTES as u64);
    if let Some(right) = right {
        worker.verified(right);
    }
}

/// Endless sequence of block positions in the trial's seeded random order.
pub(super) struct Positions<'a> {
    layout: &'a Layout,
    order: Order,
}

impl<'a> Positions<'a> {
    pub(super) fn of(spec: &TrialSpec, layout: &'a Layout) -> Self {
        Self { layout, order: Order::random(layout, order_seed(spec), 0) }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.layout.place(self.order.next_block()).offset_bytes
    }
}

/// Reads batch after batch through a ring. Returns the features that the kernel refused for the ring.
///
/// # Errors
/// The error of opening or reading.
pub(super) fn read_batches(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    setup: Setup,
) -> Result<Option<String>> {
    let depth = spec.params.depth;
    let mut ring = Ring::open(layout, depth, setup, false, false)?;
    let mut positions = Positions::of(spec, layout);
    let mut batch = vec![0; depth as usize];
    worker.start();
    while worker.running() {
        batch.fill_with(|| positions.next());
        let elapsed = ring.read(&batch, |offset, block| note(worker, layout.is_right(block, offset)))?;
        worker.latency_of_each("op", elapsed, u64::from(depth));
    }
    sum_sample_by_ring(worker, spec, &mut ring)?;
    Ok(ring.missing())
}

/// Reads, through a ring and after the measured time, the same sample of blocks that every method reads; their checksum
/// shows that all methods read the same data.
///
/// # Errors
/// The error of reading.
pub(super) fn sum_sample_by_ring(worker: &mut Worker<'_>, spec: &TrialSpec, ring: &mut Ring) -> Result<()> {
    for place in Layout::sample(&spec.target, spec.seed) {
        ring.read(&[place.offset_bytes], |_, block| worker.checksum(first_word(block)))?;
    }
    Ok(())
}

/// Overwrites one block at a time. Returns the number of overwrites.
///
/// # Errors
/// The error of opening, writing or syncing; `Damaged` when the file has other content than expected.
pub(super) fn overwrite(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    how: Overwrite,
    cancel: &AtomicBool,
) -> Result<u64> {
    let mut history = History::of(spec, layout, how.content_seed)?;
    let mut writer = Writer::open(layout, how.way, how.content_seed)?;
    let mut positions = Positions::of(spec, layout);
    worker.start();
    let mut written = 0;
    while worker.running() {
        let offset = positions.next();
        writer.prepare(offset);
        let began = Instant::now();
        writer.write(offset, how.durable)?;
        let wrote = began.elapsed();
        written += 1;
        if how.durable || written % how.writes_per_sync != 0 {
            worker.latency("op", wrote);
            if how.one_each {
                worker.latency("sync", wrote);
            }
        } else {
            writer.sync(how.one_each.then_some(offset))?;
            let both = began.elapsed();
            worker.latency("op", if how.one_each { both } else { wrote });
            worker.latency("sync", both - wrote);
        }
        worker.done(1, BLOCK_BYTES as u64);
        history.note(offset);
    }
    writer.sync(None)?;
    history.read_back(worker, spec, layout, cancel)?;
    Ok(written)
}

/// Overwrites batch after batch through a ring. Returns the number of overwrites, and the features that the kernel
/// refused for the ring.
///
/// # Errors
/// As [`overwrite`].
pub(super) fn overwrite_batches(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    how: Overwrite,
    cancel: &AtomicBool,
) -> Result<(u64, Option<String>)> {
    let depth = spec.params.depth;
    let mut history = History::of(spec, layout, how.content_seed)?;
    let mut ring = Ring::open(layout, depth, Setup::of(None)?, true, false)?;
    let mut positions = Positions::of(spec, layout);
    let mut batch = vec![0; depth as usize];
    worker.start();
    let (mut written, mut synced) = (0, 0);
    while worker.running() {
        batch.fill_with(|| positions.next());
        let elapsed = ring.write(&batch, how.content_seed, how.durable)?;
        worker.latency_of_each("op", elapsed, u64::from(depth));
        batch.iter().for_each(|offset| history.note(*offset));
        written += u64::from(depth);
        if !how.durable && written - synced >= how.writes_per_sync {
            let began = Instant::now();
            ring.sync()?;
            worker.latency("sync", began.elapsed());
            synced = written;
        }
        worker.done(u64::from(depth), u64::from(depth) * BLOCK_BYTES as u64);
    }
    ring.sync()?;
    history.read_back(worker, spec, layout, cancel)?;
    Ok((written, ring.missing()))
}

/// Measures the sync of a file without changes, which is the least time that any sync takes.
///
/// # Errors
/// The error of opening or syncing.
pub(super) fn sync_clean(worker: &mut Worker<'_>, layout: &Layout, how: Overwrite) -> Result<()> {
    let writer = Writer::open(layout, how.way, how.content_seed)?;
    worker.start();
    while worker.running() {
        let began = Instant::now();
        writer.sync(None)?;
        let elapsed = began.elapsed();
        worker.latency("op", elapsed);
        worker.latency("sync", elapsed);
        worker.done(1, 0);
    }
    Ok(())
}

/// The overwritten positions to be read back: the first and the latest.
struct History {
    noted: Vec<u64>,
    count: usize,
    reader: Source,
    content_seed: u64,
}

impl History {
    /// Starts the record of the writes of a trial, which is checked against the file at its end. First reads the blocks
    /// that will be overwritten first and checks that each has the expected content.
    fn of(spec: &TrialSpec, layout: &Layout, content_seed: u64) -> Result<Self> {
        let reader = match Source::open(layout, Way::Calls(Means::Direct)) {
            // Only a file system in memory refuses direct I/O; there a buffered read shows the stored bytes.
            Err(error) if error.kind() == LabErrorKind::Unsupported => {
                Source::open(layout, Way::Calls(Means::BufferedRandom))?
            }
            other => other?,
        };
        let mut history = Self { noted: Vec::new(), count: 0, reader, content_seed };
        let mut positions = Positions::of(spec, layout);
        for _ in 0..BLOCKS_BEFORE {
            let offset = positions.next();
            if !history.is_whole(layout, offset)? {
                let message = format!(
                    "{} is not overwritten: the block at {offset} has wrong content; remove the file, the lab makes it anew",
                    shown(&layout.paths[0])
                );
                return Err(LabError::new(LabErrorKind::Damaged, message));
            }
        }
        Ok(history)
    }

    /// Whether every byte of the block at an offset is as expected.
    fn is_whole(&mut self, layout: &Layout, offset_bytes: u64) -> Result<bool> {
        let block = self.reader.block(layout, offset_bytes)?;
        Ok(content::check_block_fully(block, self.content_seed, index_at(offset_bytes)))
    }

    fn note(&mut self, offset_bytes: u64) {
        if self.noted.len() < 2 * READ_BACK {
            self.noted.push(offset_bytes);
        } else {
            self.noted[READ_BACK + self.count % READ_BACK] = offset_bytes;
        }
        self.count += 1;
    }

    /// Compares the overwritten blocks with their expected content, and sums the sample of blocks that all methods sum.
    fn read_back(
        &mut self,
        worker: &mut Worker<'_>,
        spec: &TrialSpec,
        layout: &Layout,
        cancel: &AtomicBool,
    ) -> Result<()> {
        for offset in std::mem::take(&mut self.noted) {
            if cancel.load(Ordering::Relaxed) {
                return Ok(());
            }
            let whole = self.is_whole(layout, offset)?;
            worker.verified(whole);
        }
        for place in Layout::sample(&spec.target, spec.seed) {
            worker.checksum(first_word(self.reader.block(layout, place.offset_bytes)?));
        }
        Ok(())
    }
}

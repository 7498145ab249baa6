//! The closed loop: the next block, or batch, is asked for when the last has come back. Reads, overwrites, syncs.
//!
//! Kept true by: what a read got is checked while it is timed; what was overwritten is read back past the page cache after the
//! clock has stopped, and compared byte by byte.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::batches::{Ring, Setup};
use super::blocking::{Blocking, Way};
use super::place::{PROOF_BLOCKS, Place, Seen, sum_of};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::{self, BLOCK_BYTES};
use crate::measure::Worker;

/// Blocks looked at before anything is overwritten.
const BLOCKS_BEFORE: u32 = 64;

/// Whether readers go on: while the cell lasts, and after it until the proof's blocks are through, unless the user stops it.
pub(super) struct Go<'a> {
    pub(super) cancel: &'a AtomicBool,
}

impl Go<'_> {
    pub(super) fn on(&self, worker: &Worker<'_>, ordinal: u64) -> bool {
        worker.running() || ordinal < PROOF_BLOCKS && !self.cancelled()
    }

    pub(super) fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// How a contender overwrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overwrite {
    pub(super) way: Way,
    /// Each write is durable by itself (RWF_DSYNC): nothing is left to sync.
    pub(super) durable: bool,
    /// Writes between two syncs.
    pub(super) writes_per_sync: u64,
    /// Whether the figure is a single write made durable: `op` then is both together.
    pub(super) one_each: bool,
}

/// Writes down a block that was read.
pub(super) fn note(worker: &mut Worker<'_>, seen: Seen) {
    worker.done(1, BLOCK_BYTES as u64);
    if let Some(right) = seen.right {
        worker.verified(right);
    }
    worker.checksum(seen.sum);
}

/// Reads one block at a time.
///
/// # Errors
/// What opening or reading says.
pub(super) fn read(worker: &mut Worker<'_>, mut place: Place, way: Way, go: &Go<'_>) -> Result<()> {
    let mut source = Blocking::open(&place, way, false)?;
    worker.start();
    let mut ordinal = 0;
    while go.on(worker, ordinal) {
        let index = place.next();
        let began = Instant::now();
        let seen = source.read(index, ordinal)?;
        worker.latency("op", began.elapsed());
        note(worker, seen);
        ordinal += 1;
    }
    Ok(())
}

/// Reads batch after batch through a ring. Answers what the ring had to do without.
///
/// # Errors
/// What opening or reading says.
pub(super) fn read_batches(
    worker: &mut Worker<'_>,
    mut place: Place,
    depth: u32,
    setup: Setup,
    go: &Go<'_>,
) -> Result<Option<String>> {
    let mut ring = Ring::open(&place, depth, setup, false, false)?;
    let mut batch = vec![0; depth as usize];
    worker.start();
    let mut ordinal = 0;
    while go.on(worker, ordinal) {
        batch.fill_with(|| place.next());
        let elapsed = ring.read(&batch, ordinal, |seen| note(worker, seen))?;
        for _ in &batch {
            worker.latency("op", elapsed);
        }
        ordinal += u64::from(depth);
    }
    Ok(ring.missing())
}

/// Overwrites one block at a time. Answers how many.
///
/// # Errors
/// What checking, opening, writing or syncing says.
pub(super) fn overwrite(
    worker: &mut Worker<'_>,
    mut place: Place,
    how: Overwrite,
    content_seed: u64,
    go: &Go<'_>,
) -> Result<u64> {
    let mut history = History::of(&place, content_seed)?;
    let mut target = Blocking::open(&place, how.way, true)?;
    worker.start();
    let mut written = 0;
    while worker.running() {
        let index = place.next();
        target.prepare(index, content_seed);
        let began = Instant::now();
        target.write(index, how.durable)?;
        let wrote = began.elapsed();
        written += 1;
        if how.durable || written % how.writes_per_sync != 0 {
            worker.latency("op", wrote);
            if how.one_each {
                worker.latency("sync", wrote);
            }
        } else {
            target.sync(how.one_each.then_some(index))?;
            let both = began.elapsed();
            worker.latency("op", if how.one_each { both } else { wrote });
            worker.latency("sync", both - wrote);
        }
        worker.done(1, BLOCK_BYTES as u64);
        history.note(index);
    }
    target.sync(None)?;
    history.read_back(worker, &mut place, go)?;
    Ok(written)
}

/// Overwrites batch after batch through a ring. Answers how many, and what the ring had to do without.
///
/// # Errors
/// As [`overwrite`].
pub(super) fn overwrite_batches(
    worker: &mut Worker<'_>,
    mut place: Place,
    depth: u32,
    how: Overwrite,
    content_seed: u64,
    go: &Go<'_>,
) -> Result<(u64, Option<String>)> {
    let mut history = History::of(&place, content_seed)?;
    let mut ring = Ring::open(&place, depth, Setup::of(None)?, true, false)?;
    let mut batch = vec![0; depth as usize];
    worker.start();
    let (mut written, mut synced) = (0, 0);
    while worker.running() {
        batch.fill_with(|| place.next());
        let elapsed = ring.write(&batch, content_seed, how.durable)?;
        for index in &batch {
            worker.latency("op", elapsed);
            history.note(*index);
        }
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
    history.read_back(worker, &mut place, go)?;
    Ok((written, ring.missing()))
}

/// Syncs a file in which nothing was changed: the floor under all other syncs.
///
/// # Errors
/// What checking, opening or syncing says.
pub(super) fn sync_clean(worker: &mut Worker<'_>, place: &Place) -> Result<()> {
    let target = Blocking::open(place, Way::Buffered, true)?;
    worker.start();
    while worker.running() {
        let began = Instant::now();
        target.sync(None)?;
        let elapsed = began.elapsed();
        worker.latency("op", elapsed);
        worker.latency("sync", elapsed);
        worker.done(1, 0);
    }
    Ok(())
}

/// What was overwritten, as far as it is read back: the first blocks and the latest.
struct History {
    first: Vec<u64>,
    latest: Vec<u64>,
    noted: usize,
    reader: Blocking,
    content_seed: u64,
}

impl History {
    /// Also makes sure, by what the device holds, that the first blocks to be overwritten are what they should be.
    fn of(place: &Place, content_seed: u64) -> Result<Self> {
        let reader = match Blocking::open(place, Way::Direct, false) {
            // Only a file system in memory refuses; what it has is what it holds.
            Err(error) if error.kind() == LabErrorKind::Unsupported => Blocking::open(place, Way::Buffered, false)?,
            other => other?,
        };
        let mut history = Self { first: Vec::new(), latest: Vec::new(), noted: 0, reader, content_seed };
        let mut order = place.clone();
        for _ in 0..BLOCKS_BEFORE {
            let index = order.next();
            if !content::check_block_fully(history.reader.fetch(index)?, content_seed, index) {
                let message = format!(
                    "{} is not overwritten: block {index} is not what it must be; remove the file, the lab makes it anew",
                    place.path.display()
                );
                return Err(LabError::new(LabErrorKind::Damaged, message));
            }
        }
        Ok(history)
    }

    fn note(&mut self, index: u64) {
        const KEPT: usize = PROOF_BLOCKS as usize;
        if self.first.len() < KEPT {
            self.first.push(index);
        } else if self.latest.len() < KEPT {
            self.latest.push(index);
        } else {
            self.latest[self.noted % KEPT] = index;
        }
        self.noted += 1;
    }

    /// Compares what was written, and sums up the first blocks of the order; where a slow device did not get so far, the rest of
    /// them are only read.
    fn read_back(&mut self, worker: &mut Worker<'_>, place: &mut Place, go: &Go<'_>) -> Result<()> {
        if go.cancelled() {
            return Ok(());
        }
        while self.first.len() < PROOF_BLOCKS as usize {
            self.first.push(place.next());
        }
        for (place, index) in self.first.iter().chain(&self.latest).enumerate() {
            let block = self.reader.fetch(*index)?;
            worker.verified(content::check_block_fully(block, self.content_seed, *index));
            if place < self.first.len() {
                worker.checksum(sum_of(block));
            }
        }
        Ok(())
    }
}

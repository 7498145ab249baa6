//! The works that write: bulk load and random load, batches, commits of one writer, opening after a crash, how files grow; and what the raw device
//! does beside them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nofault::db::Pace;
use nofault::{Batch, Durability};
use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{DirectIo, Disk, FileOptions, Queue, QueueOptions};
use nofault_io::folder::{Backend, open_disk};

use super::trial::{State, Trial, copy_files, go_on, order, rewrite};
use super::works::{GROWTH, SCAN_REWRITTEN, SECONDS_PER_LOG};
use super::{UPDATES, number};
use crate::error::{LabError, LabErrorKind, Result};
use crate::format::bytes as shown;
use crate::measure::entries::{Data, mix};
use crate::measure::stores::{Engine, Start, Store, fill_counted};
use crate::measure::{Work, Worker};
use crate::methods::NOFAULT;
use crate::record::Outcome;

/// Number of entries in a batch of puts.
const BATCH: u64 = 1000;
/// Number of random entries that are read back after a load or after batches.
const READ_BACK: u64 = 1000;
/// Names of the batches' figures: their number, and the seconds of all of them.
const BATCHES: &str = "batches";
const BATCHES_S: &str = "batches_s";
/// Bytes of log for which the project's aim for opening is stated.
const LOG_UNIT_BYTES: f64 = (256_u64 << 20) as f64;

/// Measures filling an empty store; all entries are durable at the end.
pub(super) fn load(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.open(&trial.place.clear()?, Start::New)?;
    let (filled, data) = (&*store, trial.data);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| fill_counted(worker, filled, data));
    let mut outcome = trial.measure(vec![work])?;
    trial.describe(&*store, &mut outcome)?;
    if outcome.partial {
        return Ok(outcome);
    }
    read_back(&*store, data, order(trial.spec), &mut outcome)?;
    drop(store);
    let mut bytes = 0;
    if trial.spec.method == NOFAULT {
        bytes = Engine::open(&trial.place.store(), &trial.settings()?)?.used_bytes();
        note_used(trial, bytes, &mut outcome);
    }
    trial.place.keep(&trial.content(&trial.spec.method, State::Loaded)?, bytes)?;
    Ok(outcome)
}

/// Adds the sizes of the engine's files to the result; the ratio is of the bytes in use.
fn note_used(trial: &Trial<'_, '_>, used_bytes: u64, outcome: &mut Outcome) {
    outcome.figures.insert("space_ratio".into(), used_bytes as f64 / trial.data.user_bytes() as f64);
    let files = ["data", "log"].map(|name| format!("{name} {}", shown(trial.place.bytes_on_disk(name))));
    let user = shown(trial.data.user_bytes());
    outcome.texts.insert("files".into(), format!("{} on disk, for {user} of keys and values", files.join(", ")));
}

/// Checks [`READ_BACK`] random entries, after the clock has stopped.
pub(super) fn read_back(store: &dyn Store, data: Data, seed: u64, outcome: &mut Outcome) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut reader = store.reader()?;
    for _ in 0..READ_BACK {
        let number = chance.u64(0..data.count);
        reader.get(&data.key(number), &mut |value| {
            outcome.checks.verified += 1;
            outcome.checks.wrong += u64::from(!value.is_some_and(|value| data.is_right(number, value)));
            Ok(())
        })?;
    }
    Ok(())
}

/// Measures random puts in durable batches.
pub(super) fn put_batch(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.loaded_store()?;
    trial.place.spoil()?;
    let (written, data, seed) = (&*store, trial.data, order(trial.spec));
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let mut chance = fastrand::Rng::with_seed(seed);
        worker.start();
        loop {
            let batch: Vec<_> = (0..BATCH).map(|_| data.changed(chance.u64(0..data.count), chance.u64(..))).collect();
            let started = Instant::now();
            written.write(&batch, true)?;
            // All entries of a batch become durable together at its end.
            worker.latency_of_each("op", started.elapsed(), BATCH);
            worker.done(BATCH, BATCH * data.entry_bytes());
            worker.figure(BATCHES, 1.0);
            if !worker.running() {
                worker.figure(BATCHES_S, worker.started().elapsed().as_secs_f64());
                return Ok(());
            }
        }
    });
    let mut outcome = trial.measure(vec![work])?;
    // A batch may take a large part of the trial, so the last batch counts, with all of its time.
    let figure = |name: &str| outcome.figures.get(name).copied().unwrap_or(0.0);
    let (batches, elapsed_s) = (figure(BATCHES) as u64, figure(BATCHES_S));
    outcome.steady = None;
    outcome.elapsed_s = elapsed_s;
    (outcome.ops, outcome.bytes) = (batches * BATCH, batches * BATCH * data.entry_bytes());
    read_back(&*store, data, seed, &mut outcome)?;
    trial.describe(&*store, &mut outcome)?;
    Ok(outcome)
}

/// Measures durable puts of one thread. Afterwards all entries are read back.
pub(super) fn commits(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let engine = trial.engine()?;
    trial.place.spoil()?;
    let (table, data) = (&engine.table, trial.data);
    let groups = engine.db.stats().log.groups_written;
    let mut chance = fastrand::Rng::with_seed(order(trial.spec));
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            let (key, value) = data.changed(chance.u64(0..data.count), chance.u64(..));
            let started = Instant::now();
            table.put(key, value)?;
            worker.latency("op", started.elapsed());
            worker.done(1, data.entry_bytes());
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    finish_commits(trial, &engine, groups, &mut outcome)?;
    Ok(outcome)
}

/// Reads all entries back after commits, and adds the mean number of commits in each write of the log to the result.
pub(super) fn finish_commits(
    trial: &Trial<'_, '_>,
    engine: &Engine,
    groups_before: u64,
    outcome: &mut Outcome,
) -> Result<()> {
    let groups = engine.db.stats().log.groups_written - groups_before;
    outcome.figures.insert("commits_per_log_write".into(), outcome.ops as f64 / groups.max(1) as f64);
    for number in 0..trial.data.count {
        let value = engine.table.get(trial.data.key(number))?;
        outcome.checks.verified += 1;
        outcome.checks.wrong += u64::from(!value.is_some_and(|value| trial.data.is_right(number, &value)));
    }
    trial.describe(engine, outcome)
}

/// Makes two checkpoints: the first refers to the new blocks, and once the second is durable the old blocks are free.
fn free_old_blocks(engine: &Engine) -> Result<()> {
    engine.db.checkpoint()?;
    Ok(engine.db.checkpoint()?)
}

/// Measures opening a copy of a crashed database, with a cache holding all of its data.
pub(super) fn reopen(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let (settings, data) = (trial.settings()?, trial.data);
    let log_bytes = trial.have(State::Crashed)?;
    trial.go_on()?;
    let copy = trial.place.free("copy")?;
    copy_files(&trial.place.store(), &copy)?;
    let mut opened = None;
    let (to, path, settings) = (&mut opened, &copy, &settings);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        *to = Some(Engine::open(path, settings)?);
        worker.done(1, log_bytes);
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    let Some(engine) = opened else {
        return Err(LabError::new(LabErrorKind::System, "engine: the database was not opened"));
    };
    for number in (0..data.count).step_by(17) {
        let value = engine.table.get(data.key(number))?;
        outcome.checks.verified += 1;
        outcome.checks.wrong += u64::from(!value.is_some_and(|value| data.is_right(number, &value)));
    }
    outcome.figures.insert(SECONDS_PER_LOG.into(), outcome.elapsed_s * LOG_UNIT_BYTES / log_bytes.max(1) as f64);
    outcome.figures.insert("live_log_bytes".into(), log_bytes as f64);
    trial.describe(&engine, &mut outcome)?;
    drop(engine);
    trial.place.free("copy")?;
    Ok(outcome)
}

/// Measures the growth of a database under updates: while a reader is held, or without a reader.
pub(super) fn long_reader(trial: &mut Trial<'_, '_>, held: bool) -> Result<Outcome> {
    let engine = trial.engine()?;
    trial.place.spoil()?;
    let (data, cancel, updates) = (trial.data, trial.context.cancel, number(trial.spec, UPDATES)?);
    let before = engine.used_bytes();
    let reader = held.then(|| engine.db.snapshot());
    let engine_ref = &engine;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        rewrite(engine_ref, data, updates, data.seed, cancel)?;
        worker.done(updates, updates * data.entry_bytes());
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    free_old_blocks(&engine)?;
    let (after, kept) = (engine.used_bytes(), engine.db.stats().pool.snapshot_bytes);
    // An old image lies in a block, in a frame that may be evicted, or in both: it counts as one image all the same.
    let grown = (after as f64 - before as f64).max(kept as f64) / before as f64;
    outcome.figures.insert(GROWTH.into(), grown.max(0.0));
    let sizes = [before, after, kept].map(shown);
    let text = format!("{} before, {} after; old images kept, on disk or in memory: {}", sizes[0], sizes[1], sizes[2]);
    outcome.texts.insert("files".into(), text);
    trial.describe(&engine, &mut outcome)?;
    let Some(reader) = reader else { return Ok(outcome) };
    let mut value = Vec::new();
    for number in 0..data.count {
        data.fill(number, 0, &mut value);
        outcome.checks.verified += 1;
        outcome.checks.wrong += u64::from(reader.get(&engine.table, data.key(number))?.as_ref() != Some(&value));
    }
    Ok(outcome)
}

// Works that measure how large the files are: after a bulk load, after updates, after a load in random order, and after
// most entries were deleted.

/// One entry of so many stays after the deletes.
const STAYING: u64 = 10;

/// Adds the size of all files of a store to the result; the ratio is to `user_bytes` of keys and values.
fn note_files(trial: &Trial<'_, '_>, user_bytes: u64, outcome: &mut Outcome) -> Result<()> {
    let bytes = trial.place.all_bytes_on_disk()?;
    outcome.figures.insert("space_ratio".into(), bytes as f64 / user_bytes.max(1) as f64);
    let text = format!("{} on disk, for {} of keys and values", shown(bytes), shown(user_bytes));
    outcome.texts.insert("files".into(), text);
    Ok(())
}

/// Measures the space that the database uses after as many random updates as it has entries.
pub(super) fn updated(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let engine = trial.engine()?;
    trial.place.spoil()?;
    let (engine_ref, data, cancel) = (&engine, trial.data, trial.context.cancel);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        rewrite(engine_ref, data, data.count, data.seed, cancel)?;
        worker.done(data.count, data.user_bytes());
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    free_old_blocks(&engine)?;
    note_used(trial, engine.used_bytes(), &mut outcome);
    read_back(&engine, data, order(trial.spec), &mut outcome)?;
    trial.describe(&engine, &mut outcome)?;
    Ok(outcome)
}

/// Measures the files of a store loaded in random order, once it is closed. The engine is told to make its file
/// short, which it would do by itself some ten seconds later.
pub(super) fn random_load(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let folder = trial.place.clear()?;
    if trial.spec.method == NOFAULT {
        let engine = Engine::create(&folder, &trial.settings()?)?;
        let mut outcome = load_random(trial, &engine, SyncTime::Later)?;
        engine.db.shrink(Pace::Full, |_| true)?;
        finish(trial, &engine, &mut outcome)?;
        close(engine)?;
        note_files(trial, trial.data.user_bytes(), &mut outcome)?;
        return Ok(outcome);
    }
    let store = trial.open(&folder, Start::New)?;
    let mut outcome = load_random(trial, &*store, SyncTime::Later)?;
    finish(trial, &*store, &mut outcome)?;
    drop(store);
    note_files(trial, trial.data.user_bytes(), &mut outcome)?;
    Ok(outcome)
}

fn finish(trial: &Trial<'_, '_>, store: &dyn Store, outcome: &mut Outcome) -> Result<()> {
    store.settle()?;
    read_back(store, trial.data, order(trial.spec), outcome)?;
    trial.describe(store, outcome)
}

/// Measures the engine's files after nine tenths of its entries were deleted in random order.
pub(super) fn deleted(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let engine = trial.engine()?;
    trial.place.spoil()?;
    let (data, cancel, engine_ref) = (trial.data, trial.context.cancel, &engine);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let mut numbers = in_random_order(data);
        numbers.retain(|number| number % STAYING != 0);
        worker.start();
        for part in numbers.chunks(BATCH as usize) {
            go_on(cancel)?;
            let mut batch = Batch::new();
            for number in part {
                batch.delete(&engine_ref.table, data.key(*number));
            }
            engine_ref.db.write(batch, Durability::Deferred)?;
            worker.done(part.len() as u64, part.len() as u64 * data.entry_bytes());
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    engine.db.shrink(Pace::Full, |_| true)?;
    let left = data.count.div_ceil(STAYING);
    for number in 0..data.count {
        let value = engine.table.get(data.key(number))?;
        let is_right = match &value {
            Some(value) => number % STAYING == 0 && data.is_right(number, value),
            None => number % STAYING != 0,
        };
        outcome.checks.verified += 1;
        outcome.checks.wrong += u64::from(!is_right);
    }
    trial.describe(&engine, &mut outcome)?;
    close(engine)?;
    note_files(trial, left * data.entry_bytes(), &mut outcome)?;
    Ok(outcome)
}

fn close(engine: Engine) -> Result<()> {
    let Engine { db, table } = engine;
    drop(table);
    Ok(db.close()?)
}

// Loads a store in random order, a deferred commit for each thousand entries, as the timed work of a trial.

/// When the commits of a load become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncTime {
    /// Within the timed work, at its end.
    AtEnd,
    /// Later, by the caller.
    Later,
}

/// Measures a load in random order that ends when all entries are durable.
pub(super) fn durable(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.open(&trial.place.clear()?, Start::New)?;
    let mut outcome = load_random(trial, &*store, SyncTime::AtEnd)?;
    read_back(&*store, trial.data, order(trial.spec), &mut outcome)?;
    trial.describe(&*store, &mut outcome)?;
    Ok(outcome)
}

/// Loads all entries in random order, as the timed work of a trial.
fn load_random(trial: &mut Trial<'_, '_>, store: &dyn Store, synced: SyncTime) -> Result<Outcome> {
    let (data, cancel) = (trial.data, trial.context.cancel);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let numbers = in_random_order(data);
        worker.start();
        for part in numbers.chunks(BATCH as usize) {
            go_on(cancel)?;
            let batch: Vec<_> = part.iter().map(|number| data.changed(*number, 0)).collect();
            store.write(&batch, false)?;
            worker.done(part.len() as u64, part.len() as u64 * data.entry_bytes());
        }
        if synced == SyncTime::AtEnd { store.sync() } else { Ok(()) }
    });
    trial.measure(vec![work])
}

/// Returns the numbers of all entries in random order.
fn in_random_order(data: Data) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..data.count).collect();
    fastrand::Rng::with_seed(data.seed).shuffle(&mut numbers);
    numbers
}

// Measures the raw device as a baseline: reads and writes through a disk of `nofault-io`, in the same run as the
// engine.

/// Bytes of a random read, and of a durable overwrite.
const BLOCK_BYTES: usize = 4096;
/// Bytes of the file whose blocks the durable overwrites change in turn.
const OVERWRITTEN_BYTES: u64 = 16 << 20;

/// Measures random reads of 4 KiB in the used part of the engine's file. With `batches`, the next reads are submitted
/// when all of a batch have arrived: the best rate for a caller waiting for whole batches. Otherwise the row's
/// number of reads is always in flight.
pub(super) fn random_reads(trial: &mut Trial<'_, '_>, batches: bool) -> Result<Outcome> {
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

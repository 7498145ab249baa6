//! Works that write: bulk load, batches, commits of one writer, opening after a crash, and how files grow.

use std::time::Instant;

use super::crash::copy_files;
use super::place::State;
use super::trial::{Trial, order};
use super::trials::{UPDATES, number};
use super::updates::rewrite;
use super::works::{GROWTH, SECONDS_PER_LOG};
use crate::entries::Data;
use crate::error::{LabError, LabErrorKind, Result};
use crate::format::bytes as shown;
use crate::measure::{Work, Worker};
use crate::methods::NOFAULT;
use crate::record::Outcome;
use crate::stores::{Engine, Start, Store, fill_counted};

/// Number of entries in a batch of puts.
pub(super) const BATCH: u64 = 1000;
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
pub(super) fn note_used(trial: &Trial<'_, '_>, used_bytes: u64, outcome: &mut Outcome) {
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
pub(super) fn free_old_blocks(engine: &Engine) -> Result<()> {
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

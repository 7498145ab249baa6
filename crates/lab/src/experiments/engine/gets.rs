//! Works in which blocking threads get single entries out of core: uniform or zipfian, of values of any size, alone or alongside
//! durable puts. The same for every store.
//!
//! Kept true by: before the clock starts each store has answered gets in the order of the trial, for as many bytes as twice the
//! memory that it may use ([`warm`]). So no store begins with an empty cache, and each has the entries in it that it chose itself.

use std::time::{Duration, Instant};

use super::trial::{Trial, WARM_TIME_MAX, note_reads, order};
use super::trials::{CACHE, number};
use super::updates::go_on;
use super::works::{GET_ZIPF, READ, WRITE};
use super::writes::read_back;
use crate::entries::{Data, Zipfian, mix};
use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::{Work, Worker};
use crate::methods::NOFAULT;
use crate::record::Outcome;
use crate::stores::Store;

/// Bytes of the smallest unit that a store reads from the disk.
const PAGE_BYTES: u64 = 4096;
/// Number of threads that make the gets before the clock starts.
const WARM_THREADS: u64 = 64;
/// Number of gets between two looks at the clock before the trial's own clock starts.
const WARM_ROUND: u64 = 64;
/// One operation of so many of `read-write` is a durable put.
const WRITE_EVERY: u64 = 10;

/// The order of the keys that a thread asks for.
enum Keys {
    Uniform(fastrand::Rng),
    /// Popular keys are spread over the table, not side by side.
    Zipfian(Zipfian),
}

impl Keys {
    /// Makes the order of one thread, from the zipfian distribution over all entries where there is one.
    fn of(zipfian: Option<&Zipfian>, seed: u64) -> Self {
        match zipfian {
            Some(zipfian) => Self::Zipfian(zipfian.reseeded(seed)),
            None => Self::Uniform(fastrand::Rng::with_seed(seed)),
        }
    }

    /// Draws the number of the next entry.
    fn next(&mut self, data: Data) -> u64 {
        match self {
            Self::Uniform(chance) => chance.u64(0..data.count),
            Self::Zipfian(zipfian) => mix(zipfian.next()) % data.count,
        }
    }
}

/// Measures gets by the row's number of threads, each of one entry at a time. Each get is timed with the check of its value,
/// which is where a store reading through a map reads it.
pub(super) fn threads(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let engine = (trial.spec.method == NOFAULT).then(|| trial.engine()).transpose()?;
    let peer = if engine.is_none() { Some(trial.loaded_store()?) } else { None };
    let store: &dyn Store = match (&engine, &peer) {
        (Some(engine), _) => engine,
        (None, Some(peer)) => &**peer,
        (None, None) => return Err(LabError::new(LabErrorKind::System, "engine: no store was opened")),
    };
    let (data, seed) = (trial.data, order(trial.spec));
    let zipfian = trial.spec.variant.starts_with(GET_ZIPF).then(|| Zipfian::new(data.count, 0));
    let zipfian = zipfian.as_ref();
    warm(trial, store, zipfian)?;
    let misses = engine.as_ref().map_or(0, |engine| engine.db.stats().pool.misses);
    let work = |thread: u32| -> Work<'_> {
        let keys = Keys::of(zipfian, seed ^ mix(u64::from(thread)));
        Box::new(move |worker: &mut Worker<'_>| gets(worker, store, data, keys))
    };
    let works = (0..trial.spec.params.threads.max(1)).map(work).collect();
    let mut outcome = trial.measure(works)?;
    if let Some(engine) = &engine {
        note_reads(engine, misses, &mut outcome);
    }
    trial.describe(store, &mut outcome)?;
    Ok(outcome)
}

/// Runs one thread's gets.
fn gets(worker: &mut Worker<'_>, store: &dyn Store, data: Data, mut keys: Keys) -> Result<()> {
    let mut reader = store.reader()?;
    worker.start();
    while worker.running() {
        let (number, started, mut right) = (keys.next(data), Instant::now(), false);
        reader.get(&data.key(number), &mut |value| {
            right = value.is_some_and(|value| data.is_right(number, value));
            Ok(())
        })?;
        worker.latency("op", started.elapsed());
        worker.verified(right);
        worker.done(1, data.entry_bytes());
    }
    Ok(())
}

/// Measures threads of which each makes nine gets for each durable put. A get opens a view of the newest commit.
pub(super) fn beside_puts(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.loaded_store()?;
    let (store, data, seed) = (&*store, trial.data, order(trial.spec));
    warm(trial, store, None)?;
    trial.place.spoil()?;
    let work = |thread: u32| -> Work<'_> {
        Box::new(move |worker: &mut Worker<'_>| {
            let mut chance = fastrand::Rng::with_seed(seed ^ mix(u64::from(thread)));
            worker.start();
            while worker.running() {
                let number = chance.u64(0..data.count);
                if chance.u64(0..WRITE_EVERY) == 0 {
                    let entry = [data.changed(number, chance.u64(..))];
                    let started = Instant::now();
                    store.write(&entry, true)?;
                    note(worker, WRITE, started.elapsed());
                } else {
                    let (started, mut right) = (Instant::now(), false);
                    store.reader()?.get(&data.key(number), &mut |value| {
                        right = value.is_some_and(|value| data.is_right(number, value));
                        Ok(())
                    })?;
                    note(worker, READ, started.elapsed());
                    worker.verified(right);
                }
                worker.done(1, data.entry_bytes());
            }
            Ok(())
        })
    };
    let works = (0..trial.spec.params.threads.max(1)).map(work).collect();
    let mut outcome = trial.measure(works)?;
    read_back(store, data, seed, &mut outcome)?;
    trial.describe(store, &mut outcome)?;
    Ok(outcome)
}

/// Records the latency of an operation: among all, and among operations of its kind.
fn note(worker: &mut Worker<'_>, kind: &'static str, elapsed: Duration) {
    worker.latency("op", elapsed);
    worker.latency(kind, elapsed);
}

/// Makes gets in the order of the trial, by many threads and unmeasured, until they have read twice as many bytes as the store
/// has memory, or twice as many entries as there are, or [`WARM_TIME_MAX`] is over.
fn warm(trial: &Trial<'_, '_>, store: &dyn Store, zipfian: Option<&Zipfian>) -> Result<()> {
    let data = trial.data;
    let memory_bytes = trial.spec.memory.bytes.max(number(trial.spec, CACHE)?);
    let gets = (memory_bytes * 2 / data.entry_bytes().max(PAGE_BYTES)).min(data.count * 2);
    let end = Instant::now() + WARM_TIME_MAX;
    let cancel = trial.context.cancel;
    let one = |thread: u64| -> Result<()> {
        let mut keys = Keys::of(zipfian, mix(data.seed ^ thread));
        let mut reader = store.reader()?;
        for at in 0..gets.div_ceil(WARM_THREADS) {
            if at % WARM_ROUND == 0 {
                go_on(cancel)?;
                if Instant::now() >= end {
                    break;
                }
            }
            let number = keys.next(data);
            reader.get(&data.key(number), &mut |value| match value {
                Some(value) if data.is_right(number, value) => Ok(()),
                _ => Err(LabError::new(LabErrorKind::WrongData, format!("engine: entry {number} is wrong"))),
            })?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..WARM_THREADS).map(|thread| scope.spawn(move || one(thread))).collect();
        let panicked = |_| Err(LabError::new(LabErrorKind::System, "engine: a thread panicked"));
        // All are waited for before the first error counts.
        let ended: Vec<Result<()>> = threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        ended.into_iter().collect()
    })
}

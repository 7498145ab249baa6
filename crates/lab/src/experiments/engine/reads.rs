//! Works reading from threads: gets in memory and out of core, one at a time and in batches, and scans.

use std::time::Instant;

use super::place::State;
use super::trial::{Trial, note_reads, order};
use crate::entries::{Data, mix};
use crate::error::{LabError, Result};
use crate::measure::{Work, Worker};
use crate::record::Outcome;
use crate::stores::{Engine, Store};

/// Number of gets between two readings of the clock, where a get takes less than a microsecond.
const GETS_A_LOOK: u64 = 256;
/// Number of a scan's entries between two checks of the clock.
const ENTRIES_A_LOOK: u64 = 512;

/// Measures random gets by several threads, one at a time, from any store. For data in memory, one scan reads every
/// entry before the clock starts.
pub(super) fn random(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.loaded_store()?;
    let (store, data, seed, cancel) = (&*store, trial.data, order(trial.spec), trial.context.cancel);
    if trial.spec.cache == crate::record::CacheState::Warm {
        let count = usize::try_from(data.count).unwrap_or(usize::MAX);
        store.reader()?.scan(&data.key(0), count, &mut |_, _| super::updates::go_on(cancel))?;
    }
    let work = |thread: u32| -> Work<'_> {
        Box::new(move |worker: &mut Worker<'_>| gets(worker, store, data, seed ^ mix(u64::from(thread))))
    };
    let works = (0..trial.spec.params.threads.max(1)).map(work).collect();
    let mut outcome = trial.measure(works)?;
    if trial.spec.cache == crate::record::CacheState::Warm {
        outcome.cache_method = "every entry was read once".into();
    }
    trial.describe(store, &mut outcome)?;
    Ok(outcome)
}

/// Runs one thread's random gets. One get in [`GETS_A_LOOK`] is timed alone, because reading the clock takes long in
/// comparison with a get in memory.
fn gets(worker: &mut Worker<'_>, store: &dyn Store, data: Data, seed: u64) -> Result<()> {
    let mut reader = store.reader()?;
    let mut chance = fastrand::Rng::with_seed(seed);
    worker.start();
    while worker.running() {
        let (mut wrong, mut first) = (0, None);
        for _ in 0..GETS_A_LOOK {
            let number = chance.u64(0..data.count);
            let started = first.is_none().then(Instant::now);
            reader.get(&data.key(number), &mut |value| {
                wrong += u64::from(!value.is_some_and(|value| data.is_right(number, value)));
                Ok(())
            })?;
            first = first.or_else(|| started.map(|started| started.elapsed()));
        }
        worker.verified_many(GETS_A_LOOK, wrong);
        worker.done(GETS_A_LOOK, GETS_A_LOOK * data.entry_bytes());
        if let Some(elapsed) = first {
            worker.latency_of_each("op", elapsed, GETS_A_LOOK);
        }
    }
    Ok(())
}

/// Measures blocking gets of one thread, out of core.
pub(super) fn one(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let engine = trial.warm_engine()?;
    let (data, misses) = (trial.data, engine.db.stats().pool.misses);
    let mut chance = fastrand::Rng::with_seed(order(trial.spec));
    let table = &engine.table;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            let number = chance.u64(0..data.count);
            let started = Instant::now();
            let value = table.get(data.key(number))?;
            worker.latency("op", started.elapsed());
            worker.verified(value.is_some_and(|value| data.is_right(number, &value)));
            worker.done(1, data.entry_bytes());
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    note_reads(&engine, misses, &mut outcome);
    trial.describe(&engine, &mut outcome)?;
    Ok(outcome)
}

/// Measures batches of gets by one thread, out of core. With `after_task`, a task has read from the disk before in this
/// process.
pub(super) fn many(trial: &mut Trial<'_, '_>, after_task: bool) -> Result<Outcome> {
    let engine = trial.warm_engine()?;
    if after_task {
        super::tasks::read_once(trial, &engine)?;
    }
    let (data, misses) = (trial.data, engine.db.stats().pool.misses);
    let batch = u64::from(trial.spec.params.depth.max(1));
    let mut chance = fastrand::Rng::with_seed(order(trial.spec));
    let table = &engine.table;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            let numbers: Vec<u64> = (0..batch).map(|_| chance.u64(0..data.count)).collect();
            let keys: Vec<_> = numbers.iter().map(|number| data.key(*number)).collect();
            let started = Instant::now();
            let values = table.get_many(&keys)?;
            let elapsed = started.elapsed();
            let answers = numbers.iter().zip(&values);
            let right =
                answers.filter(|(number, value)| value.as_deref().is_some_and(|value| data.is_right(**number, value)));
            worker.verified_many(batch, batch - right.count() as u64);
            worker.done(batch, batch * data.entry_bytes());
            // All answers of a batch arrive together at its end.
            worker.latency_of_each("op", elapsed, batch);
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    note_reads(&engine, misses, &mut outcome);
    trial.describe(&engine, &mut outcome)?;
    Ok(outcome)
}

/// Measures a scan of all entries in order, which starts with an empty cache.
pub(super) fn scan(trial: &mut Trial<'_, '_>, state: State) -> Result<Outcome> {
    trial.have(state)?;
    let engine = Engine::open(&trial.place.store(), &trial.settings()?)?;
    let (data, table) = (trial.data, &engine.table);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        let (mut range, mut next) = (table.range::<&[u8]>(..), 0);
        let (mut looked, mut wrong) = (0, 0);
        while let Some((key, value)) = range.next_ref()? {
            wrong += u64::from(key != data.key(next) || !data.is_right(next, value));
            next += 1;
            if next - looked == ENTRIES_A_LOOK {
                worker.done(ENTRIES_A_LOOK, ENTRIES_A_LOOK * data.entry_bytes());
                looked = next;
                if !worker.running() {
                    break;
                }
            }
        }
        worker.done(next - looked, (next - looked) * data.entry_bytes());
        worker.verified_many(next, wrong);
        if worker.running() && next != data.count {
            // The table has too few or too many entries.
            worker.verified(false);
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    outcome.figures.insert("pages_read".into(), engine.db.stats().pool.misses as f64);
    trial.describe(&engine, &mut outcome)?;
    Ok(outcome)
}

/// Measures a scan of all entries of another database in order, which starts with empty caches.
pub(super) fn scan_of_peer(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.loaded_store()?;
    let (store, data) = (&*store, trial.data);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let mut reader = store.reader()?;
        let all = usize::try_from(data.count).unwrap_or(usize::MAX);
        worker.start();
        let (mut next, mut looked, mut wrong) = (0, 0, 0);
        // One more than there are, so that an entry too many is found.
        reader.scan(&data.key(0), all.saturating_add(1), &mut |key, value| {
            wrong += u64::from(key != data.key(next) || !data.is_right(next, value));
            next += 1;
            if next - looked == ENTRIES_A_LOOK {
                worker.done(ENTRIES_A_LOOK, ENTRIES_A_LOOK * data.entry_bytes());
                looked = next;
            }
            if worker.running() { Ok(()) } else { Err(LabError::interrupted()) }
        })?;
        worker.done(next - looked, (next - looked) * data.entry_bytes());
        worker.verified_many(next, wrong);
        if next != data.count {
            // The store has too few or too many entries.
            worker.verified(false);
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    trial.describe(store, &mut outcome)?;
    Ok(outcome)
}

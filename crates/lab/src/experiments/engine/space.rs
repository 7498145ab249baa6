//! Works that measure how large the files are: after a bulk load, after updates, after a load in random order, and after
//! most entries were deleted.

use nofault::db::Pace;
use nofault::{Batch, Durability};

use super::loads::{self, SyncTime, in_random_order};
use super::trial::{Trial, order};
use super::updates::{go_on, rewrite};
use super::writes::{BATCH, free_old_blocks, note_used, read_back};
use crate::error::Result;
use crate::format::bytes as shown;
use crate::measure::{Work, Worker};
use crate::methods::NOFAULT;
use crate::record::Outcome;
use crate::stores::{Engine, Start, Store};

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
pub(super) fn random(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let folder = trial.place.clear()?;
    if trial.spec.method == NOFAULT {
        let engine = Engine::create(&folder, &trial.settings()?)?;
        let mut outcome = loads::random(trial, &engine, SyncTime::Later)?;
        engine.db.shrink(Pace::Full, |_| true)?;
        finish(trial, &engine, &mut outcome)?;
        close(engine)?;
        note_files(trial, trial.data.user_bytes(), &mut outcome)?;
        return Ok(outcome);
    }
    let store = trial.open(&folder, Start::New)?;
    let mut outcome = loads::random(trial, &*store, SyncTime::Later)?;
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

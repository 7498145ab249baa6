//! Loads a store in random order, a deferred commit for each thousand entries, as the timed work of a trial.

use super::trial::{Trial, order};
use super::updates::go_on;
use super::writes::{BATCH, read_back};
use crate::entries::Data;
use crate::error::Result;
use crate::measure::{Work, Worker};
use crate::record::Outcome;
use crate::stores::{Start, Store};

/// When the commits of a load become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncTime {
    /// Within the timed work, at its end.
    AtEnd,
    /// Later, by the caller.
    Later,
}

/// Measures a load in random order that ends when all entries are durable.
pub(super) fn durable(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.open(&trial.place.clear()?, Start::New)?;
    let mut outcome = random(trial, &*store, SyncTime::AtEnd)?;
    read_back(&*store, trial.data, order(trial.spec), &mut outcome)?;
    trial.describe(&*store, &mut outcome)?;
    Ok(outcome)
}

/// Loads all entries in random order, as the timed work of a trial.
pub(super) fn random(trial: &mut Trial<'_, '_>, store: &dyn Store, synced: SyncTime) -> Result<Outcome> {
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
pub(super) fn in_random_order(data: Data) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..data.count).collect();
    fastrand::Rng::with_seed(data.seed).shuffle(&mut numbers);
    numbers
}

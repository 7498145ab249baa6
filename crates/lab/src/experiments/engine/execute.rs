//! Measures a trial: calls the function for its variant and method.

use super::place::{Place, State};
use super::trial::Trial;
use super::trials::{CACHE, data_of, number};
use super::works::{self, Scope};
use super::{
    DEVICE, DEVICE_BATCHES, DEVICE_OVERWRITE, IDLE_EXECUTOR, NOFAULT_BEFORE_TASK, NOFAULT_POLLER, OWN, device, gets,
    loads, reads, space, tasks, writes, ycsb,
};
use crate::error::Result;
use crate::experiment::Context;
use crate::methods::{self, NOFAULT};
use crate::read_loops;
use crate::record::{MemoryMethod, Outcome, TrialSpec};

/// Measures one trial.
///
/// # Errors
/// `Usage` for unknown variants, methods and parameters; `Unsupported` for a store that was not compiled in;
/// `Interrupted` when the user stops the run before the trial's clock starts; otherwise the error of the store or the
/// system.
pub(super) fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let row = works::row_of(&spec.variant).filter(|row| row.has(&spec.method));
    let row = row.ok_or_else(|| read_loops::unknown(spec))?;
    let mut trial = Trial { spec, context, place: Place::of(spec)?, data: data_of(spec)?, row };
    let mut outcome = run(&mut trial)?;
    if row.fixed {
        // A fixed amount of work has no steady part.
        outcome.steady = None;
    }
    if spec.memory.method == MemoryMethod::None && spec.target.data_bytes > number(spec, CACHE)? {
        outcome.warnings.push("memory was not limited: data that exceeds the cache may lie in the page cache".into());
    }
    Ok(outcome)
}

fn run(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let method = methods::find(OWN, &trial.spec.method).ok_or_else(|| read_loops::unknown(trial.spec))?;
    let variant = trial.spec.variant.as_str();
    match (method, variant) {
        (&IDLE_EXECUTOR, _) => tasks::idle(trial),
        (&DEVICE_OVERWRITE, _) => device::overwrites(trial),
        (&DEVICE, works::BULK_LOAD) => device::written(trial),
        (&DEVICE, works::SCAN | works::SCAN_REWRITTEN | works::SCAN_10K) => device::sequential(trial),
        (&DEVICE | &DEVICE_BATCHES, _) => device::random(trial, *method == DEVICE_BATCHES),
        (&NOFAULT | &NOFAULT_POLLER, works::GET_TASKS) => tasks::gets(trial, *method == NOFAULT_POLLER),
        (&NOFAULT, works::GET_ONE) => reads::one(trial),
        (&NOFAULT, _) if works::GET_MANY.contains(&variant) => reads::many(trial, false),
        (&NOFAULT | &NOFAULT_BEFORE_TASK, works::GET_MANY_AFTER_TASK) => reads::many(trial, *method == NOFAULT),
        (&NOFAULT, works::SCAN | works::SCAN_10K) => reads::scan(trial, State::Loaded),
        (&NOFAULT, works::SCAN_REWRITTEN) => reads::scan(trial, State::Rewritten),
        (_, works::SCAN_10K) => reads::scan_of_peer(trial),
        (&NOFAULT, _) if variant == works::COMMIT[0] => writes::commits(trial),
        (&NOFAULT, _) if works::COMMIT.contains(&variant) => tasks::commits(trial),
        (&NOFAULT, works::SPACE) => writes::load(trial),
        (&NOFAULT, works::SPACE_UPDATED) => space::updated(trial),
        (_, works::SPACE_RANDOM) => space::random(trial),
        (&NOFAULT, works::SPACE_DELETED) => space::deleted(trial),
        (&NOFAULT, works::REOPEN) => writes::reopen(trial),
        (_, works::LONG_READER) => writes::long_reader(trial, *method == NOFAULT),
        (_, works::BULK_LOAD) => writes::load(trial),
        (_, works::LOAD_RANDOM) => loads::durable(trial),
        (_, works::READ_WRITE) => gets::beside_puts(trial),
        (_, works::PUT_BATCH) => writes::put_batch(trial),
        (_, variant) if variant.starts_with(works::YCSB) => ycsb::run(trial),
        (_, works::GET_THREADS) => gets::threads(trial),
        (_, variant) if variant.starts_with(works::GET_ZIPF) => gets::threads(trial),
        _ if matches!(trial.row.data, Scope::Sized(_)) => gets::threads(trial),
        // Gets in memory, and the single gets compared with batches.
        _ => reads::random(trial),
    }
}

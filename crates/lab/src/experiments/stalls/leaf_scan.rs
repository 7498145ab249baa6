//! Measures the engine's scan of its tree: with the pool prefetching the next leaves, and with each leaf read when the
//! scan reaches it. `op` is the time of one entry, of which four lie in a leaf.

use std::time::Instant;

use nofault::blocking::Db;

use super::{measurement, number};
use crate::error::Result;
use crate::experiment::Context;
use crate::machine::pool::{self, ENTRIES_PER_BLOCK};
use crate::measure::{self, Work, Worker};
use crate::read_loops;
use crate::record::{Outcome, TrialSpec};
use crate::workload::PAGE_BYTES;

const WITH: &str = "engine-scan";
const WITHOUT: &str = "engine-scan-noprefetch";

/// Ids of the methods: the scan with and without read-ahead.
pub(super) const METHODS: [&str; 2] = [WITH, WITHOUT];

/// Measures one method of the variant `leaf-scan`.
pub(super) fn run(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let ahead = match spec.method.as_str() {
        WITH => usize::MAX,
        WITHOUT => 0,
        _ => return Err(read_loops::unknown(spec)),
    };
    let cache_bytes = number(spec, "cache_bytes")?;
    let db = Db::open(pool::database_of(&spec.target)?, &pool::settings(cache_bytes as usize))?;
    let table = db.table(pool::TABLE)?;
    let plan = measurement(spec, context)?;
    let seed = spec.target.content_seed;
    let work: Work<'_> = Box::new(|worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            // The scan is a range over the whole table, which begins again at its end.
            let mut range = table.range::<&[u8]>(..).read_ahead_max(ahead);
            while worker.running() {
                let started = Instant::now();
                let Some((key, value)) = range.next_ref()? else { break };
                worker.latency("op", started.elapsed());
                let block = key.first_chunk().map_or(u64::MAX, |key| u64::from_be_bytes(*key)) / ENTRIES_PER_BLOCK;
                worker.verified(seed.is_none_or(|seed| pool::is_right(value, seed, block)));
                worker.done(1, PAGE_BYTES as u64 / ENTRIES_PER_BLOCK);
            }
        }
        Ok(())
    });
    let mut outcome = measure::run(&plan, vec![work], &mut *context.on_tick)?;
    let stats = db.stats().pool;
    outcome.figures.insert("pool_memory_bytes".into(), stats.memory_bytes as f64);
    outcome.figures.insert("pool_misses".into(), stats.misses as f64);
    Ok(outcome)
}

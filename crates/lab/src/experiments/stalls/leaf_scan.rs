//! Measures scans of a tree's leaves: of the engine's tree, with the pool prefetching the next leaves and with each leaf
//! read when the scan reaches it; and of the same tree over a mapped file, under each hint. `op` is the time of one
//! entry, of which four lie in a leaf.

use std::time::Instant;

use nofault::blocking::Db;

use super::{
    ENGINE_SCAN, ENGINE_SCAN_NOPREFETCH, MMAP_SCAN_NORMAL, MMAP_SCAN_RANDOM, MMAP_SCAN_WILLNEED, OWN, mapped_tree,
    measurement, number,
};
use crate::error::Result;
use crate::experiment::Context;
use crate::machine::pool::{self, ENTRIES_PER_BLOCK};
use crate::measure::{self, Work, Worker};
use crate::methods;
use crate::read_loops;
use crate::read_trials;
use crate::record::{Outcome, TrialSpec};
use crate::workload::PAGE_BYTES;

/// Ids of the engine's methods.
pub(super) const METHODS: [&str; 2] = [ENGINE_SCAN.id, ENGINE_SCAN_NOPREFETCH.id];

/// Ids of the methods that scan the tree over a mapped file.
pub(super) const MAPPED: [&str; 3] = [MMAP_SCAN_NORMAL.id, MMAP_SCAN_RANDOM.id, MMAP_SCAN_WILLNEED.id];

/// Measures one method of the variant `leaf-scan`.
pub(super) fn run(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    match methods::find(OWN, &spec.method) {
        Some(&ENGINE_SCAN) => of_engine(spec, usize::MAX, context),
        Some(&ENGINE_SCAN_NOPREFETCH) => of_engine(spec, 0, context),
        Some(&MMAP_SCAN_NORMAL) => of_map(spec, (false, 0), context),
        Some(&MMAP_SCAN_RANDOM) => of_map(spec, (true, 0), context),
        Some(&MMAP_SCAN_WILLNEED) => of_map(spec, (true, spec.params.depth as usize), context),
        _ => Err(read_loops::unknown(spec)),
    }
}

/// Scans the engine's tree, with this many leaves asked for ahead at most.
fn of_engine(spec: &TrialSpec, ahead: usize, context: &mut Context<'_>) -> Result<Outcome> {
    // A map has small pages.
    read_trials::without_huge_pages()?;
    let cache_bytes = number(spec, "cache_bytes")?;
    let db = Db::open(pool::database_of(&spec.target)?, &pool::settings(cache_bytes as usize))?;
    let table = db.table(pool::TABLE)?;
    let mut outcome = scans(spec, context, || {
        let mut range = table.range::<&[u8]>(..).read_ahead_max(ahead);
        move |look: &mut dyn FnMut(&[u8], &[u8])| -> Result<bool> {
            let entry = range.next_ref()?;
            Ok(entry.map(|(key, value)| look(key, value)).is_some())
        }
    })?;
    let stats = db.stats().pool;
    outcome.figures.insert("pool_memory_bytes".into(), stats.memory_bytes as f64);
    outcome.figures.insert("pool_misses".into(), stats.misses as f64);
    Ok(outcome)
}

/// Scans the tree over a mapped file: told RANDOM or nothing, and with this many leaves asked for ahead.
fn of_map(spec: &TrialSpec, (random, ahead): (bool, usize), context: &mut Context<'_>) -> Result<Outcome> {
    let store = mapped_tree::open(spec, random, context.cancel)?;
    let snapshot = store.snapshot();
    scans(spec, context, || {
        let mut range = snapshot.leaf_scan(ahead);
        move |look: &mut dyn FnMut(&[u8], &[u8])| -> Result<bool> {
            let entry = range.next_ref()?;
            Ok(entry.map(|(key, value)| look(key, value)).is_some())
        }
    })
}

/// Measures scans over the whole table, one after another. `begin` starts one; the function that it returns shows the
/// next entry, and returns false at the end.
fn scans<Next>(spec: &TrialSpec, context: &mut Context<'_>, begin: impl Fn() -> Next + Send) -> Result<Outcome>
where
    Next: FnMut(&mut dyn FnMut(&[u8], &[u8])) -> Result<bool>,
{
    let plan = measurement(spec, context)?;
    let seed = spec.target.content_seed;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            let mut next = begin();
            let mut more = true;
            while more && worker.running() {
                let mut right = true;
                let started = Instant::now();
                let mut elapsed = None;
                more = next(&mut |key, value| {
                    elapsed = Some(started.elapsed());
                    let block = key.first_chunk().map_or(u64::MAX, |key| u64::from_be_bytes(*key)) / ENTRIES_PER_BLOCK;
                    right = seed.is_none_or(|seed| pool::is_right(value, seed, block));
                })?;
                let Some(elapsed) = elapsed else { break };
                worker.latency("op", elapsed);
                worker.verified(right);
                worker.done(1, PAGE_BYTES as u64 / ENTRIES_PER_BLOCK);
            }
        }
        Ok(())
    });
    measure::run(&plan, vec![work], &mut *context.on_tick)
}

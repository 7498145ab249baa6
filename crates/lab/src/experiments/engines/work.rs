//! The timed work of one thread on a store. Every answer is checked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::history::History;
use crate::entries::{Data, mix as spread};
use crate::error::Result;
use crate::measure::Worker;
use crate::mixes::{Chooser, Op};
use crate::record::Checks;
use crate::stores::Store;

/// Number of entries that a scan reads before the thread checks whether to stop.
const PORTION: usize = 512;
/// One durable commit in this many is read back, and also the last commit.
const COMMITS_PER_CHECK: u64 = 16;
/// Number of loaded entries checked after a load.
const LOADED_CHECKS: u64 = 500;

/// Checks [`LOADED_CHECKS`] random entries of a loaded store, and the first and the last entry.
pub(super) fn check_loaded(store: &dyn Store, data: Data) -> Result<Checks> {
    let mut checks = Checks::default();
    let some = (0..LOADED_CHECKS).map(|check| spread(check ^ data.seed) % data.count).chain([0, data.count - 1]);
    for number in some {
        let mut right = false;
        store.reader()?.get(&data.key(number), &mut |value| {
            right = value.is_some_and(|value| data.is_right(number, value));
            Ok(())
        })?;
        checks.verified += 1;
        checks.wrong += u64::from(!right);
    }
    Ok(checks)
}

/// Reads every entry once, to warm the store up; returns the number of entries. The values are checked only by later,
/// timed reads.
pub(super) fn read_all(store: &dyn Store, data: Data, known: u64) -> Result<usize> {
    let count = usize::try_from(known).unwrap_or(usize::MAX);
    store.reader()?.scan(&data.key(0), count, &mut |_, _| Ok(()))
}

/// Executes operations of a mix: unmeasured for `warm`, then for as long as the trial runs.
pub(super) fn mix(
    worker: &mut Worker<'_>,
    store: &dyn Store,
    history: &History,
    mut chooser: Chooser,
    warm: Duration,
    cancel: &AtomicBool,
) -> Result<()> {
    let warm_until = Instant::now() + warm;
    while Instant::now() < warm_until && !cancel.load(Ordering::Relaxed) {
        one(store, history, chooser.next(history.known()))?;
    }
    worker.start();
    // Execute at least one operation: a trial without an answer proves nothing.
    loop {
        let op = chooser.next(history.known());
        let started = Instant::now();
        let done = one(store, history, op)?;
        worker.latency("op", started.elapsed());
        worker.done(1, done.bytes);
        if let Some(right) = done.right {
            worker.verified(right);
        }
        if !worker.running() {
            return Ok(());
        }
    }
}

/// What one operation (get, put or scan) transferred and returned.
struct OpResult {
    /// Bytes of keys and values read or written.
    bytes: u64,
    /// Whether the returned value was right; `None` for an operation without one.
    right: Option<bool>,
}

fn one(store: &dyn Store, history: &History, op: Op) -> Result<OpResult> {
    match op {
        Op::Read(number) => {
            let right = get(store, history, number)?;
            Ok(OpResult { bytes: history.entry_bytes(), right: Some(right) })
        }
        Op::Update(number) => {
            put(store, history, number, false)?;
            Ok(OpResult { bytes: history.entry_bytes(), right: None })
        }
        Op::ReadChangeWrite(number) => {
            let right = get(store, history, number)?;
            put(store, history, number, false)?;
            Ok(OpResult { bytes: 2 * history.entry_bytes(), right: Some(right) })
        }
        Op::Insert => {
            let (turn, entry) = history.insert();
            store.write(&[entry], false)?;
            history.inserted(turn);
            Ok(OpResult { bytes: history.entry_bytes(), right: None })
        }
        Op::Scan(number, wanted) => {
            let known = history.known();
            let (seen, right) = range(store, history.data(), number, wanted)?;
            // The scan must find all entries known before it began.
            let enough = seen as u64 >= (wanted as u64).min(known - number);
            Ok(OpResult { bytes: seen as u64 * history.entry_bytes(), right: Some(right && enough) })
        }
    }
}

fn get(store: &dyn Store, history: &History, number: u64) -> Result<bool> {
    let before = history.before(number);
    let mut right = false;
    store.reader()?.get(&history.data().key(number), &mut |value| {
        right = history.is_right(number, before, value);
        Ok(())
    })?;
    Ok(right)
}

fn put(store: &dyn Store, history: &History, number: u64, durable: bool) -> Result<()> {
    let change = history.change(number);
    store.write(std::slice::from_ref(&change.entry), durable)?;
    history.committed(change);
    Ok(())
}

/// Reads up to `wanted` entries in order; returns their number, and whether each had the next key and its right value.
fn range(store: &dyn Store, data: Data, from: u64, wanted: usize) -> Result<(usize, bool)> {
    let (mut next, mut right) = (from, true);
    let seen = store.reader()?.scan(&data.key(from), wanted, &mut |key, value| {
        right &= key == data.key(next) && data.is_right(next, value);
        next += 1;
        Ok(())
    })?;
    Ok((seen, right))
}

/// Scans all entries in order, again and again, for as long as the trial runs.
pub(super) fn scan(worker: &mut Worker<'_>, store: &dyn Store, data: Data, known: u64) -> Result<()> {
    worker.start();
    let mut next = 0;
    loop {
        let wanted = PORTION.min(usize::try_from(known - next).unwrap_or(PORTION));
        let (seen, right) = range(store, data, next, wanted)?;
        worker.done(seen as u64, seen as u64 * data.entry_bytes());
        worker.verified(right && seen == wanted);
        next = if next + wanted as u64 >= known { 0 } else { next + wanted as u64 };
        if !worker.running() {
            return Ok(());
        }
    }
}

/// Makes durable commits of one entry each: unmeasured for `warm`, then for as long as the trial runs.
pub(super) fn commit(
    worker: &mut Worker<'_>,
    store: &dyn Store,
    history: &History,
    seed: u64,
    warm: Duration,
    cancel: &AtomicBool,
) -> Result<()> {
    let data = history.data();
    let mut chance = fastrand::Rng::with_seed(seed);
    let warm_until = Instant::now() + warm;
    while Instant::now() < warm_until && !cancel.load(Ordering::Relaxed) {
        put(store, history, chance.u64(0..data.count), true)?;
    }
    worker.start();
    let mut commits = 0;
    loop {
        let number = chance.u64(0..data.count);
        let started = Instant::now();
        put(store, history, number, true)?;
        worker.latency("op", started.elapsed());
        worker.done(1, data.entry_bytes());
        commits += 1;
        let last = !worker.running();
        if last || commits % COMMITS_PER_CHECK == 0 {
            worker.verified(get(store, history, number)?);
        }
        if last {
            return Ok(());
        }
    }
}

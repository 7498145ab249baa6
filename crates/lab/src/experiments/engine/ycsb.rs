//! Measures YCSB's mixes, in the same way on all stores: threads read and write single entries.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::trial::{Trial, order};
use super::works::YCSB;
use crate::entries::{Data, Zipfian, mix};
use crate::error::Result;
use crate::measure::{Work, Worker};
use crate::mixes::{Chooser, MIXES, Op};
use crate::read_loops;
use crate::record::Outcome;
use crate::stores::Store;

/// The store that all threads use, and the state of its inserts.
struct Shared<'a> {
    store: &'a dyn Store,
    data: Data,
    /// Number of entries that are inserted and visible: readers use only smaller entry numbers.
    known: AtomicU64,
    /// Held by the thread that inserts, so that inserts happen one after the other.
    inserting: Mutex<()>,
}

/// Measures one mix on a freshly loaded store.
pub(super) fn run(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let mix_of = MIXES.into_iter().find(|mix| trial.spec.variant.strip_prefix(YCSB) == Some(mix.id));
    let mix_of = mix_of.ok_or_else(|| read_loops::unknown(trial.spec))?;
    let store = trial.loaded_store()?;
    if mix_of.writes() {
        trial.place.spoil()?;
    }
    let data = trial.data;
    let shared = Shared { store: &*store, data, known: AtomicU64::new(data.count), inserting: Mutex::new(()) };
    let (shared, seed, zipfian) = (&shared, order(trial.spec), &Zipfian::new(data.count, 0));
    let work = |thread: u32| -> Work<'_> {
        Box::new(move |worker: &mut Worker<'_>| {
            let mut chance = fastrand::Rng::with_seed(seed ^ mix(u64::from(thread)));
            let mut chooser = Chooser::new(mix_of, data.count, zipfian, chance.u64(..));
            worker.start();
            while worker.running() {
                let op = chooser.next(shared.known.load(Ordering::Acquire));
                let started = Instant::now();
                let done = shared.execute(op, chance.u64(..))?;
                worker.latency("op", started.elapsed());
                worker.done(1, done.entries * data.entry_bytes());
                if let Some(right) = done.right {
                    worker.verified(right);
                }
            }
            Ok(())
        })
    };
    let works = (0..trial.spec.params.threads.max(1)).map(work).collect();
    let mut outcome = trial.measure(works)?;
    trial.describe(shared.store, &mut outcome)?;
    Ok(outcome)
}

/// The result of an operation.
struct OpResult {
    /// Number of entries read or written.
    entries: u64,
    /// Whether the returned value was right; `None` for an operation without one.
    right: Option<bool>,
}

impl Shared<'_> {
    /// Executes an operation. Each write is a commit of one entry that is visible at once and not synced.
    fn execute(&self, op: Op, version: u64) -> Result<OpResult> {
        let put = |number: u64, version: u64| self.store.write(&[self.data.changed(number, version)], false);
        let written = OpResult { entries: 1, right: None };
        match op {
            Op::Read(number) => Ok(OpResult { entries: 1, right: Some(self.read(number)?) }),
            Op::Update(number) => put(number, version).map(|()| written),
            Op::ReadChangeWrite(number) => {
                let right = self.read(number)?;
                put(number, version)?;
                Ok(OpResult { entries: 2, right: Some(right) })
            }
            Op::Insert => {
                let _turn = self.inserting.lock().unwrap_or_else(PoisonError::into_inner);
                let next = self.known.load(Ordering::Acquire);
                put(next, 0)?;
                self.known.store(next + 1, Ordering::Release);
                Ok(written)
            }
            Op::Scan(number, wanted) => {
                let known = self.known.load(Ordering::Acquire);
                let (mut next, mut right) = (number, true);
                self.store.reader()?.scan(&self.data.key(number), wanted, &mut |key, value| {
                    right &= key == self.data.key(next) && self.data.is_right(next, value);
                    next += 1;
                    Ok(())
                })?;
                // The scan must find all entries known before it began.
                let enough = next - number >= (wanted as u64).min(known - number);
                Ok(OpResult { entries: next - number, right: Some(right && enough) })
            }
        }
    }

    fn read(&self, number: u64) -> Result<bool> {
        let mut right = false;
        self.store.reader()?.get(&self.data.key(number), &mut |value| {
            right = value.is_some_and(|value| self.data.is_right(number, value));
            Ok(())
        })?;
        Ok(right)
    }
}

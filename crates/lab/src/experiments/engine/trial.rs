//! The steps that all works share: a trial finds or makes its database, warms it, starts the clock, and adds the
//! database's settings and counters to the result.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nofault::settings::Settings;

use super::crash;
use super::place::{Content, Place, State};
use super::trials::{CACHE, LOG, number};
use super::updates::{go_on, rewrite};
use super::works::{PEERS, Row};
use crate::entries::{Data, mix};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::measure::{self, Measurement, Work};
use crate::methods::NOFAULT;
use crate::read_loops;
use crate::record::{Outcome, TrialSpec};
use crate::stores::{self, Engine, Room, Start, Store};

/// Number of gets in a batch of warming reads, and number of batches between two checks whether the engine is warm.
const WARM_BATCH: usize = 256;
const WARM_BATCHES: u64 = 64;
/// The engine counts as warm when a get reads at most this many pages: the leaf of its value, and hardly ever an inner
/// page.
const WARM_READS_A_GET: f64 = 1.05;
/// Longest time spent on warming a store.
pub(super) const WARM_TIME_MAX: Duration = Duration::from_secs(60);

/// A running trial: its spec, context, folder, data and row.
pub(super) struct Trial<'t, 'c> {
    pub(super) spec: &'t TrialSpec,
    pub(super) context: &'t mut Context<'c>,
    pub(super) place: Place,
    pub(super) data: Data,
    pub(super) row: &'static Row,
}

impl Trial<'_, '_> {
    /// Measures the workers: for the time of the trial, or until their work is done in a row with a fixed amount of
    /// work.
    pub(super) fn measure(&mut self, works: Vec<Work<'_>>) -> Result<Outcome> {
        // Only a bound for the case that the device hangs.
        let long = Duration::from_secs(24 * 3600);
        let plan = Measurement {
            duration: if self.row.fixed { long } else { read_loops::duration_of(self.spec)? },
            tick: read_loops::tick_of(self.spec),
            watch: self.context.watch,
            memory_bytes: None,
            fill_first: false,
            cancel: self.context.cancel,
        };
        measure::run(&plan, works, &mut *self.context.on_tick)
    }

    /// Returns the engine's settings for the trial: its cache, and its log where the trial sets the size of the log.
    pub(super) fn settings(&self) -> Result<Settings> {
        let cache_bytes = usize::try_from(number(self.spec, CACHE)?).unwrap_or(usize::MAX);
        let settings = Settings { cache_bytes, ..Settings::default() };
        // The engine makes a checkpoint when the log is half full. With this size the log never is.
        Ok(match number(self.spec, LOG) {
            Ok(log_bytes) => Settings { log_bytes: log_bytes * 4, ..settings },
            Err(_) => settings,
        })
    }

    /// Returns an error when the user has stopped the run.
    pub(super) fn go_on(&self) -> Result<()> {
        go_on(self.context.cancel)
    }

    /// Describes the database of a store in one of its states, with the trial's data and settings.
    pub(super) fn content(&self, store: &str, state: State) -> Result<Content> {
        let log_bytes = number(self.spec, LOG).unwrap_or(0);
        Ok(Content::of(store, state, self.data, number(self.spec, CACHE)?, log_bytes))
    }

    /// Makes sure that the folder holds the engine's database in this state. Returns the bytes of its file that are in
    /// use, or for a crashed database the bytes of its log.
    pub(super) fn have(&self, state: State) -> Result<u64> {
        let (settings, data, cancel) = (self.settings()?, self.data, self.context.cancel);
        self.place.have(self.spec, &self.content(NOFAULT.id, state)?, |folder| match state {
            State::Crashed => crash::crashed(folder, &settings, data, number(self.spec, LOG)?, cancel),
            State::Loaded | State::Rewritten => {
                let engine = Engine::create(folder, &settings)?;
                engine.table.bulk_load(data.entries().take_while(|_| !cancel.load(Ordering::Relaxed)))?;
                go_on(cancel)?;
                if state == State::Rewritten {
                    rewrite(&engine, data, data.count / 10, data.seed, cancel)?;
                    engine.db.checkpoint()?;
                }
                Ok(engine.used_bytes())
            }
        })
    }

    /// Opens the engine's loaded database, with nothing of its data in memory.
    pub(super) fn engine(&self) -> Result<Engine> {
        self.have(State::Loaded)?;
        Engine::open(&self.place.store(), &self.settings()?)
    }

    /// Opens the engine's loaded database and makes random reads until the inner pages are in memory, or as many of them as the
    /// cache holds, as in a database that has run for a while.
    pub(super) fn warm_engine(&self) -> Result<Engine> {
        let engine = self.engine()?;
        let data = self.data;
        let mut chance = fastrand::Rng::with_seed(mix(data.seed));
        let (started, mut before) = (Instant::now(), f64::INFINITY);
        loop {
            let misses = engine.db.stats().pool.misses;
            for _ in 0..WARM_BATCHES {
                self.go_on()?;
                let keys: Vec<_> = (0..WARM_BATCH).map(|_| data.key(chance.u64(0..data.count))).collect();
                engine.table.get_many(&keys)?;
            }
            let reads = (engine.db.stats().pool.misses - misses) as f64 / (WARM_BATCHES * WARM_BATCH as u64) as f64;
            // Where the reads of a get have stopped falling, the cache is too small to hold the inner pages.
            if reads <= WARM_READS_A_GET || reads >= before || started.elapsed() >= WARM_TIME_MAX {
                return Ok(engine);
            }
            before = reads;
        }
    }

    /// Opens the store of the trial's method, the engine or another database, with all entries loaded.
    pub(super) fn loaded_store(&self) -> Result<Box<dyn Store>> {
        let method = self.spec.method.as_str();
        if PEERS.contains(&method) {
            let (data, cancel) = (self.data, self.context.cancel);
            self.place.have(self.spec, &self.content(method, State::Loaded)?, |folder| {
                let store = self.open(folder, Start::New)?;
                store.fill(&mut data.entries().take_while(|_| !cancel.load(Ordering::Relaxed)))?;
                go_on(cancel).map(|()| 0)
            })?;
        } else {
            self.have(State::Loaded)?;
        }
        self.open(&self.place.store(), Start::Old)
    }

    /// Opens the store of the trial's method in `folder`.
    pub(super) fn open(&self, folder: &Path, start: Start) -> Result<Box<dyn Store>> {
        let cache_bytes = number(self.spec, CACHE)?;
        let room = Room {
            cache_bytes,
            write_bytes: cache_bytes / 8,
            data_bytes: self.data.user_bytes() * 2,
            threads: 64,
            value_bytes: u32::try_from(self.data.value_bytes).unwrap_or(u32::MAX),
        };
        let id = if PEERS.contains(&self.spec.method.as_str()) { &self.spec.method } else { NOFAULT.id };
        let not_built = || {
            let how = stores::kind_of(id).map_or("unknown".into(), stores::Kind::not_built);
            LabError::new(LabErrorKind::Unsupported, format!("{id}: {how}"))
        };
        stores::open(id, folder, room, start).ok_or_else(not_built)?
    }

    /// Adds the store's settings and its remaining inequalities to the result.
    pub(super) fn describe(&self, store: &dyn Store, outcome: &mut Outcome) -> Result<()> {
        outcome.settings.extend(store.settings()?.into_iter().map(|(name, text)| (name.to_owned(), text)));
        outcome.texts.insert("unequal".into(), store.unequal().into());
        Ok(())
    }
}

/// Adds the number of pages that the engine read for each get to the result.
pub(super) fn note_reads(engine: &Engine, misses_before: u64, outcome: &mut Outcome) {
    let misses = (engine.db.stats().pool.misses - misses_before) as f64;
    outcome.figures.insert("reads_per_get".into(), misses / outcome.ops.max(1) as f64);
}

/// Returns the seed of a trial's random order, which differs between trials and between repeats.
pub(super) fn order(spec: &TrialSpec) -> u64 {
    read_loops::order_seed(spec)
}

//! What the works share: a trial finds or makes its database, warms it, starts the clock, and adds to the result what the database says of
//! itself.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nofault::settings::Settings;

use super::crash;
use super::place::{Content, Place, State};
use super::trials::{CACHE, LOG, number};
use super::updates::{go_on, rewrite};
use super::works::{ENGINE, PEERS, Row};
use crate::entries::{Data, mix};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::measure::{self, Measurement, Work};
use crate::read_loops;
use crate::record::{Outcome, TrialSpec};
use crate::stores::{self, Engine, Room, Start, Store};

/// Gets in a batch while the engine is warmed, and batches between two checks of its warmth.
const WARM_BATCH: usize = 256;
const WARM_BATCHES: u64 = 64;
/// The engine is warm when a get reads no more pages than this: the value's, and hardly ever an inner one.
const WARM_READS_A_GET: f64 = 1.05;
/// Longest time spent on warming.
const WARM_TIME_MAX: Duration = Duration::from_secs(60);

/// A trial under way.
pub(super) struct Trial<'t, 'c> {
    pub(super) spec: &'t TrialSpec,
    pub(super) context: &'t mut Context<'c>,
    pub(super) place: Place,
    pub(super) data: Data,
    pub(super) row: &'static Row,
}

impl Trial<'_, '_> {
    /// Runs the workers: for the time of the trial, or until their work is done where that is fixed.
    pub(super) fn measure(&mut self, works: Vec<Work<'_>>) -> Result<Outcome> {
        // Only a bound, against a device that hangs.
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

    /// The settings of the engine: its cache, and the log where the row has one.
    pub(super) fn settings(&self) -> Result<Settings> {
        let cache_bytes = usize::try_from(number(self.spec, CACHE)?).unwrap_or(usize::MAX);
        let settings = Settings { cache_bytes, ..Settings::default() };
        // A checkpoint is made when the log is half full: with this size it never is.
        Ok(match number(self.spec, LOG) {
            Ok(log_bytes) => Settings { log_bytes: log_bytes * 4, ..settings },
            Err(_) => settings,
        })
    }

    /// Fails when the user wants to stop.
    pub(super) fn go_on(&self) -> Result<()> {
        go_on(self.context.cancel)
    }

    /// The content of a store's database in one of its states.
    pub(super) fn content(&self, store: &str, state: State) -> Result<Content> {
        let log_bytes = number(self.spec, LOG).unwrap_or(0);
        Ok(Content::of(store, state, self.data, number(self.spec, CACHE)?, log_bytes))
    }

    /// Has the engine's database in a state; returns the bytes of its file that are in use, or of its log where it crashed.
    pub(super) fn have(&self, state: State) -> Result<u64> {
        let (settings, data, cancel) = (self.settings()?, self.data, self.context.cancel);
        self.place.have(self.spec, &self.content(ENGINE, state)?, |folder| match state {
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

    /// Opens the engine's loaded database: nothing of its data is in memory.
    pub(super) fn engine(&self) -> Result<Engine> {
        self.have(State::Loaded)?;
        Engine::open(&self.place.store(), &self.settings()?)
    }

    /// Opens the engine's loaded database and reads at random until the inner pages are in memory, as they are in a database that has run
    /// for a while.
    pub(super) fn warm_engine(&self) -> Result<Engine> {
        let engine = self.engine()?;
        let data = self.data;
        let mut chance = fastrand::Rng::with_seed(mix(data.seed));
        let started = Instant::now();
        loop {
            let misses = engine.db.stats().pool.misses;
            for _ in 0..WARM_BATCHES {
                self.go_on()?;
                let keys: Vec<_> = (0..WARM_BATCH).map(|_| data.key(chance.u64(0..data.count))).collect();
                engine.table.get_many(&keys)?;
            }
            let reads = (engine.db.stats().pool.misses - misses) as f64 / (WARM_BATCHES * WARM_BATCH as u64) as f64;
            if reads <= WARM_READS_A_GET || started.elapsed() >= WARM_TIME_MAX {
                return Ok(engine);
            }
        }
    }

    /// Opens a store, the engine or a rival, with all entries in it.
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

    /// Opens the store of the trial's method.
    pub(super) fn open(&self, folder: &Path, start: Start) -> Result<Box<dyn Store>> {
        let cache_bytes = number(self.spec, CACHE)?;
        let room =
            Room { cache_bytes, write_bytes: cache_bytes / 8, data_bytes: self.data.user_bytes() * 2, threads: 64 };
        let id = if PEERS.contains(&self.spec.method.as_str()) { &self.spec.method } else { ENGINE };
        let not_built = || {
            let how = stores::kind_of(id).map_or("unknown".into(), stores::Kind::not_built);
            LabError::new(LabErrorKind::Unsupported, format!("{id}: {how}"))
        };
        stores::open(id, folder, room, start).ok_or_else(not_built)?
    }

    /// Adds a store's settings and what is unequal to the result.
    pub(super) fn describe(&self, store: &dyn Store, outcome: &mut Outcome) -> Result<()> {
        outcome.texts.extend(store.settings()?.into_iter().map(|(name, text)| (format!("set: {name}"), text)));
        outcome.texts.insert("unequal".into(), store.unequal().into());
        Ok(())
    }
}

/// Adds the pages that the engine read for each get.
pub(super) fn note_reads(engine: &Engine, misses_before: u64, outcome: &mut Outcome) {
    let misses = (engine.db.stats().pool.misses - misses_before) as f64;
    outcome.figures.insert("reads_per_get".into(), misses / outcome.ops.max(1) as f64);
}

/// Seed of a trial's random order: its own for each trial and each repeat.
pub(super) fn order(spec: &TrialSpec) -> u64 {
    read_loops::order_seed(spec)
}

//! The steps that all works share: a trial finds or makes its database, warms it, starts the clock, and adds the
//! database's settings and counters to the result.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nofault::settings::Settings;
use serde::{Deserialize, Serialize};

use super::super::Folder;
use super::works::{PEERS, Row};
use super::{CACHE, LOG, number};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::cache;
use crate::measure::entries::{Data, mix};
use crate::measure::stores::{self, Engine, Room, Start, Store};
use crate::measure::{self, Work, read_loops};
use crate::methods::NOFAULT;
use crate::paths::shown;
use crate::record::{CacheState, Outcome, TrialSpec};

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
        let plan = self.context.lasting(
            if self.row.fixed { long } else { read_loops::duration_of(self.spec)? },
            read_loops::tick_of(self.spec),
        );
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
        self.place.have((self.spec, self.context.cold), &self.content(NOFAULT.id, state)?, |folder| match state {
            State::Crashed => crashed(folder, &settings, data, number(self.spec, LOG)?, cancel),
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
            self.place.have((self.spec, self.context.cold), &self.content(method, State::Loaded)?, |folder| {
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

// The folder in which a trial finds its database, or makes it. Only one database at a time lies in the folder, so that
// each store has the disk to itself; a note next to the database describes its content. Trials that only read share a
// database. A trial that writes removes the note first, so that the next trial makes the database again.
//
// Kept true by: the note is written after the database is complete and closed, and removed before the first change, so
// that a note always describes the database next to it.

/// The folder of the trials' database, whose note describes its content.
pub(super) struct Place(Folder);

/// How a database came to its present content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Filled by a load of sorted entries.
    Loaded,
    /// Loaded, then a tenth of the entries rewritten in random order.
    Rewritten,
    /// As a killed process leaves its files, with a full log.
    Crashed,
}

/// Description of a database's content. A trial may use an existing database only if its description equals the
/// trial's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Content {
    pub(super) store: String,
    pub(super) state: State,
    keys: u64,
    value_bytes: usize,
    seed: u64,
    cache_bytes: u64,
    log_bytes: u64,
}

impl Content {
    /// Describes the content that a trial with this store, state, data, cache and log needs.
    pub(super) fn of(store: &str, state: State, data: Data, cache_bytes: u64, log_bytes: u64) -> Self {
        let Data { count, value_bytes, seed } = data;
        Self { store: store.into(), state, keys: count, value_bytes, seed, cache_bytes, log_bytes }
    }
}

/// Name of the file with the note.
const NOTE: &str = "note.json";

/// The note next to a database: a description of the database's content, and the number of
/// bytes that making it returned.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    content: Content,
    bytes: u64,
}

impl Place {
    /// Returns the folder that a trial works in.
    ///
    /// # Errors
    /// `Usage` when the trial's target is not exactly one folder.
    pub(super) fn of(spec: &TrialSpec) -> Result<Self> {
        Folder::of(spec, NOTE).map(Self)
    }

    /// Returns the folder of the database.
    pub(super) fn store(&self) -> PathBuf {
        self.0.store()
    }

    /// Returns the path of a file or folder for the trial's own use, after removing what an earlier trial left there.
    ///
    /// # Errors
    /// The system's error, when an existing file or folder cannot be removed.
    pub(super) fn free(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.path.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LabError::system(shown(&path), &error)),
            _ => Ok(path),
        }
    }

    /// Removes the database and the file that describes it; returns the folder in which the next database is to be made.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn clear(&self) -> Result<PathBuf> {
        self.spoil()?;
        self.free("store")
    }

    /// Removes the file that describes the database, because the trial is about to change it: later trials then make
    /// another one.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn spoil(&self) -> Result<()> {
        self.free(NOTE).map(drop)
    }

    /// Makes sure that the folder holds a database with this content: reuses the present one or calls `make`. Returns
    /// the number of bytes that `make` returned, now or for the present database. For a trial that begins cold, a newly
    /// made database is then evicted from the page cache.
    ///
    /// # Errors
    /// The error of `make`, or the system's error.
    pub(super) fn have(
        &self,
        (spec, cold): (&TrialSpec, cache::Means),
        content: &Content,
        make: impl FnOnce(&Path) -> Result<u64>,
    ) -> Result<u64> {
        if let Some(known) = self.0.note::<Note>()
            && known.content == *content
        {
            return Ok(known.bytes);
        }
        let bytes = make(&self.clear()?)?;
        self.keep(content, bytes)?;
        if spec.cache == CacheState::Cold {
            cache::make_cold(&[&self.store()], cold)?;
        }
        Ok(bytes)
    }

    /// Writes the file that describes a database, which must be complete and closed: later trials may then use it.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn keep(&self, content: &Content, bytes: u64) -> Result<()> {
        self.0.write_note(&Note { content: content.clone(), bytes })
    }

    /// Returns the bytes that all files of the database occupy on the disk.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn all_bytes_on_disk(&self) -> Result<u64> {
        let folder = self.store();
        let failed = |error: &std::io::Error| LabError::system(shown(&folder), error);
        let mut bytes = 0;
        for entry in fs::read_dir(&folder).map_err(|error| failed(&error))? {
            let file = entry.and_then(|entry| entry.metadata()).map_err(|error| failed(&error))?;
            bytes += file.blocks() * 512;
        }
        Ok(bytes)
    }

    /// Returns the bytes that a file of the database occupies on the disk; 0 where there is none. Blocks are counted,
    /// because a file may have holes.
    pub(super) fn bytes_on_disk(&self, name: &str) -> u64 {
        fs::metadata(self.store().join(name)).map_or(0, |file| file.blocks() * 512)
    }
}

// Makes the files that a killed process of the engine leaves.

/// Number of keys changed over and over to fill the log. They lie in so few pages that the pages' obsolete
/// blocks never make a checkpoint due.
const HOT_KEYS: u64 = 10_000;
/// Number of updates between two checks of the log's size.
const ROUND: u64 = 10_000;

/// Makes a database in `folder` as a killed process leaves it, with at least `wanted_bytes` of log that no checkpoint
/// covers. Returns the bytes of that log.
fn crashed(folder: &Path, settings: &Settings, data: Data, wanted_bytes: u64, cancel: &AtomicBool) -> Result<u64> {
    let open = folder.with_extension("open");
    let removed = std::fs::remove_dir_all(&open);
    if let Err(error) = removed
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(LabError::system(shown(&open), &error));
    }
    let engine = Engine::load(&open, data, settings)?;
    let hot = Data { count: data.count.min(HOT_KEYS), ..data };
    let mut log_bytes = 0;
    while log_bytes < wanted_bytes {
        rewrite(&engine, hot, ROUND, data.seed, cancel)?;
        engine.db.sync()?;
        let live_bytes = engine.db.stats().log.live_bytes;
        if live_bytes < log_bytes {
            let why = "a checkpoint was made before the log was full: the log would never fill up";
            return Err(LabError::new(LabErrorKind::System, why));
        }
        log_bytes = live_bytes;
    }
    // A copy of the files while they are open equals the files that a killed process leaves.
    copy_files(&open, folder)?;
    drop(engine);
    std::fs::remove_dir_all(&open).map_err(|error| LabError::system(shown(&open), &error))?;
    Ok(log_bytes)
}

/// Copies the files of a database, which must not be written during the copying.
pub(super) fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let copy = || -> std::io::Result<()> {
        std::fs::create_dir(to)?;
        for name in ["data", "log"] {
            std::fs::copy(from.join(name), to.join(name))?;
            std::fs::File::open(to.join(name))?.sync_all()?;
        }
        Ok(())
    };
    copy().map_err(|error| LabError::system(format_args!("copy {}", shown(&from)), &error))
}

// Makes random updates of a store, and stops when the user stops the run.

/// Returns an error when the user has stopped the run.
pub(super) fn go_on(cancel: &AtomicBool) -> Result<()> {
    if cancel.load(Ordering::Relaxed) { Err(LabError::interrupted()) } else { Ok(()) }
}

/// Rewrites `count` random entries in batches whose commits are not synced.
pub(super) fn rewrite(store: &dyn Store, data: Data, count: u64, seed: u64, cancel: &AtomicBool) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(seed ^ 1);
    let mut left = count;
    while left > 0 {
        go_on(cancel)?;
        let batch: Vec<_> = (0..left.min(1000)).map(|_| data.changed(chance.u64(0..data.count), left)).collect();
        left -= batch.len() as u64;
        store.write(&batch, false)?;
    }
    Ok(())
}

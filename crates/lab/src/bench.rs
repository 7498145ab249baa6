//! `nofault db bench`: measures the engine beside the raw device and its rivals, all in one run.
//!
//! It is a module of the lab because the lab measures and may use the engine and its rivals; the command line only
//! prints.
//!
//! Kept true by: every value that is read is verified in full while it is timed, and a wrong one ends the run; engine
//! and baselines take turns where the memory is enough for all of them, so that a drift of the machine affects all;
//! where memory is limited, one store runs at a time and has all of it; everything lies in one folder that is made and
//! removed.

pub mod child;
mod device;
mod reads;
mod row;
mod tasks;
mod writes;
mod ycsb;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use nofault::settings::Settings;

use self::row::ENGINE;
pub use self::row::{Baseline, BenchReport, Limit, Row, Spread};
use self::store::{Engine, Kind, PEERS, Store, peer};
use crate::entries::Data;
use crate::error::{LabError, LabErrorKind, Result};
use crate::format;
use crate::{entries as data, stores as store};

/// The folder that the run makes inside the user's folder and removes.
const FOLDER: &str = "nofault-bench";
/// The folder of a run that is itself a child and starts no children.
const CHILD_FOLDER: &str = "nofault-bench-work";

/// Sizes and times of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BenchOptions {
    /// Names of the works to measure; all when empty.
    pub works: Vec<String>,
    /// Where the folder of the run is made.
    pub dir: PathBuf,
    /// Bytes of keys and values of the data sets that exceed the cache.
    pub data_bytes: u64,
    /// Entries of the data set that fits in memory.
    pub memory_keys: u64,
    /// Cache of the databases that exceed it, in bytes.
    pub cache_bytes: u64,
    /// Memory, page cache included, of the process that measures them. Without it 1.3 times the cache and 64 MiB, which
    /// is also the least allowed.
    pub limit_bytes: Option<u64>,
    /// This program, called as `nofault db bench --child` for each work out of core; without it all works run in this
    /// process, under no limit.
    pub program: Option<PathBuf>,
    /// Sizes of values, in bytes.
    pub value_bytes: Vec<usize>,
    /// Bytes of log that are left behind before the database is opened again.
    pub log_bytes: u64,
    /// Longest time of one measurement.
    pub time: Duration,
    /// How often each work is measured.
    pub repeats: u32,
    /// Seed of keys, values and order.
    pub seed: u64,
    /// Measure only this store's part of the works; all stores when `None`. For children that have one store each.
    #[serde(default)]
    pub only: Option<String>,
}

/// The process in which a work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// In this process.
    Here,
    /// In a process under a memory limit.
    Limited,
    /// In such a process for each store, so that none starts with memory full of another's pages.
    Apart,
}

use Room::{Apart, Here, Limited};

/// A work: its name, its description, its process, and its function.
type Work = (&'static str, &'static str, Room, fn(&mut Bench<'_>) -> Result<()>);

const WORKS: [Work; 12] = [
    ("get-memory", "random gets, all in memory, 1 and 2 threads", Here, reads::get_memory),
    ("get-tasks", "random gets out of core, 64 tasks on one executor thread", Limited, tasks::get_tasks),
    ("get-many", "batches of 64 and 256 random gets out of core, one thread", Apart, reads::get_many),
    ("get-one", "one blocking random get at a time, out of core", Limited, reads::get_one),
    ("scan", "full scan, cold: bulk-loaded, and after rewriting a tenth", Limited, reads::scan),
    ("commit", "durable single-put commits, 1 and 64 writers", Here, tasks::commit),
    ("bulk-load", "sorted bulk load", Apart, writes::bulk_load),
    ("put-batch", "random puts in durable batches of 1000, out of core", Apart, writes::put_batch),
    ("reopen", "opening after a crash with a full log", Here, writes::reopen),
    ("space", "bytes of file for each user byte after bulk load", Here, writes::space),
    ("long-reader", "growth under updates while a reader is held", Here, writes::long_reader),
    ("ycsb", "YCSB A to F, 2 threads", Apart, ycsb::ycsb),
];

/// Names and descriptions of the works.
pub fn works() -> impl Iterator<Item = (&'static str, &'static str)> {
    WORKS.iter().map(|(name, what, ..)| (*name, *what))
}

/// Runs the benchmark; `say` is called with each step. After an interruption the result has the rows measured so far,
/// with the error.
///
/// # Errors
/// `Usage` for an unknown work or sizes that make no sense; `Busy` when the folder of a run is there already.
pub fn run(
    options: &BenchOptions,
    cancel: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<(BenchReport, Option<LabError>)> {
    let usage = |why: String| LabError::new(LabErrorKind::Usage, why);
    if let Some(unknown) = options.works.iter().find(|name| works().all(|(work, _)| work != *name)) {
        let names: Vec<_> = works().map(|(name, _)| name).collect();
        return Err(usage(format!("no work is called '{unknown}'; there are {}", names.join(", "))));
    }
    if options.time.is_zero() || options.value_bytes.iter().any(|bytes| *bytes < 16) {
        return Err(usage("the time must be above zero, and values of 16 bytes or more".into()));
    }
    let least = child::limit_bytes(options.cache_bytes);
    if let Some(limit) = options.limit_bytes.filter(|limit| *limit < least) {
        let (limit, cache) = (format::bytes(limit), format::bytes(options.cache_bytes));
        let why = format!(
            "a limit of {limit} is too small for a cache of {cache}: with 1.3 times the cache and 64 MiB, {}, nothing is killed",
            format::bytes(least)
        );
        return Err(usage(why));
    }
    let folder = options.dir.join(if options.program.is_some() { FOLDER } else { CHILD_FOLDER });
    std::fs::create_dir(&folder).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let why =
                format!("{} is there: of a run under way, or of one that was killed; then remove it", folder.display());
            LabError::new(LabErrorKind::Busy, why)
        }
        _ => LabError::system(format_args!("create {}", folder.display()), &error),
    })?;
    let mut bench = Bench { options, folder: &folder, cancel, say, rows: Vec::new() };
    let chosen = |name: &str| options.works.is_empty() || options.works.iter().any(|work| work == name);
    let works = WORKS.iter().filter(|(name, ..)| chosen(name));
    let ended = works.map(|(name, what, room, work)| match (room, &options.program) {
        (Limited, Some(program)) => bench.in_child(program, name, None),
        (Apart, Some(program)) => bench.in_children(program, name),
        _ => {
            (bench.say)(&format!("{name}: {what}"));
            work(&mut bench)
        }
    });
    let trouble = ended.filter_map(Result::err).next();
    let rows = bench.rows.into_iter().map(Row::finish).collect();
    let removed = std::fs::remove_dir_all(&folder);
    let trouble = trouble.or_else(|| removed.err().map(|error| LabError::system(folder.display(), &error)));
    Ok((BenchReport { conditions: conditions(options), rows }, trouble))
}

fn conditions(options: &BenchOptions) -> Vec<String> {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let mut said = vec![
        format!(
            "{cpus} CPUs; out of core: {} of keys and values, {} of memory; in memory: {} keys; seed {}; each {} times, up to {}",
            format::bytes(options.data_bytes),
            format::bytes(options.cache_bytes),
            options.memory_keys,
            options.seed,
            options.repeats,
            format::duration(options.time.as_secs_f64()),
        ),
        "keys of 16 bytes; every answer was checked whole while it was timed; \"device\" is a raw ring or pread pool on the same file"
            .into(),
    ];
    if cfg!(debug_assertions) {
        said.push("built without optimisation: no figure says anything about speed".into());
    }
    said
}

/// The state of a run.
struct Bench<'a> {
    options: &'a BenchOptions,
    folder: &'a Path,
    cancel: &'a AtomicBool,
    say: &'a mut dyn FnMut(&str),
    rows: Vec<Row>,
}

impl Bench<'_> {
    /// Runs a work in a child process for each store.
    fn in_children(&mut self, program: &Path, work: &str) -> Result<()> {
        built().try_for_each(|store| self.in_child(program, work, Some(store)))
    }

    /// Runs a work in a child process, in this run's folder; with `only`, that store's part of it.
    fn in_child(&mut self, program: &Path, work: &str, only: Option<&str>) -> Result<()> {
        self.go_on()?;
        let options = BenchOptions {
            works: vec![work.to_owned()],
            dir: self.folder.to_path_buf(),
            program: None,
            only: only.map(str::to_owned),
            ..self.options.clone()
        };
        let (rows, trouble) = child::run_work(program, &options, self.cancel, self.say)?;
        for row in rows {
            match self.rows.iter_mut().find(|known| known.is_of_the_same(&row)) {
                Some(known) => known.join(row),
                None => self.rows.push(row),
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Whether a store's part is to be measured.
    fn has_part(&self, store: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| only == store)
    }

    /// Fills one store after the other with `data` and passes each to `measure`. Each is closed and removed before the
    /// next is filled, so that they use the same space on disk.
    fn each_store(&mut self, data: Data, mut measure: impl FnMut(&mut Self, &dyn Store) -> Result<()>) -> Result<()> {
        for name in built() {
            if !self.has_part(name) {
                continue;
            }
            self.go_on()?;
            let place = self.place(name)?;
            let store: Box<dyn Store> = match name {
                ENGINE => Box::new(Engine::load(&place, data, &self.small_pool())?),
                _ => match peer(name, &place, data, self.options.cache_bytes) {
                    Some(store) => store?,
                    None => continue,
                },
            };
            measure(self, &*store)?;
            drop(store);
            self.place(name)?;
        }
        Ok(())
    }

    /// Fails when the user wants to stop.
    fn go_on(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(LabError::interrupted()) } else { Ok(()) }
    }

    /// The path of a folder that does not exist yet.
    fn place(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LabError::system(path.display(), &error)),
            _ => Ok(path),
        }
    }

    /// The data set that exceeds the cache.
    fn large(&self, value_bytes: usize) -> Data {
        Data::of_bytes(self.options.data_bytes, value_bytes, self.options.seed)
    }

    /// Settings with a pool that holds a small part of the data.
    fn small_pool(&self) -> Settings {
        let cache_bytes = usize::try_from(self.options.cache_bytes).unwrap_or(usize::MAX);
        Settings { cache_bytes, ..Settings::default() }
    }

    /// Settings with a pool that holds all of `data`.
    fn large_pool(&self, data: Data) -> Settings {
        let cache_bytes = usize::try_from(data.user_bytes() * 2 + (64 << 20)).unwrap_or(usize::MAX);
        Settings { cache_bytes, ..Settings::default() }
    }

    /// The numbers of the rounds of a measurement; ends early when the user stops.
    fn rounds(&self) -> std::ops::Range<u32> {
        0..self.options.repeats
    }
}

/// The stores that were compiled in, the engine first.
fn built() -> impl Iterator<Item = &'static str> {
    [ENGINE].into_iter().chain(PEERS).filter(|name| store::kind_of(name).is_some_and(Kind::is_built))
}

/// The rivals that were not compiled in.
fn not_built() -> Vec<&'static str> {
    PEERS.into_iter().filter(|name| built().all(|built| built != *name)).collect()
}

/// The value size as a row shows it.
fn values(value_bytes: usize) -> String {
    format!("{value_bytes} B")
}

/// CPU of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

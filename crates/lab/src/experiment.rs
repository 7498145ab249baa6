//! What an experiment is: it plans cells from the configuration and what this machine has, and executes one cell.
//!
//! Planning happens once, in the parent; executing happens in a child process of its own for each cell, inside the memory
//! limit, with cold page tables, so that no cell inherits anything from the one before. The child gets a
//! [`CellSpec`] and nothing else. Preparing the machine (limits, cold caches, devices, read-ahead) is the runner's work.

pub mod access;
pub mod async_hazard;
pub mod claims;
pub mod engines;
pub mod errors;
pub mod eviction;
pub mod random;
mod reads;
pub mod safety;
pub mod scan;
pub mod stalls;
pub mod translate;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;

use crate::config::Config;
use crate::error::Result;
use crate::record::{CellSpec, ExperimentId, MemoryLimit, Outcome, Skip, Target, Tick};

/// What this machine has for the experiments, made ready by the runner.
#[derive(Debug, Clone, Default)]
pub struct Available {
    /// The data file on the file system of `Config::dir`.
    pub file: Target,
    /// RAM-backed devices; empty where there are none.
    pub ram: Vec<Target>,
    /// Raw devices that may be read.
    pub devices: Vec<Target>,
    /// Files or devices to stripe over on the user's storage; the first is the data file itself.
    pub stripe: Vec<Target>,
    /// The small files of `async`, all in one target.
    pub async_files: Target,
    /// The engine's database with the content of the data file; `None` where it is left out.
    pub pool: Option<Target>,
    /// Limit for cells on the file and on raw devices.
    pub memory: MemoryLimit,
    /// Limit for cells on RAM-backed devices.
    pub ram_memory: MemoryLimit,
    /// The folder of `engines`, in which one store at a time has its database.
    pub stores: PathBuf,
    /// Limit for the cells of `engines` whose data must not fit, where it can be limited.
    pub stores_memory: Option<MemoryLimit>,
    /// Why it cannot.
    pub no_stores_memory: String,
    /// Version of fio where it is installed.
    pub fio: Option<String>,
    /// The lab's folder, for what cells make themselves.
    pub folder: PathBuf,
    /// The ways to make memory full, for `eviction`.
    pub reclaim: Vec<eviction::Reclaim>,
    /// Memory that is free for the cells now; `None` where it is not known.
    pub memory_available_bytes: Option<u64>,
    /// Whether the lab runs as root.
    pub root: bool,
}

/// The cells of one repeat, in any order (the runner interleaves and repeats them), and what is left out with its reason.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Cells, all with `repeat` 0.
    pub cells: Vec<CellSpec>,
    /// Cells whose outcome is no matter of chance: measured once, before the others.
    pub once: Vec<CellSpec>,
    /// How often to measure `cells`; `None` takes `Config::repeats`.
    pub repeats: Option<u32>,
    /// Neighbours of one contender and target build on each other: they keep their order in every round.
    pub together: bool,
    /// What cannot be measured here.
    pub skips: Vec<Skip>,
}

/// What a cell is executed with.
pub struct Context<'a> {
    /// Counters to read, the target's devices and the cell's cgroup among them.
    pub watch: &'a Watch,
    /// Set when the user stops the run.
    pub cancel: &'a AtomicBool,
    /// Called with each tick as it ends, for live progress.
    pub on_tick: &'a mut dyn FnMut(&Tick),
}

/// Plans one experiment.
pub fn plan(id: ExperimentId, config: &Config, available: &Available) -> Plan {
    match id {
        ExperimentId::Random => random::plan(config, available),
        ExperimentId::Scan => scan::plan(config, available),
        ExperimentId::Async => async_hazard::plan(config, available),
        ExperimentId::Access => access::plan(config, available),
        ExperimentId::Safety => safety::plan(config, available),
        ExperimentId::Stalls => stalls::plan(config, available),
        ExperimentId::Errors => errors::plan(config, available),
        ExperimentId::Engines => engines::plan(config, available),
        ExperimentId::Eviction => eviction::plan(config, available),
        ExperimentId::Translate => translate::plan(config, available),
        ExperimentId::Claims => claims::plan(config, available),
    }
}

/// Whether a cell makes its warm state itself: the engine's pool is warm when the pool is, not the page cache,
/// and what is made in memory has no file at all.
pub fn warms_itself(spec: &CellSpec) -> bool {
    // Caches of a store's own are filled through the store.
    spec.experiment == ExperimentId::Engines
        || spec.target.paths.is_empty()
        || crate::contender::pool::is_pool(&spec.contender)
}

/// Measures one cell, in this process. The caller has limited the memory and dropped the caches.
///
/// # Errors
/// When files cannot be opened or the system refuses the contender's way of reading.
pub fn execute(spec: &CellSpec, context: &mut Context<'_>) -> Result<Outcome> {
    match spec.experiment {
        ExperimentId::Random => random::execute(spec, context),
        ExperimentId::Scan => scan::execute(spec, context),
        ExperimentId::Async => async_hazard::execute(spec, context),
        ExperimentId::Access => access::execute(spec, context),
        ExperimentId::Safety => safety::execute(spec, context),
        ExperimentId::Stalls => stalls::execute(spec, context),
        ExperimentId::Errors => errors::execute(spec, context),
        ExperimentId::Eviction => eviction::execute(spec, context),
        ExperimentId::Translate => translate::execute(spec, context),
        ExperimentId::Engines => engines::execute(spec, context),
        ExperimentId::Claims => claims::execute(spec, context),
    }
}

//! The claims for and against mmap that no other experiment decides: small trials, one question each. This module only
//! measures; [`crate::report::claims`] judges the claims.
//!
//! | variant | comparison |
//! |---|---|
//! | `cached-read` | data in the page cache, read in units: in place through a map, copied out of it, by `pread` |
//! | `map-calls` | threads that map, touch and unmap a part of a file, against `pread` of the same part |
//! | `many-maps` | a cached file looked at through one map of all of it, through a thousand of its parts |
//! | `file-growth` | appending to a file that is mapped, made longer in small steps and in large ones |
//! | `private-remap` | how long remapping a private view takes, by the pages copied in it |
//! | `uncached-read` | `pread` with RWF_DONTCACHE against direct and buffered `pread`, data larger than memory |
//! | `map-commit` | pages changed and made durable: in a writable map with msync, by `pwrite` with fdatasync |
//! | `long-reader` | growth of a database under updates while a reader is held |
//!
//! Kept true by: only files and folders that the trial itself made ([`crate::machine::scratch`]), or that have no name,
//! are written.

mod rules;
mod texts;
mod trial;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::check::{counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{
    Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, Section, SmallFiles, TargetView,
};
use crate::measure::read_loops::Pattern;
use crate::measure::read_loops::fill::Memory;
use crate::measure::workload::{self, Layout, PAGE_BYTES};
use crate::measure::{self, Work};
use crate::methods::{self, Family, Method, methods};
use crate::read_trials::{self, Planner, params};
use crate::record::{CacheState, ExperimentId, MemoryMethod, Outcome, Params, Skip, SkipCause, Target, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::summary::{Basis, Metric};

/// The variant that reads cached data in units of several sizes.
pub const CACHED_READ: &str = "cached-read";
/// The variant in which many threads call mmap and munmap.
pub const MAP_CALLS: &str = "map-calls";
/// The variant that compares one map of a file with a thousand.
pub const MANY_MAPS: &str = "many-maps";
/// The variant in which a mapped file grows.
pub const FILE_GROWTH: &str = "file-growth";
/// The variant in which a private map is mapped again.
pub const PRIVATE_REMAP: &str = "private-remap";
/// The variant with buffered reads that leave nothing in the page cache.
pub const UNCACHED_READ: &str = "uncached-read";
/// The variant with durable changes through a map.
pub const MAP_COMMIT: &str = "map-commit";
/// The variant in which a database is updated while a reader holds a snapshot.
pub const LONG_READER: &str = "long-reader";

/// Bytes that each call of `map-calls` maps or reads.
const CALL_BYTES: u64 = 1 << 20;
/// Steps in bytes by which the file of `file-growth` grows.
const GROWTH_STEPS: [u64; 3] = [PAGE_BYTES as u64, 1 << 20, 64 << 20];
/// Planned seconds of a trial of `long-reader` for each million updates.
const READER_S_PER_MILLION: f64 = 30.0;

methods! {
    /// The methods that only this experiment has.
    OWN:
    MMAP_IN_PLACE = Method::new("mmap-in-place", "mmap, in place", Family::Mapped).ready();
    MMAP_COPY = Method::new("mmap-copy", "mmap, copied out", Family::Mapped).ready();
    MMAP_CALL = Method::new("mmap-call", "mmap, touch, munmap", Family::Mapped);
    MMAP_CALL_ONE_PAGE = Method::new("mmap-call-one-page", "mmap, touch one page, munmap", Family::Mapped);
    ONE_MAP = Method::new("one-map", "one map of the file", Family::Mapped);
    THOUSAND_MAPS = Method::new("thousand-maps", "a thousand maps", Family::Mapped);
    GROW_MAPPED = Method::new("grow-mapped", "mapped file, growing", Family::Mapped);
    MMAP_PRIVATE = Method::new("mmap-private", "private map, mapped anew", Family::Mapped);
    MMAP_COMMIT = Method::new("mmap-commit", "writable map, msync", Family::Mapped);
    PWRITE_FDATASYNC = Method::new("pwrite-fdatasync", "pwrite, fdatasync", Family::Buffered);
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("claims");

/// The experiment `claims`, as the registry lists it.
pub(crate) struct Claims;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 10,
    methods: OWN,
    claims: rules::CLAIMS,
    evidence: rules::EVIDENCE,
    less_memory: |_| Some("--set async.file_bytes=BYTES"),
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Claims {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, config: &Config) -> Needs {
        let claims: Parameters = config.params();
        let limited = if claims.thorough { LimitedTrials::Some } else { LimitedTrials::Nothing };
        Needs { file: claims.thorough, limited, small_files: SmallFiles::Shared, ..Needs::default() }
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis::by(Metric::OpsPerS)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::figures(&section.by_family(), section.variant, &section.title)
    }

    fn tables(&self, _: &TargetView<'_, '_>) -> Vec<Sheet> {
        // The trials differ in kind, so the terminal lists the claims instead of a table.
        Vec::new()
    }
}

/// Plans the trials. Trials on cached data use one of the small files of `async`; uncached trials use the large data
/// file.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let Some(path) = available.small_files.paths.first() else {
        plan.skips.push(skip("", "no file to read: the lab makes it when it runs".into()));
        return plan;
    };
    let target = Target { paths: vec![path.clone()], ..available.small_files.clone() };
    let claims: Parameters = config.params();
    let mut trial = |variant: &str, method: &str, params: Params, cache: CacheState, duration_s: f64| {
        let base = TrialSpec::of(ID, config.seed, target.clone(), method);
        plan.trials.push(TrialSpec { variant: variant.into(), params, duration_s, cache, ..base });
    };
    for bytes in claims.unit_bytes.iter().filter(|bytes| **bytes <= target.data_bytes / 2) {
        for method in trial::CACHED_METHODS {
            trial(CACHED_READ, method, in_units(params(1, 1, *bytes)), CacheState::Warm, claims.cell_s);
        }
    }
    if target.data_bytes >= 2 * CALL_BYTES {
        for threads in map_threads(&claims) {
            for method in trial::CALL_METHODS {
                trial(MAP_CALLS, method, params(threads, 1, CALL_BYTES), CacheState::Warm, claims.cell_s);
            }
        }
    }
    for method in trial::MAP_METHODS {
        trial(MANY_MAPS, method, params(1, 1, PAGE_BYTES as u64), CacheState::Warm, claims.cell_s);
    }
    for step_bytes in GROWTH_STEPS {
        let mut params = params(1, 1, PAGE_BYTES as u64);
        params.extra.insert("step".into(), step_bytes.to_string());
        trial(FILE_GROWTH, GROW_MAPPED.id, params, CacheState::Warm, claims.cell_s);
    }
    let pages = |name: &str, count: u32| {
        let mut params = params(1, 1, PAGE_BYTES as u64);
        params.extra.insert(name.into(), count.to_string());
        params
    };
    for count in claims.copied_pages.iter().filter(|count| u64::from(**count) < target.data_bytes / PAGE_BYTES as u64) {
        trial(PRIVATE_REMAP, MMAP_PRIVATE.id, pages("copied_pages", *count), CacheState::Warm, claims.cell_s);
    }
    for held in ["none", "held"] {
        let mut params = params(1, 1, PAGE_BYTES as u64);
        params.extra.insert("reader".into(), held.into());
        params.extra.insert("updates".into(), claims.reader_updates.to_string());
        params.extra.insert("keys".into(), claims.reader_keys.to_string());
        let duration_s = claims.reader_updates as f64 / 1e6 * READER_S_PER_MILLION;
        for method in trial::STORES.into_iter().filter(|id| trial::not_built(id).is_none()) {
            trial(LONG_READER, method, params.clone(), CacheState::Cold, duration_s);
        }
    }
    if claims.thorough {
        for count in &claims.commit_pages {
            for method in trial::COMMIT_METHODS {
                trial(MAP_COMMIT, method, pages("commit_pages", *count), CacheState::Cold, claims.cell_s);
            }
        }
        plan_uncached(config, claims.cell_s, available, &mut plan);
    } else {
        let later = "measured from --preset standard on, or with claims.thorough = true";
        let skip = skip("", format!("{UNCACHED_READ}, {MAP_COMMIT}: {later}"));
        plan.skips.push(skip.because(SkipCause::LargerPreset));
    }
    for id in trial::STORES {
        if let Some(why) = trial::not_built(id) {
            plan.skips.push(skip(id, format!("{LONG_READER}: {why}")));
        }
    }
    plan
}

/// Adds the size of a read to the extra parameters, so that trials with different sizes differ in their parameters.
fn in_units(mut params: Params) -> Params {
    params.extra.insert("unit".into(), crate::format::bytes(params.block_bytes).replace(' ', ""));
    params
}

fn skip(method: &str, reason: String) -> Skip {
    Skip::new(ID, "", method, reason)
}

/// Returns the thread counts of `map-calls`: one, and the counts of the configuration.
fn map_threads(claims: &Parameters) -> Vec<u32> {
    let cpus = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
    let named = claims.map_threads.iter().map(|threads| if *threads == 0 { cpus.max(2) } else { *threads });
    let mut all: Vec<u32> = std::iter::once(1).chain(named).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Plans random reads and scans of the large file, with the same memory limit as `random`.
fn plan_uncached(config: &Config, cell_s: f64, available: &Available, plan: &mut Plan) {
    if available.file.paths.is_empty() || available.memory.method == MemoryMethod::None {
        plan.skips.push(skip("", format!("{UNCACHED_READ}: memory cannot be limited here")));
        return;
    }
    let from = plan.trials.len();
    let threads = 16;
    let mut planner = Planner {
        experiment: ID,
        config,
        available,
        target: &available.file,
        memory: available.memory,
        // Memory must be full before the measured part.
        duration_s: cell_s * 4.0,
        no_pool: None,
        plan,
    };
    for block_bytes in [PAGE_BYTES as u64, 64 << 10] {
        for method in [&methods::PREAD_DONTCACHE, &methods::PREAD_DIRECT, &methods::PREAD_BUFFERED_RANDOM] {
            planner.add(method, [in_units(params(threads, 1, block_bytes))]);
        }
    }
    plan.trials[from..].iter_mut().for_each(|trial| trial.variant = UNCACHED_READ.into());
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown variant or method; `Unsupported` where kernel or file system refuse the way of reading;
/// otherwise the system's error.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = || workload::layout_of(spec, spec.params.block_bytes);
    match spec.variant.as_str() {
        CACHED_READ => trial::cached_read(spec, &layout()?, context),
        MAP_CALLS => trial::map_calls(spec, &layout()?, context),
        MANY_MAPS => trial::many_maps(spec, &layout()?, context),
        FILE_GROWTH => trial::file_growth(spec, context),
        PRIVATE_REMAP => trial::private_remap(spec, &layout()?, context),
        UNCACHED_READ => read_trials::execute(spec, &layout()?, (Pattern::Random, Memory::Full), context),
        MAP_COMMIT => trial::map_commit(spec, context),
        LONG_READER => trial::long_reader(spec, context),
        other => Err(LabError::new(LabErrorKind::Usage, format!("claims: unknown variant '{other}'"))),
    }
}

/// Runs the workers for the trial's planned time.
fn run_timed(spec: &TrialSpec, works: Vec<Work<'_>>, context: &mut Context<'_>) -> Result<Outcome> {
    let plan = context.timed(spec)?;
    measure::run(&plan, works, context.on_tick)
}

/// Runs a workload of fixed size, rather than fixed duration, to its end.
fn run_fixed(work: Work<'_>, context: &mut Context<'_>) -> Result<Outcome> {
    // Only a bound for the case that the device hangs: the trial ends when its work is done.
    let plan = context.lasting(Duration::from_secs(3600), Duration::from_secs(1));
    let mut outcome = measure::run(&plan, vec![work], context.on_tick)?;
    outcome.steady = None;
    Ok(outcome)
}

/// Returns the path of the trial's only file.
fn only_path<'a>(spec: &TrialSpec, layout: &'a Layout) -> Result<&'a Path> {
    match layout.paths.as_slice() {
        [path] => Ok(path),
        paths => {
            let message = format!("{}: {} files, but a trial works on one", spec.key(), paths.len());
            Err(LabError::new(LabErrorKind::Usage, message))
        }
    }
}

/// Returns the folder of the trial's file, in which the trial makes its own files.
fn folder_of(spec: &TrialSpec) -> PathBuf {
    let folder = spec.target.paths.first().and_then(|path| Path::new(path).parent());
    folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf()
}

/// Parses a number among the trial's extra parameters.
fn number(spec: &TrialSpec, name: &str) -> Result<u64> {
    let text = spec.params.extra.get(name).map_or("", String::as_str);
    text.parse()
        .map_err(|_| LabError::new(LabErrorKind::Usage, format!("{}: {name} = '{text}' must be a number", spec.key())))
}

/// Parameters of `claims`, for the small trials of this experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Bytes of one read of cached data, from the smallest unit in published claims to the largest.
    pub(crate) unit_bytes: Vec<u64>,
    /// Thread counts of `map-calls`, besides one; 0 stands for one thread for each CPU.
    pub(crate) map_threads: Vec<u32>,
    /// Numbers of pages copied in a private map before it is mapped again.
    pub(crate) copied_pages: Vec<u32>,
    /// Whether the trials that take longer are measured too: uncached buffered reads, commits through a map, growth
    /// under a reader.
    pub(crate) thorough: bool,
    /// Numbers of pages changed in one durable commit.
    pub(crate) commit_pages: Vec<u32>,
    /// Number of updates while a reader is held.
    pub(crate) reader_updates: u64,
    /// Number of keys that the updates are spread over.
    pub(crate) reader_keys: u64,
}

impl Parameters {
    /// The parameters of the quick preset: the trials for a first answer.
    fn quick() -> Self {
        Self {
            cell_s: 0.15,
            unit_bytes: vec![4096, 1 << 20],
            map_threads: vec![0],
            copied_pages: vec![256, 4096],
            thorough: false,
            commit_pages: vec![1, 256],
            reader_updates: 20_000,
            reader_keys: 2_000,
        }
    }

    /// The parameters of the standard preset: all trials.
    fn standard() -> Self {
        Self {
            cell_s: 0.3,
            unit_bytes: vec![4096, 16 << 10, 64 << 10, 1 << 20],
            map_threads: vec![0, 16],
            copied_pages: vec![64, 1024, 4096, 16_384],
            thorough: true,
            commit_pages: vec![1, 16, 256, 4096],
            reader_updates: 200_000,
            reader_keys: 10_000,
        }
    }

    /// The parameters of the paper preset: longer trials, and further unit sizes in between.
    fn paper() -> Self {
        Self {
            cell_s: 10.0,
            unit_bytes: vec![4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            reader_updates: 500_000,
            ..Self::standard()
        }
    }
}

/// The setting without which flags for the longer trials have no effect, as error messages name it.
const THOROUGH: &str = "--set claims.thorough=true beside it";

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::shared(&flags::SIZE).only(|params, _| params.thorough, THOROUGH),
        Use::shared(&flags::MEMORY).only(|params, _| params.thorough, THOROUGH),
        Use::shared(&flags::MEMORY_METHOD).only(|params, _| params.thorough, THOROUGH),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.map_threads)),
    ];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self::quick(),
            Preset::Standard => Self::standard(),
            Preset::Paper => Self::paper(),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("claims.cell_s", &[self.cell_s])?;
        let unit = |bytes: &&u64| !(bytes.is_power_of_two() && (4096..=8 << 20).contains(*bytes));
        if let Some(bytes) = self.unit_bytes.iter().find(unit) {
            return Err(format!("claims.unit_bytes = {bytes}: must be a power of two from 4096 to 8 MiB"));
        }
        if let Some(threads) = self.map_threads.iter().find(|threads| **threads > 1024) {
            return Err(format!("claims.map_threads = {threads}: must be at most 1024"));
        }
        counts("claims.copied_pages", &self.copied_pages, 1 << 20)?;
        counts("claims.commit_pages", &self.commit_pages, 1 << 20)?;
        if self.reader_keys == 0 || self.reader_keys > 1 << 24 || self.reader_updates > 1 << 32 {
            return Err("claims.reader_keys must be 1 to 2^24, and claims.reader_updates at most 2^32".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

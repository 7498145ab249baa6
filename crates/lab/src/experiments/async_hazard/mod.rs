//! Whether `await` helps when the file is mapped. After "Async hazard: mmap is secretly blocking IO" (Huon Wilson,
//! 2024).
//!
//! Eight files are read in the source's six ways: {tasks of one single-threaded executor, one thread a file, one
//! thread} x {map, read calls}. Four more ways are added: the map with a yield after each touch (the most favourable
//! form of "async mmap"), warm also a map whose pages this process has touched before (as warm as a pool), direct reads on a ring, and the engine's own async
//! reads; the executor itself polls the descriptors of both. A trial is one run and gives one dot of the strip plot.
//!
//! Two variants of the work:
//! - `random-touch`, the default: a seeded sequence of 4 KiB touches, the same in every file. Read-ahead cannot hide
//!   it.
//! - `sequential`, the source's: the sum of every 512th byte. Large read-ahead hides the hazard, so the figure means
//!   little without the device's `read_ahead_kb`.
//!
//! On the executor's thread a timer of 1 ms fires among the tasks; its lateness is the delay that a user of the
//! executor sees. The kernel's timer counts expirations, so a tick that the executor ran too late still counts with its
//! full lateness.

mod rules;
mod texts;
mod trial;

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trial::{Job, Means};

use crate::config::check::{at_least, counts};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, MIB, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{
    Available, Context, Description, Experiment, Needs, Plan, PoolBytes, Section, SmallFiles, TargetView,
};
use crate::measure::{self, Work, Worker};
use crate::methods::{Family, Method, methods};
use crate::record::{CacheState, ExperimentId, MemoryLimit, Outcome, Params, Skip, SkipCause, Target, TrialSpec};
use crate::show::columns::{self, Sheet};
use crate::show::figures::Figure;
use crate::summary::{Basis, Group, Metric, Summary};

/// The variant that touches pages in random order.
pub const RANDOM_TOUCH: &str = "random-touch";
/// The variant of the published measurement: a sequential sum of the files.
pub const SEQUENTIAL: &str = "sequential";

/// Planned time of touching one cold page, when touches follow each other, in seconds.
const PLANNED_TOUCH_S: f64 = 60e-6;
/// Planned rate of a sequential pass over cold files, in bytes a second.
const PLANNED_BYTES_PER_S: f64 = 1.2e9;

/// The methods: id, distribution of the work over tasks and threads, and way of reading.
const METHODS: [(&str, Spread, Means); 10] = [
    (ASYNC_MMAP.id, Spread::Tasks { yields: false }, Means::Map),
    (ASYNC_MMAP_YIELD.id, Spread::Tasks { yields: true }, Means::Map),
    (ASYNC_MMAP_TOUCHED.id, Spread::Tasks { yields: false }, Means::TouchedMap),
    (ASYNC_READ.id, Spread::Tasks { yields: false }, Means::Read),
    (ASYNC_URING.id, Spread::Ring, Means::Read),
    (ASYNC_POOL.id, Spread::Pool, Means::Read),
    (THREADS_MMAP.id, Spread::Threads, Means::Map),
    (THREADS_READ.id, Spread::Threads, Means::Read),
    (SINGLE_MMAP.id, Spread::Single, Means::Map),
    (SINGLE_READ.id, Spread::Single, Means::Read),
];

/// How the files are distributed over tasks and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// One task for each file, all on one single-threaded executor.
    Tasks {
        /// Whether a task yields after each touch.
        yields: bool,
    },
    /// One task for each file on one single-threaded executor; the tasks read through one ring.
    Ring,
    /// One task for each file on one single-threaded executor; the tasks read through the engine's pool.
    Pool,
    /// One thread for each file.
    Threads,
    /// One thread reading one file after another.
    Single,
}

impl Spread {
    /// Whether the work shares the executor's thread with other tasks.
    fn is_of_executor(self) -> bool {
        matches!(self, Self::Tasks { .. } | Self::Ring | Self::Pool)
    }
}

/// The parameter with the number of files, each of which is read by a task.
const FILES: &str = "files";

methods! {
    /// The methods that only this experiment has.
    OWN:
    ASYNC_MMAP = Method::new("async-mmap", "async mmap", Family::Mapped).in_flight_of(FILES);
    ASYNC_MMAP_YIELD = Method::new("async-mmap-yield", "async mmap, yielding", Family::Mapped).in_flight_of(FILES);
    ASYNC_MMAP_TOUCHED = Method::new("async-mmap-touched", "async mmap, touched before", Family::Mapped).in_flight_of(FILES).ready();
    ASYNC_READ = Method::new("async-read", "async read", Family::Buffered).in_flight_of(FILES);
    ASYNC_URING = Method::new("async-uring", "async io_uring", Family::Ring).in_flight_of(FILES);
    ASYNC_POOL = Method::new("async-pool", "async nofault pool", Family::Pool).in_flight_of(FILES);
    THREADS_MMAP = Method::new("threads-mmap", "threads, mmap", Family::Mapped);
    THREADS_READ = Method::new("threads-read", "threads, read", Family::Buffered);
    SINGLE_MMAP = Method::new("single-mmap", "one thread, mmap", Family::Mapped);
    SINGLE_READ = Method::new("single-read", "one thread, read", Family::Buffered);
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("async");

/// The experiment `async`, as the registry lists it.
pub(crate) struct AsyncHazard;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 1,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    evidence: rules::EVIDENCE,
    less_memory: |_| Some("--set async.file_bytes=BYTES"),
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for AsyncHazard {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, config: &Config) -> Needs {
        let own: Parameters = config.params();
        Needs {
            small_files: SmallFiles::Own { count: own.files, file_bytes: own.file_bytes },
            pool: PoolBytes::Bytes(own.data_bytes()),
            // The only trials there belong to the source's open questions.
            ram_devices: u32::from(own.open_questions),
            ..Needs::default()
        }
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis::by(Metric::Seconds)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        // In the order of the source, not by family.
        let strips = texts::strips(&section.groups, &section.title);
        strips.into_iter().chain(texts::lateness(&section.groups, &section.title)).collect()
    }

    /// How late a timer among the tasks fires on the file, for everything that runs on the executor's own thread.
    fn paper(&self, summary: &Summary<'_>) -> Vec<Figure> {
        let on_executor =
            |group: &&Group<'_>| spread_of(&group.spec.method).is_some_and(|(spread, _)| spread.is_of_executor());
        let groups: Vec<&Group<'_>> = summary.at(ID, RANDOM_TOUCH, "file").into_iter().filter(on_executor).collect();
        texts::lateness(&groups, "file").into_iter().collect()
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        // The source's sequential variant is only in the report, because read-ahead decides it.
        let shown = place.variants.iter().find(|variant| **variant == RANDOM_TOUCH).or(place.variants.first());
        let title = columns::title(self.id(), place.target);
        let sheet =
            |variant: &&str| Sheet::new(texts::columns(&place.summary.at(self.id(), variant, place.target), &title));
        shown.map(sheet).into_iter().collect()
    }
}

/// Plans one run of each configuration; the runner repeats them `runs` times.
fn plan(config: &Config, available: &Available) -> Plan {
    let own: Parameters = config.params();
    let mut plan = Plan { repeats: Some(own.runs), ..Plan::default() };
    let mut variants = vec![RANDOM_TOUCH];
    if own.sequential {
        variants.push(SEQUENTIAL);
    }
    for variant in variants {
        for cache in [CacheState::Cold, CacheState::Warm] {
            for (method, spread, means) in METHODS {
                let yields = spread == Spread::Tasks { yields: true };
                let in_pool = spread == Spread::Pool;
                if in_pool {
                    plan_pool(config, available, variant, cache, &mut plan);
                    continue;
                }
                let ring_has_no_cache = spread == Spread::Ring && cache == CacheState::Warm;
                // Only warm data can be touched before, and only to stand next to the pool, which has no sequential trial.
                let touched = means == Means::TouchedMap && (cache == CacheState::Cold || variant == SEQUENTIAL);
                if !(variant == SEQUENTIAL && yields || ring_has_no_cache || touched) {
                    plan.trials.push(trial(config, &available.small_files, variant, method, cache, &[]));
                }
            }
        }
    }
    let label = &available.small_files.label;
    let reason = "no warm run: direct reads bypass the page cache; async-pool is the same with a cache";
    plan.skips.push(Skip::new(ID, label, ASYNC_URING.id, reason));
    if own.open_questions {
        plan_open_questions(config, available, &mut plan);
    } else {
        let reason = "the source's open questions (madvise options, read-ahead, prefetch instructions, device kinds) are \
            measured from --preset standard on, or with async.open_questions = true";
        plan.skips.push(Skip::new(ID, label, "", reason).because(SkipCause::LargerPreset));
    }
    if let Some(reason) = &available.no_ring {
        plan.trials.retain(|trial| spread_of(&trial.method).is_none_or(|(spread, _)| spread != Spread::Ring));
        plan.skips.push(Skip::new(ID, label, ASYNC_URING.id, reason));
    }
    plan
}

/// Fewest bytes of the cache of the engine's own async reads.
const CACHE_BYTES_MIN: u64 = 16 << 20;

/// Plans the engine's own async reads. The sequential variant is left out: its sum of every 512th byte needs a file's
/// layout, which a database does not have.
fn plan_pool(config: &Config, available: &Available, variant: &str, cache: CacheState, plan: &mut Plan) {
    let reason = match &available.pool {
        Some(_) if variant == SEQUENTIAL => {
            "random-touch only: a database has no bytes to sum in a row; its scan is in `scan`"
        }
        Some(pool) => {
            let data_bytes = config.params::<Parameters>().data_bytes();
            let target = Target { data_bytes, ..pool.clone() };
            // Memory that the data cannot use is still pinned at the start of each trial.
            let enough = data_bytes.saturating_mul(2).max(CACHE_BYTES_MIN);
            let own = crate::measure::read_loops::pool::cache_bytes(MemoryLimit::default(), available.pool_bytes);
            let bytes = own.min(enough).to_string();
            plan.trials.push(trial(config, &target, variant, ASYNC_POOL.id, cache, &[("cache_bytes", &bytes)]));
            return;
        }
        None => "left out by the configuration (pool = 'off')",
    };
    let skip = Skip::new(ID, &available.small_files.label, ASYNC_POOL.id, reason);
    if !plan.skips.contains(&skip) {
        plan.skips.push(skip);
    }
}

/// Plans trials for the open questions of the published measurement: each option alone, on the one configuration that
/// shows the hazard.
fn plan_open_questions(config: &Config, available: &Available, plan: &mut Plan) {
    let cold = CacheState::Cold;
    let skip = |target: &str, method: &str, reason: &str| Skip::new(ID, target, method, reason);
    let may_set = available.root;
    if !may_set && !config.read_ahead_kb.is_empty() {
        let reason = "other values of read_ahead_kb: setting it needs root; run with sudo";
        plan.skips.push(skip(&available.small_files.label, ASYNC_MMAP.id, reason));
    }
    for variant in [RANDOM_TOUCH, SEQUENTIAL] {
        for advice in ["normal", "sequential", "willneed", "populate"] {
            let extra = [("advice", advice)];
            plan.trials.push(trial(config, &available.small_files, variant, ASYNC_MMAP.id, cold, &extra));
        }
        for read_ahead in config.read_ahead_kb.iter().filter(|_| may_set) {
            let read_ahead = read_ahead.to_string();
            for method in [ASYNC_MMAP.id, ASYNC_READ.id] {
                let extra = [("advice", "normal"), ("read_ahead_kb", read_ahead.as_str())];
                plan.trials.push(trial(config, &available.small_files, variant, method, cold, &extra));
            }
        }
    }
    let prefetch = [("prefetch", "cpu")];
    plan.trials.push(trial(config, &available.small_files, RANDOM_TOUCH, ASYNC_MMAP_YIELD.id, cold, &prefetch));
    if available.ram.is_empty() {
        let reason = "no RAM-backed device here (root and zram make one): the question of device kinds stays open";
        plan.skips.push(skip("ram", "", reason));
    }
    for device in available.ram.iter().take(1).chain(&available.devices) {
        for method in [ASYNC_MMAP.id, ASYNC_READ.id, ASYNC_URING.id, THREADS_MMAP.id, SINGLE_MMAP.id] {
            plan.trials.push(trial(config, device, RANDOM_TOUCH, method, cold, &[]));
        }
    }
}

fn trial(
    config: &Config,
    target: &Target,
    variant: &str,
    method: &str,
    cache: CacheState,
    extra: &[(&str, &str)],
) -> TrialSpec {
    let own: Parameters = config.params();
    let threads = match spread_of(method) {
        Some((Spread::Threads, _)) => own.files,
        _ => 1,
    };
    let mut extra: std::collections::BTreeMap<String, String> =
        extra.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    extra.insert("files".into(), own.files.to_string());
    if variant == RANDOM_TOUCH {
        extra.insert("touches".into(), own.touches.to_string());
    }
    TrialSpec {
        variant: variant.into(),
        params: Params { threads, depth: 1, block_bytes: 4096, extra },
        duration_s: planned_s(&own, variant, method, cache),
        cache,
        ..TrialSpec::of(ID, config.seed, target.clone(), method)
    }
}

/// Planned seconds of a trial on an ordinary disk. The amount of work is fixed, so the real time differs.
fn planned_s(own: &Parameters, variant: &str, method: &str, cache: CacheState) -> f64 {
    let files = f64::from(own.files);
    let whole_s = if variant == RANDOM_TOUCH {
        f64::from(own.touches) * files * PLANNED_TOUCH_S
    } else {
        own.file_bytes as f64 * files / PLANNED_BYTES_PER_S
    };
    let several = matches!(spread_of(method), Some((Spread::Threads | Spread::Ring | Spread::Pool, _)));
    let share = if several { 0.5 } else { 1.0 } * if cache == CacheState::Cold { 1.0 } else { 0.25 };
    (whole_s * share).max(0.1)
}

fn spread_of(method: &str) -> Option<(Spread, Means)> {
    METHODS.iter().find(|(id, ..)| *id == method).map(|(_, spread, means)| (*spread, *means))
}

/// Runs one configuration once.
///
/// # Errors
/// `Usage` for an unknown method or option; the error of opening, mapping or reading the files.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let (spread, means) = spread_of(&spec.method)
        .ok_or_else(|| LabError::new(LabErrorKind::Usage, format!("async: unknown method '{}'", spec.method)))?;
    let opened = if matches!(spread, Spread::Ring | Spread::Pool) { None } else { Some(means) };
    let mut jobs = Job::of(spec, opened)?;
    let pool = if spread == Spread::Pool { Some(trial::open(spec, &jobs)?) } else { None };
    let works: Vec<Work<'_>> = match spread {
        Spread::Threads => jobs
            .into_iter()
            .map(|job| Box::new(move |worker: &mut Worker<'_>| one_after_another(worker, vec![job])) as Work<'_>)
            .collect(),
        Spread::Single => vec![Box::new(move |worker| one_after_another(worker, jobs))],
        Spread::Tasks { yields } => vec![Box::new(move |worker| trial::run_tasks(worker, jobs, means, yields))],
        Spread::Ring => vec![Box::new(move |worker| trial::run_ring(worker, jobs))],
        Spread::Pool => pool
            .iter()
            .map(|pool| {
                let jobs = std::mem::take(&mut jobs);
                Box::new(move |worker: &mut Worker<'_>| trial::run_pool(worker, jobs, pool)) as Work<'_>
            })
            .collect(),
    };
    // Only a bound for the case that the device hangs: the trial ends when its work is done.
    let plan = context.lasting(Duration::from_secs(3600), Duration::from_secs(1));
    let mut outcome = measure::run(&plan, works, context.on_tick)?;
    if let Some(pool) = &pool {
        pool.record_in(&mut outcome);
        if spec.cache == CacheState::Warm {
            outcome.cache_method = "every block that will be touched was read into the pool".into();
        }
    }
    // A fixed amount of work has no steady part: the time of the whole is the figure.
    outcome.steady = None;
    outcome.partial = context.cancel.load(Ordering::Relaxed);
    Ok(outcome)
}

/// Executes the jobs one after another on one thread.
fn one_after_another(worker: &mut Worker<'_>, jobs: Vec<Job>) -> Result<()> {
    worker.start();
    for mut job in jobs {
        while worker.running() {
            let Some(done) = job.step()? else { break };
            done.note(worker);
        }
    }
    Ok(())
}

/// Parameters of `async`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Number of files, each read by one task.
    pub(crate) files: u32,
    /// Bytes of a file.
    pub(crate) file_bytes: u64,
    /// Number of random 4 KiB touches in each file.
    pub(crate) touches: u32,
    /// Number of runs of each configuration: one dot each in the strip plot.
    pub(crate) runs: u32,
    /// Whether the published measurement's sequential sum is measured too.
    pub(crate) sequential: bool,
    /// Whether the published measurement's open questions are measured too: madvise options, read-ahead, prefetch
    /// instructions, device kinds.
    pub(crate) open_questions: bool,
}

impl Parameters {
    /// Bytes of all files together.
    fn data_bytes(&self) -> u64 {
        self.file_bytes.saturating_mul(u64::from(self.files))
    }
}

/// The setting without which flags for the open questions have no effect, as error messages name it.
const ASKED: &str = "--set async.open_questions=true beside it";

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[&flags::POOL, &flags::READ_AHEAD];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.runs)),
        Use::none(&flags::SECONDS, "--set async.touches=COUNT"),
        Use::none(&flags::SIZE, "--set async.file_bytes=BYTES"),
        Use::none(&flags::THREADS, "--set async.files=COUNT, each read by a task"),
        Use::shared(&flags::RAM_DEVICE).only(|params, _| params.open_questions, ASKED),
        Use::shared(&flags::RAM_SIZE).only(|params, _| params.open_questions, ASKED),
        Use::shared(&flags::DEVICE).only(|params, _| params.open_questions, ASKED),
    ];

    fn preset(preset: Preset) -> Self {
        let quick =
            Self { files: 8, file_bytes: 32 * MIB, touches: 256, runs: 3, sequential: true, open_questions: false };
        let standard =
            |quick| Self { file_bytes: 256 * MIB, touches: 2048, sequential: true, open_questions: true, ..quick };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard(quick),
            Preset::Paper => Self { runs: 100, ..standard(quick) },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        counts("async.files", &[self.files], 1024)?;
        counts("async.runs", &[self.runs], 10_000)?;
        counts("async.touches", &[self.touches], 1 << 24)?;
        at_least("async.file_bytes", self.file_bytes, MIB)
    }
}

#[cfg(test)]
mod tests;

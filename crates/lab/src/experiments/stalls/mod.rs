//! Measures work-arounds for the stalls of a mapping. After §3.2 of "Are You Sure You Want to Use MMAP in Your Database
//! Management System?" (CIDR 2022).
//!
//! A thread that touches an absent page waits, and cannot know this before the touch. The work-arounds, each with its
//! cost:
//! - `ahead`: random pages of data larger than memory, in an order known some pages ahead. The methods are plain
//!   touches; `madvise(WILLNEED)`, read-ahead calls or populating for the pages to come; helper threads that touch the
//!   pages first; memory locked or populated beforehand; probing (`mincore`, `RWF_NOWAIT`), after which other threads
//!   fetch the absent pages; and reads in flight on a ring.
//! - `fits`: a working set of a quarter of the memory, while a background load reads the rest of the file through the
//!   page cache. The working set is left as it is, read in, populated, locked, or held in private memory.
//! - `leaf-scan`: a tree's leaves are scanned: the engine's, with and without prefetching the leaves to come, and the same
//!   tree's over a mapped file, under each hint.
//!
//! `op` is the time that one access took the thread, with the work-around's own calls; its largest value is the longest
//! stall. `prepare` is work done once beforehand, which stalls the thread as well. Figures give the resources that a
//! work-around takes: `extra_threads`, `extra_memory_bytes`, `prepare_s`. A probing thread waits for its helpers when
//! it has no other work. That time counts in `wait`, and requesting an absent page counts in `probe`; neither is part
//! of `op`, because the program chooses when to wait. So the `op` of probing is not compared with the `op` of other
//! methods. The ring's wait for the next page in order is part of its `op`.

pub(crate) mod rules;
mod texts;
mod trial;

use serde::{Deserialize, Serialize};

use crate::config::check::{at_least, counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Choice, Config, MIB, Preset};
use crate::error::Result;
use crate::experiment::{
    Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, PoolBytes, Section, Stores, TargetView,
};
use crate::machine::memory::lock_bytes_max;
use crate::measure::workload::PAGE_BYTES;
use crate::measure::{Measurement, read_loops};
use crate::methods::{self, Family, Method, methods};
use crate::record::{ExperimentId, MemoryLimit, Outcome, Params, Skip, SkipCause, Target, TrialSpec};
use crate::show::columns::{self, Sheet, chosen};
use crate::show::figures::{Figure, latencies, rates};
use crate::summary::{Basis, Metric};

/// The variant that accesses random pages in an order that is known some pages ahead.
pub const AHEAD: &str = "ahead";
/// The variant with a working set that fits in memory, under a background load.
pub const FITS: &str = "fits";
/// The variant in which the leaves of a tree are scanned.
pub const LEAF_SCAN: &str = "leaf-scan";

/// Divisors of the memory limit: for the bytes that `mmap-mlock` locks, and for the working set of `fits`.
const LOCKED_SHARE: u64 = 2;
const WORKING_SHARE: u64 = 4;

methods! {
    /// The methods that only this experiment has.
    OWN:
    MMAP_WILLNEED = Method::new("mmap-willneed", "mmap, MADV_WILLNEED", Family::Mapped);
    MMAP_READAHEAD = Method::new("mmap-readahead", "mmap, read-ahead calls", Family::Mapped);
    MMAP_POPULATE_AHEAD = Method::new("mmap-populate-ahead", "mmap, MADV_POPULATE_READ", Family::Mapped);
    MMAP_HELPERS = Method::new("mmap-helpers", "mmap, helper threads", Family::Mapped);
    MMAP_POPULATE = Method::new("mmap-populate", "mmap, populated first", Family::Mapped);
    MMAP_MLOCK = Method::new("mmap-mlock", "mmap, mlock", Family::Mapped);
    MMAP_MINCORE = Method::new("mmap-mincore", "mmap, mincore and helpers", Family::Mapped);
    MMAP_NOWAIT = Method::new("mmap-nowait", "mmap, RWF_NOWAIT and helpers", Family::Mapped);
    POOL_FRAMES = Method::new("pool-frames", "its own memory", Family::Pool);
    ENGINE_SCAN = Method::new("engine-scan", "engine, leaf scan", Family::Ring);
    ENGINE_SCAN_NOPREFETCH = Method::new("engine-scan-noprefetch", "engine, leaf scan without prefetch", Family::Ring);
    MMAP_SCAN_NORMAL = Method::new("mmap-scan-normal", "mapped tree, NORMAL", Family::Mapped);
    MMAP_SCAN_RANDOM = Method::new("mmap-scan-random", "mapped tree, RANDOM", Family::Mapped);
    MMAP_SCAN_WILLNEED = Method::new("mmap-scan-willneed", "mapped tree, WILLNEED ahead", Family::Mapped);
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("stalls");

/// The experiment `stalls`, as the registry lists it.
pub(crate) struct Stalls;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 3,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    evidence: rules::EVIDENCE,
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Stalls {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, config: &Config) -> Needs {
        let stalls: Parameters = config.params();
        let pool = PoolBytes::Bytes(stalls.scan_bytes);
        let tree = Stores {
            data_bytes: stalls.scan_bytes,
            memory_bytes: config.memory_bytes,
            data_bytes_max: stalls.scan_bytes,
        };
        let stores = has_mapped_tree(config).then_some(tree);
        Needs { file: true, limited: LimitedTrials::All, pool, stores, ..Needs::default() }
    }

    fn preparation_s(&self, spec: &TrialSpec) -> f64 {
        // The first trial needing the tree makes it.
        let makes = spec.method == trial::MAPPED_SCANS[0] && spec.repeat == 0;
        if makes { spec.target.data_bytes as f64 / trial::MAKE_BYTES_PER_S } else { 0.0 }
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis::paging(Metric::Latency("op", 999))
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        let (groups, place) = (section.by_family(), &section.title);
        let mut figures = Vec::new();
        figures.extend(texts::stalls(&groups, place));
        figures.extend(rates(&groups, place, Metric::OpsPerS, "accesses per second"));
        figures.extend(latencies(&groups, place, "op", "access"));
        figures
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        let groups =
            place.variants.iter().flat_map(|variant| chosen(place.summary.at(self.id(), variant, place.target)));
        vec![Sheet::new(texts::columns(&groups.collect::<Vec<_>>(), &columns::title(self.id(), place.target)))]
    }
}

/// Whether the leaves of a mapped tree are scanned: making the tree takes too long for the quick preset, and without the
/// engine's database there is nothing to compare it with.
fn has_mapped_tree(config: &Config) -> bool {
    config.preset != Preset::Quick && config.pool != Choice::Off
}

/// Plans the work-arounds. The quick preset takes plain touches, one hint, helper threads, the ring, and both scans of
/// the engine's leaves.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let quick = config.preset == Preset::Quick;
    let stalls: Parameters = config.params();
    let skip = |method: &str, reason: String| Skip::new(ID, "file", method, reason);
    let memory = available.memory;
    let trial =
        |variant: &str, method: &str, target: &Target, memory: MemoryLimit, extra: &[(&str, String)]| TrialSpec {
            variant: variant.into(),
            params: Params {
                threads: 1,
                depth: stalls.ahead,
                block_bytes: PAGE_BYTES as u64,
                extra: extra.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            },
            duration_s: stalls.cell_s,
            memory,
            ..TrialSpec::of(ID, config.seed, target.clone(), method)
        };
    let locked = memory.bytes / LOCKED_SHARE;
    let helpers: Vec<u32> = stalls.helpers.clone();
    for method in trial::AHEAD_METHODS.into_iter().chain(trial::PROBE_METHODS) {
        if quick && ![methods::MMAP.id, MMAP_WILLNEED.id, MMAP_HELPERS.id, methods::URING_DIRECT.id].contains(&method) {
            continue;
        }
        if method == MMAP_MLOCK && lock_bytes_max() < locked {
            plan.skips.push(skip(method, "RLIMIT_MEMLOCK is too small (ulimit -l); run as root".into()));
            continue;
        }
        if let Some(reason) = available.no_ring.as_ref().filter(|_| method == methods::URING_DIRECT) {
            plan.skips.push(skip(method, reason.clone()));
            continue;
        }
        if method == MMAP_HELPERS || trial::PROBE_METHODS.contains(&method) {
            let trials = helpers
                .iter()
                .map(|count| trial(AHEAD, method, &available.file, memory, &[("helpers", count.to_string())]));
            plan.trials.extend(trials);
        } else {
            plan.trials.push(trial(AHEAD, method, &available.file, memory, &[]));
        }
    }
    match (quick, lock_bytes_max() < memory.bytes / WORKING_SHARE) {
        (true, _) => {
            let later = "measured from --preset standard on: fits, the other work-arounds, scans of a mapped tree";
            let skip = skip("", later.into());
            plan.skips.push(skip.because(SkipCause::LargerPreset));
        }
        (false, no_lock) => {
            let bytes = [("working_set", (memory.bytes / WORKING_SHARE).to_string())];
            for method in trial::FITS_METHODS {
                if method == MMAP_MLOCK && no_lock {
                    plan.skips.push(skip(method, "RLIMIT_MEMLOCK is too small (ulimit -l); run as root".into()));
                    continue;
                }
                plan.trials.push(trial(FITS, method, &available.file, memory, &bytes));
            }
        }
    }
    match &available.pool {
        Some(target) => {
            let extra = [("cache_bytes", read_loops::pool::cache_bytes(memory, available.pool_bytes).to_string())];
            plan.trials.extend(trial::LEAF_METHODS.map(|method| trial(LEAF_SCAN, method, target, memory, &extra)));
            if has_mapped_tree(config) {
                let paths = vec![available.stores_folder(ID)];
                let tree = Target { paths, data_bytes: stalls.scan_bytes, ..target.clone() };
                plan.trials.extend(trial::MAPPED_SCANS.map(|method| trial(LEAF_SCAN, method, &tree, memory, &[])));
            }
        }
        None => plan.skips.push(skip(ENGINE_SCAN.id, "the engine takes no part here (pool = 'off')".into())),
    }
    plan
}

/// Measures one method of a variant.
///
/// # Errors
/// `Usage` for unknown variants and methods; the error of opening, mapping, locking or reading.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let mut outcome = match spec.variant.as_str() {
        AHEAD if trial::PROBE_METHODS.contains(&&*spec.method) => trial::run_probe(spec, context)?,
        AHEAD => trial::run_ahead(spec, context)?,
        FITS => trial::run_fits(spec, context)?,
        LEAF_SCAN => trial::run_leaf_scan(spec, context)?,
        _ => return Err(read_loops::unknown(spec)),
    };
    for name in ["extra_threads", "extra_memory_bytes", "prepare_s"] {
        outcome.figures.entry(name.into()).or_insert(0.0);
    }
    // Calls made once beforehand stall as well: they are reported next to the percentiles, which would hide them.
    if let Some(op) = outcome.latency.get("op") {
        outcome.figures.insert("longest_stall_s".into(), op.max_ns as f64 / 1e9);
    }
    Ok(outcome)
}

/// Returns the plan of a trial's measurement.
fn measurement<'a>(spec: &TrialSpec, context: &Context<'a>) -> Result<Measurement<'a>> {
    Ok(Measurement { memory_bytes: read_loops::memory_limit_of(spec), ..context.timed(spec)? })
}

/// Parses a number among the trial's extra parameters.
fn number(spec: &TrialSpec, name: &str) -> Result<u64> {
    let text = spec.params.extra.get(name).map(String::as_str).unwrap_or_default();
    text.parse().map_err(|_| {
        let message = format!("{}: {name} = '{text}' must be a whole number", spec.key());
        crate::error::LabError::new(crate::error::LabErrorKind::Usage, message)
    })
}

/// Parameters of `stalls`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Number of pages ahead for which the order of accesses is known.
    pub(crate) ahead: u32,
    /// Numbers of helper threads, which touch pages ahead or fetch absent pages.
    pub(crate) helpers: Vec<u32>,
    /// Bytes of the engine's database to scan, where no other experiment needs a larger database.
    pub(crate) scan_bytes: u64,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD, &flags::POOL];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::none(&flags::THREADS, "--set stalls.helpers=[COUNT]"),
        Use::none(&flags::DEPTHS, "--set stalls.ahead=COUNT"),
    ];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self { cell_s: 0.4, ahead: 32, helpers: vec![4], scan_bytes: 128 * MIB },
            Preset::Standard => Self { cell_s: 1.0, ahead: 32, helpers: vec![1, 4, 16], scan_bytes: 1024 * MIB },
            Preset::Paper => Self { cell_s: 60.0, ahead: 32, helpers: vec![1, 4, 16, 64], scan_bytes: 8192 * MIB },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("stalls.cell_s", &[self.cell_s])?;
        counts("stalls.ahead", &[self.ahead], 4096)?;
        counts("stalls.helpers", &self.helpers, 1024)?;
        at_least("stalls.scan_bytes", self.scan_bytes, MIB)
    }
}

#[cfg(test)]
mod tests;

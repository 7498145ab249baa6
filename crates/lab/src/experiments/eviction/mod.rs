//! Which of the three bottlenecks binds when mapped pages are evicted? After §3.4 of "Are You Sure You Want to Use MMAP
//! in Your Database Management System?" (CIDR 2022): contention on the page table, eviction by a single thread, TLB
//! shootdowns.
//!
//! Two variants measure a single mechanism, with all data in memory:
//! - `faults`: the cost of a page fault by number of threads: in one map for all threads, in a map for each thread, and
//!   as a read call without any map;
//! - `shootdowns`: the cost of unmapping a page, alone and with other threads in the same address space.
//!
//! The other variants fill memory, by both ways of reclaim where both are possible: by a cgroup, in which the faulting
//! thread reclaims, and by a ballast, with which kswapd reclaims. `random-*` and `scan-*`: mapped, read through the
//! page cache without a map (evicted, but never shot down), and direct (never evicted). A control pins all threads to
//! one CPU, so that no other CPU needs a shootdown.

pub(crate) mod rules;
mod texts;
mod trial;

use serde::{Deserialize, Serialize};

use crate::config::check::{at_least, counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, MIB, Preset};
use crate::error::Result;
use crate::experiment::{
    Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, ReclaimBytes, Section, TargetView,
};
use crate::measure::read_loops::fill::Memory;
use crate::measure::read_loops::{self, Pattern};
use crate::measure::workload::{self, PAGE_BYTES};
use crate::methods::{self, Family, Method, methods};
use crate::read_trials;
use crate::record::{CacheState, ExperimentId, MemoryLimit, Outcome, Params, Skip, SkipCause, Target, TrialSpec};
use crate::show::columns::{self, Sheet};
use crate::show::figures::Figure;
use crate::show::literature::{Counterparts, LiteratureRow, LiteratureTable};
use crate::summary::{Basis, Metric, Paging, Summary};

/// The variant that measures the cost of a page fault.
pub const FAULTS: &str = "faults";
/// The variant that measures the cost of unmapping a page.
pub const SHOOTDOWNS: &str = "shootdowns";

/// Warning of a trial under reclaim in which nothing was evicted.
const NOTHING_EVICTED: &str = "memory was never full: nothing was evicted, so this says nothing of reclaim";

/// Bytes that a scan by read calls reads at a time.
const SCAN_BLOCK_BYTES: u64 = 1 << 20;

methods! {
    /// The methods that only this experiment has.
    OWN:
    MMAP_ONE_MAP = Method::new("mmap-one-map", "fault, one map", Family::Mapped);
    MMAP_OWN = Method::new("mmap-own", "fault, a map a thread", Family::Mapped);
    MMAP_UNMAP_PAGE = Method::new("mmap-unmap-page", "map and unmap a page", Family::Mapped);
    MMAP_UNMAP_BATCH = Method::new("mmap-unmap-batch", "map and unmap 64 pages", Family::Mapped);
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("eviction");

/// The experiment `eviction`, as the registry lists it.
pub(crate) struct Eviction;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 8,
    in_quick: false,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    less_memory: |_| Some("--set eviction.fault_bytes=BYTES"),
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Eviction {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, config: &Config) -> Needs {
        let eviction: Parameters = config.params();
        let kswapd = match eviction.kswapd {
            true => Ok(eviction.kswapd_bytes),
            false => {
                Err("from --preset standard on, or with eviction.kswapd = true: a ballast takes nearly all memory"
                    .into())
            }
        };
        let reclaim = Some(ReclaimBytes { cgroup: eviction.cgroup_bytes, kswapd });
        Needs { file: true, limited: LimitedTrials::All, ram_devices: 1, reclaim, ..Needs::default() }
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis { paging: Paging::Reclaim, ..Basis::by(Metric::CpuPerGb) }
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::figures(&section.by_family(), section.variant, section.target, &section.title)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        let title = columns::title(self.id(), place.target);
        vec![Sheet::new(texts::columns(place.summary, &place.variants, place.target, &title))]
    }

    fn counterparts<'g, 'a>(
        &self,
        table: &LiteratureTable,
        row: &LiteratureRow,
        summary: &'g Summary<'a>,
    ) -> Counterparts<'g, 'a> {
        // Take the trials in which kswapd evicts, as on the paper's machine; otherwise trials under a cgroup.
        let at = |by: &str| {
            let own = summary.of_experiment(self.id()).filter(|group| {
                let spec = group.spec;
                spec.method == row.method && spec.variant == format!("{}-{by}", table.variant)
            });
            own.filter_map(|group| Some((group.spread(table.metric)?.median, group)))
                .reduce(|most, next| if next.0 > most.0 { next } else { most })
        };
        Counterparts { groups: vec![at("kswapd").or_else(|| at("cgroup")).map(|(_, group)| group)], on_file: false }
    }
}

/// The work of a trial under reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReclaimWork {
    /// Reads of random pages.
    Random,
    /// Reads from front to back.
    Scan,
}

/// Splits a variant such as `random-kswapd` into its work and its way of reclaim; `None` for a variant that measures a
/// single mechanism.
fn reclaim_of(variant: &str) -> Option<(ReclaimWork, &str)> {
    match variant.split_once('-')? {
        ("random", by) => Some((ReclaimWork::Random, by)),
        ("scan", by) => Some((ReclaimWork::Scan, by)),
        _ => None,
    }
}

/// Whether a variant is a scan, whose rate is given in bytes.
fn is_scan(variant: &str) -> bool {
    reclaim_of(variant).is_some_and(|(work, _)| work == ReclaimWork::Scan)
}

/// Plans the trials of single mechanisms, then the trials on each target under each way of reclaim.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    plan_parts(config, &mut plan);
    for reclaim in &available.reclaim {
        let target = if reclaim.on_ram { available.ram.first() } else { Some(&available.file) };
        let Some(target) = target else { continue };
        match &reclaim.limit {
            Ok(limit) => plan_reclaim(config, target, reclaim.by, *limit, &mut plan),
            Err(reason) => {
                let left_out = Skip::new(ID, &target.label, "", format!("under {}: {reason}", reclaim.by));
                let is_later = reclaim.by == "kswapd" && !config.params::<Parameters>().kswapd;
                skip(&mut plan, if is_later { left_out.because(SkipCause::LargerPreset) } else { left_out });
            }
        }
    }
    if available.ram.is_empty() {
        let reason = "no RAM-backed device: making one needs root, the zram module and ram_device = 'auto'";
        skip(&mut plan, Skip::new(ID, "ram", "", reason));
    }
    plan
}

fn skip(plan: &mut Plan, skip: Skip) {
    if !plan.skips.contains(&skip) {
        plan.skips.push(skip);
    }
}

fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32)
}

fn plan_parts(config: &Config, plan: &mut Plan) {
    let eviction: Parameters = config.params();
    let target = Target {
        label: "memory".into(),
        paths: Vec::new(),
        data_bytes: eviction.fault_bytes,
        content_seed: Some(config.seed),
    };
    if cpus() < 2 {
        skip(plan, Skip::new(ID, "memory", "", "one CPU only: no other CPU contends, and none needs a shootdown"));
    }
    let mut counts = vec![1, cpus()];
    counts.dedup();
    for (variant, methods) in [
        (FAULTS, [MMAP_ONE_MAP.id, MMAP_OWN.id, methods::PREAD_CACHED.id].as_slice()),
        (SHOOTDOWNS, &[MMAP_UNMAP_PAGE.id, MMAP_UNMAP_BATCH.id]),
    ] {
        for method in methods {
            for threads in &counts {
                plan.trials.push(TrialSpec {
                    variant: variant.into(),
                    params: read_trials::params(*threads, 1, PAGE_BYTES as u64),
                    duration_s: eviction.part_s,
                    cache: CacheState::Warm,
                    ..TrialSpec::of(ID, config.seed, target.clone(), method)
                });
            }
        }
    }
}

fn plan_reclaim(config: &Config, target: &Target, by: &str, memory: MemoryLimit, plan: &mut Plan) {
    let eviction: Parameters = config.params();
    let mut add = |work: &str, method: &str, params: Params| {
        plan.trials.push(TrialSpec {
            variant: format!("{work}-{by}"),
            params,
            duration_s: eviction.cell_s,
            memory,
            // Memory is full from the start: the filling is not measured here.
            cache: CacheState::Warm,
            ..TrialSpec::of(ID, config.seed, target.clone(), method)
        });
    };
    let page = PAGE_BYTES as u64;
    let most = eviction.threads.iter().copied().max().unwrap_or(1);
    for threads in &eviction.threads {
        add("random", methods::MMAP_RANDOM.id, read_trials::params(*threads, 1, page));
        add("random", methods::PREAD_DIRECT.id, read_trials::params(*threads, 1, page));
    }
    add("random", methods::PREAD_BUFFERED_RANDOM.id, read_trials::params(most, 1, page));
    if cpus() > 1 {
        let mut pinned = read_trials::params(most, 1, page);
        pinned.extra.insert("pin".into(), "1".into());
        add("random", methods::MMAP_RANDOM.id, pinned);
    }
    add("scan", methods::MMAP_NORMAL.id, read_trials::params(eviction.scan_threads, 1, page));
    add("scan", methods::PREAD_BUFFERED.id, read_trials::params(eviction.scan_threads, 1, SCAN_BLOCK_BYTES));
    add("scan", methods::PREAD_DIRECT.id, read_trials::params(eviction.scan_threads, 1, SCAN_BLOCK_BYTES));
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening, mapping or reading.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let _pinned = match spec.params.extra.get("pin") {
        Some(_) => Some(trial::PinnedThread::here()?),
        None => None,
    };
    match spec.variant.as_str() {
        FAULTS => trial::faults(spec, context),
        SHOOTDOWNS => trial::shootdowns(spec, context),
        variant => {
            let work = match variant.split('-').next() {
                Some("random") => (Pattern::Random, Memory::Full),
                Some("scan") => (Pattern::Scan { part_bytes: 128 << 20 }, Memory::Empty),
                _ => return Err(read_loops::unknown(spec)),
            };
            let layout = workload::layout_of(spec, spec.params.block_bytes)?;
            let mut outcome = read_trials::execute(spec, &layout, work, context)?;
            // Only direct reads put nothing into the page cache that could be evicted.
            let evicted = outcome.counter("pgsteal_file").or_else(|| outcome.counter("cgroup_pgsteal"));
            if spec.method != methods::PREAD_DIRECT && evicted == Some(0.0) {
                outcome.warnings.push(NOTHING_EVICTED.into());
            }
            Ok(outcome)
        }
    }
}

/// Parameters of `eviction`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length in seconds of a trial under reclaim.
    pub(crate) cell_s: f64,
    /// Length in seconds of a trial that measures a single mechanism (`faults`, `shootdowns`).
    pub(crate) part_s: f64,
    /// Thread counts of the trials under reclaim.
    pub(crate) threads: Vec<u32>,
    /// Number of threads of a scan.
    pub(crate) scan_threads: u32,
    /// Bytes of memory that the cgroup leaves to page cache and process.
    pub(crate) cgroup_bytes: u64,
    /// Bytes of memory that the ballast leaves to all processes, so that kswapd reclaims; it leaves more where the
    /// machine needs more.
    pub(crate) kswapd_bytes: u64,
    /// Whether trials under kswapd are measured. They need a ballast, which takes nearly all of the machine's memory
    /// for a while.
    pub(crate) kswapd: bool,
    /// Bytes of the file in memory from which `faults` maps cached pages.
    pub(crate) fault_bytes: u64,
}

impl Parameters {
    /// The parameters of the quick preset: short trials, only under a cgroup.
    fn quick() -> Self {
        Self {
            cell_s: 0.6,
            part_s: 0.2,
            threads: vec![8],
            scan_threads: 4,
            cgroup_bytes: 64 * MIB,
            kswapd_bytes: 1024 * MIB,
            kswapd: false,
            fault_bytes: 64 * MIB,
        }
    }

    /// The parameters of the standard preset: both ways of reclaim, on one thread and on many.
    fn standard() -> Self {
        Self {
            cell_s: 0.9,
            part_s: 0.3,
            threads: vec![1, 16],
            kswapd: true,
            fault_bytes: 256 * MIB,
            cgroup_bytes: 256 * MIB,
            ..Self::quick()
        }
    }

    /// The parameters of the paper preset: longer trials, on as many threads as in the paper.
    fn paper() -> Self {
        Self {
            cell_s: 60.0,
            part_s: 5.0,
            threads: vec![1, 16, 100],
            scan_threads: 20,
            cgroup_bytes: 4096 * MIB,
            kswapd_bytes: 102_400 * MIB,
            fault_bytes: 1024 * MIB,
            ..Self::standard()
        }
    }
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[&flags::SIZE, &flags::RAM_DEVICE, &flags::RAM_SIZE];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::shared(&flags::MEMORY).and_own(|params, value| {
            value.put_bytes(&mut params.cgroup_bytes);
            value.put_bytes(&mut params.kswapd_bytes);
        }),
        Use::own(&flags::THREADS, |params, value| {
            value.put_counts(&mut params.threads);
            value.put_count(&mut params.scan_threads);
        }),
    ];

    fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Quick => Self::quick(),
            Preset::Standard => Self::standard(),
            Preset::Paper => Self::paper(),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("eviction.cell_s", &[self.cell_s, self.part_s])?;
        counts("eviction.threads", &self.threads, 4096)?;
        counts("eviction.scan_threads", &[self.scan_threads], 4096)?;
        at_least("eviction.cgroup_bytes", self.cgroup_bytes, 32 * MIB)?;
        at_least("eviction.kswapd_bytes", self.kswapd_bytes, 32 * MIB)?;
        at_least("eviction.fault_bytes", self.fault_bytes, MIB)
    }
}

#[cfg(test)]
mod tests;

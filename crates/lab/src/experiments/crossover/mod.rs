//! Finds the border between the workloads in which a map is faster than explicit I/O and those in which it is slower.
//!
//! A grid: data from half of memory to eight times memory, reads that are uniform or zipfian, one to many requests in
//! flight. At each point the best valid map stands against buffered reads, direct reads and the engine's pool, under the same
//! memory limit. Memory settles before the clock starts ([`crate::measure::read_loops::settle`]), by each method's own reads in the
//! trial's own order, so that the miss rate follows from the method's own replacement.
//!
//! A further variant, `hot-set`, decides one claim on a RAM-backed device of the lab's own: whether a map told RANDOM loses
//! pages in use. There the device's read-ahead can be switched off without a change to the user's disk.

mod rules;
mod texts;

use serde::{Deserialize, Serialize};

use crate::config::check::{counts, positive, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Choice, Config, Preset};
use crate::error::Result;
use crate::experiment::{
    Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, PoolBytes, Section, TargetView, limit_flag,
};
use crate::format;
use crate::measure::read_loops::fill::Memory;
use crate::measure::read_loops::{Pattern, pool};
use crate::measure::workload::{self, PAGE_BYTES, Skew};
use crate::methods;
use crate::read_trials::{self, Planner, params as counted};
use crate::record::{ExperimentId, MemoryLimit, Outcome, Params, Skip, Target, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::summary::{Basis, Metric, Summary};

/// The variant reading every block equally often.
pub const UNIFORM: &str = "uniform";
/// The variant with a zipfian distribution, constant 0.99.
pub const ZIPF: &str = "zipf";
/// The variant in which a set of pages that fits in memory takes nearly all reads.
pub const HOT_SET: &str = "hot-set";

/// Name of the parameter with the size of the data, as a multiple of the memory.
const DATA: &str = "data_per_memory";
/// Share of the reads that go to the hot set, in percent.
const HOT_PERCENT: u8 = 95;
/// The hot set is this part of the memory limit.
const HOT_SHARE: u64 = 2;
/// Threads of a trial with a hot set.
const HOT_THREADS: u32 = 4;
/// Planned seconds before the clock of a trial starts, in which memory settles.
const SETTLING_S: f64 = 2.5;

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("crossover");

/// The experiment `crossover`, as the registry lists it.
pub(crate) struct Crossover;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 1,
    in_quick: false,
    findings: rules::find,
    claims: rules::CLAIMS,
    contributions: &[("random-hint-forgets-hot-pages", rules::forgets)],
    evidence: rules::EVIDENCE,
    more_memory: limit_flag,
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Crossover {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, limited: LimitedTrials::All, pool: PoolBytes::OfFile, ram_devices: 1, ..Needs::default() }
    }

    fn preparation_s(&self, _: &TrialSpec) -> f64 {
        SETTLING_S
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        // Data that fits never fills memory, and is not to.
        Basis { out_of_core: spec.target.data_bytes > spec.memory.bytes, ..Basis::paging(Metric::OpsPerS) }
    }

    fn overview(&self, summary: &Summary<'_>) -> Vec<Figure> {
        rules::targets(summary).into_iter().filter_map(|target| texts::map(summary, target)).collect()
    }

    fn paper(&self, summary: &Summary<'_>) -> Vec<Figure> {
        texts::map(summary, "file").into_iter().collect()
    }

    fn gallery(&self, machines: &[(String, &Summary<'_>)]) -> Vec<Figure> {
        let of = |(label, summary): &(String, &Summary<'_>)| {
            let figure = texts::map(summary, "file")?;
            Some(Figure { title: format!("{label}: mmap against the best explicit method"), ..figure })
        };
        machines.iter().filter_map(of).collect()
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::every_method(&section.by_family(), section.variant, &section.title)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        vec![texts::sheet(place.summary, place.target)]
    }
}

/// The order of a trial's reads, by its variant.
fn pattern_of(spec: &TrialSpec) -> Pattern {
    match spec.variant.as_str() {
        ZIPF => Pattern::Skewed(Skew::Zipf),
        HOT_SET => {
            let blocks = spec.memory.bytes / HOT_SHARE / spec.params.block_bytes.max(1);
            Pattern::Skewed(Skew::HotSet { blocks, percent: HOT_PERCENT })
        }
        _ => Pattern::Random,
    }
}

/// Plans the grid on the file, and the hot set on a RAM-backed device.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let own: Parameters = config.params();
    plan.repeats = Some(own.repeats);
    for data in &own.data_per_memory {
        let bytes = (available.memory.bytes as f64 * data) as u64 / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if bytes > available.file.data_bytes || bytes < 64 * PAGE_BYTES as u64 {
            let (needed, present) = (format::bytes(bytes), format::bytes(available.file.data_bytes));
            let reason = format!("data of {data} times the memory: {needed} of {present}; ask for more with --size");
            plan.skips.push(Skip::new(ID, "file", "", reason));
            continue;
        }
        let target = Target { data_bytes: bytes, ..available.file.clone() };
        for variant in [UNIFORM, ZIPF] {
            let point = Point { variant, data: *data, target: &target, memory: available.memory };
            point.plan(config, available, &own, &mut plan);
        }
    }
    plan_hot_set(config, available, &own, &mut plan);
    plan
}

/// A size of the data and an order of reads: a row of the grid.
struct Point<'a> {
    variant: &'static str,
    data: f64,
    target: &'a Target,
    memory: MemoryLimit,
}

impl Point<'_> {
    fn plan(&self, config: &Config, available: &Available, own: &Parameters, plan: &mut Plan) {
        let from = plan.trials.len();
        let mut planner = Planner {
            experiment: ID,
            config,
            available,
            target: self.target,
            memory: self.memory,
            duration_s: own.cell_s,
            no_pool: None,
            plan,
        };
        let threads = || own.in_flight.iter().map(|count| counted(*count, 1, PAGE_BYTES as u64));
        let depths = || own.in_flight.iter().map(|count| counted(1, *count, PAGE_BYTES as u64));
        planner.add(&methods::MMAP_RANDOM, threads());
        if self.variant == ZIPF {
            // Where some pages are hot, the hint RANDOM costs their protection: the other valid map has none.
            planner.add_without_read_ahead(&methods::MMAP_NORMAL, threads());
        }
        planner.add(&methods::PREAD_BUFFERED_RANDOM, threads());
        planner.add(&methods::PREAD_DIRECT, threads());
        planner.add(&methods::URING_DIRECT, depths().filter(|params| params.depth > 1));
        // In memory the pool is limited by CPUs, which threads share; beyond it by requests in flight, which tasks give.
        match self.target.data_bytes <= pool::cache_bytes(self.memory, available.pool_bytes) {
            true => planner.add(&methods::POOL, threads()),
            false => planner.add(&methods::POOL_TASKS, depths()),
        }
        for trial in &mut plan.trials[from..] {
            trial.variant = self.variant.into();
            trial.params.extra.insert(DATA.into(), self.data.to_string());
            trial.duration_s = read_trials::long_enough(trial, available, read_trials::READS_MIN);
        }
        // Each size of the data would give the same reasons.
        let mut seen: Vec<Skip> = Vec::new();
        plan.skips.retain(|skip| {
            !seen.contains(skip) && {
                seen.push(skip.clone());
                true
            }
        });
    }
}

fn plan_hot_set(config: &Config, available: &Available, own: &Parameters, plan: &mut Plan) {
    let Some(target) = available.ram.first() else {
        let reason = match config.ram_device {
            Choice::Off => "left out by the configuration (ram_device = 'off')",
            _ => "no RAM-backed device: making one needs root, the zram module and ram_device = 'auto'",
        };
        plan.skips.push(Skip::new(ID, "ram", "", reason));
        return;
    };
    let from = plan.trials.len();
    let (memory, duration_s) = (available.ram_memory, own.hot_s);
    let no_pool = Some("the hot set is about the page cache");
    let mut planner = Planner { experiment: ID, config, available, target, memory, duration_s, no_pool, plan };
    let params = || -> [Params; 1] { [counted(HOT_THREADS, 1, PAGE_BYTES as u64)] };
    planner.add(&methods::MMAP_RANDOM, params());
    planner.add_without_read_ahead(&methods::MMAP_NORMAL, params());
    planner.add(&methods::PREAD_BUFFERED_RANDOM, params());
    plan.trials[from..].iter_mut().for_each(|trial| trial.variant = HOT_SET.into());
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, spec.params.block_bytes)?;
    read_trials::execute(spec, &layout, (pattern_of(spec), Memory::Settled), context)
}

/// Parameters of `crossover`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial in seconds.
    pub(crate) cell_s: f64,
    /// Length in seconds of a trial with a hot set.
    pub(crate) hot_s: f64,
    /// Sizes of the data, as multiples of the memory.
    pub(crate) data_per_memory: Vec<f64>,
    /// Requests in flight: threads of a map and of read calls, depth of a ring, tasks of the pool.
    pub(crate) in_flight: Vec<u32>,
    /// How often each trial is measured.
    pub(crate) repeats: u32,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[
        &flags::SIZE,
        &flags::MEMORY,
        &flags::MEMORY_METHOD,
        &flags::RAM_DEVICE,
        &flags::RAM_SIZE,
        &flags::FILE,
        &flags::POOL,
    ];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.repeats)),
        Use::own(&flags::SECONDS, |params, value| {
            value.put_seconds(&mut params.cell_s);
            value.put_seconds(&mut params.hot_s);
        }),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.in_flight)),
    ];

    fn preset(preset: Preset) -> Self {
        let quick =
            Self { cell_s: 0.4, hot_s: 1.0, data_per_memory: vec![0.5, 2.0, 8.0], in_flight: vec![1, 16], repeats: 3 };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => Self { in_flight: vec![1, 64], ..quick },
            Preset::Paper => Self {
                cell_s: 20.0,
                hot_s: 10.0,
                data_per_memory: vec![0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 4.0, 8.0],
                in_flight: vec![1, 4, 16, 64],
                repeats: 3,
            },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("crossover.cell_s", &[self.cell_s, self.hot_s])?;
        positive("crossover.data_per_memory", &self.data_per_memory)?;
        if self.data_per_memory.is_empty() {
            return Err("crossover.data_per_memory: at least one is needed".into());
        }
        counts("crossover.in_flight", &self.in_flight, 4096)?;
        counts("crossover.repeats", &[self.repeats], 1000)
    }
}

#[cfg(test)]
mod tests;

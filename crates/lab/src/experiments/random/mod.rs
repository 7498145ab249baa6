//! Measures random 4 KiB reads when the data is larger than memory. After §4.1 of "Are You Sure You Want to Use MMAP in
//! Your Database Management System?" (CIDR 2022).
//!
//! Methods: the map with three hints, `pread` buffered and direct on threads, a ring with many requests in flight, the
//! engine's own pool (blocking on threads, tasks of one executor, batches), and fio. The unit of the answer is a curve
//! over requests in flight, so the methods that are compared are measured at the same numbers of them. The hints that
//! are wrong for random reads, and `pread` with the kernel's own read-ahead, run with only one thread count, because
//! they are slow with every count.
//!
//! With `--trace` the blocks are those that a program of the user's read, in its order, on the file only; memory then settles by
//! each method's own reads, as the program's favourite blocks decide what stays. Its writes and syncs are left to `replay`.
//!
//! Two variants:
//! - the plain one begins with full memory, so that every figure shows eviction, however slow the device is, and lasts
//!   for at least a thousand reads of the calibrated device;
//! - `fill` begins with empty memory, as the paper's figure 2 does.

mod rules;
mod texts;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::check::{block, counts, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, Preset};
use crate::error::Result;
use crate::experiment::{
    Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, PoolBytes, Section, TargetView, limit_flag,
};
use crate::measure::read_loops::Pattern;
use crate::measure::read_loops::fill::Memory;
use crate::measure::workload::{self, PAGE_BYTES};
use crate::methods::{self, Axis, Method};
use crate::paths;
use crate::read_trials::{self, Planner, params};
use crate::record::{ExperimentId, MemoryLimit, Outcome, Params, Skip, Target, TrialSpec};
use crate::show::choice::most_telling;
use crate::show::columns::{self, Sheet};
use crate::show::figures::{Figure, costs, latencies, rates, time_series};
use crate::summary::{Basis, Family, Group, Metric, Summary};
use crate::trace::{Op, Trace};

/// Reason for skipping the pool when the configured block size is not 4096 bytes.
const OTHER_BLOCKS: &str = "its entries fill blocks of 4096 bytes, and random.block_bytes is another size";
const _: () = assert!(PAGE_BYTES == 4096, "as OTHER_BLOCKS says");

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("random");

/// The experiment `random`, as the registry lists it.
pub(crate) struct Random;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 0,
    findings: rules::find,
    claims: rules::CLAIMS,
    contributions: &[("pool-costs-as-much", rules::pool)],
    evidence: rules::EVIDENCE,
    more_memory: limit_flag,
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Random {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, limited: LimitedTrials::All, pool: PoolBytes::OfFile, ram_devices: 1, ..Needs::default() }
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis { out_of_core: true, ..Basis::paging(Metric::OpsPerS) }
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        let (groups, place) = (section.by_family(), &section.title);
        let fills = |group: &&Group<'_>| group.good.iter().any(|trial| rules::filled_at(&trial.outcome).is_some());
        let mut figures = Vec::new();
        if groups.iter().any(fills) {
            figures.extend(time_series(&groups, place, Metric::OpsPerS, "reads per second"));
        }
        if section.variant == FILL {
            return figures;
        }
        figures.extend(texts::curves(&groups, place));
        figures.extend(rates(&groups, place, Metric::OpsPerS, "reads per second"));
        figures.extend(costs(&groups, place, Metric::CpuPerOp, "CPU time per read"));
        figures.extend(latencies(&groups, place, "op", "read"));
        figures
    }

    /// Reads per second of the best methods, and the filling of memory with the paper's curves; both on the file.
    fn paper(&self, summary: &Summary<'_>) -> Vec<Figure> {
        let (groups, place) = (summary.at(ID, "", "file"), "file");
        let axis = "reads per second";
        let curve = texts::curves(&groups, place);
        // Memory fills in separate trials, compared with the curve's explicit reads.
        let fills = summary.at(ID, FILL, place);
        let explicit = groups.iter().copied().filter(|group| group.family() != Family::Mapped);
        let filling: Vec<&Group<'_>> =
            if fills.is_empty() { groups.clone() } else { fills.into_iter().chain(explicit).collect() };
        let bars = || rates(&most_telling(&groups, Metric::OpsPerS), place, Metric::OpsPerS, axis);
        let title = |figure: Figure| Figure { title: format!("{}: file", rules::work_of(&groups)), ..figure };
        curve.or_else(bars).map(title).into_iter().chain(texts::figure(&filling, place)).collect()
    }

    fn gallery(&self, machines: &[(String, &Summary<'_>)]) -> Vec<Figure> {
        texts::side_by_side(machines).into_iter().collect()
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        let heads = columns::Heads { rate: "reads/s", cpu_metric: Metric::CpuPerOp, cpu: "CPU/read" };
        // The variant that fills memory is a curve over time, and only in the report.
        let shown: Vec<&str> = place.variants.iter().copied().filter(|variant| *variant != FILL).collect();
        vec![columns::rated(place.summary, self.id(), place.target, &shown, &heads)]
    }
}

/// Selects the thread counts, or depths, with which a method is measured.
#[derive(Debug, Clone, Copy)]
enum Sweep {
    /// Every count that the configuration names: of threads or of requests in flight, as the method has it.
    All,
    /// Only the count nearest to [`USUAL`]: for methods that are slow with every count, such as a map with a wrong hint,
    /// and for methods that stand next to the curve.
    One,
}

/// The number of requests in flight of the methods measured with only one.
const USUAL: u32 = 16;
/// Name of the parameter with the path of a trace.
const TRACE: &str = "trace";
/// The variant beginning with empty memory.
pub const FILL: &str = "fill";

/// The methods that every preset measures on every target.
const MAIN: [(&Method, Sweep); 6] = [
    (&methods::MMAP_RANDOM, Sweep::All),
    (&methods::MMAP_NORMAL, Sweep::One),
    (&methods::PREAD_DIRECT, Sweep::All),
    (&methods::URING_DIRECT, Sweep::All),
    (&methods::POOL_TASKS, Sweep::All),
    (&methods::FIO_PSYNC, Sweep::One),
];
/// Further methods, which the quick preset leaves out on a RAM-backed device.
const OTHERS: [(&Method, Sweep); 6] = [
    (&methods::PREAD_BUFFERED_RANDOM, Sweep::All),
    (&methods::MMAP_SEQUENTIAL, Sweep::One),
    (&methods::PREAD_BUFFERED, Sweep::One),
    (&methods::FIO_URING, Sweep::One),
    (&methods::POOL, Sweep::One),
    (&methods::POOL_GET_MANY, Sweep::One),
];

/// Plans the methods with their thread counts and depths: on the file, on a RAM-backed device and on raw devices.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let random: Parameters = config.params();
    plan_target(config, available, &available.file, available.memory, &random.threads, random.cell_s, &mut plan);
    match available.ram.first() {
        _ if !config.trace.is_empty() => {}
        Some(target) => {
            let (memory, threads) = (available.ram_memory, &random.ram_threads);
            plan_target(config, available, target, memory, threads, random.ram_cell_s, &mut plan);
        }
        None => {
            let reason = "no RAM-backed device: making one needs root, the zram module and ram_device = 'auto'";
            plan.skips.push(Skip::new(ID, "ram", "", reason));
        }
    }
    for device in available.devices.iter().filter(|_| config.trace.is_empty()) {
        plan_target(config, available, device, available.memory, &random.threads, random.cell_s, &mut plan);
    }
    plan
}

fn plan_target(
    config: &Config,
    available: &Available,
    target: &Target,
    memory: MemoryLimit,
    threads: &[u32],
    duration_s: f64,
    plan: &mut Plan,
) {
    let random: Parameters = config.params();
    let in_ram = available.ram.iter().any(|ram| ram == target);
    let trace = config.trace.first().and_then(|path| Some((path, Trace::read(path).ok()?)));
    let block_bytes = trace.as_ref().map_or(random.block_bytes, |(_, trace)| trace.block_bytes());
    let no_pool = Some(OTHER_BLOCKS).filter(|_| block_bytes != PAGE_BYTES as u64);
    let from = plan.trials.len();
    let mut planner = Planner { experiment: ID, config, available, target, memory, duration_s, no_pool, plan };
    let depths = if in_ram { threads } else { &random.depths };
    let counts = |method: &Method, sweep: Sweep| -> Vec<Params> {
        let all = if method.axis == Axis::Threads { threads } else { depths };
        let of = |count: u32| {
            if method.axis == Axis::Threads { params(count, 1, block_bytes) } else { params(1, count, block_bytes) }
        };
        match sweep {
            Sweep::All => all.iter().copied().map(of).collect(),
            Sweep::One => usual(all).map(of).into_iter().collect(),
        }
    };
    for (method, sweep) in MAIN {
        planner.add(method, counts(method, sweep));
    }
    let lean = in_ram && config.preset == Preset::Quick;
    for (method, sweep) in OTHERS {
        match lean {
            true => planner.leave_to_larger_preset(method, "on the RAM-backed device from --preset standard on"),
            false => planner.add(method, counts(method, sweep)),
        }
    }
    if !lean {
        // The engine as it is, with its frames in huge pages: next to the curve, compared with nothing in small ones.
        planner.add(
            &methods::POOL_TASKS,
            depths.iter().copied().max().map(|depth| in_huge_pages(params(1, depth, block_bytes))),
        );
    }
    let filling = planner.plan.trials.len();
    planner.add(&methods::MMAP_RANDOM, counts(&methods::MMAP_RANDOM, Sweep::One));
    if config.preset != Preset::Quick {
        for method in
            [methods::MMAP_NORMAL, methods::MMAP_SEQUENTIAL, methods::PREAD_BUFFERED_RANDOM, methods::PREAD_DIRECT]
        {
            planner.add(&method, counts(&method, Sweep::One));
        }
    }
    plan.trials[filling..].iter_mut().for_each(|trial| trial.variant = FILL.into());
    if let Some((path, trace)) = &trace {
        replay(path, trace, from, plan);
    }
    if target == &available.file {
        plan.trials[from..].iter_mut().for_each(|trial| trial.duration_s = long_enough(trial, available));
    }
}

/// Makes the planned trials from `from` on read the blocks of a trace, and leaves out those that cannot.
fn replay(path: &Path, trace: &Trace, from: usize, plan: &mut Plan) {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let own = |trial: &TrialSpec| trial.variant.is_empty() && !trial.method.starts_with("fio");
    let mut at = 0;
    plan.trials.retain(|trial| {
        at += 1;
        at <= from || own(trial)
    });
    for trial in &mut plan.trials[from..] {
        trial.params.extra.insert(TRACE.into(), paths::to_text(&whole));
    }
    plan.skips.push(Skip::new(ID, "file", methods::FIO_PSYNC.id, "it cannot read the blocks of a trace"));
    let (reads, others) = (trace.count(Op::Read), trace.count(Op::Write) + trace.count(Op::Sync));
    let share = crate::format::Unit::Percent.show(100.0 * others as f64 / (reads + others) as f64);
    let (method, reason) = match (reads, others) {
        (0, _) => {
            plan.trials.truncate(from);
            ("", "the trace has no read; `replay` measures its writes and syncs".to_owned())
        }
        (_, 0) => return,
        _ => {
            let kinds = "writes and syncs, which are left out here: `replay` measures them";
            ("writes-of-the-trace", format!("{share} of the accesses are {kinds}"))
        }
    };
    plan.skips.push(Skip::new(ID, "file", method, reason));
}

/// The count that is nearest to [`USUAL`], as a factor.
fn usual(counts: &[u32]) -> Option<u32> {
    let off = |count: u32| (f64::from(count.max(1)).ln() - f64::from(USUAL).ln()).abs();
    counts.iter().copied().min_by(|a, b| off(*a).total_cmp(&off(*b)))
}

fn in_huge_pages(mut params: Params) -> Params {
    params.extra.insert("buffers".into(), "huge".into());
    params
}

/// The length of a trial in seconds: long enough for a 99th percentile, or to fill memory in a trial beginning with empty
/// memory.
fn long_enough(trial: &TrialSpec, available: &Available) -> f64 {
    // A trial that fills memory runs for as long again, so half of the time is planned for it.
    let filling = if trial.variant == FILL { trial.memory.bytes as f64 / PAGE_BYTES as f64 } else { 0.0 };
    read_trials::long_enough(trial, available, read_trials::READS_MIN.max(filling))
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let mut layout = workload::layout_of(spec, spec.params.block_bytes)?;
    if let Some(path) = spec.params.extra.get(TRACE) {
        layout.recorded = Trace::read(&paths::from_text(path))?.blocks(layout.block_bytes, layout.block_count());
        return read_trials::execute(spec, &layout, (Pattern::Recorded, Memory::Settled), context);
    }
    let memory = if spec.variant == FILL { Memory::Empty } else { Memory::Full };
    read_trials::execute(spec, &layout, (Pattern::Random, memory), context)
}

/// Parameters of `random`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial, in seconds.
    pub(crate) cell_s: f64,
    /// Length in seconds of a trial on the RAM-backed device.
    pub(crate) ram_cell_s: f64,
    /// Thread counts of the synchronous methods.
    pub(crate) threads: Vec<u32>,
    /// Queue depths of the ring methods, which use one thread.
    pub(crate) depths: Vec<u32>,
    /// Thread counts of the synchronous methods, and depths of the others, on the RAM-backed device.
    pub(crate) ram_threads: Vec<u32>,
    /// Bytes of one read.
    pub(crate) block_bytes: u64,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] = &[
        &flags::TRACE,
        &flags::SIZE,
        &flags::MEMORY,
        &flags::MEMORY_METHOD,
        &flags::RAM_DEVICE,
        &flags::RAM_SIZE,
        &flags::DEVICE,
        &flags::FILE,
        &flags::FIO,
        &flags::POOL,
        &flags::READ_AHEAD,
    ];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| {
            value.put_seconds(&mut params.cell_s);
            value.put_seconds(&mut params.ram_cell_s);
        }),
        Use::own(&flags::THREADS, |params, value| {
            value.put_counts(&mut params.threads);
            value.put_counts(&mut params.ram_threads);
        }),
        Use::own(&flags::DEPTHS, |params, value| value.put_counts(&mut params.depths)),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.5,
            ram_cell_s: 0.3,
            threads: vec![1, 4, 16, 64],
            depths: vec![1, 4, 16, 64],
            ram_threads: vec![1, 4, 16],
            block_bytes: 4096,
        };
        let standard = |quick| Self {
            cell_s: 1.0,
            ram_cell_s: 0.5,
            threads: vec![1, 2, 4, 8, 16, 32, 64, 128],
            depths: vec![1, 2, 4, 8, 16, 32, 64, 128],
            ram_threads: vec![1, 2, 4, 16],
            ..quick
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard(quick),
            Preset::Paper => Self {
                cell_s: 300.0,
                threads: vec![1, 2, 4, 8, 16, 32, 64, 100, 128],
                depths: vec![1, 2, 4, 8, 16, 32, 64, 128, 256],
                ..standard(quick)
            },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("random.cell_s", &[self.cell_s, self.ram_cell_s])?;
        counts("random.threads", &self.threads, 4096)?;
        counts("random.ram_threads", &self.ram_threads, 4096)?;
        counts("random.depths", &self.depths, 4096)?;
        block("random.block_bytes", self.block_bytes)
    }
}

#[cfg(test)]
mod tests;

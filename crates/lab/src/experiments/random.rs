//! Measures random 4 KiB reads when the data is larger than memory. After §4.1 of "Are You Sure You Want to Use MMAP in
//! Your Database Management System?" (CIDR 2022).
//!
//! Methods: the map with three hints, `pread` buffered and direct on threads, a ring with many requests in flight, the
//! engine's own pool (blocking on threads, tasks of one executor, batches), and fio. The hints that are wrong for
//! random reads, and `pread` with the kernel's own read-ahead, run with only one thread count, because they are slow
//! with every count.

mod filling;
mod findings;
mod hypotheses;
mod literature;
mod methods;
mod params;
mod reasons;
mod words;

use crate::config::params::ParametersOf;
use crate::config::{Config, Preset};
use crate::error::Result;
use crate::experiment::{
    Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, PoolBytes, Section, TargetView, limit_flag,
};
use crate::methods::Axis;
use crate::read_loops::Pattern;
use crate::read_trials::{self, Planner, params};
use crate::record::{ExperimentId, MemoryLimit, Outcome, Params, Skip, Target, TrialSpec};
use crate::show::choice::most_telling;
use crate::show::columns::{self, Sheet};
use crate::show::figures::{Figure, costs, latencies, rates, sweeps, time_series};
use crate::summary::{Basis, Metric, Summary};
use crate::workload::{self, PAGE_BYTES};

/// Reason for skipping the pool when the configured block size is not 4096 bytes.
const OTHER_BLOCKS: &str = "its entries fill blocks of 4096 bytes, and random.block_bytes is another size";
const _: () = assert!(PAGE_BYTES == 4096, "as OTHER_BLOCKS says");

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("random");

/// The experiment `random`, as the registry lists it.
pub(crate) struct Random;

static DESCRIPTION: Description = Description {
    question: words::QUESTION,
    procedure: words::METHOD,
    change: words::CHANGE,
    rank: 0,
    methods: methods::METHODS,
    findings: findings::find,
    claims: hypotheses::CLAIMS,
    contributions: &[("pool-costs-as-much", hypotheses::pool)],
    evidence: reasons::EVIDENCE,
    more_memory: limit_flag,
    literature: literature::TABLES,
    ..Description::of(ID, &ParametersOf::<params::Params>::NEW)
};

impl Experiment for Random {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, limited: LimitedTrials::All, pool: PoolBytes::OfFile, ram_devices: 1, ..Needs::default() }
    }

    fn plan(&self, config: &Config, available: &Available) -> Plan {
        plan(config, available)
    }

    fn execute(&self, spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
        execute(spec, context)
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis { out_of_core: true, ..Basis::paging(Metric::OpsPerS) }
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        let (groups, place) = (section.by_family(), &section.title);
        let mut figures = Vec::new();
        figures.extend(time_series(&groups, place, Metric::OpsPerS, "reads per second"));
        figures.extend(rates(&groups, place, Metric::OpsPerS, "reads per second"));
        figures.extend(costs(&groups, place, Metric::CpuPerOp, "CPU time per read"));
        figures.extend(sweeps(&groups, place, Metric::OpsPerS, "reads per second"));
        figures.extend(latencies(&groups, place, "op", "read"));
        figures
    }

    /// Reads per second of the best methods, and the filling of memory beside the paper's curves; both on the file.
    fn paper(&self, summary: &Summary<'_>) -> Vec<Figure> {
        let (groups, place) = (summary.at(ID, "", "file"), "file");
        let axis = "reads per second";
        let curve = sweeps(&groups, place, Metric::OpsPerS, axis).into_iter().next();
        let bars = || rates(&most_telling(&groups, Metric::OpsPerS), place, Metric::OpsPerS, axis);
        let title =
            |figure: Figure| Figure { title: "Random 4 KiB reads, data larger than memory: file".into(), ..figure };
        curve.or_else(bars).map(title).into_iter().chain(filling::figure(&groups, place)).collect()
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        let heads = columns::Heads { rate: "reads/s", cpu_metric: Metric::CpuPerOp, cpu: "CPU/read" };
        vec![columns::rated(place.summary, self.id(), place.target, &place.variants, &heads)]
    }
}

/// Selects the thread counts, or depths, with which a method is measured.
#[derive(Debug, Clone, Copy)]
enum Sweep {
    /// Every count that the configuration names: of threads or of requests in flight, as the method has it.
    All,
    /// Only the largest number of threads: for methods that are slow with every count, such as a map with a wrong hint.
    Most,
}

/// The methods that every preset measures on every target.
const MAIN: [(&str, Sweep); 7] = [
    ("mmap-random", Sweep::All),
    ("mmap-normal", Sweep::Most),
    ("pread-direct", Sweep::All),
    ("uring-direct", Sweep::All),
    ("pool", Sweep::All),
    ("pool-tasks", Sweep::All),
    ("fio-psync", Sweep::All),
];
/// Further methods, which the quick preset leaves out on a RAM-backed device.
const OTHERS: [(&str, Sweep); 5] = [
    ("mmap-sequential", Sweep::Most),
    ("pread-buffered", Sweep::Most),
    ("pread-buffered-random", Sweep::All),
    ("fio-uring", Sweep::All),
    ("pool-get-many", Sweep::All),
];

/// Plans the methods with their thread counts and depths: on the file, on a RAM-backed device and on raw devices.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let random: params::Params = config.params();
    plan_target(config, available, &available.file, available.memory, &random.threads, random.cell_s, &mut plan);
    match available.ram.first() {
        Some(target) => {
            let (memory, threads) = (available.ram_memory, &random.ram_threads);
            plan_target(config, available, target, memory, threads, random.ram_cell_s, &mut plan);
        }
        None => {
            let reason = "no RAM-backed device: making one needs root, the zram module and ram_device = 'auto'";
            plan.skips.push(Skip::new(ID, "ram", "", reason));
        }
    }
    for device in &available.devices {
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
    let random: params::Params = config.params();
    let in_ram = available.ram.iter().any(|ram| ram == target);
    let block_bytes = random.block_bytes;
    let no_pool = Some(OTHER_BLOCKS).filter(|_| block_bytes != PAGE_BYTES as u64);
    let mut planner = Planner { experiment: ID, config, available, target, memory, duration_s, no_pool, plan };
    let most = threads.iter().copied().max();
    let counts = |id: &str, sweep: Sweep| -> Vec<Params> {
        let axis = crate::methods::find(methods::METHODS, id).map_or(Axis::Threads, |method| method.axis);
        match (sweep, axis) {
            (Sweep::Most, _) => most.map(|threads| params(threads, 1, block_bytes)).into_iter().collect(),
            (Sweep::All, Axis::Threads) => threads.iter().map(|threads| params(*threads, 1, block_bytes)).collect(),
            (Sweep::All, Axis::Depth) => random.depths.iter().map(|depth| params(1, *depth, block_bytes)).collect(),
        }
    };
    for (id, sweep) in MAIN {
        planner.add(id, counts(id, sweep));
    }
    for (id, sweep) in OTHERS {
        match in_ram && config.preset == Preset::Quick {
            true => planner.leave_to_larger_preset(id, "on the RAM-backed device from --preset standard on"),
            false => planner.add(id, counts(id, sweep)),
        }
    }
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, spec.params.block_bytes)?;
    read_trials::execute(spec, &layout, Pattern::Random, context)
}

#[cfg(test)]
mod tests;

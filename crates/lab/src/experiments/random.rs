//! The cost of random 4 KiB reads when the data is larger than memory. After §4.1 of "Are You Sure You Want to Use MMAP
//! in Your Database Management System?" (CIDR 2022).
//!
//! Methods: the map with three hints, `pread` buffered and direct on threads, a ring with many requests in flight,
//! the engine's own pool (blocking on threads, tasks of one executor, batches), and fio. The hints that are wrong for
//! random reads, and `pread` with the kernel's own guess, run with one thread count only: their figures are far off
//! with any.

mod findings;
mod hypotheses;
mod literature;
mod methods;
mod params;
mod reasons;
mod words;

use crate::config::params::{Parameters, ParametersOf};
use crate::config::{Config, Preset};
use crate::error::Result;
use crate::experiment::{Available, Context, Experiment, Limited, Needs, Plan, PoolBytes, Section, Targeted};
use crate::judge::Finding;
use crate::judge::claim::{Claim, Contribution, Records};
use crate::judge::reason::Evidence;
use crate::literature::LiteratureTable;
use crate::methods::Method;
use crate::read_loops::Pattern;
use crate::read_trials::{self, Planner, params};
use crate::record::{ExperimentId, MemoryLimit, Outcome, Skip, Target, TrialSpec};
use crate::show::columns::{self, Sheet};
use crate::show::figures::{Figure, costs, latencies, rates, sweeps, time_series};
use crate::summary::{Basis, Metric, Summary};
use crate::workload::{self, PAGE_BYTES};

/// Why the pool cannot read blocks of another size.
const OTHER_BLOCKS: &str = "its entries fill blocks of 4096 bytes, and random.block_bytes is another size";
const _: () = assert!(PAGE_BYTES == 4096, "as OTHER_BLOCKS says");

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("random");

/// The experiment `random`, as the registry lists it.
pub(crate) struct Random;

impl Experiment for Random {
    fn id(&self) -> ExperimentId {
        ID
    }

    fn params(&self) -> &'static dyn Parameters {
        &ParametersOf::<params::Params>::NEW
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, limited: Limited::All, pool: PoolBytes::OfFile, ram_devices: 1, ..Needs::default() }
    }

    fn question(&self) -> &'static str {
        words::QUESTION
    }

    fn plan(&self, config: &Config, available: &Available) -> Plan {
        plan(config, available)
    }

    fn execute(&self, spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
        execute(spec, context)
    }

    fn with_more_memory(&self, spec: &TrialSpec) -> &'static str {
        // The RAM-backed device has a limit of its own.
        if spec.target.label.starts_with("ram") { "--set ram_memory_bytes=BYTES" } else { "--memory" }
    }

    fn methods(&self) -> &'static [Method] {
        methods::METHODS
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis { out_of_core: true, ..Basis::paging(Metric::OpsPerS) }
    }

    fn method(&self) -> &'static str {
        words::METHOD
    }

    fn change(&self) -> &'static [&'static str] {
        words::CHANGE
    }

    fn findings(&self, summary: &Summary<'_>, all: &mut Vec<Finding>) {
        findings::find(summary, all);
    }

    fn hypotheses(&self) -> &'static [Claim] {
        hypotheses::CLAIMS
    }

    fn contribution<'s>(&self, claim: &str, records: &'s Records<'s>) -> Option<Contribution<'s>> {
        (claim == "pool-costs-as-much").then(|| hypotheses::pool(records))
    }

    fn evidence(&self) -> &'static [Evidence] {
        reasons::EVIDENCE
    }

    fn rank(&self) -> u32 {
        0
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

    fn tables(&self, place: &Targeted<'_, '_>) -> Vec<Sheet> {
        let heads = columns::Heads { rate: "reads/s", cpu_metric: Metric::CpuPerOp, cpu: "CPU/read" };
        vec![columns::rated(place.summary, self.id(), place.target, &place.variants, &heads)]
    }

    fn literature(&self) -> &'static [LiteratureTable] {
        literature::TABLES
    }
}

/// Plans the methods over their threads and depths, on the file, on a RAM-backed device and on raw devices.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let random: params::Params = config.params();
    plan_target(config, available, &available.file, available.memory, &random.threads, random.cell_s, &mut plan);
    match available.ram.first() {
        Some(target) => {
            let (memory, threads) = (available.ram_memory, &random.ram_threads);
            plan_target(config, available, target, memory, threads, random.ram_cell_s, &mut plan);
        }
        None => plan.skips.push(Skip {
            experiment: ID,
            target: "ram".into(),
            method: String::new(),
            reason: "no RAM-backed device: making one needs root, the zram module and ram_device = 'auto'".into(),
        }),
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
    let all = || threads.iter().map(|threads| params(*threads, 1, block_bytes));
    let one = || most.map(|threads| params(threads, 1, block_bytes));
    let deep = || random.depths.iter().map(|depth| params(1, *depth, block_bytes));
    planner.add("mmap-random", all());
    planner.add("mmap-normal", one());
    planner.add("pread-direct", all());
    planner.add("uring-direct", deep());
    planner.add("pool", all());
    planner.add("pool-tasks", deep());
    planner.add("fio-psync", all());
    if in_ram && config.preset == Preset::Quick {
        for method in ["mmap-sequential", "pread-buffered", "pread-buffered-random", "fio-uring", "pool-get-many"] {
            planner.skip(method, "on the RAM-backed device from --preset standard on".into());
        }
        return;
    }
    planner.add("mmap-sequential", one());
    planner.add("pread-buffered", one());
    planner.add("pread-buffered-random", all());
    planner.add("fio-uring", deep());
    planner.add("pool-get-many", deep());
}

/// Measures one method.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, spec.params.block_bytes)?;
    read_trials::execute(spec, &layout, Pattern::Random, context)
}

#[cfg(test)]
mod tests;

//! Shows how much memory each way of reading has by the kernel's counts, and which process the kernel kills when memory runs
//! out.
//!
//! Two variants:
//! - `reads`: threads read random pages through a map, by read calls, past the page cache, and through the engine's pool, under
//!   one limit: RSS and PSS of the process, and the memory that its cgroup is charged with;
//! - `pressure`: a process that reads in one of these ways and a neighbour that allocates memory share a cgroup, until the
//!   kernel kills one of them.

mod rules;
mod texts;
pub mod trial;

use serde::{Deserialize, Serialize};

use crate::config::check::{counts, positive, seconds};
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, Preset};
use crate::error::Result;
use crate::experiment::{
    Available, Context, Description, Experiment, LimitedTrials, Needs, Plan, PoolBytes, Section, TargetView, limit_flag,
};
use crate::format;
use crate::measure::workload::PAGE_BYTES;
use crate::methods::{self, Method};
use crate::read_trials::{Planner, params as counted};
use crate::record::{ExperimentId, MemoryLimit, MemoryMethod, Outcome, Skip, Target, TrialSpec, Warning};
use crate::show::columns::Sheet;
use crate::show::figures::Figure;
use crate::show::literature::{self as published, Counterparts, LiteratureRow, LiteratureTable};
use crate::summary::{Basis, Group, Metric, Summary};

/// The variant that reads and counts memory.
pub const READS: &str = "reads";
/// The variant in which memory runs out.
pub const PRESSURE: &str = "pressure";

/// Name of the parameter with the size of the data, as a multiple of the memory.
const DATA: &str = "data_per_memory";
/// Name of the parameter with the limit of the cgroup that a trial makes itself, in bytes.
const LIMIT: &str = "limit_bytes";
/// The methods, in the order of the report.
const METHODS: [&Method; 4] =
    [&methods::MMAP_RANDOM, &methods::PREAD_BUFFERED_RANDOM, &methods::PREAD_DIRECT, &methods::POOL];
/// Planned seconds before the clock of a trial starts, in which memory settles.
const SETTLING_S: f64 = 1.5;
/// Length in seconds of the reads next to a growing neighbour, without the time in which the limit is filled. The kernel kills one
/// of the two processes long before.
const UNDER_PRESSURE_S: f64 = 8.0;
/// Planned seconds from the start of both processes until one is killed.
const KILLED_S: f64 = 2.5;

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("rss");

/// The experiment `rss`, as the registry lists it.
pub(crate) struct Rss;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 8,
    in_quick: false,
    findings: rules::find,
    claims: rules::CLAIMS,
    more_memory: limit_flag,
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Rss {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, _: &Config) -> Needs {
        Needs { file: true, limited: LimitedTrials::All, pool: PoolBytes::OfFile, ..Needs::default() }
    }

    fn preparation_s(&self, spec: &TrialSpec) -> f64 {
        if spec.variant == PRESSURE { 0.0 } else { SETTLING_S }
    }

    fn basis(&self, spec: &TrialSpec) -> Basis {
        match spec.variant.as_str() {
            PRESSURE => Basis::by(Metric::OpsPerS),
            _ => Basis { out_of_core: spec.target.data_bytes > spec.memory.bytes, ..Basis::paging(Metric::OpsPerS) },
        }
    }

    /// Data that fits in memory does not fill it, and is not to.
    fn covers_warning(&self, group: &Group<'_>, warning: &Warning) -> bool {
        group.spec.target.data_bytes <= group.spec.memory.bytes && warning.text.starts_with("memory never filled")
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        texts::figures(&section.by_family(), section.variant, &section.title)
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        texts::sheets(place.summary, place.target, &place.variants)
    }

    /// The trials with the largest data stand next to a published figure.
    fn counterparts<'g, 'a>(
        &self,
        table: &LiteratureTable,
        row: &LiteratureRow,
        summary: &'g Summary<'a>,
    ) -> Counterparts<'g, 'a> {
        published::of_largest(ID, (table, row), summary, |group| group.spec.target.data_bytes as f64)
    }
}

/// Plans each method at each size of the data, and under pressure at the largest.
fn plan(config: &Config, available: &Available) -> Plan {
    let own: Parameters = config.params();
    let mut plan = Plan { repeats: Some(own.repeats), ..Plan::default() };
    let memory = available.memory;
    for data in &own.data_per_memory {
        let bytes = (memory.bytes as f64 * data) as u64 / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if bytes > available.file.data_bytes {
            let (needed, present) = (format::bytes(bytes), format::bytes(available.file.data_bytes));
            let reason = format!("data of {data} times the memory: {needed} of {present}; ask for more with --size");
            plan.skips.push(Skip::new(ID, "file", "", reason));
            continue;
        }
        let target = Target { data_bytes: bytes, ..available.file.clone() };
        let (from, skipped) = (plan.trials.len(), plan.skips.len());
        let mut planner = Planner {
            experiment: ID,
            config,
            available,
            target: &target,
            memory,
            duration_s: own.cell_s,
            no_pool: None,
            plan: &mut plan,
        };
        METHODS.into_iter().for_each(|method| planner.add(method, [counted(own.threads, 1, PAGE_BYTES as u64)]));
        for trial in &mut plan.trials[from..] {
            trial.variant = READS.into();
            trial.params.extra.insert(DATA.into(), data.to_string());
        }
        if from > 0 {
            // The same reasons as at the first size.
            plan.skips.truncate(skipped);
        }
    }
    plan_pressure(memory, &mut plan);
    plan
}

/// Adds the trials of the largest data under pressure.
fn plan_pressure(memory: MemoryLimit, plan: &mut Plan) {
    if !matches!(memory.method, MemoryMethod::CgroupV1 | MemoryMethod::CgroupV2) {
        let reason = "a cgroup of the lab's own, within which the kernel kills, cannot be made here or was not chosen";
        plan.skips.push(Skip::new(ID, "file", "", format!("{PRESSURE}: {reason}")));
        return;
    }
    let largest = plan.trials.iter().map(|trial| trial.target.data_bytes).max();
    let of_largest = plan.trials.iter().filter(|trial| Some(trial.target.data_bytes) == largest);
    let pressed = of_largest.map(|trial| {
        let mut trial = TrialSpec {
            variant: PRESSURE.into(),
            duration_s: KILLED_S,
            // The trial makes the cgroup itself and stays outside of it.
            memory: MemoryLimit::default(),
            ..trial.clone()
        };
        trial.params.extra.insert(LIMIT.into(), memory.bytes.to_string());
        trial
    });
    let pressed: Vec<TrialSpec> = pressed.collect();
    plan.trials.extend(pressed);
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    match spec.variant.as_str() {
        PRESSURE => trial::run_pressure(spec, context),
        _ => trial::run_reads(spec, context),
    }
}

/// Parameters of `rss`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial in seconds.
    pub(crate) cell_s: f64,
    /// Sizes of the data, as multiples of the memory; under pressure the largest.
    pub(crate) data_per_memory: Vec<f64>,
    /// Number of threads that read.
    pub(crate) threads: u32,
    /// How often each trial is measured.
    pub(crate) repeats: u32,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const SHARED: &'static [&'static flags::Flag] =
        &[&flags::SIZE, &flags::MEMORY, &flags::MEMORY_METHOD, &flags::POOL];

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::REPEATS, |params, value| value.put_count(&mut params.repeats)),
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::own(&flags::THREADS, |params: &mut Self, value| value.put_count(&mut params.threads))
            .only(|_, value| value.one().is_some(), "one count: --set rss.threads=COUNT"),
    ];

    fn preset(preset: Preset) -> Self {
        let quick = Self { cell_s: 0.6, data_per_memory: vec![0.5, 4.0], threads: 4, repeats: 3 };
        match preset {
            Preset::Quick | Preset::Standard => quick,
            Preset::Paper => Self { cell_s: 60.0, threads: 16, repeats: 5, ..quick },
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        seconds("rss.cell_s", &[self.cell_s])?;
        positive("rss.data_per_memory", &self.data_per_memory)?;
        if self.data_per_memory.is_empty() {
            return Err("rss.data_per_memory: at least one is needed".into());
        }
        counts("rss.threads", &[self.threads], 1024)?;
        counts("rss.repeats", &[self.repeats], 1000)
    }
}

#[cfg(test)]
mod tests;

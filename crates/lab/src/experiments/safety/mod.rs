//! Measures the cost of making a mapped file safe. After §3.1 of "Are You Sure You Want to Use MMAP in Your Database
//! Management System?" (CIDR 2022).
//!
//! Two variants:
//! - `sin`: bytes are stored into a shared map, locked in memory, and never committed. The lab waits until the kernel
//!   has written them (after another process's sync; in longer presets also by its own write-back, and by eviction where
//!   a transaction changes more than memory holds), and reads them from disk;
//! - `commits`: the engine's B+tree over each way to prevent that (`nofault::mmap`) and over the engine's own pool.
//!   Writers commit pairs of keys durably while a reader reads. Then a separate process commits until it
//!   is killed (SIGKILL). The store is opened again, and every acknowledged commit is looked up.
//!
//! Kept true by: tree, node format, log and durability are the same for all; every value can be verified by itself, and
//! both values of a pair contain the number of their commit.

pub(crate) mod rules;
mod texts;
pub mod trial;

use serde::{Deserialize, Serialize};

use crate::config::check::seconds;
use crate::config::flags::{self, Use};
use crate::config::params::ParametersOf;
use crate::config::{self, Config, MIB, Preset};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::{Available, Context, Description, Experiment, Needs, Plan, Section, Stores, TargetView};
use crate::methods::{self, Family, Method, methods};
use crate::record::{ExperimentId, Outcome, Params, Skip, SkipCause, Target, TrialSpec};
use crate::show::columns::Sheet;
use crate::show::figures::{Figure, latencies, rates};
use crate::summary::{Basis, Metric, Summary};

/// The variant that looks for uncommitted bytes on disk.
pub const STEAL: &str = "sin";
/// The variant that measures the cost of preventing uncommitted bytes on disk.
pub const COMMITS: &str = "commits";
/// Ids of the stores, in the order of the report.
pub const STORES: [&str; 7] = [
    methods::OS_COW.id,
    methods::USER_COW.id,
    methods::USER_COW_PWRITE.id,
    methods::MAPPED_LOG.id,
    methods::SHADOW_WRITEMAP.id,
    methods::SHADOW.id,
    methods::ENGINE.id,
];
/// Ids of the maps tested for uncommitted bytes: the first lets them reach the disk, the second does not.
const MAPS: [&str; 2] = [MMAP_SHARED.id, MAP_PRIVATE.id];
/// Planned seconds of filling, opening and checking a store, for each thousand keys.
const FILL_S_PER_1000: f64 = 0.02;
/// How long the process to be killed commits, as a fraction of the measured time.
const KILLED_SHARE: f64 = 1.0 / 3.0;
/// Memory of the trial whose changes do not fit in it, and bytes that it changes.
const EVICTING_MEMORY_BYTES: u64 = 64 * MIB;
const EVICTED_BYTES: u64 = 4 * EVICTING_MEMORY_BYTES;
/// Planned seconds of that trial.
const EVICTED_S: f64 = 3.0;
/// Longest wait for the kernel's own write-back, in seconds.
const KERNEL_S_MAX: f64 = 60.0;

methods! {
    /// The methods that only this experiment has.
    OWN:
    MMAP_SHARED = Method::new("mmap-shared", "mmap, shared", Family::Mapped);
    MAP_PRIVATE = Method::new("map-private", "mmap, private", Family::Mapped);
}

/// The experiment's name on the command line and in records.
pub const ID: ExperimentId = ExperimentId::new("safety");

/// The experiment `safety`, as the registry lists it.
pub(crate) struct Safety;

static DESCRIPTION: Description = Description {
    plan,
    execute,
    texts: texts::TEXTS,
    rank: 2,
    methods: OWN,
    findings: rules::find,
    claims: rules::CLAIMS,
    contributions: &[("lmdb-is-crash-proof", rules::kills)],
    evidence: rules::EVIDENCE,
    losses: &[("lost_commits", "acknowledged commits lost"), ("torn_commits", "acknowledged commits there in part")],
    less_memory: |_| Some("--set safety.keys=COUNT"),
    literature: texts::TABLES,
    ..Description::of(ID, &ParametersOf::<Parameters>::NEW)
};

impl Experiment for Safety {
    fn description(&self) -> &'static Description {
        &DESCRIPTION
    }

    fn needs(&self, config: &Config) -> Needs {
        let evicts = config.params::<Parameters>().wait_for_kernel;
        let stores =
            Stores { data_bytes: EVICTED_BYTES, memory_bytes: EVICTING_MEMORY_BYTES, data_bytes_max: EVICTED_BYTES };
        Needs { stores: Some(stores).filter(|_| evicts), ..Needs::default() }
    }

    fn basis(&self, _: &TrialSpec) -> Basis {
        Basis::by(Metric::OpsPerS)
    }

    fn overview(&self, summary: &Summary<'_>) -> Vec<Figure> {
        texts::overview(summary)
    }

    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure> {
        let mut figures = Vec::new();
        // The other variant is shown in a table.
        if section.variant == COMMITS {
            let (groups, place) = (section.by_family(), &section.title);
            figures.extend(rates(&groups, place, Metric::OpsPerS, "durable commits per second"));
            figures.extend(latencies(&groups, place, "op", "commit"));
            figures.extend(latencies(&groups, place, "read", "read beside the writers"));
        }
        figures
    }

    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        vec![Sheet::new(texts::columns(&place.summary.at(self.id(), COMMITS, place.target)))]
    }
}

/// Plans both variants, with files in the lab's folder.
fn plan(config: &Config, available: &Available) -> Plan {
    let mut plan = Plan::default();
    let safety: Parameters = config.params();
    for map in MAPS {
        plan.trials.push(trial(config, available, STEAL, map, 1, &[("cause", "sync")], 0.05));
    }
    if safety.wait_for_kernel {
        plan.once.push(trial(config, available, STEAL, MAPS[0], 1, &[("cause", "kernel")], KERNEL_S_MAX));
        match available.stores_memory(ID) {
            Ok(memory) => {
                let mut evicting = trial(config, available, STEAL, MAPS[0], 1, &[("cause", "eviction")], EVICTED_S);
                evicting.target.data_bytes = EVICTED_BYTES;
                plan.once.push(TrialSpec { memory, ..evicting });
            }
            Err(reason) => {
                let reason = format!("changes larger than memory, written by eviction: {reason}");
                plan.skips.push(Skip::new(ID, "file", MAPS[0], reason));
            }
        }
    }
    let size = [
        ("keys", safety.keys.to_string()),
        ("value_bytes", safety.value_bytes.to_string()),
        ("log_bytes", safety.log_bytes.to_string()),
    ];
    let size: Vec<(&str, &str)> = size.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for writers in &safety.writers {
        for store in STORES {
            plan.trials.push(trial(config, available, COMMITS, store, *writers, &size, safety.cell_s));
        }
    }
    if config.preset == Preset::Quick {
        let reason = "measured from --preset standard on: 1 and 64 writers, and the kernel's own write-back of uncommitted pages";
        plan.skips.push(Skip::new(ID, "file", "", reason).because(SkipCause::LargerPreset));
    }
    plan
}

fn trial(
    config: &Config,
    available: &Available,
    variant: &str,
    method: &str,
    threads: u32,
    extra: &[(&str, &str)],
    duration_s: f64,
) -> TrialSpec {
    let extra = extra.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let safety: Parameters = config.params();
    let target = Target {
        label: "file".into(),
        paths: vec![available.folder.clone()],
        data_bytes: u64::from(safety.keys) * u64::from(safety.value_bytes),
        content_seed: None,
    };
    TrialSpec {
        variant: variant.into(),
        params: Params { threads, depth: 1, block_bytes: 4096, extra },
        duration_s: if variant == COMMITS {
            duration_s * (1.0 + KILLED_SHARE) + f64::from(safety.keys) / 1000.0 * FILL_S_PER_1000
        } else {
            duration_s
        },
        ..TrialSpec::of(ID, config.seed, target, method)
    }
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for unknown variants and methods; otherwise the error of the store or the system.
fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let unknown = || {
        let what = format!("safety: unknown method '{}' of '{}'", spec.method, spec.variant);
        Err(LabError::new(LabErrorKind::Usage, what))
    };
    match spec.variant.as_str() {
        STEAL if cause(&spec.params) == "eviction" && spec.method == MAPS[0] => trial::execute_evicted(spec, context),
        STEAL if MAPS.contains(&&*spec.method) => trial::execute_steal(spec, context),
        COMMITS if STORES.contains(&&*spec.method) => trial::execute_commits(spec, context),
        _ => unknown(),
    }
}

/// The cause of the write that a trial of `sin` waits for.
fn cause(params: &Params) -> &str {
    params.extra.get("cause").map_or("sync", String::as_str)
}

/// The cause of a trial in words: how the pages got to the disk.
fn written_by(params: &Params) -> &'static str {
    match cause(params) {
        "kernel" => "by the kernel itself",
        "eviction" => "to make room for further changes of the same transaction",
        _ => "once any other process has synced the file",
    }
}

/// Parses a number among the trial's parameters.
fn number(spec: &TrialSpec, name: &str) -> Result<u64> {
    let found = spec.params.extra.get(name).and_then(|value| value.parse().ok());
    found.ok_or_else(|| LabError::new(LabErrorKind::Usage, format!("safety: a trial without a number for '{name}'")))
}

/// Parameters of `safety`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Length of a trial in seconds; filling the store, opening it again and checking it come on top.
    pub(crate) cell_s: f64,
    /// Number of keys in the store.
    pub(crate) keys: u32,
    /// Bytes of a value.
    pub(crate) value_bytes: u32,
    /// Numbers of writers that commit at the same time.
    pub(crate) writers: Vec<u32>,
    /// Bytes of log between checkpoints, for all stores with a log.
    pub(crate) log_bytes: u64,
    /// Whether to wait also until the kernel writes uncommitted pages by itself, which takes as long as the
    /// machine's `dirty_expire_centisecs` says.
    pub(crate) wait_for_kernel: bool,
}

impl config::Params for Parameters {
    const OF: ExperimentId = ID;

    const FLAGS: &'static [Use<Self>] = &[
        Use::own(&flags::SECONDS, |params, value| value.put_seconds(&mut params.cell_s)),
        Use::none(&flags::SIZE, "--set safety.keys=COUNT"),
        Use::own(&flags::THREADS, |params, value| value.put_counts(&mut params.writers)),
    ];

    fn check(&self) -> std::result::Result<(), String> {
        let in_range = |name: &str, value: u64, least: u64, most: u64| {
            let fine = (least..=most).contains(&value);
            if fine { Ok(()) } else { Err(format!("safety.{name} = {value}: must be {least} to {most}")) }
        };
        seconds("safety.cell_s", &[self.cell_s])?;
        if self.writers.is_empty() {
            return Err("safety.writers: at least one is needed".into());
        }
        self.writers.iter().try_for_each(|count| in_range("writers", u64::from(*count), 1, 1024))?;
        in_range("keys", self.keys.into(), 2, 1 << 30)?;
        in_range("value_bytes", self.value_bytes.into(), 8, 1 << 20)?;
        in_range("log_bytes", self.log_bytes, 1 << 20, 1 << 40)
    }

    fn preset(preset: Preset) -> Self {
        let quick = Self {
            cell_s: 0.3,
            keys: 10_000,
            value_bytes: 100,
            writers: vec![8],
            log_bytes: 16 * MIB,
            wait_for_kernel: false,
        };
        let standard = Self {
            cell_s: 1.0,
            keys: 50_000,
            writers: vec![1, 8, 64],
            log_bytes: 64 * MIB,
            wait_for_kernel: true,
            ..quick.clone()
        };
        match preset {
            Preset::Quick => quick,
            Preset::Standard => standard,
            Preset::Paper => Self { cell_s: 30.0, keys: 1_000_000, log_bytes: 256 * MIB, ..standard },
        }
    }
}

#[cfg(test)]
mod tests;

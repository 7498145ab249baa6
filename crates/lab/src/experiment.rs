//! The interface of an experiment. A type that implements [`Experiment`] in a folder of its own and has its line in the
//! registry ([`crate::experiments`]) is run, reported, compared and judged; no other module names it.
//!
//! Planning happens once, in the parent; executing happens in a child process of its own for each trial, inside the
//! memory limit, with cold page tables, so that no trial inherits anything from the one before. The [`TrialSpec`] is the
//! child's only input. Preparing the machine (limits, cold caches, devices, read-ahead) is the runner's work.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;

use crate::config::Config;
use crate::config::params::Parameters;
use crate::error::Result;
use crate::judge::Finding;
use crate::judge::claim::{Claim, Contribution, Records};
use crate::judge::reason::Evidence;
use crate::literature::{self, Counterparts, LiteratureRow, LiteratureTable};
use crate::measure::Measurement;
use crate::methods::{self, Family, Method};
use crate::read_loops;
use crate::record::file::RecordFile;
use crate::record::{ExperimentId, MemoryLimit, Outcome, Skip, Target, Tick, TrialSpec};
use crate::show::columns::{self, Sheet};
use crate::show::figures::Figure;
use crate::summary::{Basis, Group, Summary};

/// The part of an experiment that is data. An experiment gives the fields in which it differs from [`Description::of`].
pub(crate) struct Description {
    /// Its name on the command line and in records.
    pub(crate) id: ExperimentId,
    /// Its parameters: presets, checks and flags.
    pub(crate) params: &'static dyn Parameters,
    /// The question that it answers, in one line.
    pub(crate) question: &'static str,
    /// How it is measured, in words.
    pub(crate) procedure: &'static str,
    /// Conditions under which the answer would differ: ideas for further measurements.
    pub(crate) change: &'static [&'static str],
    /// The rank of its key figures, for a reader with little time: the lowest first.
    pub(crate) rank: u32,
    /// Whether it is part of a quick run that names no experiments. When named, it runs in a short form even if not.
    pub(crate) in_quick: bool,
    /// The methods that only this experiment has; shared ones are in [`crate::methods`].
    pub(crate) methods: &'static [Method],
    /// Adds the findings that follow from the figures.
    pub(crate) findings: fn(&Summary<'_>, &mut Vec<Finding>),
    /// The claims of others that its records decide.
    pub(crate) claims: &'static [Claim],
    /// Its parts in claims that several experiments decide together, by the claims' ids.
    pub(crate) contributions: &'static [(&'static str, Contribute)],
    /// The evidence of its records on the rules of the verdict.
    pub(crate) evidence: &'static [Evidence],
    /// Figures that must not rise from one result to the next at any rate, each with a name for what it counts.
    pub(crate) losses: &'static [(&'static str, &'static str)],
    /// Whether all its trials make their warm state themselves; see [`Experiment::warms_itself`].
    pub(crate) warms_itself: bool,
    /// Returns the flag that makes a trial need less memory, for machines without a limit that could be raised.
    pub(crate) less_memory: fn(&Target) -> Option<&'static str>,
    /// The flag that raises the limit of a trial.
    pub(crate) more_memory: fn(&Target) -> &'static str,
    /// Published figures on the same question.
    pub(crate) literature: &'static [LiteratureTable],
}

/// Finds an experiment's part in a claim.
pub(crate) type Contribute = for<'s> fn(&'s Records<'s>) -> Contribution<'s>;

impl Description {
    /// An experiment that decides nothing and has no methods of its own: the base of all descriptions.
    pub(crate) const fn of(id: ExperimentId, params: &'static dyn Parameters) -> Self {
        Self {
            id,
            params,
            question: "",
            procedure: "",
            change: &[],
            rank: u32::MAX,
            in_quick: true,
            methods: &[],
            findings: |_, _| {},
            claims: &[],
            contributions: &[],
            evidence: &[],
            losses: &[],
            warms_itself: false,
            less_memory: |_| None,
            more_memory: |_| "--memory",
            literature: &[],
        }
    }
}

/// A question, its measurement on this machine, and the interpretation of its figures.
///
/// The first methods are the measurement, the others read records. Default methods are overridden by experiments that
/// differ.
pub(crate) trait Experiment: Sync {
    /// Everything about it that is data.
    fn description(&self) -> &'static Description;

    /// Its name on the command line and in records.
    fn id(&self) -> ExperimentId {
        self.description().id
    }

    /// The command that runs it alone. Such an experiment is part of a run of the lab only when it is named.
    fn command(&self) -> Option<Command> {
        None
    }

    /// The resources that the runner must prepare before its first trial.
    fn needs(&self, config: &Config) -> Needs;

    /// Plans the trials from the configuration and the available resources.
    fn plan(&self, config: &Config, available: &Available) -> Plan;

    /// Measures one trial, in this process. The caller has limited the memory and dropped the caches.
    ///
    /// # Errors
    /// When files cannot be opened or the system refuses the method's way of reading.
    fn execute(&self, spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome>;

    /// Planned seconds before the clock of a trial starts, where it makes or warms data of its own.
    fn preparation_s(&self, _spec: &TrialSpec) -> f64 {
        0.0
    }

    /// Whether a trial makes its warm state itself: the engine's pool is warm when the pool is, not the page cache,
    /// and data that is made in memory has no file at all.
    fn warms_itself(&self, spec: &TrialSpec) -> bool {
        let description = self.description();
        let of_pool = |method: &Method| method.family == Family::Pool;
        description.warms_itself
            || spec.target.paths.is_empty()
            || methods::find(description.methods, &spec.method).is_some_and(of_pool)
    }

    /// The metric by which a trial is judged, and how its figures are to be read.
    fn basis(&self, spec: &TrialSpec) -> Basis;

    /// Returns whether one of the experiment's findings already covers a trial's warning.
    fn covers_warning(&self, _group: &Group<'_>, _warning: &str) -> bool {
        false
    }

    /// The report's tables before its charts.
    fn overview(&self, _summary: &Summary<'_>) -> Vec<Figure> {
        Vec::new()
    }

    /// The report's charts for one variant on one target. A chart that the records cannot fill is left out.
    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure>;

    /// The terminal's tables for one target.
    fn tables(&self, place: &Targeted<'_, '_>) -> Vec<Sheet> {
        vec![columns::operations(place.summary, self.id(), place.target, &place.variants)]
    }

    /// The groups that are shown beside a row of one of the literature's tables.
    fn counterparts<'g, 'a>(
        &self,
        table: &LiteratureTable,
        row: &LiteratureRow,
        summary: &'g Summary<'a>,
    ) -> Counterparts<'g, 'a> {
        literature::on_the_file(self.id(), table, row, summary)
    }
}

/// The flag that raises the limit of trials on a target, for an experiment that reads the data file and RAM-backed
/// devices, which have a limit of their own.
pub(crate) fn limit_flag(target: &Target) -> &'static str {
    if target.kind().is_ram_backed() { "--set ram_memory_bytes=BYTES" } else { "--memory" }
}

/// A command that runs one experiment alone, under a name of its own.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Its name, after that of the program.
    pub name: &'static str,
    /// The parts that can be measured alone, each with a description.
    pub parts: fn() -> Vec<(&'static str, &'static str)>,
}

/// One variant of an experiment on one target: a section of the report.
#[derive(Debug)]
pub(crate) struct Section<'g, 'a> {
    /// The variant.
    pub(crate) variant: &'g str,
    /// The target's label.
    pub(crate) target: &'g str,
    /// Variant and target in words.
    pub(crate) title: String,
    /// The groups, in the order in which they were first measured.
    pub(crate) groups: Vec<&'g Group<'a>>,
}

impl<'g, 'a> Section<'g, 'a> {
    /// Returns the groups, mapped ones first and fio last.
    pub(crate) fn by_family(&self) -> Vec<&'g Group<'a>> {
        let mut groups = self.groups.clone();
        groups.sort_by_key(|group| group.family());
        groups
    }
}

/// One target of an experiment, for the terminal.
#[derive(Debug)]
pub(crate) struct Targeted<'g, 'a> {
    /// All records.
    pub(crate) file: &'g RecordFile,
    /// The records, grouped.
    pub(crate) summary: &'g Summary<'a>,
    /// The target's label.
    pub(crate) target: &'g str,
    /// The variants measured on the target, in the order of their measurement.
    pub(crate) variants: Vec<&'g str>,
}

/// The resources of this machine for the experiments, prepared by the runner.
#[derive(Debug, Clone, Default)]
pub(crate) struct Available {
    /// The data file on the file system of `Config::dir`.
    pub(crate) file: Target,
    /// RAM-backed devices; empty where there are none.
    pub(crate) ram: Vec<Target>,
    /// Raw devices that may be read.
    pub(crate) devices: Vec<Target>,
    /// Files or devices to stripe over on the user's storage; the first is the data file itself.
    pub(crate) stripe: Vec<Target>,
    /// The small files, all in one target.
    pub(crate) small_files: Target,
    /// The engine's database with the content of the data file; `None` where it is left out.
    pub(crate) pool: Option<Target>,
    /// Limit for trials on the file and on raw devices.
    pub(crate) memory: MemoryLimit,
    /// Limit for trials on RAM-backed devices.
    pub(crate) ram_memory: MemoryLimit,
    /// The resources of the experiments whose trials make databases.
    pub(crate) stores: Vec<StoresPlace>,
    /// Version of fio where it is installed.
    pub(crate) fio: Option<String>,
    /// The lab's folder, in which trials make their own files.
    pub(crate) folder: PathBuf,
    /// The ways to make memory full.
    pub(crate) reclaim: Vec<Reclaim>,
    /// Memory that is free for the trials now; `None` where it is not known.
    pub(crate) memory_available_bytes: Option<u64>,
    /// Whether the lab runs as root.
    pub(crate) root: bool,
}

impl Available {
    /// The folder in which one store of an experiment at a time has its database; empty where none was prepared.
    pub(crate) fn stores_folder(&self, experiment: ExperimentId) -> String {
        let place = self.stores.iter().find(|place| place.experiment == experiment);
        place.map_or(String::new(), |place| place.folder.display().to_string())
    }

    /// The limit for an experiment's trials of stores with data larger than memory.
    ///
    /// # Errors
    /// The reason why memory cannot be limited.
    pub(crate) fn stores_memory(&self, experiment: ExperimentId) -> std::result::Result<MemoryLimit, &str> {
        match self.stores.iter().find(|place| place.experiment == experiment) {
            Some(place) => place.memory.as_ref().map_err(String::as_str).copied(),
            None => Err("no store was prepared"),
        }
    }
}

/// The resources that an experiment needs, as it is configured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Needs {
    /// The large data file.
    pub(crate) file: bool,
    /// The trials that read data larger than memory.
    pub(crate) limited: Limited,
    /// Small files, all in one target.
    pub(crate) small_files: SmallFiles,
    /// The engine's database, where it takes part.
    pub(crate) pool: PoolBytes,
    /// RAM-backed devices, where there can be some.
    pub(crate) ram_devices: u32,
    /// Whether its trials stripe over the further folders and devices of the configuration.
    pub(crate) stripe: bool,
    /// Room for databases that its trials make themselves, one at a time.
    pub(crate) stores: Option<Stores>,
    /// Ways to make memory full.
    pub(crate) reclaim: Option<ReclaimBytes>,
}

/// The part of the trials that read data larger than memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Limited {
    /// No trial does.
    #[default]
    Nothing,
    /// Some trials do: the others are measured even where memory cannot be limited.
    Some,
    /// All trials do: the experiment is left out where memory cannot be limited.
    All,
}

/// Small files of one target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SmallFiles {
    /// None.
    #[default]
    Nothing,
    /// The given number of files, of the given size.
    Own {
        /// Number of files.
        count: u32,
        /// Bytes of each.
        file_bytes: u64,
    },
    /// The files of another experiment, as they are.
    Shared,
}

/// The amount of the engine's database that an experiment reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum PoolBytes {
    /// Nothing.
    #[default]
    Nothing,
    /// As much as the data file has, under the same limit of memory.
    OfFile,
    /// The given number of bytes.
    Bytes(u64),
}

/// Databases that trials make themselves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stores {
    /// Data of the trials with data larger than memory.
    pub(crate) data_bytes: u64,
    /// Memory of these trials.
    pub(crate) memory_bytes: u64,
    /// The most data of any trial.
    pub(crate) data_bytes_max: u64,
}

/// The resources of an experiment whose trials make databases.
#[derive(Debug, Clone)]
pub(crate) struct StoresPlace {
    /// The experiment.
    pub(crate) experiment: ExperimentId,
    /// The folder in which one store at a time has its database.
    pub(crate) folder: PathBuf,
    /// The limit of the trials with data larger than memory, or why there is none.
    pub(crate) memory: std::result::Result<MemoryLimit, String>,
}

/// Memory that each way of reclaim leaves to the trial.
#[derive(Debug, Clone)]
pub(crate) struct ReclaimBytes {
    /// Memory that a cgroup leaves to the trial.
    pub(crate) cgroup: u64,
    /// Memory that the ballast leaves to the trial, or the reason why there is no ballast.
    pub(crate) kswapd: std::result::Result<u64, String>,
}

/// The trials of one repeat, in any order (the runner interleaves and repeats them), and the skipped ones with their
/// reasons.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// Trials, all with `repeat` 0.
    pub(crate) trials: Vec<TrialSpec>,
    /// Trials with outcomes that do not depend on chance: measured once, before the others.
    pub(crate) once: Vec<TrialSpec>,
    /// How often to measure `trials`; `None` takes `Config::repeats`.
    pub(crate) repeats: Option<u32>,
    /// Consecutive trials of one method and target build on each other: they keep their order in every round.
    pub(crate) together: bool,
    /// The measurements that are impossible here.
    pub(crate) skips: Vec<Skip>,
}

/// The environment in which a trial is executed.
pub(crate) struct Context<'a> {
    /// Counters to read, the target's devices and the trial's cgroup among them.
    pub(crate) watch: &'a Watch,
    /// Set when the user stops the run.
    pub(crate) cancel: &'a AtomicBool,
    /// Called with each tick as it ends, for live progress.
    pub(crate) on_tick: &'a mut dyn FnMut(&Tick),
}

impl<'a> Context<'a> {
    /// Returns the plan of a measurement that lasts the trial's time from its first operation on, and watches no memory limit.
    ///
    /// # Errors
    /// When the trial has no such time among its parameters.
    pub(crate) fn timed(&self, spec: &TrialSpec) -> Result<Measurement<'a>> {
        Ok(Measurement {
            duration: read_loops::duration_of(spec)?,
            tick: read_loops::tick_of(spec),
            watch: self.watch,
            memory_bytes: None,
            fill_first: false,
            cancel: self.cancel,
        })
    }
}

/// One way to make memory full, on one kind of target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reclaim {
    /// `cgroup` or `kswapd`.
    pub(crate) by: &'static str,
    /// Whether it is for the RAM-backed device or for the file.
    pub(crate) on_ram: bool,
    /// The limit, or the reason why there is none.
    pub(crate) limit: std::result::Result<MemoryLimit, String>,
}

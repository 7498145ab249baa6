//! The interface of an experiment. A type that implements [`Experiment`] in its own folder and is named in the
//! registry ([`crate::experiments`]) is run, reported, compared and judged; no other module names it.
//!
//! The runner's process plans once. Each trial is executed in a separate child process, inside the memory limit and
//! with cold page tables, so that no trial inherits anything from an earlier one. The [`TrialSpec`] is the child's only
//! input. Preparing the machine (limits, cold caches, devices, read-ahead) is the runner's work.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nofault_io::counters::Watch;

use crate::config::Config;
use crate::config::params::Parameters;
use crate::error::Result;
use crate::judge::Finding;
use crate::judge::claim::{Claim, Contribution};
use crate::judge::places::Records;
use crate::judge::reason::Evidence;
use crate::machine::cache::Means;
use crate::machine::device_rate::DeviceRate;
use crate::measure::{Measurement, read_loops};
use crate::methods::{self, Family, Method};
use crate::record::file::RecordFile;
use crate::record::{ExperimentId, MemoryLimit, Outcome, Skip, Target, Tick, TrialSpec, Warning};
use crate::show::columns::{self, Sheet};
use crate::show::figures::Figure;
use crate::show::literature::{self, Counterparts, LiteratureRow, LiteratureTable};
use crate::summary::{Basis, Group, Summary};

/// The part of an experiment that is data; the [`Experiment`] trait has its code. An experiment gives the fields in
/// which it differs from [`Description::of`].
pub(crate) struct Description {
    /// The experiment's name on the command line and in records.
    pub(crate) id: ExperimentId,
    /// The experiment's parameters: presets, checks and flags.
    pub(crate) params: &'static dyn Parameters,
    /// Plans the trials from the configuration and the available resources.
    pub(crate) plan: fn(&Config, &Available) -> Plan,
    /// Measures one trial, in this process; see [`Experiment::execute`].
    pub(crate) execute: fn(&TrialSpec, &mut Context<'_>) -> Result<Outcome>,
    /// The fixed texts.
    pub(crate) texts: Texts,
    /// The rank of the experiment's main figure in a summary for a reader with little time: the lowest comes first.
    pub(crate) rank: u32,
    /// Whether the experiment is part of a quick run naming no experiments. An experiment outside it still runs in
    /// its short form when a quick run names it.
    pub(crate) in_quick: bool,
    /// Whether the experiment replays a trace of the user's. It is part of a run only where one is given.
    pub(crate) needs_trace: bool,
    /// The methods that only this experiment has; methods shared by several are in [`crate::methods`].
    pub(crate) methods: &'static [Method],
    /// Adds the findings that follow from the experiment's figures.
    pub(crate) findings: fn(&Summary<'_>, &mut Vec<Finding>),
    /// The published claims that the experiment's records decide.
    pub(crate) claims: &'static [Claim],
    /// For claims that several experiments decide together: the id of each, and the function that finds this
    /// experiment's part of the evidence.
    pub(crate) contributions: &'static [(&'static str, Contribute)],
    /// The evidence that the experiment's records give for rules of the verdict.
    pub(crate) evidence: &'static [Evidence],
    /// Names of figures that count losses, such as lost commits, each with its words for a warning. A comparison of two
    /// results warns of every increase, however small.
    pub(crate) losses: &'static [(&'static str, &'static str)],
    /// Whether all trials of the experiment make their warm state themselves; see [`Experiment::warms_itself`].
    pub(crate) warms_itself: bool,
    /// Returns the flag that makes a trial on a target need less memory, for machines on which the limit of a trial
    /// cannot be raised.
    pub(crate) less_memory: fn(&Target) -> Option<&'static str>,
    /// Returns the flag that raises the memory limit of a trial on a target.
    pub(crate) more_memory: fn(&Target) -> &'static str,
    /// Published figures on the experiment's question.
    pub(crate) literature: &'static [LiteratureTable],
}

/// The fixed texts of an experiment, the same for all figures.
pub(crate) struct Texts {
    /// The question that the experiment answers, in one line.
    pub(crate) question: &'static str,
    /// The figure that answers the question in a summary of one row for each experiment, in words. It is chosen here, so that
    /// every run shows the same one, whatever it measured; the finding with a key figure has its value. Empty for an
    /// experiment without such a row.
    pub(crate) main_figure: &'static str,
    /// How the experiment measures, in words.
    pub(crate) procedure: &'static str,
    /// Conditions under which the experiment's answer would differ: ideas for further measurements.
    pub(crate) change: &'static [&'static str],
}

impl Texts {
    /// No texts: the base of all texts.
    pub(crate) const NONE: Self = Self { question: "", main_figure: "", procedure: "", change: &[] };
}

/// Finds an experiment's part of the evidence for a claim that several experiments decide together.
pub(crate) type Contribute = for<'s> fn(&'s Records<'s>) -> Contribution<'s>;

impl Description {
    /// An experiment without findings, claims, literature and methods: the base of all descriptions.
    pub(crate) const fn of(id: ExperimentId, params: &'static dyn Parameters) -> Self {
        Self {
            id,
            params,
            plan: |_, _| Plan::default(),
            execute: |spec, _| Err(read_loops::unknown(spec)),
            texts: Texts::NONE,
            rank: u32::MAX,
            in_quick: true,
            needs_trace: false,
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
/// The methods up to [`Experiment::warms_itself`] plan and measure; the later ones read records. An experiment
/// overrides the default methods in which it differs.
pub(crate) trait Experiment: Sync {
    /// The part of the experiment that is data.
    fn description(&self) -> &'static Description;

    /// The experiment's name on the command line and in records.
    fn id(&self) -> ExperimentId {
        self.description().id
    }

    /// The command running the experiment alone. An experiment with such a command is part of a run of the lab only
    /// when the user names it.
    fn command(&self) -> Option<Command> {
        None
    }

    /// The resources that the runner must prepare before the experiment's first trial.
    fn needs(&self, config: &Config) -> Needs;

    /// Plans the trials from the configuration and the available resources.
    fn plan(&self, config: &Config, available: &Available) -> Plan {
        (self.description().plan)(config, available)
    }

    /// Measures one trial, in this process. The caller has limited the memory and dropped the caches.
    ///
    /// # Errors
    /// When files cannot be opened or the system refuses the method's way of reading.
    fn execute(&self, spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
        (self.description().execute)(spec, context)
    }

    /// Planned seconds that a trial spends before its clock starts: on making or warming its data.
    fn preparation_s(&self, _spec: &TrialSpec) -> f64 {
        0.0
    }

    /// Whether a trial makes its warm state itself, so that the runner need not read its files into the page cache. A
    /// trial of the engine's pool fills the pool, and data made in memory has no file.
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
    fn covers_warning(&self, _group: &Group<'_>, _warning: &Warning) -> bool {
        false
    }

    /// The report's tables that stand before the experiment's charts.
    fn overview(&self, _summary: &Summary<'_>) -> Vec<Figure> {
        Vec::new()
    }

    /// The experiment's figures for the two pages at the head of the report, the most telling first. Most experiments have
    /// none.
    fn paper(&self, _summary: &Summary<'_>) -> Vec<Figure> {
        Vec::new()
    }

    /// The experiment's figures for a page over the results of several machines, each with its label. Most experiments have
    /// none.
    fn gallery(&self, _machines: &[(String, &Summary<'_>)]) -> Vec<Figure> {
        Vec::new()
    }

    /// The report's charts for one variant on one target. A chart that the records cannot fill is left out.
    fn figures(&self, section: &Section<'_, '_>) -> Vec<Figure>;

    /// The experiment's tables in the terminal, for one target.
    fn tables(&self, place: &TargetView<'_, '_>) -> Vec<Sheet> {
        vec![columns::operations(place.summary, self.id(), place.target, &place.variants)]
    }

    /// The groups of trials that the report shows next to a row of a table of published figures.
    fn counterparts<'g, 'a>(
        &self,
        table: &LiteratureTable,
        row: &LiteratureRow,
        summary: &'g Summary<'a>,
    ) -> Counterparts<'g, 'a> {
        literature::on_the_file(self.id(), table, row, summary)
    }
}

/// The flag that raises the memory limit of trials on a target. For experiments that read the data file and RAM-backed
/// devices: trials on such devices have a different limit.
pub(crate) fn limit_flag(target: &Target) -> &'static str {
    if target.kind().is_ram_backed() { "--set ram_memory_bytes=BYTES" } else { "--memory" }
}

/// A command of the program running one experiment alone, under a different name.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// The command's name, as it is written after the program's name.
    pub name: &'static str,
    /// The parts of the experiment that the user can measure alone, each as name and description.
    pub parts: fn() -> Vec<(&'static str, String)>,
}

/// One variant of an experiment on one target: a section of the report.
#[derive(Debug)]
pub(crate) struct Section<'g, 'a> {
    /// The variant, as records name it.
    pub(crate) variant: &'g str,
    /// The target's label, as records name it.
    pub(crate) target: &'g str,
    /// Heading of the section: variant and target in words.
    pub(crate) title: String,
    /// The variant's groups of trials on the target, in the order in which they were first measured.
    pub(crate) groups: Vec<&'g Group<'a>>,
}

impl<'g, 'a> Section<'g, 'a> {
    /// Returns the groups sorted by the family of their methods: maps first, fio last.
    pub(crate) fn by_family(&self) -> Vec<&'g Group<'a>> {
        let mut groups = self.groups.clone();
        groups.sort_by_key(|group| group.family());
        groups
    }
}

/// One target of an experiment, as the terminal's tables need it.
#[derive(Debug)]
pub(crate) struct TargetView<'g, 'a> {
    /// All records of the run.
    pub(crate) file: &'g RecordFile,
    /// The same records as groups of equal trials.
    pub(crate) summary: &'g Summary<'a>,
    /// The target's label, as records name it.
    pub(crate) target: &'g str,
    /// The variants measured on the target, in the order of their measurement.
    pub(crate) variants: Vec<&'g str>,
}

/// The resources of this machine that the runner has prepared for the experiments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Available {
    /// The data file on the file system of `Config::dir`.
    pub(crate) file: Target,
    /// RAM-backed devices; empty where none can be made.
    pub(crate) ram: Vec<Target>,
    /// Raw devices that the user has given for reading.
    pub(crate) devices: Vec<Target>,
    /// Files or devices to stripe over on the user's storage; the first is the data file itself.
    pub(crate) stripe: Vec<Target>,
    /// The small files, all of them in one target.
    pub(crate) small_files: Target,
    /// The engine's database with the content of the data file; `None` where the run leaves it out.
    pub(crate) pool: Option<Target>,
    /// Memory limit of trials on the data file and on raw devices.
    pub(crate) memory: MemoryLimit,
    /// Memory limit of trials on RAM-backed devices.
    pub(crate) ram_memory: MemoryLimit,
    /// Bytes of the pool's memory where no limit says them. Tests, whose data is tiny, have few: pinning them takes most of a trial's
    /// time.
    pub(crate) pool_bytes: u64,
    /// The resources of the experiments whose trials make databases, one entry for each experiment.
    pub(crate) stores: Vec<StoresPlace>,
    /// Version of fio; `None` where fio is not installed.
    pub(crate) fio: Option<String>,
    /// The lab's folder, in which trials make their own files.
    pub(crate) folder: PathBuf,
    /// The ways to fill memory, so that the kernel must reclaim pages.
    pub(crate) reclaim: Vec<Reclaim>,
    /// The rate of random reads of the device under the data file; `None` before it is measured, and where it cannot be.
    pub(crate) device_rate: Option<DeviceRate>,
    /// Bytes of memory that are free for the trials now; `None` where the amount is not known.
    pub(crate) memory_available_bytes: Option<u64>,
    /// Whether the lab runs as root.
    pub(crate) root: bool,
    /// The reason why this process can have no io_uring; `None` when it can.
    pub(crate) no_ring: Option<String>,
}

impl Available {
    /// Returns the path of the folder in which an experiment's trials make their databases; it contains one store's at
    /// a time. An empty text when no such folder was prepared.
    pub(crate) fn stores_folder(&self, experiment: ExperimentId) -> PathBuf {
        let place = self.stores.iter().find(|place| place.experiment == experiment);
        place.map_or_else(PathBuf::new, |place| place.folder.clone())
    }

    /// The memory limit of an experiment's trials that make databases larger than memory.
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

/// The resources that an experiment needs under the configuration of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Needs {
    /// Whether the experiment reads the large data file.
    pub(crate) file: bool,
    /// How many of the trials read data larger than memory, and so need a memory limit.
    pub(crate) limited: LimitedTrials,
    /// The small files that the experiment reads.
    pub(crate) small_files: SmallFiles,
    /// The bytes that the engine's database must hold for the experiment.
    pub(crate) pool: PoolBytes,
    /// Number of RAM-backed devices that the experiment uses, where they can be made.
    pub(crate) ram_devices: u32,
    /// Whether the experiment's trials stripe over the further folders and devices of the configuration.
    pub(crate) stripe: bool,
    /// Space for databases that the experiment's trials make themselves, one at a time.
    pub(crate) stores: Option<Stores>,
    /// Memory that the trials under reclaim need; `None` for an experiment without such trials.
    pub(crate) reclaim: Option<ReclaimBytes>,
}

/// How many of an experiment's trials read data larger than memory, and so need a memory limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LimitedTrials {
    /// No trial reads data larger than memory.
    #[default]
    Nothing,
    /// Some trials read data larger than memory; the others are measured even where memory cannot be limited.
    Some,
    /// All trials read data larger than memory: the experiment is left out where memory cannot be limited.
    All,
}

/// The small files that an experiment reads, all of them in one target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SmallFiles {
    /// No small files.
    #[default]
    Nothing,
    /// Small files of the experiment's own: the given number, of the given size.
    Own {
        /// Number of files.
        count: u32,
        /// Bytes of each file.
        file_bytes: u64,
    },
    /// The small files that another experiment of the run requests, used as they are.
    Shared,
}

/// The bytes that the engine's database must hold for an experiment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum PoolBytes {
    /// The experiment does not read the engine's database.
    #[default]
    Nothing,
    /// As many bytes as the data file, under the same memory limit.
    OfFile,
    /// The given number of bytes.
    Bytes(u64),
}

/// The sizes of the databases that an experiment's trials make themselves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stores {
    /// Bytes of data in the trials whose data is larger than memory.
    pub(crate) data_bytes: u64,
    /// Bytes of memory for the trials whose data is larger than memory.
    pub(crate) memory_bytes: u64,
    /// Bytes of data in the trial that has most.
    pub(crate) data_bytes_max: u64,
}

/// The folder and the memory limit of one experiment whose trials make databases.
#[derive(Debug, Clone)]
pub(crate) struct StoresPlace {
    /// The experiment whose trials make databases here.
    pub(crate) experiment: ExperimentId,
    /// The folder in which one store at a time has its database.
    pub(crate) folder: PathBuf,
    /// Memory limit of the trials with data larger than memory, or the reason why memory cannot be limited.
    pub(crate) memory: std::result::Result<MemoryLimit, String>,
}

/// Bytes of memory that each way of reclaim leaves to the trial.
#[derive(Debug, Clone)]
pub(crate) struct ReclaimBytes {
    /// Bytes of memory that the cgroup leaves to the trial, which then reclaims by itself.
    pub(crate) cgroup: u64,
    /// Bytes of memory that the ballast leaves to the trial, so that kswapd reclaims; or the reason why no ballast is
    /// possible.
    pub(crate) kswapd: std::result::Result<u64, String>,
}

/// The trials of one repeat, in any order (the runner interleaves and repeats them), and the trials that are skipped,
/// with the reasons.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// The trials to repeat, all with `repeat` 0.
    pub(crate) trials: Vec<TrialSpec>,
    /// Trials with outcomes that do not depend on chance: they are measured once, before the others.
    pub(crate) once: Vec<TrialSpec>,
    /// How often the runner measures `trials`; `None` takes `Config::repeats`.
    pub(crate) repeats: Option<u32>,
    /// Whether consecutive trials of one method and target build on each other and must keep their order in every
    /// round.
    pub(crate) together: bool,
    /// The measurements that this machine or configuration does not permit.
    pub(crate) skips: Vec<Skip>,
}

impl Plan {
    /// Notes a measurement that is not possible, once: several variants and sizes may have the same reason.
    pub(crate) fn skip(&mut self, skip: Skip) {
        if !self.skips.contains(&skip) {
            self.skips.push(skip);
        }
    }
}

/// The environment in which a trial is executed.
pub(crate) struct Context<'a> {
    /// The counters to read around the trial; among them the counters of the target's devices and of the trial's
    /// cgroup.
    pub(crate) watch: &'a Watch,
    /// Set when the user stops the run.
    pub(crate) cancel: &'a AtomicBool,
    /// How the trial empties the page cache where it does so itself. Tests give advice only: otherwise whatever else the machine
    /// does would read all of its files again, hundreds of times in a run of the tests.
    pub(crate) cold: Means,
    /// Called with each tick as it ends, for live progress.
    pub(crate) on_tick: &'a mut dyn FnMut(&Tick),
}

impl<'a> Context<'a> {
    /// Returns the plan of a measurement that takes the trial's planned time from its first operation on and watches no
    /// memory limit.
    ///
    /// # Errors
    /// `Usage` when the trial's planned time is no valid length of time.
    pub(crate) fn timed(&self, spec: &TrialSpec) -> Result<Measurement<'a>> {
        Ok(self.lasting(read_loops::duration_of(spec)?, read_loops::tick_of(spec)))
    }

    /// Returns the plan of a measurement of this length, with ticks of this length, that watches no memory limit.
    pub(crate) fn lasting(&self, duration: Duration, tick: Duration) -> Measurement<'a> {
        let (watch, cancel) = (self.watch, self.cancel);
        Measurement { duration, tick, watch, memory_bytes: None, fill_first: false, cancel }
    }
}

/// One way to fill memory on one kind of target, so that the kernel must reclaim pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reclaim {
    /// The way of reclaim: `cgroup` (the faulting thread reclaims) or `kswapd`.
    pub(crate) by: &'static str,
    /// Whether the limit is for trials on the RAM-backed device; otherwise for trials on the file.
    pub(crate) on_ram: bool,
    /// The memory limit that causes the reclaim, or the reason why it is not possible.
    pub(crate) limit: std::result::Result<MemoryLimit, String>,
}

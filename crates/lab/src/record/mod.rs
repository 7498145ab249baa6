//! The records of a run: one JSON object a line, written as each trial ends. Reports, comparisons and verdicts are made
//! from these records alone, so a record carries everything that is needed to read it: parameters, machine, seed,
//! method and the raw histogram.
//!
//! A file is one [`Record::Run`] line, then trials, skips and notes in the order they happened, then one
//! [`Record::End`]. A file without an `End` is an interrupted run and is read all the same. Unknown fields are ignored
//! and lines of an unknown type are listed apart, so that the known part of a newer file can still be read.

pub mod file;
mod target;
#[cfg(test)]
mod tests;
mod upgrade;
mod warning;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Config;
pub use crate::config::ExperimentId;
use crate::paths;
pub use target::TargetKind;
pub use warning::{Warning, WarningKind};

/// Version of the record format. It rises when a field changes its meaning, or when rules act on a new field; files of earlier versions
/// are read, and get such fields then.
pub const SCHEMA: u32 = 3;

/// One line of a record file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// Configuration, machine and tool of the run. The first line.
    Run(RunInfo),
    /// One measured trial.
    #[serde(rename = "cell")]
    Trial(Trial),
    /// A method that could not be measured here, and why.
    Skip(Skip),
    /// A circumstance that a reader must know to judge the figures.
    Note(Note),
    /// How the run ended. The last line.
    End(End),
}

/// Configuration, machine and tool of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// The schema version of the file: [`SCHEMA`] when it was written.
    pub schema: u32,
    /// Version of the tool that made the run.
    pub tool_version: String,
    /// Start of the run, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    /// The effective configuration: a record file is itself a runnable configuration.
    pub config: Config,
    /// The machine on which the run was made.
    pub machine: MachineInfo,
    /// Biases of this machine that were found, in words, each with the lab's measure against it.
    pub biases: Vec<String>,
}

/// The properties of the machine that determine the figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineInfo {
    /// CPU model name.
    pub cpu: String,
    /// Number of CPUs that the process may use.
    pub cpu_count: u32,
    /// Size of the RAM in bytes.
    pub memory_bytes: u64,
    /// Kernel release, as `uname -r` gives it.
    pub kernel: String,
    /// `none`, or the hypervisor's name where it is known.
    pub virtualization: String,
    /// File system of the working directory.
    pub file_system: String,
    /// Block device under the working directory's file system.
    pub device: String,
    /// Read-ahead of the working directory's block device, in KiB.
    pub read_ahead_kb: Option<u64>,
    /// Whether the lab ran as root.
    pub root: bool,
    /// Other properties by name: scheduler, huge pages, fault cost, system-call cost.
    pub facts: BTreeMap<String, String>,
    /// Costs of single operations of this machine by name, in nanoseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub costs_ns: BTreeMap<String, f64>,
}

/// The specification of a trial. Complete: it is the only input of the child process that measures the trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialSpec {
    /// The experiment that the trial belongs to.
    pub experiment: ExperimentId,
    /// Sub-question inside the experiment: `random-touch`, `overwrite`, `open-loop`; empty where there is only one.
    #[serde(default)]
    pub variant: String,
    /// The data that the trial reads.
    pub target: Target,
    /// Stable id of the method: `mmap-random`, `pread-direct`, `uring-direct`, `fio-uring`.
    #[serde(rename = "contender")]
    pub method: String,
    /// Threads, depth, block size and other parameters of the method.
    pub params: Params,
    /// Number of earlier measurements of this trial in this run: 0, 1, 2, …
    pub repeat: u32,
    /// Length of the measurement in seconds. Trials with a fixed amount of work (`async`) ignore it.
    pub duration_s: f64,
    /// Memory for page cache and process, and how the limit is enforced.
    pub memory: MemoryLimit,
    /// State of the page cache at the start.
    pub cache: CacheState,
    /// Seed of every random choice in the trial.
    pub seed: u64,
}

impl TrialSpec {
    /// A trial of a method on a target: one thread reading pages of 4 KiB, cold, without a memory limit. The base of the
    /// trials that an experiment plans.
    pub(crate) fn of(experiment: ExperimentId, seed: u64, target: Target, method: &str) -> Self {
        Self {
            experiment,
            variant: String::new(),
            target,
            method: method.into(),
            params: Params { threads: 1, depth: 1, block_bytes: 4096, ..Params::default() },
            repeat: 0,
            duration_s: 0.0,
            memory: MemoryLimit::default(),
            cache: CacheState::Cold,
            seed,
        }
    }

    /// The trial's name without the number of the repeat; repeats and runs are compared under it.
    pub fn key(&self) -> String {
        let mut key = format!("{}", self.experiment);
        for part in [&self.variant, &self.target.label, &self.method] {
            if !part.is_empty() {
                key.push('/');
                key.push_str(part);
            }
        }
        key.push_str(&format!("/{}/{}", self.params, self.cache));
        key
    }
}

/// The data that a trial reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Name in tables: `file`, `ram` (a zram device), `device`, `striped-2`.
    pub label: String,
    /// Paths of the files or devices; several for a striped scan.
    #[serde(with = "paths::fields")]
    pub paths: Vec<PathBuf>,
    /// Bytes of data in each file or device, after the header block.
    pub data_bytes: u64,
    /// Seed of the content, by which readers verify it; `None` for a device with unknown content.
    pub content_seed: Option<u64>,
}

impl Target {
    /// The target's kind, which its label names.
    pub fn kind(&self) -> TargetKind<'_> {
        TargetKind::of(&self.label)
    }
}

/// Parameters of a method.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Params {
    /// Number of threads that work.
    pub threads: u32,
    /// Requests in flight of each thread; 1 for synchronous calls.
    pub depth: u32,
    /// Bytes of one request.
    pub block_bytes: u64,
    /// Other parameters that distinguish trials, by name: `buffers=small`, `rate_per_s=5000`, `flags=sqpoll`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{} {}B", self.threads, self.depth, self.block_bytes)?;
        for (name, value) in &self.extra {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}

/// The limit of a trial's memory, which makes the data larger than memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// The means by which the limit is enforced.
    pub method: MemoryMethod,
    /// Bytes that process and page cache may use together; 0 without a limit.
    pub bytes: u64,
}

/// A means to limit memory. All of them count the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryMethod {
    /// No limit: the trial does not need one.
    #[default]
    None,
    /// A memory cgroup, version 2. Reclaim happens in the faulting thread.
    CgroupV2,
    /// A memory cgroup, version 1. Reclaim happens in the faulting thread.
    CgroupV1,
    /// Memory held by the lab (locked, or touched where there is no swap), so that only `bytes` are left to all other
    /// processes. Reclaim is kswapd's.
    Ballast,
    /// No limit: the data is larger than RAM.
    LargeFile,
}

/// State of the page cache when a trial starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// No page of the target is in memory.
    #[default]
    Cold,
    /// The target was read just before the trial, as much of it as fits in memory.
    Warm,
}

impl fmt::Display for CacheState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        })
    }
}

/// A trial's specification and its results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The specification of the trial.
    pub spec: TrialSpec,
    /// The results of the trial.
    pub outcome: Outcome,
}

/// The results of a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Start of the trial, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    /// Time over which the totals below were counted, in seconds.
    pub elapsed_s: f64,
    /// Number of operations finished.
    pub ops: u64,
    /// Bytes of data that the work asked for; for the bytes that the device moved see `counters`.
    pub bytes: u64,
    /// Counts of verified blocks: the proof that the data was really read.
    pub checks: Checks,
    /// Latencies by name, in nanoseconds: `op`, and where it applies `sync`, `ticker`, `open_loop`.
    pub latency: BTreeMap<String, Latency>,
    /// Kernel counters over the whole trial, by name with unit: see [`nofault_io::counters`].
    pub counters: BTreeMap<String, f64>,
    /// The time series: one entry for each tick.
    pub ticks: Vec<Tick>,
    /// The steady window: after memory was full, or after the first tick where memory did not fill. `None` where it has
    /// fewer than two ticks. Tables show these figures.
    pub steady: Option<Window>,
    /// When memory became full, in seconds after the start.
    pub full_at_s: Option<f64>,
    /// Bytes of the target in the page cache before the trial, where the kernel gives them.
    pub resident_before_bytes: Option<u64>,
    /// Bytes of the target in the page cache after the trial, where the kernel gives them.
    pub resident_after_bytes: Option<u64>,
    /// How the cold (or warm) state was made and checked.
    pub cache_method: String,
    /// Figures that only this experiment has, by name with unit.
    pub figures: BTreeMap<String, f64>,
    /// Texts by name: `said`, the output of a process; `ended`, how the process ended.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub texts: BTreeMap<String, String>,
    /// The settings of the store that was measured, by name, in words for a person; empty where no store was.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Reasons to doubt this trial: another user of the device, CPU steal, too few ticks.
    pub warnings: Vec<Warning>,
    /// Whether the trial was cut short; its figures cover the time until then.
    pub partial: bool,
}

impl Outcome {
    /// The settings of the store, in one line.
    pub(crate) fn settings_in_words(&self) -> String {
        let all: Vec<String> = self.settings.iter().map(|(name, text)| format!("{name}: {text}")).collect();
        all.join("; ")
    }

    /// Operations a second: of the steady window where there is one, else of the whole trial.
    pub fn ops_per_s(&self) -> f64 {
        match &self.steady {
            Some(window) => window.ops as f64 / window.elapsed_s.max(1e-9),
            None => self.ops as f64 / self.elapsed_s.max(1e-9),
        }
    }

    /// Bytes a second, over the same span as [`Self::ops_per_s`].
    pub fn bytes_per_s(&self) -> f64 {
        match &self.steady {
            Some(window) => window.bytes as f64 / window.elapsed_s.max(1e-9),
            None => self.bytes as f64 / self.elapsed_s.max(1e-9),
        }
    }

    /// A counter over the same span as [`Self::ops_per_s`].
    pub fn counter(&self, name: &str) -> Option<f64> {
        match &self.steady {
            Some(window) => window.counters.get(name).copied(),
            None => self.counters.get(name).copied(),
        }
    }
}

/// One interval of the time series.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// End of the interval, in seconds after the start.
    pub at_s: f64,
    /// Length of the interval in seconds.
    pub elapsed_s: f64,
    /// Operations finished in the interval.
    pub ops: u64,
    /// Bytes of data that the work asked for in the interval.
    pub bytes: u64,
    /// Kernel counters over the interval.
    pub counters: BTreeMap<String, f64>,
}

/// Several consecutive ticks, summed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Start of the window, in seconds after the start of the trial.
    pub from_s: f64,
    /// Length of the window in seconds.
    pub elapsed_s: f64,
    /// Operations finished in the window.
    pub ops: u64,
    /// Bytes of data that the work asked for in the window.
    pub bytes: u64,
    /// Kernel counters over the window.
    pub counters: BTreeMap<String, f64>,
}

/// Counts that prove that each method really read the data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checks {
    /// Blocks whose content was compared with the expected one.
    pub verified: u64,
    /// Blocks with wrong content. A single one makes the trial invalid.
    pub wrong: u64,
    /// Number of operations that failed.
    pub failed: u64,
    /// Wrapping sum over the sample of blocks, the same for every method with the same seed; 0 where unused.
    pub checksum: u64,
}

/// A latency distribution, as percentiles and as the whole histogram.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Number of samples in the distribution.
    pub count: u64,
    /// Mean latency in nanoseconds.
    pub mean_ns: f64,
    /// Median in nanoseconds.
    pub p50_ns: u64,
    /// 90th percentile in nanoseconds.
    pub p90_ns: u64,
    /// 99th percentile in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile in nanoseconds.
    pub p999_ns: u64,
    /// The largest latency in nanoseconds.
    pub max_ns: u64,
    /// The whole histogram: HdrHistogram V2, base64.
    pub hdr: String,
}

/// A method that could not be measured here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// The experiment that the method belongs to.
    pub experiment: ExperimentId,
    /// Label of the target; empty where the reason holds for all targets.
    #[serde(default)]
    pub target: String,
    /// Id of the method; empty for the whole experiment on this target.
    #[serde(rename = "contender")]
    pub method: String,
    /// The reason why the method could not be measured, and the remedy, in words for a person.
    pub reason: String,
    /// The cause, where programs act on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<SkipCause>,
}

/// A cause of a skip on which reports and comparisons act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipCause {
    /// The store was not compiled in; this is the cargo feature that adds it.
    NotBuilt(String),
    /// The trial with this key was tried and failed.
    Failed(String),
    /// A larger preset measures it.
    LargerPreset,
}

impl Skip {
    /// Creates a skip whose reason is a text for people only. An empty `target` stands for all targets, an empty `method`
    /// for all methods.
    pub(crate) fn new(
        experiment: ExperimentId,
        target: impl Into<String>,
        method: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self { experiment, target: target.into(), method: method.into(), reason: reason.into(), cause: None }
    }

    /// Adds the cause.
    #[must_use]
    pub(crate) fn because(self, cause: SkipCause) -> Self {
        Self { cause: Some(cause), ..self }
    }
}

/// A circumstance that a reader must know to judge the figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Time of the note, in milliseconds since 1970 UTC.
    pub at_unix_ms: u64,
    /// The circumstance, in words.
    pub text: String,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Whether every planned trial was measured.
    pub complete: bool,
    /// The reason why the run is not complete: `interrupted`, or the error.
    #[serde(default)]
    pub reason: String,
    /// Wall time of the run in seconds.
    pub elapsed_s: f64,
}

//! The flags of `nofault lab`, and how they change a configuration.

mod flags;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nofault_lab::config::{Config, ExperimentId, Preset, parse_bytes};
use nofault_lab::error::{LabError, LabErrorKind, Result};
use nofault_lab::experiments;

use flags::ExperimentFlags;

use crate::verdict::{VerdictArguments, WorkloadFlags};

/// `nofault lab [EXPERIMENT]… [flags]`, or one of its commands.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = format!("\
Examples:
  nofault lab                          all but {}, in less than three minutes
  nofault lab --preset standard        all but {}, with sweeps and repeats: about an hour
  nofault lab random scan --preset standard
  nofault lab --dir /mnt/nvme/lab      measure the file system mounted there
  nofault lab --plan                   say what would be done, how long and how large, and stop
  nofault lab --config nofault-lab/2026-01-31T12-00-00    the same run again
  nofault lab verdict --read-only      whether to use mmap, by the newest result's figures
  nofault lab doctor                   what this machine allows

Each run gets a folder of its own with records.ndjson and report.html; data files are removed at the end.
A flag is for every chosen experiment that has such a parameter; where none has it is refused.

Exit codes:
    0  done
    1  a regression was found (compare)
    2  wrong call: a flag, a configuration, a path
    3  rights are missing
    4  not enough disk or memory
    5  in use: another lab, a mounted device
    6  damaged, or not the lab's own
    7  not possible on this machine
    8  a method read wrong data
    9  the system failed, or single trials did
  130  interrupted; what was measured is kept", left_out(Preset::Quick), left_out(Preset::Standard))
)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    pub(crate) command: Option<LabCommand>,
    #[command(flatten)]
    pub(crate) run: RunArguments,
}

/// The experiments that a run of a preset leaves out, in words.
fn left_out(preset: Preset) -> String {
    let chosen = Config::preset(preset).experiments;
    let names: Vec<&str> = experiments::ids().filter(|id| !chosen.contains(id)).map(ExperimentId::name).collect();
    match names.as_slice() {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        names => names.join(""),
    }
}

/// The help of the experiments' names.
fn which_experiments() -> String {
    let names: Vec<&str> = experiments::ids().map(ExperimentId::name).collect();
    format!(
        "Which experiments: {}. Those of the preset by default: all but {}, and in quick all but {}",
        names.join(", "),
        left_out(Preset::Standard),
        left_out(Preset::Quick)
    )
}

/// The commands beside the run itself.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Make the HTML report and the table again, from records alone; or one figure as a picture.
    Report {
        /// A result folder, or a records.ndjson.
        result: PathBuf,
        /// Where to write the report; beside the records by default. Only an earlier report is replaced.
        #[arg(long, short)]
        out: Option<PathBuf>,
        /// Print the summary as JSON instead of a table.
        #[arg(long)]
        json: bool,
        /// The figure for --svg: its experiment and title, as in `random/rate-file`. An unknown one lists all of the result.
        #[arg(long, value_name = "ID", requires = "svg", conflicts_with_all = ["out", "json"])]
        figure: Option<String>,
        /// Draw one figure, and nothing else, into this SVG file, for a document. Only an earlier picture is replaced.
        #[arg(long, value_name = "FILE", requires = "figure")]
        svg: Option<PathBuf>,
    },
    /// Compare two results, trial by trial; exit code 1 when the second is worse somewhere.
    Compare {
        /// The result to compare with.
        before: PathBuf,
        /// The result to judge.
        after: PathBuf,
        /// Smallest change that counts, as a share.
        #[arg(long, default_value_t = 0.05)]
        threshold: f64,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Decide whether to use mmap for a database of yours, by a result's figures.
    Verdict(VerdictArguments),
    /// Print the abilities of this machine: clock, rights, cgroup, io_uring, O_DIRECT, sync cost, device floor and
    /// ceiling.
    Doctor {
        /// The folder on the file system and device to examine.
        #[arg(long, default_value = ".")]
        dir: PathBuf,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the results in a folder.
    List {
        /// The folder of the results.
        #[arg(default_value = "nofault-lab")]
        dir: PathBuf,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put the lab's marker and data on a raw block device, which erases it.
    PrepareDevice {
        /// The device.
        device: PathBuf,
        /// The device's path once more: everything on it is lost.
        #[arg(long, value_name = "DEVICE")]
        erase: PathBuf,
        /// Bytes of it to use; all of it by default.
        #[arg(long, value_parser = parse_bytes)]
        size: Option<u64>,
    },
    /// One trial, started by the lab itself.
    #[command(hide = true)]
    Trial,
    /// A process in which a fault happens, started by a trial of `errors`.
    #[command(hide = true)]
    Subject,
    /// A process that commits until it is killed, started by a trial of `safety`.
    #[command(hide = true)]
    Writer,
}

/// The flags of a run. Each changes one value of the preset or of the configuration file.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Which experiments.
    #[arg(value_name = "EXPERIMENT", help = which_experiments())]
    experiments: Vec<String>,
    /// How thorough: quick (under three minutes), standard (sweeps and repeats: about an hour), paper (its sizes and durations).
    #[arg(long, value_enum, help_heading = "What to measure", value_name = "PRESET")]
    preset: Option<PresetName>,
    /// A TOML file with any of the parameters, or the records of an earlier run. Flags win over it.
    #[arg(long, value_name = "FILE", conflicts_with = "preset", help_heading = "What to measure")]
    config: Option<PathBuf>,
    /// Any other parameter, by its name in TOML (see --print-config), as in random.block_bytes=8192; wins over the others; may be
    /// repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", help_heading = "What to measure")]
    assignments: Vec<String>,
    /// Folder for data files and results, on the file system to be measured; nofault-lab by default.
    #[arg(long, help_heading = "Where", value_name = "FOLDER")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    flags: ExperimentFlags,
    #[command(flatten)]
    pub(crate) results: ResultArguments,
    /// Read devices without the marker too (they are never written; their content cannot be verified).
    #[arg(long, help_heading = "Where")]
    unmarked_devices: bool,
    /// Seed of content, offsets and order.
    #[arg(long, help_heading = "What to measure")]
    seed: Option<u64>,
    #[command(flatten)]
    workload: WorkloadFlags,
    /// Threads that use the database in question at the same time; this and the others only change the verdict.
    #[arg(long, help_heading = "The workload", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    workload_threads: Option<u32>,
    /// Print the effective configuration as TOML, ready to be edited and given to --config, and stop.
    #[arg(long, help_heading = "Results")]
    pub(crate) print_config: bool,
    /// Keep the data files for the next run.
    #[arg(long, help_heading = "Results")]
    pub(crate) keep_data: bool,
}

/// The flags of a run's result and of its output.
#[derive(Debug, Args)]
pub(crate) struct ResultArguments {
    /// Folder for this run's result; named after the time by default, beside the earlier ones.
    #[arg(long, short, help_heading = "Results", value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Print the planned trials with their time and size, and stop.
    #[arg(long, help_heading = "Results")]
    pub(crate) plan: bool,
    /// Print the summary, or the plan, as JSON.
    #[arg(long, help_heading = "Results")]
    pub(crate) json: bool,
    /// No progress on standard error.
    #[arg(long, short, help_heading = "Results")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PresetName {
    Quick,
    Standard,
    Paper,
}

impl RunArguments {
    /// The effective configuration: preset or file first, then the flags.
    pub(crate) fn config(&self) -> Result<Config> {
        let mut config = match &self.config {
            Some(path) => nofault_lab::run::config_from_file(path)?,
            None => Config::preset(match self.preset {
                None | Some(PresetName::Quick) => Preset::Quick,
                Some(PresetName::Standard) => Preset::Standard,
                Some(PresetName::Paper) => Preset::Paper,
            }),
        };
        if !self.experiments.is_empty() {
            let parsed: std::result::Result<Vec<ExperimentId>, String> =
                self.experiments.iter().map(|name| experiments::parse(name)).collect();
            config.experiments = parsed.map_err(|why| {
                let help =
                    "'nofault lab --help' lists the commands report, compare, verdict, doctor, list, prepare-device";
                LabError::new(LabErrorKind::Usage, format!("{why}; {help}"))
            })?;
        }
        set(&mut config.dir, self.dir.clone());
        set(&mut config.seed, self.seed);
        self.workload.replace_answers(&mut config.workload);
        set(&mut config.workload.threads, self.workload_threads);
        config.unmarked_devices |= self.unmarked_devices;
        let config = config.with_flags(&self.flags.given, &self.assignments)?;
        config.validate()?;
        Ok(config)
    }
}

fn set<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

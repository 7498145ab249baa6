//! The flags of `nofault lab`, and how they change a configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nofault_lab::config::{Config, ExperimentId, Preset, parse_bytes};
use nofault_lab::error::{LabError, LabErrorKind, Result};
use nofault_lab::{experiments, settings};

use crate::lab_flags::ExperimentFlags;

use crate::verdict::{VerdictArguments, WorkloadFlags};

/// The arguments of `nofault lab`: experiments and flags, or one of its commands.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = format!("\
Examples:
  nofault lab  all but {}
                                       in about three minutes
  nofault lab --preset standard        all but {}, with sweeps and repeats, in about 40 minutes
  nofault lab random scan --preset standard
  nofault lab --dir /mnt/nvme/lab      measure the file system mounted there
  nofault lab --plan                   print the trials, the time and the space of a run, and stop
  nofault lab --config nofault-lab/2026-01-31T12-00-00    the same run again
  nofault lab verdict --read-only      whether to use mmap, by the newest result's figures
  nofault lab doctor                   what this machine allows
  nofault lab --file my.db             random, scan and crossover over a file of yours, which is only read
  nofault lab record -- COMMAND        record the accesses of a program of yours, as trace.csv
  nofault lab record --faults -- COMMAND    the same for a program that maps its file: its page faults
  nofault lab --trace trace.csv        replay them with each method: curve and verdict, about your workload
  nofault lab share RESULT --out a.json    one file without names and paths, for others
  nofault lab gallery a.json b.json    the curves of several machines side by side

Each run gets a new folder with records.ndjson and report.html; data files are removed at the end.
A flag applies to every chosen experiment that has such a parameter, and is refused where none has.

Exit codes:
    0  done
    1  a regression was found (compare)
    2  wrong call: a flag, a configuration, a path
    3  rights are missing
    4  not enough disk or memory; where it ran out in a run, the results so far are kept and reported
    5  in use: another lab, a mounted device
    6  damaged, or not the lab's own
    7  not possible on this machine
    8  a method read wrong data
    9  a system call failed, or single trials failed
   10  a limit of the process or the machine is reached: descriptors, threads, memory
  130  interrupted; the results so far are kept", left_out(Preset::Quick), left_out(Preset::Standard))
)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    pub(crate) command: Option<LabCommand>,
    #[command(flatten)]
    pub(crate) run: RunArguments,
}

/// Names the experiments that a run of a preset leaves out.
fn left_out(preset: Preset) -> String {
    let chosen = Config::preset(preset).experiments;
    let names: Vec<&str> = experiments::ids().filter(|id| !chosen.contains(id)).map(ExperimentId::name).collect();
    match names.as_slice() {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        names => names.join(""),
    }
}

/// The help text of the argument with the experiments' names.
fn which_experiments() -> String {
    let names: Vec<&str> = experiments::ids().map(ExperimentId::name).collect();
    format!(
        "The experiments to run: {}. By default the preset's: all but {}; in quick, all but {}",
        names.join(", "),
        left_out(Preset::Standard),
        left_out(Preset::Quick)
    )
}

/// The commands of `nofault lab`.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Make the HTML report and the table of a result again from its records; or draw one figure as a picture.
    Report {
        /// A result folder, or a records.ndjson.
        result: PathBuf,
        /// File of the report; next to the records by default. Only an earlier report is replaced.
        #[arg(long, short)]
        out: Option<PathBuf>,
        /// Print the summary as JSON instead of tables.
        #[arg(long)]
        json: bool,
        /// Print the tables of all experiments, all findings and warnings.
        #[arg(long, short)]
        verbose: bool,
        /// Id of the figure for --svg: experiment and title, as in `random/rate-file`. With an unknown id, the ids of
        /// the result are listed.
        #[arg(long, value_name = "ID", requires = "svg", conflicts_with_all = ["out", "json"])]
        figure: Option<String>,
        /// Draw only the figure --figure, for a document, into this SVG file. Only an earlier picture is replaced.
        #[arg(long, value_name = "FILE", requires = "figure")]
        svg: Option<PathBuf>,
        /// Draw every figure as a separate SVG file into this folder.
        #[arg(long, value_name = "FOLDER", conflicts_with_all = ["figure", "out", "json"])]
        svgs: Option<PathBuf>,
    },
    /// Make one file of a result that can be given to others: no host or user names, no paths, no serial numbers. Shows its
    /// content first.
    Share {
        /// A result folder, or a records.ndjson.
        result: PathBuf,
        /// File to write; without it the whole file is printed, and nothing is written. Only an earlier one is replaced.
        #[arg(long, short)]
        out: Option<PathBuf>,
        /// Write without asking.
        #[arg(long, requires = "out")]
        yes: bool,
    },
    /// Record the reads, writes and syncs of a command as a file for --trace, with their threads and times. Uses strace, so that
    /// the command is slower while it is recorded, and accesses through a map and by an io_uring are not seen; for a map see --faults.
    Record {
        /// Record the page faults of the command in a mapped file, in place of its system calls. Uses perf, as root or with
        /// kernel.perf_event_paranoid at 2 or less. A page faults when it is first touched and after it was evicted: the trace
        /// has the misses of the map, not its hits. A page in the page cache makes a minor fault, which maps
        /// the cached pages around it too (by default 64 KiB); one that comes from the device makes a major fault. Both are
        /// recorded, as a read of one page each: whether the command read or wrote is not known.
        #[arg(long)]
        faults: bool,
        /// With --faults, record one of so many faults, for commands with too many.
        #[arg(long, value_name = "N", default_value_t = 1, requires = "faults", value_parser = clap::value_parser!(u32).range(1..))]
        every: u32,
        /// The file whose accesses are recorded; by default the file of which the command moved most bytes, or in which it faulted
        /// most, other than programs and libraries.
        #[arg(long)]
        of: Option<PathBuf>,
        /// File to write.
        #[arg(long, short, default_value = "trace.csv")]
        out: PathBuf,
        /// The command with its arguments, after --.
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Make a page over the results of several machines, their curves side by side.
    Gallery {
        /// Result folders, folders of results, or files of `nofault lab share`.
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// File of the page. Only an earlier gallery is replaced.
        #[arg(long, short, default_value = "gallery.html")]
        out: PathBuf,
    },
    /// Compare two results, trial by trial; exit code 1 when any trial of the second is worse.
    Compare {
        /// The earlier result: a folder, or a records.ndjson.
        before: PathBuf,
        /// The later result, which is judged.
        after: PathBuf,
        /// Smallest change that counts, as a fraction: 0.05 is five percent.
        #[arg(long, default_value_t = 0.05)]
        threshold: f64,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Recommend for or against mmap for a database of yours, by the figures of a result.
    Verdict(VerdictArguments),
    /// Print what this machine allows the lab to measure: clock, rights, memory limits, io_uring, O_DIRECT; and the
    /// speed of its device.
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
        /// Print as JSON. A path that is not UTF-8 stands as base64: and the base64 of its bytes, here and in TOML.
        #[arg(long)]
        json: bool,
    },
    /// Put the lab's marker and data on a raw block device, which erases it.
    PrepareDevice {
        /// The block device to prepare.
        device: PathBuf,
        /// The same path again, to confirm that everything on the device is lost.
        #[arg(long, value_name = "DEVICE")]
        erase: PathBuf,
        /// Bytes of the device to use; all of it by default.
        #[arg(long, value_parser = parse_bytes)]
        size: Option<u64>,
    },
    /// Measures one trial; started by the lab itself.
    #[command(hide = true)]
    Trial,
    /// Reads files in which a fault is provoked; started by a trial of `errors`.
    #[command(hide = true)]
    Subject,
    /// Commits until it is killed; started by a trial of `safety`.
    #[command(hide = true)]
    Writer,
    /// Reads, or allocates memory, until it is killed; started by a trial of `rss`.
    #[command(hide = true)]
    MemoryUser,
}

/// The flags of a run. Each changes one value of the preset or of the configuration file.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The experiments to run.
    #[arg(value_name = "EXPERIMENT", help = which_experiments())]
    experiments: Vec<String>,
    /// Thoroughness: quick (about three minutes), standard (sweeps and repeats: about 40 minutes), paper (the sizes and
    /// durations of the CIDR 2022 paper on mmap: hours).
    #[arg(long, value_enum, help_heading = "What to measure", value_name = "PRESET")]
    preset: Option<PresetName>,
    /// A TOML file with any of the parameters, or the result of an earlier run. Flags override its values.
    #[arg(long, value_name = "FILE", conflicts_with = "preset", help_heading = "What to measure")]
    config: Option<PathBuf>,
    /// Any parameter, by its name in TOML (see --print-config), as in random.block_bytes=8192. Overrides the other
    /// flags; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", help_heading = "What to measure")]
    assignments: Vec<String>,
    /// Folder for data files and results, on the file system to be measured; nofault-lab by default.
    #[arg(long, help_heading = "Where", value_name = "FOLDER")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    flags: ExperimentFlags,
    #[command(flatten)]
    pub(crate) results: ResultArguments,
    /// Read devices without the lab's marker too (they are never written; their content cannot be verified).
    #[arg(long, help_heading = "Where")]
    unmarked_devices: bool,
    /// Allow a ballast where no memory cgroup can be made: nearly all memory of the machine is held while trials run,
    /// and other programs may stall or be killed.
    #[arg(long, help_heading = "How")]
    memory_ballast: bool,
    /// Seed of the data's content, and of the order of the reads.
    #[arg(long, help_heading = "What to measure")]
    seed: Option<u64>,
    #[command(flatten)]
    workload: WorkloadFlags,
    /// Print the effective configuration as TOML, ready to be edited and given to --config, and stop.
    #[arg(long, help_heading = "Results")]
    pub(crate) print_config: bool,
    /// Keep the data files for the next run instead of removing them.
    #[arg(long, help_heading = "Results")]
    pub(crate) keep_data: bool,
}

/// Flags for the result of a run and for its output.
#[derive(Debug, Args)]
pub(crate) struct ResultArguments {
    /// Folder for this run's result; by default named after the time, next to the earlier results.
    #[arg(long, short, help_heading = "Results", value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Print the planned trials with their time and size, and stop.
    #[arg(long, help_heading = "Results")]
    pub(crate) plan: bool,
    /// Print the summary, or the plan, as JSON.
    #[arg(long, help_heading = "Results")]
    pub(crate) json: bool,
    /// Print every trial and note, the tables of all experiments, all findings and warnings.
    #[arg(long, short, help_heading = "Results", conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Print no progress on standard error.
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
    /// Makes the effective configuration: preset or file first, then the flags.
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
                    "'nofault lab --help' lists the commands report, share, gallery, record, compare, verdict, doctor, list, prepare-device";
                LabError::new(LabErrorKind::Usage, format!("{why}; {help}"))
            })?;
        }
        if self.experiments.is_empty()
            && self.config.is_none()
            && let Some(experiments) = settings::chosen_by(&self.flags.given)
        {
            config.experiments = experiments;
        }
        set(&mut config.dir, self.dir.clone());
        set(&mut config.seed, self.seed);
        self.workload.replace_answers(&mut config.workload);
        config.unmarked_devices |= self.unmarked_devices;
        config.memory_ballast |= self.memory_ballast;
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

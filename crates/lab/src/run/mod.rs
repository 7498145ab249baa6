//! Executes a configuration: plans, prepares the machine, measures trial by trial, writes a record as each ends, and
//! makes the report from the records.
//!
//! | module | purpose |
//! |---|---|
//! | [`child`] | one trial in a separate process |
//! | `noise` | the signs of other load during a trial |
//! | `prepare` | the resources of a run: data files, RAM-backed devices, memory limits; made and removed |
//! | `results` | results read, and the files made from them |
//! | `schedule` | the trials in their order, with their times and sizes; shown before anything starts |
//!
//! Kept true here: a record is written when its trial ends, so an interrupted run keeps its results so far; each
//! resource is removed when its guard drops, on every way out; a full disk ends the trials and not the report, because
//! removing the data makes room for the records.

pub mod child;
mod noise;
mod prepare;
mod results;
mod schedule;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use child::Launcher;
pub use prepare::prepare_device;
pub use results::{
    RECORDS_NAME, REPORT_NAME, read, write_gallery, write_picture, write_pictures, write_report, write_shared,
};
pub use schedule::Plan;

use crate::config::Config;
use crate::error::{LabError, LabErrorKind, Result};
use crate::format;
use crate::lines::read_text;
use crate::machine::cache;
use crate::machine::memory::Limit;
use crate::machine::read_ahead::ReadAhead;
use crate::measure::unix_ms;
use crate::paths::shown;
use crate::progress::Progress;
use crate::record::file::{RecordFile, RecordWriter};
use crate::record::{
    CacheState, End, MemoryLimit, MemoryMethod, Note, Outcome, Record, RunInfo, SCHEMA, Skip, SkipCause, Trial,
    TrialSpec,
};

use prepare::RunResources;
use schedule::Schedule;

/// Most bytes of a configuration file.
const CONFIG_BYTES_MAX: usize = 1 << 20;

/// Options of a run: its configuration, its folders and how its trials are executed.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The effective configuration.
    pub config: Config,
    /// Folder for the result; `<dir>/<time>` for `None`. The folder must not exist.
    pub out: Option<PathBuf>,
    /// Whether to keep the data files for the next run.
    pub keep_data: bool,
    /// Whether to print the plan and stop.
    pub plan_only: bool,
    /// How trials are executed.
    pub launcher: Launcher,
}

/// A run that has measured, and its result folder.
#[derive(Debug)]
pub struct RunResult {
    /// Path of the result folder.
    pub folder: PathBuf,
    /// The records in the result folder.
    pub records: RecordFile,
    /// Why the run was not a full success: interrupted, wrong data read, failed trials, or a resource that could not be
    /// removed.
    pub trouble: Option<LabError>,
}

/// The result of [`run`]: a plan or a measured run.
#[derive(Debug)]
pub enum RunOutcome {
    /// The plan only: no trial was measured.
    Planned(Plan),
    /// A measured run, with its records.
    Measured(Box<RunResult>),
}

/// Plans a run, and unless only the plan is wanted, measures every trial and writes records and report.
///
/// # Errors
/// Any failure that keeps a run from starting or from being recorded. After the first record, a failure is in the
/// result as [`RunResult::trouble`].
pub fn run(options: &RunOptions, progress: &mut Progress, cancel: &AtomicBool) -> Result<RunOutcome> {
    let config = &options.config;
    config.validate()?;
    if let Some(out) = options.out.as_ref().filter(|out| out.exists()) {
        let message =
            format!("{} exists: results are never overwritten; choose another folder with --out", shown(&out));
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let started = Instant::now();
    let mut prepared = RunResources::look(config, options.keep_data)?;
    prepared.notes().iter().for_each(|note| progress.detail("note: ", note));
    let schedule = Schedule::of(config, prepared.available(), prepared.no_limit());
    let plan = schedule.plan(config, &prepared)?;
    if !options.plan_only || schedule.trials.is_empty() {
        let brief = !progress.is_verbose() && !schedule.trials.is_empty();
        let lines = if brief { plan.brief() } else { plan.lines.clone() };
        lines.iter().for_each(|(what, value)| progress.say_wrapped(&schedule::head_of(what), value));
    }
    if schedule.trials.is_empty() {
        let (kind, reason) = match prepared.no_limit() {
            Some(reason) => (LabErrorKind::NoPermission, reason),
            None => (LabErrorKind::Unsupported, "the plan says what is left out, and why"),
        };
        return Err(LabError::new(kind, format!("nothing can be measured here: {reason}")));
    }
    if options.plan_only {
        return Ok(RunOutcome::Planned(plan));
    }

    let survey = prepared.survey();
    survey.biases.iter().for_each(|bias| progress.detail("note: ", &bias.to_string()));
    let folder = make_folder(options, prepared.folder())?;
    let run_info = RunInfo {
        schema: SCHEMA,
        tool_version: env!("CARGO_PKG_VERSION").into(),
        started_unix_ms: unix_ms(),
        config: config.clone(),
        machine: survey.machine,
        biases: survey.biases.iter().map(ToString::to_string).collect(),
    };
    let mut writer = RecordWriter::create(&folder.join(RECORDS_NAME), &run_info).map_err(|error| {
        remove_result(&folder);
        LabError::from(error)
    })?;
    let mut runner =
        Runner { options, progress, cancel, writer: &mut writer, ballast: None, tried: 0, bad: Failures::default() };
    let result = runner.all(&mut prepared);
    let (tried, bad) = (runner.tried, std::mem::take(&mut runner.bad));
    drop(runner);
    progress.finish();
    let trouble = match result {
        // Before the first trial there is no result to keep.
        Err(error) if tried == 0 => {
            drop(writer);
            remove_result(&folder);
            return Err(error);
        }
        result => finish(&mut writer, result, &bad, started),
    };
    // Devices and files are removed before the report is made: a Ctrl-C from here on leaves none behind.
    let closed = prepared.close();
    let settled = writer.settle().map_err(LabError::from);
    let records = writer.read_back().map_err(LabError::from)?;
    // A failure from here on does not affect the measurements: it is reported next to them.
    let reported = write_report(&records, &folder.join(REPORT_NAME));
    let trouble =
        [closed, settled, reported].into_iter().filter_map(Result::err).fold(trouble, |before, error| match before {
            Some(before) => Some(LabError::new(before.kind(), format!("{before}; {error}"))),
            None => Some(error),
        });
    Ok(RunOutcome::Measured(Box::new(RunResult { folder, records, trouble })))
}

/// Reads a configuration from a TOML file, or from the records of an earlier run.
///
/// # Errors
/// `Usage` for a file that is neither, with the reason; the system's error.
pub fn config_from_file(path: &Path) -> Result<Config> {
    if path.is_dir() || path.extension().is_some_and(|end| end == "ndjson") {
        return Ok(read(path)?.run.config);
    }
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message =
                format!("there is no {}; 'nofault lab --print-config' prints a file to start from", shown(path));
            return Err(LabError::new(LabErrorKind::Usage, message));
        }
        Err(error) => return Err(LabError::system(format!("read {}", shown(path)), &error)),
    };
    let text = read_text(file, CONFIG_BYTES_MAX).map_err(|error| error.of(shown(path), LabErrorKind::Usage))?;
    Config::from_toml(&text)
}

fn make_folder(options: &RunOptions, dir: &Path) -> Result<PathBuf> {
    let folder = match &options.out {
        Some(out) => out.clone(),
        None => dir.join(folder_name(unix_ms())),
    };
    std::fs::create_dir_all(&folder)
        .map_err(|error| LabError::system(format!("create the result folder {}", shown(&folder)), &error))?;
    Ok(folder)
}

/// Name of a result folder, `2026-01-31T12-30-05`: sorts by time, and is valid on every file system.
fn folder_name(unix_ms: u64) -> String {
    let minute = format::date(unix_ms).replace(" UTC", "").replace(' ', "T").replace(':', "-");
    format!("{minute}-{:02}", unix_ms / 1000 % 60)
}

/// Writes the last record and returns the failure to report to the user. A trial that read wrong data counts as
/// measured and leaves a run complete; a failed trial does not.
fn finish(
    writer: &mut RecordWriter,
    result: Result<Option<LabError>>,
    bad: &Failures,
    started: Instant,
) -> Option<LabError> {
    let trouble = match result {
        Ok(trouble) => trouble,
        Err(error) => Some(error),
    };
    let complete = bad.failed == 0 && trouble.as_ref().is_none_or(|error| error.kind() == LabErrorKind::WrongData);
    let reason = trouble.as_ref().map(ToString::to_string).unwrap_or_default();
    // A full disk takes the record once the data is removed: `run` lets the writer try again, and reports a failure.
    let _ = writer.append(&Record::End(End { complete, reason, elapsed_s: started.elapsed().as_secs_f64() }));
    trouble
}

/// Removes the folder of a result in which nothing was measured.
fn remove_result(folder: &Path) {
    let _ = std::fs::remove_file(folder.join(RECORDS_NAME)).and_then(|()| std::fs::remove_dir(folder));
}

/// State of the loop over the trials of a run.
struct Runner<'a> {
    options: &'a RunOptions,
    progress: &'a mut Progress,
    cancel: &'a AtomicBool,
    writer: &'a mut RecordWriter,
    /// The present ballast and its limit. It is kept while consecutive trials have the same limit, because locking
    /// memory takes seconds.
    ballast: Option<(MemoryLimit, Limit)>,
    /// Number of trials begun so far.
    tried: u64,
    bad: Failures,
}

impl Runner<'_> {
    /// Prepares the machine and measures all trials. An error ends the run; the failure of a single trial does not.
    fn all(&mut self, prepared: &mut RunResources) -> Result<Option<LabError>> {
        for note in prepared.notes().to_vec() {
            self.note(note)?;
        }
        prepared.make(self.progress, self.cancel)?;
        if let Some(note) = prepared.device_note() {
            self.note(note)?;
        }
        // Planned again: the devices have their names only now.
        let schedule = Schedule::of(&self.options.config, prepared.available(), prepared.no_limit());
        for skip in &schedule.skips {
            self.writer.append(&Record::Skip(skip.clone()))?;
        }
        self.progress.begin_trials(schedule.time());
        let count = schedule.trials.len();
        for (index, spec) in schedule.trials.iter().enumerate() {
            if self.cancel.load(Ordering::Relaxed) {
                return Ok(Some(interrupted(index, count)));
            }
            self.progress.begin_trial(index, count, spec);
            self.tried += 1;
            let (kept, partial) = match self.one(spec) {
                Ok(outcome) => {
                    self.bad.wrong += outcome.checks.wrong;
                    let partial = outcome.partial;
                    let trial = Trial { spec: spec.clone(), outcome };
                    let kept = self.writer.append(&Record::Trial(trial.clone())).map_err(LabError::from);
                    self.progress.end_trial(&trial, schedule::time_of(spec));
                    (kept, partial)
                }
                Err(error) if error.kind() == LabErrorKind::Interrupted => return Ok(Some(interrupted(index, count))),
                Err(error) => (self.could_not(spec, &error), false),
            };
            if let Err(error) = kept {
                return Ok(Some(self.stop_unrecorded(&error, &schedule.trials[index + 1..], count)));
            }
            if partial {
                return Ok(Some(interrupted(index + 1, count)));
            }
        }
        Ok(self.bad.trouble())
    }

    /// Names each measurement that a run without room for its records leaves out, and creates the error of the run.
    fn stop_unrecorded(&mut self, error: &LabError, left: &[TrialSpec], count: usize) -> LabError {
        let mut skips: Vec<Skip> = Vec::new();
        for spec in left {
            let skip = Skip::new(
                spec.experiment,
                &spec.target.label,
                &spec.method,
                "the records could not be written: the run ended before it",
            );
            if !skips.contains(&skip) {
                skips.push(skip);
            }
        }
        for skip in skips {
            // Kept in memory with the refused record.
            let _ = self.writer.append(&Record::Skip(skip));
        }
        let done = count - left.len();
        LabError::new(error.kind(), format!("stopped after {done} of {count} trials, which are reported: {error}"))
    }

    /// Records that a trial could not be measured, with the reason; the run continues with the other trials.
    fn could_not(&mut self, spec: &TrialSpec, error: &LabError) -> Result<()> {
        self.bad.count(&crate::progress::describe(spec), error);
        self.progress.skip(schedule::time_of(spec));
        self.progress.detail("not measured: ", &format!("{}: {error}", crate::progress::describe(spec)));
        let reason = format!("{} (repeat {}): {error}", spec.key(), spec.repeat);
        let skip = Skip::new(spec.experiment, &spec.target.label, &spec.method, reason);
        self.writer.append(&Record::Skip(skip.because(SkipCause::Failed(spec.key()))))?;
        Ok(())
    }

    fn one(&mut self, spec: &TrialSpec) -> Result<Outcome> {
        let paths: Vec<&Path> = spec.target.paths.iter().map(Path::new).collect();
        let _read_ahead = match spec.params.extra.get("read_ahead_kb") {
            Some(kib) => Some(ReadAhead::set(&paths, kib.parse().unwrap_or(0))?),
            None => None,
        };
        // A page is charged to its first reader, so a warm trial starts cold under its limit and warms up itself.
        let cold = match (spec.cache, spec.memory.method) {
            (CacheState::Warm, MemoryMethod::None) => None,
            _ => Some(cache::make_cold(&paths, cache::Means::best())?),
        };
        // The old ballast is dropped first: a new one made at the same time would be too small once the old one is gone.
        let held = self.ballast.take().filter(|(held, _)| *held == spec.memory).map(|(_, limit)| limit);
        let limit = match held {
            Some(limit) => limit,
            None => Limit::enforce(spec.memory)?,
        };
        let cgroup = limit.cgroup().map(|guard| guard.path().to_path_buf());
        let progress = &mut *self.progress;
        let mut outcome = self.options.launcher.execute(
            spec,
            cgroup.as_deref(),
            &mut |pid| limit.add_pid(pid),
            self.cancel,
            &mut |tick| progress.tick(spec, tick),
        )?;
        limit.check()?;
        if spec.memory.method == MemoryMethod::Ballast {
            self.ballast = Some((spec.memory, limit));
        }
        match (cold, spec.cache) {
            (Some(cold), CacheState::Cold) => {
                outcome.cache_method = cold.method;
                outcome.resident_before_bytes = cold.resident_bytes;
            }
            (Some(cold), CacheState::Warm) => {
                outcome.cache_method = format!("{}; then {}", cold.method, outcome.cache_method);
            }
            (None, _) => {}
        }
        outcome.resident_after_bytes = paths.iter().map(|path| cache::residency(path)).sum();
        let left = outcome.resident_before_bytes.unwrap_or(0);
        if spec.cache == CacheState::Cold && left > spec.target.data_bytes / 100 {
            let left = format::bytes(left);
            outcome.warnings.push(format!("the cache was not cold: {left} of the target were still in it").into());
        }
        Ok(outcome)
    }

    fn note(&mut self, text: String) -> Result<()> {
        Ok(self.writer.append(&Record::Note(Note { at_unix_ms: unix_ms(), text }))?)
    }
}

/// The failures of single trials, after which a run continues.
#[derive(Debug, Clone, Default)]
struct Failures {
    /// Number of blocks with other content than was written there.
    wrong: u64,
    /// Number of trials that failed, of which `full` found no room on the disk or in memory.
    failed: u64,
    full: u64,
    /// The first failure, in words.
    first: String,
}

impl Failures {
    /// Counts a trial that ended with this error. A method that this machine does not have is no failure.
    fn count(&mut self, trial: &str, error: &LabError) {
        if error.kind() == LabErrorKind::Unsupported {
            return;
        }
        self.failed += 1;
        self.full += u64::from(error.kind() == LabErrorKind::NoSpace);
        if self.first.is_empty() {
            self.first = format!("{trial}: {error}");
        }
    }

    /// The failure of a run that measured to its end: wrong blocks and failed trials; `None` without any.
    fn trouble(&self) -> Option<LabError> {
        let (wrong, failed, full) = (self.wrong, self.failed, self.full);
        let room = if full > 0 { format!(", {full} of them for lack of disk or memory") } else { String::new() };
        let failures = match failed {
            1 => format!("one trial failed: {}", self.first),
            _ => format!("{failed} trials failed{room}; the report gives their reasons; the first: {}", self.first),
        };
        match (wrong, failed) {
            (0, 0) => None,
            (0, _) => {
                let kind = if full > 0 { LabErrorKind::NoSpace } else { LabErrorKind::System };
                Some(LabError::new(kind, failures))
            }
            _ => {
                let more = if failed > 0 { format!("; {failures}") } else { String::new() };
                let message = format!(
                    "{wrong} blocks had other content than was written there: their trials have no figures{more}"
                );
                Some(LabError::new(LabErrorKind::WrongData, message))
            }
        }
    }
}

fn interrupted(done: usize, count: usize) -> LabError {
    LabError::new(
        LabErrorKind::Interrupted,
        format!("interrupted after {done} of {count} trials; the results so far are kept"),
    )
}

/// Describes a memory limit in the plan.
fn show_limit(limit: &MemoryLimit) -> String {
    let bytes = format::bytes(limit.bytes);
    match limit.method {
        MemoryMethod::None => "not limited: no trial needs a limit".into(),
        MemoryMethod::CgroupV2 => format!("{bytes} by a memory cgroup (version 2)"),
        MemoryMethod::CgroupV1 => format!("{bytes} by a memory cgroup (version 1)"),
        MemoryMethod::Ballast => format!("{bytes} left to all processes: a ballast holds the rest while trials run"),
        MemoryMethod::LargeFile => "all of RAM, with data larger than it".into(),
    }
}

/// Converts seconds of a plan to a duration.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::record::MachineInfo;
    use crate::record::file::read_records;

    #[test]
    fn a_configuration_that_another_program_wrote_is_read_and_what_is_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.toml");
        let from = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            config_from_file(&path)
        };
        let text = "seed = 7\r\n[random]\r\nthreads = [7]\r\n";
        let read = from(format!("\u{feff}{text}").as_bytes()).unwrap();
        assert_eq!(read, Config::from_toml(&text.replace('\r', "")).unwrap());
        let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, told) in
            [(wide, "UTF-16"), (b"seed = 7\n\xff".to_vec(), "line 2"), (vec![b'#'; 2 << 20], "longer than 1 MiB")]
        {
            let error = from(&bytes).unwrap_err();
            assert!(error.kind() == LabErrorKind::Usage && error.to_string().contains(told), "{error}");
            assert!(error.to_string().contains("my.toml"), "{error}");
        }
    }

    #[test]
    fn a_run_with_failed_trials_is_not_complete_with_or_without_wrong_data() {
        let folder = tempfile::tempdir().unwrap();
        for (wrong, failed, complete) in [(0, 0, true), (1, 0, true), (0, 2, false), (1, 2, false)] {
            let path = folder.path().join(format!("{wrong}-{failed}.ndjson"));
            let run = RunInfo {
                schema: SCHEMA,
                tool_version: "0".into(),
                started_unix_ms: 0,
                config: Config::default(),
                machine: MachineInfo::default(),
                biases: Vec::new(),
            };
            let mut writer = RecordWriter::create(&path, &run).unwrap();
            let bad = Failures { wrong, failed, ..Failures::default() };
            finish(&mut writer, Ok(bad.trouble()), &bad, Instant::now());
            let records = read_records(&path).unwrap();
            assert_eq!(records.is_complete(), complete, "{wrong} wrong, {failed} failed");
            let reason = format!("{failed} trials failed");
            assert_eq!(records.incomplete_reason().contains(&reason), !complete, "{}", records.incomplete_reason());
        }
    }
}

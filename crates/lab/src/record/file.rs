//! Record files: a writer that loses at most the line it is writing, and a reader whose errors name the line and the
//! defect.
//!
//! Kept true by: a line is written with one call and flushed to the kernel before the next trial starts, so a killed run
//! leaves whole lines and at most one cut-off line at the end, which the reader accepts and reports. A line that the disk
//! refuses stays in memory until the disk takes it, so that a full disk loses no result.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{End, Note, Outcome, Record, RunInfo, SCHEMA, Skip, Trial, upgrade};
use crate::config::Config;
use crate::error::{LabError, LabErrorKind};
use crate::format;
use crate::lines::{LineError, Lines};
use crate::paths::shown;

/// Most bytes of a record's line. The writer keeps to it, and the reader holds no more than one such line of any file.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// Most characters kept of an unknown type's name.
const TYPE_CHARS_MAX: usize = 64;

/// Reasons why a record file cannot be read. Every message names the file and the next step.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be opened, read or written.
    #[error("{}: {source}", shown(&path))]
    Io {
        /// Path of the record file.
        path: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// A line is not a valid record.
    #[error("{}:{line}:{column}: damaged record: {message}; the lines before it are good: `head -n {} FILE` keeps them",
        shown(&path), line.saturating_sub(1))]
    Damaged {
        /// Path of the record file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Column in the line in bytes, from 1.
        column: usize,
        /// The defect of the line.
        message: String,
    },
    /// A line is longer than any record.
    #[error("{}:{line}: a line of more than {}, which no record has; the lines before it are good: `head -n {} FILE` keeps them",
        shown(&path), format::bytes(LINE_BYTES_MAX as u64), line.saturating_sub(1))]
    TooLong {
        /// Path of the record file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
    },
    /// The file does not begin like a record file.
    #[error("{}: not a record file of nofault lab: {message}; give the records.ndjson of a result folder", shown(&path))]
    NotRecords {
        /// Path of the file.
        path: PathBuf,
        /// The reason, with the content that the file has instead.
        message: String,
    },
    /// A newer version of the tool wrote the file.
    #[error("{}: written with record schema {found}, and this nofault reads up to {SCHEMA}: use the newer nofault that \
        wrote it (version {tool_version})", shown(&path))]
    Newer {
        /// Path of the record file.
        path: PathBuf,
        /// Schema version of the file.
        found: u64,
        /// Version of the tool that wrote the file.
        tool_version: String,
    },
}

impl From<RecordError> for LabError {
    fn from(error: RecordError) -> Self {
        match &error {
            RecordError::Io { path, source } => LabError::system(shown(&path), source),
            _ => LabError::new(LabErrorKind::Damaged, error.to_string()),
        }
    }
}

/// The content of a record file.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordFile {
    /// The path that the records were read from.
    pub path: PathBuf,
    /// The first line: configuration, machine and tool of the run.
    pub run: RunInfo,
    /// Trials in the order in which they were measured.
    pub trials: Vec<Trial>,
    /// Methods that could not be measured.
    pub skips: Vec<Skip>,
    /// Circumstances that a reader must know.
    pub notes: Vec<Note>,
    /// How the run ended; `None` for an interrupted run (killed, or power lost).
    pub end: Option<End>,
    /// Number of the last line, if it was cut off in the middle and is left out.
    pub cut_off_line: Option<usize>,
    /// Lines of a type that this version does not know: line number and type.
    pub unknown: Vec<(usize, String)>,
    /// Names of settings that this version does not know, and leaves out.
    pub unknown_settings: Vec<String>,
}

impl RecordFile {
    /// Whether every planned trial was measured.
    pub fn is_complete(&self) -> bool {
        self.cut_off_line.is_none() && self.end.as_ref().is_some_and(|end| end.complete)
    }

    /// The reason why the run is not complete, in words; empty for a complete run.
    pub fn incomplete_reason(&self) -> String {
        match (&self.end, self.cut_off_line) {
            (_, Some(line)) => format!("interrupted: line {line} of the records is cut off"),
            (None, None) => "interrupted: the run was stopped before its end".into(),
            (Some(end), None) if end.complete => String::new(),
            (Some(end), None) if end.reason.is_empty() => "not all planned trials were measured".into(),
            (Some(end), None) => end.reason.clone(),
        }
    }
}

/// Appends records to a new file, one line each.
#[derive(Debug)]
pub struct RecordWriter {
    path: PathBuf,
    file: File,
    /// Length of the whole lines in the file, in bytes.
    written_bytes: u64,
    /// Lines that the disk has refused so far, in their order.
    refused: VecDeque<Vec<u8>>,
}

impl RecordWriter {
    /// Creates a new record file and writes its first line. Never writes over an existing file.
    ///
    /// # Errors
    /// `Io` when the file exists or cannot be made.
    pub fn create(path: &Path, run: &RunInfo) -> Result<Self, RecordError> {
        let io = |source| RecordError::Io { path: path.to_path_buf(), source };
        let file = OpenOptions::new().append(true).create_new(true).open(path).map_err(io)?;
        let mut writer = Self { path: path.to_path_buf(), file, written_bytes: 0, refused: VecDeque::new() };
        writer.append(&Record::Run(run.clone()))?;
        Ok(writer)
    }

    /// Appends one line and waits until it is on the disk (some milliseconds; called between trials, never during one).
    /// Values that JSON cannot represent (NaN, infinity) are left out and named in the trial's warnings; so are the ticks of a trial that
    /// has too many for one line.
    ///
    /// # Errors
    /// `Io` when the disk refuses; the earlier lines are kept, and this one waits for [`Self::settle`].
    pub fn append(&mut self, record: &Record) -> Result<(), RecordError> {
        let io = |source| RecordError::Io { path: self.path.clone(), source };
        let mut line = match record {
            Record::Trial(trial) => trial_line(trial.clone()),
            other => serde_json::to_vec(other),
        }
        .map_err(|error| io(error.into()))?;
        line.push(b'\n');
        self.refused.push_back(line);
        self.settle()
    }

    /// Writes the lines that the disk has refused so far.
    ///
    /// # Errors
    /// `Io` when the disk refuses again; the file then ends with its last whole line.
    pub fn settle(&mut self) -> Result<(), RecordError> {
        while let Some(line) = self.refused.front() {
            if let Err(source) = self.file.write_all(line).and_then(|()| self.file.sync_data()) {
                // Part of a line in the middle of the file would make all later ones unreadable.
                let _ = self.file.set_len(self.written_bytes);
                return Err(RecordError::Io { path: self.path.clone(), source });
            }
            self.written_bytes += line.len() as u64;
            self.refused.pop_front();
        }
        Ok(())
    }

    /// Reads back all records appended so far, also those that the disk has refused.
    ///
    /// # Errors
    /// As [`read_records`].
    pub fn read_back(&self) -> Result<RecordFile, RecordError> {
        let file = File::open(&self.path).map_err(|source| RecordError::Io { path: self.path.clone(), source })?;
        let refused: Vec<u8> = self.refused.iter().flatten().copied().collect();
        parse_records(&self.path, BufReader::new(file).chain(&refused[..]))
    }
}

/// Returns the line of a trial, within the bound of a line.
fn trial_line(mut trial: Trial) -> serde_json::Result<Vec<u8>> {
    drop_non_finite(&mut trial.outcome);
    let count = trial.outcome.ticks.len();
    let line = serde_json::to_vec(&Record::Trial(trial.clone()))?;
    if line.len() < LINE_BYTES_MAX || count == 0 {
        return Ok(line);
    }
    trial.outcome.ticks.clear();
    trial.outcome.warnings.push(format!("its {count} ticks are too many for a record, and are left out").into());
    serde_json::to_vec(&Record::Trial(trial))
}

/// Removes numbers that JSON cannot represent (NaN, infinity), because `null` in their place would make the line
/// unreadable.
fn drop_non_finite(outcome: &mut Outcome) {
    let mut dropped = BTreeSet::new();
    {
        let mut clean = |map: &mut std::collections::BTreeMap<String, f64>| {
            map.retain(|name, value| {
                let keep = value.is_finite();
                if !keep {
                    dropped.insert(name.clone());
                }
                keep
            });
        };
        clean(&mut outcome.counters);
        clean(&mut outcome.figures);
        outcome.ticks.iter_mut().for_each(|tick| clean(&mut tick.counters));
        outcome.steady.iter_mut().for_each(|window| clean(&mut window.counters));
    }
    for (name, latency) in &mut outcome.latency {
        if !latency.mean_ns.is_finite() {
            latency.mean_ns = 0.0;
            dropped.insert(format!("mean of {name}"));
        }
    }
    for name in dropped {
        outcome.warnings.push(format!("{name} was not a number and is left out").into());
    }
}

/// Reads a record file, or the `records.ndjson` of a result folder. Holds the records in memory, and one line of the file.
///
/// # Errors
/// `Io` when it cannot be read, `NotRecords` when it begins like something else, `Newer` when a newer tool wrote it,
/// `Damaged` with line and column when a line in the middle is broken, `TooLong` for a line that no record has. A cut-off last line is no
/// error: see [`RecordFile::cut_off_line`].
pub fn read_records(path: &Path) -> Result<RecordFile, RecordError> {
    let path = if path.is_dir() { path.join("records.ndjson") } else { path.to_path_buf() };
    let file = File::open(&path).map_err(|source| RecordError::Io { path: path.clone(), source })?;
    parse_records(&path, BufReader::new(file))
}

/// Reads records from a text; `path` is for messages only.
///
/// # Errors
/// As [`read_records`].
pub fn parse_records(path: &Path, text: impl BufRead) -> Result<RecordFile, RecordError> {
    let mut lines = Lines::new(text, LINE_BYTES_MAX);
    let Some((_, first)) = next_line(path, &mut lines)? else {
        return Err(not_records(path, "it is empty"));
    };
    let (run, unknown_settings) = first_line(path, first)?;
    let mut file = RecordFile {
        path: path.to_path_buf(),
        run,
        trials: Vec::new(),
        skips: Vec::new(),
        notes: Vec::new(),
        end: None,
        cut_off_line: None,
        unknown: Vec::new(),
        unknown_settings,
    };
    while let Some((number, line)) = next_line(path, &mut lines)? {
        match file.take_line(path, number, line) {
            Ok(()) => {}
            // Only the last line has no line feed.
            Err(_) if !lines.is_ended() => file.cut_off_line = Some(number),
            Err(error) => return Err(error),
        }
    }
    if file.run.schema < 2 {
        upgrade::from_schema_1(&mut file.run.machine, &mut file.trials, &mut file.skips);
    }
    if file.run.schema < 3 {
        upgrade::from_schema_2(&mut file.trials);
    }
    Ok(file)
}

/// Reads the next line that is not empty, with its number.
fn next_line<'a, R: BufRead>(path: &Path, lines: &'a mut Lines<R>) -> Result<Option<(usize, &'a [u8])>, RecordError> {
    loop {
        let is_empty = match lines.next_line() {
            Ok(None) => return Ok(None),
            Ok(Some(line)) => line.trim_ascii().is_empty(),
            Err(LineError::System(source)) => return Err(RecordError::Io { path: path.to_path_buf(), source }),
            Err(LineError::TooLong { line, .. }) if line > 1 => {
                return Err(RecordError::TooLong { path: path.to_path_buf(), line });
            }
            Err(other) => return Err(not_records(path, &other.to_string())),
        };
        if !is_empty {
            return Ok(Some((lines.number() as usize, lines.line())));
        }
    }
}

/// The type of a line, without the rest of it.
#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type", default)]
    name: Value,
}

impl RecordFile {
    fn take_line(&mut self, path: &Path, number: usize, line: &[u8]) -> Result<(), RecordError> {
        let kind: Kind = parse_line(path, number, line)?;
        let Some(kind) = kind.name.as_str() else {
            return Err(damaged(path, number, 1, "a line without a \"type\""));
        };
        match kind {
            "run" => return Err(damaged(path, number, 1, "a second run in one file (two labs wrote to it?)")),
            "cell" => self.trials.push(parse_line(path, number, line)?),
            "skip" => self.skips.push(parse_line(path, number, line)?),
            "note" => self.notes.push(parse_line(path, number, line)?),
            "end" => self.end = Some(parse_line(path, number, line)?),
            other => self.unknown.push((number, other.chars().take(TYPE_CHARS_MAX).collect())),
        }
        Ok(())
    }
}

/// Parses the first line of a record file. The schema version is checked before any other field is read.
fn first_line(path: &Path, line: &[u8]) -> Result<(RunInfo, Vec<String>), RecordError> {
    let Ok(mut value) = serde_json::from_slice::<Value>(line) else {
        return Err(not_records(path, "its first line is not JSON"));
    };
    if value.get("type").and_then(Value::as_str) != Some("run") {
        return Err(not_records(path, "its first line does not describe a run"));
    }
    let found = value.get("schema").and_then(Value::as_u64).unwrap_or(0);
    if found > u64::from(SCHEMA) {
        let tool_version = value.get("tool_version").and_then(Value::as_str).unwrap_or("unknown").to_owned();
        return Err(RecordError::Newer { path: path.to_path_buf(), found, tool_version });
    }
    let mut unknown = Vec::new();
    if let (Some(config), Ok(known)) = (value.get_mut("config"), serde_json::to_value(Config::default())) {
        keep_known(config, &known, "", &mut unknown);
    }
    if unknown.is_empty() {
        // Parsed straight from the text, so that an error has its column.
        return Ok((parse_line(path, 1, line)?, unknown));
    }
    let run = serde_json::from_value(value).map_err(|error| damaged(path, 1, 1, &error.to_string()))?;
    Ok((run, unknown))
}

/// Removes settings that this version does not know. The configuration itself refuses unknown names, which is right for
/// a user's file and wrong for a record of a newer tool.
fn keep_known(value: &mut Value, known: &Value, at: &str, unknown: &mut Vec<String>) {
    let (Value::Object(fields), Value::Object(known)) = (value, known) else { return };
    fields.retain(|name, _| {
        let keep = known.contains_key(name);
        if !keep {
            unknown.push(format!("{at}{name}"));
        }
        keep
    });
    for (name, field) in fields {
        keep_known(field, &known[name], &format!("{at}{name}."), unknown);
    }
}

fn parse_line<T: DeserializeOwned>(path: &Path, number: usize, line: &[u8]) -> Result<T, RecordError> {
    serde_json::from_slice(line).map_err(|error| {
        let message = error.to_string();
        // serde_json appends its own position, always of line 1 here.
        let message = message.split(" at line ").next().unwrap_or_default();
        damaged(path, number, error.column().max(1), message)
    })
}

fn damaged(path: &Path, line: usize, column: usize, message: &str) -> RecordError {
    RecordError::Damaged { path: path.to_path_buf(), line, column, message: message.to_owned() }
}

fn not_records(path: &Path, message: &str) -> RecordError {
    RecordError::NotRecords { path: path.to_path_buf(), message: message.to_owned() }
}

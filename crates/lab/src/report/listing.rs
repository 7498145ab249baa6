//! The list of existing results: `lab list`. Looks at a folder and the folders in it, no deeper.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{LabError, LabErrorKind, Result};
use crate::experiments;
use crate::format;
use crate::paths;
use crate::paths::shown;
use crate::record::ExperimentId;
use crate::record::file::{RecordFile, read_records};

/// One result folder in the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// Path of the result folder.
    #[serde(serialize_with = "paths::field::serialize")]
    pub folder: PathBuf,
    /// The content of the folder, or why it cannot be read.
    pub state: State,
    /// Whether a report lies next to the records.
    pub has_report: bool,
}

/// The content of a result folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The folder has readable records.
    Readable {
        /// Start of the run, in milliseconds since 1970 UTC.
        started_unix_ms: u64,
        /// Name of the run's preset.
        preset: String,
        /// Experiments of which at least one trial was measured.
        experiments: Vec<ExperimentId>,
        /// Number of trials measured.
        #[serde(rename = "cells")]
        trials: usize,
        /// Why the run is not complete; empty where it is.
        incomplete_reason: String,
    },
    /// The folder has records that cannot be read.
    Unreadable {
        /// The error of reading, with file and line.
        error: String,
    },
}

/// Lists the results in `folder`: the folder itself, and each folder in it, where it has a `records.ndjson`. Oldest
/// first, unreadable ones last.
///
/// # Errors
/// `Usage` when there is no `folder`; `System` when it cannot be listed. A result that cannot be read is an entry, not
/// an error.
pub fn results(folder: &Path) -> Result<Vec<Entry>> {
    if !folder.exists() {
        let message = format!("there is no folder {}; name the one that was given to --dir", shown(&folder));
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let failed = |error| LabError::system(format!("list the results in {}", shown(&folder)), &error);
    let mut folders = vec![folder.to_path_buf()];
    for entry in fs::read_dir(folder).map_err(failed)? {
        folders.push(entry.map_err(failed)?.path());
    }
    let mut entries: Vec<Entry> =
        folders.into_iter().filter(|folder| folder.join("records.ndjson").is_file()).map(entry).collect();
    entries.sort_by_key(|entry| {
        let started = match &entry.state {
            State::Readable { started_unix_ms, .. } => *started_unix_ms,
            State::Unreadable { .. } => u64::MAX,
        };
        (started, entry.folder.clone())
    });
    Ok(entries)
}

fn entry(folder: PathBuf) -> Entry {
    let state = match read_records(&folder) {
        Ok(file) => readable(&file),
        Err(error) => State::Unreadable { error: error.to_string() },
    };
    let has_report = folder.join("report.html").is_file();
    Entry { folder, state, has_report }
}

fn readable(file: &RecordFile) -> State {
    State::Readable {
        started_unix_ms: file.run.started_unix_ms,
        preset: format!("{:?}", file.run.config.preset).to_lowercase(),
        experiments: experiments::ids()
            .filter(|id| file.trials.iter().any(|trial| trial.spec.experiment == *id))
            .collect(),
        trials: file.trials.len(),
        incomplete_reason: file.incomplete_reason(),
    }
}

/// Formats the entries as lines for a terminal; without entries, a line that says so.
pub fn text(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "no results here; `nofault lab` makes some\n".into();
    }
    let mut text = String::new();
    for entry in entries {
        let folder = shown(&entry.folder);
        let _ = match &entry.state {
            State::Readable { started_unix_ms, preset, experiments, trials, incomplete_reason } => {
                let names: Vec<&str> = experiments.iter().map(|id| id.name()).collect();
                let names = if names.is_empty() { "nothing measured".into() } else { names.join(", ") };
                let end = if incomplete_reason.is_empty() { "complete" } else { incomplete_reason };
                let date = format::date(*started_unix_ms);
                writeln!(text, "{folder}\n    {date}, {preset}: {names}; {trials} trials; {end}")
            }
            State::Unreadable { error } => writeln!(text, "{folder}\n    cannot be read: {error}"),
        };
    }
    text
}

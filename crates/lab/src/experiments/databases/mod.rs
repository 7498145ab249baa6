//! The experiments on whole databases: `engine`, a separate command, which measures the engine's works beside other databases
//! and the raw device, and `engines`, which compares databases with a map and without.
//!
//! Both load a store once and let several trials use it. What they do in one way stands here: the folder of the database
//! with a note of its content, and the parameters of its data.

pub mod engine;
pub mod engines;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::entries::KEY_BYTES;
use crate::paths::shown;
use crate::record::{ExperimentId, TrialSpec};

/// The folder of the lab's own in which the trials' database lies, with a note that describes its content.
struct Folder {
    path: PathBuf,
    note: PathBuf,
    experiment: ExperimentId,
}

impl Folder {
    /// Returns the folder that a trial works in, with its note in a file of this name.
    ///
    /// # Errors
    /// `Usage` when the trial's target is not exactly one folder.
    fn of(spec: &TrialSpec, note: &str) -> Result<Self> {
        match &spec.target.paths[..] {
            [path] if Path::new(path).is_dir() => {
                Ok(Self { path: path.into(), note: Path::new(path).join(note), experiment: spec.experiment })
            }
            paths => Err(usage(spec, &format!("{paths:?} is not one folder of the lab's"))),
        }
    }

    /// Returns the folder of the database's own files.
    fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    /// Returns the note of the present database; `None` where there is none.
    fn note<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(&fs::read_to_string(&self.note).unwrap_or_default()).ok()
    }

    /// Writes the note of a database, which must be complete.
    ///
    /// # Errors
    /// The system's error.
    fn write_note<T: Serialize>(&self, note: &T) -> Result<()> {
        let text = serde_json::to_string(note)
            .map_err(|error| LabError::new(LabErrorKind::System, format!("{}: {error}", self.experiment)))?;
        fs::write(&self.note, text).map_err(|error| LabError::system(shown(&self.note), &error))
    }
}

fn usage(spec: &TrialSpec, what: &str) -> LabError {
    LabError::new(LabErrorKind::Usage, format!("{}: {what}", spec.experiment))
}

/// Returns the bytes of a value of the trial's data.
///
/// # Errors
/// `Usage` for values that no plan contains.
fn value_bytes(spec: &TrialSpec) -> Result<usize> {
    let bytes = spec.params.block_bytes.checked_sub(KEY_BYTES as u64).filter(|bytes| *bytes >= 16);
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| usage(spec, "values have at least 16 bytes"))
}

/// Parses a number among the trial's extra parameters.
///
/// # Errors
/// `Usage` when the parameter is missing or no number.
fn number(spec: &TrialSpec, name: &str) -> Result<u64> {
    let text = spec.params.extra.get(name).map(String::as_str).unwrap_or_default();
    text.parse().map_err(|_| usage(spec, &format!("{name} = '{text}' is no number")))
}

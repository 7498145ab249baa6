//! The folder with the database of one store's trials. A file next to the database describes its content, so that a
//! trial after a failed load, or in another store's folder, ends with an error instead of a wrong figure.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{LabError, LabErrorKind, Result};
use crate::format;
use crate::paths::shown;
use crate::record::TrialSpec;

/// The folder of the lab's own in which the trials' database lies, with its description.
pub(super) struct Place(PathBuf);

/// Description of a database's content, stored next to the database.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Description {
    method: String,
    data_bytes: u64,
    entry_bytes: u64,
    seed: Option<u64>,
    entries: u64,
}

impl Description {
    fn of(spec: &TrialSpec, entries: u64) -> Self {
        Self {
            method: spec.method.clone(),
            data_bytes: spec.target.data_bytes,
            entry_bytes: spec.params.block_bytes,
            seed: spec.target.content_seed,
            entries,
        }
    }
}

impl Place {
    /// Returns the folder that a trial works in.
    ///
    /// # Errors
    /// `Usage` when the trial's target is not exactly one folder.
    pub(super) fn of(spec: &TrialSpec) -> Result<Self> {
        match &spec.target.paths[..] {
            [path] if Path::new(path).is_dir() => Ok(Self(path.into())),
            paths => {
                Err(LabError::new(LabErrorKind::Usage, format!("engines: {paths:?} is not one folder of the lab's")))
            }
        }
    }

    /// Returns the folder of the store's own files.
    pub(super) fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    fn note(&self) -> PathBuf {
        self.0.join("held.json")
    }

    /// Removes an existing database and its description.
    pub(super) fn clear(&self) -> Result<()> {
        for removed in [fs::remove_file(self.note()), fs::remove_dir_all(self.store())] {
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(LabError::system(format!("empty {}", shown(&self.0)), &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the description of the database's present content.
    pub(super) fn keep(&self, spec: &TrialSpec, entries: u64) -> Result<()> {
        let text = serde_json::to_string(&Description::of(spec, entries))
            .map_err(|error| LabError::new(LabErrorKind::System, format!("engines: {error}")))?;
        fs::write(self.note(), text).map_err(|error| LabError::system(shown(&self.note()), &error))
    }

    /// Returns the number of entries in the database that a trial needs.
    ///
    /// # Errors
    /// `Usage` when the folder holds another database or none, because its load failed or was left out.
    pub(super) fn entries(&self, spec: &TrialSpec) -> Result<u64> {
        let text = fs::read_to_string(self.note()).unwrap_or_default();
        let held: Option<Description> = serde_json::from_str(&text).ok();
        match held {
            Some(held) if held == Description::of(spec, held.entries) => Ok(held.entries),
            _ => {
                let message = format!("{}: its database was not loaded, or the load failed", spec.method);
                Err(LabError::new(LabErrorKind::Usage, message))
            }
        }
    }

    /// Returns the bytes that the store's files occupy on disk, and the largest files in words.
    pub(super) fn size(&self) -> Result<(u64, String)> {
        let files = crate::machine::cache::files_of(&self.store());
        let mut sizes = Vec::new();
        for file in files {
            use std::os::unix::fs::MetadataExt;
            // Blocks are counted, because a file may have holes. A file that a background thread has just removed
            // counts as zero.
            let bytes = fs::metadata(&file).map_or(0, |meta| meta.blocks() * 512);
            let name = shown(file.strip_prefix(self.store()).unwrap_or(&file)).to_string();
            sizes.push((bytes, name));
        }
        sizes.sort_by(|a, b| b.cmp(a));
        let shown: Vec<String> =
            sizes.iter().take(3).map(|(bytes, name)| format!("{name} {}", format::bytes(*bytes))).collect();
        let more = if sizes.len() > 3 { format!(" and {} more", sizes.len() - 3) } else { String::new() };
        Ok((sizes.iter().map(|(bytes, _)| bytes).sum(), shown.join(", ") + &more))
    }
}

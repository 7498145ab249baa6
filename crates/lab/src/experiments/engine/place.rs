//! The folder in which a trial finds its database, or makes it. Only one database at a time lies in the folder, so that
//! each store has the disk to itself; a note next to the database describes its content. Trials that only read share a
//! database. A trial that writes removes the note first, so that the next trial makes the database again.
//!
//! Kept true by: the note is written after the database is complete and closed, and removed before the first change, so
//! that a note always describes the database next to it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::entries::Data;
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::cache;
use crate::paths::shown;
use crate::record::{CacheState, TrialSpec};

/// The folder of the lab's own in which the trials' database lies, with a file `note.json` that describes its content.
pub(super) struct Place(PathBuf);

/// How a database came to its present content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Filled by a load of sorted entries.
    Loaded,
    /// Loaded, then a tenth of the entries rewritten in random order.
    Rewritten,
    /// As a killed process leaves its files, with a full log.
    Crashed,
}

/// Description of a database's content. A trial may use an existing database only if its description equals the
/// trial's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Content {
    pub(super) store: String,
    pub(super) state: State,
    keys: u64,
    value_bytes: usize,
    seed: u64,
    cache_bytes: u64,
    log_bytes: u64,
}

impl Content {
    /// Describes the content that a trial with this store, state, data, cache and log needs.
    pub(super) fn of(store: &str, state: State, data: Data, cache_bytes: u64, log_bytes: u64) -> Self {
        let Data { count, value_bytes, seed } = data;
        Self { store: store.into(), state, keys: count, value_bytes, seed, cache_bytes, log_bytes }
    }
}

/// The content of the file `note.json` next to a database: a description of the database's content, and the number of
/// bytes that making it returned.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    content: Content,
    bytes: u64,
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
                Err(LabError::new(LabErrorKind::Usage, format!("engine: {paths:?} is not one folder of the lab's")))
            }
        }
    }

    /// Returns the folder of the database.
    pub(super) fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    /// Returns the path of a file or folder for the trial's own use, after removing what an earlier trial left there.
    ///
    /// # Errors
    /// The system's error, when an existing file or folder cannot be removed.
    pub(super) fn free(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LabError::system(shown(&path), &error)),
            _ => Ok(path),
        }
    }

    /// Removes the database and the file that describes it; returns the folder in which the next database is to be made.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn clear(&self) -> Result<PathBuf> {
        self.spoil()?;
        self.free("store")
    }

    /// Removes the file that describes the database, because the trial is about to change it: later trials then make
    /// another one.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn spoil(&self) -> Result<()> {
        self.free("note.json").map(drop)
    }

    /// Makes sure that the folder holds a database with this content: reuses the present one or calls `make`. Returns
    /// the number of bytes that `make` returned, now or for the present database. For a trial that begins cold, a newly
    /// made database is then evicted from the page cache.
    ///
    /// # Errors
    /// The error of `make`, or the system's error.
    pub(super) fn have(
        &self,
        spec: &TrialSpec,
        content: &Content,
        make: impl FnOnce(&Path) -> Result<u64>,
    ) -> Result<u64> {
        let note = self.0.join("note.json");
        let text = fs::read_to_string(&note).unwrap_or_default();
        if let Ok(known) = serde_json::from_str::<Note>(&text)
            && known.content == *content
        {
            return Ok(known.bytes);
        }
        let bytes = make(&self.clear()?)?;
        self.keep(content, bytes)?;
        if spec.cache == CacheState::Cold {
            cache::make_cold(&[&self.store()], cache::Means::best())?;
        }
        Ok(bytes)
    }

    /// Writes the file that describes a database, which must be complete and closed: later trials may then use it.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn keep(&self, content: &Content, bytes: u64) -> Result<()> {
        let text = serde_json::to_string(&Note { content: content.clone(), bytes })
            .map_err(|error| LabError::new(LabErrorKind::System, format!("engine: {error}")))?;
        let note = self.0.join("note.json");
        fs::write(&note, text).map_err(|error| LabError::system(shown(&note), &error))
    }

    /// Returns the bytes that all files of the database occupy on the disk.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn all_bytes_on_disk(&self) -> Result<u64> {
        let folder = self.store();
        let failed = |error: &std::io::Error| LabError::system(shown(&folder), error);
        let mut bytes = 0;
        for entry in fs::read_dir(&folder).map_err(|error| failed(&error))? {
            let file = entry.and_then(|entry| entry.metadata()).map_err(|error| failed(&error))?;
            bytes += file.blocks() * 512;
        }
        Ok(bytes)
    }

    /// Returns the bytes that a file of the database occupies on the disk; 0 where there is none. Blocks are counted,
    /// because a file may have holes.
    pub(super) fn bytes_on_disk(&self, name: &str) -> u64 {
        fs::metadata(self.store().join(name)).map_or(0, |file| file.blocks() * 512)
    }
}

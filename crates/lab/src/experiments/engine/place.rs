//! The folder in which a trial finds its database, or makes it. One database at a time lies there, so that each store has the disk to
//! itself; a note beside it says what it holds. Trials that only read share it; a trial that writes removes the note first, and the next
//! trial makes the database again.
//!
//! Kept true by: the note is written after the database is complete and closed, and removed before the first change, so that a note is never
//! beside a database that it does not describe.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::entries::Data;
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::cache;
use crate::record::{CacheState, TrialSpec};

/// A folder of the lab's own.
pub(super) struct Place(PathBuf);

/// What was done to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Sorted entries were loaded.
    Loaded,
    /// Loaded, and a tenth rewritten at random.
    Rewritten,
    /// The files that a killed process leaves, with a full log.
    Crashed,
}

/// The content of a database.
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
    /// The data of a store, as a trial with this cache and log makes it.
    pub(super) fn of(store: &str, state: State, data: Data, cache_bytes: u64, log_bytes: u64) -> Self {
        let Data { count, value_bytes, seed } = data;
        Self { store: store.into(), state, keys: count, value_bytes, seed, cache_bytes, log_bytes }
    }
}

/// The note beside a database.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    content: Content,
    bytes: u64,
}

impl Place {
    /// The folder of a trial.
    ///
    /// # Errors
    /// `Usage` when it is not one folder.
    pub(super) fn of(spec: &TrialSpec) -> Result<Self> {
        match &spec.target.paths[..] {
            [path] if Path::new(path).is_dir() => Ok(Self(path.into())),
            paths => {
                Err(LabError::new(LabErrorKind::Usage, format!("engine: {paths:?} is not one folder of the lab's")))
            }
        }
    }

    /// The folder of the database.
    pub(super) fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    /// The path of a file or folder of the trial's own, which does not exist yet.
    ///
    /// # Errors
    /// The system's error, when something is there and cannot be removed.
    pub(super) fn free(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LabError::system(path.display(), &error)),
            _ => Ok(path),
        }
    }

    /// Removes the database and its note; returns where the next one is to be made.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn clear(&self) -> Result<PathBuf> {
        self.spoil()?;
        self.free("store")
    }

    /// Declares that the database is about to change.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn spoil(&self) -> Result<()> {
        self.free("note.json").map(drop)
    }

    /// Finds the database with this content, or makes it with `make`, which returns a number of bytes to remember. Returns that number. For
    /// a trial that begins cold nothing of it is in the page cache afterwards, whoever made it.
    ///
    /// # Errors
    /// The error of `make`; the system's.
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

    /// Writes the note of a database that is complete and closed.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn keep(&self, content: &Content, bytes: u64) -> Result<()> {
        let text = serde_json::to_string(&Note { content: content.clone(), bytes })
            .map_err(|error| LabError::new(LabErrorKind::System, format!("engine: {error}")))?;
        let note = self.0.join("note.json");
        fs::write(&note, text).map_err(|error| LabError::system(note.display(), &error))
    }

    /// Bytes of a file of the database on the disk; 0 where there is none. Blocks are counted, because a file may have holes.
    pub(super) fn bytes_on_disk(&self, name: &str) -> u64 {
        fs::metadata(self.store().join(name)).map_or(0, |file| file.blocks() * 512)
    }
}

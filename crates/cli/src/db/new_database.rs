//! A database that a command creates, and removes again when it fails.
//!
//! Kept true by: files are removed only from a folder that was missing or empty before the command began, and only those
//! with names that a creation gives.

use std::path::{Path, PathBuf};

use nofault::error::{Error, ErrorKind};

/// The names of the files of a database that has one folder, and of one that is being created.
const NAMES: [&str; 6] = ["data", "log", "lock", "readers.nofault", "data.nofault-new", "log.nofault-new"];

/// The place of a new database, as it was before the command began.
pub(super) struct NewDatabase {
    path: PathBuf,
    /// Whether the folder existed.
    was_there: bool,
    /// Whether nothing was in it.
    was_free: bool,
}

impl NewDatabase {
    /// Looks at the folder in which a database is to be created.
    pub(super) fn at(path: &Path) -> Self {
        let entries = std::fs::read_dir(path).map(|mut entries| entries.next().is_none());
        // Without the right to list a folder nothing of it is removed.
        let is_missing = matches!(&entries, Err(error) if error.kind() == std::io::ErrorKind::NotFound);
        Self { path: path.to_path_buf(), was_there: !is_missing, was_free: is_missing || entries.unwrap_or(false) }
    }

    /// Removes the database, as far as that is possible. No handle of it may be open.
    pub(super) fn remove(&self) {
        if !self.was_free {
            return;
        }
        for name in NAMES {
            // Files that were never made are missing.
            let _ = std::fs::remove_file(self.path.join(name));
        }
        if !self.was_there {
            // Fails when there is anything else in it, which stays.
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    /// Removes what a creation that failed has left, unless another process is at work there.
    pub(super) fn remove_after(&self, error: &Error) {
        if !matches!(error.kind(), ErrorKind::Busy | ErrorKind::AlreadyExists) {
            self.remove();
        }
    }
}

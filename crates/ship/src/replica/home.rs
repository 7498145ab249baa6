//! The folder of a replica: copies in folders `copy-<n>`, the file `current` with the name of the current one, and the file `lock`,
//! which keeps a second replica out.
//!
//! Kept true by: a copy is durable before `current` names it, and the file is replaced by a rename. A copy that it does not name counts for
//! nothing, and is removed by the replica with the lock.

use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

const CURRENT: &str = "current";
const LOCK: &str = "lock";

/// The folder of a replica, locked for as long as this lives.
#[derive(Debug)]
pub(super) struct Home {
    folder: PathBuf,
    _lock: File,
}

impl Home {
    /// Opens the folder, or makes it; its parent must exist.
    ///
    /// # Errors
    /// `AlreadyExists` when it has other content; `InvalidCall` when another replica uses it; `Database` when the file system fails.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let failed = |error| failed(folder, &error);
        let lock = folder.join(LOCK);
        if !lock.exists() {
            if folder.symlink_metadata().is_ok() {
                if folder.read_dir().map_err(failed)?.next().is_some() {
                    let what = format!("{} is not empty and no replica's: take another folder", folder.display());
                    return Err(Error::new(ErrorKind::AlreadyExists, what));
                }
            } else {
                fs::create_dir(folder).map_err(failed)?;
                let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
                sync_folder(parent.unwrap_or(Path::new("."))).map_err(failed)?;
            }
        }
        let lock = File::options().create(true).truncate(false).write(true).open(lock).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let what = format!("{}: another replica uses this folder", folder.display());
                return Err(Error::new(ErrorKind::InvalidCall, what));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(Self { folder: folder.into(), _lock: lock })
    }

    /// Returns the folder of a copy.
    pub(super) fn path(&self, copy: u64) -> PathBuf {
        self.folder.join(format!("copy-{copy}"))
    }

    /// Returns the number of the copy that counts.
    ///
    /// # Errors
    /// `Corrupt` when the file naming it does not.
    pub(super) fn current(&self) -> Result<Option<u64>> {
        let path = self.folder.join(CURRENT);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let number = number_of(text.trim_end());
                number.map(Some).ok_or_else(|| Error::corrupt(format!("{} names no copy", path.display())))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path, &error)),
        }
    }

    /// Returns a number that no copy has.
    pub(super) fn unused(&self) -> Result<u64> {
        Ok(self.copies()?.into_iter().chain(self.current()?).max().map_or(1, |most| most + 1))
    }

    /// Makes another copy the current one. It is durable.
    pub(super) fn switch_to(&self, copy: u64) -> Result<()> {
        let (new, path) = (self.folder.join("current.new"), self.folder.join(CURRENT));
        let switch = || {
            let mut file = File::create(&new)?;
            writeln!(file, "copy-{copy}")?;
            file.sync_all()?;
            sync_folder(&self.folder)?;
            fs::rename(&new, &path)?;
            sync_folder(&self.folder)
        };
        switch().map_err(|error| failed(&path, &error))
    }

    /// Removes all copies but the current one. Readers of another one may go on: they have its files open.
    pub(super) fn remove_others(&self) -> Result<()> {
        let current = self.current()?;
        for copy in self.copies()?.into_iter().filter(|copy| Some(*copy) != current) {
            let path = self.path(copy);
            match fs::remove_dir_all(&path) {
                // An attempt that failed removes its own copy.
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(&path, &error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn copies(&self) -> Result<Vec<u64>> {
        let failed = |error| failed(&self.folder, &error);
        let mut copies = Vec::new();
        for entry in self.folder.read_dir().map_err(failed)? {
            copies.extend(entry.map_err(failed)?.file_name().to_str().and_then(number_of));
        }
        Ok(copies)
    }
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("copy-")?.parse().ok()
}

fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Database, format!("{}: {error}", path.display()))
}

//! Checks a database that must not change: a backup, also on media that cannot be written.
//!
//! The database is opened as ever, over files that are only read: the superblocks that opening writes, and the pages
//! that the log changes, stay in this process (`nofault_io::overlay`). So a clean answer says that opening works too.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nofault_io::disk::{DirectIo, Directory};
use nofault_io::folder::{Backend, Entry, Folder};
use nofault_io::overlay::Overlay;

use super::super::open::{open_in, require_folder};
use super::super::stripes::{self, Places};
use super::super::thread;
use super::{Db, Verification, verify};
use crate::error::{Error, Result};
use crate::recovery::Purpose;
use crate::recovery::names::{self, Contents, LOG};
use crate::settings::{CompactionMode, Settings};

impl Db {
    /// Reads a whole database that no process has open and checks it, as [`Db::verify`] does, without writing a byte in its
    /// folders: a backup, also on media that cannot be written. Other processes may check it at the same time, and none can open it.
    /// Takes the memory that `settings` allows; pages that the log changes and that do not fit go to a temporary file.
    ///
    /// ```
    /// use nofault::{Db, settings::Settings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
    /// # let db = Db::create(folder.path().join("shop"), &settings).await?;
    /// db.backup(folder.path().join("copy")).await?;
    /// let found = Db::check(folder.path().join("copy"), &settings).await?;
    /// assert!(found.is_clean() && found.repairs.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Db::open`], for a database that cannot be opened; `Busy` when a process has it open; the error of the disk.
    pub async fn check(folder: impl AsRef<Path>, settings: &Settings) -> Result<Verification> {
        let (folder, settings) = (folder.as_ref().to_path_buf(), settings.clone());
        thread::run("nofault-check", move || check(&folder, &settings)).await?
    }
}

/// Checks the database in a folder. Blocks.
fn check(folder: &Path, settings: &Settings) -> Result<Verification> {
    let directory: Arc<dyn Directory> = Arc::new(Overlay::new(read_only(folder)?));
    // Without threads nothing is done to the copy that the check does not need.
    let settings = Settings { background_threads: false, compaction: CompactionMode::Manual, ..settings.clone() };
    let db = open_in(&directory, &settings, Purpose::Use, None)?;
    verify(&db)
}

/// Opens the directory of a database for reading only.
///
/// # Errors
/// `NotFound` when there is no database, `Corrupt` when a part of it is missing, or the error of the system.
fn read_only(path: &Path) -> Result<Arc<dyn Directory>> {
    read_only_folder(path).map(|(_, directory)| directory)
}

/// As [`read_only`], also where the log is missing.
///
/// # Errors
/// `NotFound` when there is no data file; `Corrupt` when a folder of a striped database is missing; the error of the system.
pub(crate) fn read_only_parts(path: &Path) -> Result<Arc<dyn Directory>> {
    let (folder, contents) = open_folder(path)?;
    let at = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
    if !matches!(contents, Contents::Incomplete { missing: LOG, .. }) {
        names::refuse_missing(&contents).map_err(at)?;
    }
    // Through the page cache, so that neighbours are read ahead.
    stripes::open(Arc::new(folder.with_direct(DirectIo::Never)), &ReadOnly).map_err(at)
}

/// Opens the folder of a database for reading only, and its directory: the same folder, or one over it with stripes in
/// other folders.
///
/// # Errors
/// `NotFound` when there is no database, `Corrupt` when a part of it is missing, or the error of the system.
pub(crate) fn read_only_folder(path: &Path) -> Result<(Arc<Folder>, Arc<dyn Directory>)> {
    let (folder, contents) = open_folder(path)?;
    let at = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
    names::refuse_missing(&contents).map_err(at)?;
    let folder = Arc::new(folder);
    let directory = stripes::open(folder.clone(), &ReadOnly).map_err(at)?;
    Ok((folder, directory))
}

fn open_folder(path: &Path) -> Result<(Folder, Contents)> {
    require_folder(path)?;
    let failed = |error| Error::from_io(format_args!("open the database in {}", path.display()), error);
    let folder = Folder::open(path, Backend::Auto).map_err(failed)?.read_only();
    let entries = folder.entries().map_err(failed)?;
    let contents = names::contents(entries.iter().map(Entry::name));
    Ok((folder, contents))
}

/// The folders of this machine, for reading only.
struct ReadOnly;

impl Places for ReadOnly {
    fn make(&self, path: &Path) -> nofault_io::error::Result<PathBuf> {
        Ok(path.to_path_buf())
    }

    fn open(&self, path: &Path) -> nofault_io::error::Result<Arc<dyn Directory>> {
        Ok(Arc::new(Folder::open(path, Backend::Auto)?.read_only()))
    }
}

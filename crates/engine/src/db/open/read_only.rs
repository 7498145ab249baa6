//! Opens a database for reading only: while another process writes to it, on media that cannot be written, or a backup.
//!
//! Nothing is written to the folder. The database is opened as ever, over files that are only read: what opening writes,
//! and the pages that the log changes, stay in the memory of this process (`nofault_io::overlay`). While a process writes, the
//! reader registers first ([`Registration`]), and every read of the data file is followed by a look at what the writer
//! says (`watched_directory`). Where a writer would not know of the reader, it is kept out by a lock on the data file.
//!
//! Kept true by:
//! 1. What was opened counts only if the log has stayed as it was until all of it was replayed.
//! 2. An error explained by a concurrent change is no damage: the database is opened again.
//! 3. A handle never changes what it shows: [`Db::refresh`] replaces it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nofault_io::disk::{DirectIo, Directory};
use nofault_io::folder::{Backend, Entry, Folder};
use nofault_io::overlay::Overlay;

use super::handle::Db;
use super::opening::{open_in, require_folder};
use super::stripes::{self, Places};
use super::view::{Attempt, Source, View};
use super::watched_directory::WatchedDirectory;
use crate::db::calls::thread;
use crate::error::{Error, ErrorKind, Result};
use crate::format::CommitSeq;
use crate::pages::Store as _;
use crate::readers::Registration;
use crate::recovery::names::{self, Contents, DATA, LOG, READERS};
use crate::recovery::{self, Purpose};
use crate::settings::{CompactionMode, Settings};

/// Attempts to open a database while its writer keeps changing the log.
const ATTEMPTS: u32 = 20;
/// Attempts to open one that seems to be damaged, although the writer has done nothing in that time.
const ATTEMPTS_UNCHANGED: u32 = 3;
/// Pause before the next attempt where a lock was in the way: a writer that begins has not left its record yet.
const PAUSE: Duration = Duration::from_millis(20);
/// The pages that the log changes may take this share of the cache, as a divisor, in addition to the pages in the pool.
const CHANGES_SHARE: usize = 4;

impl Db {
    /// Opens the database in `folder` for reading only, and writes nothing. Any number of processes can, also while
    /// one has it open for writing, also on a read-only mount, of a backup or a snapshot of the file system. The handle
    /// shows everything that was committed durably before the call; it shows the same state until [`Db::refresh`]. All
    /// reads work as ever, and calls that would change something fail with `ReadOnly`.
    ///
    /// What the log has changed since the last checkpoint is kept in memory, within `cache_bytes`. Entries expire by the
    /// clock of this process ([`Settings::clock`]), also those that the writer has not removed yet. For blocks of the file
    /// the reader relies on the writer, which keeps them for [`Settings::readers_wait_max`] after a newer checkpoint: a
    /// read that comes later and finds its page not in memory fails with `SnapshotTooOld`, and never gives wrong data.
    ///
    /// While another process writes, this needs the file `readers.nofault`, which a process that opens the database for writing makes.
    /// Without it (in a backup, or where earlier versions wrote) processes that write are kept out until this handle ends, and where one is
    /// at work, opening for reading is refused. The processes must run on one machine, and see the folder through one file
    /// system: bind mounts are such, layers over it and network file systems are not.
    ///
    /// ```
    /// use nofault::{Db, error::ErrorKind, settings::Settings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
    /// # let path = folder.path().join("shop");
    /// let db = Db::create(&path, &settings).await?;
    /// let stock = db.create_table("stock").await?;
    /// stock.put("apples", "12").await?;
    ///
    /// // In this process or in another one.
    /// let mut reader = Db::open_read_only(&path, &settings).await?;
    /// let seen = reader.table("stock").await?;
    /// assert_eq!(seen.get("apples").await?, Some(b"12".to_vec()));
    /// assert_eq!(seen.put("apples", "11").await.unwrap_err().kind(), ErrorKind::ReadOnly);
    ///
    /// stock.put("apples", "11").await?;
    /// assert!(reader.refresh().await?);
    /// assert_eq!(reader.table("stock").await?.get("apples").await?, Some(b"11".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Db::open`]. `Busy` when a process has the database open for writing that does not know of readers. `NoSpace` when
    /// the log changes more than fits into `cache_bytes`: raise it, or let the writer make a checkpoint. `SnapshotTooOld`
    /// when the writer has not waited for this reader again and again.
    pub async fn open_read_only(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        // A process may change its working directory before it refreshes.
        let path = std::path::absolute(&folder).unwrap_or_else(|_| folder.as_ref().to_path_buf());
        let source = Arc::new(Source { path, settings: settings.clone() });
        let opened = thread::run("nofault-open", move || open(&source)).await?;
        opened.map(|db| db.with_waiting_drop(false))
    }

    /// Moves this handle of a database that is only read ([`Db::open_read_only`]) to the newest state, with everything that
    /// was committed durably before the call, or to another database that has replaced it. Returns whether there
    /// was anything new. Tables, snapshots and ranges from before
    /// go on to show the older state, and keep its memory and its hold on the writer until they are dropped: open tables
    /// again. Reads the log since the last checkpoint in any case. When there is something new the memory for pages begins
    /// empty, and until the newer state is open both take memory. On another handle this does nothing, as it always shows
    /// the newest state.
    ///
    /// # Errors
    /// As [`Db::open_read_only`]; the handle shows the older state then. `Closed` after [`Db::close`].
    pub async fn refresh(&mut self) -> Result<bool> {
        self.owner.check_open()?;
        let Some(view) = self.view.clone() else { return Ok(false) };
        let (commit, sequence) = (self.core.store.visible(), self.owner.checkpoint_sequence());
        let file = view.attempt.file;
        let refreshed = thread::run("nofault-open", move || {
            // After an error the answer is the error of opening it.
            let is_newest = view.attempt.is_newest(&view.source, commit, sequence).unwrap_or(false);
            if is_newest { Ok(None) } else { open(&view.source).map(Some) }
        });
        let Some(opened) = refreshed.await?? else { return Ok(false) };
        let is_other_file = opened.view.as_ref().is_some_and(|view| view.attempt.file != file);
        let is_newer = is_other_file || opened.core.store.visible() > commit;
        *self = opened.with_waiting_drop(false);
        Ok(is_newer)
    }

    /// Returns whether this database was opened for reading only, by [`Db::open_read_only`].
    pub fn is_read_only(&self) -> bool {
        self.view.is_some()
    }
}

/// Opens a database for reading only. Blocks.
fn open(source: &Arc<Source>) -> Result<Db> {
    let (mut unexplained, mut last) = (0, None);
    for _ in 0..ATTEMPTS {
        let attempt = Attempt::begin(&source.path)?;
        let opened = attempt.open(&source.settings);
        let has_stayed = attempt.has_stayed()?;
        match opened {
            Ok(mut db) if has_stayed => {
                attempt.end_log();
                db.view = Some(Arc::new(View { source: Arc::clone(source), attempt }));
                return Ok(db);
            }
            Ok(_) => last = None,
            Err(error) => {
                unexplained += u32::from(has_stayed && !attempt.has_moved_on());
                let is_final = has_stayed && !attempt.may_explain(&error);
                if is_final || unexplained == ATTEMPTS_UNCHANGED {
                    return Err(explained(&error));
                }
                if error.kind() == ErrorKind::Busy {
                    std::thread::sleep(PAUSE);
                }
                last = Some(error);
            }
        }
    }
    let what = "the process that writes this database has changed what was being read again and again: try again";
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::SnapshotTooOld, what)))
}

/// Adds the remedy where the changes of the log did not fit in memory.
fn explained(error: &Error) -> Error {
    if error.kind() != ErrorKind::NoSpace {
        return error.clone();
    }
    let what = "what the log has changed since the last checkpoint does not fit into `cache_bytes` of this reader: raise it, or make a checkpoint in the process that writes";
    Error::new(ErrorKind::NoSpace, format!("{error}: {what}"))
}

impl Attempt {
    fn begin(path: &Path) -> Result<Self> {
        let at = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
        let (folder, below) = read_only_folder(path)?;
        let locks =
            folder.reader_locks(DATA, READERS).map_err(|error| Error::from_io("register as a reader", error))?;
        let file = locks.id();
        let registration = match Registration::begin(locks, || recovery::in_force(&*below)) {
            // Locks of ranges are not supported; locks of the whole file may be.
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            begun => begun.map_err(at)?.map(Arc::new),
        };
        let log_bytes = log_bytes(&*below);
        let directory: Arc<dyn Directory> = Arc::new(WatchedDirectory::new(below, registration.clone()));
        Ok(Self { directory, registration, file, log_bytes, looking: Mutex::default() })
    }

    fn open(&self, settings: &Settings) -> Result<Db> {
        let changes_bytes = settings.cache_bytes / CHANGES_SHARE;
        let overlay: Arc<dyn Directory> = Arc::new(Overlay::in_memory(Arc::clone(&self.directory), changes_bytes));
        let settings = Settings {
            cache_bytes: settings.cache_bytes - changes_bytes,
            compaction: CompactionMode::Manual,
            ..settings.clone()
        };
        let purpose = Purpose::Read { registered: self.registration.as_ref().map(|own| own.sequence()) };
        open_in(&overlay, &settings, purpose, None).map_err(|error| match (&self.registration, error.kind()) {
            (None, ErrorKind::Busy) => {
                let what = format!("{error}; to read beside it, it must be of a version that leaves «{READERS}»");
                Error::new(ErrorKind::Busy, what)
            }
            _ => error,
        })
    }

    /// Returns whether everything that this attempt has read was kept for it until now.
    fn has_stayed(&self) -> Result<bool> {
        let Some(registration) = &self.registration else { return Ok(true) };
        Ok(registration.log_has_stayed()? && !registration.is_given_up()?)
    }

    /// Returns whether a change by the writer may be the reason of an error, where another attempt may do without it.
    fn may_explain(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Busy => true,
            ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::SnapshotTooOld => self.registration.is_some(),
            _ => false,
        }
    }

    /// Returns whether the writer has made another checkpoint since this attempt began, or the log's file longer. It
    /// keeps everything for this reader then, but parts of the log that this one has read one after the other may not
    /// belong together.
    fn has_moved_on(&self) -> bool {
        let Some(registration) = &self.registration else { return false };
        let in_force = recovery::in_force(&*self.directory);
        in_force.is_ok_and(|(_, sequence)| sequence != registration.sequence())
            || log_bytes(&*self.directory) != self.log_bytes
    }

    /// Returns whether nothing has happened since a view of this checkpoint and of this commit was opened: the path leads
    /// to the same file, no other checkpoint is in force, and the log ends with the same commit.
    fn is_newest(&self, source: &Source, commit: CommitSeq, sequence: u64) -> Result<bool> {
        if file_at(&source.path) != Some(self.file) {
            return Ok(false);
        }
        let Some(registration) = &self.registration else { return Ok(true) };
        let _one = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if !registration.begin_log()? {
            return Ok(false);
        }
        let _log = LogRegistration(registration);
        // Asked afterwards: until another checkpoint is in force, nothing of the log behind this one is used again.
        let is_same_commit = self.newest_commit(&source.settings)? == commit;
        let is_same = is_same_commit && recovery::in_force(&*self.directory)?.1 == sequence;
        Ok(is_same && self.has_stayed()?)
    }

    fn newest_commit(&self, settings: &Settings) -> Result<CommitSeq> {
        let overlay = Overlay::in_memory(Arc::clone(&self.directory), settings.cache_bytes / CHANGES_SHARE);
        recovery::newest_commit(&overlay, settings)
    }

    fn end_log(&self) {
        if let Some(registration) = &self.registration {
            registration.end_log();
        }
    }
}

/// Returns device and inode of the data file of the database in a folder.
fn file_at(folder: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(folder.join(DATA)).ok().map(|data| (data.dev(), data.ino()))
}

/// Returns the length of the log's file.
fn log_bytes(directory: &dyn Directory) -> Option<u64> {
    directory.open(LOG).and_then(|log| log.len_bytes()).ok()
}

/// The registration as a reader of the log, which ends when this is dropped.
struct LogRegistration<'a>(&'a Registration);

impl Drop for LogRegistration<'_> {
    fn drop(&mut self) {
        self.0.end_log();
    }
}

/// Opens the directory of a database for reading only.
///
/// # Errors
/// `NotFound` when there is no database, `Corrupt` when a part of it is missing, or the error of the system.
pub(in crate::db) fn read_only(path: &Path) -> Result<Arc<dyn Directory>> {
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
pub(in crate::db) fn read_only_folder(path: &Path) -> Result<(Arc<Folder>, Arc<dyn Directory>)> {
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

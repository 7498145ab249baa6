//! Creates and opens a database: puts its parts together.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

use nofault_io::disk::{Directory, Disk, FileLock};
use nofault_io::folder::{Backend, EntryKind, Folder, make_folder};

use super::closing;
use super::disk_access::DiskAccess;
use super::handle::Db;
use super::owner::{Memory, OpenLocks, Owner, OwnerHandle, Threads};
use super::replay::Replay;
use super::stripes::{self, ThisMachine};
use crate::buffer_pool::BufferPool;
use crate::checkpoint::{Background, Checkpointer};
use crate::db::calls::core::Core;
use crate::db::calls::reservations::{FREED_AT_ONCE, FreeBlocks};
use crate::db::calls::thread;
use crate::db::upkeep::background_compaction::{BackgroundCompaction, CompactionParts};
use crate::db::upkeep::deferred_free::{DroppedTables, Freeing};
use crate::db::upkeep::dictionaries::{self, DictionaryTrainer};
use crate::db::upkeep::expiry_removal::ExpiryRemover;
use crate::db::upkeep::order::TableOrder;
use crate::db::upkeep::parts::Upkeep;
use crate::db::upkeep::repack::Repacker;
use crate::db::upkeep::shrink::Shrinker;
use crate::db::upkeep::sparse_leaves::SparseLeaves;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{self, Context};
use crate::format::catalog::EXPIRY_INDEX_KEY;
use crate::format::{CommitSeq, LateFeature, Moment};
use crate::pages::{Host, Store};
use crate::recovery::names::{self, Contents, DATA, LOCK};
use crate::recovery::{self, Creation, Locks, OpenedParts, Purpose};
use crate::settings::{CompactionMode, Settings};
use crate::sync::driver::block_on;
use crate::transaction::Commits;
use crate::transaction::feed::ChangeFeed;
use crate::transaction::visibility::Visibility;
use crate::wal::Log;

impl Db {
    /// Creates a database in `folder`, and the folder itself if it is missing (its parent must exist). A creation that
    /// is cut short at any moment leaves a database, or nothing that `open` would take for one.
    ///
    /// # Errors
    /// `AlreadyExists` when the folder holds a database: open it; or a part of one: the message says which part is
    /// missing. `InvalidCall` for settings out of range, or when the folder holds files that are no part of a database.
    /// `Busy` when another process is creating a database there. Nothing in the folder has changed then.
    /// `NoPermission`, `NoSpace`, `Io` as the system reports them.
    pub async fn create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let (folder, settings) = (folder.as_ref().to_path_buf(), settings.clone());
        let created = thread::run("nofault-create", move || create(&folder, &settings)).await?;
        created.map(|db| db.with_waiting_drop(false))
    }

    /// Opens the database in `folder`. After a crash this replays the log; the time is bounded by `log_bytes`.
    ///
    /// # Errors
    /// `NotFound` when there is none, nor any part of one: create it. `Busy` when it is open elsewhere, saying where.
    /// `Corrupt` when it is damaged, saying where, or when a part of it is missing, saying which. `InvalidCall` when
    /// one of its files is a link or no regular file. `Unsupported` when it was written by a later version.
    pub async fn open(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let (folder, settings) = (folder.as_ref().to_path_buf(), settings.clone());
        let opened = thread::run("nofault-open", move || open(&folder, &settings)).await?;
        opened.map(|db| db.with_waiting_drop(false))
    }

    /// Opens the database in `folder`, or creates it where there is none, nor any part of one. An emptied or damaged
    /// database is an error and never a new beginning.
    ///
    /// # Errors
    /// As [`Db::open`], but for `NotFound`, and as [`Db::create`].
    pub async fn open_or_create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let (folder, settings) = (folder.as_ref().to_path_buf(), settings.clone());
        let opened = thread::run("nofault-open", move || open_or_create(&folder, &settings)).await?;
        opened.map(|db| db.with_waiting_drop(false))
    }

    /// Like [`Db::create`], on disks of the caller's choice. Blocks. [`Directory::lock`] keeps other processes from
    /// using the disks. Dropping the last handle waits until the database is closed: nothing else keeps this process
    /// from opening the same disks in that time.
    ///
    /// # Errors
    /// As [`Db::create`].
    pub fn create_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        let _span = events::database(None);
        create_in(directory, settings, Purpose::Use, None, None)
    }

    /// Like [`Db::open`], on disks of the caller's choice. Blocks. [`Directory::lock`] keeps other processes from using
    /// the disks. Dropping the last handle waits, as after [`Db::create_in`].
    ///
    /// # Errors
    /// As [`Db::open`].
    pub fn open_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        let _span = events::database(None);
        open_in(directory, settings, Purpose::Use, None)
    }
}

/// Creates a database in a folder of this machine and opens it. Blocks.
pub(crate) fn create(path: &Path, settings: &Settings) -> Result<Db> {
    let _span = events::database(Some(path));
    recovery::check_new(settings)?;
    let NewDirectory { directory, stripes, signed, place } = new_directory(path, settings)?;
    // The name is locked here, too, so that no other process opens or creates a database while a failed one is removed.
    let created = create_in(&directory, settings, Purpose::Use, stripes, Some(Arc::clone(&signed)));
    let created = created.inspect_err(|error| {
        remove_failed(&*directory, error);
        place.remove();
    });
    created.inspect(|db| serve_stats(db, path, settings))
}

/// Removes the files of a creation that failed, as far as that is possible. The caller has the name of the folder
/// locked.
pub(in crate::db) fn remove_failed(directory: &dyn Directory, error: &Error) {
    // Then the files are another's.
    if !matches!(error.kind(), ErrorKind::Busy | ErrorKind::AlreadyExists | ErrorKind::InvalidCall) {
        recovery::remove_unfinished(directory);
    }
}

/// Serves the counters of a database in its folder, if the settings ask for it.
pub(in crate::db) fn serve_stats(db: &Db, path: &Path, settings: &Settings) {
    if settings.stats_socket {
        db.owner.serve_stats(path, db.core.committer.commit_ns());
    }
}

/// The folder in which a database is to be created.
pub(in crate::db) struct NewDirectory {
    pub(in crate::db) directory: Arc<dyn Directory>,
    /// The text of the list of folders, if the database is to be striped.
    pub(in crate::db) stripes: Option<String>,
    /// A lock that keeps other processes from creating a database in the same folder.
    pub(in crate::db) signed: Arc<dyn FileLock>,
    pub(in crate::db) place: Place,
}

/// A folder on this machine, as it was before a creation.
#[derive(Clone, Debug)]
pub(in crate::db) struct Place {
    path: PathBuf,
    was_there: bool,
}

impl Place {
    /// Looks at a folder. Blocks while this process removes an unfinished database there.
    fn at(path: &Path) -> Self {
        closing::once_removed(path);
        Self { path: path.into(), was_there: path.symlink_metadata().is_ok() }
    }

    /// Removes the folder if the creation has made it and nothing is in it.
    pub(in crate::db) fn remove(&self) {
        if !self.was_there {
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    /// Announces that the files of an unfinished database are removed, until the result is dropped.
    pub(in crate::db) fn removal(&self) -> closing::Opening {
        closing::Opening::removal(&self.path)
    }
}

/// Prepares the directory for a database to be created in a folder of this machine. Changes nothing where the
/// folder holds a database, or any file other than those that an unfinished creation leaves, and where the preparation fails. Blocks.
pub(in crate::db) fn new_directory(path: &Path, settings: &Settings) -> Result<NewDirectory> {
    let place = Place::at(path);
    prepared(&place, settings).inspect_err(|_| place.remove())
}

fn prepared(place: &Place, settings: &Settings) -> Result<NewDirectory> {
    let path = &place.path;
    let failed = |error| Error::from_io(format_args!("create a database in {}", path.display()), error);
    make_folder(path).map_err(|error| Error::from_io("create the folder", error))?;
    let folder = Folder::open(path, Backend::Auto).map_err(failed)?;
    refuse_occupied(&folder)?;
    let signed: Arc<dyn FileLock> = Arc::new(folder.lock_by_name(LOCK).map_err(failed)?);
    // Another creation may have completed here before it released the lock.
    refuse_occupied(&folder).inspect_err(|error| remove_failed(&folder, error))?;
    let main: Arc<dyn Directory> = Arc::new(folder);
    let prepared = stripes::remove_unfinished_parts(&*main, &ThisMachine)
        .and_then(|()| stripes::create(Arc::clone(&main), &settings.stripe_folders, random(), &ThisMachine));
    let (directory, stripes) = prepared.inspect_err(|error| remove_failed(&*main, error))?;
    Ok(NewDirectory { directory, stripes, signed, place: place.clone() })
}

/// Refuses to create a database in a folder unless it is empty, but for folders, or holds only files that an unfinished
/// creation or backup left.
///
/// # Errors
/// `AlreadyExists` when there is a database or a part of one, `Busy` when it is open, `InvalidCall` when there is
/// anything else.
fn refuse_occupied(folder: &Folder) -> Result<()> {
    let at = |error: Error| Error::new(error.kind(), format!("{}: {error}", folder.path().display()));
    let entries = folder.entries().map_err(|error| Error::from_io("list the folder", error))?;
    let contents = names::contents(entries.iter().map(nofault_io::folder::Entry::name));
    if contents == Contents::Database
        && let Err(error) = folder.lock(DATA, LOCK)
        && error.kind() == nofault_io::error::ErrorKind::Busy
    {
        return Err(Error::from_io("there is a database in this folder already", error));
    }
    names::refuse_existing(&contents).map_err(at)?;
    let is_ours = |name: &str, kind: EntryKind| match kind {
        EntryKind::Folder => !names::is_reserved(name),
        EntryKind::File if name == LOCK => folder.is_signature(LOCK),
        // Parts of an unfinished creation, in case it was to be striped over this folder.
        EntryKind::File => names::is_reserved(name) || (contents == Contents::Unfinished && names::is_part(name)),
        EntryKind::Link | EntryKind::Other => false,
    };
    match entries.iter().find(|entry| !is_ours(entry.name(), entry.kind())) {
        None => Ok(()),
        Some(entry) => {
            let what = format!("there is «{}» in it, and no database: create one in a separate folder", entry.name());
            Err(at(Error::new(ErrorKind::InvalidCall, what)))
        }
    }
}

/// Opens the database in a folder of this machine, after waiting for this process to close it if it is about to.
/// Blocks.
pub(crate) fn open(path: &Path, settings: &Settings) -> Result<Db> {
    closing::once_closed(&path.join(DATA), || open_now(path, settings))
}

/// Refuses a path without a folder, in which there is no database. A folder that cannot be looked at is no missing one.
///
/// # Errors
/// `NotFound`; the error of the system.
pub(in crate::db) fn require_folder(path: &Path) -> Result<()> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Err(error) if !matches!(error.kind(), NotFound | NotADirectory) => {
            let error = nofault_io::error::Error::from_io("look for the folder", &error).at(path);
            Err(Error::from_io("open a database", error))
        }
        _ => {
            let what = format!("there is no database in {}: create it, or check the path", path.display());
            Err(Error::new(ErrorKind::NotFound, what))
        }
    }
}

fn open_now(path: &Path, settings: &Settings) -> Result<Db> {
    let _span = events::database(Some(path));
    require_folder(path)?;
    let failed = |error| Error::from_io(format_args!("open the database in {}", path.display()), error);
    let folder = Folder::open(path, Backend::Auto).map_err(failed)?;
    let at = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
    let entries = folder.entries().map_err(failed)?;
    names::refuse_missing(&names::contents(entries.iter().map(nofault_io::folder::Entry::name))).map_err(at)?;
    let directory = stripes::open(Arc::new(folder), &ThisMachine).map_err(at)?;
    open_in(&directory, settings, Purpose::Use, None).inspect(|db| serve_stats(db, path, settings))
}

/// Opens the database in a folder of this machine, or creates it where there is none. Blocks.
pub(in crate::db) fn open_or_create(path: &Path, settings: &Settings) -> Result<Db> {
    match open(path, settings) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        opened => return opened,
    }
    match create(path, settings) {
        // Another caller was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => open(path, settings),
        created => created,
    }
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Creates a database and opens it. Blocks.
pub(in crate::db) fn create_in(
    directory: &Arc<dyn Directory>,
    settings: &Settings,
    purpose: Purpose,
    stripes: Option<String>,
    signed: Option<Arc<dyn FileLock>>,
) -> Result<Db> {
    let creation = Creation { file_id: settings.seed.unwrap_or_else(random), purpose, stripes, signed };
    let locks = recovery::create(directory, settings, creation)?;
    open_in(directory, settings, purpose, Some(locks))
}

/// Opens a database; `locks` are the locks of its creation, if it has just been created. Loads the page table, replays
/// the log, starts the threads. Blocks.
pub(in crate::db) fn open_in(
    directory: &Arc<dyn Directory>,
    settings: &Settings,
    purpose: Purpose,
    locks: Option<Locks>,
) -> Result<Db> {
    let begun = Instant::now();
    open_parts(directory, settings, purpose, locks).inspect_err(|error| events::open_failed(error, begun))
}

fn open_parts(
    directory: &Arc<dyn Directory>,
    settings: &Settings,
    purpose: Purpose,
    locks: Option<Locks>,
) -> Result<Db> {
    settings.check()?;
    let (opening, begun, access) = (events::open(), Instant::now(), Arc::new(DiskAccess::default()));
    // Declared first, so that it is dropped last, should anything go wrong.
    let open_locks;
    let OpenedParts { pool, log, cache_bytes, base, records, checkpointer, disk, repairs, locks } =
        recovery::open(&access.before(directory), settings, purpose, locks)?;
    open_locks = OpenLocks::new(locks);
    let (store, log) = (Arc::new(pool.clone()), Arc::new(log));
    let visibility = Arc::new(Visibility::new(store.clone(), base));
    let recent_bytes_max = recovery::recent_commits_bytes(cache_bytes);
    let commits = Arc::new(Commits::new(store.clone(), log.clone(), visibility.clone(), base, recent_bytes_max));
    let host: Arc<dyn Host> = Arc::new(OpenDatabase {
        store: store.clone(),
        visibility,
        feed: commits.feed().clone(),
        log: Arc::downgrade(&log),
    });
    pool.set_host(Arc::downgrade(&host));
    log.set_host(host);
    let core = Arc::new(Core::new(store, log, commits, recovery::read_set_bytes(cache_bytes)));
    if purpose == Purpose::Fill {
        core.waits.leave_to_the_end();
        core.log.leave_deferred_commits();
    }
    let repacker = Arc::new(Repacker::default());
    let free_blocks = BlocksOnFullDisk {
        pool: pool.clone(),
        checkpointer: checkpointer.clone(),
        repacker: Arc::clone(&repacker),
        disk: Arc::downgrade(&disk),
    };
    core.reservations.free_blocks_by(Box::new(free_blocks));
    let catalog = block_on(core.catalog.read(&core.store.snapshot()))?;
    pool.writer().codecs().checkpoint_durable(base);
    dictionaries::learn_from(&core, &catalog, base)?;
    let stopped = core.log.clone();
    let stop_checkpoints = Box::new(move |why: &Error| stopped.poison(why));
    let replay = Replay::new(core.clone(), &catalog, stop_checkpoints, recovery::replay_bytes(cache_bytes));
    let replayed_commits = replay.run(records)?;
    if purpose.is_read_only() {
        let why = Error::read_only();
        core.commits.forbid(&why);
        checkpointer.forbid(&why);
    }
    let replayed = block_on(core.catalog.read(&core.store.snapshot()))?;
    dictionaries::learn_from(&core, &replayed, pool.visible())?;
    if let Some((_, index)) = replayed.tables.iter().find(|(key, _)| key == EXPIRY_INDEX_KEY) {
        core.expiries.learn(*index);
    }
    if replayed.has_loads_without_rows {
        core.expiries.set_without_rows();
    }
    let for_expiry = checkpointer.clone();
    core.expiries.allow_by(Box::new(move || for_expiry.allow(LateFeature::Expiry)));
    let upkeep = Arc::new(Upkeep {
        dropped: DroppedTables::new(&core),
        expiry: Arc::new(ExpiryRemover::new(core.clone())),
        leaves: Arc::new(SparseLeaves::new(&core)),
        order: Arc::new(TableOrder::new(core.reader.clone(), checkpointer.clone())),
        trainer: Arc::new(DictionaryTrainer::new(&core, &pool, &catalog, &replayed)),
        repacker,
        shrinker: Arc::new(Shrinker::new(checkpointer.clone(), pool.clone())),
    });
    repairs.iter().for_each(|repair| events::repaired(repair));
    events::opened(pool.visible(), replayed_commits, &disk.info(), begun);
    // The threads are in the span of the database.
    opening.leave();
    let threads = if settings.background_threads && purpose.is_read_only() {
        Some(Threads {
            compaction: None,
            freeing: None,
            checkpoints: None,
            log: None,
            pool: pool.start_background_threads(core.log.poison_in_panic())?,
            stats: None,
            context: Context::current(),
        })
    } else if settings.background_threads {
        let in_panic = core.log.poison_in_panic();
        let pool_threads = pool.start_background_threads(in_panic.clone())?;
        let log = core.log.start_writer()?;
        let checkpoints = Background::start(checkpointer.clone(), settings.idle_after())?;
        let compaction = match settings.compaction {
            CompactionMode::Automatic => {
                let parts = CompactionParts {
                    upkeep: upkeep.clone(),
                    pool: pool.clone(),
                    relocator: pool.relocator(&*disk)?,
                    checkpointer: checkpointer.clone(),
                    scanned: core.reader.scanned.clone(),
                    changes: core.changes.clone(),
                    idle_after: settings.idle_after(),
                };
                Some(BackgroundCompaction::start(parts, in_panic.clone())?)
            }
            CompactionMode::Manual => None,
        };
        Some(Threads {
            compaction,
            freeing: Some(Freeing::start(upkeep.dropped.clone(), in_panic)?),
            checkpoints: Some(checkpoints),
            log: Some(log),
            pool: pool_threads,
            stats: None,
            context: Context::current(),
        })
    } else {
        let (checkpointer, log) = (checkpointer.clone(), core.log.clone());
        core.waits.make_space_by(Box::new(move |len_bytes| log.make_space(len_bytes, || checkpointer.checkpoint())));
        None
    };
    let without_threads = threads.is_none();
    let memory = Memory { cache_bytes: settings.cache_bytes as u64, spent_bytes: recovery::spent_bytes(cache_bytes) };
    let parts = (checkpointer, disk, pool, core.log.clone());
    let owner = Arc::new(Owner::new(parts, upkeep, repairs, memory, threads, (open_locks, access)));
    if without_threads {
        owner.free_dropped();
    }
    if let Some(guards) = owner.guards() {
        core.committer.keep_open_with(guards);
    }
    Ok(Db { core, owner: OwnerHandle::new(owner), compression: settings.compression, view: None })
}

/// An open database, as its log and its pool see it. The log owns it.
struct OpenDatabase {
    store: Arc<BufferPool>,
    visibility: Arc<Visibility<BufferPool>>,
    feed: Arc<ChangeFeed>,
    /// Weak: the log owns this.
    log: Weak<Log>,
}

impl Host for OpenDatabase {
    fn commits_durable(&self, newest: CommitSeq) {
        self.visibility.durable(newest);
    }

    fn write_ended(&self) {
        self.store.clear_up();
        self.feed.deliver(self.store.visible());
    }

    fn log_failed(&self, error: &Error) {
        self.feed.deliver(self.store.visible());
        self.feed.end_now(error);
    }

    fn now(&self) -> Moment {
        self.store.clock().now()
    }

    fn is_log_writing(&self) -> bool {
        self.log.upgrade().is_some_and(|log| log.is_writing())
    }
}

/// Frees blocks of the data file for commits that find none.
struct BlocksOnFullDisk {
    pool: BufferPool,
    checkpointer: Arc<Checkpointer>,
    repacker: Arc<Repacker>,
    /// Weak: the lock on the files ends with the disk.
    disk: Weak<dyn Disk>,
}

impl FreeBlocks for BlocksOnFullDisk {
    fn checkpoint(&self) -> Result<()> {
        // Blocks kept for other processes go first: the checkpoint needs free ones itself. Afterwards those that it keeps.
        self.checkpointer.give_up_readers();
        self.checkpointer.checkpoint()?;
        self.checkpointer.give_up_readers();
        Ok(())
    }

    fn squeeze(&self, pages: u64) -> Result<u64> {
        let Some(disk) = self.disk.upgrade() else { return Ok(0) };
        let mut relocator = self.pool.relocator(&*disk)?;
        let is_enough = || self.pool.spare_pages() >= pages + FREED_AT_ONCE;
        self.repacker.squeeze((&self.pool, &self.checkpointer), &mut relocator, &is_enough)
    }
}

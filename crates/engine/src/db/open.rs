//! Creating, opening and closing a database: puts the parts together.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nofault_io::disk::{Directory, Disk, DiskInfo, FileLock};
use nofault_io::folder::{Backend, EntryKind, Folder, make_folder};

use super::Db;
use super::close::end_threads;
use super::closing::{self, Opening};
use super::core::Core;
use super::drops::Freer;
use super::replay::Replay;
use super::stripes::{self, ThisMachine};
use crate::background;
use crate::buffer_pool::{Keeper, Mover, Pager, ToEmptyOut, Together};
use crate::checkpoint::{Background, Checkpointer};
use crate::driver::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{CommitSeq, PageId};
use crate::pages::Store;
use crate::recovery::names::{self, Contents, DATA, LOCK};
use crate::recovery::{self, Creation, Locks, Opened, Purpose};
use crate::settings::Settings;
use crate::txn::Commits;
use crate::txn::visibility::Visibility;
use crate::verify::{BlockReport, verify_blocks};
use crate::wal::{Log, LogKeeper};

/// The parts of a database besides its core: threads, the lock, access to its files. Its threads end when it is
/// dropped, before the lock is given back. All that may still write keeps it: handles, and large commits that outlive
/// theirs. None of its own threads keeps it, as it waits for them; but a waker that one of them calls may drop the last
/// object that does.
pub(super) struct Owner {
    checkpointer: Arc<Checkpointer>,
    disk: Arc<dyn Disk>,
    pager: Pager,
    /// Descriptions of the damage that opening found and repaired.
    repairs: Vec<String>,
    pub(super) memory: Memory,
    threads: Mutex<Option<Threads>>,
    /// Held by the thread that frees the pages of dropped tables, where no background thread does.
    freeing: Mutex<()>,
    held: Option<Held>,
    /// The process that opened the database. A forked child inherits handles, but neither threads nor locks of its own.
    process: u32,
}

/// The resources that are released when a database is closed, in this order.
struct Held {
    _locks: Locks,
    opening: Opening,
}

/// Memory that a database may take, and the part of it that it takes beside the pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    /// The setting.
    pub(super) cache_bytes: u64,
    /// Log buffers and the list of recent commits, when they are full.
    pub(super) spent_bytes: u64,
}

/// See [`end_threads`] for the order in which they end.
pub(super) struct Threads {
    pub(super) freer: Freer,
    pub(super) checkpoints: Background,
    pub(super) log: LogKeeper,
    pub(super) pool: Keeper,
}

impl Owner {
    /// Makes a checkpoint, unless there is nothing that one would add.
    pub(super) fn save(&self) -> Result<()> {
        self.checkpointer.checkpoint_before_closing()
    }

    /// Ends the threads, after a last checkpoint, and lets other processes open the database.
    ///
    /// # Errors
    /// The error of the checkpoint: the database is closed all the same.
    pub(super) fn close(mut self) -> Result<()> {
        match self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            Some(threads) => end_threads(threads, &self.checkpointer),
            None => self.save().inspect(|()| self.checkpointer.shrink_log()),
        }
    }

    pub(super) fn checkpoint(&self) -> Result<()> {
        self.checkpointer.checkpoint()?;
        self.checkpointer.shrink_log();
        Ok(())
    }

    /// See [`Checkpointer::checkpoint_at`].
    pub(super) fn checkpoint_at(&self, commit: CommitSeq) -> Result<()> {
        self.checkpointer.checkpoint_at(commit)
    }

    /// Frees the pages of dropped tables: wakes the thread that does so, or without threads does it here. Errors are
    /// not reported: the next drop or opening tries again, and only disk space depends on it.
    pub(super) fn free_dropped(&self, core: &Arc<Core<Pager, Log>>) {
        if let Some(threads) = &*self.threads.lock().unwrap_or_else(PoisonError::into_inner) {
            return threads.freer.wake();
        }
        let _one = self.freeing.lock().unwrap_or_else(PoisonError::into_inner);
        while matches!(block_on(core.free_some()), Ok(true)) {}
    }

    pub(super) fn checkpoints_made(&self) -> u64 {
        self.checkpointer.made()
    }

    pub(super) fn disk_info(&self) -> DiskInfo {
        self.disk.info()
    }

    pub(super) fn mover(&self) -> Result<Mover> {
        Mover::new(&self.pager, &*self.disk)
    }

    pub(super) fn put_together(&self, mover: &mut Mover, pages: &[PageId]) -> Result<Together> {
        self.checkpointer.put_together(mover, pages)
    }

    pub(super) fn empty_out(&self, mover: &mut Mover, room: &mut ToEmptyOut) -> Result<Option<u64>> {
        self.checkpointer.empty_out(mover, room)
    }

    /// See [`super::Stats::repairs`].
    pub(super) fn repairs(&self) -> &[String] {
        &self.repairs
    }

    /// Checks the superblocks, and all blocks of the page table and of pages.
    pub(super) fn verify_blocks(&self) -> Result<BlockReport> {
        let mut report = verify_blocks(&self.pager, &*self.disk, &mut |_, _| {})?;
        report.problems.splice(0..0, self.checkpointer.check_superblocks(&*self.disk));
        Ok(report)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.process != std::process::id() {
            // The threads do not exist in a forked child, and giving the lock back would take it from the parent.
            std::mem::forget((threads, self.held.take()));
            return;
        }
        let Some(threads) = threads else { return };
        if !background::is_here() {
            let _ = end_threads(threads, &self.checkpointer);
            return;
        }
        // This thread is one of the database's threads, or one that they may be waiting for, as the waker was called in
        // the middle of its work. So another thread ends them. If none can be started, everything stays as it is, above
        // all the lock: no other process may open files that are still written to.
        let stays_open = self.held.as_ref().map(|held| held.opening.stays_open());
        let left = ManuallyDrop::new((threads, self.held.take()));
        let checkpointer = Arc::clone(&self.checkpointer);
        let close = move || {
            let (threads, held) = ManuallyDrop::into_inner(left);
            let _ = end_threads(threads, &checkpointer);
            drop(held);
        };
        if std::thread::Builder::new().name("nofault-close".into()).spawn(close).is_err()
            && let Some(stays_open) = stays_open
        {
            stays_open();
        }
    }
}

/// Creates a database in a folder of this machine and opens it. Blocks.
pub(crate) fn create(path: &Path, settings: &Settings) -> Result<Db> {
    let NewDirectory { directory, stripes, signed } = new_directory(path, settings)?;
    create_in(&directory, settings, Purpose::Use, stripes, Some(signed))
}

/// Where a database is to be created.
pub(super) struct NewDirectory {
    pub(super) directory: Arc<dyn Directory>,
    /// The list of its folders, if it is striped.
    pub(super) stripes: Option<String>,
    /// Keeps others from creating one there.
    pub(super) signed: Box<dyn FileLock>,
}

/// The directory of a database that is to be created in a folder of this machine. Nothing is changed where there is one, or anything
/// else that is not left by an unfinished creation.
pub(super) fn new_directory(path: &Path, settings: &Settings) -> Result<NewDirectory> {
    let failed = |error| Error::from_io(format_args!("create a database in {}", path.display()), error);
    make_folder(path).map_err(|error| Error::from_io("create the folder", error))?;
    let folder = Folder::open(path, Backend::Auto).map_err(failed)?;
    refuse_occupied(&folder)?;
    let signed: Box<dyn FileLock> = Box::new(folder.lock_by_name(LOCK).map_err(failed)?);
    // Another one may have created a database there before it gave the lock back.
    refuse_occupied(&folder)?;
    let main: Arc<dyn Directory> = Arc::new(folder);
    stripes::remove_unfinished_parts(&*main, &ThisMachine)?;
    let (directory, stripes) = stripes::create(main, &settings.stripe_folders, random(), &ThisMachine)?;
    Ok(NewDirectory { directory, stripes, signed })
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
        // Parts of an unfinished creation, should this folder be one of those that it was to be striped over.
        EntryKind::File => names::is_reserved(name) || (contents == Contents::Unfinished && names::is_part(name)),
        EntryKind::Link | EntryKind::Other => false,
    };
    match entries.iter().find(|entry| !is_ours(entry.name(), entry.kind())) {
        None => Ok(()),
        Some(entry) => {
            let what = format!("there is «{}» in it, and no database: create one in a folder of its own", entry.name());
            Err(at(Error::new(ErrorKind::InvalidCall, what)))
        }
    }
}

/// Opens the database in a folder of this machine, once it is closed if this process is about to close it. Blocks.
pub(crate) fn open(path: &Path, settings: &Settings) -> Result<Db> {
    closing::once_closed(&path.join(DATA), || open_now(path, settings))
}

fn open_now(path: &Path, settings: &Settings) -> Result<Db> {
    if !path.is_dir() {
        let what = format!("there is no database in {}: create it, or check the path", path.display());
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    let failed = |error| Error::from_io(format_args!("open the database in {}", path.display()), error);
    let folder = Folder::open(path, Backend::Auto).map_err(failed)?;
    let at = |error: Error| Error::new(error.kind(), format!("{}: {error}", path.display()));
    let entries = folder.entries().map_err(failed)?;
    names::refuse_missing(&names::contents(entries.iter().map(nofault_io::folder::Entry::name))).map_err(at)?;
    open_in(&stripes::open(Arc::new(folder), &ThisMachine).map_err(at)?, settings, Purpose::Use, None)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Creates a database and opens it. Blocks.
pub(super) fn create_in(
    directory: &Arc<dyn Directory>,
    settings: &Settings,
    purpose: Purpose,
    stripes: Option<String>,
    signed: Option<Box<dyn FileLock>>,
) -> Result<Db> {
    let creation = Creation { file_id: settings.seed.unwrap_or_else(random), purpose, stripes, signed };
    let locks = recovery::create(directory, settings, creation)?;
    open_in(directory, settings, purpose, Some(locks))
}

/// Opens a database, the one that was created with `locks` or another one: loads the page table, replays the log, starts the threads.
/// Blocks.
pub(super) fn open_in(
    directory: &Arc<dyn Directory>,
    settings: &Settings,
    purpose: Purpose,
    locks: Option<Locks>,
) -> Result<Db> {
    // Declared first, so that it is dropped last, should anything go wrong.
    let held;
    let Opened { pager, log, cache_bytes, base, records, checkpointer, disk, repairs, locks } =
        recovery::open(directory, settings, purpose, locks)?;
    held = Held { opening: Opening::register(locks.id()), _locks: locks };
    let (store, log) = (Arc::new(pager.clone()), Arc::new(log));
    let visibility = Arc::new(Visibility::new(store.clone(), base));
    let hook = visibility.clone();
    log.set_hook(Box::new(move |seq| hook.durable(seq)));
    // Weak: the log's hooks keep the pool.
    let writing = Arc::downgrade(&log);
    pager.core().learn_of_log_writes(Box::new(move || writing.upgrade().is_some_and(|log| log.is_writing())));
    let cleared_up = store.clone();
    log.set_afterwards(Box::new(move || cleared_up.clear_up()));
    let recent_bytes_max = recovery::recent_commits_bytes(cache_bytes);
    let commits = Arc::new(Commits::new(store.clone(), log.clone(), visibility, base, recent_bytes_max));
    let core = Arc::new(Core::new(store, log, commits, recovery::read_set_bytes(cache_bytes)));
    let for_blocks = checkpointer.clone();
    core.free_blocks_by(Box::new(move || for_blocks.checkpoint().map(drop)));
    let catalog = block_on(core.read_catalog(&core.store.snapshot()))?;
    let stopped = core.log.clone();
    let stop_checkpoints = Box::new(move |why: &Error| stopped.poison(why));
    Replay::new(core.clone(), catalog, stop_checkpoints, recovery::replay_bytes(cache_bytes)).run(records)?;
    let threads = if settings.background_threads {
        let pool = pager.start_keeper()?;
        let log = core.log.start_keeper()?;
        let checkpoints = Background::start(checkpointer.clone())?;
        Some(Threads { freer: Freer::start(core.clone())?, checkpoints, log, pool })
    } else {
        let (checkpointer, log) = (checkpointer.clone(), core.log.clone());
        core.make_checkpoints(Box::new(move |len_bytes| log.make_room(len_bytes, || checkpointer.checkpoint())));
        None
    };
    let without_threads = threads.is_none();
    let (threads, freeing, process) = (Mutex::new(threads), Mutex::default(), std::process::id());
    let memory = Memory { cache_bytes: settings.cache_bytes as u64, spent_bytes: recovery::spent_bytes(cache_bytes) };
    let owner = Owner { checkpointer, disk, pager, repairs, memory, threads, freeing, held: Some(held), process };
    if without_threads {
        owner.free_dropped(&core);
    }
    let owner = Arc::new(owner);
    if let Some(held) = &owner.held {
        let weak: Weak<Owner> = Arc::downgrade(&owner);
        held.opening.belongs_to(weak.clone());
        core.belongs_to(held.opening.outliving(weak));
    }
    Ok(Db { core, owner })
}

//! The parts of a database besides its core: its threads, its lock, and access to its files. Dropping the owner closes
//! the database.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use nofault_io::disk::{Disk, DiskInfo};
use nofault_io::process::Process;

use super::close::Closing;
use super::closing::Opening;
use super::disk_access::DiskAccess;
use super::stats_socket::{Counters, StatsSocket};
use crate::buffer_pool::{BufferPool, PoolWork, Relocator};
use crate::checkpoint::{Background, Checkpointer};
use crate::db::calls::commit::Keep;
use crate::db::upkeep::background_compaction::BackgroundCompaction;
use crate::db::upkeep::deferred_free::Freeing;
use crate::db::upkeep::parts::Upkeep;
use crate::db::upkeep::shrink::Shrinker;
use crate::error::{Error, Result};
use crate::events::{self, Context};
use crate::format::{CommitSeq, LateFeature};
use crate::histogram::AtomicHistogram;
use crate::pages::Store as _;
use crate::recovery::Locks;
use crate::recovery::verify::{BlockReport, verify_blocks};
use crate::sync::background;
use crate::sync::driver::block_on;
use crate::sync::event::Event;
use crate::wal::{Log, WalWriter};

/// The parts of a database besides its core: threads, the lock, access to its files. Its threads end when it is
/// dropped, before the lock is given back. Handles keep it alive, and so do large commits that outlive their handles:
/// everything that may still write. Its own threads do not, because its drop waits for them; but a waker that one of
/// them calls may drop the last handle.
pub(in crate::db) struct Owner {
    checkpointer: Arc<Checkpointer>,
    disk: Arc<dyn Disk>,
    pool: BufferPool,
    pub(in crate::db) upkeep: Arc<Upkeep>,
    /// Descriptions of the damage that opening found and repaired.
    repairs: Vec<String>,
    pub(in crate::db) memory: Memory,
    threads: Mutex<Option<Threads>>,
    /// Locked by a thread that frees the pages of dropped tables, where no background thread does.
    freeing: Mutex<()>,
    /// None once the database is closed.
    locks: Mutex<Option<OpenLocks>>,
    /// The access of the database to all of its files.
    access: Arc<DiskAccess>,
    closing: Closing,
    /// The process that opened the database. A forked child inherits handles, but neither threads nor locks.
    process: Process,
    log: Arc<Log>,
    /// Whether the handle dropped last belongs to a thread, which may wait until the database is closed.
    last_may_wait: AtomicBool,
    /// Happens when the database begins to close.
    closed: Arc<Event>,
}

/// The reference to the owner that each handle has. When the last is dropped, the database is closed: by the dropping
/// thread, if it may wait, or by a dedicated thread.
#[derive(Clone)]
pub(in crate::db) struct OwnerHandle {
    owner: Arc<Owner>,
    may_wait: bool,
}

impl OwnerHandle {
    /// Creates a handle whose drop waits.
    pub(in crate::db) fn new(owner: Arc<Owner>) -> Self {
        Self { owner, may_wait: true }
    }

    /// Sets whether dropping this handle, and those cloned from it, may wait until the database is closed.
    pub(in crate::db) fn set_may_wait(&mut self, may_wait: bool) {
        self.may_wait = may_wait;
    }
}

impl Deref for OwnerHandle {
    type Target = Owner;

    fn deref(&self) -> &Owner {
        &self.owner
    }
}

impl Drop for OwnerHandle {
    fn drop(&mut self) {
        if !self.owner.process.is_here() {
            // In a forked process nothing of the database is ever dropped: it is the parent's.
            std::mem::forget(Arc::clone(&self.owner));
            return;
        }
        // Which of two handles dropped at the same moment is the last does not matter: both orders close the database.
        self.owner.last_may_wait.store(self.may_wait, Ordering::Relaxed);
    }
}

/// The resources released when a database is closed, in this order.
pub(in crate::db) struct OpenLocks {
    _locks: Locks,
    opening: Opening,
}

impl OpenLocks {
    /// Registers in this process that the files are open, in addition to the file locks.
    pub(in crate::db) fn new(locks: Locks) -> Self {
        Self { opening: Opening::register(locks.id()), _locks: locks }
    }
}

/// The memory that a database may take, and the part of it that is not the pool's.
#[derive(Debug, Clone, Copy)]
pub(in crate::db) struct Memory {
    /// The value of the setting `cache_bytes`.
    pub(in crate::db) cache_bytes: u64,
    /// Bytes of the log buffers and of the list of recent commits when they are full.
    pub(in crate::db) spent_bytes: u64,
}

/// The background threads of a database. See [`end_threads`] for the order in which they end.
pub(in crate::db) struct Threads {
    /// None where the settings leave compaction to the application.
    pub(in crate::db) compaction: Option<BackgroundCompaction>,
    /// None, as the two below, where the database is only read.
    pub(in crate::db) freeing: Option<Freeing>,
    pub(in crate::db) checkpoints: Option<Background>,
    pub(in crate::db) log: Option<WalWriter>,
    pub(in crate::db) pool: PoolWork,
    /// The socket of the counters, where the settings ask for it.
    pub(in crate::db) stats: Option<StatsSocket>,
    /// The span of the database.
    pub(in crate::db) context: Context,
}

impl Owner {
    pub(in crate::db) fn new(
        (checkpointer, disk, pool, log): (Arc<Checkpointer>, Arc<dyn Disk>, BufferPool, Arc<Log>),
        upkeep: Arc<Upkeep>,
        repairs: Vec<String>,
        memory: Memory,
        threads: Option<Threads>,
        (locks, access): (OpenLocks, Arc<DiskAccess>),
    ) -> Self {
        let (threads, freeing, process) = (Mutex::new(threads), Mutex::default(), Process::current());
        let (locks, closing) = (Mutex::new(Some(locks)), Closing::default());
        let (last_may_wait, closed) = (AtomicBool::new(true), Arc::default());
        Self {
            checkpointer,
            disk,
            pool,
            upkeep,
            repairs,
            memory,
            threads,
            freeing,
            locks,
            access,
            closing,
            process,
            log,
            last_may_wait,
            closed,
        }
    }

    /// Notes that the database is open for as long as this owner lives, and returns the source of guards for work that
    /// may outlive its handles.
    pub(in crate::db) fn guards(self: &Arc<Self>) -> Option<Keep> {
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let locks = locks.as_ref()?;
        let weak: Weak<Self> = Arc::downgrade(self);
        locks.opening.belongs_to(weak.clone());
        Some(locks.opening.outliving(weak))
    }

    /// Returns the event that happens when the database begins to close.
    pub(in crate::db) fn closed(&self) -> &Arc<Event> {
        &self.closed
    }

    /// Serves the counters in the folder of the database for as long as it is open. Where that is impossible they are not
    /// served.
    pub(in crate::db) fn serve_stats(&self, folder: &Path, commit_ns: &Arc<AtomicHistogram>) {
        let (pool, log, checkpointer) = (self.pool.clone(), Arc::clone(&self.log), Arc::clone(&self.checkpointer));
        let (memory, opened, commit_ns) = (self.memory, Instant::now(), Arc::clone(commit_ns));
        let counters = move || {
            let histograms = vec![("commit_ns", commit_ns.copy()), ("read_ns", pool.read_ns())];
            let (pages, log) = (pool.stats(), log.stats());
            let numbers = vec![
                ("version", 1),
                ("process", u64::from(std::process::id())),
                ("open_ms", opened.elapsed().as_millis() as u64),
                ("page_bytes", pool.page_bytes() as u64),
                ("commit", pool.visible().0),
                ("commits_durable", log.records_durable),
                ("log_writes", log.groups_written),
                ("log_bytes_written", log.bytes_written),
                ("log_bytes_live", log.live_bytes),
                ("log_space_waits", log.space_waits),
                ("checkpoints", checkpointer.made()),
                ("pages_hit", pages.hits),
                ("pages_read", pages.misses),
                ("reads_in_flight", pages.reads_in_flight),
                ("pages_written", pages.pages_written),
                ("pages_dirty", pages.pages_dirty),
                ("frame_waits", pages.frame_waits),
                ("snapshot_bytes", pages.snapshot_bytes),
                ("memory_bytes", pages.memory_bytes + memory.spent_bytes),
                ("cache_bytes", memory.cache_bytes),
                ("data_bytes", pages.blocks_file * pool.page_bytes() as u64),
                ("data_bytes_used", pages.blocks_used * pool.page_bytes() as u64),
            ];
            Counters { numbers, histograms }
        };
        if let Some(threads) = &mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner) {
            threads.stats = StatsSocket::serve(folder, counters).ok();
        }
    }

    /// Returns the state of closing the database.
    pub(in crate::db) fn closing(&self) -> &Closing {
        &self.closing
    }

    /// Fails when the database is being closed, or was, and in a process forked from the one that opened it: there
    /// before any lock is taken.
    ///
    /// # Errors
    /// `Closed`.
    pub(in crate::db) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        self.closing.check_open()
    }

    /// Fails in a process forked from the one that opened the database. For the calls that are still answered
    /// when it is closed.
    ///
    /// # Errors
    /// `Closed`.
    pub(in crate::db) fn check_process(&self) -> Result<()> {
        Error::unless_here(self.process)
    }

    /// Ends the threads, after a last checkpoint, and everything else using the files; then lets other processes open
    /// the database. All waits, and all later calls, fail with `why`.
    ///
    /// # Errors
    /// The error of the checkpoint: the database is closed all the same.
    pub(in crate::db) fn close(&self, why: &Error) -> Result<()> {
        self.closed.happen();
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        let saved = match threads {
            Some(threads) => end_threads(threads, &self.checkpointer, &self.upkeep.shrinker),
            None => self.checkpointer.checkpoint_before_closing(),
        };
        let saved = saved.inspect_err(|_| drop(self.log.flush_acknowledged()));
        self.log.end(why);
        // Waits for a checkpoint under way; a later one finds that the log has ended.
        self.checkpointer.sequence();
        self.pool.end(why);
        self.access.close();
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(locks);
        saved
    }

    /// Returns the sequence of the checkpoint in force.
    pub(in crate::db) fn checkpoint_sequence(&self) -> u64 {
        self.checkpointer.sequence()
    }

    /// Fails when the database is closed, or only read.
    ///
    /// # Errors
    /// `Closed`, `ReadOnly`.
    pub(in crate::db) fn refuse_read_only(&self) -> Result<()> {
        self.check_open()?;
        self.checkpointer.refuse_read_only()
    }

    pub(in crate::db) fn checkpoint(&self) -> Result<()> {
        self.check_open()?;
        self.checkpointer.checkpoint()?;
        self.checkpointer.shrink_log();
        Ok(())
    }

    /// Lets the format have a feature: see [`Checkpointer::allow`].
    pub(in crate::db) fn allow(&self, feature: LateFeature) -> Result<()> {
        self.checkpointer.allow(feature)
    }

    /// Makes a checkpoint at `commit`: see [`Checkpointer::checkpoint_at`].
    pub(in crate::db) fn checkpoint_at(&self, commit: CommitSeq) -> Result<()> {
        self.checkpointer.checkpoint_at(commit)
    }

    /// Frees the pages of dropped tables: wakes the thread that does so; without background threads the caller frees
    /// them. Errors are not reported: the next drop or opening tries again, and only disk space depends on it.
    pub(in crate::db) fn free_dropped(&self) {
        if let Some(threads) = &*self.threads.lock().unwrap_or_else(PoisonError::into_inner) {
            return threads.freeing.iter().for_each(Freeing::wake);
        }
        if self.refuse_read_only().is_err() {
            return;
        }
        let _one = self.freeing.lock().unwrap_or_else(PoisonError::into_inner);
        while matches!(block_on(self.upkeep.dropped.free_some()), Ok(true)) {}
    }

    pub(in crate::db) fn checkpoints_made(&self) -> u64 {
        self.checkpointer.made()
    }

    pub(in crate::db) fn disk_info(&self) -> DiskInfo {
        self.disk.info()
    }

    pub(in crate::db) fn relocator(&self) -> Result<Relocator> {
        self.check_open()?;
        self.pool.relocator(&*self.disk)
    }

    /// Returns the descriptions of repaired damage: see [`crate::db::Stats::repairs`].
    pub(in crate::db) fn repairs(&self) -> &[String] {
        &self.repairs
    }

    /// Checks the superblocks, all blocks of the page table, and the blocks of all pages.
    pub(in crate::db) fn verify_blocks(&self) -> Result<BlockReport> {
        self.check_open()?;
        let mut report = verify_blocks(&self.pool, &*self.disk, &mut |_, _| {})?;
        report.problems.splice(0..0, self.checkpointer.check_superblocks(&*self.disk));
        Ok(report)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let locks = self.locks.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.process.is_here() {
            // The threads do not exist in a forked child, and giving the lock back would take it from the parent.
            std::mem::forget((threads, locks));
            return;
        }
        let Some(locks) = locks else {
            // The database is closed already.
            return;
        };
        self.closed.happen();
        let Some(threads) = threads else {
            // No thread of the database's writes what the log has in memory. A caller who runs without them expects its
            // calls to wait for the disk, and so does this drop.
            let _ = self.log.flush_acknowledged();
            return;
        };
        let is_own_thread = background::is_here();
        if *self.last_may_wait.get_mut() && !is_own_thread {
            let _ = end_threads(threads, &self.checkpointer, &self.upkeep.shrinker);
            return;
        }
        if !is_own_thread && self.refuse_read_only().is_ok() {
            // An executor's thread. It waits for one write of what the log has in memory, so that deferred commits are
            // durable even if the process ends now; the checkpoint, which may take long, is left to another thread.
            let _ = self.log.flush_acknowledged();
        }
        // Or this thread is one of the database's threads, or one that they may be waiting for, as the waker was called
        // in the middle of its work. Another thread ends them. If none can be started, everything stays as it is, above
        // all the lock: no other process may open files that are still written to.
        let stays_open = locks.opening.stays_open();
        let left = ManuallyDrop::new((threads, locks));
        let (checkpointer, shrinker) = (Arc::clone(&self.checkpointer), Arc::clone(&self.upkeep.shrinker));
        let close = move || {
            let (threads, locks) = ManuallyDrop::into_inner(left);
            let _ = end_threads(threads, &checkpointer, &shrinker);
            drop(locks);
        };
        if std::thread::Builder::new().name("nofault-close".into()).spawn(close).is_err() {
            stays_open();
        }
    }
}

/// Ends the threads of a database, in this order. First comes the thread of compaction, which makes commits and file,
/// which makes checkpoints; then the thread that frees pages, because it needs log space, which checkpoints free; then
/// the checkpoint thread, so that the last checkpoint is the only one. Last comes the log, which keeps the commits that
/// the checkpoint could not take over.
///
/// # Errors
/// The error of the checkpoint. The threads end all the same.
fn end_threads(threads: Threads, checkpointer: &Checkpointer, shrinker: &Shrinker) -> Result<()> {
    let Threads { compaction, freeing, checkpoints, log, pool, stats, context } = threads;
    let (_span, begun) = (context.enter(), Instant::now());
    drop(stats);
    let keeps_files_short = compaction.is_some();
    drop(compaction);
    drop(freeing);
    drop(checkpoints);
    let outcome = checkpointer.checkpoint_before_closing();
    drop(log);
    // Once more, now that no thread writes to the log.
    checkpointer.shrink_log_before_closing();
    if keeps_files_short && outcome.is_ok() {
        shrinker.cut_before_closing();
    }
    drop(pool);
    events::closed(begun);
    outcome
}

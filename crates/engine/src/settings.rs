//! The options of a database, as plain data.

mod memory;

use std::time::Duration;

use crate::clock::ClockSource;
pub use crate::codec::Compression;
use crate::error::{Error, ErrorKind, Result};

/// The smallest page of a database that is not made by a test.
const PAGE_BYTES_LEAST: usize = 4096;

/// Options of a database: its page size, memory, log and threads. Set the fields that differ from
/// `Settings::default()`. Later versions may add fields, so always end with `..Settings::default()`, as the example does.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// use nofault::{blocking::Db, settings::Settings};
///
/// let settings = Settings { page_bytes: 16 << 10, cache_bytes: 32 << 20, log_bytes: 8 << 20, ..Settings::default() };
/// let db = Db::create(folder.path().join("shop"), &settings)?;
/// assert_eq!(db.page_bytes(), 16_384);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a page, a power of two from 4,096 to 65,536. Used at creation only; an opened database keeps its page
    /// size.
    pub page_bytes: usize,
    /// Memory for everything the database keeps: page frames, page table, log buffers, the list of recent commits.
    /// Taken when it is opened. The writes of a batch or transaction that are not committed belong to its caller and
    /// come on top.
    ///
    /// Of the page table, some 16 bytes for each page, the parts in use are in memory: when it is opened up to half of
    /// this memory is filled with it, and a sixteenth on top while it grows. What is not in memory is read when it is
    /// needed, which makes the first read of a page two reads. Parts changed since the last checkpoint stay in
    /// memory; when they are many, a checkpoint is made.
    ///
    /// Creating a database with less memory than an empty one needs is refused (`InvalidCall`, and the message says how
    /// much that is). Opening one never is: the smallest pool that works, and 20 to 55 MB for each TB of pages of 4 KiB,
    /// are taken even if they are more. [`Stats::memory_over_bytes`](crate::db::Stats::memory_over_bytes) says by how
    /// much the setting is exceeded, and lists what may exceed it while the database is open.
    pub cache_bytes: usize,
    /// Bytes of old page versions that snapshots, ranges and transactions may keep readable, in memory or in the data
    /// file. Above this limit snapshots are invalidated: reads in them fail with `SnapshotTooOld`. Each version counts for the
    /// newest snapshot that needs it, and of the snapshots for which some count the oldest goes first: invalidating others would
    /// free nothing. So even a range that has just begun is invalidated, and an older snapshot is not, where the commits
    /// since then, including compaction's, have replaced more pages than this that the older snapshot does not show.
    /// Pages of a table that was dropped count only for snapshots from before the drop. Zero
    /// stands for four times `cache_bytes`: listing that many versions takes up to an eighth of the cache. A
    /// checkpoint, a backup or a verification keeps at most one old version of each page in addition, for as long as it
    /// runs.
    pub snapshot_bytes_max: u64,
    /// Most bytes of log since the last checkpoint, not 0; the smallest log has four segments. Commits wait beyond them. The thread of
    /// checkpoints begins one at half of this, or earlier where there is less data. The setting bounds the time that opening takes after a
    /// crash, and the log's space on disk: a single commit larger takes more, until the checkpoint after it.
    pub log_bytes: u64,
    /// Further folders, best on other devices, over which the data file is striped. Creation makes those that are
    /// missing; a file in the database's own folder lists them. Used at creation only. There is no redundancy: data on
    /// a lost device is lost.
    pub stripe_folders: Vec<std::path::PathBuf>,
    /// How long the database keeps what readers in other processes ([`Db::open_read_only`](crate::Db::open_read_only)) use
    /// after a newer checkpoint. Kept blocks make the data file longer, and hold up nothing; after this time reads that
    /// need them fail with `SnapshotTooOld` there. Zero keeps nothing. A full disk ends the keeping at once. A checkpoint also waits this
    /// long, but five seconds at most, for readers that are just opening the database and read the log.
    pub readers_wait_max: Duration,
    /// Number of reads that may be in flight at the device at a time, at least 1.
    pub reads_in_flight_max: usize,
    /// Whether background threads may be started. Without them the callers that wait do all work on their own threads:
    /// that suffices for the blocking calls and makes tests repeatable. The async calls need the threads. Dropping the
    /// last handle then writes the log, so that deferred commits are durable, and makes no checkpoint.
    ///
    /// All databases of a process share these threads: at rest one for each of six kinds of work (log, checkpoints, pages, reads,
    /// dropped tables, compaction) and a clock, however many databases are open. More start while there is more to do: up to three
    /// for the log and two for most other kinds; one for each database whose tasks wait for reads at the moment; and as many
    /// again whenever no work of a kind has ended for 100 ms (50 ms for the log) while more waits. So a database waits that long, and a few
    /// times as long behind the work of hundreds, where the threads of its work are all held up by the disks of others. Threads without work end after a second, the last with the
    /// last database.
    ///
    /// At rest a database has four descriptors: a fifth where its files are in the page cache, and one more for a ring if its cache has
    /// 16 MiB or more; two more while its tasks wait for reads. The process keeps up to four rings for all.
    pub background_threads: bool,
    /// Whether the database gives space of the data file back by itself.
    pub compaction: CompactionMode,
    /// Compression of the tables created while the database is open with these settings. It is a property of
    /// each table and can be changed at any time: see [`Db::set_compression`](crate::Db::set_compression).
    pub compression: Compression,
    /// Whether the database serves its counters through a socket in its folder, for `nofault db top`: processes of the same user
    /// read them there. Costs a thread that sleeps. Needs `background_threads`; where the file system has no sockets, and
    /// for a database in a directory of the caller's ([`Db::open_in`](crate::Db::open_in)), there is none.
    pub stats_socket: bool,
    /// The clock by which entries expire that were put with an expiry: the system's, or one of the caller's, as a
    /// [`ManualClock`](crate::clock::ManualClock) in tests. The database takes the time in milliseconds. While a clock goes
    /// back, the database's time stands still until the clock has caught up, so nothing that has expired is seen again;
    /// the next opening believes the clock it finds.
    pub clock: ClockSource,
    /// For tests only. With a seed, every random choice, and every choice that otherwise depends on the rest of the
    /// process, follows from the seed: one thread using a database without background threads on a simulated disk
    /// repeats its history exactly. Databases created with the same seed cannot tell their files apart.
    pub seed: Option<u64>,
    /// What only the tests of nofault set. The field cannot be named in an expression, so that every expression that
    /// makes `Settings` ends with `..`, and still compiles when fields are added.
    #[doc(hidden)]
    pub of_tests: OfTests,
}

/// Time without commits after which the database counts as idle: a checkpoint is made, the log's file becomes as short as
/// it can be, and compaction merges and moves the pages that it leaves alone while the database is in use.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// What only the tests of nofault set.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OfTests {
    small_pages: bool,
    evicts_table: bool,
    tier: TierUse,
    idle_after: Option<Duration>,
}

/// What tests and benchmarks of nofault say about the compressed tier, in place of its judgement.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TierUse {
    /// Blocks have frames while they save more than they cost.
    #[default]
    Judged,
    /// Blocks have frames.
    Always,
    /// No block has a frame.
    Never,
}

/// Whether a database keeps its data file as long as its content by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CompactionMode {
    /// A background thread merges leaves that are half empty, moves pages from the end of the file to free blocks and
    /// cuts the file. While others use the database it takes a tenth of the time, and less while operations wait.
    #[default]
    Automatic,
    /// Only [`Db::shrink`](crate::Db::shrink) and [`Db::compact`](crate::Db::compact) do. Without background threads
    /// nothing else can.
    Manual,
}

impl Default for Settings {
    /// 4 KiB pages, 256 MiB of log, and for memory an eighth of the smallest limit of this process (the limits of its
    /// cgroups and the machine's memory), but 1 GiB at most. Set `cache_bytes` for more.
    fn default() -> Self {
        Self {
            page_bytes: 4096,
            cache_bytes: memory::share_bytes(),
            snapshot_bytes_max: 0,
            log_bytes: 256 << 20,
            stripe_folders: Vec::new(),
            readers_wait_max: Duration::from_secs(300),
            reads_in_flight_max: 128,
            background_threads: true,
            compaction: CompactionMode::Automatic,
            compression: Compression::None,
            stats_socket: false,
            clock: ClockSource::default(),
            seed: None,
            of_tests: OfTests::default(),
        }
    }
}

impl Settings {
    /// The default with which pages of 512 bytes may be created, so that the tests of nofault reach deep trees soon.
    #[doc(hidden)]
    pub fn with_small_pages() -> Self {
        Self { of_tests: OfTests { small_pages: true, ..OfTests::default() }, ..Self::default() }
    }

    /// Sets whether each part of the page table leaves memory as soon as nothing needs it, so that a small database goes
    /// through what otherwise only a large one does.
    #[doc(hidden)]
    #[must_use]
    pub fn with_cold_table(mut self, is_cold: bool) -> Self {
        self.of_tests.evicts_table = is_cold;
        self
    }

    /// Returns whether each part of the page table leaves memory as soon as nothing needs it.
    pub(crate) fn evicts_table(&self) -> bool {
        self.of_tests.evicts_table
    }

    /// The same settings, with this use of the compressed tier.
    #[doc(hidden)]
    #[must_use]
    pub fn with_tier(mut self, tier: TierUse) -> Self {
        self.of_tests.tier = tier;
        self
    }

    pub(crate) fn tier(&self) -> TierUse {
        self.of_tests.tier
    }

    /// The same settings, but the database counts as idle after this time without commits, and its file is cut when much of it was free
    /// for as long.
    #[doc(hidden)]
    #[must_use]
    pub fn with_idle_after(mut self, time: Duration) -> Self {
        self.of_tests.idle_after = Some(time);
        self
    }

    /// Returns how long no commit comes until the database counts as idle.
    pub(crate) fn idle_after(&self) -> Duration {
        self.of_tests.idle_after.unwrap_or(IDLE_AFTER)
    }

    /// Refuses values without meaning.
    ///
    /// # Errors
    /// `InvalidCall`, with the value that has to change.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::new(ErrorKind::InvalidCall, what));
        match self {
            Self { log_bytes: 0, .. } => refuse("log_bytes is 0: a database needs a log; the default is 256 MiB"),
            Self { reads_in_flight_max: 0, .. } => {
                refuse("reads_in_flight_max is 0: no page could be read; the default is 128")
            }
            _ => Ok(()),
        }
    }

    /// Refuses values with which no database can be created.
    ///
    /// # Errors
    /// As [`Settings::check`].
    pub(crate) fn check_new(&self) -> Result<()> {
        if self.page_bytes < PAGE_BYTES_LEAST && !self.of_tests.small_pages {
            let what = format!("pages of {} bytes: choose a power of two from 4,096 to 65,536", self.page_bytes);
            return Err(Error::new(ErrorKind::InvalidCall, what));
        }
        self.check()
    }
}

/// The makers of settings for the tests of nofault, which say by struct update what else is of importance to them.
#[doc(hidden)]
impl Settings {
    /// Settings for reproducible tests: every size minimal, and no threads. The same seed and calls lead to the same
    /// steps.
    pub fn tiny(seed: u64) -> Self {
        Self {
            page_bytes: 512,
            cache_bytes: 656 << 10,
            log_bytes: 1 << 20,
            background_threads: false,
            seed: Some(seed),
            ..Self::with_small_pages()
        }
    }

    /// The default with a small cache and a small log, their sizes in MiB.
    pub fn small(cache_mib: usize, log_mib: u64) -> Self {
        Self { cache_bytes: cache_mib << 20, log_bytes: log_mib << 20, ..Self::default() }
    }
}

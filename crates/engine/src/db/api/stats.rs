//! The statistics of a database.

use nofault_io::disk::DiskInfo;

use crate::buffer_pool::PoolStats;
use crate::db::open::handle::Db;
pub use crate::db::upkeep::order::OrderStats;
pub use crate::db::upkeep::repack::PackingStats;
pub use crate::db::upkeep::shrink::{CompactionStats, ShrinkEnding};
use crate::format::CommitSeq;
use crate::histogram::Histogram;
use crate::pages::Store as _;
pub use crate::transaction::precedence::TransactionStats;
use crate::wal::LogStats;

/// Counters and sizes of a database. Plain numbers, taken without stopping anything.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// let stats = db.stats();
/// println!("{} of {} pages looked up were in memory", stats.pool.hits, stats.pool.hits + stats.pool.misses);
/// println!("{} of {} bytes of memory are frames", stats.pool.memory_frames_bytes, stats.pool.memory_bytes);
/// println!("{} commits in {} writes of the log", stats.log.records_durable, stats.log.groups_written);
/// println!("{} conflicts, {} runs repeated", stats.transactions.conflicts, stats.transactions.retries);
/// println!("{} checkpoints, {} waits for them", stats.checkpoints, stats.log.space_waits);
/// println!("read by {}, direct: {}", stats.disk.kind, stats.disk.direct);
/// stats.disk.notes.iter().for_each(|note| println!("  {note}"));
/// assert!(stats.log.records_durable > 0);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Counters of the buffer pool.
    pub pool: PoolStats,
    /// Counters of the log.
    pub log: LogStats,
    /// How long commits, reads and waits for memory took, and how many commits were written together.
    pub histograms: Histograms,
    /// Number of checkpoints made since the database was opened.
    pub checkpoints: u64,
    /// The way in which the data file is read and written, and the reason when a faster way is not in use.
    pub disk: DiskInfo,
    /// Counts of conflicts and retries of transactions that wanted the same keys.
    pub transactions: TransactionStats,
    /// The value of the setting [`Settings::cache_bytes`](crate::settings::Settings::cache_bytes).
    pub cache_bytes: u64,
    /// Memory that the database takes for itself now, in bytes: the pool with its page table, log buffers and the list
    /// of recent commits, the last two as when they are full. Histograms (2.4 KiB each), handles and what calls have in
    /// their hands are not in it.
    pub memory_bytes: u64,
    /// Bytes of `memory_bytes` above `cache_bytes`; zero as long as the setting is kept. When a database is opened, the
    /// smallest pool that works is taken. While it is open, the frames stay as many as they are, and these come on top:
    /// - the page table as it grows: with pages of 4 KiB eight kilobytes for each of its leaves in memory, which are at most a
    ///   sixteenth of the setting, but at least sixteen leaves, 128 KiB; or one for every eighth frame, a quarter of the setting, where
    ///   pages are read at random from a table that has grown to many times the memory since the database was opened;
    /// - a thirty-second for the list of pages changed since the last checkpoint, and the leaves of the page table that they change;
    /// - lists of blocks: 128 KiB for a small file, and what [`Settings::cache_bytes`](crate::settings::Settings::cache_bytes)
    ///   says of a large one;
    /// - eight bytes for each page that was freed since the database was opened and whose number is not in use again;
    /// - where tables are compressed with `Small`, the dictionaries and the working memory of the codec, which is kept for up
    ///   to four threads: a megabyte or two ([`PoolStats::memory_dictionaries_bytes`]).
    ///
    /// The next opening makes room for all of this but 64 KiB of the lists and the working memory of the codec. With a larger
    /// `cache_bytes` it gives the pool its memory back.
    pub memory_over_bytes: u64,
    /// Memory of the list of recent commits, in bytes.
    pub recent_commits_bytes: u64,
    /// Commits refused with `NoSpace` because neither the log nor the data file found free space on the disk, since the
    /// database was opened.
    pub commits_refused_for_space: u64,
    /// Number of pages of dropped tables that could not be read when they were to be freed, since the database was
    /// opened. They do no harm; pages that only they refer to stay in use, and a backup leaves them out.
    pub dropped_pages_unreadable: u64,
    /// Passes that make the data file shorter.
    pub compaction: CompactionStats,
    /// Passes that repack compressed pages: see [`PackingStats`].
    pub packing: PackingStats,
    /// Tables put in order by the database itself: see [`OrderStats`].
    pub ordering: OrderStats,
    /// Number of leaves, and of their pages of values, freed because their content was merged into others, since the
    /// database was opened.
    pub leaves_merged: u64,
    /// Number of entries that had expired and were removed, since the database was opened.
    pub expired_removed: u64,
    /// Bytes by which the data file is longer than [`Db::shrink`] makes it, if no reader needs old pages in its end.
    pub data_bytes_excess: u64,
    /// The newest commit that readers see.
    pub visible_commit: CommitSeq,
    /// Damage that was found when the database was opened and has been repaired without loss: a superblock, with the
    /// reason, in words for a person. Empty as a rule; a power cut during a checkpoint is one cause, a medium that
    /// changes stored bytes another.
    pub repairs: Vec<String>,
}

/// The distributions of times and sizes since the database was opened. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Histograms {
    /// Time of each commit with [`Durability::Sync`](crate::Durability::Sync), from the call that commits until it is durable and
    /// visible. Commits that fail are not in it, and neither are deferred ones.
    pub commit_ns: Histogram,
    /// Number of commits in each durable write of the log. Zero for a write with only the beginning or the middle of a
    /// large commit.
    pub group_commits: Histogram,
    /// Time of each read that an operation waits for, from the miss until the page is in memory: waits for a place at the
    /// device, and for a frame, are part of it. Pages that scans request early are not in it, nor those that were restored
    /// from memory ([`PoolStats::tier_hits`]).
    pub read_ns: Histogram,
    /// Time of each wait for free frames by an operation that changes pages, until it has them.
    pub frame_wait_ns: Histogram,
}

/// Collects counters and sizes of `db`. All are zero in a process forked from the one that opened it.
pub(in crate::db) fn stats(db: &Db) -> Stats {
    if db.owner.check_process().is_err() {
        return Stats::default();
    }
    let log = db.core.log.stats();
    let (pool, memory) = (db.core.store.stats(), db.owner.memory);
    let memory_bytes = pool.memory_bytes + memory.spent_bytes;
    Stats {
        cache_bytes: memory.cache_bytes,
        memory_bytes,
        memory_over_bytes: memory_bytes.saturating_sub(memory.cache_bytes),
        pool,
        commits_refused_for_space: log.commits_refused_for_space + db.core.reservations.refused(),
        log,
        histograms: Histograms {
            commit_ns: db.core.committer.commit_ns().copy(),
            group_commits: db.core.log.group_records(),
            read_ns: db.core.store.read_ns(),
            frame_wait_ns: db.core.store.frame_wait_ns(),
        },
        checkpoints: db.owner.checkpoints_made(),
        disk: db.owner.disk_info(),
        transactions: db.core.commits.precedence().stats(),
        recent_commits_bytes: db.core.commits.recent_bytes() as u64,
        dropped_pages_unreadable: db.owner.upkeep.dropped.damaged(),
        compaction: db.owner.upkeep.shrinker.stats(),
        packing: db.owner.upkeep.repacker.stats(),
        ordering: db.owner.upkeep.order.stats(),
        leaves_merged: db.owner.upkeep.leaves.freed(),
        expired_removed: db.owner.upkeep.expiry.removed(),
        data_bytes_excess: db.core.store.excess_blocks().idle * db.core.store.page_bytes() as u64,
        visible_commit: db.core.store.visible(),
        repairs: db.owner.repairs().to_vec(),
    }
}

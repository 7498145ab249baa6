//! The pool's counters and its statistics. Counters are relaxed: they are for people, and no decision depends on them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::BufferPool;
use crate::histogram::{AtomicHistogram, Histogram};

/// Counts of the pool's work since it was opened.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) misses: AtomicU64,
    pub(super) joined: AtomicU64,
    pub(super) for_scans: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) checksum_retries: AtomicU64,
    pub(super) frame_waits: AtomicU64,
    pub(super) hits: Hits,
    /// Nanoseconds from a miss, of an operation waiting for the page, to the end of its read.
    pub(super) read_ns: AtomicHistogram,
}

/// Number of hit counters: threads that use different ones do not share a cache line.
const HIT_PLACES: usize = 16;

/// Counts the requests that found their page in memory. Several counters keep threads from contending for one cache
/// line.
#[derive(Debug, Default)]
pub(super) struct Hits([HitPlace; HIT_PLACES]);

/// One hit counter. It is aligned to two cache lines because neighbouring lines are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct HitPlace(AtomicU64);

impl Hits {
    /// Returns a counter for the hits of one attempt, added to the total when it is dropped: one atomic addition for
    /// all pages of a descent.
    pub(super) fn tally(&self) -> HitTally<'_> {
        HitTally { hits: self, count: Cell::new(0) }
    }

    pub(super) fn get(&self) -> u64 {
        self.0.iter().map(|place| place.0.load(Ordering::Relaxed)).sum()
    }

    pub(super) fn add(&self, count: u64) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static PLACE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % HIT_PLACES;
        }
        // In a thread that is ending the thread-local value may be gone.
        let place = PLACE.try_with(|place| *place).unwrap_or(0);
        self.0[place].0.fetch_add(count, Ordering::Relaxed);
    }
}

/// Counts the hits of one attempt.
pub(super) struct HitTally<'a> {
    hits: &'a Hits,
    count: Cell<u64>,
}

impl HitTally<'_> {
    #[inline]
    pub(super) fn hit(&self) {
        self.count.set(self.count.get() + 1);
    }
}

impl Drop for HitTally<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.count.get() > 0 {
            self.hits.add(self.count.get());
        }
    }
}

/// Counters and memory use of a buffer pool.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// let before = db.stats().pool;
/// stock.get("apples")?;
/// let after = db.stats().pool;
/// assert!(after.hits > before.hits && after.misses == before.misses);
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PoolStats {
    /// Number of frames.
    pub frames: u64,
    /// Number of frames containing no page.
    pub frames_free: u64,
    /// Pages looked up and found in memory, inner nodes of trees included: a get in a tree of three levels, all in memory, counts
    /// three. An operation repeated after a miss counts the pages above it again, except a get in the same commit, which
    /// resumes at the miss.
    pub hits: u64,
    /// Number of reads started because neither a page nor its block was in memory.
    pub misses: u64,
    /// Number of `misses` for private pages of scans. Once a scan has read as many pages as the pool has frames, further pages do not
    /// stay there: they would evict all pages, the scan's as well, before the next scan.
    pub misses_for_scans: u64,
    /// Number of requests that joined a read already in progress.
    pub misses_joined: u64,
    /// Number of pages evicted from memory, whether they had to be written first or not.
    pub evicted: u64,
    /// Number of pages in memory whose newest version is not on disk yet.
    pub pages_dirty: u64,
    /// Number of pages written to disk, by eviction and checkpoints.
    pub pages_written: u64,
    /// Number of pages that compaction moved next to their neighbours in key order.
    pub pages_moved: u64,
    /// Number of pages that lie compressed in the data file, old versions included.
    pub pages_compressed: u64,
    /// Number of blocks that these pages share.
    pub blocks_compressed: u64,
    /// Number of these blocks that the pages would not need after repacking. An estimate.
    pub blocks_loose: u64,
    /// Number of frames holding blocks of compressed pages, so that a page of them is restored without a read. Nothing in
    /// a database without compressed tables, as all fields whose names begin with `tier`.
    pub tier_blocks: u64,
    /// Number of frames that such blocks may have at present: none while they save less than they cost.
    pub tier_blocks_wanted: u64,
    /// Number of pages that were not in memory and were restored from blocks that were. They are not in `misses`.
    pub tier_hits: u64,
    /// Number of blocks that stayed in memory after a read.
    pub tier_added: u64,
    /// Number of blocks evicted from memory.
    pub tier_evicted: u64,
    /// Number of blocks that left memory because something else was written in their place, or a record in them was wrong.
    pub tier_forgotten: u64,
    /// Number of reads repeated because a checksum was wrong.
    pub checksum_retries: u64,
    /// Number of requests that had to wait for free frames.
    pub frame_waits: u64,
    /// Number of reads queued or in progress.
    pub reads_in_flight: u64,
    /// Bytes of old page versions kept for snapshots.
    pub snapshot_bytes: u64,
    /// Number of pages changed since the last checkpoint.
    pub pages_changed: u64,
    /// Number of pages written into the block group of their old block. See also `pages_placed_near` and
    /// `pages_placed_far`.
    pub pages_placed_same: u64,
    /// Number of pages written into a block group near their old block's.
    pub pages_placed_near: u64,
    /// Number of pages written far from their old block: each costs a later scan one more read.
    pub pages_placed_far: u64,
    /// Number of blocks for which the data file has room, over all its stripes.
    pub blocks_file: u64,
    /// Number of blocks of the data file in use, including released blocks that are not free yet.
    pub blocks_used: u64,
    /// Number of released blocks that become free only after a checkpoint or the end of a reader.
    pub blocks_deferred: u64,
    /// Number of blocks in use that only readers in other processes need: see
    /// [`Settings::readers_wait_max`](crate::settings::Settings::readers_wait_max).
    pub blocks_kept: u64,
    /// Number of blocks that can be used before the data file must grow.
    pub blocks_free: u64,
    /// The part of `blocks_free` that ordinary commits leave free, so that deletes, dropped tables, checkpoints and
    /// compaction can continue when the disk is full.
    pub blocks_reserve: u64,
    /// All memory of the pool, in bytes: the fields below, and the metadata of blocks and changed pages.
    pub memory_bytes: u64,
    /// Memory of the frames, with their metadata and the scratch buffers of reads, in bytes.
    pub memory_frames_bytes: u64,
    /// Memory of the page table, in its current and its last written form, in bytes: its leaves in memory, and what finds
    /// the others.
    pub memory_table_bytes: u64,
    /// Memory of the dictionaries of compressed tables, and of the codec using them, in bytes: some 60 KiB for each
    /// dictionary that pages have needed since the database was opened, 4 KiB for each of the others. It comes on top of
    /// the cache.
    pub memory_dictionaries_bytes: u64,
    /// Memory that the page table would take with all its leaves, in bytes.
    pub table_bytes: u64,
    /// Number of leaves of the page table on disk: each names some five hundred pages of 4 KiB.
    pub table_leaves: u64,
    /// Number of leaves of the page table in memory.
    pub table_leaves_in_memory: u64,
    /// Limit on resident leaves, beyond which cold ones leave memory. Leaves with changes since the last checkpoint,
    /// and with pages in use, stay.
    pub table_leaves_max: u64,
}

impl BufferPool {
    /// Returns the times that operations waited for reads, in nanoseconds.
    pub(crate) fn read_ns(&self) -> Histogram {
        self.versions.counters().read_ns.copy()
    }

    /// Returns the times that operations waited for free frames, in nanoseconds.
    pub(crate) fn frame_wait_ns(&self) -> Histogram {
        self.versions.frame_waits().waited_ns().copy()
    }
}

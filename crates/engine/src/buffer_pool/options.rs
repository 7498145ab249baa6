//! The options of a buffer pool.

use crate::clock::ClockSource;
use crate::settings::TierUse;

/// The options with which a pool is created.
#[derive(Debug, Clone)]
pub(crate) struct PoolOptions {
    /// Bytes of memory for the frames and for the pool's metadata of a size known when the pool is created.
    pub(crate) cache_bytes: u64,
    /// Bytes of `cache_bytes` that other parts of the database have taken.
    pub(crate) spent_bytes: u64,
    /// Bytes of a page.
    pub(crate) page_bytes: usize,
    /// Random number of the database file, which enters every checksum.
    pub(crate) file_id: u64,
    /// Most bytes of old page versions that snapshots may keep before the oldest snapshot is evicted.
    pub(crate) snapshot_bytes_max: u64,
    /// Most read operations at the device at a time.
    pub(crate) reads_in_flight_max: usize,
    /// Fewest bytes of memory for private runs of scans: a smaller pool has none.
    pub(crate) scan_bytes_min: usize,
    /// Whether the frames are registered with the kernel, which reads into them at a little less cost then, and gives all of them memory at
    /// once.
    pub(crate) registers_frames: bool,
    /// Whether leaves of the page table leave memory as soon as nothing needs them: for tests.
    pub(crate) evicts_table: bool,
    /// Whether blocks of compressed pages may stay in memory.
    pub(crate) tier: TierUse,
    /// The clock by which entries expire.
    pub(crate) clock: ClockSource,
}

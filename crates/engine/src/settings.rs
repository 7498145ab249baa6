//! What can be chosen about a database, as plain data.

/// How a database is kept and used. Fill in what you want to differ from `Settings::default()`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a page, a power of two from 4,096 to 65,536. Counts at creation only; opening takes what the database has.
    pub page_bytes: usize,
    /// Memory for everything the database keeps: page frames, page table, log buffers.
    pub cache_bytes: usize,
    /// How much log may pile up before a checkpoint is made. Bounds the time that opening takes after a crash, and the log's
    /// space on disk, unless a single commit is larger.
    pub log_bytes: u64,
    /// How many reads may be under way at the device at a time.
    pub reads_in_flight_max: usize,
    /// Whether background threads may be started. Without them all work is done by callers who wait: enough for the blocking
    /// calls, and what makes tests repeatable; the async calls need the threads.
    pub background_threads: bool,
}

impl Default for Settings {
    /// 4 KiB pages, 64 MiB of memory, 256 MiB of log.
    fn default() -> Self {
        Self {
            page_bytes: 4096,
            cache_bytes: 64 << 20,
            log_bytes: 256 << 20,
            reads_in_flight_max: 128,
            background_threads: true,
        }
    }
}

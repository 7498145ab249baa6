//! Statistics of a log.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Log;

/// Counts since the log was opened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) groups: AtomicU64,
    pub(super) closing_groups: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) space_waits: AtomicU64,
}

/// The work that a log did, and its size.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::blocking::Db::create(folder.path().join("shop"), &settings)?;
/// # let stock = db.create_table("stock")?;
/// let before = db.stats().log;
/// stock.put("apples", "12")?;
/// let after = db.stats().log;
/// assert_eq!((after.records_durable - before.records_durable, after.groups_written - before.groups_written), (1, 1));
/// # Ok::<(), nofault::error::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogStats {
    /// Durable writes of records, one a group.
    pub groups_written: u64,
    /// Durable writes without records: one for each sync, close or pause, to say of earlier ones that they are durable, unless that was
    /// said; and one each time the file becomes shorter.
    pub closing_groups_written: u64,
    /// Records that became durable.
    pub records_durable: u64,
    /// Bytes written, padding included.
    pub bytes_written: u64,
    /// Bytes since the last checkpoint.
    pub live_bytes: u64,
    /// Bytes of the log file in segments.
    pub file_bytes: u64,
    /// Bytes appended and not yet written.
    pub waiting_bytes: u64,
    /// Times that a commit found no free log space: it had to wait for earlier ones to be written, or for a checkpoint.
    pub space_waits: u64,
    /// Commits refused because the disk had no space for another segment of the log, and a checkpoint freed none.
    pub commits_refused_for_space: u64,
}

impl Log {
    /// Returns the counters and the size of the log. Does not wait for a thread that writes.
    pub(crate) fn stats(&self) -> LogStats {
        let state = self.0.lock();
        LogStats {
            groups_written: self.0.counts.groups.load(Ordering::Relaxed),
            closing_groups_written: self.0.counts.closing_groups.load(Ordering::Relaxed),
            records_durable: self.0.counts.records.load(Ordering::Relaxed),
            bytes_written: self.0.counts.bytes.load(Ordering::Relaxed),
            live_bytes: self.0.live_bytes(&state, 0),
            file_bytes: self.0.file_bytes.load(Ordering::Relaxed),
            waiting_bytes: state.pending_bytes as u64,
            space_waits: self.0.counts.space_waits.load(Ordering::Relaxed),
            commits_refused_for_space: state.growth.refused,
        }
    }
}

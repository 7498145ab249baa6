//! Statistics of a log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Log;
use crate::histogram::{AtomicHistogram, Histogram};

/// Counts of the log's work since it was opened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) groups: AtomicU64,
    pub(super) closing_groups: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) space_waits: AtomicU64,
    /// Records that end in each group that was written.
    pub(super) group_records: AtomicHistogram,
}

/// Figures of the work that a log did, and of its size.
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
#[non_exhaustive]
pub struct LogStats {
    /// Number of durable writes of records; each writes one group.
    pub groups_written: u64,
    /// Number of durable writes without records. A sync, a close or a pause writes one, unless an earlier write has
    /// recorded already that all records are durable; and one is written each time the file becomes shorter.
    pub closing_groups_written: u64,
    /// Number of records that became durable.
    pub records_durable: u64,
    /// Bytes written to the log, padding included.
    pub bytes_written: u64,
    /// Bytes of log since the last checkpoint.
    pub live_bytes: u64,
    /// Bytes of all segments of the log file.
    pub file_bytes: u64,
    /// Bytes that were appended and not written yet.
    pub waiting_bytes: u64,
    /// Number of times that a commit found no free log space: it had to wait for earlier commits to be written, or for
    /// a checkpoint.
    pub space_waits: u64,
    /// Number of commits refused because the disk had no space for another segment of the log, and a checkpoint freed
    /// none.
    pub commits_refused_for_space: u64,
}

impl Log {
    /// Returns whether commits that are not deferred were written within the last `within`, while the log has room: once it holds more
    /// than three quarters of its usual size, commits are about to wait for a checkpoint. Does not wait for a thread that writes
    /// to the log.
    pub(crate) fn has_awaited_commits(&self, within: Duration) -> bool {
        let state = self.0.lock();
        state.writer_duties.has_awaited_commits(within) && !self.0.holds_quarters(&state, 3)
    }

    /// Returns how many records end in each group that was written.
    pub(crate) fn group_records(&self) -> Histogram {
        self.0.counts.group_records.copy()
    }

    /// Returns the counts and the size of the log. Does not wait for a thread writing to it.
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

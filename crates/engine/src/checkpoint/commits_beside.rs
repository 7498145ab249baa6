//! Tells whether commits are made beside a checkpoint that its writes delay.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::wal::Log;

/// Time after which commits that were waited for count as over.
const QUIET: Duration = Duration::from_millis(50);

/// Watches the log for commits that threads or tasks wait for.
pub(super) struct CommitsBeside<'a> {
    log: &'a Log,
    /// Number of awaited writes of the log at the last look, and when it was last seen to change.
    seen: Cell<(u64, Instant)>,
}

impl<'a> CommitsBeside<'a> {
    /// Begins to watch. Counts commits as made until [`QUIET`] is over.
    pub(super) fn new(log: &'a Log) -> Self {
        Self { log, seen: Cell::new((log.progress().awaited_groups, Instant::now())) }
    }

    /// Returns whether commits become durable that are waited for, and the log has room: if not, commits are about to wait for the
    /// checkpoint itself.
    pub(super) fn are_delayed(&self) -> bool {
        let (progress, now) = (self.log.progress(), Instant::now());
        if progress.awaited_groups != self.seen.get().0 {
            self.seen.set((progress.awaited_groups, now));
        }
        !progress.is_nearly_full && now - self.seen.get().1 < QUIET
    }
}

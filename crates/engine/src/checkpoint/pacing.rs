//! Decides how fast a checkpoint writes pages.
//!
//! A commit that waits for the log waits for what the device was given before, and for what its flush finds unflushed. A
//! checkpoint that gives the device thousands of pages at once so delays commits by milliseconds. So while commits become
//! durable beside it, a checkpoint writes a few pages at a time, as many as take about [`PART`], and then pauses for as
//! long. It does not when none has become durable for [`QUIET`], nor when the log is nearly full: then commits are about to
//! wait for the checkpoint itself.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::wal::stats::LogProgress;

/// The time that one part of the writes is to take.
const PART: Duration = Duration::from_micros(200);
/// The pause after a part: as long as the part took, but no longer than this.
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// Fewest pages of one part.
const PAGES_MIN: usize = 4;
/// Time without a write of the log after which a checkpoint counts as alone.
const QUIET: Duration = Duration::from_millis(50);

/// The pace at which one checkpoint writes.
pub(super) enum Pace<'a> {
    /// Everything at once.
    AtOnce,
    /// In small parts, with pauses, while commits become durable.
    BesideCommits(Parts<'a>),
}

/// The size of the parts of a checkpoint's writes.
pub(super) struct Parts<'a> {
    log: &'a dyn Fn() -> LogProgress,
    /// Number of groups that the log had written when it was last looked at, and when that number last differed.
    groups: u64,
    changed_at: Instant,
    /// Number of pages of the next part.
    pages: usize,
}

impl<'a> Pace<'a> {
    /// The pace beside the commits of a log, of which `log` tells the progress.
    pub(super) fn beside(log: &'a dyn Fn() -> LogProgress) -> Self {
        Self::BesideCommits(Parts { log, groups: log().groups_written, changed_at: Instant::now(), pages: PAGES_MIN })
    }

    /// Writes `items` by giving them to `write`, all at once or a part at a time.
    ///
    /// # Errors
    /// That of `write`, which gets no other part after it.
    pub(super) fn write<T>(&mut self, mut items: Vec<T>, mut write: impl FnMut(Vec<T>) -> Result<()>) -> Result<()> {
        while !items.is_empty() {
            let Self::BesideCommits(parts) = self else { return write(items) };
            if !parts.must_pause() {
                return write(items);
            }
            let rest = items.split_off(items.len().min(parts.pages));
            let begun = Instant::now();
            write(std::mem::replace(&mut items, rest))?;
            std::thread::sleep(parts.note(begun.elapsed()));
        }
        Ok(())
    }
}

impl Parts<'_> {
    /// Returns whether commits are made that wait for the log, but not for the checkpoint.
    fn must_pause(&mut self) -> bool {
        let progress = (self.log)();
        if progress.groups_written != self.groups {
            (self.groups, self.changed_at) = (progress.groups_written, Instant::now());
        }
        !progress.is_nearly_full && self.changed_at.elapsed() < QUIET
    }

    /// Sets the size of the next part after one that took this long. Returns the pause before it.
    fn note(&mut self, took: Duration) -> Duration {
        self.pages = if took < PART { self.pages * 2 } else { (self.pages / 2).max(PAGES_MIN) };
        took.min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Writes a thousand items; the log writes a group with each part if `commits`. Returns the sizes of the parts.
    fn sizes(pace: &mut Pace<'_>, groups: &Cell<u64>, commits: bool) -> Vec<usize> {
        let (mut sizes, mut seen) = (Vec::new(), Vec::new());
        let items: Vec<u32> = (0..1000).collect();
        let write = |part: Vec<u32>| {
            sizes.push(part.len());
            seen.extend(part);
            groups.set(groups.get() + u64::from(commits));
            Ok(())
        };
        pace.write(items.clone(), write).unwrap();
        assert_eq!(seen, items, "each item once, in order");
        sizes
    }

    #[test]
    fn a_checkpoint_writes_in_parts_while_commits_become_durable_and_the_log_has_room() {
        let (groups, is_nearly_full) = (Cell::new(7), Cell::new(false));
        let log = || LogProgress { groups_written: groups.get(), is_nearly_full: is_nearly_full.get() };
        assert_eq!(sizes(&mut Pace::AtOnce, &groups, true), [1000]);
        let parts = sizes(&mut Pace::beside(&log), &groups, true);
        assert!(parts.len() > 1 && parts[0] == PAGES_MIN, "{parts:?}");
        is_nearly_full.set(true);
        assert_eq!(sizes(&mut Pace::beside(&log), &groups, true), [1000]);
        is_nearly_full.set(false);
        let mut alone = Pace::beside(&log);
        std::thread::sleep(2 * QUIET);
        assert_eq!(sizes(&mut alone, &groups, false), [1000], "nothing was committed for long");
        groups.set(groups.get() + 1);
        assert!(sizes(&mut alone, &groups, true).len() > 1);
    }

    #[test]
    fn parts_grow_while_they_take_less_than_their_time_and_shrink_when_they_take_more() {
        let log = || LogProgress { groups_written: 0, is_nearly_full: false };
        let mut parts = Parts { log: &log, groups: 0, changed_at: Instant::now(), pages: 8 };
        assert_eq!((parts.note(PART / 2), parts.pages), (PART / 2, 16));
        assert_eq!((parts.note(PAUSE_MAX * 2), parts.pages), (PAUSE_MAX, 8));
        assert_eq!([(); 3].map(|()| (parts.note(PART), parts.pages).1), [4, 4, 4]);
    }
}

//! Decides how fast the pages of a checkpoint are written.
//!
//! A commit that becomes durable waits for earlier writes at the device, and its flush for all bytes written since the last
//! flush. A checkpoint that gives the device thousands of pages at once so delays commits by milliseconds. While commits are
//! waited for, it gives the device a part at a time instead, as much as takes about [`PART`], and then pauses for as long.
//!
//! Parts are of at least [`PART_BYTES_MIN`], so that a device which is slow for a single write has several at once. All pauses
//! of a checkpoint together are no longer than [`PAUSES_MAX`], so the log and the blocks to be freed, which grow until the
//! checkpoint ends, grow little more. There is no pause while another thread waits for the writes.

use std::time::Duration;

/// The time that the device is to be busy with one part.
const PART: Duration = Duration::from_micros(200);
/// The pause after a part is as long as the part took, but no longer than this.
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// Sum of the pauses after which the rest is written at once.
const PAUSES_MAX: Duration = Duration::from_secs(1);
/// Fewest and most bytes of one part.
const PART_BYTES_MIN: usize = 64 << 10;
const PART_BYTES_MAX: usize = 256 << 10;
/// Most bytes of a write that no pause follows.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The pace of the writes of one checkpoint.
pub(crate) struct Pace<'a> {
    /// Returns whether these writes delay commits that threads or tasks wait for, and no other thread waits for the writes.
    delays_commits: &'a dyn Fn() -> bool,
    /// Bytes of the next part.
    part_bytes: usize,
    /// Whether a pause follows the current part.
    pauses: bool,
    /// The rest of [`PAUSES_MAX`].
    left: Duration,
}

impl<'a> Pace<'a> {
    /// Writes all pages at once.
    pub(crate) fn at_once() -> Self {
        Self::beside_commits(&|| false)
    }

    /// In parts while `delays_commits` returns true.
    pub(crate) fn beside_commits(delays_commits: &'a dyn Fn() -> bool) -> Self {
        Self { delays_commits, part_bytes: PART_BYTES_MIN, pauses: false, left: PAUSES_MAX }
    }

    /// Returns the largest size of a write, in bytes.
    pub(super) fn write_bytes_max(&self) -> usize {
        if !self.left.is_zero() && (self.delays_commits)() { PART_BYTES_MIN } else { WRITE_BYTES_MAX }
    }

    /// Returns how many bytes the device may be given before [`Pace::pause_after`] is called; `is_awaited` tells whether another thread
    /// waits for these writes.
    pub(crate) fn bytes_at_once(&mut self, is_awaited: bool) -> usize {
        self.pauses = !is_awaited && !self.left.is_zero() && (self.delays_commits)();
        if self.pauses { self.part_bytes } else { usize::MAX }
    }

    /// Notes how long the device took for the bytes that [`Pace::bytes_at_once`] allowed, and pauses if they were a part.
    pub(crate) fn pause_after(&mut self, took: Duration) {
        if self.pauses {
            std::thread::sleep(self.note(took));
        }
    }

    /// Sets the size of the next part after one that took this long. Returns the pause before it.
    fn note(&mut self, took: Duration) -> Duration {
        let bytes = if took < PART { self.part_bytes * 2 } else { self.part_bytes / 2 };
        self.part_bytes = bytes.clamp(PART_BYTES_MIN, PART_BYTES_MAX);
        let pause = took.min(PAUSE_MAX).min(self.left);
        self.left -= pause;
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_go_in_parts_only_while_commits_are_delayed_and_the_writes_are_not_awaited() {
        let mut at_once = Pace::at_once();
        assert_eq!((at_once.write_bytes_max(), at_once.bytes_at_once(false)), (WRITE_BYTES_MAX, usize::MAX));
        let delays = std::cell::Cell::new(true);
        let look = || delays.get();
        let mut pace = Pace::beside_commits(&look);
        assert_eq!((pace.write_bytes_max(), pace.bytes_at_once(false)), (PART_BYTES_MIN, PART_BYTES_MIN));
        assert_eq!(pace.bytes_at_once(true), usize::MAX, "something waits for the writes");
        delays.set(false);
        assert_eq!((pace.write_bytes_max(), pace.bytes_at_once(false)), (WRITE_BYTES_MAX, usize::MAX));
    }

    #[test]
    fn parts_grow_while_they_take_less_than_their_time_and_shrink_when_they_take_more() {
        let mut pace = Pace::beside_commits(&|| true);
        assert_eq!((pace.note(PART / 2), pace.part_bytes), (PART / 2, 2 * PART_BYTES_MIN));
        assert_eq!((pace.note(PAUSE_MAX * 2), pace.part_bytes), (PAUSE_MAX, PART_BYTES_MIN));
        assert_eq!((pace.note(PART), pace.part_bytes), (PART, PART_BYTES_MIN), "no smaller");
        (0..20).for_each(|_| _ = pace.note(Duration::ZERO));
        assert_eq!(pace.part_bytes, PART_BYTES_MAX);
    }

    #[test]
    fn pauses_have_an_end() {
        let mut pace = Pace::beside_commits(&|| true);
        let mut sum = Duration::ZERO;
        while pace.bytes_at_once(false) < usize::MAX {
            sum += pace.note(PAUSE_MAX * 3 / 4);
        }
        assert_eq!((sum, pace.write_bytes_max()), (PAUSES_MAX, WRITE_BYTES_MAX));
    }
}

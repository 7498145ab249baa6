//! Repeats a read that would shorten history if its outcome counted.
//!
//! A superblock that does not decode, a page-table node that is not whole, a log group that ends the log: each makes newer state
//! disappear. One bad read decides none of them: a bit that flips between device and memory, or a sector returned as zeroes once,
//! is gone in the next read. The caller reads and decodes in a closure, and [`RepeatedReads::until_whole`] calls it up to [`READS`] times.
//!
//! The closure is told which read it makes, so that it can take another path from the second on: `Disk::perform` into a new buffer where
//! the first went through a queue. Buffered reads of a file that is otherwise read with O_DIRECT are no such path: a stale page of the page
//! cache would decode, as something older.

use std::time::Duration;

use nofault_io::disk::Disk;

/// Total number of reads before the outcome of the last one counts.
pub(crate) const READS: u32 = 3;

/// Pause before the last read: long enough for a device to finish earlier work, too short to notice.
const PAUSE: Duration = Duration::from_millis(10);

/// Repeats failed or damaged reads of one disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RepeatedReads {
    pause: Duration,
}

impl RepeatedReads {
    /// Creates the policy for `disk`. It omits the pause on a simulated disk, where time does not pass by itself.
    pub(crate) fn on(disk: &dyn Disk) -> Self {
        Self { pause: if disk.info().kind == "sim" { Duration::ZERO } else { PAUSE } }
    }

    /// Creates the policy without a pause, for the last of many reads that were all wrong.
    pub(crate) fn without_pause() -> Self {
        Self { pause: Duration::ZERO }
    }

    /// Calls `read` with 0, 1, ... until it succeeds, [`READS`] times at most. Blocks: it pauses before the last call.
    ///
    /// # Errors
    /// The error of the last call.
    pub(crate) fn until_whole<T, E>(self, mut read: impl FnMut(u32) -> Result<T, E>) -> Result<T, E> {
        let mut outcome = read(0);
        for attempt in 1..READS {
            if outcome.is_ok() {
                break;
            }
            self.pause_before(attempt);
            outcome = read(attempt);
        }
        outcome
    }

    /// Pauses before the last read of a caller that repeats reads by itself. To be called before each read but the
    /// first, which is number 0. Blocks.
    pub(crate) fn pause_before(self, attempt: u32) {
        if attempt == READS - 1 && !self.pause.is_zero() {
            std::thread::sleep(self.pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use nofault_sim::{SimOptions, SimWorld};

    use super::*;

    #[test]
    fn reads_end_with_the_first_whole_one_and_the_last_error_counts() {
        let disk = SimWorld::new(1, SimOptions::calm()).directory().create("data").unwrap();
        for whole_at in 0..READS + 1 {
            let mut asked = Vec::new();
            let outcome = RepeatedReads::on(&*disk).until_whole(|attempt| {
                asked.push(attempt);
                if attempt == whole_at { Ok(attempt) } else { Err(attempt) }
            });
            let expected = if whole_at < READS { Ok(whole_at) } else { Err(READS - 1) };
            assert_eq!(outcome, expected);
            assert!(asked.into_iter().eq(0..READS.min(whole_at + 1)), "whole at {whole_at}");
        }
    }
}

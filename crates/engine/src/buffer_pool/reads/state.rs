//! One read of one page: the page that it brings, its state, and the states that may follow.

use std::time::Instant;

use crate::buffer_pool::compressed_tier::Need;
use crate::buffer_pool::frames::OwnedFrame;
use crate::buffer_pool::shard::ReadId;
use crate::format::PageId;

/// The state of a read. The legal transitions are:
///
/// | from | to | when |
/// |---|---|---|
/// | `Requested` | `Staged` | no thread carries it out at once: it waits for the next submission |
/// | `Requested` | `InFlight` | the thread that misses the page reads it itself |
/// | `Requested` | `Completed` | the page's block is in the compressed tier: nothing has to be read |
/// | `Staged` | `Queued` | a thread with the read queue puts the staged reads in line |
/// | `Staged` | `InFlight` | a blocking waiter takes its read back and carries it out itself |
/// | `Queued` | `InFlight` | it has a frame, or memory of a run, and the device's queue takes it |
/// | `Queued` | `Completed` | the device's queue refuses it, or it is given up: there is only an error |
/// | `InFlight` | `Completed` | the device is done with it |
/// | `Completed` | `Staged` | it is repeated: its checksum is wrong, or the run that it was part of failed |
/// | `Completed` | `InFlight` | it is repeated at once by the thread that carries it out itself |
/// | `Completed` | `Installed` | its page is in memory |
/// | `Completed` | `Failed` | its waiters have the error |
/// | `Completed` | `Discarded` | its page went while it was read, or the read was abandoned |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadState {
    /// The page is marked as being read; the read is in no list yet.
    Requested,
    /// The read is in the scheduler's list, until a thread locks the read queue.
    Staged,
    /// The read is in line for a frame and a place at the device.
    Queued,
    /// The device writes to the read's memory.
    InFlight,
    /// The device has finished; the page is neither checked nor installed.
    Completed,
    /// The read ended: the page can be found in its frame.
    Installed,
    /// The read ended with an error.
    Failed,
    /// The read ended without a page in a frame: its page was not wanted any more, or it was a leaf's.
    Discarded,
}

impl ReadState {
    /// Returns whether a read in this state may go to state `next`, by the table above.
    pub(crate) fn can_become(self, next: Self) -> bool {
        use ReadState::{Completed, Discarded, Failed, InFlight, Installed, Queued, Requested, Staged};
        match self {
            Requested => matches!(next, Staged | InFlight | Completed),
            Staged => matches!(next, Queued | InFlight),
            Queued => matches!(next, InFlight | Completed),
            InFlight => next == Completed,
            Completed => matches!(next, Staged | InFlight | Installed | Failed | Discarded),
            Installed | Failed | Discarded => false,
        }
    }
}

/// The read of one page, or of one leaf of the page table, which ends as `Discarded` or `Failed`: it has no frame.
pub(crate) struct Read {
    pub(super) id: ReadId,
    /// Number of times that the page was read by itself, this time included; 0 while the page is to be read again after
    /// the read of a run, which does not count.
    pub(super) attempt: u32,
    /// Set when a multi-page read with this page failed: the page must be read by itself.
    pub(super) alone: bool,
    /// How an operation needs the page. If a scan only requests it early, its block is neither kept nor counted as used: the
    /// pages of a scan come with all others of their blocks, which would drive out blocks read again.
    pub(super) need: Need,
    /// Set when the block is to stay in memory, in the compressed tier.
    pub(super) keeps_block: bool,
    /// The moment of the miss, if an operation waits for the page: the time of such a read is measured.
    pub(super) missed_at: Option<Instant>,
    /// The frame of the read, unless the operation in flight owns the memory.
    pub(super) frame: Option<OwnedFrame>,
    state: ReadState,
}

impl Read {
    /// Creates the read for an id that the page table has just given out.
    pub(super) fn new(id: ReadId, need: Need) -> Self {
        let missed_at = (need != Need::Later).then(Instant::now);
        let state = ReadState::Requested;
        Self { id, attempt: 1, alone: false, need, keeps_block: false, missed_at, frame: None, state }
    }

    pub(super) fn page(&self) -> PageId {
        self.id.page
    }

    /// Returns the number of the block to be read.
    pub(super) fn block(&self) -> u64 {
        self.id.at.block.0
    }

    /// Turns a read of a failed run into a read of its page alone, to be repeated.
    pub(super) fn repeated_alone(self) -> Self {
        Self { alone: true, attempt: 0, ..self }
    }

    /// Changes the state to `next`, which must be allowed by the table of [`ReadState`].
    pub(super) fn advance(&mut self, next: ReadState) {
        debug_assert!(self.state.can_become(next), "a read went from {:?} to {next:?}", self.state);
        self.state = next;
    }

    /// Changes the state as [`Read::advance`] does, for a read passed by value.
    pub(super) fn into_state(mut self, next: ReadState) -> Self {
        self.advance(next);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::ReadState::{self, Completed, Discarded, Failed, InFlight, Installed, Queued, Requested, Staged};

    const ALL: [ReadState; 8] = [Requested, Staged, Queued, InFlight, Completed, Installed, Failed, Discarded];
    /// The rows of the table in the comment of [`ReadState`].
    const TABLE: [(ReadState, ReadState); 13] = [
        (Requested, Staged),
        (Requested, InFlight),
        (Requested, Completed),
        (Staged, Queued),
        (Staged, InFlight),
        (Queued, InFlight),
        (Queued, Completed),
        (InFlight, Completed),
        (Completed, Staged),
        (Completed, InFlight),
        (Completed, Installed),
        (Completed, Failed),
        (Completed, Discarded),
    ];

    fn reachable(from: ReadState) -> Vec<ReadState> {
        let mut found = vec![from];
        let mut next = 0;
        while let Some(state) = found.get(next).copied() {
            found.extend(
                ALL.iter().filter(|to| state.can_become(**to) && !found.contains(to)).copied().collect::<Vec<_>>(),
            );
            next += 1;
        }
        found
    }

    #[test]
    fn the_transitions_are_the_rows_of_the_table() {
        for from in ALL {
            for to in ALL {
                assert_eq!(from.can_become(to), TABLE.contains(&(from, to)), "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn every_read_can_end_and_one_that_has_ended_does_nothing_more() {
        let ends = [Installed, Failed, Discarded];
        assert_eq!(reachable(Requested).len(), ALL.len(), "a state that no read reaches");
        for state in ALL {
            let after = reachable(state);
            if ends.contains(&state) {
                assert_eq!(after, [state]);
            } else {
                assert!(ends.iter().all(|end| after.contains(end)), "{state:?} cannot end in all ways");
            }
        }
    }

    #[test]
    #[should_panic(expected = "a read went from")]
    #[cfg(debug_assertions)]
    fn a_read_that_skips_a_state_stops_the_process() {
        use crate::buffer_pool::shard::Shard;
        use crate::format::{BlockId, Location, PageId, Tag};
        let at = Location::of_whole(BlockId(1), Tag::from_bits(0));
        super::Read::new(Shard::default().begin_load(PageId(1), at), super::Need::Later).advance(Installed);
    }
}

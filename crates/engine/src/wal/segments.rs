//! Which part of the log file holds which segment of the log.
//!
//! The log is an endless row of segments; the file has slots for a few of them. Nothing on disk says which slot holds
//! which segment except the groups themselves: each segment begins with a group, which names its position.

use crate::format::LOG_BLOCK_BYTES;

/// Number of slots that must be free for one to be assigned.
pub(super) const FREE_TO_ASSIGN: u64 = 2;

/// Assigns segments of the log to slots of the log file.
#[derive(Debug)]
pub(super) struct Segments {
    segment_bytes: u64,
    /// The segment in each slot; `None` for a free slot. A segment before those that recovery needs stays until its slot is freed.
    slots: Vec<Option<u64>>,
    /// The slot assigned last, which nearly every search is for.
    newest: usize,
}

/// A move of a segment in use from one slot of the file to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) segment: u64,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Segments {
    pub(super) fn new(segment_bytes: u64, slots: Vec<Option<u64>>) -> Self {
        debug_assert!(segment_bytes.is_multiple_of(LOG_BLOCK_BYTES as u64));
        Self { segment_bytes, slots, newest: 0 }
    }

    /// Returns the offset in the file of a log position; `None` when the position's segment has no slot yet.
    pub(super) fn offset_of(&self, position: u64) -> Option<u64> {
        let segment = position / self.segment_bytes;
        let slot = if self.slots.get(self.newest) == Some(&Some(segment)) {
            self.newest
        } else {
            self.slots.iter().position(|held| *held == Some(segment))?
        };
        Some(slot as u64 * self.segment_bytes + position % self.segment_bytes)
    }

    /// Assigns a free slot to the segment of this log position. Returns false when fewer than two slots are free. One
    /// slot stays free, so that every group states a longer file than the log needs up to that group, and a file that
    /// was cut short is detected.
    pub(super) fn assign(&mut self, position: u64) -> bool {
        let mut free = self.slots.iter_mut().enumerate().filter(|(_, held)| held.is_none());
        match (free.next(), free.next()) {
            (Some((index, slot)), Some(_)) => {
                *slot = Some(position / self.segment_bytes);
                self.newest = index;
                true
            }
            _ => false,
        }
    }

    pub(super) fn slot_count(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Adds free slots, for which the file has space, until there are `count`.
    pub(super) fn extend_to(&mut self, count: u64) {
        let more = count.saturating_sub(self.slot_count());
        self.slots.extend((0..more).map(|_| None));
    }

    /// Returns the next move that makes the file shorter: of a segment in use behind the first `count` slots to the
    /// first free slot among these. Returns `None` when no such segment exists.
    pub(super) fn next_move(&self, count: u64) -> Option<Move> {
        let (first, others) = self.slots.split_at_checked(count as usize)?;
        let (behind, segment) = others.iter().enumerate().find_map(|(index, held)| Some((index, (*held)?)))?;
        let to = first.iter().position(Option::is_none)?;
        Some(Move { segment, from: first.len() + behind, to })
    }

    /// Updates this list of segments after the content of one was moved in the file.
    pub(super) fn make(&mut self, step: &Move) {
        self.slots[step.to] = self.slots[step.from].take();
    }

    /// Removes all slots after the first `count`; they must be free.
    pub(super) fn cut_to(&mut self, count: u64) {
        debug_assert!(self.next_move(count).is_none(), "a slot that is given up holds a segment");
        self.slots.truncate(count as usize);
    }

    /// Frees slots of segments that end before the segment of this log position, the oldest first, until `count` slots are free or
    /// no such segment is left. Returns whether it has freed any.
    pub(super) fn recycle_before(&mut self, position: u64, count: u64) -> bool {
        let first = position / self.segment_bytes;
        let free = self.slots.iter().filter(|held| held.is_none()).count() as u64;
        let wanted = usize::try_from(count.saturating_sub(free)).unwrap_or(usize::MAX);
        let mut needless: Vec<_> =
            self.slots.iter_mut().filter(|held| held.is_some_and(|segment| segment < first)).collect();
        if wanted < needless.len() {
            needless.sort_unstable();
        }
        let freed = needless.len().min(wanted);
        needless.into_iter().take(wanted).for_each(|slot| *slot = None);
        freed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_behind_the_end_move_to_the_first_free_slots() {
        let mut segments = Segments::new(16384, vec![None, Some(7), None, None, Some(8), Some(9)]);
        let first = Move { segment: 8, from: 4, to: 0 };
        assert_eq!(segments.next_move(4), Some(first));
        segments.make(&first);
        let second = Move { segment: 9, from: 5, to: 2 };
        assert_eq!(segments.next_move(4), Some(second));
        segments.make(&second);
        assert_eq!(segments.next_move(4), None);
        segments.cut_to(4);
        assert_eq!((segments.slot_count(), segments.offset_of(9 * 16384)), (4, Some(2 * 16384)));
    }

    #[test]
    fn slots_are_used_again_once_their_segments_are_behind_the_anchor() {
        let mut segments = Segments::new(16384, vec![None, None, None]);
        assert!(segments.assign(0) && segments.assign(16384));
        assert_eq!(segments.offset_of(16384 + 4096), Some(16384 + 4096));
        assert!(!segments.assign(2 * 16384), "the last one stays prepared");
        assert!(segments.recycle_before(16384 + 8192, 2) && !segments.recycle_before(16384 + 8192, 9));
        assert!(segments.assign(2 * 16384));
        assert_eq!(segments.offset_of(2 * 16384 + 4096), Some(4096));
        assert_eq!(segments.offset_of(4096), None);
        assert_eq!(segments.offset_of(16384 + 4096), Some(16384 + 4096), "the anchor lies in this one");
    }

    #[test]
    fn the_oldest_segments_are_used_again_first_and_no_more_than_are_needed() {
        let mut segments = Segments::new(16384, vec![Some(7), Some(5), None, Some(6), Some(8)]);
        assert!(!segments.recycle_before(8 * 16384, 1), "one is free");
        assert!(segments.recycle_before(8 * 16384, 2));
        assert_eq!([5, 6, 7].map(|segment| segments.offset_of(segment * 16384).is_some()), [false, true, true]);
        assert!(segments.recycle_before(8 * 16384, u64::MAX));
        assert_eq!([6, 7, 8].map(|segment| segments.offset_of(segment * 16384).is_some()), [false, false, true]);
    }
}

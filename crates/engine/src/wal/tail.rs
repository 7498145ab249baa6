//! The part of the log that tails keep: segments behind which recovery already begins, for readers that follow the
//! commits (`tail_reader`).
//!
//! A tail keeps the log from one position on with a [`LogHold`]. The file grows by what is kept; the size beyond which
//! commits wait for a checkpoint counts from the last checkpoint as before, so a tail delays no commit. A hold is limited
//! in two ways: in bytes, by its owner, and by the disk, which needs the space for commits when it is full. A hold beyond a limit
//! ends finally, and its owner starts again from a snapshot.
//!
//! Invariants:
//! 1. A hold is registered only while all segments from its position on are in their slots, and when everything that was
//!    appended fits the file next to them. Segments are recycled under the same lock.
//! 2. A hold ends before an append counts on the segments that it kept, so a group that is due always has a place.
//! 3. A hold that has ended never holds again: its segments may have been used since.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use super::growth::CLOSING_BYTES;
use super::{Anchor, Log, LogCore, LogState, Mark};
use crate::error::{Error, ErrorKind, Result};
use crate::format::CommitSeq;
use crate::sync::wakers::{poll_guarded, wake_all};

/// The positions from which tails keep the log.
#[derive(Debug, Default)]
pub(super) struct Holds {
    list: Vec<Hold>,
    next_id: u64,
    /// The first position that a hold keeps, and the end of the log at which the first hold ends; recomputed when the list
    /// changes.
    first: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Hold {
    id: u64,
    from: u64,
    bytes_max: u64,
    is_over: bool,
    waker: Option<Waker>,
}

impl Hold {
    /// Returns the end of the log beyond which the hold ends.
    fn overdue_at(&self) -> u64 {
        self.from.saturating_add(self.bytes_max)
    }
}

impl Holds {
    /// Returns the first position that is kept; the largest number without a hold.
    pub(super) fn kept_from(&self) -> u64 {
        self.first.map_or(u64::MAX, |(from, _)| from)
    }

    /// Ends the holds that keep more of a log that ends at `end` than they may.
    #[inline]
    pub(super) fn end_overdue(&mut self, end: u64) {
        if self.first.is_some_and(|(_, overdue_at)| end > overdue_at) {
            self.list.iter_mut().for_each(|hold| hold.is_over |= end > hold.overdue_at());
            self.sum_up();
        }
    }

    /// Ends all holds. Returns whether there were any.
    pub(super) fn end_all(&mut self) -> bool {
        let any = self.first.is_some();
        self.list.iter_mut().for_each(|hold| hold.is_over = true);
        self.sum_up();
        any
    }

    fn add(&mut self, from: u64, bytes_max: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.list.push(Hold { id, from, bytes_max, is_over: false, waker: None });
        self.sum_up();
        id
    }

    fn get(&mut self, id: u64) -> Option<&mut Hold> {
        self.list.iter_mut().find(|hold| hold.id == id)
    }

    /// Returns the waker of the hold, to be dropped without a lock.
    fn remove(&mut self, id: u64) -> Option<Waker> {
        let at = self.list.iter().position(|hold| hold.id == id)?;
        let removed = self.list.swap_remove(at);
        self.sum_up();
        removed.waker
    }

    fn sum_up(&mut self) {
        let (mut from, mut overdue_at) = (u64::MAX, u64::MAX);
        let mut any = false;
        for hold in self.list.iter().filter(|hold| !hold.is_over) {
            any = true;
            from = from.min(hold.from);
            overdue_at = overdue_at.min(hold.overdue_at());
        }
        self.first = any.then_some((from, overdue_at));
    }
}

/// Creates the error for a tail whose part of the log is gone.
pub(super) fn too_old(position: u64) -> Error {
    let what = format!(
        "the log from {position} on was used again: the tail kept more than it may, the disk was full, or the database was \
         open for long without it; begin with a snapshot (`begin_tail`)"
    );
    Error::new(ErrorKind::TailTooOld, what)
}

impl LogState {
    /// Returns the log position before which no segment is needed: by recovery or by a tail.
    pub(super) fn kept_from(&self) -> u64 {
        self.anchor.position.min(self.holds.kept_from())
    }

    /// Frees slots of segments that nothing needs, the oldest first, until `count` slots are free. Returns whether it has freed any.
    /// The others stay for a tail that continues where an earlier one has ended.
    pub(super) fn recycle_segments(&mut self, count: u64) -> bool {
        let kept_from = self.kept_from();
        self.segments.recycle_before(kept_from, count)
    }

    /// See [`Log::anchor_after`].
    fn anchor_after(&self, commit: CommitSeq) -> Anchor {
        let younger = |mark: &Mark| mark.starts.is_some_and(|youngest| youngest > commit);
        // The groups of an abandoned record may still be in flight.
        let durable = |mark: &Mark| mark.anchor.sequence <= self.durable_sequence;
        let before = self.marks.iter().take_while(|mark| durable(mark) && !younger(mark)).last();
        before.map_or(self.anchor, |mark| mark.anchor)
    }
}

impl Log {
    /// Returns the group after which a recovery that starts from the state of `commit`, a durable commit, must replay.
    pub(crate) fn anchor_after(&self, commit: CommitSeq) -> Anchor {
        self.0.lock().anchor_after(commit)
    }

    /// Returns the last durable group, or the last one before which recovery begins.
    pub(crate) fn last_group(&self) -> Anchor {
        self.0.lock().anchor_after(CommitSeq(u64::MAX))
    }

    /// Keeps the log from the group on after which all records of commits behind `visible` lie, a commit that is published.
    /// Returns that group.
    pub(crate) fn hold_newest(&self, visible: CommitSeq, bytes_max: u64) -> (LogHold, Anchor) {
        let mut state = self.0.lock();
        let anchor = state.anchor_after(visible.min(state.durable_commit));
        // Recovery needs the segment as well, so the file has room for it.
        let id = state.holds.add(anchor.position, bytes_max);
        drop(state);
        (LogHold { core: Arc::clone(&self.0), id }, anchor)
    }

    /// Keeps the log from `anchor` on, a group that a tail has named before, maybe in an earlier opening. Prepares segments
    /// where the file has too few for it. Blocks.
    ///
    /// # Errors
    /// `TailTooOld` when the log does not have that part any more, or never had; `NoSpace` when the disk is full.
    pub(crate) fn hold(&self, anchor: Anchor, bytes_max: u64) -> Result<LogHold> {
        loop {
            let mut state = self.0.lock();
            let is_there = anchor.position < state.durable_end
                && state.segments.offset_of(anchor.position).is_some()
                && state.position + state.pending_bytes as u64 <= anchor.position.saturating_add(bytes_max);
            if !is_there {
                return Err(too_old(anchor.position));
            }
            let segment_bytes = self.0.options.segment_bytes;
            let kept_from = state.kept_from().min(anchor.position);
            let limit = (kept_from / segment_bytes + state.slots.saturating_sub(1)) * segment_bytes;
            if self.0.end_of(state.position, state.pending_bytes as u64) + CLOSING_BYTES <= limit {
                let id = state.holds.add(anchor.position, bytes_max);
                drop(state);
                return Ok(LogHold { core: Arc::clone(&self.0), id });
            }
            let seen = state.slots;
            drop(state);
            self.0.grow(seen)?;
        }
    }
}

impl LogCore {
    /// Wakes the tails that wait for durable groups, or for the end of their holds. The caller holds no lock of the log's state.
    pub(super) fn wake_tails(&self) {
        if self.tail_waits.swap(false, Ordering::Relaxed) {
            let wakers: Vec<_> = self.lock().holds.list.iter_mut().filter_map(|hold| hold.waker.take()).collect();
            wake_all(wakers);
        }
    }
}

/// Keeps a part of the log until it is dropped.
pub(crate) struct LogHold {
    core: Arc<LogCore>,
    id: u64,
}

impl LogHold {
    /// Keeps the log from a later position on.
    pub(crate) fn advance(&self, to: u64) {
        let mut state = self.core.lock();
        if let Some(hold) = state.holds.get(self.id) {
            hold.from = hold.from.max(to);
        }
        state.holds.sum_up();
        self.note_freed(state);
    }

    /// Limits the bytes of log that are kept.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        let mut state = self.core.lock();
        if let Some(hold) = state.holds.get(self.id) {
            hold.bytes_max = bytes_max;
        }
        state.holds.sum_up();
    }

    /// Returns the bytes of log that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        let mut state = self.core.lock();
        let end = state.position;
        state.holds.get(self.id).map_or(0, |hold| end.saturating_sub(hold.from))
    }

    /// Returns `Ready` once groups behind `position` are durable.
    ///
    /// # Errors
    /// `TailTooOld` when the hold has ended; `Poisoned` after a failure of the log, when no group follows.
    pub(crate) fn poll_durable(&self, position: u64, waker: &Waker) -> Poll<Result<()>> {
        let outcome = |state: &mut LogState| match state.holds.get(self.id) {
            Some(hold) if !hold.is_over && position < state.durable_end => Some(Ok(())),
            Some(hold) if !hold.is_over => state.poisoned.clone().map(Err),
            _ => Some(Err(too_old(position))),
        };
        let register = |state: &mut LogState, waker: &mut Option<Waker>| {
            if let Some(hold) = state.holds.get(self.id) {
                std::mem::swap(&mut hold.waker, waker);
                self.core.tail_waits.store(true, Ordering::Relaxed);
            }
        };
        poll_guarded(waker, || self.core.lock(), outcome, register)
    }

    /// Returns where the file has the log from `position` on, and the bytes that are durable from there in one piece; `None`
    /// when there are none.
    ///
    /// # Errors
    /// `TailTooOld` when the hold has ended.
    pub(super) fn place_of(&self, position: u64) -> Result<Option<(u64, u64)>> {
        let mut state = self.core.lock();
        let state = &mut *state;
        if state.holds.get(self.id).is_none_or(|hold| hold.is_over || hold.from > position) {
            return Err(too_old(position));
        }
        if position >= state.durable_end {
            return Ok(None);
        }
        let offset = state.segments.offset_of(position).ok_or_else(|| too_old(position))?;
        let segment_bytes = self.core.options.segment_bytes;
        let left = segment_bytes - position % segment_bytes;
        Ok(Some((offset, left.min(state.durable_end - position))))
    }

    pub(super) fn core(&self) -> &LogCore {
        &self.core
    }

    /// Lets the file become shorter, and wakes the commits waiting for the space.
    fn note_freed(&self, mut state: std::sync::MutexGuard<'_, LogState>) {
        state.growth.may_shrink |= self.core.slots_to_keep(&state) < state.slots;
        drop(state);
        self.core.wake_satisfied();
    }
}

impl Drop for LogHold {
    fn drop(&mut self) {
        if !self.core.process.is_here() {
            return;
        }
        let mut state = self.core.lock();
        let waker = state.holds.remove(self.id);
        self.note_freed(state);
        drop(waker);
    }
}

impl std::fmt::Debug for LogHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogHold").finish_non_exhaustive()
    }
}

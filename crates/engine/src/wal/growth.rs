//! The size of the log's file: how many segments it has, and how it gets more.
//!
//! A record is appended only when the existing segments can hold it, with everything appended before it and the
//! closing groups that may follow. So a group that is due always has a place, and no write of the log ever needs new
//! space on the disk. Growing happens before the append, outside of the locks of commits and of the writer. When it
//! fails, the commit that needed the segment is refused with `NoSpace`; nothing of it was appended.
//!
//! Invariants:
//! 1. [`LogCore::end_of`] never falls short: it assumes the fewest bytes that each group can carry.
//! 2. A slot counts (`LogState::slots`) once it is allocated and synced. It is taken away (`shrink`) only when
//!    everything appended fits the other slots.
//! 3. One slot stays free (`segments::Segments::assign`), so the log ends at most at [`LogCore::limit`].
//! 4. A failure to grow is reported to each ticket that lacks a segment, after a checkpoint had the chance to free
//!    one, and then forgotten: the next commit tries again. So commits resume once the disk has space again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind, WriteData};
use nofault_io::disk::Queue;
use nofault_io::error::{Error as IoError, ErrorKind as IoKind};

use super::waiting::{Goal, LogTicket};
use super::{GROUP_BYTES_MAX, Log, LogCore, LogState};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{FRAGMENT_HEADER_BYTES, GROUP_HEADER_BYTES, LOG_BLOCK_BYTES};
use crate::pages::{self, LogPosition};

/// Number of zero bytes written at a time when a segment is prepared.
const ZERO_BYTES: usize = 1 << 20;
/// Most bytes of segments prepared at a time: a quarter of the file, but at least a segment and no more than
/// this. It bounds the time for which a commit may wait for them.
const PREPARED_BYTES_MAX: u64 = 16 << 20;
/// Number of bytes kept free behind the appended records: for a closing group after the last record, and for a group
/// that a checkpoint may write.
pub(super) const CLOSING_BYTES: u64 = 2 * LOG_BLOCK_BYTES as u64;
/// Size in bytes of a segment below which it may not hold even a record with the longest key.
const SMALL_SEGMENT_BYTES: u64 = 64 << 10;

/// Returns the number of slots that a log has from the start. With so many, a checkpoint always frees space for a small
/// record: the last group before it lies in one segment, one slot stays free, and the other slots can be written.
pub(super) fn slots_min(segment_bytes: u64) -> u64 {
    if segment_bytes < SMALL_SEGMENT_BYTES { 4 } else { 3 }
}

/// The state of the growth of the log file. Protected by the lock of the log's state.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// The error of a failed attempt to grow. The next checkpoint must free space instead.
    pub(super) failure: Option<Error>,
    /// Number of checkpoints requested because the file could not grow.
    asked: u64,
    /// Set when the WAL writer is to prepare a segment.
    wanted: bool,
    /// Set when preparing a segment in advance has failed: it is tried again when the segment is needed.
    ahead_failed: bool,
    /// Number of commits refused because the disk had no space for a segment.
    pub(super) refused: u64,
    /// Set when, since a checkpoint, the file has more slots than the log needs: see `shrink`.
    pub(super) may_shrink: bool,
    /// Set while the file is being made as short as its records allow.
    pub(super) keeps_least: bool,
    /// Set when the next group must be written even without content, because it records the number of slots.
    pub(super) must_state: bool,
}

impl Growth {
    /// Returns whether a ticket that begins to wait for log space must request a checkpoint, because a segment is
    /// missing and the file could not grow. Counts the request.
    pub(super) fn asks_again(&mut self, has_segments: bool) -> bool {
        let asks = self.failure.is_some() && !has_segments;
        self.asked += u64::from(asks);
        asks
    }
}

impl Log {
    /// Prepares segments until a fragment of `len_bytes` bytes fits. Returns false when only a checkpoint can free
    /// space for it. Blocks.
    ///
    /// # Errors
    /// `NoSpace` when the disk is full, or another error of the disk.
    pub(crate) fn grow_for(&self, len_bytes: usize) -> Result<bool> {
        loop {
            let seen = {
                let state = self.0.lock();
                if !self.0.has_log_space(&state, len_bytes) {
                    return Ok(false);
                }
                if self.0.has_segments(&state, len_bytes) {
                    return Ok(true);
                }
                state.slots
            };
            self.0.grow_or_release(seen)?;
        }
    }
}

impl LogCore {
    /// Returns the end of the log when `pending` bytes of fragments and their headers are written from `position` on,
    /// in groups of any size.
    pub(super) fn end_of(&self, mut position: u64, pending: u64) -> u64 {
        let segment_bytes = self.options.segment_bytes;
        let group_bytes = segment_bytes.min(GROUP_BYTES_MAX as u64);
        let header = GROUP_HEADER_BYTES as u64;
        let mut left = pending;
        while left > 0 {
            let space = group_bytes.min(segment_bytes - position % segment_bytes);
            if header + left < space {
                return position + (header + left).next_multiple_of(LOG_BLOCK_BYTES as u64);
            }
            position += space;
            // A fragment that continues in the next group has a header there as well. If none continues, as many bytes
            // may stay empty.
            left = left.saturating_sub(space - header - FRAGMENT_HEADER_BYTES as u64);
        }
        position
    }

    /// Returns the first log position for which there is no segment.
    fn limit(&self, state: &LogState) -> u64 {
        let segment_bytes = self.options.segment_bytes;
        (state.kept_from() / segment_bytes + state.slots.saturating_sub(1)) * segment_bytes
    }

    /// Returns whether the existing segments can hold a fragment of `len_bytes` bytes more.
    pub(super) fn has_segments(&self, state: &LogState, len_bytes: usize) -> bool {
        let pending = (state.pending_bytes + FRAGMENT_HEADER_BYTES + len_bytes) as u64;
        self.end_of(state.position, pending) + CLOSING_BYTES <= self.limit(state)
    }

    /// Requests that the WAL writer prepares the next segment before it is needed. Returns true when the caller must
    /// notify the WAL writer.
    pub(super) fn grow_ahead(&self, state: &mut LogState) -> bool {
        let segment_bytes = self.options.segment_bytes;
        let end = self.end_of(state.position, state.pending_bytes as u64) + CLOSING_BYTES + segment_bytes;
        let limit = self.limit(state);
        let may_be_used = limit.saturating_sub(state.anchor.position) < self.options.log_bytes;
        let wanted = end > limit && may_be_used && !state.growth.ahead_failed && state.growth.failure.is_none();
        wanted && self.notifier.has_listener() && !std::mem::replace(&mut state.growth.wanted, true)
    }

    /// Requests a segment from the WAL writer for a task waiting for space for `len_bytes` bytes. Returns false when
    /// no segment is missing, or when only a checkpoint can free space.
    pub(super) fn ask_for_segments(&self, state: &mut LogState, len_bytes: usize) -> bool {
        if self.has_segments(state, len_bytes) || !self.has_log_space(state, len_bytes) {
            return false;
        }
        if state.growth.failure.is_some() {
            return false;
        }
        state.growth.wanted = true;
        true
    }

    /// Prepares the segments that were requested. Called by the WAL writer's thread. Blocks.
    pub(super) fn grow_where_wanted(&self) {
        loop {
            let (seen, needed) = {
                let mut state = self.lock();
                let needed = state.poisoned.is_none() && self.lacks_segments(&state);
                if !std::mem::take(&mut state.growth.wanted) && !needed || state.growth.failure.is_some() {
                    return;
                }
                (state.slots, needed)
            };
            let grown = if needed { self.grow_or_release(seen) } else { self.grow(seen) };
            if let Err(error) = grown {
                if needed {
                    return self.note_failure(error);
                }
                self.lock().growth.ahead_failed = true;
            }
        }
    }

    /// Returns whether a ticket waits for log space that only another segment can provide.
    pub(super) fn lacks_segments(&self, state: &LogState) -> bool {
        let lacks = |len_bytes| self.has_log_space(state, len_bytes) && !self.has_segments(state, len_bytes);
        state.waiters.lengths_for_space().any(lacks)
    }

    /// Records that preparing a segment failed, and requests a checkpoint. If no thread makes checkpoints, the waiting
    /// tickets fail at once.
    pub(super) fn note_failure(&self, error: Error) {
        let refuse = {
            let mut state = self.lock();
            let refuse = (!self.pressure.has_listener()).then(|| error.clone());
            state.growth.failure = refuse.is_none().then_some(error);
            state.growth.asked += 1;
            refuse
        };
        match refuse {
            Some(error) => self.refuse_space(&error),
            None => self.pressure.notify(),
        }
    }

    /// Prepares the log for a checkpoint. When the file could not grow, this first writes the appended records, so that
    /// the checkpoint contains them and their space can be reused. Returns the number of checkpoints requested so far.
    /// Blocks until the records are written.
    pub(super) fn prepare_growth(self: &Arc<Self>) -> u64 {
        let (asked, position) = {
            let state = self.lock();
            if state.growth.failure.is_none() {
                return state.growth.asked;
            }
            (state.growth.asked, LogPosition(state.appended))
        };
        // The error is dropped: it is a failure of the log, which the checkpoint gets as well.
        let _ = pages::Ticket::wait(&mut LogTicket::new(self, Goal::Durable(position)));
        asked
    }

    /// Serves the tickets waiting for log space, after a checkpoint: tickets that still lack a segment get one, or
    /// are refused. If a checkpoint was requested after this one began (more than `asked` requests), another one
    /// follows instead, because this one did not cover all records appended before those waits. Blocks.
    pub(super) fn settle_growth(&self, asked: u64) {
        loop {
            let seen = {
                let mut state = self.lock();
                if state.growth.failure.is_some() && state.growth.asked != asked {
                    drop(state);
                    return self.pressure.notify();
                }
                let lacks = self.lacks_segments(&state);
                if state.growth.failure.is_none() || !lacks {
                    state.growth.failure = None;
                    return;
                }
                state.slots
            };
            if let Err(error) = self.grow_or_release(seen) {
                // This clears `failure` as well.
                return self.refuse_space(&error);
            }
        }
    }

    /// Returns the number of slots that the setting allows, with those reserved for the next checkpoint.
    pub(super) fn slots_by_setting(&self) -> u64 {
        self.options.log_bytes.div_ceil(self.options.segment_bytes) + slots_min(self.options.segment_bytes)
    }

    /// Prepares a segment, as [`LogCore::grow`] does. Where the disk has no space for it, the segments that tails keep are
    /// given up instead: a commit does not fail because of a tail. Blocks.
    ///
    /// # Errors
    /// As [`LogCore::grow`].
    pub(super) fn grow_or_release(&self, seen: u64) -> Result<()> {
        let grown = self.grow(seen);
        let is_full = grown.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace);
        if !is_full || !self.lock().holds.end_all() {
            return grown;
        }
        self.wake_satisfied();
        Ok(())
    }

    /// Prepares a segment, or several, unless the file has more than `seen` slots by now. Blocks.
    ///
    /// # Errors
    /// `NoSpace` when the disk is full, or another error of the disk. The log stays as it is.
    pub(super) fn grow(&self, seen: u64) -> Result<()> {
        let mut queue = self.grower.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = self.lock().slots;
        if slots > seen {
            return Ok(());
        }
        let segment_bytes = self.options.segment_bytes;
        let by_share = (slots / 4).min(PREPARED_BYTES_MAX / segment_bytes);
        let mut more = by_share.min(self.slots_by_setting().saturating_sub(slots)).max(1);
        let mut prepared = prepare_segments(queue.as_mut(), slots * segment_bytes, more * segment_bytes);
        if more > 1 && prepared.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace) {
            more = 1;
            prepared = prepare_segments(queue.as_mut(), slots * segment_bytes, segment_bytes);
        }
        prepared.map_err(|error| {
            if error.kind() != ErrorKind::NoSpace {
                return error;
            }
            let what = format!(
                "the log needs another segment of {segment_bytes} bytes and the disk has no space for it ({error}): free that \
                 much on the disk, or delete rows or drop tables; commits go on by themselves then"
            );
            Error::new(ErrorKind::NoSpace, what)
        })?;
        {
            let mut state = self.lock();
            state.slots += more;
            state.growth.ahead_failed = false;
            self.file_bytes.store(state.slots * segment_bytes, Ordering::Relaxed);
        }
        drop(queue);
        self.wake_satisfied();
        Ok(())
    }
}

/// Runs one disk operation and waits for it to end.
pub(super) fn run(queue: &mut dyn Queue, kind: OpKind, offset: u64) -> std::result::Result<OpKind, IoError> {
    let mut done = Vec::new();
    queue.push(Op::new(0, offset, kind)).map_err(|refused| refused.error)?;
    while done.is_empty() {
        queue.reap(1, &mut done)?;
    }
    let completion = done.remove(0);
    completion.result?;
    Ok(completion.op.kind)
}

/// Reserves, zeroes and syncs `len_bytes` bytes of segments at `offset`.
///
/// # Errors
/// The error of the disk.
pub(super) fn prepare_segments(queue: &mut dyn Queue, offset: u64, len_bytes: u64) -> Result<()> {
    let failed = |error| Error::from_io("prepare a segment of the log", error);
    match run(queue, OpKind::Allocate { len_bytes }, offset) {
        Err(error) if error.kind() != IoKind::Unsupported => return Err(failed(error)),
        // A file system that cannot reserve space grows by the writes below.
        Ok(_) | Err(_) => {}
    }
    let step = ZERO_BYTES.min(len_bytes as usize);
    let mut zeroes = IoBuf::zeroed(step, PageKind::Huge).map_err(failed)?;
    let mut written = 0;
    while written < len_bytes {
        let left = (len_bytes - written) as usize;
        let part = if left < zeroes.len() { zeroes.split_at(left).0 } else { zeroes };
        let part_len = part.len() as u64;
        match run(queue, OpKind::write(part, false), offset + written).map_err(failed)? {
            OpKind::Write { data: WriteData::Owned(buffer), .. } => zeroes = buffer,
            _ => return Err(Error::new(ErrorKind::Bug, "a write came back as something else")),
        }
        written += part_len;
    }
    run(queue, OpKind::Sync, 0).map_err(failed)?;
    Ok(())
}

/// Reserves the missing slots up to slot `until` without writing them: they read as zeroes, as prepared slots do, and
/// cost no time before they are used. Returns the number of slots then, which is smaller when the disk is full or
/// cannot reserve space.
///
/// # Errors
/// Any error of the disk other than being full.
pub(super) fn reserve_slots(queue: &mut dyn Queue, slots: u64, until: u64, segment_bytes: u64) -> Result<u64> {
    let failed = |error| Error::from_io("reserve segments of the log", error);
    if slots >= until {
        return Ok(slots);
    }
    let len_bytes = (until - slots) * segment_bytes;
    match run(queue, OpKind::Allocate { len_bytes }, slots * segment_bytes) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), IoKind::Unsupported | IoKind::NoSpace) => return Ok(slots),
        Err(error) => return Err(failed(error)),
    }
    // Groups record the number of slots, and recovery must not find the file shorter than that.
    run(queue, OpKind::Sync, 0).map_err(failed)?;
    Ok(until)
}

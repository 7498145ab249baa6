//! Gives back the part of the log's file that the setting does not ask for.
//!
//! A commit larger than the log makes the file grow, because no checkpoint can pass a record that has begun. After the
//! checkpoint that follows, the file becomes as short as the setting allows ([`LogCore::slots_to_keep`]), in this
//! order:
//! 1. A segment in use that lies behind the new end is copied to a free slot before it: first all but its first block,
//!    which is synced, then the first block, durably. Recovery finds a segment by its first block, so it finds the copy
//!    whole or finds none. Then the first block of the original is overwritten with zeroes, so that no later opening
//!    follows the copy on which the log does not continue.
//! 2. A group states the smaller number of slots. Until it is durable a shorter file would count as cut short.
//! 3. The file is truncated.
//!
//! A power cut between any two of these leaves a log with everything in it. A file longer than stated has free
//! slots for the next opening, and shrinks after its next checkpoint. Where both copies of a segment are found, one is
//! used and the other overwritten ([`forget_copies`]); of a segment before those that recovery needs both stay until
//! their slots are used again.
//!
//! Kept true by:
//! 1. The thread that moves segments has the right to write groups, so no group is written to a segment while it is
//!    copied.
//! 2. It holds the lock of `grower` until the file is truncated, so no segment is prepared until then.
//! 3. A segment moves only when every group of it has been read back whole.
//! 4. After a durable write of a first block that failed, either copy may be in force: the log is poisoned.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::OpKind;
use nofault_io::disk::Queue;

use super::growth::{CLOSING_BYTES, run, slots_min};
use super::segments::Move;
use super::waiting::Leadership;
use super::{GROUP_BYTES_MAX, Log, LogCore, LogState};
use crate::blocks::reread::READS;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{LOG_BLOCK_BYTES, decode_group};

const MOVE: &str = "move a segment of the log";
/// Most segments that are moved although only a tail needs them.
const HELD_SEGMENTS_MAX: u64 = 2;

impl Log {
    /// Shortens the file by the segments that the last checkpoint has made superfluous. Does nothing while another
    /// thread writes to the log, or while a record is not complete: the next call tries again. When the disk fails, the
    /// file keeps its length, or the log is poisoned. Blocks; commits wait while segments are copied, nearly always three
    /// at most.
    pub(crate) fn shrink(&self) {
        self.0.shrink();
    }

    /// Shortens the file to the segments that recovery would read, and those that a log has from the start: the
    /// database is idle, or is being closed. Later records get new segments. Otherwise as [`Log::shrink`].
    pub(crate) fn shrink_to_least(&self) {
        let with = |keeps_least| {
            let mut state = self.0.lock();
            state.growth.keeps_least = keeps_least;
            state.growth.may_shrink |= keeps_least;
        };
        with(true);
        self.0.shrink();
        with(false);
    }
}

impl Log {
    /// Returns whether [`Log::shrink`], or [`Log::shrink_to_least`] with `keeps_least`, would find something to do.
    pub(crate) fn may_shrink(&self, keeps_least: bool) -> bool {
        let mut state = self.0.lock();
        if self.0.file.is_none() || !(keeps_least || state.growth.may_shrink) {
            return false;
        }
        let before = std::mem::replace(&mut state.growth.keeps_least, keeps_least);
        let may = self.0.slots_to_keep(&state) < state.slots;
        // Otherwise it would be asked again in each round.
        state.growth.may_shrink &= may || keeps_least;
        state.growth.keeps_least = before;
        may
    }
}

impl LogCore {
    /// Returns the number of slots that the log needs: for as much as the setting allows and the segments reserved for
    /// the next checkpoint, but at least for all that recovery would read and tails keep, all that is appended, and a free
    /// slot. All of them while a tail is behind: commits would wait while what it keeps is moved, and it will be given up
    /// soon.
    pub(super) fn slots_to_keep(&self, state: &LogState) -> u64 {
        let segment_bytes = self.options.segment_bytes;
        let [needed_from, kept_from] = [state.anchor.position, state.kept_from()].map(|from| from / segment_bytes);
        if needed_from - kept_from > HELD_SEGMENTS_MAX {
            return state.slots;
        }
        let by_setting = if state.growth.keeps_least { slots_min(segment_bytes) } else { self.slots_by_setting() };
        // The group that states the number of slots may take a separate block.
        let more = CLOSING_BYTES + LOG_BLOCK_BYTES as u64;
        let end = self.end_of(state.position, state.pending_bytes as u64) + more;
        let in_use = end.div_ceil(segment_bytes) - kept_from;
        by_setting.max(in_use + 1)
    }

    fn shrink(&self) {
        let Some(file) = &self.file else { return };
        if !self.lock().growth.may_shrink {
            return;
        }
        let mut grower = self.grower.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut leadership, before, keep) = {
            let mut state = self.lock();
            let keep = self.slots_to_keep(&state);
            if keep >= state.slots || state.poisoned.is_some() {
                state.growth.may_shrink = false;
                return;
            }
            if state.open_record.is_some() || self.lacks_segments(&state) {
                return;
            }
            let Some(leadership) = self.try_to_lead(&mut state) else { return };
            state.growth.may_shrink = false;
            // From here on no more is appended than the smaller number of slots can hold.
            (leadership, std::mem::replace(&mut state.slots, keep), keep)
        };
        let is_stated = self.move_and_state(&mut leadership, &mut **grower, before, keep);
        if !is_stated {
            self.lock().slots = before;
        }
        drop(leadership);
        if is_stated && file.truncate(keep * self.options.segment_bytes).is_ok() {
            self.file_bytes.store(keep * self.options.segment_bytes, Ordering::Relaxed);
        }
        drop(grower);
        // For tickets that saw too few slots before.
        self.wake_satisfied();
    }

    /// Moves the segments behind the new end and writes the group with the smaller number of slots: steps 1 and 2 of
    /// the file header. Returns false when the log keeps its slots, or is poisoned.
    fn move_and_state(&self, leadership: &mut Leadership<'_>, grower: &mut dyn Queue, before: u64, keep: u64) -> bool {
        let mut writer = self.lock_writer();
        let end = {
            let mut state = self.lock();
            state.segments.extend_to(before);
            // One more segment stays than is needed, for a tail that continues when the database was closed and opened again: the
            // last groups may have begun another segment than the one with its position.
            let kept_from = state.kept_from();
            state.segments.recycle_before(kept_from.saturating_sub(self.options.segment_bytes), u64::MAX);
            state.recycle_segments(before - keep + 1);
            state.position
        };
        loop {
            let Some(step) = self.lock().segments.next_move(keep) else { break };
            match self.move_segment(grower, &step, end) {
                Ok(true) => self.lock().segments.make(&step),
                // The one that cannot be moved may be one that nothing needs.
                Ok(false) if self.lock().recycle_segments(u64::MAX) => {}
                Ok(false) => return false,
                Err(error) => {
                    self.poison(&error);
                    return false;
                }
            }
        }
        {
            let mut state = self.lock();
            state.segments.cut_to(keep);
            state.growth.must_state = true;
        }
        let is_stated = leadership.write_one(&mut writer);
        self.lock().growth.must_state = false;
        is_stated
    }

    /// Copies a segment of a log that ends at `end` to another slot, durably, and then overwrites the first block of
    /// the original, so that no segment is found there. Returns false, with the original unchanged, when it cannot be
    /// read whole or the copy cannot be written.
    ///
    /// # Errors
    /// The disk's error, when a write failed after which recovery may find either copy.
    fn move_segment(&self, queue: &mut dyn Queue, step: &Move, end: u64) -> Result<bool> {
        let segment_bytes = self.options.segment_bytes;
        let len_bytes = (end - step.segment * segment_bytes).min(segment_bytes);
        let Ok(first_block) = self.copy_behind_first_block(queue, step, len_bytes) else { return Ok(false) };
        write_durably(queue, step.to as u64 * segment_bytes, first_block)?;
        forget_copies(queue, &[step.from], segment_bytes)?;
        Ok(true)
    }

    /// Copies a segment without its first block, durably, and returns that block.
    ///
    /// # Errors
    /// An error when a group of the segment is not whole, or the error of the disk.
    fn copy_behind_first_block(&self, queue: &mut dyn Queue, step: &Move, len_bytes: u64) -> Result<IoBuf> {
        let failed = |error| Error::from_io(MOVE, error);
        let (from, to) = (step.from as u64 * self.options.segment_bytes, step.to as u64 * self.options.segment_bytes);
        let mut first_block = None;
        let mut at = 0;
        while at < len_bytes {
            let groups = self.read_groups(queue, step, at, len_bytes)?;
            let (mut part, mut part_at) = (groups, at);
            at += part.len() as u64;
            if part_at == 0 {
                let (block, rest) = part.split_at(LOG_BLOCK_BYTES);
                first_block = Some(block);
                (part, part_at) = (rest, LOG_BLOCK_BYTES as u64);
            }
            if !part.is_empty() {
                run(queue, OpKind::write(part, false), to + part_at).map_err(failed)?;
            }
        }
        run(queue, OpKind::Sync, 0).map_err(failed)?;
        first_block.ok_or_else(|| Error::new(ErrorKind::Bug, format!("no group at {from} of the log")))
    }

    /// Reads whole groups of a segment from offset `at` on: at least one, and as many as lie within the length of the
    /// longest group.
    ///
    /// # Errors
    /// An error when none of [`READS`] reads finds a whole group, or the error of the disk.
    fn read_groups(&self, queue: &mut dyn Queue, step: &Move, at: u64, len_bytes: u64) -> Result<IoBuf> {
        let failed = |error| Error::from_io(MOVE, error);
        let segment_bytes = self.options.segment_bytes;
        let offset = step.from as u64 * segment_bytes + at;
        let part_bytes = (len_bytes - at).min(GROUP_BYTES_MAX as u64) as usize;
        for _ in 0..READS {
            let buffer = IoBuf::zeroed(part_bytes, PageKind::Small).map_err(failed)?;
            let OpKind::Read(bytes) = run(queue, OpKind::Read(buffer), offset).map_err(failed)? else { break };
            let mut whole = 0;
            while let Some(header) = decode_group(self.options.file_id, segment_bytes, &bytes[whole..])
                && header.position == step.segment * segment_bytes + at + whole as u64
                && whole + header.len_bytes() <= part_bytes
            {
                whole += header.len_bytes();
            }
            if whole > 0 {
                return Ok(bytes.split_at(whole).0);
            }
        }
        let what = format!("{MOVE}: the group at {} cannot be read", step.segment * segment_bytes + at);
        Err(Error::new(ErrorKind::Corrupt, what))
    }
}

/// Overwrites the first blocks of slots, durably, so that no segment is found there.
///
/// # Errors
/// The error of the disk. A segment may still be found in these slots then.
pub(super) fn forget_copies(queue: &mut dyn Queue, slots: &[usize], segment_bytes: u64) -> Result<()> {
    slots.iter().try_for_each(|slot| {
        let zeroes = IoBuf::zeroed(LOG_BLOCK_BYTES, PageKind::Small).map_err(|error| Error::from_io(MOVE, error))?;
        write_durably(queue, *slot as u64 * segment_bytes, zeroes)
    })
}

fn write_durably(queue: &mut dyn Queue, offset: u64, block: IoBuf) -> Result<()> {
    run(queue, OpKind::write(block, true), offset).map(drop).map_err(|error| Error::from_io(MOVE, error))
}

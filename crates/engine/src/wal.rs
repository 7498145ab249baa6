//! The log: makes commits durable, many with one write.
//!
//! Pieces of records are appended to memory inside the commit section. One at a time drives: it takes all that has arrived, up
//! to the size of a group, and writes it durably, on its own thread as one system call; what is more than a group
//! goes out as a few groups in flight. A thread that waits for its commit drives, and when its own is durable it first wakes
//! the next, then those whose commits it wrote; for tasks and for deferred commits the keeper's thread drives. Commits are
//! acknowledged in the order of the log, however the writes complete. Groups fill segments of one preallocated, pre-written file; segments before the last checkpoint are
//! used again.
//!
//! Kept true by:
//! 1. A commit is reported durable only when its group and every group before it are.
//! 2. After a failed write nothing is reported any more and nothing is written: the log is poisoned.
//! 3. A segment is used again only when the durable superblock names an anchor in a later one.
//! 4. Everything that waits to be written has somebody who will drive for it: a thread that appended it and has not come to
//!    wait yet, a thread that waits, or the keeper (`waiting::KeeperPart`). Whoever stops driving wakes one of the second kind, or
//!    rings for the third. `driving` changes under the same lock as the list of who waits, so nobody goes to sleep in between.
//! 5. No two openings of a log write the same group: each has a number of its own (`number_of_opening`). Where a cut loses a group and
//!    keeps the next, that one can only continue the very group that was lost, never the one that takes its place.
//! 6. A thread that waits is woken to drive, or because its commit is durable and visible, or there is room for it or will be none, and
//!    for nothing else.
//! 7. Whatever was acknowledged is said to be durable by a group behind it, before long: by the next one, or by an empty *closing group*. That
//!    is written when the log is synced or closed, and by the keeper when nothing was written for a while; never for another closing group.
//!
//! `reader` is the other direction; the bytes are in `format::log_group`.

mod drive;
mod growth;
mod keeper;
mod reader;
mod segments;
mod shrink;
mod stats;
mod waiting;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nofault_io::disk::{Disk, Queue, QueueOptions};

use self::drive::Writer;
use self::growth::{Growth, reserve_slots, slots_min};
pub(crate) use self::keeper::LogKeeper;
pub(crate) use self::reader::{RecordIter, Recovered, create_log, read_log};
use self::segments::Segments;
use self::shrink::forget_copies;
use self::stats::Counts;
pub use self::stats::LogStats;
use self::waiting::{Goal, KeeperPart, LogTicket, Sleepers};
use crate::bell::Bell;
use crate::error::{Error, Result};
use crate::format::{CommitSeq, LOG_BLOCK_BYTES, PIECE_HEADER_BYTES};
use crate::pages::{self, Attempt, CommitLog, Durability, LogPosition, Wait};

/// Most bytes of one group. Up to about this size a durable write takes hardly longer than a small one.
const GROUP_BYTES_MAX: usize = 128 << 10;
/// Groups in flight at a time.
const GROUPS_IN_FLIGHT: usize = 4;
/// Memory of the groups in flight. While the log is read there are none, and the window of the reader takes no more.
pub(crate) const GROUPS_IN_FLIGHT_BYTES: usize = GROUP_BYTES_MAX * GROUPS_IN_FLIGHT;
/// Smallest segment: a few groups.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 4 * LOG_BLOCK_BYTES as u64;

/// Largest segment: what preparing one takes is a pause for a commit now and then.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 16 << 20;

/// Called with the newest durable commit, in order, before anybody who waits for it is woken.
pub(crate) type DurableHook = Box<dyn Fn(CommitSeq) + Send + Sync>;

/// Called after those who waited for a write were woken.
pub(crate) type Afterwards = Box<dyn Fn() + Send + Sync>;

/// How a log is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogOptions {
    /// Part of every checksum.
    pub(crate) file_id: u64,
    /// Bytes of a segment, fixed when the log is created.
    pub(crate) segment_bytes: u64,
    /// New records wait while the log since the last checkpoint is larger than this.
    pub(crate) log_bytes: u64,
    /// Bytes of appended pieces that may wait in memory.
    pub(crate) buffer_bytes: usize,
    /// Instead of chance, for tests that repeat.
    pub(crate) seed: Option<u64>,
}

/// A group as a checkpoint names it: recovery begins after it and insists on finding it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) position: u64,
    pub(crate) sequence: u64,
    pub(crate) checksum: u64,
}

/// The log. Clones are handles of one.
#[derive(Clone)]
pub(crate) struct Log(Arc<LogCore>);

struct LogCore {
    options: LogOptions,
    state: Mutex<LogState>,
    writer: Mutex<Writer>,
    /// For preparing and moving segments, beside the groups in flight: one thread at a time.
    grower: Mutex<Box<dyn Queue>>,
    /// The file, where it may become shorter.
    file: Option<Arc<dyn Disk>>,
    /// Rung for the keeper.
    bell: Bell,
    hook: OnceLock<DurableHook>,
    afterwards: OnceLock<Afterwards>,
    /// Bytes of pieces with their headers since the log was opened that are durable: changes under the lock of `state`, when the hook has been
    /// called and all who waited for it are off the list.
    durable: AtomicU64,
    /// Bytes of the file in segments. The writer's lock is held for as long as there is something to write, which may be for ever.
    file_bytes: AtomicU64,
    /// Rung when it is time for a checkpoint.
    pressure: Arc<Bell>,
    counts: Counts,
}

/// One piece, or the rest of one, that waits to be written.
struct Fragment {
    commit: CommitSeq,
    bytes: Vec<u8>,
    written: usize,
    first: bool,
    last: bool,
    /// Of a record that will never end.
    given_up: bool,
}

/// A group that was written or is being written.
#[derive(Debug, Clone, Copy)]
struct Mark {
    anchor: Anchor,
    /// The youngest commit whose record starts in it, or a later one; none that was given up.
    starts: Option<CommitSeq>,
}

struct LogState {
    pending: VecDeque<Fragment>,
    pending_bytes: usize,
    /// Bytes of pieces with their headers since the log was opened: appended. `LogPosition`s are on this scale.
    appended: u64,
    durable_commit: CommitSeq,
    /// The last group of those that are durable with all before them.
    durable_sequence: u64,
    /// The last of those with a part of a record.
    content_sequence: u64,
    /// The last that a durable group, or the superblock, says to have been durable; and how far that is on the scale of `LogPosition`.
    stated_sequence: u64,
    stated: u64,
    /// As `content_sequence` when the log was opened.
    recovered_content: u64,
    /// A closing group is to be written as soon as nothing else is pending: see rule 7.
    wants_closing: bool,
    /// The commit whose record has begun and has not ended: its pieces must not wait for a checkpoint.
    open_record: Option<CommitSeq>,
    poisoned: Option<Error>,
    /// Why nothing more will be appended, while what was appended still becomes durable.
    refused: Option<Error>,
    /// Checkpoints that failed, and how the last of them did.
    failed_checkpoints: u64,
    failure: Option<Error>,
    /// Where the next group goes.
    position: u64,
    /// The last group before what a recovery now would replay.
    anchor: Anchor,
    marks: VecDeque<Mark>,
    sleepers: Sleepers,
    /// Somebody takes what is pending and writes it, until its `waiting::Driving` is dropped.
    driving: bool,
    keeper: KeeperPart,
    /// Segments that the file has room for: allocated and synced.
    slots: u64,
    growth: Growth,
}

/// A number that no other opening of a log has. `groups` is a hash of all groups in its file: with a seed it has to do alone, and does.
/// What an earlier opening left behind was not there when that one chose its number.
fn number_of_opening(seed: Option<u64>, groups: u64) -> u64 {
    let chance = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    let mut hasher = DefaultHasher::new();
    (chance, groups).hash(&mut hasher);
    hasher.finish()
}

impl Log {
    /// Goes on with a log that was read, or begins the one that `create` made.
    ///
    /// # Errors
    /// What the disk says to opening a queue, `NoSpace` without memory.
    pub(crate) fn open(disk: &dyn Disk, options: LogOptions, recovered: Recovered) -> Result<Self> {
        Self::open_on(disk, disk, None, options, recovered)
    }

    /// As [`Log::open`], with `to_grow`, the same file opened once more, for preparing and moving segments and for truncating the file. An
    /// error of writing back is told once to each opening of a file, to the first that syncs: the sync of a new segment must not be told
    /// that of a group.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub(crate) fn open_to_grow(
        disk: &dyn Disk,
        to_grow: &Arc<dyn Disk>,
        options: LogOptions,
        recovered: Recovered,
    ) -> Result<Self> {
        Self::open_on(disk, &**to_grow, Some(Arc::clone(to_grow)), options, recovered)
    }

    fn open_on(
        disk: &dyn Disk,
        to_grow: &dyn Disk,
        file: Option<Arc<dyn Disk>>,
        options: LogOptions,
        recovered: Recovered,
    ) -> Result<Self> {
        let failed = |error| Error::from_io("open a queue of the log", error);
        let small = QueueOptions { depth_max: 2 * GROUPS_IN_FLIGHT, ..QueueOptions::default() };
        let queue = disk.queue(&small).map_err(failed)?;
        let mut grower = to_grow.queue(&small).map_err(failed)?;
        forget_copies(&mut *grower, &recovered.copies, options.segment_bytes)?;
        let mut segments = Segments::new(options.segment_bytes, recovered.slots);
        let least = slots_min(options.segment_bytes);
        let slots = reserve_slots(&mut *grower, segments.slot_count(), least, options.segment_bytes)?;
        segments.extend_to(slots);
        let file_bytes = AtomicU64::new(slots * options.segment_bytes);
        let opening = number_of_opening(options.seed, recovered.groups);
        let writer = Writer::new(queue, segments, recovered.last, opening, options)?;
        let state = LogState {
            pending: VecDeque::new(),
            pending_bytes: 0,
            appended: 0,
            durable_commit: recovered.commit,
            durable_sequence: recovered.last.sequence,
            content_sequence: recovered.content,
            stated_sequence: recovered.stated,
            stated: 0,
            recovered_content: recovered.content,
            wants_closing: false,
            open_record: None,
            poisoned: None,
            refused: None,
            failed_checkpoints: 0,
            failure: None,
            position: recovered.position,
            anchor: recovered.anchor,
            marks: recovered.marks.into(),
            sleepers: Sleepers::default(),
            driving: false,
            keeper: KeeperPart::default(),
            slots,
            growth: Growth::default(),
        };
        Ok(Self(Arc::new(LogCore {
            options,
            state: Mutex::new(state),
            writer: Mutex::new(writer),
            grower: Mutex::new(grower),
            file,
            bell: Bell::new()?,
            hook: OnceLock::new(),
            afterwards: OnceLock::new(),
            durable: AtomicU64::new(0),
            file_bytes,
            pressure: Arc::new(Bell::new()?),
            counts: Counts::default(),
        })))
    }

    /// Sets what is called as commits become durable. Once, before the first commit.
    pub(crate) fn set_hook(&self, hook: DurableHook) {
        let set = self.0.hook.set(hook);
        debug_assert!(set.is_ok(), "the log has one hook");
    }

    /// Sets what is called by whoever has written, when those who waited have been woken: for work that nobody waits for. Once.
    pub(crate) fn set_afterwards(&self, afterwards: Afterwards) {
        let set = self.0.afterwards.set(afterwards);
        debug_assert!(set.is_ok(), "the log has one call for afterwards");
    }

    /// Whether a thread is writing to the log.
    pub(crate) fn is_writing(&self) -> bool {
        self.0.lock().driving
    }

    /// Rung whenever [`Log::wants_checkpoint`] may have become true, or somebody has come to wait for a checkpoint.
    pub(crate) fn pressure(&self) -> Arc<Bell> {
        Arc::clone(&self.0.pressure)
    }

    /// Nothing becomes durable from now on: something that commits rely on has failed elsewhere.
    pub(crate) fn poison(&self, cause: &Error) {
        self.0.poison(cause);
        self.0.wake_satisfied();
    }

    /// Whether anything can still become durable.
    ///
    /// # Errors
    /// `Poisoned`, with the cause, after a failure.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.lock().poisoned.clone().map_or(Ok(()), Err)
    }

    /// Makes room for a piece on this thread, with `checkpoint` where it must. False when there is none yet: commits that others have
    /// appended and not published are no part of a checkpoint, or others took it. Blocks.
    ///
    /// # Errors
    /// `Poisoned` after a failed write; what `checkpoint` fails with.
    pub(crate) fn make_room(&self, len_bytes: usize, checkpoint: impl FnOnce() -> Result<CommitSeq>) -> Result<bool> {
        let has_room = || self.0.has_room(&self.0.lock(), len_bytes);
        if has_room() {
            return Ok(true);
        }
        // A new segment needs nothing of others.
        if self.grow_for(len_bytes).unwrap_or(false) && has_room() {
            return Ok(true);
        }
        self.0.counts.room_waits.fetch_add(1, Ordering::Relaxed);
        // A checkpoint is of the visible commit, and only durable commits are visible. It takes no part of a record
        // that has begun: only memory, or a disk without room for a segment, can be in the way of one.
        self.flush()?;
        if !has_room() {
            checkpoint()?;
            self.grow_for(len_bytes).inspect_err(|_| self.0.lock().growth.refused += 1)?;
        }
        Ok(has_room())
    }

    /// Makes everything appended so far durable. Blocks.
    ///
    /// # Errors
    /// `Poisoned` after a failed write.
    pub(crate) fn flush(&self) -> Result<()> {
        let appended = self.0.lock().appended;
        pages::Ticket::wait(&mut self.durable(LogPosition(appended)))
    }

    /// As [`Log::flush`], and until a group says so: from then on damage to any of it is noticed. Blocks.
    ///
    /// # Errors
    /// `Poisoned` after a failed write.
    pub(crate) fn settle(&self) -> Result<()> {
        let appended = self.0.lock().appended;
        pages::Ticket::wait(&mut self.stated(LogPosition(appended)))
    }

    /// The newest commit that is durable.
    pub(crate) fn durable_commit(&self) -> CommitSeq {
        self.0.lock().durable_commit
    }

    /// After which group a recovery to the state of commit `commit` must replay. `commit` is durable.
    pub(crate) fn anchor_after(&self, commit: CommitSeq) -> Anchor {
        let state = self.0.lock();
        let younger = |mark: &Mark| mark.starts.is_some_and(|youngest| youngest > commit);
        // What was given up may be on its way still.
        let durable = |mark: &Mark| mark.anchor.sequence <= state.durable_sequence;
        let before = state.marks.iter().take_while(|mark| durable(mark) && !younger(mark)).last();
        before.map_or(state.anchor, |mark| mark.anchor)
    }

    /// A durable superblock names this anchor: segments before it can be used again, by whoever writes and needs one. Waits for nobody
    /// who writes.
    pub(crate) fn recycle(&self, anchor: Anchor) {
        {
            let mut state = self.0.lock();
            state.anchor = anchor;
            state.stated_sequence = state.stated_sequence.max(anchor.sequence);
            state.growth.may_shrink = self.0.slots_to_keep(&state) < state.slots;
            while state.marks.front().is_some_and(|mark| mark.anchor.sequence <= anchor.sequence) {
                state.marks.pop_front();
            }
        }
        self.0.wake_satisfied();
    }

    /// Whether there are parts of records after the anchor, for an opening to look at.
    pub(crate) fn has_records(&self) -> bool {
        let state = self.0.lock();
        !state.pending.is_empty() || state.content_sequence > state.anchor.sequence
    }

    /// Whether so much log has piled up that it is time for a checkpoint: half of what is allowed.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let state = self.0.lock();
        let is_pressed = self.0.live_bytes(&state, 0) * 2 > self.0.options.log_bytes || state.growth.failure.is_some();
        state.poisoned.is_none() && is_pressed
    }

    /// A checkpoint is about to be made: to be told [`Log::checkpoint_made`]. Blocks.
    pub(crate) fn checkpoint_begins(&self) -> u64 {
        self.0.prepare_growth()
    }

    /// The checkpoint has been made. Tickets that lack a segment although it has freed some get a new one, or are refused with
    /// `NoSpace`. Blocks.
    pub(crate) fn checkpoint_made(&self, begun: u64) {
        self.0.settle_growth(begun);
    }

    /// A checkpoint has failed. Whoever waits for the room that it would have made is told so, once, and may ask again: what was in the
    /// way need not stay.
    pub(crate) fn checkpoint_failed(&self, error: &Error) {
        self.0.refuse_room(error);
    }
}

impl CommitLog for Log {
    type Ticket = LogTicket;

    fn piece_bytes_max(&self) -> usize {
        // A piece must fit a log that a checkpoint has just emptied, beside what that left: or who waits for room waits for ever.
        let log_share = usize::try_from(self.0.options.log_bytes / 4).unwrap_or(usize::MAX);
        (self.0.options.buffer_bytes / 4).min(GROUP_BYTES_MAX).min(log_share)
    }

    fn append(&self, seq: CommitSeq, piece: &[&[u8]], last: Option<Durability>) -> Attempt<LogPosition> {
        let len_bytes: usize = piece.iter().map(|part| part.len()).sum();
        let mut state = self.0.lock();
        if let Some(error) = &state.poisoned {
            return Err(Wait::Failed(error.clone()));
        }
        if state.open_record.is_some_and(|open| open != seq) {
            state.give_up_record();
        }
        if !self.0.has_room(&state, len_bytes) {
            return Err(Wait::LogFull { len_bytes });
        }
        let mut bytes = Vec::with_capacity(len_bytes);
        piece.iter().for_each(|part| bytes.extend_from_slice(part));
        let first = state.open_record.is_none();
        state.open_record = last.is_none().then_some(seq);
        state.pending.push_back(Fragment {
            commit: seq,
            bytes,
            written: 0,
            first,
            last: last.is_some(),
            given_up: false,
        });
        // With its header: a record that is empty must be waited for as well.
        state.pending_bytes += PIECE_HEADER_BYTES + len_bytes;
        state.appended += (PIECE_HEADER_BYTES + len_bytes) as u64;
        let position = LogPosition(state.appended);
        let pressed = self.0.live_bytes(&state, 0) * 2 > self.0.options.log_bytes;
        let tell = last == Some(Durability::Deferred) && state.keeper.defer(position);
        let tell = self.0.grow_ahead(&mut state) || tell;
        drop(state);
        if pressed {
            self.0.pressure.ring();
        }
        if tell {
            self.0.bell.ring();
        }
        Ok(position)
    }

    fn room(&self, len_bytes: usize) -> LogTicket {
        let mut state = self.0.lock();
        let goal = Goal::Room { len_bytes, failures_before: state.failed_checkpoints };
        let (has_room, has_log_room) = (self.0.has_room(&state, len_bytes), self.0.has_log_room(&state, len_bytes));
        let asks = {
            let has_segments = self.0.has_segments(&state, len_bytes);
            state.growth.asks_again(has_segments)
        };
        drop(state);
        if !has_room {
            self.0.counts.room_waits.fetch_add(1, Ordering::Relaxed);
        }
        if !has_log_room || asks {
            // After the count of failures was taken: this one answers the ticket, whatever becomes of it.
            self.0.pressure.ring();
        }
        LogTicket::new(&self.0, goal)
    }

    fn refuse(&self, why: &Error) {
        self.0.refuse_for_good(why);
    }

    fn durable(&self, position: LogPosition) -> LogTicket {
        LogTicket::new(&self.0, Goal::Durable(position))
    }

    fn stated(&self, position: LogPosition) -> LogTicket {
        LogTicket::new(&self.0, Goal::Stated(position))
    }
}

impl LogState {
    /// Whether a group, or the superblock, says of all records that are durable that they are.
    fn is_stated(&self) -> bool {
        self.stated_sequence >= self.content_sequence
    }

    /// Whether a closing group is to be written, as far as is known here: groups may be in flight.
    fn closing_is_due(&self) -> bool {
        let wanted = self.wants_closing || self.sleepers.waits_for_closing();
        wanted && self.pending.is_empty() && !self.is_stated()
    }

    /// Whether there is something to write.
    fn has_work(&self) -> bool {
        !self.pending.is_empty() || self.closing_is_due() || self.growth.must_state
    }

    /// The record that has begun will not end. Recovery ignores its pieces, so checkpoints need not stay before them: they may take
    /// more of the log than there is room for, and whatever would be committed after them waits for that.
    fn give_up_record(&mut self) {
        let Some(given_up) = self.open_record.take() else { return };
        let before = Some(CommitSeq(given_up.0.saturating_sub(1)));
        self.marks.iter_mut().for_each(|mark| mark.starts = mark.starts.min(before));
        let pieces = self.pending.iter_mut().filter(|fragment| fragment.commit == given_up);
        pieces.for_each(|fragment| fragment.given_up = true);
    }
}

impl LogCore {
    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of log that recovery would have to read if `more` bytes were written as well.
    fn live_bytes(&self, state: &LogState, more: usize) -> u64 {
        state.position + (state.pending_bytes + more) as u64 - state.anchor.position
    }

    fn has_room(&self, state: &LogState, len_bytes: usize) -> bool {
        let in_memory = state.pending_bytes == 0 || state.pending_bytes + len_bytes <= self.options.buffer_bytes;
        in_memory && self.has_file_room(state, len_bytes)
    }

    /// The part of it that takes a checkpoint, or another segment.
    fn has_file_room(&self, state: &LogState, len_bytes: usize) -> bool {
        self.has_log_room(state, len_bytes) && self.has_segments(state, len_bytes)
    }

    /// The part of it that takes a checkpoint.
    fn has_log_room(&self, state: &LogState, len_bytes: usize) -> bool {
        // A record that has begun goes on whatever the size of the log: no checkpoint can pass it.
        state.open_record.is_some() || self.live_bytes(state, len_bytes) <= self.options.log_bytes
    }
}

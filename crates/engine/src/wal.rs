//! The write-ahead log: makes commits durable, many with one write (group commit).
//!
//! Commits append the fragments of their records to memory inside the commit section. One thread at a time is the group-commit
//! leader: it takes all pending fragments, up to the size of a group, and writes them durably on its own thread with one system
//! call. More than one group of fragments goes out as a few groups in flight. A thread waiting for its own commit becomes the
//! leader if there is none. When that commit is durable it first wakes the next leader, then the threads and tasks of the other
//! commits in its groups. For tasks and for deferred commits the WAL writer thread (`background_writer`) is the leader. Commits
//! are acknowledged in the order of the log, in whatever order the writes complete. Groups fill segments of one preallocated,
//! pre-written file; segments before the last checkpoint that no tail keeps are used again, oldest first.
//!
//! Invariants:
//! 1. A commit is reported durable only when its group and every group before it are durable.
//! 2. After a failed write the log is poisoned: it reports nothing more as durable and writes nothing more.
//! 3. A segment is used again only when the durable superblock names an anchor in a later segment, and no tail keeps it (`tail`).
//! 4. Every pending fragment has a future leader: the thread that appended it and has not begun to wait, a waiting
//!    thread, or the WAL writer (`waiting::WriterDuties`). A leader that stops wakes a waiting thread or notifies the
//!    WAL writer. `leadership` changes under the same lock as the list of waiters, so no thread can go to sleep between
//!    the check and the change.
//! 5. No two openings of a log write the same group: each opening has its own number (`number_of_opening`). If a power
//!    cut loses a group and keeps the next one, the kept group can only continue the lost group, never the group that
//!    is later written there.
//! 6. A waiting thread is woken only to become the leader, because its commit is durable and visible, because there is
//!    free log space for it, or because there will be none.
//! 7. Every acknowledged commit is soon recorded as durable by a later group: the next one, or an empty *closing
//!    group*. A closing group is written when the log is synced or closed, and by the WAL writer after a period without
//!    writes; never on account of another closing group.
//!
//! `reader` is the other direction; the bytes are in `format::log_group`.

mod background_writer;
mod groups;
mod growth;
mod reader;
mod segments;
mod shrink;
mod stats;
mod tail;
mod tail_reader;
mod waiting;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nofault_io::disk::{Disk, Queue, QueueOptions};

pub(crate) use self::background_writer::WalWriter;
use self::groups::Writer;
use self::growth::{Growth, reserve_slots, slots_min};
pub(crate) use self::reader::{RecordIter, RecoveredLog, create_log, read_damaged_log, read_log};
use self::segments::Segments;
use self::shrink::forget_copies;
use self::stats::Counts;
pub use self::stats::LogStats;
use self::tail::Holds;
pub(crate) use self::tail::LogHold;
pub(crate) use self::tail_reader::{TailReader, TailRecord};
use self::waiting::{Goal, LogTicket, Waiters, WriterDuties};
use crate::error::{Error, Result};
use crate::format::{CommitSeq, FRAGMENT_HEADER_BYTES, LOG_BLOCK_BYTES};
use crate::pages::{self, Attempt, CommitLog, Durability, Host, LogPosition, Wait};
use crate::sync::notifier::Notifier;

/// Most bytes of one group. A durable write of up to about this size takes hardly longer than a small one.
const GROUP_BYTES_MAX: usize = 128 << 10;
/// Most groups in flight at a time.
const GROUPS_IN_FLIGHT: usize = 4;
/// Most bytes of memory of the groups in flight. The reader's window takes no more, and no groups are in flight while
/// the log is read.
pub(crate) const GROUPS_IN_FLIGHT_BYTES: usize = GROUP_BYTES_MAX * GROUPS_IN_FLIGHT;
/// Smallest size of a segment: a few groups.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 4 * LOG_BLOCK_BYTES as u64;

/// Least usual size of a log: see [`Log::set_usual_bytes`].
const USUAL_BYTES_MIN: u64 = 64 << 20;
/// Largest size of a segment. The preparation of a segment occasionally delays a commit, and this bounds the delay.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 16 << 20;

/// The options of a log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogOptions {
    /// The random number of the database file, which enters every checksum.
    pub(crate) file_id: u64,
    /// Size of a segment in bytes, fixed when the log is created.
    pub(crate) segment_bytes: u64,
    /// Size in bytes of the log since the last checkpoint, beyond which new records wait for a checkpoint.
    pub(crate) log_bytes: u64,
    /// Limit on the bytes of appended fragments waiting in memory.
    pub(crate) buffer_bytes: usize,
    /// Fixes the number of an opening, which is random otherwise, for reproducible tests.
    pub(crate) seed: Option<u64>,
    pub(crate) purpose: LogPurpose,
}

/// The purpose for which a log is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogPurpose {
    /// It is read, and then appended to.
    Write,
    /// It is only read, and no process appends to it.
    Read,
    /// It is only read, while another process may append to it and make its file longer.
    ReadBesideWriter,
}

/// The identity of a group as a checkpoint stores it: recovery begins after this group and fails if the group is
/// missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) position: u64,
    pub(crate) sequence: u64,
    pub(crate) checksum: u64,
}

/// A handle of the log. Clones share one log.
#[derive(Clone)]
pub(crate) struct Log(Arc<LogCore>);

struct LogCore {
    /// The process with the log open.
    process: nofault_io::process::Process,
    options: LogOptions,
    state: Mutex<LogState>,
    writer: Mutex<Writer>,
    /// The queue for preparing and moving segments, apart from the groups in flight. Used by one thread at a time.
    grower: Mutex<Box<dyn Queue>>,
    /// The log's file, if it can be truncated.
    file: Option<Arc<dyn Disk>>,
    /// Notifies the WAL writer.
    notifier: Arc<Notifier>,
    host: OnceLock<Arc<dyn Host>>,
    /// Durable bytes since the log was opened, counting fragments with their headers. Changes under the lock of
    /// `state`, after the database was told and after the satisfied waiters were taken off the list.
    durable: AtomicU64,
    /// Length in bytes of the file's segments, to be read without the writer's lock, which a leader holds for long.
    file_bytes: AtomicU64,
    /// See [`Log::set_usual_bytes`].
    usual_bytes: AtomicU64,
    /// Notifies the thread that makes checkpoints.
    pressure: Arc<Notifier>,
    /// Set while a tail waits for groups to become durable.
    tail_waits: AtomicBool,
    counts: Counts,
}

/// A fragment of a record, of which all or the last part waits to be written.
struct Fragment {
    commit: CommitSeq,
    bytes: Vec<u8>,
    written: usize,
    first: bool,
    last: bool,
    /// True when the fragment belongs to an abandoned record, which will never end.
    given_up: bool,
}

/// A group that was written or is being written.
#[derive(Debug, Clone, Copy)]
struct Mark {
    anchor: Anchor,
    /// The newest commit with a record that starts in this group: recovery from the state of an earlier commit has to
    /// replay the group. Of an abandoned record, the commit before it.
    starts: Option<CommitSeq>,
}

struct LogState {
    pending: VecDeque<Fragment>,
    pending_bytes: usize,
    /// Bytes appended since the log was opened, counting fragments with their headers. A `LogPosition` is a value on
    /// this scale.
    appended: u64,
    durable_commit: CommitSeq,
    /// The sequence number of the last group that is durable together with all groups before it.
    durable_sequence: u64,
    /// The sequence number of the last durable group containing a fragment of a record.
    content_sequence: u64,
    /// The sequence number of the last group that a durable group, or the superblock, records as durable; `stated` is
    /// the end of that group on the scale of `LogPosition`.
    stated_sequence: u64,
    stated: u64,
    /// The value of `content_sequence` when the log was opened.
    recovered_content: u64,
    /// Set when a closing group must be written as soon as nothing else is pending (rule 7 of the log).
    wants_closing: bool,
    /// The commit of the record that has begun and not ended. The record's remaining fragments must not wait for a
    /// checkpoint.
    open_record: Option<CommitSeq>,
    poisoned: Option<Error>,
    /// Set until the failure is told of, which is done without a lock.
    poison_untold: bool,
    /// The reason why appends are refused. Fragments appended earlier still become durable.
    refused: Option<Error>,
    /// The number of failed checkpoints; `failure` is the error of the last one.
    failed_checkpoints: u64,
    failure: Option<Error>,
    /// The position of the next group in the log.
    position: u64,
    /// The last group that a recovery now would not replay: recovery begins after it.
    anchor: Anchor,
    marks: VecDeque<Mark>,
    /// The segments in the slots of the file.
    segments: Segments,
    /// The parts of the log that tails keep.
    holds: Holds,
    /// The position behind the last group that is durable together with all groups before it.
    durable_end: u64,
    waiters: Waiters,
    /// True while a group-commit leader exists: from `try_to_lead` until its `waiting::Leadership` is dropped.
    leadership: bool,
    writer_duties: WriterDuties,
    /// Number of segments for which the file has allocated and synced space.
    slots: u64,
    growth: Growth,
}

/// Chooses a number that no other opening of the log has. `groups` is a hash of all groups in the file. With a fixed
/// seed only that hash distinguishes the openings, and it suffices: the groups of an earlier opening did not exist
/// when that opening chose its number.
fn number_of_opening(seed: Option<u64>, groups: u64) -> u64 {
    let chance = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    let mut hasher = DefaultHasher::new();
    (chance, groups).hash(&mut hasher);
    hasher.finish()
}

impl Log {
    /// Continues a log that was recovered, or begins one that `create` made.
    ///
    /// # Errors
    /// The disk's error for opening a queue; `NoSpace` without memory.
    pub(crate) fn open(disk: &dyn Disk, options: LogOptions, recovered: RecoveredLog) -> Result<Self> {
        Self::open_on(disk, disk, None, options, recovered)
    }

    /// Continues or begins a log as [`Log::open`] does. `to_grow` is the file to prepare and move segments and to truncate: opened
    /// once more where it is in the page cache. An error of write-back is reported once to each opening, at its next sync, so the
    /// sync of a new segment must not consume the error of a group. With direct I/O a write reports its own error.
    ///
    /// # Errors
    /// The disk's error for opening a queue; `NoSpace` without memory.
    pub(crate) fn open_to_grow(
        disk: &dyn Disk,
        to_grow: &Arc<dyn Disk>,
        options: LogOptions,
        recovered: RecoveredLog,
    ) -> Result<Self> {
        Self::open_on(disk, &**to_grow, Some(Arc::clone(to_grow)), options, recovered)
    }

    fn open_on(
        disk: &dyn Disk,
        to_grow: &dyn Disk,
        file: Option<Arc<dyn Disk>>,
        options: LogOptions,
        recovered: RecoveredLog,
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
        let writer = Writer::new(queue, recovered.last, opening, options)?;
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
            poison_untold: false,
            refused: None,
            failed_checkpoints: 0,
            failure: None,
            position: recovered.position,
            anchor: recovered.anchor,
            marks: recovered.marks.into(),
            segments,
            holds: Holds::default(),
            durable_end: recovered.position,
            waiters: Waiters::default(),
            leadership: false,
            writer_duties: WriterDuties::default(),
            slots,
            growth: Growth::default(),
        };
        Ok(Self(Arc::new(LogCore {
            process: Default::default(),
            options,
            state: Mutex::new(state),
            writer: Mutex::new(writer),
            grower: Mutex::new(grower),
            file,
            notifier: Arc::default(),
            host: OnceLock::new(),
            durable: AtomicU64::new(0),
            file_bytes,
            usual_bytes: AtomicU64::new(u64::MAX),
            pressure: Arc::default(),
            tail_waits: AtomicBool::new(false),
            counts: Counts::default(),
        })))
    }

    /// Sets the database that the log belongs to. Call it once, before the first commit.
    pub(crate) fn set_host(&self, host: Arc<dyn Host>) {
        let set = self.0.host.set(host);
        debug_assert!(set.is_ok(), "the log has one database");
    }

    /// Returns whether a thread is writing to the log.
    pub(crate) fn is_writing(&self) -> bool {
        self.0.lock().leadership
    }

    /// Returns the notifier of the thread that makes checkpoints: of [`Log::wants_checkpoint`], and of callers that wait.
    pub(crate) fn pressure(&self) -> Arc<Notifier> {
        Arc::clone(&self.0.pressure)
    }

    /// Poisons the log after a failure elsewhere that commits rely on: nothing becomes durable from now on.
    pub(crate) fn poison(&self, cause: &Error) {
        self.0.poison(cause);
        self.0.wake_satisfied();
        self.0.tell_of_poison();
    }

    /// Checks that commits can still become durable.
    ///
    /// # Errors
    /// `Poisoned`, with the cause, after a failure.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.lock().poisoned.clone().map_or(Ok(()), Err)
    }

    /// Frees log space for a fragment of `len_bytes` bytes on this thread, by calling `checkpoint` where necessary.
    /// Returns false when there is no space yet, because other threads took it, or because of commits that other
    /// threads have appended and not published, which no checkpoint includes yet. Blocks.
    ///
    /// # Errors
    /// `Poisoned` after a failed write; the error of `checkpoint`.
    pub(crate) fn make_space(&self, len_bytes: usize, checkpoint: impl FnOnce() -> Result<CommitSeq>) -> Result<bool> {
        let has_space = || self.0.has_space(&self.0.lock(), len_bytes);
        if has_space() {
            return Ok(true);
        }
        // A new segment does not depend on other commits, so it is tried first.
        if self.grow_for(len_bytes).unwrap_or(false) && has_space() {
            return Ok(true);
        }
        self.0.counts.space_waits.fetch_add(1, Ordering::Relaxed);
        // A checkpoint covers the visible commits, and only durable commits are visible, so everything appended is
        // written first. A checkpoint includes no part of an open record: only memory, or a disk without space for a
        // segment, can delay such a record.
        self.flush()?;
        if !has_space() {
            checkpoint()?;
            self.grow_for(len_bytes).inspect_err(|_| self.0.lock().growth.refused += 1)?;
        }
        Ok(has_space())
    }

    /// Makes everything appended so far durable. Blocks.
    ///
    /// # Errors
    /// `Poisoned` after a failed write.
    pub(crate) fn flush(&self) -> Result<()> {
        let appended = self.0.lock().appended;
        pages::Ticket::wait(&mut self.durable(LogPosition(appended)))
    }

    /// Makes everything appended so far durable, as [`Log::flush`], and waits until a later group records that it is:
    /// from then on damage to any of it is detected. Blocks.
    ///
    /// # Errors
    /// `Poisoned` after a failed write.
    pub(crate) fn flush_acknowledged(&self) -> Result<()> {
        let appended = self.0.lock().appended;
        pages::Ticket::wait(&mut self.stated(LogPosition(appended)))
    }

    /// Returns the newest durable commit.
    pub(crate) fn durable_commit(&self) -> CommitSeq {
        self.0.lock().durable_commit
    }

    /// Records that a durable superblock names `anchor`, so that the writing thread may use the segments before it
    /// again. Does not wait for a write in progress.
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

    /// Returns whether the log has records, or parts of records, after the anchor, which the next opening would replay.
    pub(crate) fn has_records(&self) -> bool {
        let state = self.0.lock();
        !state.pending.is_empty() || state.content_sequence > state.anchor.sequence
    }

    /// Sets the size beyond half of which the log wants a checkpoint, if it is smaller than the setting: a log many
    /// times as large as the data would make the database large and its opening slow.
    pub(crate) fn set_usual_bytes(&self, bytes: u64) {
        self.0.usual_bytes.store(bytes.max(USUAL_BYTES_MIN), Ordering::Relaxed);
    }

    /// Returns whether a checkpoint is due: the log holds more than half of its usual size, or the file could not grow.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let state = self.0.lock();
        let is_pressed = self.0.holds_quarters(&state, 2) || state.growth.failure.is_some();
        state.poisoned.is_none() && is_pressed
    }

    /// Prepares the log for a checkpoint. Returns the number that must be passed to [`Log::checkpoint_made`]. Blocks.
    pub(crate) fn checkpoint_begins(&self) -> u64 {
        self.0.prepare_growth()
    }

    /// Serves the tickets waiting for log space, after a checkpoint. Tickets that still lack a segment get a new one,
    /// or are refused with `NoSpace`. Blocks.
    pub(crate) fn checkpoint_made(&self, begun: u64) {
        self.0.settle_growth(begun);
    }

    /// Reports that a checkpoint failed. Each caller that waits for the log space that the checkpoint would have freed
    /// gets the error once and may try again, since the cause need not persist.
    pub(crate) fn checkpoint_failed(&self, error: &Error) {
        self.0.refuse_space(error);
    }
}

impl CommitLog for Log {
    type Ticket = LogTicket;

    fn fragment_bytes_max(&self) -> usize {
        // A fragment must fit a log that a checkpoint has just emptied, next to the groups that remain; otherwise its
        // append waits for ever.
        let log_share = usize::try_from(self.0.options.log_bytes / 4).unwrap_or(usize::MAX);
        (self.0.options.buffer_bytes / 4).min(GROUP_BYTES_MAX).min(log_share)
    }

    fn append(&self, seq: CommitSeq, fragment: &[&[u8]], last: Option<Durability>) -> Attempt<LogPosition> {
        let len_bytes: usize = fragment.iter().map(|part| part.len()).sum();
        let mut state = self.0.lock();
        if let Some(error) = &state.poisoned {
            return Err(Wait::Failed(error.clone()));
        }
        let end = state.position + (state.pending_bytes + len_bytes) as u64;
        state.holds.end_overdue(end);
        if state.open_record.is_some_and(|open| open != seq) {
            state.give_up_record();
        }
        if !self.0.has_space(&state, len_bytes) {
            return Err(Wait::LogFull { len_bytes });
        }
        let mut bytes = Vec::with_capacity(len_bytes);
        fragment.iter().for_each(|part| bytes.extend_from_slice(part));
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
        // Counted with the header, so that an empty record, too, has a position for which a ticket can wait.
        state.pending_bytes += FRAGMENT_HEADER_BYTES + len_bytes;
        state.appended += (FRAGMENT_HEADER_BYTES + len_bytes) as u64;
        let position = LogPosition(state.appended);
        let pressed = self.0.holds_quarters(&state, 2);
        let tell = state.writer_duties.note_commit(last, position);
        let tell = self.0.grow_ahead(&mut state) || tell;
        drop(state);
        if pressed {
            self.0.pressure.notify();
        }
        if tell {
            self.0.notifier.notify();
        }
        Ok(position)
    }

    fn await_space(&self, len_bytes: usize) -> LogTicket {
        let mut state = self.0.lock();
        let goal = Goal::FreeSpace { len_bytes, failures_before: state.failed_checkpoints };
        let (has_space, has_log_space) = (self.0.has_space(&state, len_bytes), self.0.has_log_space(&state, len_bytes));
        let asks = {
            let has_segments = self.0.has_segments(&state, len_bytes);
            state.growth.asks_again(has_segments)
        };
        drop(state);
        if !has_space {
            self.0.counts.space_waits.fetch_add(1, Ordering::Relaxed);
        }
        if !has_log_space || asks {
            // Notifies after the count of failures was read, so that the outcome of the requested checkpoint counts for
            // the ticket.
            self.0.pressure.notify();
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
    /// Returns whether a durable group, or the superblock, records that all durable records are durable.
    fn is_stated(&self) -> bool {
        self.stated_sequence >= self.content_sequence
    }

    /// Returns whether a closing group is due, ignoring groups in flight, which may make it superfluous.
    fn closing_is_due(&self) -> bool {
        let wanted = self.wants_closing || self.waiters.waits_for_closing();
        wanted && self.pending.is_empty() && !self.is_stated()
    }

    /// Returns whether the group-commit leader has something to write.
    fn has_work(&self) -> bool {
        !self.pending.is_empty() || self.closing_is_due() || self.growth.must_state
    }

    /// Marks the open record as abandoned: it will not end. Recovery ignores its fragments, so checkpoints may pass
    /// them. They may fill more of the log than its allowed size, and commits after them wait until a
    /// checkpoint has freed space.
    fn give_up_record(&mut self) {
        let Some(given_up) = self.open_record.take() else { return };
        let before = Some(CommitSeq(given_up.0.saturating_sub(1)));
        self.marks.iter_mut().for_each(|mark| mark.starts = mark.starts.min(before));
        let fragments = self.pending.iter_mut().filter(|fragment| fragment.commit == given_up);
        fragments.for_each(|fragment| fragment.given_up = true);
    }
}

impl LogCore {
    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes of log that recovery would have to read if `more` bytes were written as well.
    fn live_bytes(&self, state: &LogState, more: usize) -> u64 {
        state.position + (state.pending_bytes + more) as u64 - state.anchor.position
    }

    fn has_space(&self, state: &LogState, len_bytes: usize) -> bool {
        let in_memory = state.pending_bytes == 0 || state.pending_bytes + len_bytes <= self.options.buffer_bytes;
        in_memory && self.has_file_space(state, len_bytes)
    }

    /// Returns whether `len_bytes` more bytes fit into the allowed log size and into the prepared segments.
    fn has_file_space(&self, state: &LogState, len_bytes: usize) -> bool {
        self.has_log_space(state, len_bytes) && self.has_segments(state, len_bytes)
    }

    /// Returns whether the log holds more than so many quarters of its usual size.
    fn holds_quarters(&self, state: &LogState, quarters: u64) -> bool {
        let usual_bytes = self.options.log_bytes.min(self.usual_bytes.load(Ordering::Relaxed));
        self.live_bytes(state, 0) * 4 > usual_bytes * quarters
    }

    /// Returns whether `len_bytes` more bytes fit into the allowed log size; if not, only a checkpoint frees space.
    fn has_log_space(&self, state: &LogState, len_bytes: usize) -> bool {
        // A record that has begun continues regardless of the size of the log, because no checkpoint can pass it.
        state.open_record.is_some() || self.live_bytes(state, len_bytes) <= self.options.log_bytes
    }
}

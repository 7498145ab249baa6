//! Readers of this database in other processes: the blocks that the writer keeps for them, and how each of them makes sure of it.
//!
//! A reader registers the sequence of the checkpoint that it reads, by a lock behind the end of the data file; it writes
//! nothing, and the kernel forgets it when its process ends. The writer keeps the blocks that such a checkpoint names
//! ([`Readers::keeps_for`]), for [`Settings::readers_wait_max`](crate::settings::Settings::readers_wait_max) at most. Then
//! it says in the record next to the file which checkpoints it keeps no more, and only after that uses the blocks again.
//!
//! Kept true by:
//! 1. A reader registers, and *then* reads which checkpoint is in force; the writer makes a checkpoint the one in force,
//!    and *then* lists the registered readers. So of the two at least one sees the other: a reader that the writer has not
//!    seen reads the newer checkpoint, and registers that.
//! 2. The record is written before a block that a registered reader may use is given out. A reader looks at the record
//!    *after* each read of a block. So bytes that another version has replaced are never taken for its own, even if the
//!    registration was overlooked.
//! 3. Nothing is known after a crash of the writer of the blocks that it kept. So the next writer, before it writes
//!    anything, says that it keeps no checkpoint before the one it begins with. It does not begin while readers of a later
//!    one are there, which it would overwrite.
//! 4. Segments of the log are used again, moved or cut off only while no reader reads the log, or, after the same limit,
//!    with a count of such changes in the record, which a reader compares before and after.
//!
//! `model` is this protocol as a state machine, of which a test goes through all states.

mod registration;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nofault_io::disk::{READER_NUMBERS, ReaderUse, ReaderWatch};

pub(crate) use self::registration::Registration;
use crate::error::{Error, ErrorKind, Result};
use crate::format::ReaderRecord;

/// Longest wait for readers of the log: they read it in much less, and commits may wait that long.
const LOG_WAIT_MAX: Duration = Duration::from_secs(5);
/// Pause between two looks at the readers of the log.
const PAUSE: Duration = Duration::from_millis(1);

/// The readers in other processes, as the writer sees them.
pub(crate) struct Readers(Option<WatchedReaders>);

struct WatchedReaders {
    watch: Arc<dyn ReaderWatch>,
    wait_max: Duration,
    state: Mutex<ReaderState>,
}

struct ReaderState {
    record: ReaderRecord,
    /// Registrations of the log before this number are of readers waited for in vain.
    log_from: u64,
    /// The checkpoints that gave blocks up which earlier ones name and registered readers use, oldest first, each with
    /// the time since when the blocks are kept.
    kept: VecDeque<(u64, Instant)>,
}

impl WatchedReaders {
    fn lock(&self) -> MutexGuard<'_, ReaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the record with a change. It is in force for the writer only when it is written.
    ///
    /// # Errors
    /// The error of the disk: readers do not know of the change.
    fn publish(&self, state: &mut ReaderState, change: impl FnOnce(&mut ReaderRecord)) -> Result<()> {
        let mut record = state.record;
        change(&mut record);
        self.watch.write_record(&record.encode()).map_err(|error| Error::from_io("tell the readers", error))?;
        state.record = record;
        Ok(())
    }

    /// Returns whether a reader has registered one of these numbers. One that cannot be asked for may be there.
    fn may_be_in_use(&self, of: ReaderUse, numbers: std::ops::Range<u64>) -> bool {
        self.watch.is_in_use(of, numbers).unwrap_or(true)
    }
}

impl Readers {
    /// The readers of a database that no other process can read.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Begins to look after the readers of a database that is being opened at checkpoint `sequence`, before anything is
    /// written to it. Readers of earlier checkpoints learn that nothing is kept for them.
    ///
    /// # Errors
    /// `Busy` when readers are open that cannot be told of any change: the record is damaged, or they have read a checkpoint
    /// that is gone, as a failed write of it or another file in the place of this one explains. The error of the disk.
    pub(crate) fn begin(
        watch: Option<Arc<dyn ReaderWatch>>,
        file_id: u64,
        sequence: u64,
        wait_max: Duration,
    ) -> Result<Self> {
        let Some(watch) = watch else { return Ok(Self::none()) };
        let failed = |error| Error::from_io("ask for readers in other processes", error);
        let before = watch.record().map_err(failed)?.and_then(|bytes| ReaderRecord::decode(&bytes));
        let inode = watch.record_inode();
        let before = before.filter(|record| (record.file_id, record.inode) == (file_id, inode));
        let is_any = watch.is_in_use(ReaderUse::Content, 0..sequence + 1).map_err(failed)?;
        if before.is_none() && is_any {
            let what = "readers in other processes have this database open, and the file that tells them of changes is damaged: close them first";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        if watch.is_in_use(ReaderUse::Content, sequence + 1..READER_NUMBERS).map_err(failed)? {
            let what = format!(
                "readers in other processes have this database open at a later checkpoint than {sequence}, the last one that is there: close them first"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let log_changes = before.map_or(0, |record| record.log_changes).next_multiple_of(2);
        let record = ReaderRecord { file_id, kept_from: sequence, log_changes, inode };
        let state = Mutex::new(ReaderState { record, log_from: 0, kept: VecDeque::new() });
        let readers = WatchedReaders { watch, wait_max, state };
        let published = readers.publish(&mut readers.lock(), |_| {});
        // Readers that register from now on register this checkpoint or a later one, and need not be told.
        if readers.watch.is_in_use(ReaderUse::Content, 0..sequence).map_err(failed)? || before.is_none() {
            match published {
                // Without a record no reader registers.
                Err(error) if error.kind() == ErrorKind::NoSpace && before.is_none() => return Ok(Self::none()),
                published => published?,
            }
        }
        Ok(Self(Some(readers)))
    }

    /// Changes the log in a way that its readers must not see, when none reads it, or after the limit with a count in
    /// the record. Blocks.
    ///
    /// # Errors
    /// The error of `change`, or of writing the record.
    pub(crate) fn change_log<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(readers) = &self.0 else { return change() };
        let (since, limit) = (Instant::now(), readers.wait_max.min(LOG_WAIT_MAX));
        loop {
            if matches!(readers.watch.try_exclude(ReaderUse::Log), Ok(true)) {
                let _excluded = ExcludedLogReaders(readers);
                return change();
            }
            if since.elapsed() >= limit {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        // Odd from here on, so that readers that begin to read the log in between know.
        readers.publish(&mut readers.lock(), |record| record.log_changes += 1)?;
        let changed = change();
        readers.publish(&mut readers.lock(), |record| record.log_changes += 1)?;
        changed
    }

    /// As [`Readers::change_log`], unless a reader reads the log: then nothing happens.
    pub(crate) fn try_change_log(&self, change: impl FnOnce()) {
        let Some(readers) = &self.0 else { return change() };
        if matches!(readers.watch.try_exclude(ReaderUse::Log), Ok(true)) {
            let _excluded = ExcludedLogReaders(readers);
            change();
        }
    }

    /// Waits for the readers of the log of checkpoints before `sequence`, which is in force, up to the limit. Returns
    /// whether the part of the log that only they need may be used again. Blocks.
    pub(crate) fn await_log_readers(&self, sequence: u64) -> bool {
        let Some(readers) = &self.0 else { return true };
        let (since, limit) = (Instant::now(), readers.wait_max.min(LOG_WAIT_MAX));
        let from = readers.lock().log_from;
        while readers.may_be_in_use(ReaderUse::Log, from.min(sequence)..sequence) {
            if since.elapsed() >= limit {
                let mut state = readers.lock();
                let is_told = readers.publish(&mut state, |record| record.log_changes += 2).is_ok();
                if is_told {
                    state.log_from = sequence;
                }
                return is_told;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// Returns whether registered readers may use blocks that checkpoint `sequence`, the one in force, does not name. If
    /// so, the caller keeps the blocks released before it, under that number.
    pub(crate) fn keeps_for(&self, sequence: u64) -> bool {
        let Some(readers) = &self.0 else { return false };
        let mut state = readers.lock();
        let keeps = readers.may_be_in_use(ReaderUse::Content, state.record.kept_from..sequence);
        if keeps {
            state.kept.push_back((sequence, Instant::now()));
        }
        keeps
    }

    /// Returns the number up to which kept blocks are free now: no reader is left that may use them, or it was waited for
    /// long enough and can learn that from the record. `None` when there are none.
    pub(crate) fn free_until(&self) -> Option<u64> {
        let readers = self.0.as_ref()?;
        let (mut state, mut until) = (readers.lock(), None);
        while let Some((sequence, since)) = state.kept.front().copied() {
            let is_used = readers.may_be_in_use(ReaderUse::Content, state.record.kept_from.min(sequence)..sequence);
            let is_over = since.elapsed() >= readers.wait_max;
            if is_used && !(is_over && readers.give_up(&mut state, sequence)) {
                break;
            }
            state.kept.pop_front();
            until = Some(sequence);
        }
        until
    }

    /// Ends the keeping of all blocks at once, because the disk is full. Returns the number up to which kept blocks are
    /// free now.
    pub(crate) fn give_up_all(&self) -> Option<u64> {
        let readers = self.0.as_ref()?;
        let mut state = readers.lock();
        let last = state.kept.back()?.0;
        let is_told = readers.give_up(&mut state, last);
        if is_told {
            state.kept.clear();
        }
        is_told.then_some(last)
    }
}

impl WatchedReaders {
    /// Tells readers that checkpoints before `sequence` are kept no more. Returns whether they can learn it.
    fn give_up(&self, state: &mut ReaderState, sequence: u64) -> bool {
        self.publish(state, |record| record.kept_from = record.kept_from.max(sequence)).is_ok()
    }
}

/// Readers kept from beginning to read the log, until this is dropped.
struct ExcludedLogReaders<'a>(&'a WatchedReaders);

impl Drop for ExcludedLogReaders<'_> {
    fn drop(&mut self) {
        self.0.watch.admit(ReaderUse::Log);
    }
}

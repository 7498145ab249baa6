//! A reader's registration: see [`super::Readers`] for the protocol.

use std::time::{Duration, Instant};

use nofault_io::disk::ReaderUse;
use nofault_io::folder::ReaderLocks;

use crate::error::{Error, ErrorKind, Result};
use crate::format::ReaderRecord;

/// Attempts to read a record that the writer is replacing.
const RECORD_READS_MAX: u32 = 1000;
/// Longest time in which a reader tries to register. The writer keeps readers out for moments, and makes no checkpoint in
/// the time of two reads of a superblock again and again.
const REGISTER_MAX: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);

/// The registration of this process as a reader of one checkpoint of a database. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    locks: ReaderLocks,
    file_id: u64,
    sequence: u64,
    /// The count of changes of the log before it was read.
    log_changes: u64,
}

/// The checkpoint in force: the number of the file, and its sequence.
pub(crate) type InForce = (u64, u64);

impl Registration {
    /// Registers as a reader of the newest checkpoint and of its log. `in_force` reads which one that is. Returns `None`
    /// where the writer, or one that may come, would not know of the reader: then it must be kept out.
    ///
    /// # Errors
    /// `Busy` when the writer kept readers out for too long; the errors of `in_force` and of the system.
    pub(crate) fn begin(locks: ReaderLocks, mut in_force: impl FnMut() -> Result<InForce>) -> Result<Option<Self>> {
        let failed = |error| Error::from_io("register as a reader", error);
        let begun = Instant::now();
        let (mut file_id, mut sequence) = in_force()?;
        loop {
            match read_record(&locks)? {
                Some(record) if record.file_id == file_id => {}
                _ => return Ok(None),
            }
            if !locks.try_register(ReaderUse::Content, sequence).map_err(failed)? {
                // Its lock is on the whole file.
                return Ok(None);
            }
            if locks.try_register(ReaderUse::Log, sequence).map_err(failed)? {
                // Read only now: a checkpoint made before would not have seen this registration.
                let again = in_force()?;
                let record = read_record(&locks)?.filter(|record| record.file_id == file_id);
                let Some(record) = record else { return Ok(None) };
                let has_writer = locks.has_writer().map_err(failed)?;
                let is_in_force = again == (file_id, sequence);
                if is_in_force {
                    // Without a writer, a file older than its record, or a writer that has crashed.
                    if record.kept_from > sequence && !has_writer {
                        return Ok(None);
                    }
                    let is_changing = !record.log_changes.is_multiple_of(2) && has_writer;
                    if record.kept_from <= sequence && !is_changing {
                        let log_changes = record.log_changes;
                        return Ok(Some(Self { locks, file_id, sequence, log_changes }));
                    }
                }
                locks.withdraw(ReaderUse::Log, sequence);
                locks.withdraw(ReaderUse::Content, sequence);
                if is_in_force {
                    std::thread::sleep(PAUSE);
                }
                (file_id, sequence) = again;
            } else {
                locks.withdraw(ReaderUse::Content, sequence);
                std::thread::sleep(PAUSE);
                (file_id, sequence) = in_force()?;
            }
            if begun.elapsed() > REGISTER_MAX {
                let what = "the process that writes this database has kept readers out for too long: try again";
                return Err(Error::new(ErrorKind::Busy, what));
            }
        }
    }

    /// Returns the sequence of the checkpoint that is registered.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether blocks of this reader's checkpoint may have been used again: then what was read from the file
    /// before this call may be of another version. One or two system calls.
    ///
    /// # Errors
    /// The error of reading the record.
    pub(crate) fn is_given_up(&self) -> Result<bool> {
        let record = read_record(&self.locks)?.filter(|record| record.file_id == self.file_id);
        Ok(record.is_none_or(|record| record.kept_from > self.sequence))
    }

    /// Returns whether the log has stayed as it was since this reader registered.
    ///
    /// # Errors
    /// The error of reading the record.
    pub(crate) fn log_has_stayed(&self) -> Result<bool> {
        let record = read_record(&self.locks)?.filter(|record| record.file_id == self.file_id);
        Ok(record.is_some_and(|record| record.log_changes == self.log_changes))
    }

    /// Registers as a reader of the log again. Returns false when the writer keeps readers out.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn begin_log(&self) -> Result<bool> {
        let begun = self.locks.try_register(ReaderUse::Log, self.sequence);
        begun.map_err(|error| Error::from_io("register as a reader", error))
    }

    /// Ends the registration as a reader of the log, which has been read.
    pub(crate) fn end_log(&self) {
        self.locks.withdraw(ReaderUse::Log, self.sequence);
    }

    /// Ends the registration, of a reader reading no more.
    pub(crate) fn end(&self) {
        self.locks.withdraw(ReaderUse::Content, self.sequence);
    }

    /// Checks that `name` still stands for the file of this registration.
    ///
    /// # Errors
    /// `Busy` when it was replaced.
    pub(crate) fn check(&self, name: &str) -> nofault_io::error::Result<()> {
        self.locks.check(name)
    }
}

/// Reads the record, again while the writer is replacing it. `None` where there is none, other bytes, or a copy.
fn read_record(locks: &ReaderLocks) -> Result<Option<ReaderRecord>> {
    for _ in 0..RECORD_READS_MAX {
        let bytes = locks.record().map_err(|error| Error::from_io("read the record for readers", error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        if let Some(record) = ReaderRecord::decode(&bytes) {
            return Ok(Some(record).filter(|record| Some(record.inode) == locks.record_inode()));
        }
        std::thread::yield_now();
    }
    Ok(None)
}

//! Registrations of processes reading a file while another one writes it.
//!
//! A reader registers a number by a shared lock on one byte, far behind anything that the file can contain. It writes
//! nothing, so it may read from a read-only mount of the same file system, and the kernel clears its registration
//! when it ends, however it ends. The writer locks the bytes before, and asks the kernel whether anyone has registered
//! a number in a range. It leaves what it has to tell readers in a small file next to it, the *record*.
//!
//! Kept true by:
//! 1. Locks are of the open file description, and of the file itself: no name that is removed or put back matters.
//! 2. A program that locks the whole file, to write or to read, excludes writers, and one that writes excludes readers:
//!    it may know nothing of registrations.
//! 3. A reader and the writer have the same record. A copy of it tells so by its inode, and a file with names in two
//!    folders, each with its own record, counts as one without.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::Folder;
use super::byte_locks::{ByteRange, conflicts, set_description_lock};
use crate::disk::{READER_NUMBERS, READER_RECORD_BYTES, ReaderUse, ReaderWatch};
use crate::error::{Error, ErrorKind, Result};
use crate::file::open_regular;
use crate::process::Process;

/// Returns the bytes whose locks register these numbers.
///
/// # Errors
/// `InvalidCall` for numbers too large.
fn bytes_of(of: ReaderUse, numbers: &Range<u64>) -> Result<ByteRange> {
    if numbers.end > READER_NUMBERS || numbers.start >= numbers.end {
        let detail = format!("the numbers {numbers:?} are not below 2^61");
        return Err(Error::new(ErrorKind::InvalidCall, "register a reader", detail));
    }
    let first = match of {
        ReaderUse::Content => 1 << 62,
        ReaderUse::Log => (1 << 62) + READER_NUMBERS,
    };
    let (start, len) = (first + numbers.start, numbers.end - numbers.start);
    Ok(ByteRange { start: start as i64, len: len as i64 })
}

/// The registrations of one reader; they end when this is dropped, or when the process ends.
#[derive(Debug)]
pub struct ReaderLocks {
    /// The open file to which the kernel ties the registrations.
    data: File,
    id: (u64, u64),
    record: Option<Record>,
    folder: Arc<File>,
    path: PathBuf,
    /// The process that registered. A forked child has the same open files, and must not end the registrations.
    owner: Process,
}

impl Folder {
    /// Opens the file `name` to register as its reader, and the record of its writer, if there is one. Writes nothing.
    ///
    /// # Errors
    /// `NotFound`, `NoPermission`; `InvalidCall` when one of the two is no regular file.
    pub fn reader_locks(&self, name: &str, record: &str) -> Result<ReaderLocks> {
        let (path, record_path) = (self.path_of(name)?, self.path_of(record)?);
        let open = |name: &str, path| open_regular("register", self.descriptor.as_fd(), name, path, OFlags::RDONLY);
        let data = open(name, &path)?;
        let stat = rustix::fs::fstat(&data).map_err(|error| Error::from_rustix("register", error).at(&path))?;
        let record = match open(record, &record_path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            opened => Some(Record::of(opened?, &record_path)?).filter(|_| stat.st_nlink == 1),
        };
        let folder = Arc::clone(&self.descriptor);
        Ok(ReaderLocks { data, id: (stat.st_dev, stat.st_ino), record, folder, path, owner: Process::current() })
    }
}

impl ReaderLocks {
    /// Registers a number. Returns false when the writer excludes readers, or is a program that knows of none.
    ///
    /// # Errors
    /// `Unsupported` where the kernel or the file system has no such locks; `InvalidCall` for numbers from 2^61 on.
    pub fn try_register(&self, of: ReaderUse, number: u64) -> Result<bool> {
        match set_description_lock(&self.data, libc::F_RDLCK, bytes_of(of, &(number..number + 1))?) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(error) => {
                let detail = format!("{error}: this file system has no locks of ranges");
                Err(Error::new(ErrorKind::Unsupported, "register a reader", detail).at(&self.path))
            }
        }
    }

    /// Ends the registration of a number.
    pub fn withdraw(&self, of: ReaderUse, number: u64) {
        if let Ok(bytes) = bytes_of(of, &(number..number + 1)) {
            // Cannot fail for a lock that is held, but for memory, and then the registration lasts until this is dropped.
            let _ = set_description_lock(&self.data, libc::F_UNLCK, bytes);
        }
    }

    /// Returns whether a process has the file open to write.
    ///
    /// # Errors
    /// The error of the system.
    pub fn has_writer(&self) -> Result<bool> {
        conflicts(&self.data, libc::F_RDLCK, ByteRange::WRITER)
            .map_err(|error| Error::from_rustix("ask for a writer", error).at(&self.path))
    }

    /// Reads the record of the writer: bytes that it may be about to replace. `None` where there is none, or too little.
    ///
    /// # Errors
    /// The error of the system.
    pub fn record(&self) -> Result<Option<[u8; READER_RECORD_BYTES]>> {
        let Some(record) = &self.record else { return Ok(None) };
        record.read().map_err(|error| error.at(&self.path))
    }

    /// Returns the inode of the record's file; `None` where there is none.
    pub fn record_inode(&self) -> Option<u64> {
        self.record.as_ref().map(|record| record.inode)
    }

    /// Returns the identity of the file on this machine, device and inode.
    pub fn id(&self) -> (u64, u64) {
        self.id
    }

    /// Checks that `name` still stands for the file of which this is a reader.
    ///
    /// # Errors
    /// `Busy` when the name stands for another file, or for none.
    pub fn check(&self, name: &str) -> Result<()> {
        match rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if (stat.st_dev, stat.st_ino) == self.id => Ok(()),
            Ok(_) | Err(Errno::NOENT) => {
                let detail = "the file was replaced or removed meanwhile: try again";
                Err(Error::new(ErrorKind::Busy, "register a reader", detail).at(&self.path))
            }
            Err(error) => Err(Error::from_rustix("register a reader", error).at(&self.path)),
        }
    }
}

impl Drop for ReaderLocks {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // Before the file is closed: a child that is being started has it open, too.
            let _ = set_description_lock(&self.data, libc::F_UNLCK, ByteRange::WHOLE);
        }
    }
}

/// The open file of the record.
#[derive(Debug)]
struct Record {
    file: Arc<File>,
    inode: u64,
}

impl Record {
    fn of(file: File, path: &Path) -> Result<Self> {
        let stat = rustix::fs::fstat(&file).map_err(|error| Error::from_rustix("open", error).at(path))?;
        Ok(Self { file: Arc::new(file), inode: stat.st_ino })
    }

    fn read(&self) -> Result<Option<[u8; READER_RECORD_BYTES]>> {
        let mut bytes = [0; READER_RECORD_BYTES];
        match self.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(Error::from_io("read the record for readers", &error)),
        }
    }
}

/// The writer's view of the readers of its file.
#[derive(Debug)]
pub(super) struct WatchedFile {
    data: Arc<File>,
    record: Record,
    path: PathBuf,
}

impl WatchedFile {
    /// Opens the record `name` in a folder, and creates it if need be. `data` is the file that the writer has locked.
    /// Returns `None` where it cannot be created: then no reader registers.
    ///
    /// # Errors
    /// `Busy` when the record is missing although readers are registered: it was removed. `InvalidCall` when it is no
    /// regular file, or the error of the system.
    pub(super) fn open(data: &Arc<File>, folder: &File, name: &str, path: PathBuf) -> Result<Option<Self>> {
        let open = |flags| open_regular("open", folder.as_fd(), name, &path, flags);
        let data = Arc::clone(data);
        let record = match open(OFlags::RDWR) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                for of in [ReaderUse::Content, ReaderUse::Log] {
                    if is_in_use(&data, of, 0..READER_NUMBERS)? {
                        let detail = "the file is missing, and without it the readers that are open now cannot be told what changes: close them first";
                        return Err(Error::new(ErrorKind::Busy, "open", detail).at(&path));
                    }
                }
                match open(OFlags::RDWR | OFlags::CREATE) {
                    Err(error) if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::NoPermission) => {
                        return Ok(None);
                    }
                    created => created?,
                }
            }
            opened => opened?,
        };
        Ok(Some(Self { data, record: Record::of(record, &path)?, path }))
    }

    pub(super) fn record_file(&self) -> &Arc<File> {
        &self.record.file
    }
}

fn is_in_use(data: &File, of: ReaderUse, numbers: Range<u64>) -> Result<bool> {
    if numbers.is_empty() {
        return Ok(false);
    }
    conflicts(data, libc::F_WRLCK, bytes_of(of, &numbers)?)
        .map_err(|error| Error::from_rustix("ask for readers", error))
}

impl ReaderWatch for WatchedFile {
    fn is_in_use(&self, of: ReaderUse, numbers: Range<u64>) -> Result<bool> {
        is_in_use(&self.data, of, numbers).map_err(|error| error.at(&self.path))
    }

    fn try_exclude(&self, of: ReaderUse) -> Result<bool> {
        match set_description_lock(&self.data, libc::F_WRLCK, bytes_of(of, &(0..READER_NUMBERS))?) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(error) => Err(Error::from_rustix("exclude readers", error).at(&self.path)),
        }
    }

    fn admit(&self, of: ReaderUse) {
        if let Ok(bytes) = bytes_of(of, &(0..READER_NUMBERS)) {
            // Cannot fail for a lock held on the whole range.
            let _ = set_description_lock(&self.data, libc::F_UNLCK, bytes);
        }
    }

    fn record_inode(&self) -> u64 {
        self.record.inode
    }

    fn record(&self) -> Result<Option<[u8; READER_RECORD_BYTES]>> {
        self.record.read().map_err(|error| error.at(&self.path))
    }

    fn write_record(&self, bytes: &[u8; READER_RECORD_BYTES]) -> Result<()> {
        let failed = |error: &std::io::Error| Error::from_io("write the record for readers", error).at(&self.path);
        self.record.file.write_all_at(bytes, 0).map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Directory as _;
    use crate::folder::Backend;

    const RECORD: &str = "readers";

    fn folder() -> (tempfile::TempDir, Folder) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::open(scratch.path(), Backend::Auto).unwrap();
        std::fs::write(folder.path().join("data"), "data").unwrap();
        (scratch, folder)
    }

    #[test]
    fn a_writer_sees_which_numbers_are_registered_and_a_dropped_reader_is_gone() {
        let (_scratch, folder) = folder();
        let lock = folder.lock("data", "lock").unwrap();
        let watch = lock.readers(RECORD).unwrap().unwrap();
        let locks = folder.reader_locks("data", RECORD).unwrap();
        let is_in_use = |of, numbers| watch.is_in_use(of, numbers).unwrap();
        assert!(!is_in_use(ReaderUse::Content, 0..READER_NUMBERS));
        assert!(locks.try_register(ReaderUse::Content, 7).unwrap());
        let seen = [0..7, 0..8, 7..8, 8..100, 3..3].map(|numbers| is_in_use(ReaderUse::Content, numbers));
        assert_eq!(seen, [false, true, true, false, false]);
        assert!(!is_in_use(ReaderUse::Log, 0..READER_NUMBERS), "the two uses are apart");
        let other = folder.reader_locks("data", RECORD).unwrap();
        assert!(other.try_register(ReaderUse::Content, 7).unwrap(), "readers share a number");
        drop(locks);
        assert!(is_in_use(ReaderUse::Content, 7..8));
        other.withdraw(ReaderUse::Content, 7);
        assert!(!is_in_use(ReaderUse::Content, 0..READER_NUMBERS));
    }

    #[test]
    fn readers_that_are_excluded_cannot_register_and_those_that_are_there_cannot_be_excluded() {
        let (_scratch, folder) = folder();
        let lock = folder.lock("data", "lock").unwrap();
        let watch = lock.readers(RECORD).unwrap().unwrap();
        let locks = folder.reader_locks("data", RECORD).unwrap();
        assert!(watch.try_exclude(ReaderUse::Log).unwrap());
        assert!(!locks.try_register(ReaderUse::Log, 3).unwrap());
        assert!(locks.try_register(ReaderUse::Content, 3).unwrap());
        watch.admit(ReaderUse::Log);
        assert!(locks.try_register(ReaderUse::Log, 3).unwrap());
        assert!(!watch.try_exclude(ReaderUse::Log).unwrap());
    }

    #[test]
    fn a_registered_reader_and_a_writer_exclude_neither_each_other_nor_a_program_that_knows_of_none() {
        let (_scratch, folder) = folder();
        let locks = folder.reader_locks("data", RECORD).unwrap();
        assert!(locks.try_register(ReaderUse::Content, 1).unwrap());
        assert!(!locks.has_writer().unwrap());
        let lock = folder.lock("data", "lock").unwrap();
        assert!(locks.has_writer().unwrap());
        drop(lock);
        // A writer of an earlier version locks the whole file.
        let earlier = File::options().read(true).write(true).open(folder.path().join("data")).unwrap();
        let lock_all = || set_description_lock(&earlier, libc::F_WRLCK, ByteRange::WHOLE);
        assert_eq!(lock_all(), Err(Errno::AGAIN));
        drop(locks);
        lock_all().unwrap();
        let locks = folder.reader_locks("data", RECORD).unwrap();
        assert!(!locks.try_register(ReaderUse::Content, 1).unwrap());
        assert!(folder.lock("data", "lock").is_err());
    }

    #[test]
    fn a_file_with_names_in_two_folders_has_no_record() {
        let (_scratch, folder) = folder();
        let lock = folder.lock("data", "lock").unwrap();
        let watch = lock.readers(RECORD).unwrap().unwrap();
        watch.write_record(&[5; READER_RECORD_BYTES]).unwrap();
        let locks = || folder.reader_locks("data", RECORD).unwrap();
        assert_eq!(locks().record().unwrap(), Some([5; READER_RECORD_BYTES]));
        assert_eq!(locks().record_inode(), Some(watch.record_inode()));
        let elsewhere = folder.path().join("elsewhere");
        std::fs::hard_link(folder.path().join("data"), &elsewhere).unwrap();
        assert_eq!((locks().record().unwrap(), locks().record_inode()), (None, None));
        std::fs::remove_file(elsewhere).unwrap();
        assert!(locks().record().unwrap().is_some());
    }

    #[test]
    fn a_record_that_was_removed_keeps_a_writer_out_while_there_are_readers() {
        let (_scratch, folder) = folder();
        let lock = folder.lock("data", "lock").unwrap();
        let watch = lock.readers(RECORD).unwrap().unwrap();
        let bytes = [5; READER_RECORD_BYTES];
        let locks = folder.reader_locks("data", RECORD).unwrap();
        assert_eq!(locks.record().unwrap(), None, "empty");
        watch.write_record(&bytes).unwrap();
        assert_eq!((locks.record().unwrap(), watch.record().unwrap()), (Some(bytes), Some(bytes)));
        assert!(locks.try_register(ReaderUse::Content, 1).unwrap());
        std::fs::remove_file(folder.path().join(RECORD)).unwrap();
        assert_eq!(lock.readers(RECORD).unwrap_err().kind(), ErrorKind::Busy);
        drop(locks);
        assert!(lock.readers(RECORD).unwrap().is_some());
        // A folder that is only read has no writer that could tell.
        let reading = Folder::open(folder.path(), Backend::Auto).unwrap().read_only();
        drop((lock, watch));
        assert!(reading.lock("data", "lock").unwrap().readers(RECORD).unwrap().is_none());
    }
}

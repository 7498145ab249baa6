//! Locks on files of a folder, and the file in which their holder leaves its name.
//!
//! The lock is on the file that it protects, so no name that is removed, renamed or put back lets a second process in.
//! It is a lock of the open file description (F_OFD_SETLK): two openings in one process exclude each other, and closing
//! another descriptor of the same file does not release it. The file with the name is for the message alone. A lock for
//! writing leaves out the bytes that are for the registrations of readers (`readers`).
//!
//! Kept true by: a lock is given only when the name still stands for the file that was locked.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{AtFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::Folder;
use super::byte_locks::{ByteRange, set_description_lock};
use super::holder::Holder;
use super::readers::WatchedFile;
use crate::disk::{FileLock, ReaderWatch};
use crate::error::{Error, ErrorKind, Result};
use crate::file::open_regular;
use crate::process::Process;

/// Attempts to open and lock a file replaced while it was being locked.
const REPLACED_MAX: usize = 16;
/// Most bytes of the name that a process leaves in a lock file.
const SIGNATURE_BYTES_MAX: u64 = 256;

/// The system call that locked a file. The kernel and the file system decide which one works, so all processes use the same one for the
/// same file, and their locks exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// F_OFD_SETLK, for a lock of the open file description.
    Description,
    /// flock, where the kernel or the file system does not support locks of open file descriptions.
    Flock,
}

/// A file that this process has locked; dropping it releases the lock.
#[derive(Debug)]
pub(super) struct LockedFile {
    /// The open file to which the kernel ties the lock. No disk shares it: what a killed process has in a ring keeps the open file, and
    /// its lock, for a moment after the process has ended.
    file: Arc<File>,
    how: How,
    is_for_writing: bool,
    /// The process that took the lock.
    owner: Process,
    id: (u64, u64),
    /// The record for readers, which is locked with the file (flock).
    record: Mutex<Option<Arc<File>>>,
    /// The folder, while it is open: an open database needs it no more.
    folder: Weak<File>,
    path: PathBuf,
}

/// Returns the identity of an open file on this machine, device and inode.
fn id_of(file: &File) -> rustix::io::Result<(u64, u64)> {
    rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Returns whether `name` stands for the file with this identity.
fn stands_for(folder: &File, name: &str, id: (u64, u64)) -> rustix::io::Result<bool> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok((stat.st_dev, stat.st_ino) == id),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

impl LockedFile {
    /// Returns the folder.
    ///
    /// # Errors
    /// `InvalidCall` when it has been closed.
    fn open_folder(&self, action: &'static str) -> Result<Arc<File>> {
        self.folder.upgrade().ok_or_else(|| {
            Error::new(ErrorKind::InvalidCall, action, "the folder of the locked file has been closed").at(&self.path)
        })
    }

    pub(super) fn take(folder: &Folder, name: &str, signed: &str) -> Result<Self> {
        let (lock_type, range) = match folder.is_read_only {
            true => (libc::F_RDLCK, ByteRange::WHOLE),
            false => (libc::F_WRLCK, ByteRange::WRITER),
        };
        Self::take_with(folder, name, signed, |file| set_description_lock(file, lock_type, range))
    }

    fn take_with(
        folder: &Folder,
        name: &str,
        signed: &str,
        lock_description: impl Fn(&File) -> rustix::io::Result<()>,
    ) -> Result<Self> {
        let path = folder.path_of(name)?;
        // A folder that is only read keeps out those who write, and no others.
        let (flags, flock) = match folder.is_read_only {
            true => (OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
            false => (OFlags::RDWR, FlockOperation::NonBlockingLockExclusive),
        };
        for _ in 0..REPLACED_MAX {
            let file = open_regular("lock", folder.descriptor.as_fd(), name, &path, flags)?;
            let how = match lock_description(&file) {
                Ok(()) => How::Description,
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    rustix::fs::flock(&file, flock).map_err(|error| refused(folder, signed, &path, error))?;
                    How::Flock
                }
                Err(error) => return Err(refused(folder, signed, &path, error)),
            };
            let id = id_of(&file).map_err(|error| Error::from_rustix("lock", error).at(&path))?;
            let (file, owner) = (Arc::new(file), Process::current());
            let (is_for_writing, folder) = (!folder.is_read_only, Arc::downgrade(&folder.descriptor));
            let lock =
                Self { file, how, is_for_writing, owner, id, record: Mutex::default(), folder, path: path.clone() };
            if lock.check(name).is_ok() {
                return Ok(lock);
            }
        }
        Err(Error::new(ErrorKind::Busy, "lock", "the file is being replaced again and again").at(&path))
    }
}

impl LockedFile {
    /// Locks the record for readers as well, in the place of one that was locked before. It stays in the folder when the locked
    /// file leaves it, so it keeps those out who would use the folder's other files with another file of the same name.
    ///
    /// # Errors
    /// `Busy` when another holder of such a lock has this record.
    fn lock_record(&self, record: &Arc<File>) -> Result<()> {
        let mut locked = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = locked.take() {
            let _ = rustix::fs::flock(&before, FlockOperation::Unlock);
        }
        // Another error means that this file system has no such locks, and none has been given.
        if rustix::fs::flock(record, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            let detail = "it was moved here while the files beside it are in use with the one that was here before: close that first";
            return Err(Error::new(ErrorKind::Busy, "lock", detail).at(&self.path));
        }
        *locked = Some(Arc::clone(record));
        Ok(())
    }
}

impl FileLock for LockedFile {
    fn check(&self, name: &str) -> Result<()> {
        match stands_for(&*self.open_folder("lock")?, name, self.id) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let detail =
                    "the file was replaced or removed meanwhile: find the process that does that, and try again";
                Err(Error::new(ErrorKind::Busy, "lock", detail).at(&self.path))
            }
            Err(error) => Err(Error::from_rustix("lock", error).at(&self.path)),
        }
    }

    fn id(&self) -> Option<(u64, u64)> {
        Some(self.id)
    }

    /// There are none where the lock is of the older kind: readers take one of the same kind then, on the whole file.
    fn readers(&self, record: &str) -> Result<Option<Arc<dyn ReaderWatch>>> {
        if !self.is_for_writing || self.how != How::Description {
            return Ok(None);
        }
        let (folder, path) = (self.open_folder("open")?, self.path.with_file_name(record));
        let Some(watch) = WatchedFile::open(&self.file, &folder, record, path)? else { return Ok(None) };
        self.lock_record(watch.record_file())?;
        Ok(Some(Arc::new(watch)))
    }
}

impl Drop for LockedFile {
    /// Unlocks the file before it is closed, since closing is not enough: a child process that another thread is starting right
    /// now has the same open file until it runs its own program, and would keep the lock. A child that drops its copy does not
    /// unlock the file, because the lock belongs to the process that took it.
    fn drop(&mut self) {
        if self.owner.is_here() {
            // Before the file: the next holder of its lock asks for this one.
            if let Some(record) = self.record.get_mut().unwrap_or_else(PoisonError::into_inner) {
                let _ = rustix::fs::flock(&*record, FlockOperation::Unlock);
            }
            // Neither can fail for a file that is open and locked; closing it is the second try.
            let _ = match self.how {
                How::Description => set_description_lock(&self.file, libc::F_UNLCK, ByteRange::WHOLE),
                How::Flock => rustix::fs::flock(&self.file, FlockOperation::Unlock),
            };
        }
    }
}

/// Makes the error for a lock that was not given: the reason, and the process holding the lock.
fn refused(folder: &Folder, signed: &str, path: &Path, error: Errno) -> Error {
    if matches!(error, Errno::NOMEM | Errno::INTR) {
        return Error::from_rustix("lock", error).at(path);
    }
    if !matches!(error, Errno::AGAIN | Errno::ACCESS) {
        let hint = "this file system has no locks: put the database on one that has, as only a lock keeps a second process out";
        return Error::new(ErrorKind::Unsupported, "lock", format!("{error}: {hint}")).at(path);
    }
    let signed_path = folder.path.join(signed);
    let holder = open_regular("read", folder.descriptor.as_fd(), signed, &signed_path, OFlags::RDONLY);
    held_by(holder.ok().and_then(|file| signature(&file)).flatten().as_ref(), path)
}

fn held_by(holder: Option<&Holder>, path: &Path) -> Error {
    // A holder that has just taken it may not have left its name yet.
    let holder = holder.map_or_else(|| "another process".to_owned(), Holder::described);
    Error::new(ErrorKind::Busy, "lock", format!("held by {holder}: close it there first")).at(path)
}

/// A file with the name of this process in it, which marks a folder as in use; dropping it clears the name. The file
/// stays.
#[derive(Debug)]
pub struct FolderLock {
    /// The open file to which the kernel ties the lock.
    file: File,
    /// The process that took the lock.
    owner: Process,
}

impl FolderLock {
    pub(super) fn take(folder: &Folder, name: &str) -> Result<Self> {
        let path = folder.path_of(name)?;
        let failed = |error: &std::io::Error| Error::from_io("lock", error).at(&path);
        // Opening does not truncate the file: its content names the holder until this process has the lock, or belongs to another program.
        let open = |flags| open_regular("lock", folder.descriptor.as_fd(), name, &path, flags);
        let mut file = open(OFlags::RDWR | OFlags::CREATE)?;
        let holder = signature(&file).ok_or_else(|| {
            let detail = "the file holds something else than the name of a process: it stays as it is";
            Error::new(ErrorKind::InvalidCall, "lock", detail).at(&path)
        })?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(held_by(holder.as_ref(), &path)),
            Err(errno) => return Err(Error::from_rustix("lock", errno).at(&path)),
        }
        let holder = Holder::here().to_text();
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(holder.as_bytes()));
        // On a full disk the file gets no name, and the lock is held all the same.
        let full = |error: &std::io::Error| {
            matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
        };
        written.or_else(|error| if full(&error) { Ok(()) } else { Err(failed(&error)) })?;
        Ok(Self { file, owner: Process::current() })
    }
}

impl FileLock for FolderLock {}

impl Drop for FolderLock {
    /// Releases the lock only in the process that took it, as for a locked file.
    fn drop(&mut self) {
        if self.owner.is_here() {
            // Cannot fail for a file that is open and locked; closing it is the second try.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// The process that has left its name in a file, if there is a name. `None` when the file holds anything else. A power cut may leave
/// zeroes instead of a name.
fn signature(mut file: &File) -> Option<Option<Holder>> {
    if file.metadata().ok()?.len() > SIGNATURE_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.take(SIGNATURE_BYTES_MAX).read_to_end(&mut bytes)).ok()?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(None);
    }
    Holder::parse(std::str::from_utf8(&bytes).ok()?).map(Some)
}

/// Returns whether a file holds the name of a process or nothing: see [`Folder::is_signature`].
pub(super) fn is_signature(folder: &Folder, name: &str) -> bool {
    let path = folder.path.join(name);
    let file = open_regular("read", folder.descriptor.as_fd(), name, &path, OFlags::RDONLY);
    file.is_ok_and(|file| signature(&file).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Directory;
    use crate::folder::Backend;

    fn folder() -> (tempfile::TempDir, Folder) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::open(scratch.path(), Backend::Auto).unwrap();
        std::fs::write(folder.path().join("data"), "data").unwrap();
        (scratch, folder)
    }

    #[test]
    fn a_locked_file_stays_locked_whatever_becomes_of_every_name() {
        let (_scratch, folder) = folder();
        let path = |name: &str| folder.path().join(name);
        let held = folder.lock("data", "lock").unwrap();
        let signed = folder.sign("lock").unwrap();
        let refused = || folder.lock("data", "lock").unwrap_err();
        assert_eq!(refused().kind(), ErrorKind::Busy);
        assert!(refused().to_string().contains(&format!("process {}", std::process::id())), "{}", refused());
        std::fs::remove_file(path("lock")).unwrap();
        assert_eq!(refused().kind(), ErrorKind::Busy);
        std::fs::rename(path("data"), path("moved")).unwrap();
        assert_eq!(folder.lock("moved", "lock").unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(held.check("data").unwrap_err().kind(), ErrorKind::Busy);
        std::fs::write(path("data"), "another").unwrap();
        assert_eq!(held.check("data").unwrap_err().kind(), ErrorKind::Busy);
        std::fs::rename(path("moved"), path("data")).unwrap();
        held.check("data").unwrap();
        // Another descriptor of the same file that is closed takes nothing away.
        drop(File::open(path("data")).unwrap());
        assert_eq!(refused().kind(), ErrorKind::Busy);
        drop((held, signed));
        folder.lock("data", "lock").unwrap();
        assert_eq!(folder.lock("gone", "lock").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn another_file_in_the_place_of_a_locked_one_gets_no_record_until_the_first_is_released() {
        let (_scratch, folder) = folder();
        let path = |name: &str| folder.path().join(name);
        let held = folder.lock("data", "lock").unwrap();
        let watch = held.readers("readers").unwrap().unwrap();
        std::fs::rename(path("data"), path("moved")).unwrap();
        std::fs::write(path("data"), "another").unwrap();
        let other = folder.lock("data", "lock").unwrap();
        let refused = other.readers("readers").unwrap_err();
        assert!(refused.kind() == ErrorKind::Busy && refused.to_string().contains("moved here"), "{refused}");
        // Its record is still open, as in a child between its fork and its exec, and keeps no other lock out.
        drop(held);
        let (again, _) = (other.readers("readers").unwrap().unwrap(), other.readers("readers").unwrap().unwrap());
        drop((watch, again));
    }

    #[test]
    fn a_file_that_is_replaced_while_it_is_being_locked_is_not_the_one_that_stays_locked() {
        let (_scratch, folder) = folder();
        let path = |name: &str| folder.path().join(name);
        let is_first = std::cell::Cell::new(true);
        let replaced = |file: &File| {
            if is_first.replace(false) {
                std::fs::rename(path("data"), path("moved")).unwrap();
                std::fs::write(path("data"), "another").unwrap();
            }
            set_description_lock(file, libc::F_WRLCK, ByteRange::WRITER)
        };
        let held = LockedFile::take_with(&folder, "data", "lock", replaced).unwrap();
        held.check("data").unwrap();
        drop(folder.lock("moved", "lock").unwrap());
    }

    #[test]
    fn a_kernel_without_locks_of_descriptions_is_asked_for_the_older_kind() {
        let (_scratch, folder) = folder();
        let take = |error| LockedFile::take_with(&folder, "data", "lock", |_| Err(error));
        let held = take(Errno::INVAL).unwrap();
        assert_eq!(held.how, How::Flock);
        assert_eq!(take(Errno::INVAL).unwrap_err().kind(), ErrorKind::Busy);
        let inherited = held.file.try_clone().unwrap();
        drop(held);
        drop(take(Errno::NOSYS).unwrap());
        drop(inherited);
        let error = take(Errno::NOLCK).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("has no locks"), "{error}");
    }

    #[test]
    fn a_name_is_left_only_in_a_file_that_is_empty_or_holds_such_a_name() {
        let (_scratch, folder) = folder();
        let path = folder.path().join("lock");
        for ours in ["", "process 7 (x)\n", "\0\0\0\0"] {
            std::fs::write(&path, ours).unwrap();
            assert!(folder.is_signature("lock"), "{ours:?}");
            drop(folder.sign("lock").unwrap());
            let left = std::fs::read_to_string(&path).unwrap();
            assert!(left.starts_with(&format!("process {} (", std::process::id())), "{left}");
        }
        for foreign in ["flock of sheep\n".to_owned(), "process of elimination".into(), "process 7".repeat(99)] {
            std::fs::write(&path, &foreign).unwrap();
            assert!(!folder.is_signature("lock"), "{foreign:?}");
            drop(folder.sign("lock").unwrap());
            assert_eq!(folder.lock_by_name("lock").unwrap_err().kind(), ErrorKind::InvalidCall);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
        }
    }

    #[test]
    fn a_released_lock_is_free_even_while_a_child_being_started_has_its_file() {
        let (_scratch, folder) = folder();
        let held = LockedFile::take(&folder, "data", "lock").unwrap();
        let named = folder.lock_by_name("lock").unwrap();
        // Copies of the open files, as a child has them between its fork and its exec.
        let inherited = (held.file.try_clone().unwrap(), named.file.try_clone().unwrap());
        drop((held, named));
        folder.lock("data", "lock").unwrap();
        folder.lock_by_name("lock").unwrap();
        drop(inherited);
    }

    #[test]
    fn a_child_that_drops_its_copy_of_the_lock_does_not_release_it() {
        let (_scratch, folder) = folder();
        let held = LockedFile::take(&folder, "data", "lock").unwrap();
        drop(LockedFile {
            file: Arc::new(held.file.try_clone().unwrap()),
            how: held.how,
            is_for_writing: true,
            owner: Process::another(),
            id: held.id,
            record: Mutex::default(),
            folder: held.folder.clone(),
            path: held.path.clone(),
        });
        assert_eq!(folder.lock("data", "lock").unwrap_err().kind(), ErrorKind::Busy);
        let named = folder.lock_by_name("lock").unwrap();
        drop(FolderLock { file: named.file.try_clone().unwrap(), owner: Process::another() });
        assert_eq!(folder.lock_by_name("lock").unwrap_err().kind(), ErrorKind::Busy);
    }
}

//! A folder of real disks, and the choice between a ring and a pool of threads.
//!
//! Kept true by: a name is one component of a path, every file is reached from the folder's own descriptor, and no symbolic link is
//! followed. So no file outside the folder is ever touched, also when the folder has been moved and another one has its place.

mod byte_locks;
mod holder;
mod lock;
mod readers;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, OFlags, RenameFlags};
use rustix::io::Errno;

use self::holder::Holder;
pub use self::lock::FolderLock;
use self::lock::LockedFile;
pub use self::readers::ReaderLocks;
use crate::disk::{DirectIo, Directory, Disk, DiskNote, FileLock, FileOptions, NothingToLock, refuse_long_text};
use crate::error::{Error, ErrorKind, Result};
use crate::file::{DiskFile, open_regular};
use crate::psync::PsyncDisk;
use crate::uring::UringDisk;

/// Threads of a pool that stands in for a ring: as many operations as keep a device busy, parked when idle.
pub const POOL_THREADS: usize = 32;

/// The kind of disks for the files of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// A ring where one can be had, else a pool of threads; the reason is in the disk's notes.
    #[default]
    Auto,
    /// Rings only: an error where they are unavailable.
    Uring,
    /// A pool of [`POOL_THREADS`] threads.
    Psync,
}

/// Opens a file or block device the way `backend` says.
///
/// # Errors
/// As [`UringDisk::open`] and [`PsyncDisk::open`]. With `Auto`, a missing ring is no error.
pub fn open_disk(path: &Path, options: &FileOptions, backend: Backend) -> Result<Arc<dyn Disk>> {
    let pool = || PsyncDisk::open(path, options, POOL_THREADS);
    match backend {
        Backend::Uring => Ok(Arc::new(UringDisk::open(path, options)?)),
        Backend::Psync => Ok(Arc::new(pool()?)),
        Backend::Auto => match UringDisk::ring_refused() {
            None => Ok(Arc::new(UringDisk::open(path, options)?)),
            Some(reason) => {
                let note = no_ring(reason, path)?;
                Ok(Arc::new(pool()?.with_note(note)))
            }
        },
    }
}

/// Returns the note about a disk that has threads because rings are refused for `reason`.
///
/// # Errors
/// The reason itself, when the process has no descriptor left: threads need some, too, and a database would stay without
/// rings although the next descriptor that is closed makes them possible.
fn no_ring(reason: Error, path: &Path) -> Result<DiskNote> {
    if matches!(reason.errno(), Some(libc::EMFILE | libc::ENFILE)) {
        return Err(reason.at(path));
    }
    Ok(DiskNote::missing(format!("no io_uring: {reason}")))
}

/// As [`open_disk`], for a regular file in an open folder.
fn open_disk_in(folder: &Folder, name: &str, options: &FileOptions) -> Result<Arc<dyn Disk>> {
    let path = folder.path_of(name)?;
    let open = |kind| DiskFile::open_in(kind, folder.descriptor.as_fd(), name, &path, options);
    let pool = || PsyncDisk::open_by(&path, open, POOL_THREADS);
    let ring = || UringDisk::open_by(&path, open);
    match folder.backend {
        Backend::Uring => Ok(Arc::new(ring()?)),
        Backend::Psync => Ok(Arc::new(pool()?)),
        Backend::Auto => match UringDisk::ring_refused() {
            None => Ok(Arc::new(ring()?)),
            Some(reason) => {
                let note = no_ring(reason, &path)?;
                Ok(Arc::new(pool()?.with_note(note)))
            }
        },
    }
}

/// Returns the name of this process for a lock file, as one line: its number and command, the host, the boot of its kernel and
/// the PID namespace in which the number means something.
pub fn name_of_this_process() -> String {
    Holder::here().to_text()
}

/// Describes the process with this name for a message: by no more than the name proves here. `None` when it is no such name.
/// Numbers without a place, from earlier versions, are read as well.
pub fn describe_process(name: &str) -> Option<String> {
    Holder::parse(name).map(|holder| holder.described())
}

/// Creates a folder, unless it exists, and makes its name durable: until the folder above it is synced, a power cut
/// can remove it with all its content, including durable content. An existing folder may come from a process that was
/// interrupted before the sync, so its name is made durable as well, where the folder above it may be read.
///
/// # Errors
/// `NotFound` when there is no folder above it, `NoPermission`, `NoSpace`, `NoResources`, the error of the sync.
pub fn make_folder(path: &Path) -> Result<()> {
    make_folder_with(path, |above| sync_folder(&File::open(above)?))
}

fn make_folder_with(path: &Path, sync: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let failed = |action: &'static str| move |error: std::io::Error| Error::from_io(action, &error).at(path);
    let is_new = match std::fs::create_dir(path) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(failed("mkdir")(error)),
    };
    let whole = path.canonicalize().map_err(failed("find the folder"))?;
    // Nothing is above the root, which needs no name.
    let Some(above) = whole.parent() else { return Ok(()) };
    match sync(above) {
        Err(error) if !is_new && error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced.map_err(failed("sync the folder above")),
    }
}

/// A folder of real disks.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    descriptor: Arc<File>,
    backend: Backend,
    direct: DirectIo,
    is_read_only: bool,
}

impl Folder {
    /// Opens a folder that exists. Its disks use direct I/O where the file system has it; see [`Folder::with_direct`].
    ///
    /// # Errors
    /// `NotFound` (create it first), `InvalidCall` when it is no folder, `NoPermission`.
    pub fn open(path: &Path, backend: Backend) -> Result<Self> {
        let failed = |error: &std::io::Error| Error::from_io("open the folder", error).at(path);
        // Absolute, so that a process that changes its working directory keeps its disks.
        let path = path.canonicalize().map_err(|error| failed(&error))?;
        let descriptor = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(&path)
            .map_err(|error| failed(&error))?;
        let descriptor = Arc::new(descriptor);
        Ok(Self { path, descriptor, backend, direct: DirectIo::Prefer, is_read_only: false })
    }

    /// Sets whether the disks of the folder bypass the page cache.
    #[must_use]
    pub fn with_direct(mut self, direct: DirectIo) -> Self {
        self.direct = direct;
        self
    }

    /// Makes the folder one that is only read: its files are opened for reading, its locks keep out processes that write
    /// and let others read, and a call that would change it fails with `NoPermission`. Works on media that cannot be
    /// written.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.is_read_only = true;
        self
    }

    /// Refuses to change a folder that is only read.
    ///
    /// # Errors
    /// `NoPermission`.
    fn refuse_to_change(&self, action: &str) -> Result<()> {
        if !self.is_read_only {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NoPermission, action, "the folder was opened for reading only").at(&self.path))
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the name of this process in the file `name`, creating it if need be, and locks that file (flock). Released when the
    /// result is dropped or the process ends, however it ends. The file stays.
    ///
    /// Removing the file lets a second process in. A file that two processes must not use needs its own lock: see
    /// [`Directory::lock`].
    ///
    /// # Errors
    /// `Busy`, naming the process holding the lock; `InvalidCall` for an invalid name, for a file that holds
    /// anything but the name of a process, and for anything else than a regular file; `NoPermission`, `NoSpace`.
    pub fn lock_by_name(&self, name: &str) -> Result<FolderLock> {
        FolderLock::take(self, name)
    }

    /// Whether `name` is a regular file that is empty or holds the name of a process, as [`Folder::lock_by_name`] leaves it.
    pub fn is_signature(&self, name: &str) -> bool {
        lock::is_signature(self, name)
    }

    /// Lists the folder, sorted by name, with the kind of each entry. Changes nothing.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let failed = |error| Error::from_rustix("list", error).at(&self.path);
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.descriptor).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let file_type = match entry.file_type() {
                FileType::Unknown => {
                    match rustix::fs::statat(&self.descriptor, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                        // Removed since.
                        Err(Errno::NOENT) => continue,
                        Err(error) => return Err(failed(error)),
                    }
                }
                known => known,
            };
            let kind = match file_type {
                FileType::RegularFile => EntryKind::File,
                FileType::Directory => EntryKind::Folder,
                FileType::Symlink => EntryKind::Link,
                _ => EntryKind::Other,
            };
            let name = entry.file_name().to_str().map(ToOwned::to_owned);
            let name = name.map_err(|_| entry.file_name().to_string_lossy().into_owned());
            entries.push(Entry { name, kind });
        }
        entries.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        Ok(entries)
    }

    fn path_of(&self, name: &str) -> Result<PathBuf> {
        let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
        if plain {
            return Ok(self.path.join(name));
        }
        let detail = format!("«{}» is not a plain file name", name.escape_debug());
        Err(Error::new(ErrorKind::InvalidCall, "name a disk", detail).at(&self.path))
    }

    fn open_with(&self, name: &str, create: bool) -> Result<Arc<dyn Disk>> {
        if create {
            self.refuse_to_change("create")?;
        }
        open_disk_in(self, name, &FileOptions { direct: self.direct, write: !self.is_read_only, create })
    }
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, or, where it is not Unicode, a similar one for printing.
    name: std::result::Result<String, String>,
    kind: EntryKind,
}

impl Entry {
    /// The name, or, where it is not Unicode, a similar one for printing.
    pub fn name(&self) -> &str {
        self.name.as_ref().unwrap_or_else(|similar| similar)
    }

    /// The kind of the entry; links are not followed.
    pub fn kind(&self) -> EntryKind {
        self.kind
    }
}

/// The kind of an entry in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link to any target, or to none.
    Link,
    /// A FIFO, a socket or a device.
    Other,
}

impl Directory for Folder {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.open_with(name, true)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.open_with(name, false)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.refuse_to_change("rename")?;
        let (from_path, to_path) = (self.path_of(from)?, self.path_of(to)?);
        let action = || format!("rename to {}", to_path.display());
        let in_one_step =
            || rustix::fs::renameat_with(&self.descriptor, from, &self.descriptor, to, RenameFlags::NOREPLACE);
        rename_new(self.descriptor.as_fd(), from, to, in_one_step)
            .map_err(|error| Error::from_rustix(action(), error).at(&from_path))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.refuse_to_change("remove")?;
        let path = self.path_of(name)?;
        rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty())
            .map_err(|error| Error::from_rustix("remove", error).at(&path))
    }

    /// Leaves out folders, and names that are not Unicode, which this crate never makes.
    fn list(&self) -> Result<Vec<String>> {
        let entries = self.entries()?.into_iter().filter(|entry| entry.kind != EntryKind::Folder);
        Ok(entries.filter_map(|entry| entry.name.ok()).collect())
    }

    fn sync(&self) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        sync_folder(&self.descriptor).map_err(|error| Error::from_io("sync the folder", &error).at(&self.path))
    }

    fn write_text(&self, name: &str, text: &str) -> Result<()> {
        self.refuse_to_change("create")?;
        let path = self.path_of(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mut file = open_regular("create", self.descriptor.as_fd(), name, &path, flags)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| Ok(rustix::fs::fsync(&file)?));
        written.map_err(|error| Error::from_io("write", &error).at(&path))
    }

    fn read_text(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path_of(name)?;
        let failed = |error: &std::io::Error| Error::from_io("read", error).at(&path);
        let mut file = open_regular("read", self.descriptor.as_fd(), name, &path, OFlags::RDONLY)?;
        let len_bytes = file.metadata().map_err(|error| failed(&error))?.len();
        refuse_long_text(name, len_bytes).map_err(|error| error.at(&path))?;
        let mut bytes = Vec::with_capacity(len_bytes as usize);
        (&mut file).take(len_bytes).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
        Ok(bytes)
    }

    fn lock(&self, name: &str, signed: &str) -> Result<Box<dyn FileLock>> {
        Ok(Box::new(LockedFile::take(self, name, signed)?))
    }

    fn sign(&self, name: &str) -> Result<Box<dyn FileLock>> {
        if self.is_read_only {
            return Ok(Box::new(NothingToLock));
        }
        match self.lock_by_name(name) {
            Ok(signed) => Ok(Box::new(signed)),
            Err(error) if error.kind() == ErrorKind::Busy => Err(error),
            // The name is for a message only.
            Err(_) => Ok(Box::new(NothingToLock)),
        }
    }
}

/// Renames `from` to `to`, which must not exist, by `in_one_step`. A file system or kernel without such call refuses it with `EINVAL`
/// or `ENOSYS`: there the new name is looked for first, and a file that another process gives this name in between is replaced.
fn rename_new(
    folder: BorrowedFd<'_>,
    from: &str,
    to: &str,
    in_one_step: impl FnOnce() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    match in_one_step() {
        Err(Errno::INVAL | Errno::NOSYS) => {}
        outcome => return outcome,
    }
    match rustix::fs::statat(folder, to, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(Errno::NOENT) => rustix::fs::renameat(folder, from, folder, to),
        Err(error) => Err(error),
    }
}

/// Syncs a folder once. `File::sync_all` would repeat an interrupted sync, and the second sync does not report the changes that the first
/// one has lost.
fn sync_folder(folder: &File) -> std::io::Result<()> {
    Ok(rustix::fs::fsync(folder)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::open(scratch.path(), Backend::Auto).unwrap();
        (scratch, folder)
    }

    #[test]
    fn disks_are_created_once_found_renamed_and_removed() {
        let (_scratch, folder) = folder();
        folder.create("b").unwrap();
        folder.create("a").unwrap();
        assert_eq!(folder.create("a").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(folder.open("c").unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        assert_eq!(folder.list().unwrap(), ["a", "b"]);
        folder.rename("a", "c").unwrap();
        folder.sync().unwrap();
        assert_eq!(folder.list().unwrap(), ["b", "c"]);
        assert_eq!(folder.open("c").unwrap().len_bytes(), Ok(0));
        folder.remove("b").unwrap();
        folder.remove("c").unwrap();
        assert_eq!(folder.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(folder.open("folder").unwrap_err().kind(), ErrorKind::InvalidCall);
    }

    #[test]
    fn a_folder_is_made_only_where_its_name_is_durable_afterwards() {
        let scratch = tempfile::tempdir().unwrap();
        let scratch = scratch.path().canonicalize().unwrap();
        let path = scratch.join("new");
        let make = |sync_error: Option<i32>| {
            let mut synced = Vec::new();
            let made = make_folder_with(&path, |above| {
                assert!(path.is_dir(), "synced too early");
                synced.push(above.to_path_buf());
                sync_error.map_or(Ok(()), |errno| Err(std::io::Error::from_raw_os_error(errno)))
            });
            assert_eq!(synced, [scratch.as_path()]);
            made.map_err(|error| error.kind())
        };
        assert_eq!(make(Some(libc::EACCES)), Err(ErrorKind::NoPermission));
        // The failed call has left the folder, whose name is still to be made durable.
        assert_eq!(make(Some(libc::EIO)), Err(ErrorKind::Device));
        assert_eq!(make(None), Ok(()));
        // An existing folder of another user, below a folder that this process may not read.
        assert_eq!(make(Some(libc::EACCES)), Ok(()));
        make_folder(&path).unwrap();
        make_folder(&path.join("inner")).unwrap();
        assert_eq!(make_folder(&scratch.join("missing/inner")).unwrap_err().kind(), ErrorKind::NotFound);
        make_folder(Path::new("/")).unwrap();
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let (_scratch, folder) = folder();
        for name in ["", ".", "..", "a/b", "/etc/passwd", "../x", "nul\0"] {
            assert_eq!(folder.create(name).unwrap_err().kind(), ErrorKind::InvalidCall, "{name:?}");
            assert_eq!(folder.rename("x", name).unwrap_err().kind(), ErrorKind::InvalidCall, "{name:?}");
            assert_eq!(folder.lock_by_name(name).unwrap_err().kind(), ErrorKind::InvalidCall, "{name:?}");
        }
    }

    #[test]
    fn a_second_lock_is_refused_by_the_name_of_its_holder_and_given_after_it() {
        let (_scratch, folder) = folder();
        let held = folder.lock_by_name("lock").unwrap();
        let error = folder.lock_by_name("lock").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        folder.lock_by_name("lock").unwrap();
    }

    #[test]
    fn anything_but_a_regular_file_is_refused_without_waiting_for_it_or_following_it() {
        for backend in [Backend::Auto, Backend::Psync] {
            let scratch = tempfile::tempdir().unwrap();
            let folder = Folder::open(scratch.path(), backend).unwrap();
            let elsewhere = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(elsewhere.path(), "foreign").unwrap();
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            let at = |name: &str| folder.path().join(name);
            rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, mode, 0).unwrap();
            std::os::unix::fs::symlink(elsewhere.path(), at("link")).unwrap();
            std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
            std::fs::create_dir(at("folder")).unwrap();
            for (name, what) in
                [("pipe", "FIFO"), ("link", "symbolic link"), ("dangling", "symbolic link"), ("folder", "folder")]
            {
                let is_refused = |error: Error| {
                    assert_eq!(error.kind(), ErrorKind::InvalidCall, "{name}: {error}");
                    assert!(error.to_string().contains(what), "{name}: {error}");
                };
                is_refused(folder.open(name).unwrap_err());
                is_refused(folder.lock(name, "lock").unwrap_err());
                is_refused(folder.read_text(name).unwrap_err());
                is_refused(folder.lock_by_name(name).unwrap_err());
                drop(folder.sign(name).unwrap());
                assert_eq!(folder.create(name).unwrap_err().kind(), ErrorKind::AlreadyExists, "{name}");
                assert_eq!(folder.write_text(name, "x").unwrap_err().kind(), ErrorKind::AlreadyExists, "{name}");
            }
            assert_eq!(std::fs::read_to_string(elsewhere.path()).unwrap(), "foreign");
            assert!(!at("nowhere").exists());
            let kinds: Vec<_> = folder.entries().unwrap().into_iter().map(|entry| entry.kind()).collect();
            assert_eq!(kinds, [EntryKind::Link, EntryKind::Folder, EntryKind::Link, EntryKind::Other]);
        }
    }

    #[test]
    fn a_folder_that_is_moved_keeps_its_files_and_touches_none_of_the_one_in_its_place() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, moved) = (scratch.path().join("a"), scratch.path().join("b"));
        std::fs::create_dir(&path).unwrap();
        let folder = Folder::open(&path, Backend::Auto).unwrap();
        folder.write_text("one", "1").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        std::fs::create_dir(&path).unwrap();
        folder.create("two").unwrap();
        folder.rename("one", "uno").unwrap();
        assert_eq!(folder.read_text("uno").unwrap(), b"1");
        assert_eq!(folder.list().unwrap(), ["two", "uno"]);
        folder.remove("two").unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(&moved).unwrap().count(), 1);
    }

    #[test]
    fn a_rename_replaces_nothing_also_where_the_file_system_has_no_call_for_that() {
        let (scratch, folder) = folder();
        let refuses = |errno| move || Err(errno);
        for (name, text) in [("one", "1"), ("two", "2"), ("three", "3")] {
            folder.write_text(name, text).unwrap();
        }
        std::os::unix::fs::symlink("nowhere", scratch.path().join("link")).unwrap();
        for to in ["two", "link", "one"] {
            let error = folder.rename("one", to).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{to}: {error}");
            for errno in [Errno::INVAL, Errno::NOSYS] {
                let outcome = rename_new(folder.descriptor.as_fd(), "one", to, refuses(errno));
                assert_eq!(outcome, Err(Errno::EXIST), "{to}");
            }
        }
        assert_eq!(folder.read_text("two").unwrap(), b"2");
        assert_eq!(folder.list().unwrap(), ["link", "one", "three", "two"]);
        folder.rename("one", "uno").unwrap();
        rename_new(folder.descriptor.as_fd(), "three", "tre", refuses(Errno::INVAL)).unwrap();
        assert_eq!(rename_new(folder.descriptor.as_fd(), "uno", "eins", refuses(Errno::IO)), Err(Errno::IO));
        assert_eq!((folder.read_text("uno").unwrap(), folder.read_text("tre").unwrap()), (b"1".into(), b"3".into()));
    }

    #[test]
    fn direct_io_on_tmpfs_is_an_error_when_required_and_buffered_when_preferred() {
        let Ok(scratch) = tempfile::tempdir_in("/dev/shm") else { return eprintln!("not checked: no /dev/shm") };
        for backend in [Backend::Auto, Backend::Psync] {
            let folder = Folder::open(scratch.path(), backend).unwrap();
            let error = folder.with_direct(DirectIo::Require).create("required").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let folder = Folder::open(scratch.path(), backend).unwrap();
            assert_eq!(folder.list().unwrap(), [""; 0], "a refused creation leaves nothing behind");
            let info = folder.create("preferred").unwrap().info();
            assert!(!info.direct && info.align_bytes == 1 && info.notes[0].text.contains("tmpfs"), "{info:?}");
            folder.remove("preferred").unwrap();
        }
    }
}

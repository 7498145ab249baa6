//! A folder of real disks, and the choice between ring and pool of threads.
//!
//! Kept true by: a name is one component of a path, so that nothing outside the folder is ever touched; the folder's own
//! descriptor is what `sync` syncs, wherever the folder has been moved since.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FlockOperation;

use crate::disk::{DirectIo, Directory, Disk, FileOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::psync::PsyncDisk;
use crate::uring::UringDisk;

/// Threads of a pool that stands in for a ring: as many operations as keep a device busy, parked when idle.
pub const POOL_THREADS: usize = 32;

/// How disks of this machine are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// A ring where one can be had, else a pool of threads; the reason is in the disk's notes.
    #[default]
    Auto,
    /// A ring or nothing.
    Uring,
    /// A pool of [`POOL_THREADS`] threads.
    Psync,
}

/// Opens a file or block device the way `backend` says.
///
/// # Errors
/// As [`UringDisk::open`] and [`PsyncDisk::open`]. With `Auto`, a missing ring is none.
pub fn open_disk(path: &Path, options: &FileOptions, backend: Backend) -> Result<Arc<dyn Disk>> {
    let pool = || PsyncDisk::open(path, options, POOL_THREADS);
    match backend {
        Backend::Uring => Ok(Arc::new(UringDisk::open(path, options)?)),
        Backend::Psync => Ok(Arc::new(pool()?)),
        Backend::Auto => match UringDisk::ring_refused() {
            None => Ok(Arc::new(UringDisk::open(path, options)?)),
            Some(reason) => Ok(Arc::new(pool()?.with_note(format!("no io_uring: {reason}")))),
        },
    }
}

/// Makes a folder, unless it is there, and its name durable: until the folder above it is synced, a power cut takes it with
/// everything in it, however durable that is. One that is there may have been made by somebody whom something kept from the
/// second step, so its name is made durable as well, where the folder above it may be read.
///
/// # Errors
/// `NotFound` when there is no folder above it, `NoPermission`, `NoSpace`, what the system says of the sync.
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
    descriptor: File,
    backend: Backend,
    direct: DirectIo,
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
        Ok(Self { path, descriptor, backend, direct: DirectIo::Prefer })
    }

    /// Says whether its disks bypass the page cache.
    #[must_use]
    pub fn with_direct(mut self, direct: DirectIo) -> Self {
        self.direct = direct;
        self
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock file `name` for this process (flock), creating it if need be. Released when the result is dropped or
    /// the process ends, however it ends. The file stays.
    ///
    /// # Errors
    /// `Busy`, naming the process that holds it; `InvalidCall` for a name that is none; `NoPermission`, `NoSpace`.
    pub fn lock(&self, name: &str) -> Result<FolderLock> {
        let path = self.path_of(name)?;
        let failed = |error: &std::io::Error| Error::from_io("lock", error).at(&path);
        // Not truncated: what is in it names the holder, until we are that.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| failed(&error))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // A holder that has just taken it may not have written its name yet.
                let known = (&file).take(4096).read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
                let holder = if known { holder.trim() } else { "another process" };
                let detail = format!("held by {holder}: close it there first");
                return Err(Error::new(ErrorKind::Busy, "lock", detail).at(&path));
            }
            Err(errno) => return Err(Error::from_rustix("lock", errno).at(&path)),
        }
        let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_else(|_| "unknown".into());
        let holder = format!("process {} ({})\n", std::process::id(), command.trim());
        file.set_len(0).and_then(|()| file.write_all(holder.as_bytes())).map_err(|error| failed(&error))?;
        Ok(FolderLock { file, owner: std::process::id() })
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
        let options = FileOptions { direct: self.direct, write: true, create };
        open_disk(&self.path_of(name)?, &options, self.backend)
    }
}

impl Directory for Folder {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.open_with(name, true)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.open_with(name, false)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.path_of(from)?, self.path_of(to)?);
        let action = || format!("rename to {}", to.display());
        std::fs::rename(&from, &to).map_err(|error| Error::from_io(action(), &error).at(&from))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path_of(name)?;
        std::fs::remove_file(&path).map_err(|error| Error::from_io("remove", &error).at(&path))
    }

    /// Folders in it, and names that are not Unicode (none of ours are), are left out.
    fn list(&self) -> Result<Vec<String>> {
        let failed = |error: &std::io::Error| Error::from_io("list", error).at(&self.path);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            if !entry.file_type().map_err(|error| failed(&error))?.is_dir() {
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync(&self) -> Result<()> {
        sync_folder(&self.descriptor).map_err(|error| Error::from_io("sync the folder", &error).at(&self.path))
    }
}

/// Not `File::sync_all`: that repeats a sync which was interrupted, and the second says nothing of what the first has lost.
fn sync_folder(folder: &File) -> std::io::Result<()> {
    Ok(rustix::fs::fsync(folder)?)
}

/// A lock that this process holds; dropping it lets go.
#[derive(Debug)]
pub struct FolderLock {
    /// The kernel ties the lock to this open file.
    file: File,
    /// The process that took it.
    owner: u32,
}

impl Drop for FolderLock {
    /// Says so to the kernel, and does not only close: a child process that another thread is starting right now has the
    /// same open file until it runs its own program, and would keep the lock for us. What such a child drops is not its to give.
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // Cannot fail for a file that is open and locked; closing it is the second try.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
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
        folder.rename("a", "b").unwrap();
        folder.sync().unwrap();
        assert_eq!(folder.list().unwrap(), ["b"]);
        assert_eq!(folder.open("b").unwrap().len_bytes(), Ok(0));
        folder.remove("b").unwrap();
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
        // Left by the failure: the name is still to be made durable.
        assert_eq!(make(Some(libc::EIO)), Err(ErrorKind::Device));
        assert_eq!(make(None), Ok(()));
        // Somebody else's, in a folder that is none of our business.
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
            assert_eq!(folder.lock(name).unwrap_err().kind(), ErrorKind::InvalidCall, "{name:?}");
        }
    }

    #[test]
    fn a_second_lock_is_refused_by_the_name_of_its_holder_and_given_after_it() {
        let (_scratch, folder) = folder();
        let held = folder.lock("lock").unwrap();
        let error = folder.lock("lock").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        folder.lock("lock").unwrap();
    }

    #[test]
    fn a_lock_let_go_is_free_even_while_a_child_being_started_has_its_file() {
        let (_scratch, folder) = folder();
        let held = folder.lock("lock").unwrap();
        // What a child has between its fork and its exec.
        let inherited = held.file.try_clone().unwrap();
        drop(held);
        folder.lock("lock").unwrap();
        drop(inherited);
    }

    #[test]
    fn a_child_that_drops_its_copy_of_the_lock_does_not_let_go_of_it() {
        let (_scratch, folder) = folder();
        let held = folder.lock("lock").unwrap();
        drop(FolderLock { file: held.file.try_clone().unwrap(), owner: held.owner ^ 1 });
        assert_eq!(folder.lock("lock").unwrap_err().kind(), ErrorKind::Busy);
    }

    #[test]
    fn what_is_neither_file_nor_device_is_refused_without_waiting_for_it() {
        let (_scratch, folder) = folder();
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(folder.open("pipe").unwrap_err().kind(), ErrorKind::InvalidCall);
    }

    #[test]
    fn direct_io_is_refused_preferred_or_left_as_told_in_memory() {
        let Ok(scratch) = tempfile::tempdir_in("/dev/shm") else { return eprintln!("not checked: no /dev/shm") };
        for backend in [Backend::Auto, Backend::Psync] {
            let folder = Folder::open(scratch.path(), backend).unwrap();
            let error = folder.with_direct(DirectIo::Require).create("required").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let folder = Folder::open(scratch.path(), backend).unwrap();
            assert_eq!(folder.list().unwrap(), [""; 0], "a refused creation leaves nothing behind");
            let info = folder.create("preferred").unwrap().info();
            assert!(!info.direct && info.align_bytes == 1 && info.notes[0].contains("tmpfs"), "{info:?}");
            folder.remove("preferred").unwrap();
        }
    }
}

//! A file system of the lab's own (FUSE) whose reads fail on demand: it passes one flat folder through and answers
//! reads of given ranges with EIO, as a dying disk would, but at a chosen place and time.
//!
//! Kept true by:
//! 1. The process that serves the file system never touches the mount itself. Its request would wait for its own
//!    answer, and a process killed in that state could never end. Reads come from another process.
//! 2. The mount is recorded before it is made, so that the next start removes the mount of a killed lab: without a
//!    server it answers "not connected" to every call.
//! 3. Only a mount of this name at the recorded place is ever removed.
//!
//! No C library: `fuser` mounts by itself as root, and asks `fusermount3` otherwise.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::leftovers::{self, Entry};
use super::system::{self, fail};
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths;

/// The source that the lab's mounts have in mountinfo.
const SOURCE: &str = "nofault-lab";
const KIND: &str = "fuse";
/// How long the kernel may cache file attributes: never, because the sizes of the underlying files change.
const TTL: Duration = Duration::ZERO;

/// A mounted FUSE file system in which the reads of chosen ranges fail. Unmounted when dropped.
#[derive(Debug)]
pub struct FaultyFs {
    point: PathBuf,
    rules: Arc<Rules>,
    session: Option<BackgroundSession>,
    entry: Option<Entry>,
}

/// The file ranges whose reads fail, and a count of the failed reads.
#[derive(Debug, Default)]
struct Rules {
    ranges: Mutex<Vec<(String, Range<u64>)>>,
    failed: AtomicU64,
}

/// Checks that a FUSE file system with failing reads can be mounted here. Mounts nothing.
///
/// # Errors
/// `Unsupported` without FUSE in the kernel; `NoPermission` for a user without rights and without `fusermount3`.
pub fn check() -> Result<()> {
    let refuse = |kind, why: &str| Err(LabError::new(kind, format!("no file system with failing reads: {why}")));
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        return refuse(LabErrorKind::Unsupported, &format!("/dev/fuse: {error}; try `modprobe fuse`"));
    }
    let helper = || ["/bin", "/usr/bin", "/usr/local/bin"].iter().any(|at| Path::new(at).join("fusermount3").exists());
    if !system::is_root() && !helper() {
        return refuse(LabErrorKind::NoPermission, "mounting needs root, or fusermount3 (package fuse3)");
    }
    Ok(())
}

impl FaultyFs {
    /// Mounts a view of `folder` at `point`, which must be an empty folder. No read fails until [`Self::fail_reads`].
    ///
    /// # Errors
    /// As [`check`], or the system's error; in containers mounting is often forbidden.
    pub fn mount(folder: &Path, point: &Path) -> Result<Self> {
        check()?;
        let point = point.canonicalize().map_err(|error| fail("find", point, &error))?;
        let entry = Entry::record(KIND, &paths::to_text(&point))?;
        let rules = Arc::new(Rules::default());
        let served = FuseServer::new(folder, rules.clone());
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(SOURCE.into()), MountOption::Subtype(SOURCE.into())];
        config.n_threads = Some(2);
        match fuser::spawn_mount(served, &point, &config) {
            Ok(session) => Ok(Self { point, rules, session: Some(session), entry: Some(entry) }),
            Err(error) => {
                entry.forget();
                Err(LabError::new(LabErrorKind::Unsupported, format!("mount a FUSE file system: {error}")))
            }
        }
    }

    /// Returns the mount point, for other processes: this process serves the mount and must not access it.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Makes reads of `file` that touch `range` fail with EIO from now on.
    pub fn fail_reads(&self, file: &str, range: Range<u64>) {
        self.rules.ranges().push((file.to_owned(), range));
    }

    /// Makes every range readable again.
    pub fn repair(&self) {
        self.rules.ranges().clear();
    }

    /// Returns the number of reads that have failed so far.
    pub fn reads_failed(&self) -> u64 {
        self.rules.failed.load(Ordering::Relaxed)
    }
}

impl Drop for FaultyFs {
    fn drop(&mut self) {
        // A lazy unmount: a process with a file open keeps it until the process ends.
        let gone = unmount(&self.point);
        drop(self.session.take());
        if let (Ok(()), Some(entry)) = (gone, self.entry.take()) {
            entry.forget();
        }
    }
}

/// Unmounts a file system of the lab; no error when there is none.
fn unmount(point: &Path) -> Result<()> {
    let is_ours =
        |mount: &system::Mount| mount.kind.starts_with("fuse") && mount.source == SOURCE && mount.point == point;
    if !system::mounts().iter().any(is_ours) {
        return Ok(());
    }
    match rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(errno) => {
            let helper = std::process::Command::new("fusermount3").args(["-u", "-z", "--"]).arg(point).output();
            match helper {
                Ok(output) if output.status.success() => Ok(()),
                _ => Err(fail("unmount", point, &errno.into())),
            }
        }
    }
}

/// Unmounts the file systems that killed labs left mounted.
///
/// # Errors
/// As [`leftovers::sweep`].
pub fn remove_leftovers() -> Result<Vec<String>> {
    leftovers::sweep(KIND, |point| unmount(&paths::from_text(point)))
}

impl Rules {
    fn ranges(&self) -> MutexGuard<'_, Vec<(String, Range<u64>)>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a read of a file's byte range fails. A read that touches a failing range fails entirely,
    /// because a short read would mean the end of the file.
    fn fails(&self, name: &str, read: &Range<u64>) -> bool {
        let hit =
            self.ranges().iter().any(|(file, range)| file == name && range.start < read.end && read.start < range.end);
        self.failed.fetch_add(u64::from(hit), Ordering::Relaxed);
        hit
    }
}

/// The FUSE server: passes the files of one flat folder through.
struct FuseServer {
    folder: PathBuf,
    rules: Arc<Rules>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Names by inode number: number 2 is the first name; a name keeps its number.
    names: Vec<String>,
    files: HashMap<u64, (String, Arc<File>)>,
    next_handle: u64,
}

const FIRST: u64 = 2;

type Answer<T> = std::result::Result<T, Errno>;

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

impl FuseServer {
    fn new(folder: &Path, rules: Arc<Rules>) -> Self {
        Self { folder: folder.to_path_buf(), rules, state: Mutex::new(State::default()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a file's name and its path in the served folder; an error for a file in any other folder.
    fn place(&self, parent: INodeNo, name: &OsStr) -> Answer<(String, PathBuf)> {
        match name.to_str() {
            Some(name) if parent == INodeNo::ROOT && !name.contains('/') => Ok((name.into(), self.folder.join(name))),
            _ => Err(Errno::ENOENT),
        }
    }

    fn path_of(&self, ino: INodeNo) -> Answer<PathBuf> {
        if ino == INodeNo::ROOT {
            return Ok(self.folder.clone());
        }
        let index = ino.0.checked_sub(FIRST).and_then(|index| usize::try_from(index).ok()).ok_or(Errno::ENOENT)?;
        self.state().names.get(index).map(|name| self.folder.join(name)).ok_or(Errno::ENOENT)
    }

    fn number_of(&self, name: &str) -> INodeNo {
        let mut state = self.state();
        let index = state.names.iter().position(|known| known == name).unwrap_or_else(|| {
            state.names.push(name.to_owned());
            state.names.len() - 1
        });
        INodeNo(index as u64 + FIRST)
    }

    fn attributes(&self, ino: INodeNo) -> Answer<FileAttr> {
        let path = self.path_of(ino)?;
        let meta = fs::symlink_metadata(&path).map_err(|error| errno(&error))?;
        let kind = FileType::from_std(meta.file_type()).ok_or(Errno::EIO)?;
        let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Ok(FileAttr {
            ino,
            size: meta.len(),
            blocks: meta.blocks(),
            atime: time(meta.atime()),
            mtime: time(meta.mtime()),
            ctime: time(meta.ctime()),
            crtime: UNIX_EPOCH,
            kind,
            perm: (meta.mode() & 0o7777) as u16,
            nlink: 1,
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn opened(&self, name: &str, file: File) -> FileHandle {
        let mut state = self.state();
        state.next_handle += 1;
        let handle = state.next_handle;
        state.files.insert(handle, (name.to_owned(), Arc::new(file)));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> Answer<(String, Arc<File>)> {
        self.state().files.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    fn read_at(&self, handle: FileHandle, offset: u64, size: u32) -> Answer<Vec<u8>> {
        let (name, file) = self.file(handle)?;
        if self.rules.fails(&name, &(offset..offset.saturating_add(u64::from(size)))) {
            return Err(Errno::EIO);
        }
        let mut bytes = vec![0; size as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(errno(&error)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

fn finish(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for FuseServer {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.place(parent, name).and_then(|(name, path)| {
            fs::symlink_metadata(path).map_err(|error| errno(&error))?;
            self.attributes(self.number_of(&name))
        });
        match found {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = || {
            if let Some(size) = size {
                let file = OpenOptions::new().write(true).open(self.path_of(ino)?).map_err(|error| errno(&error))?;
                file.set_len(size).map_err(|error| errno(&error))?;
            }
            self.attributes(ino)
        };
        match set() {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let open = || {
            let path = self.path_of(ino)?;
            let writes = flags.0 & libc::O_ACCMODE != libc::O_RDONLY;
            let file = OpenOptions::new().read(true).write(writes).open(&path).map_err(|error| errno(&error))?;
            if writes && flags.0 & libc::O_TRUNC != 0 {
                file.set_len(0).map_err(|error| errno(&error))?;
            }
            Ok(self.opened(&path.file_name().unwrap_or_default().to_string_lossy(), file))
        };
        match open() {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let create = || {
            let (name, path) = self.place(parent, name)?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(flags & libc::O_TRUNC != 0).mode(mode & !umask);
            let file = options.open(path).map_err(|error| errno(&error))?;
            Ok((self.attributes(self.number_of(&name))?, self.opened(&name, file)))
        };
        match create() {
            Ok((attributes, handle)) => reply.created(&TTL, &attributes, Generation(0), handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_at(handle, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.file(handle).and_then(|(_, file)| file.write_all_at(data, offset).map_err(|e| errno(&e)));
        match written {
            // The kernel never requests more bytes than 32 bits can count.
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.state().files.remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        finish(reply, self.file(handle).and_then(|(_, file)| file.sync_data().map_err(|error| errno(&error))));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        finish(reply, File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(|error| errno(&error)));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::FallocateFlags::from_bits_retain(mode.cast_unsigned());
        finish(
            reply,
            self.file(handle).and_then(|(_, file)| {
                rustix::fs::fallocate(&*file, flags, offset, length).map_err(|error| errno(&error.into()))
            }),
        );
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        finish(reply, self.place(parent, name).and_then(|(_, path)| fs::remove_file(path).map_err(|e| errno(&e))));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || {
            let ((_, from), (_, to)) = (self.place(parent, name)?, self.place(new_parent, new_name)?);
            fs::rename(from, to).map_err(|error| errno(&error))
        };
        finish(reply, rename());
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let names: Vec<String> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let all = [".".to_owned(), "..".to_owned()].into_iter().chain(names);
        for (index, name) in all.enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let (ino, kind) = match index {
                0 | 1 => (INodeNo::ROOT, FileType::Directory),
                _ => (self.number_of(&name), FileType::RegularFile),
            };
            if reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match rustix::fs::statvfs(&self.folder) {
            Ok(stat) => reply.statfs(
                stat.f_blocks,
                stat.f_bfree,
                stat.f_bavail,
                stat.f_files,
                stat.f_ffree,
                stat.f_bsize as u32,
                255,
                stat.f_frsize as u32,
            ),
            Err(error) => reply.error(errno(&error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    // A mount is only ever read by `dd` and `cat` here: never by this process, which serves it.
    use std::process::{Command, Output};

    use super::*;

    /// Mounts a folder with one file of eight pages; `None`, after printing the reason, where mounting is not possible.
    fn mounted() -> Option<(tempfile::TempDir, FaultyFs)> {
        let outer = tempfile::tempdir().unwrap();
        let (base, point) = (outer.path().join("base"), outer.path().join("point"));
        fs::create_dir(&base).unwrap();
        fs::create_dir(&point).unwrap();
        fs::write(base.join("file"), vec![7; 8 * 4096]).unwrap();
        match FaultyFs::mount(&base, &point) {
            Ok(mounted) => Some((outer, mounted)),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    /// Reads one page in another process, which is killed if it hangs.
    fn page(mounted: &FaultyFs, page: u64) -> Output {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "20", "dd", "bs=4096", "count=1", "status=none", "iflag=direct"]);
        command.arg(format!("skip={page}")).arg(format!("if={}", mounted.point().join("file").display()));
        command.output().unwrap()
    }

    #[test]
    fn reads_of_failing_ranges_fail_until_the_repair() {
        let Some((_outer, mounted)) = mounted() else { return };
        assert_eq!(page(&mounted, 3).stdout, vec![7; 4096]);
        mounted.fail_reads("file", 3 * 4096..4 * 4096);
        let failed = page(&mounted, 3);
        assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains("error"), "{failed:?}");
        assert!(mounted.reads_failed() >= 1);
        assert_eq!(page(&mounted, 2).stdout, vec![7; 4096], "its neighbours are well");
        mounted.repair();
        assert_eq!(page(&mounted, 3).stdout, vec![7; 4096]);
    }

    #[test]
    fn the_mount_passes_a_whole_folder_through() {
        let Some((outer, mounted)) = mounted() else { return };
        let script =
            "set -e; cd \"$1\"; echo hello > new; mv new old; cat old; ls; rm old; truncate -s 4096 file; sync file";
        let output = Command::new("timeout")
            .args(["-s", "KILL", "20", "sh", "-c", script, "sh"])
            .arg(mounted.point())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\nfile\nold\n");
        assert_eq!(fs::metadata(outer.path().join("base/file")).unwrap().len(), 4096);
    }

    #[test]
    fn a_mount_is_removed_when_dropped_and_the_mount_of_a_dead_server_at_the_next_start() {
        let Some((outer, mounted)) = mounted() else { return };
        let is_mounted = |point: &Path| system::mounts().iter().any(|mount| mount.point == point);
        let point = mounted.point().to_path_buf();
        assert!(is_mounted(&point));
        drop(mounted);
        assert!(!is_mounted(&point));

        // As after kill -9: the mount is there without a server, and the entry names a process that is dead.
        let orphan = FaultyFs::mount(&outer.path().join("base"), &point).unwrap();
        let mut orphan = std::mem::ManuallyDrop::new(orphan);
        orphan.entry.take().unwrap().forget();
        leftovers::record_as(KIND, &format!("{}-1", std::process::id()), &point.display().to_string());
        let messages = remove_leftovers().unwrap();
        assert!(messages.iter().any(|line| line.contains(&*point.to_string_lossy())), "{messages:?}");
        assert!(!is_mounted(&point));
        drop(orphan.session.take());
    }
}

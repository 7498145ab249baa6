//! The file under a real disk: an open file or block device, its open flags, and the operations it can take.
//!
//! Invariant: `direct` states the actual mode, never the requested one. A file system that accepts O_DIRECT and uses
//! the page cache all the same (tmpfs does) counts as one that refuses it.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};

use crate::completion::{Op, OpKind};
use crate::disk::{
    DirectIo, DiskInfo, DiskNote, FileOptions, check_op, check_truncate, describe_op, describe_truncate,
};
use crate::error::{Error, ErrorKind, Result};

/// Alignment for direct I/O where neither kernel nor device names one: it suits every device in use.
const ALIGN_BYTES_UNKNOWN: usize = 4096;

/// File systems that live in the page cache: there is no device behind them to which direct I/O could go.
const MEMORY_FILE_SYSTEMS: [(u64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];

/// An open file or block device.
#[derive(Debug)]
pub(crate) struct DiskFile {
    file: File,
    block_device: bool,
    writable: bool,
    info: DiskInfo,
}

impl DiskFile {
    /// Opens `path` for a disk of the given kind. A handful of system calls.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`, `NoPermission`, `NoSpace`; `InvalidCall` for a path that is neither file nor
    /// block device; `Unsupported` when direct I/O is required and not available (no file is left behind then).
    pub(crate) fn open(kind: &'static str, path: &Path, options: &FileOptions) -> Result<Self> {
        let action = if options.create { "create" } else { "open" };
        let failed = |error: &std::io::Error| Error::from_io(action, error).at(path);
        if options.create && !options.write {
            return Err(Error::new(ErrorKind::InvalidCall, action, "creating needs writing as well").at(path));
        }
        // O_NONBLOCK: opening a FIFO would wait for its other end. Switched off below, once it is known to be none.
        let file = OpenOptions::new()
            .read(true)
            .write(options.write)
            .create_new(options.create)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(|error| failed(&error))?;
        let remove = || drop(std::fs::remove_file(path));
        Self::of(kind, file, path, options, remove)
    }

    /// Opens `name` in an open folder for a disk of the given kind, as [`open_regular`] does; `path` is for messages. Creating a name that
    /// exists fails, also when it is no regular file.
    ///
    /// # Errors
    /// As [`DiskFile::open`]; `InvalidCall` for anything else than a regular file, symbolic links included.
    pub(crate) fn open_in(
        kind: &'static str,
        folder: BorrowedFd<'_>,
        name: &str,
        path: &Path,
        options: &FileOptions,
    ) -> Result<Self> {
        let action = if options.create { "create" } else { "open" };
        let mut flags = if options.write { OFlags::RDWR } else { OFlags::RDONLY };
        flags.set(OFlags::CREATE | OFlags::EXCL, options.create);
        let file = open_regular(action, folder, name, path, flags)?;
        let remove = || {
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        };
        Self::of(kind, file, path, options, remove)
    }

    /// Makes a disk of an open file; `remove` undoes its creation.
    fn of(kind: &'static str, file: File, path: &Path, options: &FileOptions, remove: impl FnOnce()) -> Result<Self> {
        let action = if options.create { "create" } else { "open" };
        let failed = |error: &std::io::Error| Error::from_io(action, error).at(path);
        let file_type = file.metadata().map_err(|error| failed(&error))?.file_type();
        let block_device = file_type.is_block_device();
        if !block_device && !file_type.is_file() {
            return Err(Error::new(ErrorKind::InvalidCall, action, "neither a file nor a block device").at(path));
        }
        set_flags(&file, OFlags::empty()).map_err(|error| Error::from_rustix(action, error).at(path))?;
        let mut info =
            DiskInfo { kind, path: Some(path.to_path_buf()), direct: false, align_bytes: 1, notes: Vec::new() };
        match (options.direct, make_direct(&file, block_device)) {
            (DirectIo::Never, _) => {
                set_flags(&file, OFlags::empty()).map_err(|error| Error::from_rustix(action, error).at(path))?;
                info.notes.push(DiskNote::in_use("buffered, as asked for"));
            }
            (_, Ok((align_bytes, source))) => {
                info.direct = true;
                info.align_bytes = align_bytes;
                info.notes.push(DiskNote::in_use(format!("direct I/O in multiples of {align_bytes} bytes ({source})")));
            }
            (DirectIo::Prefer, Err(reason)) => info.notes.push(DiskNote::missing(format!("buffered: {reason}"))),
            (DirectIo::Require, Err(reason)) => {
                if options.create {
                    remove();
                }
                let hint = format!("{reason}; use another file system, or do not require direct I/O");
                return Err(Error::new(ErrorKind::Unsupported, action, hint).at(path));
            }
        }
        Ok(Self { file, block_device, writable: options.write, info })
    }

    /// The disk's description; `notes` say how the file was opened.
    pub(crate) fn info(&self) -> &DiskInfo {
        &self.info
    }

    /// Returns the length of the file in bytes now.
    pub(crate) fn len_bytes(&self) -> Result<u64> {
        // Works for files and devices alike. Moving the file's position is harmless, because nothing here uses it.
        rustix::fs::seek(&self.file, SeekFrom::End(0))
            .map_err(|error| self.at_path(Error::from_rustix("find the length", error)))
    }

    /// Cuts the file, as [`crate::disk::Disk::truncate`] documents.
    pub(crate) fn truncate(&self, len_bytes: u64) -> Result<()> {
        let refused = |kind, why| Err(self.at_path(Error::new(kind, describe_truncate(len_bytes), why)));
        if self.block_device {
            return refused(ErrorKind::Unsupported, "a device keeps its length");
        }
        if !self.writable {
            return refused(ErrorKind::NoPermission, "opened for reading only");
        }
        check_truncate(len_bytes, self.len_bytes()?).map_err(|error| self.at_path(error))?;
        rustix::fs::ftruncate(&self.file, len_bytes)
            .map_err(|error| self.at_path(Error::from_rustix(describe_truncate(len_bytes), error)))
    }

    /// Returns whether `op` can be accepted.
    ///
    /// # Errors
    /// `InvalidCall`; `NoPermission` for changes to a file opened for reading; `NoSpace` for reserving bytes behind
    /// the end of a device.
    pub(crate) fn accept(&self, op: &Op) -> Result<()> {
        check_op(op, self.info.align_bytes).map_err(|error| self.at_path(error))?;
        let changes = matches!(op.kind, OpKind::Write { .. } | OpKind::Allocate { .. });
        if changes && !self.writable {
            let error = Error::new(ErrorKind::NoPermission, describe_op(op), "opened for reading only");
            return Err(self.at_path(error));
        }
        if let OpKind::Allocate { len_bytes } = op.kind
            && self.block_device
            && op.offset_bytes.saturating_add(len_bytes) > self.len_bytes()?
        {
            let error = Error::new(ErrorKind::NoSpace, describe_op(op), "beyond the end of the device");
            return Err(self.at_path(error));
        }
        Ok(())
    }

    /// Returns whether the file is a block device, on which space needs no reservation.
    pub(crate) fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// Names this file in an error.
    pub(crate) fn at_path(&self, error: Error) -> Error {
        match &self.info.path {
            Some(path) => error.at(path),
            None => error,
        }
    }
}

impl AsFd for DiskFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for DiskFile {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Opens the regular file `name` in an open folder. A symbolic link is not followed, so that nothing outside the folder is opened; a FIFO
/// or a device is not opened either, so that nothing waits for it or is set in motion. `path` is for messages.
///
/// # Errors
/// `InvalidCall` for anything else than a regular file, with its file type; `NotFound`, `AlreadyExists`, `NoPermission`, `NoSpace`.
pub(crate) fn open_regular(
    action: &'static str,
    folder: BorrowedFd<'_>,
    name: &str,
    path: &Path,
    flags: OFlags,
) -> Result<File> {
    let failed = |error| Error::from_rustix(action, error).at(path);
    if !flags.contains(OFlags::EXCL) {
        match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => check_regular(action, path, FileType::from_raw_mode(stat.st_mode))?,
            Err(rustix::io::Errno::NOENT) if flags.contains(OFlags::CREATE) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    // The name may have been given to something else since: it is looked at once more when it is open.
    let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = match rustix::fs::openat(folder, name, flags | safe, Mode::from_raw_mode(0o666)) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => return Err(not_regular(action, path, FileType::Symlink)),
        Err(error) => return Err(failed(error)),
    };
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    check_regular(action, path, FileType::from_raw_mode(stat.st_mode))?;
    set_flags(&file, OFlags::empty()).map_err(failed)?;
    Ok(file)
}

fn check_regular(action: &'static str, path: &Path, file_type: FileType) -> Result<()> {
    if file_type == FileType::RegularFile { Ok(()) } else { Err(not_regular(action, path, file_type)) }
}

fn not_regular(action: &'static str, path: &Path, file_type: FileType) -> Error {
    let detail = match file_type {
        FileType::Symlink => "a symbolic link, and none is followed here: put the file itself in its place",
        FileType::Directory => "a folder, not a file",
        FileType::Fifo => "a FIFO, not a file",
        FileType::Socket => "a socket, not a file",
        FileType::BlockDevice | FileType::CharacterDevice => "a device, not a file",
        _ => "not a regular file",
    };
    Error::new(ErrorKind::InvalidCall, action, detail).at(path)
}

/// Sets the changeable flags of an open file to exactly `flags`.
fn set_flags(file: &File, flags: OFlags) -> rustix::io::Result<()> {
    rustix::fs::fcntl_setfl(file, flags)
}

/// Turns the page cache off, and returns the required alignment with the source that reported it; or the reason why
/// it cannot be turned off.
///
/// Done on the open file, not while opening it: an open with O_CREAT and O_DIRECT that fails leaves the file behind.
fn make_direct(file: &File, block_device: bool) -> std::result::Result<(usize, &'static str), String> {
    let file_system = rustix::fs::fstatfs(file).map_err(|error| format!("fstatfs: {error}"))?;
    let magic = file_system.f_type as u64 & 0xffff_ffff;
    if !block_device && let Some((_, name)) = MEMORY_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic) {
        return Err(format!("{name} is in memory and has no device for direct I/O"));
    }
    set_flags(file, OFlags::DIRECT).map_err(|error| format!("the file system refuses direct I/O ({error})"))?;
    let answer = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let answer = answer.filter(|statx| StatxFlags::from_bits_retain(statx.stx_mask).contains(StatxFlags::DIOALIGN));
    let (align_bytes, source) = match answer {
        Some(statx) if statx.stx_dio_offset_align == 0 => {
            let _ = set_flags(file, OFlags::empty());
            return Err("the file system has no direct I/O for this file".into());
        }
        Some(statx) => (statx.stx_dio_offset_align.max(statx.stx_dio_mem_align) as usize, "statx"),
        None => match rustix::fs::ioctl_blksszget(file) {
            Ok(block_bytes) if block_device => (block_bytes as usize, "the device's logical block"),
            _ => (ALIGN_BYTES_UNKNOWN, "assumed: neither kernel nor device reports one"),
        },
    };
    if align_bytes.is_power_of_two() { Ok((align_bytes, source)) } else { Ok((ALIGN_BYTES_UNKNOWN, "assumed")) }
}

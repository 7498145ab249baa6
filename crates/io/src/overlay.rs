//! A directory that is only read: writes to its files stay with this process, in memory and, unless that is forbidden, in
//! a temporary file without a name. So a program that writes as it opens a file can work on a copy that must not change.
//!
//! Kept true by: no operation but a read, and no call but `open`, `lock`, `list` and `read_text`, reaches the directory
//! below. A read of bytes that were written here, or that lie beyond the end of the file below, is answered here.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::aligned::{IoBuf, PageKind};
use crate::completion::{Completion, Op, OpKind};
use crate::disk::{
    Directory, Disk, DiskInfo, DiskNote, FileLock, NothingToLock, Queue, QueueOptions, RefusedOp, check_op,
    check_truncate, describe_op,
};
use crate::error::{Error, ErrorKind, Result};

#[cfg(test)]
mod tests;

/// Bytes kept together. A write that covers only a part of such a unit reads the rest of it first.
const UNIT_BYTES: u64 = 4096;
/// Units kept in memory where further ones go to a temporary file.
const UNITS_IN_MEMORY: usize = 2048;

/// A directory whose files are read, and whose changes stay in this process.
///
/// ```
/// use std::sync::Arc;
/// use nofault_io::disk::Directory as _;
/// use nofault_io::folder::{Backend, Folder};
/// use nofault_io::overlay::Overlay;
/// # fn main() -> Result<(), nofault_io::error::Error> {
/// # let scratch = tempfile::tempdir().unwrap();
/// let folder = Folder::open(scratch.path(), Backend::Auto)?.read_only();
/// let overlay = Overlay::new(Arc::new(folder));
/// overlay.write_text("note", "only here")?;
/// assert!(overlay.read_text("note")?.starts_with(b"only here"));
/// assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Overlay {
    below: Arc<dyn Directory>,
    disks: Mutex<HashMap<String, OverlayDisk>>,
    limit: Limit,
}

/// The memory for the writes to one file, in units.
#[derive(Debug, Clone, Copy)]
struct Limit {
    units: usize,
    /// Whether further units go to a temporary file.
    has_file: bool,
}

impl Overlay {
    /// Lays an overlay over a directory whose files must not be changed by others while it is used.
    pub fn new(below: Arc<dyn Directory>) -> Self {
        Self { below, disks: Mutex::default(), limit: Limit { units: UNITS_IN_MEMORY, has_file: true } }
    }

    /// As [`Overlay::new`], without a temporary file: of each file up to `bytes_max` written bytes are kept in memory, and
    /// a write beyond fails with `NoSpace`.
    pub fn in_memory(below: Arc<dyn Directory>, bytes_max: usize) -> Self {
        let limit = Limit { units: bytes_max / UNIT_BYTES as usize, has_file: false };
        Self { below, disks: Mutex::default(), limit }
    }

    fn disks(&self) -> MutexGuard<'_, HashMap<String, OverlayDisk>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory for Overlay {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        if self.list()?.iter().any(|known| known == name) {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("create {name}"), ""));
        }
        let disk = OverlayDisk::new(None, 0, self.limit);
        self.disks().insert(name.to_owned(), disk.clone());
        Ok(Arc::new(disk))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        let mut disks = self.disks();
        if let Some(disk) = disks.get(name) {
            return Ok(Arc::new(disk.clone()));
        }
        let below = self.below.open(name)?;
        let len_bytes = below.len_bytes()?;
        let disk = OverlayDisk::new(Some(below), len_bytes, self.limit);
        disks.insert(name.to_owned(), disk.clone());
        Ok(Arc::new(disk))
    }

    fn rename(&self, from: &str, _to: &str) -> Result<()> {
        Err(refused(format!("rename {from}")))
    }

    fn remove(&self, name: &str) -> Result<()> {
        Err(refused(format!("remove {name}")))
    }

    fn list(&self) -> Result<Vec<String>> {
        let mut names = self.below.list()?;
        names.extend(self.disks().keys().cloned());
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read_text(&self, name: &str) -> Result<Vec<u8>> {
        let written = self.disks().get(name).cloned();
        let Some(disk) = written else { return self.below.read_text(name) };
        let mut bytes = vec![0; usize::try_from(disk.len_bytes()?).unwrap_or(usize::MAX).min(1 << 20)];
        disk.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn lock(&self, name: &str, signed: &str) -> Result<Box<dyn FileLock>> {
        self.below.lock(name, signed)
    }

    fn sign(&self, _name: &str) -> Result<Box<dyn FileLock>> {
        Ok(Box::new(NothingToLock))
    }
}

fn refused(action: String) -> Error {
    Error::new(ErrorKind::NoPermission, action, "the directory is only read")
}

/// A file of the directory below with the bytes written over it. Clones are the same file.
#[derive(Debug, Clone)]
struct OverlayDisk(Arc<OverlaidFile>);

#[derive(Debug)]
struct OverlaidFile {
    below: Option<Arc<dyn Disk>>,
    info: DiskInfo,
    written: Mutex<WrittenBytes>,
}

/// The bytes that were written.
struct WrittenBytes {
    len_bytes: u64,
    /// Bytes of the file below that still count: all that it had when it was opened, until the disk is cut shorter.
    below_bytes: u64,
    is_cut: bool,
    limit: Limit,
    /// The place of each written unit, in the order of first writes.
    units: HashMap<u64, usize>,
    memory: Vec<u8>,
    file: Option<File>,
}

impl fmt::Debug for WrittenBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Written({} units, {} bytes)", self.units.len(), self.len_bytes)
    }
}

impl OverlayDisk {
    fn new(below: Option<Arc<dyn Disk>>, len_bytes: u64, limit: Limit) -> Self {
        let mut info = below.as_ref().map_or_else(
            || DiskInfo { kind: "overlay", path: None, direct: false, align_bytes: 1, notes: Vec::new() },
            |below| below.info(),
        );
        info.notes.push(DiskNote::in_use("only read: changes stay in this process"));
        let (units, memory) = (HashMap::new(), Vec::new());
        let is_cut = false;
        let written = WrittenBytes { len_bytes, below_bytes: len_bytes, is_cut, limit, units, memory, file: None };
        Self(Arc::new(OverlaidFile { below, info, written: Mutex::new(written) }))
    }

    fn written(&self) -> MutexGuard<'_, WrittenBytes> {
        self.0.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the file below holds all bytes of a read.
    fn is_below(&self, offset: u64, len_bytes: usize) -> bool {
        let (written, end) = (self.written(), offset.saturating_add(len_bytes as u64));
        let mut units = offset / UNIT_BYTES..end.div_ceil(UNIT_BYTES);
        end <= written.below_bytes && (written.units.is_empty() || !units.any(|unit| written.units.contains_key(&unit)))
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.read_locked(&self.written(), into, offset)
    }

    fn read_locked(&self, written: &WrittenBytes, into: &mut [u8], offset: u64) -> Result<()> {
        let mut at = 0;
        while at < into.len() {
            let position = offset + at as u64;
            let within = (position % UNIT_BYTES) as usize;
            let end = into.len().min(at + UNIT_BYTES as usize - within);
            let part = &mut into[at..end];
            match written.units.get(&(position / UNIT_BYTES)) {
                Some(slot) => written.read_unit(*slot, within, part)?,
                None => self.read_below(written, part, position)?,
            }
            at = end;
        }
        Ok(())
    }

    /// Reads bytes of one unit from the file below; those beyond its end are zero.
    fn read_below(&self, written: &WrittenBytes, part: &mut [u8], position: u64) -> Result<()> {
        part.fill(0);
        let there = written.below_bytes.saturating_sub(position).min(part.len() as u64) as usize;
        let Some(below) = self.0.below.as_ref().filter(|_| there > 0) else { return Ok(()) };
        let align = below.info().align_bytes as u64;
        let start = position / align * align;
        let skip = (position - start) as usize;
        // The length of the file below is a multiple of the alignment where direct I/O is used.
        let len_bytes = (skip + there).next_multiple_of(align as usize);
        let buffer = IoBuf::zeroed(len_bytes, PageKind::Small)?;
        let mut done = below.perform(Op::new(0, start, OpKind::Read(buffer)))?;
        std::mem::replace(&mut done.result, Ok(0))?;
        if let Some(buffer) = done.into_buffer() {
            part[..there].copy_from_slice(&buffer[skip..skip + there]);
        }
        Ok(())
    }

    fn write_at(&self, parts: impl Iterator<Item = Vec<u8>>, offset: u64) -> Result<()> {
        let mut written = self.written();
        let mut position = offset;
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                let (unit, within) = (position / UNIT_BYTES, (position % UNIT_BYTES) as usize);
                let (now, later) = rest.split_at(rest.len().min(UNIT_BYTES as usize - within));
                let mut bytes = vec![0; UNIT_BYTES as usize];
                if now.len() < bytes.len() {
                    self.read_locked(&written, &mut bytes, unit * UNIT_BYTES)?;
                }
                bytes[within..within + now.len()].copy_from_slice(now);
                written.write_unit(unit, &bytes)?;
                position += now.len() as u64;
                rest = later;
            }
        }
        written.len_bytes = written.len_bytes.max(position);
        Ok(())
    }

    /// Carries out an operation that does not reach the file below as it is.
    fn answer(&self, mut op: Op) -> Completion {
        let end = |len: u64| op.offset_bytes.saturating_add(len);
        let result = match &mut op.kind {
            OpKind::Read(buffer) if end(buffer.len() as u64) > self.written().len_bytes => {
                let what = format!("the file ends at {}", self.written().len_bytes);
                Err(Error::new(ErrorKind::Short, describe_op(&op), what))
            }
            OpKind::Read(buffer) => self.read_at(buffer, op.offset_bytes).map(|()| buffer.len()),
            OpKind::Write { data, .. } => {
                let parts: Vec<Vec<u8>> = data.parts().map(<[u8]>::to_vec).collect();
                self.write_at(parts.into_iter(), op.offset_bytes).map(|()| data.len_bytes())
            }
            OpKind::Allocate { len_bytes } => {
                let end = end(*len_bytes);
                let mut written = self.written();
                written.len_bytes = written.len_bytes.max(end);
                Ok(0)
            }
            OpKind::Sync => Ok(0),
        };
        Completion { op, result }
    }

    fn passes_on(&self, op: &Op) -> bool {
        matches!(&op.kind, OpKind::Read(buffer) if self.is_below(op.offset_bytes, buffer.len()))
    }
}

impl WrittenBytes {
    fn read_unit(&self, slot: usize, within: usize, part: &mut [u8]) -> Result<()> {
        let at = slot * UNIT_BYTES as usize + within;
        if slot < self.limit.units {
            part.copy_from_slice(&self.memory[at..at + part.len()]);
            return Ok(());
        }
        let file = self.file.as_ref().ok_or_else(|| refused("read a temporary file".into()))?;
        let at = at - self.limit.units * UNIT_BYTES as usize;
        file.read_exact_at(part, at as u64).map_err(|error| Error::from_io("read a temporary file", &error))
    }

    fn write_unit(&mut self, unit: u64, bytes: &[u8]) -> Result<()> {
        let next = self.units.len();
        let slot = *self.units.get(&unit).unwrap_or(&next);
        let at = slot * UNIT_BYTES as usize;
        if slot < self.limit.units {
            self.memory.resize(self.memory.len().max(at + bytes.len()), 0);
            self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        } else if !self.limit.has_file {
            let what = format!("the {} bytes of memory for changes are used up", self.limit.units as u64 * UNIT_BYTES);
            return Err(Error::new(ErrorKind::NoSpace, "keep a change in memory", what));
        } else {
            let folder = std::env::temp_dir();
            let failed = |error: &std::io::Error| {
                Error::from_io("write to a temporary file", error)
                    .at(&folder)
                    .hint("set TMPDIR to a folder with space for the pages that the log changes")
            };
            let file = match &self.file {
                Some(file) => file,
                None => self.file.insert(nameless_file(&folder).map_err(|error| failed(&error))?),
            };
            let at = at - self.limit.units * UNIT_BYTES as usize;
            file.write_all_at(bytes, at as u64).map_err(|error| failed(&error))?;
        }
        self.units.insert(unit, slot);
        Ok(())
    }
}

/// Creates a file without name, so that it is gone with this process.
fn nameless_file(folder: &Path) -> std::io::Result<File> {
    let options = || {
        let mut options = File::options();
        options.read(true).write(true).mode(0o600);
        options
    };
    match options().custom_flags(libc::O_TMPFILE).open(folder) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) => {}
        opened => return opened,
    }
    // The file system knows no files without a name.
    let path = folder.join(format!("nofault-overlay-{:016x}", fastrand::u64(..)));
    let file = options().create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

impl Disk for OverlayDisk {
    fn info(&self) -> DiskInfo {
        self.0.info.clone()
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.written().len_bytes)
    }

    /// Counts what another process has added to the file below since it was opened, although only the part that was there
    /// then can be read.
    fn extent_bytes(&self) -> Result<u64> {
        let written = self.written();
        match &self.0.below {
            Some(below) if !written.is_cut => Ok(below.extent_bytes()?.max(written.len_bytes)),
            _ => Ok(written.len_bytes),
        }
    }

    fn truncate(&self, len_bytes: u64) -> Result<()> {
        let mut written = self.written();
        check_truncate(len_bytes, written.len_bytes)?;
        written.len_bytes = len_bytes;
        written.is_cut |= len_bytes < written.below_bytes;
        written.below_bytes = written.below_bytes.min(len_bytes);
        let units = len_bytes.div_ceil(UNIT_BYTES);
        // Places are never used again, so what is left stays valid; a cut unit reads as zeroes when the disk grows again.
        let cut: Vec<u64> = written.units.keys().filter(|unit| **unit >= units).copied().collect();
        cut.into_iter().try_for_each(|unit| written.write_unit(unit, &[0; UNIT_BYTES as usize]))
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        if options.depth_max == 0 {
            return Err(Error::new(ErrorKind::InvalidCall, "open a queue", "it takes no operation"));
        }
        let below = self.0.below.as_ref().map(|below| below.queue(options)).transpose()?;
        Ok(Box::new(OverlayQueue { disk: self.clone(), below, done: Vec::new(), depth_max: options.depth_max }))
    }

    fn perform(&self, op: Op) -> Result<Completion> {
        if let Err(error) = check_op(&op, self.0.info.align_bytes) {
            return Ok(Completion { op, result: Err(error) });
        }
        match &self.0.below {
            Some(below) if self.passes_on(&op) => below.perform(op),
            _ => Ok(self.answer(op)),
        }
    }
}

/// The queue of an overlay: reads of unchanged bytes go to the disk below, all else is done at once.
struct OverlayQueue {
    disk: OverlayDisk,
    below: Option<Box<dyn Queue>>,
    done: Vec<Completion>,
    depth_max: usize,
}

impl Queue for OverlayQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        if let Err(error) = check_op(&op, self.disk.0.info.align_bytes) {
            return Err(RefusedOp { op, error });
        }
        if self.in_flight() >= self.depth_max {
            let what = format!("{} operations are in flight", self.depth_max);
            let error = Error::new(ErrorKind::Busy, describe_op(&op), what);
            return Err(RefusedOp { op, error });
        }
        match &mut self.below {
            Some(below) if self.disk.passes_on(&op) => below.push(op),
            _ => {
                self.done.push(self.disk.answer(op));
                Ok(())
            }
        }
    }

    fn submit(&mut self) -> Result<()> {
        self.below.as_mut().map_or(Ok(()), |below| below.submit())
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        let here = self.done.len();
        into.append(&mut self.done);
        self.below.as_mut().map_or(Ok(()), |below| below.reap(wait_for.saturating_sub(here), into))
    }

    fn in_flight(&self) -> usize {
        self.done.len() + self.below.as_ref().map_or(0, |below| below.in_flight())
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

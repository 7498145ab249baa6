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

/// Bytes that are kept together. A write that covers only a part of such a unit reads the rest of it first.
const UNIT_BYTES: u64 = 4096;
/// Units that are kept in memory where further ones go to a temporary file.
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

/// The memory for what is written to one file, in units.
#[derive(Debug, Clone, Copy)]
struct Limit {
    units: usize,
    /// Whether further units go to a temporary file.
    has_file: bool,
}

impl Overlay {
    /// Lays an overlay over a directory, of which no file may be changed by others meanwhile.
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

/// A file of the directory below with the bytes that were written over it. Clones are the same file.
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
    /// Bytes of the file below that still count: all of them, until the disk is cut shorter.
    below_bytes: u64,
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
        let written = WrittenBytes { len_bytes, below_bytes: len_bytes, limit, units, memory, file: None };
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

/// Creates a file that has no name, so that it is gone with this process.
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
    let path = folder.join(format!("nofault-overlay-{}-{:p}", std::process::id(), folder));
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

    fn truncate(&self, len_bytes: u64) -> Result<()> {
        let mut written = self.written();
        check_truncate(len_bytes, written.len_bytes)?;
        written.len_bytes = len_bytes;
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

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::folder::{Backend, Folder};

    fn perform(disk: &dyn Disk, offset: u64, kind: OpKind) -> Result<Completion> {
        disk.perform(Op::new(0, offset, kind))
    }

    fn buffer(bytes: &[u8]) -> IoBuf {
        let mut buffer = IoBuf::zeroed(bytes.len(), PageKind::Small).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, u8, usize),
        Read(u64, usize),
        Truncate(u64),
        Allocate(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Positions in blocks of 512 bytes.
        prop_oneof![
            (0..80_u64, any::<u8>(), 1..20_usize).prop_map(|(at, fill, len)| Step::Write(at, fill, len)),
            (0..90_u64, 1..30_usize).prop_map(|(at, len)| Step::Read(at, len)),
            (0..10_u64).prop_map(Step::Truncate),
            (0..90_u64, 1..20_u64).prop_map(|(at, len)| Step::Allocate(at, len)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// The overlay is as a file that is written, and the file below stays as it was.
        #[test]
        fn what_is_written_is_read_and_the_file_below_stays(blocks in 0..64_usize, steps in vec(step(), 1..40)) {
            let scratch = tempfile::tempdir().unwrap();
            let below: Vec<u8> = (0..blocks * 512).map(|at| (at / 7) as u8).collect();
            std::fs::write(scratch.path().join("data"), &below).unwrap();
            let folder = Folder::open(scratch.path(), Backend::Psync).unwrap().read_only();
            let overlay = Overlay::new(Arc::new(folder.with_direct(crate::disk::DirectIo::Never)));
            let disk = overlay.open("data").unwrap();
            let mut queue = disk.queue(&QueueOptions::default()).unwrap();
            let mut model = below.clone();
            for step in steps {
                match step {
                    Step::Write(at, fill, len) => {
                        let (at, bytes) = (at as usize * 512, vec![fill; len * 512]);
                        model.resize(model.len().max(at + bytes.len()), 0);
                        model[at..at + bytes.len()].copy_from_slice(&bytes);
                        perform(&*disk, at as u64, OpKind::write(buffer(&bytes), true)).unwrap().result.unwrap();
                    }
                    Step::Read(at, len) => {
                        let (at, len) = (at as usize * 512, len * 512);
                        let mut done = vec![perform(&*disk, at as u64, OpKind::Read(buffer(&vec![9; len]))).unwrap()];
                        queue.push(Op::new(0, at as u64, OpKind::Read(buffer(&vec![9; len])))).unwrap();
                        while queue.in_flight() > 0 {
                            queue.reap(1, &mut done).unwrap();
                        }
                        prop_assert_eq!(done.len(), 2);
                        for done in done {
                            match model.get(at..at + len) {
                                Some(bytes) => prop_assert_eq!(&*done.into_buffer().unwrap(), bytes),
                                None => prop_assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Short),
                            }
                        }
                    }
                    Step::Truncate(at) => {
                        let len = at * 4096;
                        let cut = disk.truncate(len);
                        prop_assert_eq!(cut.is_ok(), len as usize <= model.len());
                        if cut.is_ok() {
                            model.truncate(len as usize);
                        }
                    }
                    Step::Allocate(at, len) => {
                        model.resize(model.len().max((at + len) as usize * 512), 0);
                        perform(&*disk, at * 512, OpKind::Allocate { len_bytes: len * 512 }).unwrap().result.unwrap();
                    }
                }
                prop_assert_eq!(disk.len_bytes().unwrap(), model.len() as u64);
            }
            prop_assert_eq!(std::fs::read(scratch.path().join("data")).unwrap(), below);
        }
    }

    #[test]
    fn more_than_fits_in_memory_goes_to_a_file_without_a_name() {
        let scratch = tempfile::tempdir().unwrap();
        let overlay = Overlay::new(Arc::new(Folder::open(scratch.path(), Backend::Psync).unwrap().read_only()));
        let disk = overlay.create("data").unwrap();
        let count = UNITS_IN_MEMORY as u64 + 20;
        for unit in (0..count).rev() {
            let bytes = [unit as u8; UNIT_BYTES as usize];
            perform(&*disk, unit * UNIT_BYTES, OpKind::write(buffer(&bytes), false)).unwrap().result.unwrap();
        }
        for unit in 0..count {
            let done = perform(&*disk, unit * UNIT_BYTES, OpKind::Read(buffer(&[0; UNIT_BYTES as usize]))).unwrap();
            assert!(done.into_buffer().unwrap().iter().all(|byte| *byte == unit as u8), "unit {unit}");
        }
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_overlay_in_memory_refuses_what_is_more_than_its_limit_and_keeps_the_rest() {
        let scratch = tempfile::tempdir().unwrap();
        let below = Arc::new(Folder::open(scratch.path(), Backend::Psync).unwrap().read_only());
        let overlay = Overlay::in_memory(below, 3 * UNIT_BYTES as usize);
        let disk = overlay.create("data").unwrap();
        let write = |unit: u64| {
            let bytes = buffer(&[unit as u8; UNIT_BYTES as usize]);
            perform(&*disk, unit * UNIT_BYTES, OpKind::write(bytes, true)).unwrap().result
        };
        (0..3).for_each(|unit| assert!(write(unit).is_ok()));
        assert_eq!(write(3).unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(write(1).is_ok(), "bytes that are there may be replaced");
        let done = perform(&*disk, 2 * UNIT_BYTES, OpKind::Read(buffer(&[0; UNIT_BYTES as usize]))).unwrap();
        assert!(done.into_buffer().unwrap().iter().all(|byte| *byte == 2));
    }

    #[test]
    fn a_folder_that_is_only_read_refuses_changes_and_its_lock_keeps_out_those_who_write() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("data"), "data").unwrap();
        let open = || Folder::open(scratch.path(), Backend::Psync).unwrap();
        let folder = open().read_only();
        let refused = [
            folder.create("new").map(drop),
            folder.rename("data", "new"),
            folder.remove("data"),
            folder.write_text("new", "text"),
        ];
        refused.into_iter().for_each(|refused| assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoPermission));
        let (first, second) = (folder.lock("data", "lock").unwrap(), open().read_only().lock("data", "lock").unwrap());
        drop(first);
        assert_eq!(open().lock("data", "lock").unwrap_err().kind(), ErrorKind::Busy);
        drop(second);
        let written = open().lock("data", "lock").unwrap();
        assert_eq!(folder.lock("data", "lock").unwrap_err().kind(), ErrorKind::Busy);
        drop(written);
        assert_eq!(folder.list().unwrap(), ["data"]);
    }
}

//! The contracts of storage: a [`Disk`] of bytes, the [`Queue`]s through which it is used, and a [`Directory`] of
//! disks.
//!
//! A disk is shared; a queue has one owner. Each consumer opens its own queue, because two kinds of consumer on one
//! completion queue end up taking each other's completions.
//!
//! Every implementation keeps these rules (one test body in `tests/disk_contract.rs` runs over all of them):
//! 1. Each pushed operation comes back exactly once, whole, with its buffer; in any order.
//! 2. `Ok(n)` means `n` is the full length. Short transfers, EINTR and pieces that a ring has cancelled, because
//!    their submitter has ended, are repeated inside; a read past the end is `Short`. A sync that was interrupted or
//!    cancelled has failed: the writes that it covered may be lost, and the next sync would not report it.
//! 3. An operation that cannot be accepted is given back at once ([`RefusedOp`]) and was not started.
//! 4. Dropping a queue with operations in flight is safe: their memory stays alive until the kernel is done with it.
//! 5. A waiting `reap` parks the thread; nothing spins.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::aligned::{IoBuf, PageKind, Region};
use crate::completion::{Completion, Op, OpKind};
use crate::error::{Error, ErrorKind, Result};

/// Pause of a waiting `reap` after the kernel has refused operations for lack of memory.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// Attempts to wait for the only operation of a queue.
const WAITS_MAX: u32 = 8;
/// Consecutive refusals for lack of memory after which a waiting `reap` gives up.
pub(crate) const REFUSALS_MAX: u32 = 1000;

/// A file, a block device, a stripe set or a simulation of one: an array of bytes with durable writes.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Returns the disk's description, for statistics and reports.
    fn info(&self) -> DiskInfo;

    /// Returns the length in bytes now. One system call.
    ///
    /// # Errors
    /// The system's error.
    fn len_bytes(&self) -> Result<u64>;

    /// Returns a position at or behind the last byte that was ever written: as [`Disk::len_bytes`], unless the disk may
    /// have gaps that its length does not reach over.
    ///
    /// # Errors
    /// As [`Disk::len_bytes`].
    fn extent_bytes(&self) -> Result<u64> {
        self.len_bytes()
    }

    /// Cuts the disk to its first `len_bytes` bytes and frees the space of the rest. Blocks; one system call. No
    /// operation on the rest may be in flight. A power cut may undo the cut until a later sync has completed.
    ///
    /// # Errors
    /// `Unsupported` where there is nothing to cut, as on a device. `InvalidCall` for more bytes than there are, and
    /// for a length that is no multiple of 4,096. `NoPermission` when the disk was opened for reading; errors of the
    /// system.
    fn truncate(&self, len_bytes: u64) -> Result<()> {
        let _ = len_bytes;
        Err(Error::new(ErrorKind::Unsupported, "truncate", "disks of this kind keep their length"))
    }

    /// Opens a new queue for one consumer.
    ///
    /// # Errors
    /// `Unsupported`, `NoPermission` or `NoResources` when the kernel refuses a ring or its registrations; the message
    /// names the refused one and the remedy.
    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>>;

    /// Carries one operation out while the calling thread waits: for a caller that has nothing else to do and wants no
    /// other thread or ring in between. On files and devices this is one system call; elsewhere it opens a new queue
    /// for the operation.
    ///
    /// A failure of the operation itself is in its completion.
    ///
    /// # Errors
    /// When a queue fails with the operation in flight: its memory then stays with the kernel for as long as the
    /// kernel needs it, and is freed afterwards.
    fn perform(&self, op: Op) -> Result<Completion> {
        perform_on_a_queue(self, op)
    }
}

/// Performs an operation on a new queue, for disks without a direct way to do it.
pub(crate) fn perform_on_a_queue<D: Disk + ?Sized>(disk: &D, op: Op) -> Result<Completion> {
    let mut queue = match disk.queue(&QueueOptions { depth_max: 1, ..QueueOptions::default() }) {
        Ok(queue) => queue,
        Err(error) => return Ok(Completion { op, result: Err(error) }),
    };
    let mut done = Vec::with_capacity(1);
    let mut failed = queue.run(op, &mut done).err();
    let mut attempts = 0;
    // The memory comes back only with the operation, so its completion is waited for also when a wait has failed.
    while done.is_empty() && queue.in_flight() > 0 && attempts < WAITS_MAX {
        attempts += 1;
        failed = queue.reap(1, &mut done).err().or(failed);
    }
    match (done.pop(), failed) {
        (Some(done), _) => Ok(done),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::new(ErrorKind::Other, "carry out an operation", "it did not come back")),
    }
}

/// Submission and completion of operations on one disk, for one owner.
pub trait Queue: Send {
    /// Accepts an operation. It may start at once or wait for `submit`; submitting many together is cheap.
    ///
    /// # Errors
    /// `InvalidCall` for misaligned or empty operations, `Busy` when `depth_max` operations are in flight, `Stopped`
    /// after the disk has stopped. The operation comes back with the error.
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp>;

    /// Sends everything pushed so far to the device. Never waits for an operation to finish.
    ///
    /// # Errors
    /// When the kernel refuses the submission; nothing is lost, the pushed operations are still queued.
    fn submit(&mut self) -> Result<()>;

    /// Submits, waits until at least `wait_for` operations have completed, and appends all completed ones to `into`.
    /// With zero it does not wait. Waits for fewer when fewer are in flight.
    ///
    /// # Errors
    /// When the kernel refuses to wait. `Busy` or `NoResources`: nothing is in flight and nothing could be submitted, so
    /// no descriptor will become ready; try again later. A waiting caller gets them only after the kernel has refused
    /// for a second or more. Operations that completed before an error are in `into`. Failures of single operations
    /// are in their completions.
    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()>;

    /// Carries out one operation and waits for it. Appends its completion to `into`, and perhaps completions of other
    /// operations that ended by then. An operation that cannot be accepted comes back there too, with the reason.
    ///
    /// For a caller with nothing else to do. A disk on a file makes the system call on this thread, so no other thread
    /// needs a CPU before it ends. A durable write through a ring, in contrast, ends in a kernel worker, which issues
    /// the flush, and which waits a scheduler time slice when its CPU is busy.
    ///
    /// # Errors
    /// As [`Queue::reap`].
    fn run(&mut self, op: Op, into: &mut Vec<Completion>) -> Result<()> {
        if let Err(refused) = self.push(op) {
            into.push(Completion { op: refused.op, result: Err(refused.error) });
            return Ok(());
        }
        while self.in_flight() > 0 {
            self.reap(self.in_flight(), into)?;
        }
        Ok(())
    }

    /// Returns the number of operations pushed and not yet reaped.
    fn in_flight(&self) -> usize;

    /// A descriptor that polls readable when `reap(0)` would yield something, and now and then when it would not: for a
    /// runtime's poller. `None` where the disk has none.
    fn ready_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Says that no poller has the descriptor of [`Queue::ready_fd`] any more. A queue that borrows it can then give it back when
    /// nothing is in flight, and a later call returns another one. Wakes nothing, and changes nothing else.
    fn end_watch(&mut self) {}
}

/// A queue that has ended: it refuses every operation with `Stopped`. It takes the place of a queue that is dropped, which
/// ends all that is in flight in it.
#[derive(Debug)]
pub struct EndedQueue;

impl Queue for EndedQueue {
    fn push(&mut self, op: Op) -> std::result::Result<(), RefusedOp> {
        Err(RefusedOp { op, error: Error::new(ErrorKind::Stopped, "use a queue", "the queue has ended") })
    }

    fn submit(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, _wait_for: usize, _into: &mut Vec<Completion>) -> Result<()> {
        Ok(())
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// An operation that was not accepted, and why.
#[derive(Debug)]
pub struct RefusedOp {
    /// The operation, as it was pushed.
    pub op: Op,
    /// The reason for which the queue did not accept it.
    pub error: Error,
}

/// The options of a queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// Most operations in flight at a time.
    pub depth_max: usize,
    /// Whether only the thread that opens the queue uses it. Then a ring can take `SINGLE_ISSUER` and `DEFER_TASKRUN`.
    pub single_thread: bool,
    /// Memory with buffers that the kernel should keep pinned and mapped (registered buffers). Operations on other
    /// memory work as well, at a little more cost.
    pub registered: Vec<Region>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth_max: 128, single_thread: false, registered: Vec::new() }
    }
}

/// The description of a disk: its kind, its path, its mode and its alignment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskInfo {
    /// Kind of the disk: `io_uring`, `psync`, `sim` or `striped`.
    pub kind: &'static str,
    /// The file or device, where there is one.
    pub path: Option<PathBuf>,
    /// Whether reads and writes bypass the page cache.
    pub direct: bool,
    /// Offsets, lengths and addresses must be multiples of this; 1 where nothing is asked.
    pub align_bytes: usize,
    /// The features in use, and each missing feature with the reason.
    pub notes: Vec<DiskNote>,
}

/// A remark on how a disk is read and written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskNote {
    /// Whether the remark names a feature in use or a missing one.
    pub kind: DiskNoteKind,
    /// The remark, in words for a person.
    pub text: String,
}

/// The kind of a [`DiskNote`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskNoteKind {
    /// A feature in use, or a choice of the caller.
    InUse,
    /// A faster way that the caller allows and that is not available here, with the reason.
    Missing,
}

impl DiskNote {
    /// Creates a remark about a feature in use.
    pub fn in_use(text: impl Into<String>) -> Self {
        Self { kind: DiskNoteKind::InUse, text: text.into() }
    }

    /// Creates a remark about a missing feature.
    pub fn missing(text: impl Into<String>) -> Self {
        Self { kind: DiskNoteKind::Missing, text: text.into() }
    }
}

impl fmt::Display for DiskNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The options of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOptions {
    /// Whether reads and writes bypass the page cache.
    pub direct: DirectIo,
    /// Whether to open the file for writing as well.
    pub write: bool,
    /// Whether to create the file; it is an error if it exists.
    pub create: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { direct: DirectIo::Prefer, write: true, create: false }
    }
}

/// Whether to bypass the page cache (O_DIRECT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectIo {
    /// Fail where the file system refuses direct I/O.
    Require,
    /// Fall back to buffered I/O where the file system refuses direct I/O, and say so in [`DiskInfo::notes`].
    Prefer,
    /// Use buffered I/O, through the page cache.
    Never,
}

/// A folder of disks: creates, finds, renames and removes them, and makes these changes durable.
///
/// A new name, a rename or a removal is durable only after `sync`: until then a power cut may undo it.
pub trait Directory: Send + Sync + fmt::Debug {
    /// Creates a disk of zero bytes.
    ///
    /// # Errors
    /// `AlreadyExists`, `NoPermission`, `NoSpace`.
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>>;

    /// Opens an existing disk.
    ///
    /// # Errors
    /// `NotFound`, `NoPermission`.
    fn open(&self, name: &str) -> Result<Arc<dyn Disk>>;

    /// Renames a disk. Replaces nothing: a file with the new name already keeps it.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists`, or the error of the system.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes the name of a disk.
    ///
    /// # Errors
    /// `NotFound`, or the error of the system call.
    fn remove(&self, name: &str) -> Result<()>;

    /// Lists the names in the directory, sorted.
    ///
    /// # Errors
    /// The error of the system call.
    fn list(&self) -> Result<Vec<String>>;

    /// Makes every change of names so far durable. Blocks.
    ///
    /// # Errors
    /// The error of the system call; afterwards nothing is known about the names changed since the last success.
    fn sync(&self) -> Result<()>;

    /// Creates a small file with this text, which is durable afterwards. Its name is durable only after `sync`. Blocks.
    ///
    /// On disks that ask for alignment, empty lines follow the text.
    ///
    /// # Errors
    /// As [`Directory::create`], or the error of the write.
    fn write_text(&self, name: &str, text: &str) -> Result<()> {
        let disk = self.create(name)?;
        let align_bytes = disk.info().align_bytes;
        let mut bytes = IoBuf::zeroed(text.len().max(1).next_multiple_of(align_bytes), PageKind::Small)?;
        bytes.fill(b'\n');
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        disk.perform(Op::new(0, 0, OpKind::write(bytes, false)))?.result?;
        disk.perform(Op::new(0, 0, OpKind::Sync))?.result.map(drop)
    }

    /// Reads the bytes of a small file. Blocks.
    ///
    /// # Errors
    /// `NotFound`, `NoPermission`; `InvalidCall` when the file has more than [`TEXT_BYTES_MAX`] bytes; the error of the
    /// read.
    fn read_text(&self, name: &str) -> Result<Vec<u8>> {
        let disk = self.open(name)?;
        let len_bytes = disk.len_bytes()?;
        refuse_long_text(name, len_bytes)?;
        let len_bytes = len_bytes as usize / disk.info().align_bytes * disk.info().align_bytes;
        if len_bytes == 0 {
            return Ok(Vec::new());
        }
        let done = disk.perform(Op::new(0, 0, OpKind::Read(IoBuf::zeroed(len_bytes, PageKind::Small)?)))?;
        done.result.clone()?;
        Ok(done.into_buffer().map_or_else(Vec::new, |bytes| bytes.to_vec()))
    }

    /// Locks the file `name`. Until the lock is dropped, or this process ends, every other attempt to lock the file
    /// fails, in this process and in others, even after the file was renamed or removed. `signed` is the file in
    /// which the holder has left its name, for the message.
    ///
    /// A simulated directory has one user: there the lock excludes nothing.
    ///
    /// # Errors
    /// `Busy` when another holder has the lock; `NotFound`, `NoPermission`; `InvalidCall` when it is not a regular
    /// file; `Unsupported` where the file system has no locks.
    fn lock(&self, name: &str, signed: &str) -> Result<Box<dyn FileLock>> {
        let _ = (name, signed);
        Ok(Box::new(NothingToLock))
    }

    /// Writes the name of this process to the file `name`, for the message of [`Directory::lock`], and keeps other
    /// processes from doing so until the result is dropped. A file with other content stays unchanged: in that case,
    /// and where the file cannot be written, no name is left and the result locks nothing.
    ///
    /// # Errors
    /// `Busy` when another process has left its name there and has not ended.
    fn sign(&self, name: &str) -> Result<Box<dyn FileLock>> {
        let _ = name;
        Ok(Box::new(NothingToLock))
    }
}

/// A lock that this process holds; dropping it releases the lock.
pub trait FileLock: Send + Sync + fmt::Debug {
    /// Checks that `name`, in the directory in which it was locked, still stands for the locked file.
    ///
    /// # Errors
    /// `Busy` when the name stands for another file, or for none.
    fn check(&self, name: &str) -> Result<()> {
        let _ = name;
        Ok(())
    }

    /// Returns the identity of the locked file on this machine, device and inode; `None` where there is no file.
    fn id(&self) -> Option<(u64, u64)> {
        None
    }

    /// Returns the view of the processes reading the locked file, with the record `record` next to it, which is created if
    /// need be. `None` where no process can read it while it is written: for a lock that is not for writing, and for
    /// directories that have no readers alongside a writer. The record is locked with the file: no other file under its
    /// name is given the same record until this lock is dropped.
    ///
    /// # Errors
    /// `Busy` when the record was removed while readers are open, or belongs to a file that was in this place before and is
    /// locked still; the error of the system.
    fn readers(&self, record: &str) -> Result<Option<Arc<dyn ReaderWatch>>> {
        let _ = record;
        Ok(None)
    }
}

/// Bytes of the record that a writer leaves for its readers.
pub const READER_RECORD_BYTES: usize = 64;

/// Exclusive upper bound of the numbers that a reader may register.
pub const READER_NUMBERS: u64 = 1 << 61;

/// The part of a database that a registered reader uses. Each part has its own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderUse {
    /// The content of the file.
    Content,
    /// The log next to it.
    Log,
}

/// A writer's view of the processes reading its file.
pub trait ReaderWatch: Send + Sync + fmt::Debug {
    /// Returns whether a reader has registered one of these numbers. One system call.
    ///
    /// # Errors
    /// The error of the system.
    fn is_in_use(&self, of: ReaderUse, numbers: Range<u64>) -> Result<bool>;

    /// Keeps readers from registering for this use until [`ReaderWatch::admit`]. Returns false when one has.
    ///
    /// # Errors
    /// The error of the system.
    fn try_exclude(&self, of: ReaderUse) -> Result<bool>;

    /// Lets readers register again.
    fn admit(&self, of: ReaderUse);

    /// Returns the inode of the record's file, which a copy of the record does not have.
    fn record_inode(&self) -> u64;

    /// Reads the record; `None` when it was never written.
    ///
    /// # Errors
    /// The error of the system.
    fn record(&self) -> Result<Option<[u8; READER_RECORD_BYTES]>>;

    /// Writes the record: readers see it when this returns. It is not made durable, as no reader outlives a power cut.
    ///
    /// # Errors
    /// `NoSpace`, or the error of the system.
    fn write_record(&self, bytes: &[u8; READER_RECORD_BYTES]) -> Result<()>;
}

/// The lock of a directory without locks: it locks no file.
#[derive(Debug)]
pub(crate) struct NothingToLock;

impl FileLock for NothingToLock {}

/// Lengths given to [`Disk::truncate`] are multiples of this.
const TRUNCATE_ALIGN_BYTES: u64 = 4096;

/// Longest text that [`Directory::read_text`] reads.
pub const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Refuses to read a text of this length if it is too long.
///
/// # Errors
/// `InvalidCall` when the text is longer than [`TEXT_BYTES_MAX`].
pub(crate) fn refuse_long_text(name: &str, len_bytes: u64) -> Result<()> {
    if len_bytes <= TEXT_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidCall,
        format!("read {name}"),
        format!("{len_bytes} bytes are too many for a text"),
    ))
}

/// Checks the requirements of every disk before an operation is accepted: bytes to move, alignment, and an end that is
/// a valid position.
///
/// # Errors
/// `InvalidCall`, naming the broken rule.
pub fn check_op(op: &Op, align_bytes: usize) -> Result<()> {
    let align = align_bytes as u64;
    let invalid = |why: String| Error::new(ErrorKind::InvalidCall, describe_op(op), why);
    let check_part = |part: &[u8]| {
        let misaligned =
            !(part.as_ptr() as usize).is_multiple_of(align_bytes) || !part.len().is_multiple_of(align_bytes);
        if misaligned { Err(invalid(format!("direct I/O wants memory in multiples of {align} bytes"))) } else { Ok(()) }
    };
    match &op.kind {
        OpKind::Sync => return Ok(()),
        OpKind::Allocate { len_bytes: 0 } => return Err(invalid("zero bytes".into())),
        OpKind::Allocate { .. } => {}
        kind if kind.len_bytes() == 0 => return Err(invalid("zero bytes".into())),
        OpKind::Read(buffer) => check_part(buffer)?,
        OpKind::Write { data, .. } => data.parts().try_for_each(check_part)?,
    }
    if !op.offset_bytes.is_multiple_of(align) {
        return Err(invalid(format!("direct I/O wants positions in multiples of {align} bytes")));
    }
    let len = match &op.kind {
        OpKind::Allocate { len_bytes } => *len_bytes,
        kind => kind.len_bytes() as u64,
    };
    match op.offset_bytes.checked_add(len) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(invalid("ends beyond the largest position of a file".into())),
    }
}

fn op_name(kind: &crate::completion::OpKind) -> String {
    match kind {
        OpKind::Read(buffer) => format!("read {} bytes", buffer.len()),
        OpKind::Write { data, durable: false } => format!("write {} bytes", data.len_bytes()),
        OpKind::Write { data, durable: true } => format!("write {} bytes durably", data.len_bytes()),
        OpKind::Sync => "sync".into(),
        OpKind::Allocate { len_bytes } => format!("allocate {len_bytes} bytes"),
    }
}

/// Checks a length to which a disk is to be cut.
///
/// # Errors
/// `InvalidCall`, saying which rule was broken.
pub fn check_truncate(len_bytes: u64, has_bytes: u64) -> Result<()> {
    let invalid = |why: String| Err(Error::new(ErrorKind::InvalidCall, describe_truncate(len_bytes), why));
    if len_bytes > has_bytes {
        return invalid(format!("there are only {has_bytes} bytes"));
    }
    if !len_bytes.is_multiple_of(TRUNCATE_ALIGN_BYTES) {
        return invalid(format!("a length must be a multiple of {TRUNCATE_ALIGN_BYTES} bytes"));
    }
    Ok(())
}

/// Names a [`Disk::truncate`] in an error message.
pub fn describe_truncate(len_bytes: u64) -> String {
    format!("truncate to {len_bytes} bytes")
}

/// Names an operation in an error message: its kind, length and position.
pub fn describe_op(op: &Op) -> String {
    format!("{} at {}", op_name(&op.kind), op.offset_bytes)
}

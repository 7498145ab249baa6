//! A disk through io_uring: raw rings, with file and memory registered where the kernel allows it.
//!
//! A queue that asks for nothing special shares the process's rings with other queues (`rings`, `shared_queue`). One with registered
//! memory, for one thread, or deeper than those rings has a dedicated ring.
//!
//! This file opens disks and decides how a ring is set up; `queue` runs operations on it. Every flag and registration
//! that was requested and refused is named, with the kernel's reason, in the notes of disk and queue.
//!
//! Invariant: no code here promises the kernel anything about memory; only the queue does.

mod queue;
mod rings;
mod shared_queue;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::{Builder, IoUring, opcode};
use rustix::process::Resource;

pub use self::queue::UringQueue;
use self::rings::{Lease, Rings, SHARED_ENTRIES};
use self::shared_queue::SharedQueue;
use crate::completion::{Completion, Op};
use crate::disk::{Disk, DiskInfo, DiskNote, FileOptions, Queue, QueueOptions};
use crate::error::{Error, ErrorKind, Result, limit};
use crate::file::DiskFile;
use crate::transfer;

/// Most submission entries of a ring; a deeper queue submits in several steps.
const SUBMISSION_ENTRIES_MAX: usize = 4096;
/// Most completion entries of a ring (the kernel's limit is 65,536). The kernel keeps completions beyond that until
/// there is space (IORING_FEAT_NODROP).
const COMPLETION_ENTRIES_MAX: usize = 65_536;

/// A file or block device, used through io_uring.
#[derive(Debug)]
pub struct UringDisk {
    file: Arc<DiskFile>,
    rings: Arc<Rings>,
    /// Notes on features refused to its queues, each once.
    queue_notes: Mutex<Vec<DiskNote>>,
}

/// The set-up of a ring, for comparisons. The default measures best when the load is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UringOptions {
    /// If set, a kernel thread polls for submissions, and sleeps after this many idle milliseconds (SQPOLL). Costs a
    /// core while it polls, and excludes the two flags below.
    pub sqpoll_idle_ms: Option<u32>,
    /// SINGLE_ISSUER and DEFER_TASKRUN. `Auto` takes them for queues with [`QueueOptions::single_thread`].
    pub defer_taskrun: FlagChoice,
    /// COOP_TASKRUN, for queues with [`QueueOptions::single_thread`] where DEFER_TASKRUN is not taken: completions do
    /// not interrupt the thread that submitted them. Never for other queues: a completion would wait until the thread
    /// that *submitted* happens to enter the kernel, a timer tick later (milliseconds, for a read of microseconds),
    /// however eagerly another thread waits for it.
    pub coop_taskrun: FlagChoice,
    /// Whether to register the file with the ring.
    pub register_file: bool,
    /// Whether to register the memory in [`QueueOptions::registered`] with the ring.
    pub register_buffers: bool,
    /// Entries of both rings, instead of the number that fits [`QueueOptions::depth_max`]. Any number is correct; a
    /// small one costs system calls.
    pub ring_entries: Option<u32>,
}

impl Default for UringOptions {
    fn default() -> Self {
        Self {
            sqpoll_idle_ms: None,
            defer_taskrun: FlagChoice::Auto,
            coop_taskrun: FlagChoice::Auto,
            register_file: true,
            register_buffers: true,
            ring_entries: None,
        }
    }
}

/// Whether a ring is set up with a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagChoice {
    /// The flag is used where it is suitable and the kernel supports it.
    Auto,
    /// The flag is never used.
    Off,
}

impl UringDisk {
    /// Opens a file or block device, and checks that this process can have rings.
    ///
    /// # Errors
    /// `Unsupported` or `NoPermission` when there is no io_uring for this process (the message names the cause), or
    /// direct I/O is required and refused. `InvalidCall` for a path that is neither file nor device. `NotFound`,
    /// `AlreadyExists`, `NoSpace`, `NoResources` as the system reports.
    pub fn open(path: &Path, options: &FileOptions) -> Result<Self> {
        // Checked first, so that no file is created that cannot be used.
        if let Some(refused) = Self::ring_refused() {
            return Err(refused.at(path));
        }
        Ok(Self::of(DiskFile::open("io_uring", path, options)?))
    }

    /// Makes a disk of a regular file of an open folder.
    ///
    /// # Errors
    /// As [`UringDisk::open`], and the error of `open`.
    pub(crate) fn open_by(path: &Path, open: impl FnOnce(&'static str) -> Result<DiskFile>) -> Result<Self> {
        if let Some(refused) = Self::ring_refused() {
            return Err(refused.at(path));
        }
        Ok(Self::of(open("io_uring")?))
    }

    fn of(file: DiskFile) -> Self {
        Self { file: Arc::new(file), rings: Rings::of_process(), queue_notes: Mutex::default() }
    }

    /// Returns the reason why this process can have no ring; `None` when it can. Sets a ring up, sends a no-op through it, as
    /// a filter may allow the one call and forbid the other, and closes it, in some 50 us.
    pub fn ring_refused() -> Option<Error> {
        let ring = IoUring::new(1).map_err(|error| explain_setup(&error)).and_then(checked);
        ring.and_then(|mut ring| try_no_op(&mut ring).map_err(|error| explain_setup(&error))).err()
    }

    /// Opens a queue on a ring with the given options.
    ///
    /// # Errors
    /// As [`Disk::queue`].
    pub fn queue_with(&self, options: &QueueOptions, ring_options: &UringOptions) -> Result<UringQueue> {
        if options.depth_max == 0 {
            return Err(Error::new(ErrorKind::InvalidCall, "open a queue", "a depth of zero"));
        }
        let mut notes = Vec::new();
        let ring = build_ring(options, ring_options, &mut notes)?;
        let queue = UringQueue::new(Lease::own(ring), Arc::clone(&self.file), options, ring_options, notes);
        self.say(queue.notes());
        Ok(queue)
    }

    /// Adds a queue's notes to the disk's.
    fn say(&self, notes: &[DiskNote]) {
        let mut said = self.queue_notes.lock().unwrap_or_else(PoisonError::into_inner);
        for note in notes {
            if !said.contains(note) {
                said.push(note.clone());
            }
        }
    }
}

impl Disk for UringDisk {
    fn info(&self) -> DiskInfo {
        let mut info = self.file.info().clone();
        info.notes.extend(self.queue_notes.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        info
    }

    fn len_bytes(&self) -> Result<u64> {
        self.file.len_bytes()
    }

    fn truncate(&self, len_bytes: u64) -> Result<()> {
        self.file.truncate(len_bytes)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        let QueueOptions { depth_max, single_thread, registered } = options;
        if *single_thread || !registered.is_empty() || !(1..=SHARED_ENTRIES).contains(depth_max) {
            return Ok(Box::new(self.queue_with(options, &UringOptions::default())?));
        }
        self.say(&[DiskNote::in_use("rings shared with the other files of the process")]);
        Ok(Box::new(SharedQueue::new(Arc::clone(&self.file), Arc::clone(&self.rings), *depth_max)))
    }

    /// Makes a system call: for one operation with a waiting caller a ring costs as much and has no advantage.
    fn perform(&self, op: Op) -> Result<Completion> {
        Ok(transfer::perform(op, &self.file))
    }
}

/// A set of setup flags of a ring to try, and its name in the notes about the disk.
struct Flags {
    name: &'static str,
    set: fn(&mut Builder),
}

/// The flags of a queue that one thread uses: tried first, as only newer kernels know them. TASKRUN_FLAG lets the queue
/// see in memory, without a system call, whether there is work that only its thread can run.
const DEFERRED: Flags = Flags {
    name: "SINGLE_ISSUER and DEFER_TASKRUN",
    set: |builder| {
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    },
};
const COOPERATIVE: Flags = Flags {
    name: "COOP_TASKRUN",
    set: |builder| {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    },
};

fn build_ring(options: &QueueOptions, ring_options: &UringOptions, notes: &mut Vec<DiskNote>) -> Result<IoUring> {
    let depth = options.depth_max;
    let submission_entries =
        ring_options.ring_entries.map_or(depth.min(SUBMISSION_ENTRIES_MAX), |entries| entries as usize);
    let completion_entries = ring_options.ring_entries.map_or(depth.min(COMPLETION_ENTRIES_MAX), |n| n as usize);
    let build = |set: &dyn Fn(&mut Builder)| {
        let mut builder = IoUring::builder();
        // The kernel wants at least as many completion entries as submission entries, both rounded up alike.
        let completion_entries = completion_entries.max(submission_entries) as u32;
        builder.dontfork().setup_clamp().setup_cqsize(completion_entries);
        set(&mut builder);
        builder.build(submission_entries as u32)
    };
    let mut wanted = Vec::new();
    if options.single_thread && ring_options.sqpoll_idle_ms.is_none() {
        if ring_options.defer_taskrun == FlagChoice::Auto {
            wanted.push(DEFERRED);
        }
        if ring_options.coop_taskrun == FlagChoice::Auto {
            wanted.push(COOPERATIVE);
        }
    }
    for flags in wanted {
        match build(&flags.set) {
            Ok(ring) => {
                notes.push(DiskNote::in_use(format!("ring with {}", flags.name)));
                return checked(ring);
            }
            // EINVAL means that this kernel does not know the flags; any other error would occur without the flags as
            // well.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let why = format!("ring without {}: this kernel does not have it", flags.name);
                notes.push(DiskNote::missing(why));
            }
            Err(error) => return Err(explain_setup(&error)),
        }
    }
    if let Some(idle_ms) = ring_options.sqpoll_idle_ms {
        match build(&|builder: &mut Builder| {
            builder.setup_sqpoll(idle_ms);
        }) {
            Ok(ring) => {
                notes.push(DiskNote::in_use(format!("ring with SQPOLL, idle after {idle_ms} ms")));
                return checked(ring);
            }
            Err(error) => notes.push(DiskNote::missing(format!("ring without SQPOLL: {error}"))),
        }
    }
    let ring = build(&|_: &mut Builder| {}).map_err(|error| explain_setup(&error))?;
    notes.push(DiskNote::in_use("ring without flags"));
    checked(ring)
}

/// Sends a no-op through a ring that is empty, and waits for it.
///
/// # Errors
/// The error of the call that submits, or of the no-op.
pub(crate) fn try_no_op(ring: &mut IoUring) -> std::io::Result<()> {
    // SAFETY: a no-op refers to no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(std::io::Error::other)?;
    // A signal may end the wait, and the no-op has been submitted by then.
    while let Err(error) = ring.submit_and_wait(1) {
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match ring.completion().next().map(|entry| entry.result()) {
        Some(result) if result < 0 => Err(std::io::Error::from_raw_os_error(-result)),
        _ => Ok(()),
    }
}

/// Refuses a ring that might drop completions (kernels before 5.5): an operation would never come back.
fn checked(ring: IoUring) -> Result<IoUring> {
    if ring.params().is_feature_nodrop() {
        return Ok(ring);
    }
    let hint = "this kernel may lose completions (it is older than 5.5): use the thread pool";
    Err(Error::new(ErrorKind::Unsupported, "set up a ring", hint))
}

/// Explains why a ring or its use is refused, and the remedy.
fn explain_setup(error: &std::io::Error) -> Error {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring, or a sandbox hides it: use the thread pool",
        Some(libc::EPERM | libc::EACCES) => {
            "forbidden by a seccomp profile (the default of containers) or by sysctl kernel.io_uring_disabled"
        }
        Some(libc::ENOMEM) => {
            let hint = format!(
                "no memory for the ring: fewer entries, or a higher `ulimit -l` (RLIMIT_MEMLOCK), now {}",
                limit(Resource::Memlock)
            );
            return Error::from_io("set up a ring", error).hint(hint);
        }
        _ => return Error::from_io("set up a ring", error),
    };
    Error::from_io("set up a ring", error).hint(hint)
}

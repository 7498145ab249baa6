//! The I/O layer under nofault: disks with queues, aligned buffers, memory maps and kernel counters.
//!
//! It knows nothing of pages, trees or experiments. The `unsafe` that talks to the kernel lives here, in small functions; `xtask/unsafe-files.txt` lists all files that have any.
//!
//! | module | purpose |
//! |---|---|
//! | [`aligned`] | memory that a device may read and write, owned by one operation at a time |
//! | [`completion`] | one operation on its way to a disk, and its result |
//! | [`disk`] | the contracts: a [`disk::Disk`] and its [`disk::Queue`]s, a [`disk::Directory`] of disks |
//! | [`uring`], [`psync`] | the disks: rings and a thread pool |
//! | [`folder`] | a folder of real disks, and the choice between ring and threads |
//! | [`striped`] | one disk over several |
//! | [`overlay`] | a directory that is only read, with its changes in this process |
//! | [`mapped`] | memory-mapped files, with SIGBUS turned into an error |
//! | [`prefetch`] | asking for memory before it is needed |
//! | [`process`] | a process, told from its forked children |
//! | [`counters`] | counters of the kernel: faults, shootdowns, reclaim, device traffic |
//! | [`probe`] | the features that this kernel, file system and device support, with the reason for each missing one |
//!
//! ```
//! use nofault_io::{aligned::{IoBuf, PageKind}, completion::{Op, OpKind}, disk::{Disk, FileOptions, Queue, QueueOptions}, psync};
//! # fn main() -> Result<(), nofault_io::error::Error> {
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("data");
//! let disk = psync::PsyncDisk::open(&path, &FileOptions { create: true, ..FileOptions::default() }, 4)?;
//! let mut queue = disk.queue(&QueueOptions::default())?;
//! let mut page = IoBuf::zeroed(4096, PageKind::Small)?;
//! page[..5].copy_from_slice(b"hello");
//! queue.push(Op::new(1, 0, OpKind::write(page, true))).map_err(|refused| refused.error)?;
//! queue.submit()?;
//! let mut done = Vec::new();
//! queue.reap(1, &mut done)?;
//! assert_eq!(done[0].result, Ok(4096));
//! # Ok(())
//! # }
//! ```

#![warn(missing_debug_implementations)]

// The only error elsewhere: nothing below is compiled there, and no dependency that does not compile there is asked for.
#[cfg(not(target_os = "linux"))]
compile_error!(
    "nofault runs on Linux only: its disks need O_DIRECT, durable writes (RWF_DSYNC), open file description locks and io_uring or \
     pread, which nofault-io does not have for this system yet (docs/decisions/0023-platforms.md says what that would take)"
);

#[cfg(target_os = "linux")]
pub mod aligned;
#[cfg(target_os = "linux")]
pub mod completion;
#[cfg(target_os = "linux")]
pub mod counters;
#[cfg(target_os = "linux")]
pub mod disk;
#[cfg(target_os = "linux")]
pub mod error;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
pub mod folder;
#[cfg(target_os = "linux")]
pub mod mapped;
#[cfg(target_os = "linux")]
pub mod overlay;
#[cfg(target_os = "linux")]
pub mod prefetch;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(target_os = "linux")]
pub mod psync;
#[cfg(target_os = "linux")]
pub mod striped;
#[cfg(target_os = "linux")]
mod transfer;
#[cfg(target_os = "linux")]
pub mod uring;

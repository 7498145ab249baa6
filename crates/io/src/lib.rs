//! The I/O layer under nofault: disks with queues, aligned buffers, memory maps and kernel counters.
//!
//! It knows nothing of pages, trees or experiments. Almost all `unsafe` of the project lives here, in small functions.
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

pub mod aligned;
pub mod completion;
pub mod counters;
pub mod disk;
pub mod error;
mod file;
pub mod folder;
pub mod mapped;
pub mod overlay;
pub mod prefetch;
pub mod probe;
pub mod psync;
pub mod striped;
mod transfer;
pub mod uring;

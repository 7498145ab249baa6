//! `pread` on threads: buffered, buffered with POSIX_FADV_RANDOM, buffered with RWF_DONTCACHE, and direct. One system call a block, each timed.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};
use rustix::fs::{Advice, OFlags, SeekFrom};
use rustix::io::ReadWriteFlags;

use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::read_loops::Pattern;
use crate::measure::workload::{Layout, Order, PAGE_BYTES, first_word};
use crate::measure::{Work, Worker};
use crate::paths::shown;
use crate::record::TrialSpec;

/// The way in which the files are opened and read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// Through the page cache, with the kernel's own guess at read-ahead.
    Buffered,
    /// Through the page cache, without read-ahead (POSIX_FADV_RANDOM).
    BufferedRandom,
    /// Through the page cache, which drops the pages after the read (RWF_DONTCACHE, Linux 6.14).
    DontCache,
    /// Past the page cache (O_DIRECT).
    Direct,
}

/// The open files of a trial, shared by its workers.
#[derive(Debug)]
pub struct Files {
    files: Vec<File>,
    means: Means,
}

impl Files {
    /// Opens the files of a layout for reading.
    ///
    /// # Errors
    /// The error of opening; `Unsupported` where direct I/O is not available.
    pub fn open(layout: &Layout, means: Means) -> Result<Self> {
        Ok(Self { files: layout.paths.iter().map(|path| open(path, means)).collect::<Result<_>>()?, means })
    }

    /// Fills `into` from file number `file` of the layout.
    ///
    /// # Errors
    /// The system's error; a file that ends early is an error.
    #[inline]
    pub fn read(&self, layout: &Layout, file: usize, offset_bytes: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            match self.read_some(file, &mut into[done..], offset_bytes + done as u64) {
                Ok(0) => {
                    let path = shown(&layout.paths[file]);
                    let message = format!(
                        "read {} bytes at {offset_bytes} of {path}: it ends there; was it truncated while the lab ran?",
                        into.len()
                    );
                    return Err(LabError::new(LabErrorKind::System, message));
                }
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP) if self.means == Means::DontCache => {
                    let message = "this kernel or file system has no RWF_DONTCACHE (Linux 6.14, ext4, XFS or btrfs)";
                    return Err(LabError::new(LabErrorKind::Unsupported, message));
                }
                Err(errno) => {
                    let action =
                        format!("read {} bytes at {offset_bytes} of {}", into.len(), shown(&layout.paths[file]));
                    return Err(LabError::system(action, &errno.into()));
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn read_some(&self, file: usize, into: &mut [u8], offset_bytes: u64) -> rustix::io::Result<usize> {
        match self.means {
            Means::DontCache => {
                let flags = ReadWriteFlags::from_bits_retain(libc::RWF_DONTCACHE as u32);
                rustix::io::preadv2(&self.files[file], &mut [IoSliceMut::new(into)], offset_bytes, flags)
            }
            _ => rustix::io::pread(&self.files[file], into, offset_bytes),
        }
    }
}

fn open(path: &Path, means: Means) -> Result<File> {
    let mut options = File::options();
    options.read(true);
    if means == Means::Direct {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    let file = options.open(path).map_err(|error| match (means, error.kind()) {
        (Means::Direct, std::io::ErrorKind::InvalidInput) => LabError::new(
            LabErrorKind::Unsupported,
            format!("{}: this file system refuses direct I/O; choose a folder on another one", shown(&path)),
        ),
        _ => LabError::system(format!("open {}", shown(&path)), &error),
    })?;
    if means == Means::BufferedRandom {
        rustix::fs::fadvise(&file, 0, None, Advice::Random)
            .map_err(|errno| LabError::system(format!("advise on {}", shown(&path)), &errno.into()))?;
    }
    Ok(file)
}

/// Length of an open file or block device. A device's length is found by seeking to its end; no reader uses the file
/// position.
pub(crate) fn len_bytes(file: &File, path: &Path) -> Result<u64> {
    rustix::fs::seek(file, SeekFrom::End(0))
        .map_err(|errno| LabError::system(format!("ask for the length of {}", shown(&path)), &errno.into()))
}

/// The workers of a trial: each reads the blocks in its order.
pub fn works<'a>(spec: &'a TrialSpec, layout: &'a Layout, files: &'a Files, pattern: Pattern) -> Vec<Work<'a>> {
    let orders = pattern.orders(layout, spec);
    let work = |(number, order): (usize, Order)| -> Work<'a> {
        Box::new(move |worker: &mut Worker<'_>| {
            let block_bytes = layout.block_bytes as usize;
            // Small pages, like a map: what a method gains from huge ones is measured apart, with the ring.
            let mut buffer = IoBuf::zeroed(block_bytes, PageKind::Small)?;
            // The pages of the buffer are faulted in now, not by the first reads.
            buffer.fill(0);
            read(worker, layout, files, order, &mut buffer)?;
            if number == 0 { sum_sample(worker, spec, layout, files, &mut buffer) } else { Ok(()) }
        })
    };
    orders.into_iter().enumerate().map(work).collect()
}

fn read(worker: &mut Worker<'_>, layout: &Layout, files: &Files, mut order: Order, buffer: &mut [u8]) -> Result<()> {
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        let place = layout.place(order.next_block());
        files.read(layout, place.file, place.offset_bytes, buffer)?;
        if let Some(right) = layout.is_right(buffer, place.offset_bytes) {
            worker.verified(right);
        }
        worker.done(1, layout.block_bytes);
        // Back to back: this read's end is the next one's start. A clock reading (25 ns) is a hundredth of the fastest read.
        let now = Instant::now();
        worker.latency("op", now - before);
        before = now;
    }
    Ok(())
}

fn sum_sample(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    files: &Files,
    buffer: &mut [u8],
) -> Result<()> {
    for place in Layout::sample(&spec.target, spec.seed) {
        let page = &mut buffer[..PAGE_BYTES];
        files.read(layout, place.file, place.offset_bytes, page)?;
        worker.checksum(first_word(page));
    }
    Ok(())
}

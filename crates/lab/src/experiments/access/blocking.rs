//! Reads and writes one block at a time, by a map or by calls: reads for the open loop (closed loops of reads use
//! `read_loops`), and writes with their syncs.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection, SyncMode};
use rustix::io::{Errno, ReadWriteFlags};

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::{self, BLOCK_BYTES};
use crate::read_loops::map::Maps;
use crate::read_loops::sync::{Files, Means};
use crate::workload::{Layout, Place, first_word};

/// The way in which a method reaches a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A shared map with this madvise advice.
    Map(Advice),
    /// Read and write calls.
    Calls(Means),
    /// A ring with operations that bypass the page cache.
    Ring,
}

/// A file that a trial reads one block at a time.
pub(super) enum Source {
    /// A map whose pages are touched.
    Map(Maps),
    /// Files that are read by calls into a buffer.
    Calls(Files, IoBuf),
}

impl Source {
    /// Opens the only file of a layout for reading.
    ///
    /// # Errors
    /// The error of opening or mapping; `Usage` for a ring, which reads in batches.
    pub(super) fn open(layout: &Layout, way: Way) -> Result<Self> {
        match way {
            Way::Map(advice) => Ok(Self::Map(Maps::open(layout, advice)?)),
            Way::Calls(means) => {
                Ok(Self::Calls(Files::open(layout, means)?, IoBuf::zeroed(BLOCK_BYTES, PageKind::Small)?))
            }
            Way::Ring => Err(LabError::new(LabErrorKind::Usage, "access: a ring does not wait for each block")),
        }
    }

    /// Reads a block; returns whether its content was right, or `None` where the expected content is unknown.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn read(&mut self, layout: &Layout, place: Place) -> Result<Option<bool>> {
        match self {
            Self::Map(maps) => {
                let word = std::hint::black_box(maps.word_at(place)?);
                Ok(layout.content_seed.map(|_| layout.is_right_word(word, place.offset_bytes)))
            }
            Self::Calls(..) => Ok(layout.is_right(self.block(layout, place.offset_bytes)?, place.offset_bytes)),
        }
    }

    /// Reads the first word of a block.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn word(&mut self, layout: &Layout, place: Place) -> Result<u64> {
        match self {
            Self::Map(maps) => maps.word_at(place),
            Self::Calls(..) => Ok(first_word(self.block(layout, place.offset_bytes)?)),
        }
    }

    /// Reads a block by a call and returns its bytes.
    ///
    /// # Errors
    /// The system's error; `Usage` for a map, which has no buffer.
    pub(super) fn block(&mut self, layout: &Layout, offset_bytes: u64) -> Result<&[u8]> {
        let Self::Calls(files, buffer) = self else {
            return Err(LabError::new(LabErrorKind::Usage, "access: a map is touched, not read"));
        };
        files.read(layout, 0, offset_bytes, buffer)?;
        Ok(buffer)
    }
}

/// A file that a trial overwrites one block at a time. Only for targets that [`super::write_check::check_writable`] has
/// accepted.
pub(super) struct Writer {
    open: Opening,
    path: PathBuf,
    buffer: IoBuf,
    content_seed: u64,
}

enum Opening {
    Map(MappedFile),
    Calls(File),
}

impl Writer {
    /// Opens the only file of a layout for writing.
    ///
    /// # Errors
    /// The error of opening or mapping; `Unsupported` where the file system refuses direct I/O.
    pub(super) fn open(layout: &Layout, way: Way, content_seed: u64) -> Result<Self> {
        let path = layout.paths.first().cloned().unwrap_or_default();
        let open = match way {
            Way::Map(advice) => {
                // SAFETY: the file carries the lab's marker and the lab's lock keeps other labs off; if another process
                // truncates it all the same, guarded access turns the signal into an error.
                let map = unsafe { MappedFile::open(&path, Protection::Shared) }?;
                map.advise(advice, 0..map.len_bytes())?;
                Opening::Map(map)
            }
            Way::Calls(means) => {
                let direct = if means == Means::Direct { libc::O_DIRECT } else { 0 };
                let file = OpenOptions::new().read(true).write(true).custom_flags(direct | libc::O_CLOEXEC).open(&path);
                Opening::Calls(file.map_err(|error| refused(&path, direct != 0, &error))?)
            }
            Way::Ring => {
                return Err(LabError::new(LabErrorKind::Usage, "access: a ring does not wait for each block"));
            }
        };
        Ok(Self { open, path, buffer: IoBuf::zeroed(BLOCK_BYTES, PageKind::Small)?, content_seed })
    }

    /// Fills the buffer with the content of the block at an offset: the same work for all methods, which is not timed.
    pub(super) fn prepare(&mut self, offset_bytes: u64) {
        fill(&mut self.buffer, self.content_seed, offset_bytes);
    }

    /// Overwrites a block from the prepared buffer. With `durable` the write survives a power cut once the call has
    /// returned.
    ///
    /// # Errors
    /// The system's error; a short write is an error.
    pub(super) fn write(&mut self, offset_bytes: u64, durable: bool) -> Result<()> {
        let data = &self.buffer;
        let written = match &mut self.open {
            Opening::Map(map) => {
                let range = offset_bytes as usize..offset_bytes as usize + BLOCK_BYTES;
                return Ok(map.guarded_mut(range, |block| block.copy_from_slice(data))?);
            }
            Opening::Calls(file) => retry(|| match durable {
                true => rustix::io::pwritev2(&*file, &[IoSlice::new(data)], offset_bytes, ReadWriteFlags::DSYNC),
                false => rustix::io::pwrite(&*file, data, offset_bytes),
            }),
        };
        let action = || format!("write {BLOCK_BYTES} bytes at {offset_bytes} of {}", self.path.display());
        match written {
            Ok(BLOCK_BYTES) => Ok(()),
            Ok(short) => Err(LabError::new(LabErrorKind::System, format!("{}: only {short} were written", action()))),
            Err(error) => Err(LabError::system(action(), &error.into())),
        }
    }

    /// Makes earlier writes durable: a map calls `msync` on the block at offset `only`, or on the whole map for `None`;
    /// calls use `fdatasync`.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn sync(&self, only: Option<u64>) -> Result<()> {
        match &self.open {
            Opening::Map(map) => {
                let range = match only {
                    Some(offset_bytes) => offset_bytes as usize..offset_bytes as usize + BLOCK_BYTES,
                    None => 0..map.len_bytes(),
                };
                Ok(map.sync(range, SyncMode::Wait)?)
            }
            Opening::Calls(file) => {
                file.sync_data().map_err(|error| LabError::system(format!("sync {}", self.path.display()), &error))
            }
        }
    }
}

/// Fills a buffer with the expected content of the block at an offset.
pub(super) fn fill(buffer: &mut [u8], content_seed: u64, offset_bytes: u64) {
    content::fill_block(buffer, content_seed, index_at(offset_bytes));
}

/// Returns the number of the data block at an offset in the file, which begins with the lab's header block.
pub(super) fn index_at(offset_bytes: u64) -> u64 {
    (offset_bytes / BLOCK_BYTES as u64).saturating_sub(1)
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> rustix::io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn refused(path: &std::path::Path, direct: bool, error: &std::io::Error) -> LabError {
    if direct && error.raw_os_error() == Some(libc::EINVAL) {
        let message = format!("{} refuses direct I/O; choose a folder on another file system", path.display());
        return LabError::new(LabErrorKind::Unsupported, message);
    }
    LabError::system(format!("open {} for writing", path.display()), error)
}

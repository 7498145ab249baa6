//! The ways of one thread that waits for each block: a map, buffered calls, direct calls.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection, SyncMode};
use rustix::fs::Advice as FileAdvice;
use rustix::io::{Errno, ReadWriteFlags};

use super::place::{Place, Seen};
use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::{self, BLOCK_BYTES};

/// By what means a block is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A shared map.
    Map {
        /// Whether the kernel is told that access is random; it reads around each fault otherwise.
        random: bool,
    },
    /// Calls through the page cache, which is told that access is random.
    Buffered,
    /// Calls that bypass the page cache.
    Direct,
    /// A ring whose operations bypass the page cache.
    Ring,
}

/// An open file, reached one block at a time.
pub(super) struct Blocking {
    source: Source,
    path: PathBuf,
    content_seed: Option<u64>,
    blocks: u64,
    buffer: IoBuf,
}

enum Source {
    Map(MappedFile),
    Calls(File),
}

impl Blocking {
    /// Opens a place. Who wants to write has checked that it may be.
    ///
    /// # Errors
    /// What opening or mapping says; `Unsupported` where the file system refuses direct I/O.
    pub(super) fn open(place: &Place, way: Way, write: bool) -> Result<Self> {
        let path = place.path.clone();
        let source = match way {
            Way::Map { random } => {
                let protection = if write { Protection::Shared } else { Protection::ReadOnly };
                // SAFETY: the file carries the lab's marker and the lab's lock keeps others off; should somebody cut it all the
                // same, guarded access turns the signal into an error.
                let map = unsafe { MappedFile::open(&path, protection) }?;
                map.advise(if random { Advice::Random } else { Advice::Normal }, 0..map.len_bytes())?;
                Source::Map(map)
            }
            Way::Buffered => {
                let file = open_file(&path, write, 0)?;
                rustix::fs::fadvise(&file, 0, None, FileAdvice::Random)
                    .map_err(|error| LabError::system(format!("advise {}", path.display()), &error.into()))?;
                Source::Calls(file)
            }
            Way::Direct => Source::Calls(open_file(&path, write, libc::O_DIRECT)?),
            Way::Ring => return Err(LabError::new(LabErrorKind::Usage, "access: a ring does not wait for each block")),
        };
        let buffer = IoBuf::zeroed(BLOCK_BYTES, PageKind::Small)?;
        Ok(Self { source, path, content_seed: place.content_seed, blocks: place.blocks, buffer })
    }

    /// Reads a block and looks at it. `ordinal` counts the blocks of the cell.
    ///
    /// # Errors
    /// What the system says; a file that ends early is an error.
    pub(super) fn read(&mut self, index: u64, ordinal: u64) -> Result<Seen> {
        let position = content::block_offset(index);
        let seed = self.content_seed;
        match &self.source {
            Source::Map(map) => Ok(map.guarded(position as usize..position as usize + BLOCK_BYTES, |block| {
                Place::look(seed, block, index, ordinal)
            })?),
            Source::Calls(_) => Ok(Place::look(seed, self.fetch(index)?, index, ordinal)),
        }
    }

    /// The bytes of a block, read by a call, for who wants to look at all of them.
    ///
    /// # Errors
    /// As [`read`](Self::read); `Usage` for a map.
    pub(super) fn fetch(&mut self, index: u64) -> Result<&[u8]> {
        let position = content::block_offset(index);
        match &self.source {
            Source::Map(_) => Err(LabError::new(LabErrorKind::Usage, "access: a map has no buffer to read into")),
            Source::Calls(file) => {
                file.read_exact_at(&mut self.buffer, position)
                    .map_err(|error| self.failed("read", position, &error))?;
                Ok(&self.buffer)
            }
        }
    }

    /// Makes the bytes of a block ready in a buffer: the same work for all contenders, and not what is timed.
    pub(super) fn prepare(&mut self, index: u64, content_seed: u64) {
        content::fill_block(&mut self.buffer, content_seed, index);
    }

    /// Overwrites a block with what was prepared; `durable` makes the write survive a power cut once it has returned.
    ///
    /// # Errors
    /// What the system says; a short write is an error.
    pub(super) fn write(&mut self, index: u64, durable: bool) -> Result<()> {
        let position = content::block_offset(index);
        let data = &self.buffer;
        let written = match &mut self.source {
            Source::Map(map) => {
                let range = position as usize..position as usize + BLOCK_BYTES;
                return Ok(map.guarded_mut(range, |block| block.copy_from_slice(data))?);
            }
            Source::Calls(file) => retry(|| match durable {
                true => rustix::io::pwritev2(&*file, &[IoSlice::new(data)], position, ReadWriteFlags::DSYNC),
                false => rustix::io::pwrite(&*file, data, position),
            }),
        };
        match written {
            Ok(BLOCK_BYTES) => Ok(()),
            Ok(short) => {
                let what =
                    format!("write at {position} of {}: only {short} of {BLOCK_BYTES} bytes", self.path.display());
                Err(LabError::new(LabErrorKind::System, what))
            }
            Err(error) => Err(self.failed("write", position, &error.into())),
        }
    }

    /// Makes what was written durable: `msync` of one block or of the whole map, `fdatasync` for calls.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn sync(&self, only: Option<u64>) -> Result<()> {
        let blocks = only.map_or(0..self.blocks, |index| index..index + 1);
        match &self.source {
            Source::Map(map) => {
                let range = content::block_offset(blocks.start) as usize..content::block_offset(blocks.end) as usize;
                Ok(map.sync(range, SyncMode::Wait)?)
            }
            Source::Calls(file) => {
                file.sync_data().map_err(|error| LabError::system(format!("sync {}", self.path.display()), &error))
            }
        }
    }

    fn failed(&self, verb: &str, position: u64, error: &std::io::Error) -> LabError {
        LabError::system(format!("{verb} {BLOCK_BYTES} bytes at {position} of {}", self.path.display()), error)
    }
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<usize>) -> rustix::io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn open_file(path: &PathBuf, write: bool, flags: i32) -> Result<File> {
    let file = OpenOptions::new().read(true).write(write).custom_flags(flags | libc::O_CLOEXEC).open(path);
    file.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) if flags & libc::O_DIRECT != 0 => {
            let message = format!("{} refuses direct I/O; choose a folder on another file system", path.display());
            LabError::new(LabErrorKind::Unsupported, message)
        }
        _ => LabError::system(format!("open {}", path.display()), &error),
    })
}

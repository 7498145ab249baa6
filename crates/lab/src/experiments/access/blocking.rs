//! Reads and writes one block at a time, by a map or by calls: reads for the open loop (closed loops of reads use
//! `read_loops`), and writes with their syncs.

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::Advice;

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::BLOCK_BYTES;
use crate::read_loops::map::Maps;
use crate::read_loops::overwrite::{WritableFile, fill};
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
    /// Files read by calls into a buffer.
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

/// A file that a trial overwrites one block at a time, and the buffer with the block.
pub(super) struct Writer {
    file: WritableFile,
    buffer: IoBuf,
    content_seed: u64,
}

impl Writer {
    /// Opens the only file of a layout for writing.
    ///
    /// # Errors
    /// The error of opening or mapping; `Unsupported` where the file system refuses direct I/O.
    pub(super) fn open(layout: &Layout, way: Way, content_seed: u64) -> Result<Self> {
        let path = layout.paths.first().cloned().unwrap_or_default();
        let file = match way {
            Way::Map(advice) => WritableFile::map(&path, advice)?,
            Way::Calls(means) => WritableFile::calls(&path, means)?,
            Way::Ring => {
                return Err(LabError::new(LabErrorKind::Usage, "access: a ring does not wait for each block"));
            }
        };
        Ok(Self { file, buffer: IoBuf::zeroed(BLOCK_BYTES, PageKind::Small)?, content_seed })
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
    pub(super) fn write(&self, offset_bytes: u64, durable: bool) -> Result<()> {
        self.file.write(offset_bytes, &self.buffer, durable)
    }

    /// Makes earlier writes durable, as [`WritableFile::sync`].
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn sync(&self, only: Option<u64>) -> Result<()> {
        self.file.sync(only)
    }
}

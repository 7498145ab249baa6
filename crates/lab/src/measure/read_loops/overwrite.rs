//! A data file that a trial overwrites: through a shared map, or by write calls.
//!
//! Kept true by: only files that `check_writable` (`machine::write_check`) has accepted are opened here,
//! and bytes are only overwritten with the content that the lab's data has at their place, so that later readers find the file
//! valid, also after a kill at any moment.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use nofault_io::mapped::{Advice, MappedFile, Protection, SyncMode};
use rustix::io::{Errno, ReadWriteFlags};

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::{self, BLOCK_BYTES};
use crate::measure::read_loops::sync::Means;
use crate::paths::shown;

/// Number of latches of a map. A page's latch is found by its number; with so many, two threads seldom want the same.
const LATCHES: usize = 4096;

/// A file that is open for overwriting. The threads of a trial share it.
pub struct WritableFile {
    open: Opening,
    path: PathBuf,
}

enum Opening {
    /// A shared map. As in a database, a thread that stores into a page excludes others from the page.
    Map {
        map: Box<MappedFile>,
        latches: Vec<RwLock<()>>,
    },
    Calls(File),
}

impl WritableFile {
    /// Maps the file, with advice to the kernel.
    ///
    /// # Errors
    /// The error of opening, mapping or advising.
    pub fn map(path: &Path, advice: Advice) -> Result<Self> {
        // SAFETY: the file carries the lab's marker and the lab's lock keeps other labs off; if another process truncates it all
        // the same, guarded access turns the signal into an error.
        let map = unsafe { MappedFile::open(path, Protection::Shared) }?;
        map.advise(advice, 0..map.len_bytes())?;
        let latches = (0..LATCHES).map(|_| RwLock::new(())).collect();
        Ok(Self { open: Opening::Map { map: Box::new(map), latches }, path: path.to_path_buf() })
    }

    /// Opens the file for write calls.
    ///
    /// # Errors
    /// The error of opening; `Unsupported` where the file system refuses direct I/O.
    pub fn calls(path: &Path, means: Means) -> Result<Self> {
        let direct = if means == Means::Direct { libc::O_DIRECT } else { 0 };
        let file = OpenOptions::new().read(true).write(true).custom_flags(direct | libc::O_CLOEXEC).open(path);
        let file = file.map_err(|error| refused(path, direct != 0, &error))?;
        Ok(Self { open: Opening::Calls(file), path: path.to_path_buf() })
    }

    /// Overwrites bytes at an offset. With `durable` the write of a call survives a power cut once it has returned.
    ///
    /// # Errors
    /// The system's error; a short write is an error.
    pub fn write(&self, offset_bytes: u64, data: &[u8], durable: bool) -> Result<()> {
        let written = match &self.open {
            Opening::Map { map, latches } => return store(map, latches, offset_bytes, data),
            Opening::Calls(file) => retry(|| match durable {
                true => rustix::io::pwritev2(file, &[IoSlice::new(data)], offset_bytes, ReadWriteFlags::DSYNC),
                false => rustix::io::pwrite(file, data, offset_bytes),
            }),
        };
        let action = || format!("write {} bytes at {offset_bytes} of {}", data.len(), shown(&self.path));
        match written {
            Ok(count) if count == data.len() => Ok(()),
            Ok(short) => Err(LabError::new(LabErrorKind::System, format!("{}: only {short} were written", action()))),
            Err(error) => Err(LabError::system(action(), &error.into())),
        }
    }

    /// Looks at bytes of a map where they lie: `look` is called with their part in each page, and the offset of the part.
    ///
    /// # Errors
    /// When a page cannot be read; `Usage` for a file that is not mapped.
    pub fn look(&self, offset_bytes: u64, len_bytes: usize, mut look: impl FnMut(u64, &[u8])) -> Result<()> {
        let Opening::Map { map, latches } = &self.open else {
            return Err(LabError::new(LabErrorKind::Usage, "a file that is not mapped is read by calls"));
        };
        for (at, part) in pages(offset_bytes, len_bytes) {
            let _shared = latch(latches, at).read().unwrap_or_else(PoisonError::into_inner);
            let from = at as usize;
            map.guarded(from..from + part.len(), |bytes| look(at, bytes))?;
        }
        Ok(())
    }

    /// Makes earlier writes durable: a map calls `msync` on the block at offset `only`, or on the whole map for `None`;
    /// calls use `fdatasync`.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&self, only: Option<u64>) -> Result<()> {
        match &self.open {
            Opening::Map { map, .. } => {
                let range = match only {
                    Some(offset_bytes) => offset_bytes as usize..offset_bytes as usize + BLOCK_BYTES,
                    None => 0..map.len_bytes(),
                };
                Ok(map.sync(range, SyncMode::Wait)?)
            }
            Opening::Calls(file) => {
                file.sync_data().map_err(|error| LabError::system(format!("sync {}", shown(&self.path)), &error))
            }
        }
    }
}

/// Stores bytes into a map, page by page.
fn store(map: &MappedFile, latches: &[RwLock<()>], offset_bytes: u64, data: &[u8]) -> Result<()> {
    for (at, part) in pages(offset_bytes, data.len()) {
        let _alone = latch(latches, at).write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: all accesses to the map are in this file, and each holds the latch of its page: no other thread reads or
        // writes these bytes, and no slice of them is alive.
        unsafe { map.write_at(at as usize, &data[part]) }?;
    }
    Ok(())
}

/// The latch of the page at an offset.
fn latch(latches: &[RwLock<()>], offset_bytes: u64) -> &RwLock<()> {
    &latches[(offset_bytes / BLOCK_BYTES as u64) as usize % latches.len()]
}

/// The parts of a range in each page: their offsets in the file, and their places in the range.
pub fn pages(offset_bytes: u64, len_bytes: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset_bytes + done as u64;
        let room = BLOCK_BYTES - (at % BLOCK_BYTES as u64) as usize;
        let part = done..len_bytes.min(done + room);
        done = part.end;
        (!part.is_empty()).then_some((at, part))
    })
}

/// Fills a buffer of whole blocks with the expected content of the file from an offset on.
pub fn fill(buffer: &mut [u8], content_seed: u64, offset_bytes: u64) {
    let first = index_at(offset_bytes);
    for (index, block) in (first..).zip(buffer.chunks_exact_mut(BLOCK_BYTES)) {
        content::fill_block(block, content_seed, index);
    }
}

/// Returns the number of the data block at an offset in the file, which begins with the lab's header block.
pub fn index_at(offset_bytes: u64) -> u64 {
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

fn refused(path: &Path, direct: bool, error: &std::io::Error) -> LabError {
    if direct && error.raw_os_error() == Some(libc::EINVAL) {
        let message = format!("{} refuses direct I/O; choose a folder on another file system", shown(&path));
        return LabError::new(LabErrorKind::Unsupported, message);
    }
    LabError::system(format!("open {} for writing", shown(&path)), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_the_ends_of_pages() {
        let parts = |offset, len| pages(offset, len).collect::<Vec<_>>();
        assert_eq!(parts(4096, 4096), [(4096, 0..4096)]);
        assert_eq!(parts(5000, 8000), [(5000, 0..3192), (8192, 3192..7288), (12_288, 7288..8000)]);
        assert_eq!(parts(8191, 2), [(8191, 0..1), (8192, 1..2)]);
        assert!(parts(4096, 0).is_empty());
    }

    #[test]
    fn a_map_and_calls_store_the_same_bytes_of_any_range() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let mut expected = vec![0_u8; 5 * BLOCK_BYTES];
        std::fs::write(&path, &expected).unwrap();
        let map = WritableFile::map(&path, Advice::Random).unwrap();
        let calls = WritableFile::calls(&path, Means::Buffered).unwrap();
        for (number, (offset, len)) in [(0, 10), (4000, 200), (8192, 4096), (5000, 12_000)].into_iter().enumerate() {
            let data: Vec<u8> = (0..len).map(|at| (at * 7 + number) as u8).collect();
            let file = if number % 2 == 0 { &map } else { &calls };
            file.write(offset, &data, false).unwrap();
            file.sync(None).unwrap();
            expected[offset as usize..][..len].copy_from_slice(&data);
            let mut seen = Vec::new();
            map.look(offset, len, |_, bytes| seen.extend_from_slice(bytes)).unwrap();
            assert_eq!(seen, data);
        }
        assert_eq!(std::fs::read(&path).unwrap(), expected);
        assert!(map.write(5 * BLOCK_BYTES as u64 - 1, &[1, 2], false).is_err(), "beyond the end");
        assert!(calls.look(0, 1, |_, _| ()).is_err());
    }
}

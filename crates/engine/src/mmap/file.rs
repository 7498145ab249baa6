//! The file beneath a map: made once at its full size, written by calls where the protocol says so.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nofault_io::mapped::{Advice, MappedFile, Protection};

use super::meta::{META_PAGES, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::format::PAGE_BYTES_MAX;

/// A file open for reading and writing through the page cache, and once more for writes that are durable when they return.
#[derive(Debug)]
pub(super) struct DataFile {
    file: File,
    durable: File,
    path: PathBuf,
    pub(super) bytes_written: AtomicU64,
    pub(super) syncs: AtomicU64,
}

impl DataFile {
    /// Creates a file of `len_bytes`, all of it a hole.
    pub(super) fn create(path: &Path, len_bytes: u64) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let made = file.and_then(|file| file.set_len(len_bytes));
        made.map_err(|error| failed("create the mapped file", path, &error))?;
        Self::open(path)
    }

    pub(super) fn open(path: &Path) -> Result<Self> {
        let open = |flags: i32| {
            let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
            opened.map_err(|error| failed("open the mapped file", path, &error))
        };
        let dsync = rustix::fs::OFlags::DSYNC.bits() as i32;
        Ok(Self {
            file: open(0)?,
            durable: open(dsync)?,
            path: path.to_owned(),
            bytes_written: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        })
    }

    /// Returns the meta page in force.
    pub(super) fn meta(&self) -> Result<Meta> {
        let mut start = vec![0; META_PAGES as usize * PAGE_BYTES_MAX];
        let len = self.file.metadata().map_err(|error| failed("ask for the length", &self.path, &error))?.len();
        start.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        self.file.read_exact_at(&mut start, 0).map_err(|error| failed("read the meta pages", &self.path, &error))?;
        Meta::find(&start)
    }

    /// Writes a meta page over the older of the two; it is durable when this returns.
    pub(super) fn write_meta(&self, meta: &Meta) -> Result<()> {
        let (page, at) = (meta.encode(), meta.slot() * meta.page_bytes as u64);
        self.note_written(page.len());
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.durable.write_all_at(&page, at).map_err(|error| failed("write a meta page", &self.path, &error))
    }

    /// Writes bytes at an offset of the file, through the page cache.
    pub(super) fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> Result<()> {
        self.note_written(bytes.len());
        self.file.write_all_at(bytes, offset_bytes).map_err(|error| failed("write pages", &self.path, &error))
    }

    /// Reads bytes at an offset of the file, through the page cache.
    ///
    /// # Errors
    /// `Corrupt` when the file ends too early.
    pub(super) fn read_at(&self, bytes: &mut [u8], offset_bytes: u64) -> Result<()> {
        self.file.read_exact_at(bytes, offset_bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                let what =
                    format!("the mapped file {} ends before byte {offset_bytes}: truncated", self.path.display());
                Error::new(ErrorKind::Corrupt, what)
            }
            _ => failed("read pages", &self.path, &error),
        })
    }

    /// Waits until all written data is durable.
    pub(super) fn sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        // Not `File::sync_data`: that repeats a sync that was interrupted, and the second sync reports nothing of the
        // writes that the first lost.
        rustix::fs::fdatasync(&self.file).map_err(|error| failed("sync the mapped file", &self.path, &error.into()))
    }

    /// Counts bytes written to the file, by calls or through a map.
    pub(super) fn note_written(&self, bytes: usize) {
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the bytes that the file takes on disk.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.blocks() * 512)
    }

    /// Maps the whole file.
    ///
    /// # Safety
    /// As for [`MappedFile::map`].
    pub(super) unsafe fn map(&self, protection: Protection, map_bytes: u64, random: bool) -> Result<MappedFile> {
        // SAFETY: the caller promises it.
        let map = unsafe { MappedFile::map(&self.file, protection, 0..map_bytes) };
        let map = map.map_err(|error| Error::from_io("map the file", error))?;
        if random {
            map.advise(Advice::Random, 0..map.len_bytes()).map_err(|error| Error::from_io("advise the map", error))?;
        }
        Ok(map)
    }
}

/// Creates the error for a failure of the system during `action`.
pub(super) fn failed(action: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::from_io(action, nofault_io::error::Error::from_io("", error).at(path))
}

//! A map that makes only the calls being timed: [`nofault_io::mapped`] also keeps a descriptor, a path and a guard
//! against SIGBUS, which would be timed as well.
//!
//! Kept true by: the file is the lab's own, complete, and locked by the lab while a trial runs, so its pages are there.

use std::fs::File;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{LabError, Result};
use crate::workload::PAGE_BYTES;

/// A mapped part of a file. Unmapped when dropped.
pub(super) struct RawMap<'a> {
    start: NonNull<u8>,
    len_bytes: usize,
    file: &'a File,
    offset_bytes: u64,
    private: bool,
}

impl<'a> RawMap<'a> {
    /// Maps a part of a file for reading. A `private` map may be written to; its changes never reach the file.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn map(file: &'a File, offset_bytes: u64, len_bytes: usize, private: bool) -> Result<Self> {
        let (access, flags) = protection(private);
        // SAFETY: a fresh mapping wherever the kernel likes: no memory in use is affected.
        let start = unsafe { mmap(std::ptr::null_mut(), len_bytes, access, flags, file, offset_bytes) };
        let start = start.map_err(|errno| LabError::system("map a part of a file", &errno.into()))?;
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, len_bytes, file, offset_bytes, private }),
            None => Err(LabError::system("map a part of a file", &std::io::ErrorKind::Other.into())),
        }
    }

    /// Returns the number of pages in the map.
    pub(super) fn page_count(&self) -> usize {
        self.len_bytes / PAGE_BYTES
    }

    /// Returns the first word of a page.
    pub(super) fn word(&self, page: usize) -> u64 {
        assert!(page < self.page_count(), "page {page} of {}", self.page_count());
        // SAFETY: inside the mapping and aligned to a page; the lab holds the file, so the page is there.
        u64::from_le(unsafe { self.start.as_ptr().add(page * PAGE_BYTES).cast::<u64>().read_volatile() })
    }

    /// Changes the first word of a page of a private map, so that the kernel copies the page.
    pub(super) fn change(&mut self, page: usize, word: u64) {
        assert!(self.private && page < self.page_count(), "page {page} of {}", self.page_count());
        // SAFETY: inside the mapping, writable because private, aligned, and `&mut self` makes it exclusive.
        unsafe { self.start.as_ptr().add(page * PAGE_BYTES).cast::<u64>().write_volatile(word.to_le()) };
    }

    /// Maps the same part again at the same place: a private map drops its copies and shows the file.
    ///
    /// # Errors
    /// The system's error; the map is then as before.
    pub(super) fn map_again(&mut self) -> Result<()> {
        let (access, flags) = protection(self.private);
        let at = self.start.as_ptr().cast();
        // SAFETY: it replaces this very mapping by one of the same length, file and protection; `&mut self` rules out
        // references to its bytes at that time.
        unsafe { mmap(at, self.len_bytes, access, flags | MapFlags::FIXED, self.file, self.offset_bytes) }
            .map(drop)
            .map_err(|errno| LabError::system("map a private view anew", &errno.into()))
    }
}

fn protection(private: bool) -> (ProtFlags, MapFlags) {
    match private {
        true => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE),
        false => (ProtFlags::READ, MapFlags::SHARED),
    }
}

impl Drop for RawMap<'_> {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which no reference exists. An munmap of a mapping that exists cannot fail.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

//! Memory accessed as pages: the frames of a buffer pool, or a mapped file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{LabError, LabErrorKind, Result};
use crate::workload::PAGE_BYTES;

/// Number of 8-byte words in a page.
pub(super) const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// A page, as an array of words.
pub(super) type Page = [u64; PAGE_WORDS];

/// Bytes of a huge page, and the alignment that a map needs to use huge pages.
const HUGE_BYTES: usize = 2 << 20;

/// The memory of a buffer pool, as page-sized frames.
#[derive(Debug)]
pub(super) struct Frames(IoBuf);

impl Frames {
    /// Allocates frames in huge pages, where the system provides them.
    pub(super) fn in_huge_pages(count: usize) -> Result<Self> {
        Ok(Self(IoBuf::zeroed(count * PAGE_BYTES, PageKind::Huge)?))
    }

    /// Allocates frames in small pages.
    pub(super) fn in_small_pages(count: usize) -> Result<Self> {
        Ok(Self(IoBuf::zeroed(count * PAGE_BYTES, PageKind::Small)?))
    }

    /// Returns all frames as pages.
    #[inline]
    pub(super) fn pages(&self) -> &[Page] {
        as_pages(&self.0)
    }

    /// Returns the address of a frame, which stays valid while the frames live.
    pub(super) fn address(&self, frame: usize) -> *const Page {
        debug_assert!(frame < self.pages().len());
        self.0.address().cast::<Page>().wrapping_add(frame)
    }

    /// Returns all frames for writing.
    pub(super) fn pages_mut(&mut self) -> &mut [Page] {
        // SAFETY: words of any value are words; the buffer begins at a page, so the middle is all of it.
        let (before, pages, after) = unsafe { self.0.align_to_mut::<Page>() };
        debug_assert!(before.is_empty() && after.is_empty());
        pages
    }
}

/// A file in memory accessed through a map: no disk takes part, and the kernel maps its pages as it maps any
/// cached file.
#[derive(Debug)]
pub(super) struct MappedPages {
    file: File,
    map: Option<MappedFile>,
    count: usize,
    huge: bool,
}

impl MappedPages {
    /// Makes a file of `count` pages in memory, which [`Self::map`] maps later.
    pub(super) fn new(count: usize, huge: bool) -> Result<Self> {
        let failed = |error: std::io::Error| LabError::system("make a file in memory", &error);
        let file = File::from(memfd_create("nofault-lab", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?);
        file.set_len((count * PAGE_BYTES).next_multiple_of(HUGE_BYTES) as u64).map_err(failed)?;
        Ok(Self { file, map: None, count, huge })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Writes a page of the file.
    pub(super) fn write(&self, number: usize, page: &Page) -> Result<()> {
        // SAFETY: the bytes of a word may have any value.
        let (_, bytes, _) = unsafe { page.align_to::<u8>() };
        self.file
            .write_all_at(bytes, (number * PAGE_BYTES) as u64)
            .map_err(|error| LabError::system("write a file in memory", &error))
    }

    /// Maps the file and faults every page in.
    pub(super) fn map(&mut self) -> Result<()> {
        let len = (self.count * PAGE_BYTES).next_multiple_of(HUGE_BYTES);
        // SAFETY: the file belongs to this process alone, and is not written or cut while it is mapped.
        let map = unsafe { MappedFile::map_aligned(&self.file, Protection::ReadOnly, 0..len as u64, HUGE_BYTES) }?;
        let advice = if self.huge { Advice::HugePage } else { Advice::NoHugePage };
        // Kernels without huge pages do not know the advice; all pages are then small.
        let advised = map.advise(advice, 0..len);
        if self.huge {
            advised?;
            map.advise(Advice::Collapse, 0..len).map_err(|error| {
                LabError::new(LabErrorKind::Unsupported, format!("no huge pages for a mapped file here: {error}"))
            })?;
        }
        map.populate(0..len)?;
        self.map = Some(map);
        Ok(())
    }

    /// Returns the pages of the map.
    #[inline]
    pub(super) fn pages(&self) -> &[Page] {
        self.map.as_ref().map_or(&[], |map| as_pages(map.bytes()))
    }
}

#[inline]
fn as_pages(bytes: &[u8]) -> &[Page] {
    // SAFETY: words of any value are words; buffers and maps begin at a page, so the middle is all of it.
    let (_, pages, _) = unsafe { bytes.align_to::<Page>() };
    pages
}

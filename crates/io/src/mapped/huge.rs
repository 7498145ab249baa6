//! Maps in huge pages: the address they need, and the call that makes them.

use std::fs::File;
use std::ops::Range;

use rustix::mm::{MapFlags, ProtFlags};

use super::{MappedFile, Protection};
use crate::error::{Error, ErrorKind, Result};

/// The kernel's number of the advice (Linux 6.1). The crate libc has it for glibc only.
const MADV_COLLAPSE: libc::c_int = 25;

impl MappedFile {
    /// As [`map`](Self::map), at an address that is a multiple of `align_bytes` (a power of two) where the kernel agrees: huge
    /// pages need such an address. Another thread that maps at the same moment may take the place; the map is then elsewhere.
    ///
    /// # Safety
    /// As for [`map`](Self::map).
    ///
    /// # Errors
    /// As for [`map`](Self::map).
    pub unsafe fn map_aligned(
        file: &File,
        protection: Protection,
        range: Range<u64>,
        align_bytes: usize,
    ) -> Result<Self> {
        let len_bytes = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let hint = free_place(len_bytes, align_bytes);
        // SAFETY: the caller keeps the promises of `map_near`; the place is only a hint, so no existing mapping is
        // replaced.
        unsafe { Self::map_near(hint, file, protection, range) }
    }

    /// Applies [`Advice::Collapse`](super::Advice::Collapse) to `range`; rustix does not have this call yet.
    pub(super) fn collapse(&self, range: Range<usize>) -> Result<()> {
        let what = "put into huge pages";
        let (start, len) = self.whole_pages(what, &range)?;
        // SAFETY: the pages belong to this map; where they lie changes, their bytes do not.
        if unsafe { libc::madvise(start.cast(), len, MADV_COLLAPSE) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINVAL) => {
                let why =
                    "this kernel does not support it, or not for this file, or the map does not begin at a huge page";
                Err(self.error(ErrorKind::Unsupported, what, &range, why))
            }
            _ => Err(Error::from_io(self.action(what, &range), &error).at(&self.path)),
        }
    }
}

/// Finds an address at a multiple of `align_bytes` with `len_bytes` free bytes behind it; null where there is none.
fn free_place(len_bytes: usize, align_bytes: usize) -> *mut std::ffi::c_void {
    let Some(room) = len_bytes.checked_add(align_bytes).filter(|room| *room <= isize::MAX as usize) else {
        return std::ptr::null_mut();
    };
    // SAFETY: a new, inaccessible range of address space, given back at once: nothing refers to it.
    let place = unsafe {
        let reserved = rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            room,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        );
        let Ok(place) = reserved else { return std::ptr::null_mut() };
        let _ = rustix::mm::munmap(place, room);
        place
    };
    place.wrapping_byte_add(place.addr().next_multiple_of(align_bytes.max(1)) - place.addr())
}

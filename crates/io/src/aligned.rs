//! Memory that a device may read and write: aligned, pinned in place, owned by exactly one holder at a time.
//!
//! A [`Region`] is one allocation; an [`IoBuf`] is an exclusively owned piece of one. Pieces can be split and joined,
//! so a buffer pool takes one large region in huge pages and cuts its frames out of it, and a striped disk cuts one
//! request into several. Moving an `IoBuf` moves no bytes, which is how an operation in flight owns its memory.
//!
//! Huge pages matter: direct reads of 256 KiB and more into scattered 4 KiB pages are split by the block layer
//! (a request has a limited number of segments) and cost a multiple in CPU.
//!
//! A forked child does not have this memory, as it does not have the rings: it must not touch the bytes of a buffer. Dropping
//! one there does nothing.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, madvise};

use crate::error::{Error, ErrorKind, Result};
use crate::process::Process;

/// Alignment of every region: no Linux device in use needs more for direct I/O.
pub const ALIGN_BYTES: usize = 4096;
/// Size of a huge page on x86-64 and most arm64 kernels.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The kind of memory pages that a region consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageKind {
    /// Pages of the usual size, 4 KiB on most machines.
    #[default]
    Small,
    /// Transparent huge pages (`MADV_HUGEPAGE`); ordinary pages where the kernel has no huge ones to give, and for memory that does not
    /// fill one.
    Huge,
}

/// One allocation, shared by the buffers cut from it. Freed when the last of them is gone.
#[derive(Clone)]
pub struct Region(Arc<Mapping>);

struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
    id: u64,
    /// The process with the mapping: a forked child does not, and may have something else at its addresses.
    process: Process,
}

// SAFETY: a `Mapping` is an address range; access to its bytes goes through `IoBuf`s, which are disjoint.
unsafe impl Send for Mapping {}
// SAFETY: as above: no method of `Mapping` touches the bytes.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.process.is_here() {
            return;
        }
        // SAFETY: `base` and `len_bytes` came from mmap, and no `IoBuf` is left: each holds an `Arc` of this. An
        // munmap of a whole existing mapping cannot fail.
        unsafe {
            let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes);
        }
    }
}

impl Region {
    /// Returns a number that no other region of this process has or had: the key of registered buffers.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the address of the region's first byte, for registration with the kernel only; the bytes belong to the
    /// holders of the buffers.
    pub fn base(&self) -> *const u8 {
        self.0.base.as_ptr()
    }

    /// Returns the size of the region in bytes, a multiple of the page size.
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }

    /// Has the kernel give memory to a part of the region now, so that the first write to it does not wait for that.
    /// Changes no byte of it. Returns false when the kernel did not: then the first write takes the memory.
    pub fn populate(&self, bytes: Range<usize>) -> bool {
        let end = bytes.end.min(self.len_bytes());
        let start = bytes.start.next_multiple_of(ALIGN_BYTES);
        if start >= end || cfg!(miri) {
            return false;
        }
        // SAFETY: the range lies within the mapping, which `self` keeps, and the advice changes the content of no page in it.
        unsafe { madvise(self.0.base.as_ptr().add(start).cast(), end - start, Advice::LinuxPopulateWrite).is_ok() }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.id(), self.len_bytes())
    }
}

/// An owned, aligned piece of memory. `Deref`s to its bytes.
pub struct IoBuf {
    start: NonNull<u8>,
    len_bytes: usize,
    region: Region,
}

// SAFETY: an `IoBuf` is the only holder of its bytes, as a `Box<[u8]>` is.
unsafe impl Send for IoBuf {}
// SAFETY: shared access only reads, as with a `Box<[u8]>`.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Allocates `len_bytes` of zeroed memory in a separate region. One `mmap`; pages come on first touch.
    ///
    /// # Errors
    /// `InvalidCall` for zero bytes, `NoResources` when the system has no memory or the process no address space.
    pub fn zeroed(len_bytes: usize, pages: PageKind) -> Result<Self> {
        static NEXT_REGION: AtomicU64 = AtomicU64::new(1);
        if len_bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidCall, "allocate a buffer", "zero bytes"));
        }
        let rounded = len_bytes
            .checked_next_multiple_of(ALIGN_BYTES)
            .filter(|len| *len <= isize::MAX as usize / 2)
            .ok_or_else(|| Error::new(ErrorKind::InvalidCall, "allocate a buffer", format!("{len_bytes} bytes")))?;
        // Huge pages take no more memory than was asked for: a region smaller than one, and the rest of a larger region, lie in ordinary
        // pages.
        let is_huge = pages == PageKind::Huge && rounded >= HUGE_PAGE_BYTES;
        let base = map_aligned(rounded, if is_huge { HUGE_PAGE_BYTES } else { ALIGN_BYTES })?;
        // A device may be writing here at the moment of a fork. Were the pages shared with the child, the next process
        // to write to them would get a copy, and this process might go on with the copy while the device fills the
        // original. Best effort: a kernel that does not know the advice shares them.
        advise(base, rounded, Advice::LinuxDontFork);
        if is_huge {
            // Where transparent huge pages are off, ordinary ones serve.
            advise(base, rounded, Advice::LinuxHugepage);
        }
        let id = NEXT_REGION.fetch_add(1, Ordering::Relaxed);
        let region = Region(Arc::new(Mapping { base, len_bytes: rounded, id, process: Process::current() }));
        Ok(Self { start: base, len_bytes, region })
    }

    /// Returns the region of which this buffer is a part.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the address of the buffer's bytes. It is stable while the buffer lives, also when the buffer is moved.
    pub fn address(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Returns the address of the buffer's bytes, for the kernel to write to.
    pub fn address_mut(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Cuts the buffer in two: the first `at_bytes` bytes, and the rest.
    ///
    /// # Panics
    /// When `at_bytes` exceeds the length of the buffer: a caller's mistake, as with `split_at` of a slice.
    pub fn split_at(self, at_bytes: usize) -> (Self, Self) {
        assert!(at_bytes <= self.len_bytes, "split at {at_bytes} of {} bytes", self.len_bytes);
        // SAFETY: `at_bytes` is within the piece, so the sum stays within (or one past) the same mapping.
        let second = unsafe { self.start.add(at_bytes) };
        let rest = Self { start: second, len_bytes: self.len_bytes - at_bytes, region: self.region.clone() };
        (Self { start: self.start, len_bytes: at_bytes, region: self.region }, rest)
    }

    /// Joins two pieces that are neighbours of one region. Returns other pieces unchanged, as an error.
    ///
    /// # Errors
    /// The two pieces, when `next` does not start where this one ends.
    pub fn join(self, next: Self) -> std::result::Result<Self, (Self, Self)> {
        let end = self.start.as_ptr().wrapping_add(self.len_bytes);
        if self.region.id() != next.region.id() || end != next.start.as_ptr() {
            return Err((self, next));
        }
        Ok(Self { start: self.start, len_bytes: self.len_bytes + next.len_bytes, region: self.region })
    }

    /// Cuts the buffer into pieces of `piece_bytes`. A remainder shorter than a piece is dropped (it stays part of the
    /// region).
    ///
    /// # Panics
    /// When `piece_bytes` is zero.
    pub fn pieces(self, piece_bytes: usize) -> Vec<Self> {
        assert!(piece_bytes > 0, "pieces of zero bytes");
        let mut pieces = Vec::with_capacity(self.len_bytes / piece_bytes);
        let mut rest = self;
        while rest.len_bytes >= piece_bytes {
            let (piece, tail) = rest.split_at(piece_bytes);
            pieces.push(piece);
            rest = tail;
        }
        pieces
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the region that `self.region` keeps mapped, is initialised (mmap gives zeroes), and
        // no other `IoBuf` covers it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes) }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} bytes of region {})", self.len_bytes, self.region.id())
    }
}

/// Bytes that stay at the same address, unchanged, for as long as the value lives. A write may start from them while
/// other threads read them.
///
/// # Safety
/// `bytes` must return the same address, length and content on every call until the value is dropped, regardless of
/// other threads, and moving the value must not move the bytes.
pub unsafe trait StableBytes: Send + Sync + 'static {
    /// The bytes, at the same address for as long as the value lives.
    fn bytes(&self) -> &[u8];
}

// SAFETY: the bytes live in the region, so moving the `IoBuf` leaves them in place; a shared reference gives no way
// to change them.
unsafe impl StableBytes for IoBuf {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Gives the kernel an advice about a mapping that was just made. A kernel that does not know it ignores it. Miri has no such call.
fn advise(base: NonNull<u8>, len_bytes: usize, advice: Advice) {
    if cfg!(miri) {
        return;
    }
    // SAFETY: the caller has just mapped the range, and it belongs to the caller alone. Neither advice used here changes its content.
    unsafe {
        let _ = madvise(base.as_ptr().cast(), len_bytes, advice);
    }
}

/// Checks that this process may take `bytes` more of address space, where that is limited (RLIMIT_AS). An allocation that the standard
/// library cannot make ends the process: a caller that asks for the sum of many small ones first gets an error. Costs nothing without
/// such a limit; takes nothing, so another thread may take the bytes first.
///
/// # Errors
/// `NoResources`.
pub fn require_address_space(bytes: u64) -> Result<()> {
    use rustix::process::{Resource, getrlimit};
    let Some(limit) = getrlimit(Resource::As).current else { return Ok(()) };
    // Its first number is the size in pages. Without it nothing is known, and the allocations decide.
    let size = std::fs::read_to_string("/proc/self/statm").ok();
    let pages: Option<u64> = size.and_then(|size| size.split_whitespace().next()?.parse().ok());
    let used = pages.map_or(0, |pages| pages.saturating_mul(rustix::param::page_size() as u64));
    if used.saturating_add(bytes) <= limit {
        return Ok(());
    }
    Err(Error::from_errno(format!("take {bytes} bytes of address space, {used} are in use"), libc::ENOMEM))
}

/// Maps `len_bytes` of anonymous memory, starting at a multiple of `align_bytes` (a power of two, at least a page).
fn map_aligned(len_bytes: usize, align_bytes: usize) -> Result<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let span = len_bytes + align_bytes - ALIGN_BYTES;
    // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
    let whole =
        unsafe { mmap_anonymous(std::ptr::null_mut(), span, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
            .map_err(|error| Error::from_rustix(format!("allocate {len_bytes} bytes"), error))?;
    let head = whole.align_offset(align_bytes);
    let tail = span - head - len_bytes;
    let start = whole.cast::<u8>().wrapping_add(head);
    // SAFETY: both ranges are unused ends of the mapping made above; `start .. start + len_bytes` stays.
    unsafe {
        if head > 0 {
            let _ = munmap(whole, head);
        }
        if tail > 0 {
            let _ = munmap(start.wrapping_add(len_bytes).cast(), tail);
        }
    }
    NonNull::new(start).ok_or_else(|| Error::new(ErrorKind::NoResources, "allocate a buffer", "mapped at address zero"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_space_is_refused_only_where_it_is_limited() {
        let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
        assert_eq!(require_address_space(u64::MAX).is_ok(), limit.is_none());
        require_address_space(0).unwrap();
    }

    #[test]
    fn buffers_are_aligned_zeroed_and_split_and_join_without_moving() {
        let mut buffer = IoBuf::zeroed(3 * 4096, PageKind::Small).unwrap();
        assert_eq!(buffer.address().align_offset(ALIGN_BYTES), 0);
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer[4096] = 7;
        let address = buffer.address();
        let (first, second) = buffer.split_at(4096);
        assert_eq!((first.len(), second[0]), (4096, 7));
        let (second, first) = second.join(first).unwrap_err();
        let joined = first.join(second).unwrap();
        assert_eq!((joined.address(), joined.len(), joined[4096]), (address, 3 * 4096, 7));
    }

    #[test]
    fn huge_regions_start_at_a_huge_page() {
        let buffer = IoBuf::zeroed(5 << 20, PageKind::Huge).unwrap();
        assert_eq!(buffer.address().align_offset(HUGE_PAGE_BYTES), 0);
        assert_eq!(buffer.region().len_bytes(), 5 << 20, "as much as was asked for");
        assert_eq!(IoBuf::zeroed(8192, PageKind::Huge).unwrap().region().len_bytes(), 8192);
        assert_eq!(buffer.pieces(1 << 20).len(), 5);
    }

    #[test]
    fn memory_that_is_given_before_its_use_keeps_its_bytes() {
        let mut buffer = IoBuf::zeroed(5 << 20, PageKind::Huge).unwrap();
        buffer[4095..4100].fill(7);
        let region = buffer.region().clone();
        if !region.populate(100..usize::MAX) {
            println!("not looked at: this kernel gives memory at its first use only");
        }
        assert!(buffer.iter().enumerate().all(|(at, byte)| *byte == if (4095..4100).contains(&at) { 7 } else { 0 }));
        assert!(!region.populate(5 << 20..usize::MAX) && !region.populate(0..0), "nothing to give");
    }

    #[test]
    fn a_buffer_of_no_bytes_or_of_too_many_is_refused() {
        assert_eq!(IoBuf::zeroed(0, PageKind::Small).unwrap_err().kind(), ErrorKind::InvalidCall);
        assert_eq!(IoBuf::zeroed(usize::MAX, PageKind::Huge).unwrap_err().kind(), ErrorKind::InvalidCall);
    }

    #[test]
    fn a_forked_child_does_not_share_pages_that_a_device_may_be_filling() {
        for pages in [PageKind::Small, PageKind::Huge] {
            let buffer = IoBuf::zeroed(8192, pages).unwrap();
            let address = buffer.address() as usize;
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let number = |hex: &str| usize::from_str_radix(hex, 16).ok();
            let range = |line: &str| {
                let (start, end) = line.split(' ').next()?.split_once('-')?;
                Some(number(start)?..number(end)?)
            };
            let mut lines = smaps.lines();
            lines.find(|line| range(line).is_some_and(|range| range.contains(&address))).unwrap();
            let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
            assert!(flags.split(' ').any(|flag| flag == "dc"), "copied on a fork: {flags}");
        }
    }

    #[test]
    fn a_piece_keeps_its_region_alive() {
        let (first, rest) = IoBuf::zeroed(8192, PageKind::Small).unwrap().split_at(4096);
        drop(rest);
        assert_eq!(first[4095], 0);
    }
}

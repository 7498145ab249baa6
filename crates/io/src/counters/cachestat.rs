//! How much of a file is in the page cache: `cachestat(2)`, or `mincore(2)` through a short-lived map before Linux 6.5.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::mm::{MapFlags, ProtFlags};

/// The page-cache state of a range. Whole pages: a range that begins or ends inside a page counts that page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStat {
    /// Bytes in the cache.
    pub cached_bytes: u64,
    /// Bytes changed in the cache and not yet written. `None`, as the fields below, where only `mincore` is available.
    pub dirty_bytes: Option<u64>,
    /// Bytes of the page cache that are being written now.
    pub writeback_bytes: Option<u64>,
    /// Bytes that were in the cache and were evicted.
    pub evicted_bytes: Option<u64>,
    /// Bytes evicted so recently that reading them again now would count as a refault.
    pub recently_evicted_bytes: Option<u64>,
}

/// Number of the system call, which is the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat` of the kernel, in pages.
#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns the page-cache state of `range` (bytes) of a file or block device. About 0.2 µs, plus 50 ns a MiB.
///
/// `None` where the kernel does not report it: the file is neither owned nor writable by this process (the answer
/// would be a side channel, and `mincore` would claim that all is resident), or it has no page cache.
pub fn cachestat(fd: impl AsFd, range: Range<u64>) -> Option<CacheStat> {
    let fd = fd.as_fd();
    // To the kernel a length of zero means "to the end".
    if range.is_empty() {
        let none = Some(0);
        return Some(CacheStat {
            cached_bytes: 0,
            dirty_bytes: none,
            writeback_bytes: none,
            evicted_bytes: none,
            recently_evicted_bytes: none,
        });
    }
    by_cachestat(fd, &range).or_else(|| by_mincore(fd, &range))
}

fn by_cachestat(fd: BorrowedFd<'_>, range: &Range<u64>) -> Option<CacheStat> {
    let asked = [range.start, range.end - range.start];
    let mut pages = Pages::default();
    // SAFETY: `asked` and `pages` have the layout of the kernel's `cachestat_range` and `cachestat`, and live over the
    // call. A kernel without the call answers ENOSYS.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), asked.as_ptr(), &raw mut pages, 0 as libc::c_uint) };
    let bytes = |count: u64| count.saturating_mul(rustix::param::page_size() as u64);
    (result == 0).then(|| CacheStat {
        cached_bytes: bytes(pages.cached),
        dirty_bytes: Some(bytes(pages.dirty)),
        writeback_bytes: Some(bytes(pages.writeback)),
        evicted_bytes: Some(bytes(pages.evicted)),
        recently_evicted_bytes: Some(bytes(pages.recently_evicted)),
    })
}

pub(super) fn by_mincore(fd: BorrowedFd<'_>, range: &Range<u64>) -> Option<CacheStat> {
    const CHUNK_BYTES: u64 = 256 << 20;
    if !may_ask(fd) {
        return None;
    }
    let page = rustix::param::page_size() as u64;
    let end = range.end.min(len_bytes(fd)?);
    let mut at = range.start / page * page;
    let mut resident_pages = 0;
    let mut seen = Vec::new();
    while at < end {
        let len = (end - at).min(CHUNK_BYTES);
        seen.clear();
        seen.resize(len.div_ceil(page) as usize, 0_u8);
        // SAFETY: a new map at an address of the kernel's choice; it is never read through, so that the file may shrink
        // at any time, and it is unmapped below with the length it was mapped with. `seen` has a byte for each page.
        unsafe {
            let map = rustix::mm::mmap(
                std::ptr::null_mut(),
                len as usize,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                at,
            )
            .ok()?;
            let told = libc::mincore(map, len as usize, seen.as_mut_ptr());
            let _ = rustix::mm::munmap(map, len as usize);
            if told != 0 {
                return None;
            }
        }
        resident_pages += seen.iter().filter(|flags| **flags & 1 != 0).count() as u64;
        at += len;
    }
    Some(CacheStat { cached_bytes: resident_pages * page, ..CacheStat::default() })
}

/// Returns whether this process gets honest answers: since 5.2 `mincore` answers "all resident" to a process that
/// neither owns the file nor may write it.
fn may_ask(fd: BorrowedFd<'_>) -> bool {
    let owner = rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
    let by_name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    owner || rustix::process::geteuid().is_root() || rustix::fs::access(by_name, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Length of a file or a block device.
fn len_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstat(fd).ok()?;
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => u64::try_from(stat.st_size).ok(),
        rustix::fs::FileType::BlockDevice => {
            // Opened again, because seeking moves the position of every copy of the descriptor.
            let mut device = File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
            device.seek(SeekFrom::End(0)).ok()
        }
        _ => None,
    }
}

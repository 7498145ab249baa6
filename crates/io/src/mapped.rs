//! Memory-mapped files and block devices, with the failures of `mmap` reported as errors.
//!
//! A map cannot report that a page is absent: a read of such a page stalls the thread, and a read of a page that the
//! file no longer has, or that the device fails to deliver, raises SIGBUS. [`MappedFile::guarded`] turns that signal
//! into an error (the private module `sigbus` explains how). [`MappedFile::bytes`] is the raw map, where the signal
//! ends the process, as in most programs.
//!
//! Invariant: a page that faulted is marked before a page of zeroes replaces it in the map, and stays marked until the
//! file is mapped again. So an access through a guard never takes the zeroes for data.

mod huge;
mod sigbus;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use rustix::process::Resource;

use crate::counters;
use crate::error::{Error, ErrorKind, Result, limit};

/// The access that a map has to its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Read only (`MAP_SHARED`, `PROT_READ`).
    ReadOnly,
    /// Writes go to the file (`MAP_SHARED`).
    Shared,
    /// A page written to becomes a private copy, which never reaches the file (`MAP_PRIVATE`).
    Private,
}

/// The expected use of a range, as advice for the kernel (`madvise`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// No particular pattern: read around each fault.
    Normal,
    /// Random: read only the page that faults.
    Random,
    /// Sequential: read far ahead, and drop the pages behind sooner.
    Sequential,
    /// Start reading the range now, without waiting.
    WillNeed,
    /// Take the pages out of this map. They stay in the page cache. On a private map it would drop changes, and is refused:
    /// see [`MappedFile::discard`].
    DontNeed,
    /// Read the range in and map it; waits (Linux 5.14).
    PopulateRead,
    /// Read the range in and map it for writing; waits (Linux 5.14).
    PopulateWrite,
    /// Reclaim the range before other pages (Linux 5.4).
    Cold,
    /// Reclaim the range now (Linux 5.4).
    PageOut,
    /// Prefer huge pages, where the file system has them.
    HugePage,
    /// Never use huge pages.
    NoHugePage,
    /// Put the range into huge pages now, as far as possible; waits (Linux 6.1).
    Collapse,
}

/// Whether [`MappedFile::sync`] waits until changes are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// Write changed pages and wait until they are durable (`MS_SYNC`).
    Wait,
    /// `MS_ASYNC`: on Linux this starts nothing; changed pages are written at the kernel's leisure.
    NoWait,
}

/// A part of a file or block device in memory. Positions are in bytes from the start of the map. Unmapped on drop, which
/// does not sync.
#[derive(Debug)]
pub struct MappedFile {
    base: NonNull<u8>,
    len_bytes: usize,
    file: File,
    file_offset_bytes: u64,
    path: PathBuf,
    protection: Protection,
    faults: sigbus::Faults,
}

// SAFETY: an address range and a file; shared access only reads, and every way to write takes `&mut self` or is `unsafe`.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the range is the one that mmap returned, and all slices and guards borrow from `self`, so none is
        // left. An munmap of a whole existing mapping cannot fail.
        unsafe {
            let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes);
        }
    }
}

impl MappedFile {
    /// Maps `range` of a file or block device. Does no I/O: pages are read when they are touched. Keeps its own
    /// descriptor.
    ///
    /// # Safety
    /// While the map lives, no process (this one by other means, or another) may truncate the file to less than the end
    /// of `range`. No process may change its bytes while a slice of them is in use: bytes behind a `&[u8]` must not
    /// change. Where that promise is broken by truncation or a failing device, [`guarded`](Self::guarded) contains the
    /// damage; it cannot detect changed bytes.
    ///
    /// # Errors
    /// `InvalidCall` for an empty range or a start that is no multiple of the page size; `Short` when the file is
    /// shorter than the range; `NoPermission` when the file was not opened for the access that `protection` needs;
    /// `NoResources` without address space; `Unsupported` for a file that cannot be mapped.
    pub unsafe fn map(file: &File, protection: Protection, range: Range<u64>) -> Result<Self> {
        // SAFETY: the caller keeps the promises of `map_near`, and a null hint leaves the address to the kernel.
        unsafe { Self::map_near(std::ptr::null_mut(), file, protection, range) }
    }

    /// Maps a file at the address `hint` if that range is free, else elsewhere.
    ///
    /// # Safety
    /// As for [`map`](Self::map); `hint` is never dereferenced.
    unsafe fn map_near(
        hint: *mut std::ffi::c_void,
        file: &File,
        protection: Protection,
        range: Range<u64>,
    ) -> Result<Self> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        let action = format!("map bytes {} to {}", range.start, range.end);
        let invalid = |why: String| Error::new(ErrorKind::InvalidCall, &action, why).at(&path);
        if range.is_empty() {
            return Err(invalid("an empty range cannot be mapped".into()));
        }
        if !range.start.is_multiple_of(page_bytes() as u64) {
            return Err(invalid(format!("a map starts at a multiple of {} bytes", page_bytes())));
        }
        let len_bytes = usize::try_from(range.end - range.start)
            .ok()
            .filter(|len| *len <= isize::MAX as usize)
            .ok_or_else(|| invalid("longer than the address space".into()))?;
        let has = file_len_bytes(file).map_err(|error| error.at(&path))?;
        if range.end > has {
            return Err(Error::new(ErrorKind::Short, &action, format!("the file has {has} bytes")).at(&path));
        }
        let file = file.try_clone().map_err(|error| Error::from_io(&action, &error).at(&path))?;
        sigbus::install()?;
        let (prot, flags) = protection_flags(protection);
        // SAFETY: a new mapping at an address of the kernel's choice; changes of the file while it is mapped are excluded by
        // the caller's promise.
        let base = unsafe { rustix::mm::mmap(hint, len_bytes, prot, flags, &file, range.start) };
        let base = match base {
            Ok(base) => base,
            Err(errno @ (rustix::io::Errno::NODEV | rustix::io::Errno::OPNOTSUPP)) => {
                return Err(
                    Error::new(ErrorKind::Unsupported, &action, format!("it cannot be mapped ({errno})")).at(&path)
                );
            }
            Err(errno) => return Err(Error::from_rustix(&action, errno).at(&path)),
        };
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(Error::new(ErrorKind::Other, &action, "the kernel mapped it at address zero").at(&path));
        };
        let faults = sigbus::Faults::default();
        Ok(Self { base, len_bytes, file, file_offset_bytes: range.start, path, protection, faults })
    }

    /// Opens and maps a whole file or block device.
    ///
    /// # Safety
    /// As for [`map`](Self::map).
    ///
    /// # Errors
    /// As for [`map`](Self::map), and `NotFound`. An empty file is an `InvalidCall`.
    pub unsafe fn open(path: &Path, protection: Protection) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(protection == Protection::Shared)
            .open(path)
            .map_err(|error| Error::from_io("open a file to map", &error).at(path))?;
        let len_bytes = file_len_bytes(&file).map_err(|error| error.at(path))?;
        // SAFETY: the caller keeps the promises of `map`.
        unsafe { Self::map(&file, protection, 0..len_bytes) }
    }

    /// Returns the length of the map in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the raw map, unguarded: an access to a page that cannot be read stalls, or ends the process by SIGBUS.
    ///
    /// While *another* thread hits a failing page inside a guard of the same map, a thread using this slice may
    /// read zeroes in that page until that guard ends. A caller that must exclude this uses guards only.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range stays mapped and readable while `self` lives; writers need `&mut self` or promise to keep
        // off; the caller of `map` promised that no process changes the file beneath.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len_bytes) }
    }

    /// Runs `use_bytes` on the bytes of `range`, with SIGBUS turned into an error. Costs some 5 ns more than the raw
    /// map.
    ///
    /// When a page cannot be read, the access reads zeroes and continues, `use_bytes` runs to its end, and its result
    /// is discarded. So `use_bytes` must only compute and return, and must not act on the bytes (send them, write
    /// them elsewhere). Only the calling thread is guarded. A panic in `use_bytes` passes through.
    ///
    /// Not detected: a file cut in the middle of a page. The rest of that page reads as zeroes without any signal;
    /// only a checksum finds it.
    ///
    /// # Errors
    /// `Short` when the file has lost that part, `Device` when reading it failed; both name the position in the file.
    /// Such a page stays failed, for every thread, until the file is mapped again. `InvalidCall` for a range outside
    /// the map.
    pub fn guarded<R>(&self, range: Range<usize>, use_bytes: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let start = self.position("read", &range)?;
        // SAFETY: within the mapping, which outlives the call; for the rest see `bytes`.
        self.under_guard("read", &range, || use_bytes(unsafe { std::slice::from_raw_parts(start, range.len()) }))
    }

    /// Runs `use_bytes` like [`guarded`](Self::guarded), for writing. On a `Shared` map the bytes reach the file;
    /// `sync` makes them durable.
    ///
    /// # Errors
    /// As for [`guarded`](Self::guarded), and `NoSpace` when a hole of the file could not be filled. Bytes written to
    /// other pages stay written. `InvalidCall` on a read-only map.
    pub fn guarded_mut<R>(&mut self, range: Range<usize>, use_bytes: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let start = self.writable("write", &range)?;
        // SAFETY: within the mapping, which outlives the call, and writable; `&mut self` makes the access exclusive.
        self.under_guard("write", &range, || use_bytes(unsafe { std::slice::from_raw_parts_mut(start, range.len()) }))
    }

    /// Copies bytes out, guarded. Sound even while the file changes: no reference to mapped bytes exists. The copy may
    /// then be a mixture of old and new.
    ///
    /// # Errors
    /// As for [`guarded`](Self::guarded); the content of `into` is then unspecified.
    pub fn read_at(&self, offset_bytes: usize, into: &mut [u8]) -> Result<()> {
        let range = self.range_at("read", offset_bytes, into.len())?;
        let start = self.position("read", &range)?;
        // SAFETY: source and target are valid for `into.len()` bytes and cannot overlap: `into` is exclusive, and the
        // map gives out no exclusive slice while `&self` is held.
        self.under_guard("read", &range, || unsafe {
            std::ptr::copy_nonoverlapping(start, into.as_mut_ptr(), into.len())
        })
    }

    /// Copies bytes in, guarded, through a shared reference: for stores with a writer that runs alongside readers of
    /// other pages.
    ///
    /// # Safety
    /// During the call no other thread reads or writes these bytes of the map, and no slice of them is alive.
    ///
    /// # Errors
    /// As for [`guarded_mut`](Self::guarded_mut).
    pub unsafe fn write_at(&self, offset_bytes: usize, data: &[u8]) -> Result<()> {
        let range = self.range_at("write", offset_bytes, data.len())?;
        let start = self.writable("write", &range)?;
        // SAFETY: the target is within the mapping and writable; the caller promises that no other thread reads it.
        self.under_guard("write", &range, || unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), start, data.len()) })
    }

    /// Runs `access` with SIGBUS anywhere in the map turned into an error, for code that finds the places it reads by
    /// [`slice`](Self::slice) only on its way. The rules for the closure of [`guarded`](Self::guarded) hold here.
    ///
    /// # Errors
    /// As for [`guarded`](Self::guarded). Once a page has failed, every later call fails too, because the pages that
    /// `access` would touch are not known in advance.
    pub fn watched<R>(&self, access: impl FnOnce() -> R) -> Result<R> {
        self.under_guard("use", &(0..self.len_bytes), access)
    }

    /// Returns a part of the raw map. As for [`bytes`](Self::bytes), an access to a page that cannot be read is a
    /// SIGBUS: use it within
    /// [`watched`](Self::watched).
    ///
    /// # Safety
    /// No thread or process changes these bytes while the slice lives, through this map or beneath it; other parts
    /// may change.
    ///
    /// # Errors
    /// `InvalidCall` for a range outside the map.
    pub unsafe fn slice(&self, range: Range<usize>) -> Result<&[u8]> {
        let start = self.position("read", &range)?;
        // SAFETY: within the mapping, which `self` keeps; that the bytes stay as they are is the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts(start, range.len()) })
    }

    /// Returns a part of a writable map, for changing it in place, within [`watched`](Self::watched).
    ///
    /// # Safety
    /// While the slice lives, no other code reads or writes these bytes, through this map or beneath it.
    ///
    /// # Errors
    /// `InvalidCall` for a range outside the map, or on a read-only one.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the caller's promise, as `watched` borrows the map meanwhile"
    )]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> Result<&mut [u8]> {
        let start = self.writable("write", &range)?;
        // SAFETY: within the mapping and writable; the caller promises exclusive access.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, range.len()) })
    }

    /// Tells the kernel how `range` will be used. One system call; the range is widened to whole pages.
    ///
    /// # Errors
    /// `InvalidCall` for a range outside the map, or `DontNeed` on a private map; `Unsupported` where this kernel does not know the advice; for the populating ones also `Short`,
    /// `Device`, `NoSpace` when a page cannot be had.
    pub fn advise(&self, advice: Advice, range: Range<usize>) -> Result<()> {
        use rustix::mm::Advice as Kernel;
        let kernel = match advice {
            Advice::Normal => Kernel::Normal,
            Advice::Random => Kernel::Random,
            Advice::Sequential => Kernel::Sequential,
            Advice::WillNeed => Kernel::WillNeed,
            Advice::DontNeed => Kernel::LinuxDontNeed,
            Advice::PopulateRead => Kernel::LinuxPopulateRead,
            Advice::PopulateWrite => Kernel::LinuxPopulateWrite,
            Advice::Cold => Kernel::LinuxCold,
            Advice::PageOut => Kernel::LinuxPageOut,
            Advice::HugePage => Kernel::LinuxHugepage,
            Advice::NoHugePage => Kernel::LinuxNoHugepage,
            Advice::Collapse => return self.collapse(range),
        };
        let what = format!("advise {advice:?} for");
        let (start, len) = self.whole_pages(&what, &range)?;
        if advice == Advice::DontNeed && self.protection == Protection::Private {
            let why = "on a private map this drops changes while readers may use them: use `discard`";
            return Err(self.error(ErrorKind::InvalidCall, &what, &range, why));
        }
        // SAFETY: the pages belong to this map, and with `DontNeed` on private maps refused none of the advices changes the
        // bytes that are seen through it.
        match unsafe { rustix::mm::madvise(start.cast(), len, kernel) } {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::INVAL) => Err(self.error(
                ErrorKind::Unsupported,
                &what,
                &range,
                "this kernel does not support it, or not for this file",
            )),
            // Populating fails with these errors where an access would raise SIGBUS.
            Err(rustix::io::Errno::FAULT | rustix::io::Errno::HWPOISON) => {
                Err(self.fault_error(&what, &range, range.start))
            }
            Err(errno) => Err(Error::from_rustix(self.action(&what, &range), errno).at(&self.path)),
        }
    }

    /// Drops the private copies of whole pages in `range`: they show the file again, as it is now. Also gives back the
    /// memory of the copies. On other maps it is [`Advice::DontNeed`].
    ///
    /// # Errors
    /// `InvalidCall` for a range outside the map, or one that would affect bytes next to it: it must begin at a page,
    /// and end at one or at the end of the map.
    pub fn discard(&mut self, range: Range<usize>) -> Result<()> {
        let (start, len) = self.whole_pages("discard", &range)?;
        let ends_whole = range.end.is_multiple_of(page_bytes()) || range.end == self.len_bytes;
        if !range.start.is_multiple_of(page_bytes()) || !ends_whole {
            let why = format!("the range must consist of whole pages of {} bytes", page_bytes());
            return Err(self.error(ErrorKind::InvalidCall, "discard", &range, &why));
        }
        // SAFETY: whole pages of this map. Their bytes may change; `&mut self` ensures that no slice of them exists.
        unsafe { rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxDontNeed) }
            .map_err(|errno| Error::from_rustix(self.action("discard", &range), errno).at(&self.path))
    }

    /// Reads `range` in and maps it; waits for it.
    ///
    /// # Errors
    /// As [`advise`](Self::advise) with [`Advice::PopulateRead`].
    pub fn populate(&self, range: Range<usize>) -> Result<()> {
        self.advise(Advice::PopulateRead, range)
    }

    /// Keeps `range` in memory (`mlock`): reads it in, waits, and exempts it from reclaim.
    ///
    /// # Errors
    /// `NoResources` beyond RLIMIT_MEMLOCK.
    pub fn lock(&self, range: Range<usize>) -> Result<()> {
        let (start, len) = self.whole_pages("lock", &range)?;
        // SAFETY: the pages belong to this map; locking changes no bytes.
        unsafe { rustix::mm::mlock(start.cast(), len) }.map_err(|errno| {
            let hint = format!("raise `ulimit -l` (RLIMIT_MEMLOCK), now {}", limit(Resource::Memlock));
            // EPERM means a limit of zero bytes, EAGAIN that only a part could be locked.
            match errno {
                Errno::PERM | Errno::AGAIN => {
                    let detail = format!("{errno}: {hint}");
                    Error::new(ErrorKind::NoResources, self.action("lock", &range), detail)
                }
                _ => Error::from_rustix(self.action("lock", &range), errno).hint(hint),
            }
            .at(&self.path)
        })
    }

    /// Ends [`lock`](Self::lock).
    ///
    /// # Errors
    /// `InvalidCall` for a range outside the map.
    pub fn unlock(&self, range: Range<usize>) -> Result<()> {
        let (start, len) = self.whole_pages("unlock", &range)?;
        // SAFETY: the pages belong to this map; unlocking changes no bytes.
        unsafe { rustix::mm::munlock(start.cast(), len) }
            .map_err(|errno| Error::from_rustix(self.action("unlock", &range), errno).at(&self.path))
    }

    /// Writes the changed pages of `range` to the file (`msync`).
    ///
    /// # Errors
    /// `Device` when writing failed. The kernel may then have dropped the change, and will not report it again: trust
    /// nothing written since the last success.
    pub fn sync(&self, range: Range<usize>, mode: SyncMode) -> Result<()> {
        let (start, len) = self.whole_pages("sync", &range)?;
        let flags = match mode {
            SyncMode::Wait => MsyncFlags::SYNC,
            SyncMode::NoWait => MsyncFlags::ASYNC,
        };
        // SAFETY: the pages belong to this map; syncing changes no bytes.
        unsafe { rustix::mm::msync(start.cast(), len, flags) }
            .map_err(|errno| Error::from_rustix(self.action("sync", &range), errno).at(&self.path))
    }

    /// Returns how many bytes of `range` are in the page cache, in whole pages; private copies are not counted.
    ///
    /// # Errors
    /// `Unsupported` where the kernel does not tell (see [`counters::cachestat`]).
    pub fn residency(&self, range: Range<usize>) -> Result<u64> {
        self.position("ask for the residency of", &range)?;
        let in_file = self.file_offset_bytes + range.start as u64..self.file_offset_bytes + range.end as u64;
        counters::cachestat(&self.file, in_file).map(|stat| stat.cached_bytes).ok_or_else(|| {
            let why = "the kernel reports it only to the file's owner, or to a process that may write the file";
            self.error(ErrorKind::Unsupported, "ask for the residency of", &range, why)
        })
    }

    fn under_guard<R>(&self, verb: &str, range: &Range<usize>, access: impl FnOnce() -> R) -> Result<R> {
        let pages = range.start / page_bytes()..range.end.div_ceil(page_bytes());
        let failed = |page: usize| self.fault_error(verb, range, (page * page_bytes()).max(range.start));
        // A marked page is not read again: a page of zeroes may be mapped there, and only the mark distinguishes it
        // from data.
        if let Some(page) = self.faults.first_within(&pages) {
            return Err(failed(page));
        }
        let restore = |page: Range<usize>| self.map_file_again(page);
        let result =
            sigbus::with_guard(self.base.as_ptr() as usize, page_bytes(), &pages, &self.faults, restore, access);
        match self.faults.first_within(&pages) {
            Some(page) => Err(failed(page)),
            None => Ok(result),
        }
    }

    /// Puts the file's pages back where stand-ins are, so that an unguarded access meets the signal again, not zeroes.
    fn map_file_again(&self, pages: Range<usize>) {
        let (prot, flags) = protection_flags(self.protection);
        let start_bytes = pages.start * page_bytes();
        // SAFETY: `pages` are pages of this map for which a guard put a stand-in; the file goes back to where it was, at
        // the same offset and protection. Should it fail, the stand-in stays and so does its mark.
        unsafe {
            let _ = rustix::mm::mmap(
                self.base.as_ptr().add(start_bytes).cast(),
                pages.len() * page_bytes(),
                prot,
                flags | MapFlags::FIXED,
                &self.file,
                self.file_offset_bytes + start_bytes as u64,
            );
        }
    }

    fn position(&self, verb: &str, range: &Range<usize>) -> Result<*mut u8> {
        if range.start > range.end || range.end > self.len_bytes {
            let why = format!("the map has {} bytes", self.len_bytes);
            return Err(self.error(ErrorKind::InvalidCall, verb, range, &why));
        }
        Ok(self.base.as_ptr().wrapping_add(range.start))
    }

    fn writable(&self, verb: &str, range: &Range<usize>) -> Result<*mut u8> {
        if self.protection == Protection::ReadOnly {
            return Err(self.error(ErrorKind::InvalidCall, verb, range, "the map is read-only"));
        }
        self.position(verb, range)
    }

    fn range_at(&self, verb: &str, offset_bytes: usize, len_bytes: usize) -> Result<Range<usize>> {
        let end = offset_bytes.saturating_add(len_bytes);
        self.position(verb, &(offset_bytes..end))?;
        Ok(offset_bytes..end)
    }

    fn whole_pages(&self, verb: &str, range: &Range<usize>) -> Result<(*mut u8, usize)> {
        self.position(verb, range)?;
        let start = range.start / page_bytes() * page_bytes();
        Ok((self.base.as_ptr().wrapping_add(start), range.end - start))
    }

    fn action(&self, verb: &str, range: &Range<usize>) -> String {
        let at = self.file_offset_bytes.saturating_add(range.start as u64);
        format!("{verb} {} mapped bytes at {at}", range.end.saturating_sub(range.start))
    }

    fn error(&self, kind: ErrorKind, verb: &str, range: &Range<usize>, why: &str) -> Error {
        Error::new(kind, self.action(verb, range), why).at(&self.path)
    }

    /// Finds the reason why a page could not be read, from the file's present state.
    fn fault_error(&self, verb: &str, range: &Range<usize>, at: usize) -> Error {
        let position = self.file_offset_bytes + at as u64;
        let end = self.file_offset_bytes + range.end as u64;
        let (kind, why) = match file_len_bytes(&self.file) {
            Ok(has) if has < end => {
                (ErrorKind::Short, format!("the file has only {has} bytes left; it was truncated under the map"))
            }
            _ if self.protection == Protection::Shared && self.is_full() => {
                (ErrorKind::NoSpace, format!("SIGBUS at {position}: no space left to fill a hole of the file"))
            }
            _ => (ErrorKind::Device, format!("SIGBUS at {position}: the device did not deliver that page")),
        };
        self.error(kind, verb, range, &format!("{why}. Map the file anew once that is repaired"))
    }

    fn is_full(&self) -> bool {
        rustix::fs::fstatvfs(&self.file).is_ok_and(|stat| stat.f_blocks > 0 && stat.f_bavail == 0)
    }
}

/// Hints the CPU to bring `bytes` into its caches. Costs an instruction per cache line and never faults. For a page
/// that is not in memory, or merely not mapped, it does nothing, as the lab demonstrates. A no-op except on x86-64.
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        const LINE_BYTES: usize = 64;
        let before = bytes.as_ptr() as usize % LINE_BYTES;
        let first = bytes.as_ptr().wrapping_sub(before);
        for line in (0..before + bytes.len()).step_by(LINE_BYTES) {
            // SAFETY: a prefetch has no effect that the program can observe, at any address.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(first.wrapping_add(line).cast());
            }
        }
    }
    // The arm64 instruction has no stable intrinsic.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

fn protection_flags(protection: Protection) -> (ProtFlags, MapFlags) {
    match protection {
        Protection::ReadOnly => (ProtFlags::READ, MapFlags::SHARED),
        Protection::Shared => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
        Protection::Private => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
    }
}

fn page_bytes() -> usize {
    rustix::param::page_size()
}

fn file_len_bytes(file: &File) -> Result<u64> {
    let failed = |error: std::io::Error| Error::from_io("ask for the length", &error);
    let meta = file.metadata().map_err(failed)?;
    if !meta.file_type().is_block_device() {
        return Ok(meta.len());
    }
    // A block device tells its length only by seeking; the position of a shared descriptor is not used anywhere.
    let mut device = file;
    device.seek(SeekFrom::End(0)).map_err(failed)
}

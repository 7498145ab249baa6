//! Memory that is held so that only a given amount is left to all other processes and kswapd has to reclaim, as on the
//! paper's machine. It is locked where that is allowed. Elsewhere it is only touched: without swap the kernel can
//! reclaim touched memory as little as locked memory.
//!
//! A small separate process holds the memory. It raises its oom_score_adj, so that the kernel kills it first when
//! memory runs out after all. When the lab ends, for any reason, the process reads the end of its pipe and exits, which
//! frees the memory.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::system::{self, human_bytes};

/// Bytes by which the ballast grows at a time; a multiple of a huge page.
const STEP_BYTES: u64 = 64 << 20;
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Memory withheld from all other processes until this guard is dropped.
#[derive(Debug)]
pub struct Ballast {
    /// A pipe to the process holding the memory; closing the pipe ends that process.
    pipe: Option<UnixStream>,
    holder: libc::pid_t,
    held_bytes: u64,
    /// Bytes of memory that may be locked; memory beyond that is only touched.
    lock_bytes_max: u64,
}

impl Ballast {
    /// Takes memory until only `bytes` are available to all other processes, give or take a few steps of 64 MiB. All of
    /// the memory is locked where this process may lock that much, otherwise all of it is only touched. Takes about a
    /// second for 10 GB, and much longer where a hypervisor allocates memory only at its first touch.
    ///
    /// # Errors
    /// `Usage` when less than `bytes` are available already, `NoSpace` when the kernel refuses.
    pub fn leaving(bytes: u64) -> Result<Self> {
        let mut ballast = Self::start()?;
        loop {
            let available = super::available_bytes();
            if available < bytes + STEP_BYTES {
                break;
            }
            // In small steps near the end: taking memory makes the kernel free and take memory.
            let over = available - bytes;
            ballast.take(if over > 8 * STEP_BYTES { over / 2 / STEP_BYTES * STEP_BYTES } else { STEP_BYTES })?;
        }
        if ballast.held_bytes == 0 {
            let message = format!("less than {} of memory are available already; ask for less", human_bytes(bytes));
            return Err(LabError::new(LabErrorKind::Usage, message));
        }
        Ok(ballast)
    }

    /// Bytes of memory that this process may lock; `u64::MAX` without a bound.
    pub fn lock_bytes_max() -> u64 {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current.unwrap_or(u64::MAX);
        if has_ipc_lock() { u64::MAX } else { limit }
    }

    /// Returns whether the process that holds the memory still lives: when memory runs out the kernel kills it first.
    pub fn is_held(&self) -> bool {
        system::process_start(self.holder()).is_some()
    }

    /// Returns the bytes of memory that the ballast holds.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the process id of the process holding the memory.
    pub fn holder(&self) -> u32 {
        self.holder.unsigned_abs()
    }

    fn start() -> Result<Self> {
        let failed =
            |error: std::io::Error| LabError::new(LabErrorKind::System, format!("cannot start the ballast: {error}"));
        // Both ends close on exec: a trial process started later must not keep the holder alive.
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let theirs_fd = theirs.as_raw_fd();
        // SAFETY: the child calls `hold`, which only makes system calls on its own stack (async-signal-safe: another
        // thread may hold the allocator's lock at this moment) and never returns.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(failed(std::io::Error::last_os_error())),
            // SAFETY: this is the forked child, which has one thread; the descriptor is open in it.
            0 => unsafe { hold(theirs_fd) },
            _ => Ok(Self { pipe: Some(ours), holder: pid, held_bytes: 0, lock_bytes_max: Self::lock_bytes_max() }),
        }
    }

    fn take(&mut self, bytes: u64) -> Result<()> {
        let locks = self.held_bytes.saturating_add(bytes) <= self.lock_bytes_max;
        let refused = |kind, why: &dyn std::fmt::Display| {
            let message = format!(
                "cannot hold {} more after {}: {why}; leave more memory, or use a cgroup",
                human_bytes(bytes),
                human_bytes(self.held_bytes)
            );
            LabError::new(kind, message)
        };
        let ask = |mut pipe: &UnixStream| {
            let mut answer = [0; 8];
            pipe.write_all(&bytes.to_ne_bytes())?;
            pipe.write_all(&u64::from(locks).to_ne_bytes())?;
            pipe.read_exact(&mut answer)?;
            Ok(u64::from_ne_bytes(answer))
        };
        let answer: std::io::Result<u64> = match &self.pipe {
            Some(pipe) => ask(pipe),
            None => Err(std::io::ErrorKind::NotConnected.into()),
        };
        match answer {
            Ok(0) => {
                self.held_bytes += bytes;
                Ok(())
            }
            Ok(errno) => {
                let error = std::io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(libc::EIO));
                let kind = match error.raw_os_error() {
                    Some(libc::EPERM) => LabErrorKind::NoPermission,
                    _ => LabErrorKind::NoSpace,
                };
                Err(refused(kind, &error))
            }
            Err(_) => Err(refused(LabErrorKind::NoSpace, &"the kernel ended the process that held it (out of memory)")),
        }
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // The holder reads the end of the pipe and exits. Shut down, not only closed: a process forked at this very
        // moment may have a copy.
        if let Some(pipe) = self.pipe.take() {
            let _ = pipe.shutdown(std::net::Shutdown::Both);
        }
        let mut status = 0;
        // SAFETY: `holder` is our child and is waited for only here; `status` outlives the call.
        while unsafe { libc::waitpid(self.holder, &raw mut status, 0) } == -1
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
    }
}

/// The holder process: takes the memory that each message asks for (bytes, then whether to lock), answers each with 0
/// or an errno, and exits when the pipe ends.
///
/// # Safety
/// Only in a freshly forked child, with the descriptor open. It must not allocate, lock or panic.
unsafe fn hold(pipe: libc::c_int) -> ! {
    // SAFETY: plain system calls on this function's own variables and on descriptors and mappings that it owns.
    unsafe {
        // Every other inherited descriptor must be closed: a copy of the lab's end (of this pipe or of another
        // holder's) would keep it open for ever, and one of the folder's lock would keep the folder locked.
        libc::dup2(pipe, 0);
        let pipe = 0;
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) != 0 {
            // Linux before 5.9 has no close_range.
            for other in 1..1024 {
                libc::close(other);
            }
        }
        // Ctrl-C on the terminal is for the lab alone, which ends its children in order; its signal handlers must not
        // run here.
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
        libc::signal(libc::SIGHUP, libc::SIG_DFL);
        let adj = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if adj >= 0 {
            libc::write(adj, c"1000".as_ptr().cast(), 4);
            libc::close(adj);
        }
        loop {
            let (mut bytes, mut locks) = (0u64, 0u64);
            if libc::read(pipe, (&raw mut bytes).cast(), 8) != 8 || libc::read(pipe, (&raw mut locks).cast(), 8) != 8 {
                libc::_exit(0);
            }
            let answer = take_more(bytes as usize, locks != 0);
            if libc::write(pipe, (&raw const answer).cast(), 8) != 8 {
                libc::_exit(0);
            }
        }
    }
}

/// Maps memory that is never unmapped, and locks or touches all of it. Returns 0, or the errno.
///
/// # Safety
/// As [`hold`].
unsafe fn take_more(bytes: usize, locks: bool) -> u64 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh private mapping that no other code refers to.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if start == libc::MAP_FAILED {
            return *libc::__errno_location() as u64;
        }
        // Huge pages: a hundredth of the time, and page tables that do not count for memory. Advice only.
        libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
        if locks {
            return match libc::mlock(start, bytes) {
                0 => 0,
                _ => *libc::__errno_location() as u64,
            };
        }
        for at in (0..bytes).step_by(4096) {
            // Not zero and not the same everywhere: same-page merging and compression would give it back.
            start.cast::<u8>().add(at).cast::<usize>().write_volatile((start as usize).wrapping_add(at) | 1);
        }
        0
    }
}

/// Whether this process has CAP_IPC_LOCK, which lifts RLIMIT_MEMLOCK.
fn has_ipc_lock() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::system::{meminfo_bytes, process_start, read_text};

    const MIB: u64 = 1 << 20;

    fn status_kib(holder: u32, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{holder}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    #[test]
    fn ballast_is_locked_by_a_process_that_ends_with_the_guard() {
        let mut ballast = Ballast::start().unwrap();
        if ballast.lock_bytes_max < 64 * MIB {
            eprintln!("skipped: only {} bytes may be locked here", ballast.lock_bytes_max);
            return;
        }
        ballast.take(64 * MIB).unwrap();
        let holder = ballast.holder();
        assert_eq!(status_kib(holder, "VmLck"), 65536);
        assert_eq!(read_text(format!("/proc/{holder}/oom_score_adj")).as_deref(), Some("1000"));
        assert!(ballast.is_held());
        drop(ballast);
        assert_eq!(process_start(holder), None);
    }

    #[test]
    fn a_process_that_may_not_lock_holds_touched_memory_and_is_killed_first() {
        let mut ballast = Ballast::start().unwrap();
        ballast.lock_bytes_max = 0;
        ballast.take(64 * MIB).unwrap();
        let holder = ballast.holder();
        assert_eq!(status_kib(holder, "VmLck"), 0);
        assert!(status_kib(holder, "VmRSS") >= 65536, "all of it was touched");
        assert_eq!(read_text(format!("/proc/{holder}/oom_score_adj")).as_deref(), Some("1000"));
        // As the kernel does when memory runs out: kill the holder.
        let pid = rustix::process::Pid::from_raw(holder.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        while ballast.is_held() {
            std::thread::yield_now();
        }
        assert!(ballast.take(MIB).unwrap_err().to_string().contains("out of memory"));
    }

    #[test]
    fn the_ballast_leaves_the_requested_memory() {
        let wanted = super::super::available_bytes() - 320 * MIB;
        match Ballast::leaving(wanted) {
            // Other processes use memory at the same time, so the number of bytes held varies.
            Ok(ballast) => assert!(ballast.held_bytes() > 0 && ballast.held_bytes() <= 2 << 30),
            Err(error) => assert_eq!(error.kind(), LabErrorKind::Usage, "{error}"),
        }
    }

    #[test]
    fn holders_end_in_any_order() {
        let (first, second) = (Ballast::start().unwrap(), Ballast::start().unwrap());
        let holders = [first.holder(), second.holder()];
        drop(first);
        drop(second);
        assert_eq!(holders.map(process_start), [None, None]);
    }

    #[test]
    fn refused_memory_is_an_error_with_the_next_step() {
        let mut ballast = Ballast::start().unwrap();
        let error = ballast.take(1 << 60).unwrap_err();
        assert!(error.to_string().contains("use a cgroup"), "{error}");
    }

    #[test]
    fn a_ballast_that_would_leave_more_than_is_available_holds_nothing() {
        let total = meminfo_bytes("MemTotal").unwrap();
        assert_eq!(Ballast::leaving(2 * total).unwrap_err().kind(), LabErrorKind::Usage);
    }
}

//! Locks of open file descriptions on ranges of bytes: the two system calls.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

/// Bytes of a file that are locked together; a length of 0 stands for all that follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteRange {
    pub(super) start: i64,
    pub(super) len: i64,
}

impl ByteRange {
    /// All bytes, present and future.
    pub(super) const WHOLE: Self = Self { start: 0, len: 0 };
    /// The bytes that a writer locks: all that a file can contain. Those behind are for the registrations of readers.
    pub(super) const WRITER: Self = Self { start: 0, len: 1 << 62 };
}

/// Sets the lock of an open file description on these bytes of a file. Does not wait.
pub(super) fn set_description_lock(file: &File, lock_type: libc::c_int, range: ByteRange) -> rustix::io::Result<()> {
    lock_control(file, libc::F_OFD_SETLK, lock_type, range).map(drop)
}

/// Returns whether another open file description has a lock on some of these bytes that conflicts with this type of lock.
pub(super) fn conflicts(file: &File, lock_type: libc::c_int, range: ByteRange) -> rustix::io::Result<bool> {
    Ok(lock_control(file, libc::F_OFD_GETLK, lock_type, range)? != libc::F_UNLCK)
}

/// Makes one call about the locks of an open file description, and returns the type of lock that it answers with.
fn lock_control(
    file: &File,
    command: libc::c_int,
    lock_type: libc::c_int,
    range: ByteRange,
) -> rustix::io::Result<libc::c_int> {
    // SAFETY: `flock` is plain numbers, for which zeroes are a value: from the beginning, and no process, as these commands ask.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = lock_type as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (range.start, range.len);
    loop {
        // SAFETY: the descriptor is open for as long as `file` lives, and the kernel uses `lock` during the call only.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == 0 {
            return Ok(libc::c_int::from(lock.l_type));
        }
        match std::io::Error::last_os_error().raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => {}
            error => return Err(error.unwrap_or(Errno::INVAL)),
        }
    }
}

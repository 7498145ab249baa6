//! The one error of this crate. [`ErrorKind`] says how the caller can react; the message names the operation, the
//! place and the cause.
//!
//! Errors are `Clone` and comparable because one failed read is reported to every task that waits for it, and because
//! a simulated history must fail the same way twice.

use std::fmt;
use std::path::{Path, PathBuf};

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error, by the reaction open to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call itself is wrong (misaligned, out of range, too long): fix the call.
    InvalidCall,
    /// This kernel, file system or device does not support the call: use one that it supports, see [`crate::probe`].
    Unsupported,
    /// Rights are missing: change them, or run as another user.
    NoPermission,
    /// The file, folder or device does not exist.
    NotFound,
    /// A file or folder of this name exists already.
    AlreadyExists,
    /// Another process or handle holds the file or device (by a lock, a mount): release it there first.
    Busy,
    /// No space, quota or memory left: free some, then repeat.
    NoSpace,
    /// Fewer bytes than asked exist, or could be moved. The file is shorter than its user believes.
    Short,
    /// The device or its driver failed (EIO). Writes that the last sync did not cover may be lost.
    Device,
    /// The bytes may have been replaced since this reader began: begin again with the present bytes.
    TooOld,
    /// The disk has stopped for good (simulated power cut, or a queue that was shut down): reopen.
    Stopped,
    /// Any other error of the system.
    Other,
}

/// An error: a kind, the action and the object it failed on, and the system's error number where there is one. One
/// pointer wide, so that results stay small on the success path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Parts>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    kind: ErrorKind,
    action: String,
    path: Option<PathBuf>,
    errno: Option<i32>,
    detail: String,
}

impl Error {
    /// Creates an error that did not come from the system.
    pub fn new(kind: ErrorKind, action: impl Into<String>, detail: impl Into<String>) -> Self {
        Self(Box::new(Parts { kind, action: action.into(), path: None, errno: None, detail: detail.into() }))
    }

    /// Creates an error that the system reported, from its (positive) errno.
    pub fn from_errno(action: impl Into<String>, errno: i32) -> Self {
        let detail = if errno == libc::ECANCELED { NO_WORKER.into() } else { String::new() };
        Self(Box::new(Parts { kind: kind_of(errno), action: action.into(), path: None, errno: Some(errno), detail }))
    }

    /// An error the system reported.
    pub fn from_io(action: impl Into<String>, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::from_errno(action, errno),
            None => Self::new(ErrorKind::Other, action, error.to_string()),
        }
    }

    /// Creates an error that a `rustix` call returned.
    pub fn from_rustix(action: impl Into<String>, error: rustix::io::Errno) -> Self {
        Self::from_errno(action, error.raw_os_error())
    }

    /// Adds the file or device to which the error happened.
    #[must_use]
    pub fn at(mut self, path: &Path) -> Self {
        self.0.path = Some(path.to_path_buf());
        self
    }

    /// Puts the enclosing action before the one that failed: `disk 2 of a striped disk: read 512 bytes at 0`.
    #[must_use]
    pub fn within(mut self, outer: impl fmt::Display) -> Self {
        self.0.action = format!("{outer}: {}", self.0.action);
        self
    }

    /// Adds a sentence to the message that tells the caller what to do next.
    #[must_use]
    pub fn hint(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = detail.into();
        self
    }

    /// Returns the kind of the error, which says how the caller can react.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the errno, positive, where the system reported the error.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// Returns whether the error may pass by itself: the same call, made again a little later, may well succeed.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.kind(), ErrorKind::Busy | ErrorKind::NoSpace)
    }

    /// Returns the file or device to which the error happened, where it is known.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.action)?;
        if let Some(path) = &self.0.path {
            write!(f, " ({})", path.display())?;
        }
        if let Some(errno) = self.0.errno {
            write!(f, ": {}", std::io::Error::from_raw_os_error(errno))?;
        }
        if !self.0.detail.is_empty() {
            write!(f, ": {}", self.0.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// A reason why a ring cancels an operation by itself: the operation may block and needs a thread of the kernel, but
/// the kernel could start none.
const NO_WORKER: &str = "the kernel could start no thread for it: allow this user more processes (RLIMIT_NPROC, `ulimit -u`), or its \
                         control group (pids.max)";

fn kind_of(errno: i32) -> ErrorKind {
    match errno {
        libc::EINVAL | libc::EFAULT | libc::EBADF | libc::ERANGE | libc::EISDIR | libc::ENOTDIR => {
            ErrorKind::InvalidCall
        }
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => ErrorKind::Unsupported,
        libc::EPERM | libc::EACCES | libc::EROFS => ErrorKind::NoPermission,
        libc::ENOENT | libc::ENODEV | libc::ENXIO => ErrorKind::NotFound,
        libc::EEXIST => ErrorKind::AlreadyExists,
        libc::EBUSY | libc::EWOULDBLOCK | libc::ETXTBSY => ErrorKind::Busy,
        libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EFBIG | libc::EMFILE | libc::ENFILE | libc::ECANCELED => {
            ErrorKind::NoSpace
        }
        libc::EIO | libc::EREMOTEIO | libc::EBADMSG | libc::EUCLEAN => ErrorKind::Device,
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_for_which_the_kernel_has_no_thread_names_the_limit() {
        let error = Error::from_errno("write 4096 bytes durably at 0", libc::ECANCELED);
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("RLIMIT_NPROC"), "{error}");
    }

    #[test]
    fn a_message_names_action_place_reason_and_next_step() {
        let error =
            Error::from_errno("read 4,096 bytes at 8,192", libc::EIO).at(Path::new("/data/x")).hint("try the backup");
        assert_eq!(error.kind(), ErrorKind::Device);
        let text = error.to_string();
        assert!(text.starts_with("read 4,096 bytes at 8,192 (/data/x): Input/output error"), "{text}");
        assert!(text.ends_with("try the backup"), "{text}");
    }
}

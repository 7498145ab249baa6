//! The one error of this crate. [`ErrorKind`] says how the caller can react; the message names the operation, the
//! place and the cause.
//!
//! Errors are `Clone` and comparable because one failed read is reported to every task that waits for it, and because
//! a simulated history must fail the same way twice.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

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
    /// The disk or a quota is full, or a file is as long as it may be: free some space, then repeat.
    NoSpace,
    /// The process, the user or the machine has no descriptors, threads, memory or address space left: raise the limit
    /// that the message names, or close something, then repeat.
    NoResources,
    /// Fewer bytes than asked exist, or could be moved. The file is shorter than its user believes.
    Short,
    /// The device or its driver failed (EIO). Writes that the last sync did not cover may be lost.
    Device,
    /// The bytes may have been replaced since this reader began: begin again with the present bytes.
    TooOld,
    /// The disk has stopped and will not run again (simulated power cut, or a queue that was shut down): reopen.
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
        let detail = remedy(errno).unwrap_or_default();
        Self(Box::new(Parts { kind: kind_of(errno), action: action.into(), path: None, errno: Some(errno), detail }))
    }

    /// Creates the error of a thread that could not be started while doing `action`. The system answers EAGAIN then,
    /// which elsewhere means that something is busy.
    pub fn from_spawn(action: impl Into<String>, error: &std::io::Error) -> Self {
        let (kind, errno) = (ErrorKind::NoResources, error.raw_os_error());
        let limits = (limit(Resource::Nproc), limit(Resource::As));
        let detail = format!(
            "no thread left: raise the limit on the user's processes (`ulimit -u`, now {}), its control group's (pids.max) or the \
             address space (`ulimit -v`, now {})",
            limits.0, limits.1
        );
        Self(Box::new(Parts { kind, action: action.into(), path: None, errno, detail }))
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
        matches!(self.kind(), ErrorKind::Busy | ErrorKind::NoResources)
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

/// Returns the remedy for an error that a limit causes, with the limit's present value.
fn remedy(errno: i32) -> Option<String> {
    Some(match errno {
        libc::EMFILE => format!("raise `ulimit -n` (RLIMIT_NOFILE), now {}", limit(Resource::Nofile)),
        libc::ENFILE => "the whole machine has no descriptor left: raise the sysctl fs.file-max".into(),
        libc::ENOMEM => format!(
            "no memory or address space left: raise `ulimit -v` (RLIMIT_AS), now {}, the memory limit of its control group, or the \
             sysctl vm.max_map_count",
            limit(Resource::As)
        ),
        // A ring cancels an operation by itself where the operation may block and needs a thread of the kernel, but the
        // kernel could start none.
        libc::ECANCELED => format!(
            "the kernel could start no thread for it: allow this user more processes (RLIMIT_NPROC, `ulimit -u`, now {}), or its \
             control group (pids.max)",
            limit(Resource::Nproc)
        ),
        libc::EFBIG => format!(
            "the file may not become longer: raise `ulimit -f` (RLIMIT_FSIZE), now {}, or use a file system with longer files",
            limit(Resource::Fsize)
        ),
        _ => return None,
    })
}

/// Returns the present value of a limit of this process.
pub(crate) fn limit(of: Resource) -> String {
    getrlimit(of).current.map_or_else(|| "unlimited".into(), grouped)
}

/// Writes a number with a comma after each group of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

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
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorKind::NoSpace,
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ECANCELED => ErrorKind::NoResources,
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
        assert_eq!(error.kind(), ErrorKind::NoResources);
        assert!(error.to_string().contains("RLIMIT_NPROC"), "{error}");
    }

    #[test]
    fn a_full_disk_and_a_limit_of_the_process_are_told_apart_and_the_limit_has_its_remedy_and_value() {
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
            assert_eq!(Error::from_errno("write", errno).kind(), ErrorKind::NoSpace);
        }
        for (errno, remedy) in [(libc::EMFILE, "ulimit -n"), (libc::ENFILE, "fs.file-max"), (libc::ENOMEM, "ulimit -v")]
        {
            let error = Error::from_errno("open", errno);
            assert!(error.kind() == ErrorKind::NoResources && error.to_string().contains(remedy), "{error}");
        }
        let error = Error::from_errno("open", libc::EMFILE).to_string();
        assert!(error.ends_with(&format!("now {}", limit(Resource::Nofile))), "{error}");
        // The same number means that something is busy where no thread is started.
        let again = std::io::Error::from_raw_os_error(libc::EAGAIN);
        assert_eq!(Error::from_io("lock", &again).kind(), ErrorKind::Busy);
        let error = Error::from_spawn("start a thread", &again);
        assert!(error.kind() == ErrorKind::NoResources && error.to_string().contains("ulimit -u"), "{error}");
        assert_eq!([1, 1_024, 65_536, 1_000_000].map(grouped), ["1", "1,024", "65,536", "1,000,000"]);
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

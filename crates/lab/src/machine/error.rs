//! The one error of the machine's modules. [`ErrorKind`] answers "what can I do?"; the message says what, where and the
//! next step, in words for a person.

use std::fmt;
use std::path::Path;

/// Result of everything that prepares the machine.
pub type Result<T> = std::result::Result<T, Error>;

/// What can be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense here: change it.
    InvalidRequest,
    /// Rights are missing: run as root, or choose another way.
    NoPermission,
    /// The thing is not there.
    NotFound,
    /// Somebody else uses it: wait, or choose another.
    InUse,
    /// It does not carry the lab's marker, so the lab will not touch it: choose another.
    NotOurs,
    /// Not enough disk or memory: free some, or ask for less.
    NoSpace,
    /// This kernel or device cannot do it: choose another way.
    Unsupported,
    /// The user asked to stop.
    Cancelled,
    /// Content is not what it must be: make it anew.
    Damaged,
    /// Anything else the system said.
    System,
}

/// What went wrong, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error with its message, which names the next step.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What the system said about `action` on `path`; the kind follows from the errno.
    pub fn io(action: &str, path: &Path, error: &std::io::Error) -> Self {
        let (kind, next) = advice(error.raw_os_error());
        Self::new(kind, format!("cannot {action} {}: {error}{next}", path.display()))
    }

    /// As [`Self::io`], for `rustix`.
    pub fn errno(action: &str, path: &Path, error: rustix::io::Errno) -> Self {
        Self::io(action, path, &error.into())
    }

    /// An error of the I/O layer.
    pub fn disk(error: &nofault_io::error::Error) -> Self {
        let (kind, next) = advice(error.errno());
        Self::new(kind, format!("{error}{next}"))
    }

    /// What can be done.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Adds a sentence that names the next step.
    #[must_use]
    pub fn hint(mut self, sentence: impl fmt::Display) -> Self {
        self.message = format!("{}; {sentence}", self.message);
        self
    }
}

fn advice(errno: Option<i32>) -> (ErrorKind, &'static str) {
    match errno {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            (ErrorKind::NoPermission, "; run as a user who may, or choose another place")
        }
        Some(libc::ENOSPC | libc::EDQUOT) => (ErrorKind::NoSpace, "; free some space, or ask for less data"),
        Some(libc::ENOMEM) => (ErrorKind::NoSpace, "; free some memory, or ask for less"),
        Some(libc::EBUSY | libc::ETXTBSY) => (ErrorKind::InUse, "; somebody else uses it"),
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => (ErrorKind::NotFound, ""),
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) => (ErrorKind::Unsupported, ""),
        _ => (ErrorKind::System, ""),
    }
}

//! The error type of this crate: its kind tells which reaction is possible, its message names the cause.

use std::fmt;
use std::sync::Arc;

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another shipper has taken the name over: this one writes nothing more. Find out which of the two is to go on.
    Fenced,
    /// There is nothing under this name, or nothing at that point: check both.
    NotFound,
    /// The folder is not empty, or the name is another database's: take another one.
    AlreadyExists,
    /// The call itself is wrong, or the options are: the message says how.
    InvalidCall,
    /// The store lacks a needed operation, or a later version wrote its content.
    Unsupported,
    /// The store refuses for a reason that does not pass by itself: a wrong place, such as a file where a folder must be.
    Refused,
    /// Rights are missing at the store, in its folder or in the restored one, or a file system cannot be written: it does not pass by itself.
    NoPermission,
    /// The file system of a folder, or a quota, is full: free some space.
    NoSpace,
    /// The process, its user or the machine has no descriptors, threads or memory left: the message names the limit to raise.
    NoResources,
    /// Another process holds the lock of a folder: end it there.
    Busy,
    /// The store cannot be reached, or fails, after all attempts.
    Store,
    /// An object differs from its original. Restore another point; keep the store as it is.
    Corrupt,
    /// The database fails; its own message follows.
    Database,
    /// The shipper was closed.
    Closed,
}

/// An error: its [kind](ErrorKind) and a message.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: Arc<str>,
    database: Option<nofault::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into().into(), database: None }
    }

    pub(crate) fn corrupt(what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Corrupt, what.to_string())
    }

    /// Creates the error of a call of the system. `otherwise` is the kind where the cause has none.
    pub(crate) fn of_system(action: impl fmt::Display, cause: &std::io::Error, otherwise: ErrorKind) -> Self {
        match kind_of_system(cause) {
            // With the remedy.
            Some(kind @ ErrorKind::NoResources) => {
                Self::new(kind, nofault::io::error::Error::from_io(action.to_string(), cause).to_string())
            }
            kind => Self::new(kind.unwrap_or(otherwise), format!("{action}: {cause}")),
        }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the error of the database, if it is one.
    pub fn database(&self) -> Option<&nofault::Error> {
        self.database.as_ref()
    }

    /// Returns the error with a way out behind its message.
    pub(crate) fn or(&self, way_out: &str) -> Self {
        Self { message: format!("{}: {way_out}", self.message).into(), ..self.clone() }
    }

    /// Returns the error with the object where it occurred put before its message.
    pub(crate) fn met_in(&self, object: &str) -> Self {
        Self::new(self.kind, format!("object {object}: {}", self.message))
    }
}

/// Returns the kind of an error of the system, if it tells a caller how to react.
pub(crate) fn kind_of_system(error: &std::io::Error) -> Option<ErrorKind> {
    use std::io::ErrorKind as Io;
    Some(match error.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::NoPermission,
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => ErrorKind::NoSpace,
        Io::OutOfMemory => ErrorKind::NoResources,
        Io::WouldBlock | Io::ResourceBusy => ErrorKind::Busy,
        Io::NotADirectory | Io::IsADirectory | Io::InvalidFilename | Io::Unsupported => ErrorKind::Refused,
        // Descriptors that have run out, for which the standard library has no kind.
        _ => match nofault::io::error::Error::from_io("", error).kind() {
            nofault::io::error::ErrorKind::NoResources => ErrorKind::NoResources,
            _ => return None,
        },
    })
}

/// Returns the first error of the system among the causes of an error.
pub(crate) fn cause_in_system<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e std::io::Error> {
    std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref())
}

impl From<nofault::Error> for Error {
    fn from(error: nofault::Error) -> Self {
        Self { database: Some(error.clone()), ..Self::new(ErrorKind::Database, format!("the database: {error}")) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

/// Without a source: the message contains the database's error, which a printer of whole chains would print a second time.
impl std::error::Error for Error {}

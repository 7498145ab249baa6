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
    /// The store does not do what is needed, or a later version wrote what is there.
    Unsupported,
    /// The store refuses for a reason that does not pass by itself: rights, a wrong place, a file system that cannot be written.
    Refused,
    /// The store cannot be reached, or fails, after all attempts.
    Store,
    /// An object differs from the one that was written. Restore another point; keep the store as it is.
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

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.database.as_ref().map(|error| error as _)
    }
}

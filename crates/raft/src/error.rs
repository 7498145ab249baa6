//! The one error of this crate, and its way into the error of openraft.
//!
//! openraft stops a node at the first error of its storage: an operator sees only the message, so it names the action,
//! the place and the cause.

use std::io;
use std::sync::Arc;

use openraft::{AnyError, ErrorSubject, ErrorVerb, NodeId, RaftTypeConfig, StorageError, StorageIOError};

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Result of the calls that openraft makes.
pub(crate) type StorageResult<C, T> = std::result::Result<T, StorageError<<C as RaftTypeConfig>::NodeId>>;

/// The reason why a log store or a state machine could not be opened, or could not go on.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database refused a call. Its [kind](nofault::Error::kind) names the remedy.
    #[error("{0}")]
    Database(nofault::Error),
    /// A file of a snapshot could not be read or written.
    #[error("{action}: {cause}")]
    File {
        /// The action that failed, with the path.
        action: String,
        /// The error of the system.
        cause: Arc<io::Error>,
    },
    /// Bytes in the database, or in a snapshot, differ from the bytes written there, or were written by a program whose
    /// types differ.
    #[error("{0}")]
    Damaged(String),
    /// A call that makes no sense: a table that was not named at opening, a value that cannot be encoded.
    #[error("{0}")]
    InvalidCall(String),
    /// A snapshot, or a node, is of another group. Nothing of it was taken.
    #[error("{0}")]
    Foreign(String),
    /// A node has lost entries, or votes, that it has acknowledged: it must not take part. The message has the evidence and the remedy.
    #[error("{0}")]
    SetBack(String),
    /// The group is open already: tasks of openraft may have it for a moment after `Raft::shutdown`. Open it again a little later.
    #[error("{0}")]
    Busy(String),
    /// The state machine was dropped, as after an internal error, before it did the work that the log store waited for.
    #[error("{0}")]
    Stopped(String),
    /// The application cannot apply an entry. The node stops: see [`Application::apply`](crate::Application::apply).
    #[error("{0}")]
    Application(String),
}

impl From<nofault::Error> for Error {
    fn from(error: nofault::Error) -> Self {
        Self::Database(error)
    }
}

impl Error {
    /// Whether the disk, or a quota, is full: the same call may succeed when there is room again.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Database(error) => error.kind() == nofault::ErrorKind::NoSpace,
            Self::File { cause, .. } => {
                matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }

    /// Creates the error of an action on a file.
    pub(crate) fn file(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |cause| Self::File { action, cause: Arc::new(cause) }
    }

    /// Returns the error as openraft takes it.
    pub(crate) fn of_storage<N: NodeId>(self, subject: ErrorSubject<N>, verb: ErrorVerb) -> StorageError<N> {
        StorageIOError::new(subject, verb, AnyError::new(&self)).into()
    }
}

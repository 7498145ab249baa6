//! The errors of commits: a conflict, after which a transaction may run again, or any other.

use crate::error::Error;
use crate::pages::LogPosition;
use crate::transaction::Commit;
use crate::transaction::reads::ReadSet;

/// A commit that was refused because of other commits.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// Another transaction changed data that this one read. Retrying makes sense once the log is durable up to this
    /// position. The read set of the transaction is returned with it.
    Conflict(LogPosition, ReadSet),
    /// The commit failed for a reason other than a conflict.
    Failed(Error),
}

impl From<Error> for CommitError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Failed(error) => error,
            CommitError::Conflict(position, _) => Error::conflict(position.0),
        }
    }
}

/// The result of a commit.
pub(in crate::db) type CommitResult<T> = std::result::Result<T, CommitError>;

/// Returns the outcome of a commit that is refused because data that it read was changed.
pub(in crate::db) fn conflict(position: LogPosition, commit: Commit) -> CommitError {
    CommitError::Conflict(position, commit.reads.map(|(_, reads)| reads).unwrap_or_default())
}

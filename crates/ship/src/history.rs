//! The spans of the history that a store has, and that can be restored.

use std::sync::Arc;
use std::time::SystemTime;

use nofault::CommitSeq;
use object_store::ObjectStore;

use crate::error::Result;
use crate::manifest::{Current, Epoch};
use crate::object::commit_time;
use crate::options::READING;
use crate::remote::Remote;

/// A part of a history in which every commit, and every time, can be restored. Between two of them there is a gap: a bulk load, a time
/// without a shipper, or another database took the name over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The database, as [`Position::database`](nofault::db::Position::database) tells, in hexadecimal.
    pub database: String,
    /// The earliest commit that can be restored.
    pub first: CommitSeq,
    /// Its time: the beginning of the span.
    pub first_time: SystemTime,
    /// The latest commit.
    pub last: CommitSeq,
    /// Its time.
    pub last_time: SystemTime,
    /// Number of copies of the whole database.
    pub bases: u64,
    /// Number of increments on them.
    pub increments: u64,
    /// Bytes of all objects.
    pub bytes: u64,
}

/// Returns the spans that were shipped under a name and can be restored, the oldest first. One request.
///
/// # Errors
/// `NotFound` when there is nothing under the name; `Corrupt` when the manifest cannot be read; `Store`.
pub async fn history(store: Arc<dyn ObjectStore>, name: &str) -> Result<Vec<Span>> {
    let remote = Remote::new(store, name, READING)?;
    Ok(Current::read(&remote).await?.manifest.epochs.iter().filter_map(span).collect())
}

fn span(epoch: &Epoch) -> Option<Span> {
    let ((_, first), (last, last_time_ms)) = (epoch.starts().next()?, epoch.newest());
    let of_log: u64 = epoch.log.iter().map(|log| log.object.bytes).sum();
    Some(Span {
        database: epoch.database.clone(),
        first: CommitSeq(first.commit),
        first_time: commit_time(first.time_ms),
        last: CommitSeq(last),
        last_time: commit_time(last_time_ms),
        bases: epoch.bases.iter().filter(|base| !base.is_increment()).count() as u64,
        increments: epoch.bases.iter().filter(|base| base.is_increment()).count() as u64,
        bytes: of_log + epoch.bases.iter().map(|base| base.bytes()).sum::<u64>(),
    })
}

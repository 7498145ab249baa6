//! The spans of the history that a store has, and that can be restored.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nofault::CommitSeq;
use object_store::ObjectStore;

use crate::error::Result;
use crate::manifest::{Epoch, FoundStep, Manifest};
use crate::newest::{self, Age};
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
    /// Steps of the clock that were found while it was shipped: times of commits behind them may be wrong.
    pub clock_steps: Vec<ClockStep>,
}

/// A clock that went back, or leapt ahead of the time that had verifiably passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockStep {
    /// The last commit shipped before it was found.
    pub commit: CommitSeq,
    /// The time that the clock should have shown.
    pub expected: SystemTime,
    /// The time that it showed.
    pub found: SystemTime,
}

impl fmt::Display for ClockStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [expected, found] = [self.expected, self.found].map(humantime::format_rfc3339_millis);
        let how = if self.found < self.expected { "went back" } else { "leapt ahead" };
        write!(f, "the clock {how} after commit {}: it showed {found}, and {expected} was expected", self.commit)
    }
}

/// Returns the spans that were shipped under a name and can be restored, the oldest first. Two requests, and some for objects that no manifest names.
///
/// # Errors
/// `NotFound` when there is nothing under the name; `Corrupt` when the manifest cannot be read, or an older one has replaced it; the errors of the store.
pub async fn history(store: Arc<dyn ObjectStore>, name: &str) -> Result<Vec<Span>> {
    let remote = Remote::new(store, name, READING)?;
    match newest::read(&remote).await? {
        (_, Age::SetBack(error)) => Err(error),
        (current, _) => Ok(spans(&current.manifest)),
    }
}

/// Returns the spans of a manifest.
pub(crate) fn spans(manifest: &Manifest) -> Vec<Span> {
    manifest.epochs.iter().filter_map(|epoch| span(epoch, &manifest.clock_steps)).collect()
}

/// Returns a step of the clock as it is shown.
pub(crate) fn clock_step(step: &FoundStep) -> ClockStep {
    let (expected, found) = (commit_time(step.expected_ms), commit_time(step.found_ms));
    ClockStep { commit: CommitSeq(step.commit), expected, found }
}

fn span(epoch: &Epoch, steps: &[FoundStep]) -> Option<Span> {
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
        clock_steps: steps.iter().filter(|step| step.epoch == epoch.id).map(clock_step).collect(),
    })
}

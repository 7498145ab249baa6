//! Verifying: reads every object that the manifest names, and checks that a restore of each point would find a history without a gap.

use std::sync::Arc;

use object_store::ObjectStore;

use crate::error::{ErrorKind, Result};
use crate::fetch::Fetcher;
use crate::increment;
use crate::manifest::{Base, Epoch, LogObject};
use crate::newest::{self, Age};
use crate::object::take_commit;
use crate::options::READING;
use crate::rebuild::check_copies;
use crate::remote::Remote;

/// The result of [`verify`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// Number of objects that were read.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of commits in the log.
    pub commits: u64,
    /// Number of copies of the whole database.
    pub bases: u64,
    /// Number of increments.
    pub increments: u64,
    /// Number of objects that no restore needs any more and that are there until they are old enough to be removed. They are not read.
    pub unneeded_objects: u64,
    /// The problems that were found: none if every point can be restored.
    pub problems: Vec<String>,
    /// Remarks for a person, about damage that no restore meets.
    pub remarks: Vec<String>,
}

impl Verification {
    /// Returns whether there are no problems.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Reads and checks everything shipped under a name. Changes nothing, and may run alongside a shipper.
///
/// # Errors
/// `NotFound` when there is nothing under the name; `Corrupt` when the manifest cannot be read; the errors of the store. Damage of other objects, and a
/// manifest older than they are, is in the result.
pub async fn verify(store: Arc<dyn ObjectStore>, name: &str) -> Result<Verification> {
    let remote = Remote::new(store, name, READING)?;
    let (current, age) = newest::read(&remote).await?;
    let manifest = current.manifest;
    let unneeded_objects = manifest.garbage.len() as u64;
    let mut found = Verification { unneeded_objects, ..Verification::default() };
    match age {
        Age::Newest => {}
        Age::Unsure(remark) => found.remarks.push(remark),
        Age::SetBack(error) => found.problems.push(error.to_string()),
    }
    let (problems, remarks) = check_copies(&remote, &remote.list().await?, &manifest).await?;
    found.problems.extend(problems);
    found.remarks.extend(remarks);
    for epoch in &manifest.epochs {
        check(&remote, epoch, &mut found).await?;
    }
    Ok(found)
}

async fn check(remote: &Remote, epoch: &Epoch, found: &mut Verification) -> Result<()> {
    let parts = epoch.bases.iter().flat_map(|base| &base.parts);
    let objects: Vec<_> = parts.chain(epoch.log.iter().map(|log| &log.object)).cloned().collect();
    found.objects += objects.len() as u64;
    found.bytes += objects.iter().map(|object| object.bytes).sum::<u64>();
    let mut fetcher = Fetcher::new(remote, objects);
    for (at, base) in epoch.bases.iter().enumerate() {
        *(if base.is_increment() { &mut found.increments } else { &mut found.bases }) += 1;
        found.problems.extend(epoch.chain(at).err().map(|error| error.to_string()));
        for (number, part) in base.parts.iter().enumerate() {
            let problem = match fetcher.next().await {
                Some(Ok(raw)) => check_part(base, number, &raw).err(),
                Some(Err(error)) if error.kind() == ErrorKind::Store => return Err(error),
                Some(Err(error)) => Some(error.to_string()),
                None => None,
            };
            let described = |what| format!("base of commit {}, {}: {what}", base.commit, part.name);
            found.problems.extend(problem.map(described));
        }
    }
    // A base on which only others stand is no beginning.
    let first = epoch.starts().next().map_or(0, |(_, base)| base.commit);
    let (mut last, mut time_ms) = (None, 0);
    for log in &epoch.log {
        let mut problems = Vec::new();
        if last.map_or(log.after > first, |last| last != log.after) {
            problems.push(format!("it follows commit {}, and the one before ends otherwise", log.after));
        }
        last = Some(log.last);
        match fetcher.next().await {
            Some(Ok(raw)) => match check_log(log, &raw, &mut time_ms) {
                Ok(commits) => found.commits += commits,
                Err(problem) => problems.push(problem),
            },
            Some(Err(error)) if error.kind() == ErrorKind::Store => return Err(error),
            Some(Err(error)) => problems.push(error.to_string()),
            None => {}
        }
        found.problems.extend(problems.into_iter().map(|what| format!("{}: {what}", log.object.name)));
    }
    Ok(())
}

/// Checks the content of a part of a base; fails with the fault.
fn check_part(base: &Base, number: usize, raw: &[u8]) -> std::result::Result<(), String> {
    let mut rest = raw;
    let mut is_first = number == 0;
    while let Some(commit) = take_commit(&mut rest).map_err(|error| error.to_string())? {
        if commit.commit != base.commit {
            return Err(format!("it has commit {}", commit.commit));
        }
        if base.is_increment() {
            increment::check(&commit.changes, std::mem::take(&mut is_first))?;
        }
    }
    Ok(())
}

/// Checks the content of a piece of the log behind commits up to `time_ms`, and returns the number of its commits; fails with the
/// fault.
fn check_log(log: &LogObject, raw: &[u8], time_ms: &mut u64) -> std::result::Result<u64, String> {
    let (mut rest, mut at, mut commits) = (raw, log.after, 0);
    while let Some(commit) = take_commit(&mut rest).map_err(|error| error.to_string())? {
        if commit.commit <= at || commit.time_ms < *time_ms {
            return Err(format!("commit {} comes after commit {at}", commit.commit));
        }
        (at, *time_ms) = (commit.commit, commit.time_ms);
        commits += 1;
    }
    if at == log.last { Ok(commits) } else { Err(format!("it ends with commit {at} instead of {}", log.last)) }
}

//! Shows the write-back of uncommitted pages by eviction: a transaction that changes more pages than memory holds, and does not
//! commit. No call requests a write; pages that left memory can only be on the disk.
//!
//! Kept true by: only parts of the file that are no longer in the page cache are read from disk, because a direct read of a
//! dirty page would itself cause the write; where nothing has left memory there is no figure.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nofault_io::mapped::{MappedFile, Protection};

use super::steal::{COMMITTED, PAGE, UNCOMMITTED, pages_on_disk};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::scratch::Scratch;
use crate::measure::unix_ms;
use crate::record::{Checks, Outcome, TrialSpec};

/// Bytes that are stored, and looked at, at a time.
const PART_BYTES: usize = 1 << 20;

/// Stores uncommitted bytes into a map of a file larger than the trial's memory, and counts the pages on disk that
/// carry them.
pub(super) fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let [folder] = spec.target.paths.as_slice() else {
        return Err(LabError::new(LabErrorKind::Usage, "safety works in one folder"));
    };
    let parts = spec.target.data_bytes as usize / PART_BYTES;
    let scratch = Scratch::make(Path::new(folder), "safety")?;
    let path = scratch.path().join("pages");
    let system = |action: &'static str| move |error: std::io::Error| LabError::system(action, &error);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(system("make a file"))?;
    let part = vec![COMMITTED; PART_BYTES];
    for at in 0..parts {
        file.write_all_at(&part, (at * PART_BYTES) as u64).map_err(system("fill a file"))?;
    }
    file.sync_all().map_err(system("sync a file"))?;
    // SAFETY: the file is the trial's own, in a folder made for it; no other process changes it.
    let mut map = unsafe { MappedFile::map(&file, Protection::Shared, 0..(parts * PART_BYTES) as u64) }?;
    let mut outcome = Outcome { started_unix_ms: unix_ms(), ..Outcome::default() };
    let started = Instant::now();
    for at in 0..parts {
        if context.cancel.load(Ordering::Relaxed) {
            return Err(LabError::interrupted());
        }
        map.guarded_mut(at * PART_BYTES..(at + 1) * PART_BYTES, |bytes| bytes.fill(UNCOMMITTED))?;
    }
    let stored_s = started.elapsed().as_secs_f64();
    let mut left_memory = 0;
    let mut found = 0;
    for at in 0..parts {
        if map.residency(at * PART_BYTES..(at + 1) * PART_BYTES)? == 0 {
            left_memory += PART_BYTES / PAGE;
            found += pages_on_disk(&path, (at * PART_BYTES) as u64, PART_BYTES / PAGE)?;
        }
    }
    if left_memory == 0 {
        let message = "memory held all changed pages, so that none left it and the disk was not looked at";
        return Err(LabError::new(LabErrorKind::Unsupported, message));
    }
    let stored = parts * PART_BYTES / PAGE;
    outcome.elapsed_s = stored_s;
    (outcome.ops, outcome.bytes) = (stored as u64, (parts * PART_BYTES) as u64);
    outcome.checks = Checks { verified: stored as u64, ..Checks::default() };
    let figures = [
        ("uncommitted_on_disk", found as f64),
        ("uncommitted_stored", stored as f64),
        ("left_memory", left_memory as f64),
        ("mlocked", 0.0),
        ("until_on_disk_s", stored_s),
    ];
    outcome.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(outcome)
}

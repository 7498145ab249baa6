//! Shows the write-back of uncommitted pages (steal): a page reaches the disk although the program never synced it and
//! has locked it in memory.
//!
//! The kernel reports when it has written a page (`cachestat`: none is dirty or in write-back). Until then the disk is
//! not read, because a direct read of a dirty page would itself cause the write. Then the file is read around the page
//! cache, and the pages with the uncommitted bytes are counted.
//!
//! Kept true by: a disk that was not read, or cannot be read without the page cache, gives no figure.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Op, OpKind};
use nofault_io::counters::cachestat;
use nofault_io::disk::{DirectIo, Disk, FileOptions, QueueOptions};
use nofault_io::mapped::{MappedFile, Protection};
use nofault_io::psync::PsyncDisk;

use super::MAP_PRIVATE;
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::scratch::Scratch;
use crate::measure::unix_ms;
use crate::record::{Checks, Outcome, TrialSpec};

pub(super) const PAGE: usize = 4096;
const PAGES: usize = 64;
pub(super) const COMMITTED: u8 = 0x11;
pub(super) const UNCOMMITTED: u8 = 0xEE;

/// Stores uncommitted bytes, waits until a write-back has happened, and counts the pages on disk that carry these
/// bytes.
pub(super) fn execute(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let [folder] = spec.target.paths.as_slice() else {
        return Err(LabError::new(LabErrorKind::Usage, "safety works in one folder"));
    };
    let scratch = Scratch::make(Path::new(folder), "safety")?;
    let path = scratch.path().join("page");
    let system = |action: &'static str| move |error: std::io::Error| LabError::system(action, &error);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(system("make a file"))?;
    file.write_all_at(&vec![COMMITTED; PAGES * PAGE], 0).map_err(system("fill a file"))?;
    file.sync_all().map_err(system("sync a file"))?;

    let private = spec.method == MAP_PRIVATE;
    let protection = if private { Protection::Private } else { Protection::Shared };
    // SAFETY: the file is the trial's own, in a folder made for it; no other process changes it.
    let mut map = unsafe { MappedFile::map(&file, protection, 0..(PAGES * PAGE) as u64) }?;
    let mut outcome = Outcome { started_unix_ms: unix_ms(), ..Outcome::default() };
    let locked = map.lock(0..PAGES * PAGE);
    let stored = Instant::now();
    map.guarded_mut(0..PAGES * PAGE, |bytes| bytes.fill(UNCOMMITTED))?;
    if private || spec.params.extra.get("cause").is_some_and(|cause| cause == "sync") {
        // Any other process may call this at any time, without knowledge of the transaction.
        let other = File::open(&path).map_err(system("open a file again"))?;
        other.sync_data().map_err(system("sync a file"))?;
    } else {
        wait_until_written(&file, Duration::from_secs_f64(spec.duration_s.clamp(0.0, 3600.0)), context.cancel)?;
    }
    let waited = stored.elapsed();
    let found = pages_on_disk(&path, 0, PAGES)?;
    outcome.elapsed_s = waited.as_secs_f64();
    (outcome.ops, outcome.bytes) = (PAGES as u64, (PAGES * PAGE) as u64);
    outcome.checks = Checks { verified: PAGES as u64, ..Checks::default() };
    outcome.partial = context.cancel.load(Ordering::Relaxed);
    let mut figure = |name: &str, value: f64| {
        outcome.figures.insert(name.into(), value);
    };
    figure("uncommitted_on_disk", found as f64);
    figure("uncommitted_stored", PAGES as f64);
    figure("mlocked", f64::from(u8::from(locked.is_ok())));
    figure("until_on_disk_s", waited.as_secs_f64());
    if let Some(expire) = centiseconds("dirty_expire_centisecs") {
        figure("dirty_expire_s", expire);
    }
    if let Err(error) = locked {
        outcome.warnings.push(format!("the pages were not locked in memory: {error}").into());
    }
    Ok(outcome)
}

/// Waits until the kernel has written the whole file, without requesting the write.
///
/// # Errors
/// `Unsupported` when the kernel has not written the file within `at_most`; `Interrupted` when the user stops the run.
fn wait_until_written(file: &File, at_most: Duration, cancel: &AtomicBool) -> Result<()> {
    let deadline = Instant::now() + at_most;
    while Instant::now() < deadline {
        if cancel.load(Ordering::Relaxed) {
            return Err(LabError::interrupted());
        }
        let stat = cachestat(file, 0..(PAGES * PAGE) as u64);
        let Some((dirty, writing)) = stat.and_then(|stat| Some((stat.dirty_bytes?, stat.writeback_bytes?))) else {
            // An older kernel has no `cachestat`: wait for as long as the write may take.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if dirty + writing == 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if cachestat(file, 0..1).is_some_and(|stat| stat.dirty_bytes.is_none()) {
        return Ok(());
    }
    let seconds = at_most.as_secs();
    let message = format!("the kernel did not write the pages within {seconds} s, so that the disk was not looked at");
    Err(LabError::new(LabErrorKind::Unsupported, message))
}

/// Returns the number of pages, of `count` from a position of the file on, that carry the uncommitted bytes on disk.
pub(super) fn pages_on_disk(path: &Path, offset_bytes: u64, count: usize) -> Result<usize> {
    // Direct I/O is required: the page cache has the uncommitted bytes in any case.
    let options = FileOptions { direct: DirectIo::Require, write: false, create: false };
    let disk = PsyncDisk::open(path, &options, 1)?;
    let mut queue = disk.queue(&QueueOptions::default())?;
    let buffer = IoBuf::zeroed(count * PAGE, PageKind::Small)?;
    queue.push(Op::new(0, offset_bytes, OpKind::Read(buffer))).map_err(|refused| refused.error)?;
    queue.submit()?;
    let mut done = Vec::new();
    while done.is_empty() {
        queue.reap(1, &mut done)?;
    }
    let completion = done.remove(0);
    completion.result?;
    let OpKind::Read(bytes) = completion.op.kind else {
        return Err(LabError::new(LabErrorKind::System, "a read came back as something else"));
    };
    Ok(bytes.chunks(PAGE).filter(|page| page.iter().all(|byte| *byte == UNCOMMITTED)).count())
}

/// Reads one of the kernel's write-back times from /proc/sys/vm, in seconds.
fn centiseconds(name: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/sys/vm/{name}")).ok()?;
    Some(text.trim().parse::<f64>().ok()? / 100.0)
}

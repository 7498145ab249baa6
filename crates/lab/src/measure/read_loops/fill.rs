//! Fills memory before the clock of a trial starts, so that the trial shows reads with full memory from its first tick
//! on, however slow the device is at random reads.
//!
//! The filling reads a part of the trial's own data in large requests, as fast as the device gives them. It leaves the
//! memory as a long trial would: pages of 4 KiB, not larger folios, and for a map each of them in the map's page table,
//! so that its eviction costs what the eviction of any other page of the map costs.

use std::sync::atomic::{AtomicBool, Ordering};

use nofault_io::aligned::{IoBuf, PageKind};

use super::map::Maps;
use super::memory_limit_of;
use super::sync::{Files, Means};
use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::workload::{Layout, PAGE_BYTES, Place};
use crate::record::TrialSpec;

/// The memory of a trial when its clock starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Empty: the trial shows how memory fills.
    Empty,
    /// Full of other pages of the same data.
    Full,
    /// In the state that the method's own reads leave behind: see [`super::settle`].
    Settled,
}

/// Bytes of one request. Read under POSIX_FADV_RANDOM, the kernel reads it in requests as large as the device takes, into
/// pages of 4 KiB.
const REQUEST_BYTES: usize = 1 << 20;
/// Bytes read for each byte of the limit: something must already have been evicted when the trial begins.
const SHARE: f64 = 1.05;

/// Reads as much of the data as fits into the memory limit of a trial, from the end of each file backwards; with `maps`
/// also touches each page through the map. Nothing to do without a limit.
///
/// # Errors
/// The error of reading; `Interrupted` when the user stops the run.
pub fn fill(spec: &TrialSpec, layout: &Layout, maps: Option<&Maps>, cancel: &AtomicBool) -> Result<()> {
    let Some(limit_bytes) = memory_limit_of(spec) else { return Ok(()) };
    // Cached pages are read through the page cache, without read-ahead.
    let files = Files::open(layout, Means::BufferedRandom)?;
    let mut buffer = IoBuf::zeroed(REQUEST_BYTES, PageKind::Small)?;
    let wanted_bytes = (limit_bytes as f64 * SHARE) as u64 / layout.paths.len().max(1) as u64;
    for file in 0..layout.paths.len() {
        let end = layout.file_bytes() / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let first = end.saturating_sub(wanted_bytes).max(PAGE_BYTES as u64);
        let mut at = end;
        while at > first {
            if cancel.load(Ordering::Relaxed) {
                return Err(LabError::new(LabErrorKind::Interrupted, "interrupted while memory was filled"));
            }
            let bytes = (at - first).min(REQUEST_BYTES as u64) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
            if bytes == 0 {
                break;
            }
            at -= bytes;
            files.read(layout, file, at, &mut buffer[..bytes as usize])?;
            for page in (0..bytes).step_by(PAGE_BYTES) {
                let place = Place { file, offset_bytes: at + page };
                maps.map(|maps| maps.word_at(place)).transpose()?;
            }
        }
    }
    Ok(())
}

//! Many small maps or one large one, and files that grow in small steps or in large ones.
//!
//! - `many-maps`: a round maps the whole cached file by one call, or by a thousand calls for a thousandth each. It then
//!   reads a random page of each thousandth, and unmaps. An operation is a page read; the faults are the same for both
//!   methods.
//! - `file-growth`: pages are appended by `pwrite` to a file read through one map of all of it. When the file
//!   is full it is made a step longer and mapped again; each page is then looked at through the map. The file has no
//!   name.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::raw_map::RawMap;
use super::{GROW_MAPPED, ONE_MAP, THOUSAND_MAPS, folder_of, number, only_path, run_timed};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::data::nameless;
use crate::measure::{Work, Worker};
use crate::paths::shown;
use crate::read_loops::unknown;
use crate::record::{Outcome, TrialSpec};
use crate::workload::{Layout, PAGE_BYTES};

/// The methods of `many-maps`: one call for the whole file, or one call for each part.
pub(super) const METHODS: [&str; 2] = [ONE_MAP.id, THOUSAND_MAPS.id];
/// Number of parts of the file; a round touches one page of each. A file with fewer pages has fewer parts.
const PARTS: u64 = 1000;

/// Length in bytes at which a growing file is complete and the next file begins.
const GROWN_BYTES: u64 = 64 << 20;

/// Measures the variant `many-maps`.
pub(super) fn many(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    let path = only_path(spec, layout)?;
    let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
    // The layout is one file with blocks of a page, so its data follows the lab's header without a gap.
    let (first_bytes, pages) = (layout.place(0).offset_bytes, layout.block_count());
    let parts = PARTS.min(pages).max(1);
    let part_pages = pages / parts;
    let one = match METHODS.iter().position(|id| *id == spec.method) {
        Some(at) => at == 0,
        None => return Err(unknown(spec)),
    };
    let (file, seed) = (&file, spec.seed);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let mut chance = fastrand::Rng::with_seed(seed);
        let map = |from: u64, pages: u64| {
            RawMap::map(file, first_bytes + from * PAGE_BYTES as u64, pages as usize * PAGE_BYTES, false)
        };
        worker.start();
        while worker.running() {
            let count = if one { 1 } else { parts };
            let maps: Vec<RawMap<'_>> =
                (0..count).map(|at| map(at * part_pages, parts * part_pages / count)).collect::<Result<_>>()?;
            for part in 0..parts {
                let inside = chance.u64(..part_pages);
                let (at, page) = if one { (0, part * part_pages + inside) } else { (part, inside) };
                let offset_bytes = first_bytes + (part * part_pages + inside) * PAGE_BYTES as u64;
                worker.verified(layout.is_right_word(maps[at as usize].word(page as usize), offset_bytes));
            }
            drop(maps);
            worker.done(parts, parts * PAGE_BYTES as u64);
        }
        Ok(())
    });
    run_timed(spec, vec![work], context)
}

/// Measures the variant `file-growth`.
pub(super) fn growth(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    if spec.method != GROW_MAPPED {
        return Err(unknown(spec));
    }
    let step_bytes = number(spec, "step")?;
    if step_bytes == 0 || step_bytes > GROWN_BYTES || !step_bytes.is_multiple_of(PAGE_BYTES as u64) {
        let message = format!("{}: a step is whole pages, up to {GROWN_BYTES} bytes", spec.key());
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let folder = folder_of(spec);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            let file = nameless(&folder)?;
            append(worker, &file, step_bytes)?;
        }
        Ok(())
    });
    run_timed(spec, vec![work], context)
}

/// Appends to one file, page after page, until it has its full length.
fn append(worker: &mut Worker<'_>, file: &File, step_bytes: u64) -> Result<()> {
    let failed = |what: &'static str| move |error: std::io::Error| LabError::system(what, &error);
    let mut page = vec![0; PAGE_BYTES];
    let (mut end, mut len_bytes, mut map) = (0, 0, None);
    while end < GROWN_BYTES && worker.running() {
        if end == len_bytes {
            len_bytes += step_bytes;
            file.set_len(len_bytes).map_err(failed("make a file longer"))?;
            // The old map is dropped first, because use of address space is not measured.
            drop(map.take());
            map = Some(RawMap::map(file, 0, len_bytes as usize, false)?);
        }
        let Some(map) = &map else { break };
        page[..8].copy_from_slice(&(end + 1).to_le_bytes());
        file.write_all_at(&page, end).map_err(failed("append to a file"))?;
        worker.verified(map.word(end as usize / PAGE_BYTES) == end + 1);
        end += PAGE_BYTES as u64;
        worker.done(1, PAGE_BYTES as u64);
    }
    Ok(())
}

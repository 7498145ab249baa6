//! Reads data in the page cache from front to back, in units of one size. Every method sums one word of each
//! cache line, in place or in a separate buffer, so that all touch every line.

use std::fs::File;
use std::hint::black_box;
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile, Protection};

use super::{MMAP_COPY, MMAP_IN_PLACE, OWN, only_path, run_timed};
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::measure::{Work, Worker};
use crate::methods;
use crate::paths::shown;
use crate::read_loops::sync::{Files, Means};
use crate::read_loops::{Pattern, unknown};
use crate::record::{Outcome, TrialSpec};
use crate::workload::{Layout, Order};

/// The methods: reading in place through a map, copying out of a map, and `pread`.
pub(super) const METHODS: [&str; 3] = [MMAP_IN_PLACE.id, MMAP_COPY.id, methods::PREAD_BUFFERED.id];

const CACHE_LINE_BYTES: usize = 64;

/// Measures one method of `cached-read`.
pub(super) fn execute(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    let path = only_path(spec, layout)?;
    let order = Pattern::Scan { part_bytes: u64::MAX }.orders(layout, spec).into_iter().next();
    let order = order.ok_or_else(|| unknown(spec))?;
    let mut buffer = IoBuf::zeroed(layout.block_bytes as usize, PageKind::Huge)?;
    // The buffer's pages are faulted in here, so that the first timed reads do not fault.
    buffer.fill(0);
    if spec.method == methods::PREAD_BUFFERED {
        let files = Files::open(layout, Means::Buffered)?;
        let mut each = move |offset_bytes: u64| -> Result<Option<bool>> {
            files.read(layout, 0, offset_bytes, &mut buffer)?;
            black_box(sum(&buffer));
            Ok(layout.is_right(&buffer, offset_bytes))
        };
        let work: Work<'_> = Box::new(move |worker| scan(worker, layout, order, &mut each));
        return run_timed(spec, vec![work], context);
    }
    let copies = match methods::find(OWN, &spec.method) {
        Some(&MMAP_COPY) => true,
        Some(&MMAP_IN_PLACE) => false,
        _ => return Err(unknown(spec)),
    };
    let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
    // SAFETY: the lab holds its data files for itself and writes none of them while trials run.
    let map = unsafe { MappedFile::map(&file, Protection::ReadOnly, 0..layout.file_bytes()) }?;
    map.advise(Advice::Normal, 0..map.len_bytes())?;
    let mut each = move |offset_bytes: u64| -> Result<Option<bool>> {
        let at = offset_bytes as usize;
        let range = at..at + layout.block_bytes as usize;
        Ok(map.guarded(range, |bytes| {
            let bytes = if copies {
                buffer.copy_from_slice(bytes);
                &buffer[..]
            } else {
                bytes
            };
            black_box(sum(bytes));
            layout.is_right(bytes, offset_bytes)
        })?)
    };
    let work: Work<'_> = Box::new(move |worker| scan(worker, layout, order, &mut each));
    run_timed(spec, vec![work], context)
}

/// Reads unit after unit; `each` reads the unit at an offset and returns whether its content is right.
fn scan(
    worker: &mut Worker<'_>,
    layout: &Layout,
    mut order: Order,
    each: &mut dyn FnMut(u64) -> Result<Option<bool>>,
) -> Result<()> {
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        let place = layout.place(order.next_block());
        if let Some(right) = each(place.offset_bytes)? {
            worker.verified(right);
        }
        worker.done(1, layout.block_bytes);
        let now = Instant::now();
        worker.latency("op", now - before);
        before = now;
    }
    Ok(())
}

/// Sums the first word of each cache line.
fn sum(bytes: &[u8]) -> u64 {
    let lines = bytes.chunks_exact(CACHE_LINE_BYTES);
    lines.fold(0, |sum, line| sum.wrapping_add(line.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))))
}

//! Threads that map a part of a cached file, read it, and unmap it, as an engine does that maps files for a query. They
//! are compared with `pread` of the same part into a buffer that each thread keeps. The kernel changes an address space
//! for one thread at a time.

use std::fs::File;
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};

use super::raw_map::RawMap;
use super::{MMAP_CALL, MMAP_CALL_ONE_PAGE, OWN, only_path, run_timed};
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::measure::{Work, Worker};
use crate::methods;
use crate::paths::shown;
use crate::read_loops::sync::{Files, Means};
use crate::read_loops::{Pattern, unknown};
use crate::record::{Outcome, TrialSpec};
use crate::workload::{Layout, Order, PAGE_BYTES};

/// The methods: map a part and touch every page; map it and touch one page, which costs little more than the calls
/// themselves; read it by `pread`.
pub(super) const METHODS: [&str; 3] = [MMAP_CALL.id, MMAP_CALL_ONE_PAGE.id, methods::PREAD_BUFFERED.id];

/// Measures one method of `map-calls`.
pub(super) fn execute(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    let path = only_path(spec, layout)?;
    let open = || File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error));
    let (file, files) = (open()?, Files::open(layout, Means::Buffered)?);
    let (file, files) = (&file, &files);
    let touched = match methods::find(OWN, &spec.method) {
        Some(&MMAP_CALL) => Some(layout.block_bytes as usize / PAGE_BYTES),
        Some(&MMAP_CALL_ONE_PAGE) => Some(1),
        Some(&methods::PREAD_BUFFERED) => None,
        _ => return Err(unknown(spec)),
    };
    let work = |order: Order| -> Work<'_> {
        Box::new(move |worker: &mut Worker<'_>| {
            let mut buffer = IoBuf::zeroed(layout.block_bytes as usize, PageKind::Huge)?;
            buffer.fill(0);
            call(worker, layout, order, &mut |worker, offset_bytes| {
                let Some(pages) = touched else {
                    files.read(layout, 0, offset_bytes, &mut buffer)?;
                    if let Some(right) = layout.is_right(&buffer, offset_bytes) {
                        worker.verified(right);
                    }
                    return Ok(());
                };
                let map = RawMap::map(file, offset_bytes, layout.block_bytes as usize, false)?;
                for page in 0..pages {
                    let right = layout.is_right_word(map.word(page), offset_bytes + (page * PAGE_BYTES) as u64);
                    worker.verified(right);
                }
                Ok(())
            })
        })
    };
    let works = Pattern::Random.orders(layout, spec).into_iter().map(work).collect();
    run_timed(spec, works, context)
}

type Each<'a> = &'a mut dyn FnMut(&mut Worker<'_>, u64) -> Result<()>;

fn call(worker: &mut Worker<'_>, layout: &Layout, mut order: Order, each: Each<'_>) -> Result<()> {
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        let place = layout.place(order.next_block());
        each(worker, place.offset_bytes)?;
        worker.done(1, layout.block_bytes);
        let now = Instant::now();
        worker.latency("op", now - before);
        before = now;
    }
    Ok(())
}

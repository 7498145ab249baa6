//! Measures data that fits: a quarter of the memory, touched at random for the whole trial, while a background load in
//! the same memory reads the rest of the file through the page cache. The kernel may evict data even though it fits.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::mapped::{Advice, MappedFile};

use super::{MMAP_MLOCK, MMAP_POPULATE, MMAP_WILLNEED, OWN, POOL_FRAMES, ahead, measurement, number};
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::measure::{self, Work, Worker};
use crate::methods;
use crate::paths::shown;
use crate::read_loops;
use crate::record::{Outcome, TrialSpec};
use crate::workload::{self, Layout, PAGE_BYTES, Place, first_word};

/// Ids of the methods, each of which has its own way of keeping the data in memory.
pub(super) const METHODS: [&str; 5] =
    [methods::MMAP.id, MMAP_WILLNEED.id, MMAP_POPULATE.id, MMAP_MLOCK.id, POOL_FRAMES.id];

/// Bytes that the background load reads at a time.
const BACKGROUND_BYTES: usize = 1 << 20;
/// Number of touches between two readings of the clock: one, because a stall would be hidden among several fast
/// touches.
const TOUCHES: u64 = 1;

/// Measures one method of the variant `fits`.
pub(super) fn run(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, PAGE_BYTES as u64)?;
    let plan = measurement(spec, context)?;
    let count = (number(spec, "working_set")? / PAGE_BYTES as u64).clamp(1, layout.block_count());
    let first = layout.place(0).offset_bytes;
    let bytes = count as usize * PAGE_BYTES;
    let range = first as usize..first as usize + bytes;
    let path = layout.paths[0].clone();
    let failed = |error: std::io::Error| LabError::system(format!("read {}", shown(&path)), &error);
    let file = File::open(&path).map_err(failed)?;
    let map = ahead::open(&layout)?;
    let started = Instant::now();
    let mut extra_memory = 0;
    let mut frames = None;
    match methods::find(OWN, &spec.method) {
        Some(&methods::MMAP) => {}
        Some(&MMAP_WILLNEED) => map.advise(Advice::WillNeed, range)?,
        Some(&MMAP_POPULATE) => map.populate(range)?,
        Some(&MMAP_MLOCK) => {
            map.lock(range)?;
            extra_memory = bytes;
        }
        Some(&POOL_FRAMES) => {
            // In small pages, as the pages of the map are.
            let mut memory = IoBuf::zeroed(bytes, PageKind::Small)?;
            // Read past the page cache, as a pool does: otherwise the data would take memory twice.
            let direct = crate::read_loops::sync::Files::open(&layout, crate::read_loops::sync::Means::Direct)?;
            for (index, piece) in memory.chunks_mut(BACKGROUND_BYTES).enumerate() {
                direct.read(&layout, 0, first + (index * BACKGROUND_BYTES) as u64, piece)?;
            }
            frames = Some(memory);
            extra_memory = bytes;
        }
        _ => return Err(read_loops::unknown(spec)),
    }
    let prepare_s = started.elapsed().as_secs_f64();
    let work: Work<'_> = Box::new(|worker| touches(worker, spec, &layout, count, &map, frames.as_deref()));
    let background: Work<'_> =
        Box::new(|worker| read_in_background(worker, &file, first + bytes as u64, layout.file_bytes()));
    let mut outcome = measure::run(&plan, vec![work, background], &mut *context.on_tick)?;
    outcome.figures.insert("extra_memory_bytes".into(), extra_memory as f64);
    outcome.figures.insert("prepare_s".into(), prepare_s);
    Ok(outcome)
}

fn touches(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    count: u64,
    map: &MappedFile,
    frames: Option<&[u8]>,
) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(spec.seed);
    worker.start();
    let mut before = worker.started();
    while worker.running() {
        let block = chance.u64(0..count);
        let place: Place = layout.place(block);
        let right = match frames {
            Some(frames) => {
                let word = std::hint::black_box(first_word(&frames[block as usize * PAGE_BYTES..]));
                layout.is_right_word(word, place.offset_bytes)
            }
            None => ahead::touch(map, layout, place)?,
        };
        let now = Instant::now();
        worker.latency_of_each("op", now - before, TOUCHES);
        before = now;
        worker.verified(right);
        worker.done(1, PAGE_BYTES as u64);
    }
    Ok(())
}

/// Runs the background load, which reads the rest of the file front to back, again and again. Its reads do not count as
/// operations of the trial.
fn read_in_background(worker: &mut Worker<'_>, file: &File, from: u64, to: u64) -> Result<()> {
    let mut buffer = vec![0; BACKGROUND_BYTES];
    let mut at = from;
    let mut total = 0_u64;
    worker.start();
    while worker.running() {
        let count =
            file.read_at(&mut buffer, at).map_err(|error| LabError::system("read in the background", &error))?;
        total += count as u64;
        at = if count == 0 || at + count as u64 >= to { from } else { at + count as u64 };
    }
    worker.figure("neighbour_bytes", total as f64);
    Ok(())
}

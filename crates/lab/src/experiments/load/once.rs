//! Loads the file once. The clock runs from before the first call until each page was checked; the loaded pages stay in
//! memory until the clock has stopped and the memory has been counted.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::disk::Disk;
use nofault_io::mapped::Advice;

use super::ring::{Block, Reads};
use super::{BLOCK_BYTES, LOAD_DIRECT, LOAD_KEPT, LOAD_POPULATE, LOAD_READ, LOAD_WILLNEED, OWN};
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::machine::footprint::{Footprint, cached_bytes};
use crate::measure::{self, Measurement, Work, Worker};
use crate::methods;
use crate::read_loops::map::Maps;
use crate::read_loops::sync::{Files, Means};
use crate::read_loops::{self, ring};
use crate::record::{CacheState, Outcome, TrialSpec};
use crate::workload::{Layout, PAGE_BYTES, Place};

/// The file in memory. Only its end matters: it is dropped after the clock has stopped.
enum FileInMemory {
    Map { _map: Maps },
    Memory { _blocks: Vec<IoBuf> },
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
pub(super) fn run(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    if spec.method == LOAD_KEPT || methods::find(OWN, &spec.method).is_none() {
        return Err(read_loops::unknown(spec));
    }
    let disk = if spec.method == LOAD_DIRECT { Some(ring::disk_of(layout)?) } else { None };
    let files = if spec.method == LOAD_READ { Some(Files::open(layout, Means::Buffered)?) } else { None };
    if spec.cache == CacheState::Warm {
        warm(layout)?;
    }
    let loaded: Mutex<Option<FileInMemory>> = Mutex::new(None);
    let work: Work<'_> = Box::new(|worker: &mut Worker<'_>| {
        worker.start();
        let result = match (&disk, &files) {
            (Some(disk), _) => by_ring(worker, spec, layout, &**disk),
            (_, Some(files)) => by_calls(worker, layout, files),
            _ => by_map(worker, spec, layout),
        }?;
        *loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        Ok(())
    });
    let plan = Measurement {
        // Only a bound for the case that the device hangs: the trial ends when its work is done.
        duration: Duration::from_secs(3600),
        tick: Duration::from_millis(250),
        watch: context.watch,
        memory_bytes: None,
        fill_first: false,
        cancel: context.cancel,
    };
    let mut outcome = measure::run(&plan, vec![work], &mut *context.on_tick)?;
    // A fixed amount of work has no steady part.
    outcome.steady = None;
    let own = Footprint::of_this_process()?;
    outcome.figures.insert("own_bytes".into(), own.anonymous_bytes as f64);
    outcome.figures.insert("rss_bytes".into(), own.rss_bytes as f64);
    if let Some(cached) = cached_bytes(layout.paths.iter().map(PathBuf::as_path), layout.file_bytes()) {
        outcome.figures.insert("cached_bytes".into(), cached as f64);
        outcome.figures.insert("held_bytes".into(), (own.anonymous_bytes + cached) as f64);
    }
    drop(loaded);
    Ok(outcome)
}

/// Reads the blocks of the layout into the page cache, without read-ahead beyond them.
fn warm(layout: &Layout) -> Result<()> {
    let files = Files::open(layout, Means::BufferedRandom)?;
    let mut buffer = IoBuf::zeroed(layout.block_bytes as usize, PageKind::Small)?;
    (0..layout.block_count()).try_for_each(|block| {
        let place = layout.place(block);
        files.read(layout, place.file, place.offset_bytes, &mut buffer)
    })
}

/// Counts a checked block.
fn checked(worker: &mut Worker<'_>, right: Option<bool>) {
    if let Some(right) = right {
        worker.verified(right);
    }
    worker.done(1, BLOCK_BYTES);
}

/// Touches each page of a block of a map, and returns whether all have the expected content.
///
/// # Errors
/// When a page cannot be read.
fn touch(layout: &Layout, maps: &Maps, block: u64) -> Result<bool> {
    let start = layout.place(block);
    let mut right = true;
    for page in (0..layout.block_bytes).step_by(PAGE_BYTES) {
        let place = Place { offset_bytes: start.offset_bytes + page, ..start };
        right &= layout.is_right_word(std::hint::black_box(maps.word_at(place)?), place.offset_bytes);
    }
    Ok(right)
}

fn by_map(worker: &mut Worker<'_>, spec: &TrialSpec, layout: &Layout) -> Result<FileInMemory> {
    let maps = Maps::open(layout, Advice::Normal)?;
    let ask = match methods::find(OWN, &spec.method) {
        Some(&LOAD_WILLNEED) => Some(Advice::WillNeed),
        Some(&LOAD_POPULATE) => Some(Advice::PopulateRead),
        _ => None,
    };
    if let Some(advice) = ask {
        maps.advise_part(layout.place(0), (layout.block_count() * BLOCK_BYTES) as usize, advice)?;
    }
    for block in 0..layout.block_count() {
        if !worker.running() {
            break;
        }
        let right = touch(layout, &maps, block)?;
        checked(worker, layout.content_seed.map(|_| right));
    }
    Ok(FileInMemory::Map { _map: maps })
}

fn by_calls(worker: &mut Worker<'_>, layout: &Layout, files: &Files) -> Result<FileInMemory> {
    let mut blocks = memory_for(layout, PageKind::Small)?;
    for (block, buffer) in (0..).zip(&mut blocks) {
        if !worker.running() {
            break;
        }
        let place = layout.place(block);
        files.read(layout, place.file, place.offset_bytes, buffer)?;
        checked(worker, layout.is_right(buffer, place.offset_bytes));
    }
    Ok(FileInMemory::Memory { _blocks: blocks })
}

fn by_ring(worker: &mut Worker<'_>, spec: &TrialSpec, layout: &Layout, disk: &dyn Disk) -> Result<FileInMemory> {
    let pages = match spec.params.extra.get("buffers").map(String::as_str) {
        Some("huge") => PageKind::Huge,
        _ => PageKind::Small,
    };
    let mut reads = Reads::open(layout, disk)?;
    let mut empty = (0..).zip(memory_for(layout, pages)?);
    let mut blocks = Vec::with_capacity(layout.block_count() as usize);
    loop {
        while reads.has_room() && worker.running() {
            let Some((number, buffer)) = empty.next() else { break };
            reads.start(number, buffer)?;
        }
        if reads.in_flight() == 0 {
            break;
        }
        reads.wait(&mut |Block { number, buffer }| {
            checked(worker, layout.is_right(&buffer, layout.place(number).offset_bytes));
            blocks.push(buffer);
            Ok(())
        })?;
    }
    Ok(FileInMemory::Memory { _blocks: blocks })
}

/// Allocates memory for all blocks of the layout, in pieces of a block.
fn memory_for(layout: &Layout, pages: PageKind) -> Result<Vec<IoBuf>> {
    let bytes = layout.block_count() * layout.block_bytes;
    let memory = IoBuf::zeroed(bytes as usize, pages).map_err(LabError::from)?;
    Ok(memory.pieces(layout.block_bytes as usize))
}

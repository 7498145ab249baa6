//! Reads the file from front to back, again and again, under a memory limit. One pass is made before the clock starts, so
//! that memory is in the state that the method's own reads leave behind.

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::disk::Disk;
use nofault_io::mapped::Advice;

use super::ring::{Block, Reads};
use super::{AHEAD, LOAD_DIRECT, LOAD_KEPT, LOAD_READ, LOAD_TOUCH, LOAD_WILLNEED, OWN};
use crate::error::Result;
use crate::experiment::Context;
use crate::measure::{self, Measurement, Work, Worker};
use crate::methods;
use crate::read_loops::map::Maps;
use crate::read_loops::sync::{Files, Means};
use crate::read_loops::{self, ring};
use crate::record::{Outcome, TrialSpec};
use crate::workload::Layout;

/// Part of the memory limit in which the method that keeps a part of the file keeps it. The rest is for the reads in flight
/// and the process.
const KEPT_SHARE: u64 = 2;

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
pub(super) fn run(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    let full = spec.target.data_bytes > spec.memory.bytes;
    let plan = Measurement { memory_bytes: read_loops::memory_limit_of(spec).filter(|_| full), ..context.timed(spec)? };
    let work: Work<'_> = match methods::find(OWN, &spec.method) {
        Some(&LOAD_TOUCH | &LOAD_WILLNEED) => {
            let ahead = if spec.method == LOAD_WILLNEED { u64::from(AHEAD) } else { 0 };
            Box::new(move |worker: &mut Worker<'_>| by_map(worker, layout, ahead))
        }
        Some(&LOAD_READ) => Box::new(move |worker: &mut Worker<'_>| by_calls(worker, layout)),
        Some(&LOAD_DIRECT | &LOAD_KEPT) => {
            let kept = if spec.method == LOAD_KEPT { spec.memory.bytes / KEPT_SHARE / layout.block_bytes } else { 0 };
            let disk = ring::disk_of(layout)?;
            Box::new(move |worker: &mut Worker<'_>| by_ring(worker, layout, &*disk, kept.min(layout.block_count())))
        }
        _ => return Err(read_loops::unknown(spec)),
    };
    measure::run(&plan, vec![work], &mut *context.on_tick)
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Loads a word of each cache line of a block, as a program does that uses all of it, and returns whether each page has the
/// expected content.
fn look_at(layout: &Layout, bytes: &[u8], offset_bytes: u64) -> Option<bool> {
    let word = |line: &[u8]| line.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    std::hint::black_box(bytes.chunks_exact(LINE_BYTES).fold(0_u64, |sum, line| sum.wrapping_add(word(line))));
    layout.is_right(bytes, offset_bytes)
}

/// Counts a block that was read, and its check.
fn count(worker: &mut Worker<'_>, layout: &Layout, right: Option<bool>) {
    if let Some(right) = right {
        worker.verified(right);
    }
    worker.done(1, layout.block_bytes);
}

/// Touches the pages of a map, and asks for the pages that lie `ahead` blocks before them.
fn by_map(worker: &mut Worker<'_>, layout: &Layout, ahead: u64) -> Result<()> {
    let maps = Maps::open(layout, Advice::Normal)?;
    let blocks = layout.block_count();
    let read = |block: u64| -> Result<Option<bool>> {
        if ahead > 0 {
            let next = layout.place((block + ahead) % blocks);
            maps.advise_part(next, layout.block_bytes as usize, Advice::WillNeed)?;
        }
        let place = layout.place(block);
        maps.look_at(place, layout.block_bytes as usize, |bytes| look_at(layout, bytes, place.offset_bytes))
    };
    cycle(worker, layout, read)
}

fn by_calls(worker: &mut Worker<'_>, layout: &Layout) -> Result<()> {
    let files = Files::open(layout, Means::Buffered)?;
    let mut buffer = IoBuf::zeroed(layout.block_bytes as usize, PageKind::Small)?;
    cycle(worker, layout, |block| {
        let place = layout.place(block);
        files.read(layout, place.file, place.offset_bytes, &mut buffer)?;
        Ok(look_at(layout, &buffer, place.offset_bytes))
    })
}

/// Reads block after block: one pass before the clock starts, then pass after pass until its time is over.
fn cycle(worker: &mut Worker<'_>, layout: &Layout, mut read: impl FnMut(u64) -> Result<Option<bool>>) -> Result<()> {
    for block in 0..layout.block_count() {
        if !worker.running() {
            break;
        }
        read(block)?;
    }
    worker.start();
    for block in (0..layout.block_count()).cycle() {
        if !worker.running() {
            break;
        }
        let right = read(block)?;
        count(worker, layout, right);
    }
    Ok(())
}

/// Reads the blocks from `kept` on past the page cache, pass after pass, and the first `kept` blocks from memory, in which
/// they stay. Kept blocks are read while others are in flight, in proportion, so that neither waits for the other.
fn by_ring(worker: &mut Worker<'_>, layout: &Layout, disk: &dyn Disk, kept: u64) -> Result<()> {
    let blocks = layout.block_count();
    let mut reads = Reads::open(layout, disk)?;
    let mut memory = Vec::new();
    if kept > 0 {
        let all = IoBuf::zeroed((kept * layout.block_bytes) as usize, PageKind::Small)?;
        memory = load(&mut reads, all.pieces(layout.block_bytes as usize))?;
    }
    let mut buffers = IoBuf::zeroed(layout.block_bytes as usize * AHEAD as usize, PageKind::Small)?;
    buffers.fill(0);
    let mut idle = buffers.pieces(layout.block_bytes as usize);
    let mut next_kept = 0_usize;
    let (mut next, mut due, mut credit) = (kept, 0_u64, 0_u64);
    worker.start();
    while worker.running() {
        while kept < blocks && reads.has_room() {
            let Some(buffer) = idle.pop() else { break };
            reads.start(next, buffer)?;
            next = if next + 1 == blocks { kept } else { next + 1 };
        }
        // The kept blocks belonging to the blocks read so far.
        due += u64::from(kept == blocks);
        while due > 0 && !memory.is_empty() {
            let block: &Block = &memory[next_kept];
            count(worker, layout, look_at(layout, &block.buffer, layout.place(block.number).offset_bytes));
            next_kept = (next_kept + 1) % memory.len();
            due -= 1;
        }
        if reads.in_flight() > 0 {
            let mut done = 0;
            reads.wait(&mut |block| {
                count(worker, layout, look_at(layout, &block.buffer, layout.place(block.number).offset_bytes));
                idle.push(block.buffer);
                done += 1;
                Ok(())
            })?;
            credit += done * kept;
            due += credit / (blocks - kept).max(1);
            credit %= (blocks - kept).max(1);
        }
    }
    // The reads in flight belong to no pass.
    while reads.in_flight() > 0 {
        reads.wait(&mut |_| Ok(()))?;
    }
    Ok(())
}

/// Reads the first blocks of the layout into these buffers, in any order of completion.
fn load(reads: &mut Reads<'_>, buffers: Vec<IoBuf>) -> Result<Vec<Block>> {
    let mut loaded = Vec::with_capacity(buffers.len());
    let mut empty = (0..).zip(buffers);
    loop {
        while reads.has_room() {
            let Some((number, buffer)) = empty.next() else { break };
            reads.start(number, buffer)?;
        }
        if reads.in_flight() == 0 {
            break;
        }
        reads.wait(&mut |block| {
            loaded.push(block);
            Ok(())
        })?;
    }
    loaded.sort_by_key(|block| block.number);
    Ok(loaded)
}

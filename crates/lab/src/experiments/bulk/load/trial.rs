//! The measurement of a trial of `load`, method by method.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Disk, Queue, QueueOptions};
use nofault_io::mapped::Advice;

use super::{AHEAD, BLOCK_BYTES, LOAD_DIRECT, LOAD_KEPT, LOAD_POPULATE, LOAD_READ, LOAD_TOUCH, LOAD_WILLNEED, OWN};
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::machine::footprint::{Footprint, cached_bytes};
use crate::measure::read_loops::map::Maps;
use crate::measure::read_loops::sync::{Files, Means};
use crate::measure::read_loops::{self, ring};
use crate::measure::workload::{Layout, PAGE_BYTES, Place};
use crate::measure::{self, Measurement, Work, Worker};
use crate::methods;
use crate::record::{CacheState, Outcome, TrialSpec};

// Loads the file once. The clock runs from before the first call until each page was checked; the loaded pages stay in
// memory until the clock has stopped and the memory has been counted.

/// The file in memory. Only its end matters: it is dropped after the clock has stopped.
enum FileInMemory {
    Map { _map: Maps },
    Memory { _blocks: Vec<IoBuf> },
}

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
pub(super) fn run_once(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
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
    // Only a bound for the case that the device hangs: the trial ends when its work is done.
    let plan = context.lasting(Duration::from_secs(3600), Duration::from_millis(250));
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

// Reads the file from front to back, again and again, under a memory limit. One pass is made before the clock starts, so
// that memory is in the state that the method's own reads leave behind.

/// Part of the memory limit in which the method that keeps a part of the file keeps it. The rest is for the reads in flight
/// and the process.
const KEPT_SHARE: u64 = 2;

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
pub(super) fn run_cyclic(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    let full = spec.target.data_bytes > spec.memory.bytes;
    let plan = Measurement { memory_bytes: read_loops::memory_limit_of(spec).filter(|_| full), ..context.timed(spec)? };
    let work: Work<'_> = match methods::find(OWN, &spec.method) {
        Some(&LOAD_TOUCH | &LOAD_WILLNEED) => {
            let ahead = if spec.method == LOAD_WILLNEED { u64::from(AHEAD) } else { 0 };
            Box::new(move |worker: &mut Worker<'_>| again_by_map(worker, layout, ahead))
        }
        Some(&LOAD_READ) => Box::new(move |worker: &mut Worker<'_>| again_by_calls(worker, layout)),
        Some(&LOAD_DIRECT | &LOAD_KEPT) => {
            let kept = if spec.method == LOAD_KEPT { spec.memory.bytes / KEPT_SHARE / layout.block_bytes } else { 0 };
            let disk = ring::disk_of(layout)?;
            Box::new(move |worker: &mut Worker<'_>| {
                again_by_ring(worker, layout, &*disk, kept.min(layout.block_count()))
            })
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
fn again_by_map(worker: &mut Worker<'_>, layout: &Layout, ahead: u64) -> Result<()> {
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

fn again_by_calls(worker: &mut Worker<'_>, layout: &Layout) -> Result<()> {
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
fn again_by_ring(worker: &mut Worker<'_>, layout: &Layout, disk: &dyn Disk, kept: u64) -> Result<()> {
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

// Reads blocks in a given order past the page cache, a fixed number of them in flight, each into a buffer that comes from
// the caller and goes back to it.

/// The reads in flight of one thread.
struct Reads<'a> {
    layout: &'a Layout,
    queue: Box<dyn Queue>,
    finished: Vec<Completion>,
}

/// A block that was read, with the memory that holds it.
struct Block {
    number: u64,
    buffer: IoBuf,
}

impl<'a> Reads<'a> {
    /// Opens a queue on a disk with the files of the layout.
    ///
    /// # Errors
    /// The error of opening.
    pub(super) fn open(layout: &'a Layout, disk: &dyn Disk) -> Result<Self> {
        let depth_max = AHEAD as usize;
        let queue = disk.queue(&QueueOptions { depth_max, single_thread: true, registered: Vec::new() })?;
        Ok(Self { layout, queue, finished: Vec::with_capacity(depth_max) })
    }

    /// Whether another read may be started.
    fn has_room(&self) -> bool {
        self.queue.in_flight() < AHEAD as usize
    }

    /// Number of reads in flight.
    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Starts to read a block into a buffer of a block's size.
    ///
    /// # Errors
    /// The error of submitting.
    fn start(&mut self, number: u64, buffer: IoBuf) -> Result<()> {
        let op = Op::new(number, self.layout.striped_offset(number), OpKind::Read(buffer));
        self.queue.push(op).map_err(|refused| LabError::from(refused.error))?;
        // A large read is worth one system call.
        Ok(self.queue.submit()?)
    }

    /// Waits for at least one read, and passes each finished block to `take`.
    ///
    /// # Errors
    /// The error of a read, or of `take`.
    fn wait(&mut self, take: &mut dyn FnMut(Block) -> Result<()>) -> Result<()> {
        self.queue.reap(1, &mut self.finished)?;
        let mut result = Ok(());
        for completion in self.finished.drain(..) {
            let number = completion.op.token;
            if let Err(error) = &completion.result {
                result = result.and(Err(error.clone().into()));
                continue;
            }
            if let Some(buffer) = completion.into_buffer() {
                let taken = take(Block { number, buffer });
                result = result.and(taken);
            }
        }
        result
    }
}

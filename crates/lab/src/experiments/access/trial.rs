//! The measurement of a trial of `access`, method by method.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{DirectIo, DiskNote, DiskNoteKind, FileOptions, Queue, QueueOptions};
use nofault_io::mapped::Advice;
use nofault_io::uring::{FlagChoice, UringDisk, UringOptions, UringQueue};

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::{self, BLOCK_BYTES};
use crate::measure::Worker;
use crate::measure::read_loops::map::Maps;
use crate::measure::read_loops::overwrite::{WritableFile, fill, index_at};
use crate::measure::read_loops::sync::{Files, Means};
use crate::measure::read_loops::{order_seed, pace};
use crate::measure::workload::{Layout, Order, Place, SAMPLE_COUNT, first_word};
use crate::paths::shown;
use crate::record::TrialSpec;

// Reads and writes one block at a time, by a map or by calls: reads for the open loop (closed loops of reads use
// `read_loops`), and writes with their syncs.

/// The way in which a method reaches a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A shared map with this madvise advice.
    Map(Advice),
    /// Read and write calls.
    Calls(Means),
    /// A ring with operations that bypass the page cache.
    Ring,
}

/// A file that a trial reads one block at a time.
enum Source {
    /// A map whose pages are touched.
    Map(Maps),
    /// Files read by calls into a buffer.
    Calls(Files, IoBuf),
}

impl Source {
    /// Opens the only file of a layout for reading.
    ///
    /// # Errors
    /// The error of opening or mapping; `Usage` for a ring, which reads in batches.
    pub(super) fn open(layout: &Layout, way: Way) -> Result<Self> {
        match way {
            Way::Map(advice) => Ok(Self::Map(Maps::open(layout, advice)?)),
            Way::Calls(means) => {
                Ok(Self::Calls(Files::open(layout, means)?, IoBuf::zeroed(BLOCK_BYTES, PageKind::Small)?))
            }
            Way::Ring => Err(LabError::new(LabErrorKind::Usage, "access: a ring does not wait for each block")),
        }
    }

    /// Reads a block; returns whether its content was right, or `None` where the expected content is unknown.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn read(&mut self, layout: &Layout, place: Place) -> Result<Option<bool>> {
        match self {
            Self::Map(maps) => {
                let word = std::hint::black_box(maps.word_at(place)?);
                Ok(layout.content_seed.map(|_| layout.is_right_word(word, place.offset_bytes)))
            }
            Self::Calls(..) => Ok(layout.is_right(self.block(layout, place.offset_bytes)?, place.offset_bytes)),
        }
    }

    /// Reads the first word of a block.
    ///
    /// # Errors
    /// The system's error.
    fn word(&mut self, layout: &Layout, place: Place) -> Result<u64> {
        match self {
            Self::Map(maps) => maps.word_at(place),
            Self::Calls(..) => Ok(first_word(self.block(layout, place.offset_bytes)?)),
        }
    }

    /// Reads a block by a call and returns its bytes.
    ///
    /// # Errors
    /// The system's error; `Usage` for a map, which has no buffer.
    pub(super) fn block(&mut self, layout: &Layout, offset_bytes: u64) -> Result<&[u8]> {
        let Self::Calls(files, buffer) = self else {
            return Err(LabError::new(LabErrorKind::Usage, "access: a map is touched, not read"));
        };
        files.read(layout, 0, offset_bytes, buffer)?;
        Ok(buffer)
    }
}

/// A file that a trial overwrites one block at a time, and the buffer with the block.
struct Writer {
    file: WritableFile,
    buffer: IoBuf,
    content_seed: u64,
}

impl Writer {
    /// Opens the only file of a layout for writing.
    ///
    /// # Errors
    /// The error of opening or mapping; `Unsupported` where the file system refuses direct I/O.
    pub(super) fn open(layout: &Layout, way: Way, content_seed: u64) -> Result<Self> {
        let path = layout.paths.first().cloned().unwrap_or_default();
        let file = match way {
            Way::Map(advice) => WritableFile::map(&path, advice)?,
            Way::Calls(means) => WritableFile::calls(&path, means)?,
            Way::Ring => {
                return Err(LabError::new(LabErrorKind::Usage, "access: a ring does not wait for each block"));
            }
        };
        Ok(Self { file, buffer: IoBuf::zeroed(BLOCK_BYTES, PageKind::Small)?, content_seed })
    }

    /// Fills the buffer with the content of the block at an offset: the same work for all methods, which is not timed.
    fn prepare(&mut self, offset_bytes: u64) {
        fill(&mut self.buffer, self.content_seed, offset_bytes);
    }

    /// Overwrites a block from the prepared buffer. With `durable` the write survives a power cut once the call has
    /// returned.
    ///
    /// # Errors
    /// The system's error; a short write is an error.
    pub(super) fn write(&self, offset_bytes: u64, durable: bool) -> Result<()> {
        self.file.write(offset_bytes, &self.buffer, durable)
    }

    /// Makes earlier writes durable, as [`WritableFile::sync`].
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn sync(&self, only: Option<u64>) -> Result<()> {
        self.file.sync(only)
    }
}

// The closed loop: a worker requests the next block, or batch, when the last has arrived. Contains batched reads,
// overwrites and syncs; reads waiting for each block use `read_loops`.
//
// Kept true by: blocks are checked while their reads are timed; overwritten blocks are read back past the page cache
// after the clock has stopped, and compared byte by byte.

/// Number of blocks whose content is checked before any block is overwritten.
const BLOCKS_BEFORE: u32 = 64;
/// Number of the first overwritten blocks that are read back, and also of the latest.
const READ_BACK: usize = SAMPLE_COUNT as usize;

/// How a method overwrites blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overwrite {
    pub(super) way: Way,
    /// Whether each write is durable by itself (RWF_DSYNC), so that no sync follows.
    pub(super) durable: bool,
    /// Number of writes between two syncs.
    pub(super) writes_per_sync: u64,
    /// Seed of the written content.
    pub(super) content_seed: u64,
    /// Whether each write is made durable before the next: `op` is then the time of write and sync together.
    pub(super) one_each: bool,
}

/// Counts a block, and the result of its check where its content could be checked.
fn note(worker: &mut Worker<'_>, right: Option<bool>) {
    worker.done(1, BLOCK_BYTES as u64);
    if let Some(right) = right {
        worker.verified(right);
    }
}

/// Endless sequence of block positions in the trial's seeded random order.
pub(super) struct Positions<'a> {
    layout: &'a Layout,
    order: Order,
}

impl<'a> Positions<'a> {
    pub(super) fn of(spec: &TrialSpec, layout: &'a Layout) -> Self {
        Self { layout, order: Order::random(layout, order_seed(spec), 0) }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.layout.place(self.order.next_block()).offset_bytes
    }
}

/// Reads batch after batch through a ring. Returns the features that the kernel refused for the ring.
///
/// # Errors
/// The error of opening or reading.
pub(super) fn read_batches(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    setup: Setup,
) -> Result<Option<String>> {
    let depth = spec.params.depth;
    let mut ring = Ring::open(layout, depth, setup, false, false)?;
    let mut positions = Positions::of(spec, layout);
    let mut batch = vec![0; depth as usize];
    worker.start();
    while worker.running() {
        batch.fill_with(|| positions.next());
        let elapsed = ring.read(&batch, |offset, block| note(worker, layout.is_right(block, offset)))?;
        worker.latency_of_each("op", elapsed, u64::from(depth));
    }
    sum_sample_by_ring(worker, spec, &mut ring)?;
    Ok(ring.missing())
}

/// Reads, through a ring and after the measured time, the same sample of blocks that every method reads; their checksum
/// shows that all methods read the same data.
///
/// # Errors
/// The error of reading.
fn sum_sample_by_ring(worker: &mut Worker<'_>, spec: &TrialSpec, ring: &mut Ring) -> Result<()> {
    for place in Layout::sample(&spec.target, spec.seed) {
        ring.read(&[place.offset_bytes], |_, block| worker.checksum(first_word(block)))?;
    }
    Ok(())
}

/// Overwrites one block at a time. Returns the number of overwrites.
///
/// # Errors
/// The error of opening, writing or syncing; `Damaged` when the file has other content than expected.
pub(super) fn overwrite(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    how: Overwrite,
    cancel: &AtomicBool,
) -> Result<u64> {
    let mut history = History::of(spec, layout, how.content_seed)?;
    let mut writer = Writer::open(layout, how.way, how.content_seed)?;
    let mut positions = Positions::of(spec, layout);
    worker.start();
    let mut written = 0;
    while worker.running() {
        let offset = positions.next();
        writer.prepare(offset);
        let began = Instant::now();
        writer.write(offset, how.durable)?;
        let wrote = began.elapsed();
        written += 1;
        if how.durable || written % how.writes_per_sync != 0 {
            worker.latency("op", wrote);
            if how.one_each {
                worker.latency("sync", wrote);
            }
        } else {
            writer.sync(how.one_each.then_some(offset))?;
            let both = began.elapsed();
            worker.latency("op", if how.one_each { both } else { wrote });
            worker.latency("sync", both - wrote);
        }
        worker.done(1, BLOCK_BYTES as u64);
        history.note(offset);
    }
    writer.sync(None)?;
    history.read_back(worker, spec, layout, cancel)?;
    Ok(written)
}

/// Overwrites batch after batch through a ring. Returns the number of overwrites, and the features that the kernel
/// refused for the ring.
///
/// # Errors
/// As [`overwrite`].
pub(super) fn overwrite_batches(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    how: Overwrite,
    cancel: &AtomicBool,
) -> Result<(u64, Option<String>)> {
    let depth = spec.params.depth;
    let mut history = History::of(spec, layout, how.content_seed)?;
    let mut ring = Ring::open(layout, depth, Setup::of(None)?, true, false)?;
    let mut positions = Positions::of(spec, layout);
    let mut batch = vec![0; depth as usize];
    worker.start();
    let (mut written, mut synced) = (0, 0);
    while worker.running() {
        batch.fill_with(|| positions.next());
        let elapsed = ring.write(&batch, how.content_seed, how.durable)?;
        worker.latency_of_each("op", elapsed, u64::from(depth));
        batch.iter().for_each(|offset| history.note(*offset));
        written += u64::from(depth);
        if !how.durable && written - synced >= how.writes_per_sync {
            let began = Instant::now();
            ring.sync()?;
            worker.latency("sync", began.elapsed());
            synced = written;
        }
        worker.done(u64::from(depth), u64::from(depth) * BLOCK_BYTES as u64);
    }
    ring.sync()?;
    history.read_back(worker, spec, layout, cancel)?;
    Ok((written, ring.missing()))
}

/// Measures the sync of a file without changes, which is the least time that any sync takes.
///
/// # Errors
/// The error of opening or syncing.
pub(super) fn sync_clean(worker: &mut Worker<'_>, layout: &Layout, how: Overwrite) -> Result<()> {
    let writer = Writer::open(layout, how.way, how.content_seed)?;
    worker.start();
    while worker.running() {
        let began = Instant::now();
        writer.sync(None)?;
        let elapsed = began.elapsed();
        worker.latency("op", elapsed);
        worker.latency("sync", elapsed);
        worker.done(1, 0);
    }
    Ok(())
}

/// The overwritten positions to be read back: the first and the latest.
struct History {
    noted: Vec<u64>,
    count: usize,
    reader: Source,
    content_seed: u64,
}

impl History {
    /// Starts the record of the writes of a trial, which is checked against the file at its end. First reads the blocks
    /// that will be overwritten first and checks that each has the expected content.
    fn of(spec: &TrialSpec, layout: &Layout, content_seed: u64) -> Result<Self> {
        let reader = match Source::open(layout, Way::Calls(Means::Direct)) {
            // Only a file system in memory refuses direct I/O; there a buffered read shows the stored bytes.
            Err(error) if error.kind() == LabErrorKind::Unsupported => {
                Source::open(layout, Way::Calls(Means::BufferedRandom))?
            }
            other => other?,
        };
        let mut history = Self { noted: Vec::new(), count: 0, reader, content_seed };
        let mut positions = Positions::of(spec, layout);
        for _ in 0..BLOCKS_BEFORE {
            let offset = positions.next();
            if !history.is_whole(layout, offset)? {
                let message = format!(
                    "{} is not overwritten: the block at {offset} has wrong content; remove the file, the lab makes it anew",
                    shown(&layout.paths[0])
                );
                return Err(LabError::new(LabErrorKind::Damaged, message));
            }
        }
        Ok(history)
    }

    /// Whether every byte of the block at an offset is as expected.
    fn is_whole(&mut self, layout: &Layout, offset_bytes: u64) -> Result<bool> {
        let block = self.reader.block(layout, offset_bytes)?;
        Ok(content::check_block_fully(block, self.content_seed, index_at(offset_bytes)))
    }

    fn note(&mut self, offset_bytes: u64) {
        if self.noted.len() < 2 * READ_BACK {
            self.noted.push(offset_bytes);
        } else {
            self.noted[READ_BACK + self.count % READ_BACK] = offset_bytes;
        }
        self.count += 1;
    }

    /// Compares the overwritten blocks with their expected content, and sums the sample of blocks that all methods sum.
    fn read_back(
        &mut self,
        worker: &mut Worker<'_>,
        spec: &TrialSpec,
        layout: &Layout,
        cancel: &AtomicBool,
    ) -> Result<()> {
        for offset in std::mem::take(&mut self.noted) {
            if cancel.load(Ordering::Relaxed) {
                return Ok(());
            }
            let whole = self.is_whole(layout, offset)?;
            worker.verified(whole);
        }
        for place in Layout::sample(&spec.target, spec.seed) {
            worker.checksum(first_word(self.reader.block(layout, place.offset_bytes)?));
        }
        Ok(())
    }
}

// The ring, as the published measurement uses it: submit a batch of blocks, wait for all of them. All of its I/O
// bypasses the page cache.

/// The ring set-ups that `ring-setup` compares: the values of its parameter `flags`.
pub(super) const SETUPS: [&str; 5] = ["plain", "defer", "registered", "registered+defer", "registered+sqpoll"];
/// How long the kernel's polling thread (SQPOLL) spins without work before it sleeps.
const SQPOLL_IDLE_MS: u32 = 10;

/// The features with which an io_uring ring is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) registered: bool,
    pub(super) defer: bool,
    pub(super) sqpoll: bool,
    /// Whether the set-up was requested by name: then a feature that the kernel refuses is an error.
    exact: bool,
}

impl Setup {
    /// Returns the set-up that a value of the parameter `flags` names; without a value, all features that usually help.
    ///
    /// # Errors
    /// `Usage` for an unknown flag.
    pub(super) fn of(flags: Option<&str>) -> Result<Self> {
        let Some(flags) = flags else { return Ok(Self { registered: true, defer: true, sqpoll: false, exact: false }) };
        let mut setup = Self { registered: false, defer: false, sqpoll: false, exact: true };
        for flag in flags.split('+') {
            match flag {
                "plain" => {}
                "registered" => setup.registered = true,
                "defer" => setup.defer = true,
                "sqpoll" => setup.sqpoll = true,
                other => {
                    let message = format!("access: unknown ring flag '{other}'; known set-ups: {}", SETUPS.join(", "));
                    return Err(LabError::new(LabErrorKind::Usage, message));
                }
            }
        }
        Ok(setup)
    }

    fn options(self) -> UringOptions {
        UringOptions {
            sqpoll_idle_ms: self.sqpoll.then_some(SQPOLL_IDLE_MS),
            defer_taskrun: if self.defer { FlagChoice::Auto } else { FlagChoice::Off },
            coop_taskrun: if self.exact { FlagChoice::Off } else { FlagChoice::Auto },
            register_file: self.registered,
            register_buffers: self.registered,
            ring_entries: None,
        }
    }
}

/// A ring over one file or device, and the buffers for its operations.
pub(super) struct Ring {
    pub(super) queue: UringQueue,
    buffers: Vec<IoBuf>,
    pub(super) done: Vec<Completion>,
}

impl Ring {
    /// Opens a ring for `depth` blocks in flight, on the thread that will use it. With `polled`, the ring's descriptor
    /// becomes readable when an operation completes, without a call that enters the ring; this excludes DEFER_TASKRUN.
    ///
    /// # Errors
    /// The error of opening; `Unsupported` when the kernel refuses a feature of a set-up that was requested by name.
    pub(super) fn open(layout: &Layout, depth: u32, setup: Setup, write: bool, polled: bool) -> Result<Self> {
        let path = layout.paths.first().cloned().unwrap_or_default();
        let disk = UringDisk::open(&path, &FileOptions { direct: DirectIo::Require, write, create: false })?;
        let memory = IoBuf::zeroed(depth as usize * BLOCK_BYTES, PageKind::Small)?;
        let registered = vec![memory.region().clone()];
        let options = QueueOptions { depth_max: depth as usize, single_thread: !polled, registered };
        let queue = disk.queue_with(&options, &setup.options())?;
        if let (true, Some(missing)) = (setup.exact, missing(queue.notes())) {
            return Err(LabError::new(LabErrorKind::Unsupported, format!("access: {missing}")));
        }
        let buffers = memory.pieces(BLOCK_BYTES);
        Ok(Self { queue, buffers, done: Vec::with_capacity(depth as usize) })
    }

    /// Returns the features that the kernel refused, in words; `None` when the ring has all of its set-up.
    pub(super) fn missing(&self) -> Option<String> {
        missing(self.queue.notes())
    }

    /// Reads the blocks at a batch of positions; `see` is called with each position and its bytes. Returns the time
    /// from the first submission until the last completion, which for the caller is the latency of every block of the
    /// batch.
    ///
    /// # Errors
    /// The first operation's error.
    pub(super) fn read(&mut self, batch: &[u64], mut see: impl FnMut(u64, &[u8])) -> Result<Duration> {
        let started = Instant::now();
        for offset_bytes in batch {
            let buffer = self.buffers.pop().ok_or_else(no_buffer)?;
            self.push(Op::new(0, *offset_bytes, OpKind::Read(buffer)))?;
        }
        self.queue.reap(batch.len(), &mut self.done)?;
        let elapsed = started.elapsed();
        while let Some(completion) = self.done.pop() {
            let offset_bytes = completion.op.offset_bytes;
            let buffer = take(completion)?;
            see(offset_bytes, &buffer);
            self.buffers.push(buffer);
        }
        Ok(elapsed)
    }

    /// Overwrites a batch of positions with their expected content. Returns the time without the filling of the
    /// buffers.
    ///
    /// # Errors
    /// The first operation's error.
    pub(super) fn write(&mut self, batch: &[u64], content_seed: u64, durable: bool) -> Result<Duration> {
        let mut filled = Vec::with_capacity(batch.len());
        for offset_bytes in batch {
            let mut buffer = self.buffers.pop().ok_or_else(no_buffer)?;
            fill(&mut buffer, content_seed, *offset_bytes);
            filled.push(Op::new(0, *offset_bytes, OpKind::write(buffer, durable)));
        }
        let started = Instant::now();
        for op in filled {
            self.push(op)?;
        }
        self.queue.reap(batch.len(), &mut self.done)?;
        let elapsed = started.elapsed();
        while let Some(completion) = self.done.pop() {
            self.buffers.push(take(completion)?);
        }
        Ok(elapsed)
    }

    /// Makes all earlier writes durable (fdatasync through the ring).
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.push(Op::new(0, 0, OpKind::Sync))?;
        self.queue.reap(1, &mut self.done)?;
        match self.done.pop() {
            Some(completion) => Ok(completion.result.map(|_| ())?),
            None => Err(LabError::new(LabErrorKind::System, "a sync did not complete")),
        }
    }

    /// Pushes an operation into the ring's submission queue.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub(super) fn push(&mut self, op: Op) -> Result<()> {
        self.queue.push(op).map_err(|refused| refused.error.into())
    }
}

/// Returns the buffer of an operation that succeeded.
pub(super) fn take(completion: Completion) -> Result<IoBuf> {
    completion.result.clone()?;
    completion.into_buffer().ok_or_else(no_buffer)
}

fn no_buffer() -> LabError {
    LabError::new(LabErrorKind::System, "the ring did not return a buffer")
}

/// Extracts the features that the kernel refused from a ring's notes.
fn missing(notes: &[DiskNote]) -> Option<String> {
    let missing = notes.iter().filter(|note| note.kind == DiskNoteKind::Missing);
    let all: Vec<&str> = missing.map(|note| note.text.as_str()).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

// The open loop: a worker requests blocks at a fixed rate, whether or not earlier blocks have arrived.
//
// A closed loop requests the next block when the last one has arrived: a stall of 10 ms costs one sample. Here every
// request that should have started in that time is late as well, and `open_loop` counts from the moment when each
// *should* have started, next to `op`, the time from its actual start. The gap between the two is missing from
// closed-loop figures (coordinated omission).

/// How long before a deadline the thread spins instead of sleeping, because no sleep is exact to the microsecond.
const AWAKE: Duration = Duration::from_micros(60);

/// The times at which requests are due at a fixed rate.
struct Schedule {
    started: Instant,
    interval_s: f64,
    next: u64,
}

impl Schedule {
    fn new(rate_per_s: f64) -> Self {
        pace::exact_timer();
        Self { started: Instant::now(), interval_s: 1.0 / rate_per_s, next: 0 }
    }

    /// Returns the time at which the next request is due.
    fn due(&self) -> Instant {
        self.started + Duration::from_secs_f64(self.next as f64 * self.interval_s)
    }

    /// Waits until the next request is due; returns false when the trial ended before that.
    fn wait(&self, worker: &Worker<'_>) -> bool {
        pace::wait_until(worker, self.due(), AWAKE)
    }

    /// Records the number of requests that were due and the number that were started.
    fn close(&self, worker: &mut Worker<'_>) {
        let should = (self.started.elapsed().as_secs_f64() / self.interval_s) as u64;
        worker.figure("reads_scheduled", should as f64);
        worker.figure("reads_started", self.next as f64);
    }
}

/// Reads at a fixed rate and waits for each block, so that a slow read delays the later reads.
///
/// # Errors
/// The error of opening or reading.
pub(super) fn blocking(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    way: Way,
    rate_per_s: f64,
) -> Result<()> {
    let mut source = Source::open(layout, way)?;
    let mut positions = Positions::of(spec, layout);
    worker.start();
    let mut schedule = Schedule::new(rate_per_s);
    while schedule.wait(worker) {
        let (due, offset_bytes) = (schedule.due(), positions.next());
        let began = Instant::now();
        let right = source.read(layout, Place { file: 0, offset_bytes })?;
        let ended = Instant::now();
        worker.latency("op", ended - began);
        worker.latency("open_loop", ended - due);
        note(worker, right);
        schedule.next += 1;
    }
    schedule.close(worker);
    for place in Layout::sample(&spec.target, spec.seed) {
        worker.checksum(source.word(layout, place)?);
    }
    Ok(())
}

/// When a read in flight was due and when it began.
#[derive(Clone, Copy)]
struct Flight {
    due: Instant,
    began: Instant,
}

/// Reads at a fixed rate through a ring, which keeps up to its depth in flight.
///
/// # Errors
/// The error of opening or reading.
pub(super) fn ring(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    setup: Setup,
    rate_per_s: f64,
) -> Result<()> {
    let depth = spec.params.depth as usize;
    let mut ring = Ring::open(layout, spec.params.depth, setup, false, true)?;
    let mut positions = Positions::of(spec, layout);
    let mut flights = Flights { of_slot: vec![None; depth], free: (0..depth).collect() };
    worker.start();
    let mut schedule = Schedule::new(rate_per_s);
    while worker.running() {
        let mut pushed = false;
        while schedule.due() <= Instant::now() {
            let (Some(slot), Some(buffer)) = (flights.free.pop(), ring.buffers.pop()) else { break };
            flights.of_slot[slot] = Some(Flight { due: schedule.due(), began: Instant::now() });
            ring.push(Op::new(slot as u64, positions.next(), OpKind::Read(buffer)))?;
            schedule.next += 1;
            pushed = true;
        }
        if pushed {
            ring.queue.submit()?;
        }
        if flights.free.is_empty() {
            flights.land(worker, layout, &mut ring, 1)?;
        } else if flights.land(worker, layout, &mut ring, 0)? == 0 {
            if flights.free.len() == depth {
                schedule.wait(worker);
            } else {
                pace::wait_for_completion(&ring.queue, schedule.due())?;
            }
        }
    }
    schedule.close(worker);
    // Reads still in flight count, because otherwise the slowest reads would be missing.
    flights.land(worker, layout, &mut ring, depth)?;
    sum_sample_by_ring(worker, spec, &mut ring)
}

/// The reads in flight, by their slot, and the free slots.
struct Flights {
    of_slot: Vec<Option<Flight>>,
    free: Vec<usize>,
}

impl Flights {
    /// Takes completed reads, at least `wait_for` of them, and records their latencies; returns their number.
    fn land(&mut self, worker: &mut Worker<'_>, layout: &Layout, ring: &mut Ring, wait_for: usize) -> Result<usize> {
        ring.queue.reap(wait_for, &mut ring.done)?;
        let ended = Instant::now();
        let completed = ring.done.len();
        while let Some(completion) = ring.done.pop() {
            let (slot, offset_bytes) = (completion.op.token as usize, completion.op.offset_bytes);
            let buffer = take(completion)?;
            if let Some(flight) = self.of_slot.get_mut(slot).and_then(Option::take) {
                worker.latency("op", ended - flight.began);
                worker.latency("open_loop", ended - flight.due);
                note(worker, layout.is_right(&buffer, offset_bytes));
                self.free.push(slot);
            }
            ring.buffers.push(buffer);
        }
        Ok(completed)
    }
}

//! The measurement of a trial of `stalls`, method by method.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use nofault::blocking::Db;
use nofault::mmap::{Batch, Protocol, Settings, Store, WriteBack};
use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Disk, QueueOptions};
use nofault_io::mapped::{Advice, MappedFile, Protection};

use super::{
    ENGINE_SCAN, ENGINE_SCAN_NOPREFETCH, LOCKED_SHARE, MMAP_HELPERS, MMAP_MINCORE, MMAP_MLOCK, MMAP_NOWAIT,
    MMAP_POPULATE, MMAP_POPULATE_AHEAD, MMAP_READAHEAD, MMAP_SCAN_NORMAL, MMAP_SCAN_RANDOM, MMAP_SCAN_WILLNEED,
    MMAP_WILLNEED, OWN, POOL_FRAMES, measurement, number,
};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::machine::cache::{self, Means};
use crate::machine::pool::{self, ENTRIES_PER_BLOCK};
use crate::measure::read_loops::{self, order_seed, ring};
use crate::measure::workload::{self, Layout, Order, PAGE_BYTES, Place, first_word};
use crate::measure::{self, Work, Worker};
use crate::methods;
use crate::paths::shown;
use crate::read_trials;
use crate::record::{Outcome, TrialSpec};

// Accesses random pages in an order that is known some pages ahead, as in a scan of leaves or a batch of keys. Each
// work-around uses the known order in its own way.

/// Ids of the work-arounds using the order of the pages known ahead.
pub(super) const AHEAD_METHODS: [&str; 8] = [
    methods::MMAP.id,
    MMAP_WILLNEED.id,
    MMAP_READAHEAD.id,
    MMAP_POPULATE_AHEAD.id,
    MMAP_HELPERS.id,
    MMAP_POPULATE.id,
    MMAP_MLOCK.id,
    methods::URING_DIRECT.id,
];

/// How long a helper thread sleeps when it is far enough ahead.
const NAP: Duration = Duration::from_micros(50);

/// Measures one method of the variant `ahead`.
pub(super) fn run_ahead(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, PAGE_BYTES as u64)?;
    let plan = measurement(spec, context)?;
    if spec.method == methods::URING_DIRECT {
        let disk = ring::disk_of(&layout)?;
        let work: Work<'_> = Box::new(|worker| ring_in_order(worker, spec, &layout, &*disk));
        let mut outcome = measure::run(&plan, vec![work], &mut *context.on_tick)?;
        let buffers = u64::from(spec.params.depth) * PAGE_BYTES as u64;
        outcome.figures.insert("extra_memory_bytes".into(), buffers as f64);
        return Ok(outcome);
    }
    let map = open_map(&layout)?;
    let started = Instant::now();
    let mut extra_memory = 0;
    match methods::find(OWN, &spec.method) {
        // Populating twice the memory already evicts the first pages; populating all of it could take an hour.
        Some(&MMAP_POPULATE) => {
            let bytes = spec.memory.bytes.saturating_mul(2).max(1 << 30);
            map.populate(0..map.len_bytes().min(bytes as usize))?;
        }
        Some(&MMAP_MLOCK) => {
            let bytes = (spec.memory.bytes / LOCKED_SHARE).min(map.len_bytes() as u64);
            map.lock(0..bytes as usize / PAGE_BYTES * PAGE_BYTES)?;
            extra_memory = bytes;
        }
        _ => {}
    }
    let prepare_s = started.elapsed().as_secs_f64();
    let file = std::fs::File::open(&layout.paths[0])
        .map_err(|error| LabError::system(format!("open {}", shown(&layout.paths[0])), &error))?;
    let announce: Box<dyn Fn(Place) -> Result<()> + Send + Sync> = match methods::find(OWN, &spec.method) {
        Some(&MMAP_WILLNEED) => Box::new(|place| Ok(map.advise(Advice::WillNeed, page_of(place))?)),
        Some(&MMAP_POPULATE_AHEAD) => Box::new(|place| Ok(map.advise(Advice::PopulateRead, page_of(place))?)),
        Some(&MMAP_READAHEAD) => Box::new(move |place| {
            let len = std::num::NonZeroU64::new(PAGE_BYTES as u64);
            rustix::fs::fadvise(&file, place.offset_bytes, len, rustix::fs::Advice::WillNeed)
                .map_err(|errno| LabError::system("ask to read ahead", &errno.into()))
        }),
        Some(&methods::MMAP) | Some(&MMAP_HELPERS) | Some(&MMAP_POPULATE) | Some(&MMAP_MLOCK) => Box::new(|_| Ok(())),
        _ => return Err(read_loops::unknown(spec)),
    };
    let helpers = if spec.method == MMAP_HELPERS { number(spec, "helpers")? } else { 0 };
    let (at, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut outcome = std::thread::scope(|scope| {
        for helper in 0..helpers {
            let (map, layout, at, done) = (&map, &layout, &at, &done);
            scope.spawn(move || help(map, layout, spec, (helper, helpers), at, done));
        }
        let work: Work<'_> = Box::new(|worker| touch_in_order(worker, spec, &layout, &map, &*announce, &at));
        let outcome = measure::run(&plan, vec![work], &mut *context.on_tick);
        done.store(true, Ordering::Relaxed);
        outcome
    })?;
    outcome.figures.insert("extra_threads".into(), helpers as f64);
    outcome.figures.insert("extra_memory_bytes".into(), extra_memory as f64);
    outcome.figures.insert("prepare_s".into(), prepare_s);
    Ok(outcome)
}

/// Maps the only file of a trial with advice RANDOM, because otherwise read-ahead would decide the figures.
fn open_map(layout: &Layout) -> Result<MappedFile> {
    let [path] = &layout.paths[..] else {
        return Err(LabError::new(LabErrorKind::Usage, "stalls: a trial works on one file"));
    };
    // SAFETY: the lab holds its data files for itself and writes none of them while trials run; words are loaded under
    // guards, so that truncation by others is an error of the trial.
    let map = unsafe { MappedFile::open(path, Protection::ReadOnly) }?;
    map.advise(Advice::Random, 0..map.len_bytes())?;
    Ok(map)
}

fn page_of(place: Place) -> std::ops::Range<usize> {
    place.offset_bytes as usize..place.offset_bytes as usize + PAGE_BYTES
}

/// Loads the first word of a page and returns whether it is right.
pub(super) fn touch(map: &MappedFile, layout: &Layout, place: Place) -> Result<bool> {
    let word = std::hint::black_box(map.guarded(page_of(place), first_word)?);
    Ok(layout.is_right_word(word, place.offset_bytes))
}

fn touch_in_order(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    map: &MappedFile,
    announce: &(dyn Fn(Place) -> Result<()> + Send + Sync),
    at: &AtomicU64,
) -> Result<()> {
    let mut order = Order::random(layout, order_seed(spec), 0);
    let mut coming: VecDeque<Place> = VecDeque::with_capacity(spec.params.depth as usize + 1);
    worker.start();
    while worker.running() {
        let started = Instant::now();
        let next = layout.place(order.next_block());
        announce(next)?;
        coming.push_back(next);
        if coming.len() <= spec.params.depth as usize {
            continue;
        }
        let Some(place) = coming.pop_front() else { continue };
        let right = touch(map, layout, place)?;
        worker.latency("op", started.elapsed());
        worker.verified(right);
        worker.done(1, PAGE_BYTES as u64);
        at.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs a helper thread, which touches every `of`-th page of the same order, but no farther ahead than the order is
/// known.
fn help(
    map: &MappedFile,
    layout: &Layout,
    spec: &TrialSpec,
    (number, of): (u64, u64),
    at: &AtomicU64,
    done: &AtomicBool,
) {
    let mut order = Order::random(layout, order_seed(spec), 0);
    for index in 0.. {
        let place = layout.place(order.next_block());
        if index % of != number {
            continue;
        }
        while index > at.load(Ordering::Relaxed) + u64::from(spec.params.depth) {
            if done.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(NAP);
        }
        // Skip the page when the measured thread has touched it already.
        if index < at.load(Ordering::Relaxed) {
            if done.load(Ordering::Relaxed) {
                return;
            }
            continue;
        }
        // An error is ignored: the measured thread meets it at the same page, and reports it.
        let _ = touch(map, layout, place);
    }
}

/// Reads the same order of pages over a ring: reads of all pages known ahead are in flight, and the thread takes the
/// pages in order.
fn ring_in_order(worker: &mut Worker<'_>, spec: &TrialSpec, layout: &Layout, disk: &dyn Disk) -> Result<()> {
    let depth = (spec.params.depth as usize).max(1);
    let mut memory = IoBuf::zeroed(depth * PAGE_BYTES, PageKind::Small)?;
    memory.fill(0);
    let options = QueueOptions { depth_max: depth, single_thread: true, registered: vec![memory.region().clone()] };
    let mut queue = disk.queue(&options)?;
    let mut idle: Vec<IoBuf> = memory.pieces(PAGE_BYTES);
    let mut order = Order::random(layout, order_seed(spec), 0);
    let (mut first, mut next) = (0_u64, 0_u64);
    let mut places: VecDeque<(Place, Option<IoBuf>)> = VecDeque::with_capacity(depth);
    let mut finished: Vec<Completion> = Vec::with_capacity(depth);
    worker.start();
    loop {
        let started = Instant::now();
        if worker.running() {
            while let Some(buffer) = idle.pop() {
                let block = order.next_block();
                let op = Op::new(next, layout.striped_offset(block), OpKind::Read(buffer));
                queue.push(op).map_err(|refused| LabError::from(refused.error))?;
                places.push_back((layout.place(block), None));
                next += 1;
            }
            queue.submit()?;
        } else if places.is_empty() {
            return Ok(());
        }
        while places.front().is_some_and(|(_, buffer)| buffer.is_none()) {
            // Pages are taken in order, so there is no other work: this wait counts, as in the other methods.
            queue.reap(1, &mut finished)?;
            for completion in finished.drain(..) {
                if let Err(error) = &completion.result {
                    return Err(error.clone().into());
                }
                let index = (completion.op.token - first) as usize;
                let buffer = completion.into_buffer();
                if let Some(entry) = places.get_mut(index) {
                    entry.1 = buffer;
                }
            }
        }
        let Some((place, Some(buffer))) = places.pop_front() else { continue };
        first += 1;
        let right = layout.is_right_word(std::hint::black_box(first_word(&buffer)), place.offset_bytes);
        idle.push(buffer);
        worker.latency("op", started.elapsed());
        worker.verified(right);
        worker.done(1, PAGE_BYTES as u64);
    }
}

// Measures probing: a thread with many requests checks for each page whether it is in memory, passes absent pages to
// helper threads, and continues with the next request. The thread stalls only when a page is evicted between check and
// access.

/// Ids of the methods, one for each call that tells whether a page is in memory.
pub(super) const PROBE_METHODS: [&str; 2] = [MMAP_MINCORE.id, MMAP_NOWAIT.id];

/// A queue of pages for the helper threads to touch; closed when the trial ends.
#[derive(Default)]
struct PageQueue {
    places: Mutex<(VecDeque<Place>, bool)>,
    changed: Condvar,
}

impl PageQueue {
    fn push(&self, place: Place) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).0.push_back(place);
        self.changed.notify_one();
    }

    fn close(&self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    fn pop(&self) -> Option<Place> {
        let mut held = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match (held.0.pop_front(), held.1) {
                (_, true) => return None,
                (Some(place), false) => return Some(place),
                (None, false) => held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Measures one method of probing.
pub(super) fn run_probe(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, PAGE_BYTES as u64)?;
    let plan = measurement(spec, context)?;
    let helpers = number(spec, "helpers")?.max(1);
    let map = open_map(&layout)?;
    let path = &layout.paths[0];
    let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
    let nowait = match methods::find(OWN, &spec.method) {
        Some(&MMAP_NOWAIT) => true,
        Some(&MMAP_MINCORE) => false,
        _ => return Err(read_loops::unknown(spec)),
    };
    let is_resident = |place: Place| if nowait { answers_at_once(&file, place) } else { is_in_core(&map, place) };
    let wanted = PageQueue::default();
    let (fetched, arrivals) = mpsc::channel();
    let mut outcome = std::thread::scope(|scope| {
        for _ in 0..helpers {
            let (map, layout, wanted, fetched) = (&map, &layout, &wanted, fetched.clone());
            scope.spawn(move || {
                while let Some(place) = wanted.pop() {
                    // An error is ignored: the measured thread meets it at the same page, and reports it.
                    let _ = touch(map, layout, place);
                    if fetched.send(place).is_err() {
                        return;
                    }
                }
            });
        }
        let arrivals = Mutex::new(arrivals);
        let work: Work<'_> = Box::new(|worker| {
            let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            serve(worker, spec, &layout, &map, &is_resident, &wanted, &arrivals)
        });
        let outcome = measure::run(&plan, vec![work], &mut *context.on_tick);
        wanted.close();
        outcome
    })?;
    outcome.figures.insert("extra_threads".into(), helpers as f64);
    Ok(outcome)
}

fn serve(
    worker: &mut Worker<'_>,
    spec: &TrialSpec,
    layout: &Layout,
    map: &MappedFile,
    is_resident: &(dyn Fn(Place) -> Result<bool> + Send + Sync),
    wanted: &PageQueue,
    arrivals: &mpsc::Receiver<Place>,
) -> Result<()> {
    let mut order = Order::random(layout, order_seed(spec), 0);
    let mut away = 0;
    worker.start();
    while worker.running() {
        // Fetched pages are accessed first, because they may be evicted again.
        let ready = match away >= spec.params.depth {
            true => {
                let before = Instant::now();
                let place = arrivals.recv().ok();
                worker.latency("wait", before.elapsed());
                place
            }
            false => arrivals.try_recv().ok(),
        };
        let started = Instant::now();
        let right = match ready {
            Some(place) => {
                away -= 1;
                touch(map, layout, place)?
            }
            None => {
                let place = layout.place(order.next_block());
                if !is_resident(place)? {
                    wanted.push(place);
                    away += 1;
                    worker.latency("probe", started.elapsed());
                    continue;
                }
                touch(map, layout, place)?
            }
        };
        worker.latency("op", started.elapsed());
        worker.verified(right);
        worker.done(1, PAGE_BYTES as u64);
    }
    Ok(())
}

/// Whether the page can be read without waiting, tested by reading its first byte with `RWF_NOWAIT`.
fn answers_at_once(file: &File, place: Place) -> Result<bool> {
    let mut byte = [0_u8];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    match rustix::io::preadv2(file.as_fd(), &mut into, place.offset_bytes, rustix::io::ReadWriteFlags::NOWAIT) {
        Ok(count) => Ok(count == 1),
        Err(rustix::io::Errno::AGAIN) => Ok(false),
        Err(errno) => Err(LabError::system("probe with RWF_NOWAIT", &errno.into())),
    }
}

/// Whether the page is in memory according to `mincore`.
fn is_in_core(map: &MappedFile, place: Place) -> Result<bool> {
    let mut told = 0_u8;
    let start = map.bytes().as_ptr().wrapping_add(place.offset_bytes as usize);
    // SAFETY: one page of a map that lives, and room for one answer; the call changes nothing else.
    match unsafe { libc::mincore(start.cast_mut().cast(), PAGE_BYTES, &raw mut told) } {
        0 => Ok(told & 1 == 1),
        _ => Err(LabError::system("ask mincore", &std::io::Error::last_os_error())),
    }
}

// Measures data that fits: a quarter of the memory, touched at random for the whole trial, while a background load in
// the same memory reads the rest of the file through the page cache. The kernel may evict data even though it fits.

/// Ids of the methods, each of which has its own way of keeping the data in memory.
pub(super) const FITS_METHODS: [&str; 5] =
    [methods::MMAP.id, MMAP_WILLNEED.id, MMAP_POPULATE.id, MMAP_MLOCK.id, POOL_FRAMES.id];

/// Bytes that the background load reads at a time.
const BACKGROUND_BYTES: usize = 1 << 20;
/// Number of touches between two readings of the clock: one, because a stall would be hidden among several fast
/// touches.
const TOUCHES: u64 = 1;

/// Measures one method of the variant `fits`.
pub(super) fn run_fits(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, PAGE_BYTES as u64)?;
    let plan = measurement(spec, context)?;
    let count = (number(spec, "working_set")? / PAGE_BYTES as u64).clamp(1, layout.block_count());
    let first = layout.place(0).offset_bytes;
    let bytes = count as usize * PAGE_BYTES;
    let range = first as usize..first as usize + bytes;
    let path = layout.paths[0].clone();
    let failed = |error: std::io::Error| LabError::system(format!("read {}", shown(&path)), &error);
    let file = File::open(&path).map_err(failed)?;
    let map = open_map(&layout)?;
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
            let direct = crate::measure::read_loops::sync::Files::open(
                &layout,
                crate::measure::read_loops::sync::Means::Direct,
            )?;
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
            None => touch(map, layout, place)?,
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

// Measures scans of a tree's leaves: of the engine's tree, with the pool prefetching the next leaves and with each leaf
// read when the scan reaches it; and of the same tree over a mapped file, under each hint. `op` is the time of one
// entry, of which four lie in a leaf.

/// Ids of the engine's methods.
pub(super) const LEAF_METHODS: [&str; 2] = [ENGINE_SCAN.id, ENGINE_SCAN_NOPREFETCH.id];

/// Ids of the methods that scan the tree over a mapped file.
pub(super) const MAPPED_SCANS: [&str; 3] = [MMAP_SCAN_NORMAL.id, MMAP_SCAN_RANDOM.id, MMAP_SCAN_WILLNEED.id];

/// Measures one method of the variant `leaf-scan`.
pub(super) fn run_leaf_scan(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    match methods::find(OWN, &spec.method) {
        Some(&ENGINE_SCAN) => of_engine(spec, usize::MAX, context),
        Some(&ENGINE_SCAN_NOPREFETCH) => of_engine(spec, 0, context),
        Some(&MMAP_SCAN_NORMAL) => of_map(spec, (false, 0), context),
        Some(&MMAP_SCAN_RANDOM) => of_map(spec, (true, 0), context),
        Some(&MMAP_SCAN_WILLNEED) => of_map(spec, (true, spec.params.depth as usize), context),
        _ => Err(read_loops::unknown(spec)),
    }
}

/// Scans the engine's tree, with this many leaves asked for ahead at most.
fn of_engine(spec: &TrialSpec, ahead: usize, context: &mut Context<'_>) -> Result<Outcome> {
    // A map has small pages.
    read_trials::without_huge_pages()?;
    let cache_bytes = number(spec, "cache_bytes")?;
    let db = Db::open(pool::database_of(&spec.target)?, &pool::settings(cache_bytes as usize))?;
    let table = db.table(pool::TABLE)?;
    let mut outcome = scans(spec, context, || {
        let mut range = table.range::<&[u8]>(..).read_ahead_max(ahead);
        move |look: &mut dyn FnMut(&[u8], &[u8])| -> Result<bool> {
            let entry = range.next_ref()?;
            Ok(entry.map(|(key, value)| look(key, value)).is_some())
        }
    })?;
    let stats = db.stats().pool;
    outcome.figures.insert("pool_memory_bytes".into(), stats.memory_bytes as f64);
    outcome.figures.insert("pool_misses".into(), stats.misses as f64);
    Ok(outcome)
}

/// Scans the tree over a mapped file: told RANDOM or nothing, and with this many leaves asked for ahead.
fn of_map(spec: &TrialSpec, (random, ahead): (bool, usize), context: &mut Context<'_>) -> Result<Outcome> {
    let store = open_tree(spec, random, context.cancel, context.cold)?;
    let snapshot = store.snapshot();
    scans(spec, context, || {
        let mut range = snapshot.leaf_scan(ahead);
        move |look: &mut dyn FnMut(&[u8], &[u8])| -> Result<bool> {
            let entry = range.next_ref()?;
            Ok(entry.map(|(key, value)| look(key, value)).is_some())
        }
    })
}

/// Measures scans over the whole table, one after another. `begin` starts one; the function that it returns shows the
/// next entry, and returns false at the end.
fn scans<Next>(spec: &TrialSpec, context: &mut Context<'_>, begin: impl Fn() -> Next + Send) -> Result<Outcome>
where
    Next: FnMut(&mut dyn FnMut(&[u8], &[u8])) -> Result<bool>,
{
    let plan = measurement(spec, context)?;
    let seed = spec.target.content_seed;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            let mut next = begin();
            let mut more = true;
            while more && worker.running() {
                let mut right = true;
                let started = Instant::now();
                let mut elapsed = None;
                more = next(&mut |key, value| {
                    elapsed = Some(started.elapsed());
                    let block = key.first_chunk().map_or(u64::MAX, |key| u64::from_be_bytes(*key)) / ENTRIES_PER_BLOCK;
                    right = seed.is_none_or(|seed| pool::is_right(value, seed, block));
                })?;
                let Some(elapsed) = elapsed else { break };
                worker.latency("op", elapsed);
                worker.verified(right);
                worker.done(1, PAGE_BYTES as u64 / ENTRIES_PER_BLOCK);
            }
        }
        Ok(())
    });
    measure::run(&plan, vec![work], &mut *context.on_tick)
}

// The lab's data in the engine's B+tree over a mapped file (`nofault::mmap`): the entries of the engine's own database,
// in nodes of the same format.
//
// The first trial needing the tree makes it, in the experiment's own folder; the others find it there. A file next
// to it, written last, says which data it holds.

/// Blocks of the data in one commit while the tree is made: 4 MiB.
const BLOCKS_A_COMMIT: usize = 1024;
/// Planned rate of making the tree, in bytes a second.
pub(super) const MAKE_BYTES_PER_S: f64 = 150e6;

/// Opens the tree of a trial's target, and makes it first where it is missing. A tree just made is on the device only.
///
/// # Errors
/// `Usage` for a target that is not one folder, `Interrupted`, or the error of the system or the store.
fn open_tree(spec: &TrialSpec, random: bool, cancel: &AtomicBool, cold: Means) -> Result<Store> {
    let [folder] = &spec.target.paths[..] else {
        return Err(LabError::new(LabErrorKind::Usage, "stalls: a mapped tree lies in one folder"));
    };
    let (tree, note) = (Path::new(folder).join("tree"), Path::new(folder).join("tree.content"));
    let content = format!("{} bytes, seed {:?}\n", spec.target.data_bytes, spec.target.content_seed);
    if fs::read_to_string(&note).unwrap_or_default() != content {
        make(spec, &tree, cancel, cold)?;
        fs::write(&note, content).map_err(|error| LabError::system(shown(&note), &error))?;
    }
    // SAFETY: the folder is the lab's own, and one trial at a time opens its files.
    Ok(unsafe { Store::open(&tree, &settings(spec, random)) }?)
}

fn settings(spec: &TrialSpec, random: bool) -> Settings {
    // Room for the copies of the pages that a commit changes; unused parts of the file take no space.
    let map_bytes = (spec.target.data_bytes * 2 + (64 << 20)).next_multiple_of(1 << 20);
    Settings { map_bytes, random, ..Settings::new(Protocol::Shadow(WriteBack::Call)) }
}

fn make(spec: &TrialSpec, tree: &Path, cancel: &AtomicBool, cold: Means) -> Result<()> {
    match fs::remove_dir_all(tree) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(LabError::system(format!("empty {}", shown(&tree)), &error));
        }
        _ => {}
    }
    // SAFETY: as in `open_tree`.
    let store = unsafe { Store::create(tree, &settings(spec, true)) }?;
    let seed = spec.target.content_seed.unwrap_or_default();
    let blocks: Vec<u64> = (0..spec.target.data_bytes / PAGE_BYTES as u64).collect();
    for blocks in blocks.chunks(BLOCKS_A_COMMIT) {
        if cancel.load(Relaxed) {
            return Err(LabError::interrupted());
        }
        let mut batch = Batch::new();
        for (key, value) in blocks.iter().flat_map(|block| pool::entries(seed, *block)) {
            batch.put(key, value);
        }
        store.write(&batch)?;
    }
    drop(store);
    cache::make_cold(&[tree], cold).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::cold_in_tests;
    use crate::machine::data::DataSpec;

    #[test]
    fn a_block_costs_the_mapped_tree_one_page_and_the_tree_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = DataSpec { seed: 5, data_bytes: 3000 * PAGE_BYTES as u64 };
        let mut file = crate::report::verdict::tests::file(super::super::ID, "leaf-scan", &[("mmap-scan-normal", 1.0)]);
        let mut spec = file.trials.remove(0).spec;
        spec.target = crate::machine::data::target("file", &[folder.path()], wanted);
        let open_tree = |spec: &TrialSpec| open_tree(spec, true, &AtomicBool::new(false), cold_in_tests());
        let store = open_tree(&spec).unwrap();
        let verified = store.verify().unwrap();
        assert_eq!(verified.entries, 3000 * pool::ENTRIES_PER_BLOCK);
        let used = verified.pages_used;
        assert!((3000..3200).contains(&used), "{used} pages for 3000 blocks");
        let of_keys = |store: &Store, read_ahead: usize| {
            let snapshot = store.snapshot();
            let mut range = snapshot.leaf_scan(read_ahead);
            let mut keys = 0;
            while let Some((key, value)) = range.next_ref().unwrap() {
                let block = u64::from_be_bytes(key.try_into().unwrap()) / pool::ENTRIES_PER_BLOCK;
                assert!(pool::is_right(value, 5, block));
                keys += 1;
            }
            keys
        };
        assert_eq!([0, 1, 32].map(|ahead| of_keys(&store, ahead)), [3000 * pool::ENTRIES_PER_BLOCK; 3]);
        drop(store);
        let made = |folder: &Path| fs::metadata(folder.join("tree.content")).unwrap().modified().unwrap();
        let first = made(folder.path());
        drop(open_tree(&spec).unwrap());
        assert_eq!(made(folder.path()), first, "found, not made again");
        spec.target.content_seed = Some(6);
        let other = open_tree(&spec).unwrap();
        let value = other.get(&pool::key(0, 0)).unwrap().unwrap();
        assert!(pool::is_right(&value, 6, 0), "other data: made anew");
        let cancelled = |spec: &TrialSpec| super::open_tree(spec, true, &AtomicBool::new(true), cold_in_tests());
        drop(other);
        spec.target.content_seed = Some(7);
        assert_eq!(cancelled(&spec).err().unwrap().kind(), LabErrorKind::Interrupted);
    }
}

//! Accesses random pages in an order that is known some pages ahead, as in a scan of leaves or a batch of keys. Each
//! work-around uses the known order in its own way.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{Disk, QueueOptions};
use nofault_io::mapped::{Advice, MappedFile, Protection};

use super::{
    LOCKED_SHARE, MMAP_HELPERS, MMAP_MLOCK, MMAP_POPULATE, MMAP_POPULATE_AHEAD, MMAP_READAHEAD, MMAP_WILLNEED, OWN,
    measurement, number,
};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::measure::{self, Work, Worker};
use crate::methods;
use crate::paths::shown;
use crate::read_loops::{self, order_seed, ring};
use crate::record::{Outcome, TrialSpec};
use crate::workload::{self, Layout, Order, PAGE_BYTES, Place, first_word};

/// Ids of the work-arounds using the order of the pages known ahead.
pub(super) const METHODS: [&str; 8] = [
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
pub(super) fn run(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
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
    let map = open(&layout)?;
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
pub(super) fn open(layout: &Layout) -> Result<MappedFile> {
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

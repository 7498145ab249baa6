//! The measurement of a trial of `batch`, method by method.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError, RwLock};
use std::time::Instant;

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{DirectIo, Disk, FileOptions, Queue, QueueOptions};
use nofault_io::mapped::Advice;
use nofault_io::uring::UringDisk;

use super::{
    BATCH_GET_MANY, BATCH_POPULATE, BATCH_PREAD, BATCH_PREAD_THREADS, BATCH_PROCESS_MADVISE, BATCH_RING,
    BATCH_RING_BUFFERED, BATCH_TOUCH, BATCH_TOUCH_THREADS, BATCH_WILLNEED, COLD, HELPERS, OWN, PAGES, number,
};
use crate::error::{LabError, Result};
use crate::experiment::Context;
use crate::measure::read_loops::fill::{self, Memory};
use crate::measure::read_loops::map::Maps;
use crate::measure::read_loops::pool::Pool;
use crate::measure::read_loops::sync::{Files, Means};
use crate::measure::read_loops::{self, Pattern, order_seed, ring};
use crate::measure::workload::{self, Layout, Order, PAGE_BYTES, Place, first_word};
use crate::measure::{self, Measurement, Work, Worker};
use crate::methods;
use crate::read_trials;
use crate::record::{Outcome, TrialSpec};

// The loops of `batch`: a request's blocks are drawn, its clock starts, one method answers it, its clock stops.

/// Ids of the methods.
pub(super) const METHODS: [&str; 10] = [
    BATCH_TOUCH.id,
    BATCH_WILLNEED.id,
    BATCH_PROCESS_MADVISE.id,
    BATCH_POPULATE.id,
    BATCH_TOUCH_THREADS.id,
    BATCH_PREAD.id,
    BATCH_PREAD_THREADS.id,
    BATCH_RING.id,
    BATCH_RING_BUFFERED.id,
    BATCH_GET_MANY.id,
];

/// Number of requests submitted to a ring together: a virtual disk takes a large submission as one.
const SUBMITTED: usize = 32;

/// Measures one trial.
///
/// # Errors
/// `Usage` for an unknown method; the error of opening or reading.
pub(super) fn run(spec: &TrialSpec, context: &mut Context<'_>) -> Result<Outcome> {
    let layout = workload::layout_of(spec, PAGE_BYTES as u64)?;
    let plan = Measurement {
        memory_bytes: read_loops::memory_limit_of(spec).filter(|_| spec.variant == COLD),
        ..context.timed(spec)?
    };
    let trial = Trial { spec, layout: &layout, plan: &plan };
    match methods::find(OWN, &spec.method) {
        Some(&BATCH_TOUCH)
        | Some(&BATCH_WILLNEED)
        | Some(&BATCH_PROCESS_MADVISE)
        | Some(&BATCH_POPULATE)
        | Some(&BATCH_TOUCH_THREADS) => trial.through_a_map(context),
        Some(&BATCH_PREAD) | Some(&BATCH_PREAD_THREADS) => trial.by_calls(context),
        Some(&BATCH_RING) => trial.by_a_ring(&*ring::disk_of(&layout)?, context),
        Some(&BATCH_RING_BUFFERED) => {
            let files = Files::open(&layout, Means::BufferedRandom)?;
            read_trials::settle_files(spec, &layout, Pattern::Random, &files, context.cancel)?;
            let options = FileOptions { direct: DirectIo::Never, write: false, create: false };
            trial.by_a_ring(&UringDisk::open(&layout.paths[0], &options)?, context)
        }
        Some(&BATCH_GET_MANY) => trial.by_the_pool(context),
        _ => Err(read_loops::unknown(spec)),
    }
}

/// Answers a request for these blocks, and returns the number of pages with wrong content.
type Answer<'a> = Box<dyn FnMut(&[u64]) -> Result<u64> + 'a>;

/// A trial with its data and its measurement.
struct Trial<'a> {
    spec: &'a TrialSpec,
    layout: &'a Layout,
    plan: &'a Measurement<'a>,
}

impl Trial<'_> {
    /// Measures requests, one after another. `prepare` makes the answering function on the thread using it.
    fn measure<'w>(
        &self,
        context: &mut Context<'_>,
        prepare: impl FnOnce() -> Result<Answer<'w>> + Send + 'w,
    ) -> Result<Outcome> {
        let pages = number(self.spec, PAGES)?;
        let mut order = Order::random(self.layout, order_seed(self.spec), 0);
        let work: Work<'w> = Box::new(move |worker: &mut Worker<'_>| {
            let mut answer = prepare()?;
            let mut blocks = vec![0; pages as usize];
            worker.start();
            while worker.running() {
                blocks.iter_mut().for_each(|block| *block = order.next_block());
                let started = Instant::now();
                let wrong = answer(&blocks)?;
                worker.latency("op", started.elapsed());
                worker.verified_many(u64::from(pages), wrong);
                worker.done(u64::from(pages), u64::from(pages) * PAGE_BYTES as u64);
            }
            Ok(())
        });
        measure::run(self.plan, vec![work], &mut *context.on_tick)
    }

    /// Brings memory into the state of the variant, through the page cache and, with `maps`, the page table.
    fn prepare(&self, files: &Files, maps: Option<&Maps>, context: &Context<'_>) -> Result<()> {
        match (self.memory(), maps) {
            (Memory::Settled, Some(maps)) => {
                read_trials::settle_maps(self.spec, self.layout, Pattern::Random, maps, context.cancel).map(drop)
            }
            (Memory::Settled, None) => {
                read_trials::settle_files(self.spec, self.layout, Pattern::Random, files, context.cancel).map(drop)
            }
            _ => fill::fill(self.spec, self.layout, maps, context.cancel),
        }
    }

    fn memory(&self) -> Memory {
        if self.spec.variant == COLD { Memory::Full } else { Memory::Settled }
    }

    fn through_a_map(&self, context: &mut Context<'_>) -> Result<Outcome> {
        let maps = Maps::open(self.layout, Advice::Random)?;
        let files = Files::open(self.layout, Means::BufferedRandom)?;
        self.prepare(&files, Some(&maps), context)?;
        let (layout, maps) = (self.layout, &maps);
        let touch = move |place: Place| -> Result<bool> {
            Ok(layout.is_right_word(std::hint::black_box(maps.word_at(place)?), place.offset_bytes))
        };
        if self.spec.method == BATCH_TOUCH_THREADS {
            let helpers = number(self.spec, HELPERS)?;
            let reader = || -> Result<Reader<'_>> { Ok(Box::new(touch)) };
            return with(layout, helpers, &reader, |answer| {
                self.measure(context, || Ok(Box::new(|blocks: &[u64]| answer(blocks))))
            });
        }
        let ask = Ask::of(&self.spec.method, maps)?;
        self.measure(context, || {
            let mut places: Vec<Place> = Vec::new();
            Ok(Box::new(move |blocks: &[u64]| {
                places.clear();
                places.extend(blocks.iter().map(|block| layout.place(*block)));
                ask.for_pages(&places)?;
                count_wrong(&places, touch)
            }))
        })
    }

    fn by_calls(&self, context: &mut Context<'_>) -> Result<Outcome> {
        let files = Files::open(self.layout, Means::BufferedRandom)?;
        self.prepare(&files, None, context)?;
        let (layout, files) = (self.layout, &files);
        let reader = || -> Result<Reader<'_>> {
            let mut buffer = IoBuf::zeroed(PAGE_BYTES, PageKind::Small)?;
            Ok(Box::new(move |place: Place| {
                files.read(layout, place.file, place.offset_bytes, &mut buffer)?;
                Ok(layout.is_right(&buffer, place.offset_bytes).unwrap_or(true))
            }))
        };
        if self.spec.method == BATCH_PREAD_THREADS {
            let helpers = number(self.spec, HELPERS)?;
            return with(layout, helpers, &reader, |answer| {
                self.measure(context, || Ok(Box::new(|blocks: &[u64]| answer(blocks))))
            });
        }
        self.measure(context, || {
            let mut read = reader()?;
            Ok(Box::new(move |blocks: &[u64]| {
                blocks.iter().try_fold(0, |wrong, block| Ok(wrong + u64::from(!read(layout.place(*block))?)))
            }))
        })
    }

    fn by_a_ring(&self, disk: &dyn Disk, context: &mut Context<'_>) -> Result<Outcome> {
        let pages = number(self.spec, PAGES)? as usize;
        let layout = self.layout;
        self.measure(context, move || {
            let mut memory = IoBuf::zeroed(pages * PAGE_BYTES, PageKind::Small)?;
            memory.fill(0);
            let registered = vec![memory.region().clone()];
            let mut queue = disk.queue(&QueueOptions { depth_max: pages, single_thread: true, registered })?;
            let mut idle = memory.pieces(PAGE_BYTES);
            let mut finished: Vec<Completion> = Vec::with_capacity(pages);
            Ok(Box::new(move |blocks: &[u64]| ring_answer(&mut *queue, layout, &mut idle, &mut finished, blocks)))
        })
    }

    fn by_the_pool(&self, context: &mut Context<'_>) -> Result<Outcome> {
        read_trials::without_huge_pages()?;
        let pool = Pool::open(self.spec)?;
        if self.memory() == Memory::Settled {
            let blocks = self.layout.block_count();
            pool.warm(0..blocks)?;
        }
        let pool_ref = &pool;
        let mut outcome = self.measure(context, || Ok(Box::new(move |blocks: &[u64]| pool_ref.get_many(blocks))))?;
        pool.record_in(&mut outcome);
        Ok(outcome)
    }
}

/// Reads all blocks of a request through a ring, which has them all in flight.
fn ring_answer(
    queue: &mut dyn Queue,
    layout: &Layout,
    idle: &mut Vec<IoBuf>,
    finished: &mut Vec<Completion>,
    blocks: &[u64],
) -> Result<u64> {
    for (index, block) in blocks.iter().enumerate() {
        let Some(buffer) = idle.pop() else { break };
        let op = Op::new(index as u64, layout.striped_offset(*block), OpKind::Read(buffer));
        queue.push(op).map_err(|refused| LabError::from(refused.error))?;
        if (index + 1) % SUBMITTED == 0 {
            queue.submit()?;
        }
    }
    queue.reap(queue.in_flight(), finished)?;
    let mut wrong = 0;
    let mut failed = None;
    for completion in finished.drain(..) {
        let block = blocks.get(completion.op.token as usize).copied().unwrap_or_default();
        if let Err(error) = &completion.result {
            failed.get_or_insert_with(|| error.clone());
        }
        let Some(buffer) = completion.into_buffer() else { continue };
        wrong += u64::from(!layout.is_right_word(first_word(&buffer), layout.place(block).offset_bytes));
        idle.push(buffer);
    }
    failed.map_or(Ok(wrong), |error| Err(error.into()))
}

/// How the kernel is asked for pages before they are touched.
enum Ask<'a> {
    Nothing,
    Each(&'a Maps, Advice),
    Together(&'a Maps, OwnedFd),
}

impl<'a> Ask<'a> {
    fn of(method: &str, maps: &'a Maps) -> Result<Self> {
        Ok(match methods::find(OWN, method) {
            Some(&BATCH_WILLNEED) => Self::Each(maps, Advice::WillNeed),
            Some(&BATCH_POPULATE) => Self::Each(maps, Advice::PopulateRead),
            Some(&BATCH_PROCESS_MADVISE) => {
                let own = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
                Self::Together(maps, own.map_err(|errno| LabError::system("open this process", &errno.into()))?)
            }
            _ => Self::Nothing,
        })
    }

    fn for_pages(&self, places: &[Place]) -> Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Each(maps, advice) => places.iter().try_for_each(|place| maps.advise_page(*place, *advice)),
            Self::Together(maps, own) => maps.ask_for(places, own.as_fd()),
        }
    }
}

fn count_wrong(places: &[Place], touch: impl Fn(Place) -> Result<bool>) -> Result<u64> {
    places.iter().try_fold(0, |wrong, place| Ok(wrong + u64::from(!touch(*place)?)))
}

// Threads that share one request: each takes an equal part of its pages. They live as long as the trial and wait at a
// barrier between requests.

/// Reads one page on a dedicated thread, and returns whether its content is right.
type Reader<'a> = Box<dyn FnMut(Place) -> Result<bool> + 'a>;

/// The state that the threads share.
struct Shared {
    blocks: RwLock<Vec<u64>>,
    wrong: AtomicU64,
    error: Mutex<Option<LabError>>,
    stop: AtomicBool,
    /// Passed by all threads and the caller twice for each request: at its start and at its end.
    barrier: Barrier,
}

/// Starts `count` threads, each with its own reader, runs `body` with a function that answers one request by all of them,
/// and ends the threads.
///
/// # Errors
/// The error of `body`; a thread's first error is the request's.
pub(super) fn with<'a, T>(
    layout: &Layout,
    count: u32,
    reader: &(dyn Fn() -> Result<Reader<'a>> + Sync),
    body: impl FnOnce(&(dyn Fn(&[u64]) -> Result<u64> + Sync)) -> Result<T>,
) -> Result<T> {
    let shared = Shared {
        blocks: RwLock::new(Vec::new()),
        wrong: AtomicU64::new(0),
        error: Mutex::new(None),
        stop: AtomicBool::new(false),
        barrier: Barrier::new(count as usize + 1),
    };
    std::thread::scope(|scope| {
        for number in 0..count {
            let shared = &shared;
            scope.spawn(move || shared.serve(layout, (number as usize, count as usize), reader));
        }
        let result = body(&|blocks| shared.answer(blocks));
        shared.stop.store(true, Ordering::Release);
        shared.barrier.wait();
        result
    })
}

impl Shared {
    fn serve<'a>(
        &self,
        layout: &Layout,
        (number, of): (usize, usize),
        reader: &(dyn Fn() -> Result<Reader<'a>> + Sync),
    ) {
        // A thread without a reader still has to pass the barriers.
        let mut reader = reader();
        loop {
            self.barrier.wait();
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) =
                reader.as_mut().map_err(|error| error.clone()).and_then(|read| self.share(layout, (number, of), read))
            {
                self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            self.barrier.wait();
        }
    }

    /// Reads every `of`-th page of the request.
    fn share(&self, layout: &Layout, (number, of): (usize, usize), read: &mut Reader<'_>) -> Result<()> {
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        let mut wrong = 0;
        for block in blocks.iter().skip(number).step_by(of) {
            wrong += u64::from(!read(layout.place(*block))?);
        }
        self.wrong.fetch_add(wrong, Ordering::Relaxed);
        Ok(())
    }

    fn answer(&self, blocks: &[u64]) -> Result<u64> {
        {
            let mut shared = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
            shared.clear();
            shared.extend_from_slice(blocks);
        }
        self.wrong.store(0, Ordering::Relaxed);
        self.barrier.wait();
        self.barrier.wait();
        match self.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(self.wrong.load(Ordering::Relaxed)),
        }
    }
}

//! The measurement of a trial of `async`, method by method.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nofault_io::aligned::{IoBuf, PageKind};
use nofault_io::completion::{Completion, Op, OpKind};
use nofault_io::disk::{DirectIo, FileOptions, Queue, QueueOptions};
use nofault_io::mapped::{Advice, MappedFile, Protection, prefetch};
use nofault_io::uring::{UringDisk, UringOptions};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::error::{LabError, LabErrorKind, Result};
use crate::machine::content::{self, BLOCK_BYTES};
use crate::machine::pool as database;
use crate::measure::Worker;
use crate::measure::entries::mix;
use crate::measure::read_loops::pool::Pool;
use crate::measure::ticker::Ticker;
use crate::paths::shown;
use crate::record::{CacheState, TrialSpec};

// The work on one file, in steps: a touch of 4 KiB, or one stretch of the source's sequential sum. A step blocks; its
// cost depends on the calling task or thread.

/// Bytes that one step of the sequential sum covers: the size of the published measurement's read buffer.
const STRETCH_BYTES: u64 = 64 << 10;
/// Distance in bytes between the bytes that the published measurement sums.
const SUM_STRIDE: usize = 512;
/// Number of touches by which a prefetch instruction precedes its page's touch.
const PREFETCH_AHEAD: usize = 8;

/// The way in which a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// A shared map of the file.
    Map,
    /// A shared map of the file, each page of which was touched before the clock starts.
    TouchedMap,
    /// Read calls.
    Read,
}

/// The work on one file.
pub(super) struct Job {
    pub(super) path: PathBuf,
    content: Content,
    order: Order,
    next: usize,
    source: Option<Source>,
    prefetch: bool,
    buffer: Vec<u8>,
}

/// The expected content of the blocks that a job reads.
#[derive(Debug, Clone, Copy)]
struct Content {
    pub(super) seed: Option<u64>,
    /// First data block of the job's range: jobs on one device have a range each.
    first_block: u64,
}

/// The order in which a job reads its blocks.
#[derive(Debug, Clone)]
enum Order {
    /// These blocks of the file, one at a time, in this order.
    Touches(Arc<[u64]>),
    /// All blocks from front to back, in steps of [`STRETCH_BYTES`].
    Sequential { blocks: u64 },
}

enum Source {
    Map(MappedFile),
    Read(Arc<File>),
}

/// Counts, sum and time of one step of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepResult {
    pub(super) ops: u64,
    pub(super) bytes: u64,
    pub(super) verified: u64,
    pub(super) wrong: u64,
    pub(super) sum: u64,
    elapsed: Duration,
}

impl StepResult {
    /// Adds the step's counts, time and sum to the worker's.
    pub(super) fn note(self, worker: &mut Worker<'_>) {
        worker.done(self.ops, self.bytes);
        worker.latency("op", self.elapsed);
        worker.checksum(self.sum);
        for block in 0..self.verified {
            worker.verified(block >= self.wrong);
        }
    }
}

impl Job {
    /// Builds the jobs of a trial: one for each file, or one for each part of a device. Opens and maps the files when
    /// `means` is given.
    pub(super) fn of(spec: &TrialSpec, means: Option<Means>) -> Result<Vec<Self>> {
        let usage = |what: String| LabError::new(LabErrorKind::Usage, what);
        let number = |name: &str| -> Result<Option<u64>> {
            let Some(text) = spec.params.extra.get(name) else { return Ok(None) };
            text.parse().map(Some).map_err(|_| usage(format!("async: {name} = '{text}' is not a number")))
        };
        let count = number("files")?.unwrap_or(spec.target.paths.len() as u64).max(1);
        let parts = count.div_ceil(spec.target.paths.len().max(1) as u64);
        let blocks = spec.target.data_bytes / BLOCK_BYTES as u64 / parts;
        if blocks == 0 {
            return Err(usage("async: the files are smaller than a block".into()));
        }
        let order = match number("touches")? {
            Some(touches) => {
                // The order is the same in every file and for every method, so that their sums can be compared; it
                // differs between repeats.
                let mut random = fastrand::Rng::with_seed(spec.seed ^ mix(u64::from(spec.repeat) + 1));
                Order::Touches((0..touches).map(|_| random.u64(0..blocks)).collect())
            }
            None => Order::Sequential { blocks },
        };
        let jobs = (0..count).map(|index| {
            let path = PathBuf::from(&spec.target.paths[(index / parts) as usize]);
            let first_block = index % parts * blocks;
            let content = Content { seed: spec.target.content_seed, first_block };
            let source = means.map(|means| Source::open(&path, means, spec, &order, content, blocks)).transpose()?;
            let prefetch = spec.params.extra.get("prefetch").is_some_and(|kind| kind == "cpu");
            let buffer = vec![0; STRETCH_BYTES as usize];
            Ok(Self { path, content, order: order.clone(), next: 0, source, prefetch, buffer })
        });
        jobs.collect()
    }

    /// Reads the job's next piece, blocking the thread until the piece is there. `None` at the end.
    pub(super) fn step(&mut self) -> Result<Option<StepResult>> {
        let started = Instant::now();
        let Some(range) = self.next_range() else { return Ok(None) };
        if self.prefetch {
            self.prefetch_ahead();
        }
        let first = range.start;
        let bytes = self.position(first) as usize..self.position(range.end) as usize;
        let position = self.position(first);
        let done = match self.source.as_ref() {
            Some(Source::Map(map)) => map.guarded(bytes, |bytes| self.content.check(bytes, first, &self.order))?,
            Some(Source::Read(file)) => {
                let buffer = &mut self.buffer[..bytes.len()];
                read_exact(file, buffer, position, &self.path)?;
                self.content.check(buffer, first, &self.order)
            }
            None => return Err(LabError::new(LabErrorKind::Usage, "async: the file was not opened")),
        };
        Ok(Some(StepResult { elapsed: started.elapsed(), ..done }))
    }

    /// Returns the next blocks to read, numbered within the job; `None` at the end.
    fn next_range(&mut self) -> Option<Range<u64>> {
        let at = self.next;
        self.next += 1;
        match &self.order {
            Order::Touches(blocks) => blocks.get(at).map(|block| *block..*block + 1),
            Order::Sequential { blocks } => {
                let stretch = STRETCH_BYTES / BLOCK_BYTES as u64;
                let first = at as u64 * stretch;
                (first < *blocks).then(|| first..(first + stretch).min(*blocks))
            }
        }
    }

    /// Returns the opened file of a job reading by calls.
    pub(super) fn file(&self) -> Option<Arc<File>> {
        match &self.source {
            Some(Source::Read(file)) => Some(Arc::clone(file)),
            _ => None,
        }
    }

    /// Returns the position in the file of a block of this job, in bytes.
    pub(super) fn position(&self, block: u64) -> u64 {
        content::block_offset(self.content.first_block + block)
    }

    /// Issues a prefetch instruction for a later touch. The instruction cannot start a read, because the CPU ignores it
    /// for a page that is not mapped. Its effect is one of the published measurement's open questions.
    fn prefetch_ahead(&self) {
        let (Order::Touches(blocks), Some(Source::Map(map))) = (&self.order, self.source.as_ref()) else { return };
        if let Some(block) = blocks.get(self.next + PREFETCH_AHEAD) {
            let at = self.position(*block) as usize;
            if let Some(bytes) = map.bytes().get(at..at + 64) {
                prefetch(bytes);
            }
        }
    }
}

impl Content {
    /// Checks the blocks in `bytes`, of which `first` is the first, and sums the bytes that the variant sums.
    pub(super) fn check(&self, bytes: &[u8], first: u64, order: &Order) -> StepResult {
        let mut done =
            StepResult { ops: 1, bytes: bytes.len() as u64, verified: 0, wrong: 0, sum: 0, elapsed: Duration::ZERO };
        for (block, index) in bytes.chunks_exact(BLOCK_BYTES).zip(self.first_block + first..) {
            if let Some(seed) = self.seed {
                let expected = content::tag(seed, index).to_le_bytes();
                done.verified += 1;
                done.wrong += u64::from(block.first_chunk() != Some(&expected));
            }
            let stride = match order {
                Order::Touches(_) => BLOCK_BYTES,
                Order::Sequential { .. } => SUM_STRIDE,
            };
            done.sum = block.iter().step_by(stride).fold(done.sum, |sum, byte| sum.wrapping_add(u64::from(*byte)));
        }
        done
    }
}

impl Source {
    fn open(
        path: &PathBuf,
        means: Means,
        spec: &TrialSpec,
        order: &Order,
        content: Content,
        blocks: u64,
    ) -> Result<Self> {
        let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
        if means == Means::Read {
            return Ok(Self::Read(Arc::new(file)));
        }
        let range = content::block_offset(content.first_block)..content::block_offset(content.first_block + blocks);
        // SAFETY: the files carry the lab's marker and its lock, so no other lab changes or truncates them; if another
        // process does, guarded access turns SIGBUS into an error.
        let map = unsafe { MappedFile::open(path, Protection::ReadOnly) }?;
        let chosen = spec.params.extra.get("advice").map(String::as_str);
        let advice = match (chosen, order) {
            (Some("normal"), _) | (None, Order::Sequential { .. }) => None,
            (Some("random"), _) | (None, Order::Touches(_)) => Some(Advice::Random),
            (Some("sequential"), _) => Some(Advice::Sequential),
            (Some("willneed"), _) => Some(Advice::WillNeed),
            (Some("populate"), _) => Some(Advice::PopulateRead),
            (Some(other), _) => {
                return Err(LabError::new(LabErrorKind::Usage, format!("async: unknown advice '{other}'")));
            }
        };
        if let Some(advice) = advice {
            map.advise(advice, range.start as usize..range.end as usize)?;
        }
        if let (Means::TouchedMap, Order::Touches(touched)) = (means, order) {
            for block in touched.iter() {
                let at = content::block_offset(content.first_block + block) as usize;
                map.guarded(at..at + BLOCK_BYTES, |bytes| std::hint::black_box(bytes[0]))?;
            }
        }
        Ok(Self::Map(map))
    }
}

/// Fills `buffer` from `position` of the file; a file that ends early is an error.
fn read_exact(file: &File, buffer: &mut [u8], position: u64, path: &std::path::Path) -> Result<()> {
    file.read_exact_at(buffer, position).map_err(|error| {
        LabError::system(format!("read {} bytes at {position} of {}", buffer.len(), shown(&path)), &error)
    })
}

// Runs a task for each file on one single-threaded executor, with the 1 ms ticker among the tasks.

/// Runs all jobs as tasks; returns when the last task is done.
pub(super) fn run_tasks(worker: &mut Worker<'_>, jobs: Vec<Job>, means: Means, yields: bool) -> Result<()> {
    on_executor(worker, move |notes| {
        Ok(jobs.into_iter().map(move |job| {
            let notes = Rc::clone(&notes);
            async move {
                match (means, &job.order) {
                    (Means::Map | Means::TouchedMap, _) => touch_map(job, &notes, yields).await,
                    (Means::Read, Order::Touches(_)) => read_touches(job, &notes).await,
                    (Means::Read, Order::Sequential { .. }) => read_stream(job, &notes).await,
                }
            }
        }))
    })
}

/// Results of finished steps, stored until they are passed to the worker, because a task cannot borrow the worker
/// across an `await`.
#[derive(Default)]
struct Notes {
    done: RefCell<Vec<StepResult>>,
    stop: Cell<bool>,
}

impl Notes {
    /// Stores the result of a step.
    fn keep(&self, done: StepResult) {
        self.done.borrow_mut().push(done);
    }

    /// Returns whether the user has stopped the run.
    fn stopped(&self) -> bool {
        self.stop.get()
    }
}

/// Runs the ticker and the tasks of `make` on a single-threaded executor, from the common start of all workers until
/// the last task's end.
fn on_executor<T: Future<Output = Result<()>> + 'static, I: Iterator<Item = T>>(
    worker: &mut Worker<'_>,
    make: impl FnOnce(Rc<Notes>) -> Result<I>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LabError::system("start an executor", &error))?;
    let notes = Rc::new(Notes::default());
    let local = LocalSet::new();
    let ticker = local.block_on(&runtime, async {
        let ticker = Rc::new(Ticker::prepare()?);
        let tasks: Vec<_> = make(Rc::clone(&notes))?.collect();
        worker.start();
        ticker.start()?;
        let ticking = tokio::task::spawn_local({
            let ticker = Rc::clone(&ticker);
            async move { ticker.run().await }
        });
        let running: Vec<_> = tasks.into_iter().map(tokio::task::spawn_local).collect();
        for task in running {
            // The worker's counters are updated as tasks end: fixed work needs no finer series.
            let ended = task.await.map_err(|error| LabError::new(LabErrorKind::System, format!("a task: {error}")))?;
            notes.done.borrow_mut().drain(..).for_each(|done| done.note(worker));
            notes.stop.set(!worker.running());
            ended?;
        }
        // Ticks that were due before the end count even if the executor did not run them.
        ticker.collect();
        ticking.abort();
        Ok::<_, LabError>(ticker)
    })?;
    ticker.lateness().into_iter().for_each(|late| worker.latency("ticker", late));
    Ok(())
}

/// Touches pages of a map: the published measurement's "async mmap". A touch blocks the thread, also inside an async
/// function.
async fn touch_map(mut job: Job, notes: &Notes, yields: bool) -> Result<()> {
    while let Some(done) = job.step()? {
        notes.keep(done);
        if notes.stopped() {
            break;
        }
        if yields {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Reads each page with `pread` on tokio's blocking thread pool, as tokio's own file type does.
async fn read_touches(mut job: Job, notes: &Notes) -> Result<()> {
    let file = job.file().ok_or_else(|| LabError::new(LabErrorKind::Usage, "async: the file was not opened"))?;
    let mut buffer = vec![0; BLOCK_BYTES];
    while let Some(range) = job.next_range() {
        let (started, position) = (Instant::now(), job.position(range.start));
        let (file, path) = (Arc::clone(&file), job.path.clone());
        let (back, result) = tokio::task::spawn_blocking(move || {
            let result = read_exact(&file, &mut buffer, position, &path);
            (buffer, result)
        })
        .await
        .map_err(|error| LabError::new(LabErrorKind::System, format!("the blocking pool: {error}")))?;
        result?;
        buffer = back;
        notes.keep(StepResult { elapsed: started.elapsed(), ..job.content.check(&buffer, range.start, &job.order) });
        if notes.stopped() {
            break;
        }
    }
    Ok(())
}

/// Reads through `tokio::fs` with a buffer of 64 KiB: the published measurement's "async read".
async fn read_stream(mut job: Job, notes: &Notes) -> Result<()> {
    let failed = |error: &std::io::Error| LabError::system(format!("read {}", shown(&job.path)), error);
    let mut file = tokio::fs::File::open(&job.path).await.map_err(|error| failed(&error))?;
    file.set_max_buf_size(STRETCH_BYTES as usize);
    file.seek(std::io::SeekFrom::Start(job.position(0))).await.map_err(|error| failed(&error))?;
    let mut buffer = vec![0; STRETCH_BYTES as usize];
    while let Some(range) = job.next_range() {
        let started = Instant::now();
        let len = (range.end - range.start) as usize * BLOCK_BYTES;
        file.read_exact(&mut buffer[..len])
            .await
            .map_err(|error| LabError::system(format!("read {}", shown(&job.path)), &error))?;
        notes.keep(StepResult {
            elapsed: started.elapsed(),
            ..job.content.check(&buffer[..len], range.start, &job.order)
        });
        if notes.stopped() {
            break;
        }
    }
    Ok(())
}

// Runs a task for each file; the tasks read through one ring. The executor itself polls the ring's descriptor, so no
// other thread takes part.
//
// A read is pushed at its first poll; one flush, scheduled behind the tasks that are ready, submits all pushed reads.

/// Runs all jobs as tasks, with one ring for each file or device.
pub(super) fn run_ring(worker: &mut Worker<'_>, jobs: Vec<Job>) -> Result<()> {
    on_executor(worker, move |notes| {
        let mut reactors: HashMap<PathBuf, Rc<Reactor>> = HashMap::new();
        for job in &jobs {
            if !reactors.contains_key(&job.path) {
                reactors.insert(job.path.clone(), Reactor::open(&job.path)?);
            }
        }
        Ok(jobs.into_iter().map(move |job| {
            let (notes, reactor) = (Rc::clone(&notes), reactors.get(&job.path).cloned());
            async move {
                let missing = || LabError::new(LabErrorKind::System, "no ring for the file");
                read_all(job, &notes, &*reactor.ok_or_else(missing)?).await
            }
        }))
    })
}

async fn read_all(mut job: Job, notes: &Notes, reactor: &Reactor) -> Result<()> {
    let len = match job.order {
        Order::Touches(_) => BLOCK_BYTES,
        Order::Sequential { .. } => STRETCH_BYTES as usize,
    };
    let mut buffer = IoBuf::zeroed(len, PageKind::Small)?;
    while let Some(range) = job.next_range() {
        let started = Instant::now();
        let wanted = (range.end - range.start) as usize * BLOCK_BYTES;
        let (piece, rest) = buffer.split_at(wanted);
        let piece = reactor.read(piece, job.position(range.start)).await?;
        notes.keep(StepResult { elapsed: started.elapsed(), ..job.content.check(&piece, range.start, &job.order) });
        buffer = match piece.join(rest) {
            Ok(whole) => whole,
            Err((piece, _)) => piece,
        };
        if notes.stopped() {
            break;
        }
    }
    Ok(())
}

/// A ring, and the channels on which tasks wait for their completions, all on one thread.
struct Reactor {
    ready: AsyncFd<OwnedFd>,
    queue: RefCell<Box<dyn Queue>>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Completion>>>,
    next_token: Cell<u64>,
    flush_planned: Cell<bool>,
}

impl Reactor {
    fn open(path: &Path) -> Result<Rc<Self>> {
        let options = FileOptions { direct: DirectIo::Prefer, write: false, create: false };
        let disk = UringDisk::open(path, &options)?;
        // Not `single_thread`: with DEFER_TASKRUN completions are posted only when the ring is entered, and a poller
        // would have to enter it to see them.
        // A dedicated ring with its file registered, as the other methods with a ring have.
        let queue = disk.queue_with(&QueueOptions::default(), &UringOptions::default())?;
        let descriptor = queue
            .ready_fd()
            .ok_or_else(|| LabError::new(LabErrorKind::Unsupported, "this ring cannot be polled"))?
            .try_clone_to_owned()
            .map_err(|error| LabError::system("watch a ring", &error))?;
        let ready = crate::measure::ticker::watch(descriptor)?;
        let reactor = Rc::new(Self {
            ready,
            queue: RefCell::new(Box::new(queue)),
            waiting: RefCell::default(),
            next_token: Cell::new(0),
            flush_planned: Cell::new(false),
        });
        // The task ends when the executor is dropped with its tasks.
        let own = Rc::clone(&reactor);
        tokio::task::spawn_local(async move {
            while let Ok(mut ready) = own.ready.readable().await {
                ready.clear_ready();
                drop(ready);
                own.reap();
            }
        });
        Ok(reactor)
    }

    /// Reads from `position` of the file until the buffer is full.
    async fn read(&self, buffer: IoBuf, position: u64) -> Result<IoBuf> {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut().insert(token, sender);
        let pushed = self.queue.borrow_mut().push(Op::new(token, position, OpKind::Read(buffer)));
        if let Err(refused) = pushed {
            self.waiting.borrow_mut().remove(&token);
            return Err(refused.error.into());
        }
        if !self.flush_planned.replace(true) {
            // Yield once, so that the tasks that are ready now add their reads first.
            tokio::task::yield_now().await;
            self.flush_planned.set(false);
            self.queue.borrow_mut().submit()?;
            self.reap();
        }
        let completion =
            receiver.await.map_err(|_| LabError::new(LabErrorKind::System, "the ring closed under a read"))?;
        completion.result.clone()?;
        completion
            .into_buffer()
            .ok_or_else(|| LabError::new(LabErrorKind::System, "a read came back without its buffer"))
    }

    fn reap(&self) {
        let mut done = Vec::new();
        // An error of the ring itself shows when its readers' channels close.
        if self.queue.borrow_mut().reap(0, &mut done).is_err() {
            self.waiting.borrow_mut().clear();
        }
        for completion in done {
            if let Some(waiter) = self.waiting.borrow_mut().remove(&completion.op.token) {
                // The reader may be gone; its result is then dropped.
                let _ = waiter.send(completion);
            }
        }
    }
}

// The files' content as a database of the engine, read by tasks of the executor through the engine's own async calls:
// a page in the pool is returned at once, an absent page is awaited by the task.

/// Opens the database of a trial. For a warm trial, first reads all blocks that the jobs will touch.
pub(super) fn open(spec: &TrialSpec, jobs: &[Job]) -> Result<Pool> {
    let pool = Pool::open(spec)?;
    if spec.cache == CacheState::Warm {
        for job in jobs {
            let Order::Touches(blocks) = &job.order else { continue };
            pool.warm(blocks.iter().map(|block| job.content.first_block + block))?;
        }
    }
    Ok(pool)
}

/// Runs all jobs as tasks over one database.
pub(super) fn run_pool(worker: &mut Worker<'_>, jobs: Vec<Job>, pool: &Pool) -> Result<()> {
    on_executor(worker, move |notes| {
        pool.complete_on_executor()?;
        Ok(jobs.into_iter().map(move |job| touch(job, pool.table(), Rc::clone(&notes))))
    })
}

async fn touch(mut job: Job, table: nofault::Table, notes: Rc<Notes>) -> Result<()> {
    if let Order::Sequential { .. } = job.order {
        return Err(LabError::new(LabErrorKind::Usage, "async: the engine's database has no bytes to sum in a row"));
    }
    while let Some(range) = job.next_range() {
        let (started, block) = (Instant::now(), job.content.first_block + range.start);
        let value = table.get(database::key(block, 0)).await?.unwrap_or_default();
        let right = job.content.seed.is_none_or(|seed| database::is_right(&value, seed, block));
        notes.keep(StepResult {
            ops: 1,
            bytes: BLOCK_BYTES as u64,
            verified: 1,
            wrong: u64::from(!right),
            // The blocks of all files are numbered consecutively, so the sum differs from the other methods'. The
            // blocks are verified above; the sums are not compared.
            sum: 0,
            elapsed: started.elapsed(),
        });
        if notes.stopped() {
            break;
        }
    }
    Ok(())
}

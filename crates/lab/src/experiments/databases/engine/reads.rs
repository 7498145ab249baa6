//! The works that read: gets by threads and by tasks, in memory and out of core, alone, in batches and beside puts; scans; and the mixes of YCSB.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nofault::Db;
use tokio::runtime::LocalOptions;

use super::trial::{self, State, Trial, WARM_TIME_MAX, go_on, note_reads, order};
use super::works::{GET_ZIPF, READ, TICKER, WRITE, YCSB};
use super::writes::read_back;
use super::{CACHE, EVENT_INTERVAL, INTERVAL, number};
use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::entries::{Data, Zipfian, mix};
use crate::measure::mixes::{Chooser, MIXES, Op};
use crate::measure::stores::{Engine, Store};
use crate::measure::ticker::Ticker;
use crate::measure::{Work, Worker, read_loops};
use crate::methods::NOFAULT;
use crate::record::Outcome;

/// Number of gets between two readings of the clock, where a get takes less than a microsecond.
const GETS_A_LOOK: u64 = 256;
/// Number of a scan's entries between two checks of the clock.
const ENTRIES_A_LOOK: u64 = 512;

/// Measures random gets by several threads, one at a time, from any store. For data in memory, one scan reads every
/// entry before the clock starts.
pub(super) fn random(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.loaded_store()?;
    let (store, data, seed, cancel) = (&*store, trial.data, order(trial.spec), trial.context.cancel);
    if trial.spec.cache == crate::record::CacheState::Warm {
        let count = usize::try_from(data.count).unwrap_or(usize::MAX);
        store.reader()?.scan(&data.key(0), count, &mut |_, _| trial::go_on(cancel))?;
    }
    let work = |thread: u32| -> Work<'_> {
        Box::new(move |worker: &mut Worker<'_>| single_gets(worker, store, data, seed ^ mix(u64::from(thread))))
    };
    let works = (0..trial.spec.params.threads.max(1)).map(work).collect();
    let mut outcome = trial.measure(works)?;
    if trial.spec.cache == crate::record::CacheState::Warm {
        outcome.cache_method = "every entry was read once".into();
    }
    trial.describe(store, &mut outcome)?;
    Ok(outcome)
}

/// Runs one thread's random gets. One get in [`GETS_A_LOOK`] is timed alone, because reading the clock takes long in
/// comparison with a get in memory.
fn single_gets(worker: &mut Worker<'_>, store: &dyn Store, data: Data, seed: u64) -> Result<()> {
    let mut reader = store.reader()?;
    let mut chance = fastrand::Rng::with_seed(seed);
    worker.start();
    while worker.running() {
        let (mut wrong, mut first) = (0, None);
        for _ in 0..GETS_A_LOOK {
            let number = chance.u64(0..data.count);
            let started = first.is_none().then(Instant::now);
            reader.get(&data.key(number), &mut |value| {
                wrong += u64::from(!value.is_some_and(|value| data.is_right(number, value)));
                Ok(())
            })?;
            first = first.or_else(|| started.map(|started| started.elapsed()));
        }
        worker.verified_many(GETS_A_LOOK, wrong);
        worker.done(GETS_A_LOOK, GETS_A_LOOK * data.entry_bytes());
        if let Some(elapsed) = first {
            worker.latency_of_each("op", elapsed, GETS_A_LOOK);
        }
    }
    Ok(())
}

/// Measures blocking gets of one thread, out of core.
pub(super) fn one(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let engine = trial.warm_engine()?;
    let (data, misses) = (trial.data, engine.db.stats().pool.misses);
    let mut chance = fastrand::Rng::with_seed(order(trial.spec));
    let table = &engine.table;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            let number = chance.u64(0..data.count);
            let started = Instant::now();
            let value = table.get(data.key(number))?;
            worker.latency("op", started.elapsed());
            worker.verified(value.is_some_and(|value| data.is_right(number, &value)));
            worker.done(1, data.entry_bytes());
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    note_reads(&engine, misses, &mut outcome);
    trial.describe(&engine, &mut outcome)?;
    Ok(outcome)
}

/// Measures batches of gets by one thread, out of core. With `after_task`, a task has read from the disk before in this
/// process.
pub(super) fn many(trial: &mut Trial<'_, '_>, after_task: bool) -> Result<Outcome> {
    let engine = trial.warm_engine()?;
    if after_task {
        read_once(trial, &engine)?;
    }
    let (data, misses) = (trial.data, engine.db.stats().pool.misses);
    let batch = u64::from(trial.spec.params.depth.max(1));
    let mut chance = fastrand::Rng::with_seed(order(trial.spec));
    let table = &engine.table;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        while worker.running() {
            let numbers: Vec<u64> = (0..batch).map(|_| chance.u64(0..data.count)).collect();
            let keys: Vec<_> = numbers.iter().map(|number| data.key(*number)).collect();
            let started = Instant::now();
            let values = table.get_many(&keys)?;
            let elapsed = started.elapsed();
            let answers = numbers.iter().zip(&values);
            let right =
                answers.filter(|(number, value)| value.as_deref().is_some_and(|value| data.is_right(**number, value)));
            worker.verified_many(batch, batch - right.count() as u64);
            worker.done(batch, batch * data.entry_bytes());
            // All answers of a batch arrive together at its end.
            worker.latency_of_each("op", elapsed, batch);
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    note_reads(&engine, misses, &mut outcome);
    trial.describe(&engine, &mut outcome)?;
    Ok(outcome)
}

/// Measures a scan of all entries in order, which starts with an empty cache.
pub(super) fn scan(trial: &mut Trial<'_, '_>, state: State) -> Result<Outcome> {
    trial.have(state)?;
    let engine = Engine::open(&trial.place.store(), &trial.settings()?)?;
    let (data, table) = (trial.data, &engine.table);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        worker.start();
        let (mut range, mut next) = (table.range::<&[u8]>(..), 0);
        let (mut looked, mut wrong) = (0, 0);
        while let Some((key, value)) = range.next_ref()? {
            wrong += u64::from(key != data.key(next) || !data.is_right(next, value));
            next += 1;
            if next - looked == ENTRIES_A_LOOK {
                worker.done(ENTRIES_A_LOOK, ENTRIES_A_LOOK * data.entry_bytes());
                looked = next;
                if !worker.running() {
                    break;
                }
            }
        }
        worker.done(next - looked, (next - looked) * data.entry_bytes());
        worker.verified_many(next, wrong);
        if worker.running() && next != data.count {
            // The table has too few or too many entries.
            worker.verified(false);
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    outcome.figures.insert("pages_read".into(), engine.db.stats().pool.misses as f64);
    trial.describe(&engine, &mut outcome)?;
    Ok(outcome)
}

/// Measures a scan of all entries of another database in order, which starts with empty caches.
pub(super) fn scan_of_peer(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.loaded_store()?;
    let (store, data) = (&*store, trial.data);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let mut reader = store.reader()?;
        let all = usize::try_from(data.count).unwrap_or(usize::MAX);
        worker.start();
        let (mut next, mut looked, mut wrong) = (0, 0, 0);
        // One more than there are, so that an entry too many is found.
        reader.scan(&data.key(0), all.saturating_add(1), &mut |key, value| {
            wrong += u64::from(key != data.key(next) || !data.is_right(next, value));
            next += 1;
            if next - looked == ENTRIES_A_LOOK {
                worker.done(ENTRIES_A_LOOK, ENTRIES_A_LOOK * data.entry_bytes());
                looked = next;
            }
            if worker.running() { Ok(()) } else { Err(LabError::interrupted()) }
        })?;
        worker.done(next - looked, (next - looked) * data.entry_bytes());
        worker.verified_many(next, wrong);
        if next != data.count {
            // The store has too few or too many entries.
            worker.verified(false);
        }
        Ok(())
    });
    let mut outcome = trial.measure(vec![work])?;
    trial.describe(store, &mut outcome)?;
    Ok(outcome)
}

// Works in which blocking threads get single entries out of core: uniform or zipfian, of values of any size, alone or alongside
// durable puts. The same for every store.
//
// Kept true by: before the clock starts each store has answered gets in the order of the trial, for as many bytes as twice the
// memory that it may use ([`warm`]). So no store begins with an empty cache, and each has the entries in it that it chose itself.

/// Bytes of the smallest unit that a store reads from the disk.
const PAGE_BYTES: u64 = 4096;
/// Number of threads that make the gets before the clock starts.
const WARM_THREADS: u64 = 64;
/// Number of gets between two looks at the clock before the trial's own clock starts.
const WARM_ROUND: u64 = 64;
/// One operation of so many of `read-write` is a durable put.
const WRITE_EVERY: u64 = 10;

/// The order of the keys that a thread asks for.
enum Keys {
    Uniform(fastrand::Rng),
    /// Popular keys are spread over the table, not side by side.
    Zipfian(Zipfian),
}

impl Keys {
    /// Makes the order of one thread, from the zipfian distribution over all entries where there is one.
    fn of(zipfian: Option<&Zipfian>, seed: u64) -> Self {
        match zipfian {
            Some(zipfian) => Self::Zipfian(zipfian.reseeded(seed)),
            None => Self::Uniform(fastrand::Rng::with_seed(seed)),
        }
    }

    /// Draws the number of the next entry.
    fn next(&mut self, data: Data) -> u64 {
        match self {
            Self::Uniform(chance) => chance.u64(0..data.count),
            Self::Zipfian(zipfian) => mix(zipfian.next()) % data.count,
        }
    }
}

/// Measures gets by the row's number of threads, each of one entry at a time. Each get is timed with the check of its value,
/// which is where a store reading through a map reads it.
pub(super) fn gets_by_threads(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let engine = (trial.spec.method == NOFAULT).then(|| trial.engine()).transpose()?;
    let peer = if engine.is_none() { Some(trial.loaded_store()?) } else { None };
    let store: &dyn Store = match (&engine, &peer) {
        (Some(engine), _) => engine,
        (None, Some(peer)) => &**peer,
        (None, None) => return Err(LabError::new(LabErrorKind::System, "engine: no store was opened")),
    };
    let (data, seed) = (trial.data, order(trial.spec));
    let zipfian = trial.spec.variant.starts_with(GET_ZIPF).then(|| Zipfian::new(data.count, 0));
    let zipfian = zipfian.as_ref();
    warm(trial, store, zipfian)?;
    let misses = engine.as_ref().map_or(0, |engine| engine.db.stats().pool.misses);
    let work = |thread: u32| -> Work<'_> {
        let keys = Keys::of(zipfian, seed ^ mix(u64::from(thread)));
        Box::new(move |worker: &mut Worker<'_>| gets_of(worker, store, data, keys))
    };
    let works = (0..trial.spec.params.threads.max(1)).map(work).collect();
    let mut outcome = trial.measure(works)?;
    if let Some(engine) = &engine {
        note_reads(engine, misses, &mut outcome);
    }
    trial.describe(store, &mut outcome)?;
    Ok(outcome)
}

/// Runs one thread's gets.
fn gets_of(worker: &mut Worker<'_>, store: &dyn Store, data: Data, mut keys: Keys) -> Result<()> {
    let mut reader = store.reader()?;
    worker.start();
    while worker.running() {
        let (number, started, mut right) = (keys.next(data), Instant::now(), false);
        reader.get(&data.key(number), &mut |value| {
            right = value.is_some_and(|value| data.is_right(number, value));
            Ok(())
        })?;
        worker.latency("op", started.elapsed());
        worker.verified(right);
        worker.done(1, data.entry_bytes());
    }
    Ok(())
}

/// Measures threads of which each makes nine gets for each durable put. A get opens a view of the newest commit.
pub(super) fn beside_puts(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let store = trial.loaded_store()?;
    let (store, data, seed) = (&*store, trial.data, order(trial.spec));
    warm(trial, store, None)?;
    trial.place.spoil()?;
    let work = |thread: u32| -> Work<'_> {
        Box::new(move |worker: &mut Worker<'_>| {
            let mut chance = fastrand::Rng::with_seed(seed ^ mix(u64::from(thread)));
            worker.start();
            while worker.running() {
                let number = chance.u64(0..data.count);
                if chance.u64(0..WRITE_EVERY) == 0 {
                    let entry = [data.changed(number, chance.u64(..))];
                    let started = Instant::now();
                    store.write(&entry, true)?;
                    note(worker, WRITE, started.elapsed());
                } else {
                    let (started, mut right) = (Instant::now(), false);
                    store.reader()?.get(&data.key(number), &mut |value| {
                        right = value.is_some_and(|value| data.is_right(number, value));
                        Ok(())
                    })?;
                    note(worker, READ, started.elapsed());
                    worker.verified(right);
                }
                worker.done(1, data.entry_bytes());
            }
            Ok(())
        })
    };
    let works = (0..trial.spec.params.threads.max(1)).map(work).collect();
    let mut outcome = trial.measure(works)?;
    read_back(store, data, seed, &mut outcome)?;
    trial.describe(store, &mut outcome)?;
    Ok(outcome)
}

/// Records the latency of an operation: among all, and among operations of its kind.
fn note(worker: &mut Worker<'_>, kind: &'static str, elapsed: Duration) {
    worker.latency("op", elapsed);
    worker.latency(kind, elapsed);
}

/// Makes gets in the order of the trial, by many threads and unmeasured, until they have read twice as many bytes as the store
/// has memory, or twice as many entries as there are, or [`WARM_TIME_MAX`] is over.
fn warm(trial: &Trial<'_, '_>, store: &dyn Store, zipfian: Option<&Zipfian>) -> Result<()> {
    let data = trial.data;
    let memory_bytes = trial.spec.memory.bytes.max(number(trial.spec, CACHE)?);
    let gets = (memory_bytes * 2 / data.entry_bytes().max(PAGE_BYTES)).min(data.count * 2);
    let end = Instant::now() + WARM_TIME_MAX;
    let cancel = trial.context.cancel;
    let one = |thread: u64| -> Result<()> {
        let mut keys = Keys::of(zipfian, mix(data.seed ^ thread));
        let mut reader = store.reader()?;
        for at in 0..gets.div_ceil(WARM_THREADS) {
            if at % WARM_ROUND == 0 {
                go_on(cancel)?;
                if Instant::now() >= end {
                    break;
                }
            }
            let number = keys.next(data);
            reader.get(&data.key(number), &mut |value| match value {
                Some(value) if data.is_right(number, value) => Ok(()),
                _ => Err(LabError::new(LabErrorKind::WrongData, format!("engine: entry {number} is wrong"))),
            })?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let one = &one;
        let gets_by_threads: Vec<_> = (0..WARM_THREADS).map(|thread| scope.spawn(move || one(thread))).collect();
        let panicked = |_| Err(LabError::new(LabErrorKind::System, "engine: a thread panicked"));
        // All are waited for before the first error counts.
        let ended: Vec<Result<()>> =
            gets_by_threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        ended.into_iter().collect()
    })
}

// Works on one single-threaded executor: many tasks that read out of core along with a timer of 1 ms, and many tasks that
// commit.

/// Time between two updates of the worker's counters from the tasks' results.
const DRAIN: Duration = Duration::from_millis(10);
/// Most gets of a task of which one is to read from the disk.
const READS_MAX: u32 = 100_000;
/// How long the only task of an idle executor sleeps at a time.
const NAP: Duration = Duration::from_millis(10);

/// Measures gets by many tasks. With `poller` the executor takes the completions of reads itself; otherwise a thread of
/// the database does.
pub(super) fn gets_by_tasks(trial: &mut Trial<'_, '_>, poller: bool) -> Result<Outcome> {
    let engine = trial.warm_engine()?;
    let (data, misses, seed) = (trial.data, engine.db.stats().pool.misses, order(trial.spec));
    let (tasks, interval) = (trial.spec.params.depth, interval_of(trial));
    let engine_ref = &engine;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let polled = poller.then(|| engine_ref.db.asynchronous());
        on_executor(worker, tasks, interval, polled, data.entry_bytes(), |task, board| {
            let table = AsRef::<nofault::Table>::as_ref(&engine_ref.table).clone();
            async move {
                let mut chance = fastrand::Rng::with_seed(mix(u64::from(task)) ^ seed);
                while !board.stop.get() {
                    let (number, started) = (chance.u64(0..data.count), Instant::now());
                    let value = table.get(data.key(number)).await?;
                    board.done(started, value.is_some_and(|value| data.is_right(number, &value)));
                }
                Ok(())
            }
        })
    });
    let mut outcome = trial.measure(vec![work])?;
    note_reads(&engine, misses, &mut outcome);
    trial.describe(&engine, &mut outcome)?;
    Ok(outcome)
}

/// Reads random entries by a task on a separate executor until one read went to the disk. The executor is gone afterwards.
fn read_once(trial: &Trial<'_, '_>, engine: &Engine) -> Result<()> {
    let misses = || engine.db.stats().pool.misses;
    let (data, before) = (trial.data, misses());
    let table = AsRef::<nofault::Table>::as_ref(&engine.table).clone();
    let mut chance = fastrand::Rng::with_seed(order(trial.spec) ^ 1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LabError::system("start an executor", &error))?;
    runtime.block_on(async {
        for _ in 0..READS_MAX {
            let number = chance.u64(0..data.count);
            let value = table.get(data.key(number)).await?;
            if !value.is_some_and(|value| data.is_right(number, &value)) {
                return Err(LabError::new(LabErrorKind::WrongData, format!("engine: entry {number} is wrong")));
            }
            if misses() > before {
                return Ok(());
            }
        }
        Err(LabError::new(LabErrorKind::Usage, "engine: all data is in the cache, so that no task reads from the disk"))
    })
}

/// Measures the same executor with one task that only sleeps, which shows the timer's lateness that the machine itself
/// causes.
pub(super) fn idle(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let interval = interval_of(trial);
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        on_executor(worker, 1, interval, None, 0, |_, board| async move {
            while !board.stop.get() {
                let started = Instant::now();
                tokio::time::sleep(NAP).await;
                board.done(started, true);
            }
            Ok(())
        })
    });
    trial.measure(vec![work])
}

/// Measures durable puts by many tasks. Afterwards all entries are read back.
pub(super) fn commits_by_tasks(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let engine = trial.engine()?;
    trial.place.spoil()?;
    let (data, seed, tasks) = (trial.data, order(trial.spec), trial.spec.params.depth);
    let groups = engine.db.stats().log.groups_written;
    let engine_ref = &engine;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        on_executor(worker, tasks, EVENT_INTERVAL, None, data.entry_bytes(), |task, board| {
            let table = AsRef::<nofault::Table>::as_ref(&engine_ref.table).clone();
            async move {
                let mut chance = fastrand::Rng::with_seed(mix(u64::from(task)) ^ seed);
                while !board.stop.get() {
                    let (key, value) = data.changed(chance.u64(0..data.count), chance.u64(..));
                    let started = Instant::now();
                    table.put(key, value).await?;
                    board.done(started, true);
                }
                Ok(())
            }
        })
    });
    let mut outcome = trial.measure(vec![work])?;
    super::writes::finish_commits(trial, &engine, groups, &mut outcome)?;
    Ok(outcome)
}

fn interval_of(trial: &Trial<'_, '_>) -> u64 {
    number(trial.spec, INTERVAL).unwrap_or(EVENT_INTERVAL)
}

/// State that the tasks share with their worker, which a task cannot borrow across an `await`.
#[derive(Default)]
struct Board {
    stop: Cell<bool>,
    wrong: Cell<u64>,
    latencies: RefCell<Vec<Duration>>,
}

impl Board {
    /// Stores the latency and the check of a finished operation.
    fn done(&self, started: Instant, right: bool) {
        self.wrong.set(self.wrong.get() + u64::from(!right));
        self.latencies.borrow_mut().push(started.elapsed());
    }

    /// Passes the operations that finished since the last call to the worker; each has `bytes` bytes.
    fn drain(&self, worker: &mut Worker<'_>, bytes: u64) {
        let mut latencies = self.latencies.borrow_mut();
        let count = latencies.len() as u64;
        latencies.drain(..).for_each(|elapsed| worker.latency("op", elapsed));
        worker.verified_many(count, self.wrong.take());
        worker.done(count, count * bytes);
    }
}

/// Runs tasks made by `make` and the 1 ms timer on this thread, for as long as the worker runs. The executor also
/// takes the completions of the reads of `polled`. It looks at its timers and descriptors after every `interval` polls.
/// Each operation of a task counts `bytes` bytes.
fn on_executor<T: Future<Output = Result<()>> + 'static>(
    worker: &mut Worker<'_>,
    tasks: u32,
    interval: u64,
    polled: Option<Db>,
    bytes: u64,
    make: impl Fn(u32, Rc<Board>) -> T,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(u32::try_from(interval).unwrap_or(u32::MAX))
        .build_local(LocalOptions::default())
        .map_err(|error| LabError::system("start an executor", &error))?;
    let ticker = runtime.block_on(async {
        let ticker = Rc::new(Ticker::prepare()?);
        let board = Rc::new(Board::default());
        worker.start();
        ticker.start()?;
        let ticking = tokio::task::spawn_local({
            let ticker = Rc::clone(&ticker);
            async move { ticker.run().await }
        });
        if let Some(db) = polled {
            db.complete_on_tokio()?;
        }
        let running: Vec<_> =
            (0..tasks.max(1)).map(|task| tokio::task::spawn_local(make(task, Rc::clone(&board)))).collect();
        while worker.running() && running.iter().all(|task| !task.is_finished()) {
            tokio::time::sleep(DRAIN).await;
            board.drain(worker, bytes);
        }
        board.stop.set(true);
        let mut result = Ok(());
        for task in running {
            let ended = task.await;
            let ended = ended.map_err(|error| LabError::new(LabErrorKind::System, format!("a task: {error}")));
            result = result.and(ended.flatten());
        }
        board.drain(worker, bytes);
        // Ticks that were due before the end count even if the executor did not run them.
        ticker.collect();
        ticking.abort();
        result.map(|()| ticker)
    })?;
    ticker.lateness().into_iter().for_each(|late| worker.latency(TICKER, late));
    Ok(())
}

// Measures YCSB's mixes, in the same way on all stores: threads read and write single entries.

/// The store that all threads use, and the state of its inserts.
struct Shared<'a> {
    store: &'a dyn Store,
    data: Data,
    /// Number of entries that are inserted and visible: readers use only smaller entry numbers.
    known: AtomicU64,
    /// Held by the thread that inserts, so that inserts happen one after the other.
    inserting: Mutex<()>,
}

/// Measures one mix on a freshly loaded store.
pub(super) fn run(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
    let mix_of = MIXES.into_iter().find(|mix| trial.spec.variant.strip_prefix(YCSB) == Some(mix.id));
    let mix_of = mix_of.ok_or_else(|| read_loops::unknown(trial.spec))?;
    let store = trial.loaded_store()?;
    if mix_of.writes() {
        trial.place.spoil()?;
    }
    let data = trial.data;
    let shared = Shared { store: &*store, data, known: AtomicU64::new(data.count), inserting: Mutex::new(()) };
    let (shared, seed, zipfian) = (&shared, order(trial.spec), &Zipfian::new(data.count, 0));
    let work = |thread: u32| -> Work<'_> {
        Box::new(move |worker: &mut Worker<'_>| {
            let mut chance = fastrand::Rng::with_seed(seed ^ mix(u64::from(thread)));
            let mut chooser = Chooser::new(mix_of, data.count, zipfian, chance.u64(..));
            worker.start();
            while worker.running() {
                let op = chooser.next(shared.known.load(Ordering::Acquire));
                let started = Instant::now();
                let done = shared.execute(op, chance.u64(..))?;
                worker.latency("op", started.elapsed());
                worker.done(1, done.entries * data.entry_bytes());
                if let Some(right) = done.right {
                    worker.verified(right);
                }
            }
            Ok(())
        })
    };
    let works = (0..trial.spec.params.threads.max(1)).map(work).collect();
    let mut outcome = trial.measure(works)?;
    trial.describe(shared.store, &mut outcome)?;
    Ok(outcome)
}

/// The result of an operation.
struct OpResult {
    /// Number of entries read or written.
    entries: u64,
    /// Whether the returned value was right; `None` for an operation without one.
    right: Option<bool>,
}

impl Shared<'_> {
    /// Executes an operation. Each write is a commit of one entry that is visible at once and not synced.
    fn execute(&self, op: Op, version: u64) -> Result<OpResult> {
        let put = |number: u64, version: u64| self.store.write(&[self.data.changed(number, version)], false);
        let written = OpResult { entries: 1, right: None };
        match op {
            Op::Read(number) => Ok(OpResult { entries: 1, right: Some(self.read(number)?) }),
            Op::Update(number) => put(number, version).map(|()| written),
            Op::ReadChangeWrite(number) => {
                let right = self.read(number)?;
                put(number, version)?;
                Ok(OpResult { entries: 2, right: Some(right) })
            }
            Op::Insert => {
                let _turn = self.inserting.lock().unwrap_or_else(PoisonError::into_inner);
                let next = self.known.load(Ordering::Acquire);
                put(next, 0)?;
                self.known.store(next + 1, Ordering::Release);
                Ok(written)
            }
            Op::Scan(number, wanted) => {
                let known = self.known.load(Ordering::Acquire);
                let (mut next, mut right) = (number, true);
                self.store.reader()?.scan(&self.data.key(number), wanted, &mut |key, value| {
                    right &= key == self.data.key(next) && self.data.is_right(next, value);
                    next += 1;
                    Ok(())
                })?;
                // The scan must find all entries known before it began.
                let enough = next - number >= (wanted as u64).min(known - number);
                Ok(OpResult { entries: next - number, right: Some(right && enough) })
            }
        }
    }

    fn read(&self, number: u64) -> Result<bool> {
        let mut right = false;
        self.store.reader()?.get(&self.data.key(number), &mut |value| {
            right = value.is_some_and(|value| self.data.is_right(number, value));
            Ok(())
        })?;
        Ok(right)
    }
}

//! Works on one single-threaded executor: many tasks that read out of core along with a timer of 1 ms, and many tasks that
//! commit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nofault::Db;
use tokio::runtime::LocalOptions;

use super::trial::{Trial, note_reads, order};
use super::trials::{EVENT_INTERVAL, INTERVAL, number};
use super::works::TICKER;
use crate::entries::mix;
use crate::error::{LabError, LabErrorKind, Result};
use crate::measure::{Work, Worker};
use crate::record::Outcome;
use crate::stores::Engine;
use crate::ticker::Ticker;

/// Time between two updates of the worker's counters from the tasks' results.
const DRAIN: Duration = Duration::from_millis(10);
/// Most gets of a task of which one is to read from the disk.
const READS_MAX: u32 = 100_000;
/// How long the only task of an idle executor sleeps at a time.
const NAP: Duration = Duration::from_millis(10);

/// Measures gets by many tasks. With `poller` the executor takes the completions of reads itself; otherwise a thread of
/// the database does.
pub(super) fn gets(trial: &mut Trial<'_, '_>, poller: bool) -> Result<Outcome> {
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
pub(super) fn read_once(trial: &Trial<'_, '_>, engine: &Engine) -> Result<()> {
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
pub(super) fn commits(trial: &mut Trial<'_, '_>) -> Result<Outcome> {
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

//! Works on one single-threaded executor: many tasks that read out of core beside a 1 ms ticker, and many that commit.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nofault::db::Completions;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::LocalOptions;

use super::data::{Data, mix};
use super::reads::{note_reads, warm};
use super::row::{ENGINE, Limit, Row};
use super::store::Engine;
use super::{Bench, cpu_seconds, device, values};
use crate::error::{LabError, LabErrorKind, Result};
use crate::format::Unit;
use crate::ticker::Ticker;

/// Tasks that read, and writers that commit.
const TASKS: u64 = 64;
/// Polls after which the executor checks its timers and descriptors: tokio's own choice, and a smaller number for
/// programs with tight timers.
const POLLS_A_LOOK: u32 = 61;
const POLLS_A_LOOK_FEW: u32 = 8;
/// Name of the second setting in the report.
const FEW_POLLS: &str = "event_interval 8";
/// Bytes of the file that the raw durable writes go through.
const RAW_LOG_BYTES: u64 = 16 << 20;

/// The work `get-tasks` of [`super::WORKS`].
pub(super) fn get_tasks(bench: &mut Bench<'_>) -> Result<()> {
    for value_bytes in bench.options.value_bytes.clone() {
        let data = bench.large(value_bytes);
        let place = bench.place("engine")?;
        let engine = Engine::load(&place, data, &bench.small_pool())?;
        warm(&engine, data, bench.options.seed)?;
        for poller in [Poller::Database, Poller::Executor] {
            let variant = format!("{}, {}", values(value_bytes), poller.name());
            let mut row = Row::new("get-tasks", variant.clone(), Unit::PerSecond);
            let mut cpu_row = Row::new("get-tasks CPU", format!("a get, {variant}"), Unit::Seconds);
            let mut ticks = Row::new("ticker p99.9", format!("beside get-tasks, {variant}"), Unit::Seconds);
            for round in bench.rounds() {
                bench.go_on()?;
                let (misses, cpu) = (engine.db.stats().pool.misses, cpu_seconds());
                let gets = |polls_a_look: u32| {
                    let completions = match poller {
                        Poller::Database => None,
                        Poller::Executor => engine.db.asynchronous().completions(),
                    };
                    on_executor(TASKS, bench.options.time, polls_a_look, completions, |task, run| {
                        let table = AsRef::<nofault::Table>::as_ref(&engine.table).clone();
                        async move {
                            let mut chance = fastrand::Rng::with_seed(mix(task) ^ u64::from(round));
                            while run.goes_on() {
                                let number = chance.u64(0..data.count);
                                let value = table.get(data.key(number)).await?;
                                data.check(ENGINE, number, value.as_deref())?;
                                run.count();
                            }
                            Ok(())
                        }
                    })
                };
                let done = gets(POLLS_A_LOOK)?;
                row.add(ENGINE, done.count as f64 / done.seconds);
                let cpu = cpu_seconds() - cpu;
                note_reads(&mut row, &engine, misses, done.count as f64, cpu);
                cpu_row.add(ENGINE, cpu / done.count.max(1) as f64);
                ticks.add(ENGINE, done.late_p999());
                ticks.add(FEW_POLLS, gets(POLLS_A_LOOK_FEW)?.late_p999());
                // The same executor with one task that only sleeps: the lateness that the machine itself causes.
                let idle = on_executor(1, bench.options.time, POLLS_A_LOOK, None, |_, run| async move {
                    while run.goes_on() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    Ok(())
                })?;
                ticks.add("idle executor", idle.late_p999());
                let (file, used) = (place.join("data"), engine.used_bytes());
                let cpu = cpu_seconds();
                let reads = device::random_reads(&file, used, TASKS as usize, bench.options.time, u64::from(round))?;
                row.add("device", reads);
                let device_cpu = cpu_seconds() - cpu;
                cpu_row.add("device", device_cpu / (reads * bench.options.time.as_secs_f64()).max(1.0));
            }
            row.compare("device", Some(0.9));
            cpu_row.compare("device", None);
            cpu_row.limit = Some(Limit::AtMost(6e-6));
            cpu_row
                .note("of the whole process, its background threads, its tasks and the check of each value included");
            ticks.compare("idle executor", None);
            ticks.compare(FEW_POLLS, None);
            ticks.limit = Some(Limit::AtMost(0.001));
            bench.rows.extend([row, cpu_row, ticks]);
        }
    }
    Ok(())
}

/// The thread that takes the completions of reads: the database's own, or the executor's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poller {
    Database,
    Executor,
}

impl Poller {
    fn name(self) -> &'static str {
        match self {
            Self::Database => "reaper thread",
            Self::Executor => "executor's poller",
        }
    }
}

/// The work `commit` of [`super::WORKS`].
pub(super) fn commit(bench: &mut Bench<'_>) -> Result<()> {
    let value_bytes = bench.options.value_bytes.first().copied().unwrap_or(100);
    let data = Data { count: 10_000, value_bytes, seed: bench.options.seed };
    let engine = Engine::load(&bench.place("engine")?, data, &bench.large_pool(data))?;
    let raw = bench.place("raw")?;
    device::sequential_write(&raw, RAW_LOG_BYTES)?;
    for (writers, reach) in [(1, 0.9), (TASKS, 15.0)] {
        let mut row = Row::new("commit", format!("{}, {writers} writers", values(value_bytes)), Unit::PerSecond);
        for round in bench.rounds() {
            bench.go_on()?;
            let log = engine.db.stats().log;
            let done = if writers == 1 {
                one_writer(&engine, data, bench.options.time)?
            } else {
                on_executor(writers, bench.options.time, POLLS_A_LOOK, None, |task, run| {
                    let table = AsRef::<nofault::Table>::as_ref(&engine.table).clone();
                    async move {
                        let mut chance = fastrand::Rng::with_seed(mix(task) ^ u64::from(round));
                        while run.goes_on() {
                            let (key, value) = data.changed(chance.u64(0..data.count), chance.u64(..));
                            table.put(key, value).await?;
                            run.count();
                        }
                        Ok(())
                    }
                })?
            };
            row.add(ENGINE, done.count as f64 / done.seconds);
            let groups = engine.db.stats().log.groups_written - log.groups_written;
            row.notes.retain(|note| !note.starts_with("last run: "));
            let each = crate::format::digits(done.count as f64 / groups.max(1) as f64);
            row.note(format!("last run: {each} commits a write of the log"));
            row.add("device overwrite", device::durable_writes(&raw, RAW_LOG_BYTES, bench.options.time)?);
        }
        row.compare("device overwrite", Some(reach));
        bench.rows.push(row);
    }
    // Every acknowledged commit must be there.
    for number in 0..data.count {
        data.check(ENGINE, number, engine.table.get(data.key(number))?.as_deref())?;
    }
    Ok(())
}

fn one_writer(engine: &Engine, data: Data, time: Duration) -> Result<Done> {
    let mut chance = fastrand::Rng::with_seed(data.seed);
    let (started, mut count) = (Instant::now(), 0);
    while started.elapsed() < time {
        let (key, value) = data.changed(chance.u64(0..data.count), chance.u64(..));
        engine.table.put(key, value)?;
        count += 1;
    }
    Ok(Done { count, seconds: started.elapsed().as_secs_f64(), late: Vec::new() })
}

/// State shared by the tasks of a run.
#[derive(Clone)]
struct Run {
    ends: Instant,
    count: Rc<Cell<u64>>,
    failed: Rc<Cell<bool>>,
}

impl Run {
    fn goes_on(&self) -> bool {
        !self.failed.get() && Instant::now() < self.ends
    }

    fn count(&self) {
        self.count.set(self.count.get() + 1);
    }
}

/// The results of the tasks: operations, time, and the lateness of the ticker.
struct Done {
    count: u64,
    seconds: f64,
    late: Vec<Duration>,
}

impl Done {
    /// The 99.9th percentile of the ticker's lateness, in seconds.
    fn late_p999(mut self) -> f64 {
        self.late.sort();
        let rank = (self.late.len() as f64 * 0.999) as usize;
        self.late.get(rank.min(self.late.len().saturating_sub(1))).map_or(0.0, Duration::as_secs_f64)
    }
}

/// Runs `tasks` tasks for `time` on this thread, with a ticker beside them, and takes completions on it if it is given
/// them. The executor checks its timers and descriptors after every `polls_a_look` polls.
fn on_executor<T: Future<Output = Result<()>> + 'static>(
    tasks: u64,
    time: Duration,
    polls_a_look: u32,
    completions: Option<Completions>,
    make: impl Fn(u64, Run) -> T,
) -> Result<Done> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(polls_a_look)
        .build_local(LocalOptions::default())
        .map_err(|error| LabError::system("start an executor", &error))?;
    runtime.block_on(async {
        let ticker = Rc::new(Ticker::prepare()?);
        let started = Instant::now();
        let run = Run { ends: started + time, count: Rc::default(), failed: Rc::default() };
        ticker.start()?;
        let ticking = tokio::task::spawn_local({
            let ticker = Rc::clone(&ticker);
            async move { ticker.run().await }
        });
        let mut polling = None;
        if let Some(completions) = completions {
            // SAFETY: the descriptor is the same, and open, for as long as `completions` lives, which `ready` owns.
            let ready = unsafe { AsyncFd::register_with_interest(completions, Interest::READABLE) };
            let ready = ready.map_err(|error| LabError::system("poll the ring", &error.into()))?;
            polling = Some(tokio::task::spawn_local(async move {
                while let Ok(mut guard) = ready.readable().await {
                    guard.clear_ready();
                    ready.get_ref().take();
                }
            }));
        }
        let running: Vec<_> = (0..tasks).map(|task| tokio::task::spawn_local(make(task, run.clone()))).collect();
        let mut result = Ok(());
        for task in running {
            let ended = task.await;
            let ended = ended.map_err(|error| LabError::new(LabErrorKind::System, format!("a task: {error}")));
            if let Err(error) = ended.flatten() {
                run.failed.set(true);
                result = Err(error);
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        ticker.collect();
        ticking.abort();
        if let Some(polling) = polling {
            polling.abort();
            // Awaited, so that the completions are the database's again when this returns.
            drop(polling.await);
        }
        result.map(|()| Done { count: run.count.get(), seconds, late: ticker.lateness() })
    })
}

//! Random transactions of threads and tasks at a time, recorded and checked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nofault::db::Pace;
use nofault::error::{ErrorKind, Result};
use nofault::settings::Settings;
use nofault::{Durability, blocking};
use nofault_sim::content::key as key_of;
use nofault_sim::{SimOptions, SimWorld};

use crate::events::{Recorder, history_of};
use crate::graph::{Counts, Step, check};

const LISTS: u32 = 24;
const REGISTERS: u32 = 8;
/// Bound of the number of elements that a transaction writes.
const STEPS_MAX: u64 = 8;

/// An operation that a transaction will do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Plan {
    Append(u32),
    ReadList(u32),
    ReadLists(u32, u32),
    Write(u32),
    Read(u32),
    ReadRegisters(u32, u32),
}

pub(crate) fn plans(rng: &mut Rng) -> Vec<Plan> {
    // Some keys are hot, so that there are conflicts; others are not there yet, so that ranges meet new ones.
    let hot = rng.bool();
    let list = |rng: &mut Rng| rng.u32(..if hot { 4 } else { LISTS });
    let range = |rng: &mut Rng, end: u32| {
        let from = rng.u32(..end);
        (from, rng.u32(from..=end))
    };
    (0..rng.u64(1..STEPS_MAX))
        .map(|_| match rng.u32(..10) {
            0..3 => Plan::Append(list(rng)),
            3..5 => Plan::ReadList(list(rng)),
            5 => {
                let (from, to) = range(rng, LISTS);
                Plan::ReadLists(from, to)
            }
            6 => Plan::Write(rng.u32(..REGISTERS)),
            7..9 => Plan::Read(rng.u32(..REGISTERS)),
            _ => {
                let (from, to) = range(rng, REGISTERS);
                Plan::ReadRegisters(from, to)
            }
        })
        .collect()
}

fn number_of(key: &[u8]) -> u32 {
    u32::from_be_bytes(key.try_into().unwrap())
}

fn elements_of(value: Option<&[u8]>) -> Vec<u64> {
    value.unwrap_or_default().chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn list_of(key: u32, value: Option<&[u8]>, ranged: bool) -> Step {
    Step::ReadList { key, elements: elements_of(value), ranged }
}

fn register_of(key: u32, value: Option<&[u8]>, ranged: bool) -> Step {
    Step::Read { key, value: elements_of(value).first().copied(), ranged }
}

/// Carries out plans in a transaction, of the blocking or the asynchronous interface: the last tokens, none or `.await`, follow each call
/// that may wait.
macro_rules! carry_out {
    ($transaction:expr, $tables:expr, $plans:expr, $id:expr, $steps:expr, ($($wait:tt)*)) => {
        for (number, plan) in $plans.iter().enumerate() {
            let element = $id * STEPS_MAX + number as u64;
            match *plan {
                Plan::Append(key) => {
                    let before = $transaction.get(&$tables.0, key_of(key)) $($wait)* ?;
                    $steps.push(list_of(key, before.as_deref(), false));
                    let after = [&before.unwrap_or_default()[..], &element.to_le_bytes()].concat();
                    $transaction.put(&$tables.0, key_of(key), after)?;
                    $steps.push(Step::Append { key, element });
                }
                Plan::ReadList(key) => {
                    let value = $transaction.get(&$tables.0, key_of(key)) $($wait)* ?;
                    $steps.push(list_of(key, value.as_deref(), false));
                }
                Plan::Write(key) => {
                    $transaction.put(&$tables.1, key_of(key), element.to_le_bytes())?;
                    $steps.push(Step::Write { key, value: element });
                }
                Plan::Read(key) => {
                    let value = $transaction.get(&$tables.1, key_of(key)) $($wait)* ?;
                    $steps.push(register_of(key, value.as_deref(), false));
                }
                Plan::ReadLists(from, to) | Plan::ReadRegisters(from, to) => {
                    let lists = matches!(plan, Plan::ReadLists(..));
                    let (table, step): (_, fn(u32, Option<&[u8]>, bool) -> Step) =
                        if lists { (&$tables.0, list_of) } else { (&$tables.1, register_of) };
                    let mut found: Vec<Step> = (from..to).map(|key| step(key, None, true)).collect();
                    let mut range = $transaction.range(table, key_of(from)..key_of(to))?;
                    while let Some((key, value)) = range.next_ref() $($wait)* ? {
                        let key = number_of(key);
                        found[(key - from) as usize] = step(key, Some(value), true);
                    }
                    $steps.extend(found);
                }
            }
        }
    };
}

/// The state that all clients of one history share.
pub(crate) struct Clients {
    pub(crate) recorder: Recorder,
    pub(crate) next_id: AtomicU64,
    /// Whether commits may be deferred: deferred ones need not survive a kill.
    pub(crate) may_defer: bool,
    pub(crate) done: AtomicBool,
}

impl Clients {
    pub(crate) fn new(recorder: Recorder, first_id: u64, may_defer: bool) -> Self {
        Self { recorder, next_id: AtomicU64::new(first_id), may_defer, done: AtomicBool::new(false) }
    }

    fn begin(&self) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::SeqCst);
        self.recorder.begin(id);
        id
    }

    fn durability(&self, rng: &mut Rng) -> Durability {
        if self.may_defer && rng.u32(..3) == 0 { Durability::Deferred } else { Durability::Sync }
    }

    /// Records the outcome of an attempted commit with these steps.
    fn end(&self, id: u64, steps: &[Step], result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => self.recorder.committed(id, steps),
            Err(error) if error.kind() == ErrorKind::Conflict => self.recorder.aborted(id, steps),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Runs the transactions of one thread.
pub(crate) fn work_as_thread(db: &blocking::Db, clients: &Clients, mut rng: Rng, count: usize) -> Result<()> {
    let tables = (db.table("lists")?, db.table("registers")?);
    for _ in 0..count {
        let (plans, durability) = (plans(&mut rng), clients.durability(&mut rng));
        if rng.u32(..3) > 0 {
            let id = clients.begin();
            let mut steps = Vec::new();
            let transaction = db.begin();
            carry_out!(transaction, tables, plans, id, steps, ());
            if rng.u32(..10) == 0 {
                drop(transaction);
                clients.recorder.aborted(id, &steps);
                continue;
            }
            clients.recorder.attempt(id, &steps);
            clients.end(id, &steps, transaction.commit(durability))?;
            continue;
        }
        // The transaction begins before the closure is called, so its beginning is recorded before the call, and the next run's
        // at the end of this one. One that is not needed stays without steps.
        let mut next = clients.begin();
        let mut last: Option<(u64, Vec<Step>)> = None;
        db.transact(durability, |transaction| {
            if let Some((id, steps)) = last.take() {
                clients.recorder.aborted(id, &steps);
            }
            let id = next;
            let mut steps = Vec::new();
            carry_out!(transaction, tables, plans, id, steps, ());
            clients.recorder.attempt(id, &steps);
            next = clients.begin();
            last = Some((id, steps));
            Ok::<_, nofault::Error>(())
        })?;
        if let Some((id, steps)) = last {
            clients.recorder.committed(id, &steps);
        }
    }
    Ok(())
}

/// A run of a transaction: its id and its steps.
type Run = (u64, Vec<Step>);

/// Runs the transactions of one task.
pub(crate) async fn work_as_task(db: nofault::Db, clients: Arc<Clients>, mut rng: Rng, count: usize) -> Result<()> {
    let tables = (db.table("lists").await?, db.table("registers").await?);
    for _ in 0..count {
        let (plans, durability) = (plans(&mut rng), clients.durability(&mut rng));
        if rng.u32(..3) > 0 {
            let id = clients.begin();
            let mut steps = Vec::new();
            let transaction = db.begin();
            carry_out!(transaction, tables, plans, id, steps, (.await));
            if rng.u32(..10) == 0 {
                drop(transaction);
                clients.recorder.aborted(id, &steps);
                continue;
            }
            clients.recorder.attempt(id, &steps);
            clients.end(id, &steps, transaction.commit(durability).await)?;
            continue;
        }
        // The transaction begins before the closure is called, so its beginning is recorded before the call, and the next run's
        // at the end of this one. One that is not needed stays without steps.
        let runs: Mutex<(u64, Option<Run>)> = Mutex::new((clients.begin(), None));
        let lock = || runs.lock().unwrap_or_else(PoisonError::into_inner);
        db.transact(durability, async |transaction| {
            let (id, last) = std::mem::take(&mut *lock());
            if let Some((id, steps)) = last {
                clients.recorder.aborted(id, &steps);
            }
            let mut steps = Vec::new();
            carry_out!(transaction, tables, plans, id, steps, (.await));
            clients.recorder.attempt(id, &steps);
            *lock() = (clients.begin(), Some((id, steps)));
            Ok::<_, nofault::Error>(())
        })
        .await?;
        let (_, last) = std::mem::take(&mut *lock());
        if let Some((id, steps)) = last {
            clients.recorder.committed(id, &steps);
        }
    }
    Ok(())
}

/// Takes `count` snapshots and reads all keys in each. The reads of a snapshot are recorded as one transaction.
pub(crate) fn read_snapshots(db: &blocking::Db, clients: &Clients, count: usize) -> Result<()> {
    let tables = (db.table("lists")?, db.table("registers")?);
    for _ in 0..count {
        let id = clients.begin();
        let mut steps: Vec<Step> = (0..LISTS).map(|key| list_of(key, None, true)).collect();
        steps.extend((0..REGISTERS).map(|key| register_of(key, None, true)));
        let snapshot = db.snapshot();
        for (table, first, step) in
            [(&tables.0, 0, list_of as fn(_, Option<&[u8]>, _) -> Step), (&tables.1, LISTS, register_of)]
        {
            let mut range = snapshot.range::<&[u8]>(table, ..)?;
            while let Some((key, value)) = range.next_ref()? {
                let key = number_of(key);
                steps[(first + key) as usize] = step(key, Some(value), true);
            }
        }
        clients.recorder.committed(id, &steps);
    }
    Ok(())
}

/// Runs tasks on an executor of one thread.
fn run_tasks(db: &blocking::Db, clients: &Arc<Clients>, rng: &mut Rng, tasks: usize, count: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let spawn = |_| local.spawn_local(work_as_task(db.asynchronous(), clients.clone(), rng.fork(), count));
    let tasks: Vec<_> = (0..tasks).map(spawn).collect();
    local.block_on(&runtime, async {
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}

/// Runs threads and tasks concurrently until each has made `count` transactions.
pub(crate) fn run_clients(db: &blocking::Db, clients: &Arc<Clients>, rng: &mut Rng, count: usize) {
    let (threads, executors) = (rng.usize(1..4), rng.usize(1..3));
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..threads {
            let rng = rng.fork();
            workers.push(scope.spawn(move || work_as_thread(db, clients, rng, count).unwrap()));
        }
        for _ in 0..executors {
            let (tasks, mut rng) = (rng.usize(1..6), rng.fork());
            workers.push(scope.spawn(move || run_tasks(db, clients, &mut rng, tasks, count)));
        }
        workers.push(scope.spawn(|| read_snapshots(db, clients, count / 10).unwrap()));
        scope.spawn(|| {
            while !clients.done.load(Ordering::Relaxed) {
                db.checkpoint().unwrap();
                db.compact(Pace::Full, |_| true).unwrap();
            }
        });
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        clients.done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
}

/// Creates a database on a simulated disk with tables for lists and registers. Its pages are small, and its cache is
/// smaller than its data.
fn database(seed: u64) -> blocking::Db {
    let page_bytes = [512, 1024, 4096][seed as usize % 3];
    let cache_bytes = (1 << 20) + (page_bytes - 512) * 150;
    let settings = Settings { page_bytes, cache_bytes, log_bytes: 256 << 10, ..Settings::with_small_pages() };
    let db = blocking::Db::create_in(&SimWorld::new(seed, SimOptions::default()).directory(), &settings).unwrap();
    create_tables(&db);
    db
}

pub(crate) fn create_tables(db: &blocking::Db) {
    db.create_table("lists").unwrap();
    db.create_table("registers").unwrap();
}

/// Produces a history and checks it. A failing one is written to a file that the message names.
pub(crate) fn history(seed: u64, count: usize) -> Counts {
    let mut rng = Rng::with_seed(seed);
    let db = database(seed);
    let clients = Arc::new(Clients::new(Recorder::Memory(Mutex::default()), 1, true));
    run_clients(&db, &clients, &mut rng, count);
    read_snapshots(&db, &clients, 1).unwrap();
    check_lines(seed, &clients.recorder.take())
}

pub(crate) fn check_lines(seed: u64, lines: &[String]) -> Counts {
    check(&history_of(lines)).unwrap_or_else(|anomaly| {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("history-{seed}.txt"));
        std::fs::write(&path, lines.concat()).unwrap();
        let path = path.display();
        let again = format!(
            "NOFAULT_HISTORY={path} cargo test -p nofault-tests --test isolation a_history_is_checked -- --ignored"
        );
        panic!("seed {seed}: {anomaly}\ncheck it again with: {again}");
    })
}

/// Checks the history in the file `NOFAULT_HISTORY`.
#[test]
#[ignore = "needs the file that a failure has left"]
fn a_history_is_checked_again() {
    let Some(path) = std::env::var_os("NOFAULT_HISTORY") else { return println!("SKIPPED: set NOFAULT_HISTORY") };
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    println!("{:?}", check(&history_of(&lines)).unwrap_or_else(|anomaly| panic!("{anomaly}")));
}

#[test]
fn threads_and_tasks_beside_each_other_are_strictly_serializable() {
    let mut all = Counts::default();
    for seed in 1..=6 {
        let counts = history(seed, 60);
        assert!(counts.edges > counts.txns && counts.txns > 60, "seed {seed}: {counts:?} is no history to learn from");
        all = Counts { txns: all.txns + counts.txns, edges: all.edges + counts.edges };
    }
    println!("{all:?}");
}

/// Run by `cargo xtask histories`, for the time that it requests: histories in memory, and some with kills of the
/// process.
#[test]
#[ignore = "takes as long as NOFAULT_SIM_MINUTES says; use cargo xtask histories"]
fn histories_for_minutes() {
    let minutes: f64 = std::env::var("NOFAULT_SIM_MINUTES").map_or(1.0, |minutes| minutes.parse().expect("minutes"));
    let (started, end) = (Instant::now(), Duration::from_secs_f64(minutes * 60.0));
    let (first, mut histories, mut kills, mut all) = (fastrand::u64(..), 0, 0, Counts::default());
    println!("seeds from {first} on");
    let mut told = started;
    while started.elapsed() < end {
        let seed = first.wrapping_add(histories);
        let counts = if histories % 8 == 7 {
            kills += 20;
            crate::killed::history_with_kills(seed, 20)
        } else {
            history(seed, 100)
        };
        histories += 1;
        all = Counts { txns: all.txns + counts.txns, edges: all.edges + counts.edges };
        if told.elapsed() > Duration::from_secs(10) || started.elapsed() >= end {
            told = Instant::now();
            println!("{histories} histories, {kills} kills, {all:?} in {:.0} s", started.elapsed().as_secs_f64());
        }
    }
}

//! Tests of the async calls: on one thread and on several, with futures dropped at any await point.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, Db, Durability};
use nofault_io::mapped::{Advice, MappedFile, Protection};

fn is_send<F: Future + Send>(future: F) -> F {
    future
}

fn on_one_thread<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

#[test]
fn many_tasks_on_one_thread_read_and_write_a_database_larger_than_its_cache() {
    let folder = tempfile::tempdir().unwrap();
    on_one_thread(async {
        let db = is_send(Db::create(folder.path().join("db"), &Settings::small(2, 4))).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        let entries = (0..20_000u32).map(|number| (number.to_be_bytes(), [number as u8; 500]));
        assert_eq!(is_send(table.bulk_load(entries)).await.unwrap(), 20_000);
        let mut tasks = Vec::new();
        for task in 0..32u32 {
            let (db, table) = (db.clone(), table.clone());
            tasks.push(tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(u64::from(task));
                for step in 0..60u32 {
                    let number = random.u32(..20_000);
                    match step % 4 {
                        0 => {
                            let mut batch = Batch::new();
                            batch.put(&table, number.to_be_bytes(), [number as u8; 500]);
                            db.write(batch, Durability::Sync).await.unwrap();
                        }
                        1 => {
                            let keys: Vec<_> = (0..20).map(|_| random.u32(..20_000)).collect();
                            let bytes: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
                            for (key, value) in keys.iter().zip(table.get_many(&bytes).await.unwrap()) {
                                assert_eq!(value, Some(vec![*key as u8; 500]));
                            }
                        }
                        _ => {
                            let value = table.get(number.to_be_bytes()).await.unwrap();
                            assert_eq!(value, Some(vec![number as u8; 500]), "key {number}");
                        }
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let mut range = table.range::<&[u8]>(..);
        let mut count = 0u32;
        while let Some((key, value)) = range.next_ref().await.unwrap() {
            assert_eq!((key, value), (&count.to_be_bytes()[..], &[count as u8; 500][..]));
            count += 1;
        }
        assert_eq!(count, 20_000);
        assert!(db.verify().await.unwrap().is_clean());
    });
}

#[test]
fn transactions_of_many_tasks_on_many_threads_lose_no_update() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    runtime.block_on(async {
        let db = Db::create(folder.path().join("db"), &Settings::small(2, 4)).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        let mut tasks = Vec::new();
        for task in 0..8u32 {
            let (db, table) = (db.clone(), table.clone());
            tasks.push(tokio::spawn(async move {
                for step in 0..40u32 {
                    let key = [(task + step) as u8 % 4];
                    loop {
                        let change = db.begin();
                        let count = change.get(&table, key).await.unwrap().map_or(0, |value| value[0]);
                        change.put(&table, key, [count + 1]).unwrap();
                        match change.commit(Durability::Sync).await {
                            Ok(()) => break,
                            Err(error) => assert_eq!(error.kind(), nofault::error::ErrorKind::Conflict, "{error}"),
                        }
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let sum = db.transact(Durability::Sync, async |change| {
            let mut sum = 0;
            for key in 0..4u8 {
                sum += u32::from(change.get(&table, [key]).await?.map_or(0, |value| value[0]));
            }
            change.put(&table, "sum", sum.to_be_bytes()).map(|()| sum)
        });
        assert_eq!(sum.await.unwrap(), 320);
    });
}

/// Polls a future up to `polls` times and drops it. Returns true when it completed.
async fn poll_times<F: Future>(future: F, polls: u32) -> bool {
    let mut future = std::pin::pin!(future);
    for _ in 0..polls {
        let ready = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await;
        if ready {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

#[test]
fn futures_dropped_at_every_await_point_leave_a_usable_and_exact_database() {
    let seed = 20_261_121;
    let folder = tempfile::tempdir().unwrap();
    on_one_thread(async {
        let db = Db::create(folder.path().join("db"), &Settings::small(2, 4)).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        table.bulk_load((0..5_000u32).map(|number| (number.to_be_bytes(), vec![0u8; 900]))).await.unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        // The values that each key may have: the one before, or the one of a dropped commit.
        let mut may: BTreeMap<u32, Vec<u8>> = (0..5_000).map(|number| (number, vec![0])).collect();
        for round in 0..300u32 {
            let (polls, stamp) = (random.u32(..6), round as u8);
            let keys: Vec<u32> = (0..random.u32(1..4)).map(|_| random.u32(..5_000)).collect();
            match random.u32(..4) {
                0 => {
                    let bytes: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
                    poll_times(table.get_many(&bytes), polls).await;
                }
                1 => {
                    let mut range = table.range(keys[0].to_be_bytes()..);
                    for _ in 0..3 {
                        poll_times(range.next(), polls).await;
                    }
                    let (key, _) = range.next().await.unwrap().unwrap_or_default();
                    assert!(key.is_empty() || key >= keys[0].to_be_bytes().to_vec(), "seed {seed}");
                }
                _ => {
                    let mut batch = Batch::new();
                    for key in &keys {
                        let len = if round % 50 == 7 { 40_000 } else { 900 };
                        batch.put(&table, key.to_be_bytes(), vec![stamp; len]);
                        may.get_mut(key).unwrap().push(stamp);
                    }
                    if poll_times(db.write(batch, Durability::Sync), polls).await {
                        for key in &keys {
                            *may.get_mut(key).unwrap() = vec![stamp];
                        }
                    }
                }
            }
        }
        db.sync().await.unwrap();
        for (number, may) in &may {
            let value = table.get(number.to_be_bytes()).await.unwrap().unwrap();
            assert!(may.contains(&value[0]), "seed {seed}: key {number} holds {} and not one of {may:?}", value[0]);
        }
        assert!(db.verify().await.unwrap().is_clean(), "seed {seed}");
    });
}

#[test]
fn a_hit_is_answered_in_the_first_poll() {
    let folder = tempfile::tempdir().unwrap();
    let (_db, table) = on_one_thread(async {
        let db = Db::create(folder.path().join("db"), &Settings::small(2, 4)).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        table.put("k", "v").await.unwrap();
        (db, table)
    });
    let mut future = std::pin::pin!(is_send(table.get("k")));
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => assert_eq!(value.unwrap(), Some(b"v".to_vec())),
        Poll::Pending => panic!("a page in memory was waited for"),
    }
}

/// Returns a database with 20,000 values of 500 bytes, far more than it keeps in memory, and its table.
fn larger_than_memory(path: &std::path::Path) -> (nofault::blocking::Db, nofault::blocking::Table) {
    let db = nofault::blocking::Db::create(path, &Settings::small(2, 4)).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..20_000_u32).map(|number| (number.to_be_bytes(), [number as u8; 500]))).unwrap();
    (db, table)
}

/// Gets random keys in 16 tasks, each within a minute.
async fn get_in_tasks(table: &nofault::Table) {
    let tasks = (0..16_u64).map(|task| {
        let table = table.clone();
        tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            for _ in 0..200 {
                let number = random.u32(..20_000);
                let value = table.get(number.to_be_bytes()).await.unwrap();
                assert_eq!(value, Some(vec![number as u8; 500]), "key {number}");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        let ended = tokio::time::timeout(Duration::from_secs(60), task).await;
        ended.expect("a completion was forgotten").unwrap();
    }
}

#[test]
fn a_runtime_that_takes_the_completions_itself_serves_its_tasks_beside_blocking_calls() {
    let folder = tempfile::tempdir().unwrap();
    let (db, table) = larger_than_memory(&folder.path().join("db"));
    if db.asynchronous().completions().is_none() {
        eprintln!("not run: this disk has no descriptor to poll (no io_uring here)");
        return;
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Blocking calls reap the queue along with the executor, and must hand on the completions of its tasks.
        let blocking = scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(7);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let number = random.u32(..20_000);
                assert_eq!(table.get(number.to_be_bytes()).unwrap(), Some(vec![number as u8; 500]));
            }
        });
        on_one_thread(async {
            db.asynchronous().complete_on_tokio().unwrap();
            get_in_tasks(AsRef::<nofault::Table>::as_ref(&table)).await;
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        blocking.join().unwrap();
    });
    // The runtime has ended, so a thread of the database takes the completions of the next one's tasks.
    on_one_thread(get_in_tasks(AsRef::<nofault::Table>::as_ref(&table)));
}

#[test]
fn a_runtime_that_takes_the_completions_does_not_keep_the_database_open() {
    let folder = tempfile::tempdir().unwrap();
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for close in [true, false] {
        let path = folder.path().join(close.to_string());
        let (db, table) = larger_than_memory(&path);
        threads.block_on(async {
            let db = db.asynchronous();
            db.complete_on_tokio().unwrap();
            db.complete_on_tokio().unwrap();
            get_in_tasks(AsRef::<nofault::Table>::as_ref(&table)).await;
        });
        drop(table);
        if close {
            db.close().unwrap();
        } else {
            drop(db);
        }
        // Refused if the database were still open. The runtime's part has ended, or is about to.
        let db = nofault::blocking::Db::open(&path, &Settings::small(2, 4)).unwrap();
        let table = db.table("t").unwrap();
        threads.block_on(get_in_tasks(AsRef::<nofault::Table>::as_ref(&table)));
    }
    let metrics = threads.metrics();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while metrics.num_alive_tasks() > 0 {
        assert!(std::time::Instant::now() < deadline, "{} tasks are left", metrics.num_alive_tasks());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_runtime_that_took_the_completions_and_stops_polling_only_delays_the_tasks_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let (db, table) = larger_than_memory(&folder.path().join("db"));
    if db.asynchronous().completions().is_none() {
        eprintln!("not run: this disk has no descriptor to poll (no io_uring here)");
        return;
    }
    let table: &nofault::Table = table.as_ref();
    std::thread::scope(|scope| {
        // Dropped in a panic as well, so that the runtime ends.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let db = &db;
        scope.spawn(move || {
            on_one_thread(async {
                db.asynchronous().complete_on_tokio().unwrap();
                get_in_tasks(table).await;
                tell.send(()).unwrap();
                // Its one thread waits here, and polls nothing.
                assert!(released.recv().is_err());
                get_in_tasks(table).await;
            });
        });
        told.recv().unwrap();
        on_one_thread(get_in_tasks(table));
        drop(release);
    });
}

#[test]
fn completions_are_not_given_to_a_runtime_that_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    let (db, _table) = larger_than_memory(&folder.path().join("db"));
    let refused = db.asynchronous().complete_on_tokio().unwrap_err();
    assert_eq!(refused.kind(), nofault::error::ErrorKind::InvalidCall, "{refused}");
}

/// A tick of a timer: its lateness, and the part of the lateness in which its thread did not wait for a CPU.
#[derive(Debug, Clone, Copy)]
struct Tick {
    late: Duration,
    own: Duration,
}

/// Returns the total time in which this thread was ready to run and had no CPU. Zero where the kernel does not count
/// it.
fn starved() -> Duration {
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(counts.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// Runs a 1 ms timer and `tasks` on one thread, and returns the ticks of the timer, one for each that was due.
fn ticks_beside<F: Future<Output = ()> + 'static>(tasks: impl FnOnce() -> Vec<F>) -> Vec<Tick> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let ticker = tokio::task::spawn_local(async {
            let mut timer = tokio::time::interval(Duration::from_millis(1));
            // Moments at which the time without a CPU was read, each with its value; the first one is before the next
            // tick is due.
            let mut looks = VecDeque::from([(tokio::time::Instant::now(), starved())]);
            let mut ticks = Vec::new();
            while !STOP.get() {
                let due = timer.tick().await;
                let (now, starved_now) = (tokio::time::Instant::now(), starved());
                while looks.get(1).is_some_and(|(at, _)| *at <= due) {
                    looks.pop_front();
                }
                let late = now.saturating_duration_since(due);
                // The last reading before the tick was due may be some time old: the time without a CPU is taken as
                // evenly spread since then.
                let (since, starved) = (now - looks[0].0, starved_now.saturating_sub(looks[0].1));
                let share = starved.as_secs_f64() / since.as_secs_f64().max(1e-9);
                ticks.push(Tick { late, own: late.mul_f64((1.0 - share).clamp(0.0, 1.0)) });
                looks.push_back((now, starved_now));
            }
            ticks
        });
        STOP.set(false);
        let tasks: Vec<_> = tasks().into_iter().map(tokio::task::spawn_local).collect();
        for task in tasks {
            task.await.expect("a task that reads");
        }
        STOP.set(true);
        ticker.await.expect("the ticker")
    })
}

thread_local! {
    /// Set when the reads are done, so that the ticker ends.
    static STOP: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Shows that page faults of a map delay the other tasks of a thread, and that reads of the engine do not. In both
/// cases the same number of cold reads of 4 KiB, by as many tasks, runs on one thread with a timer.
///
/// Other programs can delay a thread for longer than both kinds of reads. So the time in which the thread was ready to
/// run and had no CPU does not count. The two kinds take turns, and the ticks of all rounds count together. The output
/// shows the measured lateness.
#[test]
fn a_timer_beside_cold_reads_of_the_engine_is_more_on_time_than_beside_those_of_a_map() {
    const READS: usize = 6_000;
    const TASKS: usize = 64;
    const ROUNDS: usize = 5;
    // On the disk that the sources are on: not on tmpfs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("db");
    // Four rows fill a page of values.
    let rows = 4 * READS as u32;
    let direct = on_one_thread(async {
        let db = Db::create(&path, &Settings::small(2, 4)).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        let entries = (0..rows).map(|number| (number.to_be_bytes(), vec![number as u8; 1000]));
        table.bulk_load(entries).await.unwrap();
        db.stats().disk.direct
    });
    if !direct {
        return println!("not checked: no direct I/O here, so what was written is in the page cache");
    }
    println!("{READS} cold reads by {TASKS} tasks on one thread; lateness of a 1 ms timer:");
    println!("p50, p99, worst; and p50 without waits for a CPU");
    let (mut engine, mut map) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        engine.extend(ticks_beside_the_engine(&path, rows, TASKS, round as u64));
        map.extend(ticks_beside_a_map(&path.join("data"), READS, TASKS, round as u64));
    }
    let (engine, map) = (of(&engine).1, of(&map).1);
    assert!(engine < map, "the engine's reads delay the timer more ({engine:.1?}) than a map's ({map:.1?})");
}

fn ticks_beside_the_engine(path: &Path, rows: u32, tasks: usize, seed: u64) -> Vec<Tick> {
    let table =
        on_one_thread(async { Db::open(path, &Settings::small(2, 4)).await.unwrap().table("t").await.unwrap() });
    let mut numbers: Vec<u32> = (0..rows).step_by(4).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut numbers);
    let started = Instant::now();
    let ticks = ticks_beside(|| {
        let task = |numbers: &[u32]| {
            let (table, numbers) = (table.clone(), numbers.to_vec());
            async move {
                for number in numbers {
                    assert_eq!(table.get(number.to_be_bytes()).await.unwrap().unwrap()[0], number as u8);
                }
            }
        };
        numbers.chunks(numbers.len() / tasks).map(task).collect()
    });
    let (took, misses) = (started.elapsed(), table.db().stats().pool.misses);
    let (late, own) = of(&ticks);
    println!("  engine: {late:.1?}, {own:.1?} ({misses} misses in {took:.0?})");
    ticks
}

fn ticks_beside_a_map(path: &Path, reads: usize, tasks: usize, seed: u64) -> Vec<Tick> {
    let file = std::fs::File::open(path).unwrap();
    let pages = (file.metadata().unwrap().len() / 4096) as u32;
    // Drops the pages that the round before left in memory.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    // SAFETY: the database is closed, and the folder is this test's own.
    let map = unsafe { MappedFile::map(&file, Protection::ReadOnly, 0..u64::from(pages) * 4096) }.unwrap();
    map.advise(Advice::Random, 0..map.len_bytes()).unwrap();
    let resident_bytes = map.residency(0..map.len_bytes()).unwrap();
    assert!(resident_bytes < map.len_bytes() as u64 / 10, "{resident_bytes} bytes are in memory before they are read");
    let mut numbers: Vec<u32> = (0..pages).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut numbers);
    numbers.truncate(reads);
    let map = Rc::new(map);
    let started = Instant::now();
    let ticks = ticks_beside(|| {
        let task = |numbers: &[u32]| {
            let (map, numbers) = (Rc::clone(&map), numbers.to_vec());
            async move {
                for number in numbers {
                    let at = number as usize * 4096;
                    let sum = map.bytes()[at..at + 4096].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
                    std::hint::black_box(sum);
                    tokio::task::yield_now().await;
                }
            }
        };
        numbers.chunks(reads / tasks).map(task).collect()
    });
    let took = started.elapsed();
    let (late, own) = of(&ticks);
    println!("  map:    {late:.1?}, {own:.1?} (in {took:.0?})");
    ticks
}

/// Returns the median, the 99th percentile and the maximum of how late the ticks were; then the median without the time
/// that the thread spent waiting for a CPU.
fn of(ticks: &[Tick]) -> ([Duration; 3], Duration) {
    let sorted = |of: fn(&Tick) -> Duration| {
        let mut all: Vec<_> = ticks.iter().map(of).collect();
        all.sort_unstable();
        all
    };
    let late = sorted(|tick| tick.late);
    let own = sorted(|tick| tick.own)[ticks.len() / 2];
    ([late.len() / 2, late.len() * 99 / 100, late.len() - 1].map(|at| late[at]), own)
}

/// Records whether a task has asked to be polled again.
#[derive(Default)]
struct Again(AtomicBool);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn opening_a_database_that_only_a_large_commit_keeps_waits_until_that_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let settings = Settings { cache_bytes: 16 << 20, log_bytes: 64 << 20, ..Settings::default() };
    const COUNT: u32 = 20_000;
    let db = on_one_thread(async {
        let db = Db::create(&path, &settings).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        let mut batch = Batch::new();
        for number in 0..COUNT {
            batch.put(&table, number.to_be_bytes(), [number as u8; 500]);
        }
        let mut commit = Box::pin(db.write(batch, Durability::Sync));
        // The commit yields to other tasks while it examines the batch, and wakes itself. The first poll that leaves it
        // without a wake-up has handed the batch to a thread.
        let again = Arc::new(Again::default());
        let waker = Waker::from(again.clone());
        loop {
            assert!(commit.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "a thread commits it");
            if !again.0.swap(false, Ordering::SeqCst) {
                break;
            }
        }
        drop(commit);
        // A handle can be dropped, so nothing waits for it.
        let refused = nofault::blocking::Db::open(&path, &settings).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        drop((table, db));
        nofault::blocking::Db::open(&path, &settings).unwrap()
    });
    let mut found = 0;
    for (number, entry) in db.table("t").unwrap().range::<&[u8]>(..).enumerate() {
        assert_eq!(entry.unwrap(), ((number as u32).to_be_bytes().to_vec(), vec![number as u8; 500]));
        found += 1;
    }
    assert_eq!(found, COUNT, "it was on its way, and nothing has failed");
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_table_created_later_is_empty_for_tasks_as_well() {
    let folder = tempfile::tempdir().unwrap();
    on_one_thread(async {
        let db = Db::create(folder.path().join("db"), &Settings::small(2, 4)).await.unwrap();
        let (before, change) = (db.snapshot(), db.begin());
        let late = db.create_table("late").await.unwrap();
        late.put("k", "v").await.unwrap();
        assert_eq!(before.get(&late, "k").await.unwrap(), None);
        assert_eq!(before.get_many(&late, &["k", "l"]).await.unwrap(), [None, None]);
        assert!(before.range::<&[u8]>(&late, ..).unwrap().next().await.unwrap().is_none());
        assert_eq!(change.get(&late, "k").await.unwrap(), None);
        assert!(change.range::<&[u8]>(&late, ..).unwrap().next_ref().await.unwrap().is_none());
        change.put(&late, "k", "lost").unwrap();
        assert_eq!(change.commit(Durability::Sync).await.unwrap_err().kind(), ErrorKind::Conflict);
    });
}

//! Prints what the compressed tier does to reads out of core: gets of a table that is not compressed and of one that is,
//! each without the tier and with it. All of them in one run and by turns, with caches of a sixteenth, an eighth and a
//! quarter of the data.
//!
//! `cargo bench -p nofault-benches --bench compressed_tier -- [MIB] [FOLDER] [ROUNDS] [SECONDS] [KIND] [CODEC] [SHARE] [KEYS] [USE]`
//! loads so many MiB (256 by default) of each kind of records into databases in a new folder below `FOLDER` (the current
//! one by default), which is removed at the end. One thread reads for `SECONDS` (3), and then, in a
//! reopened database, 64 tasks do, after several gets for each page of the data that are not counted; each answer is
//! checked. A figure is the median of the `ROUNDS` (3) with the lowest and the highest. `KIND` is `json`, `events` or `logs`,
//! `CODEC` `Fast` or `Small`, `SHARE` a divisor of the data, and `KEYS` `zipf` (0.99, scattered over the key space) or
//! `uniform`: without them, or with `all`, all. With the `USE` `always` blocks always have frames; otherwise the pool judges.

mod records;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nofault::Table;
use nofault::blocking::Db;
use nofault::db::PoolStats;
use nofault::error::Result;
use nofault::settings::{Compression, Settings, TierUse};
use tokio::runtime::{Builder, Runtime};

const TASKS: u64 = 64;
/// Gets that warm a cache, for each page of the data.
const WARM_GETS_A_PAGE: u64 = 6;

/// Makes the record of a number from random numbers.
type Generator = fn(&mut Rng, u64) -> String;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |at: usize, default| arguments.get(at).map_or(default, |text| text.parse().expect("a number"));
    let (mib, rounds, seconds) = (number(0, 256), number(2, 3), number(3, 3));
    let chosen = |at: usize, name: &str| arguments.get(at).is_none_or(|chosen| chosen == name || chosen == "all");
    let tier =
        if arguments.get(8).is_some_and(|chosen| chosen == "always") { TierUse::Always } else { TierUse::Judged };
    let folder = tempfile::tempdir_in(arguments.get(1).map_or(".", String::as_str)).expect("a folder to write to");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let kinds = [("json", records::json as Generator), ("events", records::event), ("logs", records::log_line)];
    for (kind, record) in kinds.into_iter().filter(|(kind, _)| chosen(4, kind)) {
        let data = Arc::new(Data::of((mib as usize) << 20, record));
        let codecs = [Compression::Fast, Compression::Small];
        for codec in codecs.into_iter().filter(|codec| chosen(5, &format!("{codec:?}"))) {
            let paths = [Compression::None, codec].map(|codec| folder.path().join(format!("{kind}-{codec:?}")));
            for (path, codec) in paths.iter().zip([Compression::None, codec]).filter(|(path, _)| !path.exists()) {
                load(path, &data, codec)?;
            }
            for share in [16, 8, 4].into_iter().filter(|share| chosen(6, &share.to_string())) {
                for keys in ["zipf", "uniform"].into_iter().filter(|keys| chosen(7, keys)) {
                    let what = format!("{kind:6} 1/{share:<2} {codec:?} {keys:7}");
                    let trial = Trial { runtime: &runtime, data: &data, is_uniform: keys == "uniform", tier, share };
                    compare(&what, &trial, &paths, (rounds, Duration::from_secs(seconds)))?;
                }
            }
        }
    }
    Ok(())
}

/// The records of one kind, and the distribution of the gets.
struct Data {
    record: Generator,
    records: u64,
    bytes: usize,
    zipf: Zipf,
}

impl Data {
    fn of(bytes: usize, record: Generator) -> Self {
        let of = |number| record(&mut Rng::with_seed(number), number);
        let sample: usize = (0..1000).map(|number| key(number).len() + of(number).len()).sum();
        let records = (bytes * 1000 / sample) as u64;
        Self { record, records, bytes, zipf: Zipf::new(records) }
    }

    /// Draws the number of a record.
    fn draw(&self, rng: &mut Rng, is_uniform: bool) -> u64 {
        if is_uniform { rng.u64(..self.records) } else { self.zipf.draw(rng) }
    }

    fn record(&self, number: u64) -> String {
        (self.record)(&mut Rng::with_seed(number), number)
    }
}

fn key(number: u64) -> String {
    format!("{number:016}")
}

fn load(path: &Path, data: &Data, compression: Compression) -> Result<()> {
    let db = Db::create(path, &Settings { cache_bytes: 64 << 20, compression, ..Settings::default() })?;
    db.create_table("t")?.bulk_load((0..data.records).map(|number| (key(number), data.record(number))))?;
    let used_bytes = db.stats().pool.blocks_used * db.page_bytes() as u64;
    println!("{compression:?}: {:.3} bytes of file a byte", used_bytes as f64 / data.bytes as f64);
    Ok(())
}

/// What is the same in all runs that are compared.
struct Trial<'a> {
    runtime: &'a Runtime,
    data: &'a Arc<Data>,
    is_uniform: bool,
    tier: TierUse,
    share: usize,
}

/// Measures a table without compression and a compressed one, each without and with the tier, by turns, and prints the figures.
fn compare(
    what: &str,
    trial: &Trial<'_>,
    [whole, compressed]: &[PathBuf; 2],
    (rounds, time): (u64, Duration),
) -> Result<()> {
    let variants = [
        ("none", whole, TierUse::Never),
        ("none+tier", whole, trial.tier),
        ("no tier", compressed, TierUse::Never),
        ("tier", compressed, trial.tier),
    ];
    let mut runs: [Vec<Run>; 4] = Default::default();
    for _ in 0..rounds {
        for (runs, (_, path, tier)) in runs.iter_mut().zip(&variants) {
            let settings =
                Settings { cache_bytes: trial.data.bytes / trial.share, ..Settings::default() }.with_tier(*tier);
            runs.push(measure(trial, path, &settings, time)?);
        }
    }
    let bases = [0, 2].map(|at| [median(&runs[at], |run| run.thread.0), median(&runs[at], |run| run.tasks.0)]);
    for (runs, (name, _, _)) in runs.iter().zip(&variants) {
        let line = |of: fn(&Run) -> (f64, String), way: usize| {
            let speed = median(runs, |run| of(run).0);
            let least = runs.iter().map(|run| of(run).0).fold(f64::MAX, f64::min);
            let most = runs.iter().map(|run| of(run).0).fold(0.0, f64::max);
            let [to_none, to_no_tier] = bases.map(|base| speed / base[way]);
            let found = &runs.last().map_or(String::new(), |run| of(run).1);
            format!("{speed:>7.0} ({least:.0} to {most:.0}), {to_none:.2} x none, {to_no_tier:.2} x no tier; {found}")
        };
        println!("{what} {name:9} gets/s of a thread {}", line(|run| run.thread.clone(), 0));
        println!("{what} {name:9} gets/s of {TASKS} tasks {}", line(|run| run.tasks.clone(), 1));
    }
    Ok(())
}

fn median(runs: &[Run], of: impl Fn(&Run) -> f64) -> f64 {
    let mut all: Vec<f64> = runs.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Gets a second, and where the gets found their pages.
struct Run {
    thread: (f64, String),
    tasks: (f64, String),
}

fn measure(trial: &Trial<'_>, path: &Path, settings: &Settings, time: Duration) -> Result<Run> {
    let found = |gets: f64, before: &PoolStats, after: &PoolStats| {
        let share = |count: u64| count as f64 * 100.0 / gets / time.as_secs_f64();
        let (read, restored) = (share(after.misses - before.misses), share(after.tier_hits - before.tier_hits));
        let evicted = share(after.tier_evicted - before.tier_evicted);
        let frames = format!("{} of {} frames", after.tier_blocks, after.frames);
        format!("of 100 {read:.1} read, {restored:.1} restored, {evicted:.1} blocks evicted; {frames}")
    };
    let warm_gets = trial.data.bytes as u64 / 4096 * WARM_GETS_A_PAGE;
    let db = Db::open(path, settings)?;
    let table = db.table("t")?;
    gets_of_thread(&table, trial, 1, warm_gets, Duration::MAX)?;
    let before = db.stats().pool;
    let gets = gets_of_thread(&table, trial, 2, u64::MAX, time)?;
    let thread = (gets, found(gets, &before, &db.stats().pool));
    drop((table, db));
    let db = Db::open(path, settings)?;
    let table = trial.runtime.block_on(db.asynchronous().table("t"))?;
    trial.runtime.block_on(gets_of_tasks(&table, trial, 1, warm_gets, Duration::MAX))?;
    let before = db.stats().pool;
    let gets = trial.runtime.block_on(gets_of_tasks(&table, trial, 2, u64::MAX, time))?;
    Ok(Run { thread, tasks: (gets, found(gets, &before, &db.stats().pool)) })
}

/// Reads from one thread until it has made so many gets, or so much time has passed. Returns the gets a second.
fn gets_of_thread(
    table: &nofault::blocking::Table,
    trial: &Trial<'_>,
    seed: u64,
    most: u64,
    time: Duration,
) -> Result<f64> {
    let (data, mut rng, mut gets, begun) = (trial.data, Rng::with_seed(seed), 0_u64, Instant::now());
    while gets < most && begun.elapsed() < time {
        for _ in 0..64 {
            let number = data.draw(&mut rng, trial.is_uniform);
            assert_eq!(table.get(key(number))?, Some(data.record(number).into_bytes()));
            gets += 1;
        }
    }
    Ok(gets as f64 / begun.elapsed().as_secs_f64())
}

/// Reads from all tasks until they have made so many gets, or so much time has passed. Returns the gets a second.
async fn gets_of_tasks(table: &Table, trial: &Trial<'_>, seed: u64, most: u64, time: Duration) -> Result<f64> {
    let (made, begun, is_uniform) = (Arc::new(AtomicU64::new(0)), Instant::now(), trial.is_uniform);
    let task = |task: u64| {
        let (table, data, made) = (table.clone(), Arc::clone(trial.data), Arc::clone(&made));
        tokio::spawn(async move {
            let mut rng = Rng::with_seed(seed * 1000 + task);
            while made.fetch_add(1, Ordering::Relaxed) < most && begun.elapsed() < time {
                let number = data.draw(&mut rng, is_uniform);
                assert_eq!(table.get(key(number)).await?, Some(data.record(number).into_bytes()));
            }
            Ok::<_, nofault::error::Error>(())
        })
    };
    for task in (0..TASKS).map(task).collect::<Vec<_>>() {
        task.await.expect("no task panics")?;
    }
    Ok((made.load(Ordering::Relaxed) - TASKS) as f64 / begun.elapsed().as_secs_f64())
}

/// Numbers below `count` in a Zipf distribution with exponent 0.99 (Gray and others, SIGMOD 1994), scattered, so that
/// neighbours of a frequent number are not frequent as well.
struct Zipf {
    count: u64,
    sum: f64,
    eta: f64,
}

const SKEW: f64 = 0.99;

impl Zipf {
    fn new(count: u64) -> Self {
        let sum: f64 = (1..=count).map(|rank| (rank as f64).powf(-SKEW)).sum();
        let two = 1.0 + 0.5_f64.powf(SKEW);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - SKEW)) / (1.0 - two / sum);
        Self { count, sum, eta }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let uniform = rng.f64();
        let at = uniform * self.sum;
        let rank = match at {
            _ if at < 1.0 => 0,
            _ if at < 1.0 + 0.5_f64.powf(SKEW) => 1,
            _ => (self.count as f64 * (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - SKEW))) as u64,
        };
        // A hash of the rank, as two ranks may share a number.
        Rng::with_seed(rank).u64(..self.count)
    }
}

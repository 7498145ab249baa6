//! Works that read from threads: gets in memory and out of core, batches, scans.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::data::{Data, mix};
use super::device;
use super::row::{ENGINE, Row};
use super::store::{Engine, NOT_BUILT, PEERS, Store, peer};
use super::{Bench, cpu_seconds, not_built, values};
use crate::error::{LabError, LabErrorKind, Result};
use crate::format::Unit;

/// Gets between two clock readings, in memory.
const GETS_A_LOOK: u64 = 256;
/// Gets in a batch while an engine is warmed, and batches between two checks of its warmth.
const WARM_BATCH: usize = 256;
const WARM_BATCHES: u64 = 64;
/// An engine is warm when a get reads no more pages than this: the value's, and hardly ever an inner one.
const WARM_READS_A_GET: f64 = 1.05;
/// Longest time spent on warming.
const WARM_TIME_MAX: Duration = Duration::from_secs(60);

/// The work `get-memory` of [`super::WORKS`].
pub(super) fn get_memory(bench: &mut Bench<'_>) -> Result<()> {
    let value_bytes = bench.options.value_bytes.first().copied().unwrap_or(100);
    let data = Data { count: bench.options.memory_keys, value_bytes, seed: bench.options.seed };
    let settings = bench.large_pool(data);
    let mut stores: Vec<Box<dyn Store>> = vec![Box::new(Engine::load(&bench.place("engine")?, data, &settings)?)];
    for name in PEERS {
        if let Some(store) = peer(name, &bench.place(name)?, data, settings.cache_bytes as u64) {
            stores.push(store?);
        }
    }
    for threads in [1, 2] {
        let variant = format!("{}, {threads} threads", values(value_bytes));
        let mut row = Row::new("get-memory", variant, Unit::PerSecond);
        for store in &stores {
            // First bring everything into memory.
            random_gets(&**store, data, threads, bench.options.time / 4, 0)?;
        }
        for round in bench.rounds() {
            for store in &stores {
                bench.go_on()?;
                let seed = mix(u64::from(round) + 1);
                row.add(store.name(), random_gets(&**store, data, threads, bench.options.time, seed)?);
                row.note(store.unequal());
            }
        }
        peers_of(&mut row, &not_built(), Some(1.0), None);
        bench.rows.push(row);
    }
    Ok(())
}

/// Compares with the rivals, or notes that they were not compiled in.
pub(super) fn peers_of(row: &mut Row, missing: &[&str], reach_lmdb: Option<f64>, reach_redb: Option<f64>) {
    for (name, reach) in PEERS.into_iter().zip([reach_lmdb, reach_redb]) {
        if missing.contains(&name) { row.missing(name, reach, NOT_BUILT) } else { row.compare(name, reach) }
    }
    row.notes.retain(|note| !note.is_empty());
}

/// Gets a second of `threads` threads together.
fn random_gets(store: &dyn Store, data: Data, threads: u64, time: Duration, seed: u64) -> Result<f64> {
    let barrier = Barrier::new(threads as usize);
    let work = |thread: u64| -> Result<f64> {
        let reader = store.reader();
        let mut chance = fastrand::Rng::with_seed(seed ^ mix(thread));
        barrier.wait();
        let (mut reader, started, mut gets) = (reader?, Instant::now(), 0_u64);
        while started.elapsed() < time {
            for _ in 0..GETS_A_LOOK {
                let number = chance.u64(0..data.count);
                reader.get(&data.key(number), &mut |value| data.check(store.name(), number, value))?;
            }
            gets += GETS_A_LOOK;
        }
        Ok(gets as f64 / started.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        workers.into_iter().map(|worker| worker.join().map_err(panicked)?).sum()
    })
}

/// The error for a worker thread that panicked, which would be a bug of the lab.
pub(super) fn panicked<T>(_: T) -> LabError {
    LabError::new(LabErrorKind::System, "a worker of the benchmark panicked; this is a defect of nofault")
}

/// The work `get-many` of [`super::WORKS`].
pub(super) fn get_many(bench: &mut Bench<'_>) -> Result<()> {
    for value_bytes in bench.options.value_bytes.clone() {
        let data = bench.large(value_bytes);
        let row = |batch| Row::new("get-many", format!("{} × {batch}", values(value_bytes)), Unit::PerSecond);
        let mut rows = [64_usize, 256].map(|batch| (batch, row(batch)));
        if bench.has_part(ENGINE) {
            get_many_of_the_engine(bench, data, &mut rows)?;
        }
        if bench.has_part("lmdb")
            && let Some(lmdb) = peer("lmdb", &bench.place("lmdb")?, data, bench.options.cache_bytes).transpose()?
        {
            for (_, row) in &mut rows {
                for round in bench.rounds() {
                    bench.go_on()?;
                    row.add("lmdb", random_gets(&*lmdb, data, 1, bench.options.time, u64::from(round))?);
                }
                row.note(lmdb.unequal());
            }
            drop(lmdb);
            bench.place("lmdb")?;
        }
        for (_, mut row) in rows {
            row.compare("device", Some(0.9));
            row.compare("device in batches", None);
            match not_built().contains(&"lmdb") {
                true => row.missing("lmdb", Some(4.0), NOT_BUILT),
                false => row.compare("lmdb", Some(4.0)),
            }
            bench.rows.push(row);
        }
    }
    Ok(())
}

/// Measures batches of the engine, and of the device beside it.
fn get_many_of_the_engine(bench: &mut Bench<'_>, data: Data, rows: &mut [(usize, Row)]) -> Result<()> {
    let place = bench.place("engine")?;
    let engine = Engine::load(&place, data, &bench.small_pool())?;
    warm(&engine, data, bench.options.seed)?;
    for (batch, row) in rows {
        let mut chance = fastrand::Rng::with_seed(bench.options.seed);
        for round in bench.rounds() {
            bench.go_on()?;
            let misses = engine.db.stats().pool.misses;
            let (started, cpu, mut gets) = (Instant::now(), cpu_seconds(), 0);
            while started.elapsed() < bench.options.time {
                let numbers: Vec<u64> = (0..*batch).map(|_| chance.u64(0..data.count)).collect();
                let keys: Vec<_> = numbers.iter().map(|number| data.key(*number)).collect();
                let answers = engine.table.get_many(&keys)?;
                for (number, value) in numbers.iter().zip(&answers) {
                    data.check(ENGINE, *number, value.as_deref())?;
                }
                gets += *batch;
            }
            row.add(ENGINE, gets as f64 / started.elapsed().as_secs_f64());
            note_reads(row, &engine, misses, gets as f64, cpu_seconds() - cpu);
            let (file, used, seed) = (place.join("data"), engine.used_bytes(), u64::from(round));
            row.add("device", device::random_reads(&file, used, *batch, bench.options.time, seed)?);
            row.add("device in batches", device::random_batches(&file, used, *batch, bench.options.time, seed)?);
        }
    }
    drop(engine);
    bench.place("engine")?;
    Ok(())
}

/// Random gets until the inner pages are in memory, as they are in a database that has run for a while. Returns the
/// reads per get at the end.
pub(super) fn warm(engine: &Engine, data: Data, seed: u64) -> Result<f64> {
    let mut chance = fastrand::Rng::with_seed(mix(seed));
    let started = Instant::now();
    loop {
        let misses = engine.db.stats().pool.misses;
        for _ in 0..WARM_BATCHES {
            let keys: Vec<_> = (0..WARM_BATCH).map(|_| data.key(chance.u64(0..data.count))).collect();
            engine.table.get_many(&keys)?;
        }
        let reads = (engine.db.stats().pool.misses - misses) as f64 / (WARM_BATCHES * WARM_BATCH as u64) as f64;
        if reads <= WARM_READS_A_GET || started.elapsed() >= WARM_TIME_MAX {
            return Ok(reads);
        }
    }
}

/// Notes the cost of a get: page reads, and CPU of the whole process.
pub(super) fn note_reads(row: &mut Row, engine: &Engine, misses_before: u64, gets: f64, cpu_s: f64) {
    let reads = (engine.db.stats().pool.misses - misses_before) as f64;
    row.notes.retain(|note| !note.starts_with("last run: "));
    row.note(format!(
        "last run: {} reads a get, {} of CPU a get",
        crate::format::digits(reads / gets.max(1.0)),
        Unit::Seconds.show(cpu_s / gets.max(1.0))
    ));
}

/// The work `get-one` of [`super::WORKS`].
pub(super) fn get_one(bench: &mut Bench<'_>) -> Result<()> {
    for value_bytes in bench.options.value_bytes.clone() {
        let data = bench.large(value_bytes);
        let place = bench.place("engine")?;
        let engine = Engine::load(&place, data, &bench.small_pool())?;
        warm(&engine, data, bench.options.seed)?;
        let mut row = Row::new("get-one", values(value_bytes), Unit::PerSecond);
        let mut chance = fastrand::Rng::with_seed(bench.options.seed);
        for round in bench.rounds() {
            bench.go_on()?;
            let misses = engine.db.stats().pool.misses;
            let (started, cpu, mut gets) = (Instant::now(), cpu_seconds(), 0_u64);
            while started.elapsed() < bench.options.time {
                let number = chance.u64(0..data.count);
                data.check(ENGINE, number, engine.table.get(data.key(number))?.as_deref())?;
                gets += 1;
            }
            row.add(ENGINE, gets as f64 / started.elapsed().as_secs_f64());
            note_reads(&mut row, &engine, misses, gets as f64, cpu_seconds() - cpu);
            let used = engine.used_bytes();
            let reads = device::random_reads(&place.join("data"), used, 1, bench.options.time, u64::from(round))?;
            row.add("device", reads);
        }
        row.compare("device", Some(0.95));
        bench.rows.push(row);
    }
    Ok(())
}

/// The work `scan` of [`super::WORKS`].
pub(super) fn scan(bench: &mut Bench<'_>) -> Result<()> {
    for value_bytes in bench.options.value_bytes.clone() {
        let data = bench.large(value_bytes);
        let place = bench.place("engine")?;
        let settings = bench.small_pool();
        drop(Engine::load(&place, data, &settings)?);
        for (variant, reach) in [("bulk-loaded", 0.9), ("a tenth rewritten", 0.4)] {
            if variant != "bulk-loaded" {
                let engine = Engine::open(&place, &settings)?;
                rewrite(&engine, data, data.count / 10, bench)?;
                engine.db.checkpoint()?;
            }
            let mut row = Row::new("scan", format!("{}, {variant}", values(value_bytes)), Unit::BytesPerSecond);
            for _ in bench.rounds() {
                bench.go_on()?;
                let engine = Engine::open(&place, &settings)?;
                let (started, cpu) = (Instant::now(), cpu_seconds());
                let (mut range, mut next) = (engine.table.range::<&[u8]>(..), 0);
                while let Some((key, value)) = range.next_ref()? {
                    if key != data.key(next) {
                        let why = format!("{ENGINE} left out key {next} in a scan: no figure is worth anything");
                        return Err(LabError::new(LabErrorKind::WrongData, why));
                    }
                    data.check(ENGINE, next, Some(value))?;
                    next += 1;
                }
                drop(range);
                if next != data.count {
                    let why = format!("{ENGINE} showed {next} of {} keys", data.count);
                    return Err(LabError::new(LabErrorKind::WrongData, why));
                }
                row.add(ENGINE, data.user_bytes() as f64 / started.elapsed().as_secs_f64());
                let (reads, cpu) = (engine.db.stats().pool.misses, cpu_seconds() - cpu);
                row.notes.clear();
                row.note(format!(
                    "last run: {reads} pages read, {} of CPU an entry; user bytes, where the device's are file bytes",
                    Unit::Seconds.show(cpu / data.count as f64)
                ));
                row.add("device", device::sequential_read(&place.join("data"), engine.used_bytes())?);
            }
            row.compare("device", Some(reach));
            bench.rows.push(row);
        }
    }
    Ok(())
}

/// Rewrites `count` random entries in batches that are not durable by themselves.
pub(super) fn rewrite(store: &dyn Store, data: Data, count: u64, bench: &Bench<'_>) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(bench.options.seed ^ 1);
    let mut left = count;
    while left > 0 {
        bench.go_on()?;
        let batch: Vec<_> = (0..left.min(1000)).map(|_| data.changed(chance.u64(0..data.count), left)).collect();
        left -= batch.len() as u64;
        store.write(&batch, false)?;
    }
    Ok(())
}

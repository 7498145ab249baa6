//! Measures the cost of shipping for the commits of a database, its lag, the bytes that it sends, and the speed of a restore.
//!
//! `cargo run --release --manifest-path crates/ship/stores/Cargo.toml -- FOLDER [SECONDS [TURNS [GIB]]]`, with a folder on the device to be
//! measured. Two databases get the same commits, one is shipped, by turns (A B B A …), so that both see the same noise. The store
//! is memory behind a put of a millisecond. Then the shipped one is filled up to GIB and restored, while a file is written in order for comparison. Last, a
//! table of GIB is shipped whole, a twentieth of its keys, side by side, is rewritten, and an increment is shipped: with values in their
//! leaves, and with values in pages that several share.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nofault::blocking::{Db, Table};
use nofault::settings::Settings;
use nofault_ship::{Point, Ship, ShipOptions, restore};
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

/// Threads that commit.
const WRITERS: u64 = 4;
/// Keys of the table, and bytes of each value.
const KEYS: u64 = 200_000;
const VALUE_BYTES: usize = 100;
const KEY_BYTES: usize = 8;
/// Time of a put of the store.
const PUT: Duration = Duration::from_millis(1);
/// Time for which commits are made before they are counted: more than the shipper collects them for, so that it is at work.
const WARM_UP: Duration = Duration::from_millis(1500);
/// Time between two looks at how far the shipper is.
const LOOK: Duration = Duration::from_millis(5);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("name a folder on the device to be measured")?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse().context("a number"));
    let (seconds, turns, gib) = (number(3)?, number(6)?, number(1)?);
    let folder = tempfile_in(&folder)?;
    let outcome = measure(&folder, Duration::from_secs(seconds), turns, gib).await;
    std::fs::remove_dir_all(&folder)?;
    outcome
}

fn tempfile_in(folder: &str) -> Result<std::path::PathBuf> {
    let path = Path::new(folder).join(format!("nofault-ship-{}", std::process::id()));
    std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn settings() -> Settings {
    Settings { cache_bytes: 256 << 20, log_bytes: 64 << 20, ..Settings::default() }
}

fn new_database(folder: &Path) -> Result<(Db, Table)> {
    let db = Db::create(folder, &settings())?;
    let table = db.create_table("t")?;
    table.bulk_load((0..KEYS).map(|key| (key.to_be_bytes(), [7; VALUE_BYTES])))?;
    Ok((db, table))
}

async fn measure(folder: &Path, turn: Duration, turns: u64, gib: u64) -> Result<()> {
    let (alone, of_alone) = new_database(&folder.join("alone"))?;
    let (shipped, of_shipped) = new_database(&folder.join("shipped"))?;
    let config = ThrottleConfig { wait_put_per_call: PUT, ..ThrottleConfig::default() };
    let store = Arc::new(ThrottledStore::new(InMemory::new(), config));
    let ship = Arc::new(Ship::start(&shipped.asynchronous(), store.clone(), ShipOptions::new("shop")).await?);
    ship.durable().await?;
    let before = ship.stats();
    let (mut ratios, mut lags, mut commits, mut all) = (Vec::new(), Vec::new(), 0, [0; 2]);
    for number in 0..turns {
        // A B, then B A.
        let first_is_shipped = number % 2 == 1;
        let mut counts = [0; 2];
        for is_shipped in [first_is_shipped, !first_is_shipped] {
            let (db, table) = if is_shipped { (&shipped, &of_shipped) } else { (&alone, &of_alone) };
            // The looks cost something themselves, so there are as many without the shipper.
            let watching = tokio::spawn(watch_lag(db.asynchronous(), ship.clone(), WARM_UP + turn));
            let (before_it, during_it) = commit_for(table, turn).await?;
            let seen = watching.await?;
            if is_shipped {
                lags.extend(seen);
                commits += before_it + during_it;
                // The rest of its shipping must not take the time of the other database.
                ship.durable().await?;
            }
            counts[usize::from(is_shipped)] = during_it;
        }
        let [alone, shipped] = counts.map(|count| count as f64 / turn.as_secs_f64());
        let ratio = shipped / alone;
        println!("turn {number}: {alone:.0} commits a second alone, {shipped:.0} while it is shipped: {ratio:.3}");
        (0..2).for_each(|at| all[at] += counts[at]);
        ratios.push(ratio);
    }
    let begun = Instant::now();
    ship.durable().await?;
    let behind = begun.elapsed();
    let sent = ship.stats().bytes_put - before.bytes_put;
    let user = commits * (VALUE_BYTES + KEY_BYTES) as u64;
    println!("all commits while it is shipped, per commits alone: {:.3}", all[1] as f64 / all[0] as f64);
    println!("the same of each turn: {}", spread(&mut ratios));
    println!("lag in ms, at {} moments: {}", lags.len(), spread(&mut lags));
    println!("durable() after the last turn took {behind:?}");
    println!("bytes sent per byte of keys and values: {:.2} ({sent} for {user})", sent as f64 / user as f64);
    let mut waits = Vec::new();
    for number in 0..100_u64 {
        of_shipped.put(number.to_be_bytes(), [8; VALUE_BYTES])?;
        let begun = Instant::now();
        ship.durable().await?;
        waits.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    println!("durable() after one commit, in ms: {}", spread(&mut waits));

    let big = shipped.create_table("big")?;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut value = move || -> [u8; 1000] { std::array::from_fn(|at| if at % 2 == 0 { rng.u8(..) } else { 0 }) };
    big.bulk_load((0..gib * 1_000_000).map(|key: u64| (key.to_be_bytes(), value())))?;
    let begun = Instant::now();
    ship.durable().await?;
    println!("a base of {gib} GB took {:?}", begun.elapsed());
    Arc::into_inner(ship).context("the shipper is used elsewhere")?.close().await?;
    drop((of_alone, of_shipped, big));
    alone.close()?;
    shipped.close()?;

    let written = write_in_order(&folder.join("file"), gib)?;
    let begun = Instant::now();
    restore(store, "shop", Point::Latest, folder.join("restored"), &settings()).await?;
    let restored = gib as f64 / begun.elapsed().as_secs_f64();
    println!("restored {restored:.2} GB/s; a file is written with {written:.2} GB/s: {:.2}", restored / written);
    for value_bytes in [100, 1000] {
        measure_increment(folder, gib, value_bytes).await?;
    }
    Ok(())
}

/// Measures an increment of a table, a twentieth of it rewritten, against a base of the whole: bytes and time to write them, and
/// the time of a restore without the increment and with it.
async fn measure_increment(folder: &Path, gib: u64, value_bytes: usize) -> Result<()> {
    let path = folder.join(format!("increment-{value_bytes}"));
    let db = Db::create(&path, &settings())?;
    let table = db.create_table("t")?;
    let mut rng = fastrand::Rng::with_seed(1);
    let mut value =
        move || -> Vec<u8> { (0..value_bytes).map(|at| if at % 2 == 0 { rng.u8(..) } else { 0 }).collect() };
    let rows = gib * 1_000_000_000 / (value_bytes + KEY_BYTES) as u64;
    table.bulk_load((0..rows).map(|key| (key.to_be_bytes(), value())))?;
    let store = Arc::new(InMemory::new());
    // The log of the rows that are rewritten, which the values' half of zeroes makes smaller, has more than 2 % of the whole.
    let options = || ShipOptions { increment_percent: 2, ..ShipOptions::new("shop") };
    let begun = Instant::now();
    let ship = Ship::start(&db.asynchronous(), store.clone(), options()).await?;
    ship.durable().await?;
    let (whole, took_whole) = (ship.stats().bytes_put, begun.elapsed());
    println!("{value_bytes} bytes a value: the whole has {whole} bytes and took {took_whole:?}");
    let restored = time_of_restore(&store, &folder.join("of-whole")).await?;
    println!("{value_bytes} bytes a value: the whole is restored in {restored:?}");
    ship.close().await?;

    // The log is shipped without an increment first, so that its bytes and the increment's are told apart.
    let without = ShipOptions { increment_percent: 0, ..options() };
    let ship = Ship::start(&db.asynchronous(), store.clone(), without).await?;
    for first in (rows / 3..rows / 3 + rows / 20).step_by(1000) {
        let mut batch = nofault::Batch::new();
        for key in first..(first + 1000).min(rows / 3 + rows / 20) {
            batch.put(&table, key.to_be_bytes(), value());
        }
        db.write(batch, nofault::Durability::Deferred)?;
    }
    ship.durable().await?;
    let log = ship.stats().bytes_put;
    ship.close().await?;
    let restored = time_of_restore(&store, &folder.join("of-log")).await?;
    println!(
        "{value_bytes} bytes a value: {log} bytes of log for a twentieth of the keys; restored with it in {restored:?}"
    );

    let ship = Ship::start(&db.asynchronous(), store.clone(), options()).await?;
    table.put(0_u64.to_be_bytes(), value())?;
    let (begun, before) = (Instant::now(), ship.stats().bytes_put);
    ship.durable().await?;
    while ship.stats().increments == 0 {
        tokio::time::sleep(LOOK).await;
        anyhow::ensure!(begun.elapsed() < Duration::from_secs(600), "no increment was due: {:?}", ship.stats());
    }
    let (increment, took) = (ship.stats().bytes_put - before, begun.elapsed());
    println!(
        "{value_bytes} bytes a value: the increment has {increment} bytes ({:.3} of the whole) and took {took:?} ({:.3})",
        increment as f64 / whole as f64,
        took.as_secs_f64() / took_whole.as_secs_f64()
    );
    ship.close().await?;
    let restored = time_of_restore(&store, &folder.join("of-increment")).await?;
    println!("{value_bytes} bytes a value: restored with the increment in {restored:?}");
    drop(table);
    db.close()?;
    std::fs::remove_dir_all(&path)?;
    Ok(())
}

async fn time_of_restore(store: &Arc<InMemory>, folder: &Path) -> Result<Duration> {
    let begun = Instant::now();
    restore(store.clone(), "shop", Point::Latest, folder, &settings()).await?;
    let took = begun.elapsed();
    std::fs::remove_dir_all(folder)?;
    Ok(took)
}

/// Commits on several threads for [`WARM_UP`] and then for a time. Returns the numbers of commits in the two.
async fn commit_for(table: &Table, time: Duration) -> Result<(u64, u64)> {
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers = (0..WRITERS).map(|writer| {
        let (table, stop, count) = (table.clone(), Arc::clone(&stop), Arc::clone(&count));
        tokio::task::spawn_blocking(move || -> Result<()> {
            let mut rng = fastrand::Rng::with_seed(writer);
            while !stop.load(Ordering::Relaxed) {
                table.put(rng.u64(..KEYS).to_be_bytes(), [rng.u8(..); VALUE_BYTES])?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })
    });
    let writers: Vec<_> = writers.collect();
    tokio::time::sleep(WARM_UP).await;
    let before = count.load(Ordering::Relaxed);
    tokio::time::sleep(time).await;
    let end = count.load(Ordering::Relaxed);
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await??;
    }
    Ok((before, end - before))
}

/// Measures at intervals how long ago the commit became visible that is shipped. In milliseconds.
async fn watch_lag(db: nofault::Db, ship: Arc<Ship>, time: Duration) -> Vec<f64> {
    let (begun, mut seen, mut lags) = (Instant::now(), std::collections::VecDeque::new(), Vec::new());
    while begun.elapsed() < time {
        seen.push_back((db.snapshot().commit(), Instant::now()));
        let shipped = ship.shipped();
        while seen.get(1).is_some_and(|(commit, _)| *commit <= shipped) {
            seen.pop_front();
        }
        // The first turn begins with everything shipped.
        if let Some((commit, at)) = seen.front()
            && *commit <= shipped
        {
            lags.push(at.elapsed().as_secs_f64() * 1e3);
        }
        tokio::time::sleep(LOOK).await;
    }
    lags
}

/// Returns the median, and the 5th, 95th and 99th of a hundred parts.
fn spread(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    let at = |part: f64| values.get(((values.len() - 1) as f64 * part) as usize).copied().unwrap_or(f64::NAN);
    format!("median {:.3}, p5 {:.3}, p95 {:.3}, p99 {:.3}", at(0.5), at(0.05), at(0.95), at(0.99))
}

/// Writes a file in order and syncs it. Returns GB a second.
fn write_in_order(path: &Path, gib: u64) -> Result<f64> {
    let block = vec![5; 1 << 20];
    let mut file = File::create(path)?;
    let begun = Instant::now();
    for _ in 0..gib * 1_000_000_000 / block.len() as u64 {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let rate = gib as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

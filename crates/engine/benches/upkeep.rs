//! Prints the cost of the upkeep of the data file that a database does by itself, and its gain: random
//! updates with a few concurrent readers, with and without it, by turns in one run.
//!
//! `cargo bench -p nofault-benches --bench upkeep -- [SECONDS] [ROWS] [FOLDER] [ROUNDS]` (60 s, 2,000,000 rows of 116 bytes, the
//! current folder, one round of each). The cache holds an eighth of the data. Three tenths of the rows are deleted at
//! random before the updates. One thread commits a batch of 100 updates at random keys with deferred durability each 10
//! ms, or as fast as it can where it is slower; one gets single keys. Every tenth of the time a scan reads the whole
//! table; one that takes so long that its snapshot is given up is left there. Columns: latencies of gets and commits; the
//! longest time in which a thread got no further; megabytes that were moved; at the end of the updates, blocks of the data
//! file for a block in use, and bytes of all files for a byte of live keys and values (more, as leaves of which three
//! tenths of the rows were deleted are merged only where they are less than 0.6 full); the last again after 30 s without
//! use; speed of a scan at that time, as a part of a scan's speed in a table loaded in order.
//!
//! Unequal: without upkeep the file stays as long as it became, so a scan reads scattered leaves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nofault::blocking::{Db, Table};
use nofault::error::{ErrorKind, Result};
use nofault::settings::{CompactionMode, Settings};
use nofault::{Batch, Durability};

const VALUE_BYTES: usize = 100;
const KEY_BYTES: usize = 16;
/// Time between two commits.
const PERIOD: Duration = Duration::from_millis(10);
const IDLE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |index: usize, otherwise: u64| {
        arguments.get(index).map_or(otherwise, |text| text.parse().expect("the argument is a number"))
    };
    let (seconds, rows, rounds) = (number(0, 60), number(1, 2_000_000), number(3, 1));
    let folder = arguments.get(2).map_or(".", String::as_str);
    let folder = tempfile::tempdir_in(folder).expect("a folder that can be written to");
    println!(
        "{:9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>6}",
        "upkeep",
        "gets/s",
        "p99.9 ms",
        "longest",
        "commits/s",
        "p99.9 ms",
        "longest",
        "MB moved",
        "blocks",
        "files",
        "idle",
        "scan"
    );
    let mut p999 = Vec::new();
    for round in 0..rounds {
        for compaction in [CompactionMode::Manual, CompactionMode::Automatic] {
            let path = folder.path().join(format!("{round}-{compaction:?}"));
            let (gets, commits) = measure(&path, compaction, seconds, rows)?;
            p999.push((gets.at(0.999), commits.at(0.999)));
            std::fs::remove_dir_all(&path).expect("the database can be removed");
        }
    }
    for pair in p999.chunks_exact(2) {
        let [(gets, commits), (gets_with, commits_with)] = pair else { continue };
        println!("p99.9 with upkeep over without: gets {:.2}, commits {:.2}", gets_with / gets, commits_with / commits);
    }
    Ok(())
}

/// Latencies in milliseconds, sorted.
struct Latencies(Vec<f64>);

impl Latencies {
    fn of(mut ms: Vec<f64>) -> Self {
        ms.sort_unstable_by(f64::total_cmp);
        Self(ms)
    }

    fn at(&self, share: f64) -> f64 {
        self.0[((self.0.len() - 1) as f64 * share) as usize]
    }
}

fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(rng: &mut Rng) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    rng.fill(&mut value);
    value
}

fn measure(path: &Path, compaction: CompactionMode, seconds: u64, rows: u64) -> Result<(Latencies, Latencies)> {
    let cache_bytes = (rows as usize * (KEY_BYTES + VALUE_BYTES) / 8).max(8 << 20);
    let settings = Settings { cache_bytes, log_bytes: 64 << 20, compaction, ..Settings::default() };
    let db = Db::create(path, &settings)?;
    let table = db.create_table("t")?;
    let mut rng = Rng::with_seed(1);
    let mut numbers: Vec<u64> = (0..rows).collect();
    numbers.sort_unstable_by_key(|number| key(*number));
    table.bulk_load(numbers.iter().map(|number| (key(*number), value(&mut rng))))?;
    db.checkpoint()?;
    let fresh = scan(&table)?.max(scan(&table)?);
    rng.shuffle(&mut numbers);
    let live = numbers.split_off(rows as usize * 3 / 10);
    for part in numbers.chunks(1000) {
        let mut batch = Batch::new();
        for number in part {
            batch.delete(&table, key(*number));
        }
        db.write(batch, Durability::Deferred)?;
    }
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    let (gets, commits) = std::thread::scope(|scope| {
        let gets = scope.spawn(|| get(&table, &live, &stop));
        let commits = scope.spawn(|| update(&db, &table, &live, &stop));
        for _ in 0..10 {
            std::thread::sleep(Duration::from_secs(seconds) / 10);
            match scan(&table) {
                Err(error) if error.kind() == ErrorKind::SnapshotTooOld => {}
                scanned => assert!(scanned.is_ok(), "{scanned:?}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        (gets.join().expect("no panic"), commits.join().expect("no panic"))
    });
    let (gets, commits) = (Latencies::of(gets?), Latencies::of(commits?));
    let seconds = began.elapsed().as_secs_f64();
    let live_bytes = (live.len() * (KEY_BYTES + VALUE_BYTES)) as f64;
    let pool = db.stats().pool;
    let (blocks, files) = (pool.blocks_file as f64 / pool.blocks_used as f64, file_bytes(path) / live_bytes);
    let moved = db.stats().pool.pages_moved as f64 * db.page_bytes() as f64 / 1e6;
    std::thread::sleep(IDLE);
    let (idle, scanned) = (file_bytes(path) / live_bytes, scan(&table)?);
    println!(
        "{:9} {:>9.0} {:>9.2} {:>9.1} {:>9.0} {:>9.2} {:>9.1} {:>9.0} {:>7.2} {:>7.2} {:>7.2} {:>6.2}",
        format!("{compaction:?}"),
        gets.0.len() as f64 / seconds,
        gets.at(0.999),
        gets.at(1.0),
        commits.0.len() as f64 / seconds,
        commits.at(0.999),
        commits.at(1.0),
        moved,
        blocks,
        files,
        idle,
        scanned / fresh
    );
    Ok((gets, commits))
}

fn get(table: &Table, live: &[u64], stop: &AtomicBool) -> Result<Vec<f64>> {
    let (mut rng, mut ms) = (Rng::with_seed(2), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let (number, began) = (live[rng.usize(..live.len())], Instant::now());
        assert!(table.get(key(number))?.is_some());
        ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(ms)
}

fn update(db: &Db, table: &Table, live: &[u64], stop: &AtomicBool) -> Result<Vec<f64>> {
    let (mut rng, mut ms, mut due) = (Rng::with_seed(3), Vec::new(), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let mut batch = Batch::new();
        for _ in 0..100 {
            batch.put(table, key(live[rng.usize(..live.len())]), value(&mut rng));
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due = Instant::now().max(due) + PERIOD;
        let began = Instant::now();
        db.write(batch, Durability::Deferred)?;
        ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(ms)
}

/// Returns the speed of a scan in entries per second.
fn scan(table: &Table) -> Result<f64> {
    let (began, mut entries) = (Instant::now(), 0_u64);
    let mut range = table.iter();
    while range.next_ref()?.is_some() {
        entries += 1;
    }
    Ok(entries as f64 / began.elapsed().as_secs_f64())
}

fn file_bytes(folder: &Path) -> f64 {
    let files = std::fs::read_dir(folder).expect("the folder can be read");
    files.filter_map(|file| file.ok()?.metadata().ok()).map(|file| file.len() as f64).sum()
}

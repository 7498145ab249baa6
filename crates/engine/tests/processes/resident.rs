//! How much memory a process has resident in addition to `cache_bytes`, at its peak, in each kind of work.
//!
//! The peak is the kernel's (`VmHWM`), reset before each kind of work, minus the resident memory of the process before it opened a
//! database. It counts frames, tables, buffers, stacks and code; not the page cache.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use nofault::blocking::Db;
use nofault::settings::{Compression, Settings};
use nofault::{Batch, Durability};
use nofault_sim::depth::{by_depth, sample};

use crate::{FOLDER, child, folder};

const VALUE_BYTES: usize = 1000;
/// Memory that a process may have in addition to the cache and the growth of the page table: code that was not used before, stacks, slack of the
/// allocator, and the caller's own batches.
const ALLOWED_BYTES: u64 = 12 << 20;
/// The same where tables are compressed.
const ALLOWED_FAST_BYTES: u64 = 14 << 20;
/// The same with Zstandard: its library takes some ten megabytes for the moment in which it trains a dictionary.
const ALLOWED_SMALL_BYTES: u64 = 20 << 20;
/// The environment variable that gives the child its work: bytes of cache, rows, and the compression.
const WORK: &str = "NOFAULT_CHILD_WORK";

fn compression(name: &str) -> Compression {
    match name {
        "fast" => Compression::Fast,
        "small" => Compression::Small,
        _ => Compression::None,
    }
}

fn status_bytes(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Prints how far memory rises above `before` during `work`, and the memory that the database reports.
fn measured<R>(name: &str, before: u64, work: impl FnOnce() -> R, db: impl FnOnce(&R) -> Db) -> R {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let result = work();
    let peak = status_bytes("VmHWM:").saturating_sub(before);
    let stats = db(&result).stats();
    println!("\npeak {name} {peak} {} {}", stats.memory_bytes, stats.memory_over_bytes);
    result
}

fn value(row: u64) -> Vec<u8> {
    let mut value = vec![row as u8; VALUE_BYTES];
    // Half of it cannot be compressed.
    fastrand::Rng::with_seed(row).fill(&mut value[..VALUE_BYTES / 2]);
    value[..8].copy_from_slice(&row.to_le_bytes());
    value
}

fn work() -> (usize, u64, Compression) {
    let asked = std::env::var(WORK).unwrap();
    let mut words = asked.split(' ');
    let mut word = || words.next().unwrap();
    (word().parse().unwrap(), word().parse().unwrap(), compression(word()))
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_writes() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let (cache_bytes, rows, compression) = work();
    let before = status_bytes("VmRSS:");
    let settings = Settings { cache_bytes, log_bytes: 64 << 20, compression, ..Settings::default() };
    let db = measured("create", before, || Db::create(&folder, &settings).unwrap(), Db::clone);
    let table = db.create_table("t").unwrap();
    let load = || table.bulk_load((0..rows).map(|row| (row.to_be_bytes(), value(row)))).unwrap();
    assert_eq!(measured("load", before, load, |_| db.clone()), rows);
    let mut rng = fastrand::Rng::with_seed(1);
    let update = || {
        for _ in 0..rows / 2_000 {
            let mut batch = Batch::new();
            for _ in 0..100 {
                let row = rng.u64(..rows);
                batch.put(&table, row.to_be_bytes(), value(row));
            }
            db.write(batch, Durability::Sync).unwrap();
        }
    };
    measured("update", before, update, |()| db.clone());
    // No destructor runs, so that the next open has to replay the last updates.
    std::process::exit(0);
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_reads() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let (cache_bytes, rows, _) = work();
    let before = status_bytes("VmRSS:");
    let db = measured(
        "replay",
        before,
        || Db::open(&folder, &Settings { cache_bytes, log_bytes: 64 << 20, ..Settings::default() }).unwrap(),
        Db::clone,
    );
    let table = db.table("t").unwrap();
    let scan = || table.range::<&[u8]>(..).map(Result::unwrap).count() as u64;
    assert_eq!(measured("scan", before, scan, |_| db.clone()), rows);
    let mut rng = fastrand::Rng::with_seed(2);
    let get = || {
        for _ in 0..rows / 2_000 {
            let keys: Vec<_> = (0..100).map(|_| rng.u64(..rows).to_be_bytes()).collect();
            assert!(table.get_many(&keys).unwrap().iter().all(Option::is_some));
        }
    };
    measured("get_many", before, get, |()| db.clone());
    std::process::exit(0);
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_only_reads() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let (cache_bytes, rows, _) = work();
    let before = status_bytes("VmRSS:");
    let open =
        || Db::open_read_only(&folder, &Settings { cache_bytes, log_bytes: 64 << 20, ..Settings::default() }).unwrap();
    let db = measured("open_read_only", before, open, Db::clone);
    let table = db.table("t").unwrap();
    let scan = || table.range::<&[u8]>(..).map(Result::unwrap).count() as u64;
    assert_eq!(measured("scan", before, scan, |_| db.clone()), rows);
    std::process::exit(0);
}

/// Bytes of cache, rows, and the compression.
type Work = (usize, u64, &'static str);

/// Runs a child and returns its measurements: the name of each work, its peak, the memory that the database reported, and the part of that
/// memory above the setting.
fn run(name: &str, path: &Path, (cache_bytes, rows, compression): Work) -> Vec<(String, u64, u64, u64)> {
    let mut child = child(name, path, &[(WORK, &format!("{cache_bytes} {rows} {compression}"))]);
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(child.wait().unwrap().success(), "{out}");
    let peak = |line: &str| {
        let mut words = line.strip_prefix("peak ")?.split(' ');
        let name = words.next()?.to_owned();
        let mut number = || words.next().unwrap().parse().unwrap();
        Some((name, number(), number(), number()))
    };
    out.lines().filter_map(peak).collect()
}

#[test]
fn a_process_that_only_reads_has_the_memory_that_it_uses_and_not_that_of_its_cache() {
    let folder = folder();
    let path = folder.path().join("db");
    run("resident::child_that_writes", &path, (16 << 20, 2_000, "none"));
    for (name, peak, ..) in run("resident::child_that_only_reads", &path, (256 << 20, 2_000, "none")) {
        println!("{name}: peak {peak} with 2 MB of data");
        assert!(peak <= 32 << 20, "{name}: {peak}");
    }
}

/// Runs all kinds of work, and checks the memory of the process without the cache.
fn check(work: Work, allowed_bytes: u64) {
    let (cache_bytes, rows, compression) = work;
    let folder = folder();
    let path = folder.path().join("db");
    let mut peaks = run("resident::child_that_writes", &path, work);
    // With little memory it refuses to keep the changes of the log.
    let reads_only = cache_bytes > 16 << 20;
    if reads_only {
        peaks.extend(run("resident::child_that_only_reads", &path, work));
    }
    peaks.extend(run("resident::child_that_reads", &path, work));
    assert_eq!(peaks.len(), if reads_only { 8 } else { 6 }, "{peaks:?}");
    for (name, peak, said, over) in peaks {
        let beside = peak as i64 - cache_bytes as i64;
        println!(
            "{name}: cache {cache_bytes}, {rows} rows, {compression}, peak {peak} ({beside:+}), says {said}, {over} over"
        );
        assert!(peak <= cache_bytes as u64 + over + allowed_bytes, "{name}");
    }
}

#[test]
fn a_process_has_no_more_resident_than_the_cache_and_a_fixed_allowance() {
    let cases = [(16 << 20, 20_000), (16 << 20, 160_000), (48 << 20, 100_000)];
    for (cache_bytes, rows) in sample(cases, 2) {
        check((cache_bytes, rows, "none"), ALLOWED_BYTES);
    }
}

#[test]
fn compressed_tables_take_little_more_memory_beside_the_cache() {
    let rows = by_depth(60_000, 100_000);
    check((32 << 20, rows, "fast"), ALLOWED_FAST_BYTES);
    check((32 << 20, rows, "small"), ALLOWED_SMALL_BYTES);
}

//! A process that may use hardly more memory than the cache was given loads, scans, recovers and serves ten times as much.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use nofault::blocking::Db;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_sim::content::value;

use crate::{FOLDER, child, folder};

const CACHE_BYTES: usize = 16 << 20;
const VALUE_BYTES: usize = 1000;
const ROWS: u64 = (10 * CACHE_BYTES / VALUE_BYTES) as u64;
const LIMIT_BYTES: usize = CACHE_BYTES / 10 * 13 + (64 << 20);
/// Files with the memory limit in cgroups of version 1 and 2: the root folder and the name.
const GROUPS: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// One in this many rows is changed after the load.
const CHANGED: u64 = 20;

/// A memory cgroup with the limit; removed when dropped.
struct LimitedGroup(PathBuf);

impl LimitedGroup {
    /// Creates the cgroup. Returns `None`, with the reason printed, where that is impossible.
    fn new() -> Option<Self> {
        for (root, limit) in GROUPS {
            let group = Path::new(root).join(format!("nofault-memory-{}", std::process::id()));
            let made = fs::create_dir(&group).and_then(|()| fs::write(group.join(limit), LIMIT_BYTES.to_string()));
            match made {
                Ok(()) => return Some(Self(group)),
                Err(error) => println!("{}: {error}", group.display()),
            }
            let _ = fs::remove_dir(&group);
        }
        println!("SKIPPED: no group with a limit of memory may be made here; run as root where cgroups can be written");
        None
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_loads_and_crashes() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    wait_for_the_limit();
    let db = Db::create(&folder, &Settings { cache_bytes: CACHE_BYTES, ..Settings::default() }).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..ROWS).map(|row| (row.to_be_bytes(), value(row, 1, VALUE_BYTES)))).unwrap();
    assert_eq!(table.range::<&[u8]>(..).map(Result::unwrap).count() as u64, ROWS);
    // No checkpoint comes after this: all of it is to be replayed.
    let changed: Vec<u64> = (0..ROWS).step_by(CHANGED as usize).collect();
    for rows in changed.chunks(500) {
        let mut batch = Batch::new();
        for row in rows {
            batch.put(&table, row.to_be_bytes(), value(*row, 2, VALUE_BYTES));
        }
        db.write(batch, Durability::Sync).unwrap();
    }
    println!("\nloaded");
    std::io::stdout().flush().unwrap();
    // No destructor runs.
    std::process::exit(0);
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_recovers_and_serves() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    wait_for_the_limit();
    let db = Db::open(&folder, &Settings { cache_bytes: CACHE_BYTES, ..Settings::default() }).unwrap();
    let replayed = db.stats().log.live_bytes;
    assert!(replayed > ROWS / CHANGED * VALUE_BYTES as u64, "only {replayed} bytes of log were to be replayed");
    let table = db.table("t").unwrap();
    let version = |row: u64| if row.is_multiple_of(CHANGED) { 2 } else { 1 };
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        let rows: Vec<u64> = (0..64).map(|_| rng.u64(..ROWS)).collect();
        let keys: Vec<_> = rows.iter().map(|row| row.to_be_bytes()).collect();
        for (row, found) in rows.iter().zip(table.get_many(&keys).unwrap()) {
            assert_eq!(found, Some(value(*row, version(*row), VALUE_BYTES)), "row {row}");
        }
    }
    assert_eq!(table.range::<&[u8]>(..).rev().map(Result::unwrap).count() as u64, ROWS);
    println!("\nserved");
    std::io::stdout().flush().unwrap();
}

/// Waits until the parent has put this process under the limit.
fn wait_for_the_limit() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn ten_times_the_cache_is_loaded_recovered_and_served_within_the_limit() {
    let Some(group) = LimitedGroup::new() else { return };
    let folder = folder();
    let path = folder.path().join("db");
    for (name, last_words) in
        [("memory::child_that_loads_and_crashes", "loaded"), ("memory::child_that_recovers_and_serves", "served")]
    {
        let mut child = child(name, &path, &[]);
        if let Err(error) = fs::write(group.0.join("cgroup.procs"), child.id().to_string()) {
            println!("SKIPPED: a process may not be put under a limit here: {error}");
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        }
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let status = child.wait().unwrap();
        assert!(out.contains(last_words), "{name} under {LIMIT_BYTES} bytes ended with {status}: {out}");
    }
    for name in ["memory.max_usage_in_bytes", "memory.peak"] {
        if let Ok(most) = fs::read_to_string(group.0.join(name)) {
            println!("limit {LIMIT_BYTES}, most used, page cache included: {}", most.trim());
        }
    }
}

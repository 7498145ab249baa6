//! Prints what compression does to three kinds of data: the space that they take, and the time of loading, reading and
//! scanning them, compressed and not, in one run and by turns.
//!
//! `cargo bench -p nofault-benches --bench compression -- [MIB] [FOLDER] [SECONDS] [KIND]` loads so many MiB of each kind
//! (256 by default) into databases in a new folder below `FOLDER` (the current one by default), which is removed at the
//! end. The cache is a sixteenth of the data. Reads and scans are of a reopened database. With `SECONDS` it
//! waits so long after the rewriting, once for each kind, and prints what the database has made of it by itself.
//! `KIND` is `json`, `events` or `logs`; without it, all three.

mod records;

use std::time::Instant;

use fastrand::Rng;
use nofault::blocking::{Db, Table};
use nofault::error::Result;
use nofault::settings::{Compression, Settings};
use nofault::{Batch, Durability};

use self::records::{event, json, log_line};

const ROUNDS: usize = 3;
const GETS: usize = 20_000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let mib: usize = arguments.first().map_or(256, |mib| mib.parse().expect("the first argument is a number of MiB"));
    let folder = arguments.get(1).map_or(".", String::as_str);
    let idle_s: u64 = arguments.get(2).map_or(0, |s| s.parse().expect("the third argument is a number of seconds"));
    let kind = arguments.get(3);
    let folder = tempfile::tempdir_in(folder).expect("a folder that can be written to");
    println!(
        "{:8} {:6} {:>10} {:>10} {:>10} {:>10} {:>8} {:>10} {:>10} {:>10}",
        "data",
        "codec",
        "file/user",
        "rewritten",
        "idle",
        "compacted",
        "load MB/s",
        "gets/s",
        "CPU us/get",
        "scan MB/s"
    );
    for (name, record) in [("json", json as Generator), ("events", event), ("logs", log_line)] {
        if kind.is_some_and(|kind| kind != name) {
            continue;
        }
        for round in 0..ROUNDS {
            for compression in [Compression::None, Compression::Fast, Compression::Small] {
                let idle_s = if round == 0 { idle_s } else { 0 };
                let path = folder.path().join(format!("{name}-{round}-{compression:?}"));
                let row = measure(&path, compression, record, mib << 20, idle_s)?;
                println!(
                    "{name:8} {:6} {:>10.3} {:>10} {:>10} {:>10} {:>8.0} {:>10.0} {:>10.1} {:>10.0}",
                    format!("{compression:?}"),
                    row.file,
                    format!("{:.3}", row.rewritten),
                    row.idle.map_or("-".into(), |share| format!("{share:.3}")),
                    format!("{:.3}", row.compacted),
                    row.load,
                    row.gets,
                    row.get_cpu_us,
                    row.scan
                );
                std::fs::remove_dir_all(&path).expect("the database can be removed");
            }
        }
    }
    Ok(())
}

/// Makes the record of a number.
type Generator = fn(&mut Rng, u64) -> String;

/// One line of the output: bytes of blocks in use for a byte of keys and values after the load, after every key was
/// rewritten once in random order, after a time without commits, and after compaction; speeds, and the CPU time of the
/// calling thread for a get, which reads and decompresses.
struct Row {
    file: f64,
    rewritten: f64,
    idle: Option<f64>,
    compacted: f64,
    load: f64,
    gets: f64,
    get_cpu_us: f64,
    scan: f64,
}

fn measure(
    path: &std::path::Path,
    compression: Compression,
    record: Generator,
    bytes: usize,
    idle_s: u64,
) -> Result<Row> {
    let settings =
        Settings { cache_bytes: (bytes / 16).max(8 << 20), log_bytes: 64 << 20, compression, ..Settings::default() };
    let db = Db::create(path, &settings)?;
    let table = db.create_table("t")?;
    let (mut rng, mut made) = (Rng::with_seed(1), 0);
    let mut records: Vec<(String, String)> = Vec::new();
    while made < bytes {
        let entry = (format!("{:016}", records.len() as u64), record(&mut rng, records.len() as u64));
        made += entry.0.len() + entry.1.len();
        records.push(entry);
    }
    let megabytes = made as f64 / 1e6;
    let begun = Instant::now();
    table.bulk_load(records.iter().map(|(key, value)| (key, value)))?;
    let load = megabytes / begun.elapsed().as_secs_f64();
    let file = used_bytes(&db)? / made as f64;
    drop((table, db));
    let db = Db::open(path, &settings)?;
    let table = db.table("t")?;
    let (begun, cpu_ns) = (Instant::now(), thread_cpu_ns());
    for _ in 0..GETS {
        let (key, value) = &records[rng.usize(..records.len())];
        assert_eq!(table.get(key)?.as_deref(), Some(value.as_bytes()));
    }
    let gets = GETS as f64 / begun.elapsed().as_secs_f64();
    let get_cpu_us = (thread_cpu_ns() - cpu_ns) / 1e3 / GETS as f64;
    let begun = Instant::now();
    let (mut range, mut scanned) = (table.iter(), 0);
    while let Some((key, value)) = range.next_ref()? {
        scanned += key.len() + value.len();
    }
    assert_eq!(scanned, made);
    let scan = megabytes / begun.elapsed().as_secs_f64();
    drop(range);
    rng.shuffle(&mut records);
    rewrite(&db, &table, &records)?;
    let rewritten = used_bytes(&db)? / made as f64;
    let idle = if idle_s == 0 {
        None
    } else {
        std::thread::sleep(std::time::Duration::from_secs(idle_s));
        Some(used_bytes(&db)? / made as f64)
    };
    db.compact(nofault::db::Pace::Full, |_| true)?;
    let compacted = used_bytes(&db)? / made as f64;
    Ok(Row { file, rewritten, idle, compacted, load, gets, get_cpu_us, scan })
}

/// Returns the CPU time of this thread in nanoseconds; zero where the kernel does not say.
fn thread_cpu_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0)
}

fn rewrite(db: &Db, table: &Table, records: &[(String, String)]) -> Result<()> {
    for part in records.chunks(1000) {
        let mut batch = Batch::new();
        for (key, value) in part {
            batch.put(table, key, value.replace('7', "8"));
        }
        db.write(batch, Durability::Deferred)?;
    }
    Ok(())
}

/// Returns the bytes of the blocks that the current state needs.
fn used_bytes(db: &Db) -> Result<f64> {
    db.checkpoint()?;
    db.checkpoint()?;
    let pool = db.stats().pool;
    Ok(((pool.blocks_used - pool.blocks_deferred) * db.page_bytes() as u64) as f64)
}

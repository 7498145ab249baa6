//! Prints four rates, to compare two builds: gets from memory, cold gets, deferred commits of one thread, durable commits of 64.
//!
//! Run both builds by turns, several times: `cargo bench -p nofault-benches --bench rates -- [SECONDS [FOLDER]]`, with the seconds
//! for each rate, 2 without an argument, and a folder on the disk to be measured, by default the present one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nofault::blocking::{Db, Table};
use nofault::error::Result;
use nofault::settings::Settings;
use nofault::{Batch, Durability};

const ENTRIES: u64 = 400_000;
const WRITERS: u64 = 64;

/// Numbers in no order, each key equally often.
fn key(number: u64) -> [u8; 8] {
    (number.wrapping_mul(7_919) % ENTRIES).to_be_bytes()
}

/// Runs `work` on so many threads for `time`, with numbers that no other call gets, and returns how often a second.
fn rate(threads: u64, time: Duration, work: impl Fn(u64) -> Result<()> + Sync) -> f64 {
    let (stop, done, begun) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, done, work) = (&stop, &done, &work);
            scope.spawn(move || {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    // Looks at the flag only now and then.
                    for _ in 0..16 {
                        work(number * threads + thread).expect("a working disk");
                        number += 1;
                    }
                }
                done.fetch_add(number, Ordering::Relaxed);
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

fn get(table: &Table, number: u64) -> Result<()> {
    assert!(table.get(key(number))?.is_some());
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let seconds = arguments.next().and_then(|seconds| seconds.parse().ok()).unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    let folder = arguments.next().unwrap_or_else(|| ".".into());
    let folder = Path::new(&folder).join(format!("nofault-rates-{}", std::process::id()));
    let open = |cache_bytes| Db::open_or_create(&folder, &Settings { cache_bytes, ..Settings::default() });

    let db = open(256 << 20)?;
    let table = db.create_table("table")?;
    table.bulk_load((0..ENTRIES).map(|number| (number.to_be_bytes(), [number as u8; 150])))?;
    (0..ENTRIES).try_for_each(|number| get(&table, number))?;
    println!("gets from memory, 1 thread      {:>9.0} /s", rate(1, time, |number| get(&table, number)));
    let put = |number, durability| {
        let mut batch = Batch::new();
        batch.put(&table, key(number), [number as u8; 150]);
        db.write(batch, durability)
    };
    println!("deferred commits, 1 thread      {:>9.0} /s", rate(1, time, |number| put(number, Durability::Deferred)));
    db.checkpoint()?;
    println!(
        "durable commits, {WRITERS} threads     {:>9.0} /s",
        rate(WRITERS, time, |number| put(number, Durability::Sync))
    );
    drop((table, db));

    let db = open(8 << 20)?;
    let table = db.table("table")?;
    println!("cold gets, 1 thread             {:>9.0} /s", rate(1, time, |number| get(&table, number)));
    drop((table, db));
    // Removes the folder of this example only.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

//! Prints the rate of scans of a table larger than the cache; with the name of another program, also the ratio of the rates of
//! both.
//!
//! `cargo bench -p nofault-benches --bench cold_scan -- [FOLDER [MEGABYTES [CACHE_MEGABYTES [STATE [CALLER [BASELINE [ROUNDS]]]]]]]`: three
//! scans of a table with 2,000 MB of random values of 1,000 bytes, and with a cache of 184 MB, without arguments. The folder is on the
//! disk to be measured, by default the current folder. `STATE` is `fresh`, a bulk-loaded table (the default), or `rewritten`: a tenth of the
//! values was put again, in random order. `CALLER` is `thread` (the default), or `task` on a runtime with a single thread.
//!
//! `BASELINE` is another build of this example, or any program that takes the first five arguments and prints `NUMBER MB/s`: the two run by
//! turns, `ROUNDS` times (3), each as a separate process, and the last line has the median of the ratios with the lowest and the highest.

mod cpu_times;
mod turns;

use std::path::Path;
use std::time::Instant;

use nofault::error::Result;
use nofault::settings::Settings;
use nofault::{Batch, Durability, blocking};
use tokio::runtime::Builder;

use self::cpu_times::cpu_times;

const VALUE_BYTES: usize = 1_000;
const SCANS: usize = 3;
const RATE: &str = " MB/s";

fn value(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut value = vec![0; VALUE_BYTES];
    random.fill(&mut value);
    value
}

/// Loads the table, and puts a tenth of the values again if `is_rewritten`.
fn prepare(folder: &Path, settings: &Settings, entries: u64, is_rewritten: bool) -> Result<()> {
    let db = blocking::Db::create(folder, settings)?;
    let table = db.create_table("table")?;
    let mut random = fastrand::Rng::with_seed(1);
    table.bulk_load((0..entries).map(|number| (number.to_be_bytes(), value(&mut random))))?;
    if is_rewritten {
        for _ in 0..entries / 10_000 {
            let mut batch = Batch::new();
            for _ in 0..1_000 {
                batch.put(&table, random.u64(..entries).to_be_bytes(), value(&mut random));
            }
            db.write(batch, Durability::Deferred)?;
        }
    }
    db.close()
}

/// Scans the table once, and returns the bytes of its keys and values.
fn scan(db: &blocking::Db) -> Result<u64> {
    let table = db.table("table")?;
    let (mut range, mut bytes) = (table.range::<&[u8]>(..), 0);
    while let Some((key, value)) = range.next_ref()? {
        bytes += (key.len() + value.len()) as u64;
    }
    Ok(bytes)
}

async fn scan_in_task(db: nofault::Db) -> Result<u64> {
    let table = db.table("table").await?;
    let (mut range, mut bytes) = (table.range::<&[u8]>(..), 0);
    while let Some((key, value)) = range.next_ref().await? {
        bytes += (key.len() + value.len()) as u64;
    }
    Ok(bytes)
}

fn run(folder: &Path, (megabytes, cache): (u64, usize), is_rewritten: bool, is_task: bool) -> Result<()> {
    let settings = Settings { cache_bytes: cache * 1_000_000, ..Settings::default() };
    prepare(folder, &settings, megabytes * 1_000, is_rewritten)?;
    let db = blocking::Db::open(folder, &settings)?;
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    let mut rates = Vec::new();
    for _ in 0..SCANS {
        let (_, cpu_before) = cpu_times();
        let begun = Instant::now();
        let bytes = if is_task { runtime.block_on(scan_in_task(db.asynchronous()))? } else { scan(&db)? };
        assert!(bytes >= megabytes * 1_000 * VALUE_BYTES as u64, "{bytes} bytes");
        let took = begun.elapsed().as_secs_f64();
        let cpu = cpu_times().1.saturating_sub(cpu_before).as_secs_f64();
        rates.push(bytes as f64 / took / 1e6);
        eprintln!("{:.0}{RATE}, {:.2} CPUs", bytes as f64 / took / 1e6, cpu / took);
    }
    rates.sort_by(f64::total_cmp);
    println!("{:.0}{RATE}, the median of {SCANS} scans", rates[SCANS / 2]);
    db.close()
}

fn main() -> Result<()> {
    turns::run(("cold-scan", 5, RATE), |folder, arguments| {
        let is_one = |at: usize, first: &str, second: &str| match arguments.text(at, first) {
            text if text == first => false,
            text if text == second => true,
            other => panic!("{other} is neither {first} nor {second}"),
        };
        let sizes = (arguments.number(1, 2_000), arguments.number(2, 184));
        run(folder, sizes, is_one(3, "fresh", "rewritten"), is_one(4, "thread", "task"))
    })
}

//! A reader of many records: by their keys in batches, and all of them in order, compared with one call for each.
//!
//! `get_many` asks for all its pages at once, so one thread keeps the device busy; `next_batch` returns entries by the hundred,
//! and the scan reads ahead. The table is four times as large as the cache, so most records come from the disk.
//!
//! Run with `cargo run --release -p nofault --example batch_reader`; its argument is the number of records, 400,000 without one.

use std::time::Instant;

use nofault::blocking::Db;
use nofault::error::Result;
use nofault::settings::Settings;

/// Keys of one call.
const BATCH: usize = 512;
/// Bytes of a record.
const RECORD_BYTES: usize = 150;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn record(number: u64) -> [u8; RECORD_BYTES] {
    [number as u8; RECORD_BYTES]
}

/// Prints the rate of a way to read, and checks that it has read all.
fn report(way: &str, records: u64, begun: Instant, db: &Db, reads_before: u64) {
    let seconds = begun.elapsed().as_secs_f64();
    let (rate, reads) = (records as f64 / seconds / 1e3, db.stats().pool.misses - reads_before);
    println!("{way:<22} {rate:>8.0} thousand records a second, {reads} pages read");
}

fn run(records: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("nofault-example-reader-{}", std::process::id()));
    let bytes = records as usize * (RECORD_BYTES + 8);
    let db = Db::create(&folder, &Settings { cache_bytes: (bytes / 4).max(4 << 20), ..Settings::default() })?;
    let table = db.create_table("records")?;
    table.bulk_load((0..records).map(|number| (key(number), record(number))))?;
    // A fixed permutation: numbers in no order, each once.
    let wanted: Vec<u64> = (0..records / 8).map(|at| at * 7_919 % records).collect();

    let (begun, before) = (Instant::now(), db.stats().pool.misses);
    let mut found = 0;
    for number in &wanted {
        found += u64::from(table.get(key(*number))?.is_some_and(|value| value == record(*number)));
    }
    report("get, one by one", found, begun, &db, before);
    assert_eq!(found, wanted.len() as u64);

    let (begun, before) = (Instant::now(), db.stats().pool.misses);
    let mut found = 0;
    for batch in wanted.chunks(BATCH) {
        let keys: Vec<[u8; 8]> = batch.iter().map(|number| key(*number)).collect();
        let values = table.get_many(&keys)?;
        let right =
            |(number, value): &(&u64, &Option<Vec<u8>>)| value.as_ref().is_some_and(|value| *value == record(**number));
        found += batch.iter().zip(&values).filter(right).count() as u64;
    }
    report("get_many, 512 a call", found, begun, &db, before);
    assert_eq!(found, wanted.len() as u64);

    let (begun, before) = (Instant::now(), db.stats().pool.misses);
    let (mut range, mut next) = (table.iter(), 0);
    loop {
        let batch = range.next_batch(BATCH)?;
        if batch.is_empty() {
            break;
        }
        for (found, value) in batch {
            assert!(found == key(next) && value == record(next));
            next += 1;
        }
    }
    report("next_batch, in order", next, begun, &db, before);
    assert_eq!(next, records);

    let reads = db.stats().histograms.read_ns;
    println!(
        "a read took {} us in the middle, {} us at most in 99 of 100 cases",
        reads.percentile(50.0) / 1000,
        reads.percentile(99.0) / 1000
    );
    drop((range, table, db));
    // Removes the folder of this example only.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

pub(crate) fn main() -> Result<()> {
    // In a test the arguments are others.
    let records = std::env::args().nth(1).and_then(|records| records.parse().ok());
    run(records.unwrap_or(if cfg!(test) { 20_000 } else { 400_000 }))
}

//! Prints how fast entries with random keys are loaded in batches; with the name of another program, also the ratio to its rate.
//!
//! `cargo bench -p nofault-benches --bench random_load -- [FOLDER [ENTRIES [CACHE_MIB [VALUE_BYTES [BASELINE [ROUNDS]]]]]]`: 2 million entries
//! of 100 bytes without arguments, with a cache of 1 GiB, 1,000 in a batch, all durable at the end. The folder is on the disk to be
//! measured, by default the current folder.
//!
//! `BASELINE` is another build of this example, or any program that takes the first four arguments and prints its rate as `NUMBER /s`:
//! the two run by turns, `ROUNDS` times (3), each as a separate process, and the last line has the median of the ratios with the
//! lowest and the highest.

mod cpu_times;
mod turns;

use std::path::Path;
use std::time::{Duration, Instant};

use nofault::blocking::Db;
use nofault::error::Result;
use nofault::settings::Settings;
use nofault::{Batch, Durability};

use self::cpu_times::cpu_times;

const BATCH: u64 = 1_000;

/// A key of sixteen bytes, in no order.
fn key(number: u64) -> [u8; 16] {
    let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(mixed ^ mixed >> 32).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Loads a new database in `folder`, checks some of its entries, and prints the rate.
fn load(folder: &Path, entries: u64, cache_mib: usize, value_bytes: usize) -> Result<()> {
    let settings = Settings { cache_bytes: cache_mib << 20, ..Settings::default() };
    let db = Db::create(folder, &settings)?;
    let (table, value) = (db.create_table("table")?, vec![7; value_bytes]);
    let (begun, (thread_before, all_before)) = (Instant::now(), cpu_times());
    for first in (0..entries).step_by(BATCH as usize) {
        let mut batch = Batch::new();
        (first..entries.min(first + BATCH)).for_each(|number| _ = batch.put(&table, key(number), &value));
        db.write(batch, Durability::Deferred)?;
    }
    db.sync()?;
    let (took, (thread, all)) = (begun.elapsed(), cpu_times());
    let each = |time: Duration| time.as_secs_f64() * 1e6 / entries as f64;
    println!(
        "{entries} entries in {:.2} s: {:.0} /s; CPU an entry: {:.2} us of the thread, {:.2} us of the process",
        took.as_secs_f64(),
        entries as f64 / took.as_secs_f64(),
        each(thread.saturating_sub(thread_before)),
        each(all.saturating_sub(all_before)),
    );
    assert!(
        (0..entries).step_by(997).all(|number| matches!(table.get(key(number)), Ok(Some(found)) if found == value))
    );
    Ok(())
}

fn main() -> Result<()> {
    turns::run(("random-load", 4, " /s"), |folder, arguments| {
        load(folder, arguments.number(1, 2_000_000), arguments.number(2, 1 << 10), arguments.number(3, 100))
    })
}

//! Prints the rate and the tail latency of durable puts by a single thread, during the checkpoints that the puts cause; with the name of
//! another program, also the ratio of both tails.
//!
//! `cargo bench -p nofault-benches --bench durable_puts -- [FOLDER [SECONDS [ENTRIES [BASELINE [ROUNDS]]]]]`: 6 seconds over a million
//! entries of 100 bytes without arguments, after as many seconds in which the log grows to its size. The folder is on the disk to be
//! measured, by default the current folder.
//!
//! `BASELINE` is another build of this example, or any program that takes the first three arguments and prints its 99.9th
//! percentile as `NUMBER us at p99.9`: the two run by turns, `ROUNDS` times (3), each as a separate process, and the last line has
//! the median of the ratios with the lowest and the highest.

mod turns;

use std::path::Path;
use std::time::{Duration, Instant};

use nofault::blocking::Db;
use nofault::error::Result;
use nofault::settings::Settings;

const TAIL: &str = " us at p99.9";

fn run(folder: &Path, seconds: f64, entries: u64) -> Result<()> {
    let db = Db::create(folder, &Settings { cache_bytes: 512 << 20, ..Settings::default() })?;
    let table = db.create_table("table")?;
    table.bulk_load((0..entries).map(|number| (number.to_be_bytes(), [1; 100])))?;
    let mut number: u64 = 0;
    let mut put_for = |seconds: f64| -> Result<Vec<Duration>> {
        let (begun, mut took) = (Instant::now(), Vec::new());
        while begun.elapsed().as_secs_f64() < seconds {
            // In no order.
            number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let now = Instant::now();
            table.put((number % entries).to_be_bytes(), number.to_le_bytes().repeat(13).split_at(100).0)?;
            took.push(now.elapsed());
        }
        Ok(took)
    };
    put_for(seconds)?;
    let before = db.stats().checkpoints;
    let mut took = put_for(seconds)?;
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_micros();
    println!(
        "{:.0} /s; {} us at p50, {} us at p99, {}{TAIL}, {} us at p99.99; {} checkpoints",
        took.len() as f64 / seconds,
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.9999),
        db.stats().checkpoints - before,
    );
    Ok(())
}

fn main() -> Result<()> {
    turns::run(("durable-puts", 3, TAIL), |folder, arguments| {
        run(folder, arguments.number(1, 6.0), arguments.number(2, 1_000_000).max(1))
    })
}

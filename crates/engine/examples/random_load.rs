//! Prints how fast entries with random keys are loaded in batches; with the name of another program, also the ratio to its rate.
//!
//! `cargo run --release -p nofault --example random_load [FOLDER [ENTRIES [CACHE_MIB [VALUE_BYTES [BASELINE [ROUNDS]]]]]]`: 2 million entries
//! of 100 bytes without arguments, with a cache of 1 GiB, 1,000 in a batch, all durable at the end. The folder is on the disk to be
//! measured, by default the present one.
//!
//! `BASELINE` is another build of this example, or any program that takes the first four arguments and prints its rate as `NUMBER /s`:
//! the two run by turns, `ROUNDS` times (3), each as a process of its own, and the last line has the median of the ratios with the
//! lowest and the highest.

mod turns;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nofault::blocking::Db;
use nofault::error::Result;
use nofault::settings::Settings;
use nofault::{Batch, Durability};

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

/// The time that this thread, and all of the process, has run on a processor.
fn cpu_times() -> (Duration, Duration) {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let nanoseconds = |text: &str| text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    let thread = Duration::from_nanos(nanoseconds(&read("/proc/thread-self/schedstat")));
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let all = tasks.map(|task| nanoseconds(&read(&task.path().join("schedstat").to_string_lossy()))).sum();
    (thread, Duration::from_nanos(all))
}

/// The arguments of one load.
struct Load {
    folder: String,
    entries: u64,
    cache_mib: u64,
    value_bytes: u64,
}

impl Load {
    /// Loads a database of its own, checks some of it, prints the rate and removes the database.
    fn run(&self) -> Result<()> {
        let folder = Path::new(&self.folder).join(format!("nofault-random-load-{}", std::process::id()));
        let settings = Settings { cache_bytes: (self.cache_mib << 20) as usize, ..Settings::default() };
        let db = Db::create(&folder, &settings)?;
        let table = db.create_table("table")?;
        let (entries, value) = (self.entries, vec![7; self.value_bytes as usize]);
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
        drop((table, db));
        // Removes the folder of this load only.
        let _ = std::fs::remove_dir_all(&folder);
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(usual);
    let load = Load {
        folder: arguments.first().map_or(".", String::as_str).to_owned(),
        entries: number(1, 2_000_000),
        cache_mib: number(2, 1 << 10),
        value_bytes: number(3, 100),
    };
    match arguments.get(4).map(PathBuf::from) {
        Some(baseline) => {
            let numbers = [load.entries, load.cache_mib, load.value_bytes].map(|number| number.to_string());
            turns::compare(&baseline, &[vec![load.folder], numbers.to_vec()].concat(), number(5, 3), " /s");
        }
        None => load.run()?,
    }
    Ok(())
}

//! Reading many keys at once: one call, one wait per tree level, the device kept busy by a single thread.
//!
//! Run with `cargo run -p nofault --example batch`.

use nofault::blocking::Db;
use nofault::error::Result;
use nofault::settings::Settings;

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("nofault-example-batch-{}", std::process::id()));
    let db = Db::create(&folder, &Settings { cache_bytes: 8 << 20, ..Settings::default() })?;
    let words = db.create_table("words")?;
    words.bulk_load((0..200_000u32).map(|number| (format!("word-{number:06}"), [number as u8; 100])))?;

    for size in [1, 16, 256] {
        let keys: Vec<_> = (0..size).map(|at| format!("word-{:06}", (at * 7_919 + size * 31) % 200_000)).collect();
        let misses = db.stats().pool.misses;
        let started = std::time::Instant::now();
        let values = words.get_many(&keys)?;
        println!(
            "{size} keys: {} found, {} pages read, {} us",
            values.iter().flatten().count(),
            db.stats().pool.misses - misses,
            started.elapsed().as_micros()
        );
    }
    drop((words, db));
    // Removes the folder of this example only.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

//! Helpers for tests on a full disk, with a model of the table.

use nofault::Batch;
use nofault::Durability;
use nofault::blocking::{Db, Table};
use nofault::error::{ErrorKind, Result};
use nofault::settings::{Compression, Settings};
use nofault_sim::content::Rows;

/// Unit in which the simulated disk accounts for space.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Returns settings with a log that fits on a small disk.
pub(crate) fn settings(cache_bytes: usize, background_threads: bool, compression: Compression) -> Settings {
    Settings { cache_bytes, log_bytes: 128 << 10, background_threads, compression, ..Settings::tiny(1) }
}

/// Returns true for success and false for `NoSpace`; fails on any other error.
pub(crate) fn had_space(what: &str, result: Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}: {error}");
            false
        }
    }
}

/// Compares a table with its model.
pub(crate) fn check(what: &str, table: &Table, model: &Rows) {
    let found: Rows = table.range::<&[u8]>(..).map(|entry| entry.unwrap()).collect();
    assert!(found == *model, "{what}: {} rows, the model has {}", found.len(), model.len());
}

/// Puts rows of several sizes until `refusals` commits are refused. Of 256 commits about `alone` have one row, and the
/// others 40.
pub(crate) fn fill(
    what: &str,
    (db, table): (&Db, &Table),
    model: &mut Rows,
    random: &mut fastrand::Rng,
    alone: u8,
    refusals: u32,
) {
    let mut refused = 0;
    while refused < refusals {
        let mut batch = Batch::new();
        let mut rows = Vec::new();
        for _ in 0..if random.u8(..) < alone || refused > 1 { 1 } else { 40 } {
            let key = random.u32(0..20_000).to_be_bytes().to_vec();
            let len = if random.u8(0..10) == 0 { random.usize(0..30_000) } else { random.usize(0..1000) };
            // Half of it can be compressed.
            let mut value = vec![random.u8(..); len];
            random.fill(&mut value[len / 2..]);
            batch.put(table, &key, &value);
            rows.push((key, value));
        }
        let durability = if random.u8(0..3) == 0 { Durability::Deferred } else { Durability::Sync };
        if had_space(what, db.write(batch, durability)) {
            model.extend(rows);
        } else {
            refused += 1;
        }
    }
}

/// Deletes one of `share` rows, in one commit each. Every delete succeeds.
pub(crate) fn delete(what: &str, table: &Table, model: &mut Rows, share: usize) {
    let keys: Vec<_> = model.keys().step_by(share).cloned().collect();
    for key in keys {
        let deleted = table.delete(&key);
        assert!(deleted.is_ok(), "{what}: a delete on a full disk: {}", deleted.unwrap_err());
        model.remove(&key);
    }
}

//! Databases that have outgrown the cache that they are opened with: they are opened all the same, their statistics
//! report it, and they work.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use crate::common::tiny;
use nofault::blocking::Db;
use nofault::db::Pace;
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_sim::content::value;
use nofault_sim::{SimOptions, SimWorld};

const ROWS: u64 = 8_000;
const VALUE_BYTES: usize = 308;

/// Reads, updates, compacts and verifies a database with all rows in version 1, and leaves all rows in version 1.
fn use_it(db: &Db) {
    let table = db.table("t").unwrap();
    assert_eq!(table.range::<&[u8]>(..).map(Result::unwrap).count() as u64, ROWS);
    let some: Vec<u64> = (0..ROWS).step_by(97).collect();
    for version in [2, 1] {
        for rows in some.chunks(20) {
            let mut batch = Batch::new();
            for row in rows {
                batch.put(&table, row.to_be_bytes(), value(*row, version, VALUE_BYTES));
            }
            db.write(batch, Durability::Sync).unwrap();
        }
        let keys: Vec<_> = some.iter().map(|row| row.to_be_bytes()).collect();
        for (row, found) in some.iter().zip(table.get_many(&keys).unwrap()) {
            assert_eq!(found, Some(value(*row, version, VALUE_BYTES)));
        }
    }
    db.compact(Pace::Full, |_| true).unwrap();
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_database_that_has_outgrown_its_cache_opens_with_the_least_it_needs_and_says_so() {
    for background_threads in [false, true] {
        let world = SimWorld::new(3, SimOptions::calm());
        let directory = world.directory();
        let settings = Settings { background_threads, ..tiny() };
        let db = Db::create_in(&directory, &settings).unwrap();
        assert_eq!((db.stats().cache_bytes, db.stats().memory_over_bytes), (settings.cache_bytes as u64, 0));
        let table = db.create_table("t").unwrap();
        table.bulk_load((0..ROWS).map(|row| (row.to_be_bytes(), value(row, 1, VALUE_BYTES)))).unwrap();
        let grown = db.stats();
        assert!(grown.memory_over_bytes > 0, "a growing table is counted: {grown:?}");
        use_it(&db);
        drop((table, db));
        for cache_bytes in [settings.cache_bytes, 0, 4 << 20] {
            let settings = Settings { cache_bytes, ..settings.clone() };
            let db = Db::open_in(&directory, &settings).unwrap();
            let stats = db.stats();
            assert_eq!(stats.cache_bytes, cache_bytes as u64);
            assert_eq!(stats.memory_over_bytes, stats.memory_bytes.saturating_sub(cache_bytes as u64));
            assert_eq!(stats.memory_over_bytes > 0, cache_bytes < 4 << 20, "{stats:?}");
            use_it(&db);
        }
    }
}

#[test]
fn the_log_of_a_crash_is_replayed_with_a_cache_that_was_outgrown() {
    let world = SimWorld::new(4, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &Settings { cache_bytes: 4 << 20, ..tiny() }).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..ROWS).map(|row| (row.to_be_bytes(), value(row, 2, VALUE_BYTES)))).unwrap();
    for row in 0..ROWS {
        let mut batch = Batch::new();
        batch.put(&table, row.to_be_bytes(), value(row, 1, VALUE_BYTES));
        db.write(batch, Durability::Deferred).unwrap();
    }
    db.sync().unwrap();
    let after = world.restart(5);
    let db = Db::open_in(&after.directory(), &tiny()).unwrap();
    assert!(db.stats().memory_over_bytes > 0);
    use_it(&db);
}

#[test]
fn a_database_is_not_created_with_a_cache_in_which_it_does_not_fit_empty() {
    let world = SimWorld::new(5, SimOptions::calm());
    let error = Db::create_in(&world.directory(), &Settings { cache_bytes: 100 << 10, ..tiny() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
}

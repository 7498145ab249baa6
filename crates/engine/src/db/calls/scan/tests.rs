//! Read-ahead: how far, in which portions, and that it stays far while pages have to be read.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use nofault_sim::depth::sample;
use nofault_sim::{SimOptions, SimWorld};

use super::*;
use crate::blocking;
use crate::clock::ManualClock;
use crate::db::api::table::Table;
use crate::settings::{Compression, Settings};
use crate::sync::driver::block_on;

#[test]
fn a_scan_reads_as_far_ahead_at_the_end_of_a_table_that_is_not_in_memory_as_before_it() {
    let world = SimWorld::new(7, SimOptions::calm());
    let directory = world.directory();
    let settings = Settings {
        page_bytes: 512,
        cache_bytes: 2 << 20,
        log_bytes: 1 << 20,
        background_threads: false,
        ..Settings::with_small_pages()
    };
    let db = blocking::Db::create_in(&directory, &settings).unwrap();
    db.create_table("t").unwrap().bulk_load((0..20_000_u32).map(|key| (key.to_be_bytes(), [7; 40]))).unwrap();
    drop(db);
    let db = blocking::Db::open_in(&directory, &settings).unwrap();
    let table = db.table("t").unwrap();
    let db = AsRef::<Table>::as_ref(&table).db();
    let tree = block_on(db.core.catalog.table(b"t")).unwrap();
    let all = KeyRange { start: Vec::new(), end: None };
    let mut scan = Scan::new(db.core.reader.clone(), Arc::new(db.core.store.snapshot()), tree, all, Direction::Forward);
    let mut entries = 0;
    while block_on(scan.next()).unwrap().is_some() {
        entries += 1;
        assert!(entries < 1000 || scan.distance >= 2, "after {entries} entries: {} pages", scan.distance);
    }
    assert_eq!(entries, 20_000);
}

/// A table with values of a few lengths in a reopened database.
fn long_values(world: &SimWorld, entries: u32) -> (blocking::Db, blocking::Table) {
    let directory = world.directory();
    let settings =
        Settings { cache_bytes: 4 << 20, log_bytes: 1 << 20, background_threads: false, ..Settings::default() };
    let db = blocking::Db::create_in(&directory, &settings).unwrap();
    let values = (0..entries).map(|key| (key.to_be_bytes(), long_value(key)));
    db.create_table("t").unwrap().bulk_load(values).unwrap();
    drop(db);
    let db = blocking::Db::open_in(&directory, &settings).unwrap();
    let table = db.table("t").unwrap();
    (db, table)
}

fn long_value(key: u32) -> Vec<u8> {
    let lens = [10_000, 30, 100_000, 20_000, 4_000, 300_000];
    let len = lens[key as usize % lens.len()];
    (0..len).map(|at: u32| (at / 7).wrapping_mul(key + 1) as u8).collect()
}

#[test]
fn long_values_that_are_read_ahead_come_in_order_in_both_directions() {
    let world = SimWorld::new(8, SimOptions::calm());
    let (_db, table) = long_values(&world, 300);
    let mut range = table.range::<[u8; 4]>(..);
    for key in 0..200_u32 {
        let (found, value) = range.next().unwrap().unwrap();
        assert_eq!(found, key.to_be_bytes());
        assert!(value == long_value(key), "{key}: {} bytes", value.len());
    }
    for key in (200..300_u32).rev() {
        let (found, value) = range.next_back().unwrap().unwrap();
        assert!(found == key.to_be_bytes() && value == long_value(key), "{key}: {found:?}, {} bytes", value.len());
    }
    assert!(range.next().is_none());
}

#[test]
fn a_short_scan_reads_few_long_values_that_it_does_not_return() {
    let world = SimWorld::new(9, SimOptions::calm());
    let (db, table) = long_values(&world, 300);
    table.get(0_u32.to_be_bytes()).unwrap();
    let misses = || db.stats().pool.misses;
    let before = misses();
    let mut range = table.range(6_u32.to_be_bytes()..);
    assert_eq!(range.next().unwrap().unwrap().1.len(), 10_000);
    assert!(misses() - before < 40, "{} pages for a value of three", misses() - before);
    let before = misses();
    let mut limited = table.range(120_u32.to_be_bytes()..).limit(1);
    assert_eq!(limited.next().unwrap().unwrap().1.len(), 10_000);
    assert!(misses() - before < 8, "{} pages for the only value", misses() - before);
}

/// The value of a key in a table larger than the pool: in the leaf, in a shared page, or in exclusive pages.
fn value_of_size(key: u32, version: u8) -> Vec<u8> {
    let lens = [20, 300, 40, 700, 100, 30, 3_000, 600];
    vec![version.wrapping_add(key as u8); lens[key as usize % lens.len()]]
}

#[test]
fn a_scan_of_a_table_larger_than_the_pool_reads_for_itself_alone_and_finds_its_snapshot_beside_writers() {
    const KEYS: u32 = 190_000;
    // Forwards, backwards, or over compressed pages.
    for seed in sample(0..3, 3) {
        let options = if seed != 1 { SimOptions::calm() } else { SimOptions::adversarial() };
        let world = SimWorld::new(seed, options);
        let directory = world.directory();
        let settings = Settings {
            cache_bytes: 40 << 20,
            log_bytes: 4 << 20,
            background_threads: false,
            compression: if seed == 2 { Compression::Fast } else { Compression::None },
            ..Settings::default()
        };
        let db = blocking::Db::create_in(&directory, &settings).unwrap();
        let entries = (0..KEYS).map(|key| (key.to_be_bytes(), value_of_size(key, 0)));
        db.create_table("t").unwrap().bulk_load(entries).unwrap();
        drop(db);
        let db = blocking::Db::open_in(&directory, &settings).unwrap();
        let table = db.table("t").unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut range = table.range::<[u8; 4]>(..);
        let mut next = |key: u32| {
            let entry = if seed != 1 { range.next() } else { range.next_back() };
            let (found, value) = entry.unwrap().unwrap();
            assert_eq!(found, key.to_be_bytes(), "seed {seed}");
            assert!(value == value_of_size(key, 0), "seed {seed}, key {key}: {} bytes of {}", value.len(), value[0]);
        };
        for at in 0..KEYS {
            let key = if seed != 1 { at } else { KEYS - 1 - at };
            next(key);
            if random.u32(..100) == 0 {
                // Changes entries that the scan has read ahead, or will read.
                let changed = (key + random.u32(..500)) % KEYS;
                table.put(changed.to_be_bytes(), value_of_size(changed, 9)).unwrap();
            }
            if random.u32(..5_000) == 0 {
                db.checkpoint().unwrap();
            }
        }
        let pool = db.stats().pool;
        assert_eq!(pool.pages_compressed > 0, seed == 2);
        assert!(pool.misses_for_scans > 2000, "seed {seed}: {pool:?}");
        drop(range);
        // A scan of changes looks at pages of the pool only.
        let changes = db.snapshot().changes_since(&table, CommitSeq(0)).unwrap();
        assert!(changes.count() > KEYS as usize, "seed {seed}");
        assert_eq!(db.stats().pool.misses_for_scans, pool.misses_for_scans, "seed {seed}");
    }
}

#[test]
fn values_of_several_pages_are_read_once_by_a_scan_of_a_table_larger_than_the_pool_and_keep_none_of_its_memory() {
    const KEYS: u32 = 100_000;
    let world = SimWorld::new(11, SimOptions::calm());
    let directory = world.directory();
    let settings =
        Settings { cache_bytes: 40 << 20, log_bytes: 4 << 20, background_threads: false, ..Settings::default() };
    let db = blocking::Db::create_in(&directory, &settings).unwrap();
    let value = |key: u32| if key.is_multiple_of(16) { vec![key as u8; 10_000] } else { value_of_size(key, 0) };
    db.create_table("t").unwrap().bulk_load((0..KEYS).map(|key| (key.to_be_bytes(), value(key)))).unwrap();
    drop(db);
    let db = blocking::Db::open_in(&directory, &settings).unwrap();
    let mut key: u32 = 0;
    for entry in db.table("t").unwrap().range::<&[u8]>(..) {
        assert!(entry.unwrap() == (key.to_be_bytes().to_vec(), value(key)), "{key}");
        key += 1;
    }
    let pool = db.stats().pool;
    assert!(key == KEYS && pool.misses < pool.blocks_used * 11 / 10, "{pool:?}");
    assert!(pool.misses_for_scans > 1000, "{pool:?}");
}

/// A scan reading for itself alone keeps a page until it has used it.
#[test]
fn pages_of_expired_values_are_not_read_ahead() {
    const KEYS: u32 = 40_000;
    let directory = SimWorld::new(12, SimOptions::adversarial()).directory();
    let clock = ManualClock::at(UNIX_EPOCH + Duration::from_secs(1000));
    let settings = Settings {
        cache_bytes: 40 << 20,
        log_bytes: 4 << 20,
        background_threads: false,
        clock: clock.clone().into(),
        ..Settings::default()
    };
    let db = blocking::Db::create_in(&directory, &settings).unwrap();
    let ends = UNIX_EPOCH + Duration::from_secs(2000);
    let has_ended = |key: u32| key % 400 < 40;
    let entries = (0..KEYS).map(|key| (key.to_be_bytes(), vec![key as u8; 1980], has_ended(key).then_some(ends)));
    db.create_table("t").unwrap().bulk_load(entries).unwrap();
    drop(db);
    clock.set(ends);
    let db = blocking::Db::open_in(&directory, &settings).unwrap();
    let mut found = db.table("t").unwrap().range::<&[u8]>(..).map(Result::unwrap);
    for key in (0..KEYS).filter(|key| !has_ended(*key)) {
        assert!(found.next().unwrap() == (key.to_be_bytes().to_vec(), vec![key as u8; 1980]), "{key}");
    }
    assert!(found.next().is_none());
    let pool = db.stats().pool;
    assert!(pool.misses < pool.blocks_used * 19 / 20, "{pool:?}");
}

/// Threads and a task scan real files at a time, in both directions; one scan ends in the middle. Read-ahead follows how often a scan waits; the
/// task's is kept far, so that it reads for itself alone however fast the others and the disk are.
#[test]
fn several_scans_of_a_table_larger_than_the_pool_read_for_themselves_alone_beside_one_another() {
    const KEYS: u32 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_bytes: 24 << 20, log_bytes: 4 << 20, ..Settings::default() };
    let db = blocking::Db::create(folder.path().join("db"), &settings).unwrap();
    let entries = (0..KEYS).map(|key| (key.to_be_bytes(), value_of_size(key, 0)));
    db.create_table("t").unwrap().bulk_load(entries).unwrap();
    db.close().unwrap();
    let db = blocking::Db::open(folder.path().join("db"), &settings).unwrap();
    let table = db.table("t").unwrap();
    let check = |key: u32, (found, value): (Vec<u8>, Vec<u8>)| {
        assert!(found == key.to_be_bytes() && value == value_of_size(key, 0), "{key}: {found:?}");
    };
    std::thread::scope(|scope| {
        let ends = [KEYS, KEYS, KEYS / 4 * 3];
        for end in ends {
            let mut range = table.range::<&[u8]>(..);
            scope.spawn(move || (0..end).for_each(|key| check(key, range.next().unwrap().unwrap())));
        }
        let db = AsRef::<Table>::as_ref(&table).db();
        let tree = block_on(db.core.catalog.table(b"t")).unwrap();
        let all = KeyRange { start: Vec::new(), end: None };
        let snapshot = Arc::new(db.core.store.snapshot());
        let mut scan = Scan::new(db.core.reader.clone(), snapshot, tree, all, Direction::Reverse);
        let far = db.core.reader.loader.ahead_max();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        scope.spawn(move || {
            runtime.block_on(async {
                for key in (0..KEYS).rev() {
                    scan.distance = far;
                    check(key, scan.next().await.unwrap().unwrap());
                }
            });
        });
    });
    let pool = db.stats().pool;
    assert!(pool.misses_for_scans > 0, "{pool:?}");
    drop(table);
    db.close().unwrap();
}

#[test]
fn leaves_that_were_rewritten_since_the_snapshot_are_waited_for_together() {
    const KEYS: u32 = 300_000;
    const KEPT: u32 = KEYS / 4 * 3;
    let directory = SimWorld::new(13, SimOptions::calm()).directory();
    let settings =
        Settings { cache_bytes: 40 << 20, log_bytes: 64 << 20, background_threads: false, ..Settings::default() };
    let db = blocking::Db::create_in(&directory, &settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..KEYS).map(|key| (key.to_be_bytes(), [1; 200]))).unwrap();
    let core = &AsRef::<Table>::as_ref(&table).db().core;
    let tree = block_on(core.catalog.table(b"t")).unwrap();
    let all = KeyRange { start: Vec::new(), end: None };
    let mut scan = Scan::new(core.reader.clone(), Arc::new(core.store.snapshot()), tree, all, Direction::Forward);
    let far = core.reader.loader.ahead_max();
    let mut expect = |keys: std::ops::Range<u32>| {
        for key in keys {
            scan.distance = far;
            let entry = block_on(scan.next()).unwrap();
            assert!(entry == Some((key.to_be_bytes().to_vec(), vec![1; 200])), "{key}");
        }
    };
    expect(0..KEPT);
    // All leaves that follow are rewritten, and leave memory.
    for first in (KEPT..KEYS).step_by(1000) {
        let mut batch = crate::Batch::new();
        for key in first..first + 1000 {
            batch.put(&table, key.to_be_bytes(), [2; 200]);
        }
        db.write(batch, crate::Durability::Deferred).unwrap();
    }
    db.checkpoint().unwrap();
    assert_eq!(table.range(..KEPT.to_be_bytes()).count(), KEPT as usize);
    let counts = || (db.stats().histograms.read_ns.count(), db.stats().pool.misses_for_scans);
    let before = counts();
    expect(KEPT..KEYS);
    let (waits, own) = (counts().0 - before.0, counts().1 - before.1);
    assert!(own > 2000 && waits < own / 20, "{waits} waits for {own} pages");
}

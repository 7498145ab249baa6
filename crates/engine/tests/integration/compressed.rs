//! Compressed tables, as a user sees them: they take less of the file, hold the same, and can be changed at any time.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nofault::blocking::{Db, Table};
use nofault::db::Pace;
use nofault::error::ErrorKind;
use nofault::settings::{Compression, Settings, TierUse};
use nofault::{Batch, Durability};
use nofault_sim::content::Rows;
use nofault_sim::depth::by_depth;

fn settings() -> Settings {
    Settings { background_threads: false, compression: Compression::Fast, ..Settings::small(2, 1) }
}

const CODECS: [Compression; 2] = [Compression::Fast, Compression::Small];

/// Returns a record of the kind that programs write: names that repeat, and numbers that do not.
fn record(rng: &mut Rng, number: u32) -> Vec<u8> {
    let words = ["accepted", "shipped", "returned", "paid"];
    let notes = "handled by the usual department; ".repeat(rng.usize(..20));
    let (state, customer) = (words[rng.usize(..4)], rng.u64(..1 << 40));
    format!(r#"{{"order":{number},"customer":"{customer:012x}","state":"{state}","notes":"{notes}"}}"#).into_bytes()
}

fn key(number: u32) -> Vec<u8> {
    format!("orders/{number:08}").into_bytes()
}

fn rows(rng: &mut Rng, count: u32) -> Rows {
    (0..count).map(|number| (key(number), record(rng, number))).collect()
}

fn content(table: &Table) -> Rows {
    table.range::<&[u8]>(..).map(Result::unwrap).collect()
}

/// Replaces and removes random entries in batches.
fn change(db: &Db, table: &Table, rows: &mut Rows, rng: &mut Rng, batches: usize) {
    let count = rows.len() as u32 * 9 / 8;
    for _ in 0..batches {
        let mut batch = Batch::new();
        for _ in 0..100 {
            let number = rng.u32(..count);
            if rng.u32(..4) == 0 {
                rows.remove(&key(number));
                batch.delete(table, key(number));
            } else {
                // Some values are too long for a leaf.
                let value = if rng.u32(..20) == 0 { record(rng, number).repeat(9) } else { record(rng, number) };
                batch.put(table, key(number), &value);
                rows.insert(key(number), value);
            }
        }
        db.write(batch, Durability::Deferred).unwrap();
    }
}

#[test]
fn a_compressed_table_is_smaller_and_holds_the_same_after_changes_reopening_and_a_backup() {
    let sizes: Vec<u64> = CODECS.iter().map(|codec| size_after_a_load_and_checks(*codec)).collect();
    assert!(sizes.windows(2).all(|sizes| sizes[1] * 5 < sizes[0] * 4), "{sizes:?}");
}

/// Returns the bytes of blocks in use after the load.
fn size_after_a_load_and_checks(codec: Compression) -> u64 {
    let settings = || Settings { compression: codec, ..settings() };
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(1);
    let count = by_depth(6_000, 20_000);
    let mut rows = rows(&mut rng, count);
    let user_bytes: usize = rows.iter().map(|(key, value)| key.len() + value.len()).sum();
    let db = Db::create(folder.path().join("orders"), &settings()).unwrap();
    let table = db.create_table("orders").unwrap();
    table.bulk_load(&rows).unwrap();
    let stats = db.stats().pool;
    assert!(stats.pages_compressed > 2 * stats.blocks_compressed, "{stats:?}");
    let used_bytes = stats.blocks_used * db.page_bytes() as u64;
    assert!(used_bytes * 2 < user_bytes as u64, "{used_bytes} bytes of blocks for {user_bytes} bytes of data");
    for round in 0..3 {
        change(&db, &table, &mut rows, &mut rng, 40);
        assert_memory_is_bounded(&db);
        db.checkpoint().unwrap();
        assert_eq!(content(&table), rows, "round {round}");
    }
    assert!(db.verify().unwrap().is_clean());
    db.backup(folder.path().join("copy")).unwrap();
    drop((table, db));
    for name in ["orders", "copy"] {
        let db =
            Db::open(folder.path().join(name), &Settings { compression: Compression::None, ..settings() }).unwrap();
        assert_eq!(db.compression("orders").unwrap(), codec, "{name}");
        let table = db.table("orders").unwrap();
        assert_eq!(content(&table), rows, "{name}");
        assert!(db.stats().pool.pages_compressed > 0, "{name}");
        assert!(db.verify().unwrap().is_clean(), "{name}");
        let some: Vec<Vec<u8>> = (0..500).map(|_| key(rng.u32(..count))).collect();
        let expected: Vec<_> = some.iter().map(|key| rows.get(key).cloned()).collect();
        assert_eq!(table.get_many(&some).unwrap(), expected, "{name}");
    }
    used_bytes
}

#[test]
fn compaction_compresses_a_table_that_was_not_and_restores_one_that_is_no_longer() {
    CODECS.iter().for_each(|codec| compress_and_restore(*codec));
}

fn compress_and_restore(codec: Compression) {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(2);
    let mut rows = rows(&mut rng, 5_000);
    let plain = Settings { compression: Compression::None, ..settings() };
    let db = Db::create(folder.path().join("orders"), &plain).unwrap();
    let table = db.create_table("orders").unwrap();
    table.bulk_load(&rows).unwrap();
    let live = |db: &Db| {
        db.checkpoint().unwrap();
        let stats = db.stats().pool;
        stats.blocks_used - stats.blocks_deferred
    };
    let before = live(&db);
    assert_eq!(db.stats().pool.pages_compressed, 0);
    db.set_compression("orders", codec).unwrap();
    assert_eq!(db.stats().pool.pages_compressed, 0, "the pages stay as they are");
    db.compact(Pace::Full, |_| true).unwrap();
    assert!(live(&db) * 2 < before, "{} blocks of {before}", live(&db));
    change(&db, &table, &mut rows, &mut rng, 20);
    let loose = live(&db);
    db.compact(Pace::Full, |_| true).unwrap();
    assert!(live(&db) < loose, "{} blocks of {loose}", live(&db));
    assert_eq!(content(&table), rows);
    // Further passes soon find nothing to do. A leaf that one of them merges shifts the lists of pages that are moved
    // together, so the next one may move a list again.
    let soon_done = || (0..5).any(|_| db.compact(Pace::Full, |_| true).unwrap().pages_moved == 0);
    assert!(soon_done(), "{codec:?}: every pass moves pages");
    // From one codec to another, which may need more room: as much as where there was none before.
    let convert = |compression| {
        db.set_compression("orders", compression).unwrap();
        db.compact(Pace::Full, |_| true).unwrap();
        assert_eq!(content(&table), rows, "{codec:?}, then {compression:?}");
        assert!(soon_done(), "{codec:?}, then {compression:?}: every pass moves pages");
        live(&db)
    };
    for other in &CODECS {
        let converted = convert(*other);
        convert(Compression::None);
        let fresh = convert(*other);
        let difference = converted.abs_diff(fresh);
        assert!(difference * 20 < fresh, "{codec:?}, then {other:?}: {converted} blocks, {fresh} as a new one");
        convert(codec);
    }
    db.set_compression("orders", Compression::None).unwrap();
    db.compact(Pace::Full, |_| true).unwrap();
    db.checkpoint().unwrap();
    assert_eq!((db.stats().pool.pages_compressed, content(&table) == rows), (0, true));
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn snapshots_keep_their_pages_while_those_that_share_their_blocks_change() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(3);
    let mut now = rows(&mut rng, 3_000);
    let db = Db::create(folder.path().join("orders"), &settings()).unwrap();
    let table = db.create_table("orders").unwrap();
    table.bulk_load(&now).unwrap();
    let mut snapshots = Vec::new();
    for _ in 0..4 {
        snapshots.push((db.snapshot(), now.clone()));
        change(&db, &table, &mut now, &mut rng, 3);
        db.checkpoint().unwrap();
        db.compact(Pace::Full, |_| true).unwrap();
    }
    for (snapshot, then) in &snapshots {
        let seen: Rows = snapshot.range::<&[u8]>(&table, ..).unwrap().map(Result::unwrap).collect();
        assert!(seen == *then, "a snapshot shows other rows");
    }
    drop(snapshots);
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let stats = db.stats().pool;
    assert_eq!(stats.blocks_deferred, 0, "{stats:?}");
    assert!(content(&table) == now && db.verify().unwrap().is_clean());
}

/// A value that tells its key and its version, and how many times it repeats both.
fn versioned(number: u32, version: u32) -> Vec<u8> {
    format!("[{number} {version}]").repeat(10 + number as usize % 30).into_bytes()
}

/// Returns the version that a value tells, after a check of the whole value.
fn version_of(number: u32, value: &[u8]) -> u32 {
    let text = std::str::from_utf8(value).unwrap();
    let version = text[1..text.find(']').unwrap()].split_once(' ').unwrap().1.parse().unwrap();
    assert_eq!(value, versioned(number, version), "the value of {number} is broken");
    version
}

/// Checks the bound that `Stats::memory_over_bytes` documents, for a small file.
fn assert_memory_is_bounded(db: &Db) {
    const LEAF_BYTES: u64 = 8 << 10;
    const LISTS_BYTES: u64 = 128 << 10;
    let stats = db.stats();
    let leaves = (stats.cache_bytes / 16 / LEAF_BYTES).max(16).max(stats.pool.frames / 8);
    let most = leaves * LEAF_BYTES + stats.cache_bytes / 32 + LISTS_BYTES + stats.pool.memory_dictionaries_bytes;
    println!("{} bytes of memory above {}, at most {most} expected", stats.memory_over_bytes, stats.cache_bytes);
    assert!(stats.memory_over_bytes <= most, "{} of {most} bytes: {stats:?}", stats.memory_over_bytes);
}

#[test]
fn threads_that_read_write_compact_and_checkpoint_a_table_of_blocks_in_memory_see_their_writes() {
    const KEYS: u32 = 3_000;
    const WRITERS: u32 = 3;
    let folder = tempfile::tempdir().unwrap();
    let settings =
        Settings { cache_bytes: 1152 << 10, background_threads: true, ..settings() }.with_tier(TierUse::Always);
    let path = folder.path().join("orders");
    let loading = Db::create(&path, &settings).unwrap();
    let loaded = loading.create_table("orders").unwrap();
    loaded.bulk_load((0..KEYS).map(|number| (key(number), versioned(number, 0)))).unwrap();
    drop((loaded, loading));
    // Reopened, so that the pool has made room for the page table of the loaded data.
    let db = Db::open(&path, &settings).unwrap();
    let table = db.table("orders").unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let over = || is_over.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (table, db) = (table.clone(), &db);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(writer.into());
                    let mut versions = BTreeMap::new();
                    for _ in 0..3_000 {
                        let number = rng.u32(..KEYS / WRITERS) * WRITERS + writer;
                        let version = versions.entry(number).or_insert(0);
                        assert_eq!(version_of(number, &table.get(key(number)).unwrap().unwrap()), *version);
                        if rng.u32(..3) == 0 {
                            *version += 1;
                            let mut batch = Batch::new();
                            batch.put(&table, key(number), versioned(number, *version));
                            db.write(batch, Durability::Deferred).unwrap();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let (mut rng, mut seen) = (Rng::with_seed(99), BTreeMap::new());
            while !over() {
                let numbers: Vec<u32> = (0..20).map(|_| rng.u32(..KEYS)).collect();
                let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
                for (number, value) in numbers.iter().zip(table.get_many(&keys).unwrap()) {
                    let version = version_of(*number, &value.unwrap());
                    let before = seen.insert(*number, version).unwrap_or(0);
                    assert!(version >= before, "{number} went back from {before} to {version}");
                }
            }
        });
        scope.spawn(|| {
            while !over() {
                db.checkpoint().unwrap();
                db.compact(Pace::Gentle, |_| !over()).unwrap();
            }
        });
        let ended: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    let stats = db.stats();
    assert_memory_is_bounded(&db);
    assert!(stats.pool.tier_hits > 100 && stats.pool.tier_evicted > 0, "{:?}", stats.pool);
    assert_eq!(stats.pool.checksum_retries, 0, "{stats:?}");
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_table_that_does_not_exist_has_no_compression() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("orders"), &settings()).unwrap();
    db.create_table("orders").unwrap();
    for error in [db.compression("x").unwrap_err(), db.set_compression("x", Compression::Fast).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    db.drop_table("orders").unwrap();
    assert_eq!(db.set_compression("orders", Compression::Fast).unwrap_err().kind(), ErrorKind::NotFound);
    // A table of the same name is another table.
    db.create_table("orders").unwrap();
    assert_eq!(db.compression("orders").unwrap(), Compression::Fast, "from the settings");
}

/// Returns the number of blocks in use, once there are less than `limit` or some time has passed.
fn blocks_when_idle(db: &Db, limit: u64) -> u64 {
    let begun = Instant::now();
    loop {
        let stats = db.stats().pool;
        let used = stats.blocks_used - stats.blocks_deferred;
        if used < limit || begun.elapsed() > Duration::from_secs(120) {
            return used;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn an_idle_database_packs_its_pages_anew_when_their_blocks_have_become_loose() {
    for codec in &CODECS {
        let folder = tempfile::tempdir().unwrap();
        let mut rng = Rng::with_seed(4);
        let settings = Settings { cache_bytes: 4 << 20, background_threads: true, compression: *codec, ..settings() }
            .with_idle_after(by_depth(Duration::from_millis(500), Duration::from_secs(10)));
        let count = by_depth(15_000, 40_000);
        let mut rows = rows(&mut rng, count);
        let path = folder.path().join("orders");
        let db = Db::create(&path, &settings).unwrap();
        let table = db.create_table("orders").unwrap();
        table.bulk_load(rows.clone()).unwrap();
        let stats = db.stats().pool;
        let loaded = stats.blocks_used - stats.blocks_deferred;
        // Each key once, in random order, with a value of the same length.
        let mut numbers: Vec<u32> = (0..count).collect();
        rng.shuffle(&mut numbers);
        for part in numbers.chunks(500) {
            let mut batch = Batch::new();
            for number in part {
                let value = String::from_utf8(rows[&key(*number)].clone()).unwrap().replace('7', "8").into_bytes();
                batch.put(&table, key(*number), &value);
                rows.insert(key(*number), value);
            }
            db.write(batch, Durability::Deferred).unwrap();
        }
        db.checkpoint().unwrap();
        let file = || std::fs::metadata(path.join("data")).unwrap().len();
        let (loose, length) = (db.stats().pool.blocks_loose, file());
        let idle = blocks_when_idle(&db, loaded * 5 / 4);
        assert!(
            idle * 4 < loaded * 5,
            "{codec:?}: {loaded} blocks after the load, {idle} in the end, {loose} were loose: {:?}",
            db.stats()
        );
        assert!(file() <= length + (256 << 12), "{codec:?}: the file became longer");
        let stats = db.stats().packing;
        assert!(
            loose < by_depth(100, 200) || stats.blocks_saved > 0,
            "{codec:?}: {loose} blocks were loose, {stats:?}"
        );
        assert!(content(&table) == rows && db.verify().unwrap().is_clean(), "{codec:?}");
        assert_memory_is_bounded(&db);
    }
}

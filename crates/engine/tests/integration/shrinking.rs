//! The data file of a database in use becomes shorter by itself when most of its rows were deleted.
//!
//! No test here measures time: one waits until the file is short, and hangs where it never is.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nofault::settings::{CompactionMode, Settings};
use nofault::{Batch, Durability, blocking};
use nofault_sim::depth::by_depth;

const ROWS: u32 = 60_000;
/// One of so many rows stays.
const STAYING: u32 = 10;

fn value_of(key: u32) -> Vec<u8> {
    vec![key as u8; 300]
}

/// A database with a table from which nine of ten rows were deleted.
fn mostly_deleted(folder: &Path, compaction: CompactionMode) -> blocking::Db {
    let db = blocking::Db::create(folder, &Settings { compaction, ..Settings::small(4, 4) }).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..ROWS).map(|key| (key.to_be_bytes(), value_of(key)))).unwrap();
    let deleted: Vec<u32> = (0..ROWS).filter(|key| key % STAYING != 0).collect();
    for part in deleted.chunks(1000) {
        let mut batch = Batch::new();
        for key in part {
            batch.delete(&table, key.to_be_bytes());
        }
        db.write(batch, Durability::Deferred).unwrap();
    }
    db.checkpoint().unwrap();
    db
}

fn data_bytes(folder: &Path) -> u64 {
    std::fs::metadata(folder.join("data")).unwrap().len()
}

fn check(db: &blocking::Db) {
    let rows: Vec<_> = db.table("t").unwrap().range::<&[u8]>(..).map(Result::unwrap).collect();
    let kept = (0..ROWS).step_by(STAYING as usize).map(|key| (key.to_be_bytes().to_vec(), value_of(key)));
    assert!(rows.into_iter().eq(kept), "the content has changed");
    let problems = db.verify().unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn a_file_of_which_most_is_free_becomes_short_by_itself_while_it_is_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    drop(mostly_deleted(&path, CompactionMode::Manual));
    assert!(data_bytes(&path) > 16 << 20, "the premise: {} bytes", data_bytes(&path));
    let idle_after = by_depth(Duration::from_millis(500), Duration::from_secs(10));
    let db = blocking::Db::open(&path, &Settings::small(4, 4).with_idle_after(idle_after)).unwrap();
    let table = db.table("t").unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    while data_bytes(&path) > 8 << 20 {
        let key = random.u32(..ROWS / STAYING) * STAYING;
        table.put(key.to_be_bytes(), value_of(key)).unwrap();
        assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(value_of(key)));
        std::thread::sleep(Duration::from_millis(1));
    }
    check(&db);
    drop((table, db));
    check(&blocking::Db::open(&path, &Settings::small(4, 4)).unwrap());
}

#[test]
fn a_small_database_that_is_closed_after_a_load_takes_little_and_grows_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let mut db = blocking::Db::create(&path, &Settings::default()).unwrap();
    let mut rows = 0_u32..0;
    for _ in 0..3 {
        let table = db.open_or_create_table("t").unwrap();
        rows = rows.end..rows.end + 1500;
        table.bulk_load(rows.clone().map(|key| (key.to_be_bytes(), value_of(key)))).unwrap();
        drop(table);
        db.close().unwrap();
        let files = std::fs::read_dir(&path).unwrap();
        let sizes: Vec<_> =
            files.map(Result::unwrap).map(|file| (file.file_name(), file.metadata().unwrap().len())).collect();
        assert!(sizes.iter().map(|(_, bytes)| bytes).sum::<u64>() < 4 << 20, "{sizes:?} for {} rows", rows.end);
        db = blocking::Db::open(&path, &Settings::default()).unwrap();
        let found = db.table("t").unwrap().range::<&[u8]>(..).map(Result::unwrap).count();
        assert_eq!(found, rows.end as usize);
        let problems = db.verify().unwrap().problems;
        assert!(problems.is_empty(), "{problems:?}");
    }
}

#[test]
fn with_manual_compaction_the_file_keeps_its_length_until_it_is_compacted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = mostly_deleted(&path, CompactionMode::Manual);
    let before = data_bytes(&path);
    db.checkpoint().unwrap();
    assert_eq!((data_bytes(&path), db.stats().compaction.passes), (before, 0));
    let found = db.compact(nofault::db::Pace::Full, |_| true).unwrap();
    assert_eq!(data_bytes(&path), before - found.bytes_given_back);
    assert!(data_bytes(&path) < 8 << 20, "{found:?}");
    check(&db);
}

/// Old versions of pages, and the blocks in which they lie, are given up although the thread that replaced them does
/// nothing more.
#[test]
fn a_thread_that_has_committed_and_lives_on_keeps_no_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = mostly_deleted(&path, CompactionMode::Manual);
    let (table, (done, is_done), (end, ends)) = (db.table("t").unwrap(), mpsc::channel(), mpsc::channel::<()>());
    let committing = std::thread::spawn(move || {
        for key in (0..ROWS).step_by(STAYING as usize * 200) {
            table.put(key.to_be_bytes(), value_of(key)).unwrap();
        }
        drop(table);
        done.send(()).unwrap();
        // The thread lives until the test ends.
        let _ = ends.recv();
    });
    is_done.recv().unwrap();
    for _ in 0..3 {
        db.checkpoint().unwrap();
    }
    let used = db.stats().pool.blocks_used;
    end.send(()).unwrap();
    committing.join().unwrap();
    db.close().unwrap();
    let db =
        blocking::Db::open(&path, &Settings { compaction: CompactionMode::Manual, ..Settings::small(4, 4) }).unwrap();
    assert_eq!(used, db.stats().pool.blocks_used, "as many as the pages of the newest state");
    check(&db);
}

//! The log file has the size of its setting again after a commit larger.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::path::Path;

use nofault::blocking::Db;
use nofault::settings::Settings;
use nofault::{Batch, Durability};

const MIB: u64 = 1 << 20;
const VALUE_BYTES: usize = 1 << 20;

fn log_file_bytes(folder: &Path) -> u64 {
    folder.join("log").metadata().unwrap().len()
}

/// Writes `rows` rows of one MiB each in one commit.
fn write_rows(db: &Db, rows: u32) {
    let table = db.create_table("rows").unwrap();
    let mut batch = Batch::new();
    for row in 0..rows {
        batch.put(&table, row.to_be_bytes(), vec![row as u8; VALUE_BYTES]);
    }
    db.write(batch, Durability::Sync).unwrap();
}

fn check_rows(db: &Db, rows: u32) {
    let table = db.table("rows").unwrap();
    for row in 0..rows {
        let value = table.get(row.to_be_bytes()).unwrap().unwrap();
        assert!(value.len() == VALUE_BYTES && value.iter().all(|byte| *byte == row as u8), "row {row}");
    }
}

#[test]
fn after_a_commit_of_two_hundred_mebibytes_and_a_close_the_log_file_is_small_again() {
    let rows = nofault_sim::depth::by_depth(60, 200);
    for background_threads in [true, false] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("db");
        let settings = Settings { background_threads, ..Settings::small(32, 4) };
        let db = Db::create(&folder, &settings).unwrap();
        write_rows(&db, rows);
        db.close().unwrap();
        // Segments are a sixteenth of the log; three are reserved.
        assert!(log_file_bytes(&folder) <= 4 * MIB + 3 * MIB / 4, "{} bytes", log_file_bytes(&folder));
        let db = Db::open(&folder, &settings).unwrap();
        assert_eq!(db.stats().log.file_bytes, log_file_bytes(&folder));
        check_rows(&db, rows);
    }
}

#[test]
fn a_log_that_is_larger_than_the_setting_of_a_later_opening_shrinks_at_its_next_checkpoint() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("db");
    let db = Db::create(&folder, &Settings { background_threads: false, ..Settings::small(32, 32) }).unwrap();
    write_rows(&db, 24);
    let table = db.table("rows").unwrap();
    let before = log_file_bytes(&folder);
    assert!(before > 24 * MIB, "{before} bytes");
    drop((table, db));
    let db = Db::open(&folder, &Settings { background_threads: false, ..Settings::small(32, 8) }).unwrap();
    assert_eq!(log_file_bytes(&folder), before, "until the checkpoint");
    db.table("rows").unwrap().put("one", "more").unwrap();
    db.checkpoint().unwrap();
    // The size of a segment is as in the first opening: 256 KiB.
    assert_eq!(log_file_bytes(&folder), 8 * MIB + 3 * MIB / 4);
    check_rows(&db, 24);
    db.close().unwrap();
    check_rows(&Db::open(&folder, &Settings { background_threads: false, ..Settings::small(32, 8) }).unwrap(), 24);
}

#[test]
fn a_database_that_is_idle_gives_back_its_log_without_being_closed() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("db");
    // Longer than the rows take.
    let idle_after = nofault_sim::depth::by_depth(3, 10);
    let settings = Settings::small(32, 64).with_idle_after(std::time::Duration::from_secs(idle_after));
    let db = Db::create(&folder, &settings).unwrap();
    write_rows(&db, 24);
    assert!(log_file_bytes(&folder) > 24 * MIB);
    // The database is idle when no commit has come for that long. Where its log stays long, this waits for ever.
    while log_file_bytes(&folder) > MIB {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    check_rows(&db, 24);
    // A later commit makes it grow again, and its row is there after the next opening.
    db.table("rows").unwrap().put(24_u32.to_be_bytes(), vec![24; VALUE_BYTES]).unwrap();
    db.close().unwrap();
    check_rows(&Db::open(&folder, &settings).unwrap(), 25);
}

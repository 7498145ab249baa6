//! Tests of scans longer than the cache: their read-ahead is submitted and completed by another thread.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nofault::blocking::{Db, Range, Table};
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_sim::content::value;

const ROWS: u64 = 30_000;
const VALUE_BYTES: usize = 1000;
const PAGE_BYTES: u64 = 4096;

fn loaded(path: &Path) -> (Db, Table) {
    let db = Db::create(path, &Settings::small(16, 8)).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..ROWS).map(|row| (row.to_be_bytes(), value(row, 0, VALUE_BYTES)))).unwrap();
    (db, table)
}

fn opened(path: &Path) -> (Db, Table) {
    let db = Db::open(path, &Settings::small(16, 8)).unwrap();
    let table = db.table("t").unwrap();
    (db, table)
}

/// Scans to the end, and checks that the scan has exactly `rows`, in order, each with the value of its version.
fn check(mut range: Range, mut rows: impl Iterator<Item = u64>, version: impl Fn(u64) -> u8) {
    while let Some((key, found)) = range.next_ref().unwrap() {
        let row = rows.next().unwrap();
        assert_eq!(key, row.to_be_bytes());
        assert!(found == value(row, version(row), VALUE_BYTES), "row {row}");
    }
    assert_eq!(rows.next(), None);
}

#[test]
fn long_scans_show_everything_in_both_directions_beside_batches_and_writes() {
    let folder = tempfile::tempdir().unwrap();
    drop(loaded(&folder.path().join("db")));
    let (db, table) = opened(&folder.path().join("db"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let batches = scope.spawn(|| {
            let (mut random, mut count) = (fastrand::Rng::with_seed(7), 0);
            // Waits for reads through the same queue while scans begin and end.
            while !stop.load(Ordering::Relaxed) || count == 0 {
                let rows: Vec<u64> = (0..64).map(|_| random.u64(0..ROWS)).collect();
                let found = table.get_many(&rows.iter().map(|row| row.to_be_bytes()).collect::<Vec<_>>()).unwrap();
                assert!(rows.iter().zip(found).all(|(row, found)| found.unwrap()[..8] == row.to_le_bytes()));
                count += 1;
            }
        });
        let snapshot = db.snapshot();
        for row in (0..ROWS).step_by(100) {
            table.put(row.to_be_bytes(), value(row, 1, VALUE_BYTES)).unwrap();
        }
        let newest = |row: u64| u8::from(row.is_multiple_of(100));
        let backwards = scope.spawn(move || check(table_range(&db, &snapshot).rev(), (0..ROWS).rev(), |_| 0));
        check(table.range::<&[u8]>(..), 0..ROWS, newest);
        backwards.join().unwrap();
        for start in [5, 15_000, 29_990_u64] {
            check(table.range(start.to_be_bytes()..), start..ROWS, newest);
        }
        stop.store(true, Ordering::Relaxed);
        batches.join().unwrap();
    });
}

fn table_range(db: &Db, snapshot: &nofault::blocking::Snapshot) -> Range {
    snapshot.range::<&[u8]>(&db.table("t").unwrap(), ..).unwrap()
}

#[test]
fn a_long_scan_over_a_damaged_page_names_it_after_all_that_comes_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let (db, _) = loaded(&path);
    let used_bytes = db.stats().pool.blocks_used * PAGE_BYTES;
    drop(db);
    let data = OpenOptions::new().read(true).write(true).open(path.join("data")).unwrap();
    let (at, mut byte) = (used_bytes / 2 / PAGE_BYTES * PAGE_BYTES + 2000, [0]);
    data.read_exact_at(&mut byte, at).unwrap();
    data.write_all_at(&[byte[0] ^ 1], at).unwrap();
    data.sync_all().unwrap();
    let (_db, table) = opened(&path);
    for backwards in [false, true] {
        let mut range = table.range::<&[u8]>(..);
        let mut rows: Box<dyn Iterator<Item = u64>> = Box::new(0..ROWS);
        if backwards {
            range = range.rev();
            rows = Box::new((0..ROWS).rev());
        }
        let mut count = 0;
        let error = loop {
            match range.next_ref() {
                Ok(Some((key, found))) => {
                    let row = rows.next().unwrap();
                    assert!(key == row.to_be_bytes() && found == value(row, 0, VALUE_BYTES), "row {row}");
                    count += 1;
                }
                Ok(None) => panic!("a damaged page in the middle of the file was not met"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.page().is_some(), "{error}");
        assert!(count > ROWS / 10 && count < ROWS * 9 / 10, "{count} rows before it");
        assert_eq!(range.next_ref().unwrap(), None, "it says so once, and has ended");
    }
}

#[test]
fn an_abandoned_scan_keeps_no_other_call_waiting() {
    let folder = tempfile::tempdir().unwrap();
    drop(loaded(&folder.path().join("db")));
    let (db, table) = opened(&folder.path().join("db"));
    for round in 0..20_u64 {
        let mut range = table.range::<&[u8]>(..);
        for row in 0..round * 400 {
            assert_eq!(range.next_ref().unwrap().unwrap().0, row.to_be_bytes());
        }
        // Kept open, or dropped with reads on their way: others read on either way.
        let kept = (round % 2 == 0).then_some(range);
        let rows: Vec<u64> = (0..200).map(|number| (number * 149 + round) % ROWS).collect();
        let found = table.get_many(&rows.iter().map(|row| row.to_be_bytes()).collect::<Vec<_>>()).unwrap();
        assert!(rows.iter().zip(found).all(|(row, found)| found.unwrap() == value(*row, 0, VALUE_BYTES)));
        drop(kept);
    }
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_load_takes_hardly_more_room_than_its_entries_whatever_the_length_of_values() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("db"), &Settings::small(16, 8)).unwrap();
    let mut batch = Batch::new();
    let (mut before, mut wrong) = (db.stats().pool.blocks_used, Vec::new());
    // Four to a page of values, five, and as many as fit into a leaf.
    for (len, most) in [(1000, 1.05), (800, 1.06), (100, 1.08)] {
        let table = db.create_table(&format!("of {len}")).unwrap();
        let rows = 10_000_000 / len as u64;
        table.bulk_load((0..rows).map(|row| (row.to_be_bytes(), vec![row as u8; len]))).unwrap();
        let used = db.stats().pool.blocks_used;
        let ratio = ((used - before) * PAGE_BYTES) as f64 / (rows * (8 + len as u64)) as f64;
        if ratio > most {
            wrong.push((len, ratio));
        }
        before = used;
        batch.put(&table, rows.to_be_bytes(), "one more");
    }
    assert!(wrong.is_empty(), "bytes of file a byte of entries: {wrong:?}");
    db.write(batch, Durability::Sync).unwrap();
    assert!(db.verify().unwrap().is_clean());
}

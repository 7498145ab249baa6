//! A table whose leaves lie scattered, and which is scanned, is put in key order by the database itself.
//!
//! No test here measures time: one scans until the table is in order, and hangs where it never is.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use nofault::settings::Settings;
use nofault::{Batch, Durability, blocking};

const ROWS: u32 = 30_000;

fn value_of(key: u32) -> Vec<u8> {
    vec![key as u8; 300]
}

/// Fills a table in random order, so that neighbours in key order lie anywhere.
fn fill(db: &blocking::Db, table: &blocking::Table) {
    let mut keys: Vec<u32> = (0..ROWS).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut keys);
    for part in keys.chunks(1000) {
        let mut batch = Batch::new();
        for key in part {
            batch.put(table, key.to_be_bytes(), value_of(*key));
        }
        db.write(batch, Durability::Deferred).unwrap();
    }
    db.checkpoint().unwrap();
}

fn check(table: &blocking::Table) {
    let rows = table.range::<&[u8]>(..).map(Result::unwrap);
    let expected = (0..ROWS).map(|key| (key.to_be_bytes().to_vec(), value_of(key)));
    assert!(rows.eq(expected), "the content has changed");
}

#[test]
fn a_scattered_table_is_put_in_order_once_it_was_scanned_and_another_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let db = blocking::Db::create(&path, &Settings::small(4, 4)).unwrap();
    let (scanned, other) = (db.create_table("scanned").unwrap(), db.create_table("other").unwrap());
    fill(&db, &scanned);
    fill(&db, &other);
    while db.stats().ordering.tables == 0 {
        check(&scanned);
        // Commits, too, continue.
        scanned.put(7_u32.to_be_bytes(), value_of(7)).unwrap();
    }
    let done = db.stats().ordering;
    assert!(done.fragments_before > 500, "the premise: {done:?}");
    assert!(done.fragments_after < done.fragments_before / 8, "{done:?}");
    assert!(done.pages_moved < 6000, "no more than the pages of one table: {done:?}");
    check(&scanned);
    check(&other);
    let problems = db.verify().unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    drop((scanned, other, db));
    let db = blocking::Db::open(&path, &Settings::small(4, 4)).unwrap();
    check(&db.table("scanned").unwrap());
    check(&db.table("other").unwrap());
}

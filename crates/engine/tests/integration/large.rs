//! Commits that are too large for one fragment of the log or one set of private pages, over pages that are damaged.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::blocks::{damage, largest_table};
use crate::common::tiny;
use nofault::blocking::{Db, Table};
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_sim::{SimOptions, SimWorld};

const ROWS: u32 = 3000;

fn key(row: u32) -> [u8; 4] {
    row.to_be_bytes()
}

/// Returns the value of a row: short, packed, spread over two pages or more, or long with an index, depending on the row.
fn value(row: u32) -> Vec<u8> {
    match row % 100 {
        0 if row.is_multiple_of(500) => vec![1; 12_000],
        0 => vec![1; 600],
        1..50 => vec![2; 90],
        _ => vec![3; 20],
    }
}

/// Creates a database of one table that is completely in the checkpoint.
fn loaded(world: &SimWorld, settings: &Settings) {
    let directory: Arc<dyn Directory> = world.directory();
    let db = Db::create_in(&directory, settings).unwrap();
    db.create_table("other").unwrap().put("k", "v").unwrap();
    db.create_table("t").unwrap().bulk_load((0..ROWS).map(|row| (key(row), value(row)))).unwrap();
    db.checkpoint().unwrap();
}

/// Regression: the record of the commit was in the log before all its pages had been read. From then on nothing could
/// be committed, and the database could not be opened any more.
#[test]
fn a_large_commit_over_a_damaged_page_is_refused_before_it_is_in_the_log() {
    let settings = Settings { seed: Some(1), ..tiny() };
    for (what, kind, level, step) in [
        ("a leaf", 1, 0, 1000),
        ("an inner node", 1, 1, 1000),
        ("a page of values", 4, 0, 1000),
        ("the index of a long value", 2, 1, 1000),
    ] {
        for delete in [false, true] {
            let world = SimWorld::new(9, SimOptions::calm());
            loaded(&world, &settings);
            damage(&world, kind, level, largest_table(&world).0, step);
            let directory: Arc<dyn Directory> = world.directory();
            for round in 0..2 {
                let db = Db::open_in(&directory, &settings).unwrap_or_else(|error| panic!("{what}, {round}: {error}"));
                let (table, other) = (db.table("t").unwrap(), db.table("other").unwrap());
                let mut batch = Batch::new();
                for row in 0..ROWS {
                    match delete {
                        true => batch.delete(&table, key(row)),
                        false => batch.put(&table, key(row), [7; 20]),
                    };
                }
                let error = db.write(batch, Durability::Sync).unwrap_err();
                assert!(error.kind() == ErrorKind::Corrupt && error.page().is_some(), "{what}, {round}: {error:?}");
                other.put("k", [round]).unwrap_or_else(|error| panic!("{what}, {round}: {error}"));
                assert_eq!(unchanged(&table), ROWS - broken(&table), "{what}, {round}");
            }
        }
    }
}

/// Counts the rows that have the value they were loaded with.
fn unchanged(table: &Table) -> u32 {
    (0..ROWS).filter(|row| table.get(key(*row)).is_ok_and(|found| found == Some(value(*row)))).count() as u32
}

/// Counts the rows that cannot be read.
fn broken(table: &Table) -> u32 {
    (0..ROWS).filter(|row| table.get(key(*row)).is_err()).count() as u32
}

/// Regression: a node that had lost its entries was merged with a neighbour, which had to be read for that.
#[test]
fn rows_beside_a_damaged_page_can_be_deleted() {
    let settings = Settings { seed: Some(1), ..tiny() };
    for large in [false, true] {
        let world = SimWorld::new(10, SimOptions::calm());
        loaded(&world, &settings);
        damage(&world, 1, 0, largest_table(&world).0, 1000);
        let directory: Arc<dyn Directory> = world.directory();
        let db = Db::open_in(&directory, &settings).unwrap();
        let table = db.table("t").unwrap();
        let (mut batch, mut deleted) = (Batch::new(), 0);
        for row in (0..ROWS).filter(|row| table.get(key(*row)).is_ok()) {
            deleted += 1;
            match large {
                true => drop(batch.delete(&table, key(row))),
                false => table.delete(key(row)).unwrap_or_else(|error| panic!("{row}: {error}")),
            }
        }
        db.write(batch, Durability::Sync).unwrap();
        assert!((ROWS - 200..ROWS).contains(&deleted), "{deleted}");
        drop(db);
        let db = Db::open_in(&directory, &settings).unwrap();
        assert_eq!(broken(&db.table("t").unwrap()), ROWS - deleted);
        assert_eq!(unchanged(&db.table("t").unwrap()), 0);
        let report = db.verify().unwrap();
        let pages: BTreeSet<_> = report.problems.iter().map(|problem| problem.error.page()).collect();
        assert_eq!(pages.len(), 1, "{report:?}");
    }
}

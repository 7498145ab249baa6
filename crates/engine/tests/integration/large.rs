//! Commits too large for one hold of the commit section, one fragment of the log or one set of private pages:
//! compared with a map, and over pages that are damaged.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use crate::blocks::{damage, largest_table};
use crate::common::tiny;
use nofault::blocking::{Db, Table};
use nofault::error::ErrorKind;
use nofault::settings::{Compression, Settings};
use nofault::{Batch, Durability};
use nofault_sim::content::{Rows, key};
use nofault_sim::{SimOptions, SimWorld};
use proptest::prelude::*;

const ROWS: u32 = 3000;
/// A cache in which the copies for a change of each row are a small part.
const ROOMY: usize = 32 << 20;

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
    let db = Db::create_in(&world.directory(), settings).unwrap();
    db.create_table("other").unwrap().put("k", "v").unwrap();
    db.create_table("t").unwrap().bulk_load((0..ROWS).map(|row| (key(row), value(row)))).unwrap();
    db.checkpoint().unwrap();
}

/// Regression: the record of the commit was in the log before all its pages had been read. From then on nothing could
/// be committed, and the database could not be opened any more.
#[test]
fn a_large_commit_over_a_damaged_page_is_refused_before_it_is_in_the_log() {
    // Applied in portions, and at once.
    for (cache_bytes, delete) in
        [(tiny().cache_bytes, false), (tiny().cache_bytes, true), (ROOMY, false), (ROOMY, true)]
    {
        let settings = Settings { seed: Some(1), cache_bytes, ..tiny() };
        for (what, kind, level, step) in [
            ("a leaf", 1, 0, 1000),
            ("an inner node", 1, 1, 1000),
            ("a page of values", 4, 0, 1000),
            ("the index of a long value", 2, 1, 1000),
        ] {
            let what = format!("{what}, a cache of {cache_bytes}, deleted: {delete}");
            let world = SimWorld::new(9, SimOptions::calm());
            loaded(&world, &settings);
            damage(&world, kind, level, largest_table(&world).0, step);
            let directory = world.directory();
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

/// Counts the rows with the value they were loaded with.
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
    for (cache_bytes, large) in [(tiny().cache_bytes, false), (tiny().cache_bytes, true), (ROOMY, true)] {
        let settings = Settings { seed: Some(1), cache_bytes, ..tiny() };
        let world = SimWorld::new(10, SimOptions::calm());
        loaded(&world, &settings);
        damage(&world, 1, 0, largest_table(&world).0, 1000);
        let directory = world.directory();
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

/// A batch of many changes, some of them of the same key.
#[derive(Debug, Clone)]
struct ManyChanges {
    seed: u64,
    count: u32,
    /// Keys are below this number.
    space: u32,
    /// Whether the keys ascend from one of them, so that many go into the same leaves.
    ascend: bool,
    deletes_percent: u32,
    longer_percent: u32,
    expiring_percent: u32,
    sync: bool,
    /// Whether the database is reopened before, so that most pages are not in memory.
    cold: bool,
}

fn many_changes() -> impl Strategy<Value = ManyChanges> {
    let space = prop_oneof![Just(60u32), Just(3_000), Just(1_000_000)];
    let deletes = prop_oneof![3 => Just(0u32), 1 => Just(10), 1 => Just(60), 1 => Just(100)];
    let few = || prop_oneof![4 => Just(0u32), 1 => Just(5)];
    let sizes = (any::<u64>(), 200u32..1_500, space, any::<bool>());
    (sizes, deletes, few(), few(), any::<bool>(), prop::bool::weighted(0.3)).prop_map(
        |((seed, count, space, ascend), deletes_percent, longer_percent, expiring_percent, sync, cold)| ManyChanges {
            seed,
            count,
            space,
            ascend,
            deletes_percent,
            longer_percent,
            expiring_percent,
            sync,
            cold,
        },
    )
}

impl ManyChanges {
    /// Adds the changes to a batch for one of the tables, and makes them in its model.
    fn make(&self, batch: &mut Batch, tables: &[Table; 2], models: &mut [Rows; 2]) {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let first = rng.u32(0..self.space);
        for number in 0..self.count {
            let number = if self.ascend { first.wrapping_add(number / 2) } else { rng.u32(0..self.space) };
            // Keys of different lengths, some the beginnings of others.
            let key = format!("{number:07}{}", &"-and-more"[..number as usize % 10]).into_bytes();
            let which = usize::from(rng.u32(0..10) == 0);
            if rng.u32(0..100) < self.deletes_percent {
                batch.delete(&tables[which], &key);
                models[which].remove(&key);
                continue;
            }
            let len = if rng.u32(0..100) < self.longer_percent { rng.usize(0..9_000) } else { rng.usize(0..90) };
            let value = vec![rng.u8(..); len];
            if rng.u32(0..100) < self.expiring_percent {
                batch.put_with_expiry(&tables[which], &key, &value, SystemTime::now() + Duration::from_secs(1 << 24));
            } else {
                batch.put(&tables[which], &key, &value);
            }
            models[which].insert(key, value);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn large_batches_do_what_a_map_does(
        batches in prop::collection::vec(many_changes(), 1..6),
        page_bytes in prop_oneof![2 => Just(512usize), 1 => Just(4096)],
        // The smaller cache has not enough frames for most of these batches at once.
        pages in prop_oneof![Just(1_300usize), Just(16_000)],
    ) {
        let world = SimWorld::new(11, SimOptions::calm());
        let directory = world.directory();
        let settings = Settings { page_bytes, cache_bytes: (pages * page_bytes).max(tiny().cache_bytes), log_bytes: 8 << 20, ..tiny() };
        let content = |table: &Table| table.range::<&[u8]>(..).map(Result::unwrap).collect::<Rows>();
        let mut models = [Rows::new(), Rows::new()];
        {
            let mut db = Db::create_in(&directory, &settings).unwrap();
            let mut tables = [db.create_table("t").unwrap(), db.create_table("other").unwrap()];
            db.set_compression("other", Compression::Fast).unwrap();
            for changes in batches {
                if changes.cold {
                    // Without threads nothing else makes deferred commits durable.
                    db.sync().unwrap();
                    drop((db, tables));
                    db = Db::open_in(&directory, &settings).unwrap();
                    tables = ["t", "other"].map(|name| db.table(name).unwrap());
                }
                let (before, was) = (db.snapshot(), models[0].clone());
                let mut batch = Batch::new();
                changes.make(&mut batch, &tables, &mut models);
                let durability = if changes.sync { Durability::Sync } else { Durability::Deferred };
                db.write(batch, durability).unwrap();
                for (table, model) in tables.iter().zip(&models) {
                    prop_assert!(content(table) == *model, "{}: {changes:?}", table.name());
                }
                let seen = before.range::<&[u8]>(&tables[0], ..).unwrap().map(Result::unwrap).collect::<Rows>();
                prop_assert!(seen == was, "a snapshot from before shows {changes:?}");
            }
            let found = db.verify().unwrap();
            prop_assert!(found.is_clean(), "{:?}", found.problems);
            db.sync().unwrap();
        }
        // Their records are replayed.
        let db = Db::open_in(&directory, &settings).unwrap();
        for (name, model) in ["t", "other"].iter().zip(&models) {
            prop_assert!(content(&db.table(name).unwrap()) == *model, "after opening again");
        }
        let found = db.verify().unwrap();
        prop_assert!(found.is_clean(), "{:?}", found.problems);
    }
}

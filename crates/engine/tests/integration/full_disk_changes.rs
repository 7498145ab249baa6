//! A full disk on which tables are compacted, shrunk, and changed to another compression: commits that need room are
//! refused with `NoSpace`, and nothing else is. All without background threads.
//!
//! Deletes change pages, and a changed page leaves the block that it shared with others: so deletes from compressed tables
//! need more blocks, unless pages stay compressed and are packed again.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::sync::Arc;

use crate::full_disk::{BLOCK_BYTES, check, delete, fill, had_space, settings};
use fastrand::Rng;
use nofault::blocking::{Db, Table};
use nofault::db::Pace;
use nofault::settings::{Compression, Settings};
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_sim::content::Rows;
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};

fn full_world(seed: u64, capacity_bytes: u64) -> (SimWorld, Arc<dyn Directory>) {
    let world = SimWorld::new(seed, SimOptions { capacity_bytes: Some(capacity_bytes), ..SimOptions::calm() });
    let directory = world.directory();
    (world, directory)
}

const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Fast, Compression::Small];

/// Returns a record that becomes much smaller when it is compressed.
fn record(random: &mut Rng) -> Vec<u8> {
    let mut value = b"handled by the usual department; ".repeat(random.usize(3..20));
    random.fill(&mut value[..20]);
    value
}

/// Creates a table with records that become much smaller when they are compressed, as many as there is room for.
fn records(directory: &Arc<dyn Directory>, compression: Compression) -> (Db, Table, Rows) {
    let settings = Settings { page_bytes: 4096, ..settings(4 << 20, false, compression) };
    let db = Db::create_in(directory, &settings).unwrap();
    let table = db.create_table("t").unwrap();
    let (mut model, mut random) = (Rows::new(), Rng::with_seed(1));
    loop {
        let (mut batch, mut rows) = (Batch::new(), Vec::new());
        for _ in 0..50 {
            let key = random.u32(..1 << 20).to_be_bytes().to_vec();
            let value = record(&mut random);
            batch.put(&table, &key, &value);
            rows.push((key, value));
        }
        if !had_space("the records", db.write(batch, Durability::Sync)) {
            return (db, table, model);
        }
        model.extend(rows);
    }
}

/// Deletes one row of each leaf or so, then one of each leaf again, and so on.
fn delete_a_row_of_each_leaf_at_a_time(what: &str, table: &Table, model: &mut Rows) {
    for share in [40, 39, 38, 37, 36, 35, 34, 33] {
        delete(what, table, model, share);
    }
    check(what, table, model);
}

/// Regression: each delete changes a page, which left its block to the other pages there. When the reserve was used up in
/// this way, deletes were refused.
#[test]
fn deletes_from_a_compressed_table_go_on_although_each_changes_another_block() {
    for compression in &COMPRESSIONS[1..] {
        let (_world, directory) = full_world(1, 6 << 20);
        let settings = Settings { page_bytes: 4096, ..settings(4 << 20, false, *compression) };
        let db = Db::create_in(&directory, &settings).unwrap();
        let table = db.create_table("t").unwrap();
        let mut random = Rng::with_seed(1);
        let mut model: Rows = (0..20_000_u32).map(|row| (row.to_be_bytes().to_vec(), record(&mut random))).collect();
        // Every block is full.
        table.bulk_load(&model).unwrap();
        let ballast = db.create_table("ballast").unwrap();
        db.set_compression("ballast", Compression::None).unwrap();
        let mut value = [0; 3000];
        for row in 0_u32.. {
            random.fill(&mut value);
            if !had_space("the ballast", ballast.put(row.to_be_bytes(), value)) {
                break;
            }
        }
        let before = db.stats().pool;
        let what = format!("{compression:?}, {before:?}");
        let mut keys: Vec<_> = model.keys().cloned().collect();
        random.shuffle(&mut keys);
        for key in keys.drain(..by_depth(1500, 3000)) {
            table.delete(&key).unwrap_or_else(|error| panic!("{what}: a delete: {error}"));
            model.remove(&key);
        }
        assert!(db.stats().pool.pages_moved > before.pages_moved, "{what}: there was room for all");
        check(&what, &table, &model);
        assert!(db.verify().unwrap().is_clean(), "{what}");
    }
}

/// Regression: pages of a table that was compressed took a block each when they changed, and when compaction moved them.
#[test]
fn deletes_from_a_table_that_is_compressed_no_more_go_on_with_and_without_compaction() {
    let all = COMPRESSIONS[1..].iter().flat_map(|compression| [false, true].map(|compacts| (compression, compacts)));
    // The first and the last one are a share of them.
    for (compression, compacts) in sample(all, 3) {
        let (_world, directory) = full_world(1, 6 << 20);
        let (db, table, mut model) = records(&directory, *compression);
        let what = format!("{compression:?}, {} rows, compaction: {compacts}", model.len());
        db.set_compression("t", Compression::None).unwrap();
        if compacts {
            db.compact(Pace::Full, |_| true).unwrap();
            db.shrink(Pace::Full, |_| true).unwrap();
        }
        delete_a_row_of_each_leaf_at_a_time(&what, &table, &mut model);
        assert!(db.stats().pool.pages_compressed > 0, "{what}: there was room to restore all");
        assert!(db.verify().unwrap().is_clean(), "{what}");
    }
}

/// Regression: compaction failed where no blocks were free to merge leaves.
#[test]
fn compaction_without_room_to_merge_leaves_does_the_rest_and_says_so() {
    let (_world, directory) = full_world(1, 6 << 20);
    let (db, table, mut model) = records(&directory, Compression::None);
    // The snapshot keeps the old versions of all pages that change.
    let snapshot = db.snapshot();
    let keys: Vec<_> = model.keys().cloned().collect();
    let mut random = Rng::with_seed(2);
    while had_space("a delete beside a snapshot", {
        let key = &keys[random.usize(..keys.len())];
        let deleted = table.delete(key).map(drop);
        if deleted.is_ok() {
            model.remove(key);
        }
        deleted
    }) {}
    let found = db.compact(Pace::Full, |_| true).unwrap();
    assert!(found.leaves_without_free_blocks > 0 && found.tables == 1, "{found:?}");
    assert!(db.shrink(Pace::Full, |_| true).unwrap().leaves_without_free_blocks > 0);
    check("compacted", &table, &model);
    drop(snapshot);
    let found = db.compact(Pace::Full, |_| true).unwrap();
    assert!(found.leaves_without_free_blocks == 0 && found.leaves_merged > 0, "{found:?}");
    check("compacted again", &table, &model);
    assert!(db.verify().unwrap().is_clean());
}

/// One history of a database on a small disk.
struct History {
    what: String,
    random: Rng,
    world: SimWorld,
    directory: Arc<dyn Directory>,
    settings: Settings,
    model: Rows,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let is_small = random.bool();
        let capacity_bytes = (3 << 20) + random.u64(..1500) * BLOCK_BYTES;
        let what =
            format!("NOFAULT_FULL_SEED={seed} NOFAULT_FULL_SEEDS=1, {capacity_bytes} bytes, small pages: {is_small}");
        let (world, directory) = full_world(seed, capacity_bytes);
        let compression = COMPRESSIONS[random.usize(..COMPRESSIONS.len())];
        let settings = settings(2 << 20, false, compression);
        let settings = if is_small { settings } else { Settings { page_bytes: 4096, ..settings } };
        Self { what, random, world, directory, settings, model: Rows::new() }
    }

    /// Runs the history. It ends at once when there is no room for a table.
    fn run(mut self) {
        let mut db = Db::create_in(&self.directory, &self.settings).unwrap();
        let mut table = db.create_table("t").unwrap();
        for step in 0..self.random.u32(20..60) {
            let what = format!("{}, step {step}", self.what);
            (db, table) = self.step(&what, db, table);
        }
        check(&self.what, &table, &self.model);
        assert!(db.verify().unwrap().is_clean(), "{}", self.what);
    }

    fn step(&mut self, what: &str, db: Db, table: Table) -> (Db, Table) {
        let refused = |call: &str, error| panic!("{what}: {call}: {error}");
        match self.random.u32(..12) {
            0..4 => {
                let (alone, refusals) = (self.random.u8(..), self.random.u32(1..3));
                fill(what, (&db, &table), &mut self.model, &mut self.random, alone, refusals);
            }
            4..6 => {
                let compression = COMPRESSIONS[self.random.usize(..COMPRESSIONS.len())];
                had_space(what, db.set_compression("t", compression));
            }
            6 => drop(db.compact(Pace::Full, |_| true).map_err(|error| refused("compaction", error))),
            7 => drop(db.shrink(Pace::Full, |_| true).map_err(|error| refused("shrinking", error))),
            8 => drop(db.checkpoint().map_err(|error| refused("a checkpoint", error))),
            9 | 10 => delete(what, &table, &mut self.model, self.random.usize(1..20)),
            _ => return self.reopen(what, db, table),
        }
        (db, table)
    }

    /// Closes the database and opens it again, now and then after a power cut.
    fn reopen(&mut self, what: &str, db: Db, table: Table) -> (Db, Table) {
        db.sync().unwrap();
        drop(table);
        if self.random.bool() {
            let after = self.world.restart(self.random.u64(..));
            drop(db);
            (self.directory, self.world) = (after.directory(), after);
        } else {
            drop(db);
        }
        let db =
            Db::open_in(&self.directory, &self.settings).unwrap_or_else(|error| panic!("{what}: opening: {error}"));
        let table = db.table("t").unwrap();
        check(what, &table, &self.model);
        (db, table)
    }
}

/// Random histories. `NOFAULT_FULL_SEEDS` sets their number, and `NOFAULT_FULL_SEED` the first seed.
#[test]
fn only_what_needs_room_is_refused_in_any_history_of_a_full_disk() {
    let number = |name, default| std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default);
    let first = number("NOFAULT_FULL_SEED", 1);
    (first..first + number("NOFAULT_FULL_SEEDS", by_depth(3, 8))).for_each(|seed| History::new(seed).run());
}

//! Loads into tables that hold entries: against a model, with faults and power cuts, and with readers of the old content.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use nofault_io::disk::Directory;
use nofault_sim::content::Rows;
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

use super::*;
use crate::clock::ManualClock;
use crate::db::open::handle::Db;
use crate::db::tests::rows_of;
use crate::settings::Settings;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A database with a table and its content.
struct FilledTable {
    world: SimWorld,
    db: Db,
    table: Table,
    rows: Rows,
}

impl FilledTable {
    fn new(rows: Rows) -> Self {
        let world = SimWorld::new(1, SimOptions::calm());
        let db = Db::create_in(&world.directory(), &Settings { cache_bytes: 1 << 20, ..Settings::tiny(1) }).unwrap();
        let table = block_on(db.create_table("t")).unwrap();
        table.load(&rows).unwrap();
        Self { world, db, table, rows }
    }

    fn merged_with(&self, run: &Rows) -> Rows {
        let mut merged = self.rows.clone();
        merged.extend(run.clone());
        merged
    }

    fn assert_holds(&self, rows: &Rows, what: &str) {
        assert!(rows_of::<Rows>(&self.table).unwrap() == *rows, "{what}");
        let found = block_on(self.db.verify()).unwrap();
        assert!(found.is_clean(), "{what}: {:?}", found.problems);
    }

    /// Returns the content of the table after a power cut at this moment.
    fn after_cut(&self, seed: u64) -> Rows {
        let directory: Arc<dyn Directory> = self.world.restart(seed).directory();
        let db = Db::open_in(&directory, &Settings { cache_bytes: 1 << 20, ..Settings::tiny(1) });
        let db = db.unwrap_or_else(|error| panic!("cut {seed}: {error}"));
        let found = block_on(db.verify()).unwrap();
        assert!(found.is_clean(), "cut {seed}: {:?}", found.problems);
        rows_of(&block_on(db.table("t")).unwrap()).unwrap()
    }

    fn blocks_after_checkpoints(&self) -> u64 {
        (0..2).for_each(|_| block_on(self.db.checkpoint()).unwrap());
        self.db.stats().pool.blocks_used
    }
}

/// Returns rows with values of every kind: in the leaf, in a shared page, over several pages, and long.
fn rows(rng: &mut Rng, count: u32, keys: u32) -> Rows {
    let row = |_| {
        let len = match rng.u32(..40) {
            0 => rng.usize(5_000..20_000),
            1..4 => rng.usize(500..5_000),
            4..15 => rng.usize(60..200),
            _ => rng.usize(..40),
        };
        (rng.u32(..keys).to_be_bytes().to_vec(), vec![rng.u8(..); len])
    };
    (0..count).map(row).collect()
}

/// Rows of a run too long for an ordinary commit.
fn long_run() -> Rows {
    (0..600u32).map(|row| ((row * 3).to_be_bytes().to_vec(), vec![row as u8; 50])).collect()
}

fn before() -> Rows {
    (0..800u32).map(|row| ((row * 2).to_be_bytes().to_vec(), vec![1; if row % 100 == 0 { 6000 } else { 60 }])).collect()
}

#[test]
fn random_runs_and_tables_agree_with_a_model() {
    for seed in sample(0..12, 4) {
        let mut rng = Rng::with_seed(seed);
        let (size, keys) = (rng.u32(1..1500), rng.u32(10..3000));
        let mut filled = FilledTable::new(rows(&mut rng, size, keys));
        for load in 0..4 {
            let size = rng.u32(..1500);
            let run = rows(&mut rng, size, keys);
            let snapshot = filled.db.snapshot();
            assert_eq!(filled.table.load(&run).unwrap(), run.len() as u64, "seed {seed}");
            let old: Rows = {
                let mut range = snapshot.range::<&[u8]>(&filled.table, ..).unwrap();
                std::iter::from_fn(|| block_on(range.next()).unwrap()).collect()
            };
            assert!(old == filled.rows, "seed {seed}: the snapshot changed in load {load}");
            filled.rows = filled.merged_with(&run);
            filled.assert_holds(&filled.rows, &format!("seed {seed}, load {load}"));
            if rng.bool() {
                let key = rng.u32(..keys).to_be_bytes().to_vec();
                block_on(filled.table.put(&key, b"put")).unwrap();
                filled.rows.insert(key, b"put".to_vec());
                assert!(filled.after_cut(seed) == filled.rows, "seed {seed}, cut after load {load}");
            }
        }
        assert!(filled.after_cut(seed) == filled.rows, "seed {seed}, after a cut");
    }
}

#[test]
fn the_pages_of_the_old_content_are_freed() {
    let filled = FilledTable::new(before());
    let blocks = filled.blocks_after_checkpoints();
    for round in 0..5 {
        filled.table.load(long_run()).unwrap();
        let now = filled.blocks_after_checkpoints();
        assert!(now < blocks * 2, "round {round}: {now} blocks in use after {blocks}");
    }
    filled.assert_holds(&filled.merged_with(&long_run()), "at last");
    assert_eq!(filled.db.stats().dropped_pages_unreadable, 0);
}

#[test]
fn a_run_that_fails_leaves_the_table_as_it_was() {
    let filled = FilledTable::new(before());
    let blocks = filled.blocks_after_checkpoints();
    for len in [0, 5, 599] {
        let broken = long_run().into_iter().take(len).map(Ok).chain([Err(Error::new(ErrorKind::Io, "no more"))]);
        let error = filled.table.try_load::<_, Error>(broken).unwrap_err();
        assert_eq!(error.to_string(), "no more", "after {len}");
        let wrong = long_run().into_iter().take(len + 1).chain([(vec![0; 3], vec![])]);
        assert_eq!(filled.table.load(wrong).unwrap_err().kind(), ErrorKind::InvalidCall, "after {len}");
        let panicking = long_run().into_iter().enumerate().map(|(at, row)| {
            assert!(at < len, "a planned panic");
            row
        });
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| filled.table.load(panicking)));
        assert!(panicked.is_err(), "after {len}");
        filled.assert_holds(&filled.rows, &format!("after {len}"));
    }
    let now = filled.blocks_after_checkpoints();
    assert!(now <= blocks + 60, "{now} blocks in use after {blocks}");
    filled.table.load(long_run()).unwrap();
    filled.assert_holds(&filled.merged_with(&long_run()), "the load after them");
}

#[test]
fn a_load_whose_checkpoint_fails_is_taken_back() {
    for errno in [EIO, ENOSPC] {
        let mut failed = 0;
        for after in 0..1000 {
            let filled = FilledTable::new(before());
            filled.db.owner.allow(LateFeature::Properties).unwrap();
            let what = format!("errno {errno}, write {after}");
            let (db, merged) = (&filled.db, filled.merged_with(&long_run()));
            let checkpoint = |load: bulk::LoadCommit| {
                filled.world.inject(Fault::new(Call::Write, Effect::Errno(errno)).on("data").after(after));
                db.owner.checkpoint_at(load.commit)
            };
            let entries = merged.clone().into_iter().map(|(key, value)| Ok((key, value, Moment::NEVER)));
            let mut entries = IterEntries::new(entries);
            let tree = filled.table.tree;
            let loaded = bulk::load(&db.core, tree, Present::Replace, &mut entries, &Default::default(), &checkpoint);
            let Err(error) = loaded else {
                assert!(filled.after_cut(after) == merged, "{what}");
                break;
            };
            if error.kind() == ErrorKind::Poisoned {
                let found = filled.after_cut(after);
                assert!(found == filled.rows || found == merged, "{what}");
                continue;
            }
            failed += 1;
            assert!(filled.after_cut(after) == filled.rows, "{what}");
            filled.assert_holds(&filled.rows, &what);
            block_on(db.checkpoint()).unwrap();
            filled.assert_holds(&filled.rows, &format!("{what}, after a checkpoint"));
            filled.table.load(long_run()).unwrap();
            filled.assert_holds(&merged, &format!("{what}, after another load"));
            assert!(filled.after_cut(after) == merged, "{what}, after another load and a cut");
        }
        assert!(failed > 2, "errno {errno}: only {failed} failed");
    }
}

#[test]
fn a_power_cut_leaves_the_old_content_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    for (call, errno) in [(Call::Write, EIO), (Call::Read, EIO), (Call::Sync, EIO)] {
        for after in sample(0..60, 4) {
            let filled = FilledTable::new(before());
            let merged = filled.merged_with(&long_run());
            filled.world.inject(Fault::new(call, Effect::Errno(errno)).on("data").after(after));
            let loaded = filled.table.load(long_run());
            let found = filled.after_cut(after);
            match loaded.map_err(|error| error.kind()) {
                Ok(_) => assert!(found == merged, "{call:?} {after}: loaded"),
                Err(ErrorKind::Poisoned) => assert!(found == filled.rows || found == merged, "{call:?} {after}"),
                Err(_) => assert!(found == filled.rows, "{call:?} {after}: refused"),
            }
            *if found == merged { &mut new } else { &mut old } += 1;
        }
    }
    let [old_min, new_min] = by_depth([2, 15], [10, 60]);
    assert!(old > old_min && new > new_min, "{old} with the old content, {new} with the new one");
}

#[test]
fn entries_keep_the_time_at_which_they_expire() {
    let clock = ManualClock::new();
    let directory = SimWorld::new(1, SimOptions::calm()).directory();
    let settings = Settings { cache_bytes: 1 << 20, clock: clock.clone().into(), ..Settings::tiny(1) };
    let db = Db::create_in(&directory, &settings).unwrap();
    let table = block_on(db.create_table("t")).unwrap();
    let (soon, late) = (db.now() + Duration::from_secs(10), db.now() + Duration::from_secs(20));
    for number in (0..800u32).step_by(2) {
        block_on(table.put_with_expiry(number.to_be_bytes(), [1; 60], if number % 4 == 0 { soon } else { late }))
            .unwrap();
    }
    table.load((1..1200u32).step_by(2).map(|number| (number.to_be_bytes(), [2; 60]))).unwrap();
    assert_eq!(block_on(table.len()).unwrap(), 1000);
    clock.advance(Duration::from_secs(10));
    assert_eq!(block_on(table.len()).unwrap(), 800);
    clock.advance(Duration::from_secs(10));
    assert_eq!(block_on(table.len()).unwrap(), 600);
    // Only what has expired is left: for the load this is no empty table.
    block_on(table.delete_range::<&[u8]>(..)).unwrap();
    table.load((0..1200u32).map(|number| (number.to_be_bytes(), [3; 60]))).unwrap();
    assert_eq!(block_on(table.len()).unwrap(), 1200);
    assert!(block_on(db.verify()).unwrap().is_clean());
}

#[test]
fn a_drop_while_the_old_content_is_being_freed_frees_both() {
    let blocks_left = |is_freed_before: bool| {
        let filled = FilledTable::new(before());
        let run = long_run().into_iter().map(|(key, value)| Ok((key, value, Moment::NEVER)));
        write_anew(&filled.table, &mut IterEntries::new(run), &Default::default()).unwrap();
        if is_freed_before {
            filled.db.owner.free_dropped();
        }
        block_on(filled.db.drop_table("t")).unwrap();
        block_on(filled.db.create_table("t")).unwrap();
        assert!(block_on(filled.db.verify()).unwrap().is_clean());
        filled.blocks_after_checkpoints()
    };
    assert_eq!(blocks_left(false), blocks_left(true));
}

#[test]
fn a_removal_of_many_entries_writes_the_table_anew_without_them() {
    let key = |number: u32| number.to_be_bytes().to_vec();
    let all: Rows = (0..3000).map(|number| (key(number), vec![1; if number % 300 == 0 { 6000 } else { 30 }])).collect();
    for (from, to) in [(0, 3000), (0, 2900), (100, 2950), (50, 4000), (3000, 4000), (7, 7)] {
        let filled = FilledTable::new(all.clone());
        let blocks = filled.blocks_after_checkpoints();
        let removed = block_on(filled.table.delete_range(key(from)..key(to))).unwrap();
        let left: Rows = all
            .iter()
            .filter(|(k, _)| !(key(from)..key(to)).contains(*k))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        assert_eq!(removed as usize, all.len() - left.len(), "{from} to {to}");
        filled.assert_holds(&left, &format!("{from} to {to}"));
        assert!(filled.after_cut(1) == left, "{from} to {to}, after a cut");
        if removed > 2800 {
            let now = filled.blocks_after_checkpoints();
            assert!(now < blocks / 2, "{from} to {to}: {now} blocks in use after {blocks}");
        }
    }
    let filled = FilledTable::new(all.clone());
    assert_eq!(block_on(filled.table.clear()).unwrap(), 3000);
    filled.assert_holds(&Rows::new(), "cleared");
    assert_eq!(block_on(filled.table.clear()).unwrap(), 0);
}

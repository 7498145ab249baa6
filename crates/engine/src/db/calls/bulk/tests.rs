//! Loads that are interrupted, and the states that other callers see.

use std::sync::Arc;

use nofault_io::disk::Directory;
use nofault_sim::depth::by_depth;
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

use super::*;
use crate::db::api::table::Table;
use crate::db::calls::loads::IterEntries;
use crate::db::open::handle::Db;
use crate::format::Moment;
use crate::settings::Settings;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A database with two empty tables, on disks that can be made to fail.
struct Empty {
    world: SimWorld,
    db: Db,
    table: Table,
    other: Table,
    /// Number of blocks in use before the load.
    blocks: u64,
}

impl Empty {
    fn new() -> Self {
        Self::with(&Settings::tiny(1))
    }

    fn with(settings: &Settings) -> Self {
        let world = SimWorld::new(1, SimOptions::calm());
        let db = Db::create_in(&world.directory(), settings).unwrap();
        let create = |name| block_on(db.create_table(name)).unwrap();
        let (table, other) = (create("t"), create("other"));
        let mut empty = Self { world, db, table, other, blocks: 0 };
        empty.blocks = empty.blocks_after_checkpoints();
        empty
    }

    fn blocks_after_checkpoints(&self) -> u64 {
        (0..2).for_each(|_| block_on(self.db.checkpoint()).unwrap());
        self.db.stats().pool.blocks_used
    }

    /// Checks that a load into `table` has left nothing behind and that the database still works.
    fn assert_as_before(&self, what: &str) {
        put(&self.other, b"k", b"v").unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(block_on(self.table.get(b"k")).unwrap(), None, "{what}");
        assert_eq!(rows_of(&self.table), 0, "{what}");
        let blocks = self.blocks_after_checkpoints();
        // The page table keeps its nodes for the page numbers that the load used.
        assert!(blocks <= self.blocks + 60, "{what}: {blocks} blocks in use after {}", self.blocks);
        let found = block_on(self.db.verify()).unwrap();
        assert!(found.is_clean(), "{what}: {:?}", found.problems);
        assert_eq!(load(&self.table, 500).unwrap(), 500, "{what}");
        assert_eq!(rows_of(&self.table), 500, "{what}");
    }
}

fn put(table: &Table, key: &[u8], value: &[u8]) -> Result<()> {
    block_on(table.put(key, value))
}

fn load(table: &Table, rows: u32) -> Result<u64> {
    table.load((0..rows).map(|row| (row.to_be_bytes(), [row as u8; 60])))
}

fn rows_of(table: &Table) -> usize {
    let mut range = table.range::<&[u8]>(..);
    std::iter::from_fn(|| block_on(range.next()).unwrap()).count()
}

#[test]
fn a_long_value_that_cannot_be_written_to_its_end_leaves_no_pages_behind() {
    let empty = Empty::with(&Settings { cache_bytes: 2 << 20, ..Settings::tiny(1) });
    // Longer than the pages that may be published and not written yet.
    let value = vec![7; 2 << 20];
    for after in [0, 1, 2] {
        empty.world.inject(Fault::new(Call::Write, Effect::Errno(ENOSPC)).on("data").after(after));
        let error = empty.table.load([([1u8], &value)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        // A checkpoint is of the visible state: from here on that is younger than the load.
        put(&empty.other, b"k", b"v").unwrap();
        let blocks = empty.blocks_after_checkpoints();
        assert!(blocks <= empty.blocks + 60, "write {after}: {blocks} blocks in use after {}", empty.blocks);
    }
    empty.assert_as_before("at last");
}

/// Regression: freeing a long value read its index, and a load that had already failed made the whole database fail
/// with that.
#[test]
fn a_load_is_taken_back_without_reading() {
    let empty = Empty::new();
    let long = vec![7; 9000];
    let first = std::iter::once((vec![0], long));
    // Enough for the index of the long value to leave the pool.
    let rows = (0..40_000u32).map(|row| ([&[1], &row.to_be_bytes()[..]].concat(), vec![1; 60]));
    let wrong = std::iter::once_with(|| {
        empty.world.inject(Fault::new(Call::Read, Effect::Errno(EIO)).on("data"));
        (vec![0], vec![0])
    });
    let error = empty.table.load(first.chain(rows).chain(wrong)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
    // The first read meets the error that was waiting for the load.
    if let Err(error) = put(&empty.other, b"k", b"v") {
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    }
    empty.assert_as_before("after a wrong key");
}

#[test]
fn a_panic_of_the_entries_goes_on_when_the_load_is_taken_back() {
    let empty = Empty::new();
    for rows in [0, 100, 40_000] {
        let entries = (0..=rows).map(|row: u32| {
            assert!(row < rows, "there is no row {row}");
            (row.to_be_bytes(), if row % 1000 == 500 { vec![2; 9000] } else { vec![1; 60] })
        });
        let panicked = catch_unwind(AssertUnwindSafe(|| empty.table.load(entries))).unwrap_err();
        let said = panicked.downcast_ref::<String>().expect("a text");
        assert_eq!(*said, format!("there is no row {rows}"));
        put(&empty.other, b"k", b"v").unwrap_or_else(|error| panic!("{rows} rows: {error}"));
    }
    empty.assert_as_before("after panics");
}

/// Returns rows with short values, packed values and one long value.
fn rows(count: u32) -> impl Iterator<Item = ([u8; 4], Vec<u8>)> {
    let len = |row: u32| match row % 100 {
        0 => 3000,
        1..50 => 90,
        _ => 20,
    };
    (0..count).map(move |row| (row.to_be_bytes(), vec![row as u8; len(row)]))
}

/// Returns how many rows table `t` has after a power cut at this moment.
fn rows_after_cut(world: &SimWorld, seed: u64) -> usize {
    let directory: Arc<dyn Directory> = world.restart(seed).directory();
    // A page table of many pages wants more cache to be opened.
    let settings = Settings { cache_bytes: 1 << 20, ..Settings::tiny(1) };
    let db = Db::open_in(&directory, &settings).unwrap_or_else(|error| panic!("cut {seed}: {error}"));
    let found = block_on(db.verify()).unwrap();
    assert!(found.is_clean(), "cut {seed}: {:?}", found.problems);
    rows_of(&block_on(db.table("t")).unwrap())
}

#[test]
fn a_load_becomes_visible_only_when_no_power_cut_can_lose_it() {
    let empty = Empty::new();
    let (db, table, world) = (&empty.db, &empty.table, &empty.world);
    let before = db.stats().visible_commit;
    let checkpoint = |load: super::LoadCommit| {
        assert_eq!(rows_of(table), 0, "before it is durable");
        assert_eq!(rows_after_cut(world, 1), 0);
        db.owner.checkpoint_at(load.commit)?;
        assert_eq!(rows_of(table), 0, "it is durable and about to be seen");
        for seed in 2..6 {
            assert_eq!(rows_after_cut(world, seed), 500);
        }
        // Another caller makes a checkpoint, of the visible state.
        block_on(db.checkpoint()).unwrap();
        assert_eq!(rows_after_cut(world, 6), 500, "a later checkpoint was of an earlier commit");
        assert_eq!(db.stats().visible_commit, before);
        Ok(())
    };
    let entries = rows(500).map(|(key, value)| Ok((key, value, Moment::NEVER)));
    let mut entries = IterEntries::new(entries);
    let loaded = super::load(&db.core, table.tree, Present::Refuse, &mut entries, &Default::default(), &checkpoint);
    assert_eq!(loaded.unwrap(), 500);
    assert_eq!(rows_of(table), 500);
    for round in 0..20u8 {
        put(&empty.other, &[round], b"v").unwrap();
        put(table, &[9, round], b"v").unwrap();
        assert_eq!(rows_after_cut(world, round.into()), 501 + usize::from(round));
        if round % 5 == 4 {
            block_on(db.checkpoint()).unwrap();
        }
    }
    assert!(block_on(db.verify()).unwrap().is_clean());
}

#[test]
fn a_load_whose_checkpoint_fails_is_taken_back_also_after_checkpoints_of_others() {
    for errno in [EIO, ENOSPC] {
        let mut failed = 0;
        for (call, after) in (0..1000).map(|after| (Call::Write, after)) {
            let empty = Empty::new();
            let (db, world) = (&empty.db, &empty.world);
            let what = format!("errno {errno}, write {after}");
            let checkpoint = |load: super::LoadCommit| {
                world.inject(Fault::new(call, Effect::Errno(errno)).on("data").after(after));
                let made = db.owner.checkpoint_at(load.commit);
                if made.as_ref().is_err_and(|error| error.kind() != ErrorKind::Poisoned) {
                    assert_eq!(rows_of(&empty.table), 0, "{what}");
                    assert_eq!(rows_after_cut(world, after), 0, "{what}");
                    // As the background thread may do before this thread takes the load back.
                    block_on(db.checkpoint()).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(rows_after_cut(world, after), 0, "{what}, after a checkpoint of another");
                }
                made
            };
            let entries = rows(500).map(|(key, value)| Ok((key, value, Moment::NEVER)));
            let (tree, mut entries) = (empty.table.tree, IterEntries::new(entries));
            let loaded = super::load(&db.core, tree, Present::Refuse, &mut entries, &Default::default(), &checkpoint);
            let Err(error) = loaded else { break };
            if error.kind() == ErrorKind::Poisoned {
                // The write of a superblock failed: it is the last write of a checkpoint.
                let refused = put(&empty.other, b"k", b"v").unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Poisoned, "{what}: {refused}");
                assert_eq!(rows_of(&empty.table), 0, "{what}");
                let found = rows_after_cut(world, after);
                assert!(found == 0 || found == 500, "{what}: {found} rows");
                continue;
            }
            failed += 1;
            put(&empty.other, b"a", b"v").unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(rows_after_cut(world, after), 0, "{what}, after a commit");
            empty.assert_as_before(&what);
            assert_eq!(rows_after_cut(world, after), 500, "{what}, after another load");
        }
        assert!(failed > 2, "errno {errno}: only {failed} failed");
    }
}

#[test]
fn a_failure_of_any_call_leaves_a_load_whole_or_absent_and_commits_go_on_unless_its_outcome_is_unknown() {
    let calls =
        [(Call::Write, EIO), (Call::Write, ENOSPC), (Call::Allocate, EIO), (Call::Sync, EIO), (Call::Read, EIO)];
    let count = by_depth(1000, 3000);
    for (call, errno) in calls {
        let (mut taken_back, mut poisoned) = (0, 0);
        // Returns whether all calls were made before the one that was to fail.
        let mut fails_at = |after: u64| {
            let empty = Empty::new();
            let what = format!("{call:?} {after}, errno {errno}");
            empty.world.inject(Fault::new(call, Effect::Errno(errno)).on("data").after(after));
            let loaded = empty.table.load(rows(count));
            match loaded.map_err(|error| error.kind()) {
                Ok(loaded) => {
                    assert_eq!((loaded, rows_after_cut(&empty.world, after)), (count.into(), count as usize), "{what}");
                    return empty.world.stats().error_count == 0;
                }
                Err(ErrorKind::Poisoned) => {
                    poisoned += 1;
                    let found = rows_after_cut(&empty.world, after);
                    assert!(found == 0 || found == count as usize, "{what}: {found} rows");
                }
                Err(_) => {
                    taken_back += 1;
                    assert_eq!(rows_after_cut(&empty.world, after), 0, "{what}");
                    empty.assert_as_before(&what);
                }
            }
            false
        };
        let step = by_depth(16, 1);
        let end = (0..1000).step_by(step).find(|after| fails_at(*after)).expect("a load of fewer calls");
        // The last calls, which are a checkpoint's, are not left out.
        for after in end.saturating_sub(step as u64 - 1)..end {
            fails_at(after);
        }
        match call {
            Call::Write => assert!(taken_back > 5 && poisoned == 2, "{taken_back} taken back, {poisoned} poisoned"),
            Call::Sync => assert_eq!((taken_back, poisoned), (0, 1)),
            _ => assert_eq!(poisoned, 0, "{call:?}: {taken_back} taken back"),
        }
    }
}

//! Compaction moves pages next to each other, readers see no difference, and the file stays within its bound.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::task::{Context, Waker};

use nofault_io::disk::Directory;
use nofault_sim::depth::sample;
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

use super::*;
use crate::db::api::table::Table;
use crate::db::upkeep::shrink::ShrinkEnding;
use crate::pages::{Durability, Store as _};
use crate::settings::Settings;
use crate::{Batch, blocking};

const KEYS: u32 = 30_000;

/// Settings with small pages, so that few keys fill many pages.
fn settings() -> Settings {
    Settings { cache_bytes: 2 << 20, log_bytes: 4 << 20, ..Settings::tiny(1) }
}

fn key_of(number: u32) -> Vec<u8> {
    format!("{number:08}").into_bytes()
}

/// A database on a simulated disk, and its expected content.
struct ScatteredTable {
    world: SimWorld,
    db: blocking::Db,
    table: blocking::Table,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    random: fastrand::Rng,
}

impl ScatteredTable {
    /// Creates a database loaded in key order, with values of this length.
    fn loaded(value_bytes: usize) -> Self {
        let world = SimWorld::new(7, SimOptions::calm());
        let db = blocking::Db::create_in(&world.directory(), &settings()).unwrap();
        let table = db.create_table("t").unwrap();
        let count = if value_bytes > 64 { KEYS / 4 } else { KEYS };
        let rows: BTreeMap<_, _> = (0..count).map(|number| (key_of(number), vec![0; value_bytes])).collect();
        table.bulk_load(rows.iter().map(|(key, value)| (key.clone(), value.clone()))).unwrap();
        Self { world, db, table, rows, random: fastrand::Rng::with_seed(3) }
    }

    /// Rewrites `count` random keys with values of the same length, with a few checkpoints in between.
    fn rewrite(&mut self, count: usize) {
        let keys = self.rows.len() as u32;
        for part in 0..count.div_ceil(500) {
            let mut batch = Batch::new();
            for _ in 0..500.min(count - part * 500) {
                let (key, stamp) = (key_of(self.random.u32(..keys)), self.random.u8(..));
                let value = vec![stamp; self.rows[&key].len()];
                batch.put(&self.table, &key, &value);
                self.rows.insert(key, value);
            }
            self.db.write(batch, Durability::Sync).unwrap();
            self.db.checkpoint().unwrap();
        }
    }

    /// Deletes random keys until a tenth is left, with a few checkpoints in between.
    fn delete_nine_of_ten(&mut self) {
        let mut keys: Vec<Vec<u8>> = self.rows.keys().cloned().collect();
        self.random.shuffle(&mut keys);
        keys.truncate(keys.len() / 10 * 9);
        for part in keys.chunks(500) {
            let mut batch = Batch::new();
            for key in part {
                batch.delete(&self.table, key);
                self.rows.remove(key);
            }
            self.db.write(batch, Durability::Sync).unwrap();
            self.db.checkpoint().unwrap();
        }
    }

    /// Adds rows behind all others, and makes a checkpoint.
    fn add_rows(&mut self, count: u32) {
        let more: Vec<_> = (0..count).map(|number| (key_of(KEYS + number), vec![1; 100])).collect();
        for part in more.chunks(500) {
            let mut batch = Batch::new();
            for (key, value) in part {
                batch.put(&self.table, key, value);
            }
            self.db.write(batch, Durability::Sync).unwrap();
        }
        self.rows.extend(more);
        self.db.checkpoint().unwrap();
    }

    fn compact(&self) -> Compaction {
        self.db.compact(Pace::Full, |_| true).unwrap()
    }

    fn inner(&self) -> &Db {
        AsRef::<Table>::as_ref(&self.table).db()
    }

    /// Returns the average number of consecutive blocks that a scan in key order reads in sequence.
    fn pages_in_a_row(&self) -> f64 {
        let db = self.inner();
        let (store, tree) = (&db.core.store, block_on(db.core.catalog.table(b"t")).unwrap());
        let (mut leaves, mut start) = (Vec::new(), Some(Vec::new()));
        while let Some(from) = start {
            let look = || tree.leaves(&store.latest(), &from);
            let found = block_on(db.core.reader.loader.attempt(look)).unwrap();
            leaves.extend(found.0);
            start = found.1;
        }
        let metadata = store.metadata().lock();
        let blocks: Vec<u64> = leaves.iter().map(|leaf| metadata.map.get(*leaf).unwrap().block.0).collect();
        let breaks = blocks.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        blocks.len() as f64 / (breaks + 1) as f64
    }

    /// Checks that the content and all metadata of the database are right.
    fn check(&self) {
        let found: BTreeMap<_, _> = self.table.range::<&[u8]>(..).map(Result::unwrap).collect();
        assert!(found == self.rows, "content has changed");
        let problems = self.db.verify().unwrap().problems;
        assert!(problems.is_empty(), "{problems:?}");
    }

    /// Returns the number of blocks of pages and nodes, and the block at which the file ends.
    fn blocks(&self) -> (u64, u64) {
        let metadata = self.inner().core.store.metadata().lock();
        (
            metadata.allocator.space.used_blocks() - metadata.allocator.deferred.len(),
            metadata.allocator.space.end_block(),
        )
    }
}

#[test]
fn pages_that_random_writes_have_scattered_lie_in_long_runs_again() {
    let mut scattered = ScatteredTable::loaded(20);
    let fresh = scattered.pages_in_a_row();
    scattered.rewrite(20_000);
    let before = scattered.pages_in_a_row();
    let found = scattered.compact();
    let after = scattered.pages_in_a_row();
    assert!(fresh > 20.0 && before < 3.0 && after > 40.0, "{fresh} pages in a row, {before}, then {after}: {found:?}");
    assert!(found.pages_moved * 10 > found.pages * 9 && found.pages_without_free_blocks == 0, "{found:?}");
    assert_eq!(found.tables, 1);
    scattered.check();
    assert_eq!(scattered.compact().pages_moved, 0, "what lies together stays");
    // The state that a power cut leaves right after the compaction.
    let later = scattered.world.restart(5);
    scattered.db = blocking::Db::open_in(&later.directory(), &settings()).unwrap();
    scattered.table = scattered.db.table("t").unwrap();
    scattered.check();
    assert!(scattered.pages_in_a_row() > 40.0, "and it is durable");
}

#[test]
fn a_table_that_grew_at_random_is_put_in_order_as_well() {
    let mut scattered = ScatteredTable::loaded(20);
    scattered.table = scattered.db.create_table("u").unwrap();
    scattered.db.drop_table("t").unwrap();
    let keys = scattered.rows.len() as u32;
    scattered.rows.clear();
    for _ in 0..80 {
        let mut batch = Batch::new();
        for _ in 0..500 {
            let key = key_of(scattered.random.u32(..keys));
            batch.put(&scattered.table, &key, [7; 20]);
            scattered.rows.insert(key, vec![7; 20]);
        }
        scattered.db.write(batch, Durability::Sync).unwrap();
    }
    let found = scattered.compact();
    assert!(found.pages_without_free_blocks == 0 && found.fragments_after * 20 < found.fragments_before, "{found:?}");
    scattered.check();
}

#[test]
fn pages_of_values_are_moved_together_as_well() {
    let mut scattered = ScatteredTable::loaded(100);
    scattered.rewrite(10_000);
    let found = scattered.compact();
    assert!(found.pages > u64::from(KEYS / 4 / 4), "the pages of values are among them: {found:?}");
    assert!(found.fragments_after * 8 < found.fragments_before, "{found:?}");
    scattered.check();
}

#[test]
fn repeated_compactions_keep_the_file_within_its_bound_and_use_freed_blocks() {
    let mut scattered = ScatteredTable::loaded(20);
    for round in 0..8 {
        scattered.rewrite(5000);
        let found = scattered.compact();
        let (live, end) = scattered.blocks();
        assert!(end <= live + live / 8 + 4096 + 256, "round {round}: {live} blocks in use, the file has {end}");
        let pages = scattered.db.verify().unwrap().blocks;
        assert!(live < pages + 600, "round {round}: {live} blocks for {pages} pages and nodes: {found:?}");
    }
    assert!(scattered.pages_in_a_row() > 30.0);
    scattered.check();
}

#[test]
fn after_most_rows_were_deleted_the_file_becomes_as_short_as_what_is_left() {
    let mut scattered = ScatteredTable::loaded(100);
    let before = scattered.world.read_file("data").unwrap().len() as u64;
    scattered.delete_nine_of_ten();
    let (live, end) = scattered.blocks();
    assert!(scattered.db.stats().data_bytes_excess > before / 2);
    let found = scattered.compact();
    assert_eq!(scattered.db.stats().data_bytes_excess, 0);
    let after = scattered.world.read_file("data").unwrap().len() as u64;
    assert!(end > 2 * live, "the premise: {live} blocks in use, {end} in the file");
    assert!(found.leaves_merged > 20, "{found:?}");
    assert_eq!(found.leaves_merged, scattered.db.stats().leaves_merged);
    assert!(after < before / 2 && found.bytes_given_back >= before - after, "{before} bytes, then {after}: {found:?}");
    let (live, end) = scattered.blocks();
    assert!(end <= live + live / 16 + 4 * 256, "{live} blocks in use, {end} in the file");
    assert_eq!(after, end * 512, "no more than the blocks that are kept free for deletes");
    scattered.check();
    assert_eq!(scattered.compact().bytes_given_back, 0, "a short file stays as it is");
    // It grows again.
    scattered.add_rows(5000);
    assert!(scattered.blocks().1 > end);
    scattered.check();
}

#[test]
fn a_snapshot_keeps_its_blocks_until_it_ends_and_the_file_becomes_shorter_afterwards() {
    let mut scattered = ScatteredTable::loaded(100);
    let (held, then) = (scattered.db.snapshot(), scattered.rows.clone());
    scattered.delete_nine_of_ten();
    let first = scattered.compact();
    let seen: BTreeMap<_, _> = held.range::<&[u8]>(&scattered.table, ..).unwrap().map(Result::unwrap).collect();
    assert!(seen == then, "the snapshot has changed");
    drop(held);
    let second = scattered.compact();
    assert!(first.bytes_given_back > 0 && second.bytes_given_back > 0, "{first:?}, then {second:?}");
    let (live, end) = scattered.blocks();
    assert!(end <= live + live / 16 + 4 * 256, "{live} blocks in use, {end} in the file");
    scattered.check();
}

#[test]
fn a_snapshot_whose_pages_lie_at_the_end_of_the_file_is_named_as_the_reason_for_its_length() {
    let mut scattered = ScatteredTable::loaded(100);
    // Each page gets a new place behind the first ones.
    let pages = scattered.db.snapshot();
    scattered.rewrite(7500);
    drop(pages);
    scattered.db.checkpoint().unwrap();
    let (held, seen) = (scattered.db.snapshot(), scattered.db.stats().visible_commit);
    scattered.delete_nine_of_ten();
    scattered.compact();
    let ending = scattered.db.stats().compaction.last_ending;
    assert!(matches!(ending, Some(ShrinkEnding::HeldBy { commit, .. }) if commit == seen), "{ending:?}");
    drop(held);
    assert!(scattered.compact().bytes_given_back > 0);
    assert_eq!(scattered.db.stats().compaction.last_ending, Some(ShrinkEnding::Done));
}

/// Of a striped file a part may be cut and another not. So the blocks behind the new end count as missing, and the next
/// growth allocates them again.
#[test]
fn after_a_cut_that_failed_the_file_counts_as_short_and_grows_again() {
    let mut scattered = ScatteredTable::loaded(100);
    scattered.delete_nine_of_ten();
    scattered.world.inject(Fault::new(Call::Truncate, Effect::Errno(5)).on("data"));
    let error = scattered.db.shrink(Pace::Full, |_| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let ending = scattered.db.stats().compaction.last_ending;
    assert!(matches!(ending, Some(ShrinkEnding::Failed(_))), "{ending:?}");
    let length = scattered.world.read_file("data").unwrap().len() as u64;
    let backed = scattered.inner().core.store.metadata().lock().allocator.space.backed_end() * 512;
    assert!(backed < length / 2, "{backed} of {length} bytes are counted on");
    scattered.check();
    scattered.add_rows(5000);
    scattered.check();
}

#[test]
fn a_power_cut_at_any_moment_of_making_the_file_shorter_loses_nothing() {
    let mut scattered = ScatteredTable::loaded(100);
    scattered.delete_nine_of_ten();
    let ScatteredTable { world, db, table, rows, .. } = scattered;
    drop((table, db));
    let more: Vec<_> = (0..300).map(|number| (key_of(KEYS + number), vec![1; 100])).collect();
    // Returns the number of events of the compaction, and whether the later commit was acknowledged.
    let run = |world: &SimWorld| {
        let directory = world.directory();
        let (first, compacted, is_saved) = (world.events(), Cell::new(0), Cell::new(false));
        let outcome = blocking::Db::open_in(&directory, &settings()).and_then(|db| {
            db.compact(Pace::Full, |_| true)?;
            compacted.set(world.events() - first);
            // The file grows again.
            let (table, mut batch) = (db.table("t")?, Batch::new());
            for (key, value) in &more {
                batch.put(&table, key, value);
            }
            db.write(batch, Durability::Sync)?;
            is_saved.set(true);
            db.checkpoint()
        });
        assert!(outcome.is_ok() || world.is_cut(), "{outcome:?}");
        (compacted.get(), is_saved.get())
    };
    let whole = world.restart(1);
    let (compacted, _) = run(&whole);
    assert!(compacted > 100 && whole.stats().truncate_count == 1, "the premise");
    let last = 100;
    let cuts = (0..compacted - 20).step_by(compacted as usize / 100).chain(compacted - 20..compacted + last);
    for (seed, event) in sample(cuts.enumerate(), 11) {
        // Every second world undoes at a power cut what was not synced, in the worst way.
        let options = if seed % 2 == 0 { SimOptions::adversarial() } else { SimOptions::calm() };
        let world = world.restart_with(seed as u64, options);
        world.cut_after(world.events() + event);
        let (_, is_saved) = run(&world);
        let directory: Arc<dyn Directory> = world.restart(seed as u64 + 1).directory();
        let db = blocking::Db::open_in(&directory, &settings()).unwrap();
        let table = db.table("t").unwrap();
        let found: BTreeMap<_, _> = table.range::<&[u8]>(..).map(Result::unwrap).collect();
        let with_more = || rows.clone().into_iter().chain(more.iter().cloned()).collect();
        assert!(found == with_more() || (found == rows && !is_saved), "content has changed after event {event}");
        let problems = db.verify().unwrap().problems;
        assert!(problems.is_empty(), "event {event}: {problems:?}");
    }
}

#[test]
fn a_compaction_disturbs_neither_snapshots_nor_pages_that_change_meanwhile() {
    let mut scattered = ScatteredTable::loaded(20);
    scattered.rewrite(3000);
    let (held, then) = (scattered.db.snapshot(), scattered.rows.clone());
    scattered.rewrite(3000);
    let kept =
        |scattered: &ScatteredTable| scattered.db.readers().iter().map(|reader| reader.pinned_bytes).sum::<u64>();
    let before = kept(&scattered);
    let (db, table) = (scattered.db.clone(), scattered.table.clone());
    let (mut random, mut rows) = (fastrand::Rng::with_seed(9), scattered.rows.clone());
    // The closure runs between two moves, on the same thread: the pages looked up before are out of date by then.
    let found = db.compact(Pace::Full, |_| {
        let (key, value) = (key_of(random.u32(..KEYS)), vec![random.u8(..); 20]);
        table.put(&key, &value).unwrap();
        rows.insert(key, value);
        true
    });
    scattered.rows = rows;
    assert!(found.unwrap().pages_moved > 500);
    assert!(kept(&scattered) < before + 512 * 100, "moving keeps no versions: {} after {before}", kept(&scattered));
    let seen: BTreeMap<_, _> = held.range::<&[u8]>(&scattered.table, ..).unwrap().map(Result::unwrap).collect();
    assert!(seen == then, "the snapshot has changed");
    drop(held);
    scattered.check();
}

#[test]
fn a_caller_ends_a_compaction_and_the_pages_moved_until_then_are_sound() {
    let mut scattered = ScatteredTable::loaded(20);
    scattered.rewrite(20_000);
    let mut lists = 0;
    let found = scattered.db.compact(Pace::Full, |so_far| {
        lists += u32::from(so_far.pages > 0);
        lists < 2
    });
    let found = found.unwrap();
    assert!(lists == 2 && found.tables == 0 && found.pages_moved > 0, "{found:?}");
    scattered.check();
    // The other way to end a compaction: its future is dropped before the first megabyte is done, or soon after.
    let db = scattered.inner().clone();
    let mut compaction = Box::pin(db.compact(Pace::Gentle, |_| true));
    assert!(compaction.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(compaction);
    scattered.check();
}

#[test]
fn a_damaged_page_is_named_and_not_moved() {
    let mut scattered = ScatteredTable::loaded(20);
    scattered.rewrite(20_000);
    let ScatteredTable { world, db, table, .. } = scattered;
    drop((db, table));
    // Opened again, so that no leaf is in memory, where the damage would not be seen.
    let db = blocking::Db::open_in(&world.directory(), &settings()).unwrap();
    let block = {
        let table = db.table("t").unwrap();
        let core = &AsRef::<Table>::as_ref(&table).db().core;
        let tree = block_on(core.catalog.table(b"t")).unwrap();
        let look = || tree.leaves(&core.store.latest(), b"");
        let leaves = block_on(core.reader.loader.attempt(look)).unwrap().0;
        core.store.metadata().lock().map.get(leaves[5]).unwrap().block.0
    };
    world.flip_bit("data", block * 512 + 100, 3).unwrap();
    let error = db.compact(Pace::Full, |_| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&format!("at byte {}", block * 512)), "{error}");
    // The damage is found in the walk of its table, and in the walk over all blocks.
    let problems = db.verify().unwrap().problems;
    assert!(
        !problems.is_empty() && problems.iter().all(|problem| problem.error.page() == error.page()),
        "{problems:?}"
    );
}

/// A read that returns a wrong bit once neither ends the compaction nor moves wrong bytes.
#[test]
fn one_bad_read_neither_ends_a_compaction_nor_moves_wrong_bytes() {
    let mut scattered = ScatteredTable::loaded(20);
    scattered.rewrite(20_000);
    let mut lists = 0;
    let found = scattered.db.compact(Pace::Full, |_| {
        lists += 1;
        // A read of the next list: few enough that all are met before the end.
        if lists <= 6 {
            scattered.world.inject(Fault::new(Call::Read, Effect::FlippedBit).on("data").after(40 * lists));
        }
        true
    });
    let found = found.unwrap();
    assert!(lists > 5 && found.pages_moved > 100, "{lists} lists: {found:?}");
    scattered.check();
}

#[test]
fn a_compaction_changes_no_result_of_writers_readers_and_checkpoints_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        Settings { page_bytes: 512, cache_bytes: 2 << 20, log_bytes: 1 << 20, ..Settings::with_small_pages() };
    let db = blocking::Db::create(folder.path().join("db"), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..10_000).map(|number| (key_of(number), vec![0; 30]))).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = |from: u32| {
            let (db, table) = (&db, &table);
            move || {
                let mut random = fastrand::Rng::with_seed(u64::from(from));
                let mut last = BTreeMap::new();
                for round in 0..150 {
                    let mut batch = Batch::new();
                    for _ in 0..40 {
                        // Each writer has its own keys.
                        let key = key_of(random.u32(..5000) * 2 + from);
                        let value = vec![random.u8(1..); random.usize(10..40)];
                        batch.put(table, &key, &value);
                        last.insert(key, value);
                    }
                    db.write(batch, Durability::Deferred).unwrap();
                    if round % 30 == 0 {
                        db.checkpoint().unwrap();
                    }
                }
                last
            }
        };
        let writers = [scope.spawn(writer(0)), scope.spawn(writer(1))];
        let compacting = scope.spawn(|| {
            let mut moved = 0;
            while !over.load(Ordering::Relaxed) {
                moved += db.compact(Pace::Full, |_| true).unwrap().pages_moved;
            }
            moved
        });
        let last: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(compacting.join().unwrap() > 0);
        for (key, value) in last.iter().flatten() {
            assert_eq!(table.get(key).unwrap().as_ref(), Some(value));
        }
    });
    let problems = db.verify().unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
}

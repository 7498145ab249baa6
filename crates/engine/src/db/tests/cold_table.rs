//! A page table whose leaves leave memory as soon as nothing needs them: the content is right all the same, and damage of
//! a leaf costs its own pages only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use nofault_sim::content::key;
use nofault_sim::depth::by_depth;
use nofault_sim::{SimOptions, SimWorld};
use proptest::prelude::*;

use crate::blocking::{Db, Table};
use crate::db::api::compact::Pace;
use crate::error::ErrorKind;
use crate::format::{PageId, entries_per_node};
use crate::pages::{PageCopies as _, Store as _, Ticket as _, Wait};
use crate::settings::Settings;
use crate::sync::semaphore::Semaphore;
use crate::{Batch, Durability};

fn settings() -> Settings {
    Settings::tiny(7).with_cold_table(true)
}

fn open(world: &SimWorld, settings: &Settings) -> Db {
    Db::open_in(&world.directory(), settings).unwrap()
}

fn create(world: &SimWorld, settings: &Settings) -> Db {
    Db::create_in(&world.directory(), settings).unwrap()
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 60 + number as usize % 50]
}

/// Fills a table with so many rows.
fn fill(table: &Table, rows: u32) {
    assert_eq!(table.bulk_load((0..rows).map(|row| (key(row), value(row)))).unwrap(), u64::from(rows));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: by_depth(2, 6), ..ProptestConfig::default() })]
    #[test]
    fn a_database_whose_table_is_never_kept_in_memory_is_a_map(
        steps in prop::collection::vec((0..12_u8, 0..3000_u32, 1..40_u32), 20..60),
    ) {
        let world = SimWorld::new(3, SimOptions::calm());
        let mut db = create(&world, &settings());
        let mut table = db.create_table("rows").unwrap();
        fill(&table, 3000);
        let mut model: BTreeMap<u32, Vec<u8>> = (0..3000).map(|row| (row, value(row))).collect();
        db.checkpoint().unwrap();
        let mut held: Option<(crate::blocking::Snapshot, BTreeMap<u32, Vec<u8>>)> = None;
        for (step, first, len) in steps {
            let rows = first..first + len;
            match step {
                0..=2 => {
                    let mut batch = Batch::new();
                    for row in rows {
                        batch.put(&table, key(row), value(row + step as u32 + 1));
                        model.insert(row, value(row + step as u32 + 1));
                    }
                    db.write(batch, Durability::Sync).unwrap();
                }
                3..=4 => {
                    let mut batch = Batch::new();
                    // Enough for leaves to be freed.
                    for row in first..first + 20 * len {
                        batch.delete(&table, key(row));
                        model.remove(&row);
                    }
                    db.write(batch, Durability::Sync).unwrap();
                }
                5 => db.checkpoint().unwrap(),
                6 => drop(db.compact(Pace::Full, |_| step != 6 || len % 2 == 0).unwrap()),
                7 => {
                    drop((db, table, held.take()));
                    db = open(&world, &settings());
                    table = db.table("rows").unwrap();
                }
                8 => held = Some((db.snapshot(), model.clone())),
                9 => {
                    let long = vec![len as u8; 4000];
                    table.put(key(first), &long).unwrap();
                    model.insert(first, long);
                }
                _ => {
                    let keys: Vec<[u8; 4]> = rows.clone().map(key).collect();
                    let found = table.get_many(&keys).unwrap();
                    prop_assert!(rows.zip(found).all(|(row, found)| found.as_ref() == model.get(&row)));
                }
            }
            if let Some((snapshot, model)) = &held {
                let found = snapshot.get(&table, key(first)).unwrap();
                prop_assert_eq!(found.as_ref(), model.get(&first));
            }
        }
        let all: BTreeMap<u32, Vec<u8>> =
            table.range::<&[u8]>(..).map(Result::unwrap).map(|(key, value)| (u32::from_be_bytes(key.try_into().unwrap()), value)).collect();
        prop_assert!(all == model, "the content differs from the map's");
        db.checkpoint().unwrap();
        let problems = db.verify().unwrap().problems;
        prop_assert!(problems.is_empty(), "{:?}", problems);
        let stats = db.stats().pool;
        prop_assert!(stats.table_leaves_in_memory < stats.table_leaves, "{:?}", stats);
    }
}

#[test]
fn a_damaged_leaf_is_named_and_other_tables_keep_working() {
    let world = SimWorld::new(4, SimOptions::calm());
    let db = create(&world, &settings());
    let (first, second) = (db.create_table("first").unwrap(), db.create_table("second").unwrap());
    fill(&first, 3000);
    fill(&second, 3000);
    drop((first, second));
    db.close().unwrap();
    let db = open(&world, &settings());
    let (first, second) = (db.table("first").unwrap(), db.table("second").unwrap());
    // The leaf in the middle of the first table's pages.
    let (leaf, at) = {
        let inner = db.asynchronous();
        let metadata = inner.core.store.metadata().lock();
        let leaves: Vec<_> = metadata.map.leaves_from(0).collect();
        assert!(leaves.len() > 8, "{leaves:?}");
        leaves[leaves.len() / 4]
    };
    world.flip_bit("data", at.block.0 * 512 + 100, 3).unwrap();
    let mut refused = 0;
    for row in 0..3000 {
        match first.get(key(row)) {
            Ok(found) => assert_eq!(found, Some(value(row))),
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                let text = error.to_string();
                assert!(text.contains(&format!("page-table node {leaf} of level 0")), "{text}");
            }
        }
    }
    assert!(refused > 50 && refused < 2000, "{refused} of 3000 rows");
    for row in 0..3000 {
        assert_eq!(second.get(key(row)).unwrap(), Some(value(row)));
    }
    for row in 3000..3400 {
        second.put(key(row), value(row)).unwrap();
        if row % 100 == 0 {
            db.checkpoint().unwrap();
        }
    }
    // Dropping the table frees pages that cannot be found any more. They stay in use; all else continues.
    db.drop_table("first").unwrap();
    db.checkpoint().unwrap();
    let problems = db.verify().unwrap().problems;
    assert!(!problems.is_empty() && problems.iter().all(|problem| problem.error.kind() == ErrorKind::Corrupt));
    for row in 0..3400 {
        assert_eq!(second.get(key(row)).unwrap(), Some(value(row)));
    }
    let pages = leaf * entries_per_node(512)..(leaf + 1) * entries_per_node(512);
    let free = |page| db.asynchronous().core.store.metadata().lock().changed.get(PageId(page)).is_none();
    assert!(pages.clone().all(free), "no page got an id of the damaged leaf");
}

/// Creates a database in whose page table every other id of many leaves is free, all of them on disk only.
fn with_scattered_ids(world: &SimWorld) -> Db {
    // So large that one commit may have some hundred pages.
    let settings = Settings { cache_bytes: 4 << 20, ..settings() };
    let db = create(world, &settings);
    let (stays, goes) = (db.create_table("stays").unwrap(), db.create_table("goes").unwrap());
    for row in 0..2000 {
        stays.put(key(row), value(row)).unwrap();
        goes.put(key(row), value(row)).unwrap();
    }
    drop((stays, goes));
    db.drop_table("goes").unwrap();
    db.close().unwrap();
    open(world, &settings)
}

#[test]
fn reserved_ids_are_allocated_without_a_wait_and_need_few_leaves_at_a_time() {
    let world = SimWorld::new(9, SimOptions::calm());
    let db = with_scattered_ids(&world).asynchronous();
    let store = &db.core.store;
    let (mut misses, mut taken) = (0, Vec::new());
    for count in [1, 40, 240] {
        let mut copies = loop {
            let mut copies = store.copies();
            match copies.reserve_new(count) {
                Ok(()) => break copies,
                Err(Wait::Miss(missing)) => {
                    drop(copies);
                    misses += 1;
                    assert!(misses < 100, "{missing:?} is missed again and again");
                    // Kept until the next attempt, as an operation does.
                    let permit = Semaphore::new(1).try_acquire(1).unwrap();
                    let mut ticket = store.request(&[Wait::Miss(missing)], permit);
                    ticket.wait().unwrap();
                    taken.push(ticket);
                    // An operation pins its last page only, unless it makes no progress.
                    taken.drain(..taken.len().saturating_sub(8));
                }
                Err(other) => panic!("{other:?}"),
            }
        };
        let mut ids: Vec<PageId> = (0..count).map(|_| copies.allocate(PageId(0)).unwrap().0).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "an id was given out twice");
        let stays = store.metadata().lock().map.pages_in_memory().any(|(page, _)| ids.binary_search(&page).is_ok());
        assert!(!stays, "an id in use was given out");
        let end = store.metadata().lock().map.page_count();
        let leaves: BTreeSet<u64> = ids.iter().map(|id| id.0 / entries_per_node(512)).collect();
        let (freed, new) = ids.iter().partition::<Vec<PageId>, _>(|id| id.0 < end);
        println!(
            "{count} ids in {} leaves, {} of freed pages, {} new; {misses} misses",
            leaves.len(),
            freed.len(),
            new.len()
        );
        assert!(leaves.len() <= 4 + new.len().div_ceil(59) + 1 && freed.len() >= count.min(40));
        assert!(count < 200 || !new.is_empty(), "the bound has no effect here");
        // What is given back is taken again, in the same order.
        drop(copies);
        let mut again = store.copies();
        again.reserve_new(1).unwrap();
        assert!(ids.binary_search(&again.allocate(PageId(0)).unwrap().0).is_ok());
    }
    assert!(misses > 1, "the leaves were in memory");
}

#[test]
fn a_bulk_load_takes_ids_whose_leaves_are_on_disk_only() {
    let world = SimWorld::new(8, SimOptions::calm());
    let db = create(&world, &settings());
    let tables: Vec<Table> = (0..4).map(|number| db.create_table(&format!("old-{number}")).unwrap()).collect();
    tables.iter().for_each(|table| fill(table, 1500));
    drop(tables);
    // Some leaves of the page table have free ids then, and others have none.
    (0..4).step_by(2).for_each(|number| db.drop_table(&format!("old-{number}")).unwrap());
    db.close().unwrap();
    let db = open(&world, &settings());
    for number in 0..3 {
        fill(&db.create_table(&format!("new-{number}")).unwrap(), 900);
    }
    db.checkpoint().unwrap();
    let problems = db.verify().unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    for (name, rows) in [("new-0", 900), ("new-1", 900), ("new-2", 900), ("old-1", 1500), ("old-3", 1500)] {
        let table = db.table(name).unwrap();
        let found: Vec<_> = table.range::<&[u8]>(..).map(Result::unwrap).collect();
        assert!(found.into_iter().eq((0..rows).map(|row| (key(row).to_vec(), value(row)))), "{name}");
    }
}

#[test]
fn pages_freed_while_their_leaves_are_on_disk_only_are_free_after_a_checkpoint() {
    let world = SimWorld::new(10, SimOptions::calm());
    let db = create(&world, &settings());
    let used_blocks = |db: &Db| {
        db.checkpoint().unwrap();
        // The first one may have freed pages that it had still to name.
        db.checkpoint().unwrap();
        db.asynchronous().core.store.metadata().lock().allocator.space.used_blocks()
    };
    db.create_table("stays").unwrap().put(key(1), value(1)).unwrap();
    let before = used_blocks(&db);
    let table = db.create_table("goes").unwrap();
    // Long values: their pages are freed without being read, so the leaves with their entries stay on disk.
    (0..40).for_each(|row| table.put(key(row), vec![row as u8; 40_000]).unwrap());
    drop(table);
    let filled = used_blocks(&db);
    assert!(filled > before + 40 * 70, "{before} blocks before, {filled} then");
    db.close().unwrap();
    let db = open(&world, &settings());
    let table = db.table("goes").unwrap();
    (0..40).for_each(|row| table.delete(key(row)).unwrap());
    let later = db.asynchronous().core.store.metadata().lock().cold_frees_count();
    assert!(later > 1000, "only {later} pages were freed unseen");
    let after = used_blocks(&db);
    assert!(after < before + 100, "{before} blocks before, {filled} with the table, {after} after");
    let problems = db.verify().unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn many_keys_are_found_while_leaves_come_and_go_beside_writers() {
    let world = SimWorld::new(5, SimOptions::calm());
    let settings =
        Settings { background_threads: true, seed: None, cache_bytes: (656 << 10) + (128 << 10), ..settings() };
    let db = create(&world, &settings);
    let (still, moving) = (db.create_table("still").unwrap(), db.create_table("moving").unwrap());
    fill(&still, 4000);
    fill(&moving, 4000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = || {
            for round in 0..40_u32 {
                let rows: Vec<u32> = (0..100).map(|step| (round * 97 + step * 41) % 4000).collect();
                let keys: Vec<[u8; 4]> = rows.iter().map(|row| key(*row)).collect();
                let found = still.get_many(&keys).unwrap();
                assert!(rows.iter().zip(found).all(|(row, found)| found == Some(value(*row))));
            }
        };
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(reading)).collect();
        scope.spawn(|| {
            let mut round = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                let mut batch = Batch::new();
                for step in 0..20 {
                    let row = (round * 31 + step * 211) % 4000;
                    batch.put(&moving, key(row), value(row + round));
                }
                db.write(batch, Durability::Deferred).unwrap();
                if round.is_multiple_of(8) {
                    db.checkpoint().unwrap();
                }
                round += 1;
            }
        });
        let ended: Vec<_> = readers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    let problems = db.verify().unwrap().problems;
    assert!(problems.is_empty(), "{problems:?}");
    let stats = db.stats().pool;
    assert!(stats.table_leaves > 10, "{stats:?}");
}

//! Tables that come and go, while others commit and while the power fails.

use std::sync::Arc;

use crate::blocks::{damage, largest_table};
use crate::common::tiny;
use nofault::blocking::Db;
use nofault::error::ErrorKind;
use nofault::settings::{Compression, Settings};
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_io::folder::{Backend, Folder};
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

const ENOSPC: i32 = 28;

#[test]
fn a_committer_never_sees_a_partly_published_commit() {
    let directory = SimWorld::new(3, SimOptions::default()).directory();
    let settings = Settings { cache_bytes: 32 << 20, log_bytes: 64 << 20, background_threads: true, ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    // A committer looks for its pages outside of any lock, while others split the root of a small tree.
    for round in 0..400u32 {
        let table = db.create_table(&format!("table {round}")).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (db, table) = (&db, &table);
                scope.spawn(move || {
                    for number in 0..12u8 {
                        let mut batch = Batch::new();
                        batch.put(table, [number, thread], [thread; 60]);
                        let written = db.write(batch, Durability::Deferred);
                        written.unwrap_or_else(|error| panic!("round {round}, {number}: {error}"));
                    }
                });
            }
        });
    }
    assert!(db.verify().unwrap().is_clean());
}

/// Creates a table that stays, and a table to be dropped, with short, packed and long values.
fn with_a_table_to_drop(directory: &Arc<dyn Directory>, settings: &Settings) -> nofault::error::Result<(Db, u64)> {
    let db = Db::create_in(directory, settings)?;
    db.create_table("kept")?.put("k", "v")?;
    db.checkpoint()?;
    db.checkpoint()?;
    let blocks = db.stats().pool.blocks_used;
    let gone = db.create_table("gone")?;
    let value = |number: u32| match number % 100 {
        0 if number.is_multiple_of(500) => vec![1; 12_000],
        0 => vec![1; 600],
        1..50 => vec![2; 90],
        _ => vec![3; 20],
    };
    gone.bulk_load((0..3000u32).map(|number| (number.to_be_bytes(), value(number))))?;
    // Some in leaves, of some pages of values a part.
    for number in (0..3000u32).step_by(7) {
        gone.put(number.to_be_bytes(), vec![4; number as usize % 100])?;
    }
    Ok((db, blocks))
}

#[test]
fn a_dropped_table_is_freed_in_steps_and_after_a_power_cut_at_any_of_them() {
    let settings = Settings { seed: Some(1), ..tiny() };
    let world = SimWorld::new(5, SimOptions::calm());
    let directory = world.directory();
    let (db, blocks) = with_a_table_to_drop(&directory, &settings).unwrap();
    let (begin, before) = (world.events(), db.stats());
    db.drop_table("gone").unwrap();
    let steps = db.stats().visible_commit.0 - before.visible_commit.0;
    assert!(steps > 5, "{steps} commits for {} blocks", before.pool.blocks_used);
    let end = world.events();
    let freed = |db: &Db, what: &str| {
        db.checkpoint().unwrap();
        db.checkpoint().unwrap();
        let used = db.stats().pool.blocks_used;
        // The page table keeps nodes for the page numbers that there were.
        assert!(used <= blocks + 24, "{what}: {used} blocks in use after {blocks}");
        assert!(db.verify().unwrap().is_clean(), "{what}");
        assert_eq!(db.table("kept").unwrap().get("k").unwrap(), Some(b"v".to_vec()), "{what}");
        assert_eq!(db.table_names().unwrap(), ["kept"], "{what}");
        // The name is free for another.
        db.create_table("gone").unwrap().put("a", "b").unwrap();
    };
    freed(&db, "without a cut");
    let mut dropped = 0;
    for cut in (begin..end).step_by(((end - begin) / 40).max(1) as usize) {
        let world = SimWorld::new(5, SimOptions::calm());
        let directory = world.directory();
        let (db, _) = with_a_table_to_drop(&directory, &settings).unwrap();
        world.cut_after(cut);
        let _ = db.drop_table("gone");
        drop(db);
        let after = world.restart(cut);
        let db = Db::open_in(&after.directory(), &settings).unwrap();
        if db.table_names().unwrap() == ["gone", "kept"] {
            assert_eq!(db.table("gone").unwrap().range::<&[u8]>(..).map(Result::unwrap).count(), 3000);
            assert!(db.verify().unwrap().is_clean(), "cut after {cut}");
            db.drop_table("gone").unwrap();
        } else {
            dropped += 1;
        }
        freed(&db, &format!("cut after {cut}"));
    }
    assert!(dropped > 10, "only {dropped} cuts came after the drop");
}

#[test]
fn the_background_thread_frees_the_pages_of_a_dropped_table_while_others_commit() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        Settings { page_bytes: 512, cache_bytes: 4 << 20, log_bytes: 1 << 20, ..Settings::with_small_pages() };
    let directory: Arc<dyn Directory> = Folder::open(folder.path(), Backend::Auto).map(Arc::new).unwrap();
    let (db, blocks) = with_a_table_to_drop(&directory, &settings).unwrap();
    let snapshot = db.snapshot();
    let gone = snapshot.table("gone").unwrap();
    let kept = db.table("kept").unwrap();
    let mut open = db.begin();
    db.drop_table("gone").unwrap();
    // Begun after the drop: it could not have read the pages that are freed.
    drop(std::mem::replace(&mut open, db.begin()));
    assert_eq!(open.get(&kept, "k").unwrap(), Some(b"v".to_vec()));
    let steps = db.stats().visible_commit;
    while db.stats().visible_commit.0 < steps.0 + 5 {
        kept.put("other", "x").unwrap();
    }
    open.put(&kept, "k", "w").unwrap();
    open.commit(Durability::Sync).unwrap();
    assert_eq!(snapshot.range::<&[u8]>(&gone, ..).unwrap().map(Result::unwrap).count(), 3000);
    drop((snapshot, gone));
    let begun = std::time::Instant::now();
    loop {
        db.checkpoint().unwrap();
        if db.stats().pool.blocks_used <= blocks + 24 {
            break;
        }
        assert!(begun.elapsed().as_secs() < 300, "{:?}: it took too long to get to {blocks}", db.stats());
        assert_eq!(db.stats().dropped_pages_unreadable, 0);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn damaged_pages_of_a_dropped_table_are_left_out_and_the_rest_is_freed() {
    let settings = Settings { seed: Some(1), ..tiny() };
    let world = SimWorld::new(5, SimOptions::calm());
    let directory = world.directory();
    let (db, blocks) = with_a_table_to_drop(&directory, &settings).unwrap();
    db.create_table("second").unwrap().bulk_load((0..500u32).map(|number| (number.to_be_bytes(), [5; 20]))).unwrap();
    db.checkpoint().unwrap();
    let full = db.stats().pool.blocks_used;
    drop(db);
    let (table, _) = largest_table(&world);
    // A page that cannot be read, and that other pages may refer to, stays where it is.
    for (what, kind, level, step, stays) in [
        ("leaves", 1, 0, 10, false),
        ("an inner node", 1, 1, 1000, false),
        ("pages of values", 4, 0, 10, true),
        ("the index of a long value", 2, 1, 1000, true),
    ] {
        let world = world.restart(7);
        damage(&world, kind, level, table, step);
        let directory = world.directory();
        let db = Db::open_in(&directory, &settings).unwrap();
        db.drop_table("gone").unwrap();
        assert!(db.stats().dropped_pages_unreadable > 0, "{what}");
        // The damaged table does not keep another one from being freed.
        db.drop_table("second").unwrap();
        (0..2).for_each(|_| db.checkpoint().unwrap());
        let left = db.stats().pool.blocks_used;
        assert!(
            left < blocks + (full - blocks) / 3,
            "{what}: {left} blocks are left, of {full}; {blocks} without the table"
        );
        let problems = db.verify().unwrap().problems;
        assert_eq!(!problems.is_empty(), stays, "{what}: {problems:?}");
        assert!(problems.iter().all(|problem| problem.table.is_none()), "{what}: {problems:?}");
        drop(db);
        let db = Db::open_in(&directory, &settings).unwrap();
        assert_eq!(db.stats().dropped_pages_unreadable, 0, "{what}: it was over");
        assert_eq!(db.table_names().unwrap(), ["kept"], "{what}");
        assert_eq!(db.table("kept").unwrap().get("k").unwrap(), Some(b"v".to_vec()), "{what}");
        db.create_table("gone").unwrap().put("a", "b").unwrap();
    }
}

#[test]
fn a_snapshot_from_before_the_drop_reports_damage_as_damage() {
    let settings = Settings { seed: Some(1), ..tiny() };
    let world = SimWorld::new(8, SimOptions::calm());
    let directory = world.directory();
    let (db, _) = with_a_table_to_drop(&directory, &settings).unwrap();
    db.checkpoint().unwrap();
    drop(db);
    let (table, _) = largest_table(&world);
    damage(&world, 1, 0, table, 1);
    let db = Db::open_in(&directory, &settings).unwrap();
    let gone = db.table("gone").unwrap();
    let (before, open) = (db.snapshot(), db.begin());
    db.drop_table("gone").unwrap();
    let key = 1500u32.to_be_bytes();
    let damaged = [
        before.get(&gone, key).map(drop),
        before.get_many(&gone, &[key, [0; 4]]).map(drop),
        before.range::<&[u8]>(&gone, ..).unwrap().try_for_each(|entry| entry.map(drop)),
        open.get(&gone, key).map(drop),
    ];
    for (call, result) in damaged.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.page().is_some(), "call {call}: {error}");
    }
    let after = db.snapshot();
    let dropped = [
        gone.get(key).map(drop),
        gone.get_many(&[key, [0; 4]]).map(drop),
        after.get(&gone, key).map(drop),
        after.get_many(&gone, &[key, [0; 4]]).map(drop),
        after.range::<&[u8]>(&gone, ..).unwrap().try_for_each(|entry| entry.map(drop)),
        gone.put(key, "v"),
    ];
    for (call, result) in dropped.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "call {call}: {error}");
    }
}

/// Regression: the record of the drop was in the log before the root was read. From then on the database could not be
/// opened any more.
#[test]
fn a_table_whose_root_is_damaged_cannot_be_dropped_and_does_no_harm_to_others() {
    let settings = Settings { seed: Some(1), ..tiny() };
    let world = SimWorld::new(6, SimOptions::calm());
    let directory = world.directory();
    let (db, _) = with_a_table_to_drop(&directory, &settings).unwrap();
    db.checkpoint().unwrap();
    drop(db);
    let (table, root_level) = largest_table(&world);
    damage(&world, 1, root_level, table, 1);
    for _ in 0..2 {
        let db = Db::open_in(&directory, &settings).unwrap();
        let error = db.drop_table("gone").unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.page().is_some(), "{error:?}");
        let kept = db.table("kept").unwrap();
        assert_eq!(kept.get("k").unwrap(), Some(b"v".to_vec()));
        kept.put("other", "value").unwrap();
    }
}

#[test]
fn a_table_is_empty_for_snapshots_and_transactions_that_began_before_its_creation() {
    let db = Db::create_in(&SimWorld::new(11, SimOptions::calm()).directory(), &tiny()).unwrap();
    let kept = db.create_table("kept").unwrap();
    let before = db.snapshot();
    let (reader, walker, other, writer) = (db.begin(), db.begin(), db.begin(), db.begin());
    let late = db.create_table("late").unwrap();
    late.put("k", "v").unwrap();

    assert_eq!(before.table("late").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(before.get(&late, "k").unwrap(), None);
    assert_eq!(before.get_many(&late, &["a", "k"]).unwrap(), [None, None]);
    assert_eq!(before.range::<&[u8]>(&late, ..).unwrap().count(), 0);
    assert_eq!(before.prefix(&late, "k").unwrap().rev().count(), 0);
    assert_eq!(db.snapshot().get(&late, "k").unwrap(), Some(b"v".to_vec()));

    // A key that was absent then and exists now is a conflict. Another key is none.
    assert_eq!(reader.get(&late, "k").unwrap(), None);
    assert_eq!(walker.range::<&[u8]>(&late, ..).unwrap().rev().count(), 0);
    assert_eq!(other.get(&late, "another").unwrap(), None);
    for (what, change, conflicts) in [("get", reader, true), ("range", walker, true), ("other", other, false)] {
        change.put(&kept, what, "1").unwrap();
        let committed = change.commit(Durability::Sync).map_err(|error| error.kind());
        assert_eq!(committed.err(), conflicts.then_some(ErrorKind::Conflict), "{what}");
    }
    writer.put(&late, "own", "1").unwrap();
    let own: Vec<_> = writer.range::<&[u8]>(&late, ..).unwrap().map(|entry| entry.unwrap().0).collect();
    assert_eq!(own, [b"own".to_vec()]);
    // The transaction scanned the whole table.
    assert_eq!(writer.commit(Durability::Sync).unwrap_err().kind(), ErrorKind::Conflict);

    db.drop_table("late").unwrap();
    assert_eq!(before.get(&late, "k").unwrap(), None, "nor is it there after it has gone");
}

#[test]
fn a_refused_load_needs_no_space_and_one_that_runs_out_of_it_at_the_end_leaves_nothing() {
    let world = SimWorld::new(12, SimOptions::calm());
    let directory = world.directory();
    let db = Db::create_in(&directory, &tiny()).unwrap();
    let (table, other) = (db.create_table("t").unwrap(), db.create_table("other").unwrap());
    db.checkpoint().unwrap();
    let blocks = db.stats().pool.blocks_used;
    db.create_table("written first by the next checkpoint").unwrap();
    let commit = db.stats().visible_commit;
    let no_space = || world.inject(Fault::new(Call::Write, Effect::Errno(ENOSPC)).on("data"));
    let long = vec![1; 3000];
    let entries = [("b", &long), ("c", &long), ("a", &vec![2])];
    // The disk is full from the entry on that does not belong there.
    let entries = entries.into_iter().inspect(|(key, _)| {
        if *key == "a" {
            no_space()
        }
    });
    let error = table.bulk_load(entries).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
    table.put("k", "v").unwrap();
    assert!(db.stats().visible_commit > commit);
    assert_eq!(db.checkpoint().unwrap_err().kind(), ErrorKind::NoSpace, "it is met here");
    db.checkpoint().unwrap();
    let found = db.verify().unwrap();
    assert!(found.is_clean(), "{:?}", found.problems);
    let used = db.stats().pool.blocks_used;
    assert!(used < blocks + 12, "{used} blocks in use after {blocks}");

    no_space();
    assert_eq!(other.bulk_load([("a", &long)]).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(other.get("a").unwrap(), None);
    table.put("k", "w").unwrap_or_else(|error| panic!("there is room again: {error}"));
    assert_eq!(other.bulk_load([("b", &long)]).unwrap(), 1);
    drop((table, other, db));
    let db = Db::open_in(&directory, &tiny()).unwrap();
    assert_eq!(db.table("t").unwrap().range::<&[u8]>(..).map(Result::unwrap).count(), 1);
    assert_eq!(db.table("t").unwrap().get("k").unwrap(), Some(b"w".to_vec()));
    assert_eq!(db.table("other").unwrap().get("a").unwrap(), None);
    assert_eq!(db.table("other").unwrap().get("b").unwrap(), Some(long));
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn freeing_a_dropped_table_that_finds_the_log_full_is_tried_again_later() {
    // Groups of the log are as large as its blocks: the last one exceeds the limit.
    let settings = Settings { seed: Some(1), log_bytes: tiny().log_bytes + 2048, ..tiny() };
    let world = SimWorld::new(13, SimOptions::calm());
    let (db, blocks) = with_a_table_to_drop(&world.directory(), &settings).unwrap();
    let kept = db.table("kept").unwrap();
    db.checkpoint().unwrap();
    // There is room for the record of the drop, but for none after it; and no checkpoint makes more.
    let live_bytes = || db.stats().log.live_bytes;
    let before = live_bytes();
    kept.put("k", "v").unwrap();
    let group_bytes = live_bytes() - before;
    while live_bytes() + group_bytes <= settings.log_bytes {
        kept.put("k", "v").unwrap();
    }
    let errors = world.stats().error_count;
    world.inject(Fault::new(Call::Write, Effect::Errno(ENOSPC)).on("data"));
    db.drop_table("gone").unwrap();
    assert!(world.stats().error_count > errors, "the log was not full, or a checkpoint did not fail");
    kept.put("k", "w").unwrap_or_else(|error| panic!("nothing else has failed: {error}"));
    db.create_table("next").unwrap();
    db.drop_table("next").unwrap();
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let used = db.stats().pool.blocks_used;
    assert!(used <= blocks + 24, "{used} blocks in use after {blocks}");
    assert!(db.verify().unwrap().is_clean());
    assert_eq!(kept.get("k").unwrap(), Some(b"w".to_vec()));
}

#[test]
fn a_created_or_dropped_table_stays_so_after_a_power_cut() {
    let world = SimWorld::new(17, SimOptions::calm());
    let directory = world.directory();
    let db = Db::create_in(&directory, &tiny()).unwrap();
    db.create_table("dropped").unwrap();
    db.drop_table("dropped").unwrap();
    db.create_table("created").unwrap();
    for cut in 0..8 {
        let directory: Arc<dyn Directory> = world.restart(cut).directory();
        let after = Db::open_in(&directory, &tiny()).unwrap();
        assert_eq!(after.table_names().unwrap(), ["created"], "{world}");
    }
}

#[test]
fn a_renamed_table_keeps_rows_handles_transactions_and_compression_and_frees_its_old_name() {
    let world = SimWorld::new(7, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &tiny()).unwrap();
    let stock = db.create_table("stock").unwrap();
    db.set_compression("stock", Compression::Fast).unwrap();
    db.create_table("other").unwrap();
    stock.put("a", "1").unwrap();
    let (before, open) = (db.snapshot(), db.begin());
    open.put(&stock, "b", "2").unwrap();
    assert_eq!(open.get(&stock, "a").unwrap(), Some(b"1".to_vec()));
    db.rename_table("stock", "warehouse").unwrap();
    open.commit(Durability::Sync).unwrap();
    stock.put("c", "3").unwrap();

    let refused = |name, to, kind| assert_eq!(db.rename_table(name, to).unwrap_err().kind(), kind, "{name} to {to}");
    refused("stock", "depot", ErrorKind::NotFound);
    refused("warehouse", "other", ErrorKind::AlreadyExists);
    refused("warehouse", "", ErrorKind::InvalidCall);
    refused("warehouse", &"x".repeat(600), ErrorKind::InvalidCall);
    db.rename_table("warehouse", "warehouse").unwrap();

    assert_eq!(db.drop_table("stock").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(db.create_table("stock").unwrap().len().unwrap(), 0, "another table");
    assert_eq!(before.table("stock").unwrap().name(), "stock");
    assert_eq!(before.len(&before.table("stock").unwrap()).unwrap(), 1);
    assert_eq!(before.table("warehouse").unwrap_err().kind(), ErrorKind::NotFound);
    drop((before, stock, db));
    // Replayed, as nothing was checkpointed.
    let world = world.restart(1);
    let db = Db::open_in(&world.directory(), &tiny()).unwrap();
    assert_eq!(db.table_names().unwrap(), ["other", "stock", "warehouse"]);
    assert_eq!(db.table("warehouse").unwrap().len().unwrap(), 3);
    assert_eq!(db.compression("warehouse").unwrap(), Compression::Fast);
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_table_created_under_the_old_name_of_another_is_replayed_as_a_table_of_its_own() {
    let world = SimWorld::new(8, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &tiny()).unwrap();
    // All of it in the log: the replay must not take the second table for the first, which had its name.
    db.create_table("stock").unwrap().put("a", "first").unwrap();
    db.rename_table("stock", "old").unwrap();
    db.create_table("stock").unwrap().put("a", "second").unwrap();
    drop(db);
    let world = world.restart(1);
    let db = Db::open_in(&world.directory(), &tiny()).unwrap();
    let value = |name| db.table(name).unwrap().get("a").unwrap();
    assert_eq!((value("old"), value("stock")), (Some(b"first".to_vec()), Some(b"second".to_vec())));
}

#[test]
fn a_power_cut_during_a_rename_leaves_the_table_under_one_of_its_names() {
    let events = |cut: Option<u64>| {
        let world = SimWorld::new(9, SimOptions::adversarial());
        let db = Db::create_in(&world.directory(), &tiny()).unwrap();
        let stock = db.create_table("stock").unwrap();
        stock.put("a", vec![7; 3000]).unwrap();
        let begin = world.events();
        if let Some(cut) = cut {
            world.cut_after(cut);
        }
        let renamed = db.rename_table("stock", "warehouse").and_then(|()| stock.put("b", "2"));
        drop((stock, db));
        (world, begin, renamed.is_ok())
    };
    let (world, begin, _) = events(None);
    let (mut old, mut new) = (0, 0);
    for cut in begin..=world.events() {
        let (world, _, acknowledged) = events(Some(cut));
        let world = world.restart(cut);
        let db = Db::open_in(&world.directory(), &tiny()).unwrap();
        let names = db.table_names().unwrap();
        let name = names.first().cloned().unwrap_or_default();
        assert_eq!(names.len(), 1, "cut after {cut}: {names:?}");
        assert!(!acknowledged || name == "warehouse", "cut after {cut}: {names:?}");
        let table = db.table(&name).unwrap();
        assert_eq!(table.get("a").unwrap(), Some(vec![7; 3000]), "cut after {cut}");
        assert!(table.get("b").unwrap().is_none() || name == "warehouse", "cut after {cut}");
        assert!(db.verify().unwrap().is_clean(), "cut after {cut}");
        // A build that does not know renamed tables refuses the database: the byte of the incompatible features.
        let data = world.read_file("data").unwrap();
        assert!(name == "stock" || [104, 65_536 + 104].iter().any(|at| data[*at] & 4 == 4), "cut after {cut}");
        *(if name == "stock" { &mut old } else { &mut new }) += 1;
    }
    assert!(old > 0 && new > 0, "{old} cuts left the old name, {new} the new one");
}

#[test]
fn renames_beside_creations_drops_and_openings_leave_each_name_to_one_table() {
    let directory = SimWorld::new(3, SimOptions::default()).directory();
    let settings = Settings { cache_bytes: 32 << 20, log_bytes: 64 << 20, background_threads: true, ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    let name = |number: usize| format!("table {number}");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let db = &db;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread);
                for _ in 0..150 {
                    let (from, to) = (name(rng.usize(..4)), name(rng.usize(..4)));
                    let done = match rng.u32(..6) {
                        0 => db.create_table(&from).map(drop),
                        1 => db.drop_table(&from),
                        2 => db.table(&from).map(drop),
                        _ => db.rename_table(&from, &to),
                    };
                    let expected = [ErrorKind::NotFound, ErrorKind::AlreadyExists];
                    assert!(done.as_ref().is_ok() || expected.contains(&done.as_ref().unwrap_err().kind()), "{done:?}");
                }
            });
        }
    });
    // The names that are remembered agree with the catalog, and no two lead to one table.
    let names = db.table_names().unwrap();
    for number in 0..4 {
        let opened = db.table(&name(number));
        assert_eq!(opened.is_ok(), names.contains(&name(number)), "{opened:?} beside {names:?}");
    }
    for name in &names {
        db.table(name).unwrap().put("name", name).unwrap();
    }
    for name in &names {
        assert_eq!(db.table(name).unwrap().get("name").unwrap(), Some(name.clone().into_bytes()));
    }
    assert!(db.verify().unwrap().is_clean());
}

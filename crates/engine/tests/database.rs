//! The whole engine through its public face: on real files and on the simulated disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use nofault::blocking::{Db, Snapshot, Table};
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_io::sim::{SimOptions, SimWorld};
use proptest::prelude::*;

/// As little of everything as there can be, and no threads: the same steps do the same things.
fn tiny() -> Settings {
    Settings {
        page_bytes: 512,
        cache_bytes: 640 << 10,
        log_bytes: 1 << 20,
        background_threads: false,
        ..Settings::default()
    }
}

fn on_sim(seed: u64) -> (SimWorld, Arc<dyn Directory>) {
    let world = SimWorld::new(seed, SimOptions::default());
    let directory: Arc<dyn Directory> = world.directory();
    (world, directory)
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn content(snapshot: &Snapshot, table: &Table) -> Model {
    snapshot
        .range::<&[u8]>(table, ..)
        .expect("a table of this database")
        .map(|entry| entry.expect("an entry"))
        .collect()
}

#[derive(Debug, Clone)]
enum Step {
    Write(Vec<(u16, Option<usize>)>, bool),
    Get(u16),
    GetMany(Vec<u16>),
    TakeSnapshot,
    DropSnapshot(usize),
    CheckSnapshot(usize),
    Checkpoint,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || prop_oneof![0u16..30, 0u16..3000];
    let value = prop_oneof![8 => prop::option::of(0usize..100), 1 => (0usize..6000).prop_map(Some)];
    let step = prop_oneof![
        8 => (prop::collection::vec((key(), value.clone()), 1..20), any::<bool>()).prop_map(|(writes, sync)| Step::Write(writes, sync)),
        1 => (prop::collection::vec((key(), value), 100..300), any::<bool>()).prop_map(|(writes, sync)| Step::Write(writes, sync)),
        3 => key().prop_map(Step::Get),
        1 => prop::collection::vec(key(), 0..50).prop_map(Step::GetMany),
        1 => Just(Step::TakeSnapshot),
        1 => (0usize..3).prop_map(Step::DropSnapshot),
        1 => (0usize..3).prop_map(Step::CheckSnapshot),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

fn key_of(number: u16) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_database_in_a_tiny_cache_does_what_a_map_does(steps in steps(), seed in any::<u64>()) {
        let (_world, directory) = on_sim(seed);
        let mut db = Db::create_in(&directory, &tiny()).unwrap();
        let mut table = db.create_table("t").unwrap();
        let mut model = Model::new();
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        let mut stamp = 0u8;
        for step in steps {
            match step {
                Step::Write(writes, sync) => {
                    let mut batch = Batch::new();
                    for (number, len) in writes {
                        stamp = stamp.wrapping_add(1);
                        let key = key_of(number);
                        match len {
                            Some(len) => {
                                batch.put(&table, &key, vec![stamp; len]);
                                model.insert(key, vec![stamp; len]);
                            }
                            None => {
                                batch.delete(&table, &key);
                                model.remove(&key);
                            }
                        }
                    }
                    db.write(batch, if sync { Durability::Sync } else { Durability::Deferred }).unwrap();
                }
                Step::Get(number) => {
                    let key = key_of(number);
                    prop_assert_eq!(table.get(&key).unwrap(), model.get(&key).cloned());
                }
                Step::GetMany(numbers) => {
                    let keys: Vec<_> = numbers.into_iter().map(key_of).collect();
                    let wanted: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
                    prop_assert_eq!(table.get_many(&keys).unwrap(), wanted);
                }
                Step::TakeSnapshot => snapshots.push((db.snapshot(), model.clone())),
                Step::DropSnapshot(which) => {
                    if which < snapshots.len() {
                        snapshots.swap_remove(which);
                    }
                }
                Step::CheckSnapshot(which) => {
                    if let Some((snapshot, model)) = snapshots.get(which) {
                        prop_assert!(content(snapshot, &table) == *model);
                    }
                }
                Step::Checkpoint => db.checkpoint().unwrap(),
                Step::Reopen => {
                    db.sync().unwrap();
                    snapshots.clear();
                    drop((db, table));
                    db = Db::open_in(&directory, &tiny()).unwrap();
                    table = db.table("t").unwrap();
                }
            }
        }
        for (snapshot, model) in &snapshots {
            prop_assert!(content(snapshot, &table) == *model);
        }
        prop_assert!(content(&db.snapshot(), &table) == model);
        let found = db.verify().unwrap();
        prop_assert!(found.is_clean(), "{:?}", found.problems);
        prop_assert_eq!(found.entries, model.len() as u64 + 1);
    }
}

#[test]
fn what_was_committed_is_there_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let big = vec![7u8; 3 << 20];
    {
        let db = Db::create(&path, &Settings::default()).unwrap();
        let table = db.create_table("t").unwrap();
        for number in 0..2000u32 {
            let mut batch = Batch::new();
            batch.put(&table, number.to_be_bytes(), [number as u8; 100]);
            db.write(batch, Durability::Deferred).unwrap();
        }
        table.put("big", &big).unwrap();
    }
    let db = Db::open(&path, &Settings::default()).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(table.range::<&[u8]>(..).count(), 2001);
    let without_read_ahead: Vec<_> = table.range::<&[u8]>(..).read_ahead_max(0).map(Result::unwrap).collect();
    assert!(without_read_ahead.into_iter().eq(table.range::<&[u8]>(..).read_ahead_max(1).map(Result::unwrap)));
    assert!(table.get("big").unwrap() == Some(big));
    assert_eq!(table.range::<&[u8]>(..).rev().nth(1).unwrap().unwrap().0, 1999u32.to_be_bytes());
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn opening_and_creating_say_what_to_do_instead() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let error = Db::open(&path, &Settings::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let db = Db::create(&path, &Settings::default()).unwrap();
    let error = Db::open(&path, &Settings::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    drop(db);
    let error = Db::create(&path, &Settings::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    Db::open(&path, &Settings::default()).unwrap();
}

#[test]
fn a_bulk_load_is_there_after_opening_again_and_a_wrong_one_leaves_nothing() {
    let (_world, directory) = on_sim(5);
    let settings = Settings { cache_bytes: 1 << 20, page_bytes: 4096, ..tiny() };
    let entries = || {
        (0..20_000u32)
            .map(|number| (number.to_be_bytes(), vec![number as u8; if number % 5000 == 0 { 9000 } else { 60 }]))
    };
    {
        let db = Db::create_in(&directory, &settings).unwrap();
        let (good, bad) = (db.create_table("good").unwrap(), db.create_table("bad").unwrap());
        assert_eq!(good.bulk_load(entries()).unwrap(), 20_000);
        let blocks = db.stats().pool.blocks_used;
        let error = bad.bulk_load(entries().chain([([0; 4], vec![1])])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
        assert_eq!(bad.range::<&[u8]>(..).count(), 0);
        for number in 0..300u32 {
            good.put(number.to_be_bytes(), [1; 60]).unwrap();
            good.put(number.to_be_bytes(), vec![number as u8; if number % 5000 == 0 { 9000 } else { 60 }]).unwrap();
        }
        db.checkpoint().unwrap();
        db.checkpoint().unwrap();
        assert!(db.stats().pool.blocks_used < blocks + 20, "{blocks} blocks before, {:?} after", db.stats().pool);
        let error = good.bulk_load([("a", "b")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
        bad.put("k", "v").unwrap();
    }
    let db = Db::open_in(&directory, &settings).unwrap();
    let good = db.table("good").unwrap();
    let found: Vec<_> = good.range::<&[u8]>(..).map(Result::unwrap).collect();
    assert!(
        found
            .iter()
            .map(|(key, value)| (key.as_slice(), value))
            .eq(entries().collect::<Vec<_>>().iter().map(|(key, value)| (&key[..], value)))
    );
    assert_eq!(db.table("bad").unwrap().get("k").unwrap(), Some(b"v".to_vec()));
    let found = db.verify().unwrap();
    assert!(found.is_clean(), "{:?}", found.problems);
}

#[test]
fn a_backup_has_what_was_visible_when_it_began() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("db"), &Settings::default()).unwrap();
    let (first, second) = (db.create_table("first").unwrap(), db.create_table("second").unwrap());
    for number in 0..500u32 {
        first.put(number.to_be_bytes(), b"1").unwrap();
    }
    second.put("k", vec![3; 100_000]).unwrap();
    db.backup(folder.path().join("copy")).unwrap();
    first.put("later", "x").unwrap();
    let copy = Db::open(folder.path().join("copy"), &Settings::default()).unwrap();
    assert_eq!(copy.table_names().unwrap(), ["first", "second"]);
    assert_eq!(copy.table("first").unwrap().range::<&[u8]>(..).count(), 500);
    assert_eq!(copy.table("second").unwrap().get("k").unwrap(), Some(vec![3; 100_000]));
    assert!(copy.verify().unwrap().is_clean());
}

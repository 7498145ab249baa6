//! Tests of the whole engine through its public calls: on real files and on the simulated disk.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::sync::Arc;

use crate::common::tiny;
use nofault::blocking::{Db, Snapshot, Table};
use nofault::db::Pace;
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_io::folder::{Backend, Folder};
use nofault_io::uring::UringDisk;
use nofault_sim::content::Rows;
use nofault_sim::{SimOptions, SimWorld};
use proptest::prelude::*;

/// Settings for databases in files: the default cache would take a gigabyte for each concurrent test.
fn modest() -> Settings {
    Settings { cache_bytes: 64 << 20, ..Settings::default() }
}

fn on_sim(seed: u64) -> (SimWorld, Arc<dyn Directory>) {
    let world = SimWorld::new(seed, SimOptions::default());
    let directory = world.directory();
    (world, directory)
}

fn content(snapshot: &Snapshot, table: &Table) -> Rows {
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
    Compact,
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
        1 => Just(Step::Compact),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

fn key_of(number: u16) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

/// Applies the steps to a database and to a map, and checks that both behave alike.
fn does_what_a_map_does(
    directory: &Arc<dyn Directory>,
    settings: &Settings,
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let mut db = Db::create_in(directory, settings).unwrap();
    let mut table = db.create_table("t").unwrap();
    let mut model = Rows::new();
    let mut snapshots: Vec<(Snapshot, Rows)> = Vec::new();
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
            Step::Compact => drop(db.compact(Pace::Full, |_| true).unwrap()),
            Step::Reopen => {
                db.sync().unwrap();
                snapshots.clear();
                drop((db, table));
                db = Db::open_in(directory, settings).unwrap();
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
    Ok(())
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, max_shrink_iters: 200, ..ProptestConfig::default() }
}

/// Settings with few frames, whatever the page size.
fn tiny_with(page_bytes: usize, background_threads: bool) -> Settings {
    Settings { page_bytes, cache_bytes: (656 << 10) + (page_bytes - 512) * 80, background_threads, ..tiny() }
}

fn page_sizes() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(512usize), 2 => Just(4096), 1 => Just(1024), 1 => Just(16_384), 1 => Just(65_536)]
}

fn on_disk(backend: Backend, settings: &Settings, steps: Vec<Step>) -> Result<(), TestCaseError> {
    // On the disk that the sources are on: not on tmpfs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory: Arc<dyn Directory> = Arc::new(Folder::open(folder.path(), backend).unwrap());
    does_what_a_map_does(&directory, settings, steps)
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn a_database_in_a_tiny_cache_does_what_a_map_does(steps in steps(), seed in any::<u64>(), page_bytes in page_sizes()) {
        let (_world, directory) = on_sim(seed);
        does_what_a_map_does(&directory, &tiny_with(page_bytes, false), steps)?;
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn a_database_on_files_through_a_pool_of_threads_does_what_a_map_does(steps in steps(), page_bytes in page_sizes(), threads in any::<bool>()) {
        on_disk(Backend::Psync, &tiny_with(page_bytes, threads), steps)?;
    }

    #[test]
    fn a_database_on_files_through_a_ring_does_what_a_map_does(steps in steps(), page_bytes in page_sizes(), threads in any::<bool>()) {
        if let Some(reason) = UringDisk::ring_refused() {
            println!("not checked: no io_uring here: {reason}");
            return Ok(());
        }
        on_disk(Backend::Uring, &tiny_with(page_bytes, threads), steps)?;
    }
}

#[test]
fn committed_entries_are_there_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let big = vec![7u8; 3 << 20];
    {
        let db = Db::create(&path, &modest()).unwrap();
        let table = db.create_table("t").unwrap();
        for number in 0..2000u32 {
            let mut batch = Batch::new();
            batch.put(&table, number.to_be_bytes(), [number as u8; 100]);
            db.write(batch, Durability::Deferred).unwrap();
        }
        table.put("big", &big).unwrap();
    }
    let db = Db::open(&path, &modest()).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(table.range::<&[u8]>(..).count(), 2001);
    let without_read_ahead: Vec<_> = table.range::<&[u8]>(..).read_ahead_max(0).map(Result::unwrap).collect();
    assert!(without_read_ahead.into_iter().eq(table.range::<&[u8]>(..).read_ahead_max(1).map(Result::unwrap)));
    assert!(table.get("big").unwrap() == Some(big));
    assert_eq!(table.range::<&[u8]>(..).rev().nth(1).unwrap().unwrap().0, 1999u32.to_be_bytes());
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_range_lends_the_same_entries_that_it_returns_from_any_key_in_both_directions() {
    let (_world, directory) = on_sim(21);
    // Fewer frames than pages.
    let settings = Settings { page_bytes: 4096, cache_bytes: 2 << 20, ..tiny() };
    let table = Db::create_in(&directory, &settings).unwrap().create_table("t").unwrap();
    // Values packed into shared pages, with long and short values among them.
    let value = |number: u32| {
        let len = match number % 100 {
            7 => 9_000,
            8..12 => 10,
            _ => 1_000,
        };
        vec![number as u8; len]
    };
    table.bulk_load((0..3_000u32).map(|number| (number.to_be_bytes(), value(number)))).unwrap();
    let mut random = fastrand::Rng::with_seed(4);
    for round in 0..40 {
        let (from, count) = (random.u32(..3_000), random.usize(..400));
        let key = from.to_be_bytes();
        let (mut range, numbers): (_, Vec<_>) = match round % 2 {
            0 => (table.range(key..), (from..3_000).take(count).collect()),
            _ => (table.range(..=key).rev(), (0..=from).rev().take(count).collect()),
        };
        for number in numbers {
            let (key, value) = (number.to_be_bytes(), value(number));
            if random.bool() {
                assert!(range.next_ref().unwrap() == Some((&key[..], &value[..])), "{number} from {from}, shown");
            } else {
                assert!(range.next().unwrap().unwrap() == (key.to_vec(), value), "{number} from {from}");
            }
        }
    }
    let mut end = table.range(2_999u32.to_be_bytes()..);
    assert!(end.next_ref().unwrap().is_some());
    assert!(end.next_ref().unwrap().is_none() && end.next().is_none());
}

#[test]
fn many_commits_replayed_together_leave_the_youngest_value_of_each_key() {
    let (_world, directory) = on_sim(12);
    let settings = Settings { page_bytes: 4096, cache_bytes: 8 << 20, ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    let first = db.create_table("first").unwrap();
    let change = |db: &Db, table: &Table, round: u32| {
        for number in 0..40u32 {
            let key = number.to_be_bytes();
            // A short value, a long value or none, in every order.
            match (number + round) % 3 {
                0 => table.put(key, round.to_be_bytes()).unwrap(),
                1 => table.put(key, vec![round as u8; 9000]).unwrap(),
                _ => table.delete(key).unwrap(),
            }
        }
        content(&db.snapshot(), table)
    };
    change(&db, &first, 0);
    // Tables are created and dropped in between: the events are reported in order.
    let second = db.create_table("second").unwrap();
    change(&db, &second, 1);
    change(&db, &first, 2);
    db.drop_table("second").unwrap();
    let second = db.create_table("second").unwrap();
    let (of_first, of_second) = (change(&db, &first, 4), change(&db, &second, 5));
    drop((first, second, db));

    let db = Db::open_in(&directory, &settings).unwrap();
    assert!(content(&db.snapshot(), &db.table("first").unwrap()) == of_first);
    assert!(content(&db.snapshot(), &db.table("second").unwrap()) == of_second);
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_value_is_shown_where_it_lies_whatever_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let long = vec![9u8; 1 << 20];
    {
        let db = Db::create(&path, &modest()).unwrap();
        let table = db.create_table("t").unwrap();
        // Values of middling size: packed into shared pages.
        table.bulk_load((0..500u32).map(|number| (number.to_be_bytes(), vec![number as u8; 1000]))).unwrap();
        table.put("short", "value").unwrap();
        table.put("long", &long).unwrap();
    }
    let db = Db::open(&path, &modest()).unwrap();
    let table = db.table("t").unwrap();
    let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _cold_then_warm in 0..2 {
        assert_eq!(table.get_with("short", |value| value.map(<[u8]>::len)).unwrap(), Some(5));
        assert!(table.get_with("long", |value| value == Some(&long)).unwrap());
        assert!(table.get_with("none", |value| value.is_none()).unwrap());
        for number in 0..500u32 {
            let right = |value: Option<&[u8]>| value == Some(&[number as u8; 1000]);
            assert!(table.get_with(number.to_be_bytes(), right).unwrap());
            let asynchronous: &nofault::Table = table.as_ref();
            assert!(executor.block_on(asynchronous.get_with(number.to_be_bytes(), right)).unwrap());
        }
    }
}

#[test]
fn errors_of_opening_and_creating_name_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let error = Db::open(&path, &modest()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let db = Db::create(&path, &modest()).unwrap();
    let error = Db::open(&path, &modest()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    drop(db);
    let error = Db::create(&path, &modest()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    Db::open(&path, &modest()).unwrap();
}

#[test]
fn a_bulk_load_survives_reopening_and_a_refused_one_leaves_nothing() {
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
        let error = good.bulk_load(entries().chain([([0; 4], vec![1])])).unwrap_err();
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
fn a_drop_frees_the_pages_of_a_table_and_its_handles_return_errors() {
    let (_world, directory) = on_sim(6);
    let settings = Settings { cache_bytes: 1 << 20, page_bytes: 1024, seed: Some(6), ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    let (kept, gone) = (db.create_table("kept").unwrap(), db.create_table("gone").unwrap());
    kept.put("k", "v").unwrap();
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let blocks = db.stats().pool.blocks_used;
    let value = |number: u32| vec![number as u8; if number.is_multiple_of(500) { 20_000 } else { 100 }];
    gone.bulk_load((0..5_000u32).map(|number| (number.to_be_bytes(), value(number)))).unwrap();
    let before = db.snapshot();
    let reader = db.begin();
    assert_eq!(reader.get(&gone, 7u32.to_be_bytes()).unwrap(), Some(value(7)));
    reader.put(&kept, "k", "of a transaction that saw the table").unwrap();

    db.drop_table("gone").unwrap();
    assert_eq!(db.table_names().unwrap(), ["kept"]);
    let mut large = Batch::new();
    for number in 0..3000u32 {
        large.put(&gone, number.to_be_bytes(), [1; 200]);
    }
    for refused in [
        db.drop_table("gone"),
        db.table("gone").map(drop),
        gone.get("k").map(drop),
        gone.get_many(&["k"]).map(drop),
        gone.put("k", "v"),
        gone.range::<&[u8]>(..).next().unwrap().map(drop),
        db.write(large, Durability::Sync),
        gone.bulk_load([("a", "b")]).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert_eq!(reader.commit(Durability::Sync).unwrap_err().kind(), ErrorKind::Conflict);
    // A snapshot from before the drop still has the table, by an old handle and by its name.
    assert_eq!(before.get(&gone, 500u32.to_be_bytes()).unwrap(), Some(value(500)));
    assert_eq!(before.range::<&[u8]>(&before.table("gone").unwrap(), ..).unwrap().count(), 5_000);
    drop(before);
    // The same name is another table.
    let again = db.create_table("gone").unwrap();
    assert_eq!(again.get(7u32.to_be_bytes()).unwrap(), None);
    assert_eq!(gone.get(7u32.to_be_bytes()).unwrap_err().kind(), ErrorKind::NotFound);
    again.put("new", "row").unwrap();
    (0..2).for_each(|_| db.checkpoint().unwrap());
    let left = db.stats().pool.blocks_used;
    assert!(left < blocks + 20, "{blocks} blocks before, {left} after it was dropped");
    assert!(db.verify().unwrap().is_clean());
    drop((db, kept, gone, again));
    let db = Db::open_in(&directory, &settings).unwrap();
    assert_eq!(db.table_names().unwrap(), ["gone", "kept"]);
    assert_eq!(db.table("gone").unwrap().range::<&[u8]>(..).count(), 1);
    assert_eq!(db.table("kept").unwrap().get("k").unwrap(), Some(b"v".to_vec()));
}

#[test]
fn a_snapshot_that_keeps_too_much_is_invalidated_and_a_new_one_reads_on() {
    let (_world, directory) = on_sim(7);
    let settings = Settings { snapshot_bytes_max: 20 * 512, ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    let table = db.create_table("t").unwrap();
    let put_all = |round: u8| (0..400u32).for_each(|number| table.put(number.to_be_bytes(), [round; 60]).unwrap());
    put_all(1);
    let old = db.snapshot();
    assert_eq!(old.get(&table, 3u32.to_be_bytes()).unwrap(), Some(vec![1; 60]));
    put_all(2);
    let error = old.get(&table, 3u32.to_be_bytes()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld, "{error}");
    assert_eq!(old.range::<&[u8]>(&table, ..).unwrap().next().unwrap().unwrap_err().kind(), ErrorKind::SnapshotTooOld);
    let new = db.snapshot();
    assert!(db.stats().pool.snapshot_bytes <= 20 * 512, "{:?}", db.stats().pool);
    assert_eq!(new.get(&table, 3u32.to_be_bytes()).unwrap(), Some(vec![2; 60]));
    assert_eq!(table.get(3u32.to_be_bytes()).unwrap(), Some(vec![2; 60]));
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_cache_that_is_too_small_is_refused_with_one_that_is_enough() {
    for page_bytes in [4096, 65_536] {
        let (_world, directory) = on_sim(8);
        let refused = |cache_bytes| {
            let settings = Settings { cache_bytes, page_bytes, background_threads: false, ..Settings::default() };
            let error = Db::create_in(&directory, &settings).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
            assert!(directory.list().unwrap().is_empty(), "a refused creation left something");
            let text = error.to_string();
            assert!(text.starts_with(&format!("cache_bytes is {cache_bytes}: ")), "{text}");
            text.rsplit(' ').next().unwrap().parse::<usize>().unwrap()
        };
        let least = refused(0);
        assert_eq!(refused(least - 1), least);
        let settings = Settings { cache_bytes: least, page_bytes, background_threads: false, ..Settings::default() };
        let db = Db::create_in(&directory, &settings).unwrap();
        let table = db.create_table("t").unwrap();
        (0..300u32).for_each(|number| table.put(number.to_be_bytes(), [7; 500]).unwrap());
        assert_eq!(table.range::<&[u8]>(..).count(), 300);
    }
}

/// Regression: fragments of records were as large as the cache allowed, and waited for ever for free space in a log
/// that was smaller.
#[test]
fn a_commit_larger_than_the_log_goes_through() {
    for background_threads in [false, true] {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (_world, directory) = on_sim(10);
            let settings = Settings { cache_bytes: 16 << 20, log_bytes: 64 << 10, background_threads, ..tiny() };
            let db = Db::create_in(&directory, &settings).unwrap();
            let table = db.create_table("t").unwrap();
            let mut batch = Batch::new();
            for number in 0..4_000u32 {
                batch.put(&table, number.to_be_bytes(), [number as u8; 100]);
            }
            db.write(batch, Durability::Sync).unwrap();
            tell.send(table.range::<&[u8]>(..).count()).unwrap();
        });
        let count = told.recv_timeout(std::time::Duration::from_secs(60)).expect("it hangs");
        assert_eq!(count, 4_000);
    }
}

#[test]
fn closing_writes_the_deferred_commits() {
    let (world, directory) = on_sim(9);
    let settings = Settings { background_threads: true, ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    let table = db.create_table("t").unwrap();
    let mut batch = Batch::new();
    batch.put(&table, "k", "v");
    db.write(batch, Durability::Deferred).unwrap();
    drop((db, table));
    // The power fails right afterwards.
    let directory: Arc<dyn Directory> = world.restart(1).directory();
    let db = Db::open_in(&directory, &settings).unwrap();
    assert_eq!(db.table("t").unwrap().get("k").unwrap(), Some(b"v".to_vec()));
}

#[test]
fn hits_are_pages_found_in_memory_by_any_call() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("db"), &modest()).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..2000u32).map(|number| (number.to_be_bytes(), [1; 100]))).unwrap();
    let count = |work: &(dyn Fn() + Sync)| {
        let before = db.stats().pool;
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        let after = db.stats().pool;
        assert_eq!(after.misses, before.misses, "all is in memory");
        after.hits - before.hits
    };
    let key = 77u32.to_be_bytes();
    let levels = count(&|| assert!(table.get(key).unwrap().is_some())) / 4;
    assert!((2..=4).contains(&levels), "{levels} pages for one get");
    assert_eq!(count(&|| (0..100).for_each(|_| assert!(table.get(key).unwrap().is_some()))), 400 * levels);
}

#[test]
fn a_database_striped_over_folders_is_found_by_its_own_and_says_which_part_is_missing() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, second, third) =
        (scratch.path().join("db"), scratch.path().join("second"), scratch.path().join("third"));
    let striped = Settings { stripe_folders: vec![second.clone(), third.clone()], ..modest() };
    let rows = |round: u8| (0..20_000u32).map(move |number| (number.to_be_bytes(), vec![number as u8 ^ round; 500]));
    {
        let db = Db::create(&path, &striped).unwrap();
        db.create_table("t").unwrap().bulk_load(rows(0)).unwrap();
        db.create_table("u").unwrap().put("k", "v").unwrap();
        assert_eq!(db.stats().disk.kind, "striped");
    }
    for folder in [&second, &third] {
        let bytes: u64 = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes > 2 << 20, "{bytes} bytes in {}", folder.display());
    }
    {
        let db = Db::open(&path, &modest()).unwrap();
        assert!(
            db.table("t").unwrap().range::<&[u8]>(..).map(Result::unwrap).eq(rows(0).map(|(k, v)| (k.to_vec(), v)))
        );
        assert_eq!(db.table("u").unwrap().get("k").unwrap(), Some(b"v".to_vec()));
        assert!(db.verify().unwrap().is_clean());
    }
    assert_eq!(Db::create(&path, &modest()).unwrap_err().kind(), ErrorKind::AlreadyExists);
    std::fs::rename(&third, scratch.path().join("elsewhere")).unwrap();
    let error = Db::open(&path, &modest()).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("third"), "{error:?}");
    // An empty folder instead is no substitute.
    std::fs::create_dir(&third).unwrap();
    let error = Db::open(&path, &modest()).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("third"), "{error:?}");
}

#[test]
fn a_backup_contains_the_state_that_was_visible_when_it_began() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("db"), &modest()).unwrap();
    let (first, second) = (db.create_table("first").unwrap(), db.create_table("second").unwrap());
    for number in 0..500u32 {
        first.put(number.to_be_bytes(), b"1").unwrap();
    }
    second.put("k", vec![3; 100_000]).unwrap();
    db.backup(folder.path().join("copy")).unwrap();
    let log_bytes = std::fs::metadata(folder.path().join("copy/log")).unwrap().len();
    // Two segments and one that is only reserved, of the smallest size.
    assert!(log_bytes <= 3 << 20, "the log of a small copy takes {log_bytes} bytes");
    first.put("later", "x").unwrap();
    let copy = Db::open(folder.path().join("copy"), &modest()).unwrap();
    assert_eq!(copy.table_names().unwrap(), ["first", "second"]);
    assert_eq!(copy.table("first").unwrap().range::<&[u8]>(..).count(), 500);
    assert_eq!(copy.table("second").unwrap().get("k").unwrap(), Some(vec![3; 100_000]));
    assert!(copy.verify().unwrap().is_clean());
}

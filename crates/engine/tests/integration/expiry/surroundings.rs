//! Entries that expire along with everything else: the format, backups, salvage, watching, indexes, large commits, long
//! values.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use nofault::blocking::{Db, IndexedTable, TypedTable};
use nofault::clock::ManualClock;
use nofault::db::{Change, WatchEvent};
use nofault::error::ErrorKind;
use nofault::salvage::{SalvageOptions, salvage};
use nofault::settings::{CompactionMode, Settings};
use nofault::{Batch, Durability};
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

use super::{disk, time, tiny};

/// Settings for a database in a folder, in which nothing is removed by itself.
fn in_folder() -> (ManualClock, Settings) {
    let clock = ManualClock::at(time(0));
    let settings = Settings {
        cache_bytes: 16 << 20,
        log_bytes: 4 << 20,
        clock: clock.clone().into(),
        compaction: CompactionMode::Manual,
        ..Settings::default()
    };
    (clock, settings)
}

/// Returns the incompatible features in both superblocks of a closed database.
fn features(folder: &Path) -> [u8; 2] {
    let mut data = Vec::new();
    std::fs::File::open(folder.join("data")).unwrap().take(1 << 17).read_to_end(&mut data).unwrap();
    [data[104], data[65_536 + 104]]
}

/// A build that does not know the bit refuses the database: `format::superblock` tests that for any unknown bit.
#[test]
fn the_bit_by_which_older_builds_refuse_a_database_is_set_by_the_first_entry_that_expires() {
    let (folder, (_, settings)) = (tempfile::tempdir().unwrap(), in_folder());
    let path = folder.path().join("db");
    let db = Db::create(&path, &settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.put("a", "1").unwrap();
    assert_eq!((table.expiry("a").unwrap(), db.remove_expired().unwrap()), (None, 0));
    drop(table);
    db.close().unwrap();
    assert_eq!(features(&path), [1, 1], "without entries that expire older builds open it");
    let db = Db::open(&path, &settings).unwrap();
    db.table("t").unwrap().put_with_expiry("b", "2", time(100)).unwrap();
    // Before the record is in the log, so also after a crash at any moment.
    assert_eq!(features(&path), [9, 9]);
    db.close().unwrap();
    assert_eq!(features(&path), [9, 9]);
    let db = Db::open(&path, &settings).unwrap();
    assert_eq!(db.table("t").unwrap().expiry("b").unwrap(), Some(time(100)));
    assert_eq!(db.table_names().unwrap(), ["t"], "the index is no table of the caller's");
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn the_bit_is_set_by_a_load_only_when_an_entry_of_it_expires() {
    let (folder, (_, settings)) = (tempfile::tempdir().unwrap(), in_folder());
    let path = folder.path().join("db");
    let db = Db::create(&path, &settings).unwrap();
    let table = db.create_table("t").unwrap();
    let entries = |expiry| (0..100u32).map(move |number| (number.to_be_bytes(), "1", expiry));
    table.bulk_load(entries(None)).unwrap();
    assert_eq!(features(&path), [1, 1], "all of them last");
    db.create_table("u").unwrap().bulk_load(entries(Some(time(100)))).unwrap();
    assert_eq!(features(&path), [9, 9]);
}

#[test]
fn values_of_every_length_expire_after_commits_of_every_size_and_a_replay() {
    for checkpoint in [false, true] {
        let (clock, settings) = tiny();
        let directory = disk(11);
        let lens = [0, 1, 100, 128, 129, 400, 1500, 70_000];
        {
            let db = Db::create_in(&directory, &settings).unwrap();
            let table = db.create_table("t").unwrap();
            for (number, len) in lens.into_iter().enumerate() {
                table.put_with_expiry([number as u8], vec![7; len], time(100 + number as i64)).unwrap();
                // Put again with another time, with one, and without one.
                table.put_with_expiry([100 + number as u8], vec![1; len], time(1)).unwrap();
                table.put_with_expiry([100 + number as u8], vec![2; len], time(50)).unwrap();
                table.put([200 + number as u8], vec![1; len]).unwrap();
                table.put_with_expiry([200 + number as u8], vec![2; len], time(1)).unwrap();
                table.put([200 + number as u8], vec![3; len]).unwrap();
            }
            let mut batch = Batch::new();
            for number in 0..1000u32 {
                batch.put_with_expiry(&table, number.to_be_bytes(), [9; 40], time(60));
            }
            assert_eq!(batch.len(), 1000);
            db.write(batch, Durability::Sync).unwrap();
            if checkpoint {
                db.checkpoint().unwrap();
            }
        }
        let db = Db::open_in(&directory, &settings).unwrap();
        let table = db.table("t").unwrap();
        assert_eq!(table.len().unwrap(), 1000 + 3 * lens.len() as u64);
        clock.advance(Duration::from_millis(55));
        for (number, len) in lens.into_iter().enumerate() {
            assert_eq!(table.get([number as u8]).unwrap(), Some(vec![7; len]));
            assert_eq!(table.get([100 + number as u8]).unwrap(), None);
            assert_eq!(table.get([200 + number as u8]).unwrap(), Some(vec![3; len]));
        }
        clock.advance(Duration::from_millis(1000));
        assert_eq!(table.len().unwrap(), lens.len() as u64);
        assert_eq!(db.remove_expired().unwrap(), 1000 + 2 * lens.len() as u64);
        assert_eq!(table.clear().unwrap(), lens.len() as u64);
        assert!(db.verify().unwrap().is_clean());
        assert_eq!(table.approximate_len::<&[u8]>(..).unwrap(), 0);
    }
}

#[test]
fn a_key_of_an_entry_that_expires_may_have_sixteen_bytes_fewer_than_others() {
    let (_, settings) = tiny();
    let db = Db::create_in(&disk(12), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    let longest = db.key_bytes_max() - 16;
    table.put_with_expiry(vec![1; longest], "", time(1)).unwrap();
    let error = table.put_with_expiry(vec![1; longest + 1], "", time(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidCall);
    assert!(error.to_string().contains(&longest.to_string()), "{error}");
}

#[test]
fn a_backup_and_a_salvaged_copy_have_the_times_and_remove_their_entries() {
    let (folder, (clock, settings)) = (tempfile::tempdir().unwrap(), in_folder());
    let [path, copy, saved] = ["db", "copy", "saved"].map(|name| folder.path().join(name));
    let db = Db::create(&path, &settings).unwrap();
    let table = db.create_table("t").unwrap();
    for number in 0..600u32 {
        let value = vec![7; if number % 50 == 0 { 9000 } else { 30 }];
        match number % 3 {
            0 => table.put(number.to_be_bytes(), value).unwrap(),
            _ => table.put_with_expiry(number.to_be_bytes(), value, time(1000 * i64::from(number % 3))).unwrap(),
        }
    }
    db.create_table("lasting").unwrap().put("a", "1").unwrap();
    db.checkpoint().unwrap();
    table.put_with_expiry("late", "from the log", time(1000)).unwrap();
    db.backup(&copy).unwrap();
    drop(table);
    db.close().unwrap();
    let report = salvage(&path, &saved, &SalvageOptions::new(settings.clone()), |_| true).unwrap();
    assert!(report.is_complete(), "{report:?}");
    clock.advance(Duration::from_millis(1500));
    for path in [copy, saved] {
        let db = Db::open(&path, &settings).unwrap();
        assert_eq!(db.table_names().unwrap(), ["lasting", "t"]);
        let table = db.table("t").unwrap();
        assert_eq!((table.expiry(2u32.to_be_bytes()).unwrap(), table.len().unwrap()), (Some(time(2000)), 400));
        assert_eq!(db.remove_expired().unwrap(), 201);
        clock.advance(Duration::from_millis(3000));
        assert_eq!((db.remove_expired().unwrap(), table.len().unwrap()), (200, 200));
        assert!(db.verify().unwrap().is_clean());
        clock.set(time(1500));
    }
}

#[test]
fn a_watch_reports_the_time_of_a_put_and_the_removal_and_nothing_of_the_index() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(13), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    let mut watches = [db.watch().unwrap(), table.watch("").unwrap()];
    table.put_with_expiry("a", "1", time(10)).unwrap();
    clock.advance(Duration::from_millis(20));
    assert_eq!(db.remove_expired().unwrap(), 1);
    let (key, value) = (b"a".to_vec(), b"1".to_vec());
    let expected = [
        Change::Put { table: table.id(), key: key.clone(), value, expiry: Some(time(10)) },
        Change::Delete { table: table.id(), key },
    ];
    for watch in &mut watches {
        let mut seen = Vec::new();
        while let Some(event) = watch.try_next().unwrap() {
            let WatchEvent::Commit { changes, .. } = event else { panic!("{event:?}") };
            seen.extend(changes);
        }
        assert_eq!(seen, expected);
    }
}

#[test]
fn the_entries_of_an_index_expire_with_their_row() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(14), &settings).unwrap();
    let rows: TypedTable<u32, String> = db.create_typed_table("rows").unwrap();
    let by_text: TypedTable<(String, u32), ()> = db.create_typed_table("by text").unwrap();
    let people = IndexedTable::new(&rows).with_index(&by_text, |_, text| [text.clone()]);
    let found = || -> BTreeSet<(String, u32)> { by_text.iter().map(|entry| entry.unwrap().0).collect() };
    let entry = |text: &str, row: u32| (text.to_string(), row);
    people.put_with_expiry(&1, "a", time(100)).unwrap();
    people.put_with_expiry(&2, "b", time(200)).unwrap();
    db.transact(Durability::Sync, |change| people.put_with_expiry_in(change, &3, "c", time(100))).unwrap();
    assert_eq!(people.rebuild().unwrap(), 3);
    clock.advance(Duration::from_millis(150));
    assert_eq!((found(), rows.len().unwrap()), (BTreeSet::from([entry("b", 2)]), 1));
    // A row that has expired is absent, and so are its entries: neither comes back with another row of its key.
    people.put(&1, "d").unwrap();
    people.put(&2, "b").unwrap();
    clock.advance(Duration::from_millis(1000));
    assert_eq!(found(), BTreeSet::from([entry("b", 2), entry("d", 1)]));
    assert_eq!(db.remove_expired().unwrap(), 3, "row 3 and its entry, and the entry of the first row 1");
    assert_eq!(found(), BTreeSet::from([entry("b", 2), entry("d", 1)]));
    assert_eq!((rows.expiry(&1).unwrap(), rows.expiry(&2).unwrap()), (None, None));
}

#[test]
fn a_clock_that_goes_back_shows_nothing_that_has_expired() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(15), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.put_with_expiry("a", "1", time(100)).unwrap();
    clock.advance(Duration::from_millis(100));
    assert_eq!(table.get("a").unwrap(), None);
    clock.set(time(0));
    assert_eq!((table.get("a").unwrap(), db.snapshot().get(&table, "a").unwrap(), db.now()), (None, None, time(100)));
}

/// Regression: the index of expiry that the first put had begun to make never became visible, and each later put waited for it
/// without end, as did the background removal after a bulk load, and with it the end of the database.
#[test]
fn a_put_that_expires_fails_where_the_log_has_failed_while_the_first_such_put_was_made() {
    let (_, settings) = tiny();
    let world = SimWorld::new(4, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    world.inject(Fault::new(Call::Write, Effect::Errno(libc::EIO)).on("log").times(u64::MAX));
    for _ in 0..3 {
        let error = table.put_with_expiry("k", "v", time(1000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned);
    }
}

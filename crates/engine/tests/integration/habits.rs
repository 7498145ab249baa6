//! What a program does that knows the documentation only, and does not do it as it was meant: bounds in the wrong order, handles
//! of tables that are gone, closures that panic, the same key twice. Each gets an answer or an error, and the database continues.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::common::tiny;
use nofault::blocking::{Db, IndexedTable, Table, TypedTable};
use nofault::clock::ManualClock;
use nofault::db::{Change, WatchEvent};
use nofault::error::{Error, ErrorKind};
use nofault::salvage::{SalvageOptions, salvage};
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_sim::{SimOptions, SimWorld};

/// The error with which an application ends a transaction.
#[derive(Debug, PartialEq)]
struct GivenUp;

impl From<Error> for GivenUp {
    fn from(error: Error) -> Self {
        panic!("an error of the database: {error}")
    }
}

fn database(seed: u64) -> (Db, Table) {
    let db = Db::create_in(&SimWorld::new(seed, SimOptions::calm()).directory(), &Settings { seed: None, ..tiny() })
        .unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

#[test]
fn ranges_with_nothing_in_them_are_empty_for_every_call() {
    let (db, table) = database(1);
    ["a", "b", "c"].iter().for_each(|key| table.put(key, "1").unwrap());
    let change = db.begin();
    change.put(&table, "b", "2").unwrap();
    let bounds: [(Bound<&str>, Bound<&str>); 5] = [
        (Bound::Included("b"), Bound::Excluded("a")),
        (Bound::Excluded("b"), Bound::Excluded("b")),
        (Bound::Included("b"), Bound::Excluded("b")),
        (Bound::Excluded("b"), Bound::Included("b")),
        (Bound::Included("z"), Bound::Unbounded),
    ];
    for range in bounds {
        assert_eq!(table.range::<&str>(range).count() + table.range::<&str>(range).rev().count(), 0, "{range:?}");
        assert!(
            table.range::<&str>(range).next_back().is_none()
                && table.range::<&str>(range).next_batch(9).unwrap().is_empty()
        );
        assert_eq!(db.snapshot().range::<&str>(&table, range).unwrap().count(), 0, "{range:?}");
        assert_eq!(change.range::<&str>(&table, range).unwrap().count(), 0, "{range:?}");
        assert_eq!(change.range::<&str>(&table, range).unwrap().rev().count(), 0, "{range:?}");
        assert_eq!(table.approximate_len::<&str>(range).unwrap(), 0, "{range:?}");
        assert_eq!(table.delete_range::<&str>(range).unwrap(), 0, "{range:?}");
    }
    assert_eq!(table.range("b"..="b").count(), 1);
    assert_eq!(table.prefix([0xff; 3]).count() + table.range::<&str>(..).limit(0).count(), 0);
    assert!(table.range::<&str>(..).next_batch(0).unwrap().is_empty());
    // A cursor of another range, and one behind everything.
    assert_eq!(table.range("b"..).after("a").count(), 2);
    assert_eq!(table.range(.."b").after("b").count() + table.prefix("c").after("z").count(), 0);
    assert_eq!(table.range("b"..).rev().after("a").count(), 0);
    table.delete("b").unwrap();
    let resumed: Vec<_> = table.range::<&str>(..).after("b").map(|entry| entry.unwrap().0).collect();
    assert_eq!(resumed, [b"c"], "behind a key that was deleted");
    assert_eq!(table.len().unwrap(), 2);
}

#[test]
fn the_same_key_twice_and_no_key_at_all_are_answered() {
    let (db, table) = database(2);
    table.put("", "of the empty key").unwrap();
    let found = table.get_many(&["", "a", "", "a"]).unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, false]);
    assert!(table.get_many(&[""; 0]).unwrap().is_empty());
    let mut batch = Batch::new();
    batch.put(&table, "a", "1").delete(&table, "a").put(&table, "a", "2").delete(&table, "");
    db.write(batch, Durability::Sync).unwrap();
    db.write(Batch::new(), Durability::Sync).unwrap();
    assert_eq!(table.range::<&str>(..).map(Result::unwrap).collect::<Vec<_>>(), [(b"a".to_vec(), b"2".to_vec())]);
    assert_eq!(table.bulk_load(std::iter::empty::<(&str, &str)>()).unwrap(), 0);
    assert_eq!(table.bulk_load([("a", "1"), ("a", "2")]).unwrap_err().kind(), ErrorKind::InvalidCall);
    assert_eq!(table.get("a").unwrap(), Some(b"2".to_vec()));
}

#[test]
fn closures_that_panic_leave_the_database_as_it_was() {
    let (db, table) = database(3);
    table.put("a", "1").unwrap();
    let panics = |call: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    for _ in 0..3 {
        panics(&|| drop(table.update("a", |_| panic!("planned"))));
        panics(&|| drop(table.get_or_insert_with("b", || panic!("planned"))));
        panics(&|| drop(table.get_with("a", |_| panic!("planned"))));
        panics(&|| {
            let _ = db.transact(Durability::Sync, |change| -> Result<(), Error> {
                change.put(&table, "a", "2")?;
                panic!("planned")
            });
        });
        panics(&|| drop(db.begin().get_with(&table, "a", |_| panic!("planned"))));
    }
    assert_eq!((table.get("a").unwrap(), table.len().unwrap()), (Some(b"1".to_vec()), 1));
    table.put("a", "3").unwrap();
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_savepoint_belongs_to_its_transaction_and_to_what_is_still_there() {
    let (db, table) = database(4);
    let (change, other) = (db.begin(), db.begin());
    change.put(&table, "a", "1").unwrap();
    let first = change.savepoint().unwrap();
    change.put(&table, "b", "1").unwrap();
    let second = change.savepoint().unwrap();
    assert_eq!(other.roll_back_to(second).unwrap_err().kind(), ErrorKind::InvalidCall);
    change.roll_back_to(first).unwrap();
    change.commit(Durability::Sync).unwrap();
    assert_eq!(table.len().unwrap(), 1);
}

#[test]
fn a_typed_table_that_is_dropped_and_created_with_other_types_refuses_the_old_handle() {
    let (db, _) = database(5);
    let old: TypedTable<u32, String> = db.create_typed_table("typed").unwrap();
    old.put(&1, "one").unwrap();
    let change = db.begin();
    assert_eq!(old.in_transaction(&change).get(&1).unwrap(), Some("one".to_owned()));
    db.drop_table("typed").unwrap();
    let new: TypedTable<String, u64> = db.create_typed_table("typed").unwrap();
    new.put("one", &1).unwrap();
    for error in [old.put(&2, "two").unwrap_err(), old.get(&1).unwrap_err(), old.len().unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    old.in_transaction(&change).put(&2, "two").unwrap();
    assert!(matches!(change.commit(Durability::Sync).unwrap_err().kind(), ErrorKind::NotFound | ErrorKind::Conflict));
    assert_eq!(new.iter().map(Result::unwrap).collect::<Vec<_>>(), [("one".to_owned(), 1)]);
    assert_eq!(db.typed_table::<u32, String>("typed").unwrap_err().kind(), ErrorKind::WrongType);
}

#[test]
fn a_watch_of_a_renamed_table_goes_on_and_one_of_its_old_name_is_of_the_new_table() {
    let (db, table) = database(6);
    let mut watch = table.watch("k").unwrap();
    db.rename_table("t", "u").unwrap();
    let again = db.create_table("t").unwrap();
    again.put("k1", "of the new table").unwrap();
    db.table("u").unwrap().put("k2", "renamed").unwrap();
    table.put("k3", "by the old handle").unwrap();
    table.put("other", "not watched").unwrap();
    let mut keys = Vec::new();
    while let Some(event) = watch.try_next().unwrap() {
        let WatchEvent::Commit { changes, .. } = event else { panic!("{event:?}") };
        keys.extend(changes.into_iter().map(|change| match change {
            Change::Put { key, .. } => String::from_utf8(key).unwrap(),
            other => format!("{other:?}"),
        }));
    }
    assert!(keys[0].starts_with("RenameTable") && keys[1..] == ["k2", "k3"], "{keys:?}");
}

#[test]
fn a_typed_table_of_entries_that_expire_is_salvaged_with_its_times() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let [path, saved] = ["db", "saved"].map(|name| folder.path().join(name));
    let settings =
        Settings { cache_bytes: 16 << 20, log_bytes: 4 << 20, clock: clock.clone().into(), ..Settings::default() };
    let db = Db::create(&path, &settings).unwrap();
    let sessions: TypedTable<(String, u32), u64> = db.create_typed_table("sessions").unwrap();
    let end = |number: u32| db.now() + Duration::from_secs(u64::from(number % 2 + 1) * 60);
    sessions.bulk_load((0..500).map(|number| (("ann".to_owned(), number), 7_u64, Some(end(number))))).unwrap();
    sessions.put_with_expiry(&("bob".to_owned(), 1), &8, end(0)).unwrap();
    drop(sessions);
    db.close().unwrap();
    let report = salvage(&path, &saved, &SalvageOptions::new(settings.clone()), |_| true).unwrap();
    assert!(report.is_complete(), "{report:?}");
    let db = Db::open(&saved, &settings).unwrap();
    let sessions: TypedTable<(String, u32), u64> = db.typed_table("sessions").unwrap();
    assert_eq!(sessions.len().unwrap(), 501);
    clock.advance(Duration::from_secs(90));
    assert_eq!((sessions.len().unwrap(), sessions.prefix(&("bob",)).count()), (250, 0));
    clock.advance(Duration::from_secs(3600));
    db.remove_expired().unwrap();
    assert_eq!(sessions.raw().approximate_len::<&[u8]>(..).unwrap(), 0);
}

#[test]
fn an_index_stays_exact_when_its_entries_come_from_several_threads_and_transactions_that_give_up() {
    let (db, _) = database(7);
    let rows: TypedTable<u32, String> = db.create_typed_table("rows").unwrap();
    let by_text: TypedTable<(String, u32), ()> = db.create_typed_table("by text").unwrap();
    let indexed = IndexedTable::new(&rows).with_index(&by_text, |_, text| [text.clone(), text.clone()]);
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            let (db, indexed) = (&db, &indexed);
            scope.spawn(move || {
                for step in 0..60_u32 {
                    let (row, text) = (step % 5, format!("{}", (step * 7 + thread) % 4));
                    match step % 4 {
                        0 => indexed.put(&row, &text).unwrap(),
                        1 => indexed.delete(&row).unwrap(),
                        2 => {
                            // Given up by the application, after the row was changed twice.
                            let given_up = db.transact(Durability::Sync, |change| {
                                indexed.put_in(change, &row, &text)?;
                                indexed.delete_in(change, &row)?;
                                Err::<(), _>(GivenUp)
                            });
                            assert_eq!(given_up.unwrap_err(), GivenUp);
                        }
                        _ => {
                            let changed = db.transact(Durability::Sync, |change| {
                                indexed.put_in(change, &row, "first")?;
                                indexed.put_in(change, &row, &text)
                            });
                            changed.unwrap();
                        }
                    }
                }
            });
        }
    });
    let mut expected: Vec<_> = rows.iter().map(Result::unwrap).map(|(row, text)| (text, row)).collect();
    expected.sort();
    assert_eq!(by_text.iter().map(|entry| entry.unwrap().0).collect::<Vec<_>>(), expected);
}

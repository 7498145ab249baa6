//! Typed tables: their types stay with the table, and every call agrees with a map in memory.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::collections::BTreeMap;

use crate::common::tiny;
use fastrand::Rng;
use nofault::blocking::{Db, TypedTable};
use nofault::db::{Change, WatchEvent};
use nofault::error::{Error, ErrorKind};
use nofault::settings::{Compression, Settings};
use nofault::{Batch, Durability};
use nofault_sim::{SimOptions, SimWorld};

fn database(world: &SimWorld) -> Db {
    Db::create_in(&world.directory(), &tiny()).unwrap()
}

fn reopened(world: &SimWorld) -> Db {
    Db::open_in(&world.directory(), &tiny()).unwrap()
}

fn types(db: &Db, name: &str) -> Option<(String, String)> {
    db.table_types(name).unwrap().map(|types| (types.key, types.value))
}

#[test]
fn the_types_of_a_table_go_with_it_and_others_are_refused() {
    let world = SimWorld::new(1, SimOptions::calm());
    let db = database(&world);
    let numbers = db.create_typed_table::<i64, String>("numbers").unwrap();
    numbers.put(&-5, "minus five").unwrap();
    let untyped = db.create_table("untyped").unwrap();
    assert_eq!(types(&db, "untyped"), None);
    untyped.put("a", "b").unwrap();
    let expected = Some(("i64".to_string(), "string".to_string()));
    let check = |db: &Db, name: &str| {
        assert_eq!(types(db, name), expected, "{name}");
        assert_eq!(db.typed_table::<i64, String>(name).unwrap().get(&-5).unwrap().as_deref(), Some("minus five"));
        let wrong = [db.typed_table::<u64, String>(name).map(drop), db.typed_table::<i64, Vec<u8>>(name).map(drop)];
        for refused in wrong {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
            assert!(error.to_string().contains("keys of type i64 and values of type string"), "{error}");
        }
    };
    check(&db, "numbers");
    // A compression set later, a new name, a replay of the log, a checkpoint, a copy.
    db.set_compression("numbers", Compression::Fast).unwrap();
    check(&db, "numbers");
    db.rename_table("numbers", "integers").unwrap();
    check(&db, "integers");
    assert_eq!(db.compression("integers").unwrap(), Compression::Fast);
    drop((numbers, untyped, db));
    let world = world.restart(1);
    let db = reopened(&world);
    check(&db, "integers");
    db.checkpoint().unwrap();
    drop(db);
    let world = world.restart(2);
    let db = reopened(&world);
    check(&db, "integers");
    let folder = tempfile::tempdir().unwrap();
    db.backup(folder.path().join("copy")).unwrap();
    let copy =
        Db::open(folder.path().join("copy"), &Settings { page_bytes: 512, ..Settings::with_small_pages() }).unwrap();
    check(&copy, "integers");
    assert_eq!((types(&copy, "untyped"), copy.compression("integers").unwrap()), (None, Compression::Fast));
    // The next table of the name is another.
    db.drop_table("integers").unwrap();
    db.create_typed_table::<u8, ()>("integers").unwrap().put(&1, &()).unwrap();
    assert_eq!(types(&db, "integers"), Some(("u8".to_string(), "()".to_string())));
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_table_without_types_gets_them_when_it_is_opened_and_foreign_entries_are_errors() {
    let db = database(&SimWorld::new(2, SimOptions::calm()));
    let raw = db.create_table("t").unwrap();
    raw.put(7_u32.to_be_bytes(), 70_u64.to_le_bytes()).unwrap();
    raw.put(8_u32.to_be_bytes(), "short").unwrap();
    raw.put("a key of text", "and a value of text").unwrap();
    let typed = db.typed_table::<u32, u64>("t").unwrap();
    assert_eq!(typed.get(&7).unwrap(), Some(70));
    let wrong = |error: nofault::Error, part: &str| {
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert!(error.to_string().contains(part), "{error}");
    };
    wrong(typed.get(&8).unwrap_err(), "value of 5 bytes that is no u64: 0x73686f7274");
    wrong(typed.last().unwrap_err(), "key of 13 bytes that is no u32");
    wrong(typed.update(&8, |_| Some(1)).unwrap_err(), "no u64");
    typed.delete(&7).unwrap();
    wrong(typed.pop_first().unwrap_err(), "no u64");
    assert_eq!(raw.len().unwrap(), 2, "nothing was removed");
}

/// Entries 1, 2 and 4 of a table of numbers; 3 is of another type.
fn with_a_foreign_entry() -> (Db, TypedTable<u32, u64>) {
    let db = database(&SimWorld::new(9, SimOptions::calm()));
    let typed = db.create_typed_table::<u32, u64>("t").unwrap();
    [1, 2, 4].iter().for_each(|key| typed.put(key, &7).unwrap());
    typed.raw().put(3_u32.to_be_bytes(), "three").unwrap();
    (db, typed)
}

/// Takes all that a scan returns, and what it returns after its end.
fn all_of<T>(entries: impl Iterator<Item = Result<T, Error>>, key: impl Fn(T) -> u32) -> Vec<Option<u32>> {
    let mut entries =
        entries.map(|entry| entry.map(&key).inspect_err(|e| assert_eq!(e.kind(), ErrorKind::WrongType)).ok());
    let mut all: Vec<_> = entries.by_ref().collect();
    all.extend(entries.by_ref());
    all
}

#[test]
fn a_scan_that_meets_an_entry_of_another_type_returns_the_error_once_and_ends() {
    let (db, typed) = with_a_foreign_entry();
    let key = |(key, _): (u32, u64)| key;
    assert_eq!(all_of(typed.iter(), key), [Some(1), Some(2), None]);
    assert_eq!(all_of(typed.iter().rev(), key), [Some(4), None]);
    assert_eq!(all_of(Iterator::rev(typed.range(2_u32..)), key), [Some(4), None]);
    let change = db.begin();
    typed.in_transaction(&change).put(&0, &7).unwrap();
    assert_eq!(all_of(typed.in_transaction(&change).range(..4_u32).unwrap(), key), [Some(0), Some(1), Some(2), None]);
    assert_eq!(all_of(typed.in_snapshot(&db.snapshot()).iter().unwrap(), key), [Some(1), Some(2), None]);

    // From both ends: the error of one ends the other.
    let mut range = typed.iter();
    assert_eq!(range.next().unwrap().unwrap(), (1, 7));
    assert_eq!(range.next_back().unwrap().unwrap(), (4, 7));
    assert_eq!(range.next_back().unwrap().unwrap_err().kind(), ErrorKind::WrongType);
    assert!(range.next().is_none() && range.next_back().is_none() && range.next_batch(9).unwrap().is_empty());

    // A batch loses none of the entries before.
    let mut range = typed.iter();
    assert_eq!(range.next_batch(9).unwrap(), [(1, 7), (2, 7)]);
    assert_eq!(range.next_batch(9).unwrap_err().kind(), ErrorKind::WrongType);
    assert!(range.next_batch(9).unwrap().is_empty() && range.next().is_none());
    assert_eq!(typed.range(3_u32..).next_batch(9).unwrap_err().kind(), ErrorKind::WrongType);

    // Behind the entry, in the table of bytes.
    assert_eq!(typed.iter().after(&3).map(|entry| entry.unwrap().0).collect::<Vec<_>>(), [4]);
}

#[tokio::test]
async fn an_async_scan_that_meets_an_entry_of_another_type_returns_the_error_once_and_ends() {
    let directory = SimWorld::new(9, SimOptions::calm()).directory();
    let settings = Settings { cache_bytes: 32 << 20, background_threads: true, ..tiny() };
    let db = nofault::Db::create_in(&directory, &settings).unwrap();
    let typed = db.create_typed_table::<u32, u64>("t").await.unwrap();
    typed.put(&1, &7).await.unwrap();
    typed.raw().put(2_u32.to_be_bytes(), "two").await.unwrap();
    typed.put(&3, &7).await.unwrap();
    let is_wrong = |error: Error| assert_eq!(error.kind(), ErrorKind::WrongType);
    let mut range = typed.iter();
    assert_eq!(range.next().await.unwrap(), Some((1, 7)));
    is_wrong(range.next().await.unwrap_err());
    assert_eq!(range.next().await.unwrap(), None);
    let mut range = typed.iter();
    assert_eq!(range.next_batch(9).await.unwrap(), [(1, 7)]);
    is_wrong(range.next_batch(9).await.unwrap_err());
    assert_eq!((range.next_batch(9).await.unwrap(), range.next().await.unwrap()), (Vec::new(), None));
    let change = db.begin();
    let mut range = typed.in_transaction(&change).iter().unwrap();
    assert_eq!(range.next().await.unwrap(), Some((1, 7)));
    is_wrong(range.next().await.unwrap_err());
    assert_eq!(range.next().await.unwrap(), None);
}

#[test]
fn of_many_openings_with_two_kinds_of_types_one_kind_wins() {
    let directory = SimWorld::new(3, SimOptions::default()).directory();
    let settings = Settings { cache_bytes: 32 << 20, log_bytes: 64 << 20, background_threads: true, ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    for round in 0..20 {
        let name = format!("table {round}");
        let (strings, numbers) = std::thread::scope(|scope| {
            let strings = scope.spawn(|| db.open_or_create_typed_table::<u64, String>(&name).map(drop));
            let numbers = scope.spawn(|| db.open_or_create_typed_table::<u64, u64>(&name).map(drop));
            (strings.join().unwrap(), numbers.join().unwrap())
        });
        assert!(strings.is_ok() != numbers.is_ok(), "{strings:?} {numbers:?}");
        let error = strings.err().or(numbers.err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    }
}

#[test]
fn a_power_cut_during_a_creation_leaves_a_table_with_its_types_or_without_any() {
    let events = |cut: Option<u64>| {
        let world = SimWorld::new(4, SimOptions::adversarial());
        let db = database(&world);
        let begin = world.events();
        if let Some(cut) = cut {
            world.cut_after(cut);
        }
        let done = db.create_typed_table::<u64, String>("t").and_then(|table| table.put(&1, "one"));
        (world, begin, done.is_ok())
    };
    let (world, begin, _) = events(None);
    let (mut with, mut without) = (0, 0);
    for cut in begin..=world.events() {
        let (world, _, acknowledged) = events(Some(cut));
        let world = world.restart(cut);
        let db = reopened(&world);
        match db.table_types("t") {
            Err(error) => assert!(error.kind() == ErrorKind::NotFound && !acknowledged, "cut after {cut}: {error}"),
            Ok(None) => {
                assert!(!acknowledged, "cut after {cut}");
                assert_eq!(db.table("t").unwrap().len().unwrap(), 0, "cut after {cut}");
                without += 1;
            }
            Ok(Some(_)) => {
                with += 1;
                // A build that does not know types refuses the database: the byte of the incompatible features.
                let data = world.read_file("data").unwrap();
                assert!([104, 65_536 + 104].iter().any(|at| data[*at] & 4 == 4), "cut after {cut}");
            }
        }
        let table = db.open_or_create_typed_table::<u64, String>("t").unwrap();
        assert!(table.get(&1).unwrap().is_some() || !acknowledged, "cut after {cut}");
        table.put(&2, "two").unwrap();
        assert!(db.verify().unwrap().is_clean(), "cut after {cut}");
    }
    assert!(with > 0 && without > 0, "{with} with types, {without} without");
}

#[test]
fn names_of_types_that_do_not_fit_into_the_catalog_are_refused() {
    type Long =
        ((u8, u8, u8, u8, u8, u8), (u8, u8, u8, u8, u8, u8), (u8, u8, u8, u8, u8, u8), [[[u8; 10]; 10]; 10], [u64; 5]);
    let db = database(&SimWorld::new(5, SimOptions::calm()));
    let error = db.create_typed_table::<(Long, Long, String), String>("t").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
    assert_eq!(types(&db, "t"), None);
}

type Model = BTreeMap<(String, i32), u64>;

/// Draws a key from few strings, of which one is the beginning of another, and some numbers of both signs.
fn key(rng: &mut Rng) -> (String, i32) {
    (["", "a", "a\0", "a\0b", "ab", "b"][rng.usize(..6)].to_string(), rng.i32(-20..20))
}

#[test]
fn every_call_of_a_typed_table_agrees_with_a_map() {
    let db = database(&SimWorld::new(6, SimOptions::calm()));
    let table: TypedTable<(String, i32), u64> = db.create_typed_table("t").unwrap();
    let (mut model, mut rng) = (Model::new(), Rng::with_seed(6));
    let collected = |range: &mut dyn Iterator<Item = nofault::error::Result<((String, i32), u64)>>| -> Vec<_> {
        range.map(Result::unwrap).collect()
    };
    let of = |entries: &mut dyn Iterator<Item = (&(String, i32), &u64)>| -> Vec<_> {
        entries.map(|(key, value)| (key.clone(), *value)).collect()
    };
    for step in 0..1500_u64 {
        let (a, b) = (key(&mut rng), key(&mut rng));
        match rng.u32(..16) {
            0..4 => {
                table.put(&(a.0.as_str(), a.1), &step).unwrap();
                model.insert(a, step);
            }
            4 => {
                table.delete(&a).unwrap();
                model.remove(&a);
            }
            5 => {
                let (change, snapshot) = (db.begin(), db.snapshot());
                let within = table.in_transaction(&change);
                assert_eq!(within.get(&a).unwrap(), model.get(&a).copied());
                within.put(&b, &step).unwrap();
                let before = model.insert(b.clone(), step);
                assert!(within.contains_key(&b).unwrap());
                assert_eq!(within.get_many(&[a.clone(), b.clone()]).unwrap()[1], Some(step));
                assert_eq!(
                    collected(&mut within.prefix(&(a.0.as_str(),)).unwrap()),
                    of(&mut model.iter().filter(|(k, _)| k.0 == a.0))
                );
                let (low, high) = if a < b { (&a, &b) } else { (&b, &a) };
                let expected = of(&mut model.range(low.clone()..high.clone()).rev());
                assert_eq!(collected(&mut within.range(low.clone()..high.clone()).unwrap().rev()), expected);
                change.commit(Durability::Sync).unwrap();
                assert_eq!(table.in_snapshot(&snapshot).get(&b).unwrap(), before);
            }
            6 => {
                let mut batch = Batch::new();
                table.in_batch(&mut batch).put(&a, &step).unwrap().delete(&b);
                db.write(batch, Durability::Sync).unwrap();
                model.insert(a, step);
                model.remove(&b);
            }
            7 => {
                let changed =
                    table.update(&a, |value| value.filter(|value| value % 2 == 0).map(|value| value + 1)).unwrap();
                let expected = model.get(&a).copied().filter(|value| value % 2 == 0).map(|value| value + 1);
                assert_eq!(changed, expected);
                match expected {
                    Some(value) => model.insert(a, value),
                    None => model.remove(&a),
                };
            }
            8 => {
                let value = *model.entry(a.clone()).or_insert(step);
                assert_eq!(table.get_or_insert_with(&a, || step).unwrap(), value);
            }
            9 if rng.u32(..8) == 0 => {
                let (low, high) = if a < b { (a, b) } else { (b, a) };
                let gone = of(&mut model.range(low.clone()..=high.clone()));
                assert_eq!(table.delete_range(low..=high).unwrap(), gone.len() as u64);
                for (key, _) in &gone {
                    model.remove(key);
                }
            }
            10 => assert_eq!(table.pop_first().unwrap(), model.pop_first()),
            11 => {
                let (low, high) = if a < b { (a, b) } else { (b, a) };
                let expected = of(&mut model.range(low.clone()..high.clone()));
                assert_eq!(collected(&mut table.range((low.0.as_str(), low.1)..(high.0.as_str(), high.1))), expected);
                let after =
                    of(&mut model.range((std::ops::Bound::Excluded(low.clone()), std::ops::Bound::Unbounded)).take(3));
                assert_eq!(collected(&mut table.iter().after(&low).limit(3)), after);
            }
            12 => {
                let expected = of(&mut model.iter().filter(|(key, _)| key.0 == a.0));
                assert_eq!(collected(&mut table.prefix(&(a.0.as_str(),))), expected);
                assert_eq!(collected(&mut table.prefix(&(a.0,)).rev()).len(), expected.len());
            }
            _ => {
                assert_eq!(table.get(&a).unwrap(), model.get(&a).copied());
                assert_eq!(table.contains_key(&b).unwrap(), model.contains_key(&b));
                let expected = [model.get(&b).copied(), model.get(&a).copied()];
                assert_eq!(table.get_many(&[b, a]).unwrap(), expected);
                assert_eq!(table.first().unwrap(), model.first_key_value().map(|(k, v)| (k.clone(), *v)));
                assert_eq!(table.last().unwrap(), model.last_key_value().map(|(k, v)| (k.clone(), *v)));
                assert_eq!((table.len().unwrap(), table.is_empty().unwrap()), (model.len() as u64, model.is_empty()));
            }
        }
    }
    assert_eq!(collected(&mut table.iter()), of(&mut model.iter()));
    let snapshot = db.snapshot();
    assert_eq!(table.clear().unwrap(), model.len() as u64);
    assert_eq!(table.in_snapshot(&snapshot).len().unwrap(), model.len() as u64);
    let loaded: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(table.bulk_load(loaded).unwrap(), model.len() as u64);
    assert_eq!(collected(&mut table.iter()), of(&mut model.iter()));
}

#[test]
fn a_typed_load_that_fails_leaves_the_table_as_it_was() {
    let db = database(&SimWorld::new(11, SimOptions::calm()));
    let typed = db.create_typed_table::<(String, u32), u64>("t").unwrap();
    typed.put(&("b", 1), &1).unwrap();
    let entries = |fails: bool| {
        let good = (0..500_u32).map(|number| Ok((("a", number), u64::from(number))));
        good.chain(fails.then_some(Err(String::from("no number"))))
    };
    #[derive(Debug, PartialEq)]
    enum LoadError {
        Line(String),
        Database(ErrorKind),
    }
    impl From<Error> for LoadError {
        fn from(error: Error) -> Self {
            Self::Database(error.kind())
        }
    }
    let load = |fails| typed.try_bulk_load(entries(fails).map(|entry| entry.map_err(LoadError::Line)));
    assert_eq!(load(true), Err(LoadError::Line("no number".into())));
    assert_eq!(typed.len().unwrap(), 1);
    let unsorted = [("b", 2_u32), ("a", 1)].map(|key| Ok::<_, LoadError>((key, 1_u64)));
    assert_eq!(typed.try_bulk_load(unsorted), Err(LoadError::Database(ErrorKind::InvalidCall)));
    assert_eq!(load(false), Ok(500));
    assert_eq!((typed.len().unwrap(), typed.get(&(&String::from("a"), 7)).unwrap()), (501, Some(7)));
    let estimate = typed.approximate_len(("a", 100)..("a", 300)).unwrap();
    assert!((100..=400).contains(&estimate), "{estimate}");
    assert!(typed.approximate_bytes::<(&str, u32)>(..).unwrap() >= 501 * 12);
}

#[test]
fn the_changes_of_a_typed_watch_are_read_by_its_table() {
    let db = database(&SimWorld::new(12, SimOptions::calm()));
    let typed = db.create_typed_table::<(String, u32), u64>("t").unwrap();
    let (mut all, mut of_prefix) = (typed.watch().unwrap(), typed.watch_prefix(&("a",)).unwrap());
    typed.put(&("a", 1), &10).unwrap();
    typed.put(&("a\0b", 2), &20).unwrap();
    typed.delete(&("a", 1)).unwrap();
    typed.raw().put("no key of the type", "x").unwrap();
    let changes = |watch: &mut nofault::blocking::Watch| {
        let mut changes = Vec::new();
        while let Some(WatchEvent::Commit { changes: more, .. }) = watch.try_next().unwrap() {
            changes.extend(more.into_iter().map(|change| match change {
                Change::Put { key, value, .. } => Ok((typed.read_key(&key)?, Some(typed.read_value(&value)?))),
                Change::Delete { key, .. } => Ok((typed.read_key(&key)?, None)),
                other => panic!("{other:?}"),
            }));
        }
        changes
    };
    let [put, deleted] = [Some(10), None].map(|value| (("a".to_owned(), 1), value));
    let other = (("a\0b".to_owned(), 2), Some(20));
    let read: Result<Vec<_>, Error> = changes(&mut of_prefix).into_iter().collect();
    assert_eq!(read.unwrap(), [put.clone(), deleted.clone()]);
    let mut read = changes(&mut all);
    assert_eq!(read.pop().unwrap().unwrap_err().kind(), ErrorKind::WrongType);
    assert_eq!(read.into_iter().collect::<Result<Vec<_>, Error>>().unwrap(), [put, other, deleted]);
}

//! Calls on tables made of others: first and last entries, counting, estimates, read-modify-write, ranges removed, and ranges used
//! from both ends, page by page and in batches.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::ops::Bound;

use crate::common::tiny;
use fastrand::Rng;
use nofault::blocking::{Db, Table};
use nofault::error::ErrorKind;
use nofault::settings::Compression;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_sim::content::Rows;
use nofault_sim::{SimOptions, SimWorld};

fn database(settings: &Settings) -> (Db, Table) {
    let db = Db::create_in(&SimWorld::new(5, SimOptions::calm()).directory(), settings).unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

fn key_of(number: u32) -> Vec<u8> {
    format!("k{number:05}").into_bytes()
}

/// Fills a table with some keys; about one value in ten lies outside of its leaf.
fn filled(table: &Table, count: u32, rng: &mut Rng) -> Rows {
    let mut model = Rows::new();
    for _ in 0..count {
        let bytes = if rng.u32(..10) == 0 { rng.usize(600..5_000) } else { rng.usize(..40) };
        let (key, value) = (key_of(rng.u32(..1_000)), vec![rng.u8(..); bytes]);
        table.put(&key, &value).unwrap();
        model.insert(key, value);
    }
    model
}

#[test]
fn first_last_and_len_agree_with_a_model_also_for_an_empty_table_and_in_a_snapshot() {
    let ((db, table), mut rng) = (database(&tiny()), Rng::with_seed(1));
    assert!(table.is_empty().unwrap() && table.first().unwrap().is_none() && table.last().unwrap().is_none());
    assert_eq!((table.len().unwrap(), table.pop_first().unwrap()), (0, None));
    let mut model = filled(&table, 300, &mut rng);
    let before = db.snapshot();
    assert_eq!(before.len(&table).unwrap(), model.len() as u64);
    while !model.is_empty() {
        assert_eq!(table.len().unwrap(), model.len() as u64);
        assert_eq!(
            table.last().unwrap().unwrap(),
            model.last_key_value().map(|(k, v)| (k.clone(), v.clone())).unwrap()
        );
        for _ in 0..37 {
            assert_eq!(table.first().unwrap(), model.first_key_value().map(|(k, v)| (k.clone(), v.clone())));
            assert_eq!(table.pop_first().unwrap(), model.pop_first());
        }
    }
    assert!(table.is_empty().unwrap() && before.len(&table).unwrap() > 200);
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn counting_reads_no_page_of_values() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
    let db = Db::create(folder.path().join("db"), &settings).unwrap();
    db.create_table("t").unwrap().bulk_load((0..2_000).map(|number| (key_of(number), vec![1; 3_000]))).unwrap();
    db.close().unwrap();
    let db = Db::open(folder.path().join("db"), &settings).unwrap();
    let table = db.table("t").unwrap();
    let before = db.stats().pool.misses;
    assert_eq!(table.len().unwrap(), 2_000);
    let read = db.stats().pool.misses - before;
    assert!(read < 200, "{read} pages for 2,000 keys, and there are 1,500 pages of values");
}

#[test]
fn a_removed_range_is_removed_as_a_whole_and_nothing_beside_it() {
    let ((db, table), mut rng) = (database(&tiny()), Rng::with_seed(2));
    for _ in 0..20 {
        let mut model = filled(&table, 200, &mut rng);
        model.extend(table.range::<&[u8]>(..).map(Result::unwrap));
        let (start, end) = (key_of(rng.u32(..1_000)), key_of(rng.u32(..1_000)));
        let (start, end) = (start.clone().min(end.clone()), start.max(end));
        let bounds = (Bound::Included(start), if rng.bool() { Bound::Excluded(end) } else { Bound::Unbounded });
        let inside: Vec<_> = model.range(bounds.clone()).map(|(key, _)| key.clone()).collect();
        assert_eq!(table.delete_range(bounds).unwrap(), inside.len() as u64);
        inside.iter().for_each(|key| drop(model.remove(key)));
        assert!(table.range::<&[u8]>(..).map(Result::unwrap).eq(model));
    }
    let left = table.len().unwrap();
    assert_eq!((table.clear().unwrap(), table.clear().unwrap()), (left, 0));
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn no_update_of_many_threads_is_lost_and_each_popped_entry_goes_to_one() {
    let settings = Settings { cache_bytes: 16 << 20, log_bytes: 4 << 20, ..Settings::default() };
    let (_db, table) = database(&settings);
    (0..100).for_each(|number| table.put(key_of(number), "1").unwrap());
    let popped = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (table, popped) = (&table, &popped);
            scope.spawn(move || {
                let number =
                    |value: Option<&[u8]>| value.map_or(0, |value| u32::from_be_bytes(value.try_into().unwrap()));
                for _ in 0..25 {
                    table.update("zzz", |value| Some((number(value) + 1).to_be_bytes().to_vec())).unwrap();
                    popped.lock().unwrap().push(table.pop_first().unwrap().unwrap().0);
                }
                let winner = table.get_or_insert_with("zzzz", || vec![thread]).unwrap();
                assert_eq!(table.get("zzzz").unwrap().unwrap(), winner);
            });
        }
    });
    assert_eq!(table.get("zzz").unwrap().unwrap(), 100_u32.to_be_bytes());
    let mut popped = popped.into_inner().unwrap();
    popped.sort();
    assert!(popped.into_iter().eq((0..100).map(key_of)));
    assert_eq!(table.update("zzz", |_| None).unwrap(), None);
    assert!(!table.contains_key("zzz").unwrap());
}

#[test]
fn a_range_used_from_both_ends_in_any_order_returns_each_entry_once() {
    let ((_db, table), mut rng) = (database(&tiny()), Rng::with_seed(3));
    let model = filled(&table, 400, &mut rng);
    for round in 0..300 {
        let (start, limit) = (key_of(rng.u32(..1_000)), if rng.bool() { u64::MAX } else { rng.u64(..50) });
        let expected: Vec<_> = model.range(start.clone()..).map(|(k, v)| (k.clone(), v.clone())).collect();
        let (is_reversed, mut range) = (rng.bool(), table.range(start.as_slice()..).limit(limit));
        if is_reversed {
            range = range.rev();
        }
        let back_share = rng.u32(..4);
        let (mut front, mut back) = (Vec::new(), Vec::new());
        loop {
            let entry = match rng.u32(..6) {
                0 => range
                    .next_ref()
                    .unwrap()
                    .map(|(key, value)| (key.to_vec(), value.to_vec()))
                    .map(|entry| (true, entry)),
                1 => {
                    let batch = range.next_batch(rng.usize(1..9)).unwrap();
                    let last = batch.last().cloned().map(|entry| (true, entry));
                    front.extend(batch.into_iter().rev().skip(1).rev());
                    last
                }
                turn if turn - 2 < back_share => range.next_back().transpose().unwrap().map(|entry| (false, entry)),
                _ => range.next().transpose().unwrap().map(|entry| (true, entry)),
            };
            match entry {
                Some((true, entry)) => front.push(entry),
                Some((false, entry)) => back.push(entry),
                None => break,
            }
        }
        assert!(range.next().is_none() && range.next_back().is_none() && range.next_ref().unwrap().is_none());
        let (low, mut high) = if is_reversed { (back, front) } else { (front, back) };
        high.reverse();
        assert_eq!((low.len() + high.len()) as u64, limit.min(expected.len() as u64), "round {round}");
        assert!(low.iter().eq(&expected[..low.len()]), "round {round}");
        assert!(high.iter().eq(&expected[expected.len() - high.len()..]), "round {round}");
    }
}

#[test]
fn a_scan_goes_on_after_any_key_in_either_direction() {
    let ((_db, table), mut rng) = (database(&tiny()), Rng::with_seed(4));
    let model = filled(&table, 200, &mut rng);
    for _ in 0..100 {
        let (key, start) = (key_of(rng.u32(..1_000)), key_of(rng.u32(..1_000)));
        let keys = |range: nofault::blocking::Range| range.map(|entry| entry.unwrap().0).collect::<Vec<_>>();
        let all = || model.range(start.clone()..).map(|(key, _)| key.clone());
        let found = keys(table.range(start.as_slice()..).after(&key));
        assert!(found.into_iter().eq(all().filter(|other| *other > key)));
        let found = keys(table.range(start.as_slice()..).rev().after(&key));
        assert!(found.into_iter().eq(all().rev().filter(|other| *other < key)));
    }
    // Pages of seven, each in a separate snapshot.
    let (mut seen, mut last) = (Vec::new(), Vec::new());
    loop {
        let page = table.prefix("k").after(&last).limit(7).map(Result::unwrap).collect::<Vec<_>>();
        let Some((key, _)) = page.last() else { break };
        last = key.clone();
        seen.extend(page);
    }
    assert!(seen.into_iter().eq(model));
}

/// The value of an entry by its number.
type ValueOf<'a> = &'a dyn Fn(u32) -> Vec<u8>;

/// Compares a table's estimates with its entries: for the whole table, and for some ranges.
fn check_estimates(table: &Table, what: &str) {
    let keys: Vec<Vec<u8>> = table.iter().map(|entry| entry.unwrap().0).collect();
    let mut rng = Rng::with_seed(8);
    let mut ranges = vec![(0, keys.len()), (0, keys.len().min(3)), (keys.len() / 2, keys.len())];
    ranges.extend((0..20).map(|_| {
        let start = rng.usize(..=keys.len());
        (start, rng.usize(start..=keys.len()))
    }));
    let whole = table.approximate_bytes::<&[u8]>(..).unwrap();
    for (start, end) in ranges {
        let end_key = keys.get(end).map_or(Bound::Unbounded, Bound::Excluded);
        let range = (
            keys.get(start).map_or(Bound::Excluded(&b"~"[..]), |key| Bound::Included(&key[..])),
            end_key.map(|key| &key[..]),
        );
        let (real, found) = ((end - start) as u64, table.approximate_len::<&[u8]>(range).unwrap());
        assert!(found.abs_diff(real) <= real / 4, "{what}: {found} for {real} entries from {start} on");
        assert!(real > 100 || found == real, "{what}: {found} for {real} entries in a few leaves");
        let bytes = table.approximate_bytes::<&[u8]>(range).unwrap();
        assert!((found == 0) == (bytes == 0) && bytes <= whole * 3 / 2, "{what}: {bytes} of {whole} bytes");
    }
    assert_eq!(table.approximate_len(key_of(3)..key_of(3)).unwrap(), 0, "{what}");
}

/// Regression: 100,000 sorted rows were estimated as 52,525, and the rest of 98,000 after retention as 48: the ends of the range stood
/// for all of it.
#[test]
fn estimates_are_exact_in_a_few_leaves_and_within_a_quarter_beyond_whatever_the_history_of_the_table() {
    const COUNT: u32 = 12_000;
    let world = SimWorld::new(5, SimOptions::calm());
    let directory = world.directory();
    let settings = Settings { cache_bytes: 4 << 20, ..tiny() };
    let db = Db::create_in(&directory, &settings).unwrap();
    let key = |number: u32| format!("k{number:07}").into_bytes();
    let in_batches = |table: &Table, numbers: &[u32], value: &dyn Fn(u32) -> Vec<u8>| {
        for numbers in numbers.chunks(200) {
            let mut batch = Batch::new();
            numbers.iter().for_each(|number| _ = batch.put(table, key(*number), value(*number)));
            db.write(batch, Durability::Deferred).unwrap();
        }
    };
    let ascending: Vec<u32> = (0..COUNT).collect();
    let descending: Vec<u32> = ascending.iter().rev().copied().collect();
    let mut shuffled = ascending.clone();
    Rng::with_seed(6).shuffle(&mut shuffled);
    let short = |number: u32| format!("value {number}").into_bytes();
    // Every length from one that fills a leaf with few entries to one with many, in parts of the table and mixed.
    let by_place = |number: u32| vec![7; if number < COUNT / 2 { 2 } else { 90 }];
    let mixed = |number: u32| vec![7; (number.wrapping_mul(2_654_435_761) >> 25) as usize];
    let value_of: [(&str, ValueOf<'_>); 3] = [("short", &short), ("by place", &by_place), ("mixed", &mixed)];
    for (order, numbers) in [("ascending", &ascending), ("descending", &descending), ("shuffled", &shuffled)] {
        for (values, value) in value_of {
            let what = format!("{order} {values}");
            let table = db.create_table(&what).unwrap();
            check_estimates(&table, &what);
            in_batches(&table, &numbers[..5], value);
            check_estimates(&table, &what);
            in_batches(&table, numbers, value);
            check_estimates(&table, &what);
            // Retention: most of the oldest entries go, and some others here and there.
            table.delete_range(..key(COUNT / 4)).unwrap();
            check_estimates(&table, &format!("{what}, a quarter removed"));
            let mut batch = Batch::new();
            (COUNT / 4..COUNT / 2)
                .filter(|number| number % 8 > 0)
                .for_each(|number| _ = batch.delete(&table, key(number)));
            db.write(batch, Durability::Sync).unwrap();
            check_estimates(&table, &format!("{what}, most of another removed"));
            table.delete_range(..key(COUNT - 300)).unwrap();
            check_estimates(&table, &format!("{what}, all but 300 removed"));
            in_batches(&table, &numbers[..2_000], value);
            check_estimates(&table, &format!("{what}, filled again"));
            db.drop_table(&what).unwrap();
        }
    }
    db.create_table("sorted").unwrap();
    db.set_compression("sorted", Compression::Fast).unwrap();
    let sorted = db.table("sorted").unwrap();
    sorted.bulk_load(ascending.iter().map(|number| (key(*number), short(*number)))).unwrap();
    check_estimates(&sorted, "sorted, compressed");
    let pages = db.verify().unwrap().pages;
    let leaves = sorted.approximate_bytes::<&[u8]>(..).unwrap() / 512;
    assert!(leaves <= pages && leaves * 5 / 4 >= pages, "{leaves} leaves of {pages} pages");
    let expiring = db.create_table("expiring").unwrap();
    let mut batch = Batch::new();
    for number in 0..COUNT / 4 {
        if number % 3 == 0 || number < 400 {
            batch.put(&expiring, key(number), short(number));
        } else {
            batch.put_with_expiry(&expiring, key(number), short(number), db.now());
        }
    }
    db.write(batch, Durability::Sync).unwrap();
    db.remove_expired().unwrap();
    check_estimates(&expiring, "after expiry");
    drop((sorted, expiring));
    db.close().unwrap();
    let db = Db::open_in(&directory, &settings).unwrap();
    check_estimates(&db.table("sorted").unwrap(), "sorted, opened again");
    check_estimates(&db.table("expiring").unwrap(), "after expiry, opened again");
}

#[test]
fn opening_or_creating_makes_one_database_and_one_table_however_many_ask() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
    let db = Db::open_or_create(&path, &settings).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let db = &db;
            scope.spawn(move || db.open_or_create_table("t").unwrap().put([thread], "1").unwrap());
        }
    });
    assert_eq!(db.table("t").unwrap().len().unwrap(), 4);
    assert_eq!(db.open_or_create_table("").unwrap_err().kind(), ErrorKind::InvalidCall);
    assert_eq!(Db::open_or_create(&path, &settings).unwrap_err().kind(), ErrorKind::Busy);
    drop(db);
    assert_eq!(Db::open_or_create(&path, &settings).unwrap().table("t").unwrap().len().unwrap(), 4);
    // An emptied database is no new beginning.
    std::fs::write(path.join("data"), []).unwrap();
    let error = Db::open_or_create(&path, &settings).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn an_error_among_the_entries_of_a_load_is_returned_and_leaves_the_table_empty() {
    #[derive(Debug, PartialEq)]
    enum Refusal {
        Line(u32),
        Store(ErrorKind),
    }
    impl From<nofault::Error> for Refusal {
        fn from(error: nofault::Error) -> Self {
            Self::Store(error.kind())
        }
    }
    let (db, table) = database(&tiny());
    for failing in [0, 1, 700, 1_999] {
        let entries = (0..2_000_u32).map(|number| match number {
            _ if number == failing => Err(Refusal::Line(number)),
            _ => Ok((key_of(number), vec![1; if number % 50 == 0 { 3_000 } else { 30 }])),
        });
        assert_eq!(table.try_bulk_load(entries), Err(Refusal::Line(failing)));
        assert!(table.is_empty().unwrap());
    }
    let unsorted = [Ok(("b", "1")), Ok(("a", "1"))];
    assert_eq!(table.try_bulk_load::<_, Refusal>(unsorted), Err(Refusal::Store(ErrorKind::InvalidCall)));
    let entries = (0..2_000_u32).map(|number| Ok::<_, Refusal>((key_of(number), vec![1; 30])));
    assert_eq!(table.try_bulk_load(entries), Ok(2_000));
    assert_eq!(table.len().unwrap(), 2_000);
    assert!(db.verify().unwrap().is_clean());
}

/// Regression: it ended as an error of the engine's own, after ten thousand attempts.
#[test]
fn a_load_for_which_the_smallest_caches_have_too_few_pages_is_refused_and_larger_caches_take_it() {
    let settings = |cache_bytes| Settings {
        page_bytes: 512,
        cache_bytes,
        log_bytes: 256 << 10,
        background_threads: false,
        seed: Some(1),
        ..Settings::with_small_pages()
    };
    let (mut refused, mut loaded) = (0, 0);
    for cache_bytes in (630 << 10..800 << 10).step_by(nofault_sim::depth::by_depth(4, 1) << 10) {
        let directory = SimWorld::new(5, SimOptions::calm()).directory();
        let db = Db::create_in(&directory, &settings(800 << 10)).unwrap();
        db.create_table("t").unwrap().put("k", "v").unwrap();
        db.close().unwrap();
        let Ok(db) = Db::open_in(&directory, &settings(cache_bytes)) else { continue };
        let table = db.table("t").unwrap();
        match table.bulk_load((0..10_000_u32).map(|number| (number.to_be_bytes(), [7; 100]))) {
            Ok(_) => {
                assert_eq!(table.len().unwrap(), 10_001);
                loaded += 1;
            }
            Err(error) => {
                assert!(error.kind() == ErrorKind::InvalidCall && error.to_string().contains("cache_bytes"), "{error}");
                assert_eq!(table.len().unwrap(), 1);
                refused += 1;
            }
        }
        assert!(db.verify().unwrap().is_clean(), "{cache_bytes}");
        if loaded == 3 {
            break;
        }
    }
    assert!(refused > 0 && loaded == 3, "{refused} refused, {loaded} loaded");
}

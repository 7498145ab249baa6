//! Threads that put, load, remove and read entries that expire in one table at the same time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use nofault::blocking::{Db, Table};
use nofault::clock::ManualClock;
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Durability, Error};

use super::time;

const LOADED: u32 = 3000;
const LOADS: u8 = 8;

/// A key in the part of the table belonging to one thread.
fn key(part: u8, number: u32) -> Vec<u8> {
    [&[part][..], &number.to_be_bytes()].concat()
}

/// Replaces all entries of its part, again and again: those with odd numbers have expired soon.
fn load(db: &Db, table: &Table) {
    for round in 1..=LOADS {
        let soon = db.now() + Duration::from_millis(u64::from(round % 3));
        let expiry = |number: u32| (number % 2 == 1).then_some(soon);
        let entries = (0..LOADED).map(|number| (key(0, number), [round; 40], expiry(number)));
        assert_eq!(table.bulk_load(entries).unwrap(), u64::from(LOADED));
    }
}

/// Checks that a load is seen entirely: all of its entries that last have the value of one round.
fn look(db: &Db, table: &Table) {
    let view = db.snapshot();
    let (mut rounds, mut lasting) = (BTreeMap::new(), 0);
    for entry in view.prefix(table, [0]).unwrap() {
        let (key, value) = match entry {
            Ok(entry) => entry,
            // Many old versions of pages: this snapshot has kept too much.
            Err(error) if error.kind() == ErrorKind::SnapshotTooOld => return,
            Err(error) => panic!("{error}"),
        };
        *rounds.entry(value[0]).or_insert(0) += 1;
        lasting += u32::from(key[4].is_multiple_of(2));
    }
    assert!(rounds.len() <= 1, "entries of several loads: {rounds:?}");
    assert!([0, LOADED / 2].contains(&lasting), "{lasting} entries that last");
}

/// Changes its part of the table, and a map of that part along with it.
fn change(db: &Db, table: &Table, part: u8, is_over: &AtomicBool) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut model, mut rng) = (BTreeMap::new(), Rng::with_seed(u64::from(part)));
    let far = time(1 << 40);
    while !is_over.load(Ordering::Relaxed) || model.len() < 10 {
        let (key, value) = (key(part, rng.u32(..300)), vec![rng.u8(..); rng.usize(..200)]);
        match rng.u32(..6) {
            0 => {
                table.delete(&key).unwrap();
                model.remove(&key);
            }
            1 => {
                // Absent at once: the time has come.
                table.put_with_expiry(&key, &value, db.now()).unwrap();
                model.remove(&key);
            }
            2 => {
                let after = table.update(&key, |found| found.map(|found| [found, b"+"].concat())).unwrap();
                assert_eq!(
                    after,
                    model.get_mut(&key).map(|value: &mut Vec<u8>| {
                        value.push(b'+');
                        value.clone()
                    })
                );
            }
            3 => {
                let changed = db.transact(Durability::Sync, |change| {
                    change.put_with_expiry(table, &key, &value, far)?;
                    Ok::<_, Error>(change.get(table, &key)?.is_some())
                });
                assert!(changed.unwrap());
                model.insert(key.clone(), value);
            }
            4 => {
                table.put_with_expiry(&key, &value, far).unwrap();
                model.insert(key.clone(), value);
            }
            _ => {
                table.put(&key, &value).unwrap();
                model.insert(key.clone(), value);
            }
        }
        assert_eq!(table.get(&key).unwrap().as_ref(), model.get(&key), "part {part}");
    }
    model
}

#[test]
fn loads_puts_and_removals_of_many_threads_disturb_neither_each_other_nor_readers() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::at(time(0)));
    let settings =
        Settings { cache_bytes: 8 << 20, log_bytes: 4 << 20, clock: clock.clone().into(), ..Settings::default() };
    let path = folder.path().join("db");
    let db = Db::create(&path, &settings).unwrap();
    let table = db.create_table("t").unwrap();
    let (is_over, removed) = (AtomicBool::new(false), AtomicU64::new(0));
    let models: Vec<_> = std::thread::scope(|scope| {
        let (db, table, is_over, removed, clock) = (&db, &table, &is_over, &removed, &clock);
        let loader = scope.spawn(move || load(db, table));
        let changers: Vec<_> = [1, 2].map(|part| scope.spawn(move || change(db, table, part, is_over))).into();
        let others = [
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    clock.advance(Duration::from_millis(1));
                    removed.fetch_add(db.remove_expired().unwrap(), Ordering::Relaxed);
                }
            }),
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    look(db, table);
                }
            }),
        ];
        let loaded = loader.join();
        is_over.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|thread| thread.join().unwrap());
        loaded.unwrap();
        changers.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    clock.advance(Duration::from_secs(1));
    db.remove_expired().unwrap();
    drop(table);
    db.close().unwrap();
    let db = Db::open(&path, &settings).unwrap();
    let table = db.table("t").unwrap();
    for (part, model) in (1..).zip(&models) {
        let found: BTreeMap<_, _> = table.prefix([part]).map(Result::unwrap).collect();
        assert!(found == *model, "part {part}");
    }
    let lasting = models.iter().map(BTreeMap::len).sum::<usize>() as u64 + u64::from(LOADED / 2);
    let found = db.verify().unwrap();
    assert!(found.is_clean(), "{found:?}");
    db.remove_expired().unwrap();
    assert_eq!(table.clear().unwrap(), lasting);
    assert_eq!(table.approximate_len::<&[u8]>(..).unwrap(), 0, "an expired entry is left");
}

//! The removal of expired entries: it reaches all of them, no others, and no commit of others fails over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nofault::blocking::Db;
use nofault::clock::ManualClock;
use nofault::error::ErrorKind;
use nofault::settings::{CompactionMode, Settings};
use nofault::{Batch, Durability};
use nofault_sim::content::key;
use nofault_sim::{SimOptions, SimWorld};

use super::{disk, time, tiny};

/// Puts entries of 100 bytes that expire after `ms` milliseconds.
fn put_expiring(db: &Db, table: &nofault::blocking::Table, numbers: std::ops::Range<u32>, ms: i64) {
    for from in numbers.clone().step_by(500) {
        let mut batch = Batch::new();
        for number in from..numbers.end.min(from + 500) {
            batch.put_with_expiry(table, key(number), [7; 100], time(ms));
        }
        db.write(batch, Durability::Deferred).unwrap();
    }
}

#[test]
fn removal_leaves_no_expired_entry_and_no_row_of_the_index_and_frees_their_pages() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(1), &settings).unwrap();
    let (table, other) = (db.create_table("t").unwrap(), db.create_table("u").unwrap());
    other.put_with_expiry("first", "", time(10)).unwrap();
    db.checkpoint().unwrap();
    let before = db.stats().pool.blocks_used;
    put_expiring(&db, &table, 0..3000, 1000);
    put_expiring(&db, &other, 0..300, 5000);
    (0..100).for_each(|number| other.put(key(1000 + number), "lasts").unwrap());
    db.checkpoint().unwrap();
    let most = db.stats().pool.blocks_used;
    assert_eq!(db.remove_expired().unwrap(), 0);
    clock.advance(Duration::from_millis(999));
    assert_eq!((db.remove_expired().unwrap(), table.len().unwrap(), other.len().unwrap()), (1, 3000, 400));
    clock.advance(Duration::from_millis(1));
    assert_eq!(table.len().unwrap(), 0, "invisible before it is removed");
    assert!(table.approximate_len::<&[u8]>(..).unwrap() > 0);
    clock.advance(Duration::from_millis(125));
    assert_eq!(db.remove_expired().unwrap(), 3000);
    assert_eq!((table.approximate_len::<&[u8]>(..).unwrap(), other.len().unwrap()), (0, 400));
    clock.advance(Duration::from_millis(10_000));
    assert_eq!(db.remove_expired().unwrap(), 300);
    assert_eq!((db.stats().expired_removed, other.len().unwrap()), (3301, 100));
    assert_eq!(db.remove_expired().unwrap(), 0);
    other.clear().unwrap();
    let found = db.verify().unwrap();
    assert!(found.is_clean(), "{found:?}");
    // The entries and the rows of the index are gone, so their pages are.
    (0..2).for_each(|_| db.checkpoint().unwrap());
    let after = db.stats().pool.blocks_used;
    assert!((after - before) * 10 < most - before, "{after} blocks in use, {before} before, {most} at most");
}

#[test]
fn the_background_thread_removes_expired_entries_to_the_end() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::at(time(0)));
    let settings =
        Settings { cache_bytes: 16 << 20, log_bytes: 4 << 20, clock: clock.clone().into(), ..Settings::default() };
    let db = Db::create(folder.path().join("db"), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    put_expiring(&db, &table, 0..20_000, 1000);
    clock.advance(Duration::from_secs(2));
    assert_eq!(table.len().unwrap(), 0);
    let began = Instant::now();
    while db.stats().expired_removed < 20_000 {
        assert!(began.elapsed() < Duration::from_secs(120), "{} removed", db.stats().expired_removed);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(table.approximate_len::<&[u8]>(..).unwrap(), 0);
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_transaction_that_has_read_an_entry_does_not_fail_because_the_entry_expires_and_is_removed() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(2), &settings).unwrap();
    let (table, other) = (db.create_table("t").unwrap(), db.create_table("u").unwrap());
    table.put_with_expiry("a", "1", time(100)).unwrap();
    table.put_with_expiry("b", "2", time(100)).unwrap();
    let (reader, scanner, late) = (db.begin(), db.begin(), db.begin());
    assert_eq!(reader.get(&table, "a").unwrap(), Some(b"1".to_vec()));
    assert_eq!(scanner.range::<&str>(&table, ..).unwrap().count(), 2);
    assert_eq!(late.get(&table, "b").unwrap(), Some(b"2".to_vec()));
    clock.advance(Duration::from_millis(200));
    assert_eq!(db.remove_expired().unwrap(), 2);
    // As of its beginning the transaction still sees what it has seen.
    assert_eq!(reader.get_many(&table, &["a", "b"]).unwrap(), [Some(b"1".to_vec()), Some(b"2".to_vec())]);
    for change in [reader, scanner] {
        change.put(&other, "from", "it").unwrap();
        change.commit(Durability::Sync).unwrap();
    }
    // A put of the key is a change as any other.
    table.put("b", "3").unwrap();
    late.put(&other, "from", "late").unwrap();
    assert_eq!(late.commit(Durability::Sync).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn an_entry_that_was_put_again_since_it_expired_is_not_removed() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(3), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    for number in 0..100 {
        table.put_with_expiry(key(number), "old", time(100)).unwrap();
    }
    clock.advance(Duration::from_millis(500));
    for number in 0..50 {
        table.put(key(number), "new").unwrap();
    }
    for number in 50..70 {
        table.put_with_expiry(key(number), "later", time(10_000)).unwrap();
    }
    assert_eq!(db.remove_expired().unwrap(), 30);
    assert_eq!(table.len().unwrap(), 70);
    clock.advance(Duration::from_secs(20));
    assert_eq!((db.remove_expired().unwrap(), table.len().unwrap()), (20, 50));
}

#[test]
fn entries_put_again_beside_the_removal_are_all_there_afterwards() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::at(time(0)));
    let settings = Settings {
        cache_bytes: 16 << 20,
        log_bytes: 4 << 20,
        clock: clock.clone().into(),
        compaction: CompactionMode::Manual,
        ..Settings::default()
    };
    let db = Db::create(folder.path().join("db"), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let remover = {
        let (db, clock, is_over) = (db.clone(), clock.clone(), Arc::clone(&is_over));
        std::thread::spawn(move || {
            let mut removed = 0;
            while !is_over.load(Ordering::Relaxed) {
                clock.advance(Duration::from_millis(7));
                removed += db.remove_expired().unwrap();
            }
            removed
        })
    };
    let writers: Vec<_> = (0..3u32)
        .map(|writer| {
            let (db, table) = (db.clone(), table.clone());
            std::thread::spawn(move || {
                for round in 0..400u32 {
                    for number in 0..10 {
                        let key = key(writer * 1000 + number);
                        let mut batch = Batch::new();
                        // It expires while it is being put, as often as not; the last one lasts.
                        match round {
                            399 => batch.put(&table, key, round.to_be_bytes()),
                            _ => batch.put_with_expiry(
                                &table,
                                key,
                                round.to_be_bytes(),
                                db.now() + Duration::from_millis(5),
                            ),
                        };
                        db.write(batch, Durability::Deferred).unwrap();
                        // Nothing conflicts but with writers of the same keys, and there are none.
                        let change = db.begin();
                        change.get(&table, key).unwrap();
                        change.put(&table, key_of_counter(writer), round.to_be_bytes()).unwrap();
                        change.commit(Durability::Deferred).unwrap();
                    }
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    is_over.store(true, Ordering::Relaxed);
    let removed = remover.join().unwrap();
    println!("{removed} entries were removed beside the writers");
    for writer in 0..3 {
        for number in 0..10 {
            assert_eq!(table.get(key(writer * 1000 + number)).unwrap(), Some(399u32.to_be_bytes().to_vec()));
        }
    }
    clock.advance(Duration::from_secs(60));
    db.remove_expired().unwrap();
    assert_eq!((table.len().unwrap(), table.clear().unwrap()), (33, 33));
    assert_eq!(table.approximate_len::<&[u8]>(..).unwrap(), 0);
    assert!(db.verify().unwrap().is_clean());
}

fn key_of_counter(writer: u32) -> Vec<u8> {
    format!("counter {writer}").into_bytes()
}

#[test]
fn the_rows_of_a_dropped_table_go_with_the_next_removal() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(4), &settings).unwrap();
    db.create_table("t").unwrap().put_with_expiry("x", "", time(1)).unwrap();
    db.checkpoint().unwrap();
    let before = db.stats().pool.blocks_used;
    let table = db.create_table("gone").unwrap();
    put_expiring(&db, &table, 0..2000, 1 << 40);
    drop(table);
    db.checkpoint().unwrap();
    let most = db.stats().pool.blocks_used;
    db.drop_table("gone").unwrap();
    clock.advance(Duration::from_millis(1));
    assert_eq!(db.remove_expired().unwrap(), 1, "entries of a dropped table do not count");
    (0..2).for_each(|_| db.checkpoint().unwrap());
    let after = db.stats().pool.blocks_used;
    assert!((after - before) * 10 < most - before, "{after} blocks in use, {before} before, {most} at most");
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_disk_that_is_full_lets_expired_entries_be_removed() {
    let (clock, settings) = tiny();
    let world = SimWorld::new(5, SimOptions::calm());
    let db = Db::create_in(&world.directory(), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    put_expiring(&db, &table, 0..2000, 1000);
    db.checkpoint().unwrap();
    world.set_capacity(Some(world.bytes_used()));
    let mut number = 10_000;
    let refused = loop {
        match table.put(key(number), [1; 100]) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    clock.advance(Duration::from_secs(2));
    assert_eq!(db.remove_expired().unwrap(), 2000);
    db.checkpoint().unwrap();
    // The space is there for others.
    for number in 0..500 {
        table.put(key(20_000 + number), [1; 100]).unwrap();
    }
    assert!(db.verify().unwrap().is_clean());
}

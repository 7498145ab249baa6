//! Ranges pass expired entries leaf by leaf, not one by one, and miss no entry by it.

use std::time::Duration;

use nofault::blocking::{Db, Table};
use nofault::settings::Settings;
use nofault::{Batch, Durability};

use super::{disk, time, tiny};

const ENTRIES: u64 = 60_000;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The pages that a call has looked at.
fn pages_of<R>(db: &Db, call: impl FnOnce() -> R) -> (R, u64) {
    let before = db.stats().pool.hits;
    let answer = call();
    (answer, db.stats().pool.hits - before)
}

fn keys(table: &Table, range: std::ops::Range<u64>, reverse: bool) -> Vec<u64> {
    let range = table.range(key(range.start)..key(range.end));
    let keys: Vec<_> = if reverse { range.rev().collect() } else { range.collect() };
    keys.into_iter().map(|entry| u64::from_be_bytes(entry.unwrap().0.try_into().unwrap())).collect()
}

#[test]
fn ranges_pass_leaves_of_expired_entries_without_a_look_at_them() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(1), &Settings { page_bytes: 4096, cache_bytes: 12 << 20, ..settings }).unwrap();
    let table = db.create_table("t").unwrap();
    // A few entries last: one near the middle, and the last two.
    let lasts = [ENTRIES / 2, ENTRIES - 2, ENTRIES - 1];
    let entries = (0..ENTRIES).map(|n| (key(n), [7; 40], (!lasts.contains(&n)).then(|| time(1000))));
    table.bulk_load(entries).unwrap();
    let (_, all) = pages_of(&db, || assert_eq!(table.len().unwrap(), ENTRIES));
    let before = db.snapshot();
    clock.advance(Duration::from_millis(1000));
    assert_eq!(table.len().unwrap(), 3);

    let is = |what: &str, answer: bool, pages: u64| {
        assert!(answer, "{what}");
        assert!(pages * 20 < all, "{what} has looked at {pages} pages; all of them are {all}");
    };
    let (found, pages) = pages_of(&db, || table.first().unwrap().unwrap());
    is("first", found.0 == key(lasts[0]), pages);
    let (found, pages) = pages_of(&db, || table.is_empty().unwrap());
    is("is_empty", !found, pages);
    let (found, pages) = pages_of(&db, || table.len().unwrap());
    is("len", found == 3, pages);
    let (found, pages) = pages_of(&db, || keys(&table, 0..ENTRIES, false));
    is("a range", found == lasts, pages);
    let (found, pages) = pages_of(&db, || keys(&table, 0..ENTRIES, true));
    is("a range backwards", found.into_iter().rev().eq(lasts), pages);
    for (range, expected) in [
        (1..lasts[0], &[][..]),
        (lasts[0]..lasts[0] + 1, &lasts[..1]),
        (lasts[0] + 1..ENTRIES - 2, &[]),
        (700..ENTRIES - 1, &lasts[..2]),
    ] {
        for reverse in [false, true] {
            let (mut found, pages) = pages_of(&db, || keys(&table, range.clone(), reverse));
            found.sort_unstable();
            is(&format!("{range:?}, reverse {reverse}"), found == expected, pages);
        }
    }
    // A view from before shows all; an entry put into a passed leaf is there at once.
    assert_eq!(before.len(&table).unwrap(), ENTRIES);
    table.put(key(5), "lasts").unwrap();
    table.put_with_expiry(key(ENTRIES - 9), "later", time(3000)).unwrap();
    assert_eq!(table.first().unwrap().unwrap().0, key(5));
    let found = [5, lasts[0], ENTRIES - 9, lasts[1], lasts[2]];
    assert_eq!(keys(&table, 0..ENTRIES, false), found);
    assert_eq!(keys(&table, 0..ENTRIES, true).into_iter().rev().collect::<Vec<_>>(), found);
    table.delete(key(5)).unwrap();
    clock.advance(Duration::from_millis(2000));
    assert_eq!(keys(&table, 0..ENTRIES, false), lasts);
    assert_eq!(before.len(&table).unwrap(), ENTRIES);
    // The entries of a leaf's newer version say nothing of the version that a snapshot shows.
    let after = db.snapshot();
    table.delete(key(lasts[0])).unwrap();
    assert_eq!(table.first().unwrap().unwrap().0, key(lasts[1]));
    assert_eq!(after.len(&table).unwrap(), 3);
    drop((before, after));
    assert_eq!(db.remove_expired().unwrap(), ENTRIES - 4);
    assert_eq!(keys(&table, 0..ENTRIES, false), lasts[1..]);
    // Nor does an earlier page of the frame.
    for from in (0..ENTRIES).step_by(500) {
        let mut batch = Batch::new();
        for number in from..from + 500 {
            batch.put(&table, key(number), [8; 40]);
        }
        db.write(batch, Durability::Deferred).unwrap();
    }
    assert_eq!(table.len().unwrap(), ENTRIES);
}

#[test]
fn the_commits_of_a_removal_are_few_for_entries_that_expire_at_one_moment() {
    let (clock, settings) = tiny();
    let db = Db::create_in(&disk(1), &Settings { page_bytes: 4096, cache_bytes: 12 << 20, ..settings }).unwrap();
    let table = db.create_table("t").unwrap();
    for number in 0..5000 {
        let mut batch = Batch::new();
        batch.put_with_expiry(&table, key(number), [7; 40], time(1000));
        db.write(batch, Durability::Deferred).unwrap();
    }
    clock.advance(Duration::from_millis(1125));
    let before = db.stats().visible_commit;
    assert_eq!(db.remove_expired().unwrap(), 5000);
    let commits = db.stats().visible_commit.0 - before.0;
    assert!(commits < 5000 / 64, "{commits} commits for 5,000 entries");
}

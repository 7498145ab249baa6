//! Changes since a commit: applied to the content of that commit they give the content of the snapshot exactly, for any commits
//! between – puts done in place, deletes, splits and merges, loads, compaction, other compression, a power cut and a
//! replay of the log. And they are few where little was changed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::common::tiny;
use crate::tail::{DatedRows, dated_rows};
use fastrand::Rng;
use nofault::blocking::{ChangeApplier, Db, Snapshot};
use nofault::clock::ManualClock;
use nofault::db::{Change, Pace};
use nofault::settings::{Compression, Settings};
use nofault::{Batch, CommitSeq, Durability, TableId};
use nofault_sim::depth::by_depth;
use nofault_sim::{SimOptions, SimWorld};

/// The content of tables by their ids, which they keep when they are renamed.
type Content = BTreeMap<TableId, DatedRows>;

fn content(snapshot: &Snapshot) -> Content {
    let names = snapshot.table_names().unwrap();
    names.iter().map(|name| (snapshot.table(name).unwrap().id(), dated_rows(snapshot, name))).collect()
}

fn changes(snapshot: &Snapshot, name: &str, since: CommitSeq) -> Vec<Change> {
    let table = snapshot.table(name).unwrap();
    snapshot.changes_since(&table, since).unwrap().map(Result::unwrap).collect()
}

/// Makes changes in a copy of a table's rows. They come in the order of the keys, and the ranges do not overlap.
fn apply(rows: &mut DatedRows, changes: Vec<Change>, what: &str) {
    let mut reached = Some(Vec::new());
    for change in changes {
        match change {
            Change::DeleteRange { start, end, .. } => {
                assert!(reached.is_some_and(|reached| reached <= start), "{what}: a range begins before {start:?}");
                rows.retain(|key, _| *key < start || end.as_ref().is_some_and(|end| key >= end));
                reached = end;
            }
            Change::Put { key, value, expiry, .. } => {
                rows.insert(key, (value, expiry));
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

/// Checks that the changes of all tables lead from an older content to a snapshot's.
fn check(older: &Content, since: CommitSeq, snapshot: &Snapshot, now: SystemTime, what: &str) {
    let newer = content(snapshot);
    for name in snapshot.table_names().unwrap() {
        let id = snapshot.table(&name).unwrap().id();
        let mut rows = older.get(&id).cloned().unwrap_or_default();
        let found = changes(snapshot, &name, since);
        let mut puts: Vec<_> =
            found.iter().filter_map(|it| if let Change::Put { key, .. } = it { Some(key) } else { None }).collect();
        assert!(puts.is_sorted(), "{what}, {name}: {puts:?}");
        puts.dedup();
        apply(&mut rows, found, what);
        // Entries that have expired since are in the older content and not visible any more.
        rows.retain(|_, (_, expiry)| expiry.is_none_or(|expiry| expiry > now));
        let differ = rows.iter().filter(|(key, row)| newer[&id].get(*key) != Some(row)).map(|(key, _)| key);
        let differ: Vec<_> = differ.chain(newer[&id].keys().filter(|key| !rows.contains_key(*key))).take(5).collect();
        assert!(differ.is_empty(), "{what}, {name}, from {since} to {}: {differ:?}", snapshot.commit());
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

/// Lengths of values: in the leaf; in pages of values after a load; spread over several; with an index.
const LENGTHS: [usize; 8] = [0, 10, 30, 90, 120, 400, 1500, 40_000];

fn value(rng: &mut Rng, long: bool) -> Vec<u8> {
    let length = LENGTHS[rng.usize(..if long { LENGTHS.len() } else { 7 })];
    vec![rng.u8(..); length]
}

/// Makes some commits of any kind.
fn work(db: &Db, clock: &ManualClock, rng: &mut Rng) {
    let name = format!("table {}", rng.u32(..3));
    let table = db.open_or_create_table(&name).unwrap();
    let at = rng.u32(..600);
    match rng.u32(..26) {
        0 => db.drop_table(&name).unwrap(),
        1 => drop(db.rename_table(&name, &format!("other {}", rng.u32(..3)))),
        2 => {
            let compression = [Compression::None, Compression::Fast][rng.usize(..2)];
            db.set_compression(&name, compression).unwrap();
        }
        3 => db.checkpoint().unwrap(),
        4 => drop(db.compact(Pace::Full, |_| true).unwrap()),
        5 | 6 => {
            // One length, so that it is overwritten in place later on.
            let (step, length) = (rng.u32(1..4), LENGTHS[rng.usize(3..7)]);
            let rows = (at..at + 100).step_by(step as usize).map(|row| (key(row), vec![rng.u8(..); length]));
            table.bulk_load(rows.collect::<Vec<_>>()).unwrap();
        }
        7 | 8 => drop(table.delete_range(key(at)..key(at + rng.u32(..150))).unwrap()),
        9 => {
            clock.advance(Duration::from_secs(rng.u64(..2000)));
            db.remove_expired().unwrap();
        }
        10 => table.put(key(at), value(rng, true)).unwrap(),
        11..14 => {
            let expiry = db.now() + Duration::from_secs(rng.u64(1..4000));
            table.put_with_expiry(key(at), value(rng, false), expiry).unwrap();
        }
        14..18 => {
            // As long as before.
            let rows = table.range(key(at)..).limit(rng.u64(1..5)).map(Result::unwrap).collect::<Vec<_>>();
            for (key, mut value) in rows {
                value.iter_mut().take(1).for_each(|byte| *byte ^= 1);
                value.iter_mut().rev().take(1).for_each(|byte| *byte ^= 3);
                table.put(key, value).unwrap();
            }
        }
        kind => {
            let count = if kind == 18 { rng.usize(300..600) } else { rng.usize(1..12) };
            let mut batch = Batch::new();
            for _ in 0..count {
                let at = rng.u32(..600);
                if rng.bool() {
                    batch.put(&table, key(at), value(rng, false));
                } else {
                    batch.delete(&table, key(at));
                }
            }
            db.write(batch, [Durability::Sync, Durability::Deferred][rng.usize(..2)]).unwrap();
        }
    }
}

#[test]
fn changes_since_any_commit_lead_to_the_content_of_any_snapshot_whatever_was_committed_between() {
    let (mut checked, mut restarts) = (0, 0);
    for seed in 0..by_depth(2, 5) {
        let mut rng = Rng::with_seed(seed);
        let mut world = SimWorld::new(seed, SimOptions::default());
        let clock = ManualClock::at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let settings = Settings { cache_bytes: 4 << 20, clock: clock.clone().into(), ..tiny() };
        let mut db = Db::create_in(&world.directory(), &settings).unwrap();
        let mut olds: Vec<(CommitSeq, Content)> = Vec::new();
        // A snapshot kept while commits go on, and the moment as of which it shows entries.
        let mut held: Option<(Snapshot, SystemTime)> = None;
        for round in 0..30 {
            let what = format!("seed {seed}, round {round}");
            (0..rng.u32(1..25)).for_each(|_| work(&db, &clock, &mut rng));
            if rng.u32(..4) == 0 {
                held = None;
                drop(db);
                world = world.restart(seed * 100 + round);
                db = Db::open_in(&world.directory(), &settings).unwrap();
                restarts += 1;
            }
            db.sync().unwrap();
            let now = db.now();
            let snapshot = db.snapshot();
            for (snapshot, now) in std::iter::once((&snapshot, now)).chain(held.iter().map(|(held, now)| (held, *now)))
            {
                for _ in 0..3.min(olds.len()) {
                    let (since, older) = &olds[rng.usize(..olds.len())];
                    if *since <= snapshot.commit() {
                        check(older, *since, snapshot, now, &what);
                        checked += 1;
                    }
                }
                check(&Content::new(), CommitSeq(0), snapshot, now, &what);
            }
            olds.push((snapshot.commit(), content(&snapshot)));
            if rng.u32(..3) == 0 {
                held = Some((snapshot, now));
            }
        }
    }
    let [pairs, least] = by_depth([140, 5], [400, 20]);
    assert!(checked > pairs && restarts > least, "{checked} pairs, {restarts} restarts");
}

/// A table with values that lie in pages of values, side by side, of which many overwrite each other in place.
fn loaded(rows: u32, length: usize, cache_bytes: usize) -> (Db, CommitSeq) {
    let settings = Settings { cache_bytes, ..tiny() };
    let db = Db::create_in(&SimWorld::new(1, SimOptions::calm()).directory(), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..rows).map(|row| (key(row), vec![1; length]))).unwrap();
    let since = db.snapshot().commit();
    (db, since)
}

#[test]
fn a_value_that_was_overwritten_in_place_is_a_change_without_its_leaf() {
    // In one page with others, in two of which others have parts, and in more: the pages between are replaced, so the leaf is written.
    for (length, is_in_place) in [(110, true), (440, true), (1500, false)] {
        let (db, since) = loaded(200, length, 4 << 20);
        let table = db.table("t").unwrap();
        assert_eq!(changes(&db.snapshot(), "t", since), [], "{length}");
        table.put(key(77), vec![2; length]).unwrap();
        let found = changes(&db.snapshot(), "t", since);
        let new = Change::Put { table: table.id(), key: key(77), value: vec![2; length], expiry: None };
        assert!(found.contains(&new), "{length}: {} changes without the new value", found.len());
        let has_range = found.iter().any(|change| matches!(change, Change::DeleteRange { .. }));
        assert_eq!(has_range, !is_in_place, "{length}: {} changes", found.len());
        assert!(found.len() <= if is_in_place { 5 } else { 30 }, "{length}: {} changes", found.len());
        assert_eq!(changes(&db.snapshot(), "t", db.snapshot().commit()), []);
    }
}

#[test]
fn changes_are_those_of_the_leaves_that_were_written() {
    let db = Db::create_in(&SimWorld::new(1, SimOptions::calm()).directory(), &tiny()).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..5000).map(|row| (key(row), vec![1; 20]))).unwrap();
    let since = db.snapshot().commit();
    table.put(key(1000), "a").unwrap();
    table.delete(key(4000)).unwrap();
    let found = changes(&db.snapshot(), "t", since);
    let ranges = found.iter().filter(|change| matches!(change, Change::DeleteRange { .. })).count();
    assert!(ranges == 2 && found.len() < 40, "{found:?}");
    // A leaf without entries is a change as well.
    table.delete_range(key(10)..).unwrap();
    let middle = db.snapshot().commit();
    table.clear().unwrap();
    let found = changes(&db.snapshot(), "t", middle);
    assert_eq!(found, [Change::DeleteRange { table: table.id(), start: Vec::new(), end: None }]);
    // A table that the snapshot does not have has none.
    let snapshot = db.snapshot();
    let later = db.create_table("later").unwrap();
    later.put("key", "value").unwrap();
    assert_eq!(snapshot.changes_since(&later, CommitSeq(0)).unwrap().count(), 0);
    assert_eq!(db.snapshot().changes_since(&later, snapshot.commit()).unwrap().count(), 2);
}

#[test]
fn an_applier_makes_a_copy_of_older_content_one_of_newer() {
    let mut rng = Rng::with_seed(5);
    let new = |seed| Db::create_in(&SimWorld::new(seed, SimOptions::calm()).directory(), &tiny()).unwrap();
    let (db, copy) = (new(1), new(2));
    let mut applier = ChangeApplier::new(&copy);
    let table = db.create_table("t").unwrap();
    applier.learn(table.id(), &copy.create_table("t").unwrap());
    let mut since = CommitSeq(0);
    for round in 0..6 {
        // In one round more than are removed together.
        let count = if round == 3 { 5000 } else { rng.u32(1..400) };
        for lot in 0..count.div_ceil(500) {
            let mut batch = Batch::new();
            (0..500.min(count - lot * 500))
                .for_each(|_| _ = batch.put(&table, key(rng.u32(..20_000)), value(&mut rng, false)));
            db.write(batch, Durability::Deferred).unwrap();
        }
        table.delete_range(key(rng.u32(..9000))..key(rng.u32(..20_000)).max(key(9000))).unwrap();
        if round == 4 {
            table.clear().unwrap();
        }
        let snapshot = db.snapshot();
        for part in changes(&snapshot, "t", since).chunks(100) {
            applier.apply(part).unwrap();
        }
        since = snapshot.commit();
        let of = |db: &Db| content(&db.snapshot()).into_values().collect::<Vec<_>>();
        assert!(of(&db) == of(&copy), "round {round}");
    }
}

#[test]
fn a_table_that_is_larger_than_the_cache_is_looked_through_with_few_changes_found() {
    for length in [20, 110, 440] {
        let (db, since) = loaded(9000, length, 656 << 10);
        let table = db.table("t").unwrap();
        let mut rows: DatedRows = (0..9000).map(|row| (key(row), (vec![1; length], None))).collect();
        let mut rng = Rng::with_seed(length as u64);
        for _ in 0..60 {
            table.put(key(rng.u32(..9000)), vec![2; length]).unwrap();
        }
        table.delete(key(4000)).unwrap();
        let snapshot = db.snapshot();
        let found = changes(&snapshot, "t", since);
        let puts = found.iter().filter(|change| matches!(change, Change::Put { .. })).count();
        assert!(puts < 1500, "{length}: {puts} puts");
        apply(&mut rows, found, "larger than the cache");
        assert!(content(&snapshot).into_values().next() == Some(rows), "{length}");
    }
}

#[test]
fn an_applier_makes_ranges_and_keys_in_any_order_what_one_after_the_other_makes_of_them() {
    for seed in 0..30 {
        let mut rng = Rng::with_seed(seed);
        let world = SimWorld::new(seed, SimOptions::calm());
        let db = Db::create_in(&world.directory(), &tiny()).unwrap();
        let mut applier = ChangeApplier::new(&db);
        let mut model: BTreeMap<(u64, Vec<u8>), Vec<u8>> = BTreeMap::new();
        let names = ["a", "b"].map(|name| format!("table {name}"));
        for (id, name) in names.iter().enumerate() {
            let created = Change::CreateTable { table: TableId(id as u64 + 7), name: name.clone() };
            applier.apply(&[created]).unwrap();
        }
        for round in 0..30 {
            let (mut changes, in_order) = (Vec::new(), rng.bool());
            for _ in 0..rng.usize(1..40) {
                let (table, key) = (TableId(rng.u64(7..9)), vec![rng.u8(..60)]);
                changes.push(match rng.u8(..6) {
                    0 => Change::Delete { table, key },
                    1 | 2 => {
                        let end = (rng.u8(..8) > 0).then(|| vec![key[0] + rng.u8(..12)]);
                        Change::DeleteRange { table, start: key, end }
                    }
                    _ => Change::Put { table, key, value: vec![rng.u8(..), round], expiry: None },
                });
            }
            if in_order {
                changes.sort_by_key(|change| match change {
                    Change::Put { table, key, .. } | Change::Delete { table, key } => (*table, key.clone(), 1),
                    Change::DeleteRange { table, start, .. } => (*table, start.clone(), 0),
                    _ => unreachable!("other changes are not made here"),
                });
            }
            for change in &changes {
                match change.clone() {
                    Change::Put { table, key, value, .. } => drop(model.insert((table.0, key), value)),
                    Change::Delete { table, key } => drop(model.remove(&(table.0, key))),
                    Change::DeleteRange { table, start, end } => model.retain(|(of, key), _| {
                        *of != table.0 || *key < start || end.as_ref().is_some_and(|end| key >= end)
                    }),
                    _ => unreachable!("other changes are not made here"),
                }
            }
            applier.apply(&changes).unwrap();
            for (id, name) in names.iter().enumerate() {
                let rows: Vec<_> = db.table(name).unwrap().range::<&[u8]>(..).map(Result::unwrap).collect();
                let of_table = model.iter().filter(|((of, _), _)| *of == id as u64 + 7);
                let wanted: Vec<_> = of_table.map(|((_, key), value)| (key.clone(), value.clone())).collect();
                assert_eq!(rows, wanted, "seed {seed}, round {round}, {name}: {changes:?}");
            }
        }
    }
}

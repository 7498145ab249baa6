//! Closing a database ends its handles in the middle of any call: no handle has to be dropped before.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use nofault::blocking::Db;
use nofault::db::{Pace, TailEvent, WatchEvent};
use nofault::error::{Error, ErrorKind};
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};

use crate::common::tiny;

fn settings(background_threads: bool) -> Settings {
    Settings { background_threads, ..tiny() }
}

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

const CLOSED: Option<ErrorKind> = Some(ErrorKind::Closed);

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

/// A database with a table of 500 rows, of which the first are in memory.
fn filled(directory: &Arc<dyn Directory>, settings: &Settings) -> (Db, nofault::blocking::Table) {
    let db = Db::create_in(directory, settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..500_u32).map(|number| (number.to_be_bytes(), [number as u8; 100]))).unwrap();
    table.put("key", "value").unwrap();
    (db, table)
}

#[test]
fn every_handle_answers_closed_after_the_database_was_closed() {
    for background_threads in [false, true] {
        let world = SimWorld::new(1, SimOptions::calm());
        let (db, table) = filled(&world.directory(), &settings(background_threads));
        let (snapshot, change) = (db.snapshot(), db.begin());
        change.put(&table, "own", "write").unwrap();
        let mut begun = table.iter();
        assert!(begun.next().unwrap().is_ok());
        let (mut range, mut of_change) = (table.iter(), change.range::<&[u8]>(&table, ..).unwrap());
        let mut watch = table.watch("").unwrap();
        let (before, mut tail) = db.begin_tail().unwrap();
        let position = tail.reached();
        let mut batch = Batch::new();
        batch.put(&table, "key", "later");
        table.put("watched", "1").unwrap();
        let (other, awaited) = (db.clone(), db.asynchronous().await_durable());

        db.close().unwrap();

        let what = format!("background threads: {background_threads}");
        assert_eq!(kind(table.get("key")), CLOSED, "{what}");
        assert_eq!(kind(table.get("absent")), CLOSED);
        assert_eq!(kind(table.contains_key("key")), CLOSED);
        assert_eq!(kind(table.get_many(&["key"])), CLOSED);
        assert_eq!(kind(table.get_with("key", |value| value.is_some())), CLOSED);
        assert_eq!(kind(table.expiry("key")), CLOSED);
        assert_eq!(kind(table.first()), CLOSED);
        assert_eq!(kind(table.len()), CLOSED);
        assert_eq!(kind(table.approximate_len::<&[u8]>(..)), CLOSED);
        assert_eq!(kind(table.put("key", "later")), CLOSED);
        assert_eq!(kind(table.delete("key")), CLOSED);
        assert_eq!(kind(table.update("key", |_| None)), CLOSED);
        assert_eq!(kind(table.clear()), CLOSED);
        assert_eq!(kind(table.bulk_load([("zz", "1")])), CLOSED);
        assert_eq!(kind(table.watch("")), CLOSED);
        assert_eq!(kind(snapshot.get(&table, "key")), CLOSED);
        assert_eq!(kind(snapshot.table("t")), CLOSED);
        assert_eq!(kind(snapshot.table_names()), CLOSED);
        assert_eq!(kind(before.len(&table)), CLOSED);
        assert_eq!(kind(change.get(&table, "own")), CLOSED);
        assert_eq!(kind(change.put(&table, "own", "again")), CLOSED);
        assert_eq!(kind(of_change.next().unwrap()), CLOSED);
        assert_eq!(kind(change.commit(Durability::Sync)), CLOSED);
        // Entries read before are returned, and then the error, once.
        let left: Vec<_> = begun.collect();
        assert!(left.len() < 500 && left.iter().rev().skip(1).all(Result::is_ok), "{} entries", left.len());
        assert_eq!(left.last().unwrap().as_ref().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(kind(range.next().unwrap()), CLOSED);
        assert!(range.next().is_none());
        assert!(matches!(watch.next().unwrap(), Ok(WatchEvent::Commit { .. })));
        assert_eq!(kind(watch.next().unwrap()), CLOSED);
        assert!(watch.next().is_none());
        assert_eq!(kind(tail.next().unwrap()), CLOSED);

        assert_eq!(kind(other.table("t")), CLOSED);
        assert_eq!(kind(other.create_table("u")), CLOSED);
        assert_eq!(kind(other.open_or_create_table("t")), CLOSED);
        assert_eq!(kind(other.rename_table("t", "t")), CLOSED);
        assert_eq!(kind(other.drop_table("t")), CLOSED);
        assert_eq!(kind(other.compression("t")), CLOSED);
        assert_eq!(kind(other.table_names()), CLOSED);
        assert_eq!(kind(other.list_tables()), CLOSED);
        assert_eq!(kind(other.write(batch, Durability::Deferred)), CLOSED);
        assert_eq!(kind(other.write(Batch::new(), Durability::Sync)), CLOSED);
        assert_eq!(kind(other.transact(Durability::Sync, |_| Ok::<_, Error>(()))), CLOSED);
        assert_eq!(kind(other.sync()), CLOSED);
        assert_eq!(kind(other.await_durable()), CLOSED);
        assert_eq!(kind(other.checkpoint()), CLOSED);
        assert_eq!(kind(other.compact(Pace::Full, |_| true)), CLOSED);
        assert_eq!(kind(other.shrink(Pace::Full, |_| true)), CLOSED);
        assert_eq!(kind(other.verify()), CLOSED);
        assert_eq!(kind(other.remove_expired()), CLOSED);
        assert_eq!(kind(other.watch()), CLOSED);
        assert_eq!(kind(other.begin_tail()), CLOSED);
        assert_eq!(kind(other.tail(&position)), CLOSED);
        assert_eq!(kind(other.snapshot().get(&table, "key")), CLOSED);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(kind(other.backup(folder.path().join("copy"))), CLOSED);
        assert_eq!(kind(Db::open(folder.path().join("copy"), &tiny())), Some(ErrorKind::NotFound));
        assert!(other.stats().pool.frames > 0 && format!("{other:?}").contains("commit"));
        let error = other.clone().close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.to_string().contains("by another handle"), "{error}");
        // Begun before, and true.
        block_on(awaited).unwrap();
        if background_threads {
            let table = other.asynchronous();
            assert_eq!(kind(block_on(table.table("t"))), CLOSED);
            assert_eq!(kind(block_on(table.close())), CLOSED);
        }

        // Another opening of the same files is not disturbed by the rest of the opening before.
        let db = Db::open_in(&world.directory(), &settings(background_threads)).unwrap();
        drop((table, snapshot, before, range, watch, tail, other));
        let table = db.table("t").unwrap();
        assert_eq!(table.get("watched").unwrap(), Some(b"1".to_vec()));
        assert_eq!((table.len().unwrap(), table.get("own").unwrap()), (502, None));
        assert!(db.verify().unwrap().is_clean());
        let mut tail = db.tail(&position).unwrap();
        assert!(matches!(tail.next().unwrap(), Ok(TailEvent::Commit { .. })));
    }
}

#[test]
fn a_database_is_opened_by_others_while_handles_of_the_one_before_live() {
    for background_threads in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let db = Db::create(&path, &settings(background_threads)).unwrap();
        let table = db.create_table("t").unwrap();
        table.put("a", "1").unwrap();
        let (snapshot, reader) = (db.snapshot(), Db::open_read_only(&path, &tiny()).unwrap());
        let (seen, before) = (reader.table("t").unwrap(), reader.clone());
        db.close().unwrap();
        let db = Db::open(&path, &settings(background_threads)).unwrap();
        assert_eq!(db.table("t").unwrap().get("a").unwrap(), Some(b"1".to_vec()));
        assert_eq!(kind(table.put("a", "2")), CLOSED);
        drop((table, snapshot));
        db.table("t").unwrap().put("a", "3").unwrap();

        assert_eq!(seen.get("a").unwrap(), Some(b"1".to_vec()));
        assert_eq!(kind(seen.put("a", "2")), Some(ErrorKind::ReadOnly));
        reader.close().unwrap();
        let mut before = before;
        assert_eq!((kind(seen.get("a")), kind(seen.put("a", "2"))), (CLOSED, CLOSED));
        assert_eq!((kind(before.refresh()), kind(before.clone().close())), (CLOSED, CLOSED));
        // The writer keeps nothing for a reader that was closed.
        db.checkpoint().unwrap();
        db.checkpoint().unwrap();
        assert_eq!(db.stats().pool.blocks_kept, 0);
        db.close().unwrap();
    }
}

/// A load takes its entries from the caller, whose iterator may wait for anything.
#[test]
fn closing_waits_for_no_code_of_the_callers() {
    let world = SimWorld::new(2, SimOptions::calm());
    let (db, table) = filled(&world.directory(), &settings(true));
    let loaded = db.create_table("loaded").unwrap();
    let (go_on, waits): (_, Receiver<()>) = channel();
    let (begun, has_begun) = channel();
    let load = std::thread::spawn(move || {
        loaded.bulk_load(
            (0..1_000_u32)
                .inspect(|number| {
                    if *number == 500 {
                        begun.send(()).unwrap();
                        let _ = waits.recv();
                    }
                })
                .map(|number| (number.to_be_bytes(), [1; 100])),
        )
    });
    has_begun.recv().unwrap();
    // These wait for the load.
    let (of_tasks, of_table): (nofault::Db, &nofault::Table) = (db.asynchronous(), table.as_ref());
    let mut put = pin!(of_table.put("key", "behind the load"));
    let mut dropped = pin!(of_tasks.drop_table("t"));
    assert!(poll(put.as_mut()).is_pending() && poll(dropped.as_mut()).is_pending());
    let own = table.clone();
    let waiting = std::thread::spawn(move || own.put("key", "behind the load"));
    // Closed by the closure of a transaction, as it runs.
    let closed = db.transact(Durability::Sync, |change| {
        change.put(&table, "key", "of the transaction")?;
        db.clone().close().unwrap();
        change.put(&table, "key", "of the transaction")
    });
    assert_eq!(kind(closed), CLOSED);
    assert_eq!(kind(waiting.join().unwrap()), CLOSED);
    assert_eq!((kind(block_on(put)), kind(block_on(dropped))), (CLOSED, CLOSED));
    drop(go_on);
    assert_eq!(kind(load.join().unwrap()), CLOSED);
    let db = Db::open_in(&world.directory(), &settings(true)).unwrap();
    assert_eq!(db.table("t").unwrap().get("key").unwrap(), Some(b"value".to_vec()));
    assert_eq!(db.table("loaded").unwrap().len().unwrap(), 0);
    assert!(db.verify().unwrap().is_clean());
}

/// A future that no thread polls must not hold the closing up; polled later, it tells the truth.
#[test]
fn calls_whose_futures_are_not_polled_do_not_hold_up_the_closing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let rows = |count: u32| (0..count).map(|number| (number.to_be_bytes(), [number as u8; 300]));
    let db = Db::create(&path, &settings(true)).unwrap();
    db.create_table("t").unwrap().bulk_load(rows(20_000)).unwrap();
    db.close().unwrap();
    for round in 0..by_depth(5, 20_u32) {
        let db = block_on(nofault::Db::open(&path, &settings(true))).unwrap();
        let table = block_on(db.table("t")).unwrap();
        let key = (round * 997 % 20_000).to_be_bytes();
        let mut watch = block_on(table.watch("")).unwrap();
        let mut range = table.range::<&[u8]>(key.as_slice()..);
        let mut put = pin!(table.put(key, round.to_be_bytes()));
        let mut batch = Batch::new();
        (0..2_000_u32).for_each(|number| _ = batch.put(&table, number.to_be_bytes(), round.to_be_bytes()));
        let mut large = pin!(db.write(batch, Durability::Sync));
        let mut get = pin!(table.get((round * 613 % 20_000).to_be_bytes()));
        let mut copied = pin!(db.backup(folder.path().join(format!("copy {round}"))));
        let mut verified = pin!(db.verify());
        let mut compacted = pin!(db.compact(Pace::Full, |_| true));
        let mut awaited = pin!(watch.next());
        let mut next = pin!(range.next());
        let put_before = poll(put.as_mut());
        let large_before = poll(large.as_mut());
        let get_before = poll(get.as_mut());
        let next_before = poll(next.as_mut());
        let copied_before = poll(copied.as_mut());
        let verified_before = poll(verified.as_mut());
        let compacted_before = poll(compacted.as_mut());
        let watched = poll(awaited.as_mut());
        block_on(db.clone().close()).unwrap();
        let result = |before: Poll<Result<(), Error>>, after: Pin<&mut dyn Future<Output = Result<(), Error>>>| {
            let result = match before {
                Poll::Ready(result) => result,
                Poll::Pending => block_on(after),
            };
            assert!(matches!(kind(result.clone()), None | CLOSED), "{result:?}");
            result.is_ok()
        };
        let (is_put, is_large) = (result(put_before, put), result(large_before, large));
        let is_copied = result(copied_before, copied);
        for ended in [
            get_before.map_ok(drop).map_or_pending(|| block_on(get).map(drop)),
            next_before.map_ok(drop).map_or_pending(|| block_on(next).map(drop)),
            verified_before.map_ok(drop).map_or_pending(|| block_on(verified).map(drop)),
            compacted_before.map_ok(drop).map_or_pending(|| block_on(compacted).map(drop)),
            watched.map_ok(drop).map_or_pending(|| block_on(awaited).map(drop)),
        ] {
            assert!(matches!(kind(ended.clone()), None | CLOSED), "{ended:?}");
        }
        let db = Db::open(&path, &settings(true)).unwrap();
        let reopened = db.table("t").unwrap();
        assert_eq!(reopened.len().unwrap(), 20_000);
        let found = reopened.get(key).unwrap().unwrap();
        assert!(!is_put || u32::from_be_bytes(key) < 2_000 || found == round.to_be_bytes(), "round {round}");
        assert!(!is_large || reopened.get(1_999_u32.to_be_bytes()).unwrap().unwrap() == round.to_be_bytes());
        if is_copied {
            let copy = Db::open(folder.path().join(format!("copy {round}")), &settings(true)).unwrap();
            assert_eq!(copy.table("t").unwrap().len().unwrap(), 20_000);
        }
        db.close().unwrap();
    }
}

/// Completes a poll by the rest of the call.
trait OrRest<T> {
    fn map_or_pending(self, rest: impl FnOnce() -> T) -> T;
}

impl<T> OrRest<T> for Poll<T> {
    fn map_or_pending(self, rest: impl FnOnce() -> T) -> T {
        match self {
            Poll::Ready(result) => result,
            Poll::Pending => rest(),
        }
    }
}

#[test]
fn of_several_calls_that_close_one_does_and_the_others_say_so() {
    for _ in 0..by_depth(6, 20) {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::create(folder.path().join("db"), &settings(true)).unwrap();
        db.create_table("t").unwrap().put("a", "1").unwrap();
        let start = Barrier::new(4);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let close = || {
                let db = db.clone();
                start.wait();
                kind(db.close())
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(close)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_none()).count(), 1, "{outcomes:?}");
        assert!(outcomes.iter().all(|outcome| matches!(*outcome, None | CLOSED)), "{outcomes:?}");
        Db::open(folder.path().join("db"), &settings(true)).unwrap();
    }
}

/// How a database is opened by a test.
type Open<'a> = &'a dyn Fn() -> Db;

/// Lets threads and tasks use a database until it is closed, and checks that the next opening has all that they were promised.
fn hammer(seed: u64, open: Open<'_>) {
    const KEYS: u32 = 4_000;
    let db = open();
    let table = db.open_or_create_table("t").unwrap();
    let before: BTreeMap<Vec<u8>, Vec<u8>> = table.iter().map(Result::unwrap).collect();
    let is_closed = AtomicBool::new(false);
    let started = AtomicU32::new(0);
    let ended = |outcome: Result<(), Error>| match outcome {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            true
        }
    };
    let mut acknowledged = BTreeMap::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2_u32)
            .map(|writer| {
                let (db, table, started) = (&db, &table, &started);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed * 10 + u64::from(writer));
                    // Of each key the last value that was acknowledged, and those that may have been written since.
                    let mut promised: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
                    for version in 0.. {
                        let count = if rng.u32(..10) == 0 { 600 } else { rng.u32(1..4) };
                        let mut batch = Batch::new();
                        let mut written = BTreeMap::new();
                        for _ in 0..count {
                            let key = [writer.to_be_bytes(), rng.u32(..KEYS).to_be_bytes()].concat();
                            let value =
                                [&u32::to_be_bytes(version)[..], &vec![writer as u8; rng.usize(..300)]].concat();
                            batch.put(table, &key, &value);
                            written.insert(key, value);
                        }
                        let outcome = db.write(batch, Durability::Sync);
                        for (key, value) in written {
                            let values = promised.entry(key).or_default();
                            if outcome.is_ok() {
                                values.clear();
                            }
                            values.push(value);
                        }
                        started.fetch_add(1, Ordering::Relaxed);
                        if ended(outcome) {
                            return promised;
                        }
                    }
                    unreachable!("a writer ends with the database")
                })
            })
            .collect();
        for reader in 0..2_u64 {
            let (db, table, is_closed) = (&db, &table, &is_closed);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed * 100 + reader);
                loop {
                    let after = is_closed.load(Ordering::SeqCst);
                    let key = [rng.u32(..2).to_be_bytes(), rng.u32(..KEYS).to_be_bytes()].concat();
                    let outcome = match rng.u32(..5) {
                        0 => table.get(&key).map(drop),
                        1 => table.range(key..).take(200).try_for_each(|entry| entry.map(drop)),
                        2 => db.snapshot().get_many(table, &[key]).map(drop),
                        3 => db.checkpoint(),
                        _ => table.range(..key).rev().take(50).try_for_each(|entry| entry.map(drop)),
                    };
                    let is_over = ended(outcome);
                    assert!(is_over || !after, "an answer after the database was closed");
                    if is_over {
                        return;
                    }
                }
            });
        }
        let (db, is_closed) = (&db, &is_closed);
        while started.load(Ordering::Relaxed) < 20 {
            std::thread::yield_now();
        }
        db.clone().close().unwrap();
        is_closed.store(true, Ordering::SeqCst);
        for writer in writers {
            acknowledged.append(&mut writer.join().unwrap());
        }
    });
    let db = open();
    assert!(db.verify().unwrap().is_clean());
    let found: BTreeMap<Vec<u8>, Vec<u8>> = db.table("t").unwrap().iter().map(Result::unwrap).collect();
    for (key, values) in &acknowledged {
        let found = found.get(key);
        let was_unknown = values.len() == 1 && found == before.get(key);
        let is_known = found.is_some_and(|found| values.contains(found));
        assert!(is_known || was_unknown, "seed {seed}: {key:?} has {found:?} of {values:?}");
    }
    assert!(before.keys().all(|key| found.contains_key(key)));
    drop(table);
    db.close().unwrap();
}

#[test]
fn what_was_acknowledged_while_the_database_was_being_closed_is_there_on_a_simulated_disk() {
    for seed in sample(0..12, 2) {
        let world = SimWorld::new(seed, SimOptions::adversarial());
        let settings = settings(seed % 3 > 0);
        Db::create_in(&world.directory(), &settings).unwrap().close().unwrap();
        for round in 0..by_depth(2, 3) {
            hammer(seed * 10 + round, &|| Db::open_in(&world.directory(), &settings).unwrap());
        }
    }
}

#[test]
fn what_was_acknowledged_while_the_database_was_being_closed_is_there_on_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path: &Path = &folder.path().join("db");
    let settings = Settings { page_bytes: 4096, cache_bytes: 2 << 20, ..settings(true) };
    Db::create(path, &settings).unwrap().close().unwrap();
    for seed in 0..by_depth(6, 20) {
        hammer(seed, &|| Db::open(path, &settings).unwrap());
    }
}

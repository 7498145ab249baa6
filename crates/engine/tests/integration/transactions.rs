//! Transactions under contention, and calls that are as large as a caller can make them.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::common::tiny;
use nofault::blocking::{Db, Table};
use nofault::db::TransactOptions;
use nofault::error::{Error, ErrorKind};
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_sim::{SimOptions, SimWorld};

/// Runs of a closure after which a test concludes that the transaction will never commit.
const RUNS_MAX: u32 = 20;
/// Number of large commits among small ones.
const LARGE: u32 = 200;

fn in_memory(seed: u64) -> Arc<dyn Directory> {
    SimWorld::new(seed, SimOptions::calm()).directory()
}

fn database(settings: &Settings) -> (Db, Table) {
    let db = Db::create_in(&in_memory(3), settings).unwrap();
    let table = db.create_table("t").unwrap();
    (db, table)
}

fn defer(db: &Db, table: &Table, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
    let mut batch = Batch::new();
    batch.put(table, key, value);
    db.write(batch, Durability::Deferred).unwrap();
}

/// Returns an arbitrary error of the engine, to end `transact` from inside its closure.
fn give_up(table: &Table) -> Error {
    table.bulk_load([("b", "1"), ("a", "2")]).unwrap_err()
}

/// Runs a transaction reading with `read`, while `puts` commits change keys that it does not read. Returns the
/// number of runs that it took to commit.
fn runs_beside_puts(
    settings: &Settings,
    puts: u32,
    read: impl Fn(&nofault::blocking::Transaction, &Table) -> nofault::error::Result<()>,
) -> u32 {
    let (db, table) = database(settings);
    let spare = db.create_table("spare").unwrap();
    for number in 0..100_u32 {
        defer(&db, &table, [b"a", &number.to_be_bytes()[..]].concat(), "1");
    }
    let mut runs = 0;
    db.transact(Durability::Deferred, |change| {
        runs += 1;
        if runs > RUNS_MAX {
            return Err(give_up(&spare));
        }
        read(change, &table)?;
        for number in 0..puts {
            defer(&db, &table, [b"z", &number.to_be_bytes()[..]].concat(), "1");
        }
        change.put(&table, "result", "1")
    })
    .unwrap_or_else(|error| panic!("{runs} runs, and no commit: {error}"));
    runs
}

#[test]
fn a_transaction_commits_beside_ten_thousand_puts_of_keys_that_it_never_read() {
    let roomy =
        Settings { cache_bytes: 16 << 20, log_bytes: 64 << 20, background_threads: false, ..Settings::default() };
    let one_key = |change: &nofault::blocking::Transaction, table: &Table| change.get(table, "a").map(drop);
    let one_range = |change: &nofault::blocking::Transaction, table: &Table| {
        let count = change.range(table, "a".."b")?.map(|entry| entry.map(drop)).collect::<Result<Vec<_>, _>>()?.len();
        assert_eq!(count, 100);
        Ok(())
    };
    assert_eq!(runs_beside_puts(&roomy, 10_000, one_key), 1, "one key");
    assert_eq!(runs_beside_puts(&roomy, 10_000, one_range), 1, "one range");
    // Where the memory for recent commits holds a few hundred of them.
    let least = Settings { cache_bytes: 1 << 20, log_bytes: 4 << 20, ..tiny() };
    assert!(runs_beside_puts(&least, 10_000, one_key) <= 8);
    assert!(runs_beside_puts(&least, 10_000, one_range) <= 8);
}

#[test]
fn of_64_tasks_on_one_key_none_gets_less_than_a_tenth_of_its_share_and_few_runs_are_lost() {
    const TASKS: usize = 64;
    const COMMITS: u32 = 20;
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let settings = Settings { cache_bytes: 16 << 20, ..Settings::default() };
        let db = nofault::Db::create(folder.path().join("db"), &settings).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        let (all, runs) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let (db, table, all, runs) = (db.clone(), table.clone(), all.clone(), runs.clone());
            tasks.push(tokio::task::spawn_local(async move {
                let mut own = 0;
                while all.get() < TASKS as u32 * COMMITS {
                    db.transact(Durability::Sync, async |change| {
                        runs.set(runs.get() + 1);
                        let count = change
                            .get(&table, "hot")
                            .await?
                            .map_or(0, |value| u32::from_be_bytes(value.try_into().unwrap()));
                        tokio::task::yield_now().await;
                        change.put(&table, "hot", (count + 1).to_be_bytes())
                    })
                    .await
                    .unwrap();
                    own += 1;
                    all.set(all.get() + 1);
                }
                own
            }));
        }
        let mut own = Vec::new();
        for task in tasks {
            own.push(task.await.unwrap());
        }
        let (commits, runs) = (own.iter().sum::<u32>(), runs.get());
        println!("{commits} commits in {runs} runs, each task {own:?}");
        let count = table.get("hot").await.unwrap().unwrap();
        assert_eq!(count, commits.to_be_bytes(), "updates were lost");
        let mean = commits / TASKS as u32;
        assert!(own.iter().all(|own| *own >= mean / 10 && *own > 0), "{own:?}");
        assert!(runs < commits * 8, "{runs} runs for {commits} commits");
    });
}

/// An application's own error.
#[derive(Debug)]
enum Refusal {
    SoldOut,
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

#[test]
fn the_applications_own_error_ends_transact_at_once_and_nothing_is_committed() {
    let (db, table) = database(&tiny());
    let runs = Cell::new(0);
    let sell = |change: &nofault::blocking::Transaction| {
        runs.set(runs.get() + 1);
        change.put(&table, "sold", "1")?;
        change.get(&table, "stock")?.ok_or(Refusal::SoldOut)
    };
    assert!(matches!(db.transact(Durability::Sync, sell), Err(Refusal::SoldOut)));
    assert_eq!((runs.get(), table.get("sold").unwrap()), (1, None));
    // An error of the engine arrives in the same type.
    let failed = db.transact(Durability::Sync, |change| {
        change.put(&table, vec![0; 1 << 20], "1")?;
        Ok::<_, Refusal>(())
    });
    assert!(matches!(&failed, Err(Refusal::Failed(error)) if error.kind() == ErrorKind::InvalidCall), "{failed:?}");
    table.put("stock", "1").unwrap();
    assert_eq!(db.transact(Durability::Sync, sell).unwrap(), b"1");
    assert!(table.contains_key("sold").unwrap());
}

#[test]
fn transact_ends_with_its_own_kind_of_error_after_so_many_runs_or_so_much_time() {
    let (db, table) = database(&tiny());
    let lose = |options: TransactOptions| {
        let mut runs = 0;
        let lost = db.transact(options, |change| {
            runs += 1;
            let number = u32::from_be_bytes(change.get(&table, "k")?.map_or([0; 4], |value| value.try_into().unwrap()));
            table.put("k", (number + 1).to_be_bytes())?;
            change.put(&table, "result", "1")
        });
        (runs, lost.unwrap_err().kind())
    };
    let options = TransactOptions::from(Durability::Sync);
    assert_eq!(lose(options.runs_max(1)), (1, ErrorKind::RetriesExhausted));
    assert_eq!(lose(options.runs_max(3)), (3, ErrorKind::RetriesExhausted));
    assert_eq!(lose(options.time_max(Duration::ZERO)), (1, ErrorKind::RetriesExhausted));
    assert_eq!(lose(options.runs_max(0)), (0, ErrorKind::InvalidCall));
    assert_eq!(table.get("result").unwrap(), None);
    let generous = options.runs_max(1).time_max(Duration::from_secs(3600));
    db.transact(generous, |change| change.put(&table, "result", "1")).unwrap();
}

#[test]
fn a_transaction_begun_after_the_wait_for_a_conflict_does_not_lose_to_the_same_commit() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = Settings { cache_bytes: 16 << 20, ..Settings::default() };
        let db = nofault::Db::create(folder.path().join("db"), &settings).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        for round in 0..50_u8 {
            let change = db.begin();
            change.get(&table, "k").await.unwrap();
            change.put(&table, "other", "1").unwrap();
            let mut put = std::pin::pin!(table.put("k", [round]));
            // One poll publishes the commit and leaves it to the disk to make it visible.
            let ready = std::future::poll_fn(|context| Poll::Ready(put.as_mut().poll(context).is_ready())).await;
            let Err(lost) = change.commit(Durability::Sync).await else { panic!("a lost update") };
            db.after_conflict(lost).await.unwrap();
            let change = db.begin();
            assert_eq!(change.get(&table, "k").await.unwrap(), Some(vec![round]));
            change.put(&table, "other", "1").unwrap();
            change.commit(Durability::Sync).await.unwrap();
            if !ready {
                put.await.unwrap();
            }
        }
        let other = db.after_conflict(db.table("none").await.unwrap_err()).await.unwrap_err();
        assert_eq!(other.kind(), ErrorKind::NotFound, "an error that is no conflict is given back");
    });
}

#[test]
fn a_conflict_of_another_database_is_not_waited_for() {
    let ((db, table), (other, _)) = (database(&tiny()), database(&tiny()));
    (0..100).for_each(|_| table.put("k", "1").unwrap());
    let change = db.begin();
    change.get(&table, "k").unwrap();
    change.put(&table, "k", "2").unwrap();
    table.put("k", "3").unwrap();
    other.after_conflict(change.commit(Durability::Sync).unwrap_err()).unwrap();
}

#[test]
fn the_closure_of_transact_can_neither_commit_nor_keep_its_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let settings = Settings { cache_bytes: 16 << 20, ..Settings::default() };
        let db = nofault::Db::create(folder.path().join("db"), &settings).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        let refused = db.transact(Durability::Sync, async |change| {
            change.put(&table, "k", "1")?;
            change.commit(Durability::Sync).await
        });
        assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::InvalidCall);
        assert_eq!(table.get("k").await.unwrap(), None);
        let kept = std::sync::Mutex::new(None);
        let keep = async |change: nofault::Transaction| {
            change.put(&table, "k", "1")?;
            *kept.lock().unwrap() = Some(change);
            Ok::<_, Error>(())
        };
        db.transact(Durability::Sync, keep).await.unwrap();
        let change = kept.lock().unwrap().take().unwrap();
        assert_eq!(change.put(&table, "l", "1").unwrap_err().kind(), ErrorKind::InvalidCall);
        assert_eq!(change.get(&table, "k").await.unwrap_err().kind(), ErrorKind::InvalidCall);
        assert_eq!(table.get("k").await.unwrap(), Some(b"1".to_vec()));
    });
}

#[test]
fn a_bulk_load_whose_entries_write_to_the_same_database_is_refused() {
    for background_threads in [true, false] {
        let (db, table) = database(&Settings { background_threads, ..tiny() });
        let other = db.create_table("other").unwrap();
        let outcome: Arc<std::sync::Mutex<Vec<ErrorKind>>> = Arc::default();
        let entries = (0..3_u32).map(|number| {
            let mut noted = outcome.lock().unwrap();
            noted.push(other.put("k", "1").unwrap_err().kind());
            noted.push(db.create_table("third").unwrap_err().kind());
            noted.push(other.bulk_load([("a", "b")]).unwrap_err().kind());
            noted.push(db.transact(Durability::Sync, |change| change.put(&other, "k", "1")).unwrap_err().kind());
            let mut large = Batch::new();
            (0..5_000_u32).for_each(|number| _ = large.put(&other, number.to_be_bytes(), [1; 50]));
            noted.push(db.write(large, Durability::Sync).unwrap_err().kind());
            assert_eq!(other.get("k").unwrap(), None, "reads go on");
            (number.to_be_bytes(), "1")
        });
        assert_eq!(table.bulk_load(entries).unwrap(), 3);
        assert!(outcome.lock().unwrap().iter().all(|kind| *kind == ErrorKind::InvalidCall), "{outcome:?}");
        other.put("k", "2").unwrap();
        assert_eq!(other.get("k").unwrap().unwrap(), b"2");
    }
}

#[test]
fn a_bulk_load_whose_entries_write_to_another_database_is_allowed() {
    let (_db, table) = database(&tiny());
    let (_other_db, other) = database(&tiny());
    let entries = (0..3_u32).map(|number| {
        other.put(number.to_be_bytes(), "1").unwrap();
        (number.to_be_bytes(), "1")
    });
    assert_eq!(table.bulk_load(entries).unwrap(), 3);
    assert_eq!(other.range::<&[u8]>(..).count(), 3);
}

/// Makes a database that can keep few old versions, and a function that writes so much that its snapshots become too old.
fn forgetful() -> (Db, Table, impl Fn()) {
    let (db, table) = database(&Settings { snapshot_bytes_max: 4 * 512, ..tiny() });
    let put_all = {
        let table = table.clone();
        move || (0..400_u32).for_each(|number| table.put(number.to_be_bytes(), [7; 60]).unwrap())
    };
    put_all();
    (db, table, put_all)
}

#[test]
fn a_failed_range_returns_its_error_once_and_ends() {
    let (db, table, put_all) = forgetful();
    let mut range = table.range::<&[u8]>(..);
    range.next().unwrap().unwrap();
    let mut lent = table.range::<&[u8]>(..);
    lent.next_ref().unwrap().unwrap();
    let change = db.begin();
    let mut changed = change.range::<&[u8]>(&table, ..).unwrap();
    changed.next().unwrap().unwrap();
    let asynchronous = db.asynchronous();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let snapshot = asynchronous.snapshot();
    let mut awaited = snapshot.range::<&[u8]>(table.as_ref(), ..).unwrap();
    runtime.block_on(awaited.next()).unwrap().unwrap();
    put_all();
    fn is_over<T>(mut entries: impl Iterator<Item = Result<T, Error>>) {
        let failed = entries
            .by_ref()
            .take(1_000)
            .position(|entry| entry.is_err_and(|error| error.kind() == ErrorKind::SnapshotTooOld));
        assert!(failed.is_some(), "it never failed");
        assert!(entries.next().is_none(), "it goes on after an error");
        assert!(entries.next().is_none());
    }
    is_over(&mut range);
    assert!(range.next_ref().unwrap().is_none());
    let failed = (0..1_000).find_map(|_| lent.next_ref().map(drop).err());
    assert_eq!(failed.map(|error| error.kind()), Some(ErrorKind::SnapshotTooOld));
    assert!(lent.next_ref().unwrap().is_none() && lent.next().is_none());
    is_over(&mut changed);
    assert!(changed.next_ref().unwrap().is_none());
    drop(changed);
    runtime.block_on(async {
        let mut failures = 0;
        for _ in 0..1_000 {
            match awaited.next().await {
                Ok(Some(_)) => assert_eq!(failures, 0, "entries after an error"),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::SnapshotTooOld);
                    failures += 1;
                }
            }
        }
        assert_eq!(failures, 1);
        assert!(awaited.next_ref().await.unwrap().is_none());
    });
}

#[test]
fn a_transaction_remembers_a_key_once_and_is_refused_more_keys_than_its_share_of_memory() {
    let (db, table) = database(&tiny());
    let change = db.begin();
    for _ in 0..200_000 {
        change.get(&table, "the same").unwrap();
    }
    let refused = (0..200_000_u32).find_map(|number| change.get(&table, number.to_be_bytes()).err());
    let error = refused.expect("200,000 keys, and no limit");
    assert_eq!(format!("{:?}", error.kind()), "TransactionTooLarge", "{error}");
    // The transaction may read again a key that it has read before, and it can still commit.
    change.get(&table, "the same").unwrap();
    change.put(&table, "k", "1").unwrap();
    change.commit(Durability::Sync).unwrap();
    // A range takes the memory of one read, however many keys are in it.
    let change = db.begin();
    assert_eq!(change.range::<&[u8]>(&table, ..).unwrap().count(), 1);
    for number in 0..200_000_u32 {
        change.get(&table, number.to_be_bytes()).unwrap();
    }
}

/// Polls a future to its end and counts the polls.
async fn polls<F: Future>(future: F) -> (u64, F::Output) {
    let mut future = std::pin::pin!(future);
    let count = AtomicU64::new(0);
    let output = std::future::poll_fn(|context| {
        count.fetch_add(1, Ordering::Relaxed);
        let poll = future.as_mut().poll(context);
        if poll.is_pending() { Poll::Pending } else { poll }
    })
    .await;
    (count.into_inner(), output)
}

/// Keys or changes that one poll may handle at the most.
const AT_ONCE_MAX: u64 = 4096;

#[test]
fn a_call_for_many_keys_in_memory_lets_other_tasks_run_between_a_bounded_number_of_them() {
    let folder = tempfile::tempdir().unwrap();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let settings = Settings { cache_bytes: 64 << 20, ..Settings::default() };
        let db = nofault::Db::create(folder.path().join("db"), &settings).await.unwrap();
        let table = db.create_table("t").await.unwrap();
        table.bulk_load((0..1_000_u32).map(|number| (number.to_be_bytes(), [1; 8]))).await.unwrap();
        for keys in [2_000_u32, 100_000] {
            let keys: Vec<_> = (0..keys).map(|number| (number % 1_000).to_be_bytes()).collect();
            table.get_many(&keys).await.unwrap();
            for in_snapshot in [false, true] {
                let (polls, values) = if in_snapshot {
                    polls(db.snapshot().get_many(&table, &keys)).await
                } else {
                    polls(table.get_many(&keys)).await
                };
                assert!(values.unwrap().iter().all(Option::is_some));
                assert!(polls >= keys.len() as u64 / AT_ONCE_MAX, "{} keys in {polls} polls", keys.len());
            }
        }
        for puts in [1_000_u32, 100_000] {
            let mut batch = Batch::new();
            (0..puts).for_each(|number| _ = batch.put(&table, number.to_be_bytes(), [2; 8]));
            let (polls, written) = polls(db.write(batch, Durability::Sync)).await;
            written.unwrap();
            assert!(polls >= u64::from(puts) / AT_ONCE_MAX, "{puts} puts in {polls} polls");
        }
    });
}

#[test]
fn a_page_in_a_transaction_counts_as_read_and_nothing_before_or_behind_it() {
    let (db, table) = database(&tiny());
    let key = |number: u32| number.to_be_bytes();
    (0..60).for_each(|number| table.put(key(number), "1").unwrap());
    for is_reversed in [false, true] {
        for changed in [0, 19, 20, 21, 25, 26, 27, 59] {
            let change = db.begin();
            change.put(&table, "own", "1").unwrap();
            let range = change.range::<&[u8]>(&table, ..).unwrap();
            let range = if is_reversed { range.rev().after(key(26)) } else { range.after(key(20)) };
            let mut found: Vec<_> = range.limit(5).map(|entry| entry.unwrap().0).collect();
            found.sort();
            assert!(found.into_iter().eq((21..=25).map(|number| key(number).to_vec())));
            table.put(key(changed), "2").unwrap();
            let committed = change.commit(Durability::Sync);
            let conflicts = committed.is_err_and(|error| error.kind() == ErrorKind::Conflict);
            assert_eq!(conflicts, (21..=25).contains(&changed), "{changed} changed, reversed: {is_reversed}");
        }
    }
}

#[test]
fn pages_of_a_transaction_agree_with_a_model_of_the_table_and_its_own_writes() {
    let (db, table) = database(&tiny());
    let mut rng = fastrand::Rng::with_seed(5);
    let mut model = std::collections::BTreeMap::new();
    let key = |number: u16| number.to_be_bytes().to_vec();
    for number in (0..400).filter(|_| rng.bool()) {
        table.put(key(number), "table").unwrap();
        model.insert(key(number), b"table".to_vec());
    }
    let change = db.begin();
    for _ in 0..300 {
        let number = key(rng.u16(..400));
        if rng.bool() {
            change.put(&table, &number, "own").unwrap();
            model.insert(number, b"own".to_vec());
        } else {
            change.delete(&table, &number).unwrap();
            model.remove(&number);
        }
        let (prefix, after, limit) = ([rng.u8(..3)], key(rng.u16(..600)), rng.u64(..6));
        let of_prefix = model.iter().filter(|(key, _)| key.starts_with(&prefix));
        let mut expected: Vec<_> = of_prefix.map(|(key, value)| (key.clone(), value.clone())).collect();
        let range = change.prefix(&table, prefix).unwrap();
        let range = if rng.bool() {
            expected.reverse();
            expected.retain(|(key, _)| *key < after);
            range.rev()
        } else {
            expected.retain(|(key, _)| *key > after);
            range
        };
        expected.truncate(limit as usize);
        let found: Vec<_> = range.after(&after).limit(limit).map(Result::unwrap).collect();
        assert_eq!(found, expected, "{prefix:?} after {after:?}, {limit} at most");
    }
    let range = change.range::<&[u8]>(&table, ..).unwrap();
    change.commit(Durability::Sync).unwrap();
    let mut range = range.after("a");
    assert_eq!(range.next().unwrap().unwrap_err().kind(), ErrorKind::InvalidCall, "the transaction has ended");
    assert!(range.next().is_none());
}

/// Some of the transactions begin while a large commit that lists no keys takes effect, without seeing it.
#[test]
fn no_update_is_lost_to_a_large_deferred_commit_that_lists_no_keys() {
    let settings = Settings { cache_bytes: 16 << 20, log_bytes: 8 << 20, ..tiny() };
    let (db, table) = database(&settings);
    // The changes are copied for it, so that the commits take effect more slowly.
    let _watch = db.watch();
    let one_more = |change: &nofault::blocking::Transaction| {
        let count = change.get(&table, "count")?.map_or(0, |count| u32::from_le_bytes(count.try_into().unwrap()));
        change.put(&table, "count", (count + 1).to_le_bytes())
    };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let small = std::thread::scope(|scope| {
        let small = scope.spawn(|| {
            let (mut rng, mut added) = (fastrand::Rng::with_seed(8), 0_u32);
            while !is_over.load(Ordering::Relaxed) {
                // Mostly idle: no keys are listed only while no transaction is open.
                std::thread::sleep(Duration::from_micros(rng.u64(0..3_000)));
                let change = db.begin();
                one_more(&change).unwrap();
                match change.commit(Durability::Deferred) {
                    Ok(()) => added += 1,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
                }
            }
            added
        });
        for _ in 0..LARGE {
            let added = db.transact(Durability::Deferred, |change| {
                one_more(change)?;
                (0..600_u32).try_for_each(|key| change.put(&table, key.to_be_bytes(), "large"))
            });
            if added.is_err() {
                is_over.store(true, Ordering::Relaxed);
            }
            added.unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        small.join().unwrap()
    });
    let count = u32::from_le_bytes(table.get("count").unwrap().unwrap().try_into().unwrap());
    assert_eq!(count, small + LARGE, "{small} small ones");
}

/// Commits list their keys only while a transaction is open: which others are open must make no difference to one.
#[test]
fn a_transaction_loses_to_changes_of_what_it_read_and_to_no_others_whatever_else_is_open() {
    let settings =
        Settings { cache_bytes: 16 << 20, log_bytes: 64 << 20, background_threads: false, ..Settings::default() };
    let (db, table) = database(&settings);
    let write = |prefix: &str, count: u32, durability| {
        let mut batch = Batch::new();
        (0..count).for_each(|number| _ = batch.put(&table, format!("{prefix}{number:05}"), "1"));
        db.write(batch, durability).unwrap();
    };
    for (others, count, durability) in [0, 1, 3].into_iter().flat_map(|others| {
        let each = move |durability| [1, 40, 700].map(move |count| (others, count, durability));
        [Durability::Deferred, Durability::Sync].into_iter().flat_map(each)
    }) {
        let what = format!("{others} others, {count} keys, {durability:?}");
        // Nothing is open now.
        write("a", count, durability);
        let held: Vec<_> = (0..others).map(|_| db.begin()).collect();
        let reads_and_commits = |prefix: &str| {
            let change = db.begin();
            change.get(&table, "a00000").unwrap();
            assert!(change.range(&table, "a00000".."a00002").unwrap().count() > 0, "{what}");
            write(prefix, count, durability);
            change.put(&table, "result", &what).unwrap();
            change.commit(Durability::Deferred)
        };
        reads_and_commits("b").unwrap_or_else(|error| panic!("{what}, other keys: {error}"));
        assert_eq!(reads_and_commits("a").unwrap_err().kind(), ErrorKind::Conflict, "{what}");
        for change in held {
            change.get(&table, "never").unwrap();
            change.put(&table, "result", "2").unwrap();
            change.commit(Durability::Deferred).unwrap_or_else(|error| panic!("{what}, held: {error}"));
        }
    }
}

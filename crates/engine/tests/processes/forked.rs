//! A database whose process forks: every call in the child is refused, and neither the parent nor its files notice.

use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nofault::blocking::{Db, Range, Table, UnfinishedDb};
use nofault::db::Pace;
use nofault::error::{Error, ErrorKind, Result};
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_sim::{SimOptions, SimWorld};

use crate::{FOLDER, child, folder, passes_in_a_child};

/// Rows of the table: more than the cache holds.
const ROWS: u32 = 6000;
/// Forks, each at another moment of the threads using the database.
const FORKS: u32 = 12;
/// Seconds after which a child waiting for ever ends by a signal.
const CHILD_ENDS_AFTER_S: u32 = 60;

fn row(number: u32) -> ([u8; 4], Vec<u8>) {
    (number.to_be_bytes(), vec![number as u8; 1000])
}

/// Runs `work` in a forked child, and fails when the child panics, hangs or ends by a signal.
fn in_a_child(work: impl FnOnce()) {
    // SAFETY: the child has this thread only. It allocates, which the C library allows after a fork, and runs the code of the
    // library to be tested; it ends without running destructors or handlers of this program.
    let forked = unsafe { libc::fork() };
    assert!(forked >= 0);
    if forked == 0 {
        // SAFETY: the signal's default action ends the child.
        unsafe { libc::alarm(CHILD_ENDS_AFTER_S) };
        let outcome = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: `_exit` may be called at any point.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = -1;
    // SAFETY: `status` outlives the call, and `forked` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(forked, &raw mut status, 0) }, forked);
    assert_eq!(status, 0, "the forked process ended by a signal or a panic");
}

fn refused<T>(what: &str, outcome: Result<T>) {
    let error = outcome.err().unwrap_or_else(|| panic!("{what} works in a forked process"));
    assert!(error.kind() == ErrorKind::Closed && error.to_string().contains("fork"), "{what}: {error:?}");
}

/// A range may give the entries that it had read before the fork.
fn refused_in_the_end(range: Range) {
    let outcome: Result<Vec<_>> = range.collect();
    refused("a range", outcome);
}

fn all_calls_are_refused(db: &Db, table: &Table, scratch: &Path) {
    let (key, value) = row(1);
    refused("get", table.get(key));
    refused("get_with", table.get_with(key, |_| ()));
    refused("contains_key", table.contains_key(key));
    refused("get_many", table.get_many(&[key, row(2).0]));
    refused("expiry", table.expiry(key));
    refused("first", table.first());
    refused("last", table.last());
    refused("len", table.len());
    refused("is_empty", table.is_empty());
    refused("approximate_len", table.approximate_len::<&[u8]>(..));
    refused("approximate_bytes", table.approximate_bytes::<&[u8]>(..));
    refused_in_the_end(table.iter());
    refused("put", table.put(key, &value));
    refused("delete", table.delete(key));
    refused("pop_first", table.pop_first());
    refused("clear", table.clear());
    refused("bulk_load", table.bulk_load([(&key, &value)]));
    refused("watch", table.watch([]));
    let mut batch = Batch::new();
    batch.put(table, key, &value);
    refused("write", db.write(batch, Durability::Deferred));
    refused("an empty write", db.write(Batch::new(), Durability::Sync));
    let change = db.begin();
    refused("get of a transaction", change.get(table, key));
    refused("put of a transaction", change.put(table, key, &value));
    refused("commit", change.commit(Durability::Sync));
    refused("transact", db.transact(Durability::Sync, |change| change.get(table, key)));
    let snapshot = db.snapshot();
    refused("get of a snapshot", snapshot.get(table, key));
    refused("create_table", db.create_table("u"));
    refused("table", db.table("t"));
    refused("open_or_create_table", db.open_or_create_table("u"));
    refused("rename_table", db.rename_table("t", "u"));
    refused("drop_table", db.drop_table("t"));
    refused("table_names", db.table_names());
    refused("list_tables", db.list_tables());
    refused("sync", db.sync());
    refused("await_durable", db.await_durable());
    refused("checkpoint", db.checkpoint());
    refused("compact", db.compact(Pace::Full, |_| true));
    refused("shrink", db.shrink(Pace::Full, |_| true));
    refused("remove_expired", db.remove_expired());
    refused("verify", db.verify());
    refused("backup", db.backup(scratch.join("backup")));
    refused("begin_tail", db.begin_tail());
    assert_eq!((db.stats().cache_bytes, db.readers().len()), (0, 0));
    assert!(db.asynchronous().completions().is_none());
    refused("close", db.clone().close());
}

/// Ends the threads using the database.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Opens and uses another database, and drops the inherited handles.
fn has_a_database_of_its_own(path: &Path, inherited: impl Sized) {
    let db = Db::create(path, &Settings::small(2, 1)).unwrap();
    let table = db.create_table("own").unwrap();
    table.put("a", "1").unwrap();
    drop(inherited);
    assert_eq!(table.get("a").unwrap(), Some(b"1".to_vec()));
    drop(table);
    db.close().unwrap();
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_forks() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let db = Db::open(folder.join("db"), &Settings::small(2, 1)).unwrap();
    let table = db.table("t").unwrap();
    let unfinished = UnfinishedDb::create(folder.join("unfinished"), &Settings::small(2, 1)).unwrap();
    let filled = unfinished.db().create_table("u").unwrap();
    let stop = AtomicBool::new(false);
    in_a_child(|| {
        // SAFETY: read once, and the child ends without dropping the original.
        let inherited = unsafe { std::ptr::read(&raw const unfinished) };
        refused("put", filled.put("a", "1"));
        refused("finish", inherited.finish());
    });
    in_a_child(|| {
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const unfinished) });
    });
    filled.put("a", "1").unwrap();
    unfinished.finish().unwrap();
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (stop, table) = (&stop, &table);
            scope.spawn(move || {
                let mut number = worker;
                while !stop.load(Ordering::Relaxed) {
                    let (key, value) = row(number % ROWS);
                    assert_eq!(table.get(key).unwrap(), Some(value.clone()));
                    table.put(key, value).unwrap();
                    number += 7;
                }
            });
        }
        // Also when a check fails.
        let _stop = Stop(&stop);
        for fork in 0..FORKS {
            let snapshot = db.snapshot();
            let (key, value) = row(fork);
            let (change, watch) = (db.begin(), table.watch([]).unwrap());
            change.get(&table, key).unwrap();
            change.put(&table, key, value).unwrap();
            let (mut range, mut changed) = (table.iter(), change.iter(&table).unwrap());
            range.next().unwrap().unwrap();
            changed.next().unwrap().unwrap();
            let (before, tail) = db.begin_tail().unwrap();
            let completions = (fork % 2 == 1).then(|| db.asynchronous().completions());
            let (db, table) = (db.clone(), table.clone());
            // Also dropped in the parent, when the child has ended.
            in_a_child(move || {
                let (mut watch, mut tail) = (watch, tail);
                let own = folder.join("own");
                all_calls_are_refused(&db, &table, folder);
                refused("get of a snapshot", snapshot.get(&table, key));
                // Its own changes it has in memory.
                refused("get of a transaction", change.get(&table, row(ROWS - 1).0));
                refused_in_the_end(range);
                refused("a range of a transaction", changed.collect::<Result<Vec<_>>>());
                refused("watching", watch.try_next());
                refused("watching", watch.next().unwrap_or_else(|| panic!("the end")));
                let event: Result<_> = tail.next().unwrap_or_else(|| panic!("the end"));
                refused("a tail", event);
                if let Some(Some(completions)) = &completions {
                    completions.take();
                }
                refused("commit", change.commit(Durability::Sync));
                let error: Error = Db::open(folder.join("db"), &Settings::small(2, 1)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                has_a_database_of_its_own(&own, (db, table, snapshot, watch, before, tail, completions));
                std::fs::remove_dir_all(own).unwrap();
            });
        }
    });
    table.put("after", "2").unwrap();
    println!("\nforked");
    let _ = std::io::stdin().read_line(&mut String::new());
    for number in 0..ROWS {
        let (key, value) = row(number);
        assert_eq!(table.get(key).unwrap(), Some(value));
    }
    db.checkpoint().unwrap();
    assert!(db.verify().unwrap().is_clean());
    let filled = Db::open(folder.join("unfinished"), &Settings::small(2, 1)).unwrap();
    assert_eq!(filled.table("u").unwrap().get("a").unwrap(), Some(b"1".to_vec()));
}

#[test]
fn a_forked_process_is_refused_and_its_parent_and_their_files_do_not_notice() {
    let folder = folder();
    let path = folder.path().join("db");
    let db = Db::create(&path, &Settings::small(2, 1)).unwrap();
    db.create_table("t").unwrap().bulk_load((0..ROWS).map(row)).unwrap();
    db.close().unwrap();
    let mut holder = child("forked::child_that_forks", folder.path(), &[]);
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "forked"), "the child ended early");
    // The lock is the parent's still.
    assert_eq!(Db::open(&path, &Settings::small(2, 1)).unwrap_err().kind(), ErrorKind::Busy);
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    let db = Db::open(&path, &Settings::small(2, 1)).unwrap();
    assert_eq!(db.table("t").unwrap().get("after").unwrap(), Some(b"2".to_vec()));
    assert!(db.verify().unwrap().is_clean());
}

/// Opens and closes a database in memory.
fn open_and_close() {
    let world = SimWorld::new(1, SimOptions::calm());
    Db::create_in(&world.directory(), &Settings::small(2, 1)).unwrap().close().unwrap();
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_forks_while_it_opens() {
    const FORKS: u32 = 200;
    if std::env::var_os(FOLDER).is_none() {
        return;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                open_and_close();
            }
        });
        let _stop = Stop(&stop);
        (0..FORKS).for_each(|_| in_a_child(open_and_close));
    });
}

#[test]
fn a_process_forked_while_a_thread_opens_a_database_opens_one_of_its_own() {
    let folder = folder();
    passes_in_a_child("forked::child_that_forks_while_it_opens", folder.path());
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_forks_while_it_closes() {
    const FORKS: u32 = 40;
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let path = Path::new(&folder).join("db");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            let mut openings = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                // A child may have inherited the last one's descriptors, with its locks and rings.
                let db = Db::open_or_create(&path, &Settings::small(2, 1)).unwrap();
                db.open_or_create_table("t").unwrap().put("openings", openings.to_string()).unwrap();
                db.close().unwrap();
                openings += 1;
            }
            openings
        });
        {
            let _stop = Stop(&stop);
            for _ in 0..FORKS {
                in_a_child(|| {
                    open_and_close();
                    // The parent closes and opens in that time.
                    std::thread::sleep(std::time::Duration::from_millis(30));
                });
            }
        }
        assert!(opened.join().unwrap() > 0);
    });
    let db = Db::open(&path, &Settings::small(2, 1)).unwrap();
    assert!(db.verify().unwrap().is_clean());
}

#[test]
fn a_process_forked_while_a_thread_closes_a_database_keeps_nothing_of_it_locked() {
    let folder = folder();
    passes_in_a_child("forked::child_that_forks_while_it_closes", folder.path());
}

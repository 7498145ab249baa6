//! A full log or a full disk: each commit proceeds or returns an error that gives the reason; no call waits for ever.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::tiny;
use nofault::blocking::{Db, Table};
use nofault::error::{Error, ErrorKind, Result};
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_sim::depth::sample;
use nofault_sim::{Call, Effect, Fault, SimOptions, SimWorld};

const ENOSPC: i32 = 28;
const LOG_BYTES: u64 = 64 << 10;
/// Numbers of rows of commits. The first is applied at once, and the second finds the log full in the middle of its record;
/// the last is applied in portions.
const ROWS: [u32; 3] = [400, 700, 1500];

fn small_log(background_threads: bool) -> Settings {
    Settings { cache_bytes: 4 << 20, log_bytes: LOG_BYTES, background_threads, seed: Some(1), ..tiny() }
}

/// Runs `work` on another thread, and fails when it takes more than a minute.
fn within_a_minute<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || drop(tell.send(work())));
    told.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|error| panic!("{what}: it hangs, or failed: {error}"))
}

fn write_large(db: &Db, table: &Table, rows: u32) -> Result<()> {
    let mut batch = Batch::new();
    for row in 0..rows {
        batch.put(table, row.to_be_bytes(), [row as u8; 100]);
    }
    db.write(batch, Durability::Sync)
}

/// Creates a database and makes a commit of so many rows, unless the simulated power fails first.
fn large_commit(world: &SimWorld, rows: u32) -> Result<()> {
    let db = Db::create_in(&world.directory(), &small_log(false))?;
    write_large(&db, &db.create_table("t")?, rows)
}

/// Reopens the database after a power cut in the commit of `all` rows and, if the table exists, commits twice.
fn goes_on(world: &SimWorld, settings: &Settings, (all, is_acknowledged): (u32, bool)) {
    let directory = world.directory();
    let mut rows = None;
    for key in ["a", "b"] {
        let db = match Db::open_in(&directory, settings) {
            Err(error) if error.kind() == ErrorKind::NotFound && !is_acknowledged => return,
            opened => opened.unwrap(),
        };
        let Ok(table) = db.table("t") else {
            assert!(!is_acknowledged, "the table is lost: {world}");
            return;
        };
        let found = table.range::<&[u8]>(..).count() as u32;
        let is_whole = |found| found == all || (found == 0 && !is_acknowledged);
        assert!(rows.map_or(is_whole(found), |before| found == before), "{found} rows: {world}");
        table.put(key, "v").unwrap();
        // This commit may get the number of a commit whose record was abandoned.
        rows = Some(found + 1);
    }
}

/// Regression: a record without an end kept its log space forever: every commit waited for it, also after further
/// reopens.
#[test]
fn a_power_cut_in_a_commit_larger_than_the_log_leaves_a_database_that_commits() {
    for rows in ROWS {
        let whole = SimWorld::new(3, SimOptions::default());
        large_commit(&whole, rows).unwrap();
        let events = whole.events();
        for event in sample(1..=events, 6) {
            let world = SimWorld::new(3, SimOptions::default());
            world.cut_after(event);
            let is_acknowledged = large_commit(&world, rows).is_ok();
            for background_threads in [false, true] {
                let (after, settings) = (world.restart(event), small_log(background_threads));
                let what = format!("{rows} rows, event {event} of {events}, threads: {background_threads}");
                within_a_minute(&what, move || goes_on(&after, &settings, (rows, is_acknowledged)));
            }
        }
    }
}

/// Regression: a commit that found the log full made one checkpoint, of the durable commits, and waited for another
/// one, which no thread made.
#[test]
fn a_commit_that_finds_the_log_full_of_unwritten_commits_goes_on_without_threads() {
    within_a_minute("without threads", || {
        let world = SimWorld::new(5, SimOptions::default());
        let db = Db::create_in(&world.directory(), &small_log(false)).unwrap();
        let table = db.create_table("t").unwrap();
        // The next checkpoint can free only the log space of the commits that follow.
        db.checkpoint().unwrap();
        let tasks: &nofault::Table = table.as_ref();
        let mut context = Context::from_waker(Waker::noop());
        let mut commits = Vec::new();
        while db.stats().log.live_bytes + 2000 < LOG_BYTES {
            let key = (commits.len() as u32).to_be_bytes();
            let mut commit = Box::pin(tasks.put(key, [7; 1000]));
            let before = db.stats().log.waiting_bytes;
            assert!(commit.as_mut().poll(&mut context).is_pending());
            assert!(db.stats().log.waiting_bytes > before, "it is in the log, and not written");
            commits.push(commit);
        }
        table.put("k", [8; 2500]).unwrap();
        for commit in &mut commits {
            assert!(matches!(commit.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
        }
        assert_eq!(table.range::<&[u8]>(..).count(), commits.len() + 1);
    });
}

/// Creates a database with a table and a log whose file has reached its final size, so that it needs no more disk
/// space.
fn with_a_long_log(world: &SimWorld) -> (Db, Table) {
    let db = Db::create_in(&world.directory(), &small_log(true)).unwrap();
    let table = db.create_table("t").unwrap();
    write_large(&db, &table, ROWS[2]).unwrap();
    db.checkpoint().unwrap();
    (db, table)
}

/// Puts until one is refused; returns the error and the number of puts that succeeded.
fn put_until_refused(table: &Table) -> (Error, u32) {
    let put = |number: u32| table.put(number.to_be_bytes(), [number as u8; 3000]);
    let refused = |number| Some((put(number).err()?, number));
    (0..20_000).find_map(refused).expect("the disk never fills up")
}

#[test]
fn a_full_disk_refuses_commits_that_find_the_log_full_until_space_is_free() {
    within_a_minute("on a full disk", || {
        let world = SimWorld::new(6, SimOptions::default());
        let (db, table) = with_a_long_log(&world);
        world.set_capacity(Some(world.bytes_used()));
        for _ in 0..2 {
            let (error, kept) = put_until_refused(&table);
            assert_eq!(error.kind(), ErrorKind::NoSpace, "after {kept} puts: {error}");
        }
        let rows = table.range::<&[u8]>(..).count();
        world.set_capacity(None);
        // A checkpoint that had begun may still fail.
        let put = |_: &u32| table.put("k", "v").is_ok();
        assert!((0..100).find(put).is_some(), "there is room again");
        assert_eq!(table.range::<&[u8]>(..).count(), rows + 1);
        db.checkpoint().unwrap();
        assert!(db.verify().unwrap().is_clean());
    });
}

/// Whatever the disk has space for: the batch is there completely or missing, and the database continues.
#[test]
fn a_full_disk_refuses_a_large_batch_as_a_whole_and_takes_it_when_space_is_free() {
    let (mut taken, mut refused) = (0, 0);
    for (rows, spare_kib) in ROWS.into_iter().flat_map(|rows| (0..200).step_by(8).map(move |spare| (rows, spare))) {
        let what = format!("{rows} rows, {spare_kib} KiB of space");
        let world = SimWorld::new(8, SimOptions::calm());
        let directory = world.directory();
        let db = Db::create_in(&directory, &small_log(false)).unwrap();
        let table = db.create_table("t").unwrap();
        // In the midst of the keys of the batch.
        table.put([0, 0, 0, 200, 0], "v").unwrap();
        db.checkpoint().unwrap();
        world.set_capacity(Some(world.bytes_used() + (spare_kib << 10)));
        let count = || table.range::<&[u8]>(..).count() as u32;
        match write_large(&db, &table, rows) {
            Ok(()) => {
                taken += 1;
                assert_eq!(count(), rows + 1, "{what}");
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}: {error}");
                assert_eq!(count(), 1, "{what}");
                world.set_capacity(None);
                // A checkpoint that had begun may still fail.
                assert!((0..100).any(|_| write_large(&db, &table, rows).is_ok()), "{what}: there is room again");
            }
        }
        drop((table, db));
        world.set_capacity(None);
        let db = Db::open_in(&directory, &small_log(false)).unwrap();
        assert_eq!(db.table("t").unwrap().range::<&[u8]>(..).count() as u32, rows + 1, "{what}");
        assert!(db.verify().unwrap().is_clean(), "{what}");
    }
    assert!(taken > 10 && refused > 10, "{taken} taken, {refused} refused");
}

/// Regression: the thread that frees pages waited for log space while it occupied the commit section, and closing
/// waited for that thread.
#[test]
fn a_database_closes_although_no_log_space_is_left_to_free_a_dropped_table() {
    within_a_minute("freeing a dropped table on a full disk", || {
        let world = SimWorld::new(7, SimOptions::default());
        let (db, table) = with_a_long_log(&world);
        let dropped = db.create_table("dropped").unwrap();
        dropped.bulk_load((0..20_000u32).map(|row| (row.to_be_bytes(), [1; 100]))).unwrap();
        // A checkpoint that is half-way when writes begin to fail would poison the database: after this call none is
        // under way.
        db.checkpoint().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let waits = db.stats().log.space_waits;
        world.inject(Fault::new(Call::Write, Effect::Errno(ENOSPC)).on("data").times(u64::MAX));
        // Leaves enough log space for the drop and the first step of freeing.
        while db.stats().log.live_bytes + (8 << 10) < LOG_BYTES {
            table.put("k", "v").unwrap();
        }
        db.drop_table("dropped").unwrap();
        // The records of the freeing steps are empty: freeing continues for as long as they find log space, perhaps to
        // its end.
        for _ in 0..200 {
            if db.stats().log.space_waits > waits {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Nothing was published without log space: commits are refused, and the database is not poisoned.
        let (error, kept) = put_until_refused(&table);
        assert_eq!(error.kind(), ErrorKind::NoSpace, "after {kept} puts: {error}");
        drop((table, dropped, db));
        let directory: Arc<dyn Directory> = world.restart(1).directory();
        let db = Db::open_in(&directory, &small_log(true)).unwrap();
        assert_eq!(db.table_names().unwrap(), ["t"]);
        assert!(db.verify().unwrap().is_clean());
    });
}

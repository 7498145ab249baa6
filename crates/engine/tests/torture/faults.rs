//! One call to the system fails, whichever it is: the caller gets an error, reads go on, and nothing acknowledged is
//! lost.

use std::sync::Arc;

use fastrand::Rng;
use nofault::Durability;
use nofault::blocking::Db;
use nofault::error::{Error, ErrorKind};
use nofault_io::disk::Directory;
use nofault_sim::depth::by_depth;
use nofault_sim::{Caching, Call, Effect, Fault, SimOptions, SimStats, SimWorld};

use crate::story::{Book, Story, Style, blames_the_data, content, difference, for_each_seed, tiny, verify};

/// The error of an interrupted call that the disk has stopped repeating.
const EINTR: i32 = 4;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const STEPS: usize = 45;

/// Creates a database, takes steps, and continues after each failure as a careful application would; then checks the
/// content. Returns the counts of calls to the simulated disk, and whether the fault occurred.
fn history(seed: u64, fault: Option<Fault>, what: &str) -> (SimStats, bool) {
    let caching = [Caching::Direct, Caching::Buffered][seed as usize / 2 % 2];
    let options = [SimOptions::calm(), SimOptions::adversarial()][seed as usize % 2];
    let world = SimWorld::new(seed, SimOptions { caching, ..options });
    let directory = world.directory();
    if let Some(fault) = &fault {
        world.inject(fault.clone());
    }
    let db = Db::create_in(&directory, &tiny()).or_else(|error| {
        check_kind(&error, what);
        // Cut short before or after it became a database.
        Db::open_in(&directory, &tiny()).or_else(|error| {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: {error:?}");
            Db::create_in(&directory, &tiny())
        })
    });
    let db = db.unwrap_or_else(|error| panic!("{what}: create again: {error:?}"));
    let style = Style { keys: 60, reopen: true };
    let mut story = Story::new(db, directory.clone(), &tiny(), Book::new(), Rng::with_seed(seed), style);
    for _ in 0..STEPS {
        if let Err(error) = story.step() {
            check_kind(&error, what);
            if settle(&mut story, error, caching, what) == Health::Poisoned {
                break;
            }
        }
    }
    let met = world.stats().error_count > 0;
    let stats = world.stats();
    let Story { db, mut book, mut rng, .. } = story;
    drop(db);
    // The process ended, or the power failed: pages are lost then if their sync had failed.
    let after = if rng.bool() { world.restart(seed) } else { world.clone() };
    let directory = after.directory();
    let db = (0..2).find_map(|_| Db::open_in(&directory, &tiny()).ok());
    let db = db.unwrap_or_else(|| Db::open_in(&directory, &tiny()).unwrap_or_else(|error| panic!("{what}: {error:?}")));
    let found = content(&db).or_else(|_| content(&db)).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    book.survived(found.clone(), what);
    verify(&db).or_else(|_| verify(&db)).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let table = db.create_table("afterwards").or_else(|_| db.create_table("afterwards"));
    let created = table.is_ok();
    if let Err(error) = table {
        assert!(fault.is_some() && error.kind() != ErrorKind::Corrupt, "{what}: {error:?}");
    }
    if world.stats().error_count > 0 && fault.is_some_and(|fault| fault.call() == Call::SyncDirectory) {
        // Names that a failed sync has covered stay in doubt forever, and nothing tells that to a process that opens them.
        return (stats, met);
    }
    // A power cut must not take back any content that the database has shown after the fault: that content would rest on writes that the
    // fault has lost.
    let directory: Arc<dyn Directory> = after.restart(seed).directory();
    let db = Db::open_in(&directory, &tiny()).unwrap_or_else(|error| panic!("{what}, then a power cut: {error:?}"));
    let mut last = content(&db).unwrap_or_else(|error| panic!("{what}, then a power cut: {error:?}"));
    let there = last.remove("afterwards").is_some();
    assert!(there || !created, "{what}, then a power cut: an acknowledged table is gone");
    assert!(last == found, "{what}, then a power cut: {}", difference(&found, &last));
    (stats, met)
}

#[derive(PartialEq)]
enum Health {
    Sound,
    Poisoned,
}

fn check_kind(error: &Error, what: &str) {
    assert!(!blames_the_data(error) && error.kind() != ErrorKind::Closed, "{what}: {error:?}");
    assert!(error.to_string().len() > 10, "{what}: {error:?} says nothing");
}

/// Checks the database after a failure: either nothing happened and commits continue, or commits fail until it is
/// reopened and reads continue.
///
/// A page cache may have dropped pages that a failed sync covered, and the pool had no reason to keep them. A read of such a page
/// is an error that names it, until the database is opened again and has them from the log.
fn settle(story: &mut Story, error: Error, caching: Caching, what: &str) -> Health {
    let synced = if error.kind() == ErrorKind::Poisoned { Err(error) } else { story.db.sync() };
    match synced {
        Ok(()) => {
            if std::mem::take(&mut story.undecided) {
                story.book.refused();
            }
            story.book.durable();
            let found = content(&story.db).unwrap_or_else(|error| panic!("{what}: {error:?}"));
            story.book.survived(found, &format!("{what}: after a commit that failed and one that did not"));
            Health::Sound
        }
        Err(poison) => {
            assert_eq!(poison.kind(), ErrorKind::Poisoned, "{what}: {poison:?}");
            let page_is_gone = |error: &Error| caching == Caching::Buffered && error.kind() == ErrorKind::Corrupt;
            match content(&story.db) {
                Ok(found) => story.book.clone().survived(found, &format!("{what}: poisoned")),
                Err(error) if page_is_gone(&error) => {}
                Err(error) => panic!("{what}: reads go on: {error:?}"),
            }
            for _ in 0..2 {
                let refused = story.db.create_table("poisoned").expect_err("commits fail for good");
                assert!(refused.kind() == ErrorKind::Poisoned || page_is_gone(&refused), "{what}: {refused:?}");
            }
            Health::Poisoned
        }
    }
}

fn count_of(stats: &SimStats, call: Call) -> u64 {
    match call {
        Call::Read => stats.read_count,
        Call::Write => stats.write_count,
        Call::Sync => stats.sync_count,
        Call::Allocate => stats.allocate_count,
        Call::SyncDirectory => stats.directory_sync_count,
        Call::Truncate => stats.truncate_count,
        Call::Create | Call::Open | Call::Rename | Call::Remove | Call::List => 8,
    }
}

/// Makes calls of this kind fail, one call in each run, at most `cases` of them, evenly spread.
fn every(seed: u64, call: Call, errno: i32, cases: u64) {
    let (stats, _) = history(seed, None, "without a fault");
    let count = count_of(&stats, call);
    let stride = (count / cases).max(1);
    let mut met = 0;
    for k in (0..count).step_by(stride as usize) {
        let what = format!("seed {seed}, errno {errno} at {call:?} number {k}");
        met += u64::from(history(seed, Some(Fault::new(call, Effect::Errno(errno)).after(k)), &what).1);
    }
    println!("seed {seed}: {met} of {count} {call:?} calls failed with errno {errno}");
    assert!(met > 0 || count == 0 || matches!(call, Call::Remove), "seed {seed}: no {call:?} was met");
}

#[test]
fn a_file_that_cannot_be_opened_created_or_renamed_is_an_error_without_further_harm() {
    for_each_seed("a_name_that_cannot_be", 1..=by_depth(1, 2), |seed| {
        for call in [Call::Create, Call::Open, Call::Rename, Call::Remove, Call::List, Call::SyncDirectory] {
            every(seed, call, EIO, 10);
            every(seed, call, ENOSPC, 10);
            every(seed, call, EINTR, 5);
        }
    });
}

#[test]
fn a_failed_read_is_an_error_for_its_waiters_and_is_then_forgotten() {
    for_each_seed("a_failed_read", 1..=by_depth(1, 2), |seed| {
        every(seed, Call::Read, EIO, 150);
        every(seed, Call::Read, EINTR, 20);
    });
}

#[test]
fn a_failed_write_or_allocation_is_refused_or_poisons() {
    for_each_seed("a_failed_write", 1..=by_depth(1, 4), |seed| {
        every(seed, Call::Write, EIO, 150);
        every(seed, Call::Write, ENOSPC, 50);
        every(seed, Call::Write, EINTR, 20);
        every(seed, Call::Allocate, ENOSPC, 20);
    });
}

#[test]
fn a_failed_sync_poisons_commits_and_reads_go_on() {
    for_each_seed("a_failed_sync", 1..=by_depth(2, 6), |seed| {
        every(seed, Call::Sync, EIO, 100);
        every(seed, Call::Sync, EINTR, 10);
    });
}

#[test]
fn a_full_disk_refuses_writes_until_space_is_free_again() {
    for_each_seed("a_full_disk", 1..=by_depth(2, 4), |seed| {
        let world = SimWorld::new(seed, SimOptions::default());
        let db = Db::create_in(&world.directory(), &tiny()).unwrap();
        let table = db.create_table("t").unwrap();
        world.set_capacity(Some(world.bytes_used() + 64 * 1024));
        let mut kept = 0u32;
        let error = loop {
            assert!(kept < 10_000, "seed {seed}: the disk never fills up");
            match table.put(kept.to_be_bytes(), [kept as u8; 900]) {
                Ok(()) => kept += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Poisoned), "seed {seed}: {error:?}");
        println!("seed {seed}: full after {kept} puts: {error}");
        for key in 0..kept {
            assert_eq!(table.get(key.to_be_bytes()).unwrap(), Some(vec![key as u8; 900]), "seed {seed}");
        }
        world.set_capacity(None);
        if error.kind() == ErrorKind::Poisoned {
            return;
        }
        table.put(kept.to_be_bytes(), "room").unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        db.checkpoint().unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        db.write(nofault::Batch::new(), Durability::Sync).unwrap();
        assert_eq!(table.range::<&[u8]>(..).count() as u32, kept + 1, "seed {seed}");
    });
}

//! Concurrent commits: the guarantees of each when it returns, and the state after all of them.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use crate::common::tiny;
use nofault::blocking::Db;
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Batch, Durability};
use nofault_io::disk::Directory;
use nofault_sim::{SimOptions, SimWorld};

const WRITERS: u32 = 8;

fn in_memory(seed: u64) -> Arc<dyn Directory> {
    SimWorld::new(seed, SimOptions::default()).directory()
}

/// Runs threads that commit keys which no other thread changes, and checks after each commit that its thread reads
/// them.
fn each_sees_its_own(db: &Db, commits: u32) {
    let table = db.create_table("t").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (db, table) = (db, &table);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(writer.into());
                    for commit in 1..=commits {
                        let mut batch = Batch::new();
                        batch.put(table, [0, writer as u8], commit.to_be_bytes());
                        batch.put(table, [1, writer as u8], commit.to_be_bytes());
                        let durability = if random.u32(0..4) == 0 { Durability::Deferred } else { Durability::Sync };
                        db.write(batch, durability).unwrap();
                        for half in 0..2 {
                            let seen = table.get([half, writer as u8]).unwrap().unwrap();
                            assert_eq!(seen, commit.to_be_bytes(), "writer {writer}, {durability:?}");
                        }
                    }
                })
            })
            .collect();
        // A reader that never sleeps, and sees whole commits in their order.
        scope.spawn(|| {
            let mut before = [0; WRITERS as usize];
            while !done.load(Ordering::Relaxed) {
                let snapshot = db.snapshot();
                for (writer, before) in before.iter_mut().enumerate() {
                    let [first, second] = [0, 1].map(|half| snapshot.get(&table, [half, writer as u8]).unwrap());
                    assert_eq!(first, second, "half a commit of writer {writer}");
                    let now = first.map_or(0, |value| u32::from_be_bytes(value.try_into().unwrap()));
                    assert!(now >= *before, "writer {writer} went back from {before} to {now}");
                    *before = now;
                }
            }
        });
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
}

#[test]
fn a_concurrent_committer_sees_its_commit_when_the_call_returns() {
    for background_threads in [true, false] {
        let settings = Settings {
            page_bytes: 512,
            cache_bytes: 4 << 20,
            log_bytes: 4 << 20,
            background_threads,
            ..Settings::with_small_pages()
        };
        each_sees_its_own(&Db::create_in(&in_memory(7), &settings).unwrap(), 200);
    }
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { cache_bytes: 16 << 20, ..Settings::default() };
    let path = folder.path().join("db");
    each_sees_its_own(&Db::create(&path, &settings).unwrap(), 50);
    let db = Db::open(&path, &settings).unwrap();
    let table = db.table("t").unwrap();
    for writer in 0..WRITERS as u8 {
        assert_eq!(table.get([1, writer]).unwrap().unwrap(), 50_u32.to_be_bytes(), "after opening again");
    }
}

#[test]
fn old_versions_are_reclaimed_while_commits_go_on() {
    for durability in [Durability::Sync, Durability::Deferred] {
        let settings = Settings {
            page_bytes: 512,
            cache_bytes: 8 << 20,
            log_bytes: 64 << 20,
            background_threads: false,
            // Its own epochs: nothing else in this process holds them up.
            seed: Some(5),
            ..Settings::with_small_pages()
        };
        let db = Db::create_in(&in_memory(5), &settings).unwrap();
        let table = db.create_table("t").unwrap();
        for number in 0..4000_u32 {
            let mut batch = Batch::new();
            batch.put(&table, "key", number.to_be_bytes());
            db.write(batch, durability).unwrap();
        }
        let dirty = db.stats().pool.pages_dirty;
        assert!(dirty < 1000, "{durability:?}: {dirty} versions of one page");
    }
}

#[test]
fn old_versions_of_each_of_many_threads_are_reclaimed_while_the_threads_live() {
    const THREADS: usize = 32;
    const COMMITS: u32 = 50;
    let settings = Settings {
        page_bytes: 512,
        cache_bytes: 8 << 20,
        log_bytes: 64 << 20,
        background_threads: false,
        seed: Some(6),
        ..Settings::with_small_pages()
    };
    let db = Db::create_in(&in_memory(6), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    let (all_done, all_may_go) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let committed = (0..COMMITS).try_for_each(|number| table.put("key", number.to_be_bytes()));
                all_done.wait();
                all_may_go.wait();
                committed.unwrap();
            });
        }
        all_done.wait();
        // A thread preempted in the middle of a commit has kept the versions of its epoch: each further commit collects
        // more of them. Versions kept by the threads themselves, which sleep now, would stay.
        for number in 0..1000_u32 {
            if db.stats().pool.pages_dirty < 500 {
                break;
            }
            table.put("key", number.to_be_bytes()).unwrap();
        }
        let dirty = db.stats().pool.pages_dirty;
        all_may_go.wait();
        assert!(dirty < 500, "{dirty} versions of one page");
    });
}

#[test]
fn a_transaction_that_read_what_a_load_or_a_drop_changed_conflicts_also_when_older_commits_are_forgotten_after_it() {
    for is_load in [true, false] {
        let db = Db::create_in(&in_memory(8), &tiny()).unwrap();
        let [table, other] = ["table", "other"].map(|name| db.create_table(name).unwrap());
        let oldest = db.begin();
        other.put("x", "1").unwrap();
        let late = db.begin();
        assert_eq!(late.get(&table, "k").unwrap(), None);
        if is_load {
            table.bulk_load([("k", "loaded")]).unwrap();
        } else {
            db.drop_table("table").unwrap();
        }
        drop(oldest);
        // No handle can ask for the first commit any more; `late` can ask for the second.
        other.put("y", "2").unwrap();
        late.put(&other, "k", "mine").unwrap();
        let error = late.commit(Durability::Sync).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "load: {is_load}: {error}");
        assert_eq!(other.get("k").unwrap(), None);
    }
}

#[test]
fn pages_that_change_during_a_verification_are_not_reported_as_damage() {
    let db = Db::create_in(&in_memory(9), &Settings { snapshot_bytes_max: 20 * 512, ..tiny() }).unwrap();
    let table = db.create_table("t").unwrap();
    let put_all = |round: u8| (0..400_u32).try_for_each(|number| table.put(number.to_be_bytes(), [round; 60]));
    put_all(0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rounds = (1..=u8::MAX).cycle();
            while !done.load(Ordering::Relaxed) {
                rounds.next().map_or(Ok(()), put_all)?;
            }
            nofault::error::Result::Ok(())
        });
        let found: Vec<_> = (0..30).map(|_| db.verify()).collect();
        done.store(true, Ordering::Relaxed);
        for found in found {
            let found = found.unwrap();
            assert!(found.is_clean(), "{:?}", found.problems);
        }
        writer.join().unwrap().unwrap();
    });
    assert!(db.stats().pool.snapshot_bytes <= 20 * 512, "{:?}", db.stats().pool);
}
